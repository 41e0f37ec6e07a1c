//! Matching of kernels to the calls that launched them.
//!
//! All kernels of one call have the same correlation number, and the numbers increase in the order
//! of the calls, but a record does not contain the number of a call. So calls and correlation numbers
//! are matched in order, wherever there are equally many of both: over a whole window with recorded
//! kernels or, if that fails, between two moments at which the GPUs were idle and no thread was in
//! a launching call. A call is not matched if its time, stream or number of kernels does not fit the kernels.

use std::collections::{HashMap, HashSet};

use tllmprof_record::{CallKind, Clock, Event, What};

use super::facts::CallCount;
use super::kernel_windows::KernelWindows;
use super::spans::Span;
use super::work::{GpuWork, GpuWorkKind};

/// Maximum number of launching calls to analyze; the same maximum applies to correlation numbers and to pieces of GPU
/// work. If a maximum is exceeded, no launch is matched.
const MAX_LAUNCHES: usize = 1 << 20;

/// Minimum idle time of the GPUs, in nanoseconds, that shows that no work was queued. If work had been queued, it would
/// have begun sooner.
const MIN_IDLE_NS: u64 = 10_000;

/// Maximum time by which a kernel may seem to begin before its launching call, in nanoseconds. The limit is not 0
/// because the two times come from different clocks.
pub(crate) const MAX_CLOCK_ERROR_NS: u64 = 10_000;

/// A call that launches GPU work, as it is in the record.
#[derive(Clone, Copy, Debug)]
struct LaunchCall {
    thread: u32,
    /// Start of the call, in nanoseconds of `CLOCK_MONOTONIC`.
    start: u64,
    end: u64,
    kind: CallKind,
    /// The handle of the stream on which the call launches.
    stream: u64,
}

/// A launching call whose kernels are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Launch {
    /// The launch's index among the launches of the process.
    pub number: u32,
    /// The thread that made the call.
    pub thread: u32,
    /// Number of kernels that the call launched.
    pub kernels: u32,
    /// Start of the call, in nanoseconds of `CLOCK_MONOTONIC`.
    pub start: u64,
    /// End of the call, in nanoseconds of `CLOCK_MONOTONIC`.
    pub end: u64,
    /// Start of the call's last kernel, in nanoseconds of `CLOCK_MONOTONIC`.
    pub last: u64,
    /// The handle of the stream on which the call launched.
    pub stream: u64,
    /// True if the call launched a CUDA graph.
    pub is_graph: bool,
}

/// The launches of a process whose kernels are known, for look-ups by call and by kernel.
#[derive(Debug, Default)]
pub struct Launches {
    launches: Vec<Launch>,
    calls: HashMap<(u32, u64), u32>,
    /// Indexes of launches. The key is the index of the window in which the kernels were recorded,
    /// and their correlation number. The window is part of the key because correlation numbers may
    /// restart at 1 in each window.
    kernels: HashMap<(usize, u32), u32>,
    windows: KernelWindows,
}

impl Launches {
    /// Returns the launch whose call began at `start` (in nanoseconds) on a thread; `None` if the call's kernels are
    /// not known.
    #[must_use]
    pub fn of_call(&self, thread: u32, start: u64) -> Option<&Launch> {
        self.launch(self.calls.get(&(thread, start)))
    }

    /// Returns the launch that started a kernel; `None` if it is not known. `start` is the kernel's start in
    /// nanoseconds.
    #[must_use]
    pub fn of_kernel(&self, correlation: u32, start: u64) -> Option<&Launch> {
        let window = self.windows.at(start)?;
        self.launch(self.kernels.get(&(window, correlation)))
    }

    fn launch(&self, number: Option<&u32>) -> Option<&Launch> {
        self.launches.get(*number? as usize)
    }
}

/// All kernels that one call launched. They have the same correlation number.
#[derive(Clone, Copy, Debug)]
struct LaunchedKernels {
    correlation: u32,
    kernels: u32,
    first: u64,
    last: u64,
    /// GPU and stream of the first kernel.
    place: (u8, u16),
}

