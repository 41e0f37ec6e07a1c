//! Look-ups of functions that a `sym:` rule names: `dlsym` returns a stub, which counts the calls and jumps to the
//! function.

use core::ffi::{CStr, c_char, c_void};

use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::panics::contained;
use tllmprof_platform::thread::LookingUp;
use tllmprof_platform::{elf, got, resolve};

use super::{look, pool, with_followed};
use crate::dlsym;

/// Returns the address of the stub (code that counts calls) that a look-up of `name` must return, or null if the
/// look-up must not be changed. The assembly code of `dlsym` and `dlvsym` calls this function. If the result is null,
/// that code handles the look-up as if no `sym:` rule named the function: if the name is not that of a function of CUDA
/// or NCCL, it jumps to the real `dlsym`, which sees the caller's return address.
///
/// # Safety
/// The arguments must be valid for `dlsym`, or for `dlvsym` if `version` is not null.
pub(crate) unsafe extern "C" fn lookup(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> *mut c_void {
    // Enter `LookingUp` first: the following code calls functions of the C library, which may make look-ups.
    let Some(_looking_up) = LookingUp::enter() else {
        return core::ptr::null_mut();
    };
    contained(core::ptr::null_mut(), || {
        let _errno = SavedErrno::new();
        look();
        // SAFETY: the program passed both to `dlsym` or `dlvsym`, which read them as terminated strings.
        let (name, version) = unsafe {
            let version = (!version.is_null()).then(|| CStr::from_ptr(version));
            (CStr::from_ptr(name), version)
        };
        stand_in(handle, name, version, caller)
    })
}

/// Returns the stub (which counts calls) that a look-up of `name` must return, or null if the look-up must return the
/// function itself.
fn stand_in(
    handle: *mut c_void,
    name: &CStr,
    version: Option<&CStr>,
    caller: usize,
) -> *mut c_void {
    let is_named = with_followed(|followed| {
        followed
            .by_name
            .iter()
            .any(|function| function.is_called(name))
    });
    // Return null if no rule names the function, or if other code must find it. Only the real `dlsym` can search the
    // modules after the caller (RTLD_NEXT). For functions of CUDA and NCCL, `crate::dlsym` returns their stubs.
    if is_named != Some(true) || handle == libc::RTLD_NEXT || dlsym::role_of(name).is_some() {
        return core::ptr::null_mut();
    }
    let found = if handle == libc::RTLD_DEFAULT {
        from_scope(caller, name, version)
    } else {
        // SAFETY: the arguments are those that the program passed. A look-up by handle does not depend on the caller.
        unsafe { dlsym::real(handle, name, version) }.expose_provenance()
    };
    let stub = with_followed(|followed| {
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

/// Returns the address that a look-up by RTLD_DEFAULT finds for the code at `caller`. Returns 0 if the address is
/// unknown, or if the function is an IFUNC.
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
