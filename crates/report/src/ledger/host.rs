//! The host's time, divided by cause.
//!
//! Events of a thread arrive in the order of their ends, so an event arrives after the events inside it. The event's
//! cause gets only the part of its time that no earlier event covered.
//!
//! Times are converted to a clock that runs only during the thread's iterations, so time outside iterations is not
//! counted.

use std::cell::Cell;
use std::collections::HashMap;

use tllmprof_record::{Clock, Event, What};

use super::keys::{ActivityKey, HostCause, NameSources};
use super::paths::Paths;
use super::split::{Count, SampleSums};
use super::times::Times;
use crate::events::idle::Idle;
use crate::events::iteration::part;
use crate::events::requests::Requests;
use crate::events::samples::{Sampled, SampledState};
use crate::events::spans::Span;

/// Minimum number of the latest pieces of a thread (see [`Piece`]) that stay unmerged, because a later event may
/// contain some of them.
const MIN_HELD_BACK: usize = 1 << 16;

/// Maximum number of entries in the maps [`GroupTimes::times`] of all groups together. An entry is the time of one
/// cause in one group of iterations. Times of further causes are added to [`HostCause::Other`]. The same maximum
/// applies to the number of entries in each map [`GroupTimes::frames`]. Samples for further entries are not counted.
const MAX_TIMES: usize = 1 << 18;

/// Minimum duration of a call that copies to the host, in nanoseconds, for the assumption that it waits for the GPU. A
/// call that only enqueues the copy returns sooner.
const MIN_COPY_WAIT_NS: u64 = 20_000;

/// An iteration with the index of the group of iterations to which its time is added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupedIteration {
    /// The iteration's start and end in nanoseconds.
    pub span: Span,
    pub thread: u32,
    pub group: usize,
}

/// Divides the host's time by cause. Times are in nanoseconds.
#[derive(Debug)]
pub(crate) struct HostLedger {
    threads: HashMap<u32, LedgerThread>,
    sums: Sums,
    /// The rows, in the table of calls, of the functions that copy to the host asynchronously.
    copies_to_host: Vec<u8>,
    /// The parts of the current event's time span that no earlier event covered. This buffer is reused for all events.
    own: Vec<Span>,
}

/// The host's time for each group of iterations, divided by cause.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    groups: Vec<GroupTimes>,
    /// Number of entries in the maps [`GroupTimes::times`] of all groups together.
    count: usize,
}

/// The host's time in one group of iterations, by cause.
#[derive(Clone, Debug, Default)]
struct GroupTimes {
    times: HashMap<HostCause, Times>,
    total: Times,
    seen: SampleSums,
    /// Numbers of samples in which the thread was running. The key is the cause of the time, the ID
    /// of the innermost frame, and true for a native stack.
    frames: HashMap<(HostCause, u32, bool), u64>,
}

/// The times and samples of a thread that runs iterations, collected while the thread's events are read.
#[derive(Debug, Default)]
struct LedgerThread {
    iterations: Vec<GroupedIteration>,
    /// For each iteration, the total time of the iterations before it.
    before: Vec<u64>,
    /// The sum of the times of all iterations of the thread.
    all: u64,
    /// Times that have a cause already, in order. An event and the events inside it are merged into one piece.
    pieces: Vec<Piece>,
    idle: Idle,
    /// Samples of the thread's stack inside its iterations, in order.
    samples: Vec<Sample>,
    /// Index in `iterations` at which the last search ended.
    last: Cell<usize>,
    /// Number of the thread's sleeps in waits for requests that were already added to `pieces`.
    slept: usize,
    /// Minimum length of the time between two activities, in nanoseconds, to get its own row in the
    /// ledger. A shorter time gets the cause [`HostCause::Short`].
    long: u64,
}

/// A sample of a thread's stack inside an iteration.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Time of the sample, in nanoseconds on the clock that runs only during the thread's
    /// iterations.
    at: u64,
    seen: SampledState,
    count: Count,
    /// ID of the innermost frame of the sampled stack.
    frame: u32,
}

