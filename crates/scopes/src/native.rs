//! Calls of native functions as scopes.
//!
//! A call is open from its entry until it returns, until an exception passes its frame, or until it is found to be gone: what
//! `longjmp` leaves says nothing, so each time that a scope is asked for, the stack must still reach as deep as the call, and the
//! call's return address must still lie where it was. That is looked at on the thread's own stack alone. What a
//! coroutine or a signal handler launches from another stack, beside calls that are open on this one, is not known.

use tllmprof_platform::{stack as machine, thread};

use crate::entry::{Entry, NATIVE};
use crate::paths;
use crate::stack::{self, Open};

/// A call that has been entered.
#[derive(Clone, Copy)]
pub struct Call {
    /// What its end will be known by.
    pub mark: u32,
    /// Where its return address lies, and what is there as long as it has not returned.
    pub place: usize,
    pub value: usize,
}

impl Open {
    /// Closes the calls of that mark, and those within them. A function that ends in another has its mark.
    fn close(&self, mark: u32) {
        let open = self.open_entries();
        let natives = open.iter().enumerate();
        let natives = natives.filter(|(_, entry)| entry.domain.get() == NATIVE);
        let is_it = |(_, entry): &(usize, &Entry)| entry.mark.get() == mark;
        let within = natives.rev().skip_while(|native| !is_it(native));
        if let Some((first, _)) = within.take_while(is_it).last() {
            self.close_from(first);
        }
    }

    /// Closes the native calls from place `first` on.
    fn close_from(&self, first: usize) {
        while let Some(last) = self.last_native()
            && last >= first
        {
            self.remove_native(last);
        }
    }

    fn enter(&self, name: &[u8], call: Call) {
        // Functions that end in one another by turns are a loop.
        let open = self.open_entries();
        let again = open.iter().rposition(|entry| {
            entry.domain.get() == NATIVE
                && entry.mark.get() == call.mark
                && paths::name(entry.path.get()) == Some(name)
        });
        if let Some(again) = again {
            return self.close_from(again + 1);
        }
        let depth = open.len();
        self.push(NATIVE, name, None);
        let pushed = self.open_entries();
        let Some(entry) = pushed.get(depth) else {
            return;
        };
        entry.mark.set(call.mark);
        entry.place.set(call.place);
        entry.value.set(call.value);
        self.calls.open.set(self.calls.open.get() + 1);
    }
}

/// Whether a call whose return address lies at `place` can be a scope. If not, what the thread launches is not known until
/// something that it has open ends.
pub fn has_room(place: usize) -> bool {
    let has_room = stack::with(|open| {
        open.settle();
        let has_room = open.has_room() && open.calls.is_own_stack(place);
        if !has_room {
            open.calls.is_over_full.set(true);
        }
        has_room
    });
    has_room == Some(true)
}

/// The calling thread calls `name`; [`has_room`] said that there is room.
pub fn enters(name: &[u8], call: Call) {
    stack::with(|open| open.enter(name, call));
}

/// A call for which there is no room for another reason.
pub fn is_over_full() {
    stack::with(|open| open.calls.is_over_full.set(true));
}

/// The call of that mark has returned, on the thread that calls.
pub fn returns(mark: u32) {
    if let Some(open) = thread::part::<Open>() {
        open.close(mark);
    }
}

/// An exception passes the frame of the call of that mark, which stays in use until [`take_left`].
pub fn is_passed(mark: u32) {
    let Some(open) = thread::part::<Open>() else {
        return;
    };
    open.settle();
    let innermost = open.last_native();
    let is_innermost = innermost.is_some_and(|last| open.open_entries()[last].mark.get() == mark);
    open.close(mark);
    let calls = &open.calls;
    // One that is not the innermost is not as expected: its mark stays in use for good.
    if is_innermost && let Some(place) = calls.left.get(calls.left_count.get()) {
        place.set(mark);
        calls.left_count.set(calls.left_count.get() + 1);
        calls.left_below.set(machine::here());
    }
}

/// Hands out the marks of calls that exceptions have left on this thread, as another begins whose return address lies at
/// `place`: unless that is a signal handler's, in the midst of what unwinds.
pub fn take_left(place: usize, mut free: impl FnMut(u32)) {
    let Some(open) = thread::part::<Open>() else {
        return;
    };
    let calls = &open.calls;
    if calls.left_count.get() == 0 || place <= calls.left_below.get() {
        return;
    }
    for left in &calls.left[..calls.left_count.replace(0)] {
        free(left.get());
    }
}
