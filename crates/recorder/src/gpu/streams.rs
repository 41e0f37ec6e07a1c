//! The streams that a window's work is for, and the open span of each.
//!
//! A thread that launches into a stream finds it without a lock. The lock is for threads that begin or end a
//! span, and calls of the program never wait for it.

use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;

use super::driver::{Driver, Pair};
use super::pool::Index;
use super::span::{self, Has};
use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_platform::thread;
use tllmprof_sync::Lock;
use tllmprof_sync::hash::spread;

/// The number of streams that are known at a time. One without an open span makes room for another.
const STREAMS: usize = 256;
/// The largest distance of a stream from its first place.
const REACH: usize = 8;
/// The number of spans of an iteration whose launches are remembered.
const REMEMBERED: usize = 8;
/// If an iteration has this many spans, events cost too much: most spans end in a wait of the host, whose
/// clock is good enough.
const TOO_MANY: usize = 4;
/// The number of changes between threads after which a stream is shared: it passes from one thread to another
/// more than half as often in each span.
const SHARED_AFTER: u32 = 32;

/// The driver's handles of the legacy default stream, and of the calling thread's own.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

/// The argument of a call that says which stream it is for.
#[derive(Clone, Copy)]
pub struct StreamArgument {
    pub handle: usize,
    /// True if 0 is the thread's own stream.
    pub per_thread: bool,
}

/// A key that identifies a stream: a default stream is a different one in each context and in each thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct StreamKey {
    /// The handle; for a thread's own stream the address of its block, and [`PER_THREAD`].
    name: usize,
    /// The context of a default stream; otherwise 0.
    context: usize,
}

impl StreamArgument {
    /// Returns the stream's key. The context is 0 if the thread has none.
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

    /// Returns the same for a stream that is not a default stream. Its context does not matter.
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
    /// Returns the stream's context.
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

/// A stream. The fields that each launch reads are in one cache line, and those that it writes in another.
#[repr(C, align(128))]
pub struct Stream {
    /// The name of its [`StreamKey`]; 0: not in use.
    name: AtomicUsize,
    context: AtomicUsize,
    /// The stream's [state](Has). Written with the lock held, and when the stream is forgotten.
    has: AtomicU64,
    /// The number of launches of the same span in the last iteration that had it.
    expected: AtomicU32,
    /// The number of launches after which its last event is recorded.
    settled: AtomicU32,
    /// True if many threads launch here in turn, so that they do not count launches: a thread only notes that
    /// there are more than `settled`, and nothing if that is noted already.
    is_shared: AtomicBool,
    number: AtomicU16,
    counted: LaunchCounts,
    pub span: Lock<Open>,
}

/// The fields that launches write.
#[repr(align(128))]
struct LaunchCounts {
    /// The number of launches of the span.
    launches: AtomicU32,
    /// The number of recent launches by another thread than the one before.
    turns: AtomicU32,
    /// The block of the thread that launched last.
    owner: AtomicUsize,
}

/// The span that is open, or the last one.
pub struct Open {
    pub pair: Index,
    pub events: Pair,
    /// Its iteration plus one; 0: it had none. The fields of a stream begin as zeros, which take no room in
    /// the file.
    begun: u64,
    /// The time when its first event had been recorded, in ticks.
    pub since: u64,
    /// The number of launches before its last event.
    pub covered: u32,
    /// True if it has no events and is timed by the host's clock.
    pub by_clock: bool,
    /// Its index among the spans of its iteration.
    place: usize,
    /// The number of launches of each span.
    counts: [u32; REMEMBERED],
    /// The spans that ended in a wait for the stream right after their launches, by bits.
    waited: u8,
    /// The number of spans of the iteration before.
    before: usize,
}

const _: () = assert!(REMEMBERED <= u8::BITS as usize);

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    #[together(tables)]
    static ALL: [Stream; STREAMS] = [const { Stream::new() }; STREAMS];
    /// The streams that have an open span, by bits.
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

    /// Returns the driver's handle, for use in the thread that the stream belongs to.
    pub fn handle(&self) -> usize {
        let name = self.name.load(Ordering::Relaxed);
        match name {
            LEGACY => LEGACY,
            name if name & PER_THREAD != 0 => PER_THREAD,
            name => name,
        }
    }

    /// Returns true if the calling thread can name it: a default stream only in its context, and another
    /// thread's own stream never.
    pub fn is_in_reach(&self, driver: Driver) -> bool {
        let name = self.name.load(Ordering::Relaxed);
        match name & (LEGACY | PER_THREAD) {
            0 => name != 0,
            LEGACY => self.context() == driver.context(),
            _ => name == thread::address() | PER_THREAD && self.context() == driver.context(),
        }
    }

    /// Returns true if work that is enqueued here waits for the context's other streams, and they for it.
    pub fn is_legacy(&self) -> bool {
        self.name.load(Ordering::Relaxed) == LEGACY
    }

    pub fn context(&self) -> usize {
        self.context.load(Ordering::Relaxed)
    }

    pub fn number(&self) -> u16 {
        self.number.load(Ordering::Relaxed)
    }

    /// Returns the iteration of the open span.
    #[inline]
    pub fn open(&self) -> Option<u64> {
        match Has::from_bits(self.has.load(Ordering::Acquire)) {
            Has::Open(iteration) => Some(iteration),
            Has::Nothing | Has::Missed(_) => None,
        }
    }

    /// Returns true if nothing has to begin in this iteration.
    #[inline]
    pub fn has_begun(&self, iteration: u64) -> bool {
        Has::is_of(self.has.load(Ordering::Acquire), iteration)
    }

