//! Two streams of a GPU with much work each: how long both ran at once and, if they take turns, what orders them.
//!
//! If a piece of work begins only after the other stream's work has ended, there are three possible explanations. They
//! depend on the CUDA call that enqueued the piece. If the call had returned before the other work ended, the GPU held
//! the piece back: because its stream waits for an event, or because one of the two streams is the legacy default
//! stream. If the call returned later, and the host had waited until the other work ended before it made the call, the
//! host held the piece back. In all other cases, for example if the host makes the call late without such a wait, the
//! order is not explained.

use std::collections::{BTreeMap, HashMap, HashSet};

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_calls::{CallPurpose, DeviceWork, Wait, kind_of};
use tllmprof_record::{Clock, Event, StringId, What};

use crate::events::facts::CallCount;
use crate::events::launches::{Launches, MAX_CLOCK_ERROR_NS};
use crate::events::spans::Spans;
use crate::events::work::{GpuWork, GpuWorkKind};

/// Maximum number of pieces of work to analyze; the same maximum applies to calls. If a record has more of either, no
/// pair of streams is reported.
const MAX_PIECES: usize = 1 << 20;
/// Maximum number of streams, on all GPUs together, of which pairs are examined. The streams with the most work are
/// kept.
const MAX_STREAMS: usize = 8;

/// Minimum share of a stream's work in all work of its GPU in the counted iterations, as a fraction. Streams with less
/// work are not examined. An iteration is counted if it has recorded kernels and the report's figures include it.
pub(crate) const MIN_STREAM_SHARE: f64 = 0.1;
/// Minimum share of the counted iterations in which a stream must have work, as a fraction.
const MIN_ITERATIONS: f64 = 0.8;
/// Maximum share of a stream's work that may belong to CUDA graphs or to collectives, as a fraction. The order of the
/// kernels in a graph is part of the graph and does not depend on streams, and collectives wait for other ranks by
/// design.
const MAX_OTHERS: f64 = 0.1;
/// Maximum time in which both streams run at once, as a fraction of the time of the stream with less work. Streams with
/// more overlap do not take turns.
pub(crate) const MAX_AT_ONCE: f64 = 0.05;
/// Minimum share of explained changes from one stream to the other, as a fraction. If fewer changes are explained, the
/// order of the two streams is not known. The most frequent explanation must also occur in at least this share of the
/// iterations in which both streams have work.
pub(crate) const MIN_EXPLAINED: f64 = 0.8;
/// Maximum time in nanoseconds from the end of one stream's work to the start of the other stream's work that waited
/// for it on the GPU. If the time is longer, something else held the work back.
const MAX_DELAY_NS: u64 = 50_000;
/// Maximum overlap of two pieces of work, in nanoseconds, that may be an error due to the rounding of their times.
const MAX_ROUNDING_NS: u64 = 1_000;
/// CUPTI's number for the legacy default stream.
const LEGACY_NUMBER: u16 = 7;
/// The handles of the legacy default stream: `NULL` and `CU_STREAM_LEGACY`.
const LEGACY_HANDLES: [u64; 2] = [0, 1];

/// The mechanism that orders the work of two streams.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StreamOrder {
    /// A stream waits for an event (`cuStreamWaitEvent`).
    Event,
    /// One of the streams is the legacy default stream. Its work waits for the work of all other blocking streams, and
    /// their work waits for its work.
    Legacy,
    /// The host waits for a stream's work before it launches on the other stream.
    Host,
}

/// A stream, and the time that it ran work in the iterations with recorded kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct StreamTime {
    /// CUPTI's number for the stream. The legacy default stream has the number 7.
    pub stream: u16,
    /// The time in which the stream ran kernels, copies or memory sets.
    pub gpu_ns: u64,
}

/// Two streams of a GPU with much work each, in the iterations with recorded kernels.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct StreamPair {
    /// The number of the GPU in the process, counted from 0.
    pub device: u8,
    /// The two streams, the one with more work first.
    pub streams: [StreamTime; 2],
    /// The time in which both streams ran work at once.
    #[serde(rename = "at_once_ns")]
    pub at_once: u64,
    /// The time in which the stream with less work in an iteration ran alone, summed over iterations. Overlap of the
    /// streams can save at most this time.
    #[serde(rename = "at_most_ns")]
    pub at_most: u64,
    /// The number of iterations in which both streams have work.
    #[schemars(extend("unit" = "iterations"))]
    pub iterations: u64,
    /// The mechanism that orders the streams; `null` if they do not take turns, or if it is not known.
    pub order: Option<StreamOrder>,
    /// The number of the stream whose work waits for the other stream's work; `null` if `order` is `null`, or if each
    /// stream waits for the other.
    pub waits: Option<u16>,
    /// The CUDA function that waits. If `order` is `event`, it makes a stream wait for an event (`cuStreamWaitEvent`).
    /// If `order` is `host`, the host waits in it. `null` if `order` is `legacy` or `null`.
    pub call: Option<String>,
    /// The number of calls of the function `call` that ordered the streams; 0 if `call` is `null`.
    #[schemars(extend("unit" = "calls"))]
    pub calls: u64,
}

