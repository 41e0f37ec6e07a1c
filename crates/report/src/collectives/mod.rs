//! The collectives that a process ran. They are recognized by the names of kernels in the process's record: those of
//! NCCL and of other communication libraries. `ranks::arrivals` compares the collectives of several ranks.

pub(crate) mod names;
mod tally;

use std::collections::BTreeMap;

pub(crate) use names::Operation;
pub(crate) use names::{CollectivePattern, ROWS};
pub(crate) use tally::CollectiveTally;
pub(crate) use tally::{Collective, Collectives};

impl CollectivePattern {
    /// Returns the label of collectives of this row: operation and library.
    #[must_use]
    pub(crate) fn label(&self) -> String {
        format!("{} ({})", self.operation.name(), self.library)
    }
}

impl Collectives {
    /// Returns the number of collectives and their total time in nanoseconds. The key is the index of the row under
    /// which collectives of the same operation and library are shown.
    pub fn kinds(&self) -> BTreeMap<u8, (u64, u64)> {
        let mut kinds: BTreeMap<u8, (u64, u64)> = BTreeMap::new();
        for one in &self.all {
            let (count, ns) = kinds.entry(ROWS[usize::from(one.row)].first()).or_default();
            *count += 1;
            *ns += one.ns;
        }
        kinds
    }
}

impl Collective {
    /// Returns the moment at which the collective ended, in nanoseconds.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.ns)
    }
}
