//! Times in which a GPU certainly has no work, although its work was not measured: the time from the end of a wait that
//! leaves the GPU without work to the next call that may give it work. These times are a lower bound of the GPU's idle
//! time, because the GPU may also be idle at other times.
//!
//! This is the whole condition. A stream is *empty* if no work of the process is in it. The GPU certainly has no work
//! while all streams are empty.
//!
//! - At the opening of a window, no stream to which any call of the record gives work is empty, because work from
//!   before the window may be in it. Work from before the window that is in another stream is assumed to have ended.
//! - A wait empties a stream if all calls that gave the stream work had returned before the wait began. So a call on
//!   another thread that gives work during the wait leaves the stream in use. A wait that failed empties nothing, and
//!   neither does a wait for an event, which may be older than the stream's last work.
//! - A wait for a stream empties that stream. The handles of default streams (0 to 2) stand for other streams on other
//!   threads and other GPUs. So a wait for such a stream empties only what the same thread gave it by the same handle,
//!   and only if the process uses one GPU. A thread is assumed to use 0 either for the legacy default stream or for
//!   its own, and not for both.
//! - A wait for the context empties all streams, if the process uses one GPU. All of its work is assumed to be in one
//!   context of that GPU.
//! - A blocking copy to the host gives its default stream work when it begins, and empties it when it returns.
//! - A call that enqueues anything ends the time when it begins: a launch, a copy, a memory set, or a function of the
//!   host, for which later work may wait. Calls in a stream capture count, too, because the capture may be that of
//!   another stream.
//! - While code is loaded or a graph is made, the GPU may copy. All of that has ended when the call returns.
//! - After a stream is destroyed, its handle may stand for another stream. So only a wait for the context empties the
//!   streams that were not empty then. After a context is destroyed, nothing is certain until the next window.
//! - Nothing is certain if events are missing in the record, if the flight recorder kept a part of it, or if another
//!   profiler made it. A time that no recorded call ends does not count, because a call that has not returned when the
//!   window closes is not recorded.
//!
//! Calls that tllmprof does not intercept, such as copies in two dimensions, are not in a record. If they give the GPU
//! work, it may work in these times.

use std::collections::{HashMap, HashSet};

use tllmprof_calls::{CallPurpose, Destroyed, Wait, kind_of};
use tllmprof_record::{CallKind, Clock, Edge, Event, What};

use crate::events::facts::RawFacts;
use crate::events::spans::Span;

/// Maximum number of calls to store. If a record has more, no time is certain.
const MAX_CALLS: usize = 1 << 21;

/// Largest handle that stands for a default stream: 0 and 1 for the legacy default stream, 2 for that of the thread.
const LAST_DEFAULT: u64 = 2;

/// The effect of an event on the work in streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StreamEffect {
    /// The call may give its stream work.
    Work,
    /// The call copies to the host by a default stream, and returns when the copy is done.
    Read,
    WaitForStream,
    WaitForContext,
    /// The GPU may work during the call, but not after it.
    WorkInside,
    DestroyStream,
    /// The call destroys a context, or its effect is not known.
    DestroyContext,
    WindowOpens,
    WindowCloses,
}

impl StreamEffect {
    /// Returns the effect of a function; `None` if it has no effect on the work in streams.
    fn find(kind: CallKind, name: &str) -> Option<Self> {
        use CallKind::{AsyncCopy, GraphLaunch, KernelLaunch};
        let purpose = kind_of(name);
        match (kind, purpose) {
            (CallKind::Wait, _) => match purpose.and_then(CallPurpose::waits_for) {
                Some(Wait::Stream) => Some(Self::WaitForStream),
                Some(Wait::Context) => Some(Self::WaitForContext),
                Some(Wait::CopyToHost) => Some(Self::Read),
                Some(Wait::Event) => None,
                None => Some(Self::DestroyContext),
            },
            (GraphLaunch | KernelLaunch | AsyncCopy, _) => Some(Self::Work),
            (_, None) => Some(Self::DestroyContext),
            (_, Some(purpose)) => match purpose {
                CallPurpose::HostFunction => Some(Self::Work),
                purpose if purpose.gives_work() => Some(Self::Work),
                CallPurpose::Compilation | CallPurpose::Graph(_) => Some(Self::WorkInside),
                CallPurpose::Destroys(Destroyed::Stream) => Some(Self::DestroyStream),
                CallPurpose::Destroys(_) => Some(Self::DestroyContext),
                _ => None,
            },
        }
    }
}

