//! The state of the session, which one lock guards. It includes the counter of iterations, the windows, and the turn
//! (the right to switch windows).

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use core::time::Duration;
use std::time::Instant;

use tllmprof_calls::{CALLS, Call, CallSet};
use tllmprof_config::condition::{Condition, Held};
use tllmprof_config::{IterationRange, KernelSelection, Settings, Step};
use tllmprof_engines::tensorrt_llm_gates_itself;
use tllmprof_platform::barrier::process_wide;
use tllmprof_platform::lifecycle::{self, OnlyThread, Stage};
use tllmprof_platform::{driver, injection, log};
use tllmprof_steps::length::KernelPart;
use tllmprof_steps::sampling::Sampler;
use tllmprof_steps::step::Counter;
use tllmprof_steps::step::counted::Counted;
use tllmprof_steps::step::learned::Learnt;
use tllmprof_steps::step::threads::Slot;
use tllmprof_steps::trigger::{Fired, Watch};
use tllmprof_steps::turn::{Turn, TurnEvent};
use tllmprof_steps::window::{Edge, Point, Schedule, Taken};
use tllmprof_sync::Lock;

use super::activity::USES_CUDA;
use super::demand::{Demand, DemandProgress, Demands};
use super::engines::{self, DetectedEngine};
use super::rank::Rank;
use super::span::Stretches;
use super::wiring::{doors, interpreter, sink};
use super::{learning, slots};

lifecycle::global! {
    stage: Session;

    #[fork(hold, reset)]
    pub static STATE: Lock<Option<SessionState>> = Lock::new(None);
    /// The id of the process whose calls are counted. Calls are ignored in other processes that have the same memory:
    /// in a child after `vfork`, or in a copy for which no fork handler ran.
    #[fork(reset)]
    pub static OWNER: AtomicI32 = AtomicI32::new(0);
    /// The calls that are counted when they enter the CUDA runtime's function. All others are counted at the driver's
    /// function, if the library intercepts the calls that the runtime makes to it. At first this is the set of all
    /// calls: the runtime looks up the driver's functions in its first call, and the library cannot intercept them
    /// before that.
    #[fork(reset)]
    pub static ATTENDED: AtomicU64 = AtomicU64::new(CallSet::ALL.bits());
    /// True if waits have to be reported when a thread enters them, and not only when they return. While steps are
    /// learnt, only the return matters. Not reporting the entry saves taking the lock at each wait.
    #[fork(reset)]
    pub static WAITS_ENTER: AtomicBool = AtomicBool::new(true);
}

lifecycle::at_fork! {
    stage: Stage::Session,
    child: |_: &OnlyThread| slots::forget(),
}

/// The shortest time between two splits of a window. A split closes the window before an iteration that the condition
/// on batches excludes.
const BETWEEN_SPLITS: Duration = Duration::from_millis(100);

/// The component that decides when windows open: this library or the engine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Gating {
    NotAsked,
    Ours,
    /// TensorRT-LLM opens the windows itself, because it reads the same environment variable.
    Engine,
}

