//! NVTX start/end ranges whose end also ends an iteration. Such a range may end on another thread than the
//! one that started it.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

use tllmprof_sync::{Lock, OnlyThread};

/// The largest number of ranges that are tracked at a time. If there are more, the oldest ones are dropped.
const MAX_FOLLOWED: usize = 32;
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// The tracked ranges of the process: those whose end ends an iteration.
pub struct Started {
    /// The number of tracked ranges. While it is 0, handling the end of a range takes only one load.
    count: AtomicUsize,
    /// The id of each tracked range and the iteration that ends with the range, the oldest first.
    ranges: Lock<[(u64, u64); MAX_FOLLOWED]>,
}

impl Started {
    pub const fn new() -> Self {
        Self {
            count: AtomicUsize::new(0),
            ranges: Lock::new([(0, 0); MAX_FOLLOWED]),
        }
    }

    /// Starts to track range `id`, which has been started and whose end will end `iteration`.
    pub fn follow(&self, id: u64, iteration: u64) {
        let Some(mut ranges) = self.ranges.lock_for(LOCK_TIMEOUT) else {
            return;
        };
        let mut count = self.count.load(Ordering::Relaxed);
        if count == MAX_FOLLOWED {
            ranges.rotate_left(1);
            count -= 1;
        }
        ranges[count] = (id, iteration);
        self.count.store(count + 1, Ordering::Release);
    }

    /// Stops tracking range `id`, which has ended. Returns the iteration that ends with the range, if the range was
    /// tracked.
    #[inline]
    pub fn ended(&self, id: u64) -> Option<u64> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.take(id)
    }

    #[cold]
    fn take(&self, id: u64) -> Option<u64> {
        let mut ranges = self.ranges.lock_for(LOCK_TIMEOUT)?;
        let count = self.count.load(Ordering::Relaxed);
        let index = ranges[..count].iter().position(|range| range.0 == id)?;
        let (_, iteration) = ranges[index];
        ranges[index..count].rotate_left(1);
        self.count.store(count - 1, Ordering::Release);
        Some(iteration)
    }

    /// Drops the tracked ranges in the child of a fork.
    pub fn in_child(&self, alone: &OnlyThread) {
        self.ranges.break_open(alone);
        self.count.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_once() {
        let started = Started::new();
        assert_eq!(started.ended(5), None);
        started.follow(5, 50);
        started.follow(6, 60);
        started.follow(7, 70);
        assert_eq!(started.ended(6), Some(60));
        assert_eq!(started.ended(6), None);
        assert_eq!(started.ended(7), Some(70));
        assert_eq!(started.ended(5), Some(50));
        assert_eq!(started.ended(5), None);
    }

    #[test]
    fn ranges_that_never_end_are_given_up() {
        let started = Started::new();
        for id in 0..100 {
            started.follow(id, id);
        }
        let ended = (0..100).filter_map(|id| started.ended(id));
        assert_eq!(ended.collect::<Vec<_>>(), (68..100).collect::<Vec<_>>());
    }
}
