//! Keeps every thread out of the driver for a moment.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::time::Instant;

use super::{CLOSED, HELD, OPEN, SHUT, UNSEEN, UNSEEN_PASSES};
use crate::{barrier, thread};
use tllmprof_sync::wake;

/// The interval between checks if the last thread has left the driver.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// Keeps the gate closed, with no thread in the driver. The gate opens when this is dropped.
pub struct Closed(());

impl Drop for Closed {
    fn drop(&mut self) {
        open();
    }
}

/// Closes the gate and waits until no thread is in the driver. `None` if one still is after `patience`: a
/// thread that waits there may wait for what another one has to launch, so the gate is opened again.
pub fn close(patience: Duration) -> Option<Closed> {
    CLOSED.store(SHUT, Ordering::SeqCst);
    let closed = Closed(());
    // Without the barrier a thread may be about to pass that is not visible yet.
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

/// Opens the gate.
pub fn open() {
    CLOSED.store(OPEN, Ordering::SeqCst);
    wake(&CLOSED, i32::MAX);
}

/// Makes calls wait at the gate, for a bounded time. They continue when this is dropped.
pub struct HeldCalls(());

impl Drop for HeldCalls {
    fn drop(&mut self) {
        release();
    }
}

/// Makes calls wait, if there are gates, while the calling thread is in the driver. The driver's lock goes to
/// whichever thread asks first, so with several threads that launch without a pause, the calling thread might
/// not get it for seconds. Threads that are in the driver already continue.
pub fn hold() -> Option<HeldCalls> {
    (super::is_wanted()
        && CLOSED
            .compare_exchange(OPEN, HELD, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok())
    .then(|| HeldCalls(()))
}

/// Ends a [`hold`], if there is one.
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
