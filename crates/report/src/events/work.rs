//! GPU work: kernels, copies and memory sets. Only this module converts the times in events of GPU
//! work: their starts are in ticks of the record's clock, but their durations are in nanoseconds.

use tllmprof_record::{Clock, CopyKind, Event, StringId, Strings, What};

use super::spans::Span;

/// Names of kernels with which the driver copies memory, mostly inside CUDA graphs. These kernels count as copies, as
/// in nsys. The sizes and directions of these copies are not known.
const COPYING_KERNELS: [&str; 3] = ["memcpy32", "memcpy32_post", "memcpy128"];
/// Names of kernels with which the driver sets memory. They count as memory sets.
const SETTING_KERNELS: [&str; 2] = ["memset32", "memset32_post"];

/// A piece of GPU work: a kernel, a copy or a memory set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuWork {
    pub device: u8,
    pub stream: u16,
    pub what: GpuWorkKind,
    /// Start in ticks of the record's clock. The field `start` is the same moment in nanoseconds of
    /// `CLOCK_MONOTONIC`.
    pub ticks: u64,
    pub start: u64,
    /// Length in nanoseconds; 0 if the driver did not report it.
    pub ns: u64,
}

/// The kind of a piece of GPU work, with the values that only this kind of work has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GpuWorkKind {
    Kernel { name: StringId, correlation: u32 },
    Copy { kind: CopyKind, bytes: u64 },
    Set { bytes: u64 },
}

impl GpuWork {
    /// Returns the GPU work that an event describes, or `None` if the event describes no GPU work.
    #[inline]
    #[must_use]
    pub fn from_event(clock: &Clock, event: &Event) -> Option<Self> {
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
            // The duration needs no conversion from ticks: the GPU's clock already counts
            // nanoseconds.
            ns: event.duration,
        })
    }

    /// Returns the work as the analyses count it. A kernel that the driver runs for a copy or a memory set counts as
    /// that copy or memory set.
    #[must_use]
    pub(crate) fn as_counted(self, strings: &Strings) -> Self {
        let GpuWorkKind::Kernel { name, .. } = self.what else {
            return self;
        };
        let what = match strings.get(name) {
            name if COPYING_KERNELS.contains(&name) => GpuWorkKind::Copy {
                kind: CopyKind::DeviceToDevice,
                bytes: 0,
            },
            name if SETTING_KERNELS.contains(&name) => GpuWorkKind::Set { bytes: 0 },
            _ => self.what,
        };
        Self { what, ..self }
    }

    /// Returns the time span in which the work ran, in nanoseconds.
    #[must_use]
    pub const fn span(&self) -> Span {
        Span {
            start: self.start,
            end: self.start.saturating_add(self.ns),
        }
    }
}
