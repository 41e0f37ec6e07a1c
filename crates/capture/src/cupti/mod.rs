//! Records GPU kernels with CUPTI, in some iterations of each window (`TLLMPROF_KERNELS`): usually the first ones. But
//! in a window that lasts until its figures are precise enough, kernels are recorded only in the last iterations.
//!
//! ```text
//! window opens ──▶ attach ──▶ N iterations ──▶ detach ──▶ … window closes
//!                  load, subscribe, enable     gate closed: flush, finalise
//! ```
//!
//! CUPTI is attached only for these N iterations, because every launch costs more while it is attached. Only
//! detaching restores the speed. No thread may be in the driver while CUPTI detaches. The
//! [gate](tllmprof_platform::gate), which can hold back calls of the driver, ensures this. If the gate cannot ensure
//! it, CUPTI is only disabled, with a warning. If another profiler already uses CUPTI, that profiler keeps it.
//!
//! The [`plan`] decides the next action. Usually the thread that switches windows uses it. A thread that calls CUPTI
//! for another profiler and the thread that ends the process use the plan, too, so a lock (`PLAN`) guards it. The
//! [`jobs`] run on the worker thread. [`presence`] is the state of CUPTI in the driver, and [`attempt`] is the state of
//! a request to the worker. These three states are separate types that can be tested without CUPTI.

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
use tllmprof_config::{KernelSamples, KernelSelection, Settings};
use tllmprof_platform::lifecycle::{self, OnlyThread};

use super::worker;
use jobs::Left;
pub(crate) use jobs::{Job, work};
use plan::{Action, AttachPlan, NEVER, PlanEvent, Where};
use refusal::KernelsRefusal;
use tllmprof_platform::driver::Driver;
use tllmprof_platform::log;
use tllmprof_recorder as recorder;
use tllmprof_recorder::Edge;
use tllmprof_recorder::What;
use tllmprof_sync::Lock;

/// Free GPU memory, in bytes, that is required before CUPTI is attached. CUPTI uses up to 14 MB.
const MIN_FREE_MEMORY: usize = 32 << 20;
/// Maximum time that a thread of the program waits until CUPTI is loaded and attached.
const LOAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time to wait until the device is idle, before the gate (the barrier in front of the driver) is closed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time that the worker may take to detach CUPTI while the gate is closed and holds back driver calls. After
/// this time, the attempt is abandoned if this is still possible.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(300);
/// Maximum time to wait until CUPTI is detached, once the worker has begun to detach it and the attempt can no longer
/// be abandoned.
const FINALISE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time of each wait before another profiler's call of CUPTI: for the lock on the plan, for the worker, and for
/// the release of CUPTI. The call is delayed by these waits and by an attempt to detach CUPTI.
const YIELD_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time to wait at the end of the process: for the lock on the plan, and then for the worker, until CUPTI has
/// handed over its records.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);
lifecycle::global! {
    stage: Sinks;

    /// The next iteration at which the [`plan`] requires an action; [`NEVER`] if none does. The hot path reads this
    /// copy instead of the plan itself.
    #[fork(reset)]
    static NEXT: AtomicU64 = AtomicU64::new(NEVER);
    /// Number of iterations of the current window in which kernels are recorded.
    #[fork(keep = "stored where a window opens")]
    static STEPS: AtomicU64 = AtomicU64::new(0);
    /// Bit set of reasons why kernels are not recorded. A bit is 1 if the reason has already been logged. The bit of a
    /// reason is its [`KernelsRefusal::number`].
    #[fork(keep = "the parent has said it")]
    static REPORTED: AtomicU32 = AtomicU32::new(0);
    #[fork(by = in_child)]
    #[exit = "CUPTI is flushed"]
    pub(crate) static PLAN: Lock<AttachPlan> = Lock::new(AttachPlan::Off);
}

