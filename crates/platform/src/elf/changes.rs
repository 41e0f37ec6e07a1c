//! Modules that come and go.

use super::walk::{Description, Walking, each_described, iterate};
use super::{Module, walk};

/// How many modules have been loaded and unloaded so far: moves on with each that comes or goes.
pub fn changes() -> u64 {
    let mut changes = 0;
    let _walking = Walking::begin();
    // The loader reports it with each module.
    each_described(&mut |Description(info)| {
        changes = info.dlpi_adds.wrapping_add(info.dlpi_subs);
        true
    });
    changes
}

/// Runs `act` on all loaded modules, none of which is unloaded meanwhile: the loader's lock is held. What `act` calls of
/// the host's may not wait for another thread that may wait for the loader; what it allocates is of [`crate::heap`].
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
