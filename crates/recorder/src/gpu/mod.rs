//! What the GPU was at work for an iteration, from pairs of events around each stream's work.
//!
//! An event is given to a stream before the first work of an iteration, and another behind the last:
//! a *span*. Which launch is the last shows only afterwards, and on a stream that has run dry an
//! event that comes later would count idle time. So the second event is given behind the launch that
//! was the last of the same span in the iteration before; where that was not the last one after all,
//! it is given again when the program comes to wait, as the stream is busy then in most programs, or
//! else with the first call that the thread makes in the next iteration. Work that follows a wait is
//! another span. Where an iteration has many of them, which lie between two waits for their stream, all but the
//! first are timed by the host's clock, without events: from the first launch to the end of the wait. A thread touches no stream but what it has launched into last, or a call names: what
//! another thread does with its own meanwhile is not known.
//!
//! [`streams`] knows what each stream has open, from the window's opening to the reading of the last
//! times behind its close ([`end`]); [`pool`] has the events, which stay. A stream or context that the
//! program destroys is forgotten first ([`before_destroy`]), as the driver may not be given handles of
//! what is gone.
//!
//! The states lie apart, as they need neither the driver nor a lock: [`phase`] and [`making`] are the
//! process's, [`span`] a stream's, [`supply`] a pool's.
//!
//! While any thread captures a stream nothing is done here: the callers check that.

pub(crate) mod driver;
mod making;
mod phase;
pub(crate) mod pool;
pub(crate) mod sampling;
mod span;
mod spans;
pub(crate) mod streams;
mod supply;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use core::time::Duration;

use tllmprof_config::GpuTimes;
use tllmprof_platform::lifecycle;
use tllmprof_record::{Counter, Event, Info, What};

use super::state::{Looks, look_for, looks_for};
use super::writers::{self, Writer};
use super::{add, clock, facts, is_on, is_recording};
use driver::Driver;
use making::Making;
use phase::Phase;
use sampling::{Sampling, Spans};
use span::Why;
use spans::{begin, end_locked, end_span, give_last};
use streams::Stream;
pub use streams::Target;
use tllmprof_platform::errno::Kept;
use tllmprof_platform::gate;
use tllmprof_platform::log;
use tllmprof_sync::{Lock, Machine};

/// No iteration is open.
const NONE: u64 = u64::MAX;

lifecycle::global! {
    stage: Sinks;

    /// Where the process is with its GPU times.
    #[fork(in_child)]
    #[together(calls)]
    static PHASE: Machine<Phase> = Machine::new();
    /// Whether the worker makes events.
    #[fork(in_child)]
    static MAKING: Machine<Making> = Machine::new();
    /// The iteration that work is for.
    #[fork(reset)]
    #[together(calls)]
    static ITERATION: AtomicU64 = AtomicU64::new(NONE);
    /// The latest that has begun.
    #[fork(keep = "stored where an iteration begins")]
    #[together(iterations)]
    static LATEST: AtomicU64 = AtomicU64::new(0);
    /// What this took from those of the program's threads that have no writer, in ticks; the others note it
    /// in theirs.
    #[fork(reset)]
    static OWN: AtomicU64 = AtomicU64::new(0);
    /// In which iterations times are taken, and the latest one that is of them.
    #[fork(free)]
    static SAMPLING: Lock<Sampling> = Lock::new(Sampling::new());
    #[fork(keep = "stored where an iteration begins")]
    #[together(iterations)]
    static TAKEN: AtomicU64 = AtomicU64::new(NONE);
    /// Spans that have begun: between events, and by the host's clock.
    #[fork(keep = "differences are looked at")]
    #[together(iterations)]
    static PAIRS: AtomicU64 = AtomicU64::new(0);
    #[fork(keep = "differences are looked at")]
    #[together(iterations)]
    static BY_CLOCK: AtomicU64 = AtomicU64::new(0);
    /// How many of these may be using an event or a stream's handle.
    #[fork(reset)]
    static USERS: AtomicU32 = AtomicU32::new(0);
}
/// A span whose host comes to wait after at most so much time for each launch is not over long before.
const AT_ONCE_NS: f64 = 10_000.0;
/// How long those who still use events are waited for.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long until calls are let into the driver again, for which the program's own waits as well.
const GATE: Duration = Duration::from_secs(1);

