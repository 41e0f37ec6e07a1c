//! The host's time. Events of a thread come in the order of their ends, so those inside another come before it:
//! each takes the time that none before it took. Moments are counted in the time of the thread's own
//! iterations, so what lies outside them has no length, and all sums are exact.

use std::cell::Cell;
use std::collections::HashMap;

use tllmprof_record::{Clock, Event, What};

use super::keys::{Key, Spent};
use super::split::{Count, SeenIn};
use crate::events::idle::Idle;
use crate::events::requests::Requests;
use crate::events::samples::{Sampled, Seen};
use crate::events::spans::Span;

/// How many pieces of time of a thread are kept back for events that contain them.
const ROOM: usize = 1 << 16;

/// How many pairs of a cause and a group of iterations are distinguished.
const LIMIT: usize = 1 << 18;

/// Time, and the part of it in which the GPU had nothing to do, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Times {
    pub all: u64,
    pub idle: u64,
}

/// An iteration, and the group that its time is added up in.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    /// In nanoseconds.
    pub span: Span,
    pub thread: u32,
    pub group: usize,
}

/// The adding up, in nanoseconds.
#[derive(Debug)]
pub struct HostLedger {
    threads: HashMap<u32, Thread>,
    sums: Sums,
    /// The parts of an event that are its own.
    own: Vec<Span>,
}

/// What the time of groups of iterations is spent on.
#[derive(Debug, Default)]
pub struct Sums {
    groups: Vec<GroupTimes>,
    /// How many times there are in all of them.
    count: usize,
}

/// What the time of a group of iterations is spent on.
#[derive(Clone, Debug, Default)]
struct GroupTimes {
    times: HashMap<Spent, Times>,
    total: Times,
    seen: SeenIn,
}

/// A thread of iterations.
#[derive(Debug, Default)]
struct Thread {
    iterations: Vec<Placed>,
    /// The time of the iterations before each, and of all.
    before: Vec<u64>,
    all: u64,
    /// Pieces of time that have causes, in order.
    pieces: Vec<Piece>,
    idle: Idle,
    /// Samples of its stack in iterations, in order.
    samples: Vec<Sample>,
    /// Where the last search ended.
    last: Cell<usize>,
    /// How many of the times in which it slept for requests are among the pieces.
    slept: usize,
}

/// A sample of a thread's stack in an iteration.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// In the time of the thread's iterations.
    at: u64,
    seen: Seen,
    count: Count,
}

/// A piece of time in which every nanosecond has a cause.
#[derive(Clone, Copy, Debug)]
struct Piece {
    span: Span,
    first: Key,
    last: Key,
}

