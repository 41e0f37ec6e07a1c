//! The tracks (rows) of the timeline, on which items are drawn.

use tllmprof_record::Metric;

use crate::name::Texts;

/// A track of the timeline: the row on which an item is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Track {
    Windows,
    KernelWindows,
    Iterations,
    /// A thread's calls, functions and ranges, which nest.
    Thread(u32),
    /// The times in which a thread waited for the GIL or held the GIL. They do not nest with the
    /// items of [`Self::Thread`], so they need a track of their own.
    Gil(u32),
    /// NVTX ranges that may begin on one thread and end on another. The field is the thread on
    /// which they ended.
    Ranges(u32),
    /// Samples of a thread's stack.
    Samples(u32),
    /// Kernels, copies and memsets of a stream.
    Stream {
        device: u8,
        stream: u16,
    },
    /// The time from the first work of a stream to its last in each iteration. This time is measured without recording
    /// kernels.
    Spans {
        device: u8,
        stream: u16,
    },
    /// A metric of a GPU over time, such as SM utilization, drawn as a curve.
    Counter {
        device: u8,
        metric: Metric,
    },
    /// The number of tokens that an expert received. It is a total, which belongs to no moment of the timeline, so it
    /// is not drawn.
    Expert {
        layer: u16,
        expert: u16,
    },
}

impl Track {
    /// Returns true if the track belongs to a GPU.
    #[must_use]
    pub const fn is_of_gpu(self) -> bool {
        matches!(
            self,
            Self::Stream { .. } | Self::Spans { .. } | Self::Counter { .. }
        )
    }

    /// Returns the thread that the track belongs to; `None` if it belongs to none.
    #[must_use]
    pub const fn thread(self) -> Option<u32> {
        match self {
            Self::Thread(tid) | Self::Gil(tid) | Self::Ranges(tid) | Self::Samples(tid) => {
                Some(tid)
            }
            _ => None,
        }
    }

    /// Returns the label of the track (row of the timeline), as exported traces show it.
    #[must_use]
    pub fn name(self, texts: Texts<'_>) -> String {
        let thread = |tid| texts.process.facts.thread(tid);
        match self {
            Self::Windows => "windows".to_owned(),
            Self::KernelWindows => "kernels taken".to_owned(),
            Self::Iterations => "iterations".to_owned(),
            Self::Thread(tid) => thread(tid),
            Self::Gil(tid) => format!("GIL, {}", thread(tid)),
            Self::Ranges(tid) => format!("NVTX start/end, {}", thread(tid)),
            Self::Samples(tid) => format!("samples, {}", thread(tid)),
            Self::Stream { device, stream } => format!("GPU {device} stream {stream}"),
            Self::Spans { device, stream } => format!("GPU {device} stream {stream} iterations"),
            Self::Counter { device, metric } => format!("GPU {device} {}", metric.name()),
            Self::Expert { layer, expert } => format!("layer {layer} expert {expert}"),
        }
    }
}
