//! Code objects, and the code objects of functions nested in them.

use crate::object::Object;

/// The flag `CO_OPTIMIZED` in `co_flags`. Code objects of functions have it; those of modules and
/// class bodies do not.
const CO_OPTIMIZED: i64 = 1;

/// Calls `act` with each code object that is directly inside `code`, and with the name of that code object.
pub(crate) fn each_inner<'py>(code: &Object<'py>, act: &mut impl FnMut(&Object<'py>, &str)) {
    let kind = code.kind();
    let Some(constants) = code.attr(c"co_consts") else {
        return;
    };
    for inner in constants.elements().filter(|inner| inner.kind() == kind) {
        if let Some(name) = inner.attr(c"co_name")
            && let Some(name) = name.as_text()
        {
            act(&inner, name);
        }
    }
}

/// Returns true if the code object belongs to a function.
pub(crate) fn is_function(code: &Object<'_>) -> bool {
    let flags = code.attr(c"co_flags").and_then(|flags| flags.as_int());
    flags.is_some_and(|flags| flags & CO_OPTIMIZED != 0)
}