/// A span of time in which every nanosecond has a cause. `first` and `last` are the activities at
/// its start and its end.
#[derive(Clone, Copy, Debug)]
struct Piece {
    span: Span,
    first: ActivityKey,
    last: ActivityKey,
}

impl HostLedger {
    /// Returns a ledger without events. Iterations must be in the order of their starts and must not overlap. `idle`
    /// contains the idle times of the GPU, in order. `long` is the minimum length of the time between two activities
    /// to get its own row, in nanoseconds.
    pub(crate) fn new(
        iterations: impl IntoIterator<Item = GroupedIteration>,
        idle: &[Span],
        long: u64,
    ) -> Self {
        let mut threads: HashMap<u32, LedgerThread> = HashMap::new();
        let mut sums = Sums::default();
        for iteration in iterations {
            let thread = threads.entry(iteration.thread).or_default();
            let long = iteration.span.end.saturating_sub(iteration.span.start);
            thread.iterations.push(iteration);
            thread.before.push(thread.all);
            thread.all += long;
            if sums.groups.len() <= iteration.group {
                let groups = iteration.group + 1;
                sums.groups.resize(groups, GroupTimes::default());
            }
        }
        for thread in threads.values_mut() {
            thread.long = long;
            thread.idle = Idle::new(idle, |moment| thread.place(moment));
            let all = Span {
                start: 0,
                end: thread.all,
            };
            for (group, _, times) in thread.parts(all) {
                let total = &mut sums.groups[group].total;
                *total = total.and(times);
            }
        }
        Self {
            threads,
            sums,
            copies_to_host: Vec::new(),
            own: Vec::new(),
        }
    }

    /// Sets the rows, in the table of calls, of the functions that copy to the host asynchronously. The time of their
    /// long calls gets the cause [`HostCause::CopyToHost`]. Must be called before the first event is added.
    pub(crate) fn set_copies_to_host(&mut self, rows: Vec<u8>) {
        self.copies_to_host = rows;
    }

    /// Adds stack samples. The samples must be added before the first event. Returns the group of the iteration in
    /// which each sample lies; `None` if the sample lies in no iteration of its thread, or if the thread waited for
    /// requests.
    pub(crate) fn sample(&mut self, sampled: &Sampled, requests: &Requests) -> Vec<Option<usize>> {
        let samples = sampled.samples.iter();
        let groups = samples.map(|sample| {
            let thread = self.threads.get_mut(&sample.thread)?;
            if requests.has(sample.thread, sample.ticks) {
                return None;
            }
            let place = thread.ending_after(sample.at);
            let iteration = thread.iterations.get(place)?;
            let group = iteration.group;
            let at = thread.before.get(place)? + sample.at.checked_sub(iteration.span.start)?;
            if let Some(seen) = sampled.seen(sample) {
                let (start, end) = (at, at + 1);
                let idle = thread.idle.within(Span { start, end });
                let count = Count { all: 1, idle };
                self.sums.groups[group].seen.total(seen, count);
                let frame = sample.frame;
                thread.samples.push(Sample {
                    at,
                    seen,
                    count,
                    frame,
                });
            }
            Some(group)
        });
        groups.collect()
    }

