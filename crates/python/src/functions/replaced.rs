//! Functions that the program replaces after they were found, as plugins do: another function under the same
//! name, or other code in the same function.
//!
//! The name is looked up again from time to time, and at the end. A replacement is followed, too, from then
//! on. If it calls the function that it replaces, a call of both counts once.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::replacement::Replaced;
use super::targets::{self, Found, Target};
use super::{evaluator, lookup, mark, marked, monitoring};
use crate::object::{Object, Python};
use crate::spans::Mark;
use crate::time::now;
use tllmprof_platform::lifecycle;

/// Nanoseconds between two checks.
const CHECK_INTERVAL_NS: u64 = 20_000_000;

lifecycle::global! {
    /// The time of the next check.
    #[fork(keep = "the clock goes on")]
    #[restart(keep)]
    static NEXT: AtomicU64 = AtomicU64::new(0);
}

lifecycle::global! {
    stage: Sinks;

    /// True if the functions were checked when the interpreter ended.
    #[fork(reset)]
    #[restart(reset)]
    static WERE_CHECKED: AtomicBool = AtomicBool::new(false);
}

/// Returns true if it is time for [`check`].
pub fn is_time() -> bool {
    now() >= NEXT.load(Ordering::Relaxed)
}

/// Checks that each found function is still the one with its name, and that the hooks that see its calls are
/// still installed.
pub fn check(py: Python<'_>) {
    NEXT.store(now() + CHECK_INTERVAL_NS, Ordering::Relaxed);
    for module in targets::known() {
        let is_found =
            |target: &&Target| target.found() != Found::NotYet && target.replaced.get().is_none();
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

/// Checks a last time, when the interpreter ends.
pub fn check_last(py: Python<'_>) {
    check(py);
    WERE_CHECKED.store(true, Ordering::Relaxed);
}

/// Returns true if no replacement can have gone unnoticed. A process that ends by `os._exit` skips the interpreter's end, and
/// so the last check. Objects cannot be examined in `_exit` itself, as a signal handler may call it at any moment.
pub fn were_checked() -> bool {
    WERE_CHECKED.load(Ordering::Relaxed)
}

/// Returns true if the calls of a code object count as those of `target`.
fn is_its(code: &Object<'_>, target: &Target) -> bool {
    let function = marked::find(code.addr()).and_then(Mark::function);
    // A code object that is marked for another function was requested by two names.
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

/// Returns `MODULE:QUALNAME` of a Python function.
fn name_of(function: &Object<'_>) -> Option<String> {
    function.code()?;
    let (module, name) = (
        function.attr(c"__module__"),
        function.attr(c"__qualname__")?,
    );
    let module = module.as_ref().and_then(Object::as_text).unwrap_or("?");
    Some(format!("{module}:{}", name.as_text()?))
}

/// Handles an audited `setattr` with the arguments object, name and value. Assignments to a function's
/// `__code__` are audited.
pub fn is_set(py: Python<'_>, args: &Object<'_>) -> Option<()> {
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
