//! The events of a record. Most of them are recorded in windows: periods in which the library records events in detail.
//! An event is encoded in 24 bytes:
//!
//! | bytes | |
//! |---|---|
//! | 0–7 | start, in ticks of the record's clock |
//! | 8–11 | duration, shifted right by the scale |
//! | 12 | kind; 0 is none |
//! | 13 | bits 0–5: scale; bit 6: cut; bit 7: failed |
//! | 14–15 | code; its meaning depends on the kind |
//! | 16–23 | value; its meaning depends on the kind |

use crate::batch::Batch;
use crate::info::Info;
use crate::kinds::{
    CallKind, CopyKind, Edge, GpuOwner, GraphState, RangeKind, SystemCall, Taken, Task,
    ThreadState, Used,
};
use crate::layout::EVENT_BYTES;
use crate::metric::Metric;

/// The id of a string in the record, by which events refer to it. The same text may have several ids.
pub type StringId = u32;

/// The id for a missing string, for example if a text could not be written.
pub const NO_STRING: StringId = 0;

/// The largest id of a lasting string, which stays as long as the record. A string with a larger id belongs to a
/// window. If the record drops its oldest windows, the string is dropped together with its window.
pub const LAST_LASTING: StringId = 1 << 20;

/// The NVTX domain of the ranges that tllmprof itself pushes. Reports skip these ranges, because other events hold
/// the same information.
pub const OWN_DOMAIN: &str = "tllmprof";

/// An event of a record. `what` holds the event's kind, and the data that depend on the kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The start, in ticks of the record's clock.
    pub start: u64,
    /// The duration in ticks. For GPU work and [`What::Used`], it is in nanoseconds. If a duration needs more than 32
    /// bits, the record stores only its 32 most significant bits, and the lower bits are read as 0.
    pub duration: u64,
    /// True if the event was cut short by the end of the window or of the process.
    pub cut: bool,
    /// True if the call returned an error, or if the function raised an exception.
    pub failed: bool,
    pub what: What,
}

/// The reason why 24 bytes do not encode a valid event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoEvent {
    /// The kind is unknown: the event is from a later version, or the record is damaged.
    Unknown,
    /// The kind is known, but the code is invalid or the duration has more than 64 bits.
    Bad,
}

const SCALE: u8 = 0x3f;
const CUT: u8 = 0x40;
const FAILED: u8 = 0x80;

const CAPTURING: u16 = 0x100;
/// The code that stands for `None` in the field `sm` of a [`What::GpuProcess`] event.
const NO_SHARE: u16 = 0xff;
/// The code that stands for `None` in the field `call` of a [`What::Asleep`] event.
const UNKNOWN_CALL: u16 = 0xff;
/// The bit of the code of a [`What::Asleep`] event that is set for a system call with a time limit.
const HAS_TIMEOUT: u16 = 0x100;
/// The bit of the code of a [`What::Asleep`] event that is set if the thread has not woken since its previous sample.
const CONTINUES: u16 = 0x200;
/// The bit of the code of a [`What::Asleep`] event that is set if the call's time limit is short.
const HAS_SHORT_TIMEOUT: u16 = 0x400;

/// Flags in the code of a [`What::Meanwhile`] event. The eight bits below them hold the system call.
const IS_BUSY: u16 = 0x100;
const HAS_RUN: u16 = 0x200;
const IS_AWAITED: u16 = 0x400;
/// The position of the lowest bit of the [`Task`] in the code of a [`What::Meanwhile`] event.
const TASK_SHIFT: u32 = 12;

/// The mask for the size in bytes in the value of a [`What::GpuCopy`] event.
const COPY_BYTES: u64 = (1 << 60) - 1;
/// The mask for the number of tokens in the value of a [`What::ExpertLoad`] event.
const TOKENS: u64 = (1 << 48) - 1;

/// The mask for the id of a stack frame or of a scope. Such an id has 24 bits in the value of an event.
const FRAME: u32 = (1 << 24) - 1;

