//! Tests of GPU times with a fake driver. They write into the record of the test process. A span is the work of one
//! stream in one iteration.

mod untimed;

use core::sync::atomic::Ordering;

use tllmprof_record::contents::{Contents, Record, on_a_thread};
use tllmprof_record::{Counter, Info};

use super::{in_window, record};
use crate::clock;
use crate::gpu::driver::{Driver, made};
use crate::gpu::*;
use crate::{Event as Recorded, What};

/// A fake CUDA context for a single test, and the record of the test process.
struct Gpu {
    context: usize,
    record: Record,
}

impl Gpu {
    /// Creates the context of one test. Each test passes a different `number`. The contexts of the tests before it make
    /// room, because only a few contexts can have events at a time.
    fn new(number: usize) -> Self {
        let record = record();
        let context = 0x10_0000 + 0x1000 * number;
        made::driver();
        before_destroy(Doomed::Primary(None), false);
        made::CONTEXT.store(context, Ordering::Relaxed);
        made::REFUSES.store(0, Ordering::Relaxed);
        made::CAPTURES.store(false, Ordering::Relaxed);
        made::IS_BUSY.store(false, Ordering::Relaxed);
        Self { context, record }
    }

    fn stream(&self, number: usize) -> StreamArgument {
        StreamArgument {
            handle: self.context + 8 * number,
            per_thread: false,
        }
    }

    /// Runs `act` on a new thread, in a window that opens with iteration 5. Returns the GPU spans that this
    /// thread writes.
    fn spans(&self, act: impl FnOnce() + Send) -> Vec<Recorded> {
        let thread = on_a_thread(|| {
            window_opens(false);
            in_window(5, || {
                begin_iteration(5);
                assert!(is_timing());
                act();
                work_ends(false);
            });
            end();
            assert!(!is_timing());
        });
        spans(&self.record.read(), thread)
    }

    fn lost(&self) -> u64 {
        self.record.read().header.counter(Counter::GpuSpansLost)
    }

    /// Returns the GPU time in the record's header so far, in nanoseconds.
    fn counted_ns(&self) -> u64 {
        self.record.read().header.counter(Counter::GpuNs)
    }
}

fn begin_iteration(n: u64) {
    crate::iteration_begins(n, false);
}

fn spans(contents: &Contents, thread: u32) -> Vec<Recorded> {
    let is_span = |event: &Recorded| matches!(event.what, What::GpuSpan { .. });
    contents
        .find_events(thread)
        .into_iter()
        .filter(is_span)
        .collect()
}

/// Returns the iteration and the duration, in microseconds, of each span.
fn shown(spans: &[Recorded]) -> Vec<(u64, u64)> {
    let of = |span: &Recorded| match span.what {
        What::GpuSpan {
            device: made::DEVICE,
            iteration,
            ..
        } => (iteration, span.duration.div_ceil(1000)),
        other => panic!("{other:?}"),
    };
    spans.iter().map(of).collect()
}

fn launch(target: StreamArgument) {
    if before_work(target) {
        after_last(target);
    }
}

#[test]
fn each_streams_work_is_a_span_of_its_iteration() {
    let gpu = Gpu::new(1);
    let before = gpu.lost();
    let [one, other] = [1, 2].map(|number| gpu.stream(number));
    let spans = gpu.spans(|| {
        for n in [5, 6] {
            begin_iteration(n);
            launch(one);
            launch(one);
            launch(other);
            before_wait(Wait::All);
        }
    });
    let mut found = shown(&spans);
    found.sort_unstable();
    // From the second iteration on, the last launch of each stream is predicted, and the span's end event is recorded
    // right after it. No other event is recorded between the span's two events, and the fake driver's clock advances by
    // one microsecond with each recorded event.
    assert_eq!(found[2..], [(6, 1), (6, 1)]);
    assert_eq!(
        found.iter().map(|(n, _)| *n).collect::<Vec<_>>(),
        [5, 5, 6, 6]
    );
    assert!(spans.iter().all(|span| !span.cut));
    let streams: std::collections::HashSet<_> = spans
        .iter()
        .map(|span| match span.what {
            What::GpuSpan { stream, .. } => stream,
            _ => u16::MAX,
        })
        .collect();
    assert_eq!(streams.len(), 2);
    assert_eq!(gpu.lost(), before);
}

