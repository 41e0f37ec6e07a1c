//! Handles the end of the process: closes the window, and logs the result of all windows.
//!
//! `_exit` may be called in a signal handler that interrupted the allocator, so nothing here
//! allocates or frees.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::time::Instant;

use tllmprof_calls::{CALLS, Kind};
use tllmprof_config::condition::Held;
use tllmprof_config::{Listed, Settings, Step, Window};
use tllmprof_platform::lifecycle;

use super::by::By;
use super::end::End;
use super::rank::Rank;
use super::recording::Beginning;
use super::span::Reported;
use super::state::count_calls;
use super::wiring::{doors, interpreter, listener, sink};
use super::{Gating, OWNER, STATE, stream_capture, turn};
use tllmprof_platform::cancel::Uncancelled;
use tllmprof_platform::ids;
use tllmprof_platform::log;
use tllmprof_platform::log::Level;
use tllmprof_platform::own_threads;
use tllmprof_platform::thread::Inside;
use tllmprof_platform::thread::uncounted;
use tllmprof_steps::steady::{ENOUGH, NEEDED};
use tllmprof_steps::step::learned::Learnt;
use tllmprof_steps::step::threads::Slot;
use tllmprof_steps::turn::Event;
use tllmprof_steps::window::{Cut, Point, Schedule, Taken};

/// The time the end of the process waits for a thread that has the turn.
pub const ENDING: Duration = Duration::from_secs(1);
/// The time it waits for the library's own threads.
const THREADS_TIMEOUT: Duration = Duration::from_millis(200);

lifecycle::global! {
    stage: Session;

    #[fork(reset)]
    #[exit = "set first: what comes later is not counted"]
    static FINISHED: AtomicBool = AtomicBool::new(false);
}

/// Returns true if the windows are closed for good: calls no longer matter.
pub fn has_finished() -> bool {
    FINISHED.load(Ordering::Acquire)
}

/// Returns true if a call has been counted in this process.
pub fn has_begun() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    owner != 0 && owner == ids::process()
}

/// Called when the process exits, by its exit handlers.
pub fn finish() {
    end(End::Exit);
}

/// Called when the process ends immediately, maybe from a signal handler.
pub fn finish_at_once() {
    end(End::AtOnce);
}

