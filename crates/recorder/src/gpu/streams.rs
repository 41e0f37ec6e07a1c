//! The streams that a window's work is launched into, and the open span (the work in one iteration) of each.
//!
//! A thread that launches into a stream finds it without a lock. Only threads that begin or end a span take the lock on
//! the stream's span. If another thread holds this lock, a launch or a wait of the program does not wait for it.

use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;

use super::driver::{Driver, Pair};
use super::pool::Index;
use super::span::{self, Has};
use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_platform::thread;
use tllmprof_sync::Lock;
use tllmprof_sync::hash::spread;

/// The number of entries in the table of streams. If none of the entries that a new stream may use is free, the entry
/// of a stream without an open span is reused.
const STREAMS: usize = 256;
/// The number of consecutive entries in which a stream is searched, beginning with the entry that its hash selects.
const REACH: usize = 8;
/// The number of launch counts that are remembered for each stream: one for each span of an iteration. If an iteration
/// has more spans, they share the last count.
const REMEMBERED: usize = 8;
/// If a stream had at least this number of spans in its previous iteration, a pair of CUDA events for each span would
/// cost too much. Spans for which the host is expected to wait are then timed with the host's clock
/// ([`Open::goes_by_clock`]).
const TOO_MANY: usize = 4;
/// The number of changes of the launching thread after which a stream counts as shared among threads. Each new span
/// halves the number of changes counted so far, so a few changes in each span never reach this number.
const SHARED_AFTER: u32 = 32;

/// The driver's handle of the legacy default stream (`CU_STREAM_LEGACY`).
const LEGACY: usize = 1;
/// The driver's handle of the calling thread's per-thread default stream (`CU_STREAM_PER_THREAD`).
const PER_THREAD: usize = 2;

/// The stream that a call names in its arguments.
#[derive(Clone, Copy)]
pub struct StreamArgument {
    pub handle: usize,
    /// True if handle 0 means the thread's per-thread default stream, not the legacy one.
    pub per_thread: bool,
}

/// A key that identifies a stream. Default streams need more than a handle: each context and each thread has
/// its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct StreamKey {
    /// The handle. For a per-thread default stream, the address of the thread's block of thread-local words,
    /// combined with [`PER_THREAD`].
    name: usize,
    /// The context of a default stream; 0 for other streams.
    context: usize,
}

impl StreamArgument {
    /// Returns the stream's key. In the key of a default stream, the context is the calling thread's current one; 0 if
    /// it has none.
    #[inline]
    pub fn key(self, driver: Driver) -> StreamKey {
        self.key_by_name().unwrap_or_else(|| StreamKey {
            name: match (self.handle, self.per_thread) {
                (0, true) | (PER_THREAD, _) => thread::address() | PER_THREAD,
                _ => LEGACY,
            },
            context: driver.context(),
        })
    }

    /// Returns the key of a stream that is not a default stream, without asking the driver. Returns `None`
    /// for a default stream.
    #[inline]
    pub const fn key_by_name(self) -> Option<StreamKey> {
        if self.handle <= PER_THREAD {
            return None;
        }
        Some(StreamKey {
            name: self.handle,
            context: 0,
        })
    }
}

impl StreamKey {
    /// Returns the stream's context. For a stream that is not a default stream, asks the driver.
    pub fn context(self, driver: Driver) -> usize {
        if self.is_default() {
            self.context
        } else {
            driver.context_of(self.name)
        }
    }

    const fn is_default(self) -> bool {
        self.name & (LEGACY | PER_THREAD) != 0
    }
}

