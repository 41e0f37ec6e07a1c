//! One event: 24 bytes.
//!
//! | bytes | |
//! |---|---|
//! | 0–7 | start, in ticks of the record's clock |
//! | 8–11 | duration, shifted right by the scale |
//! | 12 | kind; 0 is none |
//! | 13 | bits 0–5: scale; bit 6: cut; bit 7: failed |
//! | 14–15 | code |
//! | 16–23 | value |

use crate::info::Info;
use crate::kinds::{CallKind, CopyKind, Edge, RangeKind};
use crate::layout::EVENT_BYTES;
use crate::metric::Metric;

/// The id of a string in the record. The same text may have several.
pub type StringId = u32;

/// The id of no string: what had no room in the table.
pub const NO_STRING: StringId = 0;

/// An event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// When it began, in ticks of the record's clock.
    pub start: u64,
    /// How long it took, in ticks; of what a GPU did in nanoseconds. A record keeps its upper 32 bits.
    pub duration: u64,
    /// Ended by something else than its own end: the window's, the process's.
    pub cut: bool,
    /// The call returned an error, the function raised.
    pub failed: bool,
    pub what: What,
}

/// What an event is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// The events behind it in its chunk are of this thread. `tid` is the kernel's id of it.
    Thread { tid: u32 },
    /// Its thread's name.
    ThreadName { name: StringId },
    /// The text of a string follows, `bytes` of UTF-8, padded to whole events.
    String { id: StringId, bytes: u16 },
    /// A fact about the process. What `value` is says [`Info`]; `None`: one that is not known here.
    Info { key: Option<Info>, value: u64 },
    /// The name and kind of a row of the table of calls; `None`: a kind that is not known here.
    CallName {
        row: u8,
        kind: Option<CallKind>,
        name: StringId,
    },
    /// A call to CUDA, from its entry to its return. `capturing`: its thread captures a stream.
    Call {
        row: u8,
        capturing: bool,
        stream: u64,
    },
    /// An iteration, written when it ends. `n` counts from 0.
    Iteration { n: u64 },
    /// A window opens with an iteration, or closes after one.
    Window { edge: Edge, iteration: u64 },
    /// An NVTX range, written when it ends. `NO_STRING` is the default domain.
    Range {
        kind: RangeKind,
        domain: StringId,
        name: StringId,
    },
    /// An NVTX mark.
    Mark { domain: StringId, name: StringId },
    /// A collection of Python's garbage.
    Gc { generation: u16, collected: u64 },
    /// A thread waited for the GIL.
    GilWait,
    /// A thread held the GIL.
    GilHold,
    /// A thread gave the GIL up because another asked for it.
    GilForced,
    /// A run of a marked Python function.
    Function { name: StringId },
    /// What a stream did in an iteration, from its first work to its last; `start` as near as the
    /// host's clock is known. `device` is its ordinal (to 15), `stream` a number the recorder gave it
    /// (to 4095).
    GpuSpan {
        device: u8,
        stream: u16,
        iteration: u64,
    },
    /// So many events of this thread are missing here.
    Dropped { events: u64 },
    /// A kernel, by itself or as a node of a graph. Its duration is in *nanoseconds*, as those of
    /// [`What::GpuCopy`] and [`What::GpuSet`]. All that one call launched has the same `correlation`.
    /// `device` and `stream` as in [`What::GpuSpan`], here and below.
    GpuKernel {
        device: u8,
        stream: u16,
        name: StringId,
        correlation: u32,
    },
    /// A copy that the GPU made. `bytes` to 2^60.
    GpuCopy {
        device: u8,
        stream: u16,
        kind: CopyKind,
        bytes: u64,
    },
    /// Memory that the GPU set.
    GpuSet { device: u8, stream: u16, bytes: u64 },
    /// The taking of kernels begins with an iteration, or ends after one. GPU times of iterations in
    /// between are stretched by it.
    KernelWindow { edge: Edge, iteration: u64 },
    /// A metric of a GPU over the event's duration, in thousandths of its unit.
    GpuMetric {
        device: u8,
        metric: Option<Metric>,
        thousandths: u64,
    },
    /// Tokens that the learned router of an MoE layer sent to an expert, in all.
    ExpertLoad {
        layer: u16,
        expert: u16,
        tokens: u64,
    },
}

/// Bytes that are no event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoEvent {
    /// A kind that is not known here: one that a later version writes, or damage.
    Unknown,
    /// A known kind with a code that it cannot have, or a duration past 64 bits.
    Bad,
}

