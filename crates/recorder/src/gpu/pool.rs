//! The events of each context, and the spans whose times are not read yet.
//!
//! Events are made by the worker when a window opens, and stay for the next ones until their context
//! is taken down. Making, reading or destroying one may take the driver a tenth of a second where other
//! threads launch without a pause, as it takes turns unfairly: all of it has a bound in time, and what
//! is not done by then is left. A span's times are read when its last event has happened, without
//! waiting for it.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use core::time::Duration;
use std::time::Instant;

use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::{Counter, Event as Recorded, Info, What};

use super::super::{add, clock, facts, writers};
use super::driver::{BesideCaptures, Driver, Pair, Status};
use super::supply::{self, Supply};
use tllmprof_platform::log;
use tllmprof_sync::Guard;
use tllmprof_sync::Lock;

/// Contexts that a process may use in a window. Work in more is not timed.
const CONTEXTS: usize = 16;
/// Spans of a context that may be under way or unread. Those of a process that is killed are lost.
const MOST: usize = 1024;
/// Pairs of events that the worker makes ahead.
const ENOUGH: usize = 512;
/// Pairs of events that a thread of the program makes at a time where there are none.
const MORE: usize = 8;
/// How many spans are read at a time where many are unread.
const SOME: usize = 16;
/// How long one of the program's threads may make or read events in the middle of its work, and at the
/// end of a window or context; how long the worker may make some.
const IN_BETWEEN: Duration = Duration::from_micros(300);
const AT_THE_END: Duration = Duration::from_millis(10);
const AHEAD: Duration = Duration::from_millis(20);
/// Where the making of two events takes the worker so long, no more are made: others wait for it.
const SLOW: Duration = Duration::from_millis(5);
/// How long a thread waits for another that has a pool.
const PATIENCE: Duration = Duration::from_micros(200);
/// By how much the clocks of a GPU and its host may run apart.
const DRIFT: f64 = 1e-4;

/// The place of a pair in its pool.
pub type Index = u16;

/// A stream's work, whose events are on their way.
#[derive(Clone, Copy)]
pub struct Span {
    pub pair: Index,
    /// The stream's number.
    pub stream: u16,
    /// Its end came when something else than its work was over.
    pub cut: bool,
    pub iteration: u64,
    /// When the first event had been given to the stream, in ticks.
    pub since: u64,
}

#[repr(C, align(64))]
struct Context {
    /// 0: not in use.
    handle: AtomicUsize,
    /// The ordinal of its device.
    device: AtomicU8,
    pool: Lock<Pool>,
}

/// A context's events. What each span needs comes first, in a line with the lock.
#[repr(C)]
pub struct Pool {
    made: usize,
    free_count: usize,
    first_unread: usize,
    unread_count: usize,
    pub device: u8,
    supply: Supply,
    /// The last span that was read, whose first event the next one's start is measured from, and
    /// when that was, in ticks.
    last: Option<(Index, f64)>,
    pairs: [Pair; MOST],
    free: [Index; MOST],
    unread: [Span; MOST],
}

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    static ALL: [Context; CONTEXTS] = [const {
        Context {
            handle: AtomicUsize::new(0),
            device: AtomicU8::new(0),
            pool: Lock::new(Pool::new()),
        }
    }; CONTEXTS];
    /// Held by who gives a context a pool.
    #[fork(free)]
    static MAKING: Lock<()> = Lock::new(());
    /// Devices that the record knows the names of, by bits.
    #[fork(reset)]
    static NAMED_DEVICES: AtomicU32 = AtomicU32::new(0);
}

/// The pool of a context, made if there is none.
pub fn of(driver: Driver, context: usize) -> Option<Guard<'static, Pool>> {
    if context == 0 {
        return None;
    }
    if let Some(entry) = entry(context) {
        return entry.pool_of(context);
    }
    let _making = MAKING.lock_for(PATIENCE)?;
    if let Some(entry) = entry(context) {
        return entry.pool_of(context);
    }
    ALL.iter().find_map(|entry| {
        let mut pool = entry.pool.try_lock()?;
        let is_free = entry
            .handle
            .compare_exchange(0, context, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        is_free.then(|| {
            pool.begin(driver, context);
            entry.device.store(pool.device, Ordering::Relaxed);
            pool
        })
    })
}

