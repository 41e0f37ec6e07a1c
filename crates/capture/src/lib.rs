//! What is switched on for a window, and off after it.

mod cupti;
#[cfg(test)]
mod made;
pub mod marks;
mod nvtx;
#[cfg(test)]
mod tests;
mod worker;

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::time::Instant;

use tllmprof_calls::CuptiCall;
use tllmprof_config::{KernelSamples, PerfectRouter, Ranked, Settings, Window};
use tllmprof_platform::lifecycle::{self, OnlyThread};

use nvtx::Ranges;
use recorder::{Batch, Edge, Ended};
use tllmprof_platform::driver::Driver;
use tllmprof_platform::injection;
use tllmprof_platform::log;
use tllmprof_recorder as recorder;
use tllmprof_session::{Facts, Place};
use tllmprof_steps::trigger::Spent;
use tllmprof_steps::window;
use tllmprof_steps::window::Point;
use tllmprof_steps::window::Taken;
use tllmprof_sync::Lock;
use worker::Job;

/// How long the device may take to become idle at the end of a window.
const DRAIN: Duration = Duration::from_secs(5);
/// How long closing a window may hold up the end of a process.
const LAST: Duration = Duration::from_secs(3);

/// How long a window's opening waits for the events that GPU times are taken with.
const EVENTS: Duration = Duration::from_millis(3);

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    #[exit = "the window is closed and the device waited for"]
    static STATE: Lock<Capture> = Lock::new(Capture::new());
    /// Iterations have NVTX ranges.
    #[fork(keep = "the tool is inherited")]
    static HAS_RANGES: AtomicBool = AtomicBool::new(false);
}

struct Capture {
    ranges: Option<Ranges>,
    open: Option<Open>,
    /// Of the window that is open or was the last.
    parts: Parts,
    drains: bool,
    /// Nobody records what is captured, and that has not been said.
    is_unheard: bool,
    /// The process ends since then: its last iteration does, too.
    ended: Option<Instant>,
}

/// A window under way.
struct Open {
    /// As it was asked for, which is how messages name it.
    window: Window,
    iteration: u64,
    /// When its first iteration began, as the record has it.
    since: Instant,
    profiling: bool,
    /// It opened by itself to sample kernels, as one does again and again.
    sampled: Option<KernelSamples>,
}

/// What the parts of a window held that have closed; most windows have one.
#[derive(Default)]
struct Parts {
    count: u64,
    iterations: u64,
    elapsed: Duration,
    /// The end of the process cut its last iteration off, which the record's figures leave out.
    is_cut: bool,
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.iterations == 1 { "" } else { "s" };
        let ms = self.elapsed.as_secs_f64() * 1e3;
        write!(f, "{} iteration{s} in {ms:.3} ms", self.iterations)?;
        if self.count > 1 {
            write!(f, ", in {} parts", self.count)?;
        }
        match self.is_cut {
            true => f.write_str(", the last cut off by the end of the process"),
            false => Ok(()),
        }
    }
}

