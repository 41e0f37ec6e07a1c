//! The traits that carry out the session's decisions. The crate that builds the library wires them.

use core::fmt::{self, Display};

use tllmprof_calls::Calls;
use tllmprof_config::{KernelSamples, Ranked, Settings, Step, TracePath};
use tllmprof_platform::log::Level;
use tllmprof_steps::trigger::Spent;
use tllmprof_steps::window::{Edge, Point};

use super::end::End;
use super::rank::Rank;

/// The position of the process in the sequence of iterations, and facts about the switch there.
pub struct Place<'a> {
    pub point: Point,
    /// The rule, and the rank if there is one.
    pub by: fmt::Arguments<'a>,
    pub rank: Option<u64>,
    /// The reason why a window that opens late does so.
    pub why_late: &'static str,
    /// True if a stream is being captured in the process: nothing may wait for the device.
    pub capturing: bool,
    /// True if the condition on batches does not hold for the iteration that begins.
    pub excluded: bool,
    /// The number of iterations in which GPU kernels are taken, of a window that opens or of its part with
    /// them that begins.
    pub kernels: Option<u64>,
    /// The settings of a kernel sample, if the window that opens is one.
    pub sampled: Option<KernelSamples>,
    /// True if the kept iterations before a window that opens stay in the record.
    pub past: bool,
    /// The number of the window on demand that opens, from 1; `None` for other windows.
    pub demand: Option<u64>,
    /// The path to which the PyTorch profiler writes its trace of that window, if it was asked for with the
    /// window.
    pub torch_trace: Option<&'a TracePath>,
}

/// Facts about the process for its record.
pub struct Facts<'a> {
    /// The rank, if it is known when the record begins.
    pub rank: Option<Ranked>,
    /// The version of Python, if there is one in the process.
    pub python: Option<&'a str>,
    /// The rule, in the form of `TLLMPROF_STEP`.
    pub rule: &'a dyn Display,
    /// The reason for the rule, if it was not asked for.
    pub why: Option<&'a dyn Display>,
    /// The engine that is known, if its step is counted.
    pub engine: Option<&'a str>,
    /// True if a stretch of time stands for iterations, as no step is known.
    pub is_span: bool,
}

