//! Python functions by name: calls of marked code objects are told.
//!
//! ```text
//! 3.12 on  monitoring ─┐
//! 3.8–3.11 evaluator ──┴▶ marked (what a code object means) ──▶ spans (this thread's) ──▶ function
//! ```

mod evaluator;
mod frames;
mod function;
mod marked;
mod monitoring;
mod spans;
mod trial;

use once_cell::race::OnceBox;
use tllmprof_config::Settings;

use super::api::Raw;
use super::object::{Object, Python};
use crate::capture::marks::Name;
use crate::log;
use marked::{Mark, Watch};

pub use function::{Entered, Function};
pub use marked::Calls;
pub use spans::Spans;

/// Has the calls of a code object marked and counted as those of `function`, from the next one on.
/// False if they cannot be, or if it is marked as another.
pub fn mark(py: Python<'_>, code: &Object<'_>, function: &'static Function) -> bool {
    watch(py, code, Watch::Function(function))
}

/// Has `calls` told of the calls of a code object. False as for [`mark`].
pub fn tell(py: Python<'_>, code: &Object<'_>, calls: &'static dyn Calls) -> bool {
    watch(py, code, Watch::Calls(calls))
}

fn watch(py: Python<'_>, code: &Object<'_>, watch: Watch) -> bool {
    let is_monitored = py.api.minor >= 12;
    if !is_monitored && evaluator::install(py).is_none() {
        log::once!(
            Warn,
            "Python 3.{} takes no evaluator of frames: its functions are neither marked nor counted",
            py.api.minor
        );
        return false;
    }
    let Some(mark) = Mark::of(py, code, watch) else {
        return false;
    };
    if !marked::add(py, mark) {
        return false;
    }
    if is_monitored && monitoring::watch(py, code).is_none() {
        log::once!(
            Warn,
            "sys.monitoring has no place for another tool: Python's functions are neither marked \
             nor counted"
        );
        return false;
    }
    true
}

/// Whether functions are to be marked or counted.
pub fn are_asked_for(settings: &Settings) -> bool {
    !settings.py_ranges.is_empty()
}

/// Interpreters start anew in the process.
pub fn begins() {
    marked::clear();
    monitoring::forget(None);
    trial::forget();
}

/// The interpreter ends, which is not the main one.
pub fn interpreter_ends(py: Python<'_>) {
    monitoring::forget(Some(py.interpreter()));
    marked::remove(py, |_| true);
}

static FUNCTIONS: OnceBox<Vec<Function>> = OnceBox::new();

pub fn install(py: Python<'_>) {
    FUNCTIONS.get_or_init(|| {
        let settings = crate::settings();
        let asked = settings.map_or(&[][..], |settings| &settings.py_ranges);
        let named = |asked: &tllmprof_config::PyFunction| {
            Function::new(asked.clone(), Name::new(&asked.qualname))
        };
        Box::new(asked.iter().map(named).collect())
    });
    find_all(py);
}

/// Whether an audited event may bring a function that is wanted.
pub fn wants(event: &[u8]) -> bool {
    matches!(event, b"import" | b"exec") && super::wants().functions
}

/// # Safety
/// `args` are those of the event.
pub unsafe fn audited(py: Python<'_>, _: &[u8], _: Raw) {
    if py.api.minor < 12 {
        evaluator::put_again(py);
    }
    find_all(py);
}

fn find_all(py: Python<'_>) {
    for function in FUNCTIONS.get().into_iter().flatten() {
        if let Some(code) = find(py, &function.asked) {
            mark(py, &code, function);
        }
    }
}

/// The code object of a function of a module that is there.
fn find<'py>(py: Python<'py>, asked: &tllmprof_config::PyFunction) -> Option<Object<'py>> {
    let c = |text: &str| std::ffi::CString::new(text).ok();
    let mut object = py.imported(&c(&asked.module)?)?;
    for part in asked.qualname.split('.') {
        object = object.attr(&c(part)?)?;
    }
    if let Some(function) = object.attr(c"__func__") {
        object = function;
    }
    object.attr(c"__code__")
}

/// The process is the child of a fork, which has one thread.
///
/// # Safety
/// The process has one thread.
pub unsafe fn in_child() {
    // SAFETY: the caller's promise.
    unsafe {
        marked::in_child();
        monitoring::in_child();
    }
}