/// The type of a piece of work, or of the call that enqueued it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum PieceKind {
    Kernel,
    Copy,
    Set,
}

/// A piece of GPU work. Times are in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
struct StreamPiece {
    device: u8,
    stream: u16,
    kind: PieceKind,
    /// The name of a kernel; 0 for copies and memory sets.
    name: StringId,
    /// The number that all work of one call shares; 0 for copies and memory sets.
    correlation: u32,
    start: u64,
    end: u64,
    /// Index of the iteration in which the work began; `None` if it began outside iterations.
    place: Option<usize>,
}

/// A call that enqueued a piece of work, waited, or made a stream wait. Times are in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
struct PieceCall {
    thread: u32,
    row: u8,
    stream: u64,
    start: u64,
    end: u64,
}

/// The effect of a CUDA function on the order of streams. In a record, a CUDA function is a row of a table.
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
    /// The windows in which kernels were recorded, each from the start of its first iteration to the end of its last,
    /// in nanoseconds. Empty if the record does not contain the streams that calls use, or if it lacks events.
    windows: Vec<(u64, u64)>,
    pieces: Vec<StreamPiece>,
    copies: HashMap<(u64, PieceKind), Vec<PieceCall>>,
    waits: HashMap<u32, Vec<(Wait, PieceCall)>>,
    orders: HashMap<u64, Vec<PieceCall>>,
    calls: usize,
    is_too_much: bool,
}

