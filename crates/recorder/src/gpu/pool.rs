//! The CUDA events of each context, and the spans whose times have not been read yet. A span is the work of one stream
//! in one iteration.
//!
//! The worker (a thread of the library) creates events when a window opens. They are reused in later windows until
//! their context is destroyed. Creating, reading or destroying an event may take the driver a tenth of a second if
//! other threads launch without a pause, because the driver's lock is not fair. So all of these steps have a time
//! limit, and what is not finished in time is skipped. A span's times are read once the GPU has reached the span's
//! last event. No thread waits for the GPU to reach it.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use core::time::Duration;
use std::time::Instant;

use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::{Counter, Event as Recorded, What};

use super::super::{add, clock, facts, writers};
use super::driver::{BesideCaptures, Driver, DriverError, Pair};
use super::supply::{self, Supply};
use tllmprof_platform::log;
use tllmprof_sync::Guard;
use tllmprof_sync::Lock;

/// The largest number of contexts whose work can be timed. The place of a destroyed context is used again.
const CONTEXTS: usize = 16;
/// The largest number of a context's spans that may be in progress or whose times have not been read yet.
/// These spans are lost if the process is killed.
const MAX_PAIRS: usize = 1024;
/// The number of pairs of CUDA events per context that the worker (a thread of the library) creates in advance.
const PAIRS_AHEAD: usize = 512;
/// The number of pairs of CUDA events that a thread of the program creates when no pair is free.
const PAIRS_AT_A_TIME: usize = 8;
/// The maximum number of spans whose times are read in one call of the program. A call reads times only if many spans
/// are unread or no pair of CUDA events is free.
const SPANS_AT_A_TIME: usize = 16;
/// The time limit for creating and reading CUDA events in a call of the program.
const MAX_TIME_IN_CALL: Duration = Duration::from_micros(300);
/// The time limit for reading and destroying CUDA events at the end of a window or a context.
const MAX_TIME_AT_END: Duration = Duration::from_millis(10);
/// The time limit for creating CUDA events in advance on the worker (a thread of the library).
const MAX_TIME_AHEAD: Duration = Duration::from_millis(20);
/// If creating two CUDA events takes at least this long, the driver counts as slow, because other threads that call the
/// driver have to wait meanwhile. After the second slow creation in a context, no more events are created there
/// ([`Supply`]).
const SLOW_CREATION: Duration = Duration::from_millis(5);
/// The maximum time that a thread waits for another thread that has locked a pool of CUDA events.
const POOL_TIMEOUT: Duration = Duration::from_micros(200);
/// The largest relative difference that is assumed between the speeds of the GPU's clock and of the host's clock:
/// 100 µs per second.
const DRIFT: f64 = 1e-4;

/// The index of a pair of CUDA events in the pool of their context.
pub(crate) type Index = u16;

/// A span (the work of one stream in one iteration) whose two CUDA events have been recorded.
#[derive(Clone, Copy)]
pub(crate) struct StreamSpan {
    pub pair: Index,
    /// The number that the recorder assigned to the span's stream.
    pub stream: u16,
    /// True if the span's last CUDA event was recorded late, so that work outside the span may have run before that
    /// event.
    pub cut: bool,
    pub iteration: u64,
    /// The time in ticks, taken right after the span's first CUDA event was recorded.
    pub since: u64,
}

#[repr(C, align(64))]
struct Context {
    /// The driver's handle of the context; 0 if this entry of the table is not in use.
    handle: AtomicUsize,
    /// The ordinal of the device to which the context belongs.
    device: AtomicU8,
    pool: Lock<Pool>,
}

/// The CUDA events of a context, and its spans whose times have not been read yet. The fields that are used for each
/// span come first, in one cache line with the lock.
#[repr(C)]
pub(crate) struct Pool {
    made: usize,
    free_count: usize,
    first_unread: usize,
    unread_count: usize,
    pub device: u8,
    supply: Supply,
    /// The span that was read last: the index of its pair of CUDA events, and the time of its first event in ticks.
    /// The start of the next span is computed from that time.
    last: Option<(Index, f64)>,
    pairs: [Pair; MAX_PAIRS],
    free: [Index; MAX_PAIRS],
    unread: [StreamSpan; MAX_PAIRS],
}

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    #[together(tables)]
    static ALL: [Context; CONTEXTS] = [const {
        Context {
            handle: AtomicUsize::new(0),
            device: AtomicU8::new(0),
            pool: Lock::new(Pool::new()),
        }
    }; CONTEXTS];
    /// Held while an entry of the table [`ALL`] is assigned to a context.
    #[fork(free)]
    static MAKING: Lock<()> = Lock::new(());
    /// The devices whose names are already in the record: bit n stands for device n.
    #[fork(reset)]
    static NAMED_DEVICES: AtomicU32 = AtomicU32::new(0);
}

