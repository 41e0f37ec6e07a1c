//! Closes the gates (code in front of the driver's functions): keeps every thread out of the driver for a moment.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::time::Instant;

use super::{CLOSED, HELD, OPEN, SHUT, UNSEEN, UNSEEN_PASSES};
use crate::{barrier, thread};
use tllmprof_sync::wake;

/// The interval at which the closing thread checks whether the last thread has left the driver.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// A proof that the gates (code in front of the driver's functions) are closed and no thread is in the driver. The
/// gates open when this value is dropped.
pub struct Closed(());

impl Drop for Closed {
    fn drop(&mut self) {
        open();
    }
}

/// Closes the gates and waits until no thread is in the driver. If a thread is still in the driver after `patience`,
/// opens the gates and returns `None`: that thread may be waiting for a thread that waits at a gate. Also returns
/// `None` if the kernel does not support the barrier that this needs.
pub fn close(patience: Duration) -> Option<Closed> {
    CLOSED.store(SHUT, Ordering::SeqCst);
    let closed = Closed(());
    // A gate first stores that its call is in progress, and then reads `CLOSED`. After the barrier, each other thread
    // either has made this store, which the check below sees, or will read the new value of `CLOSED` and wait. If the
    // kernel does not support the barrier, the gates cannot be closed.
    if !barrier::process_wide() {
        return None;
    }
    let deadline = Instant::now() + patience;
    let is_empty = || {
        UNSEEN.load(Ordering::SeqCst) == 0
            && thread::records().all(|record| record.flight() == 0)
            && super::users() == 0
    };
    while !is_empty() {
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Some(closed)
}

/// Opens the gates and wakes the calls that wait at the gates.
pub fn open() {
    CLOSED.store(OPEN, Ordering::SeqCst);
    wake(&CLOSED, i32::MAX);
}

/// While this value exists, new calls wait at their gates. They continue when this value is dropped, or when one of
/// them has waited for `MAX_HOLD`.
pub struct HeldCalls(());

impl Drop for HeldCalls {
    fn drop(&mut self) {
        release();
    }
}

/// Makes new calls of the program wait at the gates (code in front of the driver's functions) while the calling thread
/// works in the driver on behalf of this library. The driver's lock is not fair: while other threads launch without a
/// pause, the calling thread might not get the lock for seconds. Calls that are already in the driver continue. Returns
/// `None` if there are no gates, or if another thread has already closed the gates or made calls wait.
pub fn hold() -> Option<HeldCalls> {
    (super::is_wanted()
        && CLOSED
            .compare_exchange(OPEN, HELD, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok())
    .then(|| HeldCalls(()))
}

/// Ends a [`hold`], if one is active.
pub(super) fn release() {
    let is_held = CLOSED
        .compare_exchange(HELD, OPEN, Ordering::SeqCst, Ordering::SeqCst)
        .is_ok();
    if is_held {
        wake(&CLOSED, i32::MAX);
    }
}

/// Returns the number of calls so far that may have enqueued work on the GPU.
pub fn passes() -> u64 {
    let seen = thread::records().map(|record| record.passes()).sum::<u64>();
    seen + UNSEEN_PASSES.load(Ordering::Relaxed)
}
