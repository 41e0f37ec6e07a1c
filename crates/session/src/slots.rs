//! Access to the slots of threads. A slot holds the cells (counters with a limit) in which a thread counts
//! its calls.

use core::ffi::c_void;

use tllmprof_platform::thread;
use tllmprof_steps::step::counted::Counted;
use tllmprof_steps::step::threads::Slot;

/// A thread's slot (the cells in which it counts calls), stored as a component of the thread's record.
#[repr(transparent)]
pub(crate) struct Counts(pub Slot);

/// Returns the calling thread's slot (the counters of its calls), if it has one.
#[inline]
pub fn slot() -> Option<&'static Slot> {
    thread::part::<Counts>().map(|counts| &counts.0)
}

/// Returns the address of the slot's cells: those for calls inside a stream capture if `capturing` is true, otherwise
/// those for calls outside.
pub(crate) fn cells_of(slot: &Slot, capturing: bool) -> *const c_void {
    core::ptr::from_ref(slot.cells(capturing)).cast()
}

/// Returns true if the calling thread is capturing a stream, so that its calls are counted in separate cells.
pub fn is_capturing() -> bool {
    slot().is_some_and(|slot| core::ptr::eq(thread::cells(), cells_of(slot, true)))
}

/// Counts `what` (a call, or a function that the rule names) in the calling thread's slot. Called for calls that the
/// assembly code of the hooks has not counted. Returns true if the count now exceeds the limit, so that the thread has
/// to report the call to the session. Returns false if the thread has no slot.
pub fn count(what: Counted) -> bool {
    slot().is_some_and(|slot| {
        let cell = slot.cell(what, is_capturing());
        cell.add();
        cell.count() > cell.limit()
    })
}

/// Forgets the slots (each thread's counters of calls) in the child of a fork, because they belong to the parent's
/// threads.
pub(crate) fn forget() {
    thread::set_counting(core::ptr::null(), core::ptr::null());
    thread::forget_parts::<Counts>();
}