pub(crate) struct SessionState {
    pub settings: &'static Settings,
    pub counter: Counter,
    pub schedule: Schedule,
    pub filter: Filter,
    pub slots: Vec<&'static Slot>,
    pub captures: Vec<(usize, &'static Slot)>,
    pub turn: Turn,
    pub rank: Rank,
    /// True if windows have had to wait until the rank was known.
    pub awaited_rank: bool,
    /// The component that opens windows; `NotAsked` until it has been determined.
    pub gating: Gating,
    pub follows_each: bool,
    pub recording: Recording,
    /// The rule that was written to the record. The flag is true if a stretch of time was being recorded in place of
    /// iterations at that time.
    pub recorded_step: Option<(&'static Step, bool)>,
    /// The stretches of time that are recorded in place of iterations while no step is known.
    pub span: Stretches,
    /// The number of stream captures after which counting restarted although iterations had already been counted.
    pub restarts: u64,
    /// The number of iterations that began too early: the thread that began the iteration could not wait any longer,
    /// although another thread was still opening or closing windows. `None` once this number has been logged.
    pub early: Option<u64>,
    /// The latest windows that were requested while the process runs.
    pub demands: Demands,
    /// The first and the last iteration of the window that closed last; `None` if that window had no
    /// iterations.
    pub closed: Option<(u64, u64)>,
    pub automatic: Automatic,
    /// True if a status request asked for the rank, which is looked up when the next iteration begins.
    pub rank_is_wanted: bool,
    /// True if the process uses CUDA. Otherwise no window is opened, even if functions that the rule names
    /// are counted.
    pub uses_cuda: bool,
}

/// The results of checking the condition on batches: `TLLMPROF_WHERE`, or the condition of a requested window.
#[derive(Default)]
pub(crate) struct Filter {
    /// The number of iterations for which the condition in the settings held, and the number for which it did not.
    /// Iterations that were checked by the condition of a requested window are not counted.
    pub held: Held,
    /// The latest iteration that has begun, if the condition on batches (such as `TLLMPROF_WHERE`) does not hold for
    /// it; otherwise `None`.
    pub excluded: Option<u64>,
    /// The time when the open window was last split: closed for an iteration that the condition excludes, to be opened
    /// again.
    pub split: Option<Instant>,
}

/// The windows that the library opens by a trigger or for a kernel sample. They are neither planned nor requested.
pub(crate) struct Automatic {
    /// The trigger, which finds the iterations after which a window opens (`TLLMPROF_WHEN`); `None` if no trigger is
    /// set.
    pub watch: Option<Watch>,
    /// The window that a trigger has opened or will open, and the iteration that fired the trigger.
    pub triggered: Option<(IterationRange, Fired)>,
    /// The component that decides when a kernel sample is due; `None` if kernels are not sampled.
    pub sampler: Option<Sampler>,
    /// The window of the kernel sample that is open or about to open; `None` if there is none.
    pub sample: Option<IterationRange>,
}

/// The stage of the process's record: if there is one, and if it has begun.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Recording {
    /// No record was requested, or the record's file could not be created.
    #[default]
    No,
    /// The record begins with the first window that is not planned: one that is requested while the process runs, or
    /// one that the library opens by a trigger or for a kernel sample.
    OnDemand,
    /// The record has not begun yet. It begins with the next iteration.
    ToBegin,
    Yes,
}

impl Recording {
    pub(crate) fn asked_for(settings: &Settings) -> Self {
        match sink().wants_record() {
            true if settings.trace_on_demand => Self::OnDemand,
            true => Self::ToBegin,
            false => Self::No,
        }
    }

    /// Returns true if each iteration has to be reported to the record, because the record has begun or is about to
    /// begin.
    const fn is_due(self) -> bool {
        matches!(self, Self::ToBegin | Self::Yes)
    }
}

impl SessionState {
    pub(crate) fn new() -> Option<Self> {
        let settings = crate::activity::settings()?;
        let schedule = match (&settings.step, &settings.condition) {
            (step, _) if step.is_learnt() => Schedule::patient(settings.windows.as_slice()),
            (_, None) => Schedule::new(settings.windows.as_slice()),
            (_, Some(_)) => Schedule::new(settings.windows.as_slice()).of_some(),
        };
        let samples = settings.kernels.and_then(KernelSelection::samples);
        Some(Self {
            settings,
            counter: Counter::new(settings, process_wide, learning::memory),
            schedule: match (settings.windows.is_steady(), settings.windows.is_auto()) {
                (_, true) => schedule
                    .once_settled()
                    .as_long_as_needed(kernel_part(settings)),
                (true, _) => schedule.once_settled(),
                _ => schedule,
            },
            filter: Filter::default(),
            slots: Vec::new(),
            captures: Vec::new(),
            turn: Turn::default(),
            rank: Rank::NotAsked,
            awaited_rank: false,
            gating: Gating::NotAsked,
            follows_each: settings.nvtx && injection::has_tool(),
            recording: Recording::asked_for(settings),
            recorded_step: None,
            span: Stretches::default(),
            restarts: 0,
            early: Some(0),
            demands: Demands::default(),
            closed: None,
            automatic: Automatic {
                watch: settings.when.as_ref().map(Watch::new),
                triggered: None,
                sampler: samples
                    .filter(|_| sink().takes_kernels(settings))
                    .map(Sampler::new),
                sample: None,
            },
            rank_is_wanted: false,
            uses_cuda: false,
        })
    }

