//! Weak references that report when an object at a known address is freed.

use crate::method::MethodDef;
use crate::object::{Held, Object};

/// Returns a weak reference to `object` that calls `goes` when the object is freed. The call gets
/// the object's address as its first argument.
pub(crate) fn reference(object: &Object<'_>, goes: &'static MethodDef) -> Option<Held> {
    let py = object.py();
    let address = py.int(i64::try_from(object.addr()).ok()?)?;
    let goes = py.function_of(goes, &address)?;
    Some(Held::new(object.weak_reference(&goes)?))
}

/// Returns the address of the freed object, which is the first argument of the weak reference's callback.
pub(crate) fn address(bound: &Object<'_>) -> Option<usize> {
    usize::try_from(bound.as_int()?).ok()
}
