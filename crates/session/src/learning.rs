//! The learner of the rule `auto`, which finds out which calls form an iteration. This module owns the learner's
//! memory, stores the calls that the learner reads, and logs the learner's messages.

use core::ffi::c_void;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use tllmprof_calls::Call;
use tllmprof_config::{IterationRange, Settings, Step};
use tllmprof_learn::{Inner, LearnedRule, Learner, Trail, Trails};
use tllmprof_platform::lifecycle;

use super::slots;
use crate::engines;
use crate::engines::DetectedEngine;
use tllmprof_platform::{driver, log, system};
use tllmprof_steps::step::comparison::Mismatch;
use tllmprof_steps::step::learned;
use tllmprof_steps::step::learned::Memory;
use tllmprof_steps::step::threads::Slot;
use tllmprof_sync::Lock;

lifecycle::global! {
    stage: Session;

    #[fork(free)]
    #[together(tables)]
    static LEARNER: Lock<Learner> = Lock::new(Learner::new());
    #[fork(keep = "cleared where the learner begins")]
    #[together(tables)]
    static TRAILS: Trails = Trails::new();
    /// True if calls of the CUDA runtime were noted for the learner. The runtime identifies a kernel by an address in
    /// the program, not by a driver handle. So the driver cannot return the name of such a kernel.
    #[fork(keep = "addresses are the same")]
    static HAS_HOST_HANDLES: AtomicBool = AtomicBool::new(false);
}

/// Returns true if this process has to learn what an iteration is.
pub fn learns() -> bool {
    crate::activity::settings().is_some_and(|settings| settings.step.is_learnt())
}

/// Locks and returns the learner's memory, which stays locked as long as the session lasts.
pub(crate) fn memory() -> Memory {
    Memory {
        learner: LEARNER.lock(),
        trails: &TRAILS,
        clock: || system::nanoseconds(system::SystemClock::Monotonic),
        engine_imports,
    }
}

/// Returns the number of imports that [`engines::imports`] returns. Returns 0, so that no engine's step function is
/// awaited, in two cases. With `auto:inner`, no engine's step function is used. If windows are planned by iteration
/// numbers, a program that imports an engine without using it would get none of its windows: no iterations are counted
/// as long as the step function is awaited.
fn engine_imports() -> u32 {
    let settings = crate::activity::settings();
    let awaits = |settings: &&Settings| {
        matches!(settings.step, Step::Auto) && !settings.windows.is_numbered()
    };
    settings.filter(awaits).map_or(0, |_| engines::imports())
}

/// Returns the trail (the list of recent calls, which the learner reads) of thread number `thread`; `None` if no steps
/// are learnt.
pub(crate) fn trail(thread: u32) -> Option<&'static Trail> {
    learns().then(|| {
        TRAILS.mark_used(thread);
        TRAILS.get(thread)
    })
}

/// Returns the trail (the list of recent calls, which the learner reads) of the thread that uses `slot`; null
/// if steps are not learnt.
pub(crate) fn trail_of(slot: Option<&Slot>) -> *const c_void {
    slot.and_then(|slot| trail(slot.thread()))
        .map_or(core::ptr::null(), |trail| core::ptr::from_ref(trail).cast())
}

/// Stores a call in the calling thread's trail (the list of recent calls, which the learner reads). Called for calls
/// that the assembly code of the call wrappers has not stored.
pub fn note(call: Call, args: &[usize], by_runtime: bool) {
    if !learns() || slots::is_capturing() {
        return;
    }
    if let Some(slot) = slots::slot() {
        HAS_HOST_HANDLES.fetch_or(by_runtime, Ordering::Relaxed);
        learned::note(TRAILS.get(slot.thread()), call, args);
    }
}

/// Logs once that `window` waits until the step has been learnt.
pub(crate) fn log_waiting(window: IterationRange) {
    log::once!(
        Info,
        "the step is still being learnt: window {window} opens once it is understood"
    );
}

/// Logs once which engine's steps are counted.
pub(crate) fn log_engine(found: &DetectedEngine) {
    let (engine, step) = (found.engine.name, &found.step);
    log::once!(Info, "auto: {engine} is known, iteration = {step}");
}

