//! What is switched on for a window, and off after it.

mod cupti;
mod driver;
pub mod marks;
mod nvtx;
mod worker;

use core::time::Duration;
use std::time::Instant;

use tllmprof_config::{Settings, Window};

use crate::injection;
use crate::lock::Lock;
use crate::log;
use crate::python::{router, torch::profiler as torch};
use crate::record;
use crate::window::{self, Point, Taken};
use driver::Driver;
use nvtx::Ranges;
use record::Edge;
use worker::Job;

/// How long the device may take to become idle at the end of a window.
const DRAIN: Duration = Duration::from_secs(5);
/// How long closing a window may hold up the end of a process.
const LAST: Duration = Duration::from_secs(3);

/// How long a window's opening waits for the events that GPU times are taken with.
const EVENTS: Duration = Duration::from_millis(3);

static STATE: Lock<Capture> = Lock::new(Capture::new());

struct Capture {
    ranges: Option<Ranges>,
    open: Option<Open>,
    drains: bool,
}

/// A window under way.
struct Open {
    /// As it was asked for, which is how messages name it.
    window: Window,
    iteration: u64,
    since: Instant,
    profiling: bool,
}

/// How a place in the sequence of iterations is told.
pub struct Place<'a> {
    /// Where it is.
    pub point: Point,
    /// The rule, and the rank if there is one.
    pub by: core::fmt::Arguments<'a>,
    pub rank: Option<u64>,
    /// A stream capture is under way in the process: the device must be let be.
    pub capturing: bool,
}

impl Capture {
    const fn new() -> Self {
        Self {
            ranges: None,
            open: None,
            drains: true,
        }
    }
}

/// Runs what it is given so that no call made meanwhile counts.
pub type Uncounted = fn(&mut dyn FnMut());

/// Whether the process has loaded the driver.
pub fn has_driver() -> bool {
    Driver::is_known()
}

/// Writes the name of a kernel that the driver launches by `handle`, or the handle if it has none.
///
/// # Errors
/// Those of `out`.
pub fn write_kernel_name(out: &mut dyn core::fmt::Write, handle: u64) -> core::fmt::Result {
    let mut name = [0; Driver::NAME_LENGTH];
    match Driver::get().and_then(|driver| driver.kernel_name(handle, &mut name)) {
        Some(name) => out.write_str(name),
        None => write!(out, "{handle:#x}"),
    }
}

/// Gets ready for a process that has begun to use CUDA.
pub fn start(settings: &Settings, uncounted: Uncounted) {
    worker::set_uncounted(uncounted);
    record::set_helper(worker::ask_for_room);
    // Loads the tool: nothing is locked meanwhile.
    let wanted = settings.nvtx && injection::has_tool();
    let ranges = wanted.then(|| Ranges::new(&settings.nvtx_name));
    let mut state = STATE.lock();
    state.drains = settings.drain;
    state.ranges = ranges;
}

/// Moves from one iteration to the next.
///
/// One thread at a time; may take long, as profilers do. The PyTorch profiler is the last to be
/// started and the first to be stopped; it waits for the GIL, so nothing is locked meanwhile.
pub fn switch(place: &Place<'_>, edge: window::Edge) {
    let mut state = STATE.lock();
    record::iteration_ends(place.point != Point::Start);
    if let Some(ranges) = &mut state.ranges {
        ranges.end_iteration();
    }
    if edge.close.is_some() {
        cupti::window_closes(place.point.over());
        record::window_closes(place.point.over());
        record::gpu::work_ends(place.capturing);
        // The program may have another context by now than where the window opened.
        if let Some(driver) = Driver::get() {
            driver.remember_context();
        }
        let drained = place.capturing || !state.drains || drain();
        let ended = Instant::now();
        record::gpu::end();
        drop(state);
        cupti::window_has_closed(place.point.over(), place.capturing);
        torch::window_closes(place.capturing);
        STATE.lock().close(place.point.over(), ended, drained);
        torch::window_has_closed();
        router::window_has_closed(place.capturing);
        state = STATE.lock();
    }
    if let Some(window) = edge.open {
        drop(state);
        router::window_opens(place.capturing);
        state = STATE.lock();
        state.open(window, place);
        drop(state);
        cupti::window_opens();
        torch::window_opens(window.asked, place.rank);
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
        if let Some(open) = state.open.as_mut().filter(|_| edge.open.is_some()) {
            open.since = Instant::now();
        }
        if let Some(ranges) = &mut state.ranges {
            ranges.begin_iteration(iteration);
        }
        if edge.open.is_some() {
            record::gpu::window_opens(place.capturing);
            if record::gpu::wants_events() && !place.capturing {
                let _ = worker::run(Job::Events, EVENTS);
            }
            record::window_opens(iteration);
        }
        if begins {
            cupti::write_edge(Edge::Open, iteration);
        }
        record::iteration_begins(iteration);
    } else {
        record::gpu::between_iterations();
    }
}

