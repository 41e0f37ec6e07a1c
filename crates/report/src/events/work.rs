//! Work of GPUs: kernels, copies, memory that is set. This alone knows how events say when it ran.

use tllmprof_record::{Clock, CopyKind, Event, StringId, What};

use super::spans::Span;

/// A piece of work of a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuWork {
    pub device: u8,
    pub stream: u16,
    pub what: GpuWorkKind,
    /// When it began, in ticks, and in nanoseconds of `CLOCK_MONOTONIC`.
    pub ticks: u64,
    pub start: u64,
    /// How long it took, in nanoseconds; 0: the driver did not say.
    pub ns: u64,
}

/// What a GPU did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GpuWorkKind {
    Kernel { name: StringId, correlation: u32 },
    Copy { kind: CopyKind, bytes: u64 },
    Set { bytes: u64 },
}

impl GpuWork {
    /// The work that an event is, if it is one.
    #[inline]
    #[must_use]
    pub fn of(clock: &Clock, event: &Event) -> Option<Self> {
        let (device, stream, what) = match event.what {
            What::GpuKernel {
                device,
                stream,
                name,
                correlation,
            } => (device, stream, GpuWorkKind::Kernel { name, correlation }),
            What::GpuCopy {
                device,
                stream,
                kind,
                bytes,
            } => (device, stream, GpuWorkKind::Copy { kind, bytes }),
            What::GpuSet {
                device,
                stream,
                bytes,
            } => (device, stream, GpuWorkKind::Set { bytes }),
            _ => return None,
        };
        Some(Self {
            device,
            stream,
            what,
            ticks: event.start,
            start: clock.ns(event.start),
            // GPUs have a clock of their own, which counts nanoseconds.
            ns: event.duration,
        })
    }

    /// From when to when it ran.
    #[must_use]
    pub const fn span(&self) -> Span {
        Span {
            start: self.start,
            end: self.start.saturating_add(self.ns),
        }
    }
}