/// A known stream, as an entry of the table. The fields that each launch reads are in one cache line. The fields that
/// each launch writes are in another.
#[repr(C, align(128))]
pub(crate) struct Stream {
    /// The `name` of the stream's [`StreamKey`]; 0 if the entry is not in use.
    name: AtomicUsize,
    context: AtomicUsize,
    /// The state of the stream's span ([`Has`]), encoded as a word. Written with the lock on the span held,
    /// and when the stream is forgotten.
    has: AtomicU64,
    /// The expected number of launches of the open span, by which its last launch is predicted. It is the number of
    /// launches of the latest earlier span that had the same index in its iteration. 0 if there was no such span, or
    /// if the open span is timed with the host's clock.
    expected: AtomicU32,
    /// The number of the span's launches up to the moment when its last CUDA event was about to be recorded; 0 if that
    /// has not happened yet. If that event is recorded several times, the latest moment counts.
    settled: AtomicU32,
    /// True if several threads launch into this stream in turn. Launches are then not counted one by one, because all
    /// threads would write to one cache line. Only the first launch after `settled` was stored increases `launches`,
    /// which is then greater than `settled`.
    is_shared: AtomicBool,
    number: AtomicU16,
    counted: LaunchCounts,
    pub span: Lock<Open>,
}

/// The fields of a stream that each launch into it writes, in a cache line of their own.
#[repr(align(128))]
struct LaunchCounts {
    /// The number of launches in the stream's current span so far. If `is_shared`, it may be lower than the real
    /// number.
    launches: AtomicU32,
    /// The number of recent launches that were made by a different thread than the launch before. It is halved
    /// whenever a span begins.
    turns: AtomicU32,
    /// The thread that launched last into this stream, identified by the address of its block of thread-local words.
    owner: AtomicUsize,
}

/// The open span of a stream (the previous span, if none is open), and the facts about earlier spans from which the
/// next span is predicted.
pub(crate) struct Open {
    pub pair: Index,
    pub events: Pair,
    /// The span's iteration plus one; 0 if no span has begun. With this encoding, an unused stream consists of zeros,
    /// which take no space in the library's file.
    begun: u64,
    /// The time in ticks when the span began. For a span with CUDA events, it is taken right after the first of them
    /// was recorded.
    pub since: u64,
    /// The number of the span's launches that come before its last CUDA event. That event may be recorded several
    /// times; the latest recording counts. 0 if it was not recorded yet.
    pub covered: u32,
    /// True if the span has no CUDA events and is timed with the host's clock.
    pub by_clock: bool,
    /// The index of this span among the spans of the stream in this iteration, at most `REMEMBERED - 1`.
    place: usize,
    /// For each index, the number of launches in the latest span that had this index in its iteration.
    counts: [u32; REMEMBERED],
    /// Bit n stands for the spans with index n in their iterations. The bit is set if the host waited for the stream
    /// right after the launches of the latest of these spans.
    waited: u8,
    /// The number of spans that the stream had in the latest earlier iteration in which it had any; at most
    /// [`REMEMBERED`].
    before: usize,
}

const _: () = assert!(REMEMBERED <= u8::BITS as usize);

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    #[together(tables)]
    static ALL: [Stream; STREAMS] = [const { Stream::new() }; STREAMS];
    /// The entries of the table whose streams have an open span, as bits: bit n for entry n.
    #[fork(with = ALL)]
    static OPEN: [AtomicU64; STREAMS / 64] = [const { AtomicU64::new(0) }; STREAMS / 64];
    #[fork(free)]
    static INSERTING: Lock<()> = Lock::new(());
    #[fork(reset)]
    static NUMBERS: AtomicU16 = AtomicU16::new(0);
}

const _: () = assert!(core::mem::offset_of!(Stream, is_shared) < 64);

impl Stream {
    const fn new() -> Self {
        Self {
            name: AtomicUsize::new(0),
            context: AtomicUsize::new(0),
            has: AtomicU64::new(Has::Nothing.to_bits()),
            expected: AtomicU32::new(0),
            settled: AtomicU32::new(0),
            is_shared: AtomicBool::new(false),
            number: AtomicU16::new(0),
            counted: LaunchCounts {
                launches: AtomicU32::new(0),
                turns: AtomicU32::new(0),
                owner: AtomicUsize::new(0),
            },
            span: Lock::new(Open {
                pair: 0,
                events: Pair { start: 0, end: 0 },
                begun: 0,
                since: 0,
                covered: 0,
                by_clock: false,
                place: 0,
                counts: [0; REMEMBERED],
                waited: 0,
                before: 0,
            }),
        }
    }