#[test]
fn gpu_time_and_the_time_of_iterations_are_counted_inside_windows_only() {
    let gpu = Gpu::new(15);
    let stream = gpu.stream(1);
    let counted = || {
        let header = gpu.record.read().header;
        [Counter::GpuNs, Counter::NsInside].map(|counter| header.counter(counter))
    };
    let iterate = |n| {
        begin_iteration(n);
        if is_timing() {
            launch(stream);
            before_wait(Wait::Stream(stream));
        }
        crate::iteration_ends(true);
    };
    let before = counted();
    on_a_thread(|| iterate(3));
    assert_eq!(counted(), before);
    let thread = on_a_thread(|| {
        window_opens(false);
        in_window(5, || (5..8).for_each(iterate));
        end();
    });
    let after = counted();
    let contents = gpu.record.read();
    let measured: u64 = spans(&contents, thread)
        .iter()
        .map(|span| span.duration)
        .sum();
    assert!(measured >= 3000, "{measured}");
    assert_eq!(after[0] - before[0], measured);
    let iterations = contents.find_events(thread).into_iter();
    let iterations: Vec<_> = iterations
        .filter(|event| matches!(event.what, What::Iteration { .. }))
        .map(|event| event.duration as f64 / crate::ticks_per_ns())
        .collect();
    assert_eq!(iterations.len(), 3);
    let took = (after[1] - before[1]) as f64;
    // The sum of the iterations' durations may differ slightly from the header's counter. The counter has each duration
    // rounded down to a nanosecond, and a busy machine disturbs the measured ratio of ticks to nanoseconds.
    let difference = (iterations.iter().sum::<f64>() - took).abs();
    assert!(difference <= 3.0 + took / 10.0, "{iterations:?}: {took}");
    on_a_thread(|| iterate(9));
    assert_eq!(counted(), after);
}

#[test]
fn the_last_launch_is_known_by_the_iteration_before() {
    let gpu = Gpu::new(2);
    let stream = gpu.stream(1);
    let mut last = Vec::new();
    gpu.spans(|| {
        for n in 5..8 {
            begin_iteration(n);
            last.extend((0..3).map(|_| before_work(stream)));
            before_wait(Wait::Stream(stream));
        }
    });
    let first = [false; 3];
    let known = [false, false, true];
    assert_eq!(last, [first, known, known].concat());
}

#[test]
fn a_refused_launch_is_none() {
    let gpu = Gpu::new(3);
    let stream = gpu.stream(1);
    let spans = gpu.spans(|| {
        let key = stream.key(Driver::get().unwrap());
        launch(stream);
        launch(stream);
        refused(stream);
        assert_eq!(streams::find(key).unwrap().launches(), 1);
        refused(stream);
        before_wait(Wait::Stream(stream));
    });
    assert!(spans.is_empty(), "{spans:?}");
}

#[test]
fn work_behind_a_wait_is_another_span() {
    let gpu = Gpu::new(4);
    let stream = gpu.stream(1);
    let spans = gpu.spans(|| {
        launch(stream);
        before_wait(Wait::Stream(stream));
        launch(stream);
        before_wait(Wait::Event);
        launch(stream);
    });
    assert_eq!(
        shown(&spans).iter().map(|(n, _)| *n).collect::<Vec<_>>(),
        [5, 5, 5]
    );
    let ends = spans.windows(2).all(|pair| pair[0].start <= pair[1].start);
    assert!(ends, "{spans:?}");
}

#[test]
fn default_streams_differ_by_context_and_thread() {
    let gpu = Gpu::new(5);
    let driver = Driver::get().unwrap();
    let zero = |per_thread| StreamArgument {
        handle: 0,
        per_thread,
    };
    let keys = [zero(false), zero(true)].map(|target| target.key(driver));
    assert!(keys[0] != keys[1] && keys[0] == zero(false).key(driver));
    assert!(keys.iter().all(|key| key.context(driver) == gpu.context));
    made::CONTEXT.store(gpu.context + 0x100, Ordering::Relaxed);
    assert!(keys[0] != zero(false).key(driver));
    made::CONTEXT.store(gpu.context, Ordering::Relaxed);
    on_a_thread(|| {
        assert!(keys[0] == zero(false).key(driver));
        assert!(keys[1] != zero(true).key(driver));
    });
    assert_eq!(gpu.stream(1).key(driver).context(driver), gpu.context);
}

#[test]
fn what_is_captured_into_a_graph_has_no_span() {
    let gpu = Gpu::new(6);
    made::CAPTURES.store(true, Ordering::Relaxed);
    let spans = gpu.spans(|| {
        launch(gpu.stream(1));
        before_wait(Wait::All);
    });
    assert!(spans.is_empty());
}

#[test]
fn a_stream_that_is_destroyed_ends_its_span() {
    let gpu = Gpu::new(7);
    let stream = gpu.stream(1);
    let spans = gpu.spans(|| {
        launch(stream);
        before_destroy(Doomed::Stream(stream.handle), false);
        let key = stream.key(Driver::get().unwrap());
        assert!(streams::find(key).is_none());
        before_destroy(Doomed::Stream(stream.handle), false);
        assert!(streams::open().next().is_none());
    });
    assert_eq!(spans.len(), 1);
}

