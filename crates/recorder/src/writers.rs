//! Writes events: each thread into a chunk of its own, without a lock.
//!
//! A thread gets a writer at its first event and leaves it when it ends, together with the chunk that it has
//! begun. So ten thousand short threads use no more chunks than the largest number of threads that ran at the
//! same time.

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
use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::pages::{self, Chained, Spare, Zeroed};
use tllmprof_platform::system;
use tllmprof_platform::thread::{self, Part};
use tllmprof_steps::ranges::open::OpenRanges;
use tllmprof_sync::Published;

lifecycle::global! {
    stage: Sinks;

    /// Writers that were allocated and that no thread has had yet.
    #[fork(by = in_child)]
    static SPARE: Spare<Writer> = Spare::none();
    /// Events that were lost because there was no writer, or no moment to write them in.
    #[fork(reset)]
    static LOST: AtomicU64 = AtomicU64::new(0);
}
/// The number of writers that fit into a page, which are allocated together.
const BATCH: usize = 4096 / size_of::<Writer>();
/// After this number of refusals in a row a writer is not busy any more but was left in the middle: by a
/// signal handler that jumped out, or by a thread that was cancelled.
const REFUSALS: u32 = 1024;

/// A writer, which belongs to one thread at a time. All zeros, as in a copy of the process, is one without a
/// chunk. The fields that a launch needs are in the first cache line.
#[repr(C, align(64))]
pub struct Writer {
    /// True while the thread is writing: events of its signal handlers are lost then.
    is_busy: AtomicBool,
    /// The index of the stream that the thread last launched into, if that stream still exists. A hint to
    /// find it faster.
    pub launched: Cell<u8>,
    thread: Cell<u32>,
    /// The writer into the thread's chunk; `None` before the first event.
    events: ThreadOnly<Option<EventWriter>>,
    /// The number of events that were written.
    kept: AtomicU64,
    /// The number of dropped events that no event of the record reports yet.
    unreported: Cell<u64>,
    /// The iteration in which the thread last ended its streams' spans of earlier iterations.
    pub swept: Cell<u64>,
    /// True if the thread's name has been written.
    is_named: Cell<bool>,
    /// The chunk's number, and the generation in which it was begun ([`reuse`]).
    chunk: Cell<u32>,
    generation: Cell<u64>,
    /// The number of refusals in a row, and the value of `kept` at the first of them.
    refused: Cell<u32>,
    refused_since: Cell<u64>,
    /// The number of events that were dropped.
    dropped: AtomicU64,
    /// The pushed ranges that are open; `None` before the first.
    open: ThreadOnly<Option<&'static mut Ranges>>,
    /// The next of the spare writers.
    next: Published<Writer>,
    /// The number of times that the thread is in the driver for GPU times now, and the ticks that such calls
    /// have taken.
    pub timing: AtomicU32,
    pub timed: AtomicU64,
}

const _: () = assert!(core::mem::offset_of!(Writer, swept) < 64);
const _: () = assert!(size_of::<Writer>() == 128);

// SAFETY: all fields that are not atomic are used only by the thread that has the writer.
unsafe impl Sync for Writer {}
// SAFETY: zeros are numbers, and zeros in what may be `None` are `None`: a writer of events holds its chunk's
// address, and an `Option` of it has the same size.
unsafe impl Zeroed for Writer {}
const _: () = assert!(size_of::<Option<EventWriter>>() == size_of::<EventWriter>());

/// OpenRanges ranges, in pages of their own.
#[repr(transparent)]
struct Ranges(OpenRanges);

// SAFETY: zeros are no open ranges, as `OpenRanges` documents.
unsafe impl Zeroed for Ranges {}

/// A value that only the thread with the writer uses, and never within another use: `is_busy` keeps its
/// signal handlers away.
struct ThreadOnly<T>(UnsafeCell<T>);

impl<T> ThreadOnly<T> {
    #[inline]
    fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: only this thread uses the value. It is in no other use of it: the acts below use nothing
        // else of the writer, and `is_busy` keeps signal handlers from everything except the check if any
        // range is open.
        act(unsafe { &mut *self.0.get() })
    }
}

/// Writes an event of the calling thread. Returns true if it was kept.
#[inline(always)]
pub fn write(event: &Event) -> bool {
    let row = event.row();
    current().is_some_and(|writer| writer.keep_at_once(row)) || write_with_care(row)
}

/// Like [`write`], but only if nothing prevents it; otherwise does nothing and returns false.
#[inline(always)]
pub fn write_at_once(event: &Event) -> bool {
    current().is_some_and(|writer| writer.keep_at_once(event.row()))
}

