//! Calls of native functions as scopes.
//!
//! A call is open from its entry until it returns, until an exception passes its frame, or until
//! the library notices that it is gone. A `longjmp` leaves calls without notice. So each time a
//! scope is needed, two things are checked: the stack still reaches as deep as the call, and the
//! call's return address is still in its place. The check works only on the thread's own stack. If
//! a coroutine or a signal handler launches work from another stack while calls are open on the
//! thread's own stack, the scope is unknown.

use tllmprof_platform::{stack as machine, thread};

use crate::entry::{NATIVE, OpenScope};
use crate::paths;
use crate::stack::{self, OpenScopes};

/// The data by which the library finds and checks an open call of a native function.
#[derive(Clone, Copy)]
pub struct NativeCall {
    /// The mark (a number) by which the call is found when it ends.
    pub mark: u32,
    /// Stack address at which the call's return address is stored.
    pub place: usize,
    /// The word that is stored at `place` until the call returns.
    pub value: usize,
}

impl OpenScopes {
    /// Closes the calls that were opened with this mark, and the calls inside them. Several calls
    /// have the same mark if a function ends with a jump to another one.
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
        // The call may be open already: functions that end with jumps to each other may form a loop. Then only the
        // calls inside it are closed.
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

/// Returns true if a native call can be opened as a scope. `place` is the stack address of the call's return address.
/// After a false result, the scope of the thread's launches is unknown until one of the thread's open native calls
/// ends.
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

/// Opens the call of the function `name` on the calling thread. [`has_room`] must have returned
/// true for this call.
pub fn enters(name: &[u8], call: NativeCall) {
    stack::with(|open| open.enter(name, call));
}

/// Notes that a native call could not be opened, for a reason that [`has_room`] does not check. The
/// scope is then unknown.
pub fn is_over_full() {
    stack::with(|open| open.calls.is_over_full.set(true));
}

/// Closes the call that was opened with this mark, because it has returned on the calling thread.
pub fn returns(mark: u32) {
    if let Some(open) = thread::part::<OpenScopes>() {
        open.close(mark);
    }
}

/// Closes the call that was opened with this mark, because an exception passes its frame. The mark
/// must not be reused until [`take_left`] frees it.
pub fn is_passed(mark: u32) {
    let Some(open) = thread::part::<OpenScopes>() else {
        return;
    };
    open.settle();
    let innermost = open.last_native();
    let is_innermost = innermost.is_some_and(|last| open.open_entries()[last].mark.get() == mark);
    open.close(mark);
    let calls = &open.calls;
    // Store the mark, so that it can be freed later. This is done only for the innermost call, which should be the one
    // that the exception passes. The mark of any other call is never freed.
    if is_innermost && let Some(place) = calls.left.get(calls.left_count.get()) {
        place.set(mark);
        calls.left_count.set(calls.left_count.get() + 1);
        calls.left_below.set(machine::here());
    }
}

/// Calls `free` for the marks of calls that exceptions have left on this thread. Must be called
/// when another call begins, whose return address is at `place`. Nothing is freed if the new call
/// is deeper on the stack than the unwinder, because a signal handler may have interrupted the
/// unwinder.
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
