//! The result of an export.

/// Counts of what was exported.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Exported {
    /// Number of events, or of rows of tables.
    pub events: u64,
    /// Number of events that were left out, as there were too many threads, or too many events at once.
    pub left_out: u64,
}
