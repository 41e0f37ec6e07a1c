//! Closes the gate: keeps every thread out of the driver for a moment.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::time::Instant;

use super::{CLOSED, HELD, OPEN, SHUT, UNSEEN, UNSEEN_PASSES};
use crate::{barrier, thread};
use tllmprof_sync::wake;

/// Interval between checks whether the last thread has left the driver.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// Proof that the gate is closed and no thread is in the driver. The gate opens when this value is dropped.
pub struct Closed(());

impl Drop for Closed {
    fn drop(&mut self) {
        open();
    }
}

/// Closes the gate and waits until no thread is in the driver. Returns `None` and opens the gate again if a thread is
/// still in the driver after `patience`: it may be waiting for work that another thread has yet to launch.
pub fn close(patience: Duration) -> Option<Closed> {
    CLOSED.store(SHUT, Ordering::SeqCst);
    let closed = Closed(());
    // The barrier is needed to see every thread that is about to pass the gate. Without it, give up.
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

/// Opens the gate and wakes the calls that wait.
pub fn open() {
    CLOSED.store(OPEN, Ordering::SeqCst);
    wake(&CLOSED, i32::MAX);
}

/// While this value exists, calls wait at the gate for a bounded time. They continue when it is dropped.
pub struct HeldCalls(());

impl Drop for HeldCalls {
    fn drop(&mut self) {
        release();
    }
}

/// If there are gates, makes new calls wait while the calling thread is in the driver. The driver's lock goes to the
/// thread that asks first. So while other threads launch without a pause, the calling thread might not get it for
/// seconds. Threads that are already in the driver continue.
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

/// Returns the number of calls so far that may have given the GPU work.
pub fn passes() -> u64 {
    let seen = thread::records().map(|record| record.passes()).sum::<u64>();
    seen + UNSEEN_PASSES.load(Ordering::Relaxed)
}
