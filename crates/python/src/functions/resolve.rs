//! From names to code objects.
//!
//! A module's code holds that of all functions that are written in it, as constants, and is audited
//! right before it runs: so functions are found before their first call, however they are decorated
//! and wherever they are nested. What was imported before us, or is made while the program runs, is
//! looked for by its name in `sys.modules`, from event to event. No code of the program's runs for
//! that.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::ffi::CString;

use super::targets::{self, Found, Module, Target};
use super::{evaluator, mark, near};
use crate::late;
use crate::object::Object;
use crate::object::Python;
use crate::time::now;
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;

/// Nanoseconds between two looks at what is there, at first and at most.
const SOON: u64 = 1_000_000;
const SELDOM: u64 = 100_000_000;
/// How many wrappers there may be around a function.
const DEEPEST: usize = 32;
/// Flag of a code object: a function's, not that of a module or of the body of a class.
const CO_OPTIMIZED: i64 = 1;

lifecycle::global! {
    /// Something is asked for.
    #[fork(keep = "the settings are the same")]
    #[restart(keep)]
    static IS_WANTED: AtomicBool = AtomicBool::new(false);
    /// Something is asked for that has not been found: when it is looked for next, and how long after
    /// the last time.
    #[fork(keep = "the clock goes on")]
    #[restart(keep)]
    static NEXT: AtomicU64 = AtomicU64::new(u64::MAX);
    #[fork(keep = "the clock goes on")]
    #[restart(keep)]
    static WAIT: AtomicU64 = AtomicU64::new(SOON);
}

/// Looks at what an interpreter has imported before us.
pub fn install(py: Python<'_>) {
    let modules = targets::all();
    if late::is_late() && py.interpreter() == 0 {
        // It may come in again: what was found was given up.
        targets::forget();
    }
    IS_WANTED.store(!modules.is_empty(), Ordering::Relaxed);
    if !modules.is_empty() {
        NEXT.store(0, Ordering::Relaxed);
        look(py);
    }
}

/// Nothing is looked for any more, until [`install`] is called again.
pub fn forget() {
    IS_WANTED.store(false, Ordering::Relaxed);
    NEXT.store(u64::MAX, Ordering::Relaxed);
    WAIT.store(SOON, Ordering::Relaxed);
}

/// Whether an audited event may bring a function that is wanted.
pub fn wants(event: &[u8]) -> bool {
    if !IS_WANTED.load(Ordering::Relaxed) {
        return false;
    }
    event == b"exec" || is_time()
}

/// Whether it is time to look for what has not been found.
fn is_time() -> bool {
    let next = NEXT.load(Ordering::Relaxed);
    next != u64::MAX && now() >= next
}

/// An event that is of interest, whose arguments `args` gives.
pub fn audited<'py>(py: Python<'py>, event: &[u8], args: &dyn Fn() -> Option<Object<'py>>) {
    if !py.api.version.has_monitoring() {
        evaluator::put_again(py);
    }
    if event == b"exec" {
        // A tuple with a code object.
        let code = args().and_then(|args| args.elements().next());
        if let Some(code) = code {
            runs(py, &code);
        }
    }
    if is_time() {
        look(py);
    }
}

/// Code is about to run: a module's, if that is one that has functions that are asked for.
fn runs(py: Python<'_>, code: &Object<'_>) -> Option<()> {
    if !code.is_code() || code.attr(c"co_name")?.as_text()? != "<module>" {
        return None;
    }
    let file = code.attr(c"co_filename")?;
    let file = file.as_text()?;
    for module in targets::known() {
        if !module.may_be(file) || !is_run_as(py, module, file) {
            continue;
        }
        module.imported();
        let mut has_left = false;
        for target in &module.targets {
            let asked = &target.function.asked;
            let parts: Vec<_> = parts(&asked.qualname).collect();
            let mut found = false;
            each_in(code, &parts, &mut |code| {
                found = true;
                is_code(py, code, target, Found::InTime);
            });
            if !found && target.found() == Found::NotYet {
                has_left = true;
                if target.is_by_name() {
                    let near = || Box::new(near::in_code(code, &asked.qualname));
                    target.near.get_or_init(near);
                }
            }
        }
        if has_left {
            WAIT.store(SOON, Ordering::Relaxed);
            NEXT.fetch_min(now() + SOON, Ordering::Relaxed);
        }
    }
    Some(())
}

/// Whether code from `file` that is about to run is the module's. Another module's file may be
/// called the same, and so may be what `exec` is given.
fn is_run_as(py: Python<'_>, module: &Module, file: &str) -> bool {
    if module.is_main() {
        // The second name is the program's in a child that multiprocessing has spawned.
        return is_file_of(py, "__main__", file, true)
            || is_file_of(py, "__mp_main__", file, false);
    }
    match imported(py, &module.name) {
        Some(_) => is_file_of(py, &module.name, file, true),
        // Started by its name or file: it has another name then.
        None => is_file_of(py, "__main__", file, false),
    }
}

