//! Who does what the session decides: the crate that builds the library wires it.

use core::fmt::{self, Display};

use tllmprof_calls::Calls;
use tllmprof_config::{KernelSamples, Ranked, Settings, Step, TracePath};
use tllmprof_platform::log::Level;
use tllmprof_steps::trigger::Spent;
use tllmprof_steps::window::{Edge, Point};

use super::end::End;
use super::rank::Rank;

/// Where the process is in the sequence of iterations.
pub struct Place<'a> {
    pub point: Point,
    /// The rule, and the rank if there is one.
    pub by: fmt::Arguments<'a>,
    pub rank: Option<u64>,
    /// Why a window that opens late does so.
    pub why_late: &'static str,
    /// A stream capture is under way in the process: the device must be left alone.
    pub capturing: bool,
    /// The condition on batches does not hold for the iteration that begins.
    pub excluded: bool,
    /// In how many iterations of a window that opens GPU kernels are taken.
    pub kernels: Option<u64>,
    /// A window that opens by itself to sample them: how.
    pub sampled: Option<KernelSamples>,
    /// The iterations before a window that opens stay in the record, as far as they are kept.
    pub past: bool,
    /// Which of the windows on demand opens, counted from 1; none where another does.
    pub demand: Option<u64>,
    /// Where the PyTorch profiler writes its trace of that window, if it was asked for with it.
    pub torch_trace: Option<&'a TracePath>,
}

/// What a record says of its process.
pub struct Facts<'a> {
    /// Where it is known as the record begins.
    pub rank: Option<Ranked>,
    /// The version of Python, if there is one in the process.
    pub python: Option<&'a str>,
    /// The rule, as `TLLMPROF_STEP` would name it.
    pub rule: &'a dyn Display,
    /// Why that one, where it was not asked for.
    pub why: Option<&'a dyn Display>,
    /// The engine that is known, if its step is what counts.
    pub engine: Option<&'a str>,
}

/// What is done for windows and iterations: profilers, ranges, the record.
///
/// One thread at a time calls these; none of the session's locks is held where a method may take
/// long ([`Sink::start`], [`Sink::begin_record`], [`Sink::switch`], [`Sink::finish`]).
pub trait Sink: Sync {
    /// Whether a record was asked for.
    fn wants_record(&self) -> bool;
    /// The process has begun to use CUDA.
    fn start(&self, settings: &'static Settings);
    /// Whether GPU kernels can be taken, as far as the settings show.
    fn takes_kernels(&self, settings: &Settings) -> bool;
    /// Makes the record; whether there is one now.
    fn begin_record(&self, settings: &'static Settings, facts: &Facts<'_>) -> bool;
    /// The rule is another than when the record began.
    fn rule_is_known(&self, facts: &Facts<'_>);
    /// The rank is known, which it was not when the record began.
    fn rank_is_known(&self, ranked: &Ranked);
    /// An iteration begins, for which the condition on batches does not hold if it is `excluded`, or ends,
    /// and nothing is switched. For each, where there is a record.
    fn passes(&self, point: Point, excluded: bool);
    /// Whether the record's counts of calls are old.
    fn wants_calls(&self) -> bool;
    /// Each call of the table was made so often, in the table's order.
    fn count_calls(&self, counts: &mut dyn Iterator<Item = u64>);
    /// The calling thread begins an iteration: what the time of the one before went to. Where the settings have a
    /// condition on that.
    fn take_spent(&self) -> Spent;
    /// Whether something is to be switched at `point` besides a window.
    fn has_edge_at(&self, point: Point) -> bool;
    /// Moves to another iteration; opens and closes windows.
    fn switch(&self, place: &Place<'_>, edge: Edge);
    /// The process ends, or what else ends the windows, after `iterations`: what must be done before the record ends.
    fn ends(&self, iterations: u64, capturing: bool, by: End);
    /// Closes what is open. `drain`: the device may be waited for. `here`: without a thread of the
    /// library's own it may be done on this one.
    fn finish(&self, iterations: u64, drain: bool, here: bool);
    /// Windows have closed, and nothing is known to have recorded any of them.
    fn is_unheard(&self) -> bool {
        false
    }
    /// Nothing more comes. `in_order`: the process ends by its exit handlers.
    fn finish_record(&self, in_order: bool);
    /// Has the threads of its own that sleep end. Waits for nothing.
    fn ends_threads(&self);
}

/// How calls reach the session.
pub trait Doors: Sync {
    /// Has the runtime's functions for `calls` seen, too, and no others where the driver's suffice.
    fn attend(&self, calls: Calls);
    /// Has the driver's calls recorded while a window is open.
    fn record_calls(&self);
    /// A stream capture is about to begin, or one has ended.
    fn captures(&self) {}
    /// Says how the functions that a rule names are seen.
    fn report_named(&self);
    /// Says what is wrong with a rule that named no function, or too many. `may_search`: there is
    /// time and memory to look for names that are near.
    fn report_unmatched(&self, step: &Step, may_search: bool);
    /// Says that no function was found whose calls were to be scopes, where some were asked for.
    fn report_unmatched_scopes(&self, _may_search: bool) {}
    /// Says which calls do not come here, where none has that makes an iteration.
    fn report_bypass(&self) {}
    /// Has calls seen again after [`Doors::detach`]; whether the library was attached, and not preloaded.
    fn attach_again(&self) -> bool {
        false
    }
    /// Has calls seen no more; whether the library was attached, and not preloaded.
    fn detach(&self) -> bool {
        false
    }
    /// Writes why no NVTX range counted.
    ///
    /// # Errors
    /// Those of `out`.
    fn write_no_range(&self, out: &mut dyn fmt::Write) -> fmt::Result;
}

/// The Python in the process.
pub trait Interpreter: Sync {
    /// Its version, as `3.12.1`.
    fn version(&self) -> Option<&'static str>;
    /// The rank, as far as Python knows it. It is read with the GIL alone: by the calling thread if that has
    /// it, else soon, for who asks again.
    fn rank(&self) -> Rank;
    /// Whether the calling thread has the GIL.
    fn has_gil(&self) -> bool;
    /// Whether a thread of the library's waits for the GIL, so that who has it must not wait for
    /// that thread.
    fn is_waiting_for_gil(&self) -> bool;
    /// Has Python's side begin again after [`Interpreter::detach`].
    fn attach_again(&self) {}
    /// Takes out of Python what was put there when the library was attached; whether that was done in time. If not, it is as
    /// before.
    fn detach(&self) -> bool {
        true
    }
    /// Whether the PyTorch profiler can be run in windows, though the settings do not ask for it.
    fn can_run_torch_profiler(&self) -> bool {
        false
    }
    /// Brings the record's counts of what Python does up to date.
    fn count(&self);
    /// Says what was asked for of Python and never seen.
    fn report_missing(&self);
    /// Says the totals of collections and of the GIL.
    fn report_totals(&self, level: Level);
    /// Writes why no call of a Python function counted.
    ///
    /// # Errors
    /// Those of `out`.
    fn write_no_call(&self, out: &mut dyn fmt::Write) -> fmt::Result;
    /// Writes that calls of the Python function that the rule names may be missing, if that is so.
    ///
    /// # Errors
    /// Those of `out`.
    fn write_missing_calls(&self, _: &mut dyn fmt::Write) -> fmt::Result {
        Ok(())
    }
}

/// Listens to others, on a thread of its own.
pub trait Listener: Sync {
    /// The process has begun to use CUDA.
    fn begins(&self, settings: &'static Settings);
    /// The process ends, and so does the thread. Waits for nothing and allocates nothing.
    fn ends(&self);
}

/// All of them.
pub struct Wiring {
    pub sink: &'static dyn Sink,
    pub doors: &'static dyn Doors,
    pub interpreter: &'static dyn Interpreter,
    pub listener: &'static dyn Listener,
}

/// The library's one wiring; none in a test of a layer. Collected by the linker, as another library's
/// constructor may use CUDA before this library's own has run.
#[linkme::distributed_slice]
pub static WIRING: [Wiring];

static NOTHING: Wiring = Wiring {
    sink: &Nobody,
    doors: &Nobody,
    interpreter: &Nobody,
    listener: &Nobody,
};

fn wiring() -> &'static Wiring {
    WIRING.first().unwrap_or(&NOTHING)
}

pub fn sink() -> &'static dyn Sink {
    wiring().sink
}

pub fn doors() -> &'static dyn Doors {
    wiring().doors
}

pub fn interpreter() -> &'static dyn Interpreter {
    wiring().interpreter
}