/// Closes what is open at the end of the process, after `iterations`.
///
/// The work is done on a thread of its own with a time limit: the process may be ending because
/// the device hangs, or from a signal handler that interrupted the driver.
///
/// `drain`: the device may be waited for. `here`: without a worker, ranges may be ended on the
/// calling thread.
pub fn finish(iterations: u64, drain: bool, here: bool) {
    if torch::runs() {
        log::say!(
            Warn,
            "the process ends without Python's end: the PyTorch profiler's trace is lost"
        );
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

/// Ends the taking of kernels at the end of the process, after `iterations`. Before the record ends.
pub fn finish_kernels(iterations: u64, capturing: bool) {
    cupti::finish(iterations, capturing);
}

/// Whether kernels are to be taken.
pub fn takes_kernels(settings: &Settings) -> bool {
    cupti::is_wanted(settings)
}

/// Whether the taking of kernels has something to do at `point`.
pub fn has_kernels_edge_at(point: Point) -> bool {
    matches!(point, Point::In(iteration) if cupti::has_edge_at(iteration))
}

/// Ends ranges and closes the window; for [`finish`].
fn close_all(iterations: u64, drain: bool) {
    let drains = STATE.lock_for(LAST).is_some_and(|mut state| {
        if let Some(ranges) = &mut state.ranges {
            ranges.end_iteration();
        }
        state.drains && state.open.is_some()
    });
    record::gpu::work_ends(!drain);
    if drain && drains {
        drain_here();
    }
    record::gpu::end();
    if let Some(mut state) = STATE.lock_for(LAST) {
        state.close(iterations, Instant::now(), true);
    }
}

/// Waits for the device, for a bounded time; false if it is still busy.
fn drain() -> bool {
    worker::run(Job::Drain, DRAIN)
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
        worker::start();
        let profiling = driver.is_some_and(Driver::start_profiler);
        if let Some(ranges) = &mut self.ranges {
            ranges.begin_window();
        }
        self.open = Some(Open {
            window,
            iteration,
            since: Instant::now(),
            profiling,
        });
        if taken.is_late() {
            log::say!(
                Info,
                "window {window} opened at iteration {iteration} ({}; asked for {}: the step was \
                 still being learnt)",
                place.by,
                window.first
            );
        } else {
            log::say!(
                Info,
                "window {window} opened at iteration {iteration} ({})",
                place.by
            );
        }
    }

    fn close(&mut self, over: u64, ended: Instant, drained: bool) {
        let Some(open) = self.open.take() else { return };
        let elapsed = ended.saturating_duration_since(open.since);
        if let Some(ranges) = &mut self.ranges {
            ranges.end_window();
        }
        if open.profiling
            && let Some(driver) = Driver::get()
        {
            driver.stop_profiler();
        }
        if !drained {
            log::say!(
                Warn,
                "the device was not seen to be idle within {DRAIN:?} after window {}: its last work \
                 may be missing",
                open.window
            );
        }
        let iterations = over.saturating_sub(open.iteration);
        if !open.profiling {
            log::say!(
                Warn,
                "window {} is marked by NVTX ranges alone: the profiler did not start",
                open.window
            );
        }
        log::say!(
            Info,
            "window {} closed: {iterations} iteration{} in {:.3} ms",
            open.window,
            if iterations == 1 { "" } else { "s" },
            elapsed.as_secs_f64() * 1e3
        );
    }
}

/// The main thread is ending, and not by the end of the process.
pub fn main_thread_leaves() {
    worker::main_thread_leaves();
}

/// Forgets what the parent process had open. For the child of a fork.
///
/// # Safety
/// No other thread may be running.
pub unsafe fn after_fork() {
    // SAFETY: the caller's promise.
    unsafe {
        STATE.break_open();
        worker::after_fork();
        cupti::in_child();
    }
    let mut state = STATE.lock();
    state.open = None;
    if let Some(ranges) = &mut state.ranges {
        ranges.forget();
    }
}
