//! Detects the end of a call that ends a window, or that is a scope (GPU work is attributed to it).
//!
//! Only these calls get another return address: the address of a return stub, of which there are only a few. A call
//! that an exception or a `longjmp` leaves never returns to its stub, so the window stays open until the next call of
//! the function. The window also stays open for calls whose return address cannot be replaced: when all stubs are in
//! use, when the processor protects return addresses, and for functions that may read their return address. If an
//! exception leaves a call that is a scope, [`passes`] ends the scope.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

use tllmprof_platform::panics::contained;
use tllmprof_platform::thread;
use tllmprof_scopes::native;

use super::pool::{self, AWAITED, RETURNS, Return};
use super::processor;

/// Makes a call return to a return stub (code of this library), so that the library sees the end of the call. The
/// iteration `iteration` ends at that moment. `place` holds the call's return address, and the called function has not
/// changed it yet.
pub(crate) fn await_end(place: &AtomicUsize, iteration: u64) {
    if processor::has_shadow_stack() {
        return;
    }
    if let Some(index) = pool::index_of(place.load(Ordering::Relaxed)) {
        // The return address is already that of a return stub: the function is also a scope (GPU work is attributed to
        // it), or another intercepted function ended in a jump to this function.
        AWAITED[index].iteration.store(iteration, Ordering::Relaxed);
    } else {
        take(place, iteration, 0..RETURNS);
    }
}

/// Makes a call that is a scope (GPU work is attributed to it) return to a return stub (code of this library). Returns
/// the stub's index in [`AWAITED`], or `None` if all stubs are in use.
pub(crate) fn await_scope(place: &AtomicUsize) -> Option<usize> {
    let known = pool::index_of(place.load(Ordering::Relaxed));
    known.or_else(|| {
        let count = AWAITED.len() - RETURNS;
        // Begin the search at an index that depends on the thread, so that different threads usually use different
        // return stubs. The index is computed from the address of the thread's data, which is far from that of other
        // threads.
        let first = (thread::address() >> 12).wrapping_mul(17) % count.max(1);
        let take = |range| take(place, Return::NO_ITERATION, range);
        take(RETURNS + first..AWAITED.len()).or_else(|| take(RETURNS..RETURNS + first))
    })
}

fn take(place: &AtomicUsize, iteration: u64, range: core::ops::Range<usize>) -> Option<usize> {
    let address = place.load(Ordering::Relaxed);
    let start = range.start;
    for (index, awaited) in AWAITED[range].iter().enumerate() {
        let taken =
            awaited
                .address
                .compare_exchange(0, address, Ordering::AcqRel, Ordering::Relaxed);
        if taken.is_ok() {
            awaited.iteration.store(iteration, Ordering::Relaxed);
            // The call now returns to the stub, which continues at the stored original return address.
            place.store(pool::return_stub(start + index), Ordering::Relaxed);
            return Some(start + index);
        }
    }
    None
}

/// Frees the return stub (the code to which a call returns) of a call that has returned. Called after the stub has
/// loaded the original return address. Returns the iteration that has ended with the call, or `None`.
pub(crate) fn ended(index: usize) -> Option<u64> {
    let awaited = AWAITED.get(index)?;
    let iteration = awaited.iteration.load(Ordering::Relaxed);
    awaited.address.store(0, Ordering::Release);
    (iteration != Return::NO_ITERATION).then_some(iteration)
}

/// Personality routine for the frame of a call that is a scope (GPU work is attributed to it). The routine makes an
/// unwinder continue past the frame. In the clean-up phase, it also ends the scope. `index` is the call's index in
/// [`AWAITED`]. The Itanium C++ ABI defines the other arguments (`_Unwind_Personality_Fn`).
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "there are no such frames")
)]
pub(crate) extern "C" fn passes(
    _version: c_int,
    actions: c_int,
    _class: u64,
    _exception: *mut c_void,
    _context: *mut c_void,
    index: u32,
) -> c_int {
    /// Values of `_UA_CLEANUP_PHASE` and `_URC_CONTINUE_UNWIND`.
    const CLEANUP_PHASE: c_int = 2;
    const CONTINUE_UNWIND: c_int = 8;
    if actions & CLEANUP_PHASE != 0 {
        contained((), || {
            let _inside = thread::Inside::enter();
            native::is_passed(index);
        });
    }
    CONTINUE_UNWIND
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::alone;

    #[test]
    fn as_many_ends_are_awaited_as_there_are_return_stubs() {
        alone(&[], || {
            let place = AtomicUsize::new(0x4000);
            if processor::has_shadow_stack() {
                await_end(&place, 7);
                assert_eq!(place.into_inner(), 0x4000);
                return;
            }
            for (index, awaited) in AWAITED[..RETURNS].iter().enumerate() {
                place.store(0x4000 + index, Ordering::Relaxed);
                await_end(&place, 7 + index as u64);
                assert_eq!(place.load(Ordering::Relaxed), pool::return_stub(index));
                assert_eq!(awaited.address.load(Ordering::Relaxed), 0x4000 + index);
            }
            place.store(0x5000, Ordering::Relaxed);
            await_end(&place, 20);
            assert_eq!(place.load(Ordering::Relaxed), 0x5000, "none is free");
            assert_eq!(ended(3), Some(10));
            await_end(&place, 20);
            assert_eq!(place.load(Ordering::Relaxed), pool::return_stub(3));
            assert_eq!((ended(3), ended(AWAITED.len())), (Some(20), None));
        });
    }
}