/// What else is switched with a window: the PyTorch profiler, the routers.
///
/// Called on the thread that switches, with nothing of this crate's locked.
pub trait AddOn: Sync {
    /// A window is about to open: nothing has been switched on.
    fn window_opens(&self, _: &Place<'_>) {}
    /// The window that was asked for has been opened.
    fn window_is_open(&self, _: Window, _: &Place<'_>) {}
    /// An iteration begins on the calling thread, inside a window or outside. Waits for nothing.
    fn iteration_begins(&self) {}
    /// The window closes: the device has been waited for, unless a stream capture is under way, and
    /// nothing has been switched off.
    fn window_closes(&self, _: &Place<'_>) {}
    /// The window has closed.
    fn window_is_closed(&self, _: &Place<'_>) {}
    /// The process ends: nothing more is recorded. Neither waits nor allocates.
    fn process_ends(&self) {}
    /// The process ends with a window open: what is lost by that.
    fn loses(&self) -> Option<&'static str> {
        None
    }
}

/// What else is switched, in the order in which it is: one list.
#[linkme::distributed_slice]
pub static ADD_ONS: [&'static [&'static dyn AddOn]];

fn add_ons() -> impl Iterator<Item = &'static dyn AddOn> {
    ADD_ONS.iter().copied().flatten().copied()
}

impl Capture {
    const fn new() -> Self {
        Self {
            ranges: None,
            open: None,
            parts: Parts {
                count: 0,
                iterations: 0,
                elapsed: Duration::ZERO,
                is_cut: false,
            },
            drains: true,
            is_unheard: false,
            ended: None,
        }
    }
}

/// Whether something comes of windows, as far as the settings and the variables of profilers show.
fn is_heard(settings: &Settings) -> bool {
    settings.trace.is_some() && !settings.trace_on_demand
        || settings.torch_trace.is_some()
        || settings.perfect_router == PerfectRouter::Window
        || injection::has_profiler()
}

/// Gets ready for a process that has begun to use CUDA.
fn start(settings: &Settings) {
    recorder::set_helper(worker::ask_for_room);
    // Loads the tool: nothing is locked meanwhile.
    let wanted = settings.nvtx && injection::has_tool();
    let ranges = wanted.then(|| Ranges::new(&settings.nvtx_name));
    if wanted {
        HAS_RANGES.store(true, Ordering::Relaxed);
    }
    cupti::start(settings);
    let mut state = STATE.lock();
    state.drains = settings.drain;
    state.is_unheard = !is_heard(settings);
    state.ranges = ranges;
}

/// Moves from one iteration to the next.
///
/// One thread at a time; may take long, as profilers do. The PyTorch profiler is the last to be
/// started and the first to be stopped; it waits for the GIL, so nothing is locked meanwhile.
fn switch(place: &Place<'_>, edge: window::Edge) {
    let mut state = STATE.lock();
    let ended = Instant::now();
    recorder::iteration_ends(place.point != Point::Start);
    if let Some(ranges) = &mut state.ranges {
        ranges.end_iteration();
    }
    if let Some(window) = edge.close {
        // The one figure for what the window held, in the log and in the record: others may have
        // begun by now.
        let over = window.over(place.point.over());
        cupti::window_closes(over);
        recorder::window_closes(over);
        recorder::gpu::work_ends(place.capturing);
        // The program may have another context by now than where the window opened.
        if let Some(driver) = Driver::get() {
            driver.remember_context();
        }
        let drained = place.capturing || !state.drains || drain();
        recorder::gpu::end();
        drop(state);
        cupti::window_has_closed(over, place.capturing);
        add_ons().for_each(|add_on| add_on.window_closes(place));
        STATE.lock().close(over, ended, drained, window.goes_on);
        add_ons().for_each(|add_on| add_on.window_is_closed(place));
        state = STATE.lock();
    }
    if let Some(window) = edge.open {
        drop(state);
        add_ons().for_each(|add_on| add_on.window_opens(place));
        state = STATE.lock();
        state.open(window, place);
        drop(state);
        cupti::window_opens(place.kernels);
        add_ons().for_each(|add_on| add_on.window_is_open(window.asked, place));
        state = STATE.lock();
    } else if let Some(open) = &mut state.open
        && !open.profiling
    {
        // There was no context, maybe, where the window opened.
        open.profiling = Driver::get().is_some_and(Driver::start_profiler_late);
    }
    if let Point::In(iteration) = place.point {
        drop(state);
        let begins = cupti::reach(iteration, place.capturing);
        state = STATE.lock();
        if let Some(ranges) = &mut state.ranges {
            ranges.begin_iteration(iteration);
        }
        if edge.open.is_some() {
            recorder::gpu::window_opens(place.capturing);
            if recorder::gpu::wants_events() && !place.capturing {
                let _ = worker::run(Job::Events, EVENTS);
            }
            recorder::window_opens(iteration, place.past);
        }
        if begins {
            cupti::write_edge(Edge::Open, iteration);
            if let Some(samples) = state.open.as_ref().and_then(|open| open.sampled) {
                cupti::write_sample(samples, iteration);
            }
        }
        if let Some(open) = state.open.as_mut().filter(|_| edge.open.is_some()) {
            open.since = Instant::now();
        }
        recorder::iteration_begins(iteration, place.excluded);
        drop(state);
        add_ons().for_each(|add_on| add_on.iteration_begins());
    } else {
        recorder::gpu::between_iterations();
    }
}

/// Closes what is open at the end of the process, after `iterations`.
///
/// The work is done on a thread of its own with a time limit: the process may be ending because
/// the device hangs, or from a signal handler that interrupted the driver.
///
/// `drain`: the device may be waited for. `here`: without a worker, ranges may be ended on the
/// calling thread.
fn finish(iterations: u64, drain: bool, here: bool) {
    for lost in add_ons().filter_map(|add_on| add_on.loses()) {
        log::say!(Warn, "{lost}");
    }
    if !worker::is_there() {
        if here {
            close_all(iterations, false);
        }
    } else if !worker::run(Job::Close { iterations, drain }, LAST)
        && STATE.try_lock().is_none_or(|state| state.open.is_some())
    {
        log::say!(
            Warn,
            "the window could not be closed within {LAST:?} at the end"
        );
    }
}

/// Whether anybody wants to know what is in a batch now.
#[inline]
pub fn wants_batches() -> bool {
    recorder::is_keeping() || HAS_RANGES.load(Ordering::Relaxed)
}

/// What is in the batch of `iteration`, or else of the one that is open: keeps it where anybody wants it, and begins its
/// range.
pub fn keep_batch(iteration: Option<u64>, batch: Batch) {
    if let Some(iteration) = iteration.or_else(recorder::open_iteration) {
        recorder::batch(iteration, batch);
    }
    // Nothing is waited for: the thread has the GIL, and another may be switching.
    if HAS_RANGES.load(Ordering::Relaxed)
        && let Some(mut state) = STATE.try_lock()
        && let Some(ranges) = &mut state.ranges
    {
        ranges.begin_batch(iteration, batch);
    }
}

/// Whether kernels are to be taken.
pub fn takes_kernels(settings: &Settings) -> bool {
    cupti::is_wanted(settings)
}

/// Another profiler in this process calls this function of CUPTI's, which serves one.
pub fn cupti_is_called(call: CuptiCall) {
    cupti::is_called(call);
}

/// That call has returned.
pub fn cupti_was_called(call: CuptiCall, succeeded: bool) {
    cupti::was_called(call, succeeded);
}

/// Ends ranges and closes the window; for [`finish`].
fn close_all(iterations: u64, drain: bool) {
    let drains = STATE.lock_for(LAST).is_some_and(|mut state| {
        if let Some(ranges) = &mut state.ranges {
            ranges.end_iteration();
        }
        state.drains && state.open.is_some()
    });
    recorder::gpu::work_ends(!drain);
    if drain && drains {
        drain_here();
    }
    recorder::gpu::end();
    if let Some(mut state) = STATE.lock_for(LAST) {
        let ended = state.ended.unwrap_or_else(Instant::now);
        state.close(iterations, ended, true, false);
    }
}

/// Waits for the device, for a bounded time; false if it is still busy, or the worker thread is.
fn drain() -> bool {
    worker::run(Job::Drain, DRAIN)
}

/// Does a job, on the worker's thread.
fn work(job: Job) {
    match job {
        Job::Drain => drain_here(),
        Job::Close { iterations, drain } => close_all(iterations, drain),
        Job::Events => recorder::gpu::make_events(),
        Job::Cupti(job) => cupti::work(job),
    }
}

/// Waits for the device. On the worker's thread.
fn drain_here() {
    if let Some(driver) = Driver::get() {
        driver.synchronize_all();
    }
}

impl Capture {
    fn open(&mut self, taken: Taken, place: &Place<'_>) {
        let window = taken.asked;
        let iteration = place.point.over();
        let driver = Driver::get();
        if let Some(driver) = driver {
            driver.remember_context();
        }
        worker::start(work);
        let profiling = driver.is_some_and(Driver::start_profiler);
        if let Some(ranges) = &mut self.ranges {
            ranges.begin_window();
        }
        self.open = Some(Open {
            window,
            iteration,
            since: Instant::now(),
            profiling,
            sampled: place.sampled,
        });
        if taken.is_again {
            log::say!(
                Debug,
                "window {window} opened again at iteration {iteration}"
            );
            return;
        }
        self.parts = Parts::default();
        if taken.is_late() {
            log::say!(
                Info,
                "window {window} opened at iteration {iteration} ({}; asked for {}: {})",
                place.by,
                window.first,
                place.why_late
            );
        } else if place.sampled.is_some() {
            log::say!(Debug, "window {window} opened: a sample of kernels");
        } else {
            log::say!(
                Info,
                "window {window} opened at iteration {iteration} ({})",
                place.by
            );
        }
    }

