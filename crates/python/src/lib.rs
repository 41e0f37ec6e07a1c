//! What happens inside Python: collections, the GIL, functions, torch.
//!
//! ```text
//! attach ──▶ interpreter ──▶ gc, functions, torch ──▶ threads ──▶ session, capture
//!   └──▶ gil ───────────────────────────────────────────▲
//! ```
//!
//! CPython is found by the symbols that it defines ([`attach`]) and spoken to through the C API
//! that they make up ([`api`], [`object`]): nothing of it is linked or included. This folder alone
//! knows of it. In a process that asks for nothing of Python nothing is looked for.
//!
//! Everything that runs in the interpreter's threads keeps an exception that is set, and `errno`.

pub mod api;
mod attach;
mod attached;
mod batch;
#[cfg(test)]
mod broken;
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
use tllmprof_config::{Settings, Window};

use extension::extension;
use tllmprof_platform::log;
use tllmprof_platform::log::Level;
use tllmprof_session::{self as session, Place};
use torch::{compiled, modules, profiler};
use wants::Wants;

pub use entry::run;
pub use extension::{EXTENSION, Extension};
pub use torch::profiler::TorchProfiler;

/// The process's Python, for the session.
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

/// Looks for the groups that the process is in where a window opens.
pub struct Groups;

impl AddOn for Groups {
    fn window_is_open(&self, _: Window, _: &Place<'_>) {
        groups::ask(|look| {
            entry::run(look);
        });
    }
}

/// What the settings ask for of Python.
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

/// Has Python get what is installed, or give it back; whether that was done in time.
fn switch(is_wanted: bool) -> bool {
    // Without the GIL: who has the loader's lock may wait for that.
    attach::lead_gil(is_wanted);
    late::switch(is_wanted)
}

/// How far Python is with what is asked for of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// It has all of that, or nothing is asked for.
    Done,
    /// Its GIL is held; what is asked for comes as soon as it is not.
    Waits,
    /// There is no CPython from 3.8 on, or one that is built to do without a GIL.
    NotThere,
}

/// The library is attached to a process that runs: as [`start`], and waits for Python, but not long.
pub fn attach() -> Progress {
    late::begin(attach::switch);
    start();
    if !wants::wants().is_installed() {
        return Progress::Done;
    }
    let is_there = attached::api().is_some_and(late::is_served);
    match (is_there, switch(true)) {
        (false, _) => Progress::NotThere,
        (true, true) => Progress::Done,
        (true, false) => Progress::Waits,
    }
}

/// Looks for Python, if anything is asked for of it. For the constructor.
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