    /// Returns the first limit of the cell (a counter with a limit) in which thread number `thread` counts `what`.
    /// Before the process uses CUDA, the limit of a CUDA call is 0, so that the first CUDA call is examined.
    pub(crate) fn first_limit(&self, what: Counted, thread: u32) -> u64 {
        if self.uses_cuda || what.is_by_name() {
            self.counter.first_limit(what, thread)
        } else {
            0
        }
    }

    /// Called when the process makes a CUDA call. Returns true if this call begins the session. The calling thread
    /// then has the turn (the right to switch windows), and calls of other threads wait for a limited time until the
    /// profilers are ready.
    pub(crate) fn begin_to_use_cuda(&mut self) -> bool {
        self.note_cuda();
        let begins = !self.turn.has_begun() && !self.turn.is_taken();
        if begins {
            self.take_turn();
        }
        begins
    }

    /// Stores that the process uses CUDA, and sets the limits from which on threads report their CUDA calls. Also
    /// called when a window is about to open or close in a process that has only loaded the driver.
    pub(crate) fn note_cuda(&mut self) {
        if self.uses_cuda {
            return;
        }
        self.uses_cuda = true;
        self.span.cuda_is_used();
        USES_CUDA.store(true, Ordering::Relaxed);
        for slot in &self.slots {
            for what in Counted::all().filter(|what| !what.is_by_name()) {
                slot.live(what)
                    .set_limit(self.first_limit(what, slot.thread()));
            }
        }
    }

    /// Returns true if a stretch of time may be recorded in place of an iteration, because no step is known
    /// yet.
    pub(crate) fn wants_span(&self) -> bool {
        !self.span.has_ended()
            && self.settings.windows.is_auto()
            && self.records_each()
            && self.condition().is_none()
            && self.schedule.has_more()
            && !self.schedule.has_opened()
            && self.turn.has_begun()
            && !self.turn.is_taken()
            && self
                .counter
                .learnt()
                .is_some_and(|learnt| learnt != Learnt::Understood)
    }

    /// Takes the turn (the right to switch windows) for the calling thread.
    pub(crate) fn take_turn(&mut self) {
        self.turn.on(TurnEvent::Claims(Instant::now()));
    }

    /// Gives the threads credit (calls that they may count by themselves) up to the next iteration that needs
    /// an action: a window opens or closes, or the iteration is recorded.
    pub(crate) fn run_on(&mut self) {
        let next = Some(self.turn.done().next());
        // `is_each` is false if only the record needs each iteration. Iterations for the record are counted at the
        // driver's functions, so the CUDA runtime's functions need not be intercepted for them.
        let awaits_rank = self.awaits_rank_at(self.turn.done().next());
        let is_each = self.follows_each
            || self.condition().is_some()
            || self.schedule.follows_each()
            || self.automatic.watch.is_some()
            || self.automatic.sampler.is_some()
            || sink().is_behind()
            || self.rank_is_wanted && self.rank == Rank::NotAsked;
        let edge = if is_each || awaits_rank {
            next
        } else {
            self.schedule.next_edge()
        };
        // With a learnt rule, the learner (which finds the rule in the calls) reports each iteration even if this
        // function does not request it. While a window is open, the record needs the exact call with which an iteration
        // begins, so each iteration is requested.
        let is_exact = self.counter.learnt().is_none() || self.schedule.is_open();
        let asked = if self.records_each() && is_exact {
            next
        } else {
            edge
        };
        self.counter.run_to(&self.slots, asked);
        let left = |next: u64| next.saturating_sub(self.turn.done().over());
        let close = edge.map_or(CallSet::NONE, |next| self.counter.close_calls(left(next)));
        if ATTENDED.load(Ordering::Relaxed) != close.bits() {
            ATTENDED.store(close.bits(), Ordering::Release);
            doors().attend(close);
        }
        let waits_enter = !self.turn.has_begun() || !self.counter.passes_entered_waits();
        if WAITS_ENTER.load(Ordering::Relaxed) != waits_enter {
            WAITS_ENTER.store(waits_enter, Ordering::Relaxed);
        }
    }