/// Closes the window, logs the result, and makes the library's threads end. Runs once.
pub fn end(by: End) {
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

/// Closes the window and logs the result.
fn close(by: End) {
    let may_run_profilers_here = by != End::AtOnce;
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
    // The target of the rule may be counted in a process that does not use CUDA.
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
    // No thread switches from here on.
    state.turn.on(Event::Ends);
    let iterations = state.counter.iterations(&state.slots);
    let begun = state.begun_of(iterations);
    let closed = state.schedule.finish();
    let demands = state.schedule.demands_met();
    // The number of iterations, used for the log and for the record.
    let over = closed.map_or(begun, |closed| closed.over(begun));
    let planned = closed.filter(|closed| !closed.on_demand);
    let cut = planned.and_then(|closed| closed.cut(over));
    let cut = cut.or_else(|| state.schedule.interrupted());
    let lacks = state.schedule.lacks();
    let is_sampled = state.sampler.is_some();
    let schedule = core::mem::take(&mut state.schedule);
    let (settings, rank, gating) = (state.settings, state.rank, state.gating);
    let (step, restarts, held) = (state.step(), state.restarts, state.held);
    let calls = Tally::count(&state.slots);
    let another = Beginning::anew(state);
    let learnt = state.counter.learnt();
    let span = state.span.finish(Instant::now());
    let span_ends = state.span.is_on().then(|| match span {
        Some(span) if span.is_current => Point::After(state.turn.done().over()),
        // It is too short, and dropped.
        _ => Point::Start,
    });
    // Exit handlers that run after ours may still make calls, and so may other threads.
    state.counter.run_to(&state.slots, None);
    let uses_cuda = state.uses_cuda;
    count_calls(&state.slots);
    drop(guard);
    let capturing = stream_capture::is_any_under_way();
    uncounted(&mut || {
        if let Some(another) = &another {
            another.write_rule(settings);
        }
        if let Some(point) = span_ends {
            sink().passes(point, false);
        }
        sink().ends(over, capturing, by);
    });
    doors().record_calls();
    if uses_cuda && matches!(settings.step, Step::Symbol { .. }) {
        doors().report_unmatched(&settings.step, may_run_profilers_here);
    }
    if iterations == 0 && !settings.windows.is_empty() && may_run_profilers_here {
        uncounted(&mut || doors().report_bypass());
    }
    if uses_cuda && !settings.scopes.is_empty() {
        doors().report_unmatched_scopes(may_run_profilers_here);
    }
    if uses_cuda {
        interpreter().report_missing();
    }
    if closed.is_some() || settings.nvtx {
        let drain = !capturing;
        uncounted(&mut || sink().finish(over, drain, may_run_profilers_here));
    }
    let is_unheard = sink().is_unheard();
    sink().finish_record(may_run_profilers_here);
    if !settings.windows.is_empty() {
        let captured = schedule.captured();
        log::say!(
            Info,
            "{}",
            Outcome {
                settings,
                step,
                rank,
                gating,
                captured,
                unkept: schedule.unkept(),
                cut,
                lacks,
                iterations,
                learnt,
                restarts,
                held,
                calls,
                is_unheard,
                latest: sink().latest_left(),
                span,
                by
            }
        );
    }
    if demands > 0 {
        let (many, s) = (demands, if demands == 1 { "" } else { "s" });
        let samples = match is_sampled {
            true => ", or to sample kernels",
            false => "",
        };
        match is_unheard {
            true => log::say!(
                Info,
                "{many} window{s} opened on demand{samples}; nothing recorded {}",
                if demands == 1 { "it" } else { "them" }
            ),
            false => log::say!(Info, "{many} window{s} captured on demand{samples}"),
        }
    }
    if uses_cuda {
        // Without windows, only at debug level.
        let is_quiet = settings.windows.is_empty();
        interpreter().report_totals(if is_quiet { Level::Debug } else { Level::Info });
    }
    keep(schedule);
}

/// Keeps the windows in memory: nothing may be freed here, and memory without a pointer to it would be
/// reported as a leak.
fn keep(schedule: Schedule) {
    let schedule = core::mem::ManuallyDrop::new(schedule);
    if let Some(mut guard) = STATE.lock_for(ENDING)
        && let Some(state) = guard.as_mut()
    {
        let schedule = core::mem::ManuallyDrop::into_inner(schedule);
        core::mem::forget(core::mem::replace(&mut state.schedule, schedule));
    }
}

/// The number of calls of a process, by kind.
struct Tally {
    graphs: u64,
    kernels: u64,
    waits: u64,
}

impl Tally {
    fn count(slots: &[&Slot]) -> Self {
        let sum = |belongs: fn(Kind) -> bool| {
            let rows = CALLS.iter().filter(move |row| belongs(row.kind));
            rows.flat_map(|row| slots.iter().map(|slot| slot.live(row.call).count()))
                .sum()
        };
        Self {
            graphs: sum(|kind| kind == Kind::GraphLaunch),
            kernels: sum(|kind| matches!(kind, Kind::KernelLaunch { .. })),
            waits: sum(Kind::waits),
        }
    }
}

/// Written as the calls that the process made instead of iterations, and the rule that would have counted them.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            (self.graphs, "graph launches"),
            (self.kernels, "kernel launches"),
            (self.waits, "stream waits"),
        ];
        let made = kinds.iter().filter(|(count, _)| *count > 0);
        let all = made.clone().count();
        for (index, (count, what)) in made.enumerate() {
            let before = match index {
                0 => "; it made ",
                _ if index + 1 == all => " and ",
                _ => ", ",
            };
            write!(f, "{before}{count} {what}")?;
        }
        Ok(())
    }
}

/// The last line of the log.
struct Outcome<'a> {
    settings: &'a Settings,
    /// The rule that counted.
    step: &'a Step,
    rank: Rank,
    gating: Gating,
    captured: &'a [Taken],
    /// The number of parts of windows that are not in that list.
    unkept: u64,
    /// The part of the last window that was captured, if it was cut off.
    cut: Option<Cut>,
    /// The number of iterations that it lacks, if it was closed in between.
    lacks: Option<u64>,
    iterations: u64,
    /// The state of learning, if the rule is learnt.
    learnt: Option<Learnt>,
    /// The number of stream captures after which a count started again that had begun.
    restarts: u64,
    /// The number of iterations for which the condition on batches held.
    held: Held,
    calls: Tally,
    /// True if nothing is known to have recorded any of the windows.
    is_unheard: bool,
    /// The number of iterations outside windows in the record, at the end of the process.
    latest: u64,
    /// The stretch of time that the record has instead, if no step was known.
    span: Option<Reported>,
    by: End,
}

