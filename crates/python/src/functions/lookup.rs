//! Looks up objects by their qualified names, and removes wrappers such as decorators. This runs no
//! code of the program.

use std::ffi::CString;

use super::code::{each_inner, is_function};
use crate::object::{Object, Python};

/// The maximum number of wrappers (such as decorators) that are removed from one function.
const MAX_WRAPPERS: usize = 32;

/// Returns the loaded module with this name (`sys.modules.get(name)`).
pub(crate) fn imported<'py>(py: Python<'py>, name: &str) -> Option<Object<'py>> {
    py.imported(&CString::new(name).ok()?)
}

/// Calls `act` for the code object of each function nested in `code` whose qualified name, relative to `code`, consists
/// of `parts`.
pub(crate) fn each_in<'py>(code: &Object<'py>, parts: &[&str], act: &mut impl FnMut(&Object<'py>)) {
    let Some((part, rest)) = parts.split_first() else {
        if is_function(code) {
            act(code);
        }
        return;
    };
    each_inner(code, &mut |inner, name| {
        if name == *part {
            each_in(inner, rest, act);
        } else if name.starts_with("<generic parameters of ") {
            each_in(inner, parts, act);
        }
    });
}

/// Calls `act` for the code object of each function that has the name `wanted` in the module. If
/// the name belongs to an object that is not a Python function, returns the name of the object's type.
pub(crate) fn each_named<'py>(
    module: &Object<'py>,
    wanted: &str,
    act: &mut impl FnMut(&Object<'py>),
) -> Option<String> {
    let parts: Vec<_> = wanted.split('.').collect();
    let (first, rest) = parts.split_first()?;
    each_below(attr_of(module, first)?, rest, act)
}

/// Continues the look-up of [`each_named`]. `at` is the object with the first part of the name, and `parts` are the
/// remaining parts of the name.
pub(crate) fn each_below<'py>(
    mut at: Object<'py>,
    parts: &[&str],
    act: &mut impl FnMut(&Object<'py>),
) -> Option<String> {
    let mut parts = parts.iter().peekable();
    while let Some(part) = parts.next_if(|part| **part != "<locals>") {
        at = attr_of(&at, part)?;
    }
    let rest: Vec<_> = parts.copied().filter(|part| *part != "<locals>").collect();
    let function = innermost(at);
    match function.code() {
        Some(code) => each_in(&code, &rest, act),
        None => {
            let name = function.class()?.attr(c"__name__")?;
            return Some(name.as_text()?.to_owned());
        }
    }
    None
}

/// Looks up `wanted`, a qualified name, in a module. Returns the object inside its wrappers, such as decorators.
/// Ignores `<locals>` in the name, and everything after it.
pub(crate) fn named<'py>(module: &Object<'py>, wanted: &str) -> Option<Object<'py>> {
    let mut parts = wanted.split('.').take_while(|part| *part != "<locals>");
    let first = attr_of(module, parts.next()?)?;
    parts
        .try_fold(first, |at, part| attr_of(&at, part))
        .map(innermost)
}

/// Returns true if Python mangles this attribute name inside a class.
fn is_private(name: &str) -> bool {
    name.starts_with("__") && !name.ends_with("__")
}

/// Returns the mangled form of a private name in a class.
fn mangled(class: &str, name: &str) -> String {
    format!("_{}{name}", class.trim_start_matches('_'))
}

/// Returns the attribute `name` of an object. If the object has no such attribute, looks in the object that it wraps.
pub(crate) fn attr_of<'py>(object: &Object<'py>, name: &str) -> Option<Object<'py>> {
    let class = object.class()?;
    let own = if object.is_class() {
        object.class_attr(name).or_else(|| {
            let class = is_private(name)
                .then(|| object.attr(c"__name__"))
                .flatten()?;
            object.class_attr(&mangled(class.as_text()?, name))
        })
    } else {
        let name_in_c = CString::new(name).ok()?;
        let own = object.own_attrs().and_then(|attrs| attrs.item(&name_in_c));
        own.or_else(|| class.class_attr(name))
    };
    own.or_else(|| attr_of(&wrapped(object)?, name))
}

/// Returns the object inside all wrappers, such as decorators.
pub(crate) fn innermost(mut object: Object<'_>) -> Object<'_> {
    for _ in 0..MAX_WRAPPERS {
        match wrapped(&object) {
            Some(inner) => object = inner,
            None => break,
        }
    }
    object
}

/// Returns the object inside a decorated function, a method, a property or a `functools.partial`.
fn wrapped<'py>(object: &Object<'py>) -> Option<Object<'py>> {
    let (py, kind) = (object.py(), object.kind());
    let types = &py.api.types;
    if [types.static_method, types.class_method, types.method].contains(&kind) {
        return object.attr(c"__func__");
    }
    if kind == types.property {
        return object.attr(c"fget").filter(|get| !get.is_none());
    }
    let attrs = object.own_attrs();
    let of = |name| attrs.as_ref().and_then(|attrs| attrs.item(name));
    if kind == types.function {
        return of(c"__wrapped__");
    }
    of(c"__wrapped__").or_else(|| of(c"func")).or_else(|| {
        let partial = py.imported(c"functools")?.own_attrs()?.item(c"partial")?;
        (partial.raw() == kind).then(|| object.attr(c"func"))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_classes_are_mangled_as_python_does() {
        assert!(is_private("__step"));
        assert!(!is_private("__call__") && !is_private("_step"));
        assert_eq!(mangled("Engine", "__step"), "_Engine__step");
        assert_eq!(mangled("__Engine", "__step"), "_Engine__step");
    }
}
