//! Routers of mixtures of experts replaced by balanced ones (`ENABLE_PERFECT_ROUTER`).
//!
//! The work is done by Python source that runs in the program as a module of its own, as soon as
//! torch's modules can be watched: `balance.py` (which experts), `operators.py` (what takes the place
//! of a gate's results), `proof.py` (that the experts are the table's), `engines.py` (where, in engines
//! whose routers are no modules), `blocks.py` (where, in transformers and what is made like it) and
//! `ranks.py` (where ranks have tokens of their own), one behind the other. Nothing is on disk, and nothing happens where
//! torch is not imported.

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
use tllmprof_session::Place;

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

/// The switch of TensorRT-LLM's own perfect router, which is for its own models.
const OWN_SWITCH: &str = "ENABLE_PERFECT_ROUTER";

lifecycle::global! {
    /// What is asked for: a `PerfectRouter`.
    #[fork(keep = "the settings are the same")]
    #[restart(keep)]
    #[exec = "`ENABLE_PERFECT_ROUTER` stays set"]
    static ASKED: AtomicU8 = AtomicU8::new(PerfectRouter::Off as u8);
    /// torch has not been seen yet.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(by = begins)]
    static WAITS: AtomicBool = AtomicBool::new(false);
    /// The module's names, once it runs.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static NAMES: Held = Held::none();
}

/// Balanced routers, for the interpreter and for the windows.
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

    /// Whether an audited event may bring torch.
    fn wants(&self, event: &[u8]) -> bool {
        WAITS.load(Ordering::Relaxed) && matches!(event, b"import" | b"exec")
    }

    /// Watches torch's modules being made, once that can be done: before any is.
    fn look(&self, py: Python<'_>) {
        if py.interpreter() != 0 {
            return; // what is kept here would not outlive it
        }
        let module = py.imported(c"torch.nn.modules.module");
        match Torch::of(|name| Some(module.as_ref()?.attr(name).is_some())) {
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
        let Some(names) = NAMES.get(py) else { return };
        uncounted(&mut || {
            call(py, &names, LOADS, &[]);
            call(py, &names, REPORT, &[]);
        });
    }
}

impl AddOn for PerfectRouters {
    fn window_opens(&self, place: &Place<'_>) {
        switch(true, place.capturing);
    }

    fn window_is_closed(&self, place: &Place<'_>) {
        switch(false, place.capturing);
    }
}

fn is_asked(router: PerfectRouter) -> bool {
    ASKED.load(Ordering::Relaxed) == router as u8
}

/// An interpreter starts, the process's first or another one.
fn begins() {
    WAITS.store(!is_asked(PerfectRouter::Off), Ordering::Relaxed);
}

/// How far torch's import is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Torch {
    /// Not far enough to be hooked.
    IsNotThere,
    /// It has no hook for modules that are put into each other.
    IsTooOld,
    CanBeHooked,
}

impl Torch {
    /// `has`: whether `torch.nn.modules.module` has an attribute; None where it is not imported.
    fn of(has: impl Fn(&CStr) -> Option<bool>) -> Self {
        // Of what is used here, the module defines this last.
        if has(c"Module") != Some(true) {
            Self::IsNotThere
        } else if has(c"register_module_module_registration_hook") != Some(true) {
            Self::IsTooOld
        } else {
            Self::CanBeHooked
        }
    }
}

/// A window opens or has closed. `capturing`: a stream capture is under way, which a wait for the
/// device would end with an error.
fn switch(on: bool, capturing: bool) {
    if !is_asked(PerfectRouter::Window) || !NAMES.is_some() {
        return;
    }
    tllmprof_python::run(|py| {
        let Some(names) = NAMES.get(py) else { return };
        uncounted(&mut || {
            let flag = |flag: bool| py.int(flag.into());
            call(py, &names, SWITCH, &[flag(on), flag(!capturing)]);
            if !on && !capturing {
                call(py, &names, LOADS, &[]);
            }
        });
    });
}

/// Functions of the source that are called from here.
const BEGIN: &CStr = c"begin";
const SWITCH: &CStr = c"switch";
const LOADS: &CStr = c"loads";
const REPORT: &CStr = c"report";

