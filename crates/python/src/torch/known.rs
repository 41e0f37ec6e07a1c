//! The torch modules that the library has names for: those that the program has called, and the modules inside them.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use tllmprof_capture::marks::RegisteredName;
use tllmprof_platform::lifecycle;
use tllmprof_sync::Lock;

use crate::object::Held;

/// A torch module's qualified name, and a weak reference to the module.
pub(crate) struct KnownModule {
    pub name: RegisteredName,
    /// A weak reference to the module, with a callback that runs when the module is freed.
    pub reference: Held,
}

lifecycle::global! {
    stage: Sinks;

    /// The modules that have been called and their submodules, by address. Code that holds this
    /// lock calls no Python function.
    #[fork(reset)]
    #[restart(reset)]
    pub static TABLE: Lock<BTreeMap<usize, KnownModule>> = Lock::new(BTreeMap::new());
}
/// The longest wait for the lock of [`TABLE`].
pub(crate) const TABLE_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the prefixes that fit all of `paths`: a prefix followed by any one of the paths is the name of a module in
/// [`TABLE`]. The paths are relative to a module that was compiled. A prefix is empty or ends with a dot.
pub(crate) fn around(paths: &BTreeSet<&str>) -> Vec<String> {
    let (Some(first), Some(table)) = (paths.first(), TABLE.lock_for(TABLE_TIMEOUT)) else {
        return Vec::new();
    };
    let texts = table.values().filter_map(|known| known.name.text());
    let known: BTreeSet<&str> = texts
        .filter_map(|text| core::str::from_utf8(text).ok())
        .collect();
    let is_around = |start: &&str| {
        let is_known = |path: &&str| known.contains(format!("{start}{path}").as_str());
        (start.is_empty() || start.ends_with('.')) && paths.iter().all(is_known)
    };
    let starts = known.iter().filter_map(|name| name.strip_suffix(first));
    starts.filter(is_around).map(str::to_owned).collect()
}