/// Like [`write`], as code that is shared by callers that do not write at each call.
#[inline(never)]
pub fn write_aside(event: &Event) -> bool {
    write(event)
}

/// Writes an event when something prevents [`Writer::keep_at_once`].
#[cold]
fn write_with_care(row: Row) -> bool {
    take().is_some_and(|writer| writer.keep(row))
}

/// Like [`write`], for an event that is useful as long as the record exists.
pub fn write_fact(event: &Event) -> bool {
    take().is_some_and(|writer| {
        lasting::push(writer.thread.get(), |events| events.push(event)) || writer.keep_there(event)
    })
}

/// Writes an event that stays as long as the record. Returns false if there is no lasting room, or if no
/// chunk is used again.
pub fn write_lasting(event: &Event) -> bool {
    take().is_some_and(|writer| lasting::push(writer.thread.get(), |events| events.push(event)))
}

/// Like [`write`], for an event that is written again for later windows: if windows are dropped, it is
/// dropped with those of its time.
pub fn write_latest(event: &Event) -> bool {
    match keep::is_wanted() {
        true => write_late(event),
        false => write_fact(event),
    }
}

/// Like [`write`], for an event that belongs to a window, even if none is open.
pub fn write_late(event: &Event) -> bool {
    if !reuse::is_wanted() {
        return write(event);
    }
    take().is_some_and(|writer| writer.keep_there(event))
}

/// The calling thread's writer, taken for one use: events of the thread's signal handlers are dropped while
/// this value lives.
pub struct TakenWriter(&'static Writer);

impl TakenWriter {
    #[inline(always)]
    fn new(writer: &'static Writer) -> Self {
        writer.is_busy.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Self(writer)
    }
}

impl Deref for TakenWriter {
    type Target = Writer;

    #[inline(always)]
    fn deref(&self) -> &Writer {
        self.0
    }
}

impl Drop for TakenWriter {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.is_busy.store(false, Ordering::Relaxed);
    }
}

/// Takes the calling thread's writer to write an event. If it is in use, or if there is none, the event
/// counts as dropped.
#[inline]
pub fn take() -> Option<TakenWriter> {
    let Some(writer) = current().or_else(begin) else {
        LOST.fetch_add(1, Ordering::Relaxed);
        return None;
    };
    if writer.is_busy.load(Ordering::Relaxed) && !writer.was_left() {
        writer.drop_one();
        return None;
    }
    let writer = TakenWriter::new(writer);
    if writer.unreported.get() != 0 {
        writer.report_dropped();
    }
    Some(writer)
}

impl Writer {
    /// Runs `act` on the writer into the chunk. Returns false if there is none.
    #[inline(always)]
    fn in_chunk(&self, act: impl FnOnce(&mut EventWriter) -> bool) -> bool {
        self.events.with(|events| events.as_mut().is_some_and(act))
    }