/// Collects the calls and the kernels of a record, from which launches are found.
#[derive(Debug)]
pub struct LaunchTally<'a> {
    clock: &'a Clock,
    /// Rows of the table of CUDA calls whose functions launch kernels.
    rows: HashMap<u8, CallKind>,
    windows: KernelWindows,
    calls: Vec<LaunchCall>,
    works: HashMap<(usize, u32), LaunchedKernels>,
    /// Start and end of each piece of GPU work.
    busy: Vec<(u64, u64)>,
    is_too_much: bool,
    /// True if events are missing from the record. Then the calls and the kernels of a whole window are not matched in
    /// order, because there may be equally many of both by chance.
    lacks_some: bool,
}

impl<'a> LaunchTally<'a> {
    /// Returns an empty tally. `windows` are the windows in which kernels were recorded, in
    /// nanoseconds. `lacks_some` is true if events are missing from the record.
    pub fn new(
        clock: &'a Clock,
        calls: &[CallCount],
        windows: KernelWindows,
        lacks_some: bool,
    ) -> Self {
        Self {
            clock,
            rows: calls
                .iter()
                .filter(|row| row.kind.launches())
                .map(|row| (row.row, row.kind))
                .collect(),
            windows,
            calls: Vec::new(),
            works: HashMap::new(),
            busy: Vec::new(),
            is_too_much: false,
            lacks_some,
        }
    }

    /// Adds a piece of GPU work. A kernel belongs to the last window with recorded kernels that began before the
    /// kernel.
    pub fn add_work(&mut self, work: &GpuWork) {
        if self.windows.is_empty() || self.is_too_much {
            return;
        }
        let Span { start, end } = work.span();
        self.busy(start, end);
        if let GpuWorkKind::Kernel { correlation, .. } = work.what {
            self.kernel((work.device, work.stream), correlation, start);
        }
    }

    /// Adds an event, if it is a launching call.
    pub fn add(&mut self, thread: u32, event: &Event) {
        if self.windows.is_empty() || self.is_too_much {
            return;
        }
        match event.what {
            // Skip failed calls and calls that were captured into a graph, because they launched
            // nothing.
            What::Call {
                row,
                capturing: false,
                stream,
            } if !event.failed => {
                if let Some(kind) = self.rows.get(&row) {
                    let end = event.start.saturating_add(event.duration);
                    self.call(LaunchCall {
                        thread,
                        start: self.clock.ns(event.start),
                        end: self.clock.ns(end),
                        kind: *kind,
                        stream,
                    });
                }
            }
            _ => (),
        }
    }

    fn call(&mut self, call: LaunchCall) {
        if !self.windows.contains(call.start) {
            return;
        }
        if self.calls.len() < MAX_LAUNCHES {
            self.calls.push(call);
        } else {
            self.is_too_much = true;
        }
    }

    fn kernel(&mut self, place: (u8, u16), correlation: u32, start: u64) {
        let Some(window) = self.windows.at(start) else {
            return;
        };
        if self.works.len() >= MAX_LAUNCHES && !self.works.contains_key(&(window, correlation)) {
            self.is_too_much = true;
            return;
        }
        let work = self
            .works
            .entry((window, correlation))
            .or_insert(LaunchedKernels {
                correlation,
                kernels: 0,
                first: start,
                last: start,
                place,
            });
        work.kernels += 1;
        work.last = work.last.max(start);
        if start < work.first {
            (work.first, work.place) = (start, place);
        }
    }

    fn busy(&mut self, start: u64, end: u64) {
        if self.busy.len() < MAX_LAUNCHES {
            self.busy.push((start, end));
        } else {
            self.is_too_much = true;
        }
    }