impl fmt::Display for Outcome<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            settings,
            step,
            rank,
            gating,
            captured,
            unkept,
            cut,
            lacks,
            iterations,
            learnt,
            restarts,
            held,
            calls,
            is_unheard,
            latest,
            span,
            by: end,
        } = self;
        let by = By {
            step,
            rank: *rank,
            verdict: None,
        };
        if let (Some(ranks), Some(number)) = (&settings.ranks, rank.number())
            && !ranks.contains(number)
        {
            return write!(
                f,
                "no window here by TLLMPROF_RANKS: {iterations} iterations by {by}"
            );
        }
        if *gating == Gating::Engine {
            return write!(
                f,
                "the windows were left to TensorRT-LLM: {iterations} iterations by {by}"
            );
        }
        let is_steady = settings.windows.is_steady();
        let found = captured.first().filter(|_| is_steady);
        let asked = match &found {
            Some(taken) => core::slice::from_ref(&taken.asked),
            None => settings.windows.as_slice(),
        };
        let opened = captured.iter().filter(|taken| !taken.is_again).count();
        let mut separator = "";
        for (what, are_captured) in [("captured", true), ("never opened", false)] {
            let all = asked.iter();
            // There may be many. They were captured in order.
            let taken = |window: &Window| {
                captured
                    .binary_search_by_key(&window.first, |taken| taken.asked.first)
                    .is_ok()
            };
            let windows = all.copied().filter(|window| taken(window) == are_captured);
            let s = match windows.clone().take(2).count() {
                0 => continue,
                1 => "",
                _ => "s",
            };
            match settings.windows.steady_iterations() {
                Some(count) if !are_captured => {
                    write!(f, "window of {count} steady iterations {what}")?;
                }
                None if !are_captured && is_steady => {
                    write!(f, "window of steady iterations {what}")?;
                }
                _ => {
                    let what = match are_captured && *is_unheard {
                        true => "opened",
                        false => what,
                    };
                    write!(f, "{separator}window{s} {} {what}", Listed(windows))?;
                }
            }
            if are_captured && captured.iter().any(Taken::is_late) {
                let late = captured.iter().map(|taken| taken.window);
                write!(f, " as {}", Listed(late))?;
                if *unkept > 0 {
                    write!(f, " and {unkept} more parts")?;
                }
            }
            let last = captured
                .last()
                .filter(|_| are_captured && (cut.is_some() || lacks.is_some()));
            if let Some(last) = last {
                if opened > 1 {
                    write!(f, ", {}", last.asked)?;
                }
                f.write_str(" in part: ")?;
                match (cut.map(|cut| cut.has), lacks) {
                    (Some(Some(has)), _) => write!(f, "{has}")?,
                    (None, Some(lacks)) => write!(f, "{lacks} of its iterations did not come")?,
                    _ => write!(f, "no iteration")?,
                }
                f.write_str(match end {
                    End::Filter => ", the program installed a filter for system calls",
                    End::Exit | End::AtOnce => ", the program ended",
                })?;
            }
            separator = "; ";
        }
        let missed = opened < asked.len();
        match learnt.filter(|_| missed) {
            Some(Learnt::Nothing) => write!(f, ": {by} recognised no step{calls}")?,
            Some(Learnt::Unsure) => write!(
                f,
                ": {iterations} iterations by {by}, not steady for long enough to be relied on{calls}"
            )?,
            Some(Learnt::Gone) => write!(
                f,
                ": {iterations} iterations by {by}, then the step was gone{calls}"
            )?,
            _ => {
                write!(f, ": {iterations} iterations by {by}")?;
                if let (1.., Step::Python { .. }) = (*iterations, &settings.step) {
                    interpreter().write_missing_calls(f)?;
                }
                if *iterations == 0 && learnt.is_none() {
                    if let Step::Nvtx { .. } = settings.step {
                        doors().write_no_range(f)?;
                    }
                    if let Step::Python { .. } = settings.step {
                        interpreter().write_no_call(f)?;
                    }
                    write!(f, "{calls}")?;
                    if calls.graphs + calls.kernels > 0 {
                        f.write_str(": try auto")?;
                    }
                } else if is_steady && missed {
                    write!(
                        f,
                        "; it opens once {NEEDED} in a row take about as long, or after {ENOUGH} or 4 s of them \
                         (TLLMPROF_START_STOP=all takes all there are)"
                    )?;
                }
            }
        }
        if let Some(condition) = &settings.condition
            && held.asked > 0
            && (missed || cut.is_some() || lacks.is_some())
        {
            f.write_str("; TLLMPROF_WHERE: ")?;
            match &settings.batch {
                _ if held.unknown < held.asked => held.show(condition, f)?,
                None => f.write_str(
                    "no step's batch could be read: TLLMPROF_BATCH names where it is (docs/engines.md has the \
                     engines that need none)",
                )?,
                Some(batch) if matches!(settings.step, Step::Auto) => write!(
                    f,
                    "no step's batch could be read before the step: leave TLLMPROF_STEP out, so that {} of \
                     TLLMPROF_BATCH is the step",
                    batch.function
                )?,
                Some(_) => f.write_str("no step's batch could be read")?,
            }
        }
        if let (Some(_), Rank::Unknown(why)) = (&settings.ranks, rank)
            && missed
        {
            write!(
                f,
                "; TLLMPROF_RANKS waited for the rank of this process: {why} (TLLMPROF_RANK sets it)"
            )?;
        }
        if missed && *restarts > 0 {
            let s = if *restarts == 1 { "" } else { "s" };
            write!(
                f,
                "; the count started again after {restarts} stream capture{s} (TLLMPROF_WARMUP=0 \
                 counts through)"
            )?;
        }
        if let Some(span) = span.filter(|_| missed) {
            let seconds = span.length.as_secs_f64();
            write!(f, "; the last {seconds:.1} s are reported as one span")?;
        } else if missed && *latest > 0 {
            let (s, are) = if *latest == 1 {
                ("", "is")
            } else {
                ("s", "are")
            };
            write!(f, "; the last {latest} iteration{s} {are} reported")?;
        }
        if *is_unheard {
            f.write_str("; nothing recorded ")?;
            f.write_str(if opened == 1 { "it" } else { "them" })?;
        }
        Ok(())
    }
}
