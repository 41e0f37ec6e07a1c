//! Windows on demand: carries out the requests that the listening thread receives while the process runs.
//!
//! The listening thread does not number calls and does not switch windows. With the state locked, it takes back the
//! threads' credit (the number of calls that each may make without asking) and changes the schedule. Then the threads
//! get new credit up to the next opening or closing of a window. Only [`close_idle`] switches windows on the
//! listening thread: it closes a window in a process that makes no more calls.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

use tllmprof_config::condition::Condition;
use tllmprof_config::{IterationRange, Step, TracePath};
use tllmprof_platform::{injection, lifecycle, log};
use tllmprof_steps::step::learned::Learnt;
use tllmprof_steps::window::{Conflict, Point};
use tllmprof_sync::Guard;

use super::demand::Demand;
pub use super::demand::DemandProgress;
use super::rank::Rank;
use super::state::{Recording, STATE, SessionState};
use super::wiring::{doors, interpreter};
use super::{ending, engines, learning, turn};

lifecycle::global! {
    /// True if the library was attached to a running process and has been detached again.
    #[fork(keep = "the child's doors are its parent's")]
    static IS_DETACHED: AtomicBool = AtomicBool::new(false);
}

/// The maximum time for which the listening thread waits for the lock on the session's state.
const STATE_TIMEOUT: Duration = Duration::from_secs(1);

/// A request for a window in the running process.
#[derive(Debug, Default)]
pub struct WindowRequest {
    /// The number of the window's first iteration, which must not have begun. `None` if the window begins with the
    /// next iteration, or later if `delay` is set.
    pub first: Option<u64>,
    /// The number of iterations to skip before the window begins. Has no effect if `first` is set.
    pub delay: u64,
    /// The number of iterations in the window; `None` for a window that stays open until it is stopped.
    pub iterations: Option<u64>,
    pub condition: Option<Condition>,
    /// The number of iterations in which GPU kernels are recorded; `None` for the number in the process's
    /// settings.
    pub kernels: Option<u64>,
    /// True if the window is only for a profiler, so that no record is begun for it.
    pub for_profiler: bool,
    /// True if earlier iterations stay in the record, too: those that the flight recorder (which keeps the latest
    /// iterations) has stored.
    pub past: bool,
    /// The path for the PyTorch profiler's trace, if the profiler is to run in the window.
    pub torch_trace: Option<TracePath>,
}

/// A window that was requested in the running process and is going to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedWindow {
    pub window: IterationRange,
    /// The number of the request, for [`progress`] and [`close`].
    pub number: u64,
}

/// The reason why a request for a window is refused.
#[derive(Clone, Copy, Debug)]
pub enum WindowRefusal {
    /// There is no session, because the process is ending or does not use CUDA, or the session's state could not be
    /// locked in time.
    NoSession,
    /// The library was attached to the running process and has been detached again.
    Detached,
    Conflict(Conflict),
    /// The first iteration that was requested has already begun. `next` is the number of the first
    /// iteration that has not begun.
    Reached {
        first: u64,
        next: u64,
    },
    /// The window's condition refers to batches. With this step rule, the batch is not yet known when a step begins.
    NoBatches(&'static Step),
}

impl fmt::Display for WindowRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSession => f.write_str("the process is ending"),
            Self::Detached => {
                f.write_str("the library is detached (tllmprof attach attaches it again)")
            }
            Self::Conflict(Conflict::Open(window)) => {
                write!(f, "window {window} is open{}", Ends(*window))
            }
            Self::Conflict(Conflict::ToCome) => f.write_str(
                "a window of steady iterations is to come first, for the profiler in the process",
            ),
            Self::Conflict(Conflict::Demanded(window)) => {
                write!(
                    f,
                    "window {window} was asked for already, and has not opened yet (tllmprof stop gives it up)"
                )
            }
            Self::Conflict(Conflict::Planned(window)) => {
                write!(
                    f,
                    "window {window} was planned when the process was started, and is not over{}",
                    Ends(*window)
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

/// Formats a clause for the message about a conflict: when the conflicting window ends, and what the user can do.
struct Ends(IterationRange);

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.last {
            Some(last) => write!(
                f,
                ": it ends with iteration {last} (--wait TIME waits for it)"
            ),
            None => f.write_str(": it has no last iteration (tllmprof stop closes it)"),
        }
    }
}

impl WindowRefusal {
    /// Returns the last iteration of the conflicting window, if it is known.
    pub const fn ends(&self) -> Option<u64> {
        match self {
            Self::Conflict(conflict) => conflict.ends(),
            _ => None,
        }
    }