    /// Returns true if nothing has to be done when the process reaches `point`: no window opens or closes, no NVTX
    /// range is made for an iteration, the rank need not be looked up, no record begins, and no profiler has to be
    /// started or stopped. Also returns true if the process neither uses CUDA nor has loaded the driver itself, because
    /// no window opens then.
    pub(crate) fn has_nothing_at(&self, point: Point) -> bool {
        let has_none = !self.follows_each
            && !self.schedule.has_edge_at(point)
            && !self.asks_rank_at(point)
            && !self.begins_record(point)
            && !sink().has_edge_at(point);
        // The child of a fork inherits the loaded driver even if the child never uses it. So in a child, a loaded
        // driver does not mean that CUDA is used.
        let has_driver = || !lifecycle::is_child() && driver::is_loaded();
        has_none || !(self.uses_cuda || has_driver())
    }

    /// Returns the rule to name in messages. With `auto` this is the rule of the detected engine, if that
    /// engine's steps are counted.
    pub(crate) fn step(&self) -> &'static Step {
        match self.engine() {
            Some(engine) => &engine.step,
            None => &self.settings.step,
        }
    }

    /// Returns the engine whose steps are counted, if the rule is `auto` and an engine was detected.
    pub(crate) fn engine(&self) -> Option<&'static DetectedEngine> {
        match self.settings.step {
            Step::Auto => engines::counted(self.counter.counts()?),
            _ => None,
        }
    }

    /// Leaves the windows to TensorRT-LLM if it is loaded and itself reads the environment variable that requests them.
    /// Only the first call decides.
    pub(crate) fn ask_engine(&mut self) {
        if self.gating != Gating::NotAsked {
            return;
        }
        self.gating = Gating::Ours;
        if let Some(variable) = self.settings.windows_from
            && tensorrt_llm_gates_itself(variable, engines::seen)
        {
            self.gating = Gating::Engine;
            self.schedule.plan_none();
            log::say!(
                Info,
                "TensorRT-LLM is in this process and reads {variable} itself: the profiler is left \
                 to it (set TLLMPROF_START_STOP instead to let tllmprof control it)"
            );
        }
    }

    /// Returns true if the rank has to be looked up at `point` even if no window opens or closes there. Engines set the
    /// rank late, so it is usually looked up only when a window opens or closes. There are three exceptions.
    /// If only some ranks open windows, the rank is looked up at the first iteration, because Python may need time to
    /// answer. If a status request asked for the rank, it is looked up at the next iteration. While a window waits for
    /// the rank, it is looked up at each iteration.
    pub(crate) fn asks_rank_at(&self, point: Point) -> bool {
        match (self.rank, point) {
            (Rank::Known(_), _) => false,
            (Rank::NotAsked, Point::In(_)) => self.settings.ranks.is_some() || self.rank_is_wanted,
            (_, Point::In(iteration)) => self.awaits_rank_at(iteration),
            (_, Point::Start | Point::After(_)) => false,
        }
    }

    /// Returns true if a window should be open at `iteration` but has to wait until the rank is known.
    fn awaits_rank_at(&self, iteration: u64) -> bool {
        self.awaits_rank() && self.schedule.waiting_at(iteration).is_some()
    }

    /// Returns true if no window can open until the rank is known.
    pub(crate) fn awaits_rank(&self) -> bool {
        self.settings.ranks.is_some() && matches!(self.rank, Rank::Unknown(_))
    }

    /// Returns true if the rank is known, and the settings open no windows on it. A process without a rank counts as
    /// rank 0.
    pub(crate) fn is_other_rank(&self) -> bool {
        let ranks = self.settings.ranks.as_ref();
        let is_other = |number| ranks.is_some_and(|ranks| !ranks.contains(number));
        self.rank.number().is_some_and(is_other)
    }

    /// Stores the rank that was looked up at `point`. If the settings do not select this rank, no windows open. If
    /// nothing indicates that the process has a rank, it counts as rank 0 once a window is due.
    pub(crate) fn know_rank(&mut self, rank: Rank, point: Point) {
        let awaited = self.awaits_rank();
        self.rank = rank;
        if let Rank::Known(ranked) = &rank
            && self.recording == Recording::Yes
        {
            sink().rank_is_known(ranked);
        }
        let Some(ranks) = &self.settings.ranks else {
            return;
        };
        let is_settled = rank != Rank::None || self.schedule.has_edge_at(point);
        match rank.number() {
            Some(number) if is_settled && !ranks.contains(number) => {
                self.schedule.plan_none();
                sink().plans_none(self.settings);
            }
            Some(_) if awaited => self.schedule.hold(false),
            Some(_) => {}
            None => {
                self.awaited_rank = true;
                self.schedule.wait();
            }
        }
    }
}