/// What the program is about to destroy.
#[derive(Clone, Copy, Debug)]
pub enum Doomed {
    Stream(usize),
    Context(usize),
    /// The primary context of a device, by its ordinal; `None`: of any.
    Primary(Option<u8>),
}

/// Remembers what is asked for. For the constructor.
pub fn start(mode: GpuTimes) {
    if let Some(mut sampling) = SAMPLING.try_lock() {
        sampling.mode = mode;
    }
}

/// A window is about to open. `capturing`: a stream capture is under way.
pub fn window_opens(capturing: bool) {
    let phase = PHASE.state();
    if !is_on() || phase.is_over() {
        return;
    }
    if let Some(mut sampling) = SAMPLING.try_lock() {
        if sampling.mode == GpuTimes::Off {
            return;
        }
        sampling.window_opens();
    }
    let Some(driver) = Driver::find() else { return };
    if phase == Phase::Unused
        && let Some(version) = driver.version()
    {
        facts::write_number(Info::CudaDriver, version);
    }
    if !capturing {
        pool::expect(driver, driver.context());
    }
    PHASE.on(phase::Event::Opens);
}

/// Whether there are fewer events than are to be made ahead.
pub fn wants_events() -> bool {
    PHASE.peek() == Phase::Timing && pool::wants_more()
}

/// Makes events ahead of their use, for a bounded time. On a thread of ours.
pub fn make_events() {
    let Some(driver) = Driver::get() else { return };
    let _held = gate::hold();
    if MAKING.on(making::Event::Begins).is_some() {
        pool::make_ahead(driver, || MAKING.state().goes_on());
        MAKING.on(making::Event::Ends);
    }
}

/// Work is for this iteration from here on. `excluded`: the condition on batches does not hold for it.
pub fn iteration_begins(n: u64, excluded: bool) {
    if PHASE.peek() == Phase::Timing
        && let Some(mut sampling) = SAMPLING.try_lock()
    {
        let spans = Spans {
            pairs: PAIRS.load(Ordering::Relaxed),
            by_clock: BY_CLOCK.load(Ordering::Relaxed),
        };
        let is_taken = sampling.begins(clock::ticks(), spans, excluded);
        TAKEN.store(if is_taken { n } else { NONE }, Ordering::Relaxed);
        if is_taken {
            look_for(Looks::GpuTimes, true);
        } else if looks_for(Looks::GpuTimes) {
            stop_following();
        }
    }
    LATEST.store(n, Ordering::Relaxed);
    ITERATION.store(n, Ordering::Relaxed);
}

/// Follows no calls until an iteration is taken again, once no stream has a span open.
#[cold]
fn stop_following() {
    if streams::is_any_open() {
        return;
    }
    look_for(Looks::GpuTimes, false);
    // A thread that opens one just now does the same the other way round: it is seen here, or stores behind this.
    fence(Ordering::SeqCst);
    if streams::is_any_open() {
        look_for(Looks::GpuTimes, true);
    }
}

/// A span has been opened, maybe of an iteration that is over by now.
fn follow() {
    fence(Ordering::SeqCst);
    look_for(Looks::GpuTimes, true);
}

/// Work is for no iteration.
pub fn between_iterations() {
    ITERATION.store(NONE, Ordering::Relaxed);
}

/// Whether the GPU times of an iteration are taken. Asked by its number: another thread may have begun the next.
pub fn is_taken(iteration: u64) -> bool {
    TAKEN.load(Ordering::Relaxed) == iteration
}

/// The times of an iteration that has begun are taken, whatever was decided.
#[cfg(test)]
pub fn take(iteration: u64) {
    TAKEN.store(iteration, Ordering::Relaxed);
    look_for(Looks::GpuTimes, true);
}

