//! Switches on everything that a window (a range of profiled iterations) needs when the window opens, and switches it
//! off when the window closes: the CUDA profiler, NVTX ranges, CUPTI, the recorder and the add-ons.

mod add_on;
mod cupti;
#[cfg(test)]
mod made;
pub mod marks;
mod nvtx;
#[cfg(test)]
mod tests;
mod window;
mod worker;

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::time::Instant;

use tllmprof_calls::CuptiCall;
use tllmprof_config::{Ranked, Settings};
use tllmprof_platform::lifecycle::{self, OnlyThread};

use add_on::add_ons;
pub use add_on::{ADD_ONS, AddOn};
use nvtx::Ranges;
use recorder::{Batch, Edge, Ended};
use tllmprof_platform::driver::Driver;
use tllmprof_platform::injection;
use tllmprof_platform::log;
use tllmprof_recorder as recorder;
use tllmprof_session::{EndReason, LostData, Place, SessionFacts};
use tllmprof_steps::trigger::Spent;
use tllmprof_steps::window::{Edge as Switched, Point, Taken};
use tllmprof_sync::{Guard, Lock};
use window::{CaptureState, DRAIN_TIMEOUT};
use worker::Job;

/// Maximum time to wait at the end of the process: for the lock on `STATE`, and then for the worker, until it has
/// closed the window (the range of profiled iterations).
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum time that opening a window (a range of profiled iterations) waits for the worker to create the driver events
/// with which GPU times are measured.
const EVENTS_TIMEOUT: Duration = Duration::from_millis(3);

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    #[exit = "the window is closed and the device waited for"]
    static STATE: Lock<CaptureState> = Lock::new(CaptureState::new());
    /// True if the library makes an NVTX range for each iteration.
    #[fork(keep = "the tool is inherited")]
    static HAS_RANGES: AtomicBool = AtomicBool::new(false);
}

/// Initializes this crate when the process has begun to use CUDA.
fn start(settings: &'static Settings) {
    recorder::set_helper(worker::ask_for_room);
    // `Ranges::new` loads the NVTX tool, which runs code of the tool. That code must not run while this thread holds
    // the lock on `STATE`, so the ranges are made before the lock is taken.
    let wanted = settings.nvtx && injection::has_tool();
    let ranges = wanted.then(|| Ranges::new(&settings.nvtx_name));
    if wanted {
        HAS_RANGES.store(true, Ordering::Relaxed);
    }
    cupti::start(settings);
    let mut state = STATE.lock();
    state.drains = settings.drain;
    state.settings = Some(settings);
    state.has_profiler = injection::has_profiler();
    state.ranges = ranges;
}

/// Closes a window whose last iteration ended at the time `ended`.
fn close_window(state: Guard<'_, CaptureState>, place: &Place<'_>, window: Taken, ended: Instant) {
    // More iterations may have begun by now. The first iteration after the window is computed only once, so that the
    // log and the record agree on the window's length.
    let over = window.over(place.point.over());
    cupti::window_closes(over);
    recorder::window_closes(over);
    recorder::gpu::work_ends(place.capturing);
    // Stores the program's current context for the worker. The program may use another context now than when the window
    // (the range of profiled iterations) opened.
    if let Some(driver) = Driver::get() {
        driver.remember_context();
    }
    let drained = place.capturing || !state.drains || drain();
    recorder::gpu::end();
    // If `goes_on` is true, the window opens again later, and then still needs the sums of waits.
    let is_over = !window.on_demand && !window.goes_on;
    if let Some(settings) = state.settings.filter(|_| is_over) {
        recorder::watch::planned_has_closed(settings);
    }
    drop(state);
    cupti::window_has_closed(over, place.capturing);
    add_ons().for_each(|add_on| add_on.window_closes(place));
    STATE.lock().close(over, ended, drained, Some(window));
    add_ons().for_each(|add_on| add_on.window_is_closed(place));
}

