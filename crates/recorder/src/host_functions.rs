//! Counts the host functions that the program enqueues in streams while calls are recorded.
//!
//! A host function is identified by its address. When a window ends, the stack sampler, which knows the modules of the
//! process, finds the functions' names and writes them to the record.

use core::sync::atomic::{AtomicU64, Ordering};

use tllmprof_platform::lifecycle;

/// Maximum number of different functions that are counted. Further functions are ignored.
const MAX_FUNCTIONS: usize = 8;
/// The number of low bits of a [`PLACES`] word that hold the count. The other 48 bits suffice for the address of a
/// function.
const COUNT_BITS: u32 = 16;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

lifecycle::global! {
    stage: Sinks;

    /// One word for each function. The high bits hold the function's address. The low [`COUNT_BITS`] bits hold the
    /// number of times that the function was enqueued since the last call of [`take`] or [`clear`]. A free word is 0.
    /// Address and count change together, so no call is counted for another function.
    #[fork(reset)]
    static PLACES: [AtomicU64; MAX_FUNCTIONS] = [const { AtomicU64::new(0) }; MAX_FUNCTIONS];
}

/// Adds 1 to the count of the function at `address`, which the program enqueues. A count stops at 65 535.
pub fn note(address: usize) {
    let address = address as u64;
    if address == 0 || address > u64::MAX >> COUNT_BITS {
        return;
    }
    for place in &PLACES {
        let mut known = place.load(Ordering::Relaxed);
        while known == 0 || known >> COUNT_BITS == address {
            if known & COUNT == COUNT {
                return;
            }
            let next = (address << COUNT_BITS) + (known & COUNT) + 1;
            match place.compare_exchange_weak(known, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => known = now,
            }
        }
    }
}

/// Calls `each` for each function that was enqueued since the last call of this function or of [`clear`], with the
/// function's address and count. Sets these counts to 0, and removes the functions that were not enqueued.
pub fn take(mut each: impl FnMut(usize, u32)) {
    for place in &PLACES {
        let known = place.fetch_and(!COUNT, Ordering::Relaxed);
        let count = (known & COUNT) as u32;
        if count > 0 {
            each((known >> COUNT_BITS) as usize, count);
        } else {
            // If the function has been enqueued meanwhile, the exchange fails, and the word stays in use.
            let _ = place.compare_exchange(known, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Sets the counts of all functions to 0. Called when a window opens.
pub fn clear() {
    for place in &PLACES {
        place.fetch_and(!COUNT, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken() -> Vec<(usize, u32)> {
        let mut found = Vec::new();
        take(|address, count| found.push((address, count)));
        found
    }

    #[test]
    fn functions_are_counted_up_to_a_limit() {
        note(0);
        note(usize::MAX);
        for address in 1..=MAX_FUNCTIONS + 2 {
            note(0x1000 * address);
        }
        note(0x2000);
        let expected: Vec<_> = (1..=MAX_FUNCTIONS)
            .map(|address| (0x1000 * address, if address == 2 { 2 } else { 1 }))
            .collect();
        assert_eq!(taken(), expected);
        // A function that is enqueued between two windows is not counted. All words are in use, so the window that
        // opens here cannot count another function.
        note(0x1000);
        clear();
        (0..=COUNT).for_each(|_| note(0x2000));
        note(0xa000);
        assert_eq!(taken(), [(0x2000, COUNT as u32)]);
        // The words of the functions that were not enqueued in that window are free again.
        note(0xa000);
        note(0x2000);
        assert_eq!(taken(), [(0xa000, 1), (0x2000, 1)]);
        assert_eq!(taken(), []);
        assert!(
            PLACES
                .iter()
                .all(|place| place.load(Ordering::Relaxed) == 0)
        );
    }
}
