//! Begins and ends iterations for rules (`TLLMPROF_STEP`) that name something other than a CUDA call: an NVTX range, a
//! Python function, or a native function.

use super::calls::enter_with;
use super::{STATE, count as add};
use super::{ending, new_thread, slot, trigger, turn};
use tllmprof_config::condition::BatchFacts;
use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::thread::Inside;
use tllmprof_steps::step::counted::Counted;
use tllmprof_steps::window::Point;

/// Counts `what`, a range or a function that the rule names. Returns true if the thread has to call [`ask`]
/// before it continues, because an iteration may begin.
#[inline]
pub fn count(what: Counted) -> bool {
    if slot().is_none() {
        begin_thread();
    }
    add(what)
}

#[cold]
fn begin_thread() {
    let _errno = SavedErrno::new();
    // Nothing is counted inside the library's own code, which may reach this function as well: for
    // example, the memory allocator may open NVTX ranges.
    if let Some(_inside) = Inside::enter() {
        new_thread(false);
    }
}

/// Called at the beginning of `what`, a range or a function that the rule names. Begins an iteration if one is due.
/// Returns the number of the iteration that ends together with `what`, if there is one. Afterwards the caller has to
/// call [`goes_on`](crate::goes_on) to report that the range or function has begun.
#[cold]
pub fn ask(what: Counted) -> Option<u64> {
    ask_with(what, BatchFacts::default())
}

/// Does the same as [`ask`]. `facts` describes the batch (requests and tokens) of the iteration that may begin.
#[cold]
pub fn ask_with(what: Counted, facts: BatchFacts) -> Option<u64> {
    let _errno = SavedErrno::new();
    let _inside = Inside::enter()?;
    enter_with(what, facts)
}

/// Called when a range or function that the rule names has ended. Ends `iteration`, which ends together with the
/// range or function.
#[cold]
pub fn has_ended(iteration: u64) {
    let _errno = SavedErrno::new();
    if let Some(_inside) = Inside::enter() {
        ends(iteration);
    }
}

/// Ends `iteration`, like [`has_ended`], for callers that are already inside the library.
pub fn ends(iteration: u64) {
    if ending::has_finished() {
        return;
    }
    let mut guard = STATE.lock();
    // If another thread has already begun the next iteration, `iteration` has ended at that moment, and nothing is
    // left to do.
    if let Some(state) = guard
        .as_mut()
        .filter(|state| state.turn.target() == Point::In(iteration))
    {
        trigger::ends(state);
        turn::reach(guard, Point::After(iteration));
    }
}