/// Those of the iteration that has begun are not.
#[cfg(test)]
pub fn take_not() {
    TAKEN.store(NONE, Ordering::Relaxed);
}

/// Whether GPU times depend on calls now: the iteration that is open is taken, or a span of an earlier one is still open.
#[inline]
pub fn is_timing() -> bool {
    looks_for(Looks::GpuTimes) && PHASE.peek() == Phase::Timing && is_recording()
}

/// A call is about to enqueue work; returns whether that is expected to be the stream's last for now, so that
/// [`after_last`] has to follow.
// SAFETY: a section of code, where what each recorded call runs lies together.
#[unsafe(link_section = ".text.hot.tllmprof")]
#[inline(never)]
pub fn before_work(target: Target) -> bool {
    let iteration = ITERATION.load(Ordering::Relaxed);
    match launched_again(target, iteration) {
        Some(stream) => stream.launches_one(),
        None => before_other_work(target, iteration),
    }
}

/// The stream, if the calling thread has launched into it last, in this iteration, and its span is open, as before most
/// launches.
#[inline(always)]
fn launched_again(target: Target, iteration: u64) -> Option<&'static Stream> {
    if iteration == NONE {
        return None;
    }
    writers::current().filter(|writer| writer.swept.get() == iteration)?;
    launched_last(target).filter(|stream| stream.has_begun(iteration))
}

/// The stream, if the calling thread has launched into it last. Not a default stream, of which the driver has to be asked.
#[inline(always)]
fn launched_last(target: Target) -> Option<&'static Stream> {
    let key = target.key_by_name()?;
    let stream = streams::at(writers::current()?.launched.get());
    stream.is(key).then_some(stream)
}

/// The stream, if it is known.
#[inline(always)]
fn known(target: Target) -> Option<&'static Stream> {
    launched_last(target).or_else(|| find(target))
}

#[inline(never)]
fn find(target: Target) -> Option<&'static Stream> {
    streams::find(target.key(Driver::get()?))
}

#[inline(never)]
fn before_other_work(target: Target, iteration: u64) -> bool {
    sweep(iteration);
    let Some(driver) = Driver::get().filter(|_| iteration != NONE) else {
        return false;
    };
    let key = target.key(driver);
    let mut stream = streams::find(key);
    if !stream.is_some_and(|stream| stream.has_begun(iteration)) {
        begin(driver, key, stream, iteration);
        stream = streams::find(key);
    }
    if let (Some(writer), Some(stream)) = (writers::current(), stream) {
        writer.launched.set(stream.place());
    }
    stream.is_some_and(Stream::launches_one)
}

/// The driver has taken the work that is expected to be the last: records an event behind it.
#[cold]
pub fn after_last(target: Target) {
    let (Some(driver), Some(stream)) = (Driver::get(), known(target)) else {
        return;
    };
    timed(|| {
        if let Some(mut open) = stream.span.try_lock()
            && stream.open().is_some()
        {
            give_last(driver, stream, &mut open);
        }
    });
}

/// The driver has not taken the work.
#[cold]
pub fn refused(target: Target) {
    if let Some(stream) = known(target) {
        stream.launches_one_less();
    }
}

/// What a call waits for.
#[derive(Clone, Copy)]
pub enum Wait {
    Stream(Target),
    /// An event of some stream.
    Event,
    /// All that the context's streams, or those that wait for the legacy one, have to do.
    All,
}

/// A call is about to wait; returns whether [`after_wait`] has to follow.
// SAFETY: a section of code, where what each recorded call runs lies together.
#[unsafe(link_section = ".text.hot.tllmprof")]
#[inline(never)]
pub fn before_wait(wait: Wait) -> bool {
    let iteration = ITERATION.load(Ordering::Relaxed);
    sweep(iteration);
    match wait {
        Wait::Stream(target) => {
            let stream = known(target);
            stream.is_some_and(|stream| stream.open().is_some() && end_by_wait(stream))
        }
        Wait::Event | Wait::All => {
            if streams::is_any_open() {
                end_ours(matches!(wait, Wait::All));
            }
            false
        }
    }
}