/// What the source calls.
static FUNCTIONS: [MethodDef; 3] = [
    MethodDef::with_tuple(c"say", |_, args| {
        with_text(args, |text| log::say!(Info, "{text}"));
    }),
    MethodDef::with_tuple(c"warn", |_, args| {
        with_text(args, |text| log::say!(Warn, "{text}"));
    }),
    MethodDef::with_tuple(c"keep", keep),
];

/// `keep(layer, name, tokens)`: the tokens that a layer's learned router sent to each expert.
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

/// A count of tokens as Python gives it; 0 for what is none.
fn tokens_in(count: Option<i64>) -> u64 {
    count.map_or(0, |count| u64::try_from(count).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use core::ffi::{c_char, c_int};
    use std::ffi::{CString, OsString};
    use std::process::Command;
    use std::sync::Mutex;

    use tllmprof_platform::function;
    use tllmprof_steps::window::Point;

    use super::*;

    /// What is asked for is one word of the process: one test at a time.
    static ONE: Mutex<()> = Mutex::new(());

    fn settings(router: &str) -> Settings {
        let get = |name: &str| (name == "ENABLE_PERFECT_ROUTER").then(|| OsString::from(router));
        Settings::from_env(get).unwrap()
    }

    #[test]
    fn only_imports_are_looked_at_and_only_until_torch_is_there() {
        let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
        for (value, is_asked_for) in [("0", false), ("1", true), ("window", true)] {
            let settings = settings(value);
            assert_eq!(PerfectRouters.is_asked_for(&settings), is_asked_for);
            PerfectRouters.start(&settings);
            for (event, may_bring_torch) in
                [(&b"import"[..], true), (b"exec", true), (b"open", false)]
            {
                let wants = PerfectRouters.wants(event);
                assert_eq!(wants, is_asked_for && may_bring_torch, "{value}: {event:?}");
            }
            WAITS.store(false, Ordering::Relaxed);
            assert!(!PerfectRouters.wants(b"import"));
            begins();
            assert_eq!(
                PerfectRouters.wants(b"import"),
                is_asked_for,
                "{value}: it starts anew"
            );
        }
    }

    #[test]
    fn an_engine_with_a_perfect_router_of_its_own_is_asked_for_it() {
        let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: the tests that read or write the environment hold `ONE`, as this one does.
        unsafe { std::env::remove_var(OWN_SWITCH) };
        PerfectRouters.start(&settings("window"));
        assert_eq!(
            std::env::var_os(OWN_SWITCH),
            None,
            "it would balance outside windows, too"
        );
        PerfectRouters.start(&settings("1"));
        assert_eq!(std::env::var_os(OWN_SWITCH), Some("1".into()));
    }

    #[test]
    fn without_an_interpreter_a_window_switches_nothing() {
        let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
        for value in ["0", "1", "window"] {
            PerfectRouters.start(&settings(value));
            for capturing in [false, true] {
                let place = Place {
                    point: Point::In(0),
                    by: format_args!(""),
                    rank: None,
                    capturing,
                };
                PerfectRouters.window_opens(&place);
                PerfectRouters.window_is_closed(&place);
            }
            assert!(!NAMES.is_some());
        }
    }

    #[test]
    fn torch_is_hooked_when_what_the_source_uses_is_defined() {
        let with = |names: &'static [&'static CStr]| Torch::of(|name| Some(names.contains(&name)));
        assert_eq!(Torch::of(|_| None), Torch::IsNotThere);
        assert_eq!(with(&[]), Torch::IsNotThere);
        let hook = c"register_module_module_registration_hook";
        assert!(SOURCE.to_str().unwrap().contains(hook.to_str().unwrap()));
        assert_eq!(Torch::of(|name| Some(name == hook)), Torch::IsNotThere);
        assert_eq!(with(&[c"Module"]), Torch::IsTooOld);
        assert_eq!(
            with(&[c"Module", c"register_module_module_registration_hook"]),
            Torch::CanBeHooked
        );
    }

    #[test]
    fn the_source_defines_what_is_called_of_it_and_calls_what_it_is_given() {
        let source = SOURCE.to_str().unwrap();
        for name in [BEGIN, SWITCH, LOADS, REPORT] {
            let definition = format!("\ndef {}(", name.to_str().unwrap());
            assert_eq!(source.matches(&definition).count(), 1, "{name:?}");
        }
        for function in &FUNCTIONS {
            let name = function.name().to_str().unwrap();
            assert!(
                source.contains(&format!(" {name}(")),
                "{name} is not called"
            );
            assert!(
                !source.contains(&format!("def {name}(")),
                "{name} is defined twice"
            );
        }
    }

    #[test]
    fn a_count_of_tokens_is_never_negative() {
        assert_eq!([Some(7), Some(-1), None].map(tokens_in), [7, 0, 0]);
    }

    #[linkme::distributed_slice(tllmprof_python::EXTENSION)]
    static EXTENSION: &dyn Extension = &PerfectRouters;

    /// The shared library of the Python that is there, if that has one.
    fn libpython() -> Option<CString> {
        let names = "sysconfig.get_config_vars('LIBDIR', 'INSTSONAME')";
        let script = format!("import os, sysconfig; print(os.path.join(*{names}))");
        let ran = Command::new("python3")
            .args(["-c", &script])
            .output()
            .ok()?;
        let path = String::from_utf8(ran.stdout).ok()?.trim().to_owned();
        let is_shared = path.contains(".so") && std::path::Path::new(&path).exists();
        is_shared.then(|| CString::new(path).unwrap())
    }

    /// The module of torch that is hooked, as far as it is needed here.
    const TORCH: &CStr = c"
import sys, types
torch = types.ModuleType('torch.nn.modules.module')
torch.Module = type('Module', (), {})
hooks = []
torch.register_module_module_registration_hook = hooks.append
sys.modules['torch.nn.modules.module'] = torch
import colorsys
router = sys.modules['_tllmprof_router']
assert hooks == [router.registered] and router._counts and not router._active
router.say('from the source')
router.keep(3, 'layer', (7, -1, None))
router.keep('what', 'is', 'this')
";

    #[test]
    fn the_source_runs_in_an_interpreter_and_is_switched_with_windows() {
        const INSIDE: &str = "TLLMPROF_TEST_LIBPYTHON";
        // Without a shared library of Python there is none to run it in here.
        let Some(library) = libpython() else { return };
        if std::env::var_os(INSIDE).is_none() {
            // The interpreter, and what the library reads of its variables, are a process's own.
            let test = "tests::the_source_runs_in_an_interpreter_and_is_switched_with_windows";
            let mut command = Command::new(std::env::current_exe().unwrap());
            command
                .args([test, "--exact", "--nocapture"])
                .env(INSIDE, "1");
            let ran = command
                .env("TLLMPROF_PERFECT_ROUTER", "window")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&ran.stderr);
            assert!(ran.status.success(), "{said}");
            assert_eq!(
                said.matches("tllmprof: from the source").count(),
                1,
                "{said}"
            );
            return;
        }
        // SAFETY: the functions of the C API have these types.
        let (initialize, run, finalize) = unsafe {
            let library = libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
            assert!(!library.is_null());
            let find = |name: &CStr| libc::dlsym(library, name.as_ptr());
            (
                function::at::<unsafe extern "C" fn(c_int)>(find(c"Py_InitializeEx")).unwrap(),
                function::at::<unsafe extern "C" fn(*const c_char) -> c_int>(find(
                    c"PyRun_SimpleString",
                ))
                .unwrap(),
                function::at::<unsafe extern "C" fn() -> c_int>(find(c"Py_FinalizeEx")).unwrap(),
            )
        };
        let run = |source: &CStr| {
            // SAFETY: a terminated string, run by the thread that has the GIL.
            assert_eq!(unsafe { run(source.as_ptr()) }, 0, "{source:?}");
        };
        tllmprof_python::start();
        // SAFETY: there is no interpreter yet.
        unsafe { initialize(0) };
        run(TORCH);
        assert!(NAMES.is_some() && !PerfectRouters.wants(b"import"));
        let place = Place {
            point: Point::In(0),
            by: format_args!(""),
            rank: None,
            capturing: false,
        };
        PerfectRouters.window_opens(&place);
        run(c"assert router._active");
        PerfectRouters.window_is_closed(&place);
        run(c"assert not router._active");
        // SAFETY: the thread has the GIL, and uses the interpreter no more.
        assert_eq!(unsafe { finalize() }, 0);
    }
}
