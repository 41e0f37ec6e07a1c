//! The streams that a window's work is for, and what each has open.
//!
//! A thread that launches into a stream finds it without a lock; the lock is for who begins or ends
//! a span, and nobody waits for it in a program's call.

use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;

use super::driver::{Driver, Pair};
use super::pool::Index;
use super::span::{self, Has};
use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_platform::thread;
use tllmprof_sync::Lock;
use tllmprof_sync::hash::spread;

/// Streams that are known at a time; one that has nothing open makes room for another.
const STREAMS: usize = 256;
/// How far a stream may lie behind its place.
const REACH: usize = 8;
/// Spans of an iteration whose launches are remembered.
const REMEMBERED: usize = 8;
/// So many spans in an iteration cost more than they are worth: most end in a wait of the host's, whose clock will do.
const TOO_MANY: usize = 4;
/// A stream that passes from one thread to another more than half as often in each span is shared.
const MANY: u32 = 32;

/// What the driver calls the legacy default stream, and the calling thread's own.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

/// The argument of a call that says which stream it is for.
#[derive(Clone, Copy)]
pub struct Target {
    pub handle: usize,
    /// Whether 0 is the thread's own stream.
    pub per_thread: bool,
}

/// Which stream that is: a default stream is another in each context, and in each thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The handle; of a thread's own stream the address of its block, and [`PER_THREAD`].
    name: usize,
    /// Of default streams the context; else 0.
    context: usize,
}

impl Target {
    /// The stream's key. Null where the thread has no context.
    #[inline]
    pub fn key(self, driver: Driver) -> Key {
        self.key_by_name().unwrap_or_else(|| Key {
            name: match (self.handle, self.per_thread) {
                (0, true) | (PER_THREAD, _) => thread::address() | PER_THREAD,
                _ => LEGACY,
            },
            context: driver.context(),
        })
    }

    /// The same of a stream that is no default stream, for which no context matters.
    #[inline]
    pub const fn key_by_name(self) -> Option<Key> {
        if self.handle <= PER_THREAD {
            return None;
        }
        Some(Key {
            name: self.handle,
            context: 0,
        })
    }
}