impl SessionState {
    /// Returns the requested window that is open or, if no window is open, the one that has yet to open. Returns `None`
    /// if there is no such window, or if another window is open, such as a planned one.
    pub(crate) fn due(&self) -> Option<&Demand> {
        match self.schedule.open() {
            Some(open) => self.demands.due(open.asked).filter(|_| open.on_demand),
            None => self.demands.waiting(),
        }
    }

    /// Returns the requested window whose condition decides if `iteration` counts. If no window is open, or if the open
    /// one ends before `iteration`, this is the requested window that may open with `iteration`, if there is one.
    /// Otherwise returns the same window as [`SessionState::due`].
    pub(crate) fn due_at(&self, iteration: u64) -> Option<&Demand> {
        let is_over = |open: Taken| open.window.last.is_some_and(|last| last < iteration);
        let next = self.demands.waiting();
        next.filter(|next| {
            next.window.first <= iteration && self.schedule.open().is_none_or(is_over)
        })
        .or_else(|| self.due())
    }

    /// Returns the condition on batches (such as `TLLMPROF_WHERE`) for the open window or, if no window is open, for
    /// the next one.
    pub(crate) fn condition(&self) -> Option<&Condition> {
        self.condition_of(self.due())
    }

    /// Returns the condition on batches that applies to the requested window `demand` or, if it is `None`, to other
    /// windows.
    pub(crate) fn condition_of<'a>(&'a self, demand: Option<&'a Demand>) -> Option<&'a Condition> {
        match demand {
            Some(demand) => demand.condition.as_ref(),
            None => self.settings.condition.as_ref(),
        }
    }

    /// Returns the number of iterations, from the switch `edge` on, in which GPU kernels are recorded. Returns `None`
    /// unless a window opens at `edge`, or the open window begins its last part, in which kernels are recorded.
    pub(crate) fn kernels(&self, edge: &Edge) -> Option<u64> {
        let asked = self.settings.kernels;
        if edge.kernels {
            return asked?.at_the_end().map(|(iterations, _)| iterations);
        }
        match self.due().and_then(|demand| demand.kernels) {
            Some(iterations) => Some(iterations).filter(|n| *n > 0),
            None if edge.open.is_some_and(|open| open.is_measured) => None,
            None => asked?.steps_of_window(),
        }
    }

