//! Keeping every thread out of the driver, for a moment.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::time::Instant;

use super::{CLOSED, UNSEEN, UNSEEN_PASSES};
use crate::lock::wake;
use crate::session;

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
    CLOSED.store(1, Ordering::SeqCst);
    let closed = Closed(());
    // Without the barrier a thread may be about to pass that does not show yet.
    if !session::barrier() {
        return None;
    }
    let deadline = Instant::now() + patience;
    // A thread that comes to have a slot later finds the gate closed.
    let slots = session::slots();
    let is_empty = || {
        UNSEEN.load(Ordering::SeqCst) == 0
            && slots.iter().all(|slot| slot.flight() == 0)
            && crate::record::gpu::users() == 0
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
    CLOSED.store(0, Ordering::SeqCst);
    wake(&CLOSED, i32::MAX);
}

/// Calls so far that may have given the GPU work.
pub fn passes() -> u64 {
    let seen = session::slots()
        .iter()
        .map(|slot| slot.passes())
        .sum::<u64>();
    seen + UNSEEN_PASSES.load(Ordering::Relaxed)
}
