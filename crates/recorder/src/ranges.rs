//! Ranges and marks in the record: what a thread has pushed, and what may end on any thread.
//!
//! A range is written when it ends, so it has to be known from where it began. One that was open
//! when its window opened is not known. One that is open when it closes is cut there, and written
//! when it ends, or given up when the next window opens.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::{Event, NO_STRING, RangeKind, StringId, What};

use super::writers::{self, Writer, strings};
use super::{Label, clock, is_on};
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
    WINDOW.load(Ordering::Acquire)
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
    // One that began behind its end has its names of whichever window.
    let until_closed = CLOSED.load(Ordering::Relaxed).checked_sub(since)?;
    let mut event = Event::new(since, until_closed, what);
    event.cut = true;
    is_on().then_some(event)
}

/// What a range or a mark is called, and in which domain; none for the default one.
#[derive(Clone, Copy)]
pub struct Names<'a> {
    pub domain: Option<&'a Label>,
    pub name: Name<'a>,
}

/// A name as the program gives it.
#[derive(Clone, Copy)]
pub enum Name<'a> {
    /// Bytes, UTF-8 in most programs.
    Text(&'a [u8]),
    /// A string that the program has registered.
    Registered(&'a Label),
    None,
}

impl Names<'_> {
    /// A range of this name that begins now.
    #[inline]
    fn begin(self, writer: &Writer) -> Begun {
        // Read first: the names are of this window, or of a later one.
        let window = window();
        let (domain, name) = self.ids(writer);
        Begun {
            window,
            // Read last: what this takes is not the range's.
            since: clock::ticks(),
            domain,
            name,
        }
    }

    /// The numbers of the domain's name and of the name.
    #[inline]
    fn ids(self, writer: &Writer) -> (StringId, StringId) {
        let name = match self.name {
            Name::Text(text) => strings::name_id_by(writer, text),
            Name::Registered(label) => label.id_by(writer),
            Name::None => NO_STRING,
        };
        let domain = self.domain.map_or(NO_STRING, |label| label.id_by(writer));
        (domain, name)
    }
}

/// The calling thread has pushed a range on the stack `stack`, in a window.
#[inline]
pub fn pushed(stack: usize, names: Names<'_>) {
    let Some(writer) = writers::take() else {
        return;
    };
    let begun = names.begin(&writer);
    if writer.with_open(|open| open.push(stack, begun)) != Some(true) {
        writer.drop_one();
    }
}

/// The calling thread is about to pop the last range of a stack.
#[inline]
pub fn popped(stack: usize) {
    if writers::current().is_none_or(Writer::has_none_open) {
        return;
    }
    let now = clock::ticks();
    let Some(writer) = writers::take() else {
        return;
    };
    let begun = writer.with_open(|open| open.pop(stack));
    if let Some(event) = begun
        .flatten()
        .and_then(|begun| ended(begun, RangeKind::PushPop, now))
    {
        writer.keep(event.row());
    }
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
pub fn started(id: u64, names: Names<'_>) {
    if let Some(writer) = writers::take()
        && !CROSSING.started(id, names.begin(&writer))
    {
        writer.drop_one();
    }
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
pub fn marked(names: Names<'_>) {
    let now = clock::ticks();
    if let Some(writer) = writers::take() {
        let (domain, name) = names.ids(&writer);
        writer.keep(Event::new(now, 0, What::Mark { domain, name }).row());
    }
}

/// What is open in the child of a fork was its parent's, of a window that never closes.
fn forget_window(_: &OnlyThread) {
    LAST.fetch_add(1, Ordering::Relaxed);
}
