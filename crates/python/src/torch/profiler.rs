//! Runs the PyTorch profiler in the same windows as the library (`TLLM_TORCH_PROFILE_TRACE`).
//!
//! `profiler.py` uses torch, in a namespace of its own. The thread that opens or closes a window calls the functions of
//! `profiler.py`. This thread must hold no lock, because the calls wait for the GIL.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};
use std::ffi::OsStr;
use std::path::Path;

use once_cell::race::OnceBox;
use tllmprof_config::{IterationRange, Settings, TracePath};
use tllmprof_platform::lifecycle;

use crate::attached;
use crate::embedded::{add, call, with_text};
use crate::entry;
use crate::late;
use crate::method::MethodDef;
use crate::object::{Held, Object, Python};
use crate::rank;
use crate::wants;
use tllmprof_capture::AddOn;
use tllmprof_platform::log;
use tllmprof_platform::thread::uncounted;
use tllmprof_session::Place;

pub(crate) const SOURCE: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("profiler.py"), "\0").as_bytes()) {
        Ok(source) => source,
        Err(_) => panic!("a NUL in profiler.py"),
    };

lifecycle::global! {
    stage: Sinks;

    /// The path from the settings for the profiler's traces. A relative path starts at the folder in which the
    /// process was started.
    #[fork(keep = "the settings are the same")]
    #[restart(keep)]
    static PATH: OnceBox<TracePath> = OnceBox::new();
    /// The Python namespace in which `profiler.py` was run. The namespace is set once torch has
    /// been found.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static NAMES: Held = Held::none();
    /// True while the PyTorch profiler records.
    #[fork(reset)]
    #[restart(reset)]
    static RUNS: AtomicBool = AtomicBool::new(false);
    /// True while a trace is being collected or written, which may take a long time.
    #[fork(reset)]
    #[restart(keep)]
    static WRITES: AtomicBool = AtomicBool::new(false);
}

/// Returns true if the settings request traces of the PyTorch profiler, and windows in which they can be recorded.
pub(crate) fn is_asked_for(settings: &Settings) -> bool {
    let has_windows = !settings.windows.is_empty() || settings.control.is_on();
    settings.torch_trace.is_some() && has_windows
}

/// Stores the path from the settings for the profiler's traces. Called when the library is loaded.
pub(crate) fn start(settings: &Settings) {
    if let Some(path) = &settings.torch_trace {
        PATH.get_or_init(|| {
            Box::new(std::env::current_dir().map_or_else(
                |_| path.clone(),
                |folder: std::path::PathBuf| path.within(Path::new(&folder)),
            ))
        });
    }
}

/// Runs the PyTorch profiler in windows: it starts when a window opens, and stops when the window
/// closes.
pub struct TorchProfiler;

impl AddOn for TorchProfiler {
    fn window_is_open(&self, window: IterationRange, place: &Place<'_>) {
        window_opens(window, place.rank, place.demand, place.torch_trace);
    }

    fn window_closes(&self, place: &Place<'_>) {
        window_closes(place.capturing);
    }

    fn window_is_closed(&self, _: &Place<'_>) {
        window_has_closed();
    }

    fn takes_windows(&self) -> bool {
        NAMES.is_some()
    }

    fn loses(&self) -> Option<&'static str> {
        runs().then_some(
            "the process ends without Python's end: the PyTorch profiler's trace is lost",
        )
    }
}

/// Returns true if the profiler can run in windows that are requested while the program runs, even if the settings do
/// not request it. This requires that the library has had hooks in the interpreter since the interpreter's start:
/// otherwise the library would not notice the interpreter's end.
pub(crate) fn can_run() -> bool {
    wants::wants().is_installed() && attached::is_there() && !late::is_late()
}

/// Returns true if the PyTorch profiler records.
pub(crate) fn runs() -> bool {
    RUNS.load(Ordering::Relaxed)
}

/// Returns true if a trace is being collected or written.
pub(crate) fn writes() -> bool {
    WRITES.load(Ordering::Relaxed)
}

/// Starts the profiler when a requested window opens. `demand` is the window's number, counted from 1, among the
/// windows that were requested while the program runs; `None` for a window in the settings. The trace goes to `path`,
/// or to the path in the settings if `path` is `None`.
pub(crate) fn window_opens(
    window: IterationRange,
    rank: Option<u64>,
    demand: Option<u64>,
    path: Option<&TracePath>,
) {
    let settings = tllmprof_session::activity::settings();
    let (Some(path), Some(settings)) = (path.or_else(|| PATH.get()), settings) else {
        return;
    };
    let number = number(settings.windows.as_slice(), window, demand);
    if !attached::is_there() {
        log::once!(
            Warn,
            "TLLM_TORCH_PROFILE_TRACE: no Python is followed in this process: there is no trace"
        );
        return;
    }
    let cpu_only = is_traced(std::env::var_os("CUDA_INJECTION64_PATH").as_deref());
    entry::run(|py| {
        let Some(names) = names(py) else { return };
        if cpu_only {
            log::once!(
                Info,
                "CUDA is traced by another tool (CUDA_INJECTION64_PATH): the PyTorch profiler \
                 records the CPU alone"
            );
        }
        let int = |value: u64| py.int(i64::try_from(value).unwrap_or(i64::MAX));
        let text = |text: &str| py.text(text);
        let args = [
            text(&window.to_string()),
            int(number),
            int(rank.or_else(|| rank::known_to(py)).unwrap_or(0)),
            text(&path.stem),
            text(&path.extension),
            int(cpu_only.into()),
        ];
        call(py, &names, c"start", &args);
    });
}

