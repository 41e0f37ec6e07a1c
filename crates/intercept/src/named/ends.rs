//! The end of a call that ends a window.
//!
//! Only where its return closes a window is a call's return address replaced, by one of a few
//! return stubs. A call that never comes back by its return address, because an exception or
//! `longjmp` leaves it, leaves the window open until the next call, as do all calls when the stubs are
//! used up, where the processor guards return addresses, and of functions that may look at theirs.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::pool::{self, AWAITED};
use super::processor;

/// Awaits the end of the call whose return address lies at `place`, and with it of `iteration`. The
/// call has been entered and has not touched the place.
pub fn await_end(place: &AtomicUsize, iteration: u64) {
    if processor::has_shadow_stack() {
        return;
    }
    let address = place.load(Ordering::Relaxed);
    for (index, awaited) in AWAITED.iter().enumerate() {
        let taken =
            awaited
                .address
                .compare_exchange(0, address, Ordering::AcqRel, Ordering::Relaxed);
        if taken.is_ok() {
            awaited.iteration.store(iteration, Ordering::Relaxed);
            // The stub goes on to the address that it has kept.
            place.store(pool::return_stub(index), Ordering::Relaxed);
            return;
        }
    }
}

/// The call at place `index` has returned, and the stub does not need its address any more: the
/// iteration that is over.
pub fn ended(index: usize) -> Option<u64> {
    let awaited = AWAITED.get(index)?;
    let iteration = awaited.iteration.load(Ordering::Relaxed);
    awaited.address.store(0, Ordering::Release);
    Some(iteration)
}
