//! Who writes: each thread into a chunk of its own, without a lock.
//!
//! A thread gets a writer at its first event and leaves it when it ends, with the chunk that it has
//! begun: ten thousand short threads use no more chunks than ever ran at once.

pub mod lasting;
pub mod strings;

use core::cell::{Cell, UnsafeCell};
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence};

use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::{
    Chunk, Counter, EVENT_BYTES, Event, EventWriter, MAX_STRING, NO_STRING, Row, StringId, What,
};

use super::clock::ticks;
use super::reuse::{self, Free};
use super::{keep, space};
use tllmprof_platform::errno::Kept;
use tllmprof_platform::pages::{self, Chained, Spare, Zeroed};
use tllmprof_platform::system;
use tllmprof_platform::thread::{self, Part};
use tllmprof_steps::ranges::open::Open;
use tllmprof_sync::Published;

lifecycle::global! {
    stage: Sinks;

    /// Writers that were made and no thread has had yet.
    #[fork(by = in_child)]
    static SPARE: Spare<Writer> = Spare::none();
    /// Events that were lost for want of a writer, or of a moment to write them in.
    #[fork(reset)]
    static LOST: AtomicU64 = AtomicU64::new(0);
}
/// Writers are made by the page.
const BATCH: usize = 4096 / size_of::<Writer>();
/// After so many refusals in a row a writer is not busy any more, but was left in the middle: by a
/// signal handler that jumped out, or by a thread that was cancelled.
const REFUSALS: u32 = 1024;

/// One thread's writer at a time. All zeros, as in a copy of the process, is one that has no chunk. What a launch
/// needs is in the first line.
#[repr(C, align(64))]
pub struct Writer {
    /// The thread is in the middle of writing: a signal handler's events are lost.
    is_busy: AtomicBool,
    /// The place of the stream that the thread has launched into last, if that is still there: only to find it sooner.
    pub launched: Cell<u8>,
    thread: Cell<u32>,
    /// Writes into the thread's chunk; none before the first.
    events: Own<Option<EventWriter>>,
    /// Events that were.
    kept: AtomicU64,
    /// Events that were dropped and that no event of the record reports yet.
    unreported: Cell<u64>,
    /// The iteration in which the thread has last ended its streams' spans of earlier ones.
    pub swept: Cell<u64>,
    /// What the thread is called has been written.
    is_named: Cell<bool>,
    /// The chunk's number, and in which generation it was begun ([`reuse`]).
    chunk: Cell<u32>,
    generation: Cell<u64>,
    /// Refusals in a row, and how many events had been kept at the first of them.
    refused: Cell<u32>,
    refused_since: Cell<u64>,
    /// Events that were dropped.
    dropped: AtomicU64,
    /// Pushed ranges that are open; none before the first.
    open: Own<Option<&'static mut Ranges>>,
    /// The next of the spare writers.
    next: Published<Writer>,
    /// How often the thread is in the driver for GPU times now, and what these took it, in ticks.
    pub timing: AtomicU32,
    pub timed: AtomicU64,
}

const _: () = assert!(core::mem::offset_of!(Writer, swept) < 64);
const _: () = assert!(size_of::<Writer>() == 128);

// SAFETY: what is no atomic is used by the thread that has the writer, alone.
unsafe impl Sync for Writer {}
// SAFETY: zeros are numbers, and what may be none is none then: a writer of events has its chunk's
// address, and is as large as one that may be none.
unsafe impl Zeroed for Writer {}
const _: () = assert!(size_of::<Option<EventWriter>>() == size_of::<EventWriter>());

/// Ranges that are open, in pages of their own.
#[repr(transparent)]
struct Ranges(Open);

// SAFETY: zeros are no open ranges, as `Open` says.
unsafe impl Zeroed for Ranges {}

/// What the thread that has a writer uses alone, and never within another use: `is_busy` keeps its
/// signal handlers away.
struct Own<T>(UnsafeCell<T>);

impl<T> Own<T> {
    #[inline]
    fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the thread is the only one that uses the value. It is in no other use of it: the
        // acts below use nothing else of the writer's, and `is_busy` keeps signal handlers from all
        // but a look whether any range is open.
        act(unsafe { &mut *self.0.get() })
    }
}

/// Writes an event of the calling thread's; returns whether it is kept.
#[inline(always)]
pub fn write(event: &Event) -> bool {
    let row = event.row();
    current().is_some_and(|writer| writer.keep_at_once(row)) || write_with_care(row)
}

