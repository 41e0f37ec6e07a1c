//! The result of all windows, formatted as the last line of the log.
//!
//! This module neither allocates nor frees memory, because it also runs when the program calls `_exit`. The program
//! may do so in a signal handler that interrupted the allocator.

use core::fmt;
use std::time::Instant;

use tllmprof_calls::{CALLS, CallPurpose};
use tllmprof_config::condition::Held;
use tllmprof_config::{IterationRange, Listed, Settings, Step};
use tllmprof_steps::steady::{ENOUGH, NEEDED};
use tllmprof_steps::step::learned::Learnt;
use tllmprof_steps::step::threads::Slot;
use tllmprof_steps::window::{Cut, Point, Schedule, Taken};

use super::by::By;
use super::end::EndReason;
use super::engines::{self, DetectedEngine};
use super::rank::Rank;
use super::recording::Beginning;
use super::span::Reported;
use super::wiring::{LostData, doors, interpreter, sink};
use super::{Gating, SessionState};

/// The data of the session that the last line of the log needs, copied while the state was locked.
pub(crate) struct Ended {
    pub settings: &'static Settings,
    /// The step rule by which iterations were counted.
    step: &'static Step,
    rank: Rank,
    gating: Gating,
    pub iterations: u64,
    /// The number of ended iterations that the log and the record report at the end of the process.
    pub over: u64,
    /// True if a window was open when the session ended, so that this window closes now.
    pub closes: bool,
    /// The iterations that the last window contains, if the end of the process cut that window off.
    cut: Option<Cut>,
    /// The number of iterations that the last window still needs, if it was closed for an iteration that the condition
    /// excludes (`TLLMPROF_WHERE_SPLIT`) and has not opened again; otherwise `None`.
    lacks: Option<u64>,
    /// The number of windows that were requested while the process ran.
    pub demands: u64,
    /// True if kernel samples were requested: windows that the library opens at intervals, in addition to the planned
    /// ones.
    pub is_sampled: bool,
    pub schedule: Schedule,
    /// The number of stream captures after which the count of iterations restarted at 0 although iterations had already
    /// been counted.
    restarts: u64,
    /// The number of iterations for which the condition on batches (`TLLMPROF_WHERE`) held, and the number for which it
    /// did not.
    held: Held,
    calls: CallCounts,
    /// The new step rule and the reason for it, if the rule has changed since the record began.
    pub another: Option<Beginning>,
    /// The final state of the learner (the part of the library that finds the step rule from the program's calls);
    /// `None` if the rule is not learnt.
    learnt: Option<Learnt>,
    /// The latest stretch of time, if the record contains stretches in place of iterations because no step was
    /// recognized.
    span: Option<Reported>,
    /// The point in the sequence of iterations at which the latest stretch of time ends; `None` if there is no
    /// stretch.
    pub span_ends: Option<Point>,
    pub uses_cuda: bool,
}

impl Ended {
    /// Closes the open window, and copies the data for the last line of the log out of the state.
    pub(crate) fn read(state: &mut SessionState) -> Self {
        let iterations = state.counter.iterations(&state.slots);
        let begun = state.begun_of(iterations);
        let closed = state.schedule.finish();
        let over = closed.map_or(begun, |closed| closed.over(begun));
        let planned = closed.filter(|closed| !closed.on_demand);
        let cut = planned.and_then(|closed| closed.cut(over));
        let learnt = state.counter.learnt();
        if state.span.is_on()
            && learnt == Some(Learnt::Unsure)
            && sink().probable_steps_replace_span()
        {
            state.span.is_replaced_by_probable_steps();
        }
        let span = state.span.finish(Instant::now());
        let span_ends = state.span.is_on().then(|| match span {
            Some(span) if span.is_current => Point::After(state.turn.done().over()),
            // The current stretch of time is too short to be reported, so it is dropped.
            _ => Point::Start,
        });
        Self {
            settings: state.settings,
            step: state.step(),
            rank: state.rank,
            gating: state.gating,
            iterations,
            over,
            closes: closed.is_some(),
            cut: cut.or_else(|| state.schedule.interrupted()),
            lacks: state.schedule.lacks(),
            demands: state.schedule.demands_met(),
            is_sampled: state.automatic.sampler.is_some(),
            schedule: core::mem::take(&mut state.schedule),
            restarts: state.restarts,
            held: state.filter.held,
            calls: CallCounts::read(&state.slots),
            another: Beginning::anew(state),
            learnt,
            span,
            span_ends,
            uses_cuda: state.uses_cuda,
        }
    }

