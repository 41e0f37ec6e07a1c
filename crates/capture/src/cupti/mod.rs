//! GPU kernels, in an inner window at the beginning of each window (`TLLMPROF_KERNELS`).
//!
//! ```text
//! window opens ──▶ attach ──▶ N iterations ──▶ detach ──▶ … window closes
//!                  load, subscribe, enable     gate closed: flush, finalise
//! ```
//!
//! CUPTI is attached only that long: while it is, each launch costs more, and only detaching gives the speed back. When
//! it detaches, no thread may be in the driver, which the [gate](tllmprof_platform::gate) ensures. If the gate cannot,
//! CUPTI is only disabled, with a warning. A profiler that already uses CUPTI keeps it.
//!
//! Only the thread that switches calls this, one at a time; the [`jobs`] run on the worker. The states are separate
//! types, which need neither CUPTI nor a lock: [`plan`] says what to do next, [`presence`] is the state of CUPTI in the
//! driver, and [`attempt`] is the request to the worker.

mod activity;
mod attempt;
mod buffers;
mod clock;
mod jobs;
mod library;
mod others;
pub(crate) mod plan;
mod presence;
mod refusal;
mod taking;
#[cfg(test)]
mod tests;

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::time::Instant;

use tllmprof_calls::CuptiCall;
use tllmprof_config::{KernelSamples, Kernels, Settings};
use tllmprof_platform::lifecycle::{self, OnlyThread};

use super::worker;
use jobs::Left;
pub use jobs::{Job, work};
use plan::{Action, AttachPlan, Event, NEVER, Where};
use refusal::Refusal;
use tllmprof_platform::driver::Driver;
use tllmprof_platform::log;
use tllmprof_recorder as recorder;
use tllmprof_recorder::Edge;
use tllmprof_recorder::What;
use tllmprof_sync::Lock;

/// Free GPU memory that is required, in bytes: CUPTI uses up to 14 MB of it.
const MIN_FREE_MEMORY: usize = 32 << 20;
/// Longest time that the program's thread waits for CUPTI to be loaded.
const LOAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest times to wait for the device to become idle before the gate is closed, and for the work while it is closed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
const LEAVE_TIMEOUT: Duration = Duration::from_millis(300);
/// Longest time to wait for CUPTI to detach once that has begun, as it cannot be undone.
const FINALISE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time that another profiler waits for CUPTI.
const YIELD_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest time that the end of the process waits for CUPTI's records.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);
lifecycle::global! {
    stage: Sinks;

    /// The iteration at which something must be done next, for the hot path; [`NEVER`] for none.
    #[fork(reset)]
    static NEXT: AtomicU64 = AtomicU64::new(NEVER);
    /// Number of the window's iterations in which kernels are recorded.
    #[fork(keep = "stored where a window opens")]
    static STEPS: AtomicU64 = AtomicU64::new(0);
    /// Refusals that were reported, one bit each.
    #[fork(keep = "the parent has said it")]
    static REPORTED: AtomicU32 = AtomicU32::new(0);
    #[fork(by = in_child)]
    #[exit = "CUPTI is flushed"]
    pub(crate) static PLAN: Lock<AttachPlan> = Lock::new(AttachPlan::Off);
}

/// Returns true if the variables ask for kernels and allow them. Called early and often.
pub fn is_wanted(settings: &Settings) -> bool {
    settings.kernels.is_some() && settings.may_open_windows() && settings.obstacle().is_none()
}

trait Obstacle {
    fn obstacle(&self) -> Option<Refusal>;
}

impl Obstacle for Settings {
    /// Returns the reason why the variables rule kernels out.
    fn obstacle(&self) -> Option<Refusal> {
        if !recorder::is_asked_for(self) {
            Some(Refusal::NoRecord)
        } else if self.torch_trace.is_some() {
            Some(Refusal::TorchProfiler)
        } else if self.kernels == Some(Kernels::Auto) && is_part_of_a_gpu() {
            Some(Refusal::Mig)
        } else if std::env::var_os("CUDA_INJECTION64_PATH").is_some_and(|path| !path.is_empty()) {
            Some(Refusal::Injected)
        } else {
            None
        }
    }
}

