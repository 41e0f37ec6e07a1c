//! Samples of stacks, as the record has them.

mod frames;
mod native;

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_record::{Clock, Event, Strings, Taken, ThreadState, What};

use super::facts::Facts;
pub use frames::Frames;
use frames::RawFrames;

/// From how many samples on functions are distinguished.
pub const ENOUGH: u64 = 200;

/// How many samples are kept; more are counted.
const SAMPLES: usize = 1 << 20;

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
    /// Counts a sample.
    pub const fn count(&mut self, seen: Option<Seen>) {
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

/// Where a sample counts.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub window: usize,
    /// Among those of its window, and among those of all.
    pub in_window: bool,
    pub in_all: bool,
}