    fn by(&self) -> By<'_> {
        By {
            step: self.step,
            rank: self.rank,
            verdict: None,
        }
    }

    /// Returns the reason why no window may open in this process; `None` if windows may open.
    fn opens_none(&self) -> Option<&'static str> {
        if let (Some(ranks), Some(number)) = (&self.settings.ranks, self.rank.number())
            && !ranks.contains(number)
        {
            return Some("no window here by TLLMPROF_RANKS");
        }
        (self.gating == Gating::Engine).then_some("the windows were left to TensorRT-LLM")
    }

    /// Returns the windows that the user requested. A window of steady iterations (iterations of similar duration) was
    /// requested without iteration numbers, so the iterations that it captured are returned.
    fn asked(&self) -> &[IterationRange] {
        let captured = self.schedule.captured().first();
        match captured.filter(|_| self.settings.windows.is_steady()) {
            Some(taken) => core::slice::from_ref(&taken.asked),
            None => self.settings.windows.as_slice(),
        }
    }

    /// Returns a part of the requested windows. If `are_captured` is true, these are the windows that were captured
    /// completely or in part, otherwise the windows that were not captured.
    fn windows(&self, are_captured: bool) -> impl Iterator<Item = IterationRange> + Clone {
        let captured = self.schedule.captured();
        // A binary search is used, because there may be many windows. The captured windows are in order.
        let is_captured = move |window: &IterationRange| {
            let found = captured.binary_search_by_key(&window.first, |taken| taken.asked.first);
            found.is_ok()
        };
        let asked = self.asked().iter().copied();
        asked.filter(move |window| is_captured(window) == are_captured)
    }

    /// Returns the number of windows that opened. A window that was closed for a while and opened again
    /// counts once.
    fn opened(&self) -> usize {
        let captured = self.schedule.captured().iter();
        captured.filter(|taken| !taken.is_again).count()
    }

    /// Returns true if at least one requested window never opened.
    fn is_missed(&self) -> bool {
        self.opened() < self.asked().len()
    }

    /// Returns the captured part of the last captured window, if that window is not complete.
    fn partial(&self, by: EndReason) -> Option<Partial> {
        let last = self.schedule.captured().last()?;
        let has = match (self.cut, self.lacks) {
            (Some(Cut { has: Some(has) }), _) => Share::Iterations(has),
            (None, Some(lacks)) => Share::AllBut(lacks),
            (Some(_), _) => Share::Nothing,
            (None, None) => return None,
        };
        Some(Partial {
            window: (self.opened() > 1).then_some(last.asked),
            has,
            by,
        })
    }
}

/// Returns `number`, and the plural ending (`""` or `"s"`) of the noun that follows the number in a message.
pub(crate) const fn counted(number: u64) -> (u64, &'static str) {
    (number, if number == 1 { "" } else { "s" })
}

/// The result of the windows that have closed.
#[derive(Clone, Copy)]
pub(crate) struct Recorded {
    /// True if windows have closed, but no profiler or record is known to have captured them.
    pub is_unheard: bool,
    /// The data that the record lacks because it could not grow any more.
    pub lost: Option<LostData>,
}

impl Recorded {
    /// Returns the clause about what the record lacks, with a separator before it; empty if it lacks nothing.
    pub(crate) const fn lost_note(self) -> LostNote {
        LostNote(self.lost)
    }
}

pub(crate) struct LostNote(Option<LostData>);

impl fmt::Display for LostNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(LostData { iterations, events }) = self.0 else {
            return Ok(());
        };
        f.write_str("; the record ended early and lacks ")?;
        if let (iterations @ 1.., s) = counted(iterations) {
            write!(f, "{iterations} iteration{s}, ")?;
        }
        let (events, s) = counted(events);
        write!(f, "{events} event{s}")
    }
}

/// The last line of the log, which states the result of all windows.
pub(crate) struct Outcome<'a> {
    pub ended: &'a Ended,
    pub recorded: Recorded,
    /// The number of iterations outside windows that the record contains at the end of the process.
    pub latest: u64,
    pub by: EndReason,
}

impl fmt::Display for Outcome<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ended { iterations, .. } = self.ended;
        if let Some(why) = self.ended.opens_none() {
            return write!(f, "{why}: {iterations} iterations by {}", self.ended.by());
        }
        let has_captured = self.write_captured(f)?;
        self.write_missed(f, if has_captured { "; " } else { "" })?;
        self.write_count(f)?;
        for note in self.notes().into_iter().flatten() {
            write!(f, "; {note}")?;
        }
        write!(f, "{}", self.recorded.lost_note())
    }
}

