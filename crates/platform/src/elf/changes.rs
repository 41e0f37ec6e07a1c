//! Queries of the loader: how often modules were loaded or unloaded, how much thread-local memory is not allocated
//! yet, and which modules are loaded.

use super::walk::{Description, Walking, each_described, iterate};
use super::{ElfModule, Memory, walk};

/// Returns the number of modules that have been loaded so far, plus the number that have been unloaded.
pub fn changes() -> u64 {
    let mut changes = 0;
    let _walking = Walking::begin();
    // The loader reports the two counts of loads and unloads with each module, so the first module
    // is enough.
    each_described(&mut |Description(info)| {
        changes = info.dlpi_adds.wrapping_add(info.dlpi_subs);
        true
    });
    changes
}

/// Returns the size in bytes, including room for alignment, of the thread-local variables that the C library has not
/// yet allocated for the calling thread. The C library allocates them when the thread first uses them.
pub fn unallocated_thread_locals() -> usize {
    let mut bytes = 0;
    let _walking = Walking::begin();
    each_described(&mut |Description(info)| {
        if info.dlpi_tls_data.is_null() {
            // SAFETY: the loader passed this description, and the module is loaded.
            let memory = unsafe { Memory::described_by(info) };
            let mut headers = memory.headers().iter();
            let own = headers.find(|header| header.p_type == libc::PT_TLS);
            bytes += own.map_or(0, |header| (header.p_memsz + header.p_align) as usize);
        }
        false
    });
    bytes
}

/// Runs `act` on a list of all loaded modules. The loader's lock is held during the call, so no module is unloaded.
/// If `act` calls functions of the program, these functions must not wait for a thread that may itself wait for the
/// loader's lock. The list is allocated from [`crate::heap`].
pub fn with_modules(act: impl FnOnce(&[ElfModule])) {
    let mut act = Some(act);
    let mut act_once = |modules: &[ElfModule]| {
        if let Some(act) = act.take() {
            act(modules);
        }
    };
    pass_modules(&mut act_once);
}

/// The part of [`with_modules`] that does not depend on the type of `act`. It is separate so that it is compiled only
/// once.
fn pass_modules(act: &mut dyn FnMut(&[ElfModule])) {
    walk(|_| {
        let mut modules = Vec::new();
        iterate(&mut |module| {
            modules.push(*module);
            false
        });
        act(&modules);
        true
    });
}
