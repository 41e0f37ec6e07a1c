//! The marked calls that a thread is in.
//!
//! What a call means, its code object's [`Mark`] knows.

mod function;
mod mark;
mod polled;
mod room;

use core::cell::Cell;

pub use function::{Entered, Function, StepOf};
pub use mark::{Calls, Mark, Watch};
use room::Room;

use super::batch::Arguments;
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

    /// The calling thread enters a marked call; `arguments` gives its arguments.
    pub fn enter<'py>(
        &self,
        py: Python<'py>,
        mark: &'static Mark,
        goes_on: bool,
        arguments: Arguments<'_, 'py>,
    ) {
        if self.has_room() {
            let is_draft = || self.is_in_draft();
            let entered = mark.enters(py, goes_on, arguments, is_draft);
            // What came in between has left again.
            self.push(mark, entered);
        } else {
            self.enter_beyond();
            mark.enters_unkept(py, goes_on);
        }
    }

    /// Whether the thread is in a call within which steps are passes of a model that drafts.
    fn is_in_draft(&self) -> bool {
        self.entries.get()[..self.used.get()].iter().any(|entry| {
            let function = entry.mark.get().and_then(Mark::function);
            function.is_some_and(Function::is_of_drafts)
        })
    }

    /// The calling thread enters a call for which there is no room.
    fn enter_beyond(&self) {
        self.beyond.set(self.beyond.get() + 1);
    }

    /// The calling thread leaves a marked call, which has ended, or has only yielded.
    ///
    /// What is inside it has been left unseen, as by a switch of the C stack, and ends with it. A call
    /// that was entered unseen, before it was marked or in the parent of a fork, is not found.
    pub fn leave(&self, py: Python<'_>, mark: &'static Mark, has_ended: bool) {
        self.unwind(mark, has_ended, |mark, entered, has_ended| {
            mark.leaves(py, entered, has_ended);
        });
    }

    /// Calls `leaves` for each call that ends or yields where the innermost one of `mark` does, the
    /// innermost first.
    #[inline]
    fn unwind(
        &self,
        mark: &'static Mark,
        has_ended: bool,
        leaves: impl Fn(&'static Mark, Entered, bool),
    ) {
        if let Some(beyond) = self.beyond.get().checked_sub(1) {
            self.beyond.set(beyond);
            leaves(mark, Entered::unkept(), has_ended);
            return;
        }
        let Some(outer) = self.find(mark) else {
            return;
        };
        while self.used.get() > outer + 1
            && let Some((inner, entered)) = self.pop()
        {
            leaves(inner, entered, true);
        }
        if let Some((mark, entered)) = self.pop() {
            leaves(mark, entered, has_ended);
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

    /// How the calls go on is not seen: their ranges end here, their iterations with the next.
    pub fn forget(&self) {
        self.beyond.set(0);
        while let Some((_, entered)) = self.pop() {
            drop(entered);
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

#[cfg(test)]
pub mod tests {
    use core::cell::RefCell;
    use core::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::object::Object;

    /// Counts the calls that a thread has ended in the midst of.
    struct Counts(AtomicUsize);

    static COUNTS: Counts = Counts(AtomicUsize::new(0));

    impl Calls for Counts {
        fn enters(&self, _: Python<'_>, _: Option<&Object<'_>>, _: bool) -> Entered {
            Entered::with(None)
        }
        fn leaves(&self, _: Python<'_>, _: Entered, _: bool) {}
        fn abandons(&self, _: Entered) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Of no code object.
    pub fn mark() -> &'static Mark {
        Box::leak(Box::new(Mark::made(Watch::Calls(&COUNTS))))
    }

    /// The calls that leave with that of `mark`, by their places in `marks`, and whether they have
    /// ended.
    fn left(
        spans: &Spans,
        marks: &[&'static Mark],
        mark: &'static Mark,
        has_ended: bool,
    ) -> Vec<(usize, bool)> {
        let left = RefCell::new(Vec::new());
        spans.unwind(mark, has_ended, |mark, _, has_ended| {
            let place = marks.iter().position(|it| core::ptr::eq(*it, mark));
            left.borrow_mut().push((place.unwrap(), has_ended));
        });
        left.into_inner()
    }

    fn in_calls(marks: &[&'static Mark]) -> Spans {
        let spans = Spans::new();
        for mark in marks {
            assert!(spans.has_room());
            spans.push(mark, Entered::with(None));
        }
        spans
    }

    #[test]
    fn the_innermost_call_leaves_alone() {
        let marks = [mark(), mark()];
        let spans = in_calls(&marks);
        assert_eq!(left(&spans, &marks, marks[1], false), [(1, false)]);
        assert_eq!(left(&spans, &marks, marks[0], true), [(0, true)]);
        assert_eq!(left(&spans, &marks, marks[0], true), []);
    }

    #[test]
    fn what_is_inside_ends_with_its_call() {
        let marks = [mark(), mark(), mark()];
        let spans = in_calls(&marks);
        let all = left(&spans, &marks, marks[0], false);
        assert_eq!(all, [(2, true), (1, true), (0, false)]);
    }

    #[test]
    fn of_a_recursive_call_the_innermost_leaves() {
        let one = mark();
        let spans = in_calls(&[one, mark(), one]);
        assert_eq!(spans.find(one), Some(2));
        assert_eq!(left(&spans, &[one], one, true), [(0, true)]);
        assert_eq!(spans.find(one), Some(0));
    }

    #[test]
    fn a_call_that_was_entered_unseen_is_passed_over() {
        let marks = [mark(), mark()];
        let spans = in_calls(&marks[..1]);
        assert_eq!(left(&spans, &marks, marks[1], true), []);
        assert_eq!(spans.find(marks[0]), Some(0));
    }

    #[test]
    fn deeper_calls_than_are_kept_leave_first() {
        let (outer, inner) = (mark(), mark());
        let spans = in_calls(&[outer; DEPTH]);
        assert!(!spans.has_room());
        spans.enter_beyond();
        spans.enter_beyond();
        spans.unwind(inner, true, |_, entered, _| assert!(entered.is_unkept()));
        assert_eq!(left(&spans, &[outer, inner], inner, false), [(1, false)]);
        assert_eq!(left(&spans, &[outer, inner], inner, false), []);
        spans.unwind(outer, true, |_, entered, _| assert!(!entered.is_unkept()));
        assert!(spans.has_room());
    }

    #[test]
    fn a_thread_that_ends_abandons_its_calls() {
        let spans = in_calls(&[mark(), mark()]);
        spans.enter_beyond();
        let before = COUNTS.0.load(Ordering::Relaxed);
        spans.end();
        assert!(COUNTS.0.load(Ordering::Relaxed) >= before + 2);
        assert_eq!((spans.used.get(), spans.beyond.get()), (0, 0));
        let spans = in_calls(&[mark()]);
        // SAFETY: no other thread has a reference to what this one made.
        spans.in_child(&unsafe { OnlyThread::new() });
        assert_eq!(spans.used.get(), 0);
    }
}