/// Ends what the calling thread has open, on the legacy stream if asked to: an event there has others wait that would not.
#[cold]
fn end_ours(on_legacy: bool) {
    let Some(driver) = Driver::get() else { return };
    let may_end = |stream: &&Stream| stream.is_ours() && (on_legacy || !stream.is_legacy());
    for stream in streams::open().filter(may_end) {
        timed(|| end_span(driver, stream, Why::Wait));
    }
}

/// Ends a span that the host is about to wait for; whether its end is the wait's.
#[cold]
fn end_by_wait(stream: &Stream) -> bool {
    let Some(driver) = Driver::get() else {
        return false;
    };
    let Some(mut open) = stream.span.try_lock() else {
        return false;
    };
    if stream.open().is_some() {
        if open.by_clock {
            return true;
        }
        if is_at_once(stream, since_ns(open.since)) {
            open.is_waited_for();
        }
        timed(|| end_locked(driver, stream, &mut open, Why::Wait));
    }
    false
}

/// Whether the host has come to wait for a span at once, so many nanoseconds after its beginning.
fn is_at_once(stream: &Stream, ns: f64) -> bool {
    ns <= f64::from(stream.launches() + 1) * AT_ONCE_NS
}

/// Nanoseconds that have passed since a tick.
fn since_ns(ticks: u64) -> f64 {
    between_ns(ticks, clock::ticks())
}

fn between_ns(since: u64, until: u64) -> f64 {
    until.saturating_sub(since) as f64 / clock::recent_ticks_per_ns()
}

/// A call has waited for a stream from `since` to `until`, in ticks.
pub fn after_wait(target: Target, since: u64, until: u64) {
    let Some(stream) = known(target) else { return };
    let Some(mut open) = stream.span.try_lock() else {
        return;
    };
    if stream.open().is_none() || !open.by_clock {
        return;
    }
    if stream.launches() > 0 {
        if is_at_once(stream, between_ns(open.since, since)) {
            open.is_waited_for();
        }
        match pool::device_of(stream.context()) {
            Some(device) => {
                let what = What::GpuSpan {
                    device,
                    stream: stream.number(),
                    iteration: open.iteration(),
                };
                let ns = between_ns(open.since, until) as u64;
                let mut event = Event::new(open.since, ns, what);
                event.cut = true;
                writers::write_aside(&event);
                pool::measured(ns);
            }
            None => pool::lose(1),
        }
    }
    stream.end(&mut open);
}

/// The program is about to destroy something. Whether a window is open or not; `capturing`: a stream
/// capture is under way.
pub fn before_destroy(doomed: Doomed, capturing: bool) {
    if !PHASE.state().has_events() {
        return;
    }
    let Some(driver) = Driver::get() else { return };
    let is_of_context = !matches!(doomed, Doomed::Stream(_));
    let _errno = Kept::new();
    if is_of_context {
        MAKING.on(making::Event::Dooms);
        until(PATIENCE, || !MAKING.state().is_under_way());
    }
    until(GATE, || !gate::is_closed());
    // Another thread may be closing the window.
    let is_forgotten = until(PATIENCE, || {
        timed(|| forget_doomed(driver, doomed, capturing))
    });
    if !is_forgotten {
        pool::abandon();
        give_up();
    }
    if is_of_context {
        MAKING.on(making::Event::Gone);
    }
}

fn forget_doomed(driver: Driver, doomed: Doomed, capturing: bool) {
    let why = if capturing { Why::Capture } else { Why::End };
    let device_of = |context| driver.in_context(context, |device| device);
    match doomed {
        Doomed::Stream(handle) => {
            let key = Target {
                handle,
                per_thread: false,
            };
            if handle > 2
                && let Some(stream) = streams::find(key.key(driver))
            {
                end_span(driver, stream, why);
                stream.forget();
            }
        }
        Doomed::Context(context) => end_contexts(driver, why, |other, _| other == context),
        Doomed::Primary(device) => end_contexts(driver, why, |context, known| {
            device.is_none() || device == known.or_else(|| device_of(context))
        }),
    }
}