/// A stream, as far as a record distinguishes streams: its handle, and for a default stream also the thread that used
/// the handle (0 for other streams).
type StreamKey = (u64, u32);

/// An event with an effect on the work in streams. Times are in ticks.
#[derive(Clone, Copy, Debug)]
struct StreamEvent {
    effect: StreamEffect,
    start: u64,
    end: u64,
    handle: u64,
    thread: u32,
    failed: bool,
}

impl StreamEvent {
    /// Returns the stream that a call works on or waits for.
    const fn stream(&self) -> StreamKey {
        match self.handle <= LAST_DEFAULT {
            true => (self.handle, self.thread),
            false => (self.handle, 0),
        }
    }

    /// Returns the moments at which this event, which has the given index, has its effect.
    fn moments(&self, index: usize) -> impl Iterator<Item = Moment> + use<> {
        use StreamEffect::{Read, WaitForContext, WaitForStream, WorkInside};
        let begins = (self.start, Side::Begins, index);
        let ends = (self.end, Side::Ends, index);
        let [begins, ends] = match self.effect {
            WaitForStream | WaitForContext => [None, Some(ends)],
            Read | WorkInside => [Some(begins), Some(ends)],
            _ => [Some(begins), None],
        };
        begins.into_iter().chain(ends)
    }
}

/// A moment at which an event has an effect: the time in ticks, the side, and the index of the event.
type Moment = (u64, Side, usize);

/// The beginning or the end of a call. At the same time, beginnings come first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Side {
    Begins,
    Ends,
}

/// Collects the calls of a record from which times follow in which the GPU certainly has no work.
#[derive(Debug, Default)]
pub(crate) struct CertainIdle {
    /// For each row of the table of calls, the effect of its function.
    rows: HashMap<u8, Option<StreamEffect>>,
    events: Vec<StreamEvent>,
    /// True if no time is certain, or if none is needed because the GPU's work was measured.
    is_given_up: bool,
}

impl CertainIdle {
    pub(crate) fn take(&mut self, facts: &RawFacts, thread: u32, event: &Event) {
        if self.is_given_up {
            return;
        }
        let (effect, handle) = match event.what {
            What::Call { row, stream, .. } => {
                let effect = *self.rows.entry(row).or_insert_with(|| {
                    let call = facts.call(row);
                    call.map_or(Some(StreamEffect::DestroyContext), |(kind, name)| {
                        StreamEffect::find(kind, name)
                    })
                });
                let Some(effect) = effect else { return };
                (effect, stream)
            }
            What::Window { edge, .. } => match edge {
                Edge::Open => (StreamEffect::WindowOpens, 0),
                Edge::Close => (StreamEffect::WindowCloses, 0),
            },
            What::Past { .. }
            | What::Dropped { .. }
            | What::GpuSpan { .. }
            | What::GpuKernel { .. }
            | What::GpuCopy { .. }
            | What::GpuSet { .. } => return self.give_up(),
            _ => return,
        };
        if self.events.len() == MAX_CALLS {
            return self.give_up();
        }
        self.events.push(StreamEvent {
            effect,
            start: event.start,
            end: event.start.saturating_add(event.duration),
            handle,
            thread,
            failed: event.failed,
        });
    }

    /// Makes all times uncertain, and frees the memory.
    pub(crate) fn give_up(&mut self) {
        (self.is_given_up, self.events) = (true, Vec::new());
    }

    /// Returns the times in which the GPU certainly has no work, in nanoseconds and in order. `has_one_gpu` is true if
    /// it is known that the process uses a single GPU.
    pub(crate) fn finish(self, has_one_gpu: bool, clock: &Clock) -> Vec<Span> {
        let gives =
            |event: &&StreamEvent| matches!(event.effect, StreamEffect::Work | StreamEffect::Read);
        let gives = self.events.iter().filter(gives);
        let used: HashSet<StreamKey> = gives.map(StreamEvent::stream).collect();
        let events = self.events.iter().enumerate();
        let moments = events.flat_map(|(index, event)| event.moments(index));
        let mut moments: Vec<_> = moments.collect();
        moments.sort_unstable();
        let mut streams = Streams::new(&used, has_one_gpu);
        for (at, side, index) in moments {
            streams.apply(at, side, &self.events[index]);
        }
        let spans = streams.found.into_iter().map(|span| Span {
            start: clock.ns(span.start),
            end: clock.ns(span.end),
        });
        spans.collect()
    }
}

