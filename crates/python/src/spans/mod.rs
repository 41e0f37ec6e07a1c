//! The calls of marked functions that a thread is in.
//!
//! The [`Mark`] of a call's code object contains the receiver to which the call is reported.

mod function;
mod mark;
mod polled;
mod room;

use core::cell::Cell;

pub(crate) use function::RequestedFunction;
pub(crate) use function::{Entered, StepOf};
pub(crate) use mark::{CallReceiver, Watch};
pub(crate) use mark::{Mark, Within, yields};
use room::Room;

use super::batch::ArgumentLookup;
use super::object::Python;
use super::trouble::Trouble;
use tllmprof_platform::lifecycle::OnlyThread;
use tllmprof_platform::pages;

/// The most calls of a thread that are stored at a time. Further calls are only counted, and have no ranges.
const MAX_OPEN: usize = 256;

/// The storage for one call that has not ended.
struct OpenCallSlot {
    /// The address of the frame of the stored call; 0 if it is unknown.
    frame: Cell<usize>,
    mark: Cell<Option<&'static Mark>>,
    entered: Cell<Option<Entered>>,
}

impl OpenCallSlot {
    /// Applies `change` to the state of the call in this slot, if the slot has one.
    fn change(&self, change: impl FnOnce(&mut Entered)) {
        if let Some(mut entered) = self.entered.take() {
            change(&mut entered);
            self.entered.set(Some(entered));
        }
    }
}

/// The marked calls that a thread is in, in the order in which it entered them.
///
/// The calls may end in any order, because greenlets switch the thread from inside one call to
/// another. So a call is identified by its frame, which no other open call has.
pub(crate) struct Spans {
    /// Storage for `MAX_OPEN` calls, which is never freed; empty before the first call.
    entries: Cell<&'static [OpenCallSlot]>,
    used: Cell<usize>,
    /// Number of open calls that were not stored because all slots were in use.
    beyond: Cell<usize>,
    /// True if a call on this thread has ended while a call that began later was still open.
    has_overlaps: Cell<bool>,
    /// The part of the thread's stack that is left to the program: in CPython 3.11, no calls are reported while the
    /// stack pointer is in it.
    room: Cell<Room>,
}

impl Spans {
    pub(crate) const fn new() -> Self {
        Self {
            entries: Cell::new(&[]),
            used: Cell::new(0),
            beyond: Cell::new(0),
            has_overlaps: Cell::new(false),
            room: Cell::new(Room::UNKNOWN),
        }
    }

    /// Returns true if a slot is free for another call. The thread's first call of this function allocates the slots.
    fn has_room(&self) -> bool {
        if self.entries.get().is_empty() {
            self.entries.set(room().unwrap_or(&[]));
        }
        self.used.get() < self.entries.get().len()
    }

