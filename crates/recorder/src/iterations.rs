//! Records iterations and windows: outside windows a histogram and counters, inside them events.
//!
//! Called with the session's turn or its lock, so by one thread at a time.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tllmprof_platform::lifecycle;
use tllmprof_record::{Counter, Edge, Event, What};

use super::state::{self, Keeps, is_on, is_recording};
use super::{clock, flight, gpu, keep, pace, ranges, reuse, ring, space, times, usage, writers};

/// The number of no iteration.
const NONE: u64 = u64::MAX;

lifecycle::global! {
    stage: Sinks;

    /// The iteration that is open, and when it began.
    #[fork(reset)]
    #[together(iterations)]
    static OPEN: AtomicU64 = AtomicU64::new(NONE);
    #[fork(reset)]
    #[together(iterations)]
    static SINCE: AtomicU64 = AtomicU64::new(0);
    /// True if the condition on batches does not hold for it.
    #[fork(reset)]
    #[together(iterations)]
    static EXCLUDED: AtomicBool = AtomicBool::new(false);
    /// The first iteration of the open window, and the number of iterations that have ended in it.
    #[fork(keep = "stored where a window opens")]
    static FIRST: AtomicU64 = AtomicU64::new(0);
    #[fork(keep = "stored where a window opens")]
    #[together(iterations)]
    static ENDED: AtomicU64 = AtomicU64::new(0);

    /// The calls of each row that the header's counters include already.
    #[fork(reset)]
    static COUNTED: [AtomicU64; ROWS] = [const { AtomicU64::new(0) }; ROWS];
}
const ROWS: usize = 32;
lifecycle::global! {
    stage: Sinks;

    /// The times in milliseconds when the counters were last updated, and when the clock was last anchored.
    #[fork(reset)]
    #[together(iterations)]
    static COUNTED_AT: AtomicU64 = AtomicU64::new(0);
    #[fork(reset)]
    #[together(iterations)]
    static ANCHORED_AT: AtomicU64 = AtomicU64::new(0);
}
const COUNT_EVERY: u64 = 100;
const ANCHOR_EVERY: u64 = 10_000;

lifecycle::global! {
    /// The number of events when the window opened, and the cost of one event for its thread, in ticks.
    #[fork(keep = "stored where a window opens")]
    static EVENTS: AtomicU64 = AtomicU64::new(0);
    #[fork(keep = "measured where a record begins")]
    static EVENT_COSTS: AtomicU64 = AtomicU64::new(0);
}

/// Stores `value` and returns the old value. Not one atomic operation, which would lock the cache line: only
/// one thread at a time calls this.
fn replace(at: &AtomicU64, value: u64) -> u64 {
    let old = at.load(Ordering::Relaxed);
    at.store(value, Ordering::Relaxed);
    old
}

/// Called when a record has begun.
pub fn start() {
    EVENT_COSTS.store(writers::measure(), Ordering::Relaxed);
}

/// Begins an iteration. `excluded`: the condition on batches does not hold for it.
pub fn iteration_begins(n: u64, excluded: bool) {
    gpu::iteration_begins(n, excluded);
    if is_on() {
        ring::step_begins(n);
        OPEN.store(n, Ordering::Relaxed);
        EXCLUDED.store(excluded, Ordering::Relaxed);
        let now = clock::ticks();
        let ended = replace(&SINCE, now);
        // The time between two iterations was spent in this library.
        if is_recording()
            && let Some(header) = space::header()
        {
            header.add(Counter::OwnTicks, now.saturating_sub(ended));
        }
    }
}

/// Returns the iteration that is open, if any.
pub fn open_iteration() -> Option<u64> {
    Some(OPEN.load(Ordering::Relaxed)).filter(|n| *n != NONE)
}

/// Ends the open iteration, if any. `counts`: it was a whole one.
pub fn iteration_ends(counts: bool) {
    end(counts, false);
}

/// `cut`: the iteration was cut off by the end of the process.
fn end(counts: bool, cut: bool) {
    let n = replace(&OPEN, NONE);
    if n != NONE {
        ring::step_ends();
    }
    if n == NONE || !counts {
        return;
    }
    let now = clock::ticks();
    let since = replace(&SINCE, now);
    let took = now.saturating_sub(since);
    let Some(header) = space::header() else {
        return;
    };
    let is_inside = is_recording();
    if !flight::keeps_span() {
        header.add(Counter::Iterations, 1);
        pace::add(took);
        if !is_inside {
            times::add(n, took);
        }
    }
    if !is_inside && !reuse::is_on() {
        header.outside().add(took);
        return;
    }
    let excluded = EXCLUDED.load(Ordering::Relaxed);
    let what = What::Iteration { n, excluded };
    writers::write_aside(&Event {
        cut,
        ..Event::new(since, took, what)
    });
    usage::iteration_ends(n);
    if is_inside {
        ENDED.fetch_add(1, Ordering::Relaxed);
        if gpu::is_taken(n) {
            header.add(Counter::NsInside, clock::ns(took));
        }
    } else {
        flight::add(n, since, took);
    }
}

