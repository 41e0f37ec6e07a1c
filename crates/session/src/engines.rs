//! Which of the known engines is in the process, and by what its steps are counted.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::ffi::CString;
use std::path::Path;

use once_cell::race::OnceBox;
use tllmprof_config::{PyFunction, Step};
use tllmprof_engines::{ENGINES, Engine, Seen, known, python_steps};
use tllmprof_platform::lifecycle;

use tllmprof_platform::elf;
use tllmprof_platform::elf::Module;
use tllmprof_steps::step::counted::Counted;

/// An engine that has been found, and its rule.
pub struct Found {
    pub engine: &'static Engine,
    pub step: Step,
}

lifecycle::global! {
    stage: Session;

    /// The engine whose native function is followed.
    #[fork(keep = "the child has the engine loaded, too")]
    static FOUND: OnceBox<Found> = OnceBox::new();
    /// The engines whose steps are Python functions, in the order of [`python_steps`].
    #[fork(keep = "a table, and what is imported")]
    static IN_PYTHON: OnceBox<Vec<InPython>> = OnceBox::new();
    /// Of those the one whose function was the first to be called, counted from 1; 0 for none yet.
    #[fork(reset)]
    static CALLED: AtomicUsize = AtomicUsize::new(0);
}

/// An engine in Python.
struct InPython {
    found: Found,
    /// Its module has been imported.
    is_imported: AtomicBool,
}

/// The engine whose step `what` is, where that is counted.
pub fn counted(what: Counted) -> Option<&'static Found> {
    match what {
        Counted::Call(_) => None,
        Counted::Named => FOUND.get(),
        Counted::Python => {
            let index = CALLED.load(Ordering::Relaxed).checked_sub(1)?;
            Some(&IN_PYTHON.get()?.get(index)?.found)
        }
    }
}

/// Looks for an engine whose step is a native function, unless one has been found.
pub fn find() -> Option<&'static Found> {
    if let Some(found) = FOUND.get() {
        return Some(found);
    }
    let engine = first_loaded().filter(is_native)?;
    let step = Step::parse(engine.step).ok()?;
    Some(FOUND.get_or_init(|| Box::new(Found { engine, step })))
}

/// The functions that are steps of engines in Python. Their places are what [`is_step`] and
/// [`imported`] take.
pub fn in_python() -> impl Iterator<Item = &'static PyFunction> {
    let engines = IN_PYTHON.get_or_init(|| {
        let found = python_steps().filter_map(|(engine, _)| {
            let step = Step::parse(engine.step).ok()?;
            Some(InPython {
                found: Found { engine, step },
                is_imported: AtomicBool::new(false),
            })
        });
        Box::new(found.collect())
    });
    engines
        .iter()
        .filter_map(|engine| match &engine.found.step {
            Step::Python { function, .. } => Some(function),
            _ => None,
        })
}

/// Whether a call of function number `index` is a step: it was the first of all of them to be
/// called in this process since that uses CUDA.
pub fn is_step(index: usize) -> bool {
    match CALLED.load(Ordering::Relaxed) {
        0 => crate::activity::uses_cuda() && is_first(index),
        called => called == index + 1,
    }
}

#[cold]
fn is_first(index: usize) -> bool {
    let chosen = CALLED.compare_exchange(0, index + 1, Ordering::Relaxed, Ordering::Relaxed);
    chosen.map_or_else(|called| called == index + 1, |_| true)
}

/// Python has imported the module of function number `index`.
pub fn imported(index: usize) {
    if let Some(engine) = IN_PYTHON.get().and_then(|engines| engines.get(index)) {
        engine.is_imported.store(true, Ordering::Relaxed);
    }
}

/// Whether [`find`] would find one. It takes little stack.
pub fn is_native_there() -> bool {
    first_loaded().is_some_and(|engine| is_native(&engine))
}

/// Whether the engine's step is a native function.
fn is_native(engine: &&Engine) -> bool {
    engine.step.starts_with("sym:")
}

/// An engine that is there whose step is a range of its own: that has to be asked for when the
/// process starts.
pub fn by_ranges() -> Option<&'static Engine> {
    first_seen().filter(|engine| matches!(Step::parse(engine.step), Ok(Step::Nvtx { .. })))
}

/// The first engine that is there.
fn first_seen() -> Option<&'static Engine> {
    let mut found = None;
    elf::with_modules(|modules| found = known(|what| is_imported(what) || is_among(what, modules)));
    found
}

/// The first engine that is there by what the loader knows. What Python has imported is followed
/// where it is called, and keeps nothing else from being followed.
fn first_loaded() -> Option<&'static Engine> {
    let mut found = None;
    elf::with_modules(|modules| found = known(|what| is_among(what, modules)));
    found
}

/// Whether the process has it.
pub fn seen(what: &Seen) -> bool {
    let mut seen = is_imported(what);
    elf::with_modules(|modules| seen = seen || is_among(what, modules));
    seen
}

/// Whether Python has imported it, as far as we were there.
fn is_imported(what: &Seen) -> bool {
    let Seen::Python(_) = what else { return false };
    let engines = IN_PYTHON.get().into_iter().flatten();
    let mut imported = engines.filter(|engine| engine.is_imported.load(Ordering::Relaxed));
    imported.any(|engine| engine.found.engine.seen_by == *what)
}

fn is_among(what: &Seen, modules: &[Module]) -> bool {
    match what {
        Seen::Module(file) => modules
            .iter()
            .any(|module| module.file_name().starts_with(file.as_bytes())),
        Seen::Symbol(name) => {
            let is_exported = |name: &CStr| {
                modules
                    .iter()
                    .any(|module| module.defines(name, None).is_some())
            };
            CString::new(*name).is_ok_and(|name| is_exported(&name)) || is_in_executable(name)
        }
        Seen::Python(_) => false,
    }
}

/// Whether the executable's own table has it. The table is read once, and most executables have
/// none: their functions can be followed before they run, beside a profiler's threads, too.
fn is_in_executable(name: &str) -> bool {
    lifecycle::global! {
        #[fork(keep = "read from the executable")]
        static NAMES: OnceBox<Vec<&'static str>> = OnceBox::new();
    }
    let names = NAMES.get_or_init(|| Box::new(known_names_of(Path::new("/proc/self/exe"))));
    names.contains(&name)
}

/// The symbols that engines are known by and the file defines.
fn known_names_of(path: &Path) -> Vec<&'static str> {
    let symbols = ENGINES.iter().filter_map(|engine| match engine.seen_by {
        Seen::Symbol(name) => Some(name),
        _ => None,
    });
    let symbols: Vec<_> = symbols.collect();
    tllmprof_symbols::open(path).map_or_else(
        |_| Vec::new(),
        |file| tllmprof_symbols::defined(&file, &symbols),
    )
}