/// Logs that the requested window `window` waits for the first call of an engine's step function.
pub(crate) fn log_awaited(window: IterationRange, found: &DetectedEngine) {
    let (engine, step) = (found.engine.name, &found.step);
    log::say!(
        Info,
        "auto: {engine} is in this process: window {window} waits for the first call of {step}"
    );
}

/// Logs that from the iteration `first` on, the calls of an engine's step function count iterations instead of the
/// learnt pattern.
pub(crate) fn log_replaced(found: &DetectedEngine, first: u64) {
    let (engine, step) = (found.engine.name, &found.step);
    log::say!(
        Info,
        "auto: {engine} is known: from iteration {first} on, {step} counts instead of the learnt step"
    );
}

/// Logs that an engine's step function does not match the pattern in the CUDA calls: the function is called more or
/// less often than the pattern recurs.
pub(crate) fn log_mismatch(found: &DetectedEngine, mismatch: &Mismatch) {
    let (engine, step) = (found.engine.name, &found.step);
    let Mismatch {
        counted,
        learnt,
        factor,
        rule,
    } = mismatch;
    let rule = Described(rule);
    if counted > learnt {
        log::say!(
            Warn,
            "auto: {engine}: {step} counted {counted} iterations, but {rule} recurred {learnt} times: {factor} of those \
             iterations may be one. --step '{step}/{factor}' counts so; --step auto:inner uses only the CUDA calls"
        );
    } else {
        log::say!(
            Warn,
            "auto: {engine}: {step} counted {counted} iterations, but {rule} recurred {learnt} times: each of those \
             iterations may be {factor}. --step auto:inner uses only the CUDA calls"
        );
    }
}

/// Logs that a detected engine marks its steps with NVTX ranges, and which rule the user has to set to count
/// them.
pub(crate) fn log_hint() {
    if let Some(engine) = engines::by_ranges() {
        log::say!(
            Info,
            "{} is known: TLLMPROF_STEP='{}' counts its steps, and auto learns them",
            engine.name,
            engine.step
        );
    }
}

/// Logs the learnt rule for an iteration, and the inner loop, if any. Only the first call has an effect. The caller
/// holds no lock, because this function asks the driver for the names of kernels.
pub(crate) fn log_choice(step: &Step, rule: &LearnedRule, inner: Option<&Inner>) {
    lifecycle::global! {
        #[fork(keep = "the parent has said it")]
        static SAID: AtomicBool = AtomicBool::new(false);
    }
    if SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let others = match rule.other_engines() {
        0 => "",
        _ => "; other threads launch as well, and the one that launches most is followed",
    };
    let levels = Levels { step, rule, inner };
    log::say!(
        Info,
        "{step}: iteration = {}{others}{levels}",
        Described(rule)
    );
}

/// Describes, for a loop within a loop, the level that is not counted as iterations: the outer loop if the inner one
/// is counted, otherwise the inner loop.
struct Levels<'a> {
    step: &'a Step,
    rule: &'a LearnedRule,
    inner: Option<&'a Inner>,
}

impl fmt::Display for Levels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.step, self.inner) {
            (Step::AutoInner, Some(inner)) => {
                write!(
                    f,
                    "; {} make one of {}",
                    inner.each,
                    Described(&inner.outer)
                )
            }
            (Step::AutoInner, None) if self.rule.is_pass() => {
                f.write_str("; what holds several of them has not been learnt")
            }
            (Step::AutoInner, None) => f.write_str("; it has no parts that are alike"),
            (_, Some(inner)) => write!(
                f,
                "; each holds {} of {}: --step auto:inner counts those",
                inner.each,
                Described(&inner.rule)
            ),
            (_, None) => Ok(()),
        }
    }
}

/// A learnt rule, formatted as words.
pub(crate) struct Described<'a>(pub &'a LearnedRule);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_names = !HAS_HOST_HANDLES.load(Ordering::Relaxed);
        self.0.describe(f, |out, handle| {
            if has_names {
                driver::write_kernel_name(out, handle)
            } else {
                write!(out, "{handle:#x}")
            }
        })
    }
}
