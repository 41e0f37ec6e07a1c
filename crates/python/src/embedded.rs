//! Helpers for Python source that is part of the library, and for the functions that this source
//! calls.

use core::ffi::CStr;

use super::later::call_for_program;
use super::method::MethodDef;
use super::object::{Object, Python};

/// Calls `names[name](*args)`, unless there is no such function or one of `args` is `None`. If the function raises an
/// exception, the program gets this exception, as if a Python signal handler had raised it.
pub fn call(py: Python<'_>, names: &Object<'_>, name: &CStr, args: &[Option<Object<'_>>]) {
    let args: Option<Vec<_>> = args.iter().map(Option::as_ref).collect();
    if let (Some(function), Some(args)) = (names.item(name), args) {
        let _ = call_for_program(py, &function, &args);
    }
}

/// Stores a C function of the library as `names[definition.name]`. Returns false on failure.
pub fn add(py: Python<'_>, names: &Object<'_>, definition: &'static MethodDef) -> bool {
    py.function(definition)
        .is_some_and(|function| names.set_item(definition.name(), &function))
}

/// Calls `say` with the text of the first argument, if that argument is a str.
pub fn with_text(args: &Object<'_>, say: impl FnOnce(&str)) {
    let first = args.elements().next();
    if let Some(text) = first.as_ref().and_then(Object::as_text) {
        say(text);
    }
}