    /// `goes_on`: it opens again later.
    fn close(&mut self, over: u64, ended: Instant, drained: bool, goes_on: bool) {
        let Some(open) = self.open.take() else { return };
        if let Some(ranges) = &mut self.ranges {
            ranges.end_window();
        }
        if open.profiling
            && let Some(driver) = Driver::get()
        {
            driver.stop_profiler();
        }
        if !drained {
            let window = open.window;
            if worker::is_there() {
                log::say!(
                    Warn,
                    "window {window}: waiting for the device took over {DRAIN:?}: its last work may be missing"
                );
            } else {
                log::say!(
                    Warn,
                    "window {window}: no thread could be started to wait for the device: its last work may be missing"
                );
            }
        }
        self.parts.count += 1;
        self.parts.iterations += over.saturating_sub(open.iteration);
        self.parts.elapsed += ended.saturating_duration_since(open.since);
        if !open.profiling {
            log::say!(
                Warn,
                "window {} is marked by NVTX ranges alone: the profiler did not start",
                open.window
            );
        }
        if goes_on {
            log::say!(Debug, "window {} closed in between", open.window);
            return;
        }
        if open.sampled.is_some() {
            log::say!(Debug, "window {} closed: {}", open.window, self.parts);
            return;
        }
        log::say!(Info, "window {} closed: {}", open.window, self.parts);
        let is_heard = recorder::is_on() || cupti::others_have_it();
        if core::mem::take(&mut self.is_unheard) && !is_heard {
            log::say!(
                Warn,
                "window {} was captured, but nothing recorded it: there is no profiler in this process, and \
                 TLLMPROF_TRACE is not set (set TLLMPROF_TRACE=PATH, or run it under nsys)",
                open.window
            );
        }
    }
}

/// The profiler, the ranges and the record, for the session.
pub struct Profilers;

impl tllmprof_session::Sink for Profilers {
    fn wants_record(&self) -> bool {
        recorder::is_wanted()
    }

