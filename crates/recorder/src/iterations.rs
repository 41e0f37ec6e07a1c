//! Records iterations and windows. Inside a window, and while the flight recorder keeps the latest iterations, the
//! events of an iteration are written. Otherwise the iteration is only added to a histogram and to counters. A window
//! is a period in which all requested events are recorded.
//!
//! All functions are called with the lock on the session's state (the state of steps and windows) held, or on the
//! thread that is opening or closing a window. So only one thread at a time calls them.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tllmprof_platform::lifecycle;
use tllmprof_record::{Counter, Edge, Event, What};

use super::state::{self, Keeps, is_on, is_recording};
use super::{
    clock, flight, gpu, keep, pace, ranges, reuse, ring, space, times, uncertain, usage, writers,
};

/// Value of [`OPEN`] that means "no iteration".
const NONE: u64 = u64::MAX;

lifecycle::global! {
    stage: Sinks;

    /// The number of the open iteration; [`NONE`] if no iteration is open.
    #[fork(reset)]
    #[together(iterations)]
    static OPEN: AtomicU64 = AtomicU64::new(NONE);
    /// The tick when the open iteration began. Between iterations, the tick when the latest one ended.
    #[fork(reset)]
    #[together(iterations)]
    static SINCE: AtomicU64 = AtomicU64::new(0);
    /// True if the condition on batches (`TLLMPROF_WHERE`) does not hold for the open iteration.
    #[fork(reset)]
    #[together(iterations)]
    static EXCLUDED: AtomicBool = AtomicBool::new(false);
    /// The number of the open window's first iteration.
    #[fork(keep = "stored where a window opens")]
    static FIRST: AtomicU64 = AtomicU64::new(0);
    /// The number of iterations that have ended in the open window.
    #[fork(keep = "stored where a window opens")]
    #[together(iterations)]
    static ENDED: AtomicU64 = AtomicU64::new(0);
    /// The number of iterations inside windows that the record has no room for.
    #[fork(reset)]
    #[together(iterations)]
    static UNKEPT: AtomicU64 = AtomicU64::new(0);

    /// For each CUDA function, the number of calls that the counters in the record's header already include. The index
    /// is the function's row in the table of CUDA calls (`tllmprof_calls::CALLS`).
    #[fork(reset)]
    static COUNTED: [AtomicU64; ROWS] = [const { AtomicU64::new(0) }; ROWS];
}
const ROWS: usize = 32;
lifecycle::global! {
    stage: Sinks;

    /// The time in milliseconds when the call counters in the record's header were last updated.
    #[fork(reset)]
    #[together(iterations)]
    static COUNTED_AT: AtomicU64 = AtomicU64::new(0);
    /// The time in milliseconds when an anchor (the same moment on several clocks) was last written to the header.
    #[fork(reset)]
    #[together(iterations)]
    static ANCHORED_AT: AtomicU64 = AtomicU64::new(0);
}
const COUNT_EVERY: u64 = 100;
const ANCHOR_EVERY: u64 = 10_000;

lifecycle::global! {
    /// The number of events, counted by [`writers::costly_events`], when the window opened. Together with
    /// [`EVENT_COSTS`], it serves to compute the time that the library took for the window's events.
    #[fork(keep = "stored where a window opens")]
    static EVENTS: AtomicU64 = AtomicU64::new(0);
    /// The time in ticks that writing one event takes.
    #[fork(keep = "measured where a record begins")]
    static EVENT_COSTS: AtomicU64 = AtomicU64::new(0);
}

/// Stores `value` and returns the old value. Only one thread at a time calls this function. So it needs no atomic swap,
/// which would lock the cache line.
fn replace(at: &AtomicU64, value: u64) -> u64 {
    let old = at.load(Ordering::Relaxed);
    at.store(value, Ordering::Relaxed);
    old
}

/// Called when a record has begun. Measures the time that writing one event takes.
pub(crate) fn start() {
    EVENT_COSTS.store(writers::measure(), Ordering::Relaxed);
}

/// Begins iteration `n`. `excluded` is true if the condition on batches does not hold for it.
pub fn iteration_begins(n: u64, excluded: bool) {
    gpu::iteration_begins(n, excluded);
    if is_on() {
        ring::step_begins(n);
        OPEN.store(n, Ordering::Relaxed);
        EXCLUDED.store(excluded, Ordering::Relaxed);
        let now = clock::ticks();
        let ended = replace(&SINCE, now);
        // The caller has ended the previous iteration, or has found that none was open. The time since then was spent
        // in this library.
        if is_recording()
            && let Some(header) = space::header()
        {
            header.add(Counter::OwnTicks, now.saturating_sub(ended));
        }
    }
}

/// Returns the number of the open iteration, if one is open.
pub fn open_iteration() -> Option<u64> {
    Some(OPEN.load(Ordering::Relaxed)).filter(|n| *n != NONE)
}

/// Ends the open iteration, if one is open. The iteration is recorded only if `counts` is true.
pub fn iteration_ends(counts: bool) {
    end(counts, false);
}

