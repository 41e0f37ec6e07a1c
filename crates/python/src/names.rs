//! Looks up the names that Python gave its threads.
//!
//! Python joins most of its threads before its exit handlers run, so a look-up at the end of the
//! process would be too late. Names are looked up while the threads exist, at an audit event after
//! a thread without a name was seen.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::object::Python;
use super::thread_name::IS_BEHIND;
use super::threads;
use super::time::now;
use tllmprof_platform::lifecycle;
use tllmprof_recorder as recorder;

/// The shortest interval between two look-ups, each of which visits all threads. It is `MIN_INTERVAL_NS` ns, or
/// `MIN_INTERVAL_FACTOR` times the duration of the last look-up if that is longer.
const MIN_INTERVAL_NS: u64 = 20_000_000;
const MIN_INTERVAL_FACTOR: u64 = 100;

lifecycle::global! {
    /// The earliest time of the next look-up of thread names, in ns on the clock of `time::now`.
    #[fork(keep = "the clock goes on")]
    #[restart(keep)]
    static NEXT: AtomicU64 = AtomicU64::new(0);
    /// The recorder's era at the last look-up. An era is a number that the recorder changes when it drops its stored
    /// names. If the era has changed since then, all names have to be recorded again.
    #[fork(keep = "the child's eras are others")]
    #[restart(keep)]
    static ERA: AtomicU32 = AtomicU32::new(0);
}

/// Returns true if names are missing and [`look`] is due.
pub(crate) fn are_behind() -> bool {
    let is_behind =
        IS_BEHIND.load(Ordering::Relaxed) || ERA.load(Ordering::Relaxed) != recorder::era();
    is_behind && now() >= NEXT.load(Ordering::Relaxed)
}

/// Looks up the names of all threads that exist.
///
/// This reads the dictionary `threading._active` without Python's lock for it, because the calling thread may already
/// hold this lock.
pub(crate) fn look(py: Python<'_>) -> Option<()> {
    let since = now();
    NEXT.store(since + MIN_INTERVAL_NS, Ordering::Relaxed);
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
        // A thread still has no name from Python, or its name is not recorded yet. Look up the names again later.
        IS_BEHIND.store(true, Ordering::Relaxed);
    }
    let now = now();
    NEXT.store(now + pause(now.saturating_sub(since)), Ordering::Relaxed);
    Some(())
}

/// Returns the ns to wait until the next look-up, after one that took `took` ns.
fn pause(took: u64) -> u64 {
    took.saturating_mul(MIN_INTERVAL_FACTOR)
        .max(MIN_INTERVAL_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_up_takes_a_hundredth_of_the_time_at_most() {
        assert_eq!(pause(0), MIN_INTERVAL_NS);
        assert_eq!(
            pause(MIN_INTERVAL_NS / MIN_INTERVAL_FACTOR),
            MIN_INTERVAL_NS
        );
        assert_eq!(pause(1_000_000), 100_000_000);
    }
}
