//! A lock that is safe in a preloaded library: waits for it can time out, and the child of a fork can release
//! it for a thread that no longer exists.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use core::time::Duration;

use crate::kernel::{self, this_thread};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// A mutual exclusion lock on a futex. A thread that holds it must not acquire it again. Code that may run while its
/// thread holds the lock, such as a signal handler, uses [`Lock::lock_for`], which times out.
///
/// The order of the fields puts the lock's word and the beginning of the value in the same cache line.
#[repr(C)]
pub struct Lock<T> {
    word: AtomicU32,
    /// ID of the thread that has locked the lock for its fork ([`Lock::hold_over_fork`]); 0 if there is none.
    forker: AtomicI32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is accessed only through a guard, and only one guard exists at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

/// A proof that no other thread uses the values (such as locks) that the caller is about to reset, for example in the
/// child of a fork, which has one thread. It also proves that this thread will not use any guard of these values again.
pub struct OnlyThread(());

impl OnlyThread {
    /// Returns the proof.
    ///
    /// # Safety
    /// Both conditions that the type's documentation states hold as long as the result exists.
    pub const unsafe fn new() -> Self {
        Self(())
    }
}

/// Access to the value of a locked lock. Dropping it unlocks the lock.
pub struct Guard<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    /// Returns a free lock that guards `value`.
    pub const fn new(value: T) -> Self {
        Self {
            word: AtomicU32::new(FREE),
            forker: AtomicI32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Consumes the lock and returns the guarded value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    /// Acquires the lock, and waits for it without a limit.
    pub fn lock(&self) -> Guard<'_, T> {
        loop {
            if let Some(guard) = self.lock_for(Duration::from_secs(3600)) {
                return guard;
            }
        }
    }

    /// Acquires the lock if it is free, or else returns `None`.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.word
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| Guard(self))
    }

    /// Acquires the lock, and waits for it for at most `patience`. Returns `None` after a time-out.
    pub fn lock_for(&self, patience: Duration) -> Option<Guard<'_, T>> {
        if self
            .word
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
        {
            return Some(Guard(self));
        }
        for _ in 0..100 {
            if self.word.load(Ordering::Relaxed) == FREE
                && self
                    .word
                    .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return Some(Guard(self));
            }
            core::hint::spin_loop();
        }
        let deadline = std::time::Instant::now() + patience;
        while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                return None;
            }
            wait(&self.word, CONTENDED, left);
        }
        Some(Guard(self))
    }

    /// Acquires the lock before a fork, so that the guarded value is consistent in the child. Gives up after 20 ms,
    /// because the fork may come from a signal handler that interrupted the thread that holds the lock.
    /// [`Lock::release_after_fork`] unlocks the lock in the parent, and [`Lock::break_open`] in the child.
    pub fn hold_over_fork(&self) {
        if let Some(guard) = self.lock_for(Duration::from_millis(20)) {
            core::mem::forget(guard);
            self.forker.store(this_thread(), Ordering::Relaxed);
        }
    }

    /// Unlocks the lock in the parent after a fork, if [`Lock::hold_over_fork`] has locked it on this thread.
    pub fn release_after_fork(&self) {
        let held =
            self.forker
                .compare_exchange(this_thread(), 0, Ordering::Relaxed, Ordering::Relaxed);
        if held.is_ok() {
            drop(Guard(self));
        }
    }

    /// Releases the lock in the child of a fork if [`Lock::hold_over_fork`] held it. The value is then consistent.
    /// Otherwise does nothing: if another thread of the parent held the lock, it stays locked.
    pub fn break_open_if_held(&self, alone: &OnlyThread) {
        if self.forker.load(Ordering::Relaxed) != 0 {
            self.break_open(alone);
        }
    }

    /// Releases the lock in the child of a fork, even if another thread of the parent held it. The guarded value is
    /// inconsistent if that thread was changing it at the time of the fork.
    pub fn break_open(&self, _: &OnlyThread) {
        self.forker.store(0, Ordering::Relaxed);
        self.word.store(FREE, Ordering::Release);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, and the value is not mutably borrowed at the same time.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock, and is borrowed for as long as the result.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if self.0.word.swap(FREE, Ordering::Release) == CONTENDED {
            wake(&self.0.word, 1);
        }
    }
}

