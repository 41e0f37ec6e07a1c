//! Python functions by name.
//!
//! ```text
//! targets ──▶ resolve ──▶ marked ◀── monitoring, 3.12 on; evaluator, 3.8–3.11
//! asked for   found                       │
//!                                         └▶ spans: this thread's calls, what a call means
//! ```

mod evaluator;
mod frames;
mod marked;
mod monitoring;
pub mod near;
mod report;
pub mod resolve;
pub mod targets;
mod trial;
mod trouble;

use super::object::{Object, Python};
use super::spans::{Calls, Function, Mark, Watch};
use tllmprof_platform::log;
use trouble::Trouble;

pub use report::{Uncalled, report as report_missing};
pub use resolve::{audited, ends, install, wants};
pub use targets::are_asked_for;
#[cfg(test)]
pub use targets::tests::settings;

/// Has the calls of a code object marked and counted as those of `function`, from the next one on;
/// if it is marked as those of another, as those of both. False if that cannot be.
pub fn mark(py: Python<'_>, code: &Object<'_>, function: &'static Function) -> bool {
    if watch(py, code, Watch::Function(function)) {
        return true;
    }
    let other = marked::find(code.addr()).and_then(Mark::function);
    if let Some(other) = other {
        other.is_also(function);
    }
    other.is_some()
}

/// Has `calls` follow the calls of a code object. False as for [`mark`].
pub fn follow(py: Python<'_>, code: &Object<'_>, calls: &'static dyn Calls) -> bool {
    watch(py, code, Watch::Calls(calls))
}

fn watch(py: Python<'_>, code: &Object<'_>, watch: Watch) -> bool {
    let is_monitored = py.api.version.has_monitoring();
    if !is_monitored && evaluator::install(py).is_none() {
        Trouble::NoEvaluator.note();
        return false;
    }
    let Some(mark) = Mark::of(py, code, watch) else {
        return false;
    };
    if !marked::add(py, mark) {
        return false;
    }
    if is_monitored && monitoring::watch(py, code).is_none() {
        Trouble::NoTool.note();
        return false;
    }
    true
}

/// The calling thread's interpreter reports no calls any more. `is_main`: it is the main one, and nothing is
/// looked for any more, until [`install`] is called again.
pub fn uninstall(py: Python<'_>, is_main: bool) {
    if !py.api.version.has_monitoring() {
        evaluator::take_away(py);
    } else if monitoring::leave(py, &marked::codes(py)).is_none() {
        log::say!(Debug, "sys.monitoring does not give up its tool");
    }
    marked::remove(py, |_| true);
    if is_main {
        resolve::forget();
    }
}

/// The interpreter ends, which is not the main one.
pub fn interpreter_ends(py: Python<'_>) {
    monitoring::forget(py.interpreter());
    marked::remove(py, |_| true);
}
