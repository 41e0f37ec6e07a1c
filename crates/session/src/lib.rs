//! The process's one run of the line from calls to captures.
//!
//! The doors report calls here; the counter turns them into iterations, the gate those into
//! windows, and the capture switches. The state is locked for moments only. Switching may take
//! long, so it happens outside the lock: one thread at a time has the *turn*, and whoever comes to
//! a call that is counted meanwhile waits for it, but not for ever.

pub mod activity;
mod by;
mod ending;
pub mod engines;
mod learning;
pub mod named;
mod recording;
mod stream_capture;
mod threads;
mod turn;
mod wiring;

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use tllmprof_calls::{Call, Calls, Kind};
use tllmprof_config::{Settings, Step, rank};
use tllmprof_engines::tensorrt_llm_gates_itself;

use crate::engines::Found;
use tllmprof_platform::barrier::process_wide;
use tllmprof_platform::lifecycle::{self, OnlyThread, Stage};
use tllmprof_platform::log;
use tllmprof_platform::{driver, injection};
use tllmprof_steps::step::Counter;
use tllmprof_steps::step::counted::Counted;
use tllmprof_steps::step::learned::Begun;
use tllmprof_steps::step::threads::Slot;
use tllmprof_steps::turn::Turn;
use tllmprof_steps::window::Gate;
use tllmprof_steps::window::Point;
use tllmprof_sync::Guard;
use tllmprof_sync::Lock;

use by::Rank;
pub use ending::{finish, finish_at_once};
pub use learning::{learns, note};
use recording::Recording;
pub use stream_capture::{is_any_under_way as is_any_capturing, is_under_way as is_capturing};
pub use threads::{count, new_thread, slot};
pub use wiring::{Doors, Facts, Interpreter, Place, Sink, WIRING, Wiring};
use wiring::{doors, sink};

lifecycle::global! {
    stage: Session;

    #[fork(hold, reset)]
    static STATE: Lock<Option<State>> = Lock::new(None);
    /// The process whose calls are counted; another is a child that shares our memory, as after
    /// `vfork`, or a copy that no handler told of, and is left alone.
    #[fork(reset)]
    static OWNER: AtomicI32 = AtomicI32::new(0);
    /// Calls whose runtime functions count, too. At first all do: the runtime looks the driver's
    /// functions up in its first call.
    #[fork(reset)]
    static ATTENDED: AtomicU32 = AtomicU32::new(Calls::ALL.bits());
    /// The process uses CUDA, for who must not wait for the lock of the state.
    #[fork(reset)]
    static USES_CUDA: AtomicBool = AtomicBool::new(false);
    /// It matters that a wait is entered, and not only that it returns. While steps are learnt it does
    /// not, and a lock less is taken at each.
    #[fork(reset)]
    static WAITS_ENTER: AtomicBool = AtomicBool::new(true);
}

lifecycle::at_fork! {
    stage: Stage::Session,
    child: |_: &OnlyThread| threads::forget(),
}

/// Who opens the windows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Gating {
    NotAsked,
    Ours,
    /// TensorRT-LLM, which reads the same variable.
    Engine,
}

struct State {
    settings: &'static Settings,
    counter: Counter,
    gate: Gate,
    slots: Vec<&'static Slot>,
    captures: Vec<(usize, &'static Slot)>,
    turn: Turn,
    rank: Rank,
    /// Who opens the windows, as far as that has been asked.
    gating: Gating,
    follows_each: bool,
    recording: Recording,
    /// Stream captures after which a count started again that had begun.
    restarts: u64,
    /// A process that does not use CUDA is left alone, whatever functions of it are counted.
    uses_cuda: bool,
}

impl State {
    fn new() -> Option<Self> {
        let settings = crate::activity::settings()?;
        Some(Self {
            settings,
            counter: Counter::new(settings, process_wide, learning::memory),
            gate: match settings.step {
                Step::Auto => Gate::patient(settings.windows.as_slice()),
                _ => Gate::new(settings.windows.as_slice()),
            },
            slots: Vec::new(),
            captures: Vec::new(),
            turn: Turn::default(),
            rank: Rank::NotAsked,
            gating: Gating::NotAsked,
            follows_each: settings.nvtx && injection::has_tool(),
            recording: Recording::asked_for(),
            restarts: 0,
            uses_cuda: false,
        })
    }

    /// The limit that the cell of `what` starts with for thread number `thread`: the first call of
    /// CUDA's is to be told of.
    fn first_limit(&self, what: Counted, thread: u32) -> u64 {
        if self.uses_cuda || what.is_by_name() {
            self.counter.first_limit(what, thread)
        } else {
            0
        }
    }

    /// The process makes a call of CUDA's. Whether that begins the session: the calling thread has
    /// the turn then, and calls of others wait until the profilers are ready.
    fn begin_to_use_cuda(&mut self) -> bool {
        if !self.uses_cuda {
            self.uses_cuda = true;
            USES_CUDA.store(true, Ordering::Relaxed);
            for slot in &self.slots {
                for what in Counted::all().filter(|what| !what.is_by_name()) {
                    slot.live(what)
                        .set_limit(self.first_limit(what, slot.thread()));
                }
            }
        }
        let begins = !self.turn.has_begun() && !self.turn.is_taken();
        if begins {
            turn::take(self);
        }
        begins
    }

