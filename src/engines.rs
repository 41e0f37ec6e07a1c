//! Which of the known engines is in the process, and by what its steps are counted.

use core::ffi::CStr;
use std::ffi::CString;
use std::path::Path;

use once_cell::race::OnceBox;
use tllmprof_config::Step;
use tllmprof_config::engines::{ENGINES, Engine, Seen, known};

use crate::elf::{self, Module};

/// An engine that has been found, and its rule.
pub struct Found {
    pub engine: &'static Engine,
    pub step: Step,
}

static FOUND: OnceBox<Found> = OnceBox::new();

/// The engine that has been found, whose step is a native function.
pub fn found() -> Option<&'static Found> {
    FOUND.get()
}

/// Looks for an engine whose step is a native function, unless one has been found.
pub fn find() -> Option<&'static Found> {
    if let Some(found) = found() {
        return Some(found);
    }
    let engine = first_seen().filter(is_native)?;
    let step = Step::parse(engine.step).ok()?;
    Some(FOUND.get_or_init(|| Box::new(Found { engine, step })))
}

/// Whether [`find`] would find one. It takes little stack.
pub fn is_native_there() -> bool {
    first_seen().is_some_and(|engine| is_native(&engine))
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
    elf::with_modules(|modules| found = known(|what| is_among(what, modules)));
    found
}

/// Whether the process has it, by what the loader knows.
pub fn seen(what: &Seen) -> bool {
    let mut seen = false;
    elf::with_modules(|modules| seen = is_among(what, modules));
    seen
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
        // Python's modules are seen from within the interpreter alone.
        Seen::Python(_) => false,
    }
}

/// Whether the executable's own table has it. The table is read once, and most executables have
/// none: their functions can be followed before they run, beside a profiler's threads, too.
fn is_in_executable(name: &str) -> bool {
    static NAMES: OnceBox<Vec<&'static str>> = OnceBox::new();
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
