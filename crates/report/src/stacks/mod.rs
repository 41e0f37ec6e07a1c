//! Sampled stacks: what the threads that make steps ran, by function.
//!
//! A sample counts if it was taken in an iteration of its own thread that the host's ledger is of, and not while that
//! waited for requests. Stacks that changed while they were read are rejected and counted apart.

mod frames;
mod native;
mod rates;
mod tree;

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_record::{Clock, Event, Strings, Taken, ThreadState, What};

pub use frames::Frames;
pub use tree::{Tree, TreeNode};

use crate::facts::Facts;
use frames::RawFrames;
use rates::Rates;
use tree::TreeBuilder;

/// From how many samples on functions are distinguished.
pub const ENOUGH: u64 = 200;

/// How many samples are kept; more are counted.
const SAMPLES: usize = 1 << 20;

/// How many functions are listed.
const FUNCTIONS: usize = 32;

/// A sample of a thread's stack.
#[derive(Clone, Copy, Debug)]
pub struct StackSample {
    /// In nanoseconds of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// The same in ticks of the record's clock.
    pub ticks: u64,
    pub thread: u32,
    pub taken: Taken,
    pub state: Option<ThreadState>,
    /// The innermost frame's id.
    pub frame: u32,
}

/// What a sample shows of its thread. Functions are places in [`Frames::functions`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Seen {
    Python(u32),
    /// In a lock or a system call; `None`: of no Python function.
    Asleep(Option<u32>),
    /// It could run, and had no processor.
    Waiting,
    /// In no Python function.
    Outside,
    Native(u32),
}

impl Seen {
    /// Whether it is of a native stack: such samples are taken apart from the others.
    pub const fn is_native(self) -> bool {
        matches!(self, Self::Native(_))
    }
}

/// Frames and samples as they come.
#[derive(Debug, Default)]
pub struct RawStacks {
    frames: RawFrames,
    samples: Vec<StackSample>,
    pub left_out: u64,
}

impl RawStacks {
    /// Takes an event if it is one of sampled stacks.
    pub fn take(&mut self, clock: &Clock, event: &Event) {
        match event.what {
            What::Frame { id, parent, name } => {
                self.left_out += u64::from(!self.frames.add(id, parent, name));
            }
            What::Sample { .. } if self.samples.len() == SAMPLES => self.left_out += 1,
            What::Sample {
                taken,
                state,
                thread,
                frame,
            } => self.samples.push(StackSample {
                at: clock.ns(event.start),
                ticks: event.start,
                thread,
                taken,
                state,
                frame,
            }),
            _ => (),
        }
    }

    /// Samples by thread and time, and the frames with their names.
    pub fn finish(mut self, facts: &Facts, strings: &Strings) -> Sampled {
        self.samples
            .sort_by_key(|sample| (sample.thread, sample.at));
        let native = |sample: &&StackSample| sample.taken == Taken::Native;
        let native = self.samples.iter().filter(native);
        let native = native.map(|sample| sample.frame).collect();
        Sampled {
            frames: self.frames.finish(native, facts, strings),
            samples: self.samples,
        }
    }
}

/// Samples by thread and time, and what their frames are.
#[derive(Debug, Default)]
pub struct Sampled {
    pub samples: Vec<StackSample>,
    pub frames: Frames,
}

impl Sampled {
    /// What a sample shows; `None`: it was rejected, or its frame is not there.
    pub fn seen(&self, sample: &StackSample) -> Option<Seen> {
        let function = || self.frames.get(sample.frame).map(|frame| frame.function);
        match (sample.taken, sample.state) {
            (Taken::Torn, _) => None,
            (Taken::Native, _) => function().map(Seen::Native),
            (Taken::Python | Taken::NoPython, Some(ThreadState::Runnable)) => Some(Seen::Waiting),
            (Taken::Python, Some(ThreadState::Sleeping)) => {
                function().map(|function| Seen::Asleep(Some(function)))
            }
            (Taken::Python, _) => function().map(Seen::Python),
            (Taken::NoPython, Some(ThreadState::Sleeping)) => Some(Seen::Asleep(None)),
            (Taken::NoPython, _) => Some(Seen::Outside),
        }
    }
}

/// So many samples of stacks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, JsonSchema)]
pub struct SampleCounts {
    /// Samples that count.
    #[schemars(extend("unit" = "samples"))]
    pub samples: u64,
    /// Samples that were rejected, as the stack changed while it was read.
    #[schemars(extend("unit" = "samples"))]
    pub rejected: u64,
    /// Samples of native stacks, which are taken apart from the others.
    #[schemars(extend("unit" = "samples"))]
    pub native: u64,
}

impl SampleCounts {
    const fn count(&mut self, seen: Option<Seen>) {
        match seen {
            None => self.rejected += 1,
            Some(Seen::Native(_)) => self.native += 1,
            Some(_) => self.samples += 1,
        }
    }

    /// Those by which functions are distinguished.
    pub fn enough(self) -> bool {
        self.samples.max(self.native) >= ENOUGH
    }

    /// How much of what was taken was rejected.
    #[must_use]
    pub fn rejected_share(self) -> f64 {
        self.rejected as f64 / (self.samples + self.rejected).max(1) as f64
    }
}

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

/// What samples of stacks show.
#[derive(Debug, Default)]
pub struct Stacks {
    /// How often samples were to be taken, in Hz; `None`: they were not.
    pub rate: Option<u64>,
    /// How often they were taken, in Hz; `None`: there are too few of them.
    pub achieved: Option<u64>,
    /// The same of native stacks while their threads ran.
    pub achieved_native: Option<u64>,
    pub counts: SampleCounts,
    /// The mean time between samples in iterations, in nanoseconds.
    pub interval: Option<u64>,
    /// The same of each window.
    pub windows: Vec<SampleCounts>,
    /// Those that were innermost most often first.
    pub functions: Vec<FunctionSamples>,
    /// Calls of Python functions, and of native ones.
    pub python: Tree,
    pub native: Tree,
    /// All of the record, in iterations or not.
    pub sampled: Sampled,
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

/// Where a sample counts.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub window: usize,
    /// Among those of its window, and among those of all.
    pub in_window: bool,
    pub in_all: bool,
}
