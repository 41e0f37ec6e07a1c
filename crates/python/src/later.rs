//! Passes on exceptions that were raised in the library's Python code, but are meant for the
//! program.
//!
//! Python runs signal handlers between any two bytecode instructions, also in the library's code. If a handler raises
//! an exception, such as `KeyboardInterrupt`, the exception is meant for the program.

use super::method::call_on_main_thread;
use super::object::{Object, Python};

/// Calls `function(*args)`. If the function raises an exception, Python's main thread raises this exception again once
/// it is back in the program's code. The main thread is the right one, because Python runs signal handlers on it.
/// Returns `None` if the function raises.
pub(crate) fn call_for_program<'py>(
    py: Python<'py>,
    function: &Object<'py>,
    args: &[&Object<'py>],
) -> Option<Object<'py>> {
    let raised = match function.try_call(args) {
        Ok(result) => return Some(result),
        Err(raised) => raised,
    };
    let raise = move |py: Python<'_>| py.raise(raised);
    if let Err(raise) = call_on_main_thread(py.api, raise) {
        // Too many calls are pending, so the exception is lost: `raise` sets it here, and the caller's
        // `Python::quietly` clears it.
        raise(py);
    }
    None
}
