//! The traits through which the session acts on profilers, hooks and Python. Other crates implement the traits, and
//! the library's top-level crate connects (wires) the implementations with the session.

use core::fmt::{self, Display};

use tllmprof_calls::CallSet;
use tllmprof_config::{KernelSamples, Ranked, Settings, Step, TracePath};
use tllmprof_platform::log::Level;
use tllmprof_steps::trigger::Spent;
use tllmprof_steps::window::{Edge, Point};

use super::end::EndReason;
use super::rank::Rank;

/// A point in the sequence of iterations that the process moves to, with the data that profilers and the record need
/// to open or close windows there.
pub struct Place<'a> {
    pub point: Point,
    /// The rule by which iterations are counted (such as `cudaGraphLaunch`) and the rank if there is one, for messages
    /// that say "iterations by …".
    pub by: fmt::Arguments<'a>,
    pub rank: Option<u64>,
    /// The reason that the log gives if the window opens late.
    pub why_late: &'static str,
    /// True if a stream is being captured in the process, so that nothing may wait for the device.
    pub capturing: bool,
    /// True if the condition on batches (such as `TLLMPROF_WHERE`) does not hold for the iteration that begins.
    pub excluded: bool,
    /// The number of iterations, from this point on, in which GPU kernels are recorded. `None` unless a window opens,
    /// or the open window begins its last part, in which kernels are recorded.
    pub kernels: Option<u64>,
    /// The settings of the kernel sample, if the window that opens is a sample.
    pub sampled: Option<KernelSamples>,
    /// True if the iterations before the window stay in the record. The flight recorder, which keeps the latest
    /// iterations, has recorded them.
    pub past: bool,
    /// The number of the window that opens among those that are not planned (requested while the process runs, or
    /// opened by a trigger or for a kernel sample), counted from 1; `None` for a planned window.
    pub demand: Option<u64>,
    /// The path for the PyTorch profiler's trace of the requested window, if a trace was requested.
    pub torch_trace: Option<&'a TracePath>,
}

/// Data about the process that is written into its record.
pub struct SessionFacts<'a> {
    /// The rank, if it is known when the record begins.
    pub rank: Option<Ranked>,
    /// The version of Python, if the process has an interpreter.
    pub python: Option<&'a str>,
    /// The rule for a step, in the form of `TLLMPROF_STEP`.
    pub rule: &'a dyn Display,
    /// The reason why this rule is used; `None` if the user has set the rule.
    pub why: Option<&'a dyn Display>,
    /// The detected engine, if its steps are counted.
    pub engine: Option<&'a str>,
    /// True if a stretch of time is recorded in place of iterations, because no step is known.
    pub is_span: bool,
}

/// The amount of data that the record lacks because its disk was full, or because it reached a limit.
#[derive(Clone, Copy, Debug)]
pub struct LostData {
    /// Number of iterations inside windows.
    pub iterations: u64,
    /// Number of events of all kinds.
    pub events: u64,
}

