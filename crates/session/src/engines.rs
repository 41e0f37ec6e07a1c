//! Detects known inference engines in the process, and provides the rules that count their steps.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::ffi::CString;
use std::path::Path;

use once_cell::race::OnceBox;
use tllmprof_config::{PyFunction, Step};
use tllmprof_engines::{DummyStep, ENGINES, Engine, Seen, known, python_steps};
use tllmprof_platform::lifecycle;

use tllmprof_platform::elf;
use tllmprof_platform::elf::ElfModule;
use tllmprof_steps::step::counted::Counted;

/// A detected engine, and the rule that counts its steps.
pub struct DetectedEngine {
    pub engine: &'static Engine,
    pub step: Step,
}

lifecycle::global! {
    stage: Session;

    /// The engine whose native step function is hooked.
    #[fork(keep = "the child has the engine loaded, too")]
    static FOUND: OnceBox<DetectedEngine> = OnceBox::new();
    /// The engines whose steps are Python functions, in the order of [`python_steps`].
    #[fork(keep = "a table, and what is imported")]
    static IN_PYTHON: OnceBox<Vec<InPython>> = OnceBox::new();
    /// The index plus 1 of the engine whose Python step function was called first; 0 if none was called yet.
    #[fork(reset)]
    static CALLED: AtomicUsize = AtomicUsize::new(0);
    /// The number of times that Python has imported a module of an engine whose step function is awaited: before that
    /// function's first call, no learnt pattern counts iterations ([`Engine::is_awaited`]).
    #[fork(keep = "the child has imported them, too")]
    static IMPORTS: AtomicU32 = AtomicU32::new(0);
}

/// A known engine whose step is a Python function.
struct InPython {
    found: DetectedEngine,
    /// True if Python has imported the engine's module.
    is_imported: AtomicBool,
}

/// Returns the engine whose steps are events of the kind `what`, if there is one.
pub fn counted(what: Counted) -> Option<&'static DetectedEngine> {
    match what {
        Counted::Call(_) => None,
        Counted::Named => FOUND.get(),
        Counted::Python => {
            let index = CALLED.load(Ordering::Relaxed).checked_sub(1)?;
            Some(&IN_PYTHON.get()?.get(index)?.found)
        }
    }
}

/// Returns the engine whose step is a native function; `None` if there is none in the process. Searches the process's
/// libraries unless an earlier call has found an engine.
pub fn find() -> Option<&'static DetectedEngine> {
    if let Some(found) = FOUND.get() {
        return Some(found);
    }
    let engine = first_loaded().filter(is_native)?;
    let step = Step::parse(engine.step).ok()?;
    Some(FOUND.get_or_init(|| Box::new(DetectedEngine { engine, step })))
}