/// Returns true if the settings request the recording of kernels and no other setting or tool makes it impossible.
pub(crate) fn is_wanted(settings: &Settings) -> bool {
    settings.kernels.is_some() && settings.may_open_windows() && settings.obstacle().is_none()
}

trait Obstacle {
    fn obstacle(&self) -> Option<KernelsRefusal>;
}

impl Obstacle for Settings {
    /// Returns the reason why kernels cannot be recorded with these settings in this environment. `None` if they can.
    fn obstacle(&self) -> Option<KernelsRefusal> {
        if !recorder::is_asked_for(self) {
            Some(KernelsRefusal::NoRecord)
        } else if self.torch_trace.is_some() {
            Some(KernelsRefusal::TorchProfiler)
        } else if self.kernels == Some(KernelSelection::Auto) && is_part_of_a_gpu() {
            Some(KernelsRefusal::Mig)
        } else if std::env::var_os("CUDA_INJECTION64_PATH").is_some_and(|path| !path.is_empty()) {
            Some(KernelsRefusal::Injected)
        } else {
            None
        }
    }
}

/// Returns true if an environment variable shows that the process uses a MIG instance, which is a part of a GPU.
fn is_part_of_a_gpu() -> bool {
    ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"]
        .into_iter()
        .filter_map(std::env::var_os)
        .any(|devices| devices.as_encoded_bytes().starts_with(b"MIG-"))
}

/// Returns true if another profiler in this process uses CUPTI.
pub(crate) fn others_have_it() -> bool {
    others::have_it()
}

/// Returns true if the plan may require an action, such as attaching CUPTI, when `iteration` begins.
pub(crate) fn has_edge_at(iteration: u64) -> bool {
    iteration >= NEXT.load(Ordering::Relaxed)
}

/// Logs the reason if the settings request samples of kernels (short recordings at a fixed interval) that cannot be
/// taken. Called when the process begins to use CUDA.
pub(crate) fn start(settings: &Settings) {
    let is_sampled = settings
        .kernels
        .and_then(KernelSelection::samples)
        .is_some();
    if let Some(refusal) = settings.obstacle().filter(|_| is_sampled) {
        say_refusal(&refusal);
    }
}

/// Prepares to record kernels in the next `kernels` iterations; `None` means that no kernels are recorded. Called when
/// a window opens, or opens again after it was interrupted. Also called when an open window reaches the iterations in
/// which kernels are recorded.
pub(crate) fn may_take(kernels: Option<u64>) {
    let settings = tllmprof_session::activity::settings();
    let Some((settings, steps)) = settings.zip(kernels) else {
        return;
    };
    STEPS.store(steps, Ordering::Relaxed);
    let mut plan = PLAN.lock();
    if let Some(refusal) = settings.obstacle() {
        say_refusal(&refusal);
        plan.on(PlanEvent::Obstructed);
    } else if recorder::is_on() {
        plan.on(PlanEvent::Opens);
    }
}