    /// Adds an event of a thread to the thread's time by cause.
    pub(crate) fn add(&mut self, clock: &Clock, requests: &Requests, thread: u32, event: &Event) {
        let key = match event.what {
            What::Call {
                capturing: true, ..
            } => ActivityKey::Capturing,
            What::Call { .. } | What::Function { .. } if requests.is_one(thread, event) => {
                ActivityKey::Requests
            }
            What::Call { row, .. } => ActivityKey::Call(row),
            What::Gc { .. } => ActivityKey::Gc,
            What::GilWait => ActivityKey::Gil,
            What::Function { name } => ActivityKey::Function(name),
            _ => return,
        };
        let asleep = requests.asleep(thread);
        let Some(thread) = self.threads.get_mut(&thread) else {
            return;
        };
        // Add the thread's sleeps in waits for requests that ended before this event began.
        while let Some(slept) = asleep.get(thread.slept)
            && slept.end <= event.start
        {
            thread.slept += 1;
            let span = thread.places(clock, slept.start, slept.end);
            Self::take(
                &mut self.sums,
                &mut self.own,
                thread,
                span,
                (ActivityKey::Requests, HostCause::On(ActivityKey::Requests)),
            );
        }
        let end = event.start.saturating_add(event.duration);
        let took = clock.ns(end).saturating_sub(clock.ns(event.start));
        let spent = match key {
            ActivityKey::Call(row)
                if took >= MIN_COPY_WAIT_NS && self.copies_to_host.contains(&row) =>
            {
                HostCause::CopyToHost(row)
            }
            key => HostCause::On(key),
        };
        let span = thread.places(clock, event.start, end);
        Self::take(&mut self.sums, &mut self.own, thread, span, (key, spent));
    }

    /// Adds a span of a thread's time to the cause `spent`, except for the parts that already have a cause. `key` is the
    /// activity during that span.
    fn take(
        sums: &mut Sums,
        own: &mut Vec<Span>,
        thread: &mut LedgerThread,
        span: Span,
        (key, spent): (ActivityKey, HostCause),
    ) {
        if span.start < span.end {
            thread.take(span, key, own);
            for own in own.drain(..) {
                sums.spend(thread, spent, own);
            }
            if thread.pieces.len() >= 2 * MIN_HELD_BACK {
                for (spent, span) in thread.settle() {
                    sums.spend(thread, spent, span);
                }
            }
        }
    }

    /// Adds the time before, between and after activities to the sums by cause, and returns the
    /// sums.
    pub(crate) fn finish(mut self) -> Sums {
        for thread in self.threads.values() {
            let ends = thread.ends().into_iter().flatten();
            for (spent, span) in thread.gaps(&thread.pieces).chain(ends) {
                self.sums.spend(thread, spent, span);
            }
        }
        self.sums
    }
}

impl Sums {
    /// Returns the host's time in some groups, by cause. Time without a known cause is listed as
    /// `Unknown`.
    pub(crate) fn times(&self, groups: &[usize]) -> Vec<(HostCause, Times)> {
        let mut found: HashMap<HostCause, Times> = HashMap::new();
        let mut unknown = Times::default();
        for group in groups.iter().filter_map(|group| self.groups.get(*group)) {
            unknown = unknown.and(group.total);
            for (spent, times) in &group.times {
                let sum = found.entry(*spent).or_default();
                *sum = sum.and(*times);
                unknown.all = unknown.all.saturating_sub(times.all);
                unknown.idle = unknown.idle.saturating_sub(times.idle);
            }
        }
        found.insert(HostCause::Unknown, unknown);
        let found = found.into_iter().filter(|(_, times)| times.all > 0);
        let mut found: Vec<_> = found.collect();
        found.sort_unstable_by_key(|(spent, _)| *spent);
        found
    }

