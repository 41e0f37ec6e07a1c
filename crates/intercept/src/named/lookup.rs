//! The `dlsym` door for functions that are followed by name.

use core::ffi::{CStr, c_char, c_void};

use tllmprof_platform::errno::Kept;
use tllmprof_platform::panics::contained;
use tllmprof_platform::thread::LookingUp;
use tllmprof_platform::{elf, got, resolve};

use super::{look, pool, with};
use crate::dlsym;

/// A program looks `name` up: what it gets instead of the function, null for what it would get
/// without us. For the doors, which leave the caller's address in place if it is null.
///
/// # Safety
/// As `dlsym`, or as `dlvsym` where there is a `version`.
pub unsafe extern "C" fn lookup(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> *mut c_void {
    // First of all: the next line calls a function of the host's.
    let Some(_looking_up) = LookingUp::enter() else {
        return core::ptr::null_mut();
    };
    contained(core::ptr::null_mut(), || {
        let _errno = Kept::new();
        look();
        // SAFETY: the program passed both to `dlsym` or `dlvsym`, which read them as terminated strings.
        let (name, version) = unsafe {
            let version = (!version.is_null()).then(|| CStr::from_ptr(version));
            (CStr::from_ptr(name), version)
        };
        stand_in(handle, name, version, caller)
    })
}

/// What a look-up of `name` gets instead of the function; null for the function.
fn stand_in(
    handle: *mut c_void,
    name: &CStr,
    version: Option<&CStr>,
    caller: usize,
) -> *mut c_void {
    let is_named = with(|followed| {
        followed
            .by_name
            .iter()
            .any(|function| function.is_called(name))
    });
    // RTLD_NEXT means what comes after the caller, and is the loader's to answer. CUDA's functions
    // have their own stubs.
    if is_named != Some(true) || handle == libc::RTLD_NEXT || dlsym::role_of(name).is_some() {
        return core::ptr::null_mut();
    }
    let found = if handle == libc::RTLD_DEFAULT {
        from_scope(caller, name, version)
    } else {
        // SAFETY: the program's own arguments; an answer by handle does not depend on who asks.
        unsafe { dlsym::real(handle, name, version) }.expose_provenance()
    };
    let stub = with(|followed| {
        let is_it = followed.by_name.iter().any(|function| {
            function.is_called(name) && (function.found.is_ifunc || function.found.address == found)
        });
        is_it.then(|| pool::stub(found)).flatten()
    });
    let stub = stub
        .flatten()
        .filter(|_| found != 0 && !resolve::is_ours(caller));
    stub.map_or(
        core::ptr::null_mut(),
        core::ptr::with_exposed_provenance_mut,
    )
}

/// What the code at `caller` gets by RTLD_DEFAULT; 0 where that is unknown.
fn from_scope(caller: usize, name: &CStr, version: Option<&CStr>) -> usize {
    let mut found = 0;
    elf::with_modules(|modules| {
        let module = modules.iter().find(|module| module.contains(caller));
        let binding = module.and_then(|module| got::binding(module, name, version, modules));
        found = binding
            .filter(|found| !found.is_ifunc)
            .map_or(0, |found| found.address);
    });
    found
}
