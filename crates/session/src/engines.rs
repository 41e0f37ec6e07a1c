//! Which of the known engines is in the process, and by what its steps are counted.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::ffi::CString;
use std::path::Path;

use once_cell::race::OnceBox;
use tllmprof_config::{PyFunction, Step};
use tllmprof_engines::{DummyStep, ENGINES, Engine, Seen, known, python_steps};
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

/// Whether a call of this function is a step of nobody's: it is one of the engine whose steps are counted.
pub fn is_dummy_step(dummy: &DummyStep) -> bool {
    counted(Counted::Python).is_some_and(|found| found.engine.name.starts_with(dummy.engine))
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
    let loaded = Loaded::of(ENGINES.iter().map(|engine| engine.seen_by));
    known(|what| is_imported(what) || loaded.has(what))
}

/// The first engine that is there by what the loader knows. What Python has imported is followed
/// where it is called, and keeps nothing else from being followed.
fn first_loaded() -> Option<&'static Engine> {
    let loaded = Loaded::of(ENGINES.iter().map(|engine| engine.seen_by));
    known(|what| loaded.has(what))
}

/// Whether the process has it.
pub fn seen(what: &Seen) -> bool {
    is_imported(what) || Loaded::of([*what].into_iter()).has(what)
}

/// Whether Python has imported it, as far as we were there.
fn is_imported(what: &Seen) -> bool {
    let Seen::Python(_) = what else { return false };
    let engines = IN_PYTHON.get().into_iter().flatten();
    let mut imported = engines.filter(|engine| engine.is_imported.load(Ordering::Relaxed));
    imported.any(|engine| engine.found.engine.seen_by == *what)
}

/// What the loader knows of.
struct Loaded(Vec<Sought>);

struct Sought {
    what: Seen,
    /// The symbol's name; of others none.
    name: Option<CString>,
    is_there: bool,
}

impl Loaded {
    /// Looks for all at once. No file is read while the loader is held: others may wait for it.
    fn of(what: impl Iterator<Item = Seen>) -> Self {
        let sought = |what| Sought {
            what,
            name: match what {
                Seen::Symbol(name) => CString::new(name).ok(),
                Seen::Module(_) | Seen::Python(_) => None,
            },
            is_there: false,
        };
        let mut all: Vec<_> = what.map(sought).collect();
        elf::with_modules(|modules| {
            for sought in &mut all {
                sought.is_there = modules.iter().any(|module| sought.is_shown_by(module));
            }
        });
        Self(all)
    }

    /// Whether a module has it, or the executable.
    fn has(&self, what: &Seen) -> bool {
        let is_in_module = |sought: &Sought| sought.what == *what && sought.is_there;
        self.0.iter().any(is_in_module)
            || matches!(what, Seen::Symbol(name) if is_in_executable(name))
    }
}

impl Sought {
    fn is_shown_by(&self, module: &Module) -> bool {
        match self.what {
            Seen::Module(file) => module.file_name().starts_with(file.as_bytes()),
            Seen::Symbol(_) => {
                let name = self.name.as_deref();
                name.is_some_and(|name| module.defines(name, None).is_some())
            }
            Seen::Python(_) => false,
        }
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
