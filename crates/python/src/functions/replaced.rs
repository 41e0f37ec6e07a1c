//! Detects that the program has replaced requested functions after they were found, for example with a plugin. The
//! program may assign another function to the same name, or other code to the same function.
//!
//! The name is looked up again at intervals, and at the end of the process. Once a replacement has been found, its
//! calls count, too. If the replacement calls the function that it replaces, the two calls count as one.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::replacement::Replaced;
use super::targets::{self, Discovery, Target};
use super::{evaluator, lookup, mark, marked, monitoring};
use crate::object::{Object, Python};
use crate::spans::Mark;
use crate::time::now;
use tllmprof_platform::lifecycle;

/// The shortest time between two checks for replaced functions, in ns.
const CHECK_INTERVAL_NS: u64 = 20_000_000;

lifecycle::global! {
    /// The time of the next check for replaced functions, in ns on the clock of `time::now`.
    #[fork(keep = "the clock goes on")]
    #[restart(keep)]
    static NEXT: AtomicU64 = AtomicU64::new(0);
}

lifecycle::global! {
    stage: Sinks;

    /// True if the check for replaced functions ran when the interpreter ended.
    #[fork(reset)]
    #[restart(reset)]
    static WERE_CHECKED: AtomicBool = AtomicBool::new(false);
}

/// Returns true if the time for the next [`check`] has come.
pub(crate) fn is_time() -> bool {
    now() >= NEXT.load(Ordering::Relaxed)
}

/// Looks up again the name of each function that was found, to detect that the program has replaced the function. Also
/// checks that the hooks that report the calls are still installed.
pub(crate) fn check(py: Python<'_>) {
    NEXT.store(now() + CHECK_INTERVAL_NS, Ordering::Relaxed);
    for module in targets::known() {
        let is_found = |target: &&Target| {
            target.found() != Discovery::NotYet && target.replaced.get().is_none()
        };
        let mut found = module.targets.iter().filter(is_found).peekable();
        if found.peek().is_none() {
            continue;
        }
        let Some(there) = lookup::imported(py, &module.name) else {
            continue;
        };
        for target in found {
            look_up(py, &there, target);
        }
    }
    if py.api.version.has_monitoring() {
        monitoring::check(py);
    } else {
        evaluator::check(py);
    }
}

/// Runs the last check for replaced functions, when the interpreter ends.
pub(crate) fn check_last(py: Python<'_>) {
    check(py);
    WERE_CHECKED.store(true, Ordering::Relaxed);
}

/// Returns true if the last check for replaced functions has run, so that no replacement can have gone unnoticed.
///
/// A process that ends with `os._exit` skips the end of the interpreter and this check. The library must not check in
/// a call of `_exit`, because a signal handler may make this call at any moment.
pub(crate) fn were_checked() -> bool {
    WERE_CHECKED.load(Ordering::Relaxed)
}

/// Returns true if the code object does not replace the function of `target`: it is marked for this function, or for
/// another requested function.
fn is_its(code: &Object<'_>, target: &Target) -> bool {
    let function = marked::find(code.addr()).and_then(Mark::function);
    // If the code object is marked for another requested function, the user has requested one function by two names.
    // This does not apply if the program has replaced that other function.
    function.is_some_and(|function| {
        core::ptr::eq(function, &target.function) || !function.is_replaced()
    })
}

fn look_up(py: Python<'_>, module: &Object<'_>, target: &'static Target) -> Option<()> {
    let wanted = &target.function.asked.qualname;
    let mut others = Vec::new();
    let kind = lookup::each_named(module, wanted, &mut |code| {
        if !is_its(code, target) {
            others.push(code.clone());
        }
    });
    if others.is_empty() && kind.is_none() {
        return None;
    }
    let by = lookup::named(module, wanted).and_then(|object| name_of(&object));
    let replaced = Replaced {
        by: by.or_else(|| kind.clone())?,
        is_function: kind.is_none(),
        after: target.function.calls(),
        is_followed: AtomicBool::new(false),
    };
    let replaced = target.replaced.get_or_init(|| Box::new(replaced));
    target.function.is_replaced_now();
    for code in others {
        if mark(py, &code, &target.function) {
            replaced.is_followed.store(true, Ordering::Relaxed);
        }
    }
    Some(())
}

/// Returns `MODULE:QUALNAME` for a Python function, and `None` for any other object.
fn name_of(function: &Object<'_>) -> Option<String> {
    function.code()?;
    let (module, name) = (
        function.attr(c"__module__"),
        function.attr(c"__qualname__")?,
    );
    let module = module.as_ref().and_then(Object::as_text).unwrap_or("?");
    Some(format!("{module}:{}", name.as_text()?))
}

/// Marks the new code object if the program assigns the `__code__` of a marked function. CPython raises an audit event
/// with the arguments of `setattr(object, name, value)` for this assignment.
pub(crate) fn is_set(py: Python<'_>, args: &Object<'_>) -> Option<()> {
    let mut args = args.elements();
    let (object, name, value) = (args.next()?, args.next()?, args.next()?);
    if name.as_text()? == "__code__"
        && value.is_code()
        && let Some(function) = marked::find(object.code()?.addr())?.function()
    {
        mark(py, &value, function);
    }
    Some(())
}
