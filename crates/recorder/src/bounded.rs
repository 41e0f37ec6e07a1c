//! A lock with a time-out. If a signal handler jumps out of a thread that holds the lock, the lock is never released.
//! With an ordinary lock, each thread that records an event would then wait for the whole time-out. With this lock,
//! only the first wait lasts that long.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

use tllmprof_platform::lifecycle::OnlyThread;
use tllmprof_sync::{Guard, Lock};

/// A lock with a time-out. After a wait has timed out, no thread waits for the lock until a thread has acquired it
/// again.
pub(crate) struct Bounded<T> {
    lock: Lock<T>,
    is_stuck: AtomicBool,
}

impl<T> Bounded<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            lock: Lock::new(value),
            is_stuck: AtomicBool::new(false),
        }
    }

    /// Waits for the lock for at most `patience`. Does not wait at all if the previous wait timed out.
    pub(crate) fn lock_for(&self, patience: Duration) -> Option<Guard<'_, T>> {
        let patience = match self.is_stuck.load(Ordering::Relaxed) {
            true => Duration::ZERO,
            false => patience,
        };
        let guard = self.lock.lock_for(patience);
        self.is_stuck.store(guard.is_none(), Ordering::Relaxed);
        guard
    }

    /// Releases the lock in the child of a fork, even if a thread of the parent held it. That thread does not exist in
    /// the child, so the value that the lock guards may be only partly changed.
    pub(crate) fn break_open(&self, alone: &OnlyThread) {
        self.lock.break_open(alone);
        self.is_stuck.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_whose_holder_never_comes_back_is_waited_for_once() {
        let lock = Bounded::new(());
        let guard = lock.lock_for(Duration::ZERO);
        assert!(lock.lock_for(Duration::from_millis(1)).is_none());
        // This second call must not wait. If it did, the test would take a day.
        assert!(lock.lock_for(Duration::from_secs(100_000)).is_none());
        drop(guard);
        assert!(lock.lock_for(Duration::ZERO).is_some());
        assert!(!lock.is_stuck.load(Ordering::Relaxed));
    }
}