    /// Updates the progress of the requested windows after windows were closed and opened. `over` is the
    /// number of iterations that had ended by then.
    pub(crate) fn note_demand(&mut self, edge: &Edge, over: u64) {
        if let Some(closed) = edge.close {
            let first = closed.window.first;
            let last = closed.over(over).checked_sub(1);
            self.closed = last.filter(|last| *last >= first).map(|last| (first, last));
        }
        let closes_triggered = edge.close.is_some_and(|closed| self.is_triggered(&closed));
        let opens_triggered = edge.open.is_some_and(|opened| self.is_triggered(&opened));
        if closes_triggered {
            self.automatic.triggered = None;
        }
        let (closes_sample, opens_sample) = self.note_sample(edge);
        let closes_own = !closes_triggered && !closes_sample;
        let opens_own = !opens_triggered && !opens_sample;
        if let Some(closed) = edge.close.filter(|closed| closed.on_demand && closes_own) {
            let progress = DemandProgress::Closed(self.closed);
            self.demands.note(closed.asked, progress);
        }
        if let Some(opened) = edge.open.filter(|opened| opened.on_demand && opens_own) {
            let progress = DemandProgress::Open(opened.window.first);
            self.demands.note(opened.asked, progress);
        }
    }

    /// Returns true if the record has to begin before the process moves to `point`.
    pub(crate) fn begins_record(&self, point: Point) -> bool {
        self.recording == Recording::ToBegin && self.uses_cuda && point != Point::Start
    }

    /// Returns true if each iteration is written to the record.
    pub(crate) fn records_each(&self) -> bool {
        self.recording.is_due() && self.uses_cuda
    }

    /// Returns how many of `iterations`, the counted iterations, have really begun when the process ends. A call that
    /// was counted but has not yet continued to the intercepted function has not begun its iteration.
    pub(crate) fn begun_of(&self, iterations: u64) -> u64 {
        if self.recording == Recording::Yes && self.schedule.is_open() {
            iterations.min(self.turn.done().next())
        } else {
            iterations
        }
    }

    /// Returns true if `point` is the beginning of the latest iteration and the condition on batches (such as
    /// `TLLMPROF_WHERE`) does not hold for that iteration.
    pub(crate) fn excludes(&self, point: Point) -> bool {
        matches!(point, Point::In(iteration) if self.filter.excluded == Some(iteration))
    }

    /// Returns true if the open window has to be closed before `iteration`, because the condition on batches (such as
    /// `TLLMPROF_WHERE`) does not hold for this iteration. The window opens again later.
    pub(crate) fn splits(&mut self, iteration: u64) -> bool {
        if !(self.settings.where_split && self.schedule.is_open()) {
            return false;
        }
        let now = Instant::now();
        let is_soon = |at: Instant| now.saturating_duration_since(at) < BETWEEN_SPLITS;
        let splits = !self.filter.split.is_some_and(is_soon) && self.schedule.splits(iteration);
        if splits {
            self.filter.split = Some(now);
        }
        splits
    }

    /// Reports the point `point` (the beginning or end of an iteration) to the record. Called for a point at which no
    /// window opens or closes.
    pub(crate) fn record_iteration(&self, point: Point) {
        if self.recording != Recording::Yes {
            return;
        }
        sink().passes(point, self.excludes(point));
        if sink().wants_calls() {
            count_calls(&self.slots);
        }
    }
}

/// Returns the limits for the last part of a window, in which kernels are recorded. Returns `None` if the settings
/// do not ask for this part. Only a window that lasts until its figures are precise enough has this part.
fn kernel_part(settings: &Settings) -> Option<KernelPart> {
    let (iterations, within) = settings.kernels?.at_the_end()?;
    Some(KernelPart { iterations, within })
}

/// Returns true if `call` is counted when it enters the CUDA runtime's function, even if the library also intercepts
/// the driver's function that the runtime calls.
pub fn attends(call: Call) -> bool {
    CallSet::from_bits(ATTENDED.load(Ordering::Acquire)).contains(call)
}

/// Updates counters in the record: those of CUDA calls from the counters in `slots`, and those of Python's garbage
/// collections and waits for the GIL.
pub(crate) fn count_calls(slots: &[&Slot]) {
    sink().count_calls(&mut CALLS.iter().map(|row| {
        slots
            .iter()
            .map(|slot| slot.live(row.call).count())
            .sum::<u64>()
    }));
    interpreter().count();
}
