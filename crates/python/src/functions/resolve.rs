//! Finds the code objects of requested functions by name.
//!
//! A module's code object contains the code of all functions written in the module, as constants.
//! CPython raises an audit event right before it runs a module. So functions are found before their
//! first call, however they are decorated or nested. Other functions were imported before the
//! library was loaded, or are created while the program runs. These are looked up by name in
//! `sys.modules` at later audit events. The look-up runs no code of the program.
//!
//! Some code does not have the file name that its module has: code of a frozen program, of a
//! notebook, or code that is passed by value, for example by cloudpickle. Code with the name of a
//! requested function is then marked as a candidate. At its first call, the `__name__` of its
//! module decides whether it is the requested function ([`super::candidates::confirms`]). For the
//! `__main__` of a frozen program there is no audit event. While a function is missing in such a
//! program, the first call of each function is examined ([`super::candidates::meets`]).

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::candidates::{is_called, is_code, name_of};
use super::code::is_function;
use super::lookup::{each_in, each_named, imported};
use super::targets::{self, Discovery, Target, TargetModule};
use super::{evaluator, mark_candidate, monitoring, near, replaced};
use crate::late;
use crate::object::Object;
use crate::object::Python;
use crate::time::now;
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;

/// The intervals between two searches among loaded modules, in ns: the first one, and the longest
/// one.
const FIRST_INTERVAL_NS: u64 = 1_000_000;
const MAX_INTERVAL_NS: u64 = 100_000_000;
/// The maximum number of candidates (code objects that may belong to a requested function) in a process. A candidate
/// stays marked until its first call, which may never come, so the number is limited.
const MAX_CANDIDATES: u32 = 4096;

lifecycle::global! {
    /// True if at least one Python function is requested, so that it has to be found.
    #[fork(keep = "the settings are the same")]
    #[restart(keep)]
    static IS_WANTED: AtomicBool = AtomicBool::new(false);
    /// Number of candidates (code objects that may belong to a requested function) so far.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static CANDIDATES: AtomicU32 = AtomicU32::new(0);
    /// True once the library has begun to examine the first call of each Python function, to find requested functions.
    /// Stays true when the examination ends, until [`forget`].
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static IS_SEARCHING: AtomicBool = AtomicBool::new(false);
    /// The time of the next search for missing functions, in ns on the clock of `time::now`; `u64::MAX` if no search is
    /// planned. `WAIT` is the current interval between two searches, in ns.
    #[fork(keep = "the clock goes on")]
    #[restart(keep)]
    static NEXT: AtomicU64 = AtomicU64::new(u64::MAX);
    #[fork(keep = "the clock goes on")]
    #[restart(keep)]
    static WAIT: AtomicU64 = AtomicU64::new(FIRST_INTERVAL_NS);
}

/// Starts the search for requested functions, first among the modules that the interpreter has already imported.
pub(crate) fn install(py: Python<'_>) {
    let modules = targets::all();
    if late::is_late() && py.interpreter() == 0 {
        // The library may have been attached before and detached again. The detach removed the marks of the functions
        // that had been found, so the search starts anew.
        targets::forget();
    }
    IS_WANTED.store(!modules.is_empty(), Ordering::Relaxed);
    if !modules.is_empty() {
        NEXT.store(0, Ordering::Relaxed);
        look(py);
    }
}

/// Starts to examine the first call of each function ([`super::candidates::meets`]), if the program is frozen and a
/// requested function has not been found.
fn search(py: Python<'_>) {
    let is_frozen = || py.sys(c"frozen").is_some_and(|frozen| frozen.is_true());
    if IS_SEARCHING.load(Ordering::Relaxed) || !targets::are_missing() || !is_frozen() {
        return;
    }
    IS_SEARCHING.store(true, Ordering::Relaxed);
    let begins = if py.api.version.has_monitoring() {
        monitoring::search(py)
    } else {
        evaluator::search(py)
    };
    if begins.is_none() {
        log::say!(Debug, "first calls of functions cannot be looked at");
    }
}

/// Ends the examination of first calls if all requested functions have been found, or if `is_over` is true.
pub(crate) fn end_search(py: Python<'_>, is_over: bool) {
    if !is_over && (targets::are_missing() || !IS_SEARCHING.load(Ordering::Relaxed)) {
        return;
    }
    if py.api.version.has_monitoring() {
        monitoring::end_search(py);
    } else {
        evaluator::end_search(py);
    }
}

