//! The marked calls that a thread is in.

use super::function::Entered;
use super::marked::Mark;
use super::room::Room;
use crate::object::Object;
use crate::object::Python;
use crate::threads::Thread;

/// Calls of a thread that are kept; those inside them are counted, but have no ranges.
const DEPTH: usize = 256;

/// What is kept of a call.
struct Entry {
    mark: &'static Mark,
    entered: Entered,
}

/// The marked calls that a thread is in, the innermost last.
pub struct Spans {
    /// Room for `DEPTH` of them, which is never given back; null before the first.
    entries: *mut Entry,
    used: usize,
    /// Calls inside those.
    beyond: usize,
    /// What is left of the thread's stack to the program.
    pub room: Room,
}

impl Spans {
    pub const fn new() -> Self {
        Self {
            entries: core::ptr::null_mut(),
            used: 0,
            beyond: 0,
            room: Room::UNKNOWN,
        }
    }

    fn has_room(&mut self) -> bool {
        if self.entries.is_null() {
            self.entries = room();
        }
        !self.entries.is_null() && self.used < DEPTH
    }

    fn push(&mut self, entry: Entry) {
        // SAFETY: `has_room` was asked, and nothing of the thread's came in between.
        unsafe { self.entries.add(self.used).write(entry) };
        self.used += 1;
    }

    fn pop(&mut self) -> Option<Entry> {
        self.used = self.used.checked_sub(1)?;
        // SAFETY: written by `push`, and not used any more.
        Some(unsafe { self.entries.add(self.used).read() })
    }

    /// The number of calls around the innermost one of `mark`.
    fn find(&self, mark: &Mark) -> Option<usize> {
        (0..self.used).rev().find(|&index| {
            // SAFETY: written by `push`.
            let entry = unsafe { &*self.entries.add(index) };
            core::ptr::eq(entry.mark, mark)
        })
    }

    /// The thread has ended.
    pub fn leave(&mut self) {
        self.beyond = 0;
        self.room = Room::UNKNOWN;
        while let Some(entry) = self.pop() {
            entry.mark.abandons(entry.entered);
        }
    }

    /// The process is the child of a fork: ranges are their process's.
    pub fn in_child(&mut self) {
        self.beyond = 0;
        while let Some(entry) = self.pop() {
            entry.entered.forget();
        }
    }
}

/// The calling thread enters a marked call; `first` tells its first argument.
///
/// The spans are not borrowed while the call is told, which may come back here.
pub fn enter<'py>(
    py: Python<'py>,
    thread: &Thread,
    mark: &'static Mark,
    goes_on: bool,
    first: impl FnOnce(Python<'py>) -> Option<Object<'py>>,
) {
    // SAFETY: the cell is the calling thread's own, and borrowed for the statement.
    if unsafe { &mut *thread.spans.get() }.has_room() {
        let entered = mark.enters(py, goes_on, first);
        // SAFETY: as above. What came in between has left again.
        unsafe { &mut *thread.spans.get() }.push(Entry { mark, entered });
    } else {
        // SAFETY: as above.
        unsafe { &mut *thread.spans.get() }.beyond += 1;
        mark.enters_unkept(goes_on);
    }
}

/// The calling thread leaves a marked call, which has ended, or has only yielded.
///
/// What is inside it has been left unseen, as by a switch of the C stack, and ends with it. A call
/// that was entered unseen, before it was marked or in the parent of a fork, is not found.
pub fn leave(py: Python<'_>, thread: &Thread, mark: &'static Mark, has_ended: bool) {
    // SAFETY: the cell is the calling thread's own, and borrowed for the statement.
    let spans = || unsafe { &mut *thread.spans.get() };
    if spans().beyond > 0 {
        spans().beyond -= 1;
        mark.leaves(py, Entered::unkept(), has_ended);
        return;
    }
    let Some(outer) = spans().find(mark) else {
        return;
    };
    while spans().used > outer + 1
        && let Some(entry) = spans().pop()
    {
        entry.mark.leaves(py, entry.entered, true);
    }
    if let Some(entry) = spans().pop() {
        mark.leaves(py, entry.entered, has_ended);
    }
}

fn room() -> *mut Entry {
    // SAFETY: an anonymous mapping, which is never unmapped.
    let pages = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            DEPTH * size_of::<Entry>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if pages == libc::MAP_FAILED {
        core::ptr::null_mut()
    } else {
        pages.cast()
    }
}
