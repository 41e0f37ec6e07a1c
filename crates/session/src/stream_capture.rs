//! Stream captures: calls made meanwhile are no iterations, and the device must be left alone.

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

/// How long a capture that begins waits for a drain to be under way. A driver that is waiting
/// already does not mind a capture.
const BEGINNING: Duration = Duration::from_millis(50);

lifecycle::global! {
    stage: Session;

    /// Stream captures that are beginning or under way, in all threads.
    #[fork(reset)]
    #[together(calls)]
    static UNDER_WAY: AtomicI32 = AtomicI32::new(0);
    /// 1: the device is about to be waited for, which no capture survives that is under way.
    #[fork(reset)]
    static DRAINING: AtomicU32 = AtomicU32::new(0);
}

/// Whether any thread captures. If `will`, none begins to until [`drained`], or not for long.
pub fn about_to_drain(will: bool) -> bool {
    DRAINING.store(will.into(), Ordering::SeqCst);
    is_any_under_way()
}

/// The device has been waited for.
pub fn drained() {
    if DRAINING.swap(0, Ordering::SeqCst) != 0 {
        wake(&DRAINING, i32::MAX);
    }
}

/// Whether any thread captures.
pub fn is_any_under_way() -> bool {
    UNDER_WAY.load(Ordering::SeqCst) != 0
}

/// The captures of a thread that has ended are over.
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

/// Says whether the calls of the thread that counts in `slot` are being captured. Under the lock
/// of the state, which is what keeps the thread from ending meanwhile.
fn set_capturing(slot: &Slot, capturing: bool) {
    if slot.block() != 0 {
        let trail = trail_of((!capturing).then_some(slot));
        // SAFETY: the thread is alive, as its slot has its block; the program orders its captures,
        // so that the thread does not read the words while another thread's call ends them.
        unsafe { thread::set_counting_of(slot.block(), cells_of(slot, capturing), trail) };
    }
}

/// So many captures are under way no more.
fn is_over(captures: i32) {
    UNDER_WAY.fetch_sub(captures, Ordering::SeqCst);
    doors().captures();
}

/// A capture is about to begin: the driver must not be in the middle of starting to wait.
pub fn begins() {
    UNDER_WAY.fetch_add(1, Ordering::SeqCst);
    doors().captures();
    let deadline = Instant::now() + BEGINNING;
    while DRAINING.load(Ordering::SeqCst) == 1 {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        wait(&DRAINING, 1, left);
    }
}

/// The driver has begun a capture, or refused to.
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

/// A capture has ended, by success or by error. A relaxed capture may end on another thread. Gives
/// the state where the count starts again, so that the caller goes back to the start.
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
        state.restarts += u64::from(had_counted);
    }
    starts_again.then_some(guard)
}
