//! Keeping every thread out of the driver, for a moment.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::time::Instant;

use super::{CLOSED, HELD, OPEN, SHUT, UNSEEN, UNSEEN_PASSES};
use crate::{barrier, thread};
use tllmprof_sync::wake;

/// How often it is looked whether the last thread is out.
const LOOK: Duration = Duration::from_micros(20);

/// The gate is closed and no thread is in the driver; open again when dropped.
pub struct Closed(());

impl Drop for Closed {
    fn drop(&mut self) {
        open();
    }
}

/// Closes the gate and waits until no thread is in the driver. None if one still is after `patience`:
/// one that waits may wait for what another is to launch, so the gate is open again.
pub fn close(patience: Duration) -> Option<Closed> {
    CLOSED.store(SHUT, Ordering::SeqCst);
    let closed = Closed(());
    // Without the barrier a thread may be about to pass that does not show yet.
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
        std::thread::sleep(LOOK);
    }
    Some(closed)
}

/// Opens the gate.
pub fn open() {
    CLOSED.store(OPEN, Ordering::SeqCst);
    wake(&CLOSED, i32::MAX);
}

/// Calls wait at the gate, for a bounded time; they go on when this is dropped.
pub struct Held(());

impl Drop for Held {
    fn drop(&mut self) {
        release();
    }
}

/// Has calls wait, where there are gates, while the calling thread is in the driver: its lock goes to
/// whoever asks first, so that one thread among several which launch without a pause may not have it
/// for seconds. Those that are in the driver go on.
pub fn hold() -> Option<Held> {
    (super::is_wanted()
        && CLOSED
            .compare_exchange(OPEN, HELD, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok())
    .then(|| Held(()))
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

/// Calls so far that may have given the GPU work.
pub fn passes() -> u64 {
    let seen = thread::records().map(|record| record.passes()).sum::<u64>();
    seen + UNSEEN_PASSES.load(Ordering::Relaxed)
}
