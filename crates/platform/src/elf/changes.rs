//! Detects modules that were loaded or unloaded, and memory that they need later.

use super::walk::{Description, Walking, each_described, iterate};
use super::{Memory, Module, walk};

/// Returns the number of modules that have been loaded plus the number unloaded so far.
pub fn changes() -> u64 {
    let mut changes = 0;
    let _walking = Walking::begin();
    // The loader reports it together with each module.
    each_described(&mut |Description(info)| {
        changes = info.dlpi_adds.wrapping_add(info.dlpi_subs);
        true
    });
    changes
}

/// Returns the bytes of thread-local variables that the C library has yet to allocate for the calling thread, when the
/// thread first uses them.
pub fn unallocated_thread_locals() -> usize {
    let mut bytes = 0;
    let _walking = Walking::begin();
    each_described(&mut |Description(info)| {
        if info.dlpi_tls_data.is_null() {
            // SAFETY: the loader has given the description, of a module that is loaded.
            let memory = unsafe { Memory::described_by(info) };
            let mut headers = memory.headers().iter();
            let own = headers.find(|header| header.p_type == libc::PT_TLS);
            bytes += own.map_or(0, |header| (header.p_memsz + header.p_align) as usize);
        }
        false
    });
    bytes
}

/// Runs `act` on all loaded modules. None is unloaded during the call: the loader's lock is held. Functions
/// of the host that `act` calls must not wait for another thread that may wait for the loader; `act`
/// allocates from [`crate::heap`].
pub fn with_modules(act: impl FnOnce(&[Module])) {
    let mut act = Some(act);
    let mut act_once = |modules: &[Module]| {
        if let Some(act) = act.take() {
            act(modules);
        }
    };
    pass_modules(&mut act_once);
}

/// One copy for all of [`with_modules`].
fn pass_modules(act: &mut dyn FnMut(&[Module])) {
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
