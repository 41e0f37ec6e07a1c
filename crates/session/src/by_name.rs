//! What the rule gives by name, as it is met: a range of the program, a call of a Python function, the
//! end of a native one.

use super::calls::enter_with;
use super::{STATE, count as add};
use super::{ending, new_thread, slot, trigger, turn};
use tllmprof_config::condition::Facts;
use tllmprof_platform::errno::Kept;
use tllmprof_platform::thread::Inside;
use tllmprof_steps::step::counted::Counted;
use tllmprof_steps::window::Point;

/// Counts `what`; whether the thread has to [`ask`] what it means before it goes on.
#[inline]
pub fn count(what: Counted) -> bool {
    if slot().is_none() {
        begin_thread();
    }
    add(what)
}

#[cold]
fn begin_thread() {
    let _errno = Kept::new();
    // What is met may be met by our own code: an allocator that this uses may open ranges.
    if let Some(_inside) = Inside::enter() {
        new_thread(false);
    }
}

/// What it means that `what` begins: the iteration that is over when it ends. The caller says by
/// [`goes_on`](crate::goes_on) that it has begun.
#[cold]
pub fn ask(what: Counted) -> Option<u64> {
    ask_with(what, Facts::default())
}

/// As [`ask`], where this is known of the batch of the iteration that may begin.
#[cold]
pub fn ask_with(what: Counted, facts: Facts) -> Option<u64> {
    let _errno = Kept::new();
    let _inside = Inside::enter()?;
    enter_with(what, facts)
}

/// It has ended, and with it `iteration`.
#[cold]
pub fn has_ended(iteration: u64) {
    let _errno = Kept::new();
    if let Some(_inside) = Inside::enter() {
        ends(iteration);
    }
}

/// As [`has_ended`], for who is inside already.
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
