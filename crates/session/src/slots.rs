//! Where each thread counts.

use core::ffi::c_void;

use tllmprof_platform::thread;
use tllmprof_steps::step::counted::Counted;
use tllmprof_steps::step::threads::Slot;

/// A thread's slot, as a part of its record.
#[repr(transparent)]
pub struct Counts(pub Slot);

/// The calling thread's slot, if it has one.
#[inline]
pub fn slot() -> Option<&'static Slot> {
    thread::part::<Counts>().map(|counts| &counts.0)
}

/// The first of a slot's cells, for calls outside a stream capture or inside one.
pub fn cells_of(slot: &Slot, capturing: bool) -> *const c_void {
    core::ptr::from_ref(slot.cells(capturing)).cast()
}

/// Whether a stream capture is under way on the calling thread.
pub fn is_capturing() -> bool {
    slot().is_some_and(|slot| core::ptr::eq(thread::cells(), cells_of(slot, true)))
}

/// Counts what the assembler did not count; whether the thread has to ask what it means.
pub fn count(what: Counted) -> bool {
    slot().is_some_and(|slot| {
        let cell = slot.cell(what, is_capturing());
        cell.add();
        cell.count() > cell.limit()
    })
}

/// The slots of the parent's threads are not the child's.
pub fn forget() {
    thread::set_counting(core::ptr::null(), core::ptr::null());
    thread::forget_parts::<Counts>();
}
