//! The state of the session, guarded by one lock: the counter, the windows, and the turn.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use core::time::Duration;
use std::time::Instant;

use tllmprof_calls::{CALLS, Call, Calls};
use tllmprof_config::condition::{Condition, Held};
use tllmprof_config::{Kernels, Settings, Step, Window};
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
use tllmprof_steps::turn::{Event, Turn};
use tllmprof_steps::window::{Edge, Point, Schedule};
use tllmprof_sync::Lock;

use super::activity::USES_CUDA;
use super::demand::{Demand, HAS_CONDITION, Progress};
use super::engines::{self, Found};
use super::rank::Rank;
use super::span::Stretches;
use super::wiring::{doors, interpreter, sink};
use super::{learning, slots};

lifecycle::global! {
    stage: Session;

    #[fork(hold, reset)]
    pub static STATE: Lock<Option<State>> = Lock::new(None);
    /// The process whose calls are counted. Any other is a child that shares its memory, as after `vfork`, or
    /// a copy for which no fork handler ran, and is not counted.
    #[fork(reset)]
    pub static OWNER: AtomicI32 = AtomicI32::new(0);
    /// The calls whose runtime functions count as well. At first all do: the runtime looks up the driver's
    /// functions in its first call.
    #[fork(reset)]
    pub static ATTENDED: AtomicU64 = AtomicU64::new(Calls::ALL.bits());
    /// True if the entry of a wait matters, and not only its return. While steps are learnt it does not,
    /// which saves a lock at each wait.
    #[fork(reset)]
    pub static WAITS_ENTER: AtomicBool = AtomicBool::new(true);
}

lifecycle::at_fork! {
    stage: Stage::Session,
    child: |_: &OnlyThread| slots::forget(),
}

/// The time after a split of a window during which it is not split again.
const BETWEEN_SPLITS: Duration = Duration::from_millis(100);

/// The component that opens the windows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Gating {
    NotAsked,
    Ours,
    /// TensorRT-LLM, which reads the same variable.
    Engine,
}

pub struct State {
    pub settings: &'static Settings,
    pub counter: Counter,
    pub schedule: Schedule,
    pub filter: Filter,
    pub slots: Vec<&'static Slot>,
    pub captures: Vec<(usize, &'static Slot)>,
    pub turn: Turn,
    pub rank: Rank,
    /// True if windows have waited for the rank.
    pub awaited_rank: bool,
    /// The component that opens the windows, as far as that has been determined.
    pub gating: Gating,
    pub follows_each: bool,
    pub recording: Recording,
    /// The rule that the record has, and whether a span stood for its iterations.
    pub recorded_step: Option<(&'static Step, bool)>,
    /// The stretch of time that stands for an iteration while no step is known.
    pub span: Stretches,
    /// The number of stream captures after which a count started again that had begun.
    pub restarts: u64,
    /// The number of iterations that began during a turn, because their threads could not wait any longer;
    /// `None` once that has been logged.
    pub early: Option<u64>,
    /// The latest window on demand.
    pub demand: Option<Demand>,
    /// The iterations of the window that closed last, if it had any.
    pub closed: Option<(u64, u64)>,
    pub automatic: Automatic,
    /// True if the rank was asked for: it is looked up with the next iteration.
    pub rank_is_wanted: bool,
    /// True if the process uses CUDA. Nothing is switched in a process that does not, whatever functions of
    /// it are counted.
    pub uses_cuda: bool,
}

/// The iterations for which the condition on batches holds.
#[derive(Default)]
pub struct Filter {
    /// The number of iterations for which the condition held.
    pub held: Held,
    /// The latest iteration that has begun, if the condition does not hold for it.
    pub excluded: Option<u64>,
    /// The time when a window was last split.
    pub split: Option<Instant>,
}

/// The windows that open by themselves.
pub struct Automatic {
    /// Detects iterations after which a window opens.
    pub watch: Option<Watch>,
    /// The window that was opened by such an iteration, and is next or open; and that iteration with its
    /// duration.
    pub triggered: Option<(Window, Fired)>,
    /// Decides when kernels are sampled.
    pub sampler: Option<Sampler>,
    /// The window of a kernel sample that is next or open.
    pub sample: Option<Window>,
}

/// The state of the process's record.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub enum Recording {
    /// No record was asked for, or it could not be created.
    #[default]
    No,
    /// The record begins with the first window on demand.
    OnDemand,
    /// The record begins with the first iteration.
    ToBegin,
    Yes,
}

impl Recording {
    pub fn asked_for(settings: &Settings) -> Self {
        match sink().wants_record() {
            true if settings.trace_on_demand => Self::OnDemand,
            true => Self::ToBegin,
            false => Self::No,
        }
    }

