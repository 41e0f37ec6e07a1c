//! Python source of our own, and what it calls of ours.

use core::ffi::CStr;

use super::later::call_for_program;
use super::method::MethodDef;
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
    py.function(definition)
        .is_some_and(|function| names.set_item(definition.name(), &function))
}

/// Gives the first of the arguments to `say`, if it is a str.
pub fn with_text(args: &Object<'_>, say: impl FnOnce(&str)) {
    let first = args.elements().next();
    if let Some(text) = first.as_ref().and_then(Object::as_text) {
        say(text);
    }
}
