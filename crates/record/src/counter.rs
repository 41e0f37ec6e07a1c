//! The counters of the header block.

use crate::layout::COUNTERS;

/// Rows of the table of calls that have counters.
const ROWS: u16 = 32;

/// What a counter in the header block counts. Those not listed here are zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Counter {
    /// Calls of a row of the table of calls, outside windows.
    CallsOutside(u8),
    /// Calls of a row of the table of calls, inside windows.
    CallsInside(u8),
    /// Iterations counted, inside windows and outside.
    Iterations,
    /// Events that were not kept: the record was full, or its disk.
    EventsDropped,
    /// Strings that were not kept.
    StringsDropped,
    /// Chunks in use, or that were.
    Chunks,
    /// Ticks of the clock that the recorder itself took from the program's threads inside windows.
    OwnTicks,
    /// Hand-overs of the GIL, kept or too short to be.
    GilHandoffs,
    /// Collections of Python's garbage, inside windows and outside.
    Collections,
    /// GPU times of steps that could not be read.
    GpuSpansLost,
    /// Windows opened.
    Windows,
    /// Iterations of windows without an event: later ones had begun when they would have been written.
    /// They count among [`Counter::Iterations`] and [`Counter::EventsDropped`], too.
    IterationsPassed,
    /// Nanoseconds of GPU spans, which are measured inside windows only; those of streams that work at once add up.
    GpuNs,
    /// Nanoseconds that the iterations took, inside windows, of which GPU spans are taken.
    NsInside,
    /// How many iterations outside windows the record keeps, in chunks that are used again; 0: none.
    Flight,
    /// Windows that the record no longer has, of [`Counter::Windows`]: the oldest, whose chunks are used again.
    WindowsDropped,
    /// The tick up to which windows that the record no longer has were opened; those that it has were opened later.
    DroppedUntil,
    /// Bytes that the record may take, where the oldest windows go once it has them; 0: none go.
    Keep,
}

impl Counter {
    /// Its place in the header block.
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
