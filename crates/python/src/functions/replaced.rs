//! Functions that the program replaces after they were found, as plugins do: another function under the same name, other
//! code in the same function.
//!
//! The name is looked up again from time to time, and at the end. What is there is followed, too, from then on. Where it calls
//! the function that it replaces, a call of both counts once.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::targets::{self, Found, Target};
use super::{evaluator, mark, marked, monitoring, resolve};
use crate::object::{Object, Python};
use crate::spans::Mark;
use crate::time::now;
use tllmprof_platform::lifecycle;

/// Nanoseconds between two looks.
const INTERVAL: u64 = 20_000_000;

lifecycle::global! {
    /// When names are looked up next.
    #[fork(keep = "the clock goes on")]
    #[restart(keep)]
    static NEXT: AtomicU64 = AtomicU64::new(0);
}

/// What the program has put in the place of a function.
pub struct Replaced {
    /// `MODULE:QUALNAME`, or the type of what is no Python function.
    by: String,
    is_function: bool,
    /// Calls of the function before it was noticed.
    after: u64,
    /// Its calls are seen from then on.
    is_followed: AtomicBool,
}

/// Whether it is time for [`check`].
pub fn is_time() -> bool {
    now() >= NEXT.load(Ordering::Relaxed)
}

/// Looks whether what was found is still what is called by its name, and whether what calls are seen by is in its place.
pub fn check(py: Python<'_>) {
    NEXT.store(now() + INTERVAL, Ordering::Relaxed);
    for module in targets::known() {
        let is_found =
            |target: &&Target| target.found() != Found::NotYet && target.replaced.get().is_none();
        let mut found = module.targets.iter().filter(is_found).peekable();
        if found.peek().is_none() {
            continue;
        }
        let Some(there) = resolve::imported(py, &module.name) else {
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

/// Whether the calls of a code object are those of `target`.
fn is_its(code: &Object<'_>, target: &Target) -> bool {
    let function = marked::find(code.addr()).and_then(Mark::function);
    // One that is marked as another's was asked for by two names.
    function.is_some_and(|function| {
        core::ptr::eq(function, &target.function) || !function.is_replaced()
    })
}

fn look_up(py: Python<'_>, module: &Object<'_>, target: &'static Target) -> Option<()> {
    let wanted = &target.function.asked.qualname;
    let mut others = Vec::new();
    let kind = resolve::each_named(module, wanted, &mut |code| {
        if !is_its(code, target) {
            others.push(code.clone());
        }
    });
    if others.is_empty() && kind.is_none() {
        return None;
    }
    let by = resolve::named(module, wanted).and_then(|object| name_of(&object));
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

/// `MODULE:QUALNAME` of a Python function.
fn name_of(function: &Object<'_>) -> Option<String> {
    function.code()?;
    let (module, name) = (
        function.attr(c"__module__"),
        function.attr(c"__qualname__")?,
    );
    let module = module.as_ref().and_then(Object::as_text).unwrap_or("?");
    Some(format!("{module}:{}", name.as_text()?))
}

/// An attribute is set that is audited, which `args` has: the object, the name and the value. A function's `__code__` is.
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

impl Replaced {
    /// Whether calls may be missing for it: not, where it calls the function that it replaces.
    pub fn hides_calls(&self, target: &Target) -> bool {
        !target.function.is_called_within()
    }
}

/// As `was replaced by MODULE:QUALNAME after 7 calls, …`.
impl fmt::Display for Replaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by, after, .. } = self;
        let calls = if *after == 1 { "call" } else { "calls" };
        match self.is_function {
            true => write!(f, "was replaced by {by}, noticed after {after} {calls}: ")?,
            false => write!(
                f,
                "was replaced by an object of type {by}, noticed after {after} {calls}: "
            )?,
        }
        match self.is_followed.load(Ordering::Relaxed) {
            true => write!(f, "calls of {by} before that are missing"),
            false => f.write_str("calls of that are missing"),
        }
    }
}
