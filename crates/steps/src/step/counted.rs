//! The kinds of events that can be counted as steps.

use tllmprof_calls::{CALLS, Call, CallPurpose};

/// A kind of event that is counted. Each thread has a counter of its own for each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// A CUDA call. All functions that make this call count, such as the driver's and the runtime's.
    Call(Call),
    /// An NVTX range whose name matches the step rule, or a native function that the step rule names.
    Named,
    /// A Python function that the step rule names. Its count is separate from that of native functions. With the rule
    /// `auto`, the steps may be calls of the native function of one engine or of the Python function of another,
    /// whichever is called first.
    Python,
}

/// The number of kinds of events. The row of a kind is the index of its counter among the counters of a thread.
pub const ROWS: usize = CALLS.len() + 2;

impl Counted {
    /// Returns all kinds of events, in the order of their rows.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..ROWS).map(Self::from_row)
    }

    /// Returns the kind of event that is counted in row `row`.
    pub fn from_row(row: usize) -> Self {
        match CALLS.get(row) {
            Some(row) => Self::Call(row.call),
            None if row == CALLS.len() => Self::Named,
            None => Self::Python,
        }
    }

    /// Returns the row of this kind of event: the index of its counter among the counters of a thread.
    pub const fn row(self) -> usize {
        match self {
            Self::Call(call) => call.index(),
            Self::Named => CALLS.len(),
            Self::Python => CALLS.len() + 1,
        }
    }

    /// Returns true for a range or function that the step rule names, and false for a CUDA call.
    pub const fn is_by_name(self) -> bool {
        matches!(self, Self::Named | Self::Python)
    }

    /// Returns true if the event can open or close an iteration. A query, which may end a wait by polling, can
    /// do that only if the rule is learnt.
    pub fn counts(self) -> bool {
        self.kind()
            .is_none_or(|kind| kind.counts() || kind.queries())
    }

    /// Returns true if the event is a call that launches work (a kernel or a graph).
    pub fn launches(self) -> bool {
        self.kind().is_some_and(CallPurpose::launches)
    }

    /// Returns true if the event is a call that waits for the device.
    pub fn waits(self) -> bool {
        self.kind().is_some_and(CallPurpose::waits)
    }

    fn kind(self) -> Option<CallPurpose> {
        match self {
            Self::Call(call) => Some(call.kind()),
            Self::Named | Self::Python => None,
        }
    }
}

impl From<Call> for Counted {
    fn from(call: Call) -> Self {
        Self::Call(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_row_of_its_own() {
        let rows: Vec<_> = Counted::all().map(Counted::row).collect();
        assert_eq!(rows, (0..ROWS).collect::<Vec<_>>());
    }
}
