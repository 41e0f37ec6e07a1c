//! What is kept of an object by its address, until it goes.

use crate::method::MethodDef;
use crate::object::{Held, Object};

/// A weak reference to `object`, which calls `goes` when it goes: a function that is bound to the address.
pub fn reference(object: &Object<'_>, goes: &'static MethodDef) -> Option<Held> {
    let py = object.py();
    let address = py.int(i64::try_from(object.addr()).ok()?)?;
    let goes = py.function_of(goes, &address)?;
    Some(Held::new(object.weak_reference(&goes)?))
}

/// The address that such a function is bound to.
pub fn address(bound: &Object<'_>) -> Option<usize> {
    usize::try_from(bound.as_int()?).ok()
}