/// The state of all streams, while the events are applied in the order of time. Times are in ticks.
struct Streams<'a> {
    /// The streams to which any call of the record gives work.
    used: &'a HashSet<StreamKey>,
    has_one_gpu: bool,
    /// True inside windows, until a context is destroyed.
    is_known: bool,
    /// For each stream that is not empty, the end of the last call that gave it work.
    given: HashMap<StreamKey, u64>,
    /// The end of the last call that destroyed a stream while streams were not empty, if no wait for the context
    /// has followed.
    destroyed: Option<u64>,
    /// The number of calls of the kind [`StreamEffect::WorkInside`] that have not returned.
    inside: usize,
    /// The moment since which the GPU has no work; `None` if it may have work.
    since: Option<u64>,
    found: Vec<Span>,
}

impl<'a> Streams<'a> {
    fn new(used: &'a HashSet<StreamKey>, has_one_gpu: bool) -> Self {
        Self {
            used,
            has_one_gpu,
            is_known: false,
            given: HashMap::new(),
            destroyed: None,
            inside: 0,
            since: None,
            found: Vec::new(),
        }
    }

    fn apply(&mut self, at: u64, side: Side, event: &StreamEvent) {
        match (event.effect, side) {
            (StreamEffect::Work, _) | (StreamEffect::Read, Side::Begins) => {
                self.may_work(at);
                let until = self.given.entry(event.stream()).or_default();
                *until = event.end.max(*until);
            }
            // No other call of the thread runs during the copy, so what the thread gave the stream came before it.
            (StreamEffect::Read, Side::Ends) => self.empty_stream(event, event.end),
            (StreamEffect::WaitForStream, _) => self.empty_stream(event, event.start),
            (StreamEffect::WaitForContext, _) => self.empty_all(event),
            (StreamEffect::WorkInside, Side::Begins) => {
                self.may_work(at);
                self.inside += 1;
            }
            (StreamEffect::WorkInside, Side::Ends) => {
                self.inside = self.inside.saturating_sub(1);
                self.may_be_idle(at);
            }
            (StreamEffect::DestroyStream, _) => {
                if self.given.keys().any(|(handle, _)| *handle > LAST_DEFAULT) {
                    self.destroyed = Some(event.end.max(self.destroyed.unwrap_or(0)));
                }
            }
            (StreamEffect::DestroyContext, _) => {
                self.may_work(at);
                self.is_known = false;
            }
            (StreamEffect::WindowOpens, _) => {
                self.is_known = true;
                self.given = self.used.iter().map(|stream| (*stream, at)).collect();
                (self.destroyed, self.inside, self.since) = (None, 0, None);
            }
            (StreamEffect::WindowCloses, _) => (self.is_known, self.since) = (false, None),
        }
    }

    /// Empties the stream of a wait or a copy, if all calls that gave it work had ended at `by`.
    fn empty_stream(&mut self, event: &StreamEvent, by: u64) {
        let stream = event.stream();
        let is_one = event.handle > LAST_DEFAULT || self.has_one_gpu;
        if is_one && !event.failed && self.given.get(&stream).is_some_and(|end| *end <= by) {
            self.given.remove(&stream);
        }
        self.may_be_idle(event.end);
    }

    /// Empties all streams, except those to which calls gave work that had not ended when the wait began.
    fn empty_all(&mut self, event: &StreamEvent) {
        if self.has_one_gpu && !event.failed {
            self.given.retain(|_, end| *end > event.start);
            self.destroyed = self.destroyed.filter(|end| *end > event.start);
        }
        self.may_be_idle(event.end);
    }

    /// Called when the GPU may have work from `at` on.
    fn may_work(&mut self, at: u64) {
        if let Some(start) = self.since.take().filter(|since| *since < at) {
            self.found.push(Span { start, end: at });
        }
    }