    /// Returns the number of the first iteration that can still be requested, if the request was refused because its
    /// first iteration has begun.
    pub const fn next(&self) -> Option<u64> {
        match self {
            Self::Reached { next, .. } => Some(*next),
            _ => None,
        }
    }
}

/// The state of the process, as the answer to a status request.
#[derive(Clone, Debug)]
pub struct ProcessStatus {
    pub rank: Rank,
    pub engine: Option<&'static str>,
    pub step: &'static Step,
    /// The number of iterations that have begun so far.
    pub iterations: u64,
    /// The open window or, if none is open, the requested one. The flag is true if the window is open.
    pub window: Option<(IterationRange, bool)>,
}

impl SessionState {
    /// Gives threads credit again (calls that they may count by themselves) after it was taken back.
    fn let_run(&mut self) {
        // A thread that is opening or closing windows gives credit itself when it has finished.
        if !self.turn.is_taken() {
            self.run_on();
        }
    }

    /// Returns the number of the first iteration that no call has begun yet.
    fn next(&mut self) -> u64 {
        let next = self.counter.next(&self.slots);
        if self.awaits_engine() {
            // The engine's steps are counted from 0, even if iterations of its warm-up were counted before.
            return next;
        }
        next.max(self.turn.target().next())
    }

    /// Returns true while no iterations are counted because the first call of a known engine's step function is
    /// awaited.
    fn awaits_engine(&self) -> bool {
        self.counter.learnt() == Some(Learnt::AwaitsEngine)
    }
}

fn lock() -> Option<Guard<'static, Option<SessionState>>> {
    let guard = STATE.lock_for(STATE_TIMEOUT)?;
    let is_there = |state: &SessionState| state.turn.has_begun() && !ending::has_finished();
    guard.as_ref().is_some_and(is_there).then_some(guard)
}

/// Requests a window, and returns its iterations and the request's number. The request is refused if the window
/// conflicts with another one, or if its first iteration has already begun.
///
/// # Errors
/// Returns the reason for the refusal.
pub fn ask(wanted: WindowRequest) -> Result<RequestedWindow, WindowRefusal> {
    if is_detached() {
        return Err(WindowRefusal::Detached);
    }
    let mut guard = lock().ok_or(WindowRefusal::NoSession)?;
    let state = guard.as_mut().ok_or(WindowRefusal::NoSession)?;
    let next = state.next();
    let asked = state.ask(wanted, next);
    state.let_run();
    asked
}

impl SessionState {
    fn ask(&mut self, wanted: WindowRequest, next: u64) -> Result<RequestedWindow, WindowRefusal> {
        let has_batches = matches!(self.step(), Step::Python { .. } | Step::Auto);
        if wanted.condition.is_some() && !has_batches {
            return Err(WindowRefusal::NoBatches(self.step()));
        }
        let first = match wanted.first {
            Some(first) if first < next => return Err(WindowRefusal::Reached { first, next }),
            Some(first) => first,
            None => next.saturating_add(wanted.delay),
        };
        let last = wanted
            .iterations
            .map(|count| first.saturating_add(count.saturating_sub(1)));
        let window = IterationRange { first, last };
        // An open window gives way to the requested one only if no profiler is in the process. A profiler captures
        // each window that opens, and may capture only as many windows as were planned.
        let gives_way = !injection::has_profiler();
        if !gives_way {
            self.schedule
                .keeps_steady()
                .map_err(WindowRefusal::Conflict)?;
        } else if let Some(open) = self.schedule.open()
            && self.schedule.give_way(window.first)
        {
            let open = open.window;
            log::say!(
                Info,
                "window {open} gives way to window {window}, which was asked for"
            );
        }
        let demanded = match self.end_sample(next) || self.schedule.ends_before(first) {
            true => self.schedule.demand_after(window),
            false => self.schedule.demand(window),
        };
        demanded.map_err(WindowRefusal::Conflict)?;
        // From now on counting must not restart, because the iteration numbers of the window are part of the
        // answer to the request.
        self.counter.keep_counting();
        if self.recording == Recording::OnDemand && !wanted.for_profiler {
            self.recording = Recording::ToBegin;
        }
        let number = self.demands.add(|number| Demand {
            number,
            window,
            condition: wanted.condition,
            kernels: wanted.kernels,
            past: wanted.past,
            torch_trace: wanted.torch_trace,
            progress: DemandProgress::Waits,
        });
        if let Some(found) = engines::awaited().filter(|_| self.awaits_engine()) {
            learning::log_awaited(window, found);
        }
        Ok(RequestedWindow { window, number })
    }
}

