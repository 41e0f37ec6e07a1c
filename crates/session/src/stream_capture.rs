//! Stream captures: calls during a capture are not iterations, and nothing may wait for the device.

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use core::time::Duration;
use std::time::Instant;

use super::learning::trail_of;
use super::slots::{cells_of, slot};
use super::wiring::doors;
use super::{STATE, State};
use tllmprof_platform::lifecycle;
use tllmprof_platform::thread;
use tllmprof_steps::step::threads::Slot;
use tllmprof_sync::wake;
use tllmprof_sync::{Guard, wait};

/// The time that a beginning capture waits for a drain to start. A driver that is already waiting is not
/// disturbed by a capture.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(50);

lifecycle::global! {
    stage: Session;

    /// The number of stream captures that are beginning or in progress, on all threads.
    #[fork(reset)]
    #[together(calls)]
    static UNDER_WAY: AtomicI32 = AtomicI32::new(0);
    /// 1: the library is about to wait for the device, which would invalidate any capture in progress.
    #[fork(reset)]
    static DRAINING: AtomicU32 = AtomicU32::new(0);
}

/// Returns true if any thread captures. If `will`, captures do not begin until [`drained`], or are delayed
/// for a limited time.
pub fn about_to_drain(will: bool) -> bool {
    DRAINING.store(will.into(), Ordering::SeqCst);
    is_any_under_way()
}

/// Called after waiting for the device.
pub fn drained() {
    if DRAINING.swap(0, Ordering::SeqCst) != 0 {
        wake(&DRAINING, i32::MAX);
    }
}

/// Returns true if any thread captures.
pub fn is_any_under_way() -> bool {
    UNDER_WAY.load(Ordering::SeqCst) != 0
}

/// Ends the captures of a thread that has ended.
pub fn forget(state: &mut State, slot: &Slot) {
    let before = state.captures.len();
    state
        .captures
        .retain(|(_, owner)| !core::ptr::eq(*owner, slot));
    let lost = before - state.captures.len();
    if lost > 0 {
        is_over(i32::try_from(lost).unwrap_or(0));
    }
}

/// Sets whether the calls of the thread that counts in `slot` are being captured. Called with the state
/// locked, which keeps the thread from ending meanwhile.
fn set_capturing(slot: &Slot, capturing: bool) {
    if slot.block() != 0 {
        let trail = trail_of((!capturing).then_some(slot));
        // SAFETY: the thread is alive, as its slot has its block; the program orders its captures,
        // so that the thread does not read the words while another thread's call ends them.
        unsafe { thread::set_counting_of(slot.block(), cells_of(slot, capturing), trail) };
    }
}

/// Counts `captures` captures as ended.
fn is_over(captures: i32) {
    UNDER_WAY.fetch_sub(captures, Ordering::SeqCst);
    doors().captures();
}

/// Called when a capture is about to begin: the driver must not be about to start waiting.
pub fn begins() {
    UNDER_WAY.fetch_add(1, Ordering::SeqCst);
    doors().captures();
    let deadline = Instant::now() + DRAIN_TIMEOUT;
    while DRAINING.load(Ordering::SeqCst) == 1 {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        wait(&DRAINING, 1, left);
    }
}

/// Called when the driver has begun a capture, or refused to.
pub fn began(stream: usize, succeeded: bool) {
    let slot = slot().filter(|_| succeeded);
    let mut guard = STATE.lock();
    match (slot, guard.as_mut()) {
        (Some(slot), Some(state)) => {
            state.captures.push((stream, slot));
            set_capturing(slot, true);
        }
        _ => is_over(1),
    }
}

/// Called when a capture has ended, successfully or not. A relaxed capture may end on another thread. Returns
/// the state if the count starts again, so that the caller moves back to the start.
pub fn ended(stream: usize) -> Option<Guard<'static, Option<State>>> {
    let here = slot()?;
    let mut guard = STATE.lock();
    let state = guard.as_mut()?;
    let is_on =
        |captures: &[(usize, &Slot)], slot| captures.iter().any(|(_, s)| core::ptr::eq(*s, slot));
    let mine = state
        .captures
        .iter()
        .position(|(s, slot)| *s == stream && core::ptr::eq(*slot, here));
    let index = mine.or_else(|| state.captures.iter().position(|(s, _)| *s == stream))?;
    let (_, owner) = state.captures.swap_remove(index);
    is_over(1);
    set_capturing(owner, is_on(&state.captures, owner));
    state.schedule.interrupt();
    if state.schedule.has_opened() || !state.captures.is_empty() {
        return None;
    }
    let had_counted = state.counter.iterations(&state.slots) > 0;
    let starts_again = state.counter.captured(&state.slots);
    if starts_again {
        state.schedule.restart();
        state.restarts += u64::from(had_counted);
    }
    starts_again.then_some(guard)
}
