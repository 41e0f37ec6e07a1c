//! The number of events or rows that an export wrote.

/// Numbers of events or rows that an export wrote and left out.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Exported {
    /// Number of events that were written, or of rows if the export writes tables.
    pub events: u64,
    /// Number of events that were left out because no line was free to show them: the record has too many tracks
    /// (such as threads and streams), or a track has too many events that overlap.
    pub left_out: u64,
}
