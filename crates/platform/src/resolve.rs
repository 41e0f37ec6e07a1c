//! Finds the function that a name would refer to if this library were not loaded. A hook calls this function.
//!
//! `dlsym` and `libloading` are not used: the program is in the middle of a call, which must neither wait for
//! the loader's lock nor change the program's `dlerror`.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::elf;
use crate::elf::ElfModule;
use crate::lifecycle;

/// Capacity of the list of modules that were loaded when the process started.
const INITIAL: usize = 512;

lifecycle::global! {
    #[fork(keep = "the child's modules are its parent's")]
    static INITIAL_BASES: [AtomicUsize; INITIAL] = [const { AtomicUsize::new(0) }; INITIAL];
    /// True if this library was loaded after the process had started, so it is not one of the initially
    /// loaded modules.
    #[fork(keep = "as the modules")]
    static IS_LATE: AtomicBool = AtomicBool::new(false);
}

/// The set of modules in which a function's name is searched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The modules that the loader would search for the caller: the initially loaded ones, then the caller's module and
    /// the modules that it needs.
    Caller,
    /// The modules of [`Self::Caller`], and then any other loaded module if none of these defines the name.
    All,
}

/// Stores which modules were loaded when the process started (the global scope). Called when the library is
/// loaded, or earlier by code that needs the list.
pub fn remember_initial() {
    if INITIAL_BASES[0].load(Ordering::Relaxed) != 0 {
        return;
    }
    // In the loader's list, a library that was loaded after the start comes after the C library, which defines
    // `setenv`. So if no module after this library defines `setenv`, this library was loaded after the start, for
    // example by NVTX or `tllmprof attach`. Then the list may also contain other modules that were loaded after the
    // start, so the initial modules must be counted.
    let is_late = next(c"setenv").is_none();
    let mut count = usize::MAX;
    if is_late {
        IS_LATE.store(true, Ordering::Relaxed);
        elf::with_modules(|modules| count = initial_among(modules));
    }
    let mut index = 0;
    elf::walk(|module| {
        if let Some(place) = INITIAL_BASES.get(index) {
            place.store(module.start, Ordering::Relaxed);
        }
        index += 1;
        index >= count
    });
}

/// Returns the number of modules at the beginning of `modules`, the loader's list, that were loaded when the process
/// started. The last of them is the last module in the list that the executable needs, directly or indirectly.
fn initial_among(modules: &[ElfModule]) -> usize {
    let mut last = 0;
    let mut needed = vec![0];
    let mut next = 0;
    while let Some(index) = needed.get(next).copied() {
        next += 1;
        last = last.max(index);
        modules[index].each_needed(|name| {
            let is_it = |module: &ElfModule| {
                module.soname() == Some(name) || module.file_name() == name.to_bytes()
            };
            if let Some(found) = modules.iter().position(is_it)
                && !needed.contains(&found)
            {
                needed.push(found);
            }
        });
    }
    last + 1
}

/// Returns true if this library was loaded after the process had started.
pub fn is_late() -> bool {
    remember_initial();
    IS_LATE.load(Ordering::Relaxed)
}

/// Returns the function `name` of the C library itself, even if another library has a function of this name.
pub fn of_c_library(name: &CStr) -> Option<*mut c_void> {
    let mut found = None;
    elf::walk(|module| {
        let is_one = |soname: &CStr| {
            let soname = soname.to_bytes();
            // Before glibc 2.34, the C library also had the files libdl and libpthread, so the function may be in any
            // of the three.
            let files: [&[u8]; 3] = [b"libc.so.", b"libdl.so.", b"libpthread.so."];
            files.iter().any(|file| soname.starts_with(file))
        };
        if module.soname().is_some_and(is_one) {
            found = module.defines(name, None);
        }
        found.is_some()
    });
    found
}

/// Returns true if `module` was loaded when the process started.
pub fn is_initial(module: &ElfModule) -> bool {
    INITIAL_BASES
        .iter()
        .map(|base| base.load(Ordering::Relaxed))
        .take_while(|&base| base != 0)
        .any(|base| base == module.start)
}

/// Returns true if `module` is this library.
pub fn is_us(module: &ElfModule) -> bool {
    module.contains(is_us as *const () as usize)
}

/// Returns true if `address` lies in this library.
pub fn is_ours(address: usize) -> bool {
    elf::containing(is_ours as *const () as usize).is_some_and(|module| module.contains(address))
}

/// Returns true if the code at `address` lies in a module that comes before this library in load order.
pub fn comes_before_us(address: usize) -> bool {
    let us = comes_before_us as *const () as usize;
    let mut is_before = false;
    elf::walk(|module| {
        is_before = module.contains(address) && !module.contains(us);
        is_before || module.contains(us)
    });
    is_before
}

/// Returns the function `name` of the first module after this library in load order that defines it. The process
/// would use this function if the library were not preloaded.
pub fn next(name: &CStr) -> Option<*mut c_void> {
    let us = is_ours as *const () as usize;
    let (mut passed, mut found) = (false, None);
    elf::walk(|module| {
        if passed {
            found = module.defines(name, None);
        }
        passed |= module.contains(us);
        found.is_some()
    });
    found
}

/// Returns the function `name` of a module that comes before this library in load order. Other modules bind
/// to that function and not to this library's. Returns `None` if this library was loaded after the start.
pub fn before_us(name: &CStr) -> Option<*mut c_void> {
    if is_late() {
        return None;
    }
    let mut found = None;
    elf::walk(|module| {
        if !is_us(module) {
            found = module.defines(name, None);
        }
        found.is_some() || is_us(module)
    });
    found
}