/// The sink, which is notified of windows and iterations. It starts and stops the profilers, makes an NVTX range for
/// each iteration if the settings ask for it, and writes the record.
///
/// The methods that may take long ([`Sink::start`], [`Sink::begin_record`], [`Sink::switch`], [`Sink::finish`]) are
/// called by one thread at a time, and no lock of the session is held meanwhile.
pub trait Sink: Sync {
    /// Returns true if the settings ask for a record.
    fn wants_record(&self) -> bool;
    /// Starts the profilers. Called when the process has begun to use CUDA.
    fn start(&self, settings: &'static Settings);
    /// Returns true if GPU kernels can be recorded, according to the settings.
    fn takes_kernels(&self, settings: &Settings) -> bool;
    /// Begins the record with the data `facts`. Returns true if the record's file was created.
    fn begin_record(&self, settings: &'static Settings, facts: &SessionFacts<'_>) -> bool;
    /// Writes the rule for a step into the record again, because it has changed since the record began.
    fn rule_is_known(&self, facts: &SessionFacts<'_>);
    /// Writes the rank into the record, because it became known only after the record had begun.
    fn rank_is_known(&self, ranked: &Ranked);
    /// Records that an iteration begins or ends at `point`, where no window opens or closes. If there is a record, this
    /// method is called for each iteration. `excluded` is true if the condition on batches (such as `TLLMPROF_WHERE`)
    /// does not hold for the iteration that begins.
    fn passes(&self, point: Point, excluded: bool);
    /// Called when a stretch of time is about to begin. It is recorded in place of an iteration, because no step is
    /// known yet.
    fn span_begins(&self) {}
    /// Starts the measurements of a stretch of time that has begun, such as the sampling of stacks. The caller holds
    /// no lock.
    fn span_has_begun(&self) {}
    /// Called at the beginning of iteration `n` while a stretch of time is recorded, because the rule is not relied on
    /// yet. `rule` is [`LearnedRule::place`](tllmprof_learn::LearnedRule::place).
    fn step_is_seen(&self, _n: u64, _rule: u64) {}
    /// Called at the beginning of iteration `n`, because the rule is now relied on. Replaces the stretch of time in the
    /// record by the latest iterations that [`Sink::step_is_seen`] has reported, if they are by the same rule. Must not
    /// wait.
    fn span_is_replaced(&self, _n: u64, _rule: Option<u64>) {}
    /// Called when the process ends while a stretch of time is still being recorded. If [`Sink::step_is_seen`] has
    /// reported enough iterations over enough time, replaces the stretch by the latest of them and returns true. Must not
    /// wait.
    fn probable_steps_replace_span(&self) -> bool {
        false
    }
    /// Returns true if the caller should update the record's counters of calls now, because some time has passed since
    /// the last update.
    fn wants_calls(&self) -> bool;
    /// Sets the record's counters of calls. `counts` yields the number of calls of each row of
    /// [`CALLS`](tllmprof_calls::CALLS), in the order of the rows.
    fn count_calls(&self, counts: &mut dyn Iterator<Item = u64>);
    /// Returns the time of the previous iteration by cause, such as waits for the GPU, and resets the sums. Called on
    /// the thread that begins or ends an iteration, if windows open by a trigger or once iterations are steady.
    fn take_spent(&self) -> Spent;
    /// Returns true if something has to be started or stopped at `point` although no window opens or closes there,
    /// such as the recording of kernels.
    fn has_edge_at(&self, point: Point) -> bool;
    /// Returns true if work was left out when a window closed, and has to be done when an iteration begins. Until this
    /// work is done, [`Sink::has_edge_at`] returns true at the beginning of each iteration.
    fn is_behind(&self) -> bool {
        false
    }
    /// Opens or closes the windows in `edge` for the profilers and the record, at the point in `place`.
    fn switch(&self, place: &Place<'_>, edge: Edge);
    /// Ends the measurements and the open iteration, before the record ends. Called when no more windows open, after
    /// `iterations` iterations and for the reason `by`. `capturing` is true if a stream is being captured, so that
    /// nothing may wait for the device.
    fn ends(&self, iterations: u64, capturing: bool, by: EndReason);
    /// Closes the open window and the profilers at the end of the process, after `iterations` iterations. `drain` is
    /// true if this function may wait for the device. `here` is true if the calling thread may do this work itself, in
    /// case the library has no worker thread.
    fn finish(&self, iterations: u64, drain: bool, here: bool);
    /// Returns true if windows have closed, but no profiler or record is known to have captured any of them.
    fn is_unheard(&self) -> bool {
        false
    }
    /// Ends the recording of data that only planned windows need, because this rank opens no planned window. Must not
    /// wait.
    fn plans_none(&self, _: &Settings) {}
    /// Returns the number of iterations outside windows that the record contains at the end of the process.
    fn latest_left(&self) -> u64 {
        0
    }
    /// Returns what the record lacks at the end of the process because it could not grow any more.
    fn lost(&self) -> Option<LostData> {
        None
    }
    /// Ends the record. `in_order` is true if the process exits normally.
    fn finish_record(&self, in_order: bool);
    /// Makes the threads of the sink (profilers and record) end. Must not wait for them.
    fn ends_threads(&self);
}

/// The hooks through which the process's calls reach the session.
pub trait Doors: Sync {
    /// Intercepts the CUDA runtime's functions for `calls`, in addition to the driver's functions. Stops
    /// intercepting the other functions of the runtime, whose calls are seen at the driver.
    fn attend(&self, calls: CallSet);
    /// Updates the hooks of driver functions: for each driver call that has to be recorded or timed from now on, the
    /// library also has to see when the call returns.
    fn record_calls(&self);
    /// Updates the hooks after the number of stream captures in progress has changed. During a capture, the library may
    /// also have to see the return of driver calls that add nodes to a graph.
    fn captures(&self) {}
    /// Logs in which way the functions that the rule names are hooked.
    fn report_named(&self);
    /// Logs an error if a rule has matched no function or too many. `may_search` is true if there is time and
    /// memory to look for similar names.
    fn report_unmatched(&self, step: &Step, may_search: bool);
    /// Logs a warning if no function was found for a scope (a torch module or marked function) that the
    /// settings name.
    fn report_unmatched_scopes(&self, _may_search: bool) {}
    /// Logs the ways in which calls may bypass the library, if no call that makes an iteration has been
    /// intercepted.
    fn report_bypass(&self) {}
    /// Intercepts calls again after [`Doors::detach`]. Returns false if `tllmprof attach` did not load the library (it
    /// was preloaded, for example), or if a lock is not free in time.
    fn attach_again(&self) -> bool {
        false
    }
    /// Stops intercepting calls.
    ///
    /// # Errors
    /// Returns the reason why nothing was changed.
    fn detach(&self) -> Result<(), &'static str> {
        Err("the library was preloaded when the process started, not attached")
    }
    /// Writes the reason why no NVTX range was counted.
    ///
    /// # Errors
    /// Returns an error if writing to `out` fails.
    fn write_no_range(&self, out: &mut dyn fmt::Write) -> fmt::Result;
}

/// The Python interpreter in the process, if there is one.
pub trait Interpreter: Sync {
    /// Returns the version of Python, such as `3.12.1`; `None` if the library uses no interpreter in this process.
    fn version(&self) -> Option<&'static str>;
    /// Returns the rank that Python knows. The rank can be read only with the GIL. If the calling thread does
    /// not have the GIL, another thread reads the rank soon, for a later call of this function.
    fn rank(&self) -> Rank;
    /// Returns true if the calling thread has the GIL.
    fn has_gil(&self) -> bool;
    /// Returns true if a thread of the library waits for the GIL. A thread that has the GIL must not wait for
    /// that thread.
    fn is_waiting_for_gil(&self) -> bool;
    /// Installs the library's hooks in Python again after [`Interpreter::detach`].
    fn attach_again(&self) {}
    /// Removes all of the library's hooks from Python, if the library was attached to the running process. Returns
    /// false if this did not succeed within a time limit. The hooks then stay installed.
    fn detach(&self) -> bool {
        true
    }
    /// Returns true if the PyTorch profiler can run in windows even if the settings do not ask for it.
    fn can_run_torch_profiler(&self) -> bool {
        false
    }
    /// Updates the record's counters of garbage collections and of waits for the GIL.
    fn count(&self);
    /// Logs which Python functions that the settings name have not been found in the process.
    fn report_missing(&self);
    /// Logs the totals of garbage collections and of waits for the GIL.
    fn report_totals(&self, level: Level);
    /// Writes the reason why no call of the Python function that the rule names was counted.
    ///
    /// # Errors
    /// Returns an error if writing to `out` fails.
    fn write_no_call(&self, out: &mut dyn fmt::Write) -> fmt::Result;
    /// If calls of the Python function that the rule names may not have been counted, writes a clause that says so.
    ///
    /// # Errors
    /// Returns an error if writing to `out` fails.
    fn write_missing_calls(&self, _: &mut dyn fmt::Write) -> fmt::Result {
        Ok(())
    }
}

/// Listens for requests from outside the process, on a thread of its own.
pub trait Listener: Sync {
    /// Starts to listen if the settings ask for it. Called when the process has begun to use CUDA.
    fn begins(&self, settings: &'static Settings);
    /// Makes the listening thread end. Called when the process ends. Must not wait or allocate.
    fn ends(&self);
}

/// The implementations of all traits, as the library connects them.
pub struct Wiring {
    pub sink: &'static dyn Sink,
    pub doors: &'static dyn Doors,
    pub interpreter: &'static dyn Interpreter,
    pub listener: &'static dyn Listener,
}

/// The library's wiring: one entry, or none in a test of a lower layer. The linker collects the entries, so they
/// exist before any code runs. This matters because another library's constructor may use CUDA before this library is
/// initialised.
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

pub(crate) fn sink() -> &'static dyn Sink {
    wiring().sink
}

pub(crate) fn doors() -> &'static dyn Doors {
    wiring().doors
}

pub(crate) fn interpreter() -> &'static dyn Interpreter {
    wiring().interpreter
}

pub(crate) fn listener() -> &'static dyn Listener {
    wiring().listener
}

/// An implementation of all traits that does nothing, for a process to which no other
/// implementation is linked.
struct Nobody;

impl Sink for Nobody {
    fn wants_record(&self) -> bool {
        false
    }
    fn start(&self, _: &'static Settings) {}
    fn takes_kernels(&self, _: &Settings) -> bool {
        false
    }
    fn begin_record(&self, _: &'static Settings, _: &SessionFacts<'_>) -> bool {
        false
    }
    fn rule_is_known(&self, _: &SessionFacts<'_>) {}
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
    fn ends(&self, _: u64, _: bool, _: EndReason) {}
    fn finish(&self, _: u64, _: bool, _: bool) {}
    fn finish_record(&self, _: bool) {}
    fn ends_threads(&self) {}
}

impl Listener for Nobody {
    fn begins(&self, _: &'static Settings) {}
    fn ends(&self) {}
}

impl Doors for Nobody {
    fn attend(&self, _: CallSet) {}
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
