//! Waits for requests: the time in a function in which a known engine waits for requests, the time in a call that waits
//! for a GPU without work, or a long sleep between two CUDA calls.

use std::collections::{HashMap, HashSet};

use tllmprof_calls::{CallPurpose, Wait, kind_of};
use tllmprof_engines::is_idle_wait;
use tllmprof_record::{CallKind, Clock, Event, StringId, What};

use crate::events::facts::{CallCount, RawFacts};
use crate::events::gpu_spans::GpuIdle;
use crate::events::spans::{self, Span};

/// Minimum length of a wait for requests in a function, in nanoseconds.
const MIN_FUNCTION_WAIT_NS: u64 = 1_000_000;
/// Minimum length of a wait for requests in a call that waits for the GPU, in nanoseconds.
const MIN_CALL_WAIT_NS: u64 = 100_000;
/// Minimum length of a sleep between two calls, in nanoseconds, for the sleep to count as a possible wait for
/// requests. The sleep must also be at least [`MIN_SLEEP_TO_RUN_RATIO`] times as long as the time that the thread is
/// on a processor in the iteration.
const MIN_SLEEP_NS: u64 = 5_000_000;
/// Minimum ratio of two times of a thread: the length of its sleep between two calls, and the time that it is on a
/// processor in the whole iteration. A sleep with a smaller ratio is not a possible wait for requests.
const MIN_SLEEP_TO_RUN_RATIO: u64 = 10;

/// Maximum number of possible waits for requests to store, for each kind of wait. Further ones are dropped.
const MAX_WAITS: usize = 1 << 20;
/// Maximum number of threads in each collection by thread. No waits for requests are found for further threads.
const MAX_THREADS: usize = 1 << 14;

/// The effect of a CUDA call on the GPU's work: the call may give work to the GPU, wait for the GPU, or both. A wait
/// for a GPU without work is a wait for requests, so these effects are needed to find such waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WorkEffect {
    Nothing,
    /// The call gives work to the GPU, and does not wait.
    Work,
    /// The call gives work to the GPU, and waits for the GPU.
    Both,
    Waits(Wait),
}

/// Events that may be waits for requests, collected during a pass over the record.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    /// For each row of the table of CUDA calls, the effect of the row's function on the GPU's work.
    rows: HashMap<u8, WorkEffect>,
    names: HashMap<StringId, bool>,
    /// True if the record does not contain the streams on which calls worked.
    pub lacks_streams: bool,
    /// For each thread that has given no work to the GPU since a wait for the GPU: the kind and the stream of the
    /// latest such wait. If one of these waits was for the whole context, it is stored instead of the latest.
    drained: HashMap<u32, (Wait, u64)>,
    /// Threads that gave work to the GPU at least once in the record.
    workers: HashSet<u32>,
    functions: Vec<(u32, Span)>,
    /// Calls that wait for the GPU, although their thread has given it no work since an earlier wait. Each entry has
    /// the thread, the time span, and a flag. The flag is true if the earlier wait covers everything that the call
    /// waits for. Then the thread's own work had already ended when the call began.
    calls: Vec<(u32, Span, bool)>,
    /// For each thread, the end of its latest call.
    ended: HashMap<u32, u64>,
    /// Time spans between two consecutive calls of a thread that are long enough to be a sleep (see [`may_be_sleep`]),
    /// each with the thread.
    between: Vec<(u32, Span)>,
}

/// The times in which each thread waited for requests, in ticks.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    all: HashMap<u32, Vec<Span>>,
    calls: HashMap<u32, Vec<Span>>,
    /// Those waits for requests in which a thread slept between two calls.
    asleep: HashMap<u32, Vec<Span>>,
}

/// A function whose arguments are a thread and a moment in ticks. It returns the end, in ticks, of the iteration that
/// the thread is in at the moment, and the nanoseconds that the thread was on a processor in this iteration. It returns
/// `None` if these are not known.
pub(crate) type TimeOnProcessor<'a> = dyn Fn(u32, u64) -> Option<(u64, u64)> + 'a;

impl Candidates {
    /// Adds an event to the candidates if it may be a wait for requests, and stores its effect on the GPU's work.
    /// Returns true if the event is a call that gives work to the GPU.
    pub(crate) fn take(
        &mut self,
        found: &RawFacts,
        clock: &Clock,
        thread: u32,
        event: &Event,
    ) -> bool {
        if matches!(event.what, What::Call { .. }) {
            self.between(clock, thread, span(event));
        }
        match event.what {
            What::Function { name } if self.functions.len() < MAX_WAITS => {
                let is_idle = || is_idle_wait(found.strings.get(name));
                if *self.names.entry(name).or_insert_with(is_idle) {
                    self.functions.push((thread, span(event)));
                }
            }
            What::Call {
                row,
                capturing: false,
                stream,
            } => return self.call(found, thread, event, row, stream),
            _ => (),
        }
        false
    }

    fn between(&mut self, clock: &Clock, thread: u32, call: Span) {
        if self.ended.len() == MAX_THREADS && !self.ended.contains_key(&thread) {
            return;
        }
        let last = self.ended.insert(thread, call.end);
        if let Some(start) = last
            && may_be_sleep(clock, call.start.saturating_sub(start))
            && self.between.len() < MAX_WAITS
        {
            let end = call.start;
            self.between.push((thread, Span { start, end }));
        }
    }