/// Returns the pool (the CUDA events) of a context. Creates the pool if the context has none. Returns `None` if
/// `context` is 0, if the table [`ALL`] has no free entry, or if a lock is not free in time.
pub(crate) fn get_or_create(driver: Driver, context: usize) -> Option<Guard<'static, Pool>> {
    if context == 0 {
        return None;
    }
    if let Some(entry) = entry(context) {
        return entry.pool_of(context);
    }
    let _making = MAKING.lock_for(POOL_TIMEOUT)?;
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

/// Returns the pool (the CUDA events) of a context, if the context has one.
pub(crate) fn known(context: usize) -> Option<Guard<'static, Pool>> {
    entry(context)?.pool_of(context)
}

/// Returns the ordinal of a context's device, if the context has a pool.
pub(crate) fn device_of(context: usize) -> Option<u8> {
    Some(entry(context)?.device.load(Ordering::Relaxed))
}

fn entry(context: usize) -> Option<&'static Context> {
    let is_its = |entry: &&Context| entry.handle.load(Ordering::Acquire) == context;
    ALL.iter().find(is_its).filter(|_| context != 0)
}

impl Context {
    /// Locks and returns the pool. Returns `None` if the lock is not free in time, or if the entry has been assigned
    /// to another context meanwhile.
    fn pool_of(&'static self, context: usize) -> Option<Guard<'static, Pool>> {
        let pool = self.pool.lock_for(POOL_TIMEOUT)?;
        (self.handle.load(Ordering::Relaxed) == context).then_some(pool)
    }
}

/// Creates a pool for a context that is likely to be used in the window that opens.
pub(crate) fn expect(driver: Driver, context: usize) {
    drop(get_or_create(driver, context));
}

/// Returns true if any context has fewer CUDA events than should be created in advance.
pub(crate) fn wants_more() -> bool {
    let is_there = |entry: &&Context| entry.handle.load(Ordering::Acquire) != 0;
    let mut pools = ALL.iter().filter(is_there);
    pools.any(|entry| {
        let pool = entry.pool.try_lock();
        pool.is_some_and(|pool| pool.wants_more())
    })
}

/// Creates CUDA events in all contexts that have a pool, until each has enough of them, [`MAX_TIME_AHEAD`] has passed,
/// or `goes_on` returns false. Called on the worker's thread.
pub(crate) fn make_ahead(driver: Driver, goes_on: impl Fn() -> bool) {
    let since = Instant::now();
    for entry in &ALL {
        // This check must come before the handle is read: a thread that destroys a context first makes `goes_on`
        // return false, and then waits for this worker.
        if !goes_on() {
            return;
        }
        let context = entry.handle.load(Ordering::SeqCst);
        if context == 0 {
            continue;
        }
        let _beside = BesideCaptures::new(driver);
        driver.in_context(context, |_| {
            while goes_on() && since.elapsed() < MAX_TIME_AHEAD {
                // The pair is created before the lock is taken, because the program's threads wait for the
                // lock.
                let begun = Instant::now();
                let made = driver.create_pair();
                let is_slow = begun.elapsed() >= SLOW_CREATION;
                let is_there = || entry.handle.load(Ordering::SeqCst) == context;
                let pool = entry.pool.lock_for(MAX_TIME_AHEAD).filter(|_| is_there());
                let Some(mut pool) = pool else {
                    // If the context has been destroyed in the meantime, its CUDA events were destroyed with it.
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

/// Called when the window is over. Reads the times of all finished spans. Unfinished spans are counted as lost, and
/// all CUDA events become free.
pub(crate) fn rest(driver: Driver) {
    for entry in &ALL {
        if entry.handle.load(Ordering::Acquire) != 0
            && let Some(mut pool) = entry.pool.lock_for(Duration::from_millis(20))
            && entry.handle.load(Ordering::Relaxed) != 0
        {
            pool.read(driver, MAX_PAIRS, MAX_TIME_AT_END);
            pool.lose_unread();
            pool.free_all();
        }
    }
}

/// Reads the times of finished spans, like [`rest`], and destroys the CUDA events, in each context for which `ends`
/// returns true. `ends` gets the context's handle and device.
pub(crate) fn end(driver: Driver, ends: impl Fn(usize, u8) -> bool) {
    for entry in &ALL {
        if entry.handle.load(Ordering::Acquire) == 0 {
            continue;
        }
        let Some(mut pool) = entry.pool.lock_for(Duration::from_millis(20)) else {
            // Another thread holds the lock on the pool. The context's handle can be removed from the entry without
            // the lock: each thread that locks the pool later checks the handle, and finds that the entry no longer
            // belongs to the context.
            let handle = entry.handle.load(Ordering::Relaxed);
            if ends(handle, entry.device.load(Ordering::Relaxed)) {
                entry.handle.store(0, Ordering::SeqCst);
            }
            continue;
        };
        let handle = entry.handle.load(Ordering::Relaxed);
        if handle != 0 && ends(handle, pool.device) {
            pool.read(driver, MAX_PAIRS, MAX_TIME_AT_END);
            pool.lose_unread();
            pool.give_back(driver, handle);
            entry.handle.store(0, Ordering::Release);
        }
    }
}

/// Removes the pools of all contexts. Their CUDA events are not destroyed.
pub(crate) fn abandon() {
    for entry in &ALL {
        entry.handle.store(0, Ordering::SeqCst);
    }
}

/// Empties the pools in the child of a fork, which has none of its parent's contexts.
fn in_child(alone: &OnlyThread) {
    for entry in &ALL {
        entry.handle.store(0, Ordering::Relaxed);
        entry.pool.break_open(alone);
        entry.pool.lock().forget();
    }
}

/// Adds `spans` to the record's counter of spans whose times are lost.
pub(crate) fn lose(spans: usize) {
    if spans > 0 {
        add(Counter::GpuSpansLost, spans as u64);
    }
}

/// Adds `ns` nanoseconds to the counter of measured GPU time.
pub(crate) fn measured(ns: u64) {
    add(Counter::GpuNs, ns);
}

impl Pool {
    const fn new() -> Self {
        const NO_SPAN: StreamSpan = StreamSpan {
            pair: 0,
            stream: 0,
            cut: false,
            iteration: 0,
            since: 0,
        };
        Self {
            device: 0,
            supply: Supply::Growing,
            pairs: [Pair { start: 0, end: 0 }; MAX_PAIRS],
            made: 0,
            free: [0; MAX_PAIRS],
            free_count: 0,
            unread: [NO_SPAN; MAX_PAIRS],
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
            None => self.supply = self.supply.next(supply::SupplyEvent::Refused),
        }
        let bit = 1_u32.checked_shl(self.device.into()).unwrap_or(0);
        let mut name = [0; 96];
        if !self.supply.is_dead()
            && NAMED_DEVICES.fetch_or(bit, Ordering::Relaxed) & bit == 0
            && let Some(length) = driver.device_name(self.device, &mut name)
        {
            facts::gpu_name(self.device, &String::from_utf8_lossy(&name[..length]));
        }
    }

    fn has_room(&self) -> bool {
        !self.supply.is_dead() && self.made < MAX_PAIRS
    }

    fn wants_more(&self) -> bool {
        self.supply.may_grow() && self.made < PAIRS_AHEAD
    }

    /// Called after CUDA events were created. `long` is true if the driver was slow ([`SLOW_CREATION`]). After the
    /// second slow creation, no more events are created in this context.
    fn took(&mut self, long: bool) {
        if long {
            self.supply = self.supply.next(supply::SupplyEvent::TookLong);
        }
    }

    fn add_pair(&mut self, pair: Pair) {
        self.pairs[self.made] = pair;
        self.made += 1;
        self.put_back((self.made - 1) as Index);
    }

    /// Creates up to [`PAIRS_AT_A_TIME`] pairs of CUDA events on a thread of the program, within a time limit.
    fn grow(&mut self, driver: Driver, context: usize) {
        let _beside = BesideCaptures::new(driver);
        let since = Instant::now();
        let until = self.made + PAIRS_AT_A_TIME;
        driver.in_context(context, |_| {
            while self.has_room() && self.made < until && self.supply.may_grow() {
                let begun = Instant::now();
                match driver.create_pair() {
                    Ok(pair) => self.add_pair(pair),
                    Err(status) => self.fail(status),
                }
                self.took(begun.elapsed() >= SLOW_CREATION);
                if since.elapsed() >= MAX_TIME_IN_CALL {
                    break;
                }
            }
        });
    }

    /// Returns a free pair of CUDA events for a new span (the work of one stream in one iteration). Returns `None` if
    /// no pair is free and none can be created, or if timing has stopped in this context.
    pub(crate) fn take(&mut self, driver: Driver, context: usize) -> Option<(Index, Pair)> {
        if self.supply.is_dead() {
            return None;
        }
        // If no pair is free, creating new CUDA events is preferred to reading the times of spans. The new events can
        // be reused, so that in later windows no times have to be read while the program works.
        if self.free_count == 0 {
            self.grow(driver, context);
        }
        if self.free_count == 0 {
            self.read(driver, SPANS_AT_A_TIME, MAX_TIME_IN_CALL);
        }
        self.free_count = self.free_count.checked_sub(1)?;
        let index = self.free[self.free_count];
        Some((index, self.pairs[usize::from(index)]))
    }

    /// Makes a pair of CUDA events free for another span.
    pub(crate) fn put_back(&mut self, index: Index) {
        // An index from a destroyed context does not belong to this pool, and may be out of range.
        if usize::from(index) < self.made
            && let Some(place) = self.free.get_mut(self.free_count)
        {
            *place = index;
            self.free_count += 1;
        }
    }

    /// Adds a span whose two CUDA events have been recorded. If many spans are unread, also reads the times of some
    /// of them. This is a good moment, because the host is about to wait or the GPU has work.
    pub(crate) fn add(&mut self, driver: Driver, span: StreamSpan) {
        if usize::from(span.pair) >= self.made {
            return lose(1);
        }
        if self.unread_count < MAX_PAIRS {
            self.unread[(self.first_unread + self.unread_count) % MAX_PAIRS] = span;
            self.unread_count += 1;
        }
        let may_grow = self.has_room() && self.supply.may_grow();
        if !may_grow && self.unread_count >= self.made - self.made / 4 {
            self.read(driver, SPANS_AT_A_TIME, MAX_TIME_IN_CALL);
        }
    }

    /// Stops timing in this context after the driver has refused to record a CUDA event in a stream, unless the error
    /// concerns only that stream.
    pub(crate) fn refused(&mut self, status: DriverError) {
        if !status.is_of_a_stream() {
            self.fail(status);
        }
    }

    /// Stops timing in this context, because the driver has refused a call.
    fn fail(&mut self, status: DriverError) {
        self.supply = self.supply.next(supply::SupplyEvent::Refused);
        if !status.is_of_an_end() {
            log::once!(Warn, "GPU timing stopped: driver error {status}");
        }
    }

    /// Reads the times of finished spans in order: at most `most` spans, for at most `within`.
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
                Err(DriverError::NOT_READY) => break,
                Err(status) => self.fail(status),
            }
        }
        if self.supply.is_dead() {
            self.lose_unread();
        }
    }

    /// Returns the time when a span began, in ticks, and its duration in nanoseconds.
    ///
    /// The driver gives only the time between two CUDA events. To find the span's start on the host's clock, the
    /// function uses two facts: the GPU reaches no event before the host has recorded it, and on an idle stream the GPU
    /// reaches an event at the moment when it is recorded.
    fn times(
        &self,
        driver: Driver,
        span: &StreamSpan,
        per_ns: f64,
    ) -> Result<(f64, f64), DriverError> {
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

    fn write(&mut self, span: &StreamSpan, start: f64, duration: f64) {
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
        self.first_unread = (self.first_unread + 1) % MAX_PAIRS;
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

    /// Destroys the CUDA events within a time limit. The remaining events are destroyed together with their context.
    fn give_back(&mut self, driver: Driver, context: usize) {
        let _beside = BesideCaptures::new(driver);
        let since = Instant::now();
        driver.in_context(context, |_| {
            for pair in &self.pairs[..self.made] {
                if since.elapsed() >= MAX_TIME_AT_END {
                    break;
                }
                driver.destroy_pair(*pair);
            }
        });
        self.forget();
    }
}
