//! Achieved sampling rates, computed from the times of the samples.
//!
//! A machine may sample less often than requested: a kernel without high-resolution timers samples
//! only at its timer tick, and a sampler that gets no processor is late.

use tllmprof_record::{Taken, ThreadState};

use crate::events::samples::StackSample;

/// Minimum number of intervals between samples that is needed to compute a rate.
const MIN_INTERVALS: u64 = 10;

/// Achieved sampling rates in Hz; `None` if there are too few samples.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rates {
    /// Rate of the samples that the library's own sampler took, including rejected samples.
    pub walked: Option<u64>,
    /// Rate of the samples of native stacks, which the operating system's kernel takes only while a
    /// thread runs.
    pub native: Option<u64>,
}

impl Rates {
    /// Returns the achieved sampling rates. `samples` must be sorted by thread and time. `windows`
    /// contains the starts of windows: an interval between samples that contains such a start is
    /// left out, because nothing is sampled between windows.
    pub(crate) fn measure(samples: &[StackSample], windows: &[u64]) -> Self {
        let (mut walked, mut native) = (Mean::default(), Mean::default());
        for thread in samples.chunk_by(|a, b| a.thread == b.thread) {
            let (mut last_walked, mut last_native) = (None, None);
            let mut upcoming = windows.to_vec();
            upcoming.sort_unstable_by_key(|start| std::cmp::Reverse(*start));
            for sample in thread {
                while upcoming.pop_if(|start| *start <= sample.at).is_some() {
                    (last_walked, last_native) = (None, None);
                }
                if sample.taken == Taken::Native {
                    native.add(last_native.replace(sample.at), sample.at);
                    continue;
                }
                walked.add(last_walked.replace(sample.at), sample.at);
                if sample.state != Some(ThreadState::Running) {
                    last_native = None;
                }
            }
        }
        Self {
            walked: walked.rate(),
            native: native.rate(),
        }
    }
}

/// Number and sum of intervals between samples, from which their mean is computed.
#[derive(Default)]
struct Mean {
    intervals: u64,
    /// Sum of the intervals between samples, in nanoseconds.
    sum: u64,
}

impl Mean {
    fn add(&mut self, last: Option<u64>, now: u64) {
        let Some(last) = last else { return };
        self.intervals += 1;
        self.sum = self.sum.saturating_add(now - last);
    }

    fn rate(&self) -> Option<u64> {
        let is_enough = self.intervals >= MIN_INTERVALS && self.sum > 0;
        is_enough.then(|| (self.intervals as f64 * 1e9 / self.sum as f64).round() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn sample(thread: u32, at: u64, taken: Taken, state: ThreadState) -> StackSample {
        StackSample {
            at,
            ticks: at,
            thread,
            taken,
            state: Some(state),
            frame: 1,
            sleep: None,
            waits_for_events: false,
        }
    }

    fn running(thread: u32, at: u64, taken: Taken) -> StackSample {
        sample(thread, at, taken, ThreadState::Running)
    }

    fn rates(mut samples: Vec<StackSample>, windows: &[u64]) -> Rates {
        samples.sort_by_key(|sample| (sample.thread, sample.at));
        Rates::measure(&samples, windows)
    }

    #[test]
    fn a_rate_is_of_the_samples_of_one_thread() {
        let of = |thread| (0..50).map(move |n| running(thread, n * 4 * MS, Taken::Python));
        let found = rates(of(1).chain(of(2)).collect(), &[0]);
        assert_eq!((found.walked, found.native), (Some(250), None));
    }

    #[test]
    fn the_time_between_two_windows_is_none_between_samples() {
        let later = 60_000 * MS;
        let of = |from| (0..50).map(move |n| running(1, from + n * 5 * MS, Taken::Python));
        let found = rates(of(MS).chain(of(later + MS)).collect(), &[later, 0]);
        assert_eq!(found.walked, Some(200));
    }

    #[test]
    fn native_samples_are_missing_only_where_their_thread_ran() {
        // In this test the thread alternately runs for 40 ms and sleeps for 40 ms. The operating
        // system's kernel takes a sample every 4 ms while the thread runs.
        let mut samples = Vec::new();
        for n in 0..800 {
            let runs = n / 40 % 2 == 0;
            let state = [ThreadState::Sleeping, ThreadState::Running][usize::from(runs)];
            samples.push(sample(1, n * MS, Taken::Python, state));
            if runs && n % 4 == 0 {
                samples.push(sample(1, n * MS + 1, Taken::Native, state));
            }
        }
        let found = rates(samples, &[0]);
        assert_eq!((found.walked, found.native), (Some(1000), Some(250)));
    }

    #[test]
    fn few_samples_have_no_rate() {
        let few = |many| {
            (0..many)
                .map(|n| running(1, n * MS, Taken::Python))
                .collect()
        };
        assert_eq!(rates(few(MIN_INTERVALS), &[0]).walked, None);
        assert_eq!(rates(few(MIN_INTERVALS + 1), &[0]).walked, Some(1000));
    }
}