/// Drops the span that stood for an iteration while no step was known.
pub fn span_is_replaced() {
    end(false, false);
    flight::forget_span();
}

/// Opens a window with iteration `first`. `past`: the iterations before it that were kept stay in the record.
pub fn window_opens(first: u64, past: bool) {
    if !is_on() {
        return;
    }
    flight::ends(past);
    let Some(header) = space::header() else {
        return;
    };
    space::make_room();
    header.anchor(clock::anchor());
    header.add(Counter::Windows, 1);
    // Read first, so that events that are written again for the window come after its opening.
    let opened = clock::ticks();
    writers::strings::window_opens();
    FIRST.store(first, Ordering::Relaxed);
    ENDED.store(0, Ordering::Relaxed);
    EVENTS.store(writers::events(), Ordering::Relaxed);
    write_edge(Edge::Open, opened, first, false);
    header.snapshot();
    usage::window_opens();
    SINCE.store(clock::ticks(), Ordering::Relaxed);
    ranges::window_opens();
    state::keep(Keeps::Window, true);
}

/// Writes a histogram of the iterations that came before the window that has opened.
pub fn write_before() {
    if !is_recording() {
        return;
    }
    let buckets = space::header().map(|header| header.outside().buckets());
    for (bucket, iterations) in buckets.into_iter().flatten() {
        let what = What::OutsideBefore { bucket, iterations };
        writers::write_aside(&Event::new(clock::ticks(), 0, what));
    }
}

/// Closes the open window before iteration `next`.
pub fn window_closes(next: u64) {
    if close(next) {
        flight::resume();
    }
}

/// Like [`window_closes`]. Returns true if a window was open.
fn close(next: u64) -> bool {
    if !state::keep(Keeps::Window, false) {
        return false;
    }
    ranges::window_closes();
    usage::window_closes();
    let first = FIRST.load(Ordering::Relaxed);
    // No iteration has ended in the window: the one that was open is its last, and was cut off.
    let is_empty = next <= first;
    let last = next.saturating_sub(1).max(first);
    write_edge(Edge::Close, clock::ticks(), last, is_empty);
    // Iterations of the window that were never the open one: the next had begun before they were handled.
    let passed = next
        .saturating_sub(first)
        .saturating_sub(ENDED.load(Ordering::Relaxed));
    writers::lose(passed);
    writers::count_dropped();
    keep::window_closes(writers::count);
    if let Some(header) = space::header() {
        header.add(Counter::Iterations, passed);
        header.add(Counter::IterationsPassed, passed);
        let events = writers::events().saturating_sub(EVENTS.load(Ordering::Relaxed));
        let cost = events.saturating_mul(EVENT_COSTS.load(Ordering::Relaxed));
        header.add(Counter::OwnTicks, cost);
        header.anchor(clock::anchor());
        header.snapshot();
    }
    true
}

fn write_edge(edge: Edge, at: u64, iteration: u64, cut: bool) {
    let what = What::Window { edge, iteration };
    writers::write_aside(&Event {
        cut,
        ..Event::new(at, 0, what)
    });
}

/// Returns true if it is time to update the counters.
pub fn wants_calls() -> bool {
    if !is_on() {
        return false;
    }
    let now = clock::coarse_ms();
    if now.wrapping_sub(ANCHORED_AT.load(Ordering::Relaxed)) >= ANCHOR_EVERY {
        ANCHORED_AT.store(now, Ordering::Relaxed);
        if let Some(header) = space::header() {
            header.anchor(clock::anchor());
        }
    }
    let is_time = now.wrapping_sub(COUNTED_AT.load(Ordering::Relaxed)) >= COUNT_EVERY;
    if is_time {
        COUNTED_AT.store(now, Ordering::Relaxed);
    }
    is_time
}

/// Updates the counters to the number of calls of each row that the process has made so far. New calls count
/// for the window if one is open, otherwise for the time outside.
pub fn count_calls(calls: impl Iterator<Item = u64>) {
    let Some(header) = space::header() else {
        return;
    };
    let is_inside = is_recording();
    for ((row, counted), calls) in (0_u8..).zip(&COUNTED).zip(calls) {
        let new = calls.saturating_sub(counted.swap(calls, Ordering::Relaxed));
        let counter = if is_inside {
            Counter::CallsInside(row)
        } else {
            Counter::CallsOutside(row)
        };
        header.add(counter, new);
    }
    header.snapshot();
}

/// Called when the process ends after `iterations`.
pub fn finish(iterations: u64) {
    let open = OPEN.load(Ordering::Relaxed);
    end(open < iterations, true);
    flight::ends(true);
    close(iterations);
}
