//! The flight recorder: the latest iterations outside windows, at all times or until the first window opens.
//!
//! Only what is cheap is kept: times and batches, CUDA calls, collections, the GIL, and the thread's use of
//! the machine; not the program's ranges, GPU times or kernels. The chunks are used again ([`reuse`]). The
//! iterations survive however the process ends: an event in a chunk of its own marks where their window
//! opens, and is rewritten after each iteration.
//!
//! Called with the session's turn or its lock, so by one thread at a time.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use once_cell::race::OnceBox;
use tllmprof_config::Settings;
use tllmprof_platform::lifecycle;
use tllmprof_record::{Counter, Edge, Event, EventWriter, What};

use super::{clock, keep, reuse, space, usage, writers};

/// The number of no chunk.
const NONE: u32 = u32::MAX;

lifecycle::global! {
    stage: Sinks;

    /// The kept iterations. The one with place p among all of them is at index p modulo their number.
    #[fork(keep = "none of them is kept in the child")]
    static KEPT: OnceBox<Vec<KeptIteration>> = OnceBox::new();
    /// The chunk that holds the event which marks where their window opens.
    #[fork(keep = "stored where a record begins")]
    static EDGE: AtomicU32 = AtomicU32::new(NONE);
    /// True once the first window has opened: then iterations are no longer kept.
    #[fork(reset)]
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    /// True while spans of time stand for iterations, as no step is known. Only the latest one is kept.
    #[fork(reset)]
    #[together(iterations)]
    static KEEPS_SPAN: AtomicBool = AtomicBool::new(false);
    /// The number of kept iterations that are left in the record at the end of the process.
    #[fork(reset)]
    static LEFT: AtomicU64 = AtomicU64::new(0);
}

/// A kept iteration. Times are in ticks.
#[derive(Default)]
struct KeptIteration {
    n: AtomicU64,
    start: AtomicU64,
    took: AtomicU64,
}

/// Enables the flight recorder if the settings ask for it. Called by the constructor.
pub fn start(settings: &Settings) {
    if let Some(steps) = settings.latest {
        KEPT.get_or_init(|| Box::new((0..steps).map(|_| KeptIteration::default()).collect()));
    }
}

/// Called when the record has begun.
pub fn begin() {
    let (Some(kept), Some(header)) = (KEPT.get(), space::header()) else {
        return;
    };
    header.set(Counter::Flight, kept.len() as u64);
    header.snapshot();
    EDGE.store(NONE, Ordering::Relaxed);
    if let Some((number, chunk)) = space::take() {
        header.add(Counter::Chunks, 1);
        drop(EventWriter::begin(chunk, header.id(), number, 0));
        EDGE.store(number, Ordering::Relaxed);
    }
    resume();
}

/// Starts to keep iterations, if the settings ask for it.
pub fn resume() {
    if KEPT.get().is_some() && !IS_OVER.load(Ordering::Relaxed) {
        usage::window_opens();
        reuse::begin();
    }
}

/// Returns true while spans of time stand for iterations.
pub fn keeps_span() -> bool {
    KEEPS_SPAN.load(Ordering::Relaxed)
}

/// Called before the first span begins, and each later one.
pub fn span_begins() {
    KEEPS_SPAN.store(true, Ordering::Relaxed);
}

/// Drops the span that is kept. Iterations come from here on.
pub fn forget_span() {
    KEEPS_SPAN.store(false, Ordering::Relaxed);
    if reuse::end(false) {
        write_opening(None);
        reuse::keep_none();
        resume();
    }
}

/// Adds an iteration that began at `start` and has ended.
pub fn add(n: u64, start: u64, took: u64) {
    let Some(kept) = KEPT.get() else { return };
    let most = kept.len() as u64;
    let (first, end) = reuse::kept();
    let place = &kept[(end % most) as usize];
    let is_span = keeps_span();
    let is_full = !is_span && end - first >= most;
    if is_full {
        // The oldest is dropped, and counts as an iteration that was never kept.
        count_outside(place);
    }
    place.n.store(n, Ordering::Relaxed);
    place.start.store(start, Ordering::Relaxed);
    place.took.store(took, Ordering::Relaxed);
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

/// Returns the event that opens their window.
fn opening() -> Option<Event> {
    let oldest = all().next()?;
    let what = What::Window {
        edge: Edge::Open,
        iteration: oldest.n.load(Ordering::Relaxed),
    };
    Some(Event::new(oldest.start.load(Ordering::Relaxed), 0, what))
}

/// Returns the event that marks the window as one whose iterations were kept before it opened.
fn past(opening: &Event) -> Event {
    let iteration = match opening.what {
        What::Window { iteration, .. } => iteration,
        _ => 0,
    };
    Event::new(opening.start, 0, What::Past { iteration })
}

/// Stops keeping iterations: called when the window that ends the flight recorder opens.
pub fn is_over() {
    IS_OVER.store(true, Ordering::Relaxed);
}

/// Returns the number of kept iterations that are left in the record at the end of the process.
pub fn left() -> u64 {
    LEFT.load(Ordering::Relaxed)
}

/// Writes the event that opens the window of the kept iterations, or clears it.
fn write_opening(event: Option<&Event>) {
    let number = EDGE.load(Ordering::Relaxed);
    if number != NONE
        && let Some(header) = space::header()
        && let Some(chunk) = space::again(number)
    {
        let mut writer = EventWriter::again(chunk, header.id(), number, 0);
        if let Some(event) = event {
            // There is room: the chunk holds only these events.
            let _ = writer.push(event) && writer.push(&past(event));
        }
    }
}

/// Called when a window opens or the process ends. If `stays`, the kept iterations become a window of their
/// own that ends here; otherwise they are dropped.
pub fn ends(stays: bool) {
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
