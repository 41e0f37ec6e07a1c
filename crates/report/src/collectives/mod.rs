//! The collectives that a process ran, by the kernels that its record has: NCCL's and other libraries'. What several
//! ranks' collectives show together is in `arrivals`.

mod names;
mod tally;

use std::collections::BTreeMap;

pub use names::{Operation, ROWS, Row};
pub use tally::{Collective, CollectiveTally, Found};

impl Row {
    /// What its collectives are called.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{} ({})", self.operation.name(), self.library)
    }
}

impl Found {
    /// How many there are and how long they took, by the row that they are shown by.
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
    /// When it ended.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.ns)
    }
}