/// As [`write`], but only where nothing stands in the way; else does nothing and returns false.
#[inline(always)]
pub fn write_at_once(event: &Event) -> bool {
    current().is_some_and(|writer| writer.keep_at_once(event.row()))
}

/// As [`write`], in code that all have in common who do not write at each call.
#[inline(never)]
pub fn write_aside(event: &Event) -> bool {
    write(event)
}

/// Writes an event where something stands in the way of [`Writer::keep_at_once`].
#[cold]
fn write_with_care(row: Row) -> bool {
    take().is_some_and(|writer| writer.keep(row))
}

/// As [`write`], of what is of use for as long as the record.
pub fn write_fact(event: &Event) -> bool {
    take().is_some_and(|writer| {
        lasting::push(writer.thread.get(), |events| events.push(event)) || writer.keep_there(event)
    })
}

/// Writes what is of use for as long as the record; false where there is no room that stays, or no chunk is used again.
pub fn write_lasting(event: &Event) -> bool {
    take().is_some_and(|writer| lasting::push(writer.thread.get(), |events| events.push(event)))
}

/// As [`write`], of what is written again for later windows: where windows go, it goes with those of its time.
pub fn write_latest(event: &Event) -> bool {
    match keep::is_wanted() {
        true => write_late(event),
        false => write_fact(event),
    }
}

/// As [`write`], of what is of a window, though none may be open.
pub fn write_late(event: &Event) -> bool {
    if !reuse::is_wanted() {
        return write(event);
    }
    take().is_some_and(|writer| writer.keep_there(event))
}

/// The calling thread's writer, for one use at a time: events of the thread's signal handlers are dropped as
/// long as this lives.
pub struct Taken(&'static Writer);

impl Taken {
    #[inline(always)]
    fn new(writer: &'static Writer) -> Self {
        writer.is_busy.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Self(writer)
    }
}

impl Deref for Taken {
    type Target = Writer;

    #[inline(always)]
    fn deref(&self) -> &Writer {
        self.0
    }
}

impl Drop for Taken {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.is_busy.store(false, Ordering::Relaxed);
    }
}

/// Takes the calling thread's writer, to write an event with. Where it is in use, or there is none, the event
/// counts as dropped.
#[inline]
pub fn take() -> Option<Taken> {
    let Some(writer) = current().or_else(begin) else {
        LOST.fetch_add(1, Ordering::Relaxed);
        return None;
    };
    if writer.is_busy.load(Ordering::Relaxed) && !writer.was_left() {
        writer.drop_one();
        return None;
    }
    let writer = Taken::new(writer);
    if writer.unreported.get() != 0 {
        writer.report_dropped();
    }
    Some(writer)
}

impl Writer {
    /// Has the writer of events into the chunk do `act`, if there is one.
    #[inline(always)]
    fn in_chunk(&self, act: impl FnOnce(&mut EventWriter) -> bool) -> bool {
        self.events.with(|events| events.as_mut().is_some_and(act))
    }

    /// Writes an event and counts it as kept, where nothing else is to be done: nobody uses the writer, no dropped
    /// event is to be reported, the chunk has room, and no block of it ends. Else does nothing and returns false.
    #[inline(always)]
    fn keep_at_once(&'static self, row: Row) -> bool {
        if self.is_busy.load(Ordering::Relaxed) || self.unreported.get() != 0 {
            return false;
        }
        let writer = Taken::new(self);
        let is_kept = writer.in_chunk(|events| events.push_within_block(row));
        if is_kept {
            writer.count_kept();
        }
        is_kept
    }

    /// Writes an event.
    #[inline]
    fn push(&self, row: Row) -> bool {
        self.in_chunk(|events| events.push_row(row)) || self.push_into_next(row)
    }

    /// Writes an event, and counts it as kept or as dropped; returns whether it is kept.
    #[inline]
    pub fn keep(&self, row: Row) -> bool {
        let is_kept = self.push(row);
        if is_kept {
            self.count_kept();
        } else {
            self.drop_one();
        }
        is_kept
    }

    #[inline(always)]
    fn count_kept(&self) {
        let kept = self.kept.load(Ordering::Relaxed);
        self.kept.store(kept + 1, Ordering::Relaxed);
    }

    /// As [`Writer::keep`], into a chunk that is no longer one of iterations outside windows.
    fn keep_there(&self, event: &Event) -> bool {
        let is_kept = self.keep(event.row());
        self.generation.set(reuse::OF_WINDOWS);
        is_kept
    }

    /// Writes a string into the thread's chunk, if that has room for an event behind it.
    fn push_string_there(&self, id: StringId, text: &str) -> bool {
        let rows = 2 + text.len().min(MAX_STRING).div_ceil(EVENT_BYTES);
        self.in_chunk(|events| events.room() >= rows && events.push_string(id, text))
    }