impl HostLedger {
    /// For iterations in the order of their starts, none of which overlaps the next, and the spans in which the GPU
    /// had nothing to do, in their order.
    pub fn new(iterations: impl IntoIterator<Item = Placed>, idle: &[Span]) -> Self {
        let mut threads: HashMap<u32, Thread> = HashMap::new();
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
            own: Vec::new(),
        }
    }

    /// Takes samples, before any event; the group of each that lies in an iteration of its thread, which does not wait for
    /// requests then.
    pub fn sample(&mut self, sampled: &Sampled, requests: &Requests) -> Vec<Option<usize>> {
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
                let idle = thread.idle.of(Span { start, end });
                let count = Count { all: 1, idle };
                self.sums.groups[group].seen.total(seen, count);
                thread.samples.push(Sample { at, seen, count });
            }
            Some(group)
        });
        groups.collect()
    }

    /// Adds an event of a thread.
    pub fn add(&mut self, clock: &Clock, requests: &Requests, thread: u32, event: &Event) {
        let key = match event.what {
            What::Call {
                capturing: true, ..
            } => Key::Capturing,
            What::Call { .. } | What::Function { .. } if requests.is_one(thread, event) => {
                Key::Requests
            }
            What::Call { row, .. } => Key::Call(row),
            What::Gc { .. } => Key::Gc,
            What::GilWait => Key::Gil,
            What::Function { name } => Key::Function(name),
            _ => return,
        };
        let asleep = requests.asleep(thread);
        let Some(thread) = self.threads.get_mut(&thread) else {
            return;
        };
        // What came before this event.
        while let Some(slept) = asleep.get(thread.slept)
            && slept.end <= event.start
        {
            thread.slept += 1;
            let span = thread.places(clock, slept.start, slept.end);
            Self::take(&mut self.sums, &mut self.own, thread, span, Key::Requests);
        }
        let end = event.start.saturating_add(event.duration);
        let span = thread.places(clock, event.start, end);
        Self::take(&mut self.sums, &mut self.own, thread, span, key);
    }

    /// Has a span of a thread be spent on something.
    fn take(sums: &mut Sums, own: &mut Vec<Span>, thread: &mut Thread, span: Span, key: Key) {
        if span.start < span.end {
            thread.take(span, key, own);
            for own in own.drain(..) {
                sums.spend(thread, Spent::On(key), own);
            }
            if thread.pieces.len() >= 2 * ROOM {
                for (spent, span) in thread.settle() {
                    sums.spend(thread, spent, span);
                }
            }
        }
    }

    /// What it comes to.
    pub fn finish(mut self) -> Sums {
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
    /// What some groups spend their time on. All of it has a cause, if an unknown one.
    pub fn of(&self, groups: &[usize]) -> Vec<(Spent, Times)> {
        let mut found: HashMap<Spent, Times> = HashMap::new();
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
        found.insert(Spent::Unknown, unknown);
        let found = found.into_iter().filter(|(_, times)| times.all > 0);
        let mut found: Vec<_> = found.collect();
        found.sort_unstable_by_key(|(spent, _)| *spent);
        found
    }

    fn spend(&mut self, thread: &Thread, spent: Spent, span: Span) {
        for (group, part, more) in thread.parts(span) {
            let times = &mut self.groups[group].times;
            let spent = match self.count < LIMIT || times.contains_key(&spent) {
                true => spent,
                false => Spent::Other,
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
                }
            }
        }
    }

    /// What samples show of some groups.
    pub fn seen(&self, groups: &[usize]) -> SeenIn {
        let mut all = SeenIn::default();
        let groups = groups.iter().filter_map(|group| self.groups.get(*group));
        groups.for_each(|group| all.and(&group.seen));
        all
    }

    /// How long the iterations of some groups took without waiting for requests.
    pub fn worked(&self, groups: &[usize]) -> u64 {
        let groups = groups.iter().filter_map(|group| self.groups.get(*group));
        let waited = |group: &GroupTimes| group.times.get(&Spent::On(Key::Requests)).copied();
        let worked =
            groups.map(|group| group.total.all - waited(group).map_or(0, |times| times.all));
        worked.sum()
    }
}

impl Times {
    pub const fn and(self, more: Self) -> Self {
        Self {
            all: self.all + more.all,
            idle: self.idle + more.idle,
        }
    }
}

impl Thread {
    /// The first iteration that ends after a moment. Events come nearly in order.
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

    /// A span of ticks in the iterations' time.
    fn places(&self, clock: &Clock, start: u64, end: u64) -> Span {
        Span {
            start: self.place(clock.ns(start)),
            end: self.place(clock.ns(end)),
        }
    }

    /// How much of the iterations' time lies before a moment.
    fn place(&self, moment: u64) -> u64 {
        let index = self.ending_after(moment);
        match (self.iterations.get(index), self.before.get(index)) {
            (Some(one), Some(before)) => before + moment.saturating_sub(one.span.start),
            _ => self.all,
        }
    }

    /// The samples in a span.
    fn within(&self, span: Span) -> &[Sample] {
        let first = self
            .samples
            .partition_point(|sample| sample.at < span.start);
        let rest = &self.samples[first..];
        &rest[..rest.partition_point(|sample| sample.at < span.end)]
    }

