//! When threads wait for requests: in a function in which a known engine does, or in a call that waits for a GPU that was
//! given nothing to do.

use std::collections::{HashMap, HashSet};

use tllmprof_calls::{Kind, Wait, kind_of};
use tllmprof_engines::is_idle_wait;
use tllmprof_record::{CallKind, Clock, Event, StringId, What};

use crate::events::facts::{CallRow, Found};
use crate::events::spans::Span;

/// Shorter waits are not looked at: in nanoseconds, of functions and of calls.
const FUNCTION: u64 = 1_000_000;
const CALL: u64 = 100_000;
/// Of a thread that sleeps between two calls: in nanoseconds, and in ticks of whatever clock at least. In all of the iteration
/// it runs for no more than this part of that.
const SLEEP: u64 = 5_000_000;
const SLEEP_TICKS: u64 = 1_000_000;
const RUNS: u64 = 10;

/// How many waits and threads are kept.
const LIMIT: usize = 1 << 20;
const THREADS: usize = 1 << 14;

/// What a call does, as far as this is about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Does {
    Nothing,
    /// It gives the GPU work.
    Work,
    /// It waits for work, and gives it some.
    Both,
    Waits(Wait),
}

/// What happens that may be such a wait.
#[derive(Debug, Default)]
pub struct Candidates {
    /// By row of the table of calls.
    rows: HashMap<u8, Does>,
    names: HashMap<StringId, bool>,
    /// The thread's latest wait, since which it has given the GPU no work.
    drained: HashMap<u32, (Wait, u64)>,
    /// Threads that gave the GPU work.
    workers: HashSet<u32>,
    functions: Vec<(u32, Span)>,
    /// Calls that wait, and whether all work of their thread was over before.
    calls: Vec<(u32, Span, bool)>,
    /// When each thread's latest call ended, and long times between two calls.
    ended: HashMap<u32, u64>,
    between: Vec<(u32, Span)>,
}

/// The waits of each thread, in ticks.
#[derive(Debug, Default)]
pub struct Requests {
    all: HashMap<u32, Vec<Span>>,
    calls: HashMap<u32, Vec<Span>>,
    /// Those in which it slept between two calls.
    asleep: HashMap<u32, Vec<Span>>,
}

/// The end of a thread's iteration at a moment, and how long the thread was on a processor in it.
pub type Ran<'a> = dyn Fn(u32, u64) -> Option<(u64, u64)> + 'a;

impl Candidates {
    pub fn take(&mut self, found: &Found, thread: u32, event: &Event) {
        if matches!(event.what, What::Call { .. }) {
            self.between(thread, span(event));
        }
        match event.what {
            What::Function { name } if self.functions.len() < LIMIT => {
                let is_idle = || is_idle_wait(found.strings.get(name));
                if *self.names.entry(name).or_insert_with(is_idle) {
                    self.functions.push((thread, span(event)));
                }
            }
            What::Call {
                row,
                capturing: false,
                stream,
            } => self.call(found, thread, event, row, stream),
            _ => (),
        }
    }

    fn between(&mut self, thread: u32, call: Span) {
        if self.ended.len() == THREADS && !self.ended.contains_key(&thread) {
            return;
        }
        let last = self.ended.insert(thread, call.end);
        if let Some(start) = last
            && call.start.saturating_sub(start) >= SLEEP_TICKS
            && self.between.len() < LIMIT
        {
            let end = call.start;
            self.between.push((thread, Span { start, end }));
        }
    }

    fn call(&mut self, found: &Found, thread: u32, event: &Event, row: u8, stream: u64) {
        let does = *self
            .rows
            .entry(row)
            .or_insert_with(|| match found.call(row) {
                Some((kind, name)) => does(kind, name),
                None => Does::Nothing,
            });
        if does == Does::Nothing {
            return;
        }
        let Does::Waits(wait) = does else {
            if self.workers.len() < THREADS {
                self.workers.insert(thread);
            }
            self.drained.remove(&thread);
            return;
        };
        let before = self.drained.get(&thread).copied();
        if let Some(before) = before
            && self.calls.len() < LIMIT
        {
            let is_drained = match before {
                (Wait::Context, _) => true,
                (Wait::Stream, drained) => wait == Wait::Stream && drained == stream,
                _ => false,
            };
            self.calls.push((thread, span(event), is_drained));
        }
        if self.drained.len() < THREADS || before.is_some() {
            // What was waited for before stays done.
            let drained = before.filter(|(wait, _)| *wait == Wait::Context);
            self.drained
                .insert(thread, drained.unwrap_or((wait, stream)));
        }
    }

