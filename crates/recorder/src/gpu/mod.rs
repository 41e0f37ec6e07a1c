//! Measures the GPU time of an iteration, using a pair of driver events around each stream's work.
//!
//! One event is recorded in a stream before the first work of an iteration and another after the last. The work
//! between them is a *span*.
//!
//! The last launch is known only after the iteration has ended. If the second event were recorded then, on a stream
//! that has run out of work, the measured time would include idle time. So the number of launches of the same span in
//! the previous iteration serves as a prediction: the second event is recorded after that number of launches. If more
//! launches follow, the second event is recorded again after them. This happens when the program is about to wait: in
//! most programs, the stream is still busy then. If the program does not wait, it happens at the thread's first call in
//! the next iteration.
//!
//! Work after a wait for the stream is a new span. If a stream has many spans in an iteration, and the program waits
//! right after the launches of each, all but the first are timed with the host's clock: from the first launch to the
//! end of the wait. If the wait for such a span begins late, the GPU may have been idle before it, so the span's time
//! is lost.
//!
//! This module runs on the thread that launches work or waits. There it uses only the stream that the call names, and
//! the streams into which no other thread has launched since this thread did. The reason is that other threads may use
//! their own streams at the same time in any way.
//!
//! [`streams`] stores the open span of each stream, from the window's opening until the last times are read after the
//! window has closed ([`end`]). [`pool`] stores the events. A stream or context that the program destroys is
//! forgotten first ([`before_destroy`]), because the driver must not get handles of destroyed objects.
//!
//! The state machines are in separate modules, because they need neither the driver nor a lock: [`phase`] and
//! [`making`] (one per process), [`span`] (one per stream) and [`supply`] (one per pool).
//!
//! While any thread captures a stream, launches and waits are not reported to this module.

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
use phase::SamplingPhase;
use sampling::{Sampling, SpanCount};
use span::Why;
use spans::{begin, end_locked, end_span, give_last};
use streams::Stream;
pub use streams::StreamArgument;
use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::gate;
use tllmprof_platform::log;
use tllmprof_sync::{Lock, Machine};

/// Value of [`ITERATION`] that means "no iteration".
const NONE: u64 = u64::MAX;

lifecycle::global! {
    stage: Sinks;

    /// The current phase of GPU timing in this process.
    #[fork(in_child)]
    #[together(calls)]
    static PHASE: Machine<SamplingPhase> = Machine::new();
    /// The state of the worker thread, which creates CUDA events in advance.
    #[fork(in_child)]
    static MAKING: Machine<Making> = Machine::new();
    /// The iteration that newly launched work belongs to; `NONE` between iterations.
    #[fork(reset)]
    #[together(calls)]
    static ITERATION: AtomicU64 = AtomicU64::new(NONE);
    /// The number of the latest iteration that has begun.
    #[fork(keep = "stored where an iteration begins")]
    #[together(iterations)]
    static LATEST: AtomicU64 = AtomicU64::new(0);
    /// The number of ticks that GPU timing has taken on threads of the program that have no writer (the
    /// object through which a thread records events). For other threads the writer holds the number.
    #[fork(reset)]
    static OWN: AtomicU64 = AtomicU64::new(0);
    /// Decides in which iterations GPU times are measured.
    #[fork(free)]
    static SAMPLING: Lock<Sampling> = Lock::new(Sampling::new());
    /// The latest iteration, if its GPU times are measured; otherwise [`NONE`].
    #[fork(keep = "stored where an iteration begins")]
    #[together(iterations)]
    static TAKEN: AtomicU64 = AtomicU64::new(NONE);
    /// The number of spans (a stream's work in one iteration) so far that were timed with a pair of CUDA events.
    #[fork(keep = "only differences matter")]
    #[together(iterations)]
    static PAIRS: AtomicU64 = AtomicU64::new(0);
    /// The number of spans so far that were timed with the host's clock.
    #[fork(keep = "only differences matter")]
    #[together(iterations)]
    static BY_CLOCK: AtomicU64 = AtomicU64::new(0);
    /// The number of threads that may be using a CUDA event or a stream's handle now. A thread that has a writer is
    /// counted in its writer instead.
    #[fork(reset)]
    static USERS: AtomicU32 = AtomicU32::new(0);
}
/// The allowed host time per launch, in nanoseconds. If the host begins to wait for a span within this time per launch,
/// the GPU cannot have been idle for long. The span may then be timed with the host's clock.
const AT_ONCE_NS: f64 = 10_000.0;
/// The maximum time to wait for other threads to finish their driver calls for GPU timing.
const USERS_TIMEOUT: Duration = Duration::from_millis(50);
/// The maximum time to wait for the driver's gate to open. The gate is closed while CUPTI is detached, and keeps all
/// threads out of the driver. Waiting here costs the program no extra time, because its call waits for the same gate.
const GATE_TIMEOUT: Duration = Duration::from_secs(1);