    /// Lets the threads run to where the next thing happens.
    fn run_on(&mut self) {
        let next = Some(self.turn.done().next());
        // Where the record alone wants to know of each, the calls of the driver tell it.
        let edge = if self.follows_each {
            next
        } else {
            self.gate.next_edge()
        };
        // A rule that was learnt tells of each in any case, and of those in a window more exactly.
        let is_exact = self.counter.learnt().is_none() || self.gate.is_open();
        let asked = if self.tells_each() && is_exact {
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

    /// Whether there is nothing to switch at `point`.
    fn has_nothing_at(&self, point: Point) -> bool {
        let has_none = !self.follows_each
            && !self.gate.has_edge_at(point)
            && !self.begins_record(point)
            && !sink().has_edge_at(point);
        // The child of a fork has its parent's driver, whether it is going to use it or not.
        let has_driver = || !lifecycle::is_child() && driver::is_loaded();
        has_none || !(self.uses_cuda || has_driver())
    }

    /// The rule as messages name it: `auto` counts the step of an engine that it knows.
    fn step(&self) -> &'static Step {
        match self.engine() {
            Some(engine) => &engine.step,
            None => &self.settings.step,
        }
    }

    /// The engine whose step `auto` counts.
    fn engine(&self) -> Option<&'static Found> {
        match self.settings.step {
            Step::Auto => engines::counted(self.counter.counts()?),
            _ => None,
        }
    }

    /// Leaves the windows to an engine that reads their variable itself and is there by now.
    fn ask_engine(&mut self) {
        if self.gating != Gating::NotAsked {
            return;
        }
        self.gating = Gating::Ours;
        if let Some(variable) = self.settings.windows_from
            && tensorrt_llm_gates_itself(variable, engines::seen)
        {
            self.gating = Gating::Engine;
            self.gate = Gate::default();
            log::say!(
                Info,
                "TensorRT-LLM is in this process and reads {variable} itself: the profiler is left \
                 to it (set TLLMPROF_START_STOP instead to have it gated here)"
            );
        }
    }

    /// Looks the rank up, late, as engines set it late; a rank that is not wanted opens nothing.
    fn ask_rank(&mut self) {
        if self.rank != Rank::NotAsked {
            return;
        }
        let rank = rank(|name| std::env::var_os(name));
        self.rank = Rank::Known(rank);
        if let Some(ranks) = &self.settings.ranks
            && !ranks.contains(rank.unwrap_or(0))
        {
            self.gate = Gate::default();
        }
    }
}

/// Whether the process uses CUDA.
pub fn uses_cuda() -> bool {
    USES_CUDA.load(Ordering::Relaxed)
}

/// Whether the runtime's function for `call` counts, though the driver's would.
pub fn attends(call: Call) -> bool {
    Calls::from_bits(ATTENDED.load(Ordering::Acquire)).contains(call)
}

/// A call has been entered and goes on when this returns.
pub fn entered(call: Call) {
    match call.kind() {
        Kind::CaptureBegin => return stream_capture::begins(),
        Kind::CaptureEnd | Kind::Memory | Kind::Destroys(_) => return,
        Kind::Profiler => {
            log::once!(
                Info,
                "the program controls the profiler itself, too: {call} is passed through"
            );
            return;
        }
        _ => {}
    }
    enter(call.into());
}

/// A native function that the rule names has been entered: the iteration that is over when it ends.
pub fn named_entered() -> Option<u64> {
    enter(Counted::Named)
}

/// Whether a window ends with `iteration`.
pub fn closes_after(iteration: u64) -> bool {
    let guard = STATE.lock();
    guard
        .as_ref()
        .is_some_and(|state| state.gate.closes_after(iteration))
}

fn enter(what: Counted) -> Option<u64> {
    if ending::has_finished() {
        return None;
    }
    let slot = threads::slot().filter(|_| !stream_capture::is_under_way())?;
    let cell = slot.live(what);
    if cell.count() <= cell.limit() {
        return None; // a runtime's function, which is attended: of no interest now
    }
    if what.waits() && !WAITS_ENTER.load(Ordering::Relaxed) {
        return None;
    }
    let mut guard = STATE.lock();
    let state = guard.as_mut()?;
    if !what.is_by_name() && state.begin_to_use_cuda() {
        turn::run(guard);
        guard = STATE.lock();
    }
    let state = guard.as_mut()?;
    let entered = state.counter.entered(what, &state.slots, slot);
    match entered.opens {
        Some(begun) => begin(guard, begun),
        // Nobody gets credit while something is switched; work waits for it, waits need not.
        None if state.turn.is_taken() && !what.waits() => turn::wait_for(guard),
        None if state.turn.is_taken() => {}
        None => state.run_on(),
    }
    entered.ends
}

/// An iteration begins. Where it is not understood to be one, nothing opens.
fn begin(mut guard: Guard<'_, Option<State>>, begun: Begun) {
    let Some(state) = guard.as_mut() else { return };
    state.gate.hold(!begun.understood);
    if begun.understood || state.gate.is_open() {
        return turn::reach(guard, Point::In(begun.iteration));
    }
    let waiting = state.gate.waiting_at(begun.iteration);
    state.run_on();
    drop(guard);
    if let Some(window) = waiting {
        learning::tell_waiting(window);
    }
}

/// A call that was followed has returned. `stream` is its first argument.
pub fn returned(call: Call, stream: usize, succeeded: bool) {
    match call.kind() {
        Kind::CaptureBegin => return stream_capture::began(stream, succeeded),
        Kind::CaptureEnd => return stream_capture::ended(stream),
        _ => {}
    }
    if ending::has_finished() {
        return;
    }
    let Some(slot) = threads::slot().filter(|_| !stream_capture::is_under_way()) else {
        return;
    };
    let mut guard = STATE.lock();
    let Some(state) = guard.as_mut() else { return };
    match state.counter.returned(call, &state.slots, slot) {
        Some(begun) => begin(guard, begun),
        None if state.turn.is_taken() => {}
        None => state.run_on(),
    }
}