    #[must_use]
    pub fn finish(mut self) -> Launches {
        let mut found = Launches {
            windows: self.windows.clone(),
            ..Launches::default()
        };
        if self.is_too_much || self.works.is_empty() {
            return found;
        }
        self.calls.sort_by_key(|call| (call.start, call.thread));
        self.busy.sort_unstable();
        let mut works: Vec<Vec<LaunchedKernels>> = vec![Vec::new(); self.windows.len()];
        for ((window, _), work) in &self.works {
            works[*window].push(*work);
        }
        let mut calls = &self.calls[..];
        for (window, mut works) in works.into_iter().enumerate() {
            let count = calls.partition_point(|call| call.start <= self.windows.end(window));
            let (own, rest) = calls.split_at(count);
            calls = rest;
            works.sort_by_key(|work| work.correlation);
            let whole = fit(own, &works).filter(|_| !self.lacks_some);
            let pairs = whole.unwrap_or_else(|| between_idle(own, &works, &self.busy));
            for (call, work) in unmistaken(&pairs) {
                let number = found.launches.len() as u32;
                found.launches.push(Launch {
                    number,
                    thread: call.thread,
                    kernels: work.kernels,
                    start: call.start,
                    end: call.end,
                    last: work.last,
                    stream: call.stream,
                    is_graph: call.kind == CallKind::GraphLaunch,
                });
                found.calls.insert((call.thread, call.start), number);
                found.kernels.insert((window, work.correlation), number);
            }
        }
        found
    }
}

type Pair<'a> = (&'a LaunchCall, &'a LaunchedKernels);

/// Splits the calls and the kernels at the moments at which the GPUs were idle. The calls and the kernels between two
/// such moments are matched in order, if there are equally many of both.
fn between_idle<'a>(
    calls: &'a [LaunchCall],
    works: &'a [LaunchedKernels],
    busy: &[(u64, u64)],
) -> Vec<Pair<'a>> {
    let mut found = Vec::new();
    let (mut call, mut work) = (0, 0);
    for (next_call, next_work) in idle_moments(calls, works, busy)
        .into_iter()
        .chain([(calls.len(), works.len())])
    {
        let part = fit(&calls[call..next_call], &works[work..next_work]);
        found.extend(part.into_iter().flatten());
        (call, work) = (next_call, next_work);
    }
    found
}

/// Pairs the calls with the entries of `works`, in order. Each entry stands for all kernels of one call. Returns `None`
/// if `calls` and `works` have different lengths, or if the kernels of a pair cannot come from its call.
fn fit<'a>(calls: &'a [LaunchCall], works: &'a [LaunchedKernels]) -> Option<Vec<Pair<'a>>> {
    let is_one = |(call, work): &Pair<'_>| {
        work.first.saturating_add(MAX_CLOCK_ERROR_NS) >= call.start
            && (call.kind == CallKind::GraphLaunch || work.kernels == 1)
    };
    let pairs: Vec<_> = calls.iter().zip(works).collect();
    (calls.len() == works.len() && pairs.iter().all(is_one)).then_some(pairs)
}

/// Finds the calls before which the GPUs were idle. Returns the index of each such call in `calls`, and the index in
/// `works` of the first kernels that began after the call's start. A call is left out if it began during an earlier
/// call, because the earlier call may launch its work later.
fn idle_moments(
    calls: &[LaunchCall],
    works: &[LaunchedKernels],
    busy: &[(u64, u64)],
) -> Vec<(usize, usize)> {
    // `before[i]` is the latest start of the kernels in `works` before index i, and `after[i]` is the earliest start of
    // the kernels from index i on.
    let mut before = vec![0; works.len() + 1];
    let mut after = vec![u64::MAX; works.len() + 1];
    for (at, work) in works.iter().enumerate() {
        before[at + 1] = work.last.max(before[at]);
    }
    for (at, work) in works.iter().enumerate().rev() {
        after[at] = work.first.min(after[at + 1]);
    }
    let mut found = Vec::new();
    let (mut next, mut ended, mut place, mut returned) = (0, 0, 0, 0);
    for (index, call) in calls.iter().enumerate() {
        let is_within_another = call.start < returned;
        returned = call.end.max(returned);
        while let Some((_, end)) = busy.get(next).filter(|(start, _)| *start < call.start) {
            ended = (*end).max(ended);
            next += 1;
        }
        if is_within_another || ended.saturating_add(MIN_IDLE_NS) > call.start {
            continue;
        }
        while place < works.len() && works[place].first < call.start {
            place += 1;
        }
        if before[place] < call.start && call.start <= after[place] {
            found.push((index, place));
        }
    }
    found
}

