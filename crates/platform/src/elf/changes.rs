//! Detects modules that were loaded or unloaded.

use super::walk::{Description, Walking, each_described, iterate};
use super::{Module, walk};

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

/// Runs `act` on all loaded modules. None is unloaded during the call: the loader's lock is held. Functions
/// of the host that `act` calls must not wait for another thread that may wait for the loader; `act`
/// allocates from [`crate::heap`].
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