/// The mask for the number of a captured graph, and for the number of a node in a graph. Each has 20 bits in the
/// value of an event.
const PLACES: u64 = (1 << 20) - 1;

/// Packs a device's ordinal (4 bits) and the number of a stream or metric (12 bits) into an event's code.
const fn place(device: u8, number: u16) -> u16 {
    (device as u16 & 0xf) << 12 | number & 0xfff
}

/// Returns the device's ordinal that is packed into an event's code.
const fn high4(code: u16) -> u8 {
    (code >> 12) as u8
}

/// Returns the number of the stream or metric that is packed into an event's code.
const fn low12(code: u16) -> u16 {
    code & 0xfff
}

/// Packs two 32-bit numbers, such as the ids of a domain and of a name, into an event's value.
const fn pair(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

const fn low(value: u64) -> u32 {
    value as u32
}

const fn high(value: u64) -> u32 {
    (value >> 32) as u32
}

/// Unwraps an `Option` that decoding a code has returned. For `None`, returns from the calling function with
/// the error that the event is invalid.
macro_rules! known {
    ($found:expr) => {
        match $found {
            Some(found) => found,
            None => return Err(NoEvent::Bad),
        }
    };
}

/// Defines the kinds of events. Each entry consists of the kind's number in a record, its fields, an expression that
/// encodes the fields as (code, value), and an expression that decodes them.
macro_rules! events {
    ($(
        $(#[$doc:meta])*
        $number:literal $name:ident $({ $($field:ident: $type:ty),* })?
        write $written:expr;
        read |$code:pat_param, $value:pat_param| $read:expr;
    )*) => {
        /// The kind of an event, with its fields.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum What {
            $($(#[$doc])* $name $({ $($field: $type),* })?,)*
        }

        /// The kind of an event, without its fields.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum EventKind {
            $($name = $number,)*
        }

        impl EventKind {
            /// All kinds of events.
            pub const ALL: &[Self] = &[$(Self::$name),*];
        }

        impl What {
            /// Returns the kind of the event, without its fields.
            #[must_use]
            pub const fn kind(&self) -> EventKind {
                match self {
                    $(Self::$name { .. } => EventKind::$name,)*
                }
            }

            /// Returns the kind's number, the code and the value, as stored in a record.
            // The kind of event is known at compile time in each caller, so the compiler removes the `match`.
            #[inline(always)]
            const fn parts(self) -> (u8, u16, u64) {
                match self {
                    $(Self::$name $({ $($field),* })? => {
                        let (code, value) = $written;
                        ($number, code, value)
                    })*
                }
            }

            const fn from_parts(kind: u8, code: u16, value: u64) -> Result<Self, NoEvent> {
                Ok(match kind {
                    $($number => {
                        let ($code, $value) = (code, value);
                        $read
                    })*
                    _ => return Err(NoEvent::Unknown),
                })
            }
        }
    };
}

events! {
    /// A change of the thread that writes into the chunk. Later events in the chunk belong to the thread `tid`.
    1 Thread { tid: u32 }
        write (0, tid as u64);
        read |_, value| Self::Thread { tid: low(value) };

    /// The name of the thread to which this event belongs.
    2 ThreadName { name: StringId }
        write (0, name as u64);
        read |_, value| Self::ThreadName { name: low(value) };

    /// A string. Its text follows this event: `bytes` bytes of UTF-8, padded to whole events.
    3 String { id: StringId, bytes: u16 }
        write (bytes, id as u64);
        read |code, value| Self::String { id: low(value), bytes: code };

    /// An item of data about the process. [`Info`] defines the meaning of `value`. `key` is `None` if the
    /// item's kind is unknown.
    4 Info { key: Option<Info>, value: u64 }
        write (match key { Some(key) => key as u16, None => 0 }, value);
        read |code, value| Self::Info { key: Info::from_code(code), value };

    /// The name and the kind of a CUDA function, which other events refer to by `row` (its row in the table
    /// of calls). `kind` is `None` if it is unknown.
    5 CallName { row: u8, kind: Option<CallKind>, name: StringId }
        write (row as u16, pair(match kind { Some(kind) => kind as u32, None => u32::MAX }, name));
        read |code, value| Self::CallName {
            row: code as u8, kind: CallKind::from_code(high(value)), name: low(value)
        };

    /// A CUDA call, from its entry to its return. `row` identifies the function ([`What::CallName`]). `capturing` is
    /// true if the calling thread is capturing a stream. `stream` is the handle of the stream that the call names; 0
    /// for none.
    6 Call { row: u8, capturing: bool, stream: u64 }
        write (row as u16 | if capturing { CAPTURING } else { 0 }, stream);
        read |code, value| Self::Call {
            row: code as u8, capturing: code & CAPTURING != 0, stream: value
        };

    /// An iteration, written when it ends. `n` counts from 0. `excluded` is true if the iteration does not
    /// meet the user's condition for the iterations of windows ([`Info::Where`]).
    7 Iteration { n: u64, excluded: bool }
        write (excluded as u16, n);
        read |code, value| Self::Iteration { n: value, excluded: code & 1 != 0 };

    /// The opening of a window before `iteration`, or its closing after `iteration`.
    8 Window { edge: Edge, iteration: u64 }
        write (edge as u16, iteration);
        read |code, value| Self::Window { edge: known!(Edge::from_code(code as u32)), iteration: value };

    /// An NVTX range, written when it ends. `domain` is `NO_STRING` for the default domain.
    9 Range { kind: RangeKind, domain: StringId, name: StringId }
        write (kind as u16, pair(domain, name));
        read |code, value| Self::Range {
            kind: known!(RangeKind::from_code(code as u32)), domain: high(value), name: low(value)
        };

    /// An NVTX mark (a named moment). `domain` is `NO_STRING` for the default domain.
    10 Mark { domain: StringId, name: StringId }
        write (0, pair(domain, name));
        read |_, value| Self::Mark { domain: high(value), name: low(value) };

    /// A collection by Python's garbage collector. `collected` is the number of objects that it collected.
    11 Gc { generation: u16, collected: u64 }
        write (generation, collected);
        read |code, value| Self::Gc { generation: code, collected: value };

    /// The time in which a thread waited for the GIL.
    12 GilWait
        write (0, 0);
        read |_, _| Self::GilWait;

    /// The time in which a thread held the GIL.
    13 GilHold
        write (0, 0);
        read |_, _| Self::GilHold;

    /// The time in which a thread waited until another thread had taken the GIL. The other thread had requested the
    /// GIL, and this thread was forced to release it.
    14 GilForced
        write (0, 0);
        read |_, _| Self::GilForced;

    /// A call of a marked Python function. If an engine calls the function repeatedly to look for requests, the event
    /// covers all calls between two steps.
    15 Function { name: StringId }
        write (0, name as u64);
        read |_, value| Self::Function { name: low(value) };

    /// A GPU span: the work of one stream in one iteration, from its first work to its last. `start` is only as exact
    /// as the conversion to the host's clock. `device` is the device's ordinal (up to 15). `stream` is a number (up
    /// to 4095) that the recorder assigned to the stream.
    16 GpuSpan { device: u8, stream: u16, iteration: u64 }
        write (place(device, stream), iteration);
        read |code, value| Self::GpuSpan {
            device: high4(code), stream: low12(code), iteration: value
        };

    /// The number of this thread's events that were dropped since the thread's previous event of this kind.
    17 Dropped { events: u64 }
        write (0, events);
        read |_, value| Self::Dropped { events: value };

    /// A kernel, launched separately or as a node of a CUDA graph. Its duration is in *nanoseconds*, like
    /// that of [`What::GpuCopy`] and [`What::GpuSet`]. All work that one call launched has the same
    /// `correlation`. `device` and `stream` have the same meaning as in [`What::GpuSpan`], for this kind and
    /// the following ones.
    18 GpuKernel { device: u8, stream: u16, name: StringId, correlation: u32 }
        write (place(device, stream), pair(correlation, name));
        read |code, value| Self::GpuKernel {
            device: high4(code), stream: low12(code), name: low(value), correlation: high(value)
        };

    /// A memory copy by the GPU. `bytes` is the size of the copy, which is less than 2^60.
    19 GpuCopy { device: u8, stream: u16, kind: CopyKind, bytes: u64 }
        write (place(device, stream), (kind as u64) << 60 | bytes & COPY_BYTES);
        read |code, value| Self::GpuCopy {
            device: high4(code),
            stream: low12(code),
            kind: CopyKind::from_code((value >> 60) as u8),
            bytes: value & COPY_BYTES
        };

    /// A memory set (memset) by the GPU. `bytes` is the size of the memory.
    20 GpuSet { device: u8, stream: u16, bytes: u64 }
        write (place(device, stream), bytes);
        read |code, value| Self::GpuSet { device: high4(code), stream: low12(code), bytes: value };

    /// The start of kernel recording before `iteration`, or its end after `iteration`. While kernels are
    /// recorded, the GPU times of iterations are longer.
    21 KernelWindow { edge: Edge, iteration: u64 }
        write (edge as u16, iteration);
        read |code, value| Self::KernelWindow {
            edge: known!(Edge::from_code(code as u32)), iteration: value
        };

    /// The value of a GPU metric over the event's duration, in thousandths of its unit.
    22 GpuMetric { device: u8, metric: Option<Metric>, thousandths: u64 }
        write (place(device, match metric { Some(metric) => metric as u16, None => 0 }), thousandths);
        read |code, value| Self::GpuMetric {
            device: high4(code), metric: Metric::from_code(low12(code)), thousandths: value
        };

    /// The total number of tokens that the learned router of an MoE layer has sent to an expert so far.
    23 ExpertLoad { layer: u16, expert: u16, tokens: u64 }
        write (layer, (expert as u64) << 48 | tokens & TOKENS);
        read |code, value| Self::ExpertLoad {
            layer: code, expert: (value >> 48) as u16, tokens: value & TOKENS
        };

    /// The batch of an iteration. `iteration` is the iteration's number modulo 2^16. The event belongs to the latest
    /// iteration with this remainder that had begun at `start`.
    24 Batch { iteration: u16, batch: Batch }
        write (batch.requests, batch.value(iteration));
        read |code, value| {
            let (iteration, batch) = known!(Batch::of_event(code, value));
            Self::Batch { iteration, batch }
        };

    /// A frame of sampled stacks: the function `name`, called by the frame `parent`, which is 0 for the
    /// outermost frame. `id` and `parent` are less than 2^24. The name of a native function is
    /// `MODULE+0xOFFSET`, that of a Python function `QUALNAME (FILE:FIRST LINE)`.
    25 Frame { id: u32, parent: u32, name: StringId }
        write (id as u16, pair((id >> 16 & 0xff) << 24 | parent & FRAME, name));
        read |code, value| Self::Frame {
            id: code as u32 | high(value) >> 24 << 16, parent: high(value) & FRAME, name: low(value)
        };

    /// A sample of a thread's stack. `frame` is the id of the innermost frame. It is 0 if the stack has no frame, or
    /// if the stack was rejected because it changed while it was read.
    26 Sample { taken: Taken, state: Option<ThreadState>, thread: u32, frame: u32 }
        write (
            taken as u16 | (match state { Some(state) => state as u16, None => 0 }) << 8,
            pair(thread, frame)
        );
        read |code, value| Self::Sample {
            taken: known!(Taken::from_code((code & 0xff) as u32)),
            state: ThreadState::from_code((code >> 8) as u32),
            thread: high(value),
            frame: low(value)
        };

    /// A resource of the machine (such as processor time) that one thread used during an iteration: the thread that
    /// ended the iteration. The event's duration is in *nanoseconds*. `iteration` is the iteration's number modulo
    /// 2^32. `what` is the kind of resource; `None` if unknown. [`Used`] defines the meaning of `count` for each kind.
    27 Used { what: Option<Used>, iteration: u32, count: u32 }
        write (match what { Some(what) => what as u16, None => 0 }, pair(iteration, count));
        read |code, value| Self::Used {
            what: Used::from_code(code as u32), iteration: high(value), count: low(value)
        };

    /// Marks the kernels that are recorded from `iteration` (its number modulo 2^32) on as a sample. A sample has
    /// `steps` iterations, and a new sample begins every `every_ms` milliseconds. A number that is too large for its
    /// field is stored as the largest number that fits.
    28 KernelSample { steps: u16, every_ms: u32, iteration: u32 }
        write (steps, pair(every_ms, iteration));
        read |code, value| Self::KernelSample {
            steps: code, every_ms: high(value), iteration: low(value)
        };

    /// Marks the window that opens with `iteration`: it contains iterations that were recorded before the window was
    /// requested.
    29 Past { iteration: u64 }
        write (0, iteration);
        read |_, value| Self::Past { iteration: value };

    /// A scope: a path of names (modules, ranges, functions) that are open on a thread. `name` is its
    /// innermost part. `parent` is the scope around it; 0 for none. `id` and `parent` are less than 2^24.
    30 Scope { id: u32, parent: u32, name: StringId }
        write (id as u16, pair((id >> 16 & 0xff) << 24 | parent & FRAME, name));
        read |code, value| Self::Scope {
            id: code as u32 | high(value) >> 24 << 16, parent: high(value) & FRAME, name: low(value)
        };

    /// The scope ([`What::Scope`]) in which `count` consecutive kernels of a captured graph were launched, from node
    /// `first` on. `graph` is a number that the recorder assigned. Nodes are numbered from 0 in the order of capture.
    /// Graph and node numbers are less than 2^20. `scope` is less than 2^24; 0 for none.
    31 GraphNodes { graph: u32, first: u32, count: u16, scope: u32 }
        write (
            count,
            (graph as u64 & PLACES) << 44 | (first as u64 & PLACES) << 24 | (scope & FRAME) as u64
        );
        read |code, value| Self::GraphNodes {
            graph: (value >> 44) as u32,
            first: (value >> 24 & PLACES) as u32,
            count: code,
            scope: low(value) & FRAME
        };

    /// The origin of an executable graph. `exec` is CUPTI's number for the executable graph. If `state` is
    /// [`GraphState::Known`], `graph` is the captured graph from which the executable graph was created. CUPTI may
    /// reuse the number for another graph. So the event is valid only for kernels between the previous event for the
    /// same `exec` and this event's start.
    32 GraphExec { state: Option<GraphState>, exec: u32, graph: u32 }
        write (match state { Some(state) => state as u16, None => 0 }, pair(exec, graph));
        read |code, value| Self::GraphExec {
            state: GraphState::from_code(code as u32), exec: high(value), graph: low(value)
        };

    /// The node of an executable graph that a kernel belongs to. The kernel is the [`What::GpuKernel`] with
    /// the same start, device and stream.
    33 KernelNode { device: u8, stream: u16, exec: u32, node: u32 }
        write (place(device, stream), pair(exec, node));
        read |code, value| Self::KernelNode {
            device: high4(code), stream: low12(code), exec: high(value), node: low(value)
        };

    /// The scope ([`What::Scope`]: the open modules, ranges and functions) in which this thread makes its calls from
    /// here on, until the thread's next event of this kind.
    34 InScope { scope: u32 }
        write (0, scope as u64);
        read |_, value| Self::InScope { scope: low(value) };

    /// The system call that a thread sleeps in when its stack is sampled. The [`What::Sample`] with the same
    /// thread and start has the thread's Python stack. `call` is `None` if the system call is unknown. `continues` is
    /// true if the thread has not woken since its previous sample. `has_short_timeout` is true if the call has a time limit
    /// of at most a quarter of a second from the sample on. `frame` is the innermost frame of the thread's native stack;
    /// 0 if it is not known.
    35 Asleep {
        call: Option<SystemCall>, has_timeout: bool, has_short_timeout: bool, continues: bool, thread: u32, frame: u32
    }
        write (
            match call { Some(call) => call as u16, None => UNKNOWN_CALL }
                | if has_timeout { HAS_TIMEOUT } else { 0 }
                | if has_short_timeout { HAS_SHORT_TIMEOUT } else { 0 }
                | if continues { CONTINUES } else { 0 },
            pair(thread, frame)
        );
        read |code, value| Self::Asleep {
            call: SystemCall::from_code((code & 0xff) as u32),
            has_timeout: code & HAS_TIMEOUT != 0,
            has_short_timeout: code & HAS_SHORT_TIMEOUT != 0,
            continues: code & CONTINUES != 0,
            thread: high(value),
            frame: low(value)
        };

    /// One bucket of the histogram of durations of the iterations outside windows, as it was before the window in which
    /// this event is written. `bucket` is the bucket's index ([`Histogram::of_buckets`](crate::Histogram::of_buckets)),
    /// and `iterations` is the number of iterations whose durations belong to the bucket.
    36 OutsideBefore { bucket: u16, iterations: u64 }
        write (bucket, iterations);
        read |code, value| Self::OutsideBefore { bucket: code, iterations: value };

    /// A process that uses a GPU, over the event's duration. `sm` is its share of the SMs' time in percent;
    /// `None` if it is not known. `pid` is 0 and `name` is `NO_STRING` if they are not known.
    37 GpuProcess { device: u8, owner: GpuOwner, sm: Option<u8>, name: StringId, pid: u32 }
        write (
            place(device, (owner as u16) << 8 | match sm { Some(sm) => sm as u16, None => NO_SHARE }),
            pair(name, pid)
        );
        read |code, value| Self::GpuProcess {
            device: high4(code),
            owner: known!(GpuOwner::from_code((low12(code) >> 8) as u32)),
            sm: match code & NO_SHARE { NO_SHARE => None, sm => Some(sm as u8) },
            name: high(value),
            pid: low(value)
        };

    /// The thread `tid` of the process `pid` runs on the processors of the NUMA node `node`. This holds from this event
    /// until the next event of this kind for the thread.
    38 ThreadNode { node: u16, pid: u32, tid: u32 }
        write (node, pair(pid, tid));
        read |code, value| Self::ThreadNode { node: code, pid: high(value), tid: low(value) };

    /// The state of another task (a thread of the process, or a child process) when a waiting thread is sampled. The
    /// sample of the waiting thread is the [`What::Sample`] with the same start.
    ///
    /// - `task` defines the meaning of `id`.
    /// - `is_busy` is true if the task used a processor during the sample, or for at least half of the time since the
    ///   previous sample of a waiting thread. For a child process it is also true if the child was ready to run.
    /// - `has_run` is true if the task used a processor at all since the previous sample of a waiting thread.
    /// - `is_awaited` is true if the sampled thread waits for the end of this child process, or of the process that has
    ///   started this child.
    /// - `call` is the system call that a child process sleeps in. It is `None` if the child is busy, if the call is
    ///   unknown, or if the task is a thread, which has samples of its own.
    39 Meanwhile {
        task: Task,
        is_busy: bool,
        has_run: bool,
        is_awaited: bool,
        call: Option<SystemCall>,
        name: StringId,
        id: u32
    }
        write (
            match call { Some(call) => call as u16, None => UNKNOWN_CALL }
                | (task as u16) << TASK_SHIFT
                | if is_busy { IS_BUSY } else { 0 }
                | if has_run { HAS_RUN } else { 0 }
                | if is_awaited { IS_AWAITED } else { 0 },
            pair(name, id)
        );
        read |code, value| Self::Meanwhile {
            task: known!(Task::from_code((code >> TASK_SHIFT) as u32)),
            is_busy: code & IS_BUSY != 0,
            has_run: code & HAS_RUN != 0,
            is_awaited: code & IS_AWAITED != 0,
            call: SystemCall::from_code((code & 0xff) as u32),
            name: high(value),
            id: low(value)
        };

    /// A host function that the program has enqueued in streams `count` times during the window that is closing. `name`
    /// is the location of the function's code, as in [`What::Frame`] for a native function. Functions that were added
    /// to graphs are not counted.
    40 HostFunction { name: StringId, count: u32 }
        write (0, pair(name, count));
        read |_, value| Self::HostFunction { name: high(value), count: low(value) };
}

impl What {
    /// Returns true if the event states a fact about the whole process rather than something at one moment. Such an
    /// event is written only once, or only the latest one is valid.
    #[must_use]
    pub const fn is_fact(&self) -> bool {
        matches!(
            self,
            Self::Thread { .. }
                | Self::ThreadName { .. }
                | Self::String { .. }
                | Self::Info { .. }
                | Self::CallName { .. }
                | Self::ExpertLoad { .. }
                | Self::Frame { .. }
                | Self::Scope { .. }
                | Self::GraphNodes { .. }
                | Self::GraphExec { .. }
        )
    }
}

/// An event, encoded as three words. If an event is encoded before it is written, it stays in registers. Otherwise the
/// compiler would store the event to memory and load it again in pieces of other sizes, which takes longer than the
/// rest of the write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EncodedEvent(pub(crate) [u64; 3]);

impl Event {
    /// Returns an event that is neither cut short nor failed.
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

    /// Returns the event in the form in which it is written.
    #[must_use]
    #[inline(always)]
    pub const fn row(&self) -> EncodedEvent {
        EncodedEvent(self.words())
    }

    /// Returns the encoded event as three words, in the order of the bytes of [`Event::encode`].
    #[inline(always)]
    pub(crate) const fn words(&self) -> [u64; 3] {
        let (kind, code, value) = self.what.parts();
        let scale = match self.duration >> 32 {
            0 => 0,
            high => scale_of(high as u32),
        };
        let duration = (self.duration >> scale) as u32;
        let cut = if self.cut { CUT } else { 0 };
        let failed = if self.failed { FAILED } else { 0 };
        let flags = scale as u8 | cut | failed;
        let middle =
            duration as u64 | (kind as u64) << 32 | (flags as u64) << 40 | (code as u64) << 48;
        [self.start, middle, value]
    }

    /// Returns the bytes of an event that is encoded as three words.
    #[inline(always)]
    pub(crate) const fn bytes(words: [u64; 3]) -> [u8; EVENT_BYTES] {
        let mut bytes = [0; EVENT_BYTES];
        let (first, rest) = bytes.split_at_mut(8);
        let (second, third) = rest.split_at_mut(8);
        first.copy_from_slice(&words[0].to_le_bytes());
        second.copy_from_slice(&words[1].to_le_bytes());
        third.copy_from_slice(&words[2].to_le_bytes());
        bytes
    }

    /// Returns the three words of a row. A row is 24 bytes of a chunk, and holds an event or a part of a string's text.
    #[inline(always)]
    pub(crate) const fn words_of(bytes: &[u8; EVENT_BYTES]) -> [u64; 3] {
        [word(bytes, 0), word(bytes, 1), word(bytes, 2)]
    }

    /// Returns the encoded event as bytes.
    #[must_use]
    #[inline(always)]
    pub const fn encode(&self) -> [u8; EVENT_BYTES] {
        Self::bytes(self.words())
    }

    /// Decodes an event.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a valid event.
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

/// Returns the number of low bits to drop from a duration that needs more than 32 bits, so that the remaining bits fit
/// into 32 bits. `high` is the upper half of the duration, and is not 0. Such durations are rare.
#[cold]
#[inline(never)]
const fn scale_of(high: u32) -> u32 {
    u32::BITS - high.leading_zeros()
}

#[inline]
const fn word(bytes: &[u8; EVENT_BYTES], index: usize) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    u64::from_le_bytes(words[index])
}

#[cfg(test)]
mod tests;