    /// The parts of a span that lie in each iteration: its group, and how long it is.
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
                    let idle = self.idle.of(part);
                    return Some((group, part, Times { all, idle }));
                }
            }
            None
        })
    }

    /// Makes a piece of what an event took; `own` has the parts of it that nothing in it took.
    fn take(&mut self, span: Span, key: Key, own: &mut Vec<Span>) {
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

    /// The time before the first piece, and after the last.
    fn ends(&self) -> Option<[(Spent, Span); 2]> {
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
            (Spent::Before(first.first), before),
            (Spent::After(last.last), after),
        ])
    }

    /// The time between pieces.
    fn gaps<'a>(&'a self, pieces: &'a [Piece]) -> impl Iterator<Item = (Spent, Span)> + 'a {
        let iteration = |at: u64| self.before.partition_point(|before| *before <= at);
        pieces.windows(2).filter_map(move |pair| {
            let [from, to] = pair else { return None };
            let span = Span {
                start: from.span.end,
                end: to.span.start,
            };
            let stays = || iteration(span.start.saturating_sub(1)) == iteration(span.end);
            (span.start < span.end).then(|| {
                let spent = match stays() {
                    true => Spent::Between(from.last, to.first),
                    false => Spent::Edge(from.last, to.first),
                };
                (spent, span)
            })
        })
    }

    /// Makes one piece of the older half.
    fn settle(&mut self) -> Vec<(Spent, Span)> {
        let old: Vec<_> = self.pieces.drain(..ROOM).collect();
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

    fn placed(start: u64, end: u64, group: usize) -> Placed {
        Placed {
            span: span(start, end),
            thread: MAIN,
            group,
        }
    }

    fn sums(iterations: &[Placed], idle: &[Span], events: &[(u32, Event)]) -> Sums {
        let clock = Clock::new(ClockKind::Monotonic, &[]);
        let mut ledger = HostLedger::new(iterations.iter().copied(), idle);
        for (thread, event) in events {
            ledger.add(&clock, &Requests::default(), *thread, event);
        }
        ledger.finish()
    }

    fn all(found: &[(Spent, Times)]) -> Vec<(Spent, u64)> {
        found
            .iter()
            .map(|(spent, times)| (*spent, times.all))
            .collect()
    }

    const ON_LAUNCH: Spent = Spent::On(Key::Call(LAUNCH));
    const ON_WAIT: Spent = Spent::On(Key::Call(WAIT));
    const LATE: Spent = Spent::Between(Key::Function(7), Key::Call(WAIT));
    const NEXT: Spent = Spent::Between(Key::Call(WAIT), Key::Call(LAUNCH));

    #[test]
    fn nested_events_and_what_lies_between_count_once() {
        let iterations = [placed(1000, 2000, 0), placed(2000, 3000, 1)];
        let function = What::Function { name: 7 };
        let events = [
            (MAIN, call(1100, 50, LAUNCH)),
            (MAIN, Event::new(1200, 100, What::GilWait)),
            (MAIN, Event::new(1050, 400, function)),
            // Another thread's are not the iterations'.
            (9, call(1000, 900, LAUNCH)),
            // Over the edge of iterations, and over the end of the last.
            (MAIN, call(1800, 300, WAIT)),
            (MAIN, call(2900, 500, LAUNCH)),
        ];
        let idle = [span(0, 1120), span(1900, 2500), span(4000, 5000)];
        let sums = sums(&iterations, &idle, &events);
        let own = Spent::On(Key::Function(7));
        let gil = Spent::On(Key::Gil);
        let times = |all, idle| Times { all, idle };
        let expected = [
            (ON_LAUNCH, times(150, 20)),
            (ON_WAIT, times(300, 200)),
            (gil, times(100, 0)),
            (own, times(250, 50)),
            (NEXT, times(800, 400)),
            (LATE, times(350, 0)),
            (Spent::Before(Key::Function(7)), times(50, 50)),
        ];
        assert_eq!(sums.of(&[0, 1]), expected);
        let second = [
            (ON_LAUNCH, times(100, 0)),
            (ON_WAIT, times(100, 100)),
            (NEXT, times(800, 400)),
        ];
        assert_eq!(sums.of(&[1]), second);
        assert_eq!(sums.of(&[0]).len(), 6);
        assert_eq!(sums.of(&[]), []);
    }

    #[test]
    fn any_number_of_events_in_one_that_contains_them() {
        let many = 5 * ROOM as u64;
        let iterations = [placed(0, many * 10, 0)];
        let mut events: Vec<_> = (0..many).map(|n| (MAIN, call(n * 10, 7, LAUNCH))).collect();
        let between = Spent::Between(Key::Call(LAUNCH), Key::Call(LAUNCH));
        let calls = [
            (ON_LAUNCH, many * 7),
            (between, (many - 1) * 3),
            (Spent::After(Key::Call(LAUNCH)), 3),
        ];
        let found = sums(&iterations, &[], &events).of(&[0]);
        assert_eq!(all(&found), calls);
        // What comes late takes only what none before it took.
        events.push((MAIN, Event::new(0, many * 10, What::GilWait)));
        let found = sums(&iterations, &[], &events).of(&[0]);
        let sum: u64 = found.iter().map(|(_, times)| times.all).sum();
        assert_eq!(sum, many * 10);
    }
}