    /// The waits. `idle`: when the GPU had nothing to do, in nanoseconds, where events say that. `ran`: the end of a thread's
    /// iteration at a moment, and how long the thread was on a processor in it, in nanoseconds, where sleeping between calls
    /// is waiting for requests.
    pub fn finish(self, idle: Option<&[Span]>, ran: Option<&Ran<'_>>, clock: &Clock) -> Requests {
        let ns = |span: &Span| clock.ns(span.end).saturating_sub(clock.ns(span.start));
        let functions = self.functions.iter().copied();
        let functions = functions.filter(|(_, span)| ns(span) >= FUNCTION);
        let is_idle = |thread: u32, span: &Span, is_drained: bool| match idle {
            Some(idle) => {
                let (start, end) = (clock.ns(span.start), clock.ns(span.end));
                let at = idle.partition_point(|idle| idle.end < end);
                idle.get(at).is_some_and(|idle| idle.start <= start)
            }
            None => is_drained && self.workers.iter().all(|worker| *worker == thread),
        };
        let calls = self.calls.iter().filter(|(thread, span, is_drained)| {
            ns(span) >= CALL && is_idle(*thread, span, *is_drained)
        });
        let calls: Vec<_> = calls.map(|(thread, span, _)| (*thread, *span)).collect();
        let asleep = self.between.iter().filter_map(|(thread, span)| {
            let (end, ran) = ran.and_then(|ran| ran(*thread, span.start))?;
            let end = end.min(span.end);
            let slept = Span {
                start: span.start,
                end,
            };
            let long = ns(&slept);
            let is_asleep = long >= SLEEP && ran <= long / RUNS;
            is_asleep.then_some((*thread, slept))
        });
        let asleep: Vec<_> = asleep.collect();
        let all = functions.chain(calls.iter().chain(&asleep).copied());
        Requests {
            all: by_thread(all),
            calls: by_thread(calls.iter().copied()),
            asleep: by_thread(asleep.iter().copied()),
        }
    }
}

impl Requests {
    /// How much of a span a thread waits, in ticks, and how much of that in calls.
    pub fn within(&self, thread: u32, span: Span) -> (u64, u64) {
        let of = |spans: &HashMap<u32, Vec<Span>>| {
            let spans = spans.get(&thread).map_or(&[][..], Vec::as_slice);
            let first = spans.partition_point(|wait| wait.end <= span.start);
            let reached = spans[first..]
                .iter()
                .take_while(|wait| wait.start < span.end);
            reached.map(|wait| wait.overlap(&span)).sum()
        };
        (of(&self.all), of(&self.calls))
    }

    /// When a thread slept between two calls, in ticks and in order.
    pub fn asleep(&self, thread: u32) -> &[Span] {
        self.asleep.get(&thread).map_or(&[], Vec::as_slice)
    }

    /// Whether a thread waits at a moment, in ticks.
    pub fn has(&self, thread: u32, moment: u64) -> bool {
        let (start, end) = (moment, moment.saturating_add(1));
        self.within(thread, Span { start, end }).0 > 0
    }

    /// Whether an event is such a wait.
    pub fn is_one(&self, thread: u32, event: &Event) -> bool {
        let Some(spans) = self.all.get(&thread) else {
            return false;
        };
        let event = span(event);
        let at = spans.partition_point(|wait| wait.end < event.end);
        spans.get(at).is_some_and(|wait| wait.start <= event.start)
    }
}

const fn span(event: &Event) -> Span {
    Span {
        start: event.start,
        end: event.start.saturating_add(event.duration),
    }
}

fn does(kind: CallKind, name: &str) -> Does {
    let known = kind_of(name);
    match kind {
        CallKind::Wait => match known.and_then(Kind::waits_for).unwrap_or(Wait::Context) {
            Wait::CopyToHost => Does::Both,
            wait => Does::Waits(wait),
        },
        CallKind::KernelLaunch | CallKind::GraphLaunch | CallKind::AsyncCopy => Does::Work,
        CallKind::Other if matches!(known, Some(Kind::AsyncCopy(_))) => Does::Work,
        CallKind::Other | CallKind::Capture => Does::Nothing,
    }
}

/// Whether a call gives the GPU something to do.
pub fn gives_work(call: &CallRow) -> bool {
    matches!(does(call.kind, &call.name), Does::Work | Does::Both)
}

/// Spans of each thread, in order; those that overlap are one.
fn by_thread(spans: impl Iterator<Item = (u32, Span)>) -> HashMap<u32, Vec<Span>> {
    let mut threads: HashMap<u32, Vec<Span>> = HashMap::new();
    for (thread, span) in spans {
        threads.entry(thread).or_default().push(span);
    }
    for spans in threads.values_mut() {
        spans.sort_unstable_by_key(|span| span.start);
        spans.dedup_by(|next, last| {
            let overlap = next.start < last.end;
            if overlap {
                last.end = last.end.max(next.end);
            }
            overlap
        });
    }
    threads
}
