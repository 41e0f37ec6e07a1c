//! A lock that a thread of the program waits for in vain once: a signal handler may have jumped out of whoever holds it,
//! and then each chunk that is filled, or each event where there is no room, would wait again.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

use tllmprof_platform::lifecycle::OnlyThread;
use tllmprof_sync::{Guard, Lock};

/// A lock that is waited for in vain once, until somebody has had it again.
pub struct Bounded<T> {
    lock: Lock<T>,
    is_stuck: AtomicBool,
}

impl<T> Bounded<T> {
    pub const fn new(value: T) -> Self {
        Self {
            lock: Lock::new(value),
            is_stuck: AtomicBool::new(false),
        }
    }

    /// Waits for the lock until `patience` is used up; not at all where the last wait was in vain.
    pub fn lock_for(&self, patience: Duration) -> Option<Guard<'_, T>> {
        let patience = match self.is_stuck.load(Ordering::Relaxed) {
            true => Duration::ZERO,
            false => patience,
        };
        let guard = self.lock.lock_for(patience);
        self.is_stuck.store(guard.is_none(), Ordering::Relaxed);
        guard
    }

    /// Makes the lock free whoever held it. What it guards may be half changed.
    pub fn break_open(&self, alone: &OnlyThread) {
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
        // Else this would not end.
        assert!(lock.lock_for(Duration::from_secs(100_000)).is_none());
        drop(guard);
        assert!(lock.lock_for(Duration::ZERO).is_some());
        assert!(!lock.is_stuck.load(Ordering::Relaxed));
    }
}
