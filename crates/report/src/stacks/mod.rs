//! Sampled stacks: what the threads that make steps ran, by function.
//!
//! A sample counts if it was taken in an iteration of its own thread that the host's ledger is of, and not while that
//! waited for requests. Stacks that changed while they were read are rejected and counted apart.

mod rates;
pub mod text;
mod tree;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tllmprof_record::ThreadState;

pub use tree::{Tree, TreeNode};

use crate::events::samples::{ENOUGH, Place, SampleCounts, Sampled, Seen};
use rates::Rates;
use tree::TreeBuilder;

/// How many functions are listed.
const FUNCTIONS: usize = 32;

/// How often a function was seen.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct FunctionSamples {
    /// The function: `QUALNAME (FILE:FIRST LINE)` of Python.
    pub name: String,
    /// The same without folders.
    #[serde(skip)]
    pub label: String,
    /// In `functions` the samples that it was the innermost function of; in trees also those in what it calls.
    #[schemars(extend("unit" = "samples"))]
    pub samples: u64,
    /// How many of those its thread slept in.
    #[schemars(extend("unit" = "samples"))]
    pub asleep: u64,
    /// How much of all samples that is.
    #[schemars(extend("unit" = "part of 1"))]
    pub share: f64,
}

/// Samples of the stacks of the threads that make iterations. Those count that were taken in iterations which `host` of
/// the ledger is of, but for those taken while the thread waited for requests.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Stacks {
    /// How often samples were to be taken; `null`: not known.
    #[schemars(extend("unit" = "Hz"))]
    pub rate: Option<u64>,
    /// How often they were taken, from the times of the samples; `null`: there are too few of them.
    #[schemars(extend("unit" = "Hz"))]
    pub achieved: Option<u64>,
    /// The same of native stacks, while their threads ran: a kernel whose timer ticks less often takes fewer.
    #[schemars(extend("unit" = "Hz"))]
    pub achieved_native: Option<u64>,
    /// The mean time between samples in iterations; `null`: there are none.
    #[serde(rename = "interval_ns")]
    pub interval: Option<u64>,
    /// How many there are.
    pub counts: SampleCounts,
    /// How much of the samples was rejected.
    #[schemars(extend("unit" = "part of 1"))]
    pub rejected_share: f64,
    /// From how many samples on functions are distinguished.
    #[schemars(extend("unit" = "samples"))]
    pub enough: u64,
    /// Whether the ledger distinguishes functions by them.
    pub told_apart: bool,
    /// For each of `windows`: how many there are.
    pub windows: Vec<SampleCounts>,
    /// Functions by how often they were the innermost one, the greatest first: up to 32.
    pub functions: Vec<FunctionSamples>,
    /// Who called whom. Callers come before what they call; what is under 0.1 % of the samples is left out.
    #[serde(rename = "tree")]
    pub python: Tree,
    /// The same of native stacks.
    #[serde(rename = "native_tree")]
    pub native: Tree,
    /// All of the record, in iterations or not.
    #[serde(skip)]
    pub sampled: Sampled,
}

/// Writes what was sampled, if anything was.
///
/// # Errors
/// Where it cannot be written.
pub fn write_any<S: Serializer>(stacks: &Stacks, serializer: S) -> Result<S::Ok, S::Error> {
    stacks.is_there().then_some(stacks).serialize(serializer)
}

impl Stacks {
    /// `windows` has the start of each window in nanoseconds; `places` the window of each sample, of those that count,
    /// and whether that window counts it; `took` is how long the iterations took that they count in, without waiting
    /// for requests.
    pub fn of(
        sampled: Sampled,
        rate: Option<u64>,
        windows: &[u64],
        places: &[Option<Place>],
        took: u64,
    ) -> Self {
        let mut counts = SampleCounts::default();
        let mut by_window = vec![SampleCounts::default(); windows.len()];
        let mut functions = vec![(0_u64, 0_u64); sampled.frames.functions.len()];
        let [mut python, mut native] = [TreeBuilder::default(), TreeBuilder::default()];
        for (sample, place) in sampled.samples.iter().zip(places) {
            let Some(place) = place else { continue };
            let seen = sampled.seen(sample);
            if place.in_window
                && let Some(window) = by_window.get_mut(place.window)
            {
                window.count(seen);
            }
            if !place.in_all {
                continue;
            }
            counts.count(seen);
            let Some(seen) = seen else { continue };
            let asleep = sample.state == Some(ThreadState::Sleeping);
            let innermost = match seen {
                Seen::Native(_) => None,
                _ => sampled.frames.get(sample.frame),
            };
            if let Some(frame) = innermost
                && let Some(function) = functions.get_mut(frame.function as usize)
            {
                function.0 += 1;
                function.1 += u64::from(asleep);
            }
            let tree = match seen.is_native() {
                true => &mut native,
                false => &mut python,
            };
            tree.add(&sampled.frames.stack(sample.frame), asleep);
        }
        let rates = Rates::of(&sampled.samples, windows);
        let taken = counts.samples + counts.rejected;
        let all = counts.samples.max(1) as f64;
        let known = sampled.frames.functions.iter().zip(functions);
        let mut functions: Vec<_> = known
            .filter(|(_, (samples, _))| *samples > 0)
            .map(|(function, (samples, asleep))| FunctionSamples {
                name: function.name.clone(),
                label: function.label.clone(),
                samples,
                asleep,
                share: samples as f64 / all,
            })
            .collect();
        functions.sort_by(|a, b| {
            let by_name = || a.name.cmp(&b.name);
            b.samples.cmp(&a.samples).then_with(by_name)
        });
        functions.truncate(FUNCTIONS);
        Self {
            rate,
            achieved: rates.walked,
            achieved_native: rates.native,
            counts,
            rejected_share: counts.rejected_share(),
            enough: ENOUGH,
            told_apart: counts.enough(),
            interval: took.checked_div(taken),
            windows: by_window,
            functions,
            python: python.finish(&sampled.frames),
            native: native.finish(&sampled.frames),
            sampled,
        }
    }

    /// Whether anything was sampled, or was to be.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.rate.is_some() || !self.sampled.samples.is_empty()
    }
}