/// Switches from one iteration to the next, and closes and opens the windows that `edge` names.
///
/// Runs on one thread at a time. A switch may take long if a profiler has to be started. The PyTorch profiler is
/// started after the CUDA profiler and stopped before it. The functions of the PyTorch profiler wait for the GIL, so no
/// lock is held when they are called.
fn switch(place: &Place<'_>, edge: Switched) {
    let mut state = STATE.lock();
    let closing = edge.close.map(|window| (window, Instant::now()));
    recorder::iteration_ends(place.point != Point::Start);
    if let Some(ranges) = &mut state.ranges {
        ranges.end_iteration();
    }
    if let Some((window, ended)) = closing {
        close_window(state, place, window, ended);
        state = STATE.lock();
    }
    if let Some(window) = edge.open {
        drop(state);
        add_ons().for_each(|add_on| add_on.window_opens(place));
        state = STATE.lock();
        worker::start(work);
        if let Some(settings) = state.settings.filter(|_| !window.on_demand) {
            recorder::planned_opens(settings);
        }
        state.open(window, place);
        drop(state);
        cupti::may_take(place.kernels);
        add_ons().for_each(|add_on| add_on.window_is_open(window.asked, place));
        state = STATE.lock();
    } else if edge.kernels {
        drop(state);
        cupti::may_take(place.kernels);
        state = STATE.lock();
    } else if let Some(open) = &mut state.open
        && !open.profiling
    {
        // The CUDA profiler could not be started when the window (the range of profiled iterations) opened, for example
        // because there was no CUDA context yet. So the start is tried again.
        open.profiling = Driver::get().is_some_and(Driver::start_profiler_late);
    }
    if edge.open.is_none() && edge.close.is_none() && is_behind() {
        drop(state);
        let behind = add_ons().filter(|add_on| add_on.is_behind());
        behind.for_each(|add_on| add_on.catches_up(place));
        state = STATE.lock();
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
                let _ = worker::run(Job::Events, EVENTS_TIMEOUT);
            }
            recorder::window_opens(iteration, place.past);
            let is_steady = |settings: &Settings| settings.windows.is_steady();
            if edge.open.is_some_and(|window| !window.on_demand)
                && state.settings.is_some_and(is_steady)
            {
                recorder::write_before();
            }
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

/// Returns true if an add-on had to leave out work when a window closed.
fn is_behind() -> bool {
    add_ons().any(|add_on| add_on.is_behind())
}

/// Closes the open window and all NVTX ranges when the process ends, after `iterations` iterations.
///
/// The worker thread does this work, and the calling thread waits only for a limited time. One reason is that the
/// device may hang. Another is that the calling thread may be in a signal handler that interrupted a call of the
/// driver, and must then not call the driver again.
///
/// `drain` is true if the worker may wait for the device. `here` is true if the calling thread may do the work itself
/// when there is no worker thread; it then does not wait for the device.
fn finish(iterations: u64, drain: bool, here: bool) {
    for lost in add_ons().filter_map(|add_on| add_on.loses()) {
        log::say!(Warn, "{lost}");
    }
    let is_done = worker::is_there() && worker::run(Job::Close { iterations, drain }, EXIT_TIMEOUT);
    if !worker::is_there() {
        if !is_done && here {
            close_all(iterations, false);
        }
    } else if !is_done && STATE.try_lock().is_none_or(|state| state.open.is_some()) {
        log::say!(
            Warn,
            "the window could not be closed within {EXIT_TIMEOUT:?} at the end"
        );
    }
}

/// Returns true if the recorder or NVTX ranges need the contents of batches (requests and tokens) now.
#[inline]
pub fn wants_batches() -> bool {
    recorder::is_keeping() || HAS_RANGES.load(Ordering::Relaxed)
}

/// Stores the contents of a batch in the record and begins the batch's NVTX range. The batch belongs to `iteration`, or
/// to the open iteration if `iteration` is `None`.
pub fn keep_batch(iteration: Option<u64>, batch: Batch) {
    if let Some(iteration) = iteration.or_else(recorder::open_iteration) {
        recorder::batch(iteration, batch);
    }
    // This thread holds the GIL, so it must not wait for the lock: the thread that has the lock may wait for the device
    // for seconds ([`drain`]), and all Python threads would wait with it.
    if HAS_RANGES.load(Ordering::Relaxed)
        && let Some(mut state) = STATE.try_lock()
        && let Some(ranges) = &mut state.ranges
    {
        ranges.begin_batch(iteration, batch);
    }
}

/// Returns true if the settings request the recording of kernels and no other setting or tool makes it impossible.
pub fn takes_kernels(settings: &Settings) -> bool {
    cupti::is_wanted(settings)
}

/// Must be called before another profiler in this process calls a function of CUPTI. CUPTI serves one profiler at a
/// time, so this library releases CUPTI first, unless the call only ends a subscription.
pub fn cupti_is_called(call: CuptiCall) {
    cupti::is_called(call);
}

/// Must be called after another profiler's call of CUPTI has returned. Stores whether that profiler now uses CUPTI.
pub fn cupti_was_called(call: CuptiCall, succeeded: bool) {
    cupti::was_called(call, succeeded);
}

/// Ends all NVTX ranges and closes the open window (the range of profiled iterations) when the process ends, on behalf
/// of [`finish`]. If `drain` is true and the settings do not forbid it, waits until the device is idle before the
/// window is closed.
fn close_all(iterations: u64, drain: bool) {
    let drains = STATE.lock_for(EXIT_TIMEOUT).is_some_and(|mut state| {
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
    if let Some(mut state) = STATE.lock_for(EXIT_TIMEOUT) {
        let ended = state.ended.unwrap_or_else(Instant::now);
        state.close(iterations, ended, true, None);
    }
}

/// Makes the worker thread wait until the device is idle, and waits for that at most for [`DRAIN_TIMEOUT`]. Returns
/// false if the device or the worker thread is still busy after that, or if there is no worker thread.
fn drain() -> bool {
    worker::run(Job::Drain, DRAIN_TIMEOUT)
}

/// Runs a job that another thread has requested. Called on the worker thread.
fn work(job: Job) {
    match job {
        Job::Drain => drain_here(),
        Job::Close { iterations, drain } => close_all(iterations, drain),
        Job::Events => recorder::gpu::make_events(),
        Job::Cupti(job) => cupti::work(job),
    }
}

/// Waits until the device is idle, without a time limit. Runs on the worker thread.
fn drain_here() {
    if let Some(driver) = Driver::get() {
        driver.synchronize_all();
    }
}

/// This crate's implementation of the session's [`Sink`](tllmprof_session::Sink), which is notified of windows and
/// iterations.
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

    fn begin_record(&self, settings: &'static Settings, facts: &SessionFacts<'_>) -> bool {
        recorder::begin(settings, facts);
        let is_on = recorder::is_on();
        if is_on && settings.windows.is_auto() {
            add_ons().for_each(|add_on| add_on.latest_are_kept());
        }
        is_on
    }

    fn rule_is_known(&self, facts: &SessionFacts<'_>) {
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

    fn span_begins(&self) {
        recorder::span_begins();
    }

    fn span_has_begun(&self) {
        add_ons().for_each(|add_on| add_on.span_has_begun());
    }

    fn step_is_seen(&self, n: u64, rule: u64) {
        recorder::step_is_seen(n, rule);
    }

    fn probable_steps_replace_span(&self) -> bool {
        recorder::probable_steps_replace_span()
    }

    fn span_is_replaced(&self, n: u64, rule: Option<u64>) {
        recorder::span_is_replaced(n, rule);
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
        matches!(point, Point::In(iteration) if cupti::has_edge_at(iteration) || self.is_behind())
    }

    fn is_behind(&self) -> bool {
        is_behind()
    }

    fn switch(&self, place: &Place<'_>, edge: Switched) {
        switch(place, edge);
    }

    fn ends(&self, iterations: u64, capturing: bool, by: EndReason) {
        if let Some(mut state) = STATE.lock_for(EXIT_TIMEOUT) {
            state.ended = Some(Instant::now());
            let is_cut = recorder::open_iteration().is_some_and(|open| open < iterations);
            state.parts.cut_by = is_cut.then_some(by);
        }
        add_ons().for_each(|add_on| add_on.process_ends());
        cupti::finish(iterations, capturing);
        recorder::ends(iterations);
    }

    fn finish(&self, iterations: u64, drain: bool, here: bool) {
        finish(iterations, drain, here);
    }

    fn is_unheard(&self) -> bool {
        let state = STATE.lock_for(EXIT_TIMEOUT);
        state.is_some_and(|state| state.unheard > 0 && state.heard == 0)
    }

    fn plans_none(&self, settings: &Settings) {
        recorder::plans_none(settings);
        add_ons().for_each(|add_on| add_on.no_window_is_planned());
    }

    fn latest_left(&self) -> u64 {
        recorder::latest_left()
    }

    fn lost(&self) -> Option<LostData> {
        let lost = recorder::lost()?;
        Some(LostData {
            iterations: lost.iterations,
            events: lost.events,
        })
    }

    fn finish_record(&self, in_order: bool) {
        recorder::finish(if in_order {
            Ended::InOrder
        } else {
            Ended::AtOnce
        });
    }

    fn ends_threads(&self) {
        worker::ends();
    }
}

/// Resets the state in the child process after a fork: the windows (ranges of profiled iterations) and NVTX ranges that
/// the parent process has open are not open in the child.
fn in_child(alone: &OnlyThread) {
    STATE.break_open(alone);
    let mut state = STATE.lock();
    state.open = None;
    if let Some(ranges) = &mut state.ranges {
        ranges.forget();
    }
}
