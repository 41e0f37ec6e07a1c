//! Tracks the program's stream captures. Calls during a capture do not count as iterations, and the library
//! must not wait for the device meanwhile.

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use core::time::Duration;
use std::time::Instant;

use super::learning::trail_of;
use super::slots::{cells_of, slot};
use super::wiring::doors;
use super::{STATE, SessionState};
use tllmprof_platform::lifecycle;
use tllmprof_platform::thread;
use tllmprof_steps::step::threads::Slot;
use tllmprof_sync::wake;
use tllmprof_sync::{Guard, wait};

/// The longest time for which the beginning of a capture is delayed, so that the library can start to wait for the
/// device first. Once the library waits in the driver, a new capture does not disturb that wait.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(50);

lifecycle::global! {
    stage: Session;

    /// The number of stream captures on all threads that are beginning or in progress.
    #[fork(reset)]
    #[together(calls)]
    static UNDER_WAY: AtomicI32 = AtomicI32::new(0);
    /// 1 while the library is about to wait, or waits, for the device. If a capture is in progress when the wait
    /// begins, the wait invalidates the capture.
    #[fork(reset)]
    static DRAINING: AtomicU32 = AtomicU32::new(0);
}

/// Returns true if any thread is capturing a stream. Called before windows are opened or closed. `will` is true if
/// the library is about to wait for the device. From then on a thread that begins a capture is delayed until
/// [`drained`] is called, but for at most [`DRAIN_TIMEOUT`].
pub(crate) fn about_to_drain(will: bool) -> bool {
    DRAINING.store(will.into(), Ordering::SeqCst);
    is_any_under_way()
}

/// Lets captures begin again after the library has waited for the device.
pub(crate) fn drained() {
    if DRAINING.swap(0, Ordering::SeqCst) != 0 {
        wake(&DRAINING, i32::MAX);
    }
}

/// Returns true if any thread is capturing a stream or about to begin a capture.
pub fn is_any_under_way() -> bool {
    UNDER_WAY.load(Ordering::SeqCst) != 0
}

/// Ends the captures of the thread that used `slot` (the thread's counters of calls). The thread itself has ended.
pub(crate) fn forget(state: &mut SessionState, slot: &Slot) {
    let before = state.captures.len();
    state
        .captures
        .retain(|(_, owner)| !core::ptr::eq(*owner, slot));
    let lost = before - state.captures.len();
    if lost > 0 {
        is_over(i32::try_from(lost).unwrap_or(0));
    }
}

/// Makes the thread that uses `slot` count its calls in the slot's cells for captured calls if `capturing`, otherwise
/// in the cells for other calls. Called with the state locked, so that the thread cannot end meanwhile.
fn set_capturing(slot: &Slot, capturing: bool) {
    if slot.block() != 0 {
        let trail = trail_of((!capturing).then_some(slot));
        // SAFETY: the thread is alive, because its slot still has the address of its block. The program orders its
        // captures, so the thread does not read these words while another thread's call ends its capture.
        unsafe { thread::set_counting_of(slot.block(), cells_of(slot, capturing), trail) };
    }
}

/// Decreases the number of captures in progress by `captures`, and adapts the hooks to the new number.
fn is_over(captures: i32) {
    UNDER_WAY.fetch_sub(captures, Ordering::SeqCst);
    doors().captures();
}

/// Counts a capture that a thread is about to begin. Delays the thread while the library is about to wait for the
/// device.
pub(crate) fn begins() {
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

/// Called after the driver was asked to begin to capture `stream`. `succeeded` is false if the driver refused. If it
/// succeeded, the calling thread's next calls count as captured.
pub(crate) fn began(stream: usize, succeeded: bool) {
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

/// Called after a capture has ended, successfully or not. A relaxed capture may end on another thread than the one
/// that began it. If the capture makes the count of iterations restart, returns the locked state, so that the caller
/// can move the process back to the start of the iterations. Otherwise returns `None`.
pub(crate) fn ended(stream: usize) -> Option<Guard<'static, Option<SessionState>>> {
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
    if !state.counter.captures_are_work() {
        state.schedule.interrupt();
    }
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