/// Returns the Python functions that are steps of known engines. [`is_step`] and [`imported`] take an index
/// into this sequence.
pub fn in_python() -> impl Iterator<Item = &'static PyFunction> {
    let engines = IN_PYTHON.get_or_init(|| {
        let found = python_steps().filter_map(|(engine, _)| {
            let step = Step::parse(engine.step).ok()?;
            Some(InPython {
                found: DetectedEngine { engine, step },
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

/// Returns true if a call of the Python function with this index is a step. Only one of the engines'
/// functions counts: the one that was called first after the process began to use CUDA.
pub fn is_step(index: usize) -> bool {
    match CALLED.load(Ordering::Relaxed) {
        0 => crate::activity::uses_cuda() && is_first(index),
        called => called == index + 1,
    }
}

/// Returns true if the function `dummy`, which runs a batch without requests, belongs to the engine whose
/// steps are counted.
pub fn is_dummy_step(dummy: &DummyStep) -> bool {
    counted(Counted::Python).is_some_and(|found| found.engine.name.starts_with(dummy.engine))
}

#[cold]
fn is_first(index: usize) -> bool {
    let chosen = CALLED.compare_exchange(0, index + 1, Ordering::Relaxed, Ordering::Relaxed);
    chosen.map_or_else(|called| called == index + 1, |_| true)
}

/// Notes that Python has imported the module of the function with this index.
pub fn imported(index: usize) {
    if let Some(engine) = IN_PYTHON.get().and_then(|engines| engines.get(index)) {
        engine.is_imported.store(true, Ordering::Relaxed);
        if engine.found.engine.is_awaited() {
            IMPORTS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Forgets all imports of engines' modules, as in a new process.
#[cfg(test)]
pub(crate) fn forget_imports() {
    IMPORTS.store(0, Ordering::Relaxed);
    for engine in IN_PYTHON.get().into_iter().flatten() {
        engine.is_imported.store(false, Ordering::Relaxed);
    }
}

/// Returns the number of times that Python has imported a module of an engine whose step function is awaited, plus 1 if
/// the library of such an engine was found. Before the first call of that function, no learnt pattern counts iterations
/// ([`Engine::is_awaited`]). Returns 0 if there is no such engine in the process.
pub(crate) fn imports() -> u32 {
    let is_native = FOUND.get().is_some_and(|found| found.engine.is_awaited());
    IMPORTS.load(Ordering::Relaxed) + u32::from(is_native)
}

/// Returns the first engine in the process that is awaited: no learnt pattern counts iterations until the engine's step
/// function is called ([`Engine::is_awaited`]).
pub(crate) fn awaited() -> Option<&'static DetectedEngine> {
    let engines = IN_PYTHON.get().into_iter().flatten();
    let imported = engines.filter(|engine| engine.is_imported.load(Ordering::Relaxed));
    let mut all = imported.map(|engine| &engine.found).chain(FOUND.get());
    all.find(|found| found.engine.is_awaited())
}

/// Returns true if an engine whose step is a native function is loaded, so that [`find`] would find
/// it. Uses little stack, unlike [`find`].
pub fn is_native_there() -> bool {
    first_loaded().is_some_and(|engine| is_native(&engine))
}

/// Returns true if the engine's step is a native function.
fn is_native(engine: &&Engine) -> bool {
    engine.step.starts_with("sym:")
}

/// Returns an engine in the process whose step is an NVTX range that the engine opens itself; `None` if there is none.
/// The steps of such an engine can be counted only if the rule that names the range is set when the process starts.
pub fn by_ranges() -> Option<&'static Engine> {
    first_seen().filter(|engine| matches!(Step::parse(engine.step), Ok(Step::Nvtx { .. })))
}

/// Returns the first known engine that is in the process, as an imported Python module or in a loaded library; `None`
/// if there is none.
fn first_seen() -> Option<&'static Engine> {
    let loaded = LoadedModules::look_for(ENGINES.iter().map(|engine| engine.seen_by));
    known(|what| is_imported(what) || loaded.has(what))
}

/// Returns the first known engine in the process's loaded libraries. Engines that are only imported by Python
/// are left out: they are detected when their step function is called, and must not hide an engine in a
/// library.
fn first_loaded() -> Option<&'static Engine> {
    let loaded = LoadedModules::look_for(ENGINES.iter().map(|engine| engine.seen_by));
    known(|what| loaded.has(what))
}

/// Returns true if the module or symbol `what` is in the process.
pub fn seen(what: &Seen) -> bool {
    is_imported(what) || LoadedModules::look_for([*what].into_iter()).has(what)
}

/// Returns true if `what` is a Python module that was imported after the library was loaded.
fn is_imported(what: &Seen) -> bool {
    let Seen::Python(_) = what else { return false };
    let engines = IN_PYTHON.get().into_iter().flatten();
    let mut imported = engines.filter(|engine| engine.is_imported.load(Ordering::Relaxed));
    imported.any(|engine| engine.found.engine.seen_by == *what)
}

/// The modules and symbols that were searched for in the process. Each has a flag that is true if it was found.
struct LoadedModules(Vec<Sought>);

struct Sought {
    what: Seen,
    /// The name of the sought symbol; `None` if a module is sought.
    name: Option<CString>,
    is_there: bool,
}

impl LoadedModules {
    /// Searches for all modules and symbols in one walk over the loaded libraries. The dynamic loader's lock is held
    /// during the walk, and other threads may wait for it. So the walk reads no file.
    fn look_for(what: impl Iterator<Item = Seen>) -> Self {
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

    /// Returns true if `what` is in a loaded library or in the executable.
    fn has(&self, what: &Seen) -> bool {
        let is_in_module = |sought: &Sought| sought.what == *what && sought.is_there;
        self.0.iter().any(is_in_module)
            || matches!(what, Seen::Symbol(name) if is_in_executable(name))
    }
}

impl Sought {
    fn is_shown_by(&self, module: &ElfModule) -> bool {
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

/// Returns true if the executable's own symbol table has the symbol `name`. The table is read only once.
fn is_in_executable(name: &str) -> bool {
    lifecycle::global! {
        #[fork(keep = "read from the executable")]
        static NAMES: OnceBox<Vec<&'static str>> = OnceBox::new();
    }
    let names = NAMES.get_or_init(|| Box::new(known_names_of(Path::new("/proc/self/exe"))));
    names.contains(&name)
}

/// Returns the symbols by which engines are recognized and which the file defines.
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