/// The pool of a context, if there is one.
pub fn known(context: usize) -> Option<Guard<'static, Pool>> {
    entry(context)?.pool_of(context)
}

/// The ordinal of a context's device, if the context has a pool.
pub fn device_of(context: usize) -> Option<u8> {
    Some(entry(context)?.device.load(Ordering::Relaxed))
}

fn entry(context: usize) -> Option<&'static Context> {
    let is_its = |entry: &&Context| entry.handle.load(Ordering::Acquire) == context;
    ALL.iter().find(is_its).filter(|_| context != 0)
}

impl Context {
    /// Its pool, unless it has become another context's.
    fn pool_of(&'static self, context: usize) -> Option<Guard<'static, Pool>> {
        let pool = self.pool.lock_for(PATIENCE)?;
        (self.handle.load(Ordering::Relaxed) == context).then_some(pool)
    }
}

/// Gives a pool to a context that is likely to be used in the window that opens.
pub fn expect(driver: Driver, context: usize) {
    drop(of(driver, context));
}

/// Whether a context has fewer events than are to be made ahead.
pub fn wants_more() -> bool {
    let is_there = |entry: &&Context| entry.handle.load(Ordering::Acquire) != 0;
    let mut pools = ALL.iter().filter(is_there);
    pools.any(|entry| {
        let pool = entry.pool.try_lock();
        pool.is_some_and(|pool| pool.wants_more())
    })
}

/// Makes events in all contexts that have a pool, while `goes_on`. On the worker's thread.
pub fn make_ahead(driver: Driver, goes_on: impl Fn() -> bool) {
    let since = Instant::now();
    for entry in &ALL {
        // Asked before the handle is read: who takes a context down says so first, and then waits.
        if !goes_on() {
            return;
        }
        let context = entry.handle.load(Ordering::SeqCst);
        if context == 0 {
            continue;
        }
        let _beside = BesideCaptures::new(driver);
        driver.in_context(context, |_| {
            while goes_on() && since.elapsed() < AHEAD {
                // Not under the lock, which the program's threads wait for.
                let begun = Instant::now();
                let made = driver.create_pair();
                let is_slow = begun.elapsed() >= SLOW;
                let is_there = || entry.handle.load(Ordering::SeqCst) == context;
                let pool = entry.pool.lock_for(AHEAD).filter(|_| is_there());
                let Some(mut pool) = pool else {
                    // An event of a context that is gone went with it.
                    if let Ok(pair) = made
                        && is_there()
                    {
                        driver.destroy_pair(pair);
                    }
                    return;
                };
                match made {
                    Ok(pair) if pool.has_room() => pool.add_pair(pair),
                    Ok(pair) => return driver.destroy_pair(pair),
                    Err(status) => return pool.fail(status),
                }
                pool.took(is_slow);
                if !pool.wants_more() {
                    return;
                }
            }
        });
    }
}

/// The window is over: reads what can be read. What has not happened is lost, and all events are free.
pub fn rest(driver: Driver) {
    for entry in &ALL {
        if entry.handle.load(Ordering::Acquire) != 0
            && let Some(mut pool) = entry.pool.lock_for(Duration::from_millis(20))
            && entry.handle.load(Ordering::Relaxed) != 0
        {
            pool.read(driver, MOST, AT_THE_END);
            pool.lose_unread();
            pool.free_all();
        }
    }
}

/// As [`rest`], in the contexts that `ends` says yes to, by their handle and device, and gives their
/// events back.
pub fn end(driver: Driver, ends: impl Fn(usize, u8) -> bool) {
    for entry in &ALL {
        if entry.handle.load(Ordering::Acquire) == 0 {
            continue;
        }
        let Some(mut pool) = entry.pool.lock_for(Duration::from_millis(20)) else {
            // Who has it finds out afterwards that the context has no pool any more.
            let handle = entry.handle.load(Ordering::Relaxed);
            if ends(handle, entry.device.load(Ordering::Relaxed)) {
                entry.handle.store(0, Ordering::SeqCst);
            }
            continue;
        };
        let handle = entry.handle.load(Ordering::Relaxed);
        if handle != 0 && ends(handle, pool.device) {
            pool.read(driver, MOST, AT_THE_END);
            pool.lose_unread();
            pool.give_back(driver, handle);
            entry.handle.store(0, Ordering::Release);
        }
    }
}

/// No context has a pool any more: its events stay as they are.
pub fn abandon() {
    for entry in &ALL {
        entry.handle.store(0, Ordering::SeqCst);
    }
}

/// The child of a fork has none of its parent's contexts.
fn in_child(alone: &OnlyThread) {
    for entry in &ALL {
        entry.handle.store(0, Ordering::Relaxed);
        entry.pool.break_open(alone);
        entry.pool.lock().forget();
    }
}

/// So many spans are missing.
pub fn lose(spans: usize) {
    if spans > 0 {
        add(Counter::GpuSpansLost, spans as u64);
    }
}

/// A span took so long.
pub fn measured(ns: u64) {
    add(Counter::GpuNs, ns);
}

impl Pool {
    const fn new() -> Self {
        const NO_SPAN: Span = Span {
            pair: 0,
            stream: 0,
            cut: false,
            iteration: 0,
            since: 0,
        };
        Self {
            device: 0,
            supply: Supply::Growing,
            pairs: [Pair { start: 0, end: 0 }; MOST],
            made: 0,
            free: [0; MOST],
            free_count: 0,
            unread: [NO_SPAN; MOST],
            first_unread: 0,
            unread_count: 0,
            last: None,
        }
    }

