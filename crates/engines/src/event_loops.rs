//! Python functions that run an event loop: those of asyncio, and the entry points of uvloop, whose loop is native
//! code.

use crate::python_function::PythonFunction;

/// Functions that run an event loop: the end of the path of their file, and their names without the class. The loop
/// calls callbacks of the program in these functions.
const LOOP_FUNCTIONS: [(&str, &[&str]); 4] = [
    (
        "/asyncio/base_events.py",
        &["run_forever", "run_until_complete", "_run_once"],
    ),
    ("/asyncio/events.py", &["_run"]),
    ("/asyncio/runners.py", &["run"]),
    ("/uvloop/__init__.py", &["run", "wrapper"]),
];

/// The function in which asyncio waits for events: the end of the path of its file, and its name without the class. The
/// wait of uvloop is native code.
const WAIT_FUNCTION: (&str, &str) = ("/selectors.py", "select");

/// Returns true if a Python function runs an event loop. `function` has the form `QUALNAME (FILE:LINE)`.
#[must_use]
pub fn runs_event_loop(function: &str) -> bool {
    PythonFunction::parse(function).is_some_and(|function| {
        let mut known = LOOP_FUNCTIONS.iter();
        known.any(|(end, names)| function.file.ends_with(end) && names.contains(&function.name()))
    })
}

/// Returns true if a Python function waits for events. This is a wait of the event loop only if a function that runs an
/// event loop (see [`runs_event_loop`]) has called it. `function` has the form `QUALNAME (FILE:LINE)`.
#[must_use]
pub fn waits_for_events(function: &str) -> bool {
    PythonFunction::parse(function).is_some_and(|function| {
        let (end, wait) = WAIT_FUNCTION;
        function.file.ends_with(end) && function.name() == wait
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_functions_of_an_event_loop_run_one() {
        for function in [
            "BaseEventLoop.run_forever (/usr/lib/python3.12/asyncio/base_events.py:629)",
            // Before Python 3.11, recorded function names do not include the class.
            "_run_once (/usr/lib/python3.10/asyncio/base_events.py:1832)",
            "Handle._run (/usr/lib/python3.12/asyncio/events.py:82)",
            "Runner.run (/usr/lib/python3.12/asyncio/runners.py:86)",
            "run.<locals>.wrapper (/x/site-packages/uvloop/__init__.py:61)",
        ] {
            assert!(runs_event_loop(function), "{function}");
        }
        for function in [
            "BaseEventLoop.call_soon (/usr/lib/python3.12/asyncio/base_events.py:783)",
            "Server.run (/x/site-packages/uvicorn/server.py:60)",
            "Context.run (/srv/my_asyncio/events.py:3)",
            "run",
        ] {
            assert!(!runs_event_loop(function), "{function}");
        }
    }

    #[test]
    fn asyncio_waits_in_a_selector() {
        let select = "EpollSelector.select (/usr/lib/python3.12/selectors.py:435)";
        assert!(waits_for_events(select) && !runs_event_loop(select));
        assert!(!waits_for_events(
            "EpollSelector.register (/usr/lib/python3.12/selectors.py:352)"
        ));
    }
}
