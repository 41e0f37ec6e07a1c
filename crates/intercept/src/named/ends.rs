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
            for (index, awaited) in AWAITED.iter().enumerate() {
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
            assert_eq!((ended(3), ended(pool::RETURNS)), (Some(20), None));
        });
    }
}