impl<'a> StreamTally<'a> {
    /// Returns an empty tally. `timeline` has the iterations, in nanoseconds.
    pub(crate) fn new(
        clock: &'a Clock,
        calls: &[CallCount],
        timeline: Spans,
        mut windows: Vec<(u64, u64)>,
    ) -> Self {
        windows.sort_unstable();
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
        if self.is_too_much || self.window(work.start).is_none() {
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
        let is_in = |(_, end): &(u64, u64)| start <= *end;
        if !self.window(start).is_some_and(is_in) {
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
            // Kernels are matched to their calls elsewhere, by their correlation numbers.
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

    /// Returns true if there are too many pieces of work or calls to analyze.
    pub(crate) const fn is_too_much(&self) -> bool {
        self.is_too_much
    }

    /// Drops all data of this tally, because there is more than can be analyzed.
    fn give_up(&mut self) {
        self.is_too_much = true;
        self.pieces = Vec::new();
        self.copies = HashMap::new();
        self.waits = HashMap::new();
        self.orders = HashMap::new();
    }

    /// Returns the last window that began at or before a moment.
    fn window(&self, moment: u64) -> Option<&(u64, u64)> {
        let after = self.windows.partition_point(|(start, _)| *start <= moment);
        self.windows[..after].last()
    }

    /// Returns the pair of streams whose overlap would save most. `is_counted` has an entry for each iteration: true
    /// if it has recorded kernels and the report's figures include it. `is_collective` says whether a kernel's name is
    /// that of a collective. `name` returns the name of a row of the table of CUDA functions.
    pub(crate) fn finish(
        mut self,
        launches: &Launches,
        is_counted: &[bool],
        is_collective: impl Fn(StringId) -> bool,
        name: impl Fn(u8) -> String,
    ) -> Option<StreamPair> {
        if self.is_too_much || self.pieces.is_empty() {
            return None;
        }
        self.pieces.sort_by_key(|piece| (piece.start, piece.end));
        let calls = self.copies.values_mut().chain(self.orders.values_mut());
        calls.for_each(|calls| calls.sort_by_key(|call| call.start));
        let waits = self.waits.values_mut();
        waits.for_each(|waits| waits.sort_by_key(|(_, wait)| wait.start));
        let (sums, crowded) = sums(&self.pieces, launches, is_counted, is_collective);
        let order = Ordering {
            calls: self.piece_calls(launches),
            tally: &self,
            is_counted,
            crowded,
        };
        let mut found: Vec<(StreamPair, Option<u8>)> = Vec::new();
        for (at, one) in sums.iter().enumerate() {
            let others = sums[at + 1..].iter();
            let others = others.filter(|other| other.device == one.device);
            found.extend(others.filter_map(|other| order.pair(one, other)));
        }
        // A pair whose order is known comes before others.
        let (mut pair, row) = found
            .into_iter()
            .max_by_key(|(pair, _)| (pair.order.is_some(), pair.at_most))?;
        pair.call = row.map(name);
        Some(pair)
    }

    /// Returns the call that enqueued each piece of work; `None` if it is not known. Copies and memory sets have no
    /// correlation number. They are matched, in order, to the calls on their stream's handle, if there are as many of
    /// these calls as pieces of work.
    fn piece_calls(&self, launches: &Launches) -> Vec<Option<PieceCall>> {
        let mut calls: Vec<Option<PieceCall>> = vec![None; self.pieces.len()];
        let mut handles: HashMap<(u8, u16), HashMap<u64, u32>> = HashMap::new();
        let mut others: BTreeMap<(u8, u16, u8), Vec<usize>> = BTreeMap::new();
        for (at, piece) in self.pieces.iter().enumerate() {
            let place = (piece.device, piece.stream);
            if piece.kind != PieceKind::Kernel {
                let key = (place.0, place.1, piece.kind as u8);
                others.entry(key).or_default().push(at);
                continue;
            }
            calls[at] = launches
                .of_kernel(piece.correlation, piece.start)
                .map(|launch| PieceCall {
                    thread: launch.thread,
                    row: 0,
                    stream: launch.stream,
                    start: launch.start,
                    end: launch.end,
                });
            if let Some(call) = calls[at] {
                *(handles.entry(place).or_default())
                    .entry(call.stream)
                    .or_default() += 1;
            }
        }
        let taken: HashSet<u64> = handles.values().flat_map(HashMap::keys).copied().collect();
        for ((device, stream, _), pieces) in others {
            let kind = self.pieces[pieces[0]].kind;
            let fits = |made: &Vec<PieceCall>| {
                let mut pairs = made.iter().zip(&pieces);
                made.len() == pieces.len()
                    && pairs
                        .all(|(call, at)| call.start <= self.pieces[*at].start + MAX_CLOCK_ERROR_NS)
            };
            let own = handles.get(&(device, stream));
            // If the stream has kernels, their calls show the stream's handle. Otherwise the stream must have a handle
            // on which no kernel was launched.
            let is_own = |handle: &u64| match own {
                Some(own) => own.len() == 1 && own.contains_key(handle),
                None => !taken.contains(handle),
            };
            let made = self
                .copies
                .iter()
                .filter(|((handle, of), made)| *of == kind && is_own(handle) && fits(made));
            let mut made = made.map(|(_, made)| made);
            if let (Some(made), None) = (made.next(), made.next()) {
                for (call, at) in made.iter().zip(&pieces) {
                    calls[*at] = Some(*call);
                }
            }
        }
        calls
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

/// The work of a stream in the counted iterations. Times are in nanoseconds.
#[derive(Debug)]
struct StreamSum {
    device: u8,
    stream: u16,
    ns: u64,
    /// The time of kernels in CUDA graphs, and of collectives.
    others: u64,
    iterations: HashSet<usize>,
}

/// Returns the streams to examine (see [`MIN_STREAM_SHARE`], [`MIN_ITERATIONS`] and [`MAX_OTHERS`]), those with the
/// most work first. Also returns the GPUs on which more than two streams have any work in most iterations.
fn sums(
    pieces: &[StreamPiece],
    launches: &Launches,
    is_counted: &[bool],
    is_collective: impl Fn(StringId) -> bool,
) -> (Vec<StreamSum>, HashSet<u8>) {
    let mut counts: HashMap<u32, u32> = HashMap::new();
    let kernels = || {
        pieces
            .iter()
            .filter(|piece| piece.kind == PieceKind::Kernel)
    };
    for piece in kernels() {
        *counts.entry(piece.correlation).or_default() += 1;
    }
    // A graph launch starts several kernels with the same correlation number. But the numbers may restart in each
    // window, so kernels of different windows may share a number, too. So look at the kernel's launch, and compare the
    // numbers only if the launch is not known.
    let is_in_graph = |piece: &StreamPiece| match launches.of_kernel(piece.correlation, piece.start)
    {
        Some(launch) => launch.is_graph || launch.kernels > 1,
        None => counts[&piece.correlation] > 1,
    };
    let mut by_stream: BTreeMap<(u8, u16), StreamSum> = BTreeMap::new();
    let mut by_device: HashMap<u8, u64> = HashMap::new();
    for piece in pieces {
        let Some(place) = piece.place.filter(|place| is_counted[*place]) else {
            continue;
        };
        let key = (piece.device, piece.stream);
        let sum = by_stream.entry(key).or_insert_with(|| StreamSum {
            device: piece.device,
            stream: piece.stream,
            ns: 0,
            others: 0,
            iterations: HashSet::new(),
        });
        let ns = piece.end - piece.start;
        let is_kernel = piece.kind == PieceKind::Kernel;
        sum.ns = sum.ns.saturating_add(ns);
        if is_kernel && (is_in_graph(piece) || is_collective(piece.name)) {
            sum.others = sum.others.saturating_add(ns);
        }
        sum.iterations.insert(place);
        let all = by_device.entry(piece.device).or_default();
        *all = all.saturating_add(ns);
    }
    let many = is_counted.iter().filter(|counted| **counted).count() as f64 * MIN_ITERATIONS;
    let mut sums: Vec<_> = by_stream.into_values().collect();
    sums.retain(|sum| sum.ns > 0 && sum.iterations.len() as f64 >= many);
    let streams = |device: u8| sums.iter().filter(move |sum| sum.device == device).count();
    let crowded = by_device.keys().copied();
    let crowded = crowded.filter(|device| streams(*device) > 2).collect();
    sums.retain(|sum| {
        sum.ns as f64 >= MIN_STREAM_SHARE * by_device[&sum.device] as f64
            && sum.others as f64 <= MAX_OTHERS * sum.ns as f64
    });
    sums.sort_by_key(|sum| std::cmp::Reverse(sum.ns));
    sums.truncate(MAX_STREAMS);
    (sums, crowded)
}

/// The explanation of one change from a stream to the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Explained {
    order: StreamOrder,
    /// Row of the waiting function in the table of CUDA functions; `None` if no function waits.
    row: Option<u8>,
    /// Number of calls of that function.
    calls: u64,
}

/// Sums over the changes with the same explanation: the number of changes to each stream, the number of calls of the
/// waiting function, and the iterations with such changes.
type ExplainedSum = ([u64; 2], u64, HashSet<usize>);

/// The work of all streams, and the calls that enqueued it.
struct Ordering<'a> {
    tally: &'a StreamTally<'a>,
    /// The call of each piece of work.
    calls: Vec<Option<PieceCall>>,
    is_counted: &'a [bool],
    /// The GPUs on which more than two streams have work in most iterations. A record does not say in which stream an
    /// event was recorded. So on these GPUs, a wait for an event may be a wait for a third stream.
    crowded: HashSet<u8>,
}

/// Sums over the work of two streams. Times are in nanoseconds. Index 0 is the stream with more work.
#[derive(Debug, Default)]
struct PairSums {
    ns: [u64; 2],
    at_once: u64,
    at_most: u64,
    iterations: u64,
    /// The number of changes from one stream to the other within an iteration.
    changes: u64,
    /// The explained changes, by the mechanism and the row of the function.
    explained: BTreeMap<(StreamOrder, Option<u8>), ExplainedSum>,
}

impl Ordering<'_> {
    /// Returns the figures of two streams, and the row (in the table of CUDA functions) of the function that orders
    /// them. Returns `None` if the streams have no iteration in common.
    fn pair(&self, one: &StreamSum, other: &StreamSum) -> Option<(StreamPair, Option<u8>)> {
        let sums = self.sums(one.device, [one.stream, other.stream]);
        let [more, less] = sums.ns;
        if sums.iterations == 0 {
            return None;
        }
        let mut pair = StreamPair {
            device: one.device,
            streams: [(one.stream, more), (other.stream, less)]
                .map(|(stream, gpu_ns)| StreamTime { stream, gpu_ns }),
            at_once: sums.at_once,
            at_most: sums.at_most,
            iterations: sums.iterations,
            order: None,
            waits: None,
            call: None,
            calls: 0,
        };
        let main =
            (sums.explained.iter()).max_by_key(|(_, (changes, ..))| changes.iter().sum::<u64>());
        let explained = (sums.explained.values())
            .flat_map(|(changes, ..)| changes)
            .sum::<u64>();
        let (Some(((order, row), (changes, calls, iterations))), true) = (main, pair.takes_turns())
        else {
            return Some((pair, None));
        };
        // If the legacy default stream orders two streams, they never run at once. Streams may also take turns because
        // a kernel fills the GPU, but then the next kernel mostly begins shortly before that kernel ends. So any
        // overlap shows that the legacy default stream is not the cause.
        let is_strict = *order != StreamOrder::Legacy || pair.at_once == 0;
        if is_strict
            && explained as f64 >= MIN_EXPLAINED * sums.changes as f64
            && iterations.len() as f64 >= MIN_EXPLAINED * sums.iterations as f64
        {
            pair.order = Some(*order);
            pair.calls = *calls;
            let [first, second] = *changes;
            pair.waits = match (first, second) {
                (first, second) if first >= 2 * second => Some(one.stream),
                (first, second) if second >= 2 * first => Some(other.stream),
                _ => None,
            };
            return Some((pair, *row));
        }
        Some((pair, None))
    }

    /// Adds up the work of two streams. The pieces of work are processed in the order in which they began.
    fn sums(&self, device: u8, streams: [u16; 2]) -> PairSums {
        let mut sums = PairSums::default();
        // The latest end of each stream's work so far, and the index of its latest piece.
        let mut ends = [0_u64; 2];
        let mut latest: [Option<usize>; 2] = [None; 2];
        let mut last: Option<usize> = None;
        let mut of_iteration: Option<(usize, [u64; 2], u64)> = None;
        for (at, piece) in self.tally.pieces.iter().enumerate() {
            let side = streams.iter().position(|stream| *stream == piece.stream);
            let Some(side) = side.filter(|_| piece.device == device) else {
                continue;
            };
            let start = piece.start.max(ends[side]);
            let ns = piece.end.saturating_sub(start);
            let at_once = at_once(ns, piece.end.min(ends[1 - side]).saturating_sub(start));
            let counted = piece.place.filter(|place| self.is_counted[*place]);
            if let Some(place) = counted {
                match &mut of_iteration {
                    Some((same, ..)) if *same == place => {}
                    _ => {
                        sums.close(of_iteration.take());
                        of_iteration = Some((place, [0; 2], 0));
                    }
                }
                if let Some((_, of, both)) = &mut of_iteration {
                    of[side] += ns;
                    *both += at_once;
                }
                let before = last.map(|before| (before, &self.tally.pieces[before]));
                let changes = before.filter(|(_, before)| {
                    before.stream != piece.stream && before.place == Some(place)
                });
                if let Some((before, _)) = changes {
                    sums.changes += 1;
                    if let Some(explained) = self.explain(before, at, latest[side]) {
                        let key = (explained.order, explained.row);
                        let (changes, calls, iterations) = sums.explained.entry(key).or_default();
                        changes[side] += 1;
                        *calls += explained.calls;
                        iterations.insert(place);
                    }
                }
            }
            ends[side] = ends[side].max(piece.end);
            (latest[side], last) = (Some(at), Some(at));
        }
        sums.close(of_iteration);
        sums
    }

    /// Explains why a piece of work began after the other stream's piece `before`. `previous` is the latest piece of
    /// the same stream. Returns `None` if the two ran at once, or if no mechanism is seen.
    fn explain(&self, before: usize, at: usize, previous: Option<usize>) -> Option<Explained> {
        let pieces = &self.tally.pieces;
        let (ended, piece) = (&pieces[before], &pieces[at]);
        if at_once(
            piece.end - piece.start,
            ended.end.saturating_sub(piece.start),
        ) > 0
        {
            return None;
        }
        let delay = piece.start.saturating_sub(ended.end);
        let call = self.calls[at]?;
        if call.end > ended.end {
            return self.host_wait(before, &call);
        }
        if delay > MAX_DELAY_NS {
            return None;
        }
        // If the GPU waited for the other stream's work, the event was recorded after that work had been enqueued, and
        // the event wait was enqueued after the previous work of this stream. So earlier event waits do not count.
        let recorded = self.calls[before]?.start;
        let since = match previous {
            Some(previous) => self.calls[previous]?.start.max(recorded),
            None => recorded,
        };
        if let Some(orders) = self.tally.orders.get(&call.stream)
            && !self.crowded.contains(&piece.device)
        {
            let from = orders.partition_point(|order| order.start < since);
            let orders = orders[from..].iter();
            let mut orders = orders.take_while(|order| order.start <= call.start);
            if let Some(first) = orders.next() {
                return Some(Explained {
                    order: StreamOrder::Event,
                    row: Some(first.row),
                    calls: 1 + orders.count() as u64,
                });
            }
        }
        let is_legacy = |at: usize| {
            let handle = self.calls[at].map(|call| call.stream);
            pieces[at].stream == LEGACY_NUMBER
                && handle.is_some_and(|handle| LEGACY_HANDLES.contains(&handle))
        };
        (is_legacy(before) || is_legacy(at)).then_some(Explained {
            order: StreamOrder::Legacy,
            row: None,
            calls: 0,
        })
    }

    /// Returns the wait of the launching thread that began before the end of the piece `before`, and returned after
    /// this end but before the thread made the call. A wait for another stream does not count. Returns `None` if there
    /// is no such wait.
    fn host_wait(&self, before: usize, call: &PieceCall) -> Option<Explained> {
        let piece = &self.tally.pieces[before];
        let ended = piece.end;
        let enqueued = self.calls[before]?;
        let waits = self.tally.waits.get(&call.thread)?;
        let until = waits.partition_point(|(_, wait)| wait.start < call.start);
        let is_for_it = |kind: &Wait, wait: &PieceCall| match kind {
            Wait::Stream | Wait::CopyToHost => wait.stream == enqueued.stream,
            Wait::Event => !self.crowded.contains(&piece.device),
            Wait::Context => true,
        };
        let spans = |(kind, wait): &&(Wait, PieceCall)| {
            wait.end <= call.start
                && wait.start < ended
                && enqueued.start <= wait.start
                && is_for_it(kind, wait)
        };
        let (_, wait) = waits[..until]
            .iter()
            .rev()
            .take_while(|(_, wait)| wait.end + MAX_CLOCK_ERROR_NS >= ended)
            .find(spans)?;
        Some(Explained {
            order: StreamOrder::Host,
            row: Some(wait.row),
            calls: 1,
        })
    }
}

/// Returns the time in which a piece of work of `ns` nanoseconds ran at once with other work. This is the measured
/// time, or 0 if the measured time may be a rounding error.
const fn at_once(ns: u64, measured: u64) -> u64 {
    if measured <= MAX_ROUNDING_NS && measured <= ns / 2 {
        return 0;
    }
    measured
}

impl PairSums {
    /// Adds the sums of an iteration: its index, the time of each stream's work in it, and the time in which both
    /// streams ran at once.
    fn close(&mut self, iteration: Option<(usize, [u64; 2], u64)>) {
        let Some((_, ns, at_once)) = iteration else {
            return;
        };
        let shorter = ns[0].min(ns[1]);
        self.iterations += u64::from(shorter > 0);
        self.at_once += at_once;
        self.at_most += shorter.saturating_sub(at_once);
        for (sum, ns) in self.ns.iter_mut().zip(ns) {
            *sum += ns;
        }
    }
}

impl StreamPair {
    /// Returns true if the two streams hardly ever run at once.
    pub(crate) fn takes_turns(&self) -> bool {
        self.at_once_share() <= MAX_AT_ONCE
    }

    /// Returns the share of the time of the stream with less work in which both run, as a fraction.
    pub(crate) fn at_once_share(&self) -> f64 {
        let less = self.streams.iter().map(|one| one.gpu_ns).min();
        self.at_once as f64 / less.unwrap_or(0).max(1) as f64
    }

    /// Returns the time in which at least one of the two streams ran, in nanoseconds.
    pub(crate) fn together(&self) -> u64 {
        let both = self.streams.iter().map(|one| one.gpu_ns).sum::<u64>();
        both.saturating_sub(self.at_once)
    }
}

#[cfg(test)]
mod tests {
    use tllmprof_record::{CallKind, ClockKind, CopyKind};

    use super::*;
    use crate::events::launches::LaunchTally;
    use crate::events::spans::Span;

    const US: u64 = 1000;
    const STEP: u64 = 1000 * US;
    const STEPS: u64 = 20;
    /// The id of the name of a collective.
    const COLLECTIVE: StringId = 9;

    /// The stream's number, its handle, the start of the call, and the start and end of the work, in µs from the start
    /// of the step. The call takes 2 µs.
    type Work = (u16, u64, u64, u64, u64);

    /// A call in a step, with the GPU work that it enqueues. Times are in µs from the start of the step.
    #[derive(Clone, Copy)]
    enum Made {
        Kernel(Work),
        Collective(Work),
        Upload(Work),
        /// A launch of a graph with two kernels, which run one after the other.
        Graph(Work),
        /// Start and end of the host's wait for the stream with the handle 0xa.
        Wait(u64, u64),
        /// The handle of the stream for which the host waits, and start and end of the wait.
        WaitFor(u64, u64, u64),
        /// The handle of a stream that is made to wait for an event, and the start of the call.
        Order(u64, u64),
    }
    use Made::{Collective, Graph, Kernel, Order, Upload, Wait, WaitFor};

    const ROWS: [(CallKind, &str); 5] = [
        (CallKind::KernelLaunch, "cuLaunchKernel"),
        (CallKind::GraphLaunch, "cuGraphLaunch"),
        (CallKind::AsyncCopy, "cuMemcpyHtoDAsync_v2"),
        (CallKind::Wait, "cuStreamSynchronize"),
        (CallKind::Other, "cuStreamWaitEvent"),
    ];

    /// Returns the pair of streams of a program that makes the same calls in each step.
    fn found(step: &[Made]) -> Option<StreamPair> {
        found_in(|_| step.to_vec())
    }

    fn found_in(step: impl Fn(u64) -> Vec<Made>) -> Option<StreamPair> {
        let clock = Clock::new(ClockKind::Monotonic, &[]);
        let rows: Vec<_> = (0..)
            .zip(ROWS)
            .map(|(row, (kind, name))| CallCount {
                name: name.to_owned(),
                inside: 1,
                outside: 0,
                row,
                kind,
            })
            .collect();
        let spans = (0..STEPS).map(|n| Span {
            start: n * STEP,
            end: (n + 1) * STEP,
        });
        let windows = vec![(0, STEPS * STEP)];
        let timeline = Spans::new(spans.collect());
        let mut tally = StreamTally::new(&clock, &rows, timeline, windows.clone());
        let mut launches = LaunchTally::new(&clock, &rows, windows, false);
        let mut correlation = 0;
        for n in 0..STEPS {
            for made in step(n) {
                let (row, stream, from, to) = match made {
                    Kernel(work) | Collective(work) => (0, work.1, work.2, work.2 + 2),
                    Graph(work) => (1, work.1, work.2, work.2 + 2),
                    Upload(work) => (2, work.1, work.2, work.2 + 2),
                    Wait(from, to) => (3, 0xa, from, to),
                    WaitFor(stream, from, to) => (3, stream, from, to),
                    Order(stream, at) => (4, stream, at, at + 1),
                };
                let call = What::Call {
                    row,
                    capturing: false,
                    stream,
                };
                let event = Event::new(n * STEP + from * US, (to - from) * US, call);
                tally.add(5, &event);
                launches.add(5, &event);
                correlation += 1;
                let kernel = |name| GpuWorkKind::Kernel { name, correlation };
                let copy = GpuWorkKind::Copy {
                    kind: CopyKind::HostToDevice,
                    bytes: 1,
                };
                let works = match made {
                    Kernel(work) => vec![(work, kernel(1))],
                    Collective(work) => vec![(work, kernel(COLLECTIVE))],
                    Upload(work) => vec![(work, copy)],
                    Graph((number, handle, at, start, end)) => {
                        let half = (start + end) / 2;
                        let parts = [(start, half), (half, end)];
                        let part = |(start, end)| ((number, handle, at, start, end), kernel(1));
                        parts.map(part).to_vec()
                    }
                    Wait(..) | WaitFor(..) | Order(..) => Vec::new(),
                };
                for ((number, _, _, start, end), what) in works {
                    let work = GpuWork {
                        device: 0,
                        stream: number,
                        what,
                        ticks: n * STEP + start * US,
                        start: n * STEP + start * US,
                        ns: (end - start) * US,
                    };
                    tally.add_work(&work);
                    launches.add_work(&work);
                }
            }
        }
        tally.finish(
            &launches.finish(),
            &[true; STEPS as usize],
            |name| name == COLLECTIVE,
            |row| ROWS[usize::from(row)].1.to_owned(),
        )
    }

    const FIRST: Made = Kernel((13, 0xa, 0, 10, 410));
    const SECOND: Made = Kernel((14, 0xb, 30, 411, 711));

    #[track_caller]
    fn order(step: &[Made]) -> Option<StreamOrder> {
        found(step).expect("a pair").order
    }

    #[test]
    fn a_stream_that_waits_for_an_event_of_the_other() {
        let pair = found(&[FIRST, Order(0xb, 20), SECOND, Wait(40, 900)]).unwrap();
        assert_eq!(pair.order, Some(StreamOrder::Event));
        let streams = pair.streams.map(|one| (one.stream, one.gpu_ns));
        assert_eq!(streams, [(13, 400 * US * STEPS), (14, 300 * US * STEPS)]);
        assert_eq!((pair.at_once, pair.at_most), (0, 300 * US * STEPS));
        assert_eq!((pair.waits, pair.calls), (Some(14), STEPS));
        assert_eq!(pair.call.as_deref(), Some("cuStreamWaitEvent"));
        // The event wait does not order the streams if it comes after the second launch, if it is on the first stream,
        // or if it comes before the first launch.
        assert_eq!(order(&[FIRST, SECOND, Order(0xb, 50)]), None);
        assert_eq!(order(&[FIRST, Order(0xa, 20), SECOND]), None);
        let later = Kernel((13, 0xa, 6, 10, 410));
        assert_eq!(order(&[Order(0xb, 2), later, SECOND]), None);
        // A copy has no correlation number. It is matched to its call by the order on the stream.
        let copies = [
            FIRST,
            Order(0xb, 20),
            Upload((14, 0xb, 30, 411, 611)),
            Upload((14, 0xb, 33, 611, 711)),
        ];
        assert_eq!(order(&copies), Some(StreamOrder::Event));
        // Two handles have the same number of copies, so it is not known which of them belongs to stream 14.
        let doubtful = [
            &copies[..],
            &[
                Upload((15, 0xc, 40, 711, 712)),
                Upload((15, 0xc, 44, 712, 713)),
            ],
        ];
        assert_eq!(order(&doubtful.concat()), None);
    }

    #[test]
    fn an_event_may_be_that_of_a_third_stream() {
        let upload = Upload((15, 0xc, 2, 4, 9));
        let step = [upload, FIRST, Order(0xb, 20), SECOND];
        let pair = found(&step).unwrap();
        assert!(pair.takes_turns());
        assert_eq!(pair.order, None);
        // A third stream that seldom has work makes no difference.
        let seldom = found_in(|n| step[usize::from(n % 4 != 0)..].to_vec());
        assert_eq!(seldom.unwrap().order, Some(StreamOrder::Event));
    }

    #[test]
    fn streams_that_wait_for_each_other() {
        let step = [
            Kernel((13, 0xa, 0, 10, 200)),
            Order(0xb, 4),
            Kernel((14, 0xb, 6, 200, 400)),
            Order(0xa, 10),
            Kernel((13, 0xa, 12, 400, 600)),
            Order(0xb, 16),
            Kernel((14, 0xb, 18, 600, 800)),
        ];
        let pair = found(&step).unwrap();
        assert_eq!(pair.order, Some(StreamOrder::Event));
        assert_eq!(pair.waits, Some(14), "twice in a step, and the other once");
        let step = [
            &step[..],
            &[Order(0xa, 22), Kernel((13, 0xa, 24, 800, 900))],
        ]
        .concat();
        assert_eq!(found(&step).unwrap().waits, None);
    }

    #[test]
    fn the_host_waits_between_the_launches() {
        let late = |at| Kernel((14, 0xb, at, at + 5, at + 305));
        let pair = found(&[FIRST, Wait(5, 412), late(415), Wait(420, 740)]).unwrap();
        assert_eq!(pair.order, Some(StreamOrder::Host));
        assert_eq!((pair.waits, pair.calls), (Some(14), STEPS));
        assert_eq!(pair.call.as_deref(), Some("cuStreamSynchronize"));
        // The wait is for another stream.
        let other = WaitFor(0xc, 5, 412);
        assert_eq!(order(&[FIRST, other, late(415), Wait(420, 740)]), None);
        // No wait lasts until the first stream's work ends, so the host is merely late.
        assert_eq!(order(&[FIRST, Wait(5, 300), late(415)]), None);
        assert_eq!(order(&[FIRST, late(415), Wait(420, 740)]), None);
        // The wait began before the first stream's work was launched, so the host did not wait for that work.
        let first = Kernel((13, 0xa, 8, 10, 410));
        assert_eq!(order(&[Wait(5, 412), first, late(415)]), None);
    }

    #[test]
    fn the_legacy_default_stream() {
        let legacy = |number, handle| Kernel((number, handle, 30, 411, 711));
        for handle in LEGACY_HANDLES {
            let pair = found(&[FIRST, legacy(7, handle)]).unwrap();
            assert_eq!(pair.order, Some(StreamOrder::Legacy));
            assert_eq!((pair.call, pair.calls), (None, 0));
        }
        // In code that was compiled for per-thread default streams, handle 0 is not the legacy default stream. And a
        // stream with the number 7 but another handle is not the legacy default stream either.
        assert_eq!(order(&[FIRST, legacy(15, 0)]), None);
        assert_eq!(order(&[FIRST, legacy(7, 0xb)]), None);
    }

    #[test]
    fn work_that_nothing_orders_or_that_runs_at_once() {
        // No call orders these streams. They may take turns because the first stream's work fills the GPU.
        assert_eq!(order(&[FIRST, SECOND]), None);
        let pair = found(&[FIRST, Order(0xb, 20), Kernel((14, 0xb, 30, 210, 510))]).unwrap();
        assert!(!pair.takes_turns());
        assert_eq!(pair.order, None);
        assert_eq!(pair.at_once, 200 * US * STEPS);
        assert_eq!(pair.at_most, 100 * US * STEPS);
        // The second stream's work begins long after the first stream's work has ended, so something else held it back.
        assert_eq!(
            order(&[FIRST, Order(0xb, 20), Kernel((14, 0xb, 30, 600, 900))]),
            None
        );
        // Only every other step has an event wait.
        let some = found_in(|n| match n % 2 {
            0 => vec![FIRST, Order(0xb, 20), SECOND],
            _ => vec![FIRST, SECOND],
        });
        assert_eq!(some.unwrap().order, None);
    }

    #[test]
    fn streams_that_are_not_judged() {
        let ordered = |first, second| found(&[first, Order(0xb, 20), second]);
        assert!(ordered(FIRST, SECOND).is_some());
        assert_eq!(ordered(FIRST, Collective((14, 0xb, 30, 411, 711))), None);
        assert_eq!(ordered(FIRST, Kernel((14, 0xb, 30, 411, 441))), None);
        assert_eq!(ordered(Graph((13, 0xa, 0, 10, 410)), SECOND), None);
        assert_eq!(ordered(FIRST, Kernel((13, 0xa, 30, 411, 711))), None);
        // The second stream has work in every fourth step.
        let seldom = found_in(|n| match n % 4 {
            0 => vec![FIRST, Order(0xb, 20), SECOND],
            _ => vec![FIRST],
        });
        assert_eq!(seldom, None);
    }
}