    /// Estimates the GPU's idle time for `groups`, in which it was not measured. For each cause, the share of idle time
    /// is first assumed to be the same as in the `measured` groups. Then the idle times are reduced so that they add up
    /// to at most `idle`, in nanoseconds. `is_request` returns true for waits for requests: the GPU is usually idle in
    /// them, so their idle time is reduced last.
    pub(crate) fn project(
        &mut self,
        measured: &[usize],
        groups: &[usize],
        idle: u64,
        is_request: impl Fn(HostCause) -> bool,
    ) {
        let (mut known, mut all) = (HashMap::<HostCause, Times>::new(), Times::default());
        for group in measured.iter().filter_map(|group| self.groups.get(*group)) {
            all = all.and(group.total);
            for (spent, times) in &group.times {
                let sum = known.entry(*spent).or_default();
                *sum = sum.and(*times);
            }
        }
        let is_one = |at: &usize| groups.contains(at);
        let of_groups = self.groups.iter_mut().enumerate();
        let of_groups = of_groups.filter(|(at, _)| is_one(at));
        let mut unknown = Vec::new();
        let mut found: Vec<(bool, &mut Times)> = Vec::new();
        for (_, GroupTimes { times, total, .. }) in of_groups {
            let spent: u64 = times.values().map(|times| times.all).sum();
            let left = total.all.saturating_sub(spent);
            let left = Times {
                all: left,
                idle: part(left, all.idle, all.all),
            };
            unknown.push(left);
            let mut times: Vec<_> = times.iter_mut().collect();
            times.sort_unstable_by_key(|(spent, _)| **spent);
            for (spent, times) in times {
                let of = known.get(spent).filter(|of| of.all > 0).unwrap_or(&all);
                times.idle = part(times.all, of.idle, of.all);
                found.push((is_request(*spent), times));
            }
        }
        found.extend(unknown.iter_mut().map(|left| (false, left)));
        fit_idle(found, idle);
        let ones = (0..self.groups.len()).filter(is_one);
        for (at, left) in ones.zip(unknown) {
            let GroupTimes { times, total, .. } = &mut self.groups[at];
            let known: u64 = times.values().map(|times| times.idle).sum();
            total.idle = known + left.idle;
        }
    }

    fn spend(&mut self, thread: &LedgerThread, spent: HostCause, span: Span) {
        for (group, part, more) in thread.parts(span) {
            let times = &mut self.groups[group].times;
            let spent = match self.count < MAX_TIMES || times.contains_key(&spent) {
                true => spent,
                false => HostCause::Other,
            };
            let sum = times.entry(spent).or_insert_with(|| {
                self.count += 1;
                Times::default()
            });
            *sum = sum.and(more);
            if !thread.samples.is_empty() {
                let group = &mut self.groups[group];
                for sample in thread.within(part) {
                    group.seen.add(spent, sample.seen, sample.count);
                    if !sample.seen.ran() {
                        continue;
                    }
                    let key = (spent, sample.frame, sample.seen.is_native());
                    if group.frames.len() < MAX_TIMES || group.frames.contains_key(&key) {
                        *group.frames.entry(key).or_default() += 1;
                    }
                }
            }
        }
    }

    /// Returns the numbers of the samples that were taken in the iterations of some groups.
    pub(crate) fn seen(&self, groups: &[usize]) -> SampleSums {
        let mut all = SampleSums::default();
        let groups = groups.iter().filter_map(|group| self.groups.get(*group));
        groups.for_each(|group| all.and(&group.seen));
        all
    }

    /// Returns the functions that the samples of some groups have in common. Only samples during causes for which
    /// `is_one` returns true are used.
    pub(crate) fn paths(
        &self,
        groups: &[usize],
        is_one: impl Fn(HostCause) -> bool,
        named: NameSources<'_>,
    ) -> Paths {
        let groups = groups.iter().filter_map(|group| self.groups.get(*group));
        let samples = groups.flat_map(|group| &group.frames);
        let samples =
            samples.map(|((spent, frame, is_native), count)| (*spent, *frame, *is_native, *count));
        Paths::find(samples, is_one, named)
    }

    /// Returns the total time of the iterations of some groups in nanoseconds, without waits for
    /// requests.
    pub(crate) fn worked(&self, groups: &[usize]) -> u64 {
        let groups = groups.iter().filter_map(|group| self.groups.get(*group));
        let waited = |group: &GroupTimes| {
            group
                .times
                .get(&HostCause::On(ActivityKey::Requests))
                .copied()
        };
        let worked =
            groups.map(|group| group.total.all - waited(group).map_or(0, |times| times.all));
        worked.sum()
    }
}