/// Returns true if the process uses an MIG instance, according to its variables.
fn is_part_of_a_gpu() -> bool {
    ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"]
        .into_iter()
        .filter_map(std::env::var_os)
        .any(|devices| devices.as_encoded_bytes().starts_with(b"MIG-"))
}

/// Returns true if another profiler in this process uses CUPTI.
pub fn others_have_it() -> bool {
    others::have_it()
}

/// Returns true if something must be done when `iteration` begins.
pub fn has_edge_at(iteration: u64) -> bool {
    iteration >= NEXT.load(Ordering::Relaxed)
}

/// Reports why no kernels are sampled, if samples are requested and impossible. Called when the process begins to use
/// CUDA.
pub fn start(settings: &Settings) {
    let is_sampled = settings.kernels.and_then(Kernels::samples).is_some();
    if let Some(refusal) = settings.obstacle().filter(|_| is_sampled) {
        say_refusal(&refusal);
    }
}

/// Prepares to record kernels in `kernels` iterations of a window that opens, or of its part with kernels.
pub fn may_take(kernels: Option<u64>) {
    let settings = tllmprof_session::activity::settings();
    let Some((settings, steps)) = settings.zip(kernels) else {
        return;
    };
    STEPS.store(steps, Ordering::Relaxed);
    let mut plan = PLAN.lock();
    if let Some(refusal) = settings.obstacle() {
        say_refusal(&refusal);
        plan.on(Event::Obstructed);
    } else if recorder::is_on() {
        plan.on(Event::Opens);
    }
}

/// Does what the plan requires before `iteration` begins, after the one before has ended. Returns true if kernels are
/// recorded from here on. If `capturing`, a stream capture is under way, and the device must not be used.
pub fn reach(iteration: u64, capturing: bool) -> bool {
    if !has_edge_at(iteration) {
        return false;
    }
    let mut plan = PLAN.lock();
    let cupti = whereabouts();
    let action = plan.on(Event::Begins {
        iteration,
        capturing,
        cupti,
    });
    write_stop(action, iteration);
    match action {
        Action::Attach => return plan.attach(iteration),
        Action::StopAndLeave | Action::Leave => plan.leave(iteration),
        _ => {}
    }
    false
}

/// Ends the recording of kernels before the window closes, before iteration `over`.
pub fn window_closes(over: u64) {
    let action = PLAN.lock().on(Event::Closes { over });
    write_stop(action, over);
    if action == Action::SayCaptured {
        log::say!(
            Debug,
            "no kernels: a stream was being captured all the while"
        );
    }
}

/// Releases CUPTI if another profiler in this process is about to take it with this call.
pub fn is_called(call: CuptiCall) {
    if others::call(call) {
        yield_to_another();
    }
}

/// Notes that that call has returned.
pub fn was_called(call: CuptiCall, succeeded: bool) {
    others::returned(call, succeeded);
}

/// Detaches CUPTI for another profiler, which has priority: otherwise it would be refused, or lose its records.
fn yield_to_another() {
    if whereabouts() == Where::Out {
        return;
    }
    let Some(mut plan) = PLAN.lock_for(YIELD_TIMEOUT) else {
        log::say!(
            Warn,
            "CUPTI could not be left to another profiler in this process within {YIELD_TIMEOUT:?}"
        );
        return;
    };
    if whereabouts() == Where::Coming {
        jobs::forget_attach();
        worker::await_rest(YIELD_TIMEOUT);
    }
    if !jobs::is_in() {
        return;
    }
    let was_on = jobs::is_on();
    plan.on(Event::Yields);
    if leave_once() != Left::Yes {
        worker::run(worker::Job::Cupti(Job::Release), YIELD_TIMEOUT);
    }
    if was_on {
        log_totals();
        log::say!(
            Warn,
            "another profiler in this process takes CUPTI: no kernels from here"
        );
    }
    taking::end();
}

