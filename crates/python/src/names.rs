//! Looking up what Python calls its threads.
//!
//! Python has joined most of its threads by the time its exit handlers run, so names are looked up
//! while the threads are there: at an audited event, if one has come since.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::object::Python;
use super::thread_name::IS_BEHIND;
use super::threads;
use super::time::now;
use tllmprof_platform::lifecycle;
use tllmprof_recorder as recorder;

/// Time between two look-ups at least, in nanoseconds, and as a multiple of what one takes: it goes
/// through all threads.
const PERIOD: u64 = 20_000_000;
const SELDOM: u64 = 100;

lifecycle::global! {
    /// When names may be looked up next.
    #[fork(keep = "the clock goes on")]
    #[restart(keep)]
    static NEXT: AtomicU64 = AtomicU64::new(0);
    /// The era of the record's strings in which names were looked up last.
    #[fork(keep = "the child's eras are others")]
    #[restart(keep)]
    static ERA: AtomicU32 = AtomicU32::new(0);
}

/// Whether it is time to [`look`].
pub fn are_behind() -> bool {
    let is_behind =
        IS_BEHIND.load(Ordering::Relaxed) || ERA.load(Ordering::Relaxed) != recorder::era();
    is_behind && now() >= NEXT.load(Ordering::Relaxed)
}

/// Looks up the names of the threads that are there.
///
/// The list that `threading.enumerate` goes through, without the lock that it takes: whoever raised
/// the event that brings us here may have it.
pub fn look(py: Python<'_>) -> Option<()> {
    let since = now();
    NEXT.store(since + PERIOD, Ordering::Relaxed);
    IS_BEHIND.store(false, Ordering::Relaxed);
    ERA.store(recorder::era(), Ordering::Relaxed);
    let active = py.imported(c"threading")?.attr(c"_active")?.values()?;
    for thread in active.elements() {
        let named = thread.attr(c"_native_id").zip(thread.attr(c"_name"));
        let Some((id, name)) = named else { continue };
        let (Some(id), Some(name)) = (id.as_int(), name.as_text()) else {
            continue;
        };
        let is_it = |thread: &&threads::Thread| {
            i64::from(thread.number.load(Ordering::Relaxed)) == id && thread.is_used()
        };
        if let Some(thread) = threads::all().find(is_it) {
            thread.name.set_pythons(name.as_bytes());
            if recorder::is_on() && thread.name.is_new() {
                thread
                    .name
                    .is_recorded_in(recorder::thread_name(id as u32, name));
            }
        }
    }
    let has_none = |thread: &threads::Thread| {
        let is_to_come = recorder::is_wanted() && !thread.name.is_recorded();
        thread.is_used() && (is_to_come || !thread.name.is_pythons())
    };
    if threads::all().any(has_none) {
        // It may only just be starting, as the record.
        IS_BEHIND.store(true, Ordering::Relaxed);
    }
    let now = now();
    NEXT.store(now + pause(now.saturating_sub(since)), Ordering::Relaxed);
    Some(())
}

/// Until the next look-up, in nanoseconds, after one that took so many.
fn pause(took: u64) -> u64 {
    took.saturating_mul(SELDOM).max(PERIOD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_up_takes_a_hundredth_of_the_time_at_most() {
        assert_eq!(pause(0), PERIOD);
        assert_eq!(pause(PERIOD / SELDOM), PERIOD);
        assert_eq!(pause(1_000_000), 100_000_000);
    }
}