/// Stops the search for requested functions until [`install`] is called again.
pub(crate) fn forget() {
    IS_WANTED.store(false, Ordering::Relaxed);
    IS_SEARCHING.store(false, Ordering::Relaxed);
    NEXT.store(u64::MAX, Ordering::Relaxed);
    WAIT.store(FIRST_INTERVAL_NS, Ordering::Relaxed);
}

/// Returns true if [`audited`] has to be called for this audit event: the event may show a requested function or its
/// replacement, or a search for missing functions or a check for replaced functions is due.
pub(crate) fn wants(event: &[u8]) -> bool {
    if !IS_WANTED.load(Ordering::Relaxed) {
        return false;
    }
    match event {
        b"exec" | b"function.__new__" | b"object.__setattr__" => return true,
        b"import" | b"open" if replaced::is_time() || may_begin_search() => return true,
        b"code.__new__" | b"compile" | b"marshal.loads" => evaluator::code_is_made(),
        _ => {}
    }
    is_time()
}

/// Returns true if a requested function has not been found and the first calls of functions are not examined yet.
fn may_begin_search() -> bool {
    NEXT.load(Ordering::Relaxed) != u64::MAX && !IS_SEARCHING.load(Ordering::Relaxed)
}

/// Returns true if a search for missing functions is due.
fn is_time() -> bool {
    let next = NEXT.load(Ordering::Relaxed);
    next != u64::MAX && now() >= next
}

/// Looks for requested functions and their replacements. Called at an audit event for which [`wants`] returned true.
/// `args` returns the event's arguments.
pub(crate) fn audited<'py>(py: Python<'py>, event: &[u8], args: &dyn Fn() -> Option<Object<'py>>) {
    if !py.api.version.has_monitoring() {
        evaluator::put_again(py);
    }
    // If the event has a code object, it is the first element of the event's arguments.
    let first = || args().and_then(|args| args.elements().next());
    match event {
        b"exec" => {
            evaluator::code_is_made();
            if let Some(code) = first() {
                runs(py, &code);
                end_search(py, false);
            }
        }
        b"function.__new__" => {
            evaluator::code_is_made();
            if let Some(code) = first() {
                is_made(py, &code);
            }
        }
        b"object.__setattr__" => {
            args().and_then(|args| replaced::is_set(py, &args));
        }
        _ => {}
    }
    search(py);
    if is_time() {
        look(py);
        end_search(py, false);
    }
    if replaced::is_time() {
        replaced::check(py);
    }
}

/// Searches the code of a module, which is about to run, for the requested functions of this module. A function in this
/// code may also have the same name as a requested function of another module. It may then become a candidate.
fn runs(py: Python<'_>, code: &Object<'_>) -> Option<()> {
    if !code.is_code() || code.attr(c"co_name")?.as_text()? != "<module>" {
        return None;
    }
    let file = code.attr(c"co_filename")?;
    let file = file.as_text()?;
    for module in targets::known() {
        if !module.may_be(file) || !is_run_as(py, module, file) {
            // In a frozen program, `file` is a path on the machine on which the program was built. So the code may
            // belong to the module although the file names differ. Functions in the code that have a requested name
            // therefore become candidates.
            let may_be = module.may_be(file) && !module.is_main();
            let wanted = |target: &&Target| may_be || target.is_by_name();
            for target in module.targets.iter().filter(wanted) {
                let parts: Vec<_> = parts(&target.function.asked.qualname).collect();
                each_in(code, &parts, &mut |code| is_candidate(py, code, target));
            }
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
                is_code(py, code, target, Discovery::InTime);
            });
            if !found && target.found() == Discovery::NotYet {
                has_left = true;
                if target.is_by_name() {
                    let near = || Box::new(near::in_code(code, &asked.qualname));
                    target.near.get_or_init(near);
                }
            }
        }
        if has_left {
            WAIT.store(FIRST_INTERVAL_NS, Ordering::Relaxed);
            NEXT.fetch_min(now() + FIRST_INTERVAL_NS, Ordering::Relaxed);
        }
    }
    Some(())
}