/// Reduces estimated idle times of the GPU so that they add up to at most `idle`, in nanoseconds. They shrink in equal
/// parts, those of waits for requests (the ones with true) only if that is not enough. They never grow: if the GPU is
/// idle for longer than was estimated, it is not known in which activity of the host.
fn fit_idle(mut times: Vec<(bool, &mut Times)>, idle: u64) {
    for requests in [false, true] {
        let found: u64 = times.iter().map(|(_, times)| times.idle).sum();
        let of_step = times.iter_mut().filter(|(request, _)| *request == requests);
        let of_step: Vec<_> = of_step.map(|(_, times)| times).collect();
        let all: u64 = of_step.iter().map(|times| times.idle).sum();
        let change = found.saturating_sub(idle).min(all);
        // The sums up to each time give the part of the change up to it, so that the parts add up to the change.
        let (mut until, mut changed) = (0, 0);
        for times in of_step {
            until += times.idle;
            let own = part(change, until, all) - changed;
            changed += own;
            times.idle -= own;
        }
    }
}

impl LedgerThread {
    /// Returns the index of the first iteration that ends after a moment. Events arrive nearly in
    /// order, so the search begins at the index found last.
    fn ending_after(&self, moment: u64) -> usize {
        let ends_after = |at: usize| {
            let iteration = self.iterations.get(at);
            iteration.is_none_or(|one| moment < one.span.end)
        };
        let last = self.last.get();
        for index in [last, last + 1] {
            if ends_after(index)
                && index
                    .checked_sub(1)
                    .is_none_or(|before| !ends_after(before))
            {
                self.last.set(index.min(self.iterations.len()));
                return index;
            }
        }
        let index = self
            .iterations
            .partition_point(|one| one.span.end <= moment);
        self.last.set(index);
        index
    }

    /// Converts a time span from ticks to the clock that runs only during the thread's iterations.
    fn places(&self, clock: &Clock, start: u64, end: u64) -> Span {
        Span {
            start: self.place(clock.ns(start)),
            end: self.place(clock.ns(end)),
        }
    }

    /// Converts a moment to the clock that runs only during the thread's iterations: returns the
    /// total time of iterations before the moment.
    fn place(&self, moment: u64) -> u64 {
        let index = self.ending_after(moment);
        match (self.iterations.get(index), self.before.get(index)) {
            (Some(one), Some(before)) => before + moment.saturating_sub(one.span.start),
            _ => self.all,
        }
    }

    /// Returns the samples of the thread that lie in a time span.
    fn within(&self, span: Span) -> &[Sample] {
        let first = self
            .samples
            .partition_point(|sample| sample.at < span.start);
        let rest = &self.samples[first..];
        &rest[..rest.partition_point(|sample| sample.at < span.end)]
    }

    /// Splits a time span, on the clock that runs only during the thread's iterations, at the ends of iterations.
    /// Returns for each part the group of its iteration, the part itself, and its length with the time in which the GPU
    /// was idle.
    fn parts(&self, span: Span) -> impl Iterator<Item = (usize, Span, Times)> {
        let last = self.last.get();
        let is_it = |at: usize| {
            let from = self.before.get(at).is_some_and(|from| *from <= span.start);
            from && self
                .before
                .get(at + 1)
                .is_none_or(|next| span.start < *next)
        };
        let mut at = match is_it(last) {
            true => last,
            false => {
                let after = self.before.partition_point(|before| *before <= span.start);
                after.saturating_sub(1)
            }
        };
        let mut start = span.start;
        std::iter::from_fn(move || {
            while start < span.end {
                let group = self.iterations.get(at)?.group;
                at += 1;
                let end = self.before.get(at).copied().unwrap_or(self.all);
                let part = Span {
                    start,
                    end: end.min(span.end),
                };
                start = start.max(part.end);
                if part.start < part.end {
                    let all = part.end - part.start;
                    let idle = self.idle.within(part);
                    return Some((group, part, Times { all, idle }));
                }
            }
            None
        })
    }

    /// Adds the time span of an event as a piece, and merges it with the pieces that it contains. `own` receives the
    /// parts of the span that no earlier event covered.
    fn take(&mut self, span: Span, key: ActivityKey, own: &mut Vec<Span>) {
        let mut whole = span;
        let mut end = span.end;
        while let Some(piece) = self.pieces.pop_if(|piece| piece.span.end > span.start) {
            let start = piece.span.end;
            if start < end {
                own.push(Span { start, end });
            }
            end = end.min(piece.span.start);
            whole.start = whole.start.min(piece.span.start);
            whole.end = whole.end.max(piece.span.end);
        }
        let start = span.start;
        if start < end {
            own.push(Span { start, end });
        }
        self.pieces.push(Piece {
            span: whole,
            first: key,
            last: key,
        });
    }

