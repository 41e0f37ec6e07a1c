//! Raises exceptions that are meant for the program, but reached our code, in the program afterwards.
//!
//! Python runs signal handlers between any two steps of its code, including ours. What a handler raises,
//! usually `KeyboardInterrupt`, is meant for the program.

use super::method::call_on_main_thread;
use super::object::{Object, Python};

/// Calls `function(*args)`. An exception is raised again on the main thread, where Python runs signal
/// handlers, once that is back in the program's code.
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
        raise(py); // too many calls are pending: `quietly` clears it
    }
    None
}