/// Whether the module `name` says that it is read from `file`; `otherwise`: if it does not say.
fn is_file_of(py: Python<'_>, name: &str, file: &str, otherwise: bool) -> bool {
    let attrs = imported(py, name).and_then(|module| module.own_attrs());
    let said = attrs.and_then(|attrs| attrs.item(c"__file__"));
    match Origin::of(name, said.as_ref().and_then(Object::as_text), file) {
        Origin::This => true,
        Origin::Another => false,
        Origin::Unknown => otherwise,
        Origin::ThisIfTyped => {
            let first = py.sys(c"argv").and_then(|words| words.at(0));
            otherwise && is_typed(file, first.as_ref().and_then(Object::as_text))
        }
    }
}

/// Whether a module is read from a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    This,
    Another,
    Unknown,
    /// It is if the program was typed in.
    ThisIfTyped,
}

impl Origin {
    /// By what the module `name` has for its `__file__`, which may be nothing.
    fn of(name: &str, said: Option<&str>, file: &str) -> Self {
        let is_main = name == "__main__";
        match said {
            Some(said) if said == file => Self::This,
            // A frozen one may say where it was read from once, one without source what it is read
            // from.
            Some(said) if (file.starts_with('<') || said.ends_with(".pyc")) && !is_main => {
                Self::Unknown
            }
            Some(_) => Self::Another,
            None if is_main => Self::ThisIfTyped,
            None => Self::Unknown,
        }
    }
}

/// Whether code from `file` is what was given to Python by `-c`, on its standard input, or by the
/// program that it is a part of. `first` is the first of `sys.argv`.
fn is_typed(file: &str, first: Option<&str>) -> bool {
    matches!(file, "<string>" | "<stdin>") && matches!(first, None | Some("" | "-" | "-c"))
}

/// The parts of a qualified name that code objects have names for.
fn parts(qualname: &str) -> impl Iterator<Item = &str> {
    qualname.split('.').filter(|part| *part != "<locals>")
}

/// Each function of that name in the code that it is written in.
pub fn each_in<'py>(code: &Object<'py>, parts: &[&str], act: &mut impl FnMut(&Object<'py>)) {
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

/// Each code object that is directly in `code`, and its name.
pub fn each_inner<'py>(code: &Object<'py>, act: &mut impl FnMut(&Object<'py>, &str)) {
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

/// Whether the code is a function's.
pub fn is_function(code: &Object<'_>) -> bool {
    let flags = code.attr(c"co_flags").and_then(|flags| flags.as_int());
    flags.is_some_and(|flags| flags & CO_OPTIMIZED != 0)
}

/// The code is that of a function that is asked for.
fn is_code(py: Python<'_>, code: &Object<'_>, target: &'static Target, found: Found) {
    if !mark(py, code, &target.function) {
        target.is_unseen.store(true, Ordering::Relaxed);
    }
    if target.found() == Found::NotYet {
        let how = match found {
            Found::Late => "late, by its name",
            _ => "in time",
        };
        log::say!(Debug, "{target}: found {how}");
    }
    target.set_found(found);
}

/// Looks for what has not been found among what is there.
pub fn look(py: Python<'_>) {
    let mut has_left = false;
    for module in targets::known() {
        let is_left = |target: &&Target| target.found() == Found::NotYet;
        let mut left = module.targets.iter().filter(is_left).peekable();
        if left.peek().is_none() {
            continue;
        }
        has_left = true;
        let Some(there) = imported(py, &module.name) else {
            continue;
        };
        module.imported();
        // Nobody else has seen what a module makes while it is being imported.
        let found = if is_being_imported(&there) {
            Found::InTime
        } else {
            Found::Late
        };
        for target in left {
            let wanted = &target.function.asked.qualname;
            let kind = each_named(&there, wanted, &mut |code| is_code(py, code, target, found));
            if let Some(kind) = kind.filter(|_| found == Found::Late && target.is_by_name()) {
                target.kind.get_or_init(|| Box::new(kind));
            }
        }
    }
    let wait = WAIT.load(Ordering::Relaxed);
    WAIT.store(longer(wait), Ordering::Relaxed);
    let next = if has_left { now() + wait } else { u64::MAX };
    NEXT.store(next, Ordering::Relaxed);
}

/// How long to wait after a look that came that long after the one before.
fn longer(wait: u64) -> u64 {
    (wait * 2).min(SELDOM)
}

/// The main interpreter ends: what is missing is looked for a last time.
pub fn ends(py: Python<'_>) {
    look(py);
    for module in targets::known() {
        let is_missing = |target: &&Target| target.found() == Found::NotYet && target.is_by_name();
        for target in module.targets.iter().filter(is_missing) {
            if let Some(there) = imported(py, &module.name) {
                let near = || near::in_module(&there, &target.function.asked.qualname);
                target.near.get_or_init(|| Box::new(near()));
            }
        }
    }
}

/// `sys.modules.get(name)`.
fn imported<'py>(py: Python<'py>, name: &str) -> Option<Object<'py>> {
    py.imported(&CString::new(name).ok()?)
}

