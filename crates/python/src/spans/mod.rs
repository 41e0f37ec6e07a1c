//! The marked calls that a thread is in.
//!
//! What a call means, its code object's [`Mark`] knows.

mod function;
mod mark;
mod room;

use core::cell::Cell;

pub use function::{Entered, Function, StepOf};
pub use mark::{Calls, First, Mark, Watch};
use room::Room;

use super::object::Object;
use super::object::Python;
use tllmprof_platform::lifecycle::OnlyThread;
use tllmprof_platform::pages;

/// Calls of a thread that are kept; those inside them are counted, but have no ranges.
const DEPTH: usize = 256;

/// What is kept of a call, and room for that.
struct Entry {
    mark: Cell<Option<&'static Mark>>,
    entered: Cell<Option<Entered>>,
}

/// The marked calls that a thread is in, the innermost last.
pub struct Spans {
    /// Room for `DEPTH` of them, which is never given back; empty before the first.
    entries: Cell<&'static [Entry]>,
    used: Cell<usize>,
    /// Calls inside those.
    beyond: Cell<usize>,
    /// What is left of the thread's stack to the program.
    room: Cell<Room>,
}

impl Spans {
    pub const fn new() -> Self {
        Self {
            entries: Cell::new(&[]),
            used: Cell::new(0),
            beyond: Cell::new(0),
            room: Cell::new(Room::UNKNOWN),
        }
    }

    fn has_room(&self) -> bool {
        if self.entries.get().is_empty() {
            self.entries.set(room().unwrap_or(&[]));
        }
        self.used.get() < self.entries.get().len()
    }

    /// Keeps a call, if there is room.
    fn push(&self, mark: &'static Mark, entered: Entered) {
        let used = self.used.get();
        if let Some(entry) = self.entries.get().get(used) {
            entry.mark.set(Some(mark));
            entry.entered.set(Some(entered));
            self.used.set(used + 1);
        }
    }

    /// Takes the innermost call.
    fn pop(&self) -> Option<(&'static Mark, Entered)> {
        let last = self.used.get().checked_sub(1)?;
        self.used.set(last);
        let entry = self.entries.get().get(last)?;
        entry.mark.take().zip(entry.entered.take())
    }

    /// The number of calls around the innermost one of `mark`.
    fn find(&self, mark: &Mark) -> Option<usize> {
        self.entries.get()[..self.used.get()]
            .iter()
            .rposition(|entry| entry.mark.get().is_some_and(|it| core::ptr::eq(it, mark)))
    }

    /// The calling thread enters a marked call; `first` gives its first argument.
    pub fn enter<'py>(
        &self,
        py: Python<'py>,
        mark: &'static Mark,
        goes_on: bool,
        first: impl FnOnce(Python<'py>) -> Option<Object<'py>>,
    ) {
        if self.has_room() {
            let entered = mark.enters(py, goes_on, first);
            // What came in between has left again.
            self.push(mark, entered);
        } else {
            self.beyond.set(self.beyond.get() + 1);
            mark.enters_unkept(py, goes_on);
        }
    }

    /// The calling thread leaves a marked call, which has ended, or has only yielded.
    ///
    /// What is inside it has been left unseen, as by a switch of the C stack, and ends with it. A call
    /// that was entered unseen, before it was marked or in the parent of a fork, is not found.
    pub fn leave(&self, py: Python<'_>, mark: &'static Mark, has_ended: bool) {
        if let Some(beyond) = self.beyond.get().checked_sub(1) {
            self.beyond.set(beyond);
            mark.leaves(py, Entered::unkept(), has_ended);
            return;
        }
        let Some(outer) = self.find(mark) else {
            return;
        };
        while self.used.get() > outer + 1
            && let Some((inner, entered)) = self.pop()
        {
            inner.leaves(py, entered, true);
        }
        if let Some((mark, entered)) = self.pop() {
            mark.leaves(py, entered, has_ended);
        }
    }

    /// The thread has ended.
    pub fn end(&self) {
        self.beyond.set(0);
        self.room.set(Room::UNKNOWN);
        while let Some((mark, entered)) = self.pop() {
            mark.abandons(entered);
        }
    }

    /// The process is the child of a fork: ranges are their process's.
    pub fn in_child(&self, _: &OnlyThread) {
        self.beyond.set(0);
        while let Some((_, entered)) = self.pop() {
            entered.forget();
        }
    }
}

#[cold]
fn room() -> Option<&'static [Entry]> {
    let entries = pages::batch_with(DEPTH, || Entry {
        mark: Cell::new(None),
        entered: Cell::new(None),
    });
    entries.map(|entries| &*entries)
}