/// Returns the function to which the name `name` in the code at `caller` would refer if this library were not loaded.
///
/// If `version` is `None`, the caller's module determines the symbol version. So if a process has two CUDA runtimes,
/// each caller gets the function of the runtime that it was linked with.
pub fn resolve(
    caller: usize,
    name: &CStr,
    version: Option<&CStr>,
    scope: Scope,
) -> Option<*mut c_void> {
    remember_initial();
    let us = is_ours as *const () as usize;
    let module = elf::containing(caller);
    let version = version.or_else(|| module.as_ref()?.wants(name));
    let mut passed = IS_LATE.load(Ordering::Relaxed);
    let global = search(name, version, |candidate| {
        let after_us = passed && is_initial(candidate);
        passed |= candidate.contains(us);
        after_us
    });
    global
        .or_else(|| in_needed(&module?, name, version, us))
        .or_else(|| match scope {
            Scope::Caller => None,
            Scope::All => search(name, version, |candidate| !candidate.contains(us))
                .or_else(|| search(name, None, |candidate| !candidate.contains(us))),
        })
}

fn search(
    name: &CStr,
    version: Option<&CStr>,
    mut eligible: impl FnMut(&ElfModule) -> bool,
) -> Option<*mut c_void> {
    let mut found = None;
    elf::walk(|module| {
        if eligible(module) {
            found = module.defines(name, version);
        }
        found.is_some()
    });
    found
}

/// The largest number of modules that are searched in a caller's local scope: more than twice the number seen
/// in any process.
const NEEDED: usize = 256;

/// Searches the local scope of a module: the module itself and, breadth first, the modules that it needs. These modules
/// stay loaded during the search, because the caller is running code of `module`. Allocates nothing, because the caller
/// may be the program's allocator.
fn in_needed(
    module: &ElfModule,
    name: &CStr,
    version: Option<&CStr>,
    us: usize,
) -> Option<*mut c_void> {
    let mut scope = [0; NEEDED];
    scope[0] = module.start;
    let mut length = 1;
    let mut index = 0;
    while index < length {
        let module = elf::containing(scope[index])?;
        if !module.contains(us)
            && let Some(found) = module.defines(name, version)
        {
            return Some(found);
        }
        module.each_needed(|needed| {
            elf::walk(|candidate| {
                let is_it = candidate.soname() == Some(needed);
                if is_it && length < NEEDED && !scope[..length].contains(&candidate.start) {
                    scope[length] = candidate.start;
                    length += 1;
                }
                is_it
            });
        });
        index += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> usize {
        here as *const () as usize
    }

    /// Returns the function that the loader finds under `name`.
    fn expected(name: &CStr) -> *mut c_void {
        // SAFETY: the name is terminated. RTLD_DEFAULT searches the modules that the process started with.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
        found
    }

    #[test]
    fn a_caller_gets_what_the_loader_would_give_it() {
        for scope in [Scope::Caller, Scope::All] {
            for name in [c"getpid", c"pthread_create", c"dlsym"] {
                assert_eq!(resolve(here(), name, None, scope), Some(expected(name)));
            }
            assert_eq!(resolve(here(), c"no_such_function", None, scope), None);
        }
        assert_eq!(next(c"getpid"), Some(expected(c"getpid")));
        assert_eq!(next(c"no_such_function"), None);
    }

    #[test]
    fn a_version_that_nobody_has_is_found_in_no_callers_scope() {
        let no_version = Some(c"GLIBC_0.0");
        let found = |scope| resolve(here(), c"getpid", no_version, scope);
        assert_eq!(found(Scope::Caller), None);
        assert_eq!(
            found(Scope::All),
            Some(expected(c"getpid")),
            "without a version"
        );
    }

    #[test]
    fn a_caller_in_no_module_has_no_scope_of_its_own() {
        assert_eq!(
            resolve(1, c"getpid", None, Scope::Caller),
            Some(expected(c"getpid"))
        );
        assert_eq!(resolve(1, c"no_such_function", None, Scope::All), None);
    }

    #[test]
    fn what_a_module_needs_is_its_scope() {
        let us = elf::containing(here()).unwrap();
        let found = |name| in_needed(&us, name, None, 0);
        assert_eq!(found(c"getpid"), Some(expected(c"getpid")));
        assert_eq!(found(c"no_such_function"), None);
    }

    #[test]
    fn this_module_is_ours_and_was_there_from_the_start() {
        remember_initial();
        let us = elf::containing(here()).unwrap();
        assert!(is_us(&us) && is_ours(here()) && is_initial(&us));
        let libc = expected(c"getpid").addr();
        assert!(!is_ours(libc));
        let libc = elf::containing(libc).unwrap();
        assert!(!is_us(&libc) && is_initial(&libc));
        assert!(!is_late());
        let getpid = of_c_library(c"getpid");
        assert_eq!(getpid, Some(expected(c"getpid")));
        assert_eq!(of_c_library(c"no_such_function"), None);
        elf::with_modules(|modules| {
            let count = initial_among(modules);
            let is_there = |name: &CStr| {
                let initial = modules[..count].iter();
                initial
                    .filter(|module| module.soname() == Some(name))
                    .count()
            };
            assert_eq!(is_there(c"libc.so.6"), 1);
            assert!(count <= modules.len());
        });
        // In a unit test this library is part of the test program, which is the first module in
        // load order. So no module comes before it.
        for address in [here(), expected(c"getpid").addr(), 1] {
            assert!(!comes_before_us(address));
        }
    }
}
