//! The collectives (such as all-reduce) that a process ran. They are recognized by the names of
//! kernels in the process's record: those of NCCL and of other communication libraries.
//! `ranks::arrivals` compares the collectives of several ranks.

pub(crate) mod names;
mod tally;

use std::collections::BTreeMap;

pub(crate) use names::Operation;
pub(crate) use names::{CollectivePattern, ROWS};
pub(crate) use tally::CollectiveTally;
pub(crate) use tally::{Collective, Collectives};

impl CollectivePattern {
    /// Returns the label of the collectives that this row of the table of kernel names recognizes: the operation and
    /// the library.
    #[must_use]
    pub(crate) fn label(&self) -> String {
        format!("{} ({})", self.operation.name(), self.library)
    }
}

impl Collectives {
    /// Returns, for each operation of each library, the number of collectives and their total time
    /// in nanoseconds. The key is the index of the first row for that operation and library in the
    /// table of kernel names.
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
    /// Returns the time at which the collective ended, in nanoseconds of `CLOCK_MONOTONIC`.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.ns)
    }
}
