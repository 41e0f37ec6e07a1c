//! Writes events. Each thread writes into a chunk (a piece of the record's file) that no other thread uses,
//! so no lock is needed.
//!
//! A thread gets a writer at its first event. When the thread ends, its writer and the unfinished chunk pass
//! to a later thread. So even ten thousand short threads leave no more unfinished chunks than the largest number of
//! threads that ran at the same time.

pub(crate) mod lasting;
pub(crate) mod strings;

use core::cell::{Cell, UnsafeCell};
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence};

use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::{
    Chunk, Counter, EVENT_BYTES, EncodedEvent, Event, EventWriter, MAX_STRING, NO_STRING, StringId,
    What,
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

    /// Writers that are allocated but have never been assigned to a thread.
    #[fork(by = in_child)]
    static SPARE: Spare<Writer> = Spare::none();
    /// The number of lost events that no [`Writer`] counts: events of threads that got no writer, and those that
    /// [`lose`] was called for.
    #[fork(reset)]
    static LOST: AtomicU64 = AtomicU64::new(0);
    /// The number of events that [`write_late_for_free`] has written. They cost the program's threads no time.
    #[fork(reset)]
    static FREE_OF_COST: AtomicU64 = AtomicU64::new(0);
}
/// The number of writers that are allocated at a time: those that fit into a page of memory.
const BATCH: usize = 4096 / size_of::<Writer>();
/// The number of consecutive uses of a writer that are refused because the writer is marked as busy. After that, the
/// mark is ignored: it can stay set if a signal handler jumps out of the library, or if the thread is cancelled.
const REFUSALS: u32 = 1024;

/// A writer, which belongs to one thread at a time. All zeros is a valid writer without a chunk: the child of
/// a fork sees zeros. The fields that recording a launch needs are in the first cache line.
#[repr(C, align(64))]
pub struct Writer {
    /// True while the thread is writing an event. Events from the thread's signal handlers are dropped
    /// meanwhile.
    is_busy: AtomicBool,
    /// The index of the stream that the thread last launched into. It is only a hint that makes the next look-up
    /// faster, because the stream may no longer exist.
    pub launched: Cell<u8>,
    thread: Cell<u32>,
    /// The writer into the thread's chunk; `None` before the first event.
    events: ThreadOnly<Option<EventWriter>>,
    /// The number of events that this writer has written.
    kept: AtomicU64,
    /// The number of dropped events that are not yet reported by an event in the record.
    unreported: Cell<u64>,
    /// The latest iteration in which the thread has ended the spans (a stream's work in one iteration) that it had
    /// left open in earlier iterations.
    pub swept: Cell<u64>,
    /// True if the name of the writer's thread has been written.
    is_named: Cell<bool>,
    /// The number of the chunk that the writer writes into.
    chunk: Cell<u32>,
    /// The result of [`reuse::generation`] when the chunk was begun, or [`reuse::OF_WINDOWS`] if the chunk holds events
    /// of a window. By this number, [`reuse`] decides whether the chunk may be overwritten.
    generation: Cell<u64>,
    /// The number of uses in a row that were refused because the writer was busy.
    refused: Cell<u32>,
    /// The value of `kept` at the first of the refusals that `refused` counts.
    refused_since: Cell<u64>,
    /// The number of events of this thread that were dropped.
    dropped: AtomicU64,
    /// The pushed ranges that are open on this thread; `None` before the first.
    open: ThreadOnly<Option<&'static mut Ranges>>,
    /// The next writer in the list [`SPARE`].
    next: Published<Writer>,
    /// The number of driver calls for GPU times that the thread is in now.
    pub timing: AtomicU32,
    /// The ticks that driver calls for GPU times have taken on this thread since `take_timed` was last called.
    pub timed: AtomicU64,
}

const _: () = assert!(core::mem::offset_of!(Writer, swept) < 64);
const _: () = assert!(size_of::<Writer>() == 128);