pub fn listener() -> &'static dyn Listener {
    wiring().listener
}

/// Does nothing, where the session is not wired.
struct Nobody;

impl Sink for Nobody {
    fn wants_record(&self) -> bool {
        false
    }
    fn start(&self, _: &'static Settings) {}
    fn takes_kernels(&self, _: &Settings) -> bool {
        false
    }
    fn begin_record(&self, _: &'static Settings, _: &Facts<'_>) -> bool {
        false
    }
    fn rule_is_known(&self, _: &Facts<'_>) {}
    fn rank_is_known(&self, _: &Ranked) {}
    fn passes(&self, _: Point, _: bool) {}
    fn wants_calls(&self) -> bool {
        false
    }
    fn count_calls(&self, _: &mut dyn Iterator<Item = u64>) {}
    fn take_spent(&self) -> Spent {
        Spent::default()
    }
    fn has_edge_at(&self, _: Point) -> bool {
        false
    }
    fn switch(&self, _: &Place<'_>, _: Edge) {}
    fn ends(&self, _: u64, _: bool, _: End) {}
    fn finish(&self, _: u64, _: bool, _: bool) {}
    fn finish_record(&self, _: bool) {}
    fn ends_threads(&self) {}
}

impl Listener for Nobody {
    fn begins(&self, _: &'static Settings) {}
    fn ends(&self) {}
}

impl Doors for Nobody {
    fn attend(&self, _: Calls) {}
    fn record_calls(&self) {}
    fn report_named(&self) {}
    fn report_unmatched(&self, _: &Step, _: bool) {}
    fn write_no_range(&self, _: &mut dyn fmt::Write) -> fmt::Result {
        Ok(())
    }
}

impl Interpreter for Nobody {
    fn version(&self) -> Option<&'static str> {
        None
    }
    fn rank(&self) -> Rank {
        Rank::None
    }
    fn has_gil(&self) -> bool {
        false
    }
    fn is_waiting_for_gil(&self) -> bool {
        false
    }
    fn count(&self) {}
    fn report_missing(&self) {}
    fn report_totals(&self, _: Level) {}
    fn write_no_call(&self, _: &mut dyn fmt::Write) -> fmt::Result {
        Ok(())
    }
}
