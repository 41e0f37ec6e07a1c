//! Look-up of a kernel's scope, for later passes over a record.

use tllmprof_record::Strings;

use super::names;
use super::raw::RawLayers;
use crate::events::launches::Launches;

/// Tables to find the scopes of a record's kernels.
#[derive(Debug, Default)]
pub struct Scopes {
    pub(super) raw: RawLayers,
    pub(super) launches: Launches,
}

impl Scopes {
    /// Returns the scope of a graph's kernel that began at `ticks`; `None` if it is not known.
    #[must_use]
    pub fn of_node(&self, exec: u32, node: u32, ticks: u64) -> Option<u32> {
        self.raw.of_node(exec, node, ticks).ok()
    }

    /// Returns the scope of a kernel outside graphs, by its correlation number and its start in nanoseconds; `None` if
    /// it is not known.
    #[must_use]
    pub fn of_kernel(&self, correlation: u32, start: u64) -> Option<u32> {
        let launch = self.launches.of_kernel(correlation, start)?;
        self.raw.of_call(launch.thread, launch.start).ok()
    }

    /// Returns the name of a scope, in the form of the layers' names; empty if no scope was open.
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