    /// Returns the handle to pass to the driver; 0 if the entry is not in use. A per-thread default stream must be
    /// used only on its own thread.
    pub(crate) fn handle(&self) -> usize {
        let name = self.name.load(Ordering::Relaxed);
        match name {
            LEGACY => LEGACY,
            name if name & PER_THREAD != 0 => PER_THREAD,
            name => name,
        }
    }

    /// Returns true if the calling thread can use the stream. A default stream can be used only while its
    /// context is current, and a per-thread default stream only on its own thread.
    pub(crate) fn is_in_reach(&self, driver: Driver) -> bool {
        let name = self.name.load(Ordering::Relaxed);
        match name & (LEGACY | PER_THREAD) {
            0 => name != 0,
            LEGACY => self.context() == driver.context(),
            _ => name == thread::address() | PER_THREAD && self.context() == driver.context(),
        }
    }

    /// Returns true for the legacy default stream. Work in it waits for earlier work in the context's other
    /// streams, and later work in those streams waits for it.
    pub(crate) fn is_legacy(&self) -> bool {
        self.name.load(Ordering::Relaxed) == LEGACY
    }

    pub(crate) fn context(&self) -> usize {
        self.context.load(Ordering::Relaxed)
    }

    pub(crate) fn number(&self) -> u16 {
        self.number.load(Ordering::Relaxed)
    }

    /// Returns the iteration of the open span, if one is open.
    #[inline]
    pub(crate) fn open(&self) -> Option<u64> {
        match Has::from_bits(self.has.load(Ordering::Acquire)) {
            Has::Open(iteration) => Some(iteration),
            Has::Nothing | Has::Missed(_) => None,
        }
    }

    /// Returns true if a span of this iteration is open in the stream, or if [`Stream::miss`] has stored that none
    /// begins.
    #[inline]
    pub(crate) fn has_begun(&self, iteration: u64) -> bool {
        Has::is_of(self.has.load(Ordering::Acquire), iteration)
    }

    /// Stores that no span of the iteration begins, because it could not begin or the iteration is not measured. Called
    /// with the lock on the stream's span held.
    pub(crate) fn miss(&self, iteration: u64) {
        self.on(span::SpanEvent::Fails(iteration));
    }

    fn on(&self, event: span::SpanEvent) {
        let has = Has::from_bits(self.has.load(Ordering::Relaxed)).next(event);
        self.has.store(has.to_bits(), Ordering::Release);
    }

    /// Returns the number of launches in the span so far. For a shared stream, it may be lower than the real number.
    pub(crate) fn launches(&self) -> u32 {
        self.counted.launches.load(Ordering::Relaxed)
    }

    /// Stores and returns the number of launches so far. Called when a CUDA event is about to be recorded in the
    /// stream after these launches.
    pub(crate) fn settle(&self) -> u32 {
        let launches = self.launches();
        self.settled.store(launches, Ordering::SeqCst);
        launches
    }

    /// Counts a launch that is about to be made. Returns true if it is expected to be the last
    /// launch of the span.
    #[inline]
    pub(crate) fn launches_one(&self) -> bool {
        let (counted, us) = (&self.counted, thread::address());
        if self.is_shared.load(Ordering::Relaxed) {
            if self.launches() == self.settled.load(Ordering::Relaxed) {
                counted.launches.fetch_add(1, Ordering::Relaxed);
                counted.owner.store(us, Ordering::Relaxed);
            }
            return false;
        }
        let launches = self.launches() + 1;
        counted.launches.store(launches, Ordering::Relaxed);
        if counted.owner.load(Ordering::Relaxed) != us {
            counted.owner.store(us, Ordering::Relaxed);
            // The number of changes of the launching thread (`turns`) is halved only when a span begins. In iterations
            // that are not measured no span begins, so the number must not grow there.
            if self.open().is_some() {
                let turns = counted.turns.load(Ordering::Relaxed) + 1;
                counted.turns.store(turns, Ordering::Relaxed);
                if turns == SHARED_AFTER {
                    self.is_shared.store(true, Ordering::Relaxed);
                }
            }
        }
        launches == self.expected.load(Ordering::Relaxed) && self.open().is_some()
    }