/// Ends the open iteration, if one is open. The iteration is recorded only if `counts` is true. `cut` is true if the
/// process ends in the middle of the iteration.
fn end(counts: bool, cut: bool) {
    let n = replace(&OPEN, NONE);
    if n != NONE {
        ring::step_ends();
    }
    if n == NONE || !counts {
        // This function is called before each iteration begins, even if no iteration is open. With some rules, a step
        // ends when its function returns, and the next step begins only at the next call. The time in between belongs
        // to the program. Only the time from here on is this library's own ([`iteration_begins`] adds it to the
        // counter).
        if is_on() {
            SINCE.store(clock::ticks(), Ordering::Relaxed);
        }
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
    let is_kept = writers::write_aside(&Event {
        cut,
        ..Event::new(since, took, what)
    });
    usage::iteration_ends(n);
    if is_inside {
        UNKEPT.fetch_add(u64::from(!is_kept), Ordering::Relaxed);
        ENDED.fetch_add(1, Ordering::Relaxed);
        if gpu::is_taken(n) {
            header.add(Counter::NsInside, clock::ns(took));
        }
    } else {
        flight::add(n, since, took);
    }
}

/// Returns the number of iterations inside windows that the record has no room for.
pub(crate) fn unkept() -> u64 {
    UNKEPT.load(Ordering::Relaxed)
}

/// Called at the beginning of iteration `n`, because it has become known which calls begin an iteration. Until then a
/// span of time was recorded in place of iterations. Replaces it by the iterations in it that [`uncertain::step_is_seen`]
/// has reported, if they are by `rule` and `n` follows them; from here on iterations are recorded.
pub fn span_is_replaced(n: u64, rule: Option<u64>) {
    let since = SINCE.load(Ordering::Relaxed);
    end(false, false);
    uncertain::replace_span(since, n, rule);
}

/// Called when the process ends and it has not become certain which calls begin an iteration. If it is probable, replaces
/// the span of time that is recorded by the iterations in it, and returns true.
pub fn probable_steps_replace_span() -> bool {
    let is_so = uncertain::probable_steps_replace_span(SINCE.load(Ordering::Relaxed));
    if is_so {
        end(false, false);
    }
    is_so
}

/// Opens a window that begins with iteration `first`. If `past`, the iterations that the flight recorder has
/// kept stay in the record.
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
    // The clock is read before anything is written. So data that are written again for this window, such as names,
    // have a later time than the window's opening.
    let opened = clock::ticks();
    writers::strings::window_opens();
    FIRST.store(first, Ordering::Relaxed);
    ENDED.store(0, Ordering::Relaxed);
    EVENTS.store(writers::costly_events(), Ordering::Relaxed);
    write_edge(Edge::Open, opened, first, false);
    header.snapshot();
    usage::window_opens();
    SINCE.store(clock::ticks(), Ordering::Relaxed);
    ranges::window_opens();
    state::keep(Keeps::Window, true);
}

/// Writes the histogram of the iterations outside windows that came before the open window. Does nothing if no window
/// is open.
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

/// Closes the open window. Iteration `next` is the first one after it.
pub fn window_closes(next: u64) {
    if close(next) {
        flight::resume();
    }
}

/// Closes the open window, like [`window_closes`]. Returns true if a window was open.
fn close(next: u64) -> bool {
    if !state::keep(Keeps::Window, false) {
        return false;
    }
    ranges::window_closes();
    usage::window_closes();
    let first = FIRST.load(Ordering::Relaxed);
    // True if no iteration has ended in the window. The window's last iteration is then the open one, which
    // is cut off.
    let is_empty = next <= first;
    let last = next.saturating_sub(1).max(first);
    write_edge(Edge::Close, clock::ticks(), last, is_empty);
    // The number of the window's iterations that were skipped: the library noticed their end only after the next
    // iteration had begun.
    let passed = next
        .saturating_sub(first)
        .saturating_sub(ENDED.load(Ordering::Relaxed));
    writers::lose(passed);
    writers::count_dropped();
    keep::window_closes(writers::count);
    if let Some(header) = space::header() {
        header.add(Counter::Iterations, passed);
        header.add(Counter::IterationsPassed, passed);
        let events = writers::costly_events().saturating_sub(EVENTS.load(Ordering::Relaxed));
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

/// Returns true if the caller should call [`count_calls`] now, because `COUNT_EVERY` milliseconds have passed since the
/// counters were last updated. Also adds an anchor (the same moment on several clocks) to the header at intervals.
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

/// Updates the counters of CUDA calls. `calls` yields the number of calls that the process has made so far of each
/// function, in the order of the table of CUDA calls. New calls count for the window if one is open, otherwise for the
/// time outside windows.
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

/// Ends the open iteration and the open window, because the process ends after `iterations` iterations. The iterations
/// that the flight recorder keeps become a window.
pub(crate) fn finish(iterations: u64) {
    let open = OPEN.load(Ordering::Relaxed);
    end(open < iterations, true);
    flight::ends(true);
    close(iterations);
}