/// Whether the module's code has not come to its end.
fn is_being_imported(module: &Object<'_>) -> bool {
    let is_initialising = || {
        let spec = module.own_attrs()?.item(c"__spec__")?;
        spec.own_attrs()?.item(c"_initializing")?.as_int()
    };
    is_initialising().is_some_and(|is| is != 0)
}

/// The code of each function of that name, by the attributes that lead to it. What there is
/// instead, if that is no Python function: its type.
pub fn each_named<'py>(
    module: &Object<'py>,
    wanted: &str,
    act: &mut impl FnMut(&Object<'py>),
) -> Option<String> {
    let mut parts = wanted.split('.').peekable();
    let mut at = attr_of(module, parts.next()?)?;
    while let Some(part) = parts.next_if(|part| *part != "<locals>") {
        at = attr_of(&at, part)?;
    }
    let rest: Vec<_> = parts.filter(|part| *part != "<locals>").collect();
    match innermost(at) {
        Ok(code) => each_in(&code, &rest, act),
        Err(kind) => return kind,
    }
    None
}

/// Whether Python mangles the name of an attribute of a class.
fn is_private(name: &str) -> bool {
    name.starts_with("__") && !name.ends_with("__")
}

/// What Python makes of such a name in the class with that name.
fn mangled(class: &str, name: &str) -> String {
    format!("_{}{name}", class.trim_start_matches('_'))
}

/// What an object, or what it wraps, has by that name.
fn attr_of<'py>(object: &Object<'py>, name: &str) -> Option<Object<'py>> {
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

/// The code of the function that is there, under whatever it is wrapped in; else the type of what is
/// there.
fn innermost<'py>(mut object: Object<'py>) -> Result<Object<'py>, Option<String>> {
    for _ in 0..DEEPEST {
        match wrapped(&object) {
            Some(inner) => object = inner,
            None => break,
        }
    }
    object.code().ok_or_else(|| {
        let name = object.class()?.attr(c"__name__")?;
        Some(name.as_text()?.to_owned())
    })
}

/// What a decorator, a method or a partial call has been made of.
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
    fn code_is_a_modules_by_its_file() {
        let of = Origin::of;
        assert_eq!(of("m", Some("/a/m.py"), "/a/m.py"), Origin::This);
        assert_eq!(of("m", Some("/b/m.py"), "/a/m.py"), Origin::Another);
        assert_eq!(of("m", Some("/a/m.pyc"), "/src/m.py"), Origin::Unknown);
        assert_eq!(of("m", Some("/a/m.py"), "<frozen m>"), Origin::Unknown);
        assert_eq!(of("m", None, "/a/m.py"), Origin::Unknown);
        assert_eq!(of("__main__", None, "<string>"), Origin::ThisIfTyped);
        assert_eq!(of("__main__", Some("/a/m.py"), "<string>"), Origin::Another);
        assert_eq!(of("__main__", Some("/a/m.pyc"), "m.py"), Origin::Another);
    }

    #[test]
    fn typed_code_has_no_file() {
        assert!(is_typed("<string>", Some("-c")));
        assert!(is_typed("<stdin>", Some("")));
        assert!(is_typed("<string>", None)); // embedded
        assert!(!is_typed("<string>", Some("program.py"))); // exec in a program
        assert!(!is_typed("program.py", Some("-c")));
    }

    #[test]
    fn names_of_classes_are_mangled_as_python_does() {
        assert!(is_private("__step"));
        assert!(!is_private("__call__") && !is_private("_step"));
        assert_eq!(mangled("Engine", "__step"), "_Engine__step");
        assert_eq!(mangled("__Engine", "__step"), "_Engine__step");
    }

    #[test]
    fn code_objects_have_no_names_for_locals() {
        let parts: Vec<_> = parts("Engine.run.<locals>.step").collect();
        assert_eq!(parts, ["Engine", "run", "step"]);
    }

    #[test]
    fn looks_become_rarer() {
        assert_eq!(longer(SOON), 2 * SOON);
        assert_eq!(longer(SELDOM - 1), SELDOM);
        assert_eq!(longer(SELDOM), SELDOM);
    }

    #[test]
    fn nothing_is_wanted_before_an_interpreter_is_there() {
        assert!(!wants(b"exec") && !wants(b"import"));
    }
}
