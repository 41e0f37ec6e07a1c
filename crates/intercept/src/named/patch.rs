//! By which means the calls of a function are seen, and whether its entry can be patched.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tllmprof_platform::elf::Module;
use tllmprof_platform::entry::{self, Entry, Refusal};
use tllmprof_platform::lifecycle;
use tllmprof_platform::maps::Maps;
use tllmprof_platform::modules;

use super::functions::Function;

lifecycle::global! {
    /// The program itself has not run yet: this is our constructor.
    #[fork(keep = "the child is as far")]
    pub static BEFORE_MAIN: AtomicBool = AtomicBool::new(false);
}

/// What was found in a file, to be followed in the process.
#[cfg_attr(test, derive(Clone))]
pub struct Candidate {
    pub module: usize,
    pub path: PathBuf,
    pub function: Function,
    /// The rule of steps names it.
    pub is_step: bool,
    /// Its calls are to be scopes.
    pub is_scope: bool,
}

/// A function that the rule names, in the process.
pub struct Named {
    pub address: usize,
    /// The module that it lies in.
    pub module: usize,
    pub name: String,
    pub file: String,
    pub means: Means,
    pub is_step: bool,
    /// Its calls were to be scopes: its number, or why they are not.
    pub scope: Option<Result<usize, Refusal>>,
}

/// By which means calls of a function are seen.
pub enum Means {
    Entry {
        at: usize,
        jump: [u8; entry::JUMP],
        trampoline: Range<usize>,
        looks_back: bool,
    },
    /// By GOT slots and `dlsym`, and why not by its entry.
    Name(Refusal),
    /// By none.
    None(Refusal),
}

impl Named {
    /// Whether its entry still is as we left it: another instance of its module may have come to
    /// lie in the same place.
    pub fn is_in_place(&self) -> bool {
        let Means::Entry { at, jump, .. } = self.means else {
            return true;
        };
        // The module may be gone by now.
        let mut bytes = [0; entry::JUMP];
        modules::read_any(at, &mut bytes) && bytes == jump
    }
}

/// Whether no thread can be in the function, though there are several, as a profiler's that is
/// preloaded, too: it is the executable's, which has not begun to run, and nobody else knows it.
pub fn is_quiet(function: &Function, module: &Module, modules: &[Module]) -> bool {
    let is_called_by = |other: &Module| {
        let mut names = function.exported.iter();
        other.start != module.start && names.any(|name| other.asks_for(name))
    };
    BEFORE_MAIN.load(Ordering::Relaxed)
        && module.path().is_empty()
        && !module.runs_early()
        && !modules.iter().any(is_called_by)
}

/// What has to be known of a function before its entry is patched, and whether it can be.
/// `quiet`: no other thread can be in the function.
pub fn prepare(
    candidate: &Candidate,
    module: &Module,
    maps: &Maps,
    quiet: bool,
) -> Result<Entry, Refusal> {
    let function = &candidate.function;
    if function.is_entry_point {
        return Err(Refusal::EntryPoint);
    }
    if function.is_go {
        return Err(Refusal::Go);
    }
    if function.is_variant_call {
        return Err(Refusal::VariantCall);
    }
    if function.is_ifunc {
        return Err(Refusal::Ifunc);
    }
    let entry = examined(
        module,
        function.address,
        function.size,
        &candidate.path,
        maps,
    )?;
    if !quiet && !entry::fits_one_store(&entry) {
        return Err(Refusal::Threads);
    }
    Ok(entry)
}

/// What is known of the code of `module` at `address`, given as in its file at `path`: that is what the file holds.
pub fn examined(
    module: &Module,
    address: usize,
    size: usize,
    path: &Path,
    maps: &Maps,
) -> Result<Entry, Refusal> {
    if size == 0 {
        return Err(Refusal::UnknownSize);
    }
    let start = module.base.wrapping_add(address);
    let offset = module
        .file_offset(address, size)
        .ok_or(Refusal::NotMapped)?;
    let mapping = maps.at(start).ok_or(Refusal::NotMapped)?;
    if !mapping.is_executable || mapping.is_writable || start + size > mapping.end {
        return Err(Refusal::NotMapped);
    }
    let is_replaced = || modules::is_replaced(module, maps, path);
    let unreadable = |error: std::io::Error| match is_replaced() {
        true => Refusal::Replaced,
        false => Refusal::Unreadable(error.raw_os_error().unwrap_or(libc::EIO)),
    };
    let mut code = vec![0; size];
    let file = tllmprof_symbols::open(path).map_err(unreadable)?;
    file.read_exact_at(&mut code, offset).map_err(unreadable)?;
    let mut loaded = vec![0; size];
    if !module.read(start, &mut loaded) {
        return Err(Refusal::NotMapped);
    }
    if loaded != code {
        return Err(match is_replaced() {
            true => Refusal::Replaced,
            false => Refusal::Changed,
        });
    }
    entry::examine(start, &code, |address, buffer| module.read(address, buffer))
}