/// Removes pairs of a call and its kernels that may be wrong because calls of several threads overlapped. A pair with
/// an overlapped call stays only if two conditions hold. First, its kernels ran on the GPU stream on which kernels of
/// the same thread and stream handle usually run. Second, no overlapping call of another thread has kernels on that
/// GPU stream.
fn unmistaken<'a>(pairs: &[Pair<'a>]) -> Vec<Pair<'a>> {
    let mut streams: HashMap<(u32, u64), HashMap<(u8, u16), u32>> = HashMap::new();
    for (call, work) in pairs {
        let places = streams.entry((call.thread, call.stream)).or_default();
        *places.entry(work.place).or_default() += 1;
    }
    let usual: HashMap<_, _> = streams
        .iter()
        .filter_map(|(key, places)| {
            let most = places
                .iter()
                .max_by_key(|(place, count)| (**count, **place))?;
            Some((*key, *most.0))
        })
        .collect();
    let is_usual =
        |(call, work): &Pair<'_>| usual.get(&(call.thread, call.stream)) == Some(&work.place);
    let mut kept = Vec::with_capacity(pairs.len());
    let mut from = 0;
    while from < pairs.len() {
        // Find the end of a group of calls. Each call in the group, except the first, begins before an earlier call of
        // the group has ended.
        let (mut to, mut end) = (from + 1, pairs[from].0.end);
        while to < pairs.len() && pairs[to].0.start < end {
            end = end.max(pairs[to].0.end);
            to += 1;
        }
        let together = &pairs[from..to];
        from = to;
        let thread = together[0].0.thread;
        if together.iter().all(|(call, _)| call.thread == thread) {
            kept.extend_from_slice(together);
            continue;
        }
        let mut users: HashMap<(u8, u16), u32> = HashMap::new();
        let mut is_shared =
            |pair: &Pair<'_>| *users.entry(pair.1.place).or_insert(pair.0.thread) != pair.0.thread;
        let shared: HashSet<_> = together
            .iter()
            .filter(|pair| is_shared(pair))
            .map(|(_, work)| work.place)
            .collect();
        let is_clear = |pair: &Pair<'_>| is_usual(pair) && !shared.contains(&pair.1.place);
        kept.extend(together.iter().copied().filter(is_clear));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    fn call(thread: u32, start: u64) -> LaunchCall {
        LaunchCall {
            thread,
            start: start * US,
            end: (start + 4) * US,
            kind: CallKind::KernelLaunch,
            stream: u64::from(thread),
        }
    }

    /// Returns the correlation number of each call's kernel, or `None` if it was not found. A kernel is given by its
    /// correlation number, its start in microseconds and its stream. Each thread launches on its own stream.
    fn found(calls: &[LaunchCall], kernels: &[(u32, u64, u16)]) -> Vec<Option<u32>> {
        found_where(calls, kernels, false)
    }

    fn found_where(
        calls: &[LaunchCall],
        kernels: &[(u32, u64, u16)],
        lacks_some: bool,
    ) -> Vec<Option<u32>> {
        let clock = Clock::new(tllmprof_record::ClockKind::Monotonic, &[]);
        let mut tally = LaunchTally {
            clock: &clock,
            rows: HashMap::new(),
            windows: KernelWindows::new(vec![(0, 1000 * US)]),
            calls: calls.to_vec(),
            works: HashMap::new(),
            busy: Vec::new(),
            is_too_much: false,
            lacks_some,
        };
        for (correlation, start, stream) in kernels {
            tally.busy(start * US, (start + 3) * US);
            tally.kernel((0, *stream), *correlation, start * US);
        }
        let launches = tally.finish();
        let number = |call: &LaunchCall| {
            let launch = *launches.of_call(call.thread, call.start)?;
            let of = |(correlation, start, _): &&(u32, u64, u16)| {
                launches.of_kernel(*correlation, start * US) == Some(&launch)
            };
            kernels.iter().find(of).map(|kernel| kernel.0)
        };
        calls.iter().map(number).collect()
    }

    #[test]
    fn calls_and_kernels_go_together_in_their_order_however_far_behind_the_gpu_is() {
        let calls = [call(1, 10), call(1, 20), call(1, 30)];
        let kernels = [(9, 95, 1), (5, 90, 1), (12, 100, 1)];
        assert_eq!(found(&calls, &kernels), [Some(5), Some(9), Some(12)]);
        // If events are missing from the record, equal numbers of calls and kernels in the whole window prove nothing.
        assert_eq!(found_where(&calls, &kernels, true), [None; 3]);
    }

    #[test]
    fn where_a_call_is_missing_nothing_is_joined_between_the_idle_moments_around_it() {
        let calls = [call(1, 10), call(1, 100), call(1, 200), call(1, 206)];
        let kernels = [
            (1, 12, 1),
            (3, 102, 1),
            (4, 106, 1),
            (7, 202, 1),
            (8, 208, 1),
        ];
        let expected = [Some(1), None, Some(7), Some(8)];
        assert_eq!(found(&calls, &kernels), expected);
        // Now all kernels begin after the call at 200, so no idle moment lies between kernels of different calls. Then
        // nothing shows which of the calls is missing, so no call is matched.
        let behind =
            kernels.map(|(number, _, stream)| (number, 200 + u64::from(number) * 4, stream));
        assert_eq!(found(&calls, &behind), [None; 4]);
    }

    #[test]
    fn the_gpu_is_not_done_with_a_call_that_is_on_its_way() {
        // In this test each call begins while the GPU is idle, but before the previous call has
        // launched its kernel. An additional kernel without a call makes the numbers of calls and kernels
        // unequal, so they cannot be matched over the whole window.
        let calls = [(1, 100), (2, 116), (1, 132)].map(|(thread, start)| LaunchCall {
            end: (start + 24) * US,
            ..call(thread, start)
        });
        let kernels = [(1, 50, 2), (2, 118, 1), (3, 136, 2), (4, 152, 1)];
        assert_eq!(found(&calls, &kernels), [Some(2), Some(3), Some(4)]);
    }

    #[test]
    fn no_kernel_begins_before_its_launch() {
        let calls = [call(1, 10), call(1, 100), call(1, 200)];
        let kernels = [(1, 12, 1), (2, 170, 1), (3, 180, 1)];
        assert_eq!(found(&calls, &kernels), [Some(1), None, None]);
    }

    #[test]
    fn a_kernel_that_was_launched_alone_is_alone() {
        let calls = [call(1, 10), call(1, 12)];
        let kernels = [(1, 20, 1), (1, 24, 1), (2, 28, 1)];
        assert_eq!(found(&calls, &kernels), [None, None]);
        let graph = LaunchCall {
            kind: CallKind::GraphLaunch,
            ..calls[0]
        };
        assert_eq!(found(&[graph, calls[1]], &kernels), [Some(1), Some(2)]);
    }

    #[test]
    fn calls_of_two_threads_at_once_are_distinguished_by_their_streams() {
        // The calls at 20 and 21 overlap, and so do the calls at 30 and 31. Of the calls at 20 and 21, the later one
        // launches its kernel first. So both are paired with the wrong kernel, and must be left out.
        let calls = [
            call(1, 10),
            call(2, 15),
            call(1, 20),
            call(2, 21),
            call(1, 30),
            call(2, 31),
        ];
        let kernels = [
            (1, 50, 1),
            (2, 54, 2),
            (3, 58, 2),
            (4, 62, 1),
            (5, 66, 1),
            (6, 70, 2),
        ];
        let expected = [Some(1), Some(2), None, None, Some(5), Some(6)];
        assert_eq!(found(&calls, &kernels), expected);
        // If all kernels run on one stream, nothing shows which of two overlapping calls launched
        // which kernel.
        let one = kernels.map(|(number, start, _)| (number, start, 1));
        let expected = [Some(1), Some(2), None, None, None, None];
        assert_eq!(found(&calls, &one), expected);
    }
}