/// Marks a code object as a candidate if it has the name of a requested function. Called when Python code creates a
/// function from this code object, as cloudpickle does.
fn is_made(py: Python<'_>, code: &Object<'_>) -> Option<()> {
    let name = name_of(py, code)?;
    let name = name.as_text()?;
    let targets = targets::known().iter().flat_map(|module| &module.targets);
    for target in targets.filter(|target| target.is_by_name()) {
        if is_called(py, target, name) && is_function(code) {
            is_candidate(py, code, target);
        }
    }
    Some(())
}

/// Marks a code object as a candidate, because it has the name of a requested function. The first call of the code
/// object shows if it belongs to the requested function.
fn is_candidate(py: Python<'_>, code: &Object<'_>, target: &'static Target) {
    if CANDIDATES.fetch_add(1, Ordering::Relaxed) < MAX_CANDIDATES {
        mark_candidate(py, code, &target.function);
    }
}

/// Returns true if code from `file` that is about to run belongs to the module. Another module's
/// file may have the same name, and so may code that is passed to `exec`.
fn is_run_as(py: Python<'_>, module: &TargetModule, file: &str) -> bool {
    if module.is_main() {
        // In a child that multiprocessing spawned, the program's main module is named
        // `__mp_main__`.
        return is_file_of(py, "__main__", file, true)
            || is_file_of(py, "__mp_main__", file, false);
    }
    match imported(py, &module.name) {
        Some(_) => is_file_of(py, &module.name, file, true),
        // A module that the program was started with, with `-m` or as a file, is named `__main__`.
        None => is_file_of(py, "__main__", file, false),
    }
}

/// Returns true if the module `name` was read from `file`. Returns `otherwise` if that is unknown.
fn is_file_of(py: Python<'_>, name: &str, file: &str, otherwise: bool) -> bool {
    let attrs = imported(py, name).and_then(|module| module.own_attrs());
    let said = attrs.and_then(|attrs| attrs.item(c"__file__"));
    match FileRelation::classify(name, said.as_ref().and_then(Object::as_text), file) {
        FileRelation::This => true,
        FileRelation::Another => false,
        FileRelation::Unknown => otherwise,
        FileRelation::ThisIfTyped => {
            let first = py.sys(c"argv").and_then(|words| words.at(0));
            otherwise && is_typed(file, first.as_ref().and_then(Object::as_text))
        }
    }
}

/// The result of comparing a module's `__file__` with the file name in a code object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FileRelation {
    This,
    Another,
    Unknown,
    /// The module is a `__main__` without `__file__`. The code object belongs to it only if the program's source was
    /// passed to Python with `-c`, on standard input, or by a program that embeds Python.
    ThisIfTyped,
}

impl FileRelation {
    /// Compares `file`, the file name in a code object, with `said`, the `__file__` of the module `name`. `said` is
    /// `None` if the module has no `__file__`.
    fn classify(name: &str, said: Option<&str>, file: &str) -> Self {
        let is_main = name == "__main__";
        match said {
            Some(said) if said == file => Self::This,
            // The two file names may differ although the module was read from this file. The `__file__` of a frozen
            // module may be the file from which it was once read. The `__file__` of a module without source is the
            // compiled file.
            Some(said) if (file.starts_with('<') || said.ends_with(".pyc")) && !is_main => {
                Self::Unknown
            }
            Some(_) => Self::Another,
            None if is_main => Self::ThisIfTyped,
            None => Self::Unknown,
        }
    }
}

/// Returns true if code from `file` was passed to Python with `-c`, on standard input, or by a
/// program that embeds Python. `first` is `sys.argv[0]`, if it exists.
fn is_typed(file: &str, first: Option<&str>) -> bool {
    matches!(file, "<string>" | "<stdin>") && matches!(first, None | Some("" | "-" | "-c"))
}

/// Returns the parts of a qualified name that are names of code objects. `<locals>` is not one.
fn parts(qualname: &str) -> impl Iterator<Item = &str> {
    qualname.split('.').filter(|part| *part != "<locals>")
}

