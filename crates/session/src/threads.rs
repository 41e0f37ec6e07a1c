//! Assigns counters of calls to each thread of the program at its first intercepted call, and frees them when the
//! thread ends.

use core::sync::atomic::Ordering;

use super::beginning::at_exit;
use super::learning::trail_of;
use super::slots::{Counts, cells_of};
use super::{OWNER, STATE, SessionState, ending, stream_capture, turn};
use tllmprof_platform::panics::contained;
use tllmprof_platform::thread::Inside;
use tllmprof_platform::thread::{self, Part};
use tllmprof_platform::{ids, lifecycle};
use tllmprof_steps::step::threads::Slot;

// SAFETY: `ThreadComponent::Slot` belongs only to this type.
unsafe impl Part for Counts {
    const KIND: thread::ThreadComponent = thread::ThreadComponent::Slot;

    fn thread_ends(&'static self) {
        leave(&self.0);
    }
}

/// Assigns a slot (the cells in which calls are counted) to the calling thread. The first thread that uses
/// CUDA begins the session.
pub fn new_thread(uses_cuda: bool) {
    if lifecycle::is_filtered() {
        return;
    }
    let mut guard = STATE.lock();
    if guard.is_none() {
        *guard = SessionState::new();
        at_exit(exits);
    }
    let Some(state) = guard.as_mut() else { return };
    OWNER.store(ids::process(), Ordering::Relaxed);
    let counts = thread::begin_part(|_, left: Option<&'static Counts>| {
        Some(left.unwrap_or_else(|| {
            let thread = u32::try_from(state.slots.len()).unwrap_or(u32::MAX);
            let first_limit = |what| state.first_limit(what, thread);
            let counts: &'static Counts =
                Box::leak(Box::new(Counts(Slot::new(thread, first_limit))));
            state.slots.push(&counts.0);
            counts
        }))
    });
    let Some(Counts(slot)) = counts else { return };
    slot.take();
    slot.set_block(thread::set_counting(
        cells_of(slot, false),
        trail_of(Some(slot)),
    ));
    let begins = uses_cuda && state.begin_to_use_cuda();
    drop(guard);
    if begins {
        turn::run(STATE.lock());
    }
}

/// The exit handler, which closes the open window.
extern "C" fn exits() {
    contained((), ending::finish);
}

/// Frees `slot` (the counters of calls of a thread that has ended). Another thread may use the slot afterwards.
fn leave(slot: &'static Slot) {
    let _inside = Inside::enter();
    let mut guard = STATE.lock();
    slot.set_block(0);
    thread::set_counting(core::ptr::null(), core::ptr::null());
    if let Some(state) = guard.as_mut() {
        stream_capture::forget(state, slot);
    }
    slot.leave();
}
