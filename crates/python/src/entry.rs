//! Runs Python code when the library needs it, and refuses to do so once the interpreter ends.
//!
//! If a thread asks for the GIL while the interpreter is finalized, the interpreter ends the thread
//! or hangs it forever. That is fatal if the thread belongs to C++ code. An `atexit` callback
//! therefore closes this entry ([`close`]): no more threads may enter, and the callback waits for
//! the threads that are inside.

use core::ffi::c_int;

use super::api::Api;
pub(crate) use super::closing::{Inside, close, inside, is_closed, is_waiting_for_gil};
use super::object::Python;
use super::{attached, threads};
use tllmprof_platform::log;

/// Returns true if an interpreter runs and the calling thread holds its GIL.
pub(crate) fn has_gil() -> bool {
    attached::api().is_some_and(|api| api.runs() && api.has_gil())
}

/// Runs `act` with the GIL on the calling thread, which need not be a Python thread. Returns `None` if no interpreter
/// runs, if the thread already runs Python code of the library, or if taking the GIL could deadlock.
pub fn run<R>(act: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    let api = attached::api()?;
    let _inside = inside()?;
    let thread = threads::current()?;
    if thread.is_busy.get() || !api.runs() {
        return None;
    }
    let has_gil = api.has_gil();
    if !has_gil
        && !api.version.knows_holders_in_sub_interpreters()
        && attached::has_sub_interpreters()
    {
        // Do not run `act`: before Python 3.12, the check for the GIL misses a thread that holds the GIL in a
        // sub-interpreter. Such a thread would request the GIL again and wait for itself forever.
        log::once!(
            Warn,
            "Python {} with sub-interpreters: what needs its GIL at a window's edge is left out",
            api.version
        );
        return None;
    }
    struct EnsuredGil<'a>(&'a Api, c_int);
    impl Drop for EnsuredGil<'_> {
        fn drop(&mut self) {
            // SAFETY: `self.1` is the result of `gil_ensure` on the same thread, and `act` has
            // returned.
            unsafe { (self.0.gil_release)(self.1) };
        }
    }
    Some(thread.busily(|| {
        // A thread that already holds the GIL keeps its thread state. In Python 3.12 and later, `gil_ensure` would
        // switch to the thread's state in the main interpreter, and deadlock if the current state is another one.
        // SAFETY: the interpreter is loaded, and stays so while this thread is inside.
        let _taken = (!has_gil).then(|| EnsuredGil(api, unsafe { (api.gil_ensure)() }));
        // SAFETY: the thread holds the GIL at least until `_taken` is dropped, which is after `act`
        // has returned.
        unsafe { Python::assume(api) }.quietly(act)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_interpreter_nothing_is_run() {
        assert_eq!(run(|_| ()), None);
        assert!(!has_gil());
    }
}
