//! Records NVTX ranges and marks. A range is either pushed and popped on one thread, or started on one thread and ended
//! on any other. A window is a period in which events are recorded.
//!
//! A range is written when it ends, so its beginning has to be stored. A range that began before its window
//! opened is not recorded. A range that is open when the window closes is cut at that moment: it is written
//! when it ends, or dropped when the next window opens.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::{Event, NO_STRING, RangeKind, StringId, What};

use super::writers::{self, Writer, strings};
use super::{Label, clock, is_on};
use tllmprof_steps::ranges::crossing::Crossing;
use tllmprof_steps::ranges::open::Begun;

lifecycle::global! {
    stage: Sinks;

    /// The number of the open window, counted from 1; 0 if none is open.
    #[fork(reset)]
    static WINDOW: AtomicU32 = AtomicU32::new(0);
    /// The number of the window that opened last.
    #[fork(by = forget_window)]
    static LAST: AtomicU32 = AtomicU32::new(0);
    /// The tick when the window that opened last was closed.
    #[fork(keep = "of a window that is forgotten")]
    static CLOSED: AtomicU64 = AtomicU64::new(0);

    #[fork(in_child)]
    #[together(tables)]
    static CROSSING: Crossing = Crossing::new();
}

/// Returns the number of the open window; 0 if none is open.
#[inline]
pub fn window() -> u32 {
    WINDOW.load(Ordering::Acquire)
}

/// Returns true if a range that ends now may have to be recorded, which is possible once any window has opened.
#[inline]
pub fn may_be_open() -> bool {
    LAST.load(Ordering::Relaxed) != 0
}

/// Assigns a number to a window that has just opened.
pub fn window_opens() {
    let number = LAST.load(Ordering::Relaxed).wrapping_add(1).max(1);
    LAST.store(number, Ordering::Relaxed);
    WINDOW.store(number, Ordering::Release);
}

/// Stores the current tick when the window closes. Ranges that are still open are cut at this tick.
pub fn window_closes() {
    CLOSED.store(clock::ticks(), Ordering::Relaxed);
    WINDOW.store(0, Ordering::Release);
}

/// Returns true if a range that began in window `window` and ends now is to be recorded: no other window has
/// opened since then.
pub fn is_kept(window: u32) -> bool {
    window != 0 && window == LAST.load(Ordering::Relaxed)
}

/// Returns the event of a range that began in window `window` at tick `since` and ends at tick `now`. Returns `None` if
/// the range is not recorded.
#[inline]
pub fn event(window: u32, since: u64, what: What, now: u64) -> Option<Event> {
    if !is_kept(window) {
        return None;
    }
    if WINDOW.load(Ordering::Relaxed) == window {
        return Some(Event::new(since, now.saturating_sub(since), what));
    }
    // The subtraction fails if the window closed after the range had read the window's number but before it read the
    // time `since`. Such a range is not recorded, because its names may have been written for another window.
    let until_closed = CLOSED.load(Ordering::Relaxed).checked_sub(since)?;
    let mut event = Event::new(since, until_closed, what);
    event.cut = true;
    is_on().then_some(event)
}

/// The name of a range or a mark, and the name of its NVTX domain; `None` for the default domain.
#[derive(Clone, Copy)]
pub struct RangeNames<'a> {
    pub domain: Option<&'a Label>,
    pub name: RangeName<'a>,
}

/// The name of a range or mark, as the program passed it to NVTX.
#[derive(Clone, Copy)]
pub enum RangeName<'a> {
    /// A text as bytes, which in most programs are UTF-8.
    Text(&'a [u8]),
    /// A string that the program has registered with NVTX.
    Registered(&'a Label),
    None,
}

impl RangeNames<'_> {
    /// Begins a range with this name at the current time.
    #[inline]
    fn begin(self, writer: &Writer) -> Begun {
        // The window's number is read before the names are stored, so that the names belong to this
        // window or a later one.
        let window = window();
        let (domain, name) = self.ids(writer);
        Begun {
            window,
            // The clock is read last, so that the time for storing the names does not count as part
            // of the range.
            since: clock::ticks(),
            domain,
            name,
        }
    }

    /// Returns the numbers, in the record's string table, of the domain's name and of the range's name.
    #[inline]
    fn ids(self, writer: &Writer) -> (StringId, StringId) {
        let name = match self.name {
            RangeName::Text(text) => strings::name_id_by(writer, text),
            RangeName::Registered(label) => label.id_by(writer),
            RangeName::None => NO_STRING,
        };
        let domain = self.domain.map_or(NO_STRING, |label| label.id_by(writer));
        (domain, name)
    }
}

/// Begins a range that the calling thread has pushed while a window is open. `stack` identifies the stack of ranges,
/// which is a different one in each NVTX domain.
#[inline]
pub fn pushed(stack: usize, names: RangeNames<'_>) {
    let Some(writer) = writers::take() else {
        return;
    };
    let begun = names.begin(&writer);
    if writer.with_open(|open| open.push(stack, begun)) != Some(true) {
        writer.drop_one();
    }
}

/// Ends and records the latest open range of the stack `stack`, which the calling thread is about to pop.
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

/// Begins range `id`, which a thread has started while a window is open.
pub fn started(id: u64, names: RangeNames<'_>) {
    if let Some(writer) = writers::take()
        && !CROSSING.started(id, names.begin(&writer))
    {
        writer.drop_one();
    }
}

/// Ends and records range `id`, which some thread is about to end.
pub fn finished(id: u64) {
    let now = clock::ticks();
    if let Some(begun) = CROSSING.ended(id)
        && let Some(event) = ended(begun, RangeKind::StartEnd, now)
    {
        writers::write(&event);
    }
}

/// Records an NVTX mark (a name for a moment) that the calling thread has set while a window is open.
pub fn marked(names: RangeNames<'_>) {
    let now = clock::ticks();
    if let Some(writer) = writers::take() {
        let (domain, name) = names.ids(&writer);
        writer.keep(Event::new(now, 0, What::Mark { domain, name }).row());
    }
}

/// Makes the open ranges invalid in the child of a fork, because they belong to a window of the parent: a range is
/// recorded only if the number of its window equals [`LAST`].
fn forget_window(_: &OnlyThread) {
    LAST.fetch_add(1, Ordering::Relaxed);
}