    /// Writes a string that goes with the window that is open, if windows go.
    pub fn push_string(&self, id: StringId, text: &str) -> bool {
        if !keep::is_wanted() && self.push_lasting_string(id, text) {
            return true;
        }
        let push = || {
            let is_there = self.push_string_there(id, text);
            if is_there {
                self.generation.set(reuse::OF_WINDOWS);
            }
            is_there
        };
        push() || (self.begin_chunk() && push())
    }

    /// Writes a string that stays.
    pub fn push_lasting_string(&self, id: StringId, text: &str) -> bool {
        lasting::push(self.thread.get(), |events| events.push_string(id, text))
    }

    #[cold]
    fn push_into_next(&self, row: Row) -> bool {
        let _errno = Kept::new();
        self.begin_chunk() && self.in_chunk(|events| events.push_row(row))
    }

    fn begin_chunk(&self) -> bool {
        if self.events.with(Option::take).is_some() {
            reuse::is_full(self.chunk.get(), self.generation.get());
        }
        let Some((number, begun)) = begin_chunk(self.thread.get()) else {
            return false;
        };
        self.events.with(|events| *events = Some(begun));
        self.chunk.set(number);
        self.generation.set(reuse::generation());
        if self.is_named.get() && reuse::is_wanted() {
            self.push_name();
        }
        true
    }

    /// Writes what the thread is called: where chunks are used again, into each of them, as the one before may be by then.
    fn push_name(&self) {
        let name = system::thread_name();
        let length = name.iter().position(|byte| *byte == 0).unwrap_or(0);
        let Ok(name) = str::from_utf8(&name[..length]) else {
            return;
        };
        let name = match reuse::is_wanted() {
            true => strings::passing_id(|id| self.push_string_there(id, name)),
            false => strings::id_by(self, name.as_bytes()),
        };
        if name != NO_STRING {
            self.push(Event::new(ticks(), 0, What::ThreadName { name }).row());
        }
    }

    /// The thread goes on in the chunk that another has left.
    fn begin_thread(&self, thread: u32) {
        self.thread.set(thread);
        self.is_named.set(false);
        self.is_busy.store(false, Ordering::Relaxed);
        self.refused.set(0);
        self.open
            .with(|open| open.as_mut().map(|Ranges(open)| open.clear()));
        self.in_chunk(|events| {
            events.hand_over(thread);
            true
        });
    }

    /// Has the thread's open ranges do `act`, if there is memory for them.
    #[inline]
    pub fn with_open<R>(&self, act: impl FnOnce(&mut Open) -> R) -> Option<R> {
        self.open.with(|open| {
            if open.is_none() {
                *open = room_for_ranges();
            }
            open.as_mut().map(|Ranges(open)| act(open))
        })
    }

    /// Whether nothing of the thread's is open.
    #[inline]
    pub fn has_none_open(&self) -> bool {
        self.open
            .with(|open| open.as_ref().is_none_or(|Ranges(open)| open.is_empty()))
    }

    /// Whether the writer that is marked as busy is not: whoever made it so never came back.
    #[cold]
    fn was_left(&self) -> bool {
        let kept = self.kept.load(Ordering::Relaxed);
        if self.refused_since.replace(kept) != kept {
            self.refused.set(0);
        }
        let refused = self.refused.get() + 1;
        self.refused.set(refused);
        let was_left = refused >= REFUSALS;
        if was_left {
            self.refused.set(0);
        }
        was_left
    }

    /// Writes down how many events are missing here, if the chunk has room for that.
    #[cold]
    fn report_dropped(&self) {
        // A signal handler may jump out of here: rather not reported than reported twice.
        let events = self.unreported.replace(0);
        let event = Event::new(ticks(), 0, What::Dropped { events });
        if !self.in_chunk(|chunk| chunk.push(&event)) {
            self.unreported.set(self.unreported.get() + events);
        }
    }

    /// Counts an event that was not kept.
    #[cold]
    pub fn drop_one(&self) {
        let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
        self.unreported.set(self.unreported.get() + 1);
        // The header gets the number now and then, whatever ends the process.
        if dropped.is_power_of_two() || dropped.is_multiple_of(4096) {
            count_dropped();
        }
    }
}

#[cold]
fn room_for_ranges() -> Option<&'static mut Ranges> {
    let _errno = Kept::new();
    pages::batch_wiped_on_fork(1)?.first_mut()
}

