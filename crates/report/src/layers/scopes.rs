//! Look-up of the scope in which a kernel was launched, for later passes over a record.

use tllmprof_record::Strings;

use super::names;
use super::raw::RawLayers;
use crate::events::launches::Launches;

/// Tables for finding the scopes of a record's kernels: the torch modules, NVTX ranges and marked functions that were
/// open when a kernel was launched.
#[derive(Debug, Default)]
pub struct Scopes {
    pub(super) raw: RawLayers,
    pub(super) launches: Launches,
}

impl Scopes {
    /// Returns the scope of a kernel in a CUDA graph; `None` if it is unknown. `exec` is the number of the executable
    /// graph, `node` the number of the kernel's node, and `ticks` the kernel's start in ticks of the record's clock.
    #[must_use]
    pub fn of_node(&self, exec: u32, node: u32, ticks: u64) -> Option<u32> {
        self.raw.of_node(exec, node, ticks).ok()
    }

    /// Returns the scope of a kernel outside graphs; `None` if the scope is unknown. `correlation` is the number that
    /// CUPTI gives to both the launch and the kernel. `start` is the kernel's start in nanoseconds.
    #[must_use]
    pub fn of_kernel(&self, correlation: u32, start: u64) -> Option<u32> {
        let launch = self.launches.of_kernel(correlation, start)?;
        self.raw.of_call(launch.thread, launch.start).ok()
    }

    /// Returns the name of a scope in the form of layer names, such as `model.layers.3.self_attn/attention`; empty
    /// if no module or range was open.
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
