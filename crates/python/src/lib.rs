//! What happens inside Python: collections, the GIL, functions, torch.
//!
//! ```text
//! attach ──▶ install ──▶ gc, functions, torch ──▶ session, capture
//!   └──▶ gil ─────────────────────────────────────▲
//! ```
//!
//! CPython is found by the symbols that it defines ([`attach`]) and spoken to through the C API
//! that they make up ([`api`], [`object`]): nothing of it is linked or included. This folder alone
//! knows of it. In a process that asks for nothing of Python nothing is looked for.
//!
//! Everything that runs in the interpreter's threads keeps an exception that is set, and `errno`.

pub mod api;
mod attach;
pub mod embedded;
mod entry;
mod functions;
mod gc;
mod gil;
mod holds;
mod later;
pub mod method;
mod names;
pub mod object;
mod threads;
mod torch;
mod totals;
mod version;

use once_cell::race::OnceBox;
use tllmprof_config::Settings;
use tllmprof_platform::lifecycle;

use api::Api;
use object::Python;
use threads::Thread;
use tllmprof_platform::log;
use tllmprof_platform::log::Level;
use tllmprof_platform::modules;
use tllmprof_platform::system::{Clock, nanoseconds};
use tllmprof_session as session;
use torch::{modules as torch_modules, profiler};

pub use entry::run;
pub use torch::profiler::TorchProfiler;

/// Something that is done in the interpreter by a crate above this one. There may be one
/// ([`EXTENSION`]).
pub trait Extension: Sync {
    /// Whether it has anything to do.
    fn is_asked_for(&self, settings: &Settings) -> bool;
    /// Remembers what is asked for. In the library's constructor.
    fn start(&self, settings: &Settings);
    /// Whether it wants to [`Extension::look`] at an audited event of this name.
    fn wants(&self, event: &[u8]) -> bool;
    /// Such an event has come, in an interpreter.
    fn look(&self, py: Python<'_>);
    /// The main interpreter ends.
    fn ends(&self, py: Python<'_>);
}

/// The extension, if there is one.
#[linkme::distributed_slice]
pub static EXTENSION: [&'static dyn Extension];

fn extension() -> Option<&'static dyn Extension> {
    EXTENSION.first().copied()
}

/// The process's Python, for the session.
pub struct Cpython;

impl session::Interpreter for Cpython {
    fn version(&self) -> Option<&'static str> {
        Some(api()?.version_text)
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

/// What is asked for of Python.
#[derive(Clone, Copy, Default)]
struct Wants {
    gc: bool,
    gil: bool,
    /// Functions are marked, or counted.
    functions: bool,
    /// The PyTorch profiler runs in the windows.
    torch: bool,
    /// Ranges for torch modules.
    modules: bool,
    /// An extension has something to do.
    extension: bool,
}

lifecycle::global! {
    #[fork(keep = "the settings are the same")]
    #[restart(keep)]
    static WANTS: OnceBox<Wants> = OnceBox::new();
}

fn wants() -> Wants {
    WANTS.get().copied().unwrap_or_default()
}

impl Wants {
    fn of(settings: &Settings) -> Self {
        Self {
            gc: settings.record_gc,
            gil: settings.gil,
            functions: functions::are_asked_for(settings),
            torch: profiler::is_asked_for(settings),
            modules: torch_modules::are_asked_for(settings),
            extension: extension().is_some_and(|it| it.is_asked_for(settings)),
        }
    }

    const fn anything(self) -> bool {
        self.gc || self.gil || self.functions || self.torch || self.modules || self.extension
    }
}

/// Looks for Python, if anything is asked for of it. For the constructor.
pub fn start() {
    let Some(settings) = tllmprof_session::activity::settings() else {
        return;
    };
    let wants = Wants::of(settings);
    if !wants.anything() {
        return;
    }
    WANTS.get_or_init(|| Box::new(wants));
    log::set_level(settings.log);
    if wants.torch {
        profiler::start(settings);
    }
    torch_modules::begins();
    if let Some(extension) = extension() {
        extension.start(settings);
    }
    attach::look();
    modules::watch(attach::look);
}

/// The interpreter's functions, if it is there.
fn api() -> Option<&'static Api> {
    attach::api()
}

/// Whether there is an interpreter, or has been one.
fn is_there() -> bool {
    api().is_some()
}

/// Nanoseconds of the monotonic clock.
#[inline]
fn now() -> u64 {
    nanoseconds(Clock::Monotonic)
}

/// Comes into interpreter number `number`, 0 for the main one.
fn install(py: Python<'_>, thread: &Thread, number: i64) {
    let wants = wants();
    if number == 0 && entry::install(py).is_none() {
        log::once!(Warn, "Python has no atexit: nothing is run in it");
    }
    if wants.gil {
        gil::begin(py, thread);
    }
    let has_own_gc = number == 0 || py.api.version.has_gc_callbacks_per_interpreter();
    if wants.gc && has_own_gc && gc::install(py).is_none() {
        log::once!(Warn, "Python has no gc: its collections are not marked");
    }
    if wants.functions {
        functions::install(py);
    }
}

/// An interpreter that is not the main one ends, the calling thread's.
fn interpreter_ends(py: Python<'_>) {
    functions::interpreter_ends(py);
}

/// The main interpreter ends; what needs it happens now or never. Nobody else comes in any
/// more.
fn ends(py: Python<'_>) {
    if let Some(extension) = extension() {
        extension.ends(py);
    }
    profiler::ends(py);
    if wants().gil {
        names::look(py);
    }
    // Where CUDA is used, the end of the process reports them.
    if !session::uses_cuda() {
        totals::report(Level::Debug);
    }
    if wants().functions {
        functions::ends(py);
    }
}
