//! GPU kernels, in an inner window at the beginning of each window (`TLLMPROF_KERNELS`).
//!
//! ```text
//! window opens ──▶ attach ──▶ so many iterations ──▶ leave ──▶ … window closes
//!                  load, subscribe, enable           gate closed: flush, finalise
//! ```
//!
//! CUPTI is in the process for no longer than that: while it is, each launch costs more, and only
//! taking it out again gives the speed back. That must find no thread in the driver, which the
//! [gate](tllmprof_platform::gate) makes sure of; where it cannot, CUPTI is only disabled, with a
//! warning. Whoever has CUPTI already keeps it.
//!
//! One thread at a time comes here, the one that switches; [`jobs`] are the worker's. The states lie
//! apart, as they need neither CUPTI nor a lock: [`plan`] is what is to be done, [`presence`] how far
//! CUPTI is in the driver, [`attempt`] what the worker was asked for.

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
use plan::{Action, Event, NEVER, Plan, Where};
use refusal::Refusal;
use tllmprof_platform::driver::Driver;
use tllmprof_platform::log;
use tllmprof_recorder as recorder;
use tllmprof_recorder::Edge;
use tllmprof_recorder::What;
use tllmprof_sync::Lock;

/// Bytes of the GPU's memory that have to be free: CUPTI takes up to 14 MB of them.
const LEAST_MEMORY: usize = 32 << 20;
/// How long the program's thread waits for CUPTI to be loaded.
const LOADING: Duration = Duration::from_secs(10);
/// How long for the device to become idle before the gate is closed, and for what is done behind it.
const DRAIN: Duration = Duration::from_secs(1);
const LEAVING: Duration = Duration::from_millis(300);
/// How long for CUPTI to go once it is being taken out, which cannot be undone.
const FINALISING: Duration = Duration::from_secs(10);
/// How long another profiler waits for its turn with CUPTI.
const YIELDING: Duration = Duration::from_secs(1);
/// How long the end of the process waits for what CUPTI has.
const LAST: Duration = Duration::from_secs(3);
lifecycle::global! {
    stage: Sinks;

    /// The iteration at which there is something to do next, for the hot path; [`NEVER`] for none.
    #[fork(reset)]
    static NEXT: AtomicU64 = AtomicU64::new(NEVER);
    /// In how many iterations of the window kernels are taken.
    #[fork(keep = "stored where a window opens")]
    static STEPS: AtomicU64 = AtomicU64::new(0);
    /// Refusals that were reported, one bit each.
    #[fork(keep = "the parent has said it")]
    static REPORTED: AtomicU32 = AtomicU32::new(0);
    #[fork(by = in_child)]
    #[exit = "CUPTI is asked for what it has"]
    pub(crate) static PLAN: Lock<Plan> = Lock::new(Plan::Off);
}

/// Whether kernels are to be taken, as far as the variables say. Asked early and often.
pub fn is_wanted(settings: &Settings) -> bool {
    settings.kernels.is_some() && settings.may_open_windows() && settings.obstacle().is_none()
}

trait Obstacle {
    fn obstacle(&self) -> Option<Refusal>;
}

impl Obstacle for Settings {
    /// What the variables have against it.
    fn obstacle(&self) -> Option<Refusal> {
        if !recorder::is_asked_for(self) {
            Some(Refusal::NoRecord)
        } else if self.torch_trace.is_some() {
            Some(Refusal::TorchProfiler)
        } else if std::env::var_os("CUDA_INJECTION64_PATH").is_some_and(|path| !path.is_empty()) {
            Some(Refusal::Injected)
        } else {
            None
        }
    }
}

/// Whether another profiler in this process has CUPTI.
pub fn others_have_it() -> bool {
    others::have_it()
}

/// Whether there is something to do where `iteration` begins.
pub fn has_edge_at(iteration: u64) -> bool {
    iteration >= NEXT.load(Ordering::Relaxed)
}

/// The process begins to use CUDA: why none are sampled, if that is asked for and cannot be.
pub fn start(settings: &Settings) {
    let is_sampled = settings.kernels.and_then(Kernels::samples).is_some();
    if let Some(refusal) = settings.obstacle().filter(|_| is_sampled) {
        say_refusal(&refusal);
    }
}

