//! Exceptions of the program's that come to our code, and are raised in the program after it.
//!
//! Python runs the handlers of signals between any two steps of its code, ours included; what a
//! handler raises, `KeyboardInterrupt` first of all, is meant for the program.

use core::ffi::{c_int, c_void};

use super::api::Raw;
use super::object::{Object, Python};

/// An exception as `PyErr_Fetch` gives it.
struct Raised([Raw; 3]);

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
    let raised = Box::into_raw(Box::new(Raised(raised)));
    // SAFETY: the function is of this library, which is never unloaded; the exception's references
    // are owned by the box, which the call takes over.
    unsafe {
        if (py.api.add_pending_call)(raise, raised.cast()) != 0 {
            raise(raised.cast()); // too many are pending: `quietly` clears it
        }
    }
    None
}

/// Raises what was kept.
unsafe extern "C" fn raise(raised: *mut c_void) -> c_int {
    // SAFETY: made by `call_for_program`, for one call of this.
    let Raised([kind, value, trace]) = *unsafe { Box::from_raw(raised.cast::<Raised>()) };
    if let Some(api) = super::api() {
        // SAFETY: Python calls this with the GIL; the references are owned.
        unsafe { (api.err_restore)(kind, value, trace) };
    }
    -1
}
