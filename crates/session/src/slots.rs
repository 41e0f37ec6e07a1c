//! The slots of threads. A slot holds the cells in which a thread counts its calls.

use core::ffi::c_void;

use tllmprof_platform::thread;
use tllmprof_steps::step::counted::Counted;
use tllmprof_steps::step::threads::Slot;

/// A thread's slot (the cells in which it counts calls), stored as a part of the thread's record.
#[repr(transparent)]
pub(crate) struct Counts(pub Slot);

/// Returns the calling thread's slot, if it has one.
#[inline]
pub fn slot() -> Option<&'static Slot> {
    thread::part::<Counts>().map(|counts| &counts.0)
}

/// Returns the address of a slot's first cell. A slot has separate cells for calls during a stream capture.
pub(crate) fn cells_of(slot: &Slot, capturing: bool) -> *const c_void {
    core::ptr::from_ref(slot.cells(capturing)).cast()
}

/// Returns true if the calling thread is capturing a stream.
pub fn is_capturing() -> bool {
    slot().is_some_and(|slot| core::ptr::eq(thread::cells(), cells_of(slot, true)))
}

/// Counts a call that the assembler has not counted. Returns true if the count exceeds the limit, so that the
/// thread has to ask what the call means.
pub fn count(what: Counted) -> bool {
    slot().is_some_and(|slot| {
        let cell = slot.cell(what, is_capturing());
        cell.add();
        cell.count() > cell.limit()
    })
}

/// Forgets the slots in the child of a fork: they belong to the parent's threads.
pub(crate) fn forget() {
    thread::set_counting(core::ptr::null(), core::ptr::null());
    thread::forget_parts::<Counts>();
}