/// A window opens, with kernels in so many of its iterations.
pub fn window_opens(kernels: Option<u64>) {
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

/// `iteration` is about to begin, and what came before it is over. Whether kernels are taken from
/// here on. `capturing`: a stream capture is under way, and the device must be left alone.
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

/// The window is about to close before iteration `over`: nothing more is taken.
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

/// Another profiler in this process calls this function of CUPTI's.
pub fn is_called(call: CuptiCall) {
    if others::call(call) {
        yield_to_another();
    }
}

/// That call has returned.
pub fn was_called(call: CuptiCall, succeeded: bool) {
    others::returned(call, succeeded);
}

/// Takes CUPTI out for another profiler, which comes first: it would be refused, or lose what it takes.
fn yield_to_another() {
    if whereabouts() == Where::Out {
        return;
    }
    let Some(mut plan) = PLAN.lock_for(YIELDING) else {
        log::say!(
            Warn,
            "CUPTI could not be left to another profiler in this process within {YIELDING:?}"
        );
        return;
    };
    if whereabouts() == Where::Coming {
        jobs::forget_attach();
        worker::await_rest(YIELDING);
    }
    if !jobs::is_in() {
        return;
    }
    let was_on = jobs::is_on();
    plan.on(Event::Yields);
    if leave_once() != Left::Yes {
        worker::run(worker::Job::Cupti(Job::Release), YIELDING);
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

/// The window has closed, and the device was waited for unless it must be left alone.
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

/// The process ends after `over` iterations.
pub fn finish(over: u64, capturing: bool) {
    let Some(mut plan) = PLAN.lock_for(LAST) else {
        return;
    };
    write_stop(plan.on(Event::Ends), over);
    drop(plan);
    jobs::set_capturing(capturing);
    flush_at_exit();
}

/// Where CUPTI is.
fn whereabouts() -> Where {
    if worker::is_about(worker::Job::Cupti(Job::Attach)) {
        Where::Coming
    } else if jobs::is_in() {
        Where::In
    } else {
        Where::Out
    }
}

/// Says why there are no kernels, each reason once.
fn say_refusal(refusal: &Refusal) {
    let bit = 1 << refusal.number();
    if REPORTED.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        log::say!(Warn, "no kernels: {refusal}");
    }
}

/// Writes that kernels were taken in the iterations before `over`, where `action` says so.
fn write_stop(action: Action, over: u64) {
    let over = match action {
        Action::Stop | Action::StopAndLeave => over,
        Action::StopBefore => over.saturating_sub(1),
        _ => return,
    };
    write_edge(Edge::Close, over.saturating_sub(1));
}

/// Has what CUPTI has taken down.
fn flush_at_exit() {
    lifecycle::global! {
        #[fork(keep = "the child has no worker to wait for")]
        static WAITED: AtomicBool = AtomicBool::new(false);
    }
    if worker::is_about(worker::Job::Cupti(Job::Attach)) {
        // It has taken nothing that is wanted, but should not be in the middle of it when it ends.
        if !WAITED.swap(true, Ordering::Relaxed) {
            worker::await_rest(LAST);
        }
    } else if jobs::is_on() && worker::is_there() {
        let is_done = worker::run(worker::Job::Cupti(Job::Flush), LAST);
        if is_done {
            log_totals();
        } else {
            log::say!(
                Warn,
                "CUPTI did not hand over what it has within {LAST:?} at the end: kernels are missing"
            );
        }
    }
}

impl Plan {
    /// `event` happens; what is to be done about it.
    pub fn on(&mut self, event: Event) -> Action {
        let (next, action) = self.next(event);
        *self = next;
        NEXT.store(next.due(), Ordering::Relaxed);
        action
    }

    /// Begins to take kernels with `iteration`; whether that worked.
    fn attach(&mut self, iteration: u64) -> bool {
        jobs::begin_attempt();
        let is_done = worker::run(worker::Job::Cupti(Job::Attach), LOADING);
        let refusal = if is_done {
            jobs::refused()
        } else {
            jobs::forget_attach();
            Some(Refusal::Slow)
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

    /// Takes CUPTI out where `iteration` begins.
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
                log::say!(Warn, "cuptiFinalize did not end within {FINALISING:?}");
            }
        }
        if !self.is_leaving() {
            taking::end();
        }
    }
}

/// Tries to take CUPTI out, in a bounded time.
fn leave_once() -> Left {
    if jobs::is_early() {
        return Left::Early;
    }
    // The program may have another context by now than where the window opened.
    if let Some(driver) = Driver::get() {
        driver.remember_context();
    }
    // What was launched so far is waited for while others go on.
    if !worker::run(worker::Job::Drain, DRAIN) {
        return Left::Busy;
    }
    jobs::begin_attempt();
    if worker::run(worker::Job::Cupti(Job::Leave), LEAVING) {
        return jobs::left();
    }
    // The device is busy with what needs another thread, maybe.
    if jobs::abandon_attempt() {
        return Left::Busy;
    }
    if worker::await_rest(FINALISING) {
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

/// Writes where the taking of kernels begins or ends.
pub fn write_edge(edge: Edge, iteration: u64) {
    let what = What::KernelWindow { edge, iteration };
    recorder::late(&recorder::Event::new(recorder::ticks(), 0, what));
}

/// Writes that the kernels taken from `iteration` on are a sample.
pub fn write_sample(samples: KernelSamples, iteration: u64) {
    let what = What::KernelSample {
        steps: u16::try_from(samples.steps).unwrap_or(u16::MAX),
        every_ms: u32::try_from(samples.every.as_millis()).unwrap_or(u32::MAX),
        iteration: iteration as u32,
    };
    recorder::late(&recorder::Event::new(recorder::ticks(), 0, what));
}

/// The child of a fork has none of it.
fn in_child(alone: &OnlyThread) {
    PLAN.break_open(alone);
    // What its parent loaded knows of its parent's threads.
    *PLAN.lock() = Plan::of_child(library::Cupti::get().is_some());
}