    /// Returns true if each iteration matters for the record.
    const fn is_due(self) -> bool {
        matches!(self, Self::ToBegin | Self::Yes)
    }
}

impl State {
    pub fn new() -> Option<Self> {
        let settings = crate::activity::settings()?;
        let schedule = match (&settings.step, &settings.condition) {
            (step, _) if step.is_learnt() => Schedule::patient(settings.windows.as_slice()),
            (_, None) => Schedule::new(settings.windows.as_slice()),
            (_, Some(_)) => Schedule::new(settings.windows.as_slice()).of_some(),
        };
        let samples = settings.kernels.and_then(Kernels::samples);
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
            demand: None,
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

    /// Returns the limit with which the cell of `what` starts for thread number `thread`. The first CUDA call
    /// has to ask.
    pub fn first_limit(&self, what: Counted, thread: u32) -> u64 {
        if self.uses_cuda || what.is_by_name() {
            self.counter.first_limit(what, thread)
        } else {
            0
        }
    }

    /// Called when the process makes a CUDA call. Returns true if that begins the session: then the calling
    /// thread has the turn, and calls of other threads wait until the profilers are ready.
    pub fn begin_to_use_cuda(&mut self) -> bool {
        self.note_cuda();
        let begins = !self.turn.has_begun() && !self.turn.is_taken();
        if begins {
            self.take_turn();
        }
        begins
    }

    /// Notes that the process uses CUDA, or is about to: something is switched in it.
    pub fn note_cuda(&mut self) {
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

    /// Returns true if a stretch of time may stand for an iteration: no step is known yet.
    pub fn wants_span(&self) -> bool {
        !self.span.is_over()
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

    /// Takes the turn.
    pub fn take_turn(&mut self) {
        self.turn.on(Event::Claims(Instant::now()));
    }

    /// Lets the threads run until the next iteration at which a window opens, closes or is switched.
    pub fn run_on(&mut self) {
        let next = Some(self.turn.done().next());
        // If only the record needs each iteration, the driver's calls report it.
        let awaits_rank = self.awaits_rank_at(self.turn.done().next());
        let is_each = self.follows_each
            || self.condition().is_some()
            || self.schedule.follows_each()
            || self.automatic.watch.is_some()
            || self.automatic.sampler.is_some()
            || self.rank_is_wanted && self.rank == Rank::NotAsked;
        let edge = if is_each || awaits_rank {
            next
        } else {
            self.schedule.next_edge()
        };
        // A learnt rule reports each iteration in any case, and more exactly within a window.
        let is_exact = self.counter.learnt().is_none() || self.schedule.is_open();
        let asked = if self.records_each() && is_exact {
            next
        } else {
            edge
        };
        self.counter.run_to(&self.slots, asked);
        let left = |next: u64| next.saturating_sub(self.turn.done().over());
        let close = edge.map_or(Calls::NONE, |next| self.counter.close_calls(left(next)));
        if ATTENDED.load(Ordering::Relaxed) != close.bits() {
            ATTENDED.store(close.bits(), Ordering::Release);
            doors().attend(close);
        }
        let waits_enter = !self.turn.has_begun() || !self.counter.passes_entered_waits();
        if WAITS_ENTER.load(Ordering::Relaxed) != waits_enter {
            WAITS_ENTER.store(waits_enter, Ordering::Relaxed);
        }
    }

    /// Returns true if there is nothing to switch at `point`.
    pub fn has_nothing_at(&self, point: Point) -> bool {
        let has_none = !self.follows_each
            && !self.schedule.has_edge_at(point)
            && !self.asks_rank_at(point)
            && !self.begins_record(point)
            && !sink().has_edge_at(point);
        // The child of a fork has its parent's driver, even if it never uses it.
        let has_driver = || !lifecycle::is_child() && driver::is_loaded();
        has_none || !(self.uses_cuda || has_driver())
    }

    /// Returns the rule in the form in which messages name it: `auto` counts the step of an engine that it
    /// knows.
    pub fn step(&self) -> &'static Step {
        match self.engine() {
            Some(engine) => &engine.step,
            None => &self.settings.step,
        }
    }

    /// Returns the engine whose step `auto` counts.
    pub fn engine(&self) -> Option<&'static Found> {
        match self.settings.step {
            Step::Auto => engines::counted(self.counter.counts()?),
            _ => None,
        }
    }

    /// Leaves the windows to the engine, if it reads their variable itself and is loaded by now.
    pub fn ask_engine(&mut self) {
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

    /// Returns true if the rank has to be looked up at `point`. That is done late, because engines set it
    /// late: when something is switched anyway, and at each iteration at which a window waits for it. If only
    /// some ranks open windows, it is looked up from the first iteration on, as Python may need a while to
    /// answer.
    pub fn asks_rank_at(&self, point: Point) -> bool {
        match (self.rank, point) {
            (Rank::Known(_), _) => false,
            (Rank::NotAsked, Point::In(_)) => self.settings.ranks.is_some() || self.rank_is_wanted,
            (_, Point::In(iteration)) => self.awaits_rank_at(iteration),
            (_, Point::Start | Point::After(_)) => false,
        }
    }

    /// Returns true if a window would be open at `iteration` if the rank were known.
    fn awaits_rank_at(&self, iteration: u64) -> bool {
        self.awaits_rank() && self.schedule.waiting_at(iteration).is_some()
    }

    /// Returns true if no window opens because it is not known if this rank opens any.
    pub fn awaits_rank(&self) -> bool {
        self.settings.ranks.is_some() && matches!(self.rank, Rank::Unknown(_))
    }

    /// Stores the rank that was looked up for `point`: a rank that is not selected opens no windows. If
    /// nothing indicates that the process has a rank, that is decided when a window is due.
    pub fn know_rank(&mut self, rank: Rank, point: Point) {
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

impl State {
    /// Returns the window on demand that has not closed yet.
    pub fn due(&self) -> Option<&Demand> {
        self.demand.as_ref().filter(|demand| demand.is_due())
    }

    /// Returns the condition on batches for the window that is open or next.
    pub fn condition(&self) -> Option<&Condition> {
        match self.due() {
            Some(demand) => demand.condition.as_ref(),
            None => self.settings.condition.as_ref(),
        }
    }

    /// Returns the number of iterations in which GPU kernels are taken, for the window that opens or its part
    /// with them.
    pub fn kernels(&self, edge: &Edge) -> Option<u64> {
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

    /// Called after a switch that closed and opened windows, when `over` iterations had ended.
    pub fn note_demand(&mut self, edge: &Edge, over: u64) {
        if let Some(closed) = edge.close {
            let first = closed.window.first;
            let last = closed.over(over).checked_sub(1);
            self.closed = last.filter(|last| *last >= first).map(|last| (first, last));
        }
        let triggered = match edge.close.filter(|closed| closed.on_demand) {
            Some(_) => self.automatic.triggered.take(),
            None => self.automatic.triggered,
        };
        let (closes_sample, opens_sample) = self.note_sample(edge);
        let Some(demand) = self.demand.as_mut().filter(|_| triggered.is_none()) else {
            return;
        };
        if !closes_sample && edge.close.is_some_and(|closed| closed.on_demand) {
            demand.progress = Progress::Closed(self.closed);
            HAS_CONDITION.store(false, Ordering::Relaxed);
        }
        let opened = edge.open.filter(|opened| opened.on_demand && !opens_sample);
        if let Some(opened) = opened {
            demand.progress = Progress::Open(opened.window.first);
        }
    }

    /// Returns true if the record has to begin before `point`.
    pub fn begins_record(&self, point: Point) -> bool {
        self.recording == Recording::ToBegin && self.uses_cuda && point != Point::Start
    }

    /// Returns true if each iteration is written to the record.
    pub fn records_each(&self) -> bool {
        self.recording.is_due() && self.uses_cuda
    }

    /// Returns how many of `iterations` the record has at the end of the process: calls that were counted but
    /// never continued have begun none.
    pub fn begun_of(&self, iterations: u64) -> u64 {
        if self.recording == Recording::Yes && self.schedule.is_open() {
            iterations.min(self.turn.done().next())
        } else {
            iterations
        }
    }

    /// Returns true if the latest iteration begins at `point` and the condition on batches does not hold for
    /// it.
    pub fn excludes(&self, point: Point) -> bool {
        matches!(point, Point::In(iteration) if self.filter.excluded == Some(iteration))
    }

    /// Returns true if the open window is closed before `iteration`, for which the condition does not hold,
    /// and opens again later.
    pub fn splits(&mut self, iteration: u64) -> bool {
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

    /// Reports an iteration at which nothing is switched to the record.
    pub fn record_iteration(&self, point: Point) {
        if self.recording != Recording::Yes {
            return;
        }
        sink().passes(point, self.excludes(point));
        if sink().wants_calls() {
            count_calls(&self.slots);
        }
    }
}

/// Returns the part with kernels of a window that lasts until it has what its figures need.
fn kernel_part(settings: &Settings) -> Option<KernelPart> {
    let (iterations, within) = settings.kernels?.at_the_end()?;
    Some(KernelPart { iterations, within })
}

/// Returns true if the runtime's function for `call` counts, even if the driver's would count as well.
pub fn attends(call: Call) -> bool {
    Calls::from_bits(ATTENDED.load(Ordering::Acquire)).contains(call)
}

/// Updates the record's counters of calls.
pub fn count_calls(slots: &[&Slot]) {
    sink().count_calls(&mut CALLS.iter().map(|row| {
        slots
            .iter()
            .map(|slot| slot.live(row.call).count())
            .sum::<u64>()
    }));
    interpreter().count();
}