    /// Returns the slots of the stored calls.
    fn open(&self) -> &'static [OpenCallSlot] {
        self.entries.get().get(..self.used.get()).unwrap_or(&[])
    }

    /// Stores a call, if a slot is free.
    fn push(&self, frame: usize, mark: &'static Mark, entered: Entered) {
        let used = self.used.get();
        if let Some(entry) = self.entries.get().get(used) {
            entry.frame.set(frame);
            entry.mark.set(Some(mark));
            entry.entered.set(Some(entered));
            self.used.set(used + 1);
        }
    }

    /// Removes and returns the call that was entered last.
    fn pop(&self) -> Option<(&'static Mark, Entered)> {
        let last = self.used.get().checked_sub(1)?;
        self.used.set(last);
        let entry = self.entries.get().get(last)?;
        entry.mark.take().zip(entry.entered.take())
    }

    /// Removes and returns the call at index `place`. Each later call moves to the slot before its own.
    fn take(&self, place: usize) -> Option<(&'static Mark, Entered)> {
        let open = self.open();
        let entry = open.get(place)?;
        let taken = entry.mark.take().zip(entry.entered.take());
        for pair in open[place..].windows(2) {
            pair[0].frame.set(pair[1].frame.get());
            pair[0].mark.set(pair[1].mark.take());
            pair[0].entered.set(pair[1].entered.take());
        }
        self.used.set(open.len() - 1);
        taken
    }

    /// Returns the index of the call with this mark and frame. If frames are unknown (0), returns the innermost call
    /// with this mark.
    fn find(&self, frame: usize, mark: &Mark) -> Option<usize> {
        self.open().iter().rposition(|entry| {
            entry.frame.get() == frame && entry.mark.get().is_some_and(|it| core::ptr::eq(it, mark))
        })
    }

    /// Records that the calling thread begins or resumes a marked call in `frame`. `arguments`
    /// returns the call's arguments.
    pub(crate) fn enter<'py>(
        &self,
        py: Python<'py>,
        frame: usize,
        mark: &'static Mark,
        goes_on: bool,
        arguments: ArgumentLookup<'_, 'py>,
    ) {
        if self.has_room() || self.drop_stale(frame) {
            if let Some(function) = mark.function()
                && function.is_replaced()
                && self.is_within(function, mark)
            {
                function.called_within();
                self.push(frame, mark, Entered::unkept());
                return;
            }
            let entered = mark.enters(py, goes_on, arguments, self);
            // Marked calls that `enters` itself made have ended by now, so the calls are still stored in the order in
            // which they began.
            self.push(frame, mark, entered);
        } else {
            self.enter_beyond();
            mark.enters_unkept(py, goes_on);
        }
    }

    /// Returns true if the thread is inside a call of the function that replaced `function`. `mark` is the mark of
    /// the original function's code.
    #[cold]
    fn is_within(&self, function: &RequestedFunction, mark: &Mark) -> bool {
        self.open().iter().any(|entry| {
            let around = entry
                .mark
                .get()
                .filter(|around| !core::ptr::eq(*around, mark));
            let around = around.and_then(Mark::function);
            around.is_some_and(|around| core::ptr::eq(around, function))
        })
    }

    /// Drops the stored call whose frame has the address `frame`, and returns true if there is one. A new call begins
    /// in the frame at this address, so the stored call must have ended without a report.
    #[cold]
    fn drop_stale(&self, frame: usize) -> bool {
        let is_its = |entry: &OpenCallSlot| frame != 0 && entry.frame.get() == frame;
        let stale = self.open().iter().rposition(is_its);
        stale.is_some_and(|place| {
            self.end_at(place, Mark::abandons);
            true
        })
    }

    /// Counts a call that is not stored because no slot is free, and records the problem [`Trouble::ManyOpen`].
    fn enter_beyond(&self) {
        self.beyond.set(self.beyond.get() + 1);
        Trouble::ManyOpen.note();
    }

    /// Records that the calling thread leaves a marked call in `frame`, because the call has ended or yielded.
    ///
    /// Does nothing if the start of the call was not recorded. This is so if the call began before the code object was
    /// marked, or in the parent of a fork.
    pub(crate) fn leave(&self, py: Python<'_>, frame: usize, mark: &'static Mark, has_ended: bool) {
        self.end(frame, mark, |mark, entered| {
            mark.leaves(py, entered, has_ended);
        });
    }

    /// Finds the call with this mark and frame, removes it, and passes it to `leaves`. If no such call is stored but
    /// some open calls were not stored (`beyond`), assumes that one of these has ended, and passes [`Entered::unkept`].
    #[inline]
    fn end(&self, frame: usize, mark: &'static Mark, leaves: impl FnOnce(&'static Mark, Entered)) {
        if let Some(place) = self.find(frame, mark) {
            self.end_at(place, leaves);
        } else if let Some(beyond) = self.beyond.get().checked_sub(1) {
            self.beyond.set(beyond);
            leaves(mark, Entered::unkept());
        }
    }

    #[inline]
    fn end_at(&self, place: usize, leaves: impl FnOnce(&'static Mark, Entered)) {
        if place + 1 == self.used.get() {
            if let Some((mark, entered)) = self.pop() {
                leaves(mark, entered);
            }
        } else {
            self.end_before_others(place, leaves);
        }
    }

    /// Ends a call like [`Spans::end_at`], but while calls that began later are still open. Nested NVTX ranges of a
    /// thread must end in the reverse order in which they began. So those of the later calls end before this call's
    /// range, and begin again after it ([`Entered::interrupt`]).
    #[cold]
    fn end_before_others(&self, place: usize, leaves: impl FnOnce(&'static Mark, Entered)) {
        self.has_overlaps.set(true);
        for entry in self.open()[place + 1..].iter().rev() {
            entry.change(Entered::interrupt);
        }
        if let Some((mark, entered)) = self.take(place) {
            leaves(mark, entered);
        }
        for entry in self.open().get(place..).unwrap_or(&[]) {
            entry.change(Entered::resume);
        }
    }

    /// Ends the calls that the thread was in, because the thread has ended.
    pub(crate) fn thread_ends(&self) {
        self.beyond.set(0);
        self.has_overlaps.set(false);
        self.room.set(Room::UNKNOWN);
        while let Some((mark, entered)) = self.pop() {
            mark.abandons(entered);
        }
    }

    /// Forgets the calls that the thread is in. Called if the library's hooks have been removed from the interpreter
    /// since these calls began, because the ends of the calls may not have been reported. Their NVTX ranges end now.
    /// The iterations that they began end when the next iteration begins.
    pub(crate) fn forget(&self) {
        self.beyond.set(0);
        while let Some((_, entered)) = self.pop() {
            drop(entered);
        }
    }

    /// Forgets the calls in the child of a fork, because their ranges belong to the parent.
    pub(crate) fn in_child(&self, _: &OnlyThread) {
        self.beyond.set(0);
        while let Some((_, entered)) = self.pop() {
            entered.forget();
        }
    }
}

impl Within for Spans {
    fn is_draft(&self) -> bool {
        self.open().iter().any(|entry| {
            let function = entry.mark.get().and_then(Mark::function);
            function.is_some_and(RequestedFunction::is_of_drafts)
        })
    }

    fn has_overlaps(&self) -> bool {
        self.has_overlaps.get()
    }
}

#[cold]
fn room() -> Option<&'static [OpenCallSlot]> {
    let entries = pages::batch_with(MAX_OPEN, || OpenCallSlot {
        frame: Cell::new(0),
        mark: Cell::new(None),
        entered: Cell::new(None),
    });
    entries.map(|entries| &*entries)
}