    /// Notes that the iteration's span could not begin. Called with the lock held.
    pub fn miss(&self, iteration: u64) {
        self.on(span::Event::Fails(iteration));
    }

    fn on(&self, event: span::Event) {
        let has = Has::from_bits(self.has.load(Ordering::Relaxed)).next(event);
        self.has.store(has.to_bits(), Ordering::Release);
    }

    /// Returns the number of launches of the span.
    pub fn launches(&self) -> u32 {
        self.counted.launches.load(Ordering::Relaxed)
    }

    /// Returns the number of launches before an event that is about to be recorded.
    pub fn settle(&self) -> u32 {
        let launches = self.launches();
        self.settled.store(launches, Ordering::SeqCst);
        launches
    }

    /// Counts a launch that is about to be made. Returns true if that makes as many as are expected.
    #[inline]
    pub fn launches_one(&self) -> bool {
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
            // The beginning of each span halves the count. In iterations that are not timed no span begins, so
            // nothing is counted there.
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

    /// Called when the driver has refused a launch.
    pub fn launches_one_less(&self) {
        if !self.is_shared.load(Ordering::Relaxed) {
            let launches = self.launches().saturating_sub(1);
            self.counted.launches.store(launches, Ordering::Relaxed);
        }
    }

    /// Returns true if the calling thread was the last to launch, as far as that is noted.
    pub fn is_ours(&self) -> bool {
        self.counted.owner.load(Ordering::Relaxed) == thread::address()
    }

    /// Returns true if this is the stream that was looked for: its place may have been given to another.
    pub fn is(&self, key: StreamKey) -> bool {
        self.name.load(Ordering::Acquire) == key.name
            && (!key.is_default() || self.context() == key.context)
    }

    /// Begins a span, between these events or by the host's clock. Called with the lock held.
    pub fn begin(
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
        self.on(span::Event::Begins(iteration));
        super::follow();
    }

    /// Ends the span. Called with the lock held.
    pub fn end(&self, open: &mut Open) {
        open.counts[open.place] = self.launches();
        self.close(span::Event::Ends);
    }

    fn bit(&self) -> (&'static AtomicU64, u64) {
        let index = usize::from(self.place());
        (&OPEN[index / 64], 1 << (index % 64))
    }

    /// Returns its index in [all streams](stream_at).
    pub fn place(&self) -> u8 {
        let bytes = core::ptr::from_ref(self).addr() - ALL.as_ptr().addr();
        (bytes / size_of::<Self>()) as u8
    }
}

impl Open {
    /// Returns the iteration of the span.
    pub const fn iteration(&self) -> u64 {
        self.begun.wrapping_sub(1)
    }

    fn next_place(&self, iteration: u64) -> usize {
        if self.begun == iteration + 1 {
            (self.place + 1).min(REMEMBERED - 1)
        } else {
            0
        }
    }

    /// Returns true if the iteration's next span is timed by the host's clock: there are many, the stream was
    /// waited for before this one, and this one is expected to end in a wait for it.
    pub fn goes_by_clock(&self, iteration: u64) -> bool {
        let place = self.next_place(iteration);
        let are_waited_for = |places: u8| self.waited & places == places;
        place > 0 && self.before >= TOO_MANY && are_waited_for(1 << self.place | 1 << place)
    }

    /// Called when the host has launched all work of the span and waits for the stream right after.
    pub const fn is_waited_for(&mut self) {
        self.waited |= 1 << self.place;
    }
}

/// Returns the stream at an index.
#[inline]
pub fn stream_at(place: u8) -> &'static Stream {
    const { assert!(STREAMS == 1 << u8::BITS) };
    &ALL[usize::from(place)]
}

fn places(key: StreamKey) -> impl Iterator<Item = &'static Stream> {
    // The context is in the high bits of the key: only the highest bits depend on it.
    let start = spread(key.name as u64 ^ (key.context as u64).rotate_left(32)) >> 16;
    (0..REACH).map(move |step| &ALL[(start + step) % STREAMS])
}

/// Returns the stream of a key, if it is known.
#[inline]
pub fn find(key: StreamKey) -> Option<&'static Stream> {
    places(key).find(|stream| stream.is(key))
}

/// Adds a stream, which has this context. `None` if there is no room.
pub fn insert(key: StreamKey, context: usize) -> Option<&'static Stream> {
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

/// Returns true if any stream has an open span.
#[inline]
pub fn is_any_open() -> bool {
    OPEN.iter().any(|bits| bits.load(Ordering::Relaxed) != 0)
}

/// Returns the streams that have an open span.
pub fn open() -> impl Iterator<Item = &'static Stream> {
    OPEN.iter().enumerate().flat_map(|(word, bits)| {
        let mut left = bits.load(Ordering::Relaxed);
        core::iter::from_fn(move || {
            let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(&ALL[64 * word + bit])
        })
    })
}

/// Forgets the streams for whose context `ends` returns true. They have no open span.
pub fn forget(ends: impl Fn(usize) -> bool) {
    for stream in &ALL {
        if stream.name.load(Ordering::Relaxed) != 0 && ends(stream.context()) {
            stream.forget();
        }
    }
}

impl Stream {
    /// Forgets the stream, which no longer exists, and the events of its open span.
    pub fn forget(&self) {
        self.name.store(0, Ordering::Release);
        self.close(span::Event::Forgotten);
    }

    fn close(&self, event: span::Event) {
        self.on(event);
        let (word, bit) = self.bit();
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// The child of a fork has none of its parent's streams.
fn in_child(alone: &OnlyThread) {
    for word in &OPEN {
        word.store(0, Ordering::Relaxed);
    }
    for stream in &ALL {
        stream.forget();
        stream.span.break_open(alone);
    }
}
