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
mod collecting;
pub mod embedded;
mod entry;
mod extension;
mod functions;
mod gc;
mod gil;
mod holds;
#[cfg(test)]
mod hosted;
mod interpreter;
mod later;
mod longest;
pub mod method;
mod names;
pub mod object;
mod spans;
mod thread_name;
mod threads;
mod time;
mod torch;
mod totals;
mod version;
mod wants;

use tllmprof_config::Settings;

use extension::extension;
use tllmprof_platform::log;
use tllmprof_platform::log::Level;
use tllmprof_session as session;
use torch::{modules, profiler};
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

    fn has_gil(&self) -> bool {
        entry::has_gil()
    }

    fn is_waiting_for_gil(&self) -> bool {
        entry::is_waiting_for_gil()
    }

    fn count(&self) {
        if let Some(handoffs) = totals::gil_handoffs() {
            tllmprof_recorder::set(tllmprof_recorder::Counter::GilHandoffs, handoffs);
        }
    }

    fn report_missing(&self) {
        functions::report_missing();
    }

    fn report_totals(&self, level: Level) {
        totals::report(level);
    }

    fn write_no_call(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
        write!(out, "{}", functions::Uncalled)
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
    if let Some(extension) = extension() {
        extension.start(settings);
    }
    attach::look();
    tllmprof_platform::modules::watch(attach::look);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_of_python_follows_from_the_variables() {
        let wants = |variables: &[_]| wants_of(&functions::settings(variables));
        let window = ("TLLM_PROFILE_START_STOP", "5-9");
        assert!(!wants(&[]).anything());
        assert!(wants(&[("TLLM_PROFILE_RECORD_GC", "1")]).gc);
        assert!(wants(&[("TLLMPROF_GIL", "1")]).gil);
        assert!(wants(&[("TLLM_NVTX_DEBUG", "1")]).modules);
        assert!(!wants(&[("TLLM_NVTX_DEBUG", "1"), ("TLLMPROF_NVTX", "0")]).modules);
        assert!(wants(&[window, ("TLLMPROF_STEP", "py:m:f")]).functions);
        assert!(!wants(&[window, ("TLLMPROF_STEP", "cuGraphLaunch")]).anything());
        assert!(wants(&[window, ("TLLM_TORCH_PROFILE_TRACE", "t.json")]).torch);
        // Any iteration may begin with an engine's function.
        assert!(wants(&[window]).functions);
    }

    #[test]
    fn without_an_interpreter_the_session_has_nothing_of_python() {
        use session::Interpreter;
        assert_eq!(Cpython.version(), None);
        assert!(!Cpython.has_gil() && !Cpython.is_waiting_for_gil());
        Cpython.count();
        Cpython.report_missing();
        Cpython.report_totals(Level::Debug);
        let mut why = String::new();
        Cpython.write_no_call(&mut why).unwrap();
        assert_eq!(why, "; no Python from 3.8 on is in the process");
    }
}
