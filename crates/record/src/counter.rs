//! The counters of the header block.

use crate::layout::COUNTERS;

/// Rows of the table of calls that have counters.
const ROWS: u16 = 32;

/// A counter in the header block. Counters not listed here are zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Counter {
    /// Calls of a row of the table of calls, outside windows.
    CallsOutside(u8),
    /// Calls of a row of the table of calls, inside windows.
    CallsInside(u8),
    /// Iterations counted inside and outside windows.
    Iterations,
    /// Events that were dropped, because the record or its disk was full.
    EventsDropped,
    /// Strings that were dropped.
    StringsDropped,
    /// Chunks that are or were in use.
    Chunks,
    /// Ticks that the recorder itself took from the program's threads inside windows.
    OwnTicks,
    /// Hand-overs of the GIL, including those too short to be recorded.
    GilHandoffs,
    /// Python garbage collections inside and outside windows.
    Collections,
    /// GPU times of steps that could not be read.
    GpuSpansLost,
    /// Windows opened.
    Windows,
    /// Iterations of windows without an event, because later iterations had begun before the event could be
    /// written. They are included in [`Counter::Iterations`] and [`Counter::EventsDropped`].
    IterationsPassed,
    /// Nanoseconds of GPU spans, which are measured only inside windows; spans of concurrent streams are
    /// added up.
    GpuNs,
    /// Nanoseconds of the iterations inside windows whose GPU spans are measured.
    NsInside,
    /// Number of iterations outside windows that the record keeps in reused chunks; 0 for none.
    Flight,
    /// Windows that were dropped, out of [`Counter::Windows`]: the oldest ones, whose chunks are reused.
    WindowsDropped,
    /// The tick up to which dropped windows were opened. All windows that are kept opened later.
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