/// Performs the action (such as attaching CUPTI) that the plan requires before `iteration` begins. Returns true if the
/// recording of kernels begins with this iteration. If `capturing` is true, a stream capture is active, so the device
/// must not be used.
pub(crate) fn reach(iteration: u64, capturing: bool) -> bool {
    if !has_edge_at(iteration) {
        return false;
    }
    let mut plan = PLAN.lock();
    let cupti = whereabouts();
    let action = plan.on(PlanEvent::Begins {
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

/// Ends the recording of kernels when the window is about to close. `over` is the first iteration after the window.
pub(crate) fn window_closes(over: u64) {
    let action = PLAN.lock().on(PlanEvent::Closes { over });
    write_stop(action, over);
    if action == Action::SayCaptured {
        log::say!(
            Debug,
            "no kernels: in this window, no iteration began outside a stream capture"
        );
    }
}

/// Must be called before another profiler in this process calls a function of CUPTI. Releases CUPTI first, unless the
/// call only ends a subscription.
pub(crate) fn is_called(call: CuptiCall) {
    if others::call(call) {
        yield_to_another();
    }
}

/// Must be called after another profiler's call of CUPTI has returned. Stores whether that profiler now uses CUPTI.
pub(crate) fn was_called(call: CuptiCall, succeeded: bool) {
    others::returned(call, succeeded);
}

/// Detaches CUPTI in favour of another profiler in this process. The other profiler has priority: if CUPTI stayed
/// attached, CUPTI would refuse the other profiler's call, or that profiler would lose its records.
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
    plan.on(PlanEvent::Yields);
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

/// Detaches CUPTI after the window (the range of profiled iterations) has closed, if the plan requires this. `over` is
/// the first iteration after the window. If `capturing` is true, a stream capture is active, so CUPTI is not detached.
pub(crate) fn window_has_closed(over: u64, capturing: bool) {
    let mut plan = PLAN.lock();
    let cupti = whereabouts();
    let closed = PlanEvent::Closed {
        over,
        capturing,
        cupti,
    };
    if plan.on(closed) == Action::Leave {
        plan.leave(over);
    }
}

/// Ends the recording of kernels and flushes CUPTI when the process ends. `over` is the number of iterations that the
/// process has made.
pub(crate) fn finish(over: u64, capturing: bool) {
    let Some(mut plan) = PLAN.lock_for(EXIT_TIMEOUT) else {
        return;
    };
    write_stop(plan.on(PlanEvent::Ends), over);
    drop(plan);
    jobs::set_capturing(capturing);
    flush_at_exit();
}

/// Returns the state of CUPTI: not attached, attached, or being attached. [`presence`] has no state for the last of
/// these, in which the worker is attaching CUPTI at this moment.
fn whereabouts() -> Where {
    if worker::is_about(worker::Job::Cupti(Job::Attach)) {
        Where::Coming
    } else if jobs::is_in() {
        Where::In
    } else {
        Where::Out
    }
}

/// Logs the reason why no kernels are recorded. Each reason is logged once.
fn say_refusal(refusal: &KernelsRefusal) {
    let bit = 1 << refusal.number();
    if REPORTED.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
        return;
    }
    let settings = tllmprof_session::activity::settings();
    if settings.is_some_and(|settings| settings.kernels == Some(KernelSelection::Auto)) {
        log::say!(Info, "the window has no kernels: {refusal}");
    } else {
        log::say!(Warn, "no kernels: {refusal}");
    }
}

/// If `action` requires it, writes into the record which iteration was the last one with recorded kernels. This is the
/// iteration before `over` or, for [`Action::StopBefore`], the second one before `over`.
fn write_stop(action: Action, over: u64) {
    let over = match action {
        Action::Stop | Action::StopAndLeave => over,
        Action::StopBefore => over.saturating_sub(1),
        _ => return,
    };
    write_edge(Edge::Close, over.saturating_sub(1));
}

/// Makes CUPTI hand over its remaining records when the process ends.
fn flush_at_exit() {
    lifecycle::global! {
        #[fork(keep = "the child has no worker to wait for")]
        static WAITED: AtomicBool = AtomicBool::new(false);
    }
    if worker::is_about(worker::Job::Cupti(Job::Attach)) {
        // The worker is still attaching CUPTI. The records of that attempt are not needed, but the process should not
        // end in the middle of the attempt.
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
    /// Changes the plan for CUPTI as `event` requires. Returns the action that the calling thread must perform.
    pub(crate) fn on(&mut self, event: PlanEvent) -> Action {
        let (next, action) = self.next(event);
        *self = next;
        NEXT.store(next.due(), Ordering::Relaxed);
        action
    }

    /// Attaches CUPTI, so that the recording of kernels begins with `iteration`. Returns true on success.
    fn attach(&mut self, iteration: u64) -> bool {
        jobs::begin_attempt();
        let is_done = worker::run(worker::Job::Cupti(Job::Attach), LOAD_TIMEOUT);
        let refusal = if is_done {
            jobs::refused()
        } else {
            jobs::forget_attach();
            Some(if worker::lacks_memory() {
                KernelsRefusal::ThreadLocals
            } else {
                KernelsRefusal::Slow
            })
        };
        if let Some(refusal) = refusal {
            say_refusal(&refusal);
            self.on(PlanEvent::NotAttached {
                iteration,
                may_pass: refusal.may_pass(),
                may_be_in: !is_done || jobs::is_in(),
            });
            return false;
        }
        let until = iteration.saturating_add(STEPS.load(Ordering::Relaxed).max(1));
        self.on(PlanEvent::Attached { until });
        true
    }

    /// Tries to detach CUPTI at the beginning of `iteration`, and logs the result. After a failure, the plan may
    /// require a further attempt at a later iteration.
    fn leave(&mut self, iteration: u64) {
        let since = Instant::now();
        let was_on = jobs::is_on();
        let left = leave_once();
        let is_off = !jobs::is_on();
        if was_on && is_off {
            log_totals();
        }
        self.on(match left {
            Left::Yes | Left::Unseen | Left::Shared => PlanEvent::Left,
            Left::Busy => PlanEvent::Busy { iteration },
            Left::Early => PlanEvent::Early { iteration },
            Left::Failed(_) | Left::Hangs => PlanEvent::Broken,
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

/// Makes one attempt to detach CUPTI. Waits for a limited time only, and returns [`Left::Busy`] or [`Left::Hangs`] if
/// this time was not enough.
fn leave_once() -> Left {
    if jobs::is_early() {
        return Left::Early;
    }
    // The worker needs a CUDA context of the program. The current one is stored again, because the program may use
    // another context now than when the window (the range of profiled iterations) opened.
    if let Some(driver) = Driver::get() {
        driver.remember_context();
    }
    // Waits for the GPU work that has been launched so far. Other threads of the program continue in the meantime.
    if !worker::run(worker::Job::Drain, DRAIN_TIMEOUT) {
        return Left::Busy;
    }
    jobs::begin_attempt();
    if worker::run(worker::Job::Cupti(Job::Leave), LEAVE_TIMEOUT) {
        return jobs::left();
    }
    // The job took too long. The reason may be a deadlock: the device waits for a thread of the program, and the closed
    // gate keeps this thread out of the driver. So the attempt is abandoned.
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
    if let Some(calls) = totals.calls {
        log::say!(
            Debug,
            "{} kernels, {} copies and {} memsets were taken, of {calls} calls",
            totals.kernels,
            totals.copies,
            totals.sets
        );
    }
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

/// Writes into the record that the recording of kernels begins or ends at `iteration`.
pub(crate) fn write_edge(edge: Edge, iteration: u64) {
    let what = What::KernelWindow { edge, iteration };
    recorder::late(&recorder::Event::new(recorder::ticks(), 0, what));
}

/// Writes into the record that kernels are sampled from `iteration` on. Sampling means that they are recorded during a
/// few iterations at a time, at a fixed interval.
pub(crate) fn write_sample(samples: KernelSamples, iteration: u64) {
    let what = What::KernelSample {
        steps: u16::try_from(samples.steps).unwrap_or(u16::MAX),
        every_ms: u32::try_from(samples.every.as_millis()).unwrap_or(u32::MAX),
        iteration: iteration as u32,
    };
    recorder::late(&recorder::Event::new(recorder::ticks(), 0, what));
}

/// Resets the plan in the child process after a fork.
fn in_child(alone: &OnlyThread) {
    PLAN.break_open(alone);
    // If the parent process has loaded CUPTI, that CUPTI refers to the parent's threads, so the child cannot record
    // kernels.
    *PLAN.lock() = AttachPlan::of_child(library::Cupti::get().is_some());
}