fn end_contexts(driver: Driver, why: Why, ends: impl Fn(usize, Option<u8>) -> bool) {
    let stream_ends = |context| ends(context, None);
    for stream in streams::open().filter(|stream| stream_ends(stream.context())) {
        end_span(driver, stream, why);
    }
    streams::forget(stream_ends);
    pool::end(driver, |context, device| ends(context, Some(device)));
}

/// The window has closed, and no span begins any more: records an event behind what each stream has
/// to do. `capturing`: a stream capture is under way.
pub fn work_ends(capturing: bool) {
    between_iterations();
    if PHASE.state() != Phase::Timing {
        return;
    }
    if let Some(driver) = Driver::get() {
        let why = if capturing { Why::Capture } else { Why::End };
        for stream in streams::open() {
            end_span(driver, stream, why);
        }
    }
}

/// Reads the times that are left, without waiting for any, and forgets the streams. Behind the
/// window's close, when the device is idle if it ever is.
///
/// A thread may be about to give an event to its stream, from before the close: it is waited for, as
/// the event is free for others from here on.
pub fn end() {
    if !PHASE.state().is_open() {
        return;
    }
    PHASE.on(phase::Event::Closes);
    if let Some(driver) = Driver::get() {
        if until(PATIENCE, || users() == 0) {
            streams::forget(|_| true);
            pool::rest(driver);
        } else {
            // Nobody knows when it comes back: the events stay as they are, and are used no more.
            give_up();
        }
    }
    let own = OWN.swap(0, Ordering::Relaxed) + writers::take_timed();
    add(Counter::OwnTicks, own);
    PHASE.on(phase::Event::AllRead);
}

/// Times nothing more in this process. What the streams have open stays so: nobody knows what of it is
/// gone.
fn give_up() {
    log::once!(
        Warn,
        "GPU timing stopped: another thread stayed in the driver for too long"
    );
    PHASE.on(phase::Event::GivesUp);
}

/// Waits until it is so; false if that takes too long.
fn until(patience: Duration, is_so: impl Fn() -> bool) -> bool {
    let since = std::time::Instant::now();
    while !is_so() {
        if since.elapsed() >= patience {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Threads that may be in the driver for us.
pub fn users() -> u32 {
    USERS.load(Ordering::SeqCst) + writers::timing()
}

/// Runs `act`, which uses events, unless the last are being read, nothing is timed any more or nobody
/// may be in the driver; whether it ran. Its time counts as ours.
fn timed(act: impl FnOnce()) -> bool {
    let _errno = Kept::new();
    let since = clock::ticks();
    let (users, own) =
        writers::current().map_or((&USERS, &OWN), |writer| (&writer.timing, &writer.timed));
    users.fetch_add(1, Ordering::SeqCst);
    let may = PHASE.state().may_use_events() && !gate::is_closed();
    if may {
        act();
    }
    users.fetch_sub(1, Ordering::SeqCst);
    own.fetch_add(clock::ticks().wrapping_sub(since), Ordering::Relaxed);
    may
}

/// Ends the spans of other iterations that the calling thread has open, once in an iteration.
#[inline]
fn sweep(iteration: u64) {
    let is_new = |writer: &Writer| writer.swept.replace(iteration) != iteration;
    if writers::current().is_none_or(is_new) {
        end_earlier(iteration);
    }
}

#[cold]
fn end_earlier(iteration: u64) {
    let Some(driver) = Driver::get() else { return };
    // The legacy stream's ends with the next launch there.
    let is_earlier = |stream: &&Stream| {
        let is_open = stream.open().is_some_and(|open| open != iteration);
        is_open && stream.is_ours() && !stream.is_legacy()
    };
    for stream in streams::open().filter(is_earlier) {
        timed(|| end_span(driver, stream, Why::Iteration));
    }
}
