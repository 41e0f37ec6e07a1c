use core::ffi::{c_char, c_int};
use std::ffi::{CString, OsString};
use std::process::Command;
use std::sync::Mutex;

use tllmprof_platform::function;
use tllmprof_steps::window::Point;

use super::*;
use crate::skipped::skipped;

/// Lock that lets only one test run at a time: all tests share the requested mode.
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
        for (event, may_bring_torch) in [(&b"import"[..], true), (b"exec", true), (b"open", false)]
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
    // SAFETY: the tests that read or write the environment hold the lock `ONE`, and so does this
    // test.
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
                why_late: "",
                capturing,
                excluded: false,
                kernels: None,
                sampled: None,
                past: false,
                demand: None,
                torch_trace: None,
            };
            PerfectRouters.window_opens(&place);
            PerfectRouters.window_is_closed(&place);
        }
        assert!(!NAMES.is_some());
    }
}

#[test]
fn torch_is_hooked_when_what_the_source_uses_is_defined() {
    let with =
        |names: &'static [&'static CStr]| Torch::classify(|name| Some(names.contains(&name)));
    assert_eq!(Torch::classify(|_| None), Torch::IsNotThere);
    assert_eq!(with(&[]), Torch::IsNotThere);
    let hook = c"register_module_module_registration_hook";
    assert!(SOURCE.to_str().unwrap().contains(hook.to_str().unwrap()));
    assert_eq!(
        Torch::classify(|name| Some(name == hook)),
        Torch::IsNotThere
    );
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

/// Returns the path of the installed Python's shared library, or `None` if there is none.
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

/// Python source of a stand-in for the hooked module of torch, with the attributes that the routers' source needs. The
/// import of `colorsys` raises an audit event, at which the library hooks the stand-in.
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
    // The Python source of the routers runs in Python's shared library. Skip the test if there is no such library.
    let Some(library) = libpython() else {
        return skipped("python3 has no shared library");
    };
    if std::env::var_os(INSIDE).is_none() {
        // Run in a separate process, because the interpreter and the environment variables affect
        // the whole process.
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
    // SAFETY: these functions of Python's C API have these types.
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
        // SAFETY: the string is zero-terminated, and this thread has the GIL.
        assert_eq!(unsafe { run(source.as_ptr()) }, 0, "{source:?}");
    };
    tllmprof_python::start();
    // SAFETY: no interpreter has been started yet.
    unsafe { initialize(0) };
    run(TORCH);
    assert!(NAMES.is_some() && !PerfectRouters.wants(b"import"));
    let place = Place {
        point: Point::In(0),
        by: format_args!(""),
        rank: None,
        why_late: "",
        capturing: false,
        excluded: false,
        kernels: None,
        sampled: None,
        past: false,
        demand: None,
        torch_trace: None,
    };
    PerfectRouters.window_opens(&place);
    run(c"assert router._active");
    PerfectRouters.window_is_closed(&place);
    run(c"assert not router._active");
    // SAFETY: this thread has the GIL, and does not use the interpreter afterwards.
    assert_eq!(unsafe { finalize() }, 0);
}