    /// Subtracts a launch that the driver has refused from the number of launches. Does nothing for a shared stream.
    pub(crate) fn launches_one_less(&self) {
        if !self.is_shared.load(Ordering::Relaxed) {
            let launches = self.launches().saturating_sub(1);
            self.counted.launches.store(launches, Ordering::Relaxed);
        }
    }

    /// Returns true if the latest launch into this stream was made by the calling thread. Approximate for
    /// streams that several threads use.
    pub(crate) fn is_ours(&self) -> bool {
        self.counted.owner.load(Ordering::Relaxed) == thread::address()
    }

    /// Returns true if this entry still holds the stream with the key `key`. The entry may have been reused for
    /// another stream.
    pub(crate) fn is(&self, key: StreamKey) -> bool {
        self.name.load(Ordering::Acquire) == key.name
            && (!key.is_default() || self.context() == key.context)
    }

    /// Begins a span. The span is timed with `events`, or with the host's clock if `events` is `None`. Called with the
    /// lock on the stream's span held.
    pub(crate) fn begin(
        &self,
        open: &mut Open,
        events: Option<(Index, Pair)>,
        iteration: u64,
        since: u64,
    ) {
        let place = open.next_place(iteration);
        if place == 0 {
            open.before = open.place + 1;
        }
        open.place = place;
        open.waited &= !(1 << place);
        open.by_clock = events.is_none();
        (open.pair, open.events) = events.unwrap_or_default();
        (open.begun, open.since, open.covered) = (iteration + 1, since, 0);
        let LaunchCounts {
            launches,
            turns,
            owner,
        } = &self.counted;
        launches.store(0, Ordering::Relaxed);
        self.settled.store(0, Ordering::Relaxed);
        turns.store(turns.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
        owner.store(thread::address(), Ordering::Relaxed);
        let expected = if open.by_clock { 0 } else { open.counts[place] };
        self.expected.store(expected, Ordering::Relaxed);
        let (word, bit) = self.bit();
        word.fetch_or(bit, Ordering::Relaxed);
        self.on(span::SpanEvent::Begins(iteration));
        super::follow();
    }

    /// Ends the open span. Called with the lock on the stream's span held.
    pub(crate) fn end(&self, open: &mut Open) {
        open.counts[open.place] = self.launches();
        self.close(span::SpanEvent::Ends);
    }

    fn bit(&self) -> (&'static AtomicU64, u64) {
        let index = usize::from(self.place());
        (&OPEN[index / 64], 1 << (index % 64))
    }

    /// Returns the stream's index in the table (see [`stream_at`]).
    pub(crate) fn place(&self) -> u8 {
        let bytes = core::ptr::from_ref(self).addr() - ALL.as_ptr().addr();
        (bytes / size_of::<Self>()) as u8
    }
}

impl Open {
    /// Returns the number of the iteration to which the span belongs.
    pub(crate) const fn iteration(&self) -> u64 {
        self.begun.wrapping_sub(1)
    }

    fn next_place(&self, iteration: u64) -> usize {
        if self.begun == iteration + 1 {
            (self.place + 1).min(REMEMBERED - 1)
        } else {
            0
        }
    }

    /// Returns true if the iteration's next span is to be timed with the host's clock. This requires that the stream
    /// had at least [`TOO_MANY`] spans in its previous iteration. It also requires two waits of the host: right after
    /// the latest span of this iteration, and right after the span of an earlier iteration that has the next span's
    /// index.
    pub(crate) fn goes_by_clock(&self, iteration: u64) -> bool {
        let place = self.next_place(iteration);
        let are_waited_for = |places: u8| self.waited & places == places;
        place > 0 && self.before >= TOO_MANY && are_waited_for(1 << self.place | 1 << place)
    }

