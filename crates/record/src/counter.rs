//! The counters in a record's header block, such as the numbers of iterations and of dropped events. A window is a
//! period in which the library records events in detail. A chunk is a piece of the record's file.

use crate::layout::COUNTERS;

/// The number of rows of the table of CUDA calls for which the header block has counters.
const ROWS: u16 = 32;

/// A counter, or another number about the whole record, in the header block. The block has room for more numbers, which
/// are zero. A window is a period in which the library writes events in detail.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Counter {
    /// Number of calls made outside windows to the CUDA function in this row of the table of CUDA calls.
    CallsOutside(u8),
    /// Number of calls made inside windows to the CUDA function in this row of the table of CUDA calls.
    CallsInside(u8),
    /// Iterations, both inside and outside windows.
    Iterations,
    /// Events that were dropped because the record had reached its size limit or the disk was full, and the missing
    /// events of [`Counter::IterationsPassed`].
    EventsDropped,
    /// Strings that could not be written and were dropped.
    StringsDropped,
    /// Chunks (blocks of events in the record) that have been begun, including those that were overwritten since.
    Chunks,
    /// Time in ticks that the recorder's own work took on the program's threads inside windows.
    OwnTicks,
    /// Number of times that a thread took a GIL and dropped it again, including holds that are too short to be
    /// recorded.
    GilHandoffs,
    /// Python garbage collections, both inside and outside windows.
    Collections,
    /// GPU spans whose times could not be read. A span is the work of one stream in one iteration.
    GpuSpansLost,
    /// Windows that have opened.
    Windows,
    /// Iterations of windows for which no event was written, because the library noticed their end only after the
    /// next iteration had begun. They are included in [`Counter::Iterations`] and [`Counter::EventsDropped`].
    IterationsPassed,
    /// Nanoseconds of GPU spans, which are measured only inside windows. Spans of concurrent streams are
    /// added up.
    GpuNs,
    /// The total duration in nanoseconds of those iterations inside windows whose GPU spans were measured.
    NsInside,
    /// The number of latest iterations outside windows that the record keeps (the flight recorder); 0 if it keeps
    /// none.
    Flight,
    /// The number of windows that were dropped, the oldest first, because their chunks were overwritten. They are
    /// still counted in [`Counter::Windows`].
    WindowsDropped,
    /// The latest tick in any dropped window. The windows that are still in the record opened after this tick.
    DroppedUntil,
    /// The record's size limit in bytes, above which the oldest windows are dropped; 0 for no limit.
    Keep,
}

impl Counter {
    /// Returns the counter's index in the header block.
    #[must_use]
    pub const fn index(self) -> usize {
        let index = match self {
            Self::CallsOutside(row) => row as u16 % ROWS,
            Self::CallsInside(row) => ROWS + row as u16 % ROWS,
            Self::Iterations => 64,
            Self::EventsDropped => 65,
            Self::StringsDropped => 66,
            Self::Chunks => 67,
            Self::OwnTicks => 68,
            Self::GilHandoffs => 69,
            Self::Collections => 70,
            Self::GpuSpansLost => 71,
            Self::Windows => 72,
            Self::IterationsPassed => 73,
            Self::Flight => 74,
            Self::GpuNs => 75,
            Self::NsInside => 76,
            Self::WindowsDropped => 77,
            Self::DroppedUntil => 78,
            Self::Keep => 79,
        };
        index as usize
    }
}

const _: () = assert!(Counter::Keep.index() < COUNTERS);
