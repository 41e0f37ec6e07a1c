//! Ends the session when the process ends: closes the window, and logs the result of all windows.
//!
//! This module neither allocates nor frees memory, because `_exit` may be called in a signal handler that
//! interrupted the allocator.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::time::Instant;

use tllmprof_config::Step;
use tllmprof_platform::lifecycle;

use super::end::EndReason;
use super::outcome::{Ended, Outcome, Recorded, counted};
use super::state::count_calls;
use super::wiring::{doors, interpreter, listener, sink};
use super::{OWNER, STATE, stream_capture, turn};
use tllmprof_platform::cancel::Uncancelled;
use tllmprof_platform::ids;
use tllmprof_platform::log;
use tllmprof_platform::log::Level;
use tllmprof_platform::own_threads;
use tllmprof_platform::thread::Inside;
use tllmprof_platform::thread::uncounted;
use tllmprof_steps::turn::TurnEvent;
use tllmprof_steps::window::Schedule;

/// The maximum time for which the end of the process waits for the lock on the session's state.
pub(crate) const ENDING: Duration = Duration::from_secs(1);
/// The maximum time for which the end of the process waits for the library's own threads. They end at once, but on a busy
/// machine they may wait for a processor first.
const THREADS_TIMEOUT: Duration = Duration::from_secs(1);

lifecycle::global! {
    stage: Session;

    #[fork(reset)]
    #[exit = "set first: what comes later is not counted"]
    static FINISHED: AtomicBool = AtomicBool::new(false);
}

/// Returns true if the session has ended: no more windows open, so CUDA calls need not be examined.
pub(crate) fn has_finished() -> bool {
    FINISHED.load(Ordering::Acquire)
}

/// Returns true if the library has counted a call in this process. Returns false in a child that shares its parent's
/// memory (`vfork`).
pub fn has_begun() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    owner != 0 && owner == ids::process()
}

/// Ends the session when the process exits normally. Called by the exit handler.
pub fn finish() {
    end(EndReason::Exit);
}

/// Ends the session when the process ends immediately, perhaps from a signal handler.
pub fn finish_at_once() {
    end(EndReason::AtOnce);
}

/// Closes the open window, logs the result of all windows, and makes the library's threads end. Only the
/// first call has an effect.
pub(crate) fn end(by: EndReason) {
    if lifecycle::is_filtered() {
        return;
    }
    let owner = OWNER.load(Ordering::Relaxed);
    if owner == 0 || owner != ids::process() || FINISHED.swap(true, Ordering::AcqRel) {
        return;
    }
    let _uncancelled = Uncancelled::new();
    let _inside = Inside::enter();
    close(by);
    listener().ends();
    sink().ends_threads();
    own_threads::await_end(THREADS_TIMEOUT);
}

/// Closes the open window and logs the result of all windows.
fn close(by: EndReason) {
    let Some(mut guard) = STATE.lock_for(ENDING) else {
        return;
    };
    if guard.as_ref().is_some_and(|state| state.turn.is_taken()) {
        turn::wait_for_end(guard, Instant::now() + ENDING);
        match STATE.lock_for(ENDING) {
            Some(again) => guard = again,
            None => return,
        }
    }
    // If the session has not begun, nothing has to be closed. The state may exist even then: in a process without
    // CUDA, it is created when a named function or range is counted.
    let Some(state) = guard.as_mut().filter(|state| state.turn.has_begun()) else {
        return;
    };
    if state.turn.is_taken() {
        log::say!(
            Warn,
            "the process ends while a window is being switched: it is left as it is"
        );
        return;
    }
    // After this event no thread can take the turn (the right to switch windows) any more.
    state.turn.on(TurnEvent::Ends);
    let ended = Ended::read(state);
    // Remove the limits at which threads report their calls, so that calls after this one are no longer examined.
    state.counter.run_to(&state.slots, None);
    count_calls(&state.slots);
    drop(guard);
    let recorded = finish_sinks(&ended, by);
    report(&ended, recorded, by);
    keep(ended.schedule);
}

/// Closes the open window, the profilers and the record. Logs requests that were not met, such as a rule that matched
/// no function. Returns what came of the windows.
fn finish_sinks(ended: &Ended, by: EndReason) -> Recorded {
    let settings = ended.settings;
    let may_run_profilers_here = by != EndReason::AtOnce;
    let capturing = stream_capture::is_any_under_way();
    uncounted(&mut || {
        if let Some(another) = &ended.another {
            another.write_rule(settings);
        }
        if let Some(point) = ended.span_ends {
            sink().passes(point, false);
        }
        sink().ends(ended.over, capturing, by);
    });
    doors().record_calls();
    if ended.uses_cuda && matches!(settings.step, Step::Symbol { .. }) {
        doors().report_unmatched(&settings.step, may_run_profilers_here);
    }
    if ended.iterations == 0 && !settings.windows.is_empty() && may_run_profilers_here {
        uncounted(&mut || doors().report_bypass());
    }
    if ended.uses_cuda && !settings.scopes.is_empty() {
        doors().report_unmatched_scopes(may_run_profilers_here);
    }
    if ended.uses_cuda {
        interpreter().report_missing();
    }
    if ended.closes || settings.nvtx {
        let drain = !capturing;
        uncounted(&mut || sink().finish(ended.over, drain, may_run_profilers_here));
    }
    let recorded = Recorded {
        is_unheard: sink().is_unheard(),
        lost: sink().lost(),
    };
    sink().finish_record(may_run_profilers_here);
    recorded
}

/// Logs the result of all windows when the process ends.
fn report(ended: &Ended, recorded: Recorded, by: EndReason) {
    let settings = ended.settings;
    if !settings.windows.is_empty() {
        let outcome = Outcome {
            ended,
            recorded,
            latest: sink().latest_left(),
            by,
        };
        log::say!(Info, "{outcome}");
    }
    if ended.demands > 0 {
        let (many, s) = counted(ended.demands);
        let samples = match ended.is_sampled {
            true => ", or to sample kernels",
            false => "",
        };
        let lost = recorded.lost_note();
        match recorded.is_unheard {
            true => log::say!(
                Info,
                "{many} window{s} opened on demand{samples}; nothing recorded {}",
                if many == 1 { "it" } else { "them" }
            ),
            false => log::say!(
                Info,
                "{many} window{s} captured on demand{}",
                format_args!("{samples}{lost}")
            ),
        }
    }
    if ended.uses_cuda {
        // If no windows were requested, the totals (of garbage collections and waits for the GIL) are logged only at
        // debug level.
        let is_quiet = settings.windows.is_empty();
        interpreter().report_totals(if is_quiet { Level::Debug } else { Level::Info });
    }
}

/// Stores the schedule in the state again, so that its memory stays reachable. The memory must not be freed
/// now, and unreachable memory would be reported as a leak.
fn keep(schedule: Schedule) {
    let schedule = core::mem::ManuallyDrop::new(schedule);
    if let Some(mut guard) = STATE.lock_for(ENDING)
        && let Some(state) = guard.as_mut()
    {
        let schedule = core::mem::ManuallyDrop::into_inner(schedule);
        core::mem::forget(core::mem::replace(&mut state.schedule, schedule));
    }
}