/// Counts events that there was no moment to write in.
pub fn lose(events: u64) {
    LOST.fetch_add(events, Ordering::Relaxed);
}

/// Writes into the header how many events were dropped.
pub fn count_dropped() {
    if let Some(header) = space::header() {
        let dropped = all().map(|writer| writer.dropped.load(Ordering::Relaxed));
        let dropped = dropped.sum::<u64>() + LOST.load(Ordering::Relaxed);
        header.set(Counter::EventsDropped, dropped);
    }
}

/// How often threads are in the driver for GPU times now.
pub fn timing() -> u32 {
    all()
        .map(|writer| writer.timing.load(Ordering::SeqCst))
        .sum()
}

/// What GPU times took the threads since this was asked last, in ticks.
pub fn take_timed() -> u64 {
    all()
        .map(|writer| writer.timed.swap(0, Ordering::Relaxed))
        .sum()
}

/// Threads that have written, and have not left their place to another.
pub fn count() -> u64 {
    all().count() as u64
}

fn all() -> impl Iterator<Item = &'static Writer> {
    thread::parts()
}

/// Gives the calling thread a writer.
#[cold]
fn begin() -> Option<&'static Writer> {
    space::header()?;
    let _errno = Kept::new();
    let writer = thread::begin_part(|record, left| {
        let writer: &Writer = left.or_else(spare)?;
        writer.begin_thread(record.number().cast_unsigned());
        Some(writer)
    })?;
    let taken = Taken::new(writer);
    taken.push_name();
    taken.is_named.set(true);
    drop(taken);
    Some(writer)
}

// SAFETY: `Kind::Writer` is this type's alone.
unsafe impl Part for Writer {
    const KIND: thread::Kind = thread::Kind::Writer;

    fn thread_ends(&'static self) {}
}

/// A chunk for events of `thread`, and its number.
fn begin_chunk(thread: u32) -> Option<(u32, EventWriter)> {
    let header = space::header()?;
    Some(match reuse::take()? {
        Free::New(number, chunk) => {
            let begun = EventWriter::begin(chunk, header.id(), number, thread);
            // By this a reader sees that one is missing: a signal handler that jumps out of here must leave none that
            // was counted and not begun.
            header.add(Counter::Chunks, 1);
            (number, begun)
        }
        Free::Used(number, chunk) => (
            number,
            EventWriter::again(chunk, header.id(), number, thread),
        ),
    })
}

/// The calling thread's writer, if it has one.
#[inline]
pub fn current() -> Option<&'static Writer> {
    thread::part()
}

/// A writer that no thread has had.
fn spare() -> Option<&'static Writer> {
    SPARE.take(|| pages::batch_wiped_on_fork(BATCH))
}

impl Chained for Writer {
    fn next(&self) -> &Published<Self> {
        &self.next
    }
}

/// The child of a fork writes nothing into its parent's chunks.
fn in_child(_: &OnlyThread) {
    for writer in all() {
        writer.events.with(|events| *events = None);
        writer.is_named.set(false);
        writer.dropped.store(0, Ordering::Relaxed);
        writer.kept.store(0, Ordering::Relaxed);
        writer.unreported.set(0);
        writer.open.with(|open| *open = None);
        writer.is_busy.store(false, Ordering::Relaxed);
    }
    SPARE.forget();
    thread::leave_part::<Writer>();
}

/// Events that all threads have written.
pub fn events() -> u64 {
    all()
        .map(|writer| writer.kept.load(Ordering::Relaxed))
        .sum()
}

/// What an event costs the thread that writes it, in ticks: the two looks at the clock included.
pub fn measure() -> u64 {
    const TIMES: u64 = 256;
    let mut memory = vec![0_u64; tllmprof_record::CHUNK_BYTES / size_of::<u64>()];
    let Some(place) = core::ptr::NonNull::new(memory.as_mut_ptr()) else {
        return 0;
    };
    // SAFETY: the memory has CHUNK_BYTES, aligned to 8, outlives the writer and is used by it alone.
    let chunk = unsafe { Chunk::at(place.cast()) };
    let mut scratch = EventWriter::begin(chunk, 0, 0, 0);
    let mut least = u64::MAX;
    // Three times: the first meets cold memory.
    for _ in 0..3 {
        let since = ticks();
        for n in 0..TIMES {
            let start = ticks();
            let what = What::Call {
                row: 0,
                capturing: false,
                stream: n,
            };
            let event = Event::new(start, ticks().wrapping_sub(start), what);
            let _ = core::hint::black_box(&mut scratch).push(&event);
        }
        least = least.min(ticks().wrapping_sub(since) / TIMES);
    }
    least
}
