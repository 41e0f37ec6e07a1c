//! Finds Python functions by name, and records or counts their calls.
//!
//! - `targets` lists the requested functions. `resolve` and `replaced` find their code objects, and add them to the
//!   table in `marked`.
//! - `monitoring` (CPython 3.12 and later) and `evaluator` (3.8 to 3.11) report the calls of the code objects in this
//!   table.
//! - `crate::spans` stores the calls that a thread is in, and passes each call to the receiver that the code object's
//!   mark names.

mod candidates;
mod code;
mod evaluator;
mod frames;
mod innermost;
pub(crate) mod lookup;
mod marked;
mod monitoring;
pub(crate) mod near;
mod replaced;
mod replacement;
mod report;
mod resolve;
pub(crate) mod targets;
mod trial;

use super::object::{Object, Python};
use super::spans::{CallReceiver, Mark, RequestedFunction, Watch};
use tllmprof_platform::log;

pub(crate) use evaluator::follow_setters;
pub(crate) use report::{MayLackCalls, Uncalled, report as report_missing};
pub(crate) use resolve::{audited, ends, install, wants};
pub(crate) use targets::are_asked_for;
#[cfg(test)]
pub(crate) use targets::tests::settings;

/// Marks a code object, so that its calls count as calls of `function`, beginning with the next call. If the code
/// object is already marked for another function, its calls count for both. Returns false if its calls cannot be
/// reported.
pub(crate) fn mark(
    py: Python<'_>,
    code: &Object<'_>,
    function: &'static RequestedFunction,
) -> bool {
    if !can_see(py) {
        return false;
    }
    if !add(py, code, Watch::Function(function)) {
        match marked::find(code.addr()).and_then(Mark::function) {
            Some(other) => other.is_also(function),
            None => return false,
        }
    }
    sees(py, code)
}

/// Marks a code object that may be the code of `function`. At the first call of the code object,
/// [`candidates::confirms`] decides if it is.
pub(crate) fn mark_candidate(
    py: Python<'_>,
    code: &Object<'_>,
    function: &'static RequestedFunction,
) {
    let mark = || Mark::new(py, code, Watch::Function(function)).map(Mark::into_candidate);
    if marked::find(code.addr()).is_none()
        && can_see(py)
        && mark().is_some_and(|mark| marked::add(py, mark))
    {
        sees(py, code);
    }
}

/// Reports the calls of a code object to `calls`. Returns false if its calls are already reported to another
/// receiver, or cannot be reported.
pub(crate) fn follow(py: Python<'_>, code: &Object<'_>, calls: &'static dyn CallReceiver) -> bool {
    can_see(py) && add(py, code, Watch::Calls(calls)) && sees(py, code)
}

/// Returns true if the interpreter can report calls to the library. In 3.8 to 3.11, this installs the frame
/// evaluator.
fn can_see(py: Python<'_>) -> bool {
    let can_see = py.api.version.has_monitoring() || evaluator::install(py).is_some();
    if !can_see {
        crate::trouble::Trouble::NoEvaluator.note();
    }
    can_see
}

fn add(py: Python<'_>, code: &Object<'_>, watch: Watch) -> bool {
    Mark::new(py, code, watch).is_some_and(|mark| marked::add(py, mark))
}

/// Makes the interpreter report the calls of `code`, which is already in the table of marks.
/// Returns true on success.
fn sees(py: Python<'_>, code: &Object<'_>) -> bool {
    !py.api.version.has_monitoring() || monitoring::watch(py, code).is_some()
}

/// Stops the reports of calls in the calling thread's interpreter. For the main interpreter
/// (`is_main`), also stops the search for functions until [`install`] is called again.
pub(crate) fn uninstall(py: Python<'_>, is_main: bool) {
    resolve::end_search(py, true);
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

/// Removes what the library stored about the calling thread's sub-interpreter, which ends.
pub(crate) fn interpreter_ends(py: Python<'_>) {
    monitoring::forget(py.interpreter());
    marked::remove(py, |_| true);
}