/// Sleeps while `word` holds `value`, for at most `patience`. May return earlier, so the caller has to check
/// the word again.
pub fn wait(word: &AtomicU32, value: u32, patience: Duration) {
    let time = libc::timespec {
        tv_sec: patience.as_secs().cast_signed(),
        tv_nsec: patience.subsec_nanos().into(),
    };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let arguments = [
        word.as_ptr() as usize,
        operation as usize,
        value as usize,
        &raw const time as usize,
    ];
    // SAFETY: the futex word and the time outlive the call, which does not keep their addresses.
    unsafe { kernel::call(libc::SYS_futex, arguments) };
}

/// Sleeps while `word` holds `value`, in one system call without a time limit, until another thread wakes
/// this thread. May return earlier, so the caller has to check the word again.
pub fn wait_until_woken(word: &AtomicU32, value: u32) {
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let arguments = [
        word.as_ptr() as usize,
        operation as usize,
        value as usize,
        0,
    ];
    // SAFETY: the futex word outlives the call, and the null pointer means no time limit.
    unsafe { kernel::call(libc::SYS_futex, arguments) };
}

/// Wakes up to `count` threads that sleep on `word`.
pub fn wake(word: &AtomicU32, count: i32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    let arguments = [
        word.as_ptr() as usize,
        operation as usize,
        count as usize,
        0,
    ];
    // SAFETY: the kernel only uses the address of the futex word.
    unsafe { kernel::call(libc::SYS_futex, arguments) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_after_fork_does_not_take_the_lock_from_its_holder() {
        let lock = Lock::new(1);
        let guard = lock.lock();
        lock.release_after_fork();
        assert!(lock.try_lock().is_none());
        drop(guard);
        lock.hold_over_fork();
        std::thread::scope(|scope| {
            scope.spawn(|| lock.release_after_fork());
        });
        assert!(lock.try_lock().is_none());
        lock.release_after_fork();
        assert_eq!(lock.try_lock().map(|value| *value), Some(1));
    }

    #[test]
    fn trying_in_vain_does_not_unlock() {
        let lock = Lock::new(());
        let guard = lock.lock();
        for _ in 0..3 {
            assert!(lock.try_lock().is_none());
        }
        drop(guard);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn one_thread_at_a_time_has_the_lock() {
        const EACH: u64 = 20_000;
        let lock = Lock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        *lock.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(lock.into_inner(), 4 * EACH);
    }

    #[test]
    fn a_lock_is_waited_for_no_longer_than_patience() {
        let lock = Lock::new(());
        let guard = lock.lock();
        let patience = Duration::from_millis(20);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let since = std::time::Instant::now();
                (lock.lock_for(patience).is_none(), since.elapsed())
            });
            let (gave_up, waited) = waits.join().unwrap();
            assert!(gave_up && waited >= patience, "{waited:?}");
            // A thread that sleeps in `lock_for` must be woken when this thread releases the lock.
            let sleeps = scope.spawn(|| lock.lock_for(Duration::from_secs(60)).is_some());
            std::thread::sleep(patience);
            drop(guard);
            assert!(sleeps.join().unwrap());
        });
    }

    #[test]
    fn a_thread_sleeps_until_it_is_woken() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let sleeps = scope.spawn(|| {
                while word.load(Ordering::Acquire) == 0 {
                    wait_until_woken(&word, 0);
                }
            });
            word.store(1, Ordering::Release);
            while !sleeps.is_finished() {
                wake(&word, i32::MAX);
            }
        });
        // This call returns at once, because `word` does not hold the value 0.
        wait_until_woken(&word, 0);
    }

    #[test]
    fn a_fork_gives_up_on_a_lock_that_stays_locked() {
        let lock = Lock::new(());
        let guard = lock.lock();
        lock.hold_over_fork();
        lock.release_after_fork();
        assert!(lock.try_lock().is_none(), "it is still the guard's");
        drop(guard);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn in_a_child_a_lock_is_free_whoever_held_it() {
        let lock = Lock::new(3);
        core::mem::forget(lock.lock());
        // SAFETY: no other thread uses the lock, and the forgotten guard is not used again.
        let alone = unsafe { OnlyThread::new() };
        lock.break_open(&alone);
        assert_eq!(lock.try_lock().map(|value| *value), Some(3));
        lock.hold_over_fork();
        lock.break_open(&alone);
        assert!(lock.try_lock().is_some());
    }
}