    fn forget(&mut self) {
        self.supply = Supply::Growing;
        (self.made, self.free_count) = (0, 0);
        (self.first_unread, self.unread_count) = (0, 0);
        self.last = None;
    }

    fn begin(&mut self, driver: Driver, context: usize) {
        self.forget();
        match driver.in_context(context, |device| device) {
            Some(device) => self.device = device,
            None => self.supply = self.supply.next(supply::Event::Refused),
        }
        let bit = 1_u32.checked_shl(self.device.into()).unwrap_or(0);
        let mut name = [0; 96];
        if !self.supply.is_dead()
            && NAMED_DEVICES.fetch_or(bit, Ordering::Relaxed) & bit == 0
            && let Some(length) = driver.device_name(self.device, &mut name)
        {
            facts::write_text(Info::Gpu, &String::from_utf8_lossy(&name[..length]));
        }
    }

    fn has_room(&self) -> bool {
        !self.supply.is_dead() && self.made < MOST
    }

    fn wants_more(&self) -> bool {
        self.supply.may_grow() && self.made < ENOUGH
    }

    /// Events have been made.
    fn took(&mut self, long: bool) {
        if long {
            self.supply = self.supply.next(supply::Event::TookLong);
        }
    }

    fn add_pair(&mut self, pair: Pair) {
        self.pairs[self.made] = pair;
        self.made += 1;
        self.put_back((self.made - 1) as Index);
    }

    /// Makes some events on a thread of the program's.
    fn grow(&mut self, driver: Driver, context: usize) {
        let _beside = BesideCaptures::new(driver);
        let since = Instant::now();
        let until = self.made + MORE;
        driver.in_context(context, |_| {
            while self.has_room() && self.made < until && self.supply.may_grow() {
                let begun = Instant::now();
                match driver.create_pair() {
                    Ok(pair) => self.add_pair(pair),
                    Err(status) => self.fail(status),
                }
                self.took(begun.elapsed() >= SLOW);
                if since.elapsed() >= IN_BETWEEN {
                    break;
                }
            }
        });
    }

    /// A pair of events for a span that begins.
    pub fn take(&mut self, driver: Driver, context: usize) -> Option<(Index, Pair)> {
        if self.supply.is_dead() {
            return None;
        }
        // Events that are made stay: the next windows need not read in the midst of the program's work.
        if self.free_count == 0 {
            self.grow(driver, context);
        }
        if self.free_count == 0 {
            self.read(driver, SOME, IN_BETWEEN);
        }
        self.free_count = self.free_count.checked_sub(1)?;
        let index = self.free[self.free_count];
        Some((index, self.pairs[usize::from(index)]))
    }