impl Outcome<'_> {
    /// Writes which windows were captured. Returns true if there are any.
    fn write_captured(&self, f: &mut fmt::Formatter<'_>) -> Result<bool, fmt::Error> {
        let windows = self.ended.windows(true);
        let (1.., s) = counted(windows.clone().take(2).count() as u64) else {
            return Ok(false);
        };
        let captured = self.ended.schedule.captured();
        let verb = if self.recorded.is_unheard {
            "opened"
        } else {
            "captured"
        };
        write!(f, "window{s} {} {verb}", Listed(windows))?;
        if captured.iter().any(Taken::is_late) {
            write!(
                f,
                " as {}",
                Listed(captured.iter().map(|taken| taken.window))
            )?;
            if let more @ 1.. = self.ended.schedule.unkept() {
                write!(f, " and {more} more parts")?;
            }
        }
        if let Some(partial) = self.ended.partial(self.by) {
            write!(f, "{partial}")?;
        }
        Ok(true)
    }

    /// Writes which windows never opened, with `separator` before the text.
    fn write_missed(&self, f: &mut fmt::Formatter<'_>, separator: &str) -> fmt::Result {
        let windows = self.ended.windows(false);
        let (1.., s) = counted(windows.clone().take(2).count() as u64) else {
            return Ok(());
        };
        let asked = &self.ended.settings.windows;
        match asked.steady_iterations() {
            Some(count) => write!(f, "window of {count} steady iterations")?,
            None if asked.is_steady() => f.write_str("window of steady iterations")?,
            None => write!(f, "{separator}window{s} {}", Listed(windows))?,
        }
        f.write_str(" never opened")
    }

    /// Writes the number of iterations and, if there are none or too few, the reason.
    fn write_count(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ended {
            iterations,
            calls,
            settings,
            ..
        } = self.ended;
        let by = self.ended.by();
        let missed = self.ended.is_missed();
        match self.ended.learnt.filter(|_| missed) {
            Some(Learnt::Nothing) => return write!(f, ": {by} recognised no step{calls}"),
            Some(Learnt::Unsure) => {
                return write!(
                    f,
                    ": {iterations} iterations by {by}, not steady for long enough to be relied on{calls}"
                );
            }
            Some(Learnt::Gone) => {
                return write!(
                    f,
                    ": {iterations} iterations by {by}, then the step was gone{calls}"
                );
            }
            Some(Learnt::AwaitsEngine) => {
                if let Some(DetectedEngine { engine, step }) = engines::awaited() {
                    let engine = engine.name;
                    return write!(
                        f,
                        ": {by} waited for the first call of {step}, the step of {engine}{calls}"
                    );
                }
            }
            Some(Learnt::Understood) | None => {
                write!(f, ": {iterations} iterations by {by}")?;
            }
        }
        if let (1.., Step::Python { .. }) = (*iterations, &settings.step) {
            interpreter().write_missing_calls(f)?;
        }
        if *iterations == 0 && self.ended.learnt.is_none() {
            match settings.step {
                Step::Nvtx { .. } => doors().write_no_range(f)?,
                Step::Python { .. } => interpreter().write_no_call(f)?,
                _ => {}
            }
            write!(f, "{calls}")?;
            if calls.graphs + calls.kernels > 0 {
                f.write_str(": try auto")?;
            }
        } else if settings.windows.is_steady() && missed {
            write!(
                f,
                "; it opens once {NEEDED} in a row take about as long, or after {ENOUGH} or 4 s of them \
                 (TLLMPROF_START_STOP=all takes all there are)"
            )?;
        }
        Ok(())
    }

    /// Returns the additional clauses of the log's last line, in the order in which they are written. A clause that
    /// does not apply is `None`.
    fn notes(&self) -> [Option<Note<'_>>; 5] {
        let ended = self.ended;
        let missed = ended.is_missed();
        let is_short = missed || ended.cut.is_some() || ended.lacks.is_some();
        let rank = match (&ended.settings.ranks, ended.rank) {
            (Some(_), Rank::Unknown(why)) if missed => Some(Note::RankWaited(why)),
            _ => None,
        };
        [
            (ended.settings.condition.is_some() && ended.held.asked > 0 && is_short)
                .then_some(Note::Condition(ended)),
            rank,
            (missed && ended.restarts > 0).then_some(Note::Restarted(ended.restarts)),
            match ended.span {
                Some(span) if missed => Some(Note::Span(span)),
                _ => (missed && self.latest > 0).then_some(Note::Latest(self.latest)),
            },
            self.recorded
                .is_unheard
                .then(|| Note::Unheard(ended.opened())),
        ]
    }
}

