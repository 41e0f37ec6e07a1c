//! Installs the library's hooks in an interpreter, removes them, and runs the library's last code when an interpreter
//! ends.

use super::extension::extension;
use super::method::MethodDef;
use super::object::Python;
use super::threads::Thread;
use super::torch::profiler;
use super::wants::wants;
use super::{entry, functions, gc, gil, late, names, stacks, totals};
use core::sync::atomic::{AtomicBool, Ordering};
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;
use tllmprof_platform::log::Level;
use tllmprof_session as session;

lifecycle::global! {
    stage: Sinks;

    /// True if [`main_ends`] is registered with Python's `atexit`.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
}

/// Installs all requested hooks in an interpreter. `number` is its id, which is 0 for the main one.
pub(crate) fn install(py: Python<'_>, thread: &Thread, number: i64) {
    let wants = wants();
    if number == 0 && register_end(py).is_none() {
        log::once!(Warn, "Python has no atexit: nothing is run in it");
        if late::is_late() {
            return; // without `atexit` the interpreter could end unnoticed, so nothing is installed
        }
    }
    if wants.gil {
        gil::begin(py, thread);
    }
    let has_own_gc = number == 0 || py.api.version.has_gc_callbacks_per_interpreter();
    if wants.gc && has_own_gc && gc::install(py).is_none() {
        log::once!(Warn, "Python has no gc: its collections are not marked");
    }
    if wants.functions {
        functions::install(py);
    }
    if wants.stacks && number == 0 {
        stacks::install(py);
    }
}

/// Removes the hooks of `gc` and `functions` from the calling thread's interpreter, whose id is `number`. The audit
/// hook and the `atexit` callback stay. `attach::lead_gil` removes the hooks for the GIL.
pub(crate) fn uninstall(py: Python<'_>, number: i64) {
    let wants = wants();
    if wants.gc {
        gc::uninstall(py);
    }
    if wants.functions {
        functions::uninstall(py, number == 0);
    }
}

/// Removes the data that the library stored about the calling thread's interpreter, which is a sub-interpreter that is
/// ending.
pub(crate) fn another_ends(py: Python<'_>) {
    functions::interpreter_ends(py);
}

/// Registers [`main_ends`] with `atexit`, so that it is called when the main interpreter ends.
fn register_end(py: Python<'_>) -> Option<()> {
    static CLOSE: MethodDef = MethodDef::without_args(c"tllmprof_close", main_ends);
    if IS_REGISTERED.load(Ordering::Relaxed) {
        return Some(());
    }
    let module = if late::is_late() {
        late::at_exit(py)
    } else if py.api.version.keeps_atexit_without_module() {
        py.import_unseen(c"atexit")
    } else {
        // `import` keeps the module alive: if it were freed, its callbacks would be lost.
        py.import(c"atexit")
    };
    let register = module?.attr(c"register")?;
    register.call(&[&py.function(&CLOSE)?])?;
    IS_REGISTERED.store(true, Ordering::Relaxed);
    Some(())
}

/// Runs the library's last code in the main interpreter. Python calls it through `atexit` when this interpreter ends.
/// After `closing::close`, no other thread runs Python code of the library, unless the wait in `close` has timed out.
fn main_ends(py: Python<'_>) {
    entry::close(py, profiler::writes);
    if let Some(extension) = extension() {
        extension.ends(py);
    }
    profiler::ends(py);
    if wants().gil {
        names::look(py);
    }
    if wants().gc {
        gc::check(py, true);
    }
    // In a process that uses CUDA, the totals (collections and GIL use) are reported at the end of the process
    // instead.
    if !session::uses_cuda() {
        totals::report(Level::Debug);
    }
    if wants().functions {
        functions::ends(py);
    }
}
