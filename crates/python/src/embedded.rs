//! Python source of our own, and what it calls of ours.

use core::ffi::{CStr, c_int};

use super::api::{MethodDef, Raw};
use super::later::call_for_program;
use super::object::{Object, Python};

/// `names[name](*args)`. What it raises is the program's own, as from a signal's handler.
pub fn call(py: Python<'_>, names: &Object<'_>, name: &CStr, args: &[Option<Object<'_>>]) {
    let args: Option<Vec<_>> = args.iter().map(Option::as_ref).collect();
    if let (Some(function), Some(args)) = (names.item(name), args) {
        let _ = call_for_program(py, &function, &args);
    }
}

/// `names[definition.name]` becomes a function of ours; false where that fails.
pub fn add(py: Python<'_>, names: &Object<'_>, definition: &'static MethodDef) -> bool {
    py.function(definition).is_some_and(|function| {
        // SAFETY: the dictionary takes a reference of its own.
        let failed: c_int =
            unsafe { (py.api.dict_set)(names.raw(), definition.name, function.raw()) };
        failed == 0
    })
}

/// # Safety
/// The calling thread has the GIL, and `args` is a tuple.
pub unsafe fn told(args: Raw, say: impl FnOnce(&str)) -> Raw {
    // SAFETY: the caller's promise.
    unsafe {
        first(args, |text| {
            if let Some(text) = text.as_text() {
                say(text);
            }
        })
    }
}

/// Gives the first argument to `act`, and None to Python.
///
/// # Safety
/// As [`told`].
pub unsafe fn first(args: Raw, act: impl FnOnce(&Object<'_>)) -> Raw {
    // SAFETY: the caller's promise.
    unsafe {
        arguments(args, |args| {
            if let Some(first) = args.first() {
                act(first);
            }
        })
    }
}

/// Gives the arguments to `act`, and None to Python.
///
/// # Safety
/// As [`told`].
pub unsafe fn arguments(args: Raw, act: impl FnOnce(&[Object<'_>])) -> Raw {
    let Some(api) = crate::api() else {
        return core::ptr::null_mut();
    };
    // SAFETY: the caller's promise.
    let (py, args) = unsafe {
        let py = Python::assume(api);
        (py, py.share(args))
    };
    if let Some(args) = args {
        act(&args.elements().collect::<Vec<_>>());
    }
    py.none()
}