/// Returns true if the PyTorch profiler can run in a window even if the settings do not ask for it.
pub fn can_run_torch_profiler() -> bool {
    interpreter().can_run_torch_profiler()
}

/// Makes the open window close at the end of the current iteration, and cancels a requested window that has not opened.
/// If a planned window was closed for a while, to open again later, it stays closed. Returns true if there was a window
/// to close or to cancel.
pub fn stop() -> bool {
    let Some(mut guard) = lock() else {
        return false;
    };
    let Some(state) = guard.as_mut() else {
        return false;
    };
    let running = state.next().saturating_sub(1);
    let waiting = state.schedule.demanded();
    let closes = state.schedule.stop(running);
    if let Some(window) = waiting {
        state.demands.note(window, DemandProgress::Closed(None));
    }
    state.let_run();
    waiting.is_some() || closes
}

/// Makes the open window close at the end of the current iteration, if it is the one with request number `number`.
/// Cancels no other window.
pub fn close(number: u64) {
    let Some(mut guard) = lock() else { return };
    let Some(state) = guard.as_mut() else { return };
    let running = state.next().saturating_sub(1);
    let is_open = state.schedule.is_open() && state.due().is_some_and(|due| due.number == number);
    if is_open {
        state.schedule.stop_open(running);
    }
    state.let_run();
}

/// Returns true if the library was attached to a running process and has been detached again.
pub fn is_detached() -> bool {
    IS_DETACHED.load(Ordering::Acquire)
}

/// Stops intercepting the process's calls. Fails if a window is open or requested.
///
/// # Errors
/// Returns the reason why the library was not detached.
pub fn detach() -> Result<(), &'static str> {
    if is_detached() {
        return Ok(());
    }
    let is_busy = {
        // A session begins only with the first CUDA call, so it is not an error if none exists.
        let guard = STATE.lock_for(STATE_TIMEOUT);
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
    if let Err(why) = doors().detach() {
        interpreter().attach_again();
        return Err(why);
    }
    IS_DETACHED.store(true, Ordering::Release);
    Ok(())
}

/// Makes a detached library intercept the process's calls again.
///
/// # Errors
/// Returns the reason why the library was not attached.
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

/// Closes a window that a request has stopped, on the calling thread, if no iteration has begun since.
/// Otherwise the window would stay open while the process waits for work, perhaps for long.
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

/// Returns the state of the process; `None` if the process is ending or does not use CUDA, or if the session's state
/// could not be locked in time.
pub fn status() -> Option<ProcessStatus> {
    let mut guard = lock()?;
    let state = guard.as_mut()?;
    let iterations = state.counter.iterations(&state.slots);
    // The rank is not looked up on this thread. A thread of the program looks it up when its next iteration
    // begins.
    state.rank_is_wanted = true;
    let open = state.schedule.open().map(|open| (open.window, true));
    let demanded = state.schedule.demanded().map(|window| (window, false));
    let status = ProcessStatus {
        rank: state.rank,
        engine: state.engine().map(|found| found.engine.name),
        step: state.step(),
        iterations,
        window: open.or(demanded),
    };
    state.let_run();
    Some(status)
}

/// Returns the progress of the window on demand with request number `number`; `None` if there was no such window, if it
/// is no longer stored, if there is no session, or if the session's state could not be locked in time.
pub fn progress(number: u64) -> Option<DemandProgress> {
    let guard = lock()?;
    guard.as_ref()?.demands.progress(number)
}

/// Returns the number of the first iteration of the open window; `None` if no window is open.
pub fn open_window() -> Option<u64> {
    let guard = lock()?;
    Some(guard.as_ref()?.schedule.open()?.window.first)
}

/// Returns the progress of the window that began with iteration `first`, if that window is open. Otherwise returns the
/// progress of the window that closed last. Returns `None` if there is no session.
pub fn planned_progress(first: Option<u64>) -> Option<DemandProgress> {
    let guard = lock()?;
    let state = guard.as_ref()?;
    Some(match (state.schedule.open(), first) {
        (Some(open), Some(first)) if open.window.first == first => DemandProgress::Open(first),
        _ => DemandProgress::Closed(state.closed),
    })
}