mod kind {
    pub const THREAD: u8 = 1;
    pub const THREAD_NAME: u8 = 2;
    pub const STRING: u8 = 3;
    pub const INFO: u8 = 4;
    pub const CALL_NAME: u8 = 5;
    pub const CALL: u8 = 6;
    pub const ITERATION: u8 = 7;
    pub const WINDOW: u8 = 8;
    pub const RANGE: u8 = 9;
    pub const MARK: u8 = 10;
    pub const GC: u8 = 11;
    pub const GIL_WAIT: u8 = 12;
    pub const GIL_HOLD: u8 = 13;
    pub const GIL_FORCED: u8 = 14;
    pub const FUNCTION: u8 = 15;
    pub const GPU_SPAN: u8 = 16;
    pub const DROPPED: u8 = 17;
    pub const GPU_KERNEL: u8 = 18;
    pub const GPU_COPY: u8 = 19;
    pub const GPU_SET: u8 = 20;
    pub const KERNEL_WINDOW: u8 = 21;
    pub const GPU_METRIC: u8 = 22;
    pub const EXPERT_LOAD: u8 = 23;
}

const SCALE: u8 = 0x3f;
const CUT: u8 = 0x40;
const FAILED: u8 = 0x80;

const CAPTURING: u16 = 0x100;

/// Bits of a copy's value that are its bytes, of a load's that are its tokens.
const COPY_BYTES: u64 = (1 << 60) - 1;
const TOKENS: u64 = (1 << 48) - 1;

/// A device and a number of its own in a code.
const fn place(device: u8, number: u16) -> u16 {
    (device as u16 & 0xf) << 12 | number & 0xfff
}

const fn device(code: u16) -> u8 {
    (code >> 12) as u8
}

const fn stream(code: u16) -> u16 {
    code & 0xfff
}