/// An object that the program is about to destroy.
#[derive(Clone, Copy, Debug)]
pub enum Doomed {
    Stream(usize),
    Context(usize),
    /// The primary context of the device with this ordinal; `None` for the primary context of any device.
    Primary(Option<u8>),
}

/// Stores which GPU times the settings request. Called when the library is loaded.
pub fn start(mode: GpuTimes) {
    if let Some(mut sampling) = SAMPLING.try_lock() {
        sampling.mode = mode;
    }
}

/// Starts GPU timing for a window that is about to open, if the settings request GPU times and the driver can measure
/// them. `capturing` is true if a stream capture is in progress: then no CUDA events are created yet.
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
    if phase == SamplingPhase::Unused
        && let Some(version) = driver.version()
    {
        facts::write_number(Info::CudaDriver, version);
    }
    if !capturing {
        pool::expect(driver, driver.context());
    }
    PHASE.on(phase::PhaseEvent::Opens);
}

/// Returns true if the pools (the CUDA events of each context) have fewer events than should be created in
/// advance.
pub fn wants_events() -> bool {
    PHASE.peek() == SamplingPhase::Timing && pool::wants_more()
}

/// Creates CUDA events in advance, for a limited time. Called on a thread of the library.
pub fn make_events() {
    let Some(driver) = Driver::get() else { return };
    let _held = gate::hold();
    if MAKING.on(making::CreationEvent::Begins).is_some() {
        pool::make_ahead(driver, || MAKING.state().goes_on());
        MAKING.on(making::CreationEvent::Ends);
    }
}

/// Begins iteration `n`: GPU work that is launched from here on belongs to this iteration. Also decides if the
/// iteration's GPU times are measured. `excluded` is true if the condition on batches (`TLLMPROF_WHERE`) does not hold
/// for the iteration.
pub fn iteration_begins(n: u64, excluded: bool) {
    if PHASE.peek() == SamplingPhase::Timing
        && let Some(mut sampling) = SAMPLING.try_lock()
    {
        let spans = SpanCount {
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

/// Turns off the inspection of calls until GPU times are measured again, so that calls take less time. Does nothing
/// while a stream has an open span.
#[cold]
fn stop_following() {
    if streams::is_any_open() {
        return;
    }
    look_for(Looks::GpuTimes, false);
    // A thread that opens a span at this moment stores the span first, and sets the flag `Looks::GpuTimes` second (see
    // `follow`). So either the check below finds that thread's span, or that thread sets the flag after the line above
    // has cleared it.
    fence(Ordering::SeqCst);
    if streams::is_any_open() {
        look_for(Looks::GpuTimes, true);
    }
}

/// Turns on the inspection of calls for GPU times. Called after a span has been opened: the call that ends the span
/// must be inspected, even if the iteration has ended in the meantime.
fn follow() {
    fence(Ordering::SeqCst);
    look_for(Looks::GpuTimes, true);
}

/// Ends the current iteration: GPU work that is launched before the next one begins belongs to no iteration.
pub fn between_iterations() {
    ITERATION.store(NONE, Ordering::Relaxed);
}

/// Returns true if the GPU times of `iteration` are measured. The caller names its iteration, because another thread
/// may have begun the next one.
pub fn is_taken(iteration: u64) -> bool {
    TAKEN.load(Ordering::Relaxed) == iteration
}

/// Makes the GPU times of `iteration` be measured, whatever the sampling has decided.
#[cfg(test)]
pub fn take(iteration: u64) {
    TAKEN.store(iteration, Ordering::Relaxed);
    look_for(Looks::GpuTimes, true);
}

/// Excludes the open iteration from the measurement of GPU times.
#[cfg(test)]
pub fn take_not() {
    TAKEN.store(NONE, Ordering::Relaxed);
}

/// Returns true if calls have to be inspected for GPU times now: a window is open, and either GPU times of its current
/// iteration are measured, or a span of an earlier iteration is still open.
#[inline]
pub fn is_timing() -> bool {
    looks_for(Looks::GpuTimes) && PHASE.peek() == SamplingPhase::Timing && is_recording()
}

/// Called when a call is about to enqueue work on the GPU. Begins the stream's span if it has not begun. Returns true
/// if this is expected to be the last work of the span, so that the caller has to call [`after_last`].
// SAFETY: the attribute only chooses the code section for this function, next to other code that runs in each
// recorded call.
#[unsafe(link_section = ".text.hot.tllmprof")]
#[inline(never)]
pub fn before_work(target: StreamArgument) -> bool {
    let iteration = ITERATION.load(Ordering::Relaxed);
    match launched_again(target, iteration) {
        Some(stream) => stream.launches_one(),
        None => before_other_work(target, iteration),
    }
}

/// Returns the launch's stream in the usual case: the calling thread's previous launch was into the same
/// stream, and the stream's span of this iteration has already begun.
#[inline(always)]
fn launched_again(target: StreamArgument, iteration: u64) -> Option<&'static Stream> {
    if iteration == NONE {
        return None;
    }
    writers::current().filter(|writer| writer.swept.get() == iteration)?;
    launched_last(target).filter(|stream| stream.has_begun(iteration))
}

/// Returns the launch's stream if the calling thread's previous launch was into the same stream. Does not
/// find default streams, which only the driver can identify.
#[inline(always)]
fn launched_last(target: StreamArgument) -> Option<&'static Stream> {
    let key = target.key_by_name()?;
    let stream = streams::stream_at(writers::current()?.launched.get());
    stream.is(key).then_some(stream)
}

/// Returns the stream that a call names, if the stream is in the table of known streams.
#[inline(always)]
fn known(target: StreamArgument) -> Option<&'static Stream> {
    launched_last(target).or_else(|| find(target))
}

