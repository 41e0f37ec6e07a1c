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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosted::in_few;

    #[test]
    fn what_a_handler_raises_is_raised_in_the_program() {
        in_few(
            "later::tests::what_a_handler_raises_is_raised_in_the_program",
            &[],
            |host| {
                host.run("def raises(): raise KeyboardInterrupt\ndef answers(): return 3");
                host.with(|py| {
                    let main = py.imported(c"__main__").unwrap();
                    let call = |name| call_for_program(py, &main.attr(name).unwrap(), &[]);
                    assert_eq!(call(c"answers").unwrap().as_int(), Some(3));
                    assert!(call(c"raises").is_none());
                    assert!(!py.has_raised());
                });
                assert!(!host.try_run("for _ in range(1000000): pass"));
                assert!(host.try_run("for _ in range(1000000): pass"));
            },
        );
    }
}