/// Detaches CUPTI, if that is due, after the window has closed. The device is idle, unless it must not be used.
pub fn window_has_closed(over: u64, capturing: bool) {
    let mut plan = PLAN.lock();
    let cupti = whereabouts();
    let closed = Event::Closed {
        over,
        capturing,
        cupti,
    };
    if plan.on(closed) == Action::Leave {
        plan.leave(over);
    }
}

/// Writes the end of the recording, and flushes CUPTI, when the process ends after `over` iterations.
pub fn finish(over: u64, capturing: bool) {
    let Some(mut plan) = PLAN.lock_for(EXIT_TIMEOUT) else {
        return;
    };
    write_stop(plan.on(Event::Ends), over);
    drop(plan);
    jobs::set_capturing(capturing);
    flush_at_exit();
}

/// Returns the state of CUPTI, including that the worker is attaching it.
fn whereabouts() -> Where {
    if worker::is_about(worker::Job::Cupti(Job::Attach)) {
        Where::Coming
    } else if jobs::is_in() {
        Where::In
    } else {
        Where::Out
    }
}

/// Reports why there are no kernels, each reason once.
fn say_refusal(refusal: &Refusal) {
    let bit = 1 << refusal.number();
    if REPORTED.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
        return;
    }
    let settings = tllmprof_session::activity::settings();
    if settings.is_some_and(|settings| settings.kernels == Some(Kernels::Auto)) {
        log::say!(Info, "the window has no kernels: {refusal}");
    } else {
        log::say!(Warn, "no kernels: {refusal}");
    }
}

/// Writes that kernels were recorded in the iterations before `over`, if `action` says so.
fn write_stop(action: Action, over: u64) {
    let over = match action {
        Action::Stop | Action::StopAndLeave => over,
        Action::StopBefore => over.saturating_sub(1),
        _ => return,
    };
    write_edge(Edge::Close, over.saturating_sub(1));
}

/// Makes CUPTI hand over its records, at the end of the process.
fn flush_at_exit() {
    lifecycle::global! {
        #[fork(keep = "the child has no worker to wait for")]
        static WAITED: AtomicBool = AtomicBool::new(false);
    }
    if worker::is_about(worker::Job::Cupti(Job::Attach)) {
        // It has recorded nothing that is wanted, but the process should not end in the middle of the attempt.
        if !WAITED.swap(true, Ordering::Relaxed) {
            worker::await_rest(EXIT_TIMEOUT);
        }
    } else if jobs::is_on() && worker::is_there() {
        let is_done = worker::run(worker::Job::Cupti(Job::Flush), EXIT_TIMEOUT);
        if is_done {
            log_totals();
        } else {
            log::say!(
                Warn,
                "CUPTI did not hand over what it has within {EXIT_TIMEOUT:?} at the end: kernels are missing"
            );
        }
    }
}

impl AttachPlan {
    /// Handles `event`, and returns what to do about it.
    pub fn on(&mut self, event: Event) -> Action {
        let (next, action) = self.next(event);
        *self = next;
        NEXT.store(next.due(), Ordering::Relaxed);
        action
    }

    /// Begins to record kernels with `iteration`. Returns true on success.
    fn attach(&mut self, iteration: u64) -> bool {
        jobs::begin_attempt();
        let is_done = worker::run(worker::Job::Cupti(Job::Attach), LOAD_TIMEOUT);
        let refusal = if is_done {
            jobs::refused()
        } else {
            jobs::forget_attach();
            Some(if worker::lacks_memory() {
                Refusal::ThreadLocals
            } else {
                Refusal::Slow
            })
        };
        if let Some(refusal) = refusal {
            say_refusal(&refusal);
            self.on(Event::NotAttached {
                iteration,
                may_pass: refusal.may_pass(),
                may_be_in: !is_done || jobs::is_in(),
            });
            return false;
        }
        let until = iteration.saturating_add(STEPS.load(Ordering::Relaxed).max(1));
        self.on(Event::Attached { until });
        true
    }