    /// A pair is free again.
    pub fn put_back(&mut self, index: Index) {
        // One of a context that is gone is none of this one's.
        if usize::from(index) < self.made
            && let Some(place) = self.free.get_mut(self.free_count)
        {
            *place = index;
            self.free_count += 1;
        }
    }

    /// Both events of a span have been given to its stream. Reads some where many are unread: the host
    /// has time now, as it is about to wait or the GPU has work.
    pub fn add(&mut self, driver: Driver, span: Span) {
        if usize::from(span.pair) >= self.made {
            return lose(1);
        }
        if self.unread_count < MOST {
            self.unread[(self.first_unread + self.unread_count) % MOST] = span;
            self.unread_count += 1;
        }
        let may_grow = self.has_room() && self.supply.may_grow();
        if !may_grow && self.unread_count >= self.made - self.made / 4 {
            self.read(driver, SOME, IN_BETWEEN);
        }
    }

    /// The driver has refused an event for a stream.
    pub fn refused(&mut self, status: Status) {
        if !status.is_of_a_stream() {
            self.fail(status);
        }
    }

    /// The driver has refused something.
    fn fail(&mut self, status: Status) {
        self.supply = self.supply.next(supply::Event::Refused);
        if !status.is_of_an_end() {
            log::once!(Warn, "GPU timing stopped: driver error {status}");
        }
    }

    /// Reads spans that have happened, in their order, so many at most and for so long.
    fn read(&mut self, driver: Driver, most: usize, within: Duration) {
        let _beside = BesideCaptures::new(driver);
        let per_ns = clock::recent_ticks_per_ns();
        let since = Instant::now();
        for _ in 0..most {
            if self.supply.is_dead() || self.unread_count == 0 || since.elapsed() >= within {
                break;
            }
            let span = self.unread[self.first_unread];
            match self.times(driver, &span, per_ns) {
                Ok((start, duration)) => self.write(&span, start, duration),
                Err(Status::NOT_READY) => break,
                Err(status) => self.fail(status),
            }
        }
        if self.supply.is_dead() {
            self.lose_unread();
        }
    }

    /// When a span began, in ticks, and how long it took, in nanoseconds.
    ///
    /// The GPU's clock is tied to the host's by what is known of both: no event happens before it
    /// was given to its stream, and on a stream that is idle it happens then.
    fn times(&self, driver: Driver, span: &Span, per_ns: f64) -> Result<(f64, f64), Status> {
        let pair = self.pairs[usize::from(span.pair)];
        let duration = driver.elapsed(pair.start, pair.end)?;
        let since = span.since as f64;
        let Some((last, at)) = self.last else {
            return Ok((since, duration));
        };
        let passed = driver.elapsed(self.pairs[usize::from(last)].start, pair.start)? * per_ns;
        let drifted = passed.max(0.0) * DRIFT;
        Ok((since.max(at + passed - drifted), duration))
    }

    fn write(&mut self, span: &Span, start: f64, duration: f64) {
        let what = What::GpuSpan {
            device: self.device,
            stream: span.stream,
            iteration: span.iteration,
        };
        let ns = duration.max(0.0).round() as u64;
        let mut event = Recorded::new(start as u64, ns, what);
        event.cut = span.cut;
        writers::write_aside(&event);
        measured(ns);
        self.first_unread = (self.first_unread + 1) % MOST;
        self.unread_count -= 1;
        if let Some((last, _)) = self.last.replace((span.pair, start)) {
            self.put_back(last);
        }
    }

    fn lose_unread(&mut self) {
        lose(self.unread_count);
        self.unread_count = 0;
    }

    fn free_all(&mut self) {
        self.last = None;
        self.first_unread = 0;
        self.free_count = 0;
        for index in 0..self.made {
            self.put_back(index as Index);
        }
    }

    /// Gives the events back, as far as that is done soon: the context takes the others with it.
    fn give_back(&mut self, driver: Driver, context: usize) {
        let _beside = BesideCaptures::new(driver);
        let since = Instant::now();
        driver.in_context(context, |_| {
            for pair in &self.pairs[..self.made] {
                if since.elapsed() >= AT_THE_END {
                    break;
                }
                driver.destroy_pair(*pair);
            }
        });
        self.forget();
    }
}
