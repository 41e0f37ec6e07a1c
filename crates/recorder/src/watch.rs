//! Sums the current iteration's time by cause, such as garbage collection or waits for the GPU. The triggers
//! (conditions that open a window) and the search for steady iterations need these sums, so they are computed outside
//! windows, too. A window is a period in which events are recorded.

use core::sync::atomic::{AtomicU64, Ordering};

use tllmprof_config::Settings;
use tllmprof_platform::lifecycle;
use tllmprof_steps::trigger::Spent;

use super::clock;
use super::state::{Looks, look_for, looks_for};
use super::usage::this_thread;

lifecycle::global! {
    stage: Sinks;

    /// The thread that began the current iteration. Only its waits are counted.
    #[fork(reset)]
    static THREAD: AtomicU64 = AtomicU64::new(0);
    /// For each cause, the ticks that it has taken since the current iteration began.
    #[fork(reset)]
    static SUMS: [AtomicU64; CAUSES] = [const { AtomicU64::new(0) }; CAUSES];
}

const CAUSES: usize = 4;

/// A cause of the time that an iteration takes.
#[derive(Clone, Copy)]
pub enum Cause {
    /// A garbage collection on any thread. All threads of the interpreter wait for it.
    Gc,
    /// The calling thread has waited for the GIL.
    Gil,
    /// The calling thread has waited for the GPU.
    Wait,
    /// The calling thread has waited for requests.
    Idle,
}

/// Returns true if the settings need the sums: for windows that open on a condition, or to find steady iterations for
/// a window.
pub(crate) fn is_wanted(settings: &Settings) -> bool {
    settings.when.is_some() || settings.windows.is_steady()
}

/// Enables the sums if the settings need them. Called when the library is loaded, after `clock::start`.
pub fn start(settings: &Settings) {
    if is_wanted(settings) {
        // The sums are in ticks even before a record begins, so the clock must be chosen now.
        clock::choose();
        look_for(Looks::Watch, true);
    }
}

/// Stops the sums if they were needed only to find steady iterations for a planned window. Called when a planned
/// window has closed.
pub fn planned_has_closed(settings: &Settings) {
    if settings.when.is_none() && settings.windows.is_steady() {
        look_for(Looks::Watch, false);
    }
}

/// Returns true if the time of each cause (such as a garbage collection) is being summed.
#[inline]
pub fn is_watching() -> bool {
    looks_for(Looks::Watch)
}

/// Adds `ticks` to the sum of `cause`, if the sums are enabled. Except for garbage collections, only the time of the
/// thread that began the current iteration counts.
#[inline(always)]
pub fn add(cause: Cause, ticks: u64) {
    if is_watching() {
        add_watched(cause, ticks);
    }
}

#[cold]
fn add_watched(cause: Cause, ticks: u64) {
    if matches!(cause, Cause::Gc) || THREAD.load(Ordering::Relaxed) == this_thread() {
        SUMS[cause as usize].fetch_add(ticks, Ordering::Relaxed);
    }
}

/// Adds `ns` nanoseconds to the sum of `cause`, like [`add`].
#[inline]
pub fn add_ns(cause: Cause, ns: u64) {
    if is_watching() {
        add(cause, (ns as f64 * clock::recent_ticks_per_ns()) as u64);
    }
}

/// Returns the time of each cause in the previous iteration, and resets the sums. Called with the lock on the session's
/// state (the state of steps and windows) held, when the calling thread begins an iteration.
pub fn take() -> Spent {
    THREAD.store(this_thread(), Ordering::Relaxed);
    let per_ns = clock::recent_ticks_per_ns();
    let ns = |cause: Cause| {
        let sum = &SUMS[cause as usize];
        // In most iterations the sum of a cause is 0. Loading it first avoids an atomic swap, which
        // would lock the cache line.
        match sum.load(Ordering::Relaxed) {
            0 => 0,
            _ => (sum.swap(0, Ordering::Relaxed) as f64 / per_ns) as u64,
        }
    };
    Spent {
        gc: ns(Cause::Gc),
        gil: ns(Cause::Gil),
        wait: ns(Cause::Wait),
        idle: ns(Cause::Idle),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_the_thread_that_makes_the_steps_is_summed_by_cause() {
        add(Cause::Gc, 5);
        look_for(Looks::Watch, true);
        assert_eq!(take(), Spent::default(), "nobody wanted to know");
        let per_ns = clock::ticks_per_ns();
        let ticks = move |ms: f64| (ms * 1e6 * per_ns) as u64;
        add(Cause::Wait, ticks(2.0));
        add(Cause::Wait, ticks(1.0));
        add_ns(Cause::Gil, 4_000_000);
        add(Cause::Idle, ticks(7.0));
        std::thread::spawn(move || {
            add(Cause::Wait, ticks(50.0));
            add_ns(Cause::Gil, 60_000_000);
            add(Cause::Gc, ticks(8.0));
        })
        .join()
        .unwrap();
        let spent = take();
        // The ratio of ticks to nanoseconds may have been measured again during the test, so the
        // values may differ by some thousandths.
        let is_about = |ns: u64, ms: u64| ns.abs_diff(ms * 1_000_000) < ms * 50_000;
        assert!(
            is_about(spent.wait, 3) && is_about(spent.gil, 4),
            "{spent:?}"
        );
        assert!(
            is_about(spent.idle, 7) && is_about(spent.gc, 8),
            "{spent:?}"
        );
        assert_eq!(take(), Spent::default());
        look_for(Looks::Watch, false);
    }
}