#[test]
fn the_events_of_a_context_are_given_back_before_it_goes() {
    let gpu = Gpu::new(8);
    let other = gpu.context + 0x100;
    let alive = || made::state().alive.len();
    let before = alive();
    let spans = gpu.spans(|| {
        launch(gpu.stream(1));
        before_destroy(Doomed::Context(other), false);
        assert!(alive() > before);
        before_destroy(Doomed::Context(gpu.context), false);
        assert_eq!(alive(), before);
        launch(gpu.stream(2));
        before_destroy(Doomed::Primary(Some(made::DEVICE + 1)), false);
        assert!(alive() > before);
    });
    assert_eq!(spans.len(), 2);
    before_destroy(Doomed::Primary(Some(made::DEVICE)), false);
    assert!(pool::known(gpu.context).is_none());
}

#[test]
fn the_worker_makes_events_ahead_once() {
    let gpu = Gpu::new(9);
    let before = made::state().alive.len();
    on_a_thread(|| {
        window_opens(false);
        assert!(wants_events());
        while wants_events() {
            make_events();
        }
        end();
    });
    let made = made::state().alive.len() - before;
    assert!(made >= 2 * 256, "{made}");
    assert!(!pool::wants_more());
    before_destroy(Doomed::Context(gpu.context), false);
}

#[test]
fn work_that_is_not_done_when_the_window_is_read_is_lost_and_counted() {
    let gpu = Gpu::new(10);
    let before = gpu.lost();
    made::IS_BUSY.store(true, Ordering::Relaxed);
    let spans = gpu.spans(|| launch(gpu.stream(1)));
    assert!(spans.is_empty());
    assert_eq!(gpu.lost(), before + 1);
    made::IS_BUSY.store(false, Ordering::Relaxed);
    assert_eq!(gpu.spans(|| launch(gpu.stream(1))).len(), 1);
}

#[test]
fn a_driver_that_refuses_an_event_is_asked_for_no_more_in_that_context() {
    let gpu = Gpu::new(11);
    let before = gpu.lost();
    made::REFUSES.store(700, Ordering::Relaxed);
    let spans = gpu.spans(|| launch(gpu.stream(1)));
    assert!(spans.is_empty());
    assert_eq!(gpu.lost(), before + 1);
    made::REFUSES.store(0, Ordering::Relaxed);
    assert!(gpu.spans(|| launch(gpu.stream(1))).is_empty());
    // Timing has stopped in the first context. In another context, an error that concerns only one stream must not
    // stop the timing.
    let other = Gpu {
        context: gpu.context + 0x100,
        ..gpu
    };
    made::CONTEXT.store(other.context, Ordering::Relaxed);
    made::REFUSES.store(400, Ordering::Relaxed);
    let spans = other.spans(|| {
        launch(other.stream(1));
        made::REFUSES.store(0, Ordering::Relaxed);
        launch(other.stream(2));
    });
    assert_eq!(spans.len(), 1);
}

#[test]
fn the_record_names_the_driver_and_the_gpu() {
    let gpu = Gpu::new(12);
    gpu.spans(|| launch(gpu.stream(1)));
    let contents = gpu.record.read();
    let driver = What::Info {
        key: Some(Info::CudaDriver),
        value: made::VERSION,
    };
    let has = |what| contents.events.iter().any(|(_, event)| event.what == what);
    assert!(has(driver));
    assert_eq!(contents.facts(Info::Gpu), [made::NAME]);
}

#[test]
fn a_stream_of_many_threads_is_not_counted_by_each() {
    let gpu = Gpu::new(13);
    let stream = gpu.stream(1);
    gpu.spans(|| {
        launch(stream);
        let known = streams::find(stream.key(Driver::get().unwrap())).unwrap();
        assert!(known.is_ours());
        for _ in 0..40 {
            on_a_thread(|| launch(stream));
            launch(stream);
        }
        let launches = known.launches();
        assert!(launches < 81, "{launches}");
        launch(stream);
        assert_eq!(known.launches(), launches);
    });
}

#[test]
fn there_are_only_so_many_streams_and_those_that_have_nothing_open_make_room() {
    let gpu = Gpu::new(14);
    let driver = Driver::get().unwrap();
    for number in 1..2000 {
        let handle = gpu.context + 0x100 * number;
        let key = StreamArgument {
            handle,
            per_thread: false,
        }
        .key(driver);
        let stream = streams::insert(key, gpu.context).unwrap();
        assert!(stream.is(key) && stream.handle() == handle && stream.is_in_reach(driver));
    }
    streams::forget(|context| context == gpu.context);
    assert!(streams::open().next().is_none());
}