    /// Called when streams may have become empty at `at`.
    fn may_be_idle(&mut self, at: u64) {
        let is_idle = self.given.is_empty() && self.destroyed.is_none() && self.inside == 0;
        if self.is_known && is_idle && self.since.is_none() {
            self.since = Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tllmprof_record::ClockKind;

    const LAUNCH: u8 = 0;
    const WAIT: u8 = 1;
    const DEVICE_WAIT: u8 = 2;
    const EVENT_WAIT: u8 = 3;
    const READ: u8 = 4;
    const HOST_FUNCTION: u8 = 5;
    const LOAD: u8 = 6;
    const DESTROY: u8 = 7;
    const QUERY: u8 = 8;
    const ALLOCATE: u8 = 9;

    /// A call: its thread, its row, its stream, and its start and end.
    type Made = (u32, u8, u64, u64, u64);

    fn collected(calls: &[Made]) -> CertainIdle {
        let mut idle = CertainIdle::default();
        for (row, kind, name) in [
            (LAUNCH, CallKind::KernelLaunch, "cuLaunchKernel"),
            (WAIT, CallKind::Wait, "cuStreamSynchronize"),
            (DEVICE_WAIT, CallKind::Wait, "cuCtxSynchronize"),
            (EVENT_WAIT, CallKind::Wait, "cuEventSynchronize"),
            (READ, CallKind::Wait, "cuMemcpyDtoH_v2"),
            (HOST_FUNCTION, CallKind::Other, "cuLaunchHostFunc"),
            (LOAD, CallKind::Other, "cuModuleLoadData"),
            (DESTROY, CallKind::Other, "cuStreamDestroy_v2"),
            (QUERY, CallKind::Wait, "cuStreamQuery"),
            (ALLOCATE, CallKind::Other, "cuMemAlloc_v2"),
        ] {
            idle.rows.insert(row, StreamEffect::find(kind, name));
        }
        let edge = |edge| What::Window { edge, iteration: 0 };
        let mut take = |thread, event| idle.take(&RawFacts::default(), thread, &event);
        take(1, Event::new(10, 0, edge(Edge::Open)));
        for &(thread, row, stream, start, end) in calls {
            let capturing = false;
            let what = What::Call {
                row,
                capturing,
                stream,
            };
            take(thread, Event::new(start, end - start, what));
        }
        take(1, Event::new(900, 0, edge(Edge::Close)));
        idle
    }

    fn spans(idle: CertainIdle, has_one_gpu: bool) -> Vec<(u64, u64)> {
        let clock = Clock::new(ClockKind::Monotonic, &[]);
        let spans = idle.finish(has_one_gpu, &clock).into_iter();
        spans.map(|span| (span.start, span.end)).collect()
    }

    fn found(calls: &[Made]) -> Vec<(u64, u64)> {
        spans(collected(calls), true)
    }

    #[test]
    fn a_wait_leaves_the_gpu_without_work_until_the_next_call_that_gives_it_work() {
        let loop_of = |row, stream, of_wait| {
            [
                (1, LAUNCH, stream, 20, 30),
                (1, row, of_wait, 40, 100),
                (1, ALLOCATE, 0, 110, 120),
                (1, LAUNCH, stream, 150, 160),
                (1, row, of_wait, 170, 200),
                (1, row, of_wait, 220, 230),
                (1, LAUNCH, stream, 250, 260),
                // This time is not ended by a call, so it does not count.
                (1, row, of_wait, 270, 300),
            ]
        };
        let idle = [(100, 150), (200, 250)];
        assert_eq!(found(&loop_of(WAIT, 7, 7)), idle);
        assert_eq!(found(&loop_of(QUERY, 7, 7)), idle);
        assert_eq!(found(&loop_of(DEVICE_WAIT, 7, 0)), idle);
        assert_eq!(found(&loop_of(WAIT, 0, 0)), idle);
        // The copy that comes last is work of its own.
        let copies = [(100, 150), (200, 220), (230, 250)];
        assert_eq!(found(&loop_of(READ, 0, 0)), copies);
        // These waits are for another stream, or for an event that may be older than the stream's last work.
        for row in [WAIT, EVENT_WAIT, READ] {
            assert_eq!(found(&loop_of(row, 7, 0)), []);
        }
    }

    #[test]
    fn work_in_another_stream_keeps_the_gpu_busy() {
        let before = [(1, LAUNCH, 7, 20, 30), (1, LAUNCH, 8, 32, 34)];
        let after = [(1, LAUNCH, 7, 200, 210)];
        let with = |waits: &[Made]| found(&[&before, waits, &after[..]].concat());
        assert_eq!(with(&[(1, WAIT, 7, 40, 100)]), []);
        let both = [(1, WAIT, 7, 40, 100), (1, WAIT, 8, 110, 120)];
        assert_eq!(with(&both), [(120, 200)]);
        assert_eq!(with(&[(1, DEVICE_WAIT, 0, 40, 100)]), [(100, 200)]);
        // The other stream's work may come from before the window.
        let late = [
            (1, LAUNCH, 7, 20, 30),
            (1, WAIT, 7, 40, 100),
            (1, LAUNCH, 8, 150, 160),
        ];
        assert_eq!(found(&late), []);
    }

    #[test]
    fn work_of_another_thread_may_come_during_a_wait() {
        let with = |other: Made, wait| {
            let calls = [
                (1, LAUNCH, 7, 20, 30),
                (1, wait, 7, 40, 100),
                other,
                (1, LAUNCH, 7, 200, 210),
            ];
            found(&calls)
        };
        for wait in [WAIT, DEVICE_WAIT] {
            // The call on the other thread has returned before the wait begins, runs during the wait, or ends after it.
            assert_eq!(with((2, LAUNCH, 7, 25, 40), wait), [(100, 200)]);
            assert_eq!(with((2, LAUNCH, 7, 50, 60), wait), []);
            assert_eq!(with((2, LAUNCH, 7, 35, 150), wait), []);
            // It begins after the wait.
            assert_eq!(with((2, LAUNCH, 7, 120, 150), wait), [(100, 120)]);
        }
    }

    #[test]
    fn handles_of_default_streams_stand_for_several_streams() {
        let calls = [
            (1, LAUNCH, 0, 20, 30),
            (2, LAUNCH, 0, 22, 32),
            (1, WAIT, 0, 40, 100),
            (2, WAIT, 0, 110, 120),
            (1, LAUNCH, 0, 200, 210),
        ];
        assert_eq!(found(&calls), [(120, 200)]);
        assert_eq!(found(&[&calls[..3], &calls[4..]].concat()), []);
        // Each GPU has default streams of its own, and a wait for the context is for one GPU.
        assert_eq!(spans(collected(&calls), false), []);
        let own = |row| {
            [
                (1, LAUNCH, 7, 20, 30),
                (1, row, 7, 40, 100),
                (1, LAUNCH, 7, 200, 210),
            ]
        };
        assert_eq!(spans(collected(&own(WAIT)), false), [(100, 200)]);
        assert_eq!(spans(collected(&own(DEVICE_WAIT)), false), []);
    }

    #[test]
    fn some_calls_leave_it_unknown_whether_the_gpu_works() {
        let with = |row, stream| {
            let calls = [
                (1, LAUNCH, 7, 20, 30),
                (1, WAIT, 7, 40, 100),
                (1, row, stream, 130, 150),
                (1, LAUNCH, 7, 200, 210),
            ];
            found(&calls)
        };
        assert_eq!(with(ALLOCATE, 0), [(100, 200)]);
        assert_eq!(with(DESTROY, 0), [(100, 200)]);
        assert_eq!(with(LOAD, 0), [(100, 130), (150, 200)]);
        assert_eq!(with(HOST_FUNCTION, 7), [(100, 130)]);
        // The table of calls does not contain this row.
        assert_eq!(with(77, 0), [(100, 130)]);
        // The destroyed stream may have had work, and its handle may now stand for another stream.
        let destroyed = |wait| {
            let calls = [
                (1, LAUNCH, 7, 20, 30),
                (1, DESTROY, 0, 32, 34),
                (1, wait, 7, 40, 100),
                (1, LAUNCH, 7, 200, 210),
            ];
            found(&calls)
        };
        assert_eq!(destroyed(WAIT), []);
        assert_eq!(destroyed(DEVICE_WAIT), [(100, 200)]);
    }

    #[test]
    fn nothing_is_certain_if_events_are_missing_or_a_wait_has_failed() {
        let calls = [
            (1, LAUNCH, 7, 20, 30),
            (1, WAIT, 7, 40, 100),
            (1, LAUNCH, 7, 200, 210),
        ];
        let mut some = collected(&calls);
        let missing = Event::new(50, 0, What::Dropped { events: 1 });
        some.take(&RawFacts::default(), 1, &missing);
        assert_eq!(spans(some, true), []);
        let mut failed = collected(&calls);
        failed
            .events
            .iter_mut()
            .for_each(|event| event.failed = true);
        assert_eq!(spans(failed, true), []);
    }
}