#[cfg(test)]
pub(crate) mod tests {
    use core::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::object::Object;

    /// A receiver that counts the calls during which a thread ended.
    struct Counts(AtomicUsize);

    static COUNTS: Counts = Counts(AtomicUsize::new(0));

    impl CallReceiver for Counts {
        fn enters(&self, _: Python<'_>, _: Option<&Object<'_>>, _: bool) -> Entered {
            Entered::with(None)
        }
        fn leaves(&self, _: Python<'_>, _: Entered, _: bool) {}
        fn abandons(&self, _: Entered) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns a mark without a code object, whose receiver is [`COUNTS`].
    pub(crate) fn mark() -> &'static Mark {
        Box::leak(Box::new(Mark::made(Watch::Calls(&COUNTS))))
    }

    /// Ends the call of `mark` in `frame`, and returns the index in `marks` of the call's mark; `None` if no call
    /// ended.
    fn ended(
        spans: &Spans,
        marks: &[&'static Mark],
        frame: usize,
        mark: &'static Mark,
    ) -> Option<usize> {
        let ended = Cell::new(None);
        spans.end(frame, mark, |mark, _| {
            ended.set(marks.iter().position(|it| core::ptr::eq(*it, mark)));
        });
        ended.get()
    }

    /// Returns the state of a thread that has entered one call for each of these marks. The frames of the calls have
    /// the addresses 1, 2, and so on.
    fn in_calls(marks: &[&'static Mark]) -> Spans {
        let spans = Spans::new();
        for (index, mark) in marks.iter().enumerate() {
            assert!(spans.has_room());
            spans.push(index + 1, mark, Entered::with(None));
        }
        spans
    }

    fn frames(spans: &Spans) -> Vec<usize> {
        spans.open().iter().map(|entry| entry.frame.get()).collect()
    }

    #[test]
    fn each_call_ends_alone_in_any_order() {
        let marks = [mark(), mark(), mark()];
        let spans = in_calls(&marks);
        assert_eq!(ended(&spans, &marks, 3, marks[2]), Some(2));
        assert!(!spans.has_overlaps.get());
        spans.push(4, marks[2], Entered::with(None));
        assert_eq!(ended(&spans, &marks, 1, marks[0]), Some(0));
        assert!(spans.has_overlaps.get());
        assert_eq!(frames(&spans), [2, 4]);
        assert_eq!(ended(&spans, &marks, 4, marks[2]), Some(2));
        assert_eq!(ended(&spans, &marks, 2, marks[1]), Some(1));
        assert_eq!(ended(&spans, &marks, 2, marks[1]), None);
    }

    #[test]
    fn of_calls_of_one_function_the_frames_own_ends() {
        let one = mark();
        let spans = in_calls(&[one, one, one]);
        assert_eq!(ended(&spans, &[one], 2, one), Some(0));
        assert_eq!(frames(&spans), [1, 3]);
        assert_eq!(ended(&spans, &[one], 1, one), Some(0));
        assert_eq!(frames(&spans), [3]);
    }

    #[test]
    fn where_frames_are_not_known_the_innermost_call_ends() {
        let (one, other) = (mark(), mark());
        let spans = Spans::new();
        for mark in [one, other, one] {
            assert!(spans.has_room());
            spans.push(0, mark, Entered::with(None));
        }
        assert_eq!(spans.find(0, one), Some(2));
        assert_eq!(ended(&spans, &[one], 0, one), Some(0));
        assert_eq!(spans.find(0, one), Some(0));
    }

    #[test]
    fn a_call_that_was_entered_unseen_is_passed_over() {
        let marks = [mark(), mark()];
        let spans = in_calls(&marks[..1]);
        assert_eq!(ended(&spans, &marks, 2, marks[1]), None);
        assert_eq!(ended(&spans, &marks, 2, marks[0]), None);
        assert_eq!(frames(&spans), [1]);
    }

    #[test]
    fn calls_beyond_those_that_are_kept_are_not_taken_for_them() {
        let (outer, inner) = (mark(), mark());
        let spans = in_calls(&[outer; MAX_OPEN]);
        assert!(!spans.has_room());
        spans.enter_beyond();
        spans.enter_beyond();
        // The stored call `outer` ends before the calls that did not fit into the slots. This
        // happens when greenlets switch the thread.
        spans.end(7, outer, |_, entered| assert!(!entered.is_unkept()));
        spans.end(999, inner, |_, entered| assert!(entered.is_unkept()));
        assert_eq!(ended(&spans, &[outer, inner], 998, inner), Some(1));
        assert_eq!(ended(&spans, &[outer, inner], 997, inner), None);
        assert!(spans.has_room());
    }

    #[test]
    fn a_call_whose_end_was_not_seen_makes_room() {
        let one = mark();
        let spans = in_calls(&[one; MAX_OPEN]);
        assert!(!spans.drop_stale(MAX_OPEN + 1) && !spans.drop_stale(0));
        assert!(spans.drop_stale(8) && spans.has_room());
        assert_eq!(spans.find(8, one), None);
    }

    #[test]
    fn a_thread_that_ends_abandons_its_calls() {
        let spans = in_calls(&[mark(), mark()]);
        spans.enter_beyond();
        let before = COUNTS.0.load(Ordering::Relaxed);
        spans.thread_ends();
        assert!(COUNTS.0.load(Ordering::Relaxed) >= before + 2);
        assert_eq!((spans.used.get(), spans.beyond.get()), (0, 0));
        let spans = in_calls(&[mark()]);
        // SAFETY: no other thread has a reference to the objects of this test.
        spans.in_child(&unsafe { OnlyThread::new() });
        assert_eq!(spans.used.get(), 0);
    }
}
