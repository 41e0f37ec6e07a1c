//! The flight recorder: the latest iterations outside windows.
//!
//! What is kept of them is what is cheap: their times and batches, CUDA calls, collections, the GIL, and what their thread
//! used of the machine; not the program's ranges, GPU times or kernels. Their chunks are used again ([`reuse`]). Whatever ends the process, they are there: an
//! event in a chunk of its own says where the window of them opens, and moves on with each.
//!
//! Called with the session's turn or its lock: by one thread at a time.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use once_cell::race::OnceBox;
use tllmprof_config::Settings;
use tllmprof_platform::lifecycle;
use tllmprof_record::{Counter, Edge, Event, EventWriter, What};

use super::{clock, keep, reuse, space, usage, writers};

/// There is no such chunk.
const NONE: u32 = u32::MAX;

lifecycle::global! {
    stage: Sinks;

    /// Those that are kept, the one with place p among all of them at p modulo their number.
    #[fork(keep = "none of them is kept in the child")]
    static KEPT: OnceBox<Vec<Kept>> = OnceBox::new();
    /// The chunk of the event that says where their window opens.
    #[fork(keep = "stored where a record begins")]
    static EDGE: AtomicU32 = AtomicU32::new(NONE);
}

/// An iteration that is kept, in ticks.
#[derive(Default)]
struct Kept {
    n: AtomicU64,
    start: AtomicU64,
    took: AtomicU64,
}

/// Keeps iterations where the settings say so. For the constructor.
pub fn start(settings: &Settings) {
    if let Some(steps) = settings.flight {
        KEPT.get_or_init(|| Box::new((0..steps).map(|_| Kept::default()).collect()));
    }
}

/// The record has begun.
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

/// Keeps iterations from here on, if any are to be kept.
pub fn resume() {
    if KEPT.get().is_some() {
        usage::window_opens();
        reuse::begin();
    }
}

/// An iteration has ended that began at `start` and is kept.
pub fn add(n: u64, start: u64, took: u64) {
    let Some(kept) = KEPT.get() else { return };
    let most = kept.len() as u64;
    let (first, end) = reuse::kept();
    let place = &kept[(end % most) as usize];
    let is_full = end - first >= most;
    if is_full {
        // The oldest goes, and counts as one that was never kept.
        count_outside(place);
    }
    place.n.store(n, Ordering::Relaxed);
    place.start.store(start, Ordering::Relaxed);
    place.took.store(took, Ordering::Relaxed);
    reuse::keep_one(first + u64::from(is_full));
    write_opening(opening().as_ref());
}

fn count_outside(kept: &Kept) {
    if let Some(header) = space::header() {
        header.outside().add(kept.took.load(Ordering::Relaxed));
    }
}

/// Those that are kept, the oldest first.
fn all() -> impl DoubleEndedIterator<Item = &'static Kept> {
    let kept = KEPT.get().map_or(&[][..], Vec::as_slice);
    let (first, end) = reuse::kept();
    (first..end).filter_map(|place| kept.get((place % kept.len() as u64) as usize))
}

/// Where their window opens.
fn opening() -> Option<Event> {
    let oldest = all().next()?;
    let what = What::Window {
        edge: Edge::Open,
        iteration: oldest.n.load(Ordering::Relaxed),
    };
    Some(Event::new(oldest.start.load(Ordering::Relaxed), 0, what))
}

/// Says of the window that opens so that its iterations were kept before.
fn past(opening: &Event) -> Event {
    let iteration = match opening.what {
        What::Window { iteration, .. } => iteration,
        _ => 0,
    };
    Event::new(opening.start, 0, What::Past { iteration })
}

/// Says where the window of what is kept opens; or that there is none.
fn write_opening(event: Option<&Event>) {
    let number = EDGE.load(Ordering::Relaxed);
    if number != NONE
        && let Some(header) = space::header()
        && let Some(chunk) = space::again(number)
    {
        let mut writer = EventWriter::again(chunk, header.id(), number, 0);
        if let Some(event) = event {
            // There is room: there are no others.
            let _ = writer.push(event) && writer.push(&past(event));
        }
    }
}

/// A window opens, or the process ends: what is kept becomes a window of its own that ends here, if it `stays`; else it
/// goes.
pub fn ends(stays: bool) {
    if !reuse::end(stays) {
        return;
    }
    let last = all().next_back().map(|kept| kept.n.load(Ordering::Relaxed));
    if let (true, Some(opening), Some(iteration)) = (stays, opening(), last) {
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
    } else {
        all().for_each(count_outside);
    }
    write_opening(None);
    reuse::keep_none();
}
