//! The part of the library that observes Python: garbage collections, the GIL, calls of functions, and torch.
//!
//! The module `attach` finds the interpreter, and `interpreter` installs the hooks of `gc`, `functions` and `torch`
//! in it. These hooks, and those of `gil`, store the state of each thread in `threads`. They report events to the
//! crates `session` and `capture`.
//!
//! The library neither links CPython nor includes its headers. It finds CPython by the symbols that CPython defines
//! ([`attach`]) and uses the C API ([`api`], [`object`]). Other crates of the library use CPython only through this
//! crate. If the settings request nothing from Python, the library does not look for CPython.
//!
//! Library code that runs in the interpreter's threads preserves `errno` and a pending exception.

pub mod api;
mod attach;
mod attached;
mod batch;
#[cfg(test)]
mod broken;
mod closing;
mod collecting;
pub mod embedded;
mod entry;
mod extension;
mod functions;
mod gc;
mod gil;
mod groups;
mod holds;
mod interpreter;
mod late;
mod later;
mod longest;
pub mod method;
mod missing;
mod names;
pub mod object;
mod place;
mod rank;
#[cfg(test)]
#[path = "../../../tests/common/skipped.rs"]
mod skipped;
mod spans;
pub mod stacks;
#[cfg(test)]
mod tests;
mod thread_name;
mod threads;
mod time;
mod torch;
mod totals;
mod trouble;
mod version;
mod wants;

use tllmprof_capture::AddOn;
use tllmprof_config::{IterationRange, Settings};

use extension::extension;
use tllmprof_platform::log;
use tllmprof_platform::log::Level;
use tllmprof_session::{self as session, Place};
use torch::{compiled, modules, profiler};
use wants::Wants;

pub use entry::run;
pub use extension::{EXTENSION, Extension};
pub use torch::profiler::TorchProfiler;

/// Gives the session (the part of the library that opens and closes windows) access to the Python interpreter of the
/// process.
pub struct Cpython;

impl session::Interpreter for Cpython {
    fn version(&self) -> Option<&'static str> {
        Some(attached::api()?.version_text)
    }

    fn rank(&self) -> session::Rank {
        rank::rank(|look| {
            entry::run(look);
        })
    }

    fn has_gil(&self) -> bool {
        entry::has_gil()
    }

    fn is_waiting_for_gil(&self) -> bool {
        entry::is_waiting_for_gil()
    }

    fn attach_again(&self) {
        if late::is_late() {
            switch(true);
        }
    }

    fn detach(&self) -> bool {
        let is_done = !late::is_late() || switch(false);
        if !is_done {
            switch(true);
        }
        is_done
    }

    fn can_run_torch_profiler(&self) -> bool {
        profiler::can_run()
    }

    fn count(&self) {
        if let Some(handoffs) = totals::gil_handoffs() {
            tllmprof_recorder::set(tllmprof_recorder::Counter::GilHandoffs, handoffs);
        }
    }

    fn report_missing(&self) {
        functions::report_missing();
        gc::report_unseen();
        missing::report();
    }

    fn report_totals(&self, level: Level) {
        totals::report(level);
    }

    fn write_no_call(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
        write!(out, "{}", functions::Uncalled)
    }

    fn write_missing_calls(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
        write!(out, "{}", functions::MayLackCalls)
    }
}

/// An add-on that reads the process's groups of ranks from Python when a window (a range of recorded iterations) opens.
pub struct Groups;

impl AddOn for Groups {
    fn window_is_open(&self, _: IterationRange, _: &Place<'_>) {
        groups::ask(|look| {
            entry::run(look);
        });
    }
}

/// Returns the features that the settings request from Python.
fn wants_of(settings: &Settings) -> Wants {
    Wants {
        gc: settings.record_gc,
        gil: settings.gil,
        functions: functions::are_asked_for(settings),
        torch: profiler::is_asked_for(settings),
        modules: modules::are_asked_for(settings),
        extension: extension().is_some_and(|it| it.is_asked_for(settings)),
        rank: rank::is_asked_for(settings),
        stacks: stacks::are_asked_for(settings),
    }
}

/// Installs the hooks in Python if `is_wanted` is true, otherwise removes them. Returns true if this was done within
/// a time limit.
fn switch(is_wanted: bool) -> bool {
    // `lead_gil` takes the dynamic loader's lock. This thread must not hold the GIL meanwhile: another thread may
    // hold that lock and wait for the GIL, and both threads would wait forever.
    attach::lead_gil(is_wanted);
    late::switch(is_wanted)
}

/// The progress of installing the library's hooks in Python.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InstallProgress {
    /// All requested hooks are installed; this includes the case that none are requested.
    Done,
    /// Another thread holds the GIL. The hooks are installed as soon as the GIL is free.
    Waits,
    /// The process has no CPython 3.8 or later, or its build has no GIL.
    NotThere,
}

/// Looks for Python, like [`start`], when the library is attached to a running process. Waits for a limited time until
/// the hooks are installed in Python.
pub fn attach() -> InstallProgress {
    late::begin(attach::switch);
    start();
    if !wants::wants().is_installed() {
        return InstallProgress::Done;
    }
    let is_there = attached::api().is_some_and(late::is_served);
    match (is_there, switch(true)) {
        (false, _) => InstallProgress::NotThere,
        (true, true) => InstallProgress::Done,
        (true, false) => InstallProgress::Waits,
    }
}

/// Looks for Python if the settings request anything from it. Called when the library is loaded.
pub fn start() {
    let Some(settings) = tllmprof_session::activity::settings() else {
        return;
    };
    let wants = wants_of(settings);
    if !wants.anything() {
        return;
    }
    wants::set(wants);
    log::set_level(settings.log);
    if wants.torch {
        profiler::start(settings);
    }
    modules::begins();
    compiled::begins();
    if let Some(extension) = extension() {
        extension.start(settings);
    }
    attach::look();
    tllmprof_platform::modules::watch(attach::look);
}
