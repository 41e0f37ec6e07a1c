//! Tests of the search for two streams that take turns, on synthetic streams and calls.

use tllmprof_record::{CallKind, Clock, ClockKind, CopyKind, Event, StringId, What};

use super::order::LEGACY_HANDLES;
use super::*;
use crate::events::facts::CallCount;
use crate::events::kernel_windows::KernelWindows;
use crate::events::launches::LaunchTally;
use crate::events::spans::{Span, Spans};
use crate::events::work::{GpuWork, GpuWorkKind};

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
    let windows = KernelWindows::new(vec![(0, STEPS * STEP)]);
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
    let found = tally.finish(
        &launches.finish(),
        &[true; STEPS as usize],
        |name| name == COLLECTIVE,
        |row| ROWS[usize::from(row)].1.to_owned(),
    );
    found.pair().cloned()
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
    // This wait is for a third stream, whose handle is 0xc, and not for the first stream.
    let other = WaitFor(0xc, 5, 412);
    assert_eq!(order(&[FIRST, other, late(415), Wait(420, 740)]), None);
    // In these steps, no wait before the second launch lasts until the first stream's work ends. So the second launch
    // comes late for another reason.
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
