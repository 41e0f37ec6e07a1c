//! Collects the work of streams, and the CUDA calls that enqueue it or order it.

use std::collections::HashMap;

use tllmprof_calls::{CallPurpose, DeviceWork, Wait, kind_of};
use tllmprof_record::{Clock, Event, StringId, What};

use crate::events::facts::CallCount;
use crate::events::kernel_windows::KernelWindows;
use crate::events::spans::Spans;
use crate::events::work::{GpuWork, GpuWorkKind};

/// Maximum number of pieces of work to analyze; the same maximum applies to calls. If a record has more of either, no
/// pair of streams is reported.
const MAX_PIECES: usize = 1 << 20;

/// The type of a piece of work, or of the call that enqueued it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum PieceKind {
    Kernel,
    Copy,
    Set,
}

/// A piece of GPU work. Times are in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamPiece {
    pub device: u8,
    pub stream: u16,
    pub kind: PieceKind,
    /// The name of a kernel; 0 for copies and memory sets.
    pub name: StringId,
    /// The number that all work of one call shares; 0 for copies and memory sets.
    pub correlation: u32,
    pub start: u64,
    pub end: u64,
    /// Index of the iteration in which the work began; `None` if it began outside iterations.
    pub place: Option<usize>,
}

/// A call that enqueued a piece of work, waited, or made a stream wait. Times are in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub(super) struct PieceCall {
    pub thread: u32,
    pub row: u8,
    pub stream: u64,
    pub start: u64,
    pub end: u64,
}

/// The effect of a CUDA function on the order of streams. (A "row" is a CUDA function: a record has a table of them,
/// and its events name a function by its row in that table.)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RowRole {
    Enqueues(PieceKind),
    /// The call enqueues a copy, and the host waits in the call until the copy has ended.
    CopiesAndWaits,
    /// The host waits for a stream, an event or a device.
    Waits(Wait),
    /// The call makes a stream wait for an event.
    Orders,
}

/// Collects the work of streams, and the calls that order it, during a pass over a record.
#[derive(Debug)]
pub(crate) struct StreamTally<'a> {
    clock: &'a Clock,
    rows: HashMap<u8, RowRole>,
    timeline: Spans,
    /// The windows with recorded kernels. There are none if the record lacks events, or the
    /// streams that calls use.
    windows: KernelWindows,
    pub(super) pieces: Vec<StreamPiece>,
    pub(super) copies: HashMap<(u64, PieceKind), Vec<PieceCall>>,
    pub(super) waits: HashMap<u32, Vec<(Wait, PieceCall)>>,
    pub(super) orders: HashMap<u64, Vec<PieceCall>>,
    calls: usize,
    pub(super) is_too_much: bool,
}

impl<'a> StreamTally<'a> {
    /// Returns an empty tally. `timeline` has the iterations, in nanoseconds.
    pub(crate) fn new(
        clock: &'a Clock,
        calls: &[CallCount],
        timeline: Spans,
        windows: KernelWindows,
    ) -> Self {
        let role = |row: &CallCount| Some((row.row, role(kind_of(&row.name)?)?));
        Self {
            clock,
            rows: calls.iter().filter_map(role).collect(),
            timeline,
            windows,
            pieces: Vec::new(),
            copies: HashMap::new(),
            waits: HashMap::new(),
            orders: HashMap::new(),
            calls: 0,
            is_too_much: false,
        }
    }

    /// Adds a piece of GPU work, unless it began before the first window with recorded kernels.
    pub(crate) fn add_work(&mut self, work: &GpuWork) {
        if self.is_too_much || self.windows.at(work.start).is_none() {
            return;
        }
        if self.pieces.len() == MAX_PIECES {
            return self.give_up();
        }
        let span = work.span();
        let (kind, name, correlation) = match work.what {
            GpuWorkKind::Kernel { name, correlation } => (PieceKind::Kernel, name, correlation),
            GpuWorkKind::Copy { .. } => (PieceKind::Copy, 0, 0),
            GpuWorkKind::Set { .. } => (PieceKind::Set, 0, 0),
        };
        self.pieces.push(StreamPiece {
            device: work.device,
            stream: work.stream,
            kind,
            name,
            correlation,
            start: span.start,
            end: span.end,
            place: self.timeline.at(span.start),
        });
    }

    /// Adds an event, if it is a call in a window that enqueues work, waits, or makes a stream wait.
    pub(crate) fn add(&mut self, thread: u32, event: &Event) {
        let What::Call {
            row,
            capturing: false,
            stream,
        } = event.what
        else {
            return;
        };
        if self.is_too_much || self.windows.is_empty() {
            return;
        }
        let Some(role) = self.rows.get(&row).filter(|_| !event.failed) else {
            return;
        };
        let start = self.clock.ns(event.start);
        if !self.windows.contains(start) {
            return;
        }
        self.calls += 1;
        if self.calls > MAX_PIECES {
            return self.give_up();
        }
        let end = self.clock.ns(event.start.saturating_add(event.duration));
        let call = PieceCall {
            thread,
            row,
            stream,
            start,
            end,
        };
        match role {
            // `piece_calls` matches kernels to their calls by correlation number, with the launches that a
            // `LaunchTally` collects.
            RowRole::Enqueues(PieceKind::Kernel) => {}
            RowRole::Enqueues(kind) => self.copies.entry((stream, *kind)).or_default().push(call),
            RowRole::CopiesAndWaits => {
                let key = (stream, PieceKind::Copy);
                self.copies.entry(key).or_default().push(call);
                let wait = (Wait::CopyToHost, call);
                self.waits.entry(thread).or_default().push(wait);
            }
            RowRole::Waits(wait) => self.waits.entry(thread).or_default().push((*wait, call)),
            RowRole::Orders => self.orders.entry(stream).or_default().push(call),
        }
    }

    /// Drops all data of this tally, because there is more than can be analyzed.
    fn give_up(&mut self) {
        self.is_too_much = true;
        self.pieces = Vec::new();
        self.copies = HashMap::new();
        self.waits = HashMap::new();
        self.orders = HashMap::new();
    }
}

/// Returns the effect of functions with this purpose on the order of streams; `None` if they have no effect.
fn role(purpose: CallPurpose) -> Option<RowRole> {
    Some(match purpose {
        CallPurpose::AsyncCopy(_) | CallPurpose::DeviceWork(DeviceWork::Copy) => {
            RowRole::Enqueues(PieceKind::Copy)
        }
        CallPurpose::Wait(Wait::CopyToHost) => RowRole::CopiesAndWaits,
        CallPurpose::DeviceWork(DeviceWork::Set) => RowRole::Enqueues(PieceKind::Set),
        CallPurpose::Wait(wait) => RowRole::Waits(wait),
        CallPurpose::Order => RowRole::Orders,
        _ => return None,
    })
}