    fn call(&mut self, found: &RawFacts, thread: u32, event: &Event, row: u8, stream: u64) -> bool {
        let does = *self
            .rows
            .entry(row)
            .or_insert_with(|| match found.call(row) {
                Some((kind, name)) => does(kind, name),
                None => WorkEffect::Nothing,
            });
        if does == WorkEffect::Nothing {
            return false;
        }
        let WorkEffect::Waits(wait) = does else {
            if self.workers.len() < MAX_THREADS {
                self.workers.insert(thread);
            }
            self.drained.remove(&thread);
            return true;
        };
        let before = self.drained.get(&thread).copied();
        if let Some(before) = before
            && self.calls.len() < MAX_WAITS
        {
            let is_drained = match before {
                (Wait::Context, _) => true,
                (Wait::Stream, drained) => {
                    wait == Wait::Stream && drained == stream && !self.lacks_streams
                }
                _ => false,
            };
            self.calls.push((thread, span(event), is_drained));
        }
        if self.drained.len() < MAX_THREADS || before.is_some() {
            // An earlier wait for the whole context covers all streams, whereas the present wait may cover only one
            // stream. So do not replace the earlier wait.
            let drained = before.filter(|(wait, _)| *wait == Wait::Context);
            self.drained
                .insert(thread, drained.unwrap_or((wait, stream)));
        }
        false
    }

    /// Returns the waits for requests. `idle` contains the idle times of the GPUs in nanoseconds. It
    /// is empty if they were not measured. `ran` is `Some` only if sleeps between calls may count as waits for requests (see
    /// [`TimeOnProcessor`]).
    pub(crate) fn finish(
        self,
        idle: &[GpuIdle],
        ran: Option<&TimeOnProcessor<'_>>,
        clock: &Clock,
    ) -> Requests {
        let ns = |span: &Span| clock.ns(span.end).saturating_sub(clock.ns(span.start));
        let functions = self.functions.iter().copied();
        let functions = functions.filter(|(_, span)| ns(span) >= MIN_FUNCTION_WAIT_NS);
        let is_idle = |thread: u32, span: &Span, is_drained: bool| {
            let (start, end) = (clock.ns(span.start), clock.ns(span.end));
            let at = idle.partition_point(|idle| idle.span.end < end);
            let around = idle.get(at).filter(|idle| idle.span.start <= start);
            match (around, idle.is_empty()) {
                (Some(around), _) if around.is_measured => true,
                (None, false) => false,
                _ => is_drained && self.workers.iter().all(|worker| *worker == thread),
            }
        };
        let calls = self.calls.iter().filter(|(thread, span, is_drained)| {
            ns(span) >= MIN_CALL_WAIT_NS && is_idle(*thread, span, *is_drained)
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
            let is_asleep = long >= MIN_SLEEP_NS && ran <= long / MIN_SLEEP_TO_RUN_RATIO;
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

/// Returns true if a time between two calls, in ticks, may be at least [`MIN_SLEEP_NS`]. This quick check uses the mean
/// rate of the record's clock, which differs from the rate at any moment by much less than a tenth.
fn may_be_sleep(clock: &Clock, ticks: u64) -> bool {
    ticks as f64 * clock.ns_per_tick() >= MIN_SLEEP_NS as f64 * 0.9
}

impl Requests {
    /// Returns the time for which a thread waited for requests within a span, and the part of that time that it spent
    /// in calls that wait for the GPU. All times are in ticks.
    pub(crate) fn within(&self, thread: u32, span: Span) -> (u64, u64) {
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

    /// Returns the waits for requests in which a thread slept between two calls, sorted by time. Times are in
    /// ticks.
    pub(crate) fn asleep(&self, thread: u32) -> &[Span] {
        self.asleep.get(&thread).map_or(&[], Vec::as_slice)
    }

    /// Returns true if a thread waited for requests at a moment, which is in ticks.
    pub(crate) fn has(&self, thread: u32, moment: u64) -> bool {
        let (start, end) = (moment, moment.saturating_add(1));
        self.within(thread, Span { start, end }).0 > 0
    }

    /// Returns true if an event of a thread is a wait for requests.
    pub(crate) fn is_one(&self, thread: u32, event: &Event) -> bool {
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

fn does(kind: CallKind, name: &str) -> WorkEffect {
    let known = kind_of(name);
    match kind {
        CallKind::Wait => match known
            .and_then(CallPurpose::waits_for)
            .unwrap_or(Wait::Context)
        {
            Wait::CopyToHost => WorkEffect::Both,
            wait => WorkEffect::Waits(wait),
        },
        CallKind::KernelLaunch | CallKind::GraphLaunch | CallKind::AsyncCopy => WorkEffect::Work,
        CallKind::Other if matches!(known, Some(CallPurpose::AsyncCopy(_))) => WorkEffect::Work,
        CallKind::Other | CallKind::Capture => WorkEffect::Nothing,
    }
}

/// Returns true if calls of this row of the table of CUDA calls give work to the GPU.
pub(crate) fn gives_work(call: &CallCount) -> bool {
    matches!(
        does(call.kind, &call.name),
        WorkEffect::Work | WorkEffect::Both
    )
}

/// Returns the time spans of each thread in order. Overlapping spans are joined.
fn by_thread(spans: impl Iterator<Item = (u32, Span)>) -> HashMap<u32, Vec<Span>> {
    let mut threads: HashMap<u32, Vec<Span>> = HashMap::new();
    for (thread, span) in spans {
        threads.entry(thread).or_default().push(span);
    }
    threads.values_mut().for_each(spans::join);
    threads
}