    /// Returns the time before the thread's first piece and the time after its last piece, with their causes; `None` if
    /// the thread has no pieces.
    fn ends(&self) -> Option<[(HostCause, Span); 2]> {
        let (first, last) = (self.pieces.first()?, self.pieces.last()?);
        let before = Span {
            start: 0,
            end: first.span.start,
        };
        let after = Span {
            start: last.span.end,
            end: self.all,
        };
        Some([
            (HostCause::Before(first.first), before),
            (HostCause::After(last.last), after),
        ])
    }

    /// Returns the times between consecutive pieces, with their causes.
    fn gaps<'a>(&'a self, pieces: &'a [Piece]) -> impl Iterator<Item = (HostCause, Span)> + 'a {
        let iteration = |at: u64| self.before.partition_point(|before| *before <= at);
        pieces.windows(2).filter_map(move |pair| {
            let [from, to] = pair else { return None };
            let span = Span {
                start: from.span.end,
                end: to.span.start,
            };
            let stays = || iteration(span.start.saturating_sub(1)) == iteration(span.end);
            (span.start < span.end).then(|| {
                let spent = match (stays(), span.end - span.start >= self.long) {
                    (true, true) => HostCause::Between(from.last, to.first),
                    (true, false) => HostCause::Short(from.last, to.first),
                    (false, _) => HostCause::Edge(from.last, to.first),
                };
                (spent, span)
            })
        })
    }