/// Launches two kernels and waits for them, `times` times. Returns the number of waits that ended a span timed with the
/// host's clock. Each wait is reported as if it began before the launches, so no wait counts as late, and no span is
/// lost.
fn launch_and_wait(stream: StreamArgument, times: usize) -> usize {
    let mut by_clock = 0;
    for _ in 0..times {
        let since = clock::ticks();
        launch(stream);
        launch(stream);
        if before_wait(Wait::Stream(stream)) {
            after_wait(stream, since, clock::ticks());
            by_clock += 1;
        }
    }
    by_clock
}

#[test]
fn of_many_spans_that_are_waited_for_only_the_first_has_events() {
    let gpu = Gpu::new(20);
    let stream = gpu.stream(1);
    let (before, before_ns) = (gpu.lost(), gpu.counted_ns());
    let mut by_clock = Vec::new();
    let mut recorded = Vec::new();
    let spans = gpu.spans(|| {
        for n in 5..8 {
            begin_iteration(n);
            let before = made::state().recordings;
            by_clock.push(launch_and_wait(stream, 14));
            recorded.push(made::state().recordings - before);
        }
    });
    // On a busy machine a wait may begin late. The next span is then timed with events, so a few spans do not use the
    // host's clock.
    assert_eq!(by_clock[0], 0);
    assert!(by_clock[1..].iter().all(|&n| n >= 10), "{by_clock:?}");
    assert!(recorded[1] < recorded[0] / 2, "{recorded:?}");
    let cut = |n| {
        spans
            .iter()
            .filter(|span| span.cut && shown(&[**span])[0].0 == n)
            .count()
    };
    assert_eq!([5, 6, 7].map(cut), [0, by_clock[1], by_clock[2]]);
    let measured: u64 = spans.iter().map(|span| span.duration).sum();
    assert_eq!(gpu.counted_ns() - before_ns, measured);
    assert_eq!(shown(&spans).len(), 3 * 14);
    assert_eq!(gpu.lost(), before);
}

#[test]
fn a_span_by_the_hosts_clock_whose_wait_begins_late_is_lost() {
    let gpu = Gpu::new(31);
    let stream = gpu.stream(1);
    let before = gpu.lost();
    let mut by_clock = 0;
    let spans = gpu.spans(|| {
        for n in 5..7 {
            begin_iteration(n);
            launch_and_wait(stream, 14);
        }
        begin_iteration(7);
        for _ in 0..14 {
            launch(stream);
            if before_wait(Wait::Stream(stream)) {
                // The test reports this wait as if it began a second after the launch.
                let late = clock::ticks() + (1e9 * clock::ticks_per_ns()) as u64;
                after_wait(stream, late, late);
                by_clock += 1;
            }
        }
    });
    assert!(by_clock > 0 && gpu.lost() >= before + by_clock);
    let is_late = |span: &&Recorded| span.cut && shown(&[**span])[0].0 == 7;
    assert_eq!(spans.iter().filter(is_late).count(), 0);
}

#[test]
fn few_spans_and_those_of_a_host_that_waits_late_have_events() {
    let gpu = Gpu::new(21);
    let stream = gpu.stream(1);
    gpu.spans(|| {
        for n in 5..8 {
            begin_iteration(n);
            assert_eq!(launch_and_wait(stream, 3), 0);
        }
        for n in 8..11 {
            begin_iteration(n);
            for _ in 0..6 {
                launch(stream);
                std::thread::sleep(std::time::Duration::from_millis(1));
                assert!(!before_wait(Wait::Stream(stream)));
            }
        }
    });
}

#[test]
fn a_span_by_the_hosts_clock_that_nobody_waits_for_is_lost_and_has_events_the_next_time() {
    let gpu = Gpu::new(22);
    let stream = gpu.stream(1);
    let before = gpu.lost();
    let mut by_clock = Vec::new();
    gpu.spans(|| {
        for n in 5..7 {
            begin_iteration(n);
            launch_and_wait(stream, 5);
        }
        begin_iteration(7);
        launch_and_wait(stream, 2);
        launch(stream);
        // A wait for all streams does not end a span that is timed with the host's clock. So the span stays open, and
        // its time is lost at the first launch of iteration 8.
        before_wait(Wait::All);
        begin_iteration(8);
        by_clock.push(launch_and_wait(stream, 5));
    });
    assert!(gpu.lost() <= before + 1);
    assert!(by_clock[0] < 4, "{by_clock:?}");
}