    fn start(&self, settings: &'static Settings) {
        start(settings);
    }

    fn takes_kernels(&self, settings: &Settings) -> bool {
        takes_kernels(settings)
    }

    fn begin_record(&self, settings: &'static Settings, facts: &Facts<'_>) -> bool {
        recorder::begin(settings, facts);
        recorder::is_on()
    }

    fn rule_is_known(&self, facts: &Facts<'_>) {
        recorder::write_rule(facts);
    }

    fn rank_is_known(&self, ranked: &Ranked) {
        recorder::write_rank(ranked);
    }

    fn passes(&self, point: Point, excluded: bool) {
        recorder::iteration_ends(point != Point::Start);
        match point {
            Point::In(n) => {
                recorder::iteration_begins(n, excluded);
                add_ons().for_each(|add_on| add_on.iteration_begins());
            }
            Point::Start | Point::After(_) => recorder::gpu::between_iterations(),
        }
    }

    fn wants_calls(&self) -> bool {
        recorder::wants_calls()
    }

    fn count_calls(&self, counts: &mut dyn Iterator<Item = u64>) {
        recorder::count_calls(counts);
    }

    fn take_spent(&self) -> Spent {
        recorder::watch::take()
    }

    fn has_edge_at(&self, point: Point) -> bool {
        matches!(point, Point::In(iteration) if cupti::has_edge_at(iteration))
    }

    fn switch(&self, place: &Place<'_>, edge: window::Edge) {
        switch(place, edge);
    }

    fn ends(&self, iterations: u64, capturing: bool) {
        if let Some(mut state) = STATE.lock_for(LAST) {
            state.ended = Some(Instant::now());
            state.parts.is_cut = recorder::open_iteration().is_some_and(|open| open < iterations);
        }
        add_ons().for_each(|add_on| add_on.process_ends());
        cupti::finish(iterations, capturing);
        recorder::ends(iterations);
    }

    fn finish(&self, iterations: u64, drain: bool, here: bool) {
        finish(iterations, drain, here);
    }

    fn finish_record(&self, in_order: bool) {
        recorder::finish(if in_order {
            Ended::InOrder
        } else {
            Ended::AtOnce
        });
    }

    fn main_thread_leaves(&self) {
        worker::main_thread_leaves();
    }
}

/// Forgets what the parent process had open. For the child of a fork.
fn in_child(alone: &OnlyThread) {
    STATE.break_open(alone);
    let mut state = STATE.lock();
    state.open = None;
    if let Some(ranges) = &mut state.ranges {
        ranges.forget();
    }
}