/// Carries out what windows and iterations require: profilers, ranges, the record.
///
/// One thread at a time calls these methods. None of the session's locks is held where a method may take long
/// ([`Sink::start`], [`Sink::begin_record`], [`Sink::switch`], [`Sink::finish`]).
pub trait Sink: Sync {
    /// Returns true if the settings ask for a record.
    fn wants_record(&self) -> bool;
    /// Called when the process has begun to use CUDA.
    fn start(&self, settings: &'static Settings);
    /// Returns true if GPU kernels can be taken, as far as the settings show.
    fn takes_kernels(&self, settings: &Settings) -> bool;
    /// Begins the record. Returns true if there is one now.
    fn begin_record(&self, settings: &'static Settings, facts: &Facts<'_>) -> bool;
    /// Called when the rule is another one than when the record began.
    fn rule_is_known(&self, facts: &Facts<'_>);
    /// Called when the rank is known, but was not known when the record began.
    fn rank_is_known(&self, ranked: &Ranked);
    /// Called when an iteration begins, for which the condition on batches does not hold if it is `excluded`,
    /// or ends, and nothing is switched. Called for each iteration, if there is a record.
    fn passes(&self, point: Point, excluded: bool);
    /// Called before the stretch of time begins that stands for an iteration while no step is known.
    fn span_begins(&self) {}
    /// Called when it has begun. No lock is held.
    fn span_has_begun(&self) {}
    /// Called when it is dropped, as a step is known now. Does not wait.
    fn span_is_replaced(&self) {}
    /// Returns true if the record's counts of calls have to be updated.
    fn wants_calls(&self) -> bool;
    /// Sets the number of calls of each row of the table, in the table's order.
    fn count_calls(&self, counts: &mut dyn Iterator<Item = u64>);
    /// Called when the calling thread begins an iteration, if the settings have a condition on times. Returns
    /// the time of the iteration before, by cause.
    fn take_spent(&self) -> Spent;
    /// Returns true if something besides a window has to be switched at `point`.
    fn has_edge_at(&self, point: Point) -> bool;
    /// Moves to another iteration; opens and closes windows.
    fn switch(&self, place: &Place<'_>, edge: Edge);
    /// Called when the process, or another event, ends the windows after `iterations`. Does what must be done
    /// before the record ends.
    fn ends(&self, iterations: u64, capturing: bool, by: End);
    /// Closes whatever is open. `drain`: it may wait for the device. `here`: without a thread of the library
    /// it may run on the calling thread.
    fn finish(&self, iterations: u64, drain: bool, here: bool);
    /// Returns true if windows have closed and nothing is known to have recorded any of them.
    fn is_unheard(&self) -> bool {
        false
    }
    /// Called when no planned window will open, because this rank opens none. Does not wait.
    fn plans_none(&self, _: &Settings) {}
    /// Returns the number of iterations outside windows that are left in the record at the end of the
    /// process.
    fn latest_left(&self) -> u64 {
        0
    }
    /// Ends the record. `in_order`: the process ends by its exit handlers.
    fn finish_record(&self, in_order: bool);
    /// Makes the sink's sleeping threads end. Does not wait.
    fn ends_threads(&self);
}

/// The way in which calls reach the session.
pub trait Doors: Sync {
    /// Intercepts the runtime's functions for `calls` as well, and no others if the driver's are enough.
    fn attend(&self, calls: Calls);
    /// Records the driver's calls while a window is open.
    fn record_calls(&self);
    /// Called when a stream capture is about to begin, or has ended.
    fn captures(&self) {}
    /// Logs how the functions that a rule names are hooked.
    fn report_named(&self);
    /// Logs the error in a rule that matched no function, or too many. `may_search`: there is time and memory
    /// to look for similar names.
    fn report_unmatched(&self, step: &Step, may_search: bool);
    /// Logs that no function was found for the scopes that were asked for.
    fn report_unmatched_scopes(&self, _may_search: bool) {}
    /// Logs the calls that do not reach the library, if no call that makes an iteration has.
    fn report_bypass(&self) {}
    /// Intercepts calls again after [`Doors::detach`]. Returns true if the library was attached, and not
    /// preloaded.
    fn attach_again(&self) -> bool {
        false
    }
    /// Stops intercepting calls. Returns true if the library was attached, and not preloaded.
    fn detach(&self) -> bool {
        false
    }
    /// Writes why no NVTX range counted.
    ///
    /// # Errors
    /// Errors of `out`.
    fn write_no_range(&self, out: &mut dyn fmt::Write) -> fmt::Result;
}

/// The Python interpreter in the process.
pub trait Interpreter: Sync {
    /// Returns its version, such as `3.12.1`.
    fn version(&self) -> Option<&'static str>;
    /// Returns the rank, as far as Python knows it. It is read only with the GIL: immediately if the calling
    /// thread has it, otherwise soon, for a later call.
    fn rank(&self) -> Rank;
    /// Returns true if the calling thread has the GIL.
    fn has_gil(&self) -> bool;
    /// Returns true if a thread of the library waits for the GIL, so that a thread that has the GIL must not
    /// wait for that thread.
    fn is_waiting_for_gil(&self) -> bool;
    /// Restarts Python's side after [`Interpreter::detach`].
    fn attach_again(&self) {}
    /// Removes from Python what was installed when the library was attached. Returns true if that was done in
    /// time; otherwise nothing has changed.
    fn detach(&self) -> bool {
        true
    }
    /// Returns true if the PyTorch profiler can run in windows even if the settings do not ask for it.
    fn can_run_torch_profiler(&self) -> bool {
        false
    }
    /// Updates the record's counts of Python's activity.
    fn count(&self);
    /// Logs what the settings ask for in Python and was never seen.
    fn report_missing(&self);
    /// Logs the totals of collections and of the GIL.
    fn report_totals(&self, level: Level);
    /// Writes why no call of a Python function counted.
    ///
    /// # Errors
    /// Errors of `out`.
    fn write_no_call(&self, out: &mut dyn fmt::Write) -> fmt::Result;
    /// Writes that calls of the Python function that the rule names may be missing, if that is so.
    ///
    /// # Errors
    /// Errors of `out`.
    fn write_missing_calls(&self, _: &mut dyn fmt::Write) -> fmt::Result {
        Ok(())
    }
}

/// Listens for requests, on a thread of its own.
pub trait Listener: Sync {
    /// Called when the process has begun to use CUDA.
    fn begins(&self, settings: &'static Settings);
    /// Called when the process ends; ends the thread. Neither waits nor allocates.
    fn ends(&self);
}

/// All traits that are wired.
pub struct Wiring {
    pub sink: &'static dyn Sink,
    pub doors: &'static dyn Doors,
    pub interpreter: &'static dyn Interpreter,
    pub listener: &'static dyn Listener,
}

/// The library's one wiring; none in a test of a layer. The linker collects it, because another library's
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

/// Does nothing, for a session without wiring.
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
