//! Replaces the routers of mixtures of experts by balanced ones (`ENABLE_PERFECT_ROUTER`).
//!
//! Python code in the program does the replacement. It runs as a separate module, as soon as the creation of torch's
//! modules can be hooked. Its source files are concatenated: `balance.py` (makes tables of logits that choose balanced
//! experts), `operators.py` (replaces a gate's results), `proof.py` (proves that a layer uses the experts of a table),
//! `engines.py` (for engines whose routers are not modules), `blocks.py` (for transformers and similar models) and
//! `ranks.py` (for ranks that have different tokens). Nothing is written to disk, and nothing happens if torch is not
//! imported.

#[cfg(test)]
#[path = "../../../tests/common/skipped.rs"]
mod skipped;
#[cfg(test)]
mod tests;

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use tllmprof_config::{PerfectRouter, Settings};
use tllmprof_platform::lifecycle;

use tllmprof_capture::AddOn;
use tllmprof_platform::environment;
use tllmprof_platform::log;
use tllmprof_platform::thread::uncounted;
use tllmprof_python::Extension;
use tllmprof_python::embedded::{add, call, with_text};
use tllmprof_python::method::MethodDef;
use tllmprof_python::object::{Held, Object, Python};
use tllmprof_recorder as recorder;
use tllmprof_session::{Place, uses_cuda};

const SOURCE: &CStr = match CStr::from_bytes_with_nul(
    concat!(
        include_str!("balance.py"),
        include_str!("operators.py"),
        include_str!("proof.py"),
        include_str!("engines.py"),
        include_str!("blocks.py"),
        include_str!("ranks.py"),
        "\0"
    )
    .as_bytes(),
) {
    Ok(source) => source,
    Err(_) => panic!("a NUL in the router's source"),
};

/// The environment variable that also enables TensorRT-LLM's own perfect router, which works only for the models of
/// TensorRT-LLM.
const OWN_SWITCH: &str = "ENABLE_PERFECT_ROUTER";

lifecycle::global! {
    /// The requested mode, as the number of a `PerfectRouter`.
    #[fork(keep = "the settings are the same")]
    #[restart(keep)]
    #[exec = "`ENABLE_PERFECT_ROUTER` stays set"]
    static ASKED: AtomicU8 = AtomicU8::new(PerfectRouter::Off as u8);
    /// True while the library waits for torch to be imported.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(by = begins)]
    static WAITS: AtomicBool = AtomicBool::new(false);
    /// True if a device still has balanced routers although the window has closed, because of a stream capture.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static IS_BEHIND: AtomicBool = AtomicBool::new(false);
    /// The namespace of the Python module that replaces routers; empty until the module runs.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static NAMES: Held = Held::none();
}

/// The extension that loads the balanced routers when torch is imported. In windows mode, it also switches to the
/// balanced routers when a window (a profiled range of iterations) opens, and back when the window has closed.
pub struct PerfectRouters;

impl Extension for PerfectRouters {
    fn is_asked_for(&self, settings: &Settings) -> bool {
        settings.perfect_router != PerfectRouter::Off
    }

    fn start(&self, settings: &Settings) {
        ASKED.store(settings.perfect_router as u8, Ordering::Relaxed);
        begins();
        if settings.perfect_router == PerfectRouter::On && std::env::var_os(OWN_SWITCH).is_none() {
            environment::publish(&[(OWN_SWITCH, Some(b"1"))]);
        }
    }

    /// Returns true if an audit event (of Python's `sys.audit`) may mean that torch is being imported.
    fn wants(&self, event: &[u8]) -> bool {
        WAITS.load(Ordering::Relaxed) && matches!(event, b"import" | b"exec")
    }

    /// Starts to watch how torch's modules are created. The watch begins at the first audit event at which torch's
    /// import has progressed far enough, before any module of the model is created. At earlier events this function
    /// has no effect.
    fn look(&self, py: Python<'_>) {
        if py.interpreter() != 0 {
            return; // skip subinterpreters: this state would not outlive them
        }
        let module = py.imported(c"torch.nn.modules.module");
        match Torch::classify(|name| Some(module.as_ref()?.attr(name).is_some())) {
            Torch::IsNotThere => return,
            Torch::IsTooOld => {
                WAITS.store(false, Ordering::Relaxed);
                log::say!(
                    Warn,
                    "the perfect router needs PyTorch 2.0 or later: the routers stay as they are"
                );
                return;
            }
            Torch::CanBeHooked => WAITS.store(false, Ordering::Relaxed),
        }
        let names = py.run_as_module(c"_tllmprof_router", SOURCE, c"<tllmprof>");
        let is_whole = names
            .as_ref()
            .is_some_and(|names| FUNCTIONS.iter().all(|function| add(py, names, function)));
        let Some(names) = names.filter(|_| is_whole) else {
            log::say!(
                Warn,
                "this Python cannot run the perfect router: the routers stay as they are"
            );
            return;
        };
        let in_windows = is_asked(PerfectRouter::Window);
        let flag = |flag: bool| py.int(flag.into());
        call(py, &names, BEGIN, &[flag(!in_windows), flag(in_windows)]);
        NAMES.set(names);
    }

