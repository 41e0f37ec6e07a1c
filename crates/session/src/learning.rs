//! What `auto` learns, and the words for it.

use core::ffi::c_void;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use tllmprof_calls::Call;
use tllmprof_config::{Step, Window};
use tllmprof_learn::{Learner, Rule, Trail, Trails};
use tllmprof_platform::lifecycle;

use super::slots;
use crate::engines;
use crate::engines::Found;
use tllmprof_platform::{driver, log, system};
use tllmprof_steps::step::learned;
use tllmprof_steps::step::learned::Memory;
use tllmprof_steps::step::threads::Slot;
use tllmprof_sync::Lock;

lifecycle::global! {
    stage: Session;

    #[fork(free)]
    static LEARNER: Lock<Learner> = Lock::new(Learner::new());
    #[fork(keep = "cleared where the learner begins")]
    static TRAILS: Trails = Trails::new();
    /// A runtime's own functions were noted: their kernels are known by addresses in the program.
    #[fork(keep = "addresses are the same")]
    static HAS_HOST_HANDLES: AtomicBool = AtomicBool::new(false);
}

/// Whether iterations are learnt in this process.
pub fn learns() -> bool {
    crate::activity::settings().is_some_and(|settings| matches!(settings.step, Step::Auto))
}

/// Where to learn. Held for as long as the session lasts.
pub fn memory() -> Memory {
    Memory {
        learner: LEARNER.lock(),
        trails: &TRAILS,
        clock: || system::nanoseconds(system::Clock::Monotonic),
    }
}

/// Where thread number `thread` notes its calls, if that is wanted.
pub fn trail(thread: u32) -> Option<&'static Trail> {
    learns().then(|| {
        TRAILS.mark_used(thread);
        TRAILS.of(thread)
    })
}

/// Where the thread that counts in `slot` notes its calls; null where that is not wanted.
pub fn trail_of(slot: Option<&Slot>) -> *const c_void {
    slot.and_then(|slot| trail(slot.thread()))
        .map_or(core::ptr::null(), |trail| core::ptr::from_ref(trail).cast())
}

/// Notes a call that the assembler did not note.
pub fn note(call: Call, args: &[usize], by_runtime: bool) {
    if !learns() || slots::is_capturing() {
        return;
    }
    if let Some(slot) = slots::slot() {
        HAS_HOST_HANDLES.fetch_or(by_runtime, Ordering::Relaxed);
        learned::note(TRAILS.of(slot.thread()), call, args);
    }
}

/// Says that a window waits for the step to be understood. Once.
pub fn log_waiting(window: Window) {
    log::once!(
        Info,
        "the step is still being learnt: window {window} opens once it is understood"
    );
}

/// Says whose step is counted. Once.
pub fn log_engine(found: &Found) {
    let (engine, step) = (found.engine.name, &found.step);
    log::once!(Info, "auto: {engine} is known, iteration = {step}");
}

/// Says that the steps of an engine can be counted by a rule that has to be given.
pub fn log_hint() {
    if let Some(engine) = engines::by_ranges() {
        log::say!(
            Info,
            "{} is known: TLLMPROF_STEP='{}' counts its steps, and auto learns them",
            engine.name,
            engine.step
        );
    }
}

/// Says what an iteration is. Once, and with no lock held: the driver is asked for names.
pub fn log_choice(rule: &Rule) {
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
    log::say!(Info, "auto: iteration = {}{others}", Described(rule));
}

/// A rule that was learnt, in words.
pub struct Described<'a>(pub &'a Rule);

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
