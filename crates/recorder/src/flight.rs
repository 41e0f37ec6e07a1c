//! The flight recorder keeps the latest iterations outside windows: they are recorded all the time, and the oldest are
//! overwritten. Depending on the settings this lasts for the whole run, or until the first planned window opens. A
//! window is a period in which all requested events are recorded.
//!
//! Only cheap events are kept: the times and batches of iterations, CUDA calls, garbage collections, waits for the GIL,
//! and the thread's use of the processor and memory. Samples of stacks are kept until the first window opens, if the
//! start of this window is automatic. NVTX ranges, GPU times and kernels are not kept. The module [`reuse`] overwrites
//! the chunks (pieces of the record's file) of the oldest iterations.
//!
//! The kept iterations can be read even if the process is killed. For this, a separate chunk has an event that opens
//! a window at the oldest kept iteration. The event is rewritten after each iteration.
//!
//! All functions are called with the lock on the session's state (the state of steps and windows) held, or on the
//! thread that is opening or closing a window. So only one thread at a time calls them.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use once_cell::race::OnceBox;
use tllmprof_config::Settings;
use tllmprof_platform::lifecycle;
use tllmprof_record::{Counter, Edge, Event, EventWriter, What};

use super::{clock, keep, reuse, space, usage, writers};

/// The maximum number of iterations that may replace a span of time.
pub(crate) const MAX_STEPS: usize = 64;
/// Value of [`EDGE`] that means "no chunk".
const NONE: u32 = u32::MAX;

lifecycle::global! {
    stage: Sinks;

    /// The kept iterations, as a ring. Iterations are numbered in the order in which the flight recorder adds them;
    /// number p is at index p modulo the ring's length.
    #[fork(keep = "none of them is kept in the child")]
    static KEPT: OnceBox<Vec<KeptIteration>> = OnceBox::new();
    /// The number of the chunk with the event that marks the start of the kept iterations; `NONE` if there is
    /// no such chunk.
    #[fork(keep = "stored where a record begins")]
    static EDGE: AtomicU32 = AtomicU32::new(NONE);
    /// True once the flight recorder has ended ([`is_over`]). From then on the latest iterations outside windows are no
    /// longer kept.
    #[fork(reset)]
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    /// True while no step is known, so that spans of time are recorded in place of iterations. Only the
    /// latest span is kept.
    #[fork(reset)]
    #[together(iterations)]
    static KEEPS_SPAN: AtomicBool = AtomicBool::new(false);
    /// The number of iterations that were kept when the kept iterations last became a window in the record. That
    /// happens when the process ends. It also happens when a window opens, if the iterations before that window have to
    /// stay.
    #[fork(reset)]
    static LEFT: AtomicU64 = AtomicU64::new(0);
}

/// An iteration that the flight recorder keeps. Times are in ticks.
#[derive(Default)]
struct KeptIteration {
    n: AtomicU64,
    start: AtomicU64,
    took: AtomicU64,
}

impl KeptIteration {
    fn set(&self, n: u64, start: u64, took: u64) {
        self.n.store(n, Ordering::Relaxed);
        self.start.store(start, Ordering::Relaxed);
        self.took.store(took, Ordering::Relaxed);
    }
}

/// Enables the flight recorder if the settings ask for it. Called when the library is loaded.
pub(crate) fn start(settings: &Settings) {
    if let Some(steps) = settings.latest {
        KEPT.get_or_init(|| Box::new((0..steps).map(|_| KeptIteration::default()).collect()));
    }
}

/// Called when the record has begun. Reserves the chunk for the event that opens the window of kept
/// iterations, and starts keeping iterations.
pub(crate) fn begin() {
    let (Some(kept), Some(header)) = (KEPT.get(), space::header()) else {
        return;
    };
    header.set(Counter::Flight, kept.len() as u64);
    header.snapshot();
    EDGE.store(NONE, Ordering::Relaxed);
    if let Some((number, chunk)) = space::take() {
        drop(EventWriter::begin(chunk, header.id(), number, 0));
        // The counter is increased only after the chunk is begun: a signal handler may jump out of this function, and
        // each counted chunk must exist.
        header.add(Counter::Chunks, 1);
        EDGE.store(number, Ordering::Relaxed);
    }
    resume();
}

/// Starts or resumes keeping iterations, if the settings ask for the flight recorder and it has not ended
/// ([`is_over`]).
pub(crate) fn resume() {
    if KEPT.get().is_some() && !IS_OVER.load(Ordering::Relaxed) {
        usage::window_opens();
        reuse::begin();
    }
}

/// Returns true while spans of time are recorded in place of iterations, because no step is known yet.
pub fn keeps_span() -> bool {
    KEEPS_SPAN.load(Ordering::Relaxed)
}

/// Called when a span of time begins, which is recorded in place of iterations because no step is known yet.
pub fn span_begins() {
    if !KEEPS_SPAN.swap(true, Ordering::Relaxed) {
        reuse::make_past(MAX_STEPS as u64);
    }
}

/// Returns the tick from which on the record has all events. The latest span of time began at tick `since`.
pub(crate) fn kept_since(since: u64) -> u64 {
    let oldest = all().next();
    oldest.map_or(since, |span| span.start.load(Ordering::Relaxed))
}

