//! Exceptions of the program's that come to our code, and are raised in the program after it.
//!
//! Python runs the handlers of signals between any two steps of its code, ours included; what a
//! handler raises, `KeyboardInterrupt` first of all, is meant for the program.

use super::method::call_on_main_thread;
use super::object::{Object, Python};

/// `function(*args)`. What it raises is raised again on the main thread, where Python runs the
/// handlers of signals, once that is back in the program's code.
pub fn call_for_program<'py>(
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
        raise(py); // too many are pending: `quietly` clears it
    }
    None
}