    /// Stores that the host waited for the stream right after the launches of this span.
    pub(crate) const fn is_waited_for(&mut self) {
        self.waited |= 1 << self.place;
    }
}

/// Returns the stream at index `place` of the table.
#[inline]
pub(crate) fn stream_at(place: u8) -> &'static Stream {
    const { assert!(STREAMS == 1 << u8::BITS) };
    &ALL[usize::from(place)]
}

fn places(key: StreamKey) -> impl Iterator<Item = &'static Stream> {
    // [`spread`] multiplies the word and returns the high half of the product, whose upper bits select the first entry
    // to search. The low half of the context is put into the high half of the word, where it changes that half of the
    // product.
    let start = spread(key.name as u64 ^ (key.context as u64).rotate_left(32)) >> 16;
    (0..REACH).map(move |step| &ALL[(start + step) % STREAMS])
}

/// Returns the stream with this key, if it is in the table.
#[inline]
pub(crate) fn find(key: StreamKey) -> Option<&'static Stream> {
    places(key).find(|stream| stream.is(key))
}

/// Returns the stream with this key, and adds the stream to the table if it is missing there. `context` is the stream's
/// context. Returns `None` if no entry of the table can be used for the stream, or if a lock is not free in time.
pub(crate) fn insert(key: StreamKey, context: usize) -> Option<&'static Stream> {
    let _inserting = INSERTING.lock_for(Duration::from_micros(200))?;
    if let Some(known) = find(key) {
        return Some(known);
    }
    let is_free = |stream: &&Stream| stream.name.load(Ordering::Relaxed) == 0;
    let has_none_open = |stream: &&Stream| stream.open().is_none();
    let stream = places(key)
        .find(is_free)
        .or_else(|| places(key).find(has_none_open))?;
    let mut open = stream.span.try_lock()?;
    if stream.open().is_some() {
        return None;
    }
    stream.name.store(0, Ordering::Release);
    open.begun = 0;
    open.counts = [0; REMEMBERED];
    (open.place, open.waited, open.before) = (0, 0, 0);
    stream.is_shared.store(false, Ordering::Relaxed);
    stream.counted.turns.store(0, Ordering::Relaxed);
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed) & 0xfff;
    stream.number.store(number, Ordering::Relaxed);
    stream.context.store(context, Ordering::Relaxed);
    stream.name.store(key.name, Ordering::Release);
    Some(stream)
}

/// Returns true if any stream has an open span (work of an iteration whose end is not yet known).
#[inline]
pub(crate) fn is_any_open() -> bool {
    OPEN.iter().any(|bits| bits.load(Ordering::Relaxed) != 0)
}

/// Returns the streams that have an open span (work of an iteration whose end is not yet known).
pub(crate) fn open() -> impl Iterator<Item = &'static Stream> {
    OPEN.iter().enumerate().flat_map(|(word, bits)| {
        let mut left = bits.load(Ordering::Relaxed);
        core::iter::from_fn(move || {
            let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(&ALL[64 * word + bit])
        })
    })
}

/// Forgets all streams of the contexts for which `ends` returns true. The caller ends the open spans of these streams
/// first, because the time of a span that is still open would be lost.
pub(crate) fn forget(ends: impl Fn(usize) -> bool) {
    for stream in &ALL {
        if stream.name.load(Ordering::Relaxed) != 0 && ends(stream.context()) {
            stream.forget();
        }
    }
}

impl Stream {
    /// Removes the stream, and its open span if it has one, from the table. Called before the program destroys the
    /// stream or its context, and when the window is over.
    pub(crate) fn forget(&self) {
        self.name.store(0, Ordering::Release);
        self.close(span::SpanEvent::Forgotten);
    }

    fn close(&self, event: span::SpanEvent) {
        self.on(event);
        let (word, bit) = self.bit();
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Empties the table in the child of a fork, which has none of its parent's streams.
fn in_child(alone: &OnlyThread) {
    for word in &OPEN {
        word.store(0, Ordering::Relaxed);
    }
    for stream in &ALL {
        stream.forget();
        stream.span.break_open(alone);
    }
}