/// Two ids in a value: a domain's above a name's.
const fn pair(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

const fn low(value: u64) -> u32 {
    value as u32
}

const fn high(value: u64) -> u32 {
    (value >> 32) as u32
}

impl What {
    /// Kind, code and value.
    #[inline]
    const fn parts(self) -> (u8, u16, u64) {
        match self {
            Self::Thread { tid } => (kind::THREAD, 0, tid as u64),
            Self::ThreadName { name } => (kind::THREAD_NAME, 0, name as u64),
            Self::String { id, bytes } => (kind::STRING, bytes, id as u64),
            Self::Info { key, value } => {
                let code = match key {
                    Some(key) => key as u16,
                    None => 0,
                };
                (kind::INFO, code, value)
            }
            Self::CallName { row, kind, name } => {
                let class = match kind {
                    Some(kind) => kind as u32,
                    None => u32::MAX,
                };
                (kind::CALL_NAME, row as u16, pair(class, name))
            }
            Self::Call {
                row,
                capturing,
                stream,
            } => {
                let flag = if capturing { CAPTURING } else { 0 };
                (kind::CALL, row as u16 | flag, stream)
            }
            Self::Iteration { n } => (kind::ITERATION, 0, n),
            Self::Window { edge, iteration } => (kind::WINDOW, edge as u16, iteration),
            Self::Range { kind, domain, name } => (kind::RANGE, kind as u16, pair(domain, name)),
            Self::Mark { domain, name } => (kind::MARK, 0, pair(domain, name)),
            Self::Gc {
                generation,
                collected,
            } => (kind::GC, generation, collected),
            Self::GilWait => (kind::GIL_WAIT, 0, 0),
            Self::GilHold => (kind::GIL_HOLD, 0, 0),
            Self::GilForced => (kind::GIL_FORCED, 0, 0),
            Self::Function { name } => (kind::FUNCTION, 0, name as u64),
            Self::GpuSpan {
                device,
                stream,
                iteration,
            } => (kind::GPU_SPAN, place(device, stream), iteration),
            Self::Dropped { events } => (kind::DROPPED, 0, events),
            Self::GpuKernel {
                device,
                stream,
                name,
                correlation,
            } => (
                kind::GPU_KERNEL,
                place(device, stream),
                pair(correlation, name),
            ),
            Self::GpuCopy {
                device,
                stream,
                kind,
                bytes,
            } => (
                kind::GPU_COPY,
                place(device, stream),
                (kind as u64) << 60 | bytes & COPY_BYTES,
            ),
            Self::GpuSet {
                device,
                stream,
                bytes,
            } => (kind::GPU_SET, place(device, stream), bytes),
            Self::KernelWindow { edge, iteration } => (kind::KERNEL_WINDOW, edge as u16, iteration),
            Self::GpuMetric {
                device,
                metric,
                thousandths,
            } => {
                let metric = match metric {
                    Some(metric) => metric as u16,
                    None => 0,
                };
                (kind::GPU_METRIC, place(device, metric), thousandths)
            }
            Self::ExpertLoad {
                layer,
                expert,
                tokens,
            } => (
                kind::EXPERT_LOAD,
                layer,
                (expert as u64) << 48 | tokens & TOKENS,
            ),
        }
    }

    const fn from_parts(kind: u8, code: u16, value: u64) -> Result<Self, NoEvent> {
        Ok(match kind {
            kind::THREAD => Self::Thread { tid: low(value) },
            kind::THREAD_NAME => Self::ThreadName { name: low(value) },
            kind::STRING => Self::String {
                id: low(value),
                bytes: code,
            },
            kind::INFO => Self::Info {
                key: Info::from_code(code),
                value,
            },
            kind::CALL_NAME => Self::CallName {
                row: code as u8,
                kind: CallKind::from_code(high(value)),
                name: low(value),
            },
            kind::CALL => Self::Call {
                row: code as u8,
                capturing: code & CAPTURING != 0,
                stream: value,
            },
            kind::ITERATION => Self::Iteration { n: value },
            kind::WINDOW => Self::Window {
                edge: match Edge::from_code(code) {
                    Some(edge) => edge,
                    None => return Err(NoEvent::Bad),
                },
                iteration: value,
            },
            kind::RANGE => {
                let kind = match code {
                    0 => RangeKind::PushPop,
                    1 => RangeKind::StartEnd,
                    _ => return Err(NoEvent::Bad),
                };
                Self::Range {
                    kind,
                    domain: high(value),
                    name: low(value),
                }
            }
            kind::MARK => Self::Mark {
                domain: high(value),
                name: low(value),
            },
            kind::GC => Self::Gc {
                generation: code,
                collected: value,
            },
            kind::GIL_WAIT => Self::GilWait,
            kind::GIL_HOLD => Self::GilHold,
            kind::GIL_FORCED => Self::GilForced,
            kind::FUNCTION => Self::Function { name: low(value) },
            kind::GPU_SPAN => Self::GpuSpan {
                device: device(code),
                stream: stream(code),
                iteration: value,
            },
            kind::DROPPED => Self::Dropped { events: value },
            kind::GPU_KERNEL => Self::GpuKernel {
                device: device(code),
                stream: stream(code),
                name: low(value),
                correlation: high(value),
            },
            kind::GPU_COPY => Self::GpuCopy {
                device: device(code),
                stream: stream(code),
                kind: CopyKind::from_code((value >> 60) as u8),
                bytes: value & COPY_BYTES,
            },
            kind::GPU_SET => Self::GpuSet {
                device: device(code),
                stream: stream(code),
                bytes: value,
            },
            kind::KERNEL_WINDOW => Self::KernelWindow {
                edge: match Edge::from_code(code) {
                    Some(edge) => edge,
                    None => return Err(NoEvent::Bad),
                },
                iteration: value,
            },
            kind::GPU_METRIC => Self::GpuMetric {
                device: device(code),
                metric: Metric::from_code(stream(code)),
                thousandths: value,
            },
            kind::EXPERT_LOAD => Self::ExpertLoad {
                layer: code,
                expert: (value >> 48) as u16,
                tokens: value & TOKENS,
            },
            _ => return Err(NoEvent::Unknown),
        })
    }
}

impl Event {
    /// Something that happened from `start` on for `duration`.
    #[must_use]
    #[inline]
    pub const fn new(start: u64, duration: u64, what: What) -> Self {
        Self {
            start,
            duration,
            cut: false,
            failed: false,
            what,
        }
    }

    /// The event's bytes.
    #[must_use]
    #[inline]
    pub const fn encode(&self) -> [u8; EVENT_BYTES] {
        let (kind, code, value) = self.what.parts();
        let scale = 32_u32.saturating_sub(self.duration.leading_zeros());
        let duration = (self.duration >> scale) as u32;
        let cut = if self.cut { CUT } else { 0 };
        let failed = if self.failed { FAILED } else { 0 };
        let flags = scale as u8 | cut | failed;
        let middle =
            duration as u64 | (kind as u64) << 32 | (flags as u64) << 40 | (code as u64) << 48;
        let mut bytes = [0; EVENT_BYTES];
        let (first, rest) = bytes.split_at_mut(8);
        let (second, third) = rest.split_at_mut(8);
        first.copy_from_slice(&self.start.to_le_bytes());
        second.copy_from_slice(&middle.to_le_bytes());
        third.copy_from_slice(&value.to_le_bytes());
        bytes
    }

    /// The event that some bytes are.
    ///
    /// # Errors
    /// Where they are none.
    #[inline]
    pub const fn decode(bytes: &[u8; EVENT_BYTES]) -> Result<Self, NoEvent> {
        let start = word(bytes, 0);
        let middle = word(bytes, 1);
        let flags = (middle >> 40) as u8;
        let (duration, scale) = (middle & 0xffff_ffff, flags & SCALE);
        if scale > 32 {
            return Err(NoEvent::Bad);
        }
        let what =
            match What::from_parts((middle >> 32) as u8, (middle >> 48) as u16, word(bytes, 2)) {
                Ok(what) => what,
                Err(none) => return Err(none),
            };
        Ok(Self {
            start,
            duration: duration << scale,
            cut: flags & CUT != 0,
            failed: flags & FAILED != 0,
            what,
        })
    }
}

#[inline]
const fn word(bytes: &[u8; EVENT_BYTES], index: usize) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    u64::from_le_bytes(words[index])
}

#[cfg(test)]
mod tests;
