//! Handles targets that the rule gives by name: a range of the program, a call of a Python function, the end
//! of a native function.

use super::calls::enter_with;
use super::{STATE, count as add};
use super::{ending, new_thread, slot, trigger, turn};
use tllmprof_config::condition::Facts;
use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::thread::Inside;
use tllmprof_steps::step::counted::Counted;
use tllmprof_steps::window::Point;

/// Counts `what`. Returns true if the thread has to [`ask`] for its effect before it continues.
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
    // The library's own code may also trigger it: an allocator that it uses may open ranges.
    if let Some(_inside) = Inside::enter() {
        new_thread(false);
    }
}

/// Handles the beginning of `what`. Returns the iteration that is over when it ends. The caller reports by
/// [`goes_on`](crate::goes_on) that it has begun.
#[cold]
pub fn ask(what: Counted) -> Option<u64> {
    ask_with(what, Facts::default())
}

/// Like [`ask`], with facts about the batch of the iteration that may begin.
#[cold]
pub fn ask_with(what: Counted, facts: Facts) -> Option<u64> {
    let _errno = SavedErrno::new();
    let _inside = Inside::enter()?;
    enter_with(what, facts)
}

/// Called when it has ended, and `iteration` with it.
#[cold]
pub fn has_ended(iteration: u64) {
    let _errno = SavedErrno::new();
    if let Some(_inside) = Inside::enter() {
        ends(iteration);
    }
}

/// Like [`has_ended`], for code that runs inside the library already.
pub fn ends(iteration: u64) {
    if ending::has_finished() {
        return;
    }
    let mut guard = STATE.lock();
    // Another thread may have begun the next one.
    if let Some(state) = guard
        .as_mut()
        .filter(|state| state.turn.target() == Point::In(iteration))
    {
        trigger::ends(state);
        turn::reach(guard, Point::After(iteration));
    }
}
