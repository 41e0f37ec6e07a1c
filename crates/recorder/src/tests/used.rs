//! Tests that the processor time and the page faults of iterations are measured and recorded.

use core::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tllmprof_platform::pages;
use tllmprof_record::contents::on_a_thread;
use tllmprof_record::{Used, What};

use super::record;
use crate::{iteration_begins, iteration_ends, window_closes, window_opens};

/// Tests similar iterations, of which only some are fully measured. The page faults of the iterations in between are
/// recorded together with a later, measured iteration.
#[test]
fn page_faults_of_all_iterations_are_in_the_record() {
    const WORDS: usize = 1 << 15;
    let record = record();
    let numbers = 100..130;
    let thread = on_a_thread(|| {
        window_opens(numbers.start, false);
        for n in numbers.clone() {
            iteration_begins(n, false);
            // The first write to each page of new memory causes a page fault.
            for word in pages::batch::<AtomicU64>(WORDS).into_iter().flatten() {
                word.store(1, Ordering::Relaxed);
            }
            let begun = Instant::now();
            while begun.elapsed().as_micros() < 500 {}
            iteration_ends(true);
        }
        window_closes(numbers.end);
    });
    let events = record.read().find_events(thread);
    let faults = events.iter().filter_map(|event| match event.what {
        What::Used {
            what: Some(Used::Kernel),
            iteration,
            count,
        } => Some((iteration, u64::from(count))),
        _ => None,
    });
    let faults: Vec<_> = faults.collect();
    let all: u64 = faults.iter().map(|(_, count)| count).sum();
    // The kernel's pages may be larger than 4 KiB. So the test requires only one page fault for each 64 KiB of memory.
    assert!(all >= 30 * (WORDS as u64 / 8192), "{faults:?}");
    let latest = faults.last().map(|(n, _)| *n);
    assert_eq!(latest, Some(129), "{faults:?}");
}