    /// Writes an event and counts it as kept, if nothing else has to be done: the writer is not in use, no
    /// dropped event has to be reported, the chunk has room, and no block of it ends. Otherwise does nothing
    /// and returns false.
    #[inline(always)]
    fn keep_at_once(&'static self, row: Row) -> bool {
        if self.is_busy.load(Ordering::Relaxed) || self.unreported.get() != 0 {
            return false;
        }
        let writer = TakenWriter::new(self);
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

    /// Writes an event, and counts it as kept or as dropped. Returns true if it was kept.
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

    /// Like [`Writer::keep`], and marks the chunk as one that belongs to a window.
    fn keep_there(&self, event: &Event) -> bool {
        let is_kept = self.keep(event.row());
        self.generation.set(reuse::OF_WINDOWS);
        is_kept
    }

    /// Writes a string into the thread's chunk, if that has room for an event after it.
    fn push_string_there(&self, id: StringId, text: &str) -> bool {
        let rows = 2 + text.len().min(MAX_STRING).div_ceil(EVENT_BYTES);
        self.in_chunk(|events| events.room() >= rows && events.push_string(id, text))
    }

    /// Writes a string that is dropped with the open window, if windows are dropped.
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

    /// Writes a string that stays as long as the record.
    pub fn push_lasting_string(&self, id: StringId, text: &str) -> bool {
        lasting::push(self.thread.get(), |events| events.push_string(id, text))
    }

    #[cold]
    fn push_into_next(&self, row: Row) -> bool {
        let _errno = SavedErrno::new();
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

    /// Writes the thread's name. If chunks are used again, it is written into each of them, as the chunk
    /// before may be overwritten by then.
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

    /// Prepares the writer for a new thread, which continues in the chunk that another has left.
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

    /// Runs `act` on the thread's open ranges, if there is memory for them.
    #[inline]
    pub fn with_open<R>(&self, act: impl FnOnce(&mut OpenRanges) -> R) -> Option<R> {
        self.open.with(|open| {
            if open.is_none() {
                *open = room_for_ranges();
            }
            open.as_mut().map(|Ranges(open)| act(open))
        })
    }

    /// Returns true if the thread has no open ranges.
    #[inline]
    pub fn has_none_open(&self) -> bool {
        self.open
            .with(|open| open.as_ref().is_none_or(|Ranges(open)| open.is_empty()))
    }

    /// Returns true if the writer is marked as busy but the code that marked it never returned.
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

    /// Records the number of missing events, if the chunk has room for that.
    #[cold]
    fn report_dropped(&self) {
        // A signal handler may jump out of here: an unreported number is better than one that is reported
        // twice.
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
        // The header is updated from time to time, so that it holds however the process ends.
        if dropped.is_power_of_two() || dropped.is_multiple_of(4096) {
            count_dropped();
        }
    }
}

#[cold]
fn room_for_ranges() -> Option<&'static mut Ranges> {
    let _errno = SavedErrno::new();
    pages::batch_wiped_on_fork(1)?.first_mut()
}

/// Counts events that could not be written.
pub fn lose(events: u64) {
    LOST.fetch_add(events, Ordering::Relaxed);
}

/// Writes the number of dropped events into the header.
pub fn count_dropped() {
    if let Some(header) = space::header() {
        let dropped = all().map(|writer| writer.dropped.load(Ordering::Relaxed));
        let dropped = dropped.sum::<u64>() + LOST.load(Ordering::Relaxed);
        header.set(Counter::EventsDropped, dropped);
    }
}

/// Returns the number of times that threads are in the driver for GPU times now.
pub fn timing() -> u32 {
    all()
        .map(|writer| writer.timing.load(Ordering::SeqCst))
        .sum()
}

/// Returns the ticks that GPU times have taken on all threads since the last call.
pub fn take_timed() -> u64 {
    all()
        .map(|writer| writer.timed.swap(0, Ordering::Relaxed))
        .sum()
}

/// Returns the number of threads that have written and have not left their writer to another.
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
    let _errno = SavedErrno::new();
    let writer = thread::begin_part(|record, left| {
        let writer: &Writer = left.or_else(spare)?;
        writer.begin_thread(record.number().cast_unsigned());
        Some(writer)
    })?;
    let taken = TakenWriter::new(writer);
    taken.push_name();
    taken.is_named.set(true);
    drop(taken);
    Some(writer)
}

// SAFETY: `Kind::Writer` belongs only to this type.
unsafe impl Part for Writer {
    const KIND: thread::Kind = thread::Kind::Writer;

    fn thread_ends(&'static self) {}
}

/// Begins a chunk for events of `thread`. Returns its number and its writer.
fn begin_chunk(thread: u32) -> Option<(u32, EventWriter)> {
    let header = space::header()?;
    Some(match reuse::take()? {
        Free::New(number, chunk) => {
            let begun = EventWriter::begin(chunk, header.id(), number, thread);
            // A reader sees by this counter that a chunk is missing. A signal handler that jumps out of here
            // must not leave a chunk that was counted but not begun.
            header.add(Counter::Chunks, 1);
            (number, begun)
        }
        Free::Used(number, chunk) => (
            number,
            EventWriter::again(chunk, header.id(), number, thread),
        ),
    })
}

/// Returns the calling thread's writer, if it has one.
#[inline]
pub fn current() -> Option<&'static Writer> {
    thread::part()
}

/// Returns a writer that no thread has had.
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

/// Returns the number of events that all threads have written.
pub fn events() -> u64 {
    all()
        .map(|writer| writer.kept.load(Ordering::Relaxed))
        .sum()
}

/// Measures the cost of an event for the thread that writes it, in ticks, including two reads of the clock.
pub fn measure() -> u64 {
    const TIMES: u64 = 256;
    let mut memory = vec![0_u64; tllmprof_record::CHUNK_BYTES / size_of::<u64>()];
    let Some(place) = core::ptr::NonNull::new(memory.as_mut_ptr()) else {
        return 0;
    };
    // SAFETY: the memory has CHUNK_BYTES, is aligned to 8, outlives the writer and is used only by it.
    let chunk = unsafe { Chunk::at(place.cast()) };
    let mut scratch = EventWriter::begin(chunk, 0, 0, 0);
    let mut least = u64::MAX;
    // Three times, because the memory is not in the cache the first time.
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