    /// Merges the older half of the pieces into one piece. Returns the times that were between the
    /// merged pieces, with their causes.
    fn settle(&mut self) -> Vec<(HostCause, Span)> {
        let old: Vec<_> = self.pieces.drain(..MIN_HELD_BACK).collect();
        if let [first, .., last] = old[..] {
            let span = Span {
                start: first.span.start,
                end: last.span.end,
            };
            let (first, last) = (first.first, last.last);
            self.pieces.insert(0, Piece { span, first, last });
        }
        self.gaps(&old).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tllmprof_record::ClockKind;

    const MAIN: u32 = 1;
    const LAUNCH: u8 = 0;
    const WAIT: u8 = 1;

    fn call(start: u64, long: u64, row: u8) -> Event {
        let (capturing, stream) = (false, 0);
        let what = What::Call {
            row,
            capturing,
            stream,
        };
        Event::new(start, long, what)
    }

    fn span(start: u64, end: u64) -> Span {
        Span { start, end }
    }

    fn placed(start: u64, end: u64, group: usize) -> GroupedIteration {
        GroupedIteration {
            span: span(start, end),
            thread: MAIN,
            group,
        }
    }

    fn sums(iterations: &[GroupedIteration], idle: &[Span], events: &[(u32, Event)]) -> Sums {
        let clock = Clock::new(ClockKind::Monotonic, &[]);
        let mut ledger = HostLedger::new(iterations.iter().copied(), idle, 0);
        for (thread, event) in events {
            ledger.add(&clock, &Requests::default(), *thread, event);
        }
        ledger.finish()
    }

    fn all(found: &[(HostCause, Times)]) -> Vec<(HostCause, u64)> {
        found
            .iter()
            .map(|(spent, times)| (*spent, times.all))
            .collect()
    }

    const ON_LAUNCH: HostCause = HostCause::On(ActivityKey::Call(LAUNCH));
    const ON_WAIT: HostCause = HostCause::On(ActivityKey::Call(WAIT));
    const LATE: HostCause = HostCause::Between(ActivityKey::Function(7), ActivityKey::Call(WAIT));
    const NEXT: HostCause = HostCause::Between(ActivityKey::Call(WAIT), ActivityKey::Call(LAUNCH));

    #[test]
    fn nested_events_and_what_lies_between_count_once() {
        let iterations = [placed(1000, 2000, 0), placed(2000, 3000, 1)];
        let function = What::Function { name: 7 };
        let events = [
            (MAIN, call(1100, 50, LAUNCH)),
            (MAIN, Event::new(1200, 100, What::GilWait)),
            (MAIN, Event::new(1050, 400, function)),
            // Thread 9 has no iterations, so its time is not added.
            (9, call(1000, 900, LAUNCH)),
            // The first call crosses the boundary between two iterations, and the second call
            // crosses the end of the last iteration.
            (MAIN, call(1800, 300, WAIT)),
            (MAIN, call(2900, 500, LAUNCH)),
        ];
        let idle = [span(0, 1120), span(1900, 2500), span(4000, 5000)];
        let sums = sums(&iterations, &idle, &events);
        let own = HostCause::On(ActivityKey::Function(7));
        let gil = HostCause::On(ActivityKey::Gil);
        let times = |all, idle| Times { all, idle };
        let expected = [
            (ON_LAUNCH, times(150, 20)),
            (ON_WAIT, times(300, 200)),
            (gil, times(100, 0)),
            (own, times(250, 50)),
            (NEXT, times(800, 400)),
            (LATE, times(350, 0)),
            (HostCause::Before(ActivityKey::Function(7)), times(50, 50)),
        ];
        assert_eq!(sums.times(&[0, 1]), expected);
        let second = [
            (ON_LAUNCH, times(100, 0)),
            (ON_WAIT, times(100, 100)),
            (NEXT, times(800, 400)),
        ];
        assert_eq!(sums.times(&[1]), second);
        assert_eq!(sums.times(&[0]).len(), 6);
        assert_eq!(sums.times(&[]), []);
    }

    #[test]
    fn only_long_copies_to_the_host_seem_to_wait_for_the_gpu() {
        const COPY: u8 = 2;
        let iterations = [placed(0, 100_000, 0)];
        let clock = Clock::new(ClockKind::Monotonic, &[]);
        let mut ledger = HostLedger::new(iterations.iter().copied(), &[span(0, 10_000)], 0);
        ledger.set_copies_to_host(vec![COPY]);
        for event in [
            call(0, 30_000, COPY),
            call(40_000, 5_000, COPY),
            call(50_000, 30_000, WAIT),
        ] {
            ledger.add(&clock, &Requests::default(), MAIN, &event);
        }
        let found = ledger.finish().times(&[0]);
        let time = |spent| found.iter().find(|(it, _)| *it == spent).map(|(_, it)| *it);
        let times = |all, idle| Some(Times { all, idle });
        assert_eq!(time(HostCause::CopyToHost(COPY)), times(30_000, 10_000));
        let on_copy = HostCause::On(ActivityKey::Call(COPY));
        assert_eq!(time(on_copy), times(5_000, 0));
        assert_eq!(time(ON_WAIT), times(30_000, 0));
    }

    #[test]
    fn any_number_of_events_in_one_that_contains_them() {
        let many = 5 * MIN_HELD_BACK as u64;
        let iterations = [placed(0, many * 10, 0)];
        let mut events: Vec<_> = (0..many).map(|n| (MAIN, call(n * 10, 7, LAUNCH))).collect();
        let between = HostCause::Between(ActivityKey::Call(LAUNCH), ActivityKey::Call(LAUNCH));
        let calls = [
            (ON_LAUNCH, many * 7),
            (between, (many - 1) * 3),
            (HostCause::After(ActivityKey::Call(LAUNCH)), 3),
        ];
        let found = sums(&iterations, &[], &events).times(&[0]);
        assert_eq!(all(&found), calls);
        // This event arrives after all the calls that it contains, so it gets only the time between these calls. Some
        // of that time already has a cause, because older pieces were merged before this event arrived.
        events.push((MAIN, Event::new(0, many * 10, What::GilWait)));
        let found = sums(&iterations, &[], &events).times(&[0]);
        let sum: u64 = found.iter().map(|(_, times)| times.all).sum();
        assert_eq!(sum, many * 10);
    }
}
