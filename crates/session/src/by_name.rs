//! Handles steps that the rule gives by name: a range of the program, a call of a Python function, or the end
//! of a native function.

use super::calls::enter_with;
use super::{STATE, count as add};
use super::{ending, new_thread, slot, trigger, turn};
use tllmprof_config::condition::BatchFacts;
use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::thread::Inside;
use tllmprof_steps::step::counted::Counted;
use tllmprof_steps::window::Point;

/// Counts `what`. Returns true if the thread has to call [`ask`] before it continues, to find out if an
/// iteration begins.
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
    // Does nothing inside the library's own code, which may trigger the hook as well: its allocator may open
    // ranges.
    if let Some(_inside) = Inside::enter() {
        new_thread(false);
    }
}

/// Handles the beginning of `what`. Returns the number of the iteration that ends together with `what`, if
/// there is one. Afterwards the caller has to call [`goes_on`](crate::goes_on) to report that `what` has
/// begun.
#[cold]
pub fn ask(what: Counted) -> Option<u64> {
    ask_with(what, BatchFacts::default())
}

/// Like [`ask`], with facts about the batch of the iteration that may begin.
#[cold]
pub fn ask_with(what: Counted, facts: BatchFacts) -> Option<u64> {
    let _errno = SavedErrno::new();
    let _inside = Inside::enter()?;
    enter_with(what, facts)
}

/// Called when a range or function has ended and `iteration` ends with it.
#[cold]
pub fn has_ended(iteration: u64) {
    let _errno = SavedErrno::new();
    if let Some(_inside) = Inside::enter() {
        ends(iteration);
    }
}

/// Like [`has_ended`], for callers that are already inside the library.
pub fn ends(iteration: u64) {
    if ending::has_finished() {
        return;
    }
    let mut guard = STATE.lock();
    // Nothing is switched if another thread has already begun the next iteration.
    if let Some(state) = guard
        .as_mut()
        .filter(|state| state.turn.target() == Point::In(iteration))
    {
        trigger::ends(state);
        turn::reach(guard, Point::After(iteration));
    }
}