// SAFETY: all fields that are not atomic are used only by the thread that has the writer.
unsafe impl Sync for Writer {}
// SAFETY: zeros are valid numbers, and zeros in an `Option` field are `None`: an `EventWriter` holds the
// non-zero address of its chunk, and an `Option` of it has the same size.
unsafe impl Zeroed for Writer {}
const _: () = assert!(size_of::<Option<EventWriter>>() == size_of::<EventWriter>());

/// The pushed NVTX ranges that are open on a thread. Allocated in pages of their own.
#[repr(transparent)]
struct Ranges(OpenRanges);

// SAFETY: `OpenRanges` documents that all zeros means no open ranges.
unsafe impl Zeroed for Ranges {}

/// A value that only the writer's thread uses, one use at a time. While the flag `is_busy` is set, that
/// thread's signal handlers do not use the value.
struct ThreadOnly<T>(UnsafeCell<T>);

impl<T> ThreadOnly<T> {
    #[inline]
    fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: only this thread uses the value, and no use of it is nested in another. The closures passed
        // below use nothing else of the writer, and `is_busy` keeps signal handlers from everything except
        // the check for open ranges.
        act(unsafe { &mut *self.0.get() })
    }
}

/// Writes an event of the calling thread. Returns true if it was written, and false if it was dropped.
#[inline(always)]
pub(crate) fn write(event: &Event) -> bool {
    let row = event.row();
    current().is_some_and(|writer| writer.keep_at_once(row)) || write_with_care(row)
}

/// Writes an event like [`write`], but takes only the fast path. Returns false without writing if something else has
/// to be done first, such as beginning a new chunk.
#[inline(always)]
pub(crate) fn write_at_once(event: &Event) -> bool {
    current().is_some_and(|writer| writer.keep_at_once(event.row()))
}

/// Writes an event like [`write`], but is not inlined, because its callers write rarely.
#[inline(never)]
pub(crate) fn write_aside(event: &Event) -> bool {
    write(event)
}

/// Writes an event that the fast path ([`Writer::keep_at_once`]) has refused.
#[cold]
fn write_with_care(row: EncodedEvent) -> bool {
    take().is_some_and(|writer| writer.keep(row))
}

/// Writes an event with data about the process. In a record that overwrites chunks, the event goes to a lasting chunk,
/// which is never overwritten. If that is not possible, the event goes to the thread's own chunk.
pub(crate) fn write_fact(event: &Event) -> bool {
    take().is_some_and(|writer| {
        lasting::push(writer.thread.get(), |events| events.push(event)) || writer.keep_there(event)
    })
}

/// Writes an event that stays as long as the record. Returns false if the lasting chunks are full, or if the
/// record never overwrites chunks.
pub(crate) fn write_lasting(event: &Event) -> bool {
    take().is_some_and(|writer| lasting::push(writer.thread.get(), |events| events.push(event)))
}

/// Writes an event that is written again in each later window. If the record drops old windows, this copy is dropped
/// together with the window that is open now. If no window is open, it is dropped together with the latest window.
pub(crate) fn write_latest(event: &Event) -> bool {
    match keep::is_wanted() {
        true => write_late(event),
        false => write_fact(event),
    }
}

/// Writes an event that belongs to a window, even if no window is open now. The flight recorder does not overwrite the
/// event's chunk.
pub(crate) fn write_late(event: &Event) -> bool {
    if !reuse::is_wanted() {
        return write(event);
    }
    take().is_some_and(|writer| writer.keep_there(event))
}

/// Writes an event like [`write_late`], on a thread that is not the program's. The event is not counted by
/// [`costly_events`].
pub(crate) fn write_late_for_free(event: &Event) {
    if write_late(event) {
        FREE_OF_COST.fetch_add(1, Ordering::Relaxed);
    }
}

