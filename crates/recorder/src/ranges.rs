//! Ranges and marks in the record: what a thread has pushed, and what may end on any thread.
//!
//! A range is written when it ends, so it has to be known from where it began. One that was open
//! when its window opened is not known. One that is open when it closes is cut there, and written
//! when it ends, or given up when the next window opens.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::{Event, RangeKind, StringId, What};

pub use super::writers::Writer;
pub use super::writers::strings::{c_id_by, spelt_id_by};
use super::{clock, is_on, writers};
use tllmprof_steps::ranges::crossing::Crossing;
use tllmprof_steps::ranges::open::Begun;

lifecycle::global! {
    stage: Sinks;

    /// The number of the window that is open, from 1; 0 while none is.
    #[fork(reset)]
    static WINDOW: AtomicU32 = AtomicU32::new(0);
    /// The last that was opened, and when it closed.
    #[fork(by = forget_window)]
    static LAST: AtomicU32 = AtomicU32::new(0);
    #[fork(keep = "of a window that is forgotten")]
    static CLOSED: AtomicU64 = AtomicU64::new(0);

    #[fork(in_child)]
    static CROSSING: Crossing = Crossing::new();
}

/// The window that is open; 0 for none.
#[inline]
pub fn window() -> u32 {
    WINDOW.load(Ordering::Relaxed)
}

/// Whether a range that ends now may be one that is kept.
#[inline]
pub fn may_be_open() -> bool {
    LAST.load(Ordering::Relaxed) != 0
}

/// A window has opened.
pub fn window_opens() {
    let number = LAST.load(Ordering::Relaxed).wrapping_add(1).max(1);
    LAST.store(number, Ordering::Relaxed);
    WINDOW.store(number, Ordering::Release);
}

/// It closes.
pub fn window_closes() {
    CLOSED.store(clock::ticks(), Ordering::Relaxed);
    WINDOW.store(0, Ordering::Release);
}

/// Whether a range is kept that began in this window and ends now.
pub fn is_kept(window: u32) -> bool {
    window != 0 && window == LAST.load(Ordering::Relaxed)
}

/// What a range comes to that ends now.
#[inline]
pub fn event(window: u32, since: u64, what: What, now: u64) -> Option<Event> {
    if !is_kept(window) {
        return None;
    }
    if WINDOW.load(Ordering::Relaxed) == window {
        return Some(Event::new(since, now.saturating_sub(since), what));
    }
    let closed = CLOSED.load(Ordering::Relaxed);
    let mut event = Event::new(since, closed.saturating_sub(since), what);
    event.cut = true;
    is_on().then_some(event)
}

/// What a range or a mark is called.
#[derive(Clone, Copy)]
pub struct Names {
    pub domain: StringId,
    pub name: StringId,
}

/// The calling thread has pushed a range on the stack `stack`, in a window. `names` says what it is
/// called, by the thread's writer.
#[inline]
pub fn pushed(stack: usize, names: impl FnOnce(&Writer) -> Names) {
    writers::with_quietly(|writer| {
        let Names { domain, name } = names(writer);
        let begun = Begun {
            window: window(),
            // Read last: what this takes is not the range's.
            since: clock::ticks(),
            domain,
            name,
        };
        if writer.with_open(|open| open.push(stack, begun)) != Some(true) {
            writer.drop_one();
        }
    });
}

/// The calling thread is about to pop the last range of a stack.
#[inline]
pub fn popped(stack: usize) {
    if writers::current().is_none_or(Writer::has_none_open) {
        return;
    }
    let now = clock::ticks();
    writers::with_quietly(|writer| {
        let begun = writer.with_open(|open| open.pop(stack));
        if let Some(event) = begun
            .flatten()
            .and_then(|begun| ended(begun, RangeKind::PushPop, now))
        {
            writer.keep(&event);
        }
    });
}

fn ended(begun: Begun, kind: RangeKind, now: u64) -> Option<Event> {
    let what = What::Range {
        kind,
        domain: begun.domain,
        name: begun.name,
    };
    event(begun.window, begun.since, what, now)
}

/// Range `id` has been started, in a window.
pub fn started(id: u64, names: impl FnOnce(&Writer) -> Names) {
    writers::with_quietly(|writer| {
        let Names { domain, name } = names(writer);
        let begun = Begun {
            window: window(),
            since: clock::ticks(),
            domain,
            name,
        };
        if !CROSSING.started(id, begun) {
            writer.drop_one();
        }
    });
}

/// Range `id` is about to be ended, by whichever thread.
pub fn finished(id: u64) {
    let now = clock::ticks();
    if let Some(begun) = CROSSING.ended(id)
        && let Some(event) = ended(begun, RangeKind::StartEnd, now)
    {
        writers::write(&event);
    }
}

/// The calling thread has marked this moment, in a window.
pub fn marked(names: impl FnOnce(&Writer) -> Names) {
    let now = clock::ticks();
    writers::with(|writer| {
        let Names { domain, name } = names(writer);
        writer.push(&Event::new(now, 0, What::Mark { domain, name }))
    });
}

/// What is open in the child of a fork was its parent's, of a window that never closes.
fn forget_window(_: &OnlyThread) {
    LAST.fetch_add(1, Ordering::Relaxed);
}