impl Key {
    /// The stream's context.
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

/// A stream. What each launch reads is in one line, apart from what it writes.
#[repr(C, align(128))]
pub struct Stream {
    /// As [`Key`] has it; 0: not in use.
    name: AtomicUsize,
    context: AtomicUsize,
    /// What it [has](Has) of an iteration. Written by who has the lock, and by who forgets the stream.
    has: AtomicU64,
    /// Launches that the same span had in the last iteration that had it.
    expected: AtomicU32,
    /// As many launches as its last event is given behind.
    settled: AtomicU32,
    /// So many threads launch here in turn that they do not count: one notes that there is more than
    /// is settled, and none where there is.
    is_shared: AtomicBool,
    number: AtomicU16,
    counted: Counted,
    pub span: Lock<Open>,
}

/// What launches write.
#[repr(align(128))]
struct Counted {
    /// Launches of the span.
    launches: AtomicU32,
    /// How often another thread than before launched, lately.
    turns: AtomicU32,
    /// The block of the thread that launched last.
    owner: AtomicUsize,
}

/// The span that is open, or the last that was.
pub struct Open {
    pub pair: Index,
    pub events: Pair,
    /// One more than its iteration; 0: it had none. As all of a stream it begins as zeros, which are not in the file.
    begun: u64,
    /// When its first event had been given to the stream, in ticks.
    pub since: u64,
    /// Launches that its last event comes behind.
    pub covered: u32,
    /// It has no events: it is timed by the host's clock.
    pub by_clock: bool,
    /// Which span of its iteration it is.
    place: usize,
    /// The launches of each.
    counts: [u32; REMEMBERED],
    /// Which of them ended in a wait for the stream, right behind its launches, by bits.
    waited: u8,
    /// How many spans the iteration before had.
    before: usize,
}

const _: () = assert!(REMEMBERED <= u8::BITS as usize);

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    static ALL: [Stream; STREAMS] = [const { Stream::new() }; STREAMS];
    /// Which of them have a span open, by bits.
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
            counted: Counted {
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

    /// What the driver calls it, in the thread that it is for.
    pub fn handle(&self) -> usize {
        let name = self.name.load(Ordering::Relaxed);
        match name {
            LEGACY => LEGACY,
            name if name & PER_THREAD != 0 => PER_THREAD,
            name => name,
        }
    }

    /// Whether the calling thread can name it: a default stream in its context alone, and another
    /// thread's not at all.
    pub fn is_in_reach(&self, driver: Driver) -> bool {
        let name = self.name.load(Ordering::Relaxed);
        match name & (LEGACY | PER_THREAD) {
            0 => name != 0,
            LEGACY => self.context() == driver.context(),
            _ => name == thread::address() | PER_THREAD && self.context() == driver.context(),
        }
    }

    /// Whether what is enqueued here waits for the context's other streams, and they for it.
    pub fn is_legacy(&self) -> bool {
        self.name.load(Ordering::Relaxed) == LEGACY
    }

    pub fn context(&self) -> usize {
        self.context.load(Ordering::Relaxed)
    }

    pub fn number(&self) -> u16 {
        self.number.load(Ordering::Relaxed)
    }

    /// The iteration that has a span open.
    #[inline]
    pub fn open(&self) -> Option<u64> {
        match Has::from_bits(self.has.load(Ordering::Acquire)) {
            Has::Open(iteration) => Some(iteration),
            Has::Nothing | Has::Missed(_) => None,
        }
    }

    /// Whether nothing is to be begun in an iteration.
    #[inline]
    pub fn has_begun(&self, iteration: u64) -> bool {
        Has::is_of(self.has.load(Ordering::Acquire), iteration)
    }

    /// The iteration's span could not begin. By who has the lock.
    pub fn miss(&self, iteration: u64) {
        self.on(span::Event::Fails(iteration));
    }

    fn on(&self, event: span::Event) {
        let has = Has::from_bits(self.has.load(Ordering::Relaxed)).next(event);
        self.has.store(has.to_bits(), Ordering::Release);
    }

    /// Launches of the span.
    pub fn launches(&self) -> u32 {
        self.counted.launches.load(Ordering::Relaxed)
    }

    /// The launches that an event comes behind which is about to be given.
    pub fn settle(&self) -> u32 {
        let launches = self.launches();
        self.settled.store(launches, Ordering::SeqCst);
        launches
    }

    /// A launch is about to be made; whether that makes as many as are expected.
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
            // Each span that begins takes some away: in iterations that are not timed none does.
            if self.open().is_some() {
                let turns = counted.turns.load(Ordering::Relaxed) + 1;
                counted.turns.store(turns, Ordering::Relaxed);
                if turns == MANY {
                    self.is_shared.store(true, Ordering::Relaxed);
                }
            }
        }
        launches == self.expected.load(Ordering::Relaxed) && self.open().is_some()
    }

    /// The driver has refused one.
    pub fn launches_one_less(&self) {
        if !self.is_shared.load(Ordering::Relaxed) {
            let launches = self.launches().saturating_sub(1);
            self.counted.launches.store(launches, Ordering::Relaxed);
        }
    }

    /// Whether the calling thread was the last to launch, as far as that is noted.
    pub fn is_ours(&self) -> bool {
        self.counted.owner.load(Ordering::Relaxed) == thread::address()
    }

    /// Whether it is the stream that was looked for: its place may have gone to another.
    pub fn is(&self, key: Key) -> bool {
        self.name.load(Ordering::Acquire) == key.name
            && (!key.is_default() || self.context() == key.context)
    }

    /// A span begins, between these events or by the host's clock. By who has the lock.
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
        let Counted {
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

    /// The span is over. By who has the lock.
    pub fn end(&self, open: &mut Open) {
        open.counts[open.place] = self.launches();
        self.close(span::Event::Ends);
    }

    fn bit(&self) -> (&'static AtomicU64, u64) {
        let index = usize::from(self.place());
        (&OPEN[index / 64], 1 << (index % 64))
    }

    /// Where it lies among [all](at).
    pub fn place(&self) -> u8 {
        let bytes = core::ptr::from_ref(self).addr() - ALL.as_ptr().addr();
        (bytes / size_of::<Self>()) as u8
    }
}

impl Open {
    /// The iteration of the span.
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

    /// Whether the iteration's next span is to be timed by the host's clock: there are many, the stream has been waited
    /// for before this one, and this one is expected to end in a wait for it.
    pub fn goes_by_clock(&self, iteration: u64) -> bool {
        let place = self.next_place(iteration);
        let are_waited_for = |places: u8| self.waited & places == places;
        place > 0 && self.before >= TOO_MANY && are_waited_for(1 << self.place | 1 << place)
    }

    /// The host has launched all of the span and waits for the stream at once.
    pub const fn is_waited_for(&mut self) {
        self.waited |= 1 << self.place;
    }
}

/// The stream at a place, whichever it is.
#[inline]
pub fn at(place: u8) -> &'static Stream {
    const { assert!(STREAMS == 1 << u8::BITS) };
    &ALL[usize::from(place)]
}

fn places(key: Key) -> impl Iterator<Item = &'static Stream> {
    // The context lies high in the key: only the highest bits depend on it.
    let start = spread(key.name as u64 ^ (key.context as u64).rotate_left(32)) >> 16;
    (0..REACH).map(move |step| &ALL[(start + step) % STREAMS])
}

/// The stream of a key, if it is known.
#[inline]
pub fn find(key: Key) -> Option<&'static Stream> {
    places(key).find(|stream| stream.is(key))
}

/// Makes a stream known, which has this context. `None` where there is no room.
pub fn insert(key: Key, context: usize) -> Option<&'static Stream> {
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

/// Whether one has a span open.
#[inline]
pub fn is_any_open() -> bool {
    OPEN.iter().any(|bits| bits.load(Ordering::Relaxed) != 0)
}

/// The streams that have a span open.
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

/// Forgets the streams that `ends` says yes to, by their context. They have nothing open.
pub fn forget(ends: impl Fn(usize) -> bool) {
    for stream in &ALL {
        if stream.name.load(Ordering::Relaxed) != 0 && ends(stream.context()) {
            stream.forget();
        }
    }
}

impl Stream {
    /// The stream is not there any more, nor are the events of what it may have open.
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
