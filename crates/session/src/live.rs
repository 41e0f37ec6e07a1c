//! Windows on demand: what a thread that listens to others asks of the session while the process runs.
//!
//! The asking thread numbers no call and switches nothing: it changes the schedule with the state locked, all credit
//! called back, and lets the threads run on to the new edge. Only [`close_idle`] switches, in a process that makes no
//! more calls.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

use tllmprof_config::condition::Condition;
use tllmprof_config::{Step, TracePath, Window};
use tllmprof_platform::lifecycle;
use tllmprof_steps::window::{Conflict, Point};
use tllmprof_sync::Guard;

pub use super::demand::Progress;
use super::demand::{Demand, HAS_CONDITION};
use super::rank::Rank;
use super::state::{Recording, STATE, State};
use super::wiring::{doors, interpreter};
use super::{ending, turn};

lifecycle::global! {
    /// The library was attached and is detached again.
    #[fork(keep = "the child's doors are its parent's")]
    static IS_DETACHED: AtomicBool = AtomicBool::new(false);
}

/// How long the listening thread waits for the state.
const PATIENCE: Duration = Duration::from_secs(1);

/// A window that is asked for.
#[derive(Debug, Default)]
pub struct Wanted {
    /// Its first iteration, which none may have reached; the next one by default.
    pub first: Option<u64>,
    /// Iterations to let pass before it begins.
    pub delay: u64,
    /// Nothing: until it is stopped.
    pub iterations: Option<u64>,
    pub condition: Option<Condition>,
    /// Iterations in which GPU kernels are taken; nothing: as the process was started.
    pub kernels: Option<u64>,
    /// It is for a profiler: no record is begun for it.
    pub for_profiler: bool,
    /// The iterations before it that are kept stay in the record, too.
    pub past: bool,
    /// Where the PyTorch profiler, which runs in it, writes its trace.
    pub torch_trace: Option<TracePath>,
}

/// Why a window is refused.
#[derive(Clone, Copy, Debug)]
pub enum Refusal {
    /// The process ends, or does not use CUDA.
    NoSession,
    /// The library is detached.
    Detached,
    Conflict(Conflict),
    /// The iteration has begun; the next one.
    Reached {
        first: u64,
        next: u64,
    },
    /// The batches are not known where steps by this rule begin.
    NoBatches(&'static Step),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSession => f.write_str("the process is ending"),
            Self::Detached => {
                f.write_str("the library is detached (tllmprof attach attaches it again)")
            }
            Self::Conflict(Conflict::Open(window)) => write!(f, "window {window} is open"),
            Self::Conflict(Conflict::Demanded(window)) => {
                write!(
                    f,
                    "window {window} was asked for already, and has not opened yet (tllmprof stop gives it up)"
                )
            }
            Self::Conflict(Conflict::Planned(window)) => {
                write!(
                    f,
                    "window {window} was planned when the process was started, and is not over"
                )
            }
            Self::Reached { first, next } => {
                write!(f, "iteration {first} has begun already: the next is {next}")
            }
            Self::NoBatches(step) => {
                write!(
                    f,
                    "where: a step by {step} begins before its batch is known"
                )
            }
        }
    }
}

impl Refusal {
    /// The iteration that comes next, where one was asked for that has begun.
    pub const fn next(&self) -> Option<u64> {
        match self {
            Self::Reached { next, .. } => Some(*next),
            _ => None,
        }
    }
}

/// What the process is at.
#[derive(Clone, Debug)]
pub struct Status {
    pub rank: Rank,
    pub engine: Option<&'static str>,
    pub step: &'static Step,
    /// So far.
    pub iterations: u64,
    /// The window that is open, or was demanded, and whether it is open.
    pub window: Option<(Window, bool)>,
}

impl State {
    /// Lets the threads go on that had their credit called back.
    fn let_run(&mut self) {
        // Nobody gets credit while something is switched.
        if !self.turn.is_taken() {
            self.run_on();
        }
    }

    /// The first iteration that no call has begun.
    fn next(&mut self) -> u64 {
        let next = self.counter.next(&self.slots);
        next.max(self.turn.target().next())
    }
}

fn lock() -> Option<Guard<'static, Option<State>>> {
    let guard = STATE.lock_for(PATIENCE)?;
    let is_there = |state: &State| state.turn.has_begun() && !ending::has_finished();
    guard.as_ref().is_some_and(is_there).then_some(guard)
}

/// Asks for a window; the iterations that it will take. No other may be open or asked for.
///
/// # Errors
/// Why there is none.
pub fn ask(wanted: Wanted) -> Result<Window, Refusal> {
    if is_detached() {
        return Err(Refusal::Detached);
    }
    let mut guard = lock().ok_or(Refusal::NoSession)?;
    let state = guard.as_mut().ok_or(Refusal::NoSession)?;
    let next = state.next();
    let asked = state.ask(wanted, next);
    state.let_run();
    asked
}