#[inline(never)]
fn find(target: StreamArgument) -> Option<&'static Stream> {
    streams::find(target.key(Driver::get()?))
}

#[inline(never)]
fn before_other_work(target: StreamArgument, iteration: u64) -> bool {
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

/// Called when the driver has accepted the launch that is expected to be the last of its span. Records the span's
/// second CUDA event.
#[cold]
pub fn after_last(target: StreamArgument) {
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

/// Called when the driver has refused a launch that was already counted. Subtracts the launch from the stream's count.
#[cold]
pub fn refused(target: StreamArgument) {
    if let Some(stream) = known(target) {
        stream.launches_one_less();
    }
}

/// The object that a call waits for.
#[derive(Clone, Copy)]
pub enum Wait {
    Stream(StreamArgument),
    /// The call waits for a CUDA event, which may be in any stream.
    Event,
    /// The call waits for the work of all streams of the context, or of all its streams that synchronize with the
    /// legacy default stream.
    All,
}

/// Called when a call is about to wait for the GPU. Ends the spans that the call waits for. Returns true if the
/// caller has to call [`after_wait`].
// SAFETY: the attribute only chooses the code section for this function, next to other code that runs in each
// recorded call.
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

/// Ends the open spans of the streams into which the calling thread was the last to launch work. The legacy default
/// stream is included only if `on_legacy`, because a CUDA event on it would make other streams wait.
#[cold]
fn end_ours(on_legacy: bool) {
    let Some(driver) = Driver::get() else { return };
    let may_end = |stream: &&Stream| stream.is_ours() && (on_legacy || !stream.is_legacy());
    for stream in streams::open().filter(may_end) {
        timed(|| end_span(driver, stream, Why::Wait));
    }
}

/// Ends a span that the host is about to wait for. Returns true if the span is timed with the host's clock,
/// so that it ends when the wait ends.
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

/// Returns true if the host starts to wait for a span soon after launching its work. `ns` is the time in nanoseconds
/// since the span began. The limit is [`AT_ONCE_NS`] times (number of launches + 1). Within this limit, the end of the
/// wait is close to the end of the span's work.
fn is_at_once(stream: &Stream, ns: f64) -> bool {
    ns <= f64::from(stream.launches() + 1) * AT_ONCE_NS
}

/// Returns the nanoseconds that have passed since `ticks`.
fn since_ns(ticks: u64) -> f64 {
    between_ns(ticks, clock::ticks())
}

fn between_ns(since: u64, until: u64) -> f64 {
    until.saturating_sub(since) as f64 / clock::recent_ticks_per_ns()
}

/// Called when a call has waited for a stream from `since` to `until`, in ticks. Ends the stream's span if
/// the span is timed with the host's clock. If the wait began late, the span's time is lost: the GPU may have been idle
/// while the program did something else.
pub fn after_wait(target: StreamArgument, since: u64, until: u64) {
    let Some(stream) = known(target) else { return };
    let Some(mut open) = stream.span.try_lock() else {
        return;
    };
    if stream.open().is_none() || !open.by_clock {
        return;
    }
    if stream.launches() > 0 {
        let was_at_once = is_at_once(stream, between_ns(open.since, since));
        if was_at_once {
            open.is_waited_for();
        }
        match pool::device_of(stream.context()).filter(|_| was_at_once) {
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

/// Forgets a stream or a context that the program is about to destroy, and the CUDA events in it. Called even if no
/// window is open. `capturing` is true if a stream capture is in progress: then no more CUDA events are recorded.
pub fn before_destroy(doomed: Doomed, capturing: bool) {
    if !PHASE.state().has_events() {
        return;
    }
    let Some(driver) = Driver::get() else { return };
    let is_of_context = !matches!(doomed, Doomed::Stream(_));
    let _errno = SavedErrno::new();
    if is_of_context {
        MAKING.on(making::CreationEvent::Dooms);
        until(USERS_TIMEOUT, || !MAKING.state().is_under_way());
    }
    until(GATE_TIMEOUT, || !gate::is_closed());
    // `timed` fails while another thread is closing the window, because no other thread may use CUDA events then. So
    // it is retried.
    let is_forgotten = until(USERS_TIMEOUT, || {
        timed(|| forget_doomed(driver, doomed, capturing))
    });
    if !is_forgotten {
        pool::abandon();
        give_up();
    }
    if is_of_context {
        MAKING.on(making::CreationEvent::Gone);
    }
}

fn forget_doomed(driver: Driver, doomed: Doomed, capturing: bool) {
    let why = if capturing { Why::Capture } else { Why::End };
    let device_of = |context| driver.in_context(context, |device| device);
    match doomed {
        Doomed::Stream(handle) => {
            let key = StreamArgument {
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

/// Called when the window has closed and no more spans begin. Records a CUDA event after the last work of each stream.
/// `capturing` is true if a stream capture is in progress. Then no CUDA event is recorded, and the time of a span is
/// lost if it has no event after its last work yet.
pub fn work_ends(capturing: bool) {
    between_iterations();
    if PHASE.state() != SamplingPhase::Timing {
        return;
    }
    if let Some(driver) = Driver::get() {
        let why = if capturing { Why::Capture } else { Why::End };
        for stream in streams::open() {
            end_span(driver, stream, why);
        }
    }
}

/// Reads the remaining times, without waiting for the GPU, and forgets the streams. Called after the window has
/// closed, when the device is most likely idle.
///
/// First waits for threads that began to record a CUDA event before the window closed, because events may be reused
/// from here on.
pub fn end() {
    if !PHASE.state().is_open() {
        return;
    }
    PHASE.on(phase::PhaseEvent::Closes);
    if let Some(driver) = Driver::get() {
        if until(USERS_TIMEOUT, || users() == 0) {
            streams::forget(|_| true);
            pool::rest(driver);
        } else {
            // Another thread is still inside the driver, and it is not known when its call returns. So the CUDA
            // events are neither destroyed nor used again.
            give_up();
        }
    }
    let own = OWN.swap(0, Ordering::Relaxed) + writers::take_timed();
    add(Counter::OwnTicks, own);
    PHASE.on(phase::PhaseEvent::AllRead);
}

/// Stops GPU timing in this process for good. The streams' open spans are left as they are, because it is not
/// known which of their driver objects still exist.
fn give_up() {
    log::once!(
        Warn,
        "GPU timing stopped: another thread stayed in the driver for too long"
    );
    PHASE.on(phase::PhaseEvent::GivesUp);
}

/// Waits until `is_so` returns true. Gives up and returns false after `patience`.
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

/// Returns the number of threads that may be inside the driver for GPU timing.
pub fn users() -> u32 {
    USERS.load(Ordering::SeqCst) + writers::timing()
}

/// Runs `act`, which uses CUDA events, and returns true. Returns false without running it if events must not be used
/// now: the window's last times are being read, timing has stopped, or the driver's gate is closed (no thread may enter
/// the driver). The time that `act` takes counts as the library's own overhead.
fn timed(act: impl FnOnce()) -> bool {
    let _errno = SavedErrno::new();
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

/// Ends the calling thread's open spans that belong to iterations other than `iteration`, at most once per
/// iteration.
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
    // The legacy default stream is left out, because a CUDA event in it would make other streams wait. The span of this
    // stream ends at the next launch into the stream.
    let is_earlier = |stream: &&Stream| {
        let is_open = stream.open().is_some_and(|open| open != iteration);
        is_open && stream.is_ours() && !stream.is_legacy()
    };
    for stream in streams::open().filter(is_earlier) {
        timed(|| end_span(driver, stream, Why::Iteration));
    }
}
