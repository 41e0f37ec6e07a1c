//! Counts the host functions that the program enqueues in streams while calls are recorded.
//!
//! A host function is identified by its address. When a window ends, the stack sampler, which knows the modules of the
//! process, finds the functions' names and writes them to the record.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use tllmprof_platform::lifecycle;

/// Maximum number of different functions that are counted. Further functions are ignored.
const MAX_FUNCTIONS: usize = 8;

lifecycle::global! {
    stage: Sinks;

    /// The addresses of the functions; 0 for a free entry.
    #[fork(reset)]
    static ADDRESSES: [AtomicUsize; MAX_FUNCTIONS] = [const { AtomicUsize::new(0) }; MAX_FUNCTIONS];
    /// For each function, the number of times that it was enqueued since the last call of [`take`].
    #[fork(reset)]
    static COUNTS: [AtomicU32; MAX_FUNCTIONS] = [const { AtomicU32::new(0) }; MAX_FUNCTIONS];
}

/// Counts the function at `address` once, because the program enqueues it.
pub fn note(address: usize) {
    for (known, count) in ADDRESSES.iter().zip(&COUNTS) {
        let found = known.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed);
        if found.is_ok() || found == Err(address) {
            count.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
}

/// Calls `each` for each function that was enqueued since the last call of `take`, with the function's address and the
/// number of times that it was enqueued.
pub fn take(mut each: impl FnMut(usize, u32)) {
    for (known, count) in ADDRESSES.iter().zip(&COUNTS) {
        let count = count.swap(0, Ordering::Relaxed);
        if count > 0 {
            each(known.load(Ordering::Relaxed), count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_counted_up_to_a_limit() {
        for address in 1..=MAX_FUNCTIONS + 2 {
            note(0x1000 * address);
        }
        note(0x2000);
        let mut found = Vec::new();
        take(|address, count| found.push((address, count)));
        let expected: Vec<_> = (1..=MAX_FUNCTIONS)
            .map(|address| (0x1000 * address, if address == 2 { 2 } else { 1 }))
            .collect();
        assert_eq!(found, expected);
        take(|address, count| panic!("{address:#x} is taken again, {count} times"));
    }
}
