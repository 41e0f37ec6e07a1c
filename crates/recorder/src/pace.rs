//! The durations of the latest iterations. Their median can be queried from outside while the process runs.
//!
//! A thread stores a duration at the end of each iteration. It holds the lock on the session's state (the state of
//! steps and windows), or it is opening or closing a window. So only one thread at a time stores a duration.

use core::sync::atomic::{AtomicU64, Ordering};

use tllmprof_platform::lifecycle::{self, OnlyThread};

use super::clock;

/// The number of the latest iterations whose durations are stored.
const KEPT: usize = 128;

lifecycle::global! {
    stage: Sinks;

    #[fork(in_child)]
    static PACE: Pace = Pace::new();
}

struct Pace {
    /// The durations of the latest iterations, in ticks, as a ring: the iteration that was added as number n
    /// is at index n modulo [`KEPT`].
    took: [AtomicU64; KEPT],
    /// The number of iterations added so far.
    count: AtomicU64,
}

/// Adds an iteration that took `took` ticks.
pub(crate) fn add(took: u64) {
    PACE.add(took);
}

/// Returns the median duration of the latest iterations, in nanoseconds; `None` if none has ended.
pub fn median_ns() -> Option<u64> {
    let ticks = PACE.median()?;
    Some((ticks as f64 / clock::ticks_per_ns()) as u64)
}

impl Pace {
    const fn new() -> Self {
        Self {
            took: [const { AtomicU64::new(0) }; KEPT],
            count: AtomicU64::new(0),
        }
    }

    fn add(&self, took: u64) {
        let count = self.count.load(Ordering::Relaxed);
        self.took[(count % KEPT as u64) as usize].store(took, Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Relaxed);
    }

    fn median(&self) -> Option<u64> {
        let count = self.count.load(Ordering::Relaxed).min(KEPT as u64) as usize;
        let mut took = self
            .took
            .each_ref()
            .map(|took| took.load(Ordering::Relaxed));
        let took = &mut took[..count];
        took.sort_unstable();
        took.get(count / 2).copied()
    }

    /// Discards the durations in the child of a fork, which has no iterations yet.
    fn in_child(&self, _: &OnlyThread) {
        self.count.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_of_the_latest_iterations() {
        let pace = Pace::new();
        assert_eq!(pace.median(), None);
        let after = |took: u64, times: usize| {
            (0..times).for_each(|_| pace.add(took));
            pace.median()
        };
        assert_eq!(after(5, 1), Some(5));
        assert_eq!(after(7000, KEPT), Some(7000));
        assert_eq!(after(10, KEPT / 2), Some(7000));
        assert_eq!(after(10, 1), Some(10));
    }
}
