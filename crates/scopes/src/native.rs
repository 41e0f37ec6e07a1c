//! Calls of native functions as scopes.
//!
//! A call is open from its entry until it returns, until an exception passes its frame, or until it turns out
//! to be gone. A `longjmp` leaves calls without notice, so each time that a scope is needed, the stack must
//! still reach as deep as the call, and the call's return address must still be at its place. This is checked
//! only on the thread's own stack. If a coroutine or a signal handler launches work from another stack while
//! calls are open on this one, its scope is not known.

use tllmprof_platform::{stack as machine, thread};

use crate::entry::{NATIVE, OpenScope};
use crate::paths;
use crate::stack::{self, OpenScopes};

/// A call that was entered.
#[derive(Clone, Copy)]
pub struct NativeCall {
    /// The mark that identifies the call when it ends.
    pub mark: u32,
    /// The address of its return address, and the value there as long as it has not returned.
    pub place: usize,
    pub value: usize,
}

impl OpenScopes {
    /// Closes the calls with that mark, and those within them. A function that ends with a jump to another
    /// has that function's mark.
    fn close(&self, mark: u32) {
        let open = self.open_entries();
        let natives = open.iter().enumerate();
        let natives = natives.filter(|(_, entry)| entry.domain.get() == NATIVE);
        let is_it = |(_, entry): &(usize, &OpenScope)| entry.mark.get() == mark;
        let within = natives.rev().skip_while(|native| !is_it(native));
        if let Some((first, _)) = within.take_while(is_it).last() {
            self.close_from(first);
        }
    }

    /// Closes the native calls from index `first` on.
    fn close_from(&self, first: usize) {
        while let Some(last) = self.last_native()
            && last >= first
        {
            self.remove_native(last);
        }
    }

    fn enter(&self, name: &[u8], call: NativeCall) {
        // Functions that end with jumps to each other form a loop.
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

/// Returns true if a call whose return address is at `place` can be a scope. If not, the scope of the
/// thread's launches is not known until one of its open scopes ends.
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

/// Opens the call of `name` on the calling thread, after [`has_room`] returned true.
pub fn enters(name: &[u8], call: NativeCall) {
    stack::with(|open| open.enter(name, call));
}

/// Notes a call for which there is no room for another reason.
pub fn is_over_full() {
    stack::with(|open| open.calls.is_over_full.set(true));
}

/// Called when the call with that mark has returned, on the thread that made it.
pub fn returns(mark: u32) {
    if let Some(open) = thread::part::<OpenScopes>() {
        open.close(mark);
    }
}

/// Called when an exception passes the frame of the call with that mark, which stays in use until
/// [`take_left`].
pub fn is_passed(mark: u32) {
    let Some(open) = thread::part::<OpenScopes>() else {
        return;
    };
    open.settle();
    let innermost = open.last_native();
    let is_innermost = innermost.is_some_and(|last| open.open_entries()[last].mark.get() == mark);
    open.close(mark);
    let calls = &open.calls;
    // A call that is not the innermost is unexpected: its mark stays in use for good.
    if is_innermost && let Some(place) = calls.left.get(calls.left_count.get()) {
        place.set(mark);
        calls.left_count.set(calls.left_count.get() + 1);
        calls.left_below.set(machine::here());
    }
}

/// Passes the marks of calls that exceptions have left on this thread to `free`, when another call begins
/// whose return address is at `place`. Not if that call is in a signal handler, within the unwinder.
pub fn take_left(place: usize, mut free: impl FnMut(u32)) {
    let Some(open) = thread::part::<OpenScopes>() else {
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
