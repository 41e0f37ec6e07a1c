//! Tracks objects by their address until they are freed.

use crate::method::MethodDef;
use crate::object::{Held, Object};

/// Returns a weak reference to `object`, which calls `goes` when the object is freed. The function is bound
/// to the object's address.
pub fn reference(object: &Object<'_>, goes: &'static MethodDef) -> Option<Held> {
    let py = object.py();
    let address = py.int(i64::try_from(object.addr()).ok()?)?;
    let goes = py.function_of(goes, &address)?;
    Some(Held::new(object.weak_reference(&goes)?))
}

/// Returns the address that such a function is bound to.
pub fn address(bound: &Object<'_>) -> Option<usize> {
    usize::try_from(bound.as_int()?).ok()
}
