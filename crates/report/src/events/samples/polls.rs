//! Finds the threads that poll: they wait for work with a short time limit, find none, and wait again.
//!
//! It is not recorded what ended such a wait. But if a thread has waited, given no work to the GPU, and waits again in
//! the same function, then the first wait did not end by work for the GPU.

use std::collections::BTreeMap;

use super::causes::SampledWait;
use super::frames::Frames;
use super::sleep::{Sleep, SleepKind};

/// Minimum share of the samples of a thread's waits in the same function, as a fraction, that must be in repeated waits
/// for all these waits to count as waits for work. The last wait before work comes need not be repeated.
const MIN_REPEATED: f64 = 0.5;

/// The waits of a thread in the same sleep for which no cause was found.
#[derive(Debug, Default)]
struct SameWaits {
    /// The indexes of the samples.
    samples: Vec<usize>,
    /// Number of the samples in repeated waits.
    repeated: usize,
}

/// The waits for which no cause was found, by thread and sleep.
#[derive(Debug, Default)]
pub(super) struct Polls(BTreeMap<(u32, u32), SameWaits>);

impl Polls {
    /// Adds a wait for which no cause was found.
    pub(super) fn add(&mut self, wait: &SampledWait) {
        let known = self.0.entry((wait.thread, wait.sleep)).or_default();
        known.samples.extend(&wait.samples);
        if wait.is_repeated {
            known.repeated += wait.samples.len();
        }
    }

    /// Returns the waits in which threads poll for work: the sleep that replaces them, and the indexes of their samples.
    pub(super) fn for_work(self, frames: &Frames) -> Vec<(Sleep, Vec<usize>)> {
        let waits = self.0.into_iter().filter_map(|((_, sleep), waits)| {
            let sleep = frames.sleeps.get(sleep as usize)?;
            let is_repeated = waits.repeated as f64 >= MIN_REPEATED * waits.samples.len() as f64;
            let polls = sleep.kind == SleepKind::Poll && is_repeated;
            polls.then(|| (sleep.for_work(), waits.samples))
        });
        waits.collect()
    }
}