/// Searches the loaded modules for requested functions that have not been found yet.
pub(crate) fn look(py: Python<'_>) {
    let mut has_left = !monitoring::try_again(py);
    for module in targets::known() {
        let is_left = |target: &&Target| target.found() == Discovery::NotYet;
        let mut left = module.targets.iter().filter(is_left).peekable();
        if left.peek().is_none() {
            continue;
        }
        has_left = true;
        let Some(there) = imported(py, &module.name) else {
            continue;
        };
        module.imported();
        // While a module is still being imported, no other code has used its functions, so no call
        // was missed.
        let found = if is_being_imported(&there) {
            Discovery::InTime
        } else {
            Discovery::Late
        };
        for target in left {
            let wanted = &target.function.asked.qualname;
            let kind = each_named(&there, wanted, &mut |code| {
                is_code(py, code, target, found);
            });
            if let Some(kind) = kind.filter(|_| found == Discovery::Late && target.is_by_name()) {
                target.kind.get_or_init(|| Box::new(kind));
            }
        }
    }
    let wait = WAIT.load(Ordering::Relaxed);
    WAIT.store(longer(wait), Ordering::Relaxed);
    let next = if has_left { now() + wait } else { u64::MAX };
    NEXT.store(next, Ordering::Relaxed);
}

/// Returns the interval that follows the interval `wait`: twice `wait`, but at most [`MAX_INTERVAL_NS`].
fn longer(wait: u64) -> u64 {
    (wait * 2).min(MAX_INTERVAL_NS)
}

/// Runs the last search for missing functions when the main interpreter ends.
pub(crate) fn ends(py: Python<'_>) {
    look(py);
    end_search(py, true);
    replaced::check_last(py);
    for module in targets::known() {
        for target in module.targets.iter().filter(|target| target.is_missing()) {
            if let Some(there) = imported(py, &module.name) {
                let near = || near::in_module(&there, &target.function.asked.qualname);
                target.near.get_or_init(|| Box::new(near()));
            }
        }
    }
}

/// Returns true if the import of the module has not finished.
fn is_being_imported(module: &Object<'_>) -> bool {
    let is_initialising = || {
        let spec = module.own_attrs()?.item(c"__spec__")?;
        spec.own_attrs()?.item(c"_initializing")?.as_int()
    };
    is_initialising().is_some_and(|is| is != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_a_modules_by_its_file() {
        let of = FileRelation::classify;
        assert_eq!(of("m", Some("/a/m.py"), "/a/m.py"), FileRelation::This);
        assert_eq!(of("m", Some("/b/m.py"), "/a/m.py"), FileRelation::Another);
        assert_eq!(
            of("m", Some("/a/m.pyc"), "/src/m.py"),
            FileRelation::Unknown
        );
        assert_eq!(
            of("m", Some("/a/m.py"), "<frozen m>"),
            FileRelation::Unknown
        );
        assert_eq!(of("m", None, "/a/m.py"), FileRelation::Unknown);
        assert_eq!(of("__main__", None, "<string>"), FileRelation::ThisIfTyped);
        assert_eq!(
            of("__main__", Some("/a/m.py"), "<string>"),
            FileRelation::Another
        );
        assert_eq!(
            of("__main__", Some("/a/m.pyc"), "m.py"),
            FileRelation::Another
        );
    }

    #[test]
    fn typed_code_has_no_file() {
        assert!(is_typed("<string>", Some("-c")));
        assert!(is_typed("<stdin>", Some("")));
        assert!(is_typed("<string>", None)); // Python is embedded
        assert!(!is_typed("<string>", Some("program.py"))); // code that a program passed to `exec`
        assert!(!is_typed("program.py", Some("-c")));
    }

    #[test]
    fn code_objects_have_no_names_for_locals() {
        let parts: Vec<_> = parts("Engine.run.<locals>.step").collect();
        assert_eq!(parts, ["Engine", "run", "step"]);
    }

    #[test]
    fn looks_become_rarer() {
        assert_eq!(longer(FIRST_INTERVAL_NS), 2 * FIRST_INTERVAL_NS);
        assert_eq!(longer(MAX_INTERVAL_NS - 1), MAX_INTERVAL_NS);
        assert_eq!(longer(MAX_INTERVAL_NS), MAX_INTERVAL_NS);
    }

    #[test]
    fn nothing_is_wanted_before_an_interpreter_is_there() {
        assert!(!wants(b"exec") && !wants(b"import"));
    }
}