    /// Detaches CUPTI when `iteration` begins.
    fn leave(&mut self, iteration: u64) {
        let since = Instant::now();
        let was_on = jobs::is_on();
        let left = leave_once();
        let is_off = !jobs::is_on();
        if was_on && is_off {
            log_totals();
        }
        self.on(match left {
            Left::Yes | Left::Unseen | Left::Shared => Event::Left,
            Left::Busy => Event::Busy { iteration },
            Left::Early => Event::Early { iteration },
            Left::Failed(_) | Left::Hangs => Event::Broken,
        });
        match left {
            Left::Yes => log::say!(
                Debug,
                "CUPTI is out after {:.3} ms; the gate was closed for {:.3} ms",
                since.elapsed().as_secs_f64() * 1e3,
                jobs::closed_us() as f64 / 1e3
            ),
            Left::Busy if self.is_leaving() => log::say!(
                Debug,
                "CUPTI could not be taken out: a thread was in the driver"
            ),
            Left::Early if was_on => log::say!(
                Debug,
                "CUPTI is not taken out yet: modules that call the driver were loaded"
            ),
            Left::Early => {}
            Left::Busy => warn_stays("other threads were in the driver whenever it was to go"),
            Left::Unseen => warn_stays("not all calls of the driver are seen"),
            Left::Shared => log::say!(Debug, "CUPTI stays: another profiler has it"),
            Left::Failed(status) => {
                log::say!(Warn, "cuptiFinalize failed with error {status}");
            }
            Left::Hangs => {
                log::say!(
                    Warn,
                    "cuptiFinalize did not end within {FINALISE_TIMEOUT:?}"
                );
            }
        }
        if !self.is_leaving() {
            taking::end();
        }
    }
}

/// Tries once to detach CUPTI, in a bounded time.
fn leave_once() -> Left {
    if jobs::is_early() {
        return Left::Early;
    }
    // The program may have another context by now than when the window opened.
    if let Some(driver) = Driver::get() {
        driver.remember_context();
    }
    // Wait for the work so far while other threads continue.
    if !worker::run(worker::Job::Drain, DRAIN_TIMEOUT) {
        return Left::Busy;
    }
    jobs::begin_attempt();
    if worker::run(worker::Job::Cupti(Job::Leave), LEAVE_TIMEOUT) {
        return jobs::left();
    }
    // The device may be busy with work that waits for another thread.
    if jobs::abandon_attempt() {
        return Left::Busy;
    }
    if worker::await_rest(FINALISE_TIMEOUT) {
        jobs::left()
    } else {
        Left::Hangs
    }
}

fn warn_stays(why: &str) {
    log::say!(
        Warn,
        "CUPTI stays attached but disabled: {why}, and detaching it then destroys the context; \
         launches may cost a quarter more from here"
    );
}

fn log_totals() {
    let totals = taking::totals();
    log::say!(
        Debug,
        "{} kernels, {} copies and {} memsets were taken, of {} calls",
        totals.kernels,
        totals.copies,
        totals.sets,
        totals.calls
    );
    let lost = totals.dropped + totals.untimed;
    if lost > 0 {
        log::say!(
            Warn,
            "{lost} kernels and copies are missing: CUPTI dropped {} and gave {} no times",
            totals.dropped,
            totals.untimed
        );
    }
}

/// Writes that the recording of kernels begins or ends.
pub fn write_edge(edge: Edge, iteration: u64) {
    let what = What::KernelWindow { edge, iteration };
    recorder::late(&recorder::Event::new(recorder::ticks(), 0, what));
}

/// Writes that the kernels recorded from `iteration` on are a sample.
pub fn write_sample(samples: KernelSamples, iteration: u64) {
    let what = What::KernelSample {
        steps: u16::try_from(samples.steps).unwrap_or(u16::MAX),
        every_ms: u32::try_from(samples.every.as_millis()).unwrap_or(u32::MAX),
        iteration: iteration as u32,
    };
    recorder::late(&recorder::Event::new(recorder::ticks(), 0, what));
}

/// Resets the plan in the child of a fork.
fn in_child(alone: &OnlyThread) {
    PLAN.break_open(alone);
    // The CUPTI that the parent loaded refers to the parent's threads.
    *PLAN.lock() = AttachPlan::of_child(library::Cupti::get().is_some());
}
