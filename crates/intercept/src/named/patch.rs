//! The methods to intercept the calls of a native function that a `sym:` rule names, and the checks before the
//! function's entry is patched.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tllmprof_platform::elf::ElfModule;
use tllmprof_platform::entry::{self, PatchRefusal, PatchableEntry};
use tllmprof_platform::lifecycle;
use tllmprof_platform::maps::Maps;
use tllmprof_platform::modules;

use super::functions::MatchedFunction;

lifecycle::global! {
    /// True while `named::start` hooks the first functions in a process that preloads this library. The dynamic linker
    /// is loading this library at that time, and `main` of the program has not begun.
    #[fork(keep = "the child has come as far")]
    pub static BEFORE_MAIN: AtomicBool = AtomicBool::new(false);
}

/// A function that was found in a module's file, and is to be hooked in the process.
#[cfg_attr(test, derive(Clone))]
pub(crate) struct HookCandidate {
    pub module: usize,
    pub path: PathBuf,
    pub function: MatchedFunction,
    /// True if the step rule (the rule that defines a step) names the function, so that its calls are counted.
    pub is_step: bool,
    /// True if a scope rule names the function: GPU work is attributed to its calls.
    pub is_scope: bool,
}

/// A function in the process that a `sym:` rule names, and how it is hooked.
pub(crate) struct NamedFunction {
    pub address: usize,
    /// Start address of the module that the function belongs to.
    pub module: usize,
    pub name: String,
    pub file: String,
    pub means: Means,
    pub is_step: bool,
    /// For a function that a scope rule names: the number that identifies it as a scope, or the reason why GPU work
    /// cannot be attributed to its calls. `None` for other functions.
    pub scope: Option<Result<usize, PatchRefusal>>,
}

/// The method by which calls of a function are intercepted.
pub(crate) enum Means {
    Entry {
        at: usize,
        jump: [u8; entry::JUMP],
        trampoline: Range<usize>,
        looks_back: bool,
    },
    /// The calls are intercepted through GOT slots and `dlsym`. The value is the reason why the function's entry cannot
    /// be patched.
    Name(PatchRefusal),
    /// The calls cannot be intercepted in any way. The value is the reason.
    None(PatchRefusal),
}

impl NamedFunction {
    /// Returns true if the function's entry still contains the jump to the trampoline, or if the function is not hooked
    /// at its entry. The entry contains other code if the module was unloaded and another instance of the module was
    /// loaded at the same address. A debugger's breakpoint on the jump does not count as other code, because the
    /// debugger puts the jump's first byte back.
    pub(crate) fn is_in_place(&self) -> bool {
        let Means::Entry { at, jump, .. } = self.means else {
            return true;
        };
        /// The instruction `int3`, which a debugger writes over the first byte of an instruction.
        const BREAKPOINT: u8 = 0xcc;
        // `read_any` checks that the address is mapped, because the module may have been unloaded.
        let mut bytes = [0; entry::JUMP];
        modules::read_any(at, &mut bytes)
            && (bytes[0] == jump[0] || bytes[0] == BREAKPOINT)
            && bytes[1..] == jump[1..]
    }
}

/// Returns true if certainly no thread is in the function, although several threads may be running, for example those
/// of another preloaded profiler. This is so if four conditions hold: `main` has not begun, the function belongs to the
/// executable, the executable has no functions that run before the libraries' constructors, and no other module imports
/// the function.
pub(crate) fn is_quiet(
    function: &MatchedFunction,
    module: &ElfModule,
    modules: &[ElfModule],
) -> bool {
    let is_called_by = |other: &ElfModule| {
        let mut names = function.exported.iter();
        other.start != module.start && names.any(|name| other.asks_for(name))
    };
    BEFORE_MAIN.load(Ordering::Relaxed)
        && module.path().is_empty()
        && !module.runs_early()
        && !modules.iter().any(is_called_by)
}

/// Examines a function before its entry is patched. Returns the data that the patch needs, or the reason why the
/// entry cannot be patched. `quiet` is true if no other thread can be in the function.
pub(crate) fn prepare(
    candidate: &HookCandidate,
    module: &ElfModule,
    maps: &Maps,
    quiet: bool,
) -> Result<PatchableEntry, PatchRefusal> {
    let function = &candidate.function;
    if function.is_entry_point {
        return Err(PatchRefusal::EntryPoint);
    }
    if function.is_go {
        return Err(PatchRefusal::Go);
    }
    if function.is_variant_call {
        return Err(PatchRefusal::VariantCall);
    }
    if function.is_ifunc {
        return Err(PatchRefusal::Ifunc);
    }
    let entry = examined(
        module,
        function.address,
        function.size,
        &candidate.path,
        maps,
    )?;
    if !quiet && !entry::fits_one_store(&entry) {
        return Err(PatchRefusal::Threads);
    }
    Ok(entry)
}

/// Examines the code of `module` at `address`, an address relative to the module's base. Returns an error if the loaded
/// code differs from the code in the file at `path`, or if the code cannot be patched.
pub(crate) fn examined(
    module: &ElfModule,
    address: usize,
    size: usize,
    path: &Path,
    maps: &Maps,
) -> Result<PatchableEntry, PatchRefusal> {
    if size == 0 {
        return Err(PatchRefusal::UnknownSize);
    }
    let start = module.base.wrapping_add(address);
    let offset = module
        .file_offset(address, size)
        .ok_or(PatchRefusal::NotMapped)?;
    let mapping = maps.at(start).ok_or(PatchRefusal::NotMapped)?;
    if !mapping.is_executable || mapping.is_writable || start + size > mapping.end {
        return Err(PatchRefusal::NotMapped);
    }
    let is_replaced = || modules::is_replaced(module, maps, path);
    let unreadable = |error: std::io::Error| match is_replaced() {
        true => PatchRefusal::Replaced,
        false => PatchRefusal::Unreadable(error.raw_os_error().unwrap_or(libc::EIO)),
    };
    let mut code = vec![0; size];
    let file = tllmprof_symbols::open(path).map_err(unreadable)?;
    file.read_exact_at(&mut code, offset).map_err(unreadable)?;
    let mut loaded = vec![0; size];
    if !module.read(start, &mut loaded) {
        return Err(PatchRefusal::NotMapped);
    }
    if loaded != code {
        return Err(match is_replaced() {
            true => PatchRefusal::Replaced,
            false => PatchRefusal::Changed,
        });
    }
    entry::examine(start, &code, |address, buffer| module.read(address, buffer))
}
