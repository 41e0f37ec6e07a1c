//! Adds up the work of pairs of streams, and explains why one stream's work began after that of the other.

use std::collections::{BTreeMap, HashMap, HashSet};

use tllmprof_calls::Wait;
use tllmprof_record::StringId;

use super::tally::{PieceCall, PieceKind, StreamPiece, StreamTally};
use super::{MIN_EXPLAINED, MIN_STREAM_SHARE, StreamOrder, StreamPair, StreamSearch, StreamTime};
use crate::events::launches::{Launches, MAX_CLOCK_ERROR_NS};

/// Maximum number of a GPU's streams that are examined in pairs. The streams with the most work are chosen.
const MAX_STREAMS: usize = 8;
/// Minimum share of the counted iterations in which a stream must have work, as a fraction. An iteration is counted if
/// it has recorded kernels and the report's figures include it.
const MIN_ITERATIONS: f64 = 0.8;
/// Maximum share of a stream's work that may belong to CUDA graphs or to collectives, as a fraction. The order of the
/// kernels in a graph is part of the graph and does not depend on streams, and collectives wait for other ranks by
/// design.
const MAX_OTHERS: f64 = 0.1;
/// Maximum time in nanoseconds from the end of one stream's work to the start of the other stream's work that waited
/// for it on the GPU. If the time is longer, something else held the work back.
const MAX_DELAY_NS: u64 = 50_000;
/// Maximum overlap of two pieces of work, in nanoseconds, that may be an error due to the rounding of their times.
const MAX_ROUNDING_NS: u64 = 1_000;
/// CUPTI's number for the legacy default stream.
const LEGACY_NUMBER: u16 = 7;
/// The handles of the legacy default stream: `NULL` and `CU_STREAM_LEGACY`.
pub(super) const LEGACY_HANDLES: [u64; 2] = [0, 1];

impl StreamTally<'_> {
    /// Returns the pair of streams whose overlap would save most. `is_counted` has an entry for each iteration: true
    /// if it has recorded kernels and the report's figures include it. `is_collective` says whether a kernel's name is
    /// that of a collective. `name` returns the name of a row of the table of CUDA functions.
    pub(crate) fn finish(
        mut self,
        launches: &Launches,
        is_counted: &[bool],
        is_collective: impl Fn(StringId) -> bool,
        name: impl Fn(u8) -> String,
    ) -> StreamSearch {
        if self.is_too_much {
            return StreamSearch::TooMuch;
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
        let best = found
            .into_iter()
            .max_by_key(|(pair, _)| (pair.order.is_some(), pair.at_most));
        match best {
            Some((mut pair, row)) => {
                pair.call = row.map(name);
                StreamSearch::Pair(pair)
            }
            None => StreamSearch::Nothing,
        }
    }
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
    let mut kept: HashMap<u8, usize> = HashMap::new();
    sums.retain(|sum| {
        let count = kept.entry(sum.device).or_default();
        *count += 1;
        *count <= MAX_STREAMS
    });
    (sums, crowded)
}

/// The explanation of one change from a stream to the other, that is, why a piece of work of one stream began after the
/// preceding piece, which ran on the other stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Explained {
    order: StreamOrder,
    /// Row of the waiting function in the table of CUDA functions; `None` if no function waits.
    row: Option<u8>,
    /// Number of calls of that function.
    calls: u64,
}

/// Sums over the changes from one stream to the other that have the same explanation: the number of changes to each
/// stream, the number of calls of the waiting function, and the iterations with such changes.
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
        // Streams that the legacy default stream orders never run at once. Streams that take turns because a kernel
        // fills the GPU mostly overlap a little, because the next kernel begins shortly before that kernel ends. So any
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

    /// Explains why the piece of work `at` began after the other stream's piece `before`. `previous` is the latest
    /// earlier piece of the same stream as `at`. All three are indexes in the tally's `pieces`. Returns `None` if the
    /// pieces `before` and `at` ran at once, or if no mechanism is found.
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
        // An event wait orders the two streams only if its event was recorded after the other stream's work had been
        // enqueued. The wait itself must have been enqueued after the previous work of this stream. So earlier event
        // waits do not count.
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

    /// Returns the explanation that the host waited for the piece `before` and then made the call `call`; `None` if
    /// there is no such wait. The wait must be made by the thread of the call, and must not be for another stream. It
    /// must begin after the piece was enqueued and before the piece ended. It must return before the call and after the
    /// piece ended. It may seem to return up to [`MAX_CLOCK_ERROR_NS`] earlier, because the times come from different
    /// clocks.
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
