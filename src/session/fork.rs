//! Forks: the parent goes on, the child begins anew.
//!
//! Our locks are held over the fork, so that the child, which has none of the other threads, finds
//! them free and what they guard whole. Each is given up on after a while: a fork may come from a
//! signal handler that interrupted us.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

use tllmprof_calls::Calls;

use super::threads::set_slot;
use super::{
    ATTENDED, OWNER, STATE, USES_CUDA, WAITS_ENTER, ending, learning, stream_capture, turn,
};
use crate::intercept::Inside;
use crate::lock::Lock;
use crate::{capture, engines, ids, intercept, python, record};

const PATIENCE: Duration = Duration::from_millis(20);

/// What is held over a fork. One fork at a time holds it, and a second one goes without.
static HELD: Lock<Option<Held>> = Lock::new(None);

/// Whether the process is a copy of another.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

struct Held {
    thread: i32,
    state: bool,
    /// Calls that other handlers make meanwhile are passed through: the thread has our locks.
    inside: bool,
    doors: intercept::Kept,
}

/// Whether the process is a forked child.
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// Has the handlers called at each fork. Once, before the first look-up or call of a program.
pub fn register() {
    static ONCE: AtomicBool = AtomicBool::new(false);
    if !ONCE.load(Ordering::Relaxed) && !ONCE.swap(true, Ordering::AcqRel) {
        // SAFETY: the handlers are functions of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    }
}

extern "C" fn before() {
    let Some(mut held) = HELD.lock_for(PATIENCE) else {
        return;
    };
    if held.is_none() {
        let inside = Inside::enter().map(Inside::stay).is_some();
        let state = STATE.hold_over_fork();
        let doors = intercept::before_fork();
        *held = Some(Held {
            thread: ids::thread(),
            state,
            inside,
            doors,
        });
    }
}

extern "C" fn in_parent() {
    let Some(mut held) = HELD.lock_for(PATIENCE) else {
        return;
    };
    if held
        .as_ref()
        .is_some_and(|held| held.thread == ids::thread())
        && let Some(held) = held.take()
    {
        intercept::after_fork(&held.doors);
        if held.state {
            STATE.release();
        }
        if held.inside {
            Inside::leave();
        }
    }
}

/// The child starts anew: nothing counted, nothing open, one thread.
extern "C" fn in_child() {
    // SAFETY: the child has one thread.
    unsafe {
        HELD.break_open();
        STATE.break_open();
        learning::in_child();
        intercept::in_child();
        capture::after_fork();
        python::in_child();
        record::in_child();
    }
    intercept::record_calls();
    if HELD.lock().take().is_some_and(|held| held.inside) {
        Inside::leave();
    }
    IS_CHILD.store(true, Ordering::Relaxed);
    ATTENDED.store(Calls::ALL.bits(), Ordering::Relaxed);
    engines::in_child();
    turn::after_fork();
    stream_capture::after_fork();
    ending::after_fork();
    set_slot(None);
    OWNER.store(0, Ordering::Relaxed);
    USES_CUDA.store(false, Ordering::Relaxed);
    WAITS_ENTER.store(true, Ordering::Relaxed);
    // The parent's state is left where it is: the allocator may be in any condition.
    core::mem::forget(STATE.lock().take());
}
