//! Modules that come and go.

use core::ffi::{c_int, c_void};

use libc::dl_phdr_info;

use super::{Module, Walking, iterate, walk};

/// How many modules have been loaded and unloaded so far: moves on with each that comes or goes.
pub fn changes() -> u64 {
    unsafe extern "C" fn first(info: *mut dl_phdr_info, _: usize, changes: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid description; `changes` is the local below.
        unsafe {
            let count = (*info).dlpi_adds.wrapping_add((*info).dlpi_subs);
            changes.cast::<u64>().write(count);
        }
        1
    }
    let mut changes = 0_u64;
    let _walking = Walking::begin();
    // SAFETY: the callback writes to the local, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut changes).cast()) };
    changes
}

/// Runs `act` on all loaded modules, none of which is unloaded meanwhile.
pub fn with_modules(act: impl FnOnce(&[Module])) {
    let mut act = Some(act);
    walk(|_| {
        let mut modules = Vec::new();
        iterate(|module| {
            modules.push(*module);
            false
        });
        if let Some(act) = act.take() {
            act(&modules);
        }
        true
    });
}