/// The calling thread's writer, taken for one use: events of the thread's signal handlers are dropped while
/// this value lives.
pub(crate) struct TakenWriter(&'static Writer);

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

/// Takes the calling thread's writer to write an event. If the thread has no writer, or is already using it,
/// the event counts as dropped.
#[inline]
pub(crate) fn take() -> Option<TakenWriter> {
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
    /// Runs `act` on the writer of the thread's chunk. Returns false if the thread has no chunk.
    #[inline(always)]
    fn in_chunk(&self, act: impl FnOnce(&mut EventWriter) -> bool) -> bool {
        self.events.with(|events| events.as_mut().is_some_and(act))
    }

    /// Writes an event and counts it as kept (written), if this needs no other work. That is so if the writer is not in
    /// use, no dropped event has to be reported, the chunk has room, and the event does not end a block (a part of the
    /// chunk that has its own checksum). Otherwise does nothing and returns false.
    #[inline(always)]
    fn keep_at_once(&'static self, row: EncodedEvent) -> bool {
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

    /// Writes an event, into a new chunk if the current one is full.
    #[inline]
    fn push(&self, row: EncodedEvent) -> bool {
        self.in_chunk(|events| events.push_row(row)) || self.push_into_next(row)
    }

    /// Writes an event, and counts it as kept (written) or as dropped. Returns true if it was written.
    #[inline]
    pub fn keep(&self, row: EncodedEvent) -> bool {
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

    /// Writes an event like [`Writer::keep`], and marks the chunk as one that holds events of a window.
    fn keep_there(&self, event: &Event) -> bool {
        let is_kept = self.keep(event.row());
        self.generation.set(reuse::OF_WINDOWS);
        is_kept
    }

    /// Writes a string into the thread's own chunk, if the chunk has room for the string and one event after
    /// it.
    fn push_string_there(&self, id: StringId, text: &str) -> bool {
        let rows = 2 + text.len().min(MAX_STRING).div_ceil(EVENT_BYTES);
        self.in_chunk(|events| events.room() >= rows && events.push_string(id, text))
    }

    /// Writes a string. If the record drops old windows, the string is dropped together with the window that is open
    /// now.
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

    /// Writes a string that stays in the record, even if old windows are dropped. Returns false if the string could not
    /// be written into a lasting chunk (a chunk that is never overwritten).
    pub fn push_lasting_string(&self, id: StringId, text: &str) -> bool {
        lasting::push(self.thread.get(), |events| events.push_string(id, text))
    }

    #[cold]
    fn push_into_next(&self, row: EncodedEvent) -> bool {
        self.begin_chunk() && self.in_chunk(|events| events.push_row(row))
    }

    /// Begins a new chunk for the thread. Returns false if there is none. Keeps the program's `errno`, which reserving
    /// space changes.
    fn begin_chunk(&self) -> bool {
        let _errno = SavedErrno::new();
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

    /// Writes the thread's name. In a record that overwrites old chunks, the name is written into each chunk,
    /// because the chunk with the first copy may be overwritten.
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

    /// Prepares the writer for a new thread. If an ended thread has left the writer, the new thread continues to fill
    /// its chunk.
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

    /// Runs `act` on the thread's open ranges. Returns `None` if no memory could be allocated for them.
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

    /// Called when the writer is marked as busy. Counts a refusal. Returns true after [`REFUSALS`] refusals in a row:
    /// the code that set the mark is then assumed to have been abandoned.
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

    /// Writes an event with the number of dropped events, if the chunk has room.
    #[cold]
    fn report_dropped(&self) {
        // The count is cleared before the event is written, because a signal handler may jump out of this function.
        // It is better if a number is not reported at all than if it is reported twice.
        let events = self.unreported.replace(0);
        let event = Event::new(ticks(), 0, What::Dropped { events });
        if !self.in_chunk(|chunk| chunk.push(&event)) {
            self.unreported.set(self.unreported.get() + events);
        }
    }

    /// Counts an event of this thread that was dropped.
    #[cold]
    pub fn drop_one(&self) {
        let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
        self.unreported.set(self.unreported.get() + 1);
        // The header is updated from time to time, so that the count is roughly right even if the process is killed.
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

/// Counts `events` events that could not be written.
pub(crate) fn lose(events: u64) {
    LOST.fetch_add(events, Ordering::Relaxed);
}

/// Writes the number of dropped events into the header.
pub(crate) fn count_dropped() {
    if let Some(header) = space::header() {
        let dropped = all().map(|writer| writer.dropped.load(Ordering::Relaxed));
        let dropped = dropped.sum::<u64>() + LOST.load(Ordering::Relaxed);
        header.set(Counter::EventsDropped, dropped);
    }
}

/// Returns the number of driver calls for GPU times that all threads are in now.
pub(crate) fn timing() -> u32 {
    all()
        .map(|writer| writer.timing.load(Ordering::SeqCst))
        .sum()
}

/// Returns the ticks that all threads have spent on measuring GPU times since the previous call of this function.
pub(crate) fn take_timed() -> u64 {
    all()
        .map(|writer| writer.timed.swap(0, Ordering::Relaxed))
        .sum()
}

/// Returns the number of writers that have been assigned to threads. A writer that passes from an ended thread to a new
/// thread counts once.
pub(crate) fn count() -> u64 {
    all().count() as u64
}

fn all() -> impl Iterator<Item = &'static Writer> {
    thread::parts()
}

/// Assigns a writer to the calling thread: the one that an ended thread has left in the calling thread's
/// `ThreadRecord` (the library's data about a thread), or a new one. Returns `None` if there is no record file, or no
/// memory for a writer.
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

// SAFETY: `ThreadComponent::Writer` belongs only to this type.
unsafe impl Part for Writer {
    const KIND: thread::ThreadComponent = thread::ThreadComponent::Writer;

    fn thread_ends(&'static self) {}
}

/// Begins a chunk for events of `thread`. Returns the chunk's number and its writer.
fn begin_chunk(thread: u32) -> Option<(u32, EventWriter)> {
    let header = space::header()?;
    Some(match reuse::take()? {
        Free::New(number, chunk) => {
            let begun = EventWriter::begin(chunk, header.id(), number, thread);
            // A reader of the file compares this counter with the chunks that it finds. The counter is
            // increased only after the chunk is begun: a signal handler may jump out of this function, and
            // each counted chunk must exist.
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
pub(crate) fn current() -> Option<&'static Writer> {
    thread::part()
}

/// Returns a writer that has never been assigned to a thread.
fn spare() -> Option<&'static Writer> {
    SPARE.take(|| pages::batch_wiped_on_fork(BATCH))
}

impl Chained for Writer {
    fn next(&self) -> &Published<Self> {
        &self.next
    }
}

/// Detaches all writers from their chunks in the child of a fork, because the chunks belong to the parent's
/// record.
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

/// Returns the number of events that all threads have written so far, without those written by [`write_late_for_free`].
pub(crate) fn costly_events() -> u64 {
    // `FREE_OF_COST` is read before the other numbers. If `write_late_for_free` writes an event in between, the result
    // includes this event. In the other order, the result could be too small.
    let free = FREE_OF_COST.load(Ordering::Relaxed);
    let all = all().map(|writer| writer.kept.load(Ordering::Relaxed));
    all.sum::<u64>().saturating_sub(free)
}

/// Measures how many ticks a thread needs to write an event, including two reads of the clock.
pub(crate) fn measure() -> u64 {
    const TIMES: u64 = 256;
    let mut memory = vec![0_u64; tllmprof_record::CHUNK_BYTES / size_of::<u64>()];
    let Some(place) = core::ptr::NonNull::new(memory.as_mut_ptr()) else {
        return 0;
    };
    // SAFETY: the memory has CHUNK_BYTES, is aligned to 8, outlives the writer and is used only by it.
    let chunk = unsafe { Chunk::at(place.cast()) };
    let mut scratch = EventWriter::begin(chunk, 0, 0, 0);
    let mut least = u64::MAX;
    // The minimum of three rounds is used: in the first round the memory is not in the cache yet,
    // so that round takes longer.
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