/// Returns the number of iterations that the flight recorder keeps; 0 if it keeps none now.
pub(crate) fn room() -> usize {
    match reuse::is_on() {
        true => KEPT.get().map_or(0, Vec::len),
        false => 0,
    }
}

/// Keeps `count` iterations that lie in the kept spans of time, in place of these spans. Each iteration has its number,
/// the tick when it began, and the number of ticks that it took. They are in order, and there is [`room`] for them.
pub(crate) fn replace_span(count: usize, iterations: impl Iterator<Item = (u64, u64, u64)>) {
    KEEPS_SPAN.store(false, Ordering::Relaxed);
    let Some(kept) = KEPT.get() else { return };
    let (_, end) = reuse::kept();
    for (place, (n, start, took)) in (end.saturating_sub(count as u64)..).zip(iterations) {
        kept[(place % kept.len() as u64) as usize].set(n, start, took);
    }
    reuse::keep_past(count as u64);
    write_opening(opening().as_ref());
    // What the thread has used since the span began is not the next iteration's.
    usage::window_opens();
}

/// Drops the kept span of time, because a step is known and iterations follow from here on.
pub(crate) fn forget_span() {
    KEEPS_SPAN.store(false, Ordering::Relaxed);
    if reuse::end(false) {
        write_opening(None);
        reuse::keep_none();
        resume();
    }
}

/// Adds iteration `n`, which began at tick `start` and took `took` ticks.
pub(crate) fn add(n: u64, start: u64, took: u64) {
    let Some(kept) = KEPT.get() else { return };
    let most = kept.len() as u64;
    let (first, end) = reuse::kept();
    let place = &kept[(end % most) as usize];
    let is_span = keeps_span();
    let is_full = !is_span && end - first >= most;
    if is_full {
        // The new iteration overwrites the oldest kept one, which is therefore counted in the histogram of
        // iterations outside windows.
        count_outside(place);
    }
    place.set(n, start, took);
    reuse::keep_one(if is_span {
        end
    } else {
        first + u64::from(is_full)
    });
    write_opening(opening().as_ref());
}

fn count_outside(kept: &KeptIteration) {
    if let Some(header) = space::header() {
        header.outside().add(kept.took.load(Ordering::Relaxed));
    }
}

/// Returns the kept iterations, the oldest first.
fn all() -> impl DoubleEndedIterator<Item = &'static KeptIteration> {
    let kept = KEPT.get().map_or(&[][..], Vec::as_slice);
    let (first, end) = reuse::kept();
    (first..end).filter_map(|place| kept.get((place % kept.len() as u64) as usize))
}

/// Returns the event that opens the window of the kept iterations. Returns `None` if none is kept.
fn opening() -> Option<Event> {
    let oldest = all().next()?;
    let what = What::Window {
        edge: Edge::Open,
        iteration: oldest.n.load(Ordering::Relaxed),
    };
    Some(Event::new(oldest.start.load(Ordering::Relaxed), 0, what))
}

/// Returns the event that follows `opening` in the record. The event states that the window's iterations were recorded
/// before the window was requested.
fn past(opening: &Event) -> Event {
    let iteration = match opening.what {
        What::Window { iteration, .. } => iteration,
        _ => 0,
    };
    Event::new(opening.start, 0, What::Past { iteration })
}

/// Ends the flight recorder: [`resume`] does nothing from then on. Called when a planned window opens, or when it is
/// known that this process opens no planned window, unless `TLLMPROF_FLIGHT` is set.
pub(crate) fn is_over() {
    IS_OVER.store(true, Ordering::Relaxed);
}

/// Returns the number of kept iterations that last became a window in the record, usually because the process ends.
pub(crate) fn left() -> u64 {
    LEFT.load(Ordering::Relaxed)
}

/// Writes `event`, which opens the window of the kept iterations, into its own chunk. With `None`, empties
/// that chunk.
fn write_opening(event: Option<&Event>) {
    let number = EDGE.load(Ordering::Relaxed);
    if number != NONE
        && let Some(header) = space::header()
        && let Some(chunk) = space::again(number)
    {
        let mut writer = EventWriter::again(chunk, header.id(), number, 0);
        if let Some(event) = event {
            // Both `push` calls succeed: the chunk has room, because it holds only these two
            // events.
            let _ = writer.push(event) && writer.push(&past(event));
        }
    }
}

/// Stops keeping iterations. If `stays`, the kept iterations become a window that ends now. Otherwise they are dropped.
/// Called when a window opens, when the process ends, and when it is known that this process opens no planned window.
pub(crate) fn ends(stays: bool) {
    if !reuse::end(stays) {
        return;
    }
    let last = all().next_back().map(|kept| kept.n.load(Ordering::Relaxed));
    if let (true, Some(opening), Some(iteration)) = (stays, opening(), last) {
        LEFT.store(all().count() as u64, Ordering::Relaxed);
        writers::write(&opening);
        writers::write(&past(&opening));
        let what = What::Window {
            edge: Edge::Close,
            iteration,
        };
        writers::write(&Event::new(clock::ticks(), 0, what));
        if let Some(header) = space::header() {
            header.add(Counter::Windows, 1);
            keep::has_past(opening.start, header.get(Counter::Windows));
        }
    } else if !keeps_span() {
        all().for_each(count_outside);
    }
    write_opening(None);
    reuse::keep_none();
}
