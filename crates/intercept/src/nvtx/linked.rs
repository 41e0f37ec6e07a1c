//! Finds an NVTX tool that is linked into the program. A variable of NVTX points to the tool's initialisation
//! function.
//!
//! NVTX calls this function only if `NVTX_INJECTION64_PATH` is not set. This library sets that environment variable, so
//! NVTX no longer calls the function, and this library calls it instead.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tllmprof_platform::elf::{self, ElfModule};
use tllmprof_platform::resolve;

/// Returns the function to which an NVTX variable points. The variable's name is `name` followed by `ending`. It is the
/// variable that the module around `address` uses. Returns null if there is no such variable. If the variable points to
/// this library, returns the function `name` of the module in which the variable lies, or null if that module does not
/// export it.
pub(crate) fn function(address: usize, name: &CStr, ending: &str) -> *mut c_void {
    find(address, name, ending).unwrap_or(core::ptr::null_mut())
}

fn find(address: usize, name: &CStr, ending: &str) -> Option<*mut c_void> {
    let module = elf::containing(address)?;
    let variable = CString::new([name.to_bytes(), ending.as_bytes()].concat()).ok()?;
    let place = exported(&module, &variable).or_else(|| own(&module, &variable))?;
    // SAFETY: a variable of this name is an aligned pointer. Its module is loaded, because the module's code made this
    // call.
    let held = unsafe { AtomicPtr::<c_void>::from_ptr(place.cast()) }.load(Ordering::Relaxed);
    if resolve::is_ours(held.addr()) {
        // The tool's function is exported, but the variable was bound to this library's function of the same name,
        // which comes first in load order. Use the function of the variable's module instead.
        return elf::containing(place.addr())?.defines(name, None);
    }
    Some(held)
}

/// Returns the address to which the loader binds this variable: the definition in the first of the initially loaded
/// modules that has one, or else the definition in `module`. Returns `None` if `module` does not export the variable.
fn exported(module: &ElfModule, name: &CStr) -> Option<*mut c_void> {
    let own = module.defines(name, None)?;
    let mut first = None;
    elf::walk(|other| {
        if resolve::is_initial(other) && !resolve::is_us(other) {
            first = other.defines(name, None);
        }
        first.is_some()
    });
    first.or(Some(own))
}

/// Returns the address of a variable that the module does not export. The address comes from the symbol table of the
/// module's file. Returns `None` if the table was stripped.
fn own(module: &ElfModule, name: &CStr) -> Option<*mut c_void> {
    let path = match module.path().to_bytes() {
        [] => Path::new("/proc/self/exe"),
        path => Path::new(OsStr::from_bytes(path)),
    };
    let file = tllmprof_symbols::open(path).ok()?;
    let address = tllmprof_symbols::address_of(&file, name.to_str().ok()?)?;
    let place = module.base.wrapping_add(usize::try_from(address).ok()?);
    let is_there = module.contains(place) && place.is_multiple_of(align_of::<*mut c_void>());
    is_there.then(|| core::ptr::with_exposed_provenance_mut(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A variable of this test program. Its name ends in `_fnptr`, like that of the variable with which NVTX points to
    /// a linked tool.
    #[unsafe(no_mangle)]
    #[allow(non_upper_case_globals, reason = "as NVTX calls its own")]
    static tllmprof_test_tool_fnptr: AtomicPtr<c_void> = AtomicPtr::new(0x1000 as *mut c_void);

    #[test]
    fn a_variable_of_the_program_is_found_though_it_is_not_exported() {
        let here = find as *const () as usize;
        let ask = |address, name| function(address, name, "_fnptr").addr();
        assert_eq!(ask(here, c"tllmprof_test_tool"), 0x1000);
        assert_eq!(ask(here, c"no_such_tool"), 0);
        assert_eq!(ask(0x10, c"tllmprof_test_tool"), 0);
        let libc = resolve::next(c"getpid").unwrap().addr();
        assert_eq!(ask(libc, c"tllmprof_test_tool"), 0);
        tllmprof_test_tool_fnptr.store(here as *mut c_void, Ordering::Relaxed);
        assert_eq!(ask(here, c"tllmprof_test_tool"), 0, "ours is no tool");
    }
}