impl State {
    fn ask(&mut self, wanted: Wanted, next: u64) -> Result<Window, Refusal> {
        let has_batches = matches!(self.step(), Step::Python { .. } | Step::Auto);
        if wanted.condition.is_some() && !has_batches {
            return Err(Refusal::NoBatches(self.step()));
        }
        let first = match wanted.first {
            Some(first) if first < next => return Err(Refusal::Reached { first, next }),
            Some(first) => first,
            None => next.saturating_add(wanted.delay),
        };
        let last = wanted
            .iterations
            .map(|count| first.saturating_add(count.saturating_sub(1)));
        let window = Window { first, last };
        let demanded = match self.end_sample(next) {
            true => self.schedule.demand_after(window),
            false => self.schedule.demand(window),
        };
        demanded.map_err(Refusal::Conflict)?;
        // Its number is to be what was answered.
        self.counter.keep_counting();
        if self.recording == Recording::OnDemand && !wanted.for_profiler {
            self.recording = Recording::ToBegin;
        }
        HAS_CONDITION.store(wanted.condition.is_some(), Ordering::Relaxed);
        self.demand = Some(Demand {
            condition: wanted.condition,
            kernels: wanted.kernels,
            past: wanted.past,
            torch_trace: wanted.torch_trace,
            progress: Progress::Waits,
        });
        Ok(window)
    }
}

/// Whether the PyTorch profiler can be run in a window, though the settings do not ask for it.
pub fn can_run_torch_profiler() -> bool {
    interpreter().can_run_torch_profiler()
}

/// Has the window that is open closed where the iteration that runs ends, and forgets one that was asked for and has
/// not opened. Whether there was any.
pub fn stop() -> bool {
    let Some(mut guard) = lock() else {
        return false;
    };
    let Some(state) = guard.as_mut() else {
        return false;
    };
    let running = state.next().saturating_sub(1);
    let was_waiting = state.schedule.demanded().is_some();
    let closes = state.schedule.stop(running);
    if was_waiting && let Some(demand) = &mut state.demand {
        demand.progress = Progress::Closed(None);
        HAS_CONDITION.store(false, Ordering::Relaxed);
    }
    state.let_run();
    was_waiting || closes
}

/// Whether the library was attached and is detached again.
pub fn is_detached() -> bool {
    IS_DETACHED.load(Ordering::Acquire)
}

/// Has the process's calls seen no more, where no window is open or was asked for.
///
/// # Errors
/// Why that is not done.
pub fn detach() -> Result<(), &'static str> {
    let is_busy = {
        // Before the first call of CUDA there is no session yet.
        let guard = STATE.lock_for(PATIENCE);
        let guard = guard.filter(|_| !ending::has_finished());
        let guard = guard.ok_or("the process is ending")?;
        guard.as_ref().is_some_and(|state| {
            state.schedule.open().is_some() || state.schedule.demanded().is_some()
        })
    };
    if is_busy {
        return Err("a window is open or was asked for (tllmprof stop closes it)");
    }
    if !interpreter().detach() {
        return Err("a thread of the process holds Python's GIL for long: try again");
    }
    if !doors().detach() {
        return Err("the library was preloaded when the process started, not attached");
    }
    IS_DETACHED.store(true, Ordering::Release);
    Ok(())
}

/// Has the process's calls seen again.
///
/// # Errors
/// Why that is not done.
pub fn attach() -> Result<(), &'static str> {
    if !is_detached() {
        return Err("the library is attached already");
    }
    if !doors().attach_again() {
        return Err("another thread of the process is busy with its modules: try again");
    }
    interpreter().attach_again();
    IS_DETACHED.store(false, Ordering::Release);
    Ok(())
}

/// Closes the window that was stopped, on the calling thread, where no iteration has begun since: the process waits
/// for work, maybe for long.
pub fn close_idle() {
    let Some(mut guard) = lock() else { return };
    let Some(state) = guard.as_mut() else { return };
    let next = state.next();
    let last = state.schedule.open().and_then(|open| open.window.last);
    match last {
        Some(last) if next <= last.saturating_add(1) && !state.turn.is_taken() => {
            turn::reach(guard, Point::After(last));
        }
        _ => state.let_run(),
    }
}

/// What the process is at; nothing where it ends.
pub fn status() -> Option<Status> {
    let mut guard = lock()?;
    let state = guard.as_mut()?;
    let iterations = state.counter.iterations(&state.slots);
    // It is looked up by a thread of the program's, with its next iteration.
    state.rank_is_wanted = true;
    let open = state.schedule.open().map(|open| (open.window, true));
    let demanded = state.schedule.demanded().map(|window| (window, false));
    let status = Status {
        rank: state.rank,
        engine: state.engine().map(|found| found.engine.name),
        step: state.step(),
        iterations,
        window: open.or(demanded),
    };
    state.let_run();
    Some(status)
}

/// How far the latest demand is; nothing where the process ends, or there was none.
pub fn progress() -> Option<Progress> {
    let guard = lock()?;
    Some(guard.as_ref()?.demand.as_ref()?.progress)
}

/// As [`progress`], of whatever window is open or was the last.
pub fn planned_progress() -> Option<Progress> {
    let guard = lock()?;
    let state = guard.as_ref()?;
    Some(match state.schedule.open() {
        Some(open) => Progress::Open(open.window.first),
        None => Progress::Closed(state.closed),
    })
}