/// A window that was captured only in part.
struct Partial {
    /// The window that was captured in part. `None` if no other window was captured, because the message then need
    /// not name it.
    window: Option<IterationRange>,
    has: Share,
    by: EndReason,
}

enum Share {
    Iterations(IterationRange),
    AllBut(u64),
    Nothing,
}

impl fmt::Display for Partial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(window) = self.window {
            write!(f, ", {window}")?;
        }
        f.write_str(" in part: ")?;
        match self.has {
            Share::Iterations(has) => write!(f, "{has}")?,
            Share::AllBut(lacks) => write!(f, "{lacks} of its iterations did not come")?,
            Share::Nothing => f.write_str("no iteration")?,
        }
        f.write_str(match self.by {
            EndReason::Filter => ", the program installed a filter for system calls",
            EndReason::Exit | EndReason::AtOnce => ", the program ended",
        })
    }
}

/// An additional clause of the log's last line, about windows that did not open as requested.
enum Note<'a> {
    /// The condition on batches (`TLLMPROF_WHERE`) held for too few iterations.
    Condition(&'a Ended),
    /// Windows waited for the rank, which did not become known. Contains the reason.
    RankWaited(&'static str),
    /// Counting restarted after this number of stream captures.
    Restarted(u64),
    /// The record contains this number of iterations outside windows.
    Latest(u64),
    /// The record contains this stretch of time in place of iterations.
    Span(Reported),
    /// No profiler or record captured these windows. Contains their number.
    Unheard(usize),
}

impl fmt::Display for Note<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Condition(ended) => write_condition(ended, f),
            Self::RankWaited(why) => write!(
                f,
                "TLLMPROF_RANKS waited for the rank of this process: {why} (TLLMPROF_RANK sets it)"
            ),
            Self::Restarted(restarts) => {
                let (restarts, s) = counted(restarts);
                write!(
                    f,
                    "the count started again after {restarts} stream capture{s} (TLLMPROF_WARMUP=0 \
                     counts through)"
                )
            }
            Self::Latest(latest) => {
                let (latest, s) = counted(latest);
                let are = if latest == 1 { "is" } else { "are" };
                write!(f, "the last {latest} iteration{s} {are} reported")
            }
            Self::Span(span) => {
                let seconds = span.length.as_secs_f64();
                write!(f, "the last {seconds:.1} s are reported as one span")
            }
            Self::Unheard(opened) => {
                let windows = if opened == 1 { "it" } else { "them" };
                write!(f, "nothing recorded {windows}")
            }
        }
    }
}

/// Writes for how many iterations the condition on batches (`TLLMPROF_WHERE`) held, or why that number is not known.
fn write_condition(ended: &Ended, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Some(condition) = &ended.settings.condition else {
        return Ok(());
    };
    f.write_str("TLLMPROF_WHERE: ")?;
    match &ended.settings.batch {
        _ if ended.held.unknown < ended.held.asked => ended.held.show(condition, f),
        None => f.write_str(
            "no step's batch could be read: TLLMPROF_BATCH names where it is (docs/engines.md has the \
             engines that need none)",
        ),
        Some(batch) if matches!(ended.settings.step, Step::Auto) => write!(
            f,
            "no step's batch could be read before the step: leave TLLMPROF_STEP out, so that {} of \
             TLLMPROF_BATCH is the step",
            batch.function
        ),
        Some(_) => f.write_str("no step's batch could be read"),
    }
}

/// The number of CUDA calls of each kind, for the message about a process without iterations.
struct CallCounts {
    graphs: u64,
    kernels: u64,
    waits: u64,
}

impl CallCounts {
    fn read(slots: &[&Slot]) -> Self {
        let sum = |belongs: fn(CallPurpose) -> bool| {
            let rows = CALLS.iter().filter(move |row| belongs(row.kind));
            rows.flat_map(|row| slots.iter().map(|slot| slot.live(row.call).count()))
                .sum()
        };
        Self {
            graphs: sum(|kind| kind == CallPurpose::GraphLaunch),
            kernels: sum(|kind| matches!(kind, CallPurpose::KernelLaunch { .. })),
            waits: sum(CallPurpose::waits),
        }
    }
}

/// Formats the counted CUDA calls as a list, with the number and the kind of the calls.
impl fmt::Display for CallCounts {
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
