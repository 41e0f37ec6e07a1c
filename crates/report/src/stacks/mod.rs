//! Sampled stacks of the threads that run iterations, by function.
//!
//! The figures include a sample if its thread was in one of its own iterations, if the host's ledger (the host's time
//! by cause) is based on that iteration, and if the thread did not wait for requests. Stacks that changed while the
//! sampler read them are rejected and counted separately.

mod rates;
pub(crate) mod text;
mod tree;

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tllmprof_record::ThreadState;

pub(crate) use tree::Tree;
pub use tree::TreeNode;

use crate::events::iteration::Iteration;
use crate::events::samples::{ENOUGH, SampleCounts, SamplePlace, Sampled, SampledState};
use rates::Rates;
use tree::TreeBuilder;

/// Maximum number of functions in the report's list of sampled functions.
const MAX_FUNCTIONS: usize = 32;

/// A function, and the number of stack samples that contain it.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct FunctionSamples {
    /// The name of the function. For Python it has the form `QUALNAME (FILE:FIRST LINE)`.
    pub name: String,
    /// The name without the folders of the file.
    #[serde(skip)]
    pub label: String,
    /// The number of samples of the function. In the list `functions` these are the samples in which it was the
    /// innermost function. In trees these are all samples in which it, or a function that it called, was running.
    #[schemars(extend("unit" = "samples"))]
    pub samples: u64,
    /// The number of samples of the function in which the thread was asleep.
    #[schemars(extend("unit" = "samples"))]
    pub asleep: u64,
    /// The share of the function's samples in all samples of the same kind (of Python stacks or of native stacks).
    #[schemars(extend("unit" = "part of 1"))]
    pub share: f64,
}

/// Stack samples of the threads that run iterations. A sample counts if it was taken in an iteration that `host` of the
/// ledger is based on, except during waits for requests.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Stacks {
    /// The requested sampling rate; `null` if it is not known.
    #[schemars(extend("unit" = "Hz"))]
    pub rate: Option<u64>,
    /// The sampling rate that was reached, computed from the times of the samples; `null` if there are too few samples.
    #[schemars(extend("unit" = "Hz"))]
    pub achieved: Option<u64>,
    /// The rate at which native stacks were sampled while their threads were running. It is lower than requested if the
    /// kernel's timer ticks less often. `null` if there are too few samples.
    #[schemars(extend("unit" = "Hz"))]
    pub achieved_native: Option<u64>,
    /// The mean time between two samples in iterations; `null` if there are no samples.
    #[serde(rename = "interval_ns")]
    pub interval: Option<u64>,
    /// The numbers of samples in the iterations of all windows.
    pub counts: SampleCounts,
    /// The share of samples that were rejected, because the stack changed while it was read.
    #[schemars(extend("unit" = "part of 1"))]
    pub rejected_share: f64,
    /// The minimum number of samples that the report needs to compare functions.
    #[schemars(extend("unit" = "samples"))]
    pub enough: u64,
    /// True if there are enough samples, so that the ledger divides time between functions.
    #[serde(rename = "told_apart")]
    pub has_enough: bool,
    /// The numbers of samples in each window, in the order of `windows` of the process.
    pub windows: Vec<SampleCounts>,
    /// The innermost functions of the samples, the one with the most samples first; at most 32.
    pub functions: Vec<FunctionSamples>,
    /// The call tree. A caller comes before the functions that it calls. Functions with less than 0.1 % of the samples
    /// are left out.
    #[serde(rename = "tree")]
    pub python: Tree,
    /// The call tree of native stacks, in the form of `tree`.
    #[serde(rename = "native_tree")]
    pub native: Tree,
    /// All samples of the record, inside and outside iterations.
    #[serde(skip)]
    pub sampled: Sampled,
}

/// Writes the sampled stacks as JSON; `null` if none were sampled and the user did not request that.
///
/// # Errors
/// Returns an error if writing fails.
pub(crate) fn write_any<S: Serializer>(stacks: &Stacks, serializer: S) -> Result<S::Ok, S::Error> {
    stacks.is_there().then_some(stacks).serialize(serializer)
}

impl Stacks {
    /// Returns the sums over samples. `windows` contains the start of each window in nanoseconds. `places` says for
    /// each sample which figures include it. `took` is the total time of the iterations whose samples are included,
    /// without waits for requests, in nanoseconds.
    pub fn new(
        sampled: Sampled,
        rate: Option<u64>,
        windows: &[u64],
        places: &[Option<SamplePlace>],
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
                SampledState::Native(_) => None,
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
        // If no sample contains a Python function, show only the native stacks.
        if functions.iter().all(|(samples, _)| *samples == 0) {
            python = TreeBuilder::default();
        }
        let rates = Rates::measure(&sampled.samples, windows);
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
        functions.truncate(MAX_FUNCTIONS);
        Self {
            rate,
            achieved: rates.walked,
            achieved_native: rates.native,
            counts,
            rejected_share: counts.rejected_share(),
            enough: ENOUGH,
            has_enough: counts.enough(),
            interval: took.checked_div(taken),
            windows: by_window,
            functions,
            python: python.finish(&sampled.frames),
            native: native.finish(&sampled.frames),
            sampled,
        }
    }

    /// Returns, for each iteration, the number of samples in which its thread ran Python code, and
    /// the number of samples in which the thread ran other code.
    #[must_use]
    pub fn code_of<'a>(&self, iterations: impl Iterator<Item = &'a Iteration>) -> Vec<[u64; 2]> {
        // Native stacks are sampled separately, and do not show whether the thread ran Python code.
        // So use them only if there are no other samples.
        let is_native_alone = self.counts.samples == 0;
        let mut threads: HashMap<u32, Vec<(u64, usize)>> = HashMap::new();
        for sample in &self.sampled.samples {
            let what = match self.sampled.seen(sample) {
                Some(SampledState::Python(_)) => 0,
                Some(SampledState::Outside) => 1,
                Some(SampledState::Native(_)) if is_native_alone => 1,
                _ => continue,
            };
            let of_thread = threads.entry(sample.thread).or_default();
            of_thread.push((sample.at, what));
        }
        threads
            .values_mut()
            .for_each(|samples| samples.sort_unstable());
        let code = iterations.map(|iteration| {
            let samples = threads
                .get(&iteration.thread)
                .map_or(&[][..], Vec::as_slice);
            let from = samples.partition_point(|(at, _)| *at < iteration.start);
            let until = samples.partition_point(|(at, _)| *at < iteration.end());
            let mut counts = [0; 2];
            for (_, what) in &samples[from..until] {
                counts[*what] += 1;
            }
            counts
        });
        code.collect()
    }

    /// Returns true if stacks were sampled, or if the user requested that.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.rate.is_some() || !self.sampled.samples.is_empty()
    }
}
