//! What an export reports.

/// How much was exported.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Exported {
    /// Events, or rows of tables.
    pub events: u64,
    /// Events that no place was left for: those of too many threads, or at once.
    pub left_out: u64,
}