    fn ends(&self, py: Python<'_>) {
        let Some(names) = NAMES.get(py) else {
            if WAITS.load(Ordering::Relaxed) && uses_cuda() {
                log::say!(
                    Info,
                    "perfect router: torch was not imported in this process: nothing was replaced"
                );
            }
            return;
        };
        uncounted(&mut || {
            call(py, &names, LOADS, &[]);
            call(py, &names, REPORT, &[py.int(uses_cuda().into())]);
        });
    }
}

impl AddOn for PerfectRouters {
    fn window_opens(&self, place: &Place<'_>) {
        switch(true, place.capturing);
    }

    fn takes_windows(&self) -> bool {
        is_asked(PerfectRouter::Window)
    }

    fn window_is_closed(&self, place: &Place<'_>) {
        switch(false, place.capturing);
    }

    fn is_behind(&self) -> bool {
        IS_BEHIND.load(Ordering::Relaxed)
    }

    fn catches_up(&self, place: &Place<'_>) {
        if !place.capturing {
            switch(false, false);
        }
    }
}

fn is_asked(router: PerfectRouter) -> bool {
    ASKED.load(Ordering::Relaxed) == router as u8
}

/// Called when an interpreter starts, both for the first interpreter of the process and for later ones. If balanced
/// routers are requested, the library waits from then on for torch to be imported.
fn begins() {
    WAITS.store(!is_asked(PerfectRouter::Off), Ordering::Relaxed);
}

/// The progress of torch's import, which decides if the registration of modules can be hooked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Torch {
    /// The hook cannot be installed yet: torch is not being imported, or its import has not
    /// progressed far enough.
    IsNotThere,
    /// This version of torch has no hook for modules that are registered in other modules.
    IsTooOld,
    CanBeHooked,
}

impl Torch {
    /// Determines the progress of torch's import. `has` returns true if `torch.nn.modules.module` has an attribute,
    /// and `None` if that module is not imported.
    fn classify(has: impl Fn(&CStr) -> Option<bool>) -> Self {
        // Torch defines `Module` after all other names that the hook uses. So these names exist if
        // `Module` does.
        if has(c"Module") != Some(true) {
            Self::IsNotThere
        } else if has(c"register_module_module_registration_hook") != Some(true) {
            Self::IsTooOld
        } else {
            Self::CanBeHooked
        }
    }
}

/// Switches to balanced routers (`on` is true) when a window (a profiled range of iterations) opens, and back to the
/// learned routers when it has closed. `capturing` is true during a stream capture, in which waiting for the device
/// would fail.
fn switch(on: bool, capturing: bool) {
    if !is_asked(PerfectRouter::Window) || !NAMES.is_some() {
        return;
    }
    tllmprof_python::run(|py| {
        let Some(names) = NAMES.get(py) else { return };
        uncounted(&mut || {
            let flag = |flag: bool| py.int(flag.into());
            call(py, &names, SWITCH, &[flag(on), flag(!capturing)]);
            // A device that was not switched to balanced routers keeps its learned routers for the whole window. But
            // balanced routers outside of a window would change the program's results, so only switching back is tried
            // again.
            let is_behind = names.item(BEHIND).and_then(|behind| behind.as_int()) == Some(1);
            IS_BEHIND.store(!on && is_behind, Ordering::Relaxed);
            if !on && !capturing {
                call(py, &names, LOADS, &[]);
            }
        });
    });
}

/// Names of the functions in the Python source that Rust code calls.
const BEGIN: &CStr = c"begin";
const SWITCH: &CStr = c"switch";
const LOADS: &CStr = c"loads";
/// Name of the variable in the Python source that is true if the last switch left out a device (see [`IS_BEHIND`]).
const BEHIND: &CStr = c"_behind";
const REPORT: &CStr = c"report";

/// Rust functions that the Python source calls.
static FUNCTIONS: [MethodDef; 3] = [
    MethodDef::with_tuple(c"say", |_, args| {
        with_text(args, |text| log::say!(Info, "{text}"));
    }),
    MethodDef::with_tuple(c"warn", |_, args| {
        with_text(args, |text| log::say!(Warn, "{text}"));
    }),
    MethodDef::with_tuple(c"keep", keep),
];

/// Writes to the record how many tokens a layer's learned router sent to each expert. Python code calls this function
/// as `keep(layer, name, tokens)`.
fn keep(_: Python<'_>, args: &Object<'_>) {
    let args: Vec<_> = args.elements().collect();
    if let [layer, name, tokens] = args.as_slice()
        && let Some(layer) = layer.as_int().and_then(|layer| u16::try_from(layer).ok())
        && let Some(name) = name.as_text()
    {
        let tokens = tokens.elements().map(|count| tokens_in(count.as_int()));
        recorder::expert_loads(layer, name, tokens);
    }
}

/// Returns a count of tokens from Python, or 0 if the value is not a count.
fn tokens_in(count: Option<i64>) -> u64 {
    count.map_or(0, |count| u64::try_from(count).unwrap_or(0))
}
