//! A call of a function that the rule names, past its thread's credit.

use super::{ends, may_await_end};
use crate::errno::Kept;
use crate::intercept::tls;
use crate::session;
use crate::step::counted::Counted;

/// The thread is in our own code: a function that is named may be one that this uses, such as an
/// allocator's.
pub struct Inside(());

impl Inside {
    /// Enters; none where the thread is inside already.
    pub fn enter() -> Option<Self> {
        // SAFETY: the block is the calling thread's own.
        let inside = unsafe { &mut (*tls()).inside };
        if *inside != 0 {
            return None;
        }
        *inside = 1;
        Some(Self(()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { (*tls()).inside = 0 };
    }
}

/// A function has been entered, and goes on when this returns.
///
/// # Safety
/// `return_place` is where the call's return address lies, and `from` an address in the stub or
/// trampoline that it came through.
pub unsafe extern "C" fn before(return_place: *mut usize, from: usize) {
    let Some(_inside) = Inside::enter() else {
        return;
    };
    let _errno = Kept::new();
    if !crate::is_active() {
        return;
    }
    // The assembler counted the call if the thread has cells.
    // SAFETY: the block is the calling thread's own.
    if unsafe { (*tls()).cells.is_null() } {
        session::new_thread(false);
        session::count(Counted::Named);
    }
    if let Some(iteration) = session::named_entered()
        && session::closes_after(iteration)
        && may_await_end(from)
    {
        // SAFETY: the caller's promise.
        unsafe { ends::await_end(return_place, iteration) };
    }
}

/// A call has returned whose end was awaited at place `index`.
pub extern "C" fn after(index: usize) {
    let _errno = Kept::new();
    let iteration = ends::ended(index);
    if let (Some(_inside), Some(iteration)) = (Inside::enter(), iteration) {
        session::named_ended(iteration);
    }
}