/// Returns the window's number among all requested windows, counted from 1. `asked` has the windows in the settings.
/// Windows on demand (requested while the program runs) are counted after them, in the order of `demand`.
fn number(asked: &[IterationRange], window: IterationRange, demand: Option<u64>) -> u64 {
    if let Some(demand) = demand {
        return asked.len() as u64 + demand;
    }
    let place = asked.iter().position(|asked| *asked == window);
    place.unwrap_or(0) as u64 + 1
}

/// Returns true if another tool traces CUDA: its path is in `CUDA_INJECTION64_PATH`. CUDA allows only one such tool in
/// a process.
fn is_traced(tool: Option<&OsStr>) -> bool {
    tool.is_some_and(|path| !path.is_empty())
}

/// Stops the profiler when a window closes. The device is already idle, unless a stream capture is
/// under way.
pub(crate) fn window_closes(is_capturing: bool) {
    if runs() {
        WRITES.store(true, Ordering::Relaxed);
        entry::run(|py| {
            let args = [py.int(is_capturing.into())];
            names(py).map(|names| call(py, &names, c"stop", &args))
        });
        WRITES.store(false, Ordering::Relaxed);
    }
}

/// Writes the trace of the window that has just closed.
pub(crate) fn window_has_closed() {
    if NAMES.is_some() {
        WRITES.store(true, Ordering::Relaxed);
        entry::run(|py| names(py).map(|names| call(py, &names, c"write", &[])));
        WRITES.store(false, Ordering::Relaxed);
    }
}

/// Stops the profiler and writes its trace. Called when the interpreter ends, and by `profiler.py` as `at_end()`.
pub(crate) fn ends(py: Python<'_>) {
    if runs()
        && let Some(names) = names(py)
    {
        finish(py, &names);
    }
}

fn finish(py: Python<'_>, names: &Object<'_>) {
    uncounted(&mut || call(py, names, c"finish", &[]));
}

/// Returns the namespace of `profiler.py`. The first call after the import of torch runs the file. Returns `None` if
/// torch is not imported, or if the file cannot be run.
fn names(py: Python<'_>) -> Option<Object<'_>> {
    if let Some(known) = NAMES.get(py) {
        return Some(known);
    }
    if py.imported(c"torch").is_none() {
        log::once!(
            Warn,
            "TLLM_TORCH_PROFILE_TRACE: torch is not imported in this process: there is no trace"
        );
        return None;
    }
    let names = py.run(SOURCE, c"<tllmprof>");
    let is_whole = names
        .as_ref()
        .is_some_and(|names| FUNCTIONS.iter().all(|function| add(py, names, function)));
    let Some(names) = names.filter(|_| is_whole) else {
        log::once!(
            Warn,
            "TLLM_TORCH_PROFILE_TRACE: this Python cannot run it: there is no trace"
        );
        return None;
    };
    NAMES.set(names.clone());
    Some(names)
}

/// The functions that `profiler.py` can call.
static FUNCTIONS: [MethodDef; 4] = [
    MethodDef::with_tuple(c"warn", |_, args| {
        with_text(args, |text| log::say!(Warn, "{text}"));
    }),
    MethodDef::with_tuple(c"info", |_, args| {
        with_text(args, |text| log::say!(Info, "{text}"));
    }),
    MethodDef::with_tuple(c"runs", set_runs),
    MethodDef::without_args(c"at_end", ends),
];

/// Called by `profiler.py` as `runs(flag)`: with true after the profiler has started, and with false before it stops.
fn set_runs(_: Python<'_>, args: &Object<'_>) {
    if let Some(flag) = args.elements().next() {
        RUNS.store(flag.as_int() == Some(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tllmprof_config::WindowList;

    #[test]
    fn windows_are_numbered_as_they_were_asked_for() {
        let windows = WindowList::parse("5-9, 20, 30-").unwrap();
        let asked = windows.as_slice();
        let numbers: Vec<_> = asked
            .iter()
            .map(|window| number(asked, *window, None))
            .collect();
        assert_eq!(numbers, [1, 2, 3]);
        assert_eq!(number(asked, asked[0], Some(2)), 5);
    }

    #[test]
    fn an_empty_variable_names_no_tool() {
        assert!(is_traced(Some("libtool.so".as_ref())));
        assert!(!is_traced(Some("".as_ref())) && !is_traced(None));
    }

    #[test]
    fn traces_are_asked_for_with_windows() {
        let asked = |variables: &[_]| is_asked_for(&crate::functions::settings(variables));
        let path = ("TLLM_TORCH_PROFILE_TRACE", "trace.json");
        assert!(asked(&[path, ("TLLM_PROFILE_START_STOP", "5-9")]));
        assert!(asked(&[path, ("TLLMPROF_CONTROL", "1")]));
        assert!(!asked(&[path]) && !asked(&[("TLLM_PROFILE_START_STOP", "5-9")]));
    }
}
