//! In which scope a kernel was launched, for those who go through a record again.

use tllmprof_record::Strings;

use super::names;
use super::raw::RawLayers;
use crate::events::launches::Launches;

/// What the scopes of a record's kernels are found by.
#[derive(Debug, Default)]
pub struct Scopes {
    pub(super) raw: RawLayers,
    pub(super) launches: Launches,
}

impl Scopes {
    /// The scope of a graph's kernel that began at `ticks`; `None`: not known.
    #[must_use]
    pub fn of_node(&self, exec: u32, node: u32, ticks: u64) -> Option<u32> {
        self.raw.of_node(exec, node, ticks).ok()
    }

    /// The scope of a kernel by itself, by its number and when it began in nanoseconds; `None`: not known.
    #[must_use]
    pub fn of_kernel(&self, correlation: u32, start: u64) -> Option<u32> {
        let launch = self.launches.of_kernel(correlation, start)?;
        self.raw.of_call(launch.thread, launch.start).ok()
    }

    /// What a scope is called, as the layers are; empty: nothing was open.
    #[must_use]
    pub fn name(&self, scope: u32, strings: &Strings) -> String {
        let parts = self.raw.path(scope);
        names::joined(
            parts
                .iter()
                .map(|part| crate::events::facts::name(strings.get(*part))),
        )
    }
}
