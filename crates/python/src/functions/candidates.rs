//! Recognises the code objects of functions that the user requested.
//!
//! The name of a code object may not be enough to decide if the code object belongs to a requested function. Such a
//! code object becomes a candidate, and the decision is made at its first call.

use std::ffi::CString;
use std::sync::atomic::Ordering;

use super::code::is_function;
use super::lookup::{attr_of, each_below, innermost};
use super::targets::{self, Discovery, Target, TargetModule};
use super::{mark, marked};
use crate::object::{Object, Python};
use crate::spans::Mark;
use tllmprof_platform::log;

/// Checks if `code`, whose function is called for the first time, belongs to a requested function. Returns true if it
/// belongs to one that had not been found before. `globals` returns the function's global names, and `first` returns
/// the first argument of the call.
pub(crate) fn meets<'py>(
    py: Python<'py>,
    code: &Object<'py>,
    globals: &dyn Fn() -> Option<Object<'py>>,
    first: &dyn Fn(&Object<'py>) -> Option<Object<'py>>,
) -> bool {
    let name = name_of(py, code);
    let Some(name) = name.as_ref().and_then(Object::as_text) else {
        return false;
    };
    let mut is_one = false;
    for module in targets::known() {
        for target in module.targets.iter().filter(|target| target.is_missing()) {
            if is_called(py, target, name)
                && is_function_of(py, code, module, target, globals, first).is_some()
            {
                module.imported();
                is_one |= is_code(py, code, target, Discovery::InTime);
            }
        }
    }
    is_one
}

/// Returns the qualified name of a code object. Before Python 3.11, code objects have only a plain name, which is
/// returned instead.
pub(crate) fn name_of<'py>(py: Python<'py>, code: &Object<'py>) -> Option<Object<'py>> {
    let has_whole = py.api.version.has_qualified_names();
    code.attr(if has_whole {
        c"co_qualname"
    } else {
        c"co_name"
    })
}

/// Returns true if `name`, a result of [`name_of`], may be the name of the requested function (`target`).
pub(crate) fn is_called(py: Python<'_>, target: &Target, name: &str) -> bool {
    let asked = target.function.asked.qualname.as_str();
    let is_last = || asked.rsplit('.').next() == Some(name);
    asked == name || !py.api.version.has_qualified_names() && is_last()
}

/// Returns `Some(())` if `code` is the code of the requested function. The caller has already compared the names of
/// the two.
fn is_function_of<'py>(
    py: Python<'py>,
    code: &Object<'py>,
    module: &TargetModule,
    target: &Target,
    globals: &dyn Fn() -> Option<Object<'py>>,
    first: &dyn Fn(&Object<'py>) -> Option<Object<'py>>,
) -> Option<()> {
    let globals = globals()?;
    let said = globals.item(c"__name__")?;
    let is_its = module.is_called(said.as_text()?) && is_function(code);
    let has_whole = py.api.version.has_qualified_names();
    (is_its && (has_whole || is_named(code, &globals, first, target))).then_some(())
}

/// Returns true if a code object with only a plain name belongs to the requested function. It does if its module, or
/// the class of the call's first argument, has this code under the requested name. It also does if the requested name
/// has no dot and the module lacks that name.
fn is_named<'py>(
    code: &Object<'py>,
    globals: &Object<'py>,
    first: &dyn Fn(&Object<'py>) -> Option<Object<'py>>,
    target: &Target,
) -> bool {
    let asked = target.function.asked.qualname.as_str();
    let mut is_it = false;
    let mut compare = |found: &Object<'py>| is_it |= found.raw() == code.raw();
    let parts: Vec<_> = asked.split('.').collect();
    let (Some(root), Some(last)) = (parts.first(), parts.last()) else {
        return false;
    };
    let root = CString::new(*root)
        .ok()
        .and_then(|root| globals.item(&root));
    if let Some(root) = root {
        each_below(root, &parts[1..], &mut compare);
    } else if parts.len() == 1 {
        // Accept the code object although the module's globals lack the requested name. The function may have been
        // pickled by value (as cloudpickle does), and the globals of such a function may lack the function's name.
        return true;
    } else if let Some(first) = first(code) {
        let class = if first.is_class() {
            Some(first)
        } else {
            first.class()
        };
        let function = class.and_then(|class| attr_of(&class, last)).map(innermost);
        if let Some(function) = function
            && let Some(found) = function.code()
            && let Some(whole) = function.attr(c"__qualname__")
            && whole.as_text() == Some(asked)
        {
            compare(&found);
        }
    }
    is_it
}

/// Returns true if the first call of a candidate shows that its code is the requested function's.
/// The name of the code's module decides. If the code has no qualified name, the first argument of
/// the call (`first`) decides, too.
pub(crate) fn confirms<'py>(
    py: Python<'py>,
    mark: &Mark,
    globals: &dyn Fn() -> Option<Object<'py>>,
    first: &dyn Fn(&Object<'py>) -> Option<Object<'py>>,
) -> bool {
    let confirmed = || {
        let function = mark.function()?;
        let code = mark.code_object(py)?;
        for module in targets::known() {
            let is_it = |target: &&Target| core::ptr::eq(&target.function, function);
            if let Some(target) = module.targets.iter().find(is_it)
                && is_function_of(py, &code, module, target, globals, first).is_some()
            {
                module.imported();
                target.set_found(Discovery::InTime);
                mark.confirm();
                return Some(());
            }
        }
        None
    };
    confirmed().is_some()
}

/// Marks the code object of a requested function, so that its calls are reported. Returns true on
/// success.
pub(crate) fn is_code(
    py: Python<'_>,
    code: &Object<'_>,
    target: &'static Target,
    mut found: Discovery,
) -> bool {
    // The code object was marked as a candidate before its first call, so no call was missed.
    if let Some(mark) = marked::find(code.addr()).filter(|mark| mark.is_candidate()) {
        mark.confirm();
        found = Discovery::InTime;
    }
    let is_seen = mark(py, code, &target.function);
    if !is_seen {
        target.is_unseen.store(true, Ordering::Relaxed);
    }
    if target.found() == Discovery::NotYet {
        let how = match found {
            Discovery::Late => "late, by its name",
            _ => "in time",
        };
        log::say!(Debug, "{target}: found {how}");
    }
    target.set_found(found);
    is_seen
}
