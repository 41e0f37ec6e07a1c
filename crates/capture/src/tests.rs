//! Tests that switch windows (ranges of profiled iterations) as the session does, with a record of the test process and
//! a real worker thread.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Once;
use std::thread;

use tllmprof_config::IterationRange;
use tllmprof_record::contents::{Contents, on_a_thread};
use tllmprof_record::{Counter, Info, What};
use tllmprof_session::Sink;
use tllmprof_steps::window::Taken;

use super::*;
use crate::cupti::PLAN;
use crate::cupti::plan::PlanEvent;
use crate::made::{record, settings};

/// Number of jobs that the worker thread of this test has finished.
static DONE: AtomicU32 = AtomicU32::new(0);

/// Starts the worker of the test process, at the first call. The worker runs all jobs and counts them in `DONE`.
fn start_once() {
    static ONCE: Once = Once::new();
    fn count(job: Job) {
        work(job);
        DONE.fetch_add(1, Ordering::Relaxed);
    }
    ONCE.call_once(|| {
        assert!(Profilers.wants_record());
        Profilers.start(Box::leak(Box::new(settings(&[]))));
        assert!(!worker::is_there());
        assert!(!worker::run(Job::Drain, Duration::from_secs(10)));
        assert!(!worker::await_rest(Duration::from_secs(10)) && !worker::ask_for_room());
        worker::start(count);
        worker::start(count);
    });
}

const ASKED: IterationRange = IterationRange {
    first: 5,
    last: Some(6),
};

/// Returns a captured window that consists of the iterations `first` and `first + 1`. For any `first`, the window that
/// the user requested is 5-6.
fn taken(first: u64) -> Taken {
    let last = Some(first + 1);
    Taken::new(ASKED, IterationRange { first, last })
}

fn place(point: Point) -> Place<'static> {
    Place {
        point,
        by: format_args!("a test"),
        rank: None,
        why_late: "",
        capturing: false,
        excluded: false,
        kernels: None,
        sampled: None,
        past: false,
        demand: None,
        torch_trace: None,
    }
}

fn reach(point: Point, close: Option<Taken>, open: Option<Taken>) {
    Profilers.switch(
        &place(point),
        Switched {
            close,
            open,
            kernels: false,
        },
    );
}

/// Returns the events that a thread wrote, except those about resources that its iterations used.
fn events(contents: &Contents, thread: u32) -> Vec<What> {
    let all = contents
        .find_events(thread)
        .into_iter()
        .map(|event| event.what);
    all.filter(|what| !matches!(what, What::Used { .. }))
        .collect()
}

#[test]
fn a_window_is_in_the_record_with_its_iterations() {
    let record = record();
    start_once();
    let before = record.read().header;
    let thread = on_a_thread(|| {
        Profilers.passes(Point::In(4), false);
        reach(Point::In(5), None, Some(taken(5)));
        let is_open = |window| {
            STATE
                .lock()
                .open
                .as_ref()
                .is_some_and(|open| open.window == window)
        };
        assert!(is_open(ASKED));
        reach(Point::In(6), None, None);
        reach(Point::In(7), Some(taken(5)), None);
        assert!(STATE.lock().open.is_none());
        Profilers.passes(Point::After(7), false);
    });
    let contents = record.read();
    let edge = |edge, iteration| What::Window { edge, iteration };
    let what = events(&contents, thread);
    let expected = [
        edge(Edge::Open, 5),
        What::Iteration {
            n: 5,
            excluded: false,
        },
        What::Iteration {
            n: 6,
            excluded: false,
        },
        edge(Edge::Close, 6),
    ];
    assert_eq!(what[..4], expected);
    let more = |counter| contents.header.counter(counter) - before.counter(counter);
    // Iterations 4 and 7 are outside of the window, but the record counts them, too.
    assert_eq!((more(Counter::Iterations), more(Counter::Windows)), (4, 1));
}

#[test]
fn what_a_window_held_is_one_figure_though_later_iterations_have_begun() {
    let record = record();
    start_once();
    let thread = on_a_thread(|| {
        let bounded = Taken {
            window: IterationRange {
                first: 5,
                last: Some(6),
            },
            ..taken(5)
        };
        reach(Point::In(5), None, Some(bounded));
        reach(Point::In(9), Some(bounded), None);
    });
    let what = events(&record.read(), thread);
    let edge = |edge, iteration| What::Window { edge, iteration };
    let expected = [
        edge(Edge::Open, 5),
        What::Iteration {
            n: 5,
            excluded: false,
        },
        edge(Edge::Close, 6),
    ];
    assert_eq!(what[..3], expected);
}

#[test]
fn one_window_closes_where_the_next_opens() {
    let record = record();
    start_once();
    let thread = on_a_thread(|| {
        reach(Point::In(5), None, Some(taken(5)));
        reach(Point::In(7), Some(taken(5)), Some(taken(7)));
        reach(Point::After(8), Some(taken(7)), None);
    });
    let contents = record.read();
    let edges = contents
        .find_events(thread)
        .into_iter()
        .filter_map(|event| match event.what {
            What::Window { edge, iteration } => Some((edge, iteration)),
            _ => None,
        });
    let (open, close) = (Edge::Open, Edge::Close);
    let expected = [(open, 5), (close, 6), (open, 7), (close, 8)];
    assert_eq!(edges.collect::<Vec<_>>(), expected);
}

#[test]
fn a_window_that_the_end_of_the_process_finds_open_is_closed_by_the_worker() {
    let record = record();
    start_once();
    let thread = on_a_thread(|| {
        reach(Point::In(5), None, Some(taken(5)));
        assert!(!Profilers.has_edge_at(Point::In(5)) && !Profilers.has_edge_at(Point::Start));
        Profilers.ends(6, false, tllmprof_session::EndReason::Exit);
        assert!(STATE.lock().open.is_some());
        Profilers.finish(6, true, false);
        assert!(STATE.lock().open.is_none());
    });
    let what = events(&record.read(), thread);
    let (edge, iteration) = (Edge::Close, 5);
    assert_eq!(
        what[1..],
        [
            What::Iteration {
                n: 5,
                excluded: false
            },
            What::Window { edge, iteration }
        ]
    );
}

#[test]
fn calls_are_counted_now_and_then() {
    let record = record();
    let of = |contents: &Contents| contents.header.counter(Counter::CallsOutside(2));
    let before = of(&record.read());
    while !Profilers.wants_calls() {
        thread::yield_now();
    }
    // On a busy machine, so much time may pass between two calls that the counts are wanted again.
    assert!((0..1000).any(|_| !Profilers.wants_calls()));
    Profilers.count_calls(&mut [0, 0, 1_000].into_iter());
    assert_eq!(of(&record.read()), before + 1_000);
}

#[test]
fn ranges_of_the_librarys_own_are_in_the_record() {
    let record = record();
    let function = marks::RegisteredName::of_function("engine.step").unwrap();
    let range = marks::RegisteredName::of_range("wait for the GIL").unwrap();
    assert!(marks::RegisteredName::new("nobody listens").is_none());
    let thread = on_a_thread(|| {
        drop(function.push());
        recorder::window_opens(5, false);
        let outer = range.push();
        drop(function.push());
        drop(outer);
        function.push().forget();
        function.push_until_pop();
        marks::pop();
        function.mark(1);
        function.start(1).forget();
        recorder::window_closes(6);
    });
    let contents = record.read();
    let text = |id| contents.strings.get(id);
    let events = contents.find_events(thread);
    let names = events.iter().filter_map(|event| match event.what {
        What::Function { name } => Some(text(name).to_owned()),
        What::Range { domain, name, .. } => Some(format!("{}@{}", text(name), text(domain))),
        _ => None,
    });
    let expected = ["engine.step", "wait for the GIL@tllmprof"];
    assert_eq!(names.collect::<Vec<_>>(), expected);
}

#[test]
fn a_warning_of_a_window_is_in_the_record() {
    let record = record();
    start_once();
    on_a_thread(|| {
        reach(Point::In(15), None, Some(taken(15)));
        reach(Point::After(16), Some(taken(15)), None);
    });
    let contents = record.read();
    let refused = contents.facts(Info::Refused).into_iter();
    let mut refused = refused.filter(|line| line.contains("the CUDA profiler did not start"));
    assert!(
        refused
            .next()
            .is_some_and(|line| line.starts_with("window 5-6"))
    );
}

#[test]
fn the_worker_works_and_takes_no_signals() {
    let _record = record();
    start_once();
    let before = DONE.load(Ordering::Relaxed);
    assert!(worker::run(Job::Drain, Duration::from_secs(10)));
    assert_eq!(DONE.load(Ordering::Relaxed), before + 1);
    assert!(worker::is_there() && worker::await_rest(Duration::from_secs(10)));
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let workers: Vec<_> = tasks
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok())
        .filter(|status| status.starts_with("Name:\ttllmprof\n"))
        .collect();
    let [worker] = workers.as_slice() else {
        panic!("{workers:?}");
    };
    let mask = worker
        .lines()
        .find_map(|line| line.strip_prefix("SigBlk:\t"));
    let mask = u64::from_str_radix(mask.unwrap(), 16).unwrap();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGPROF, libc::SIGUSR1] {
        assert_ne!(mask & 1 << (signal - 1), 0, "{signal}");
    }
}

#[test]
fn a_process_without_a_driver_has_no_kernels_and_says_why_once() {
    let record = record();
    start_once();
    PLAN.lock().on(PlanEvent::Opens);
    assert!(cupti::has_edge_at(0));
    assert!(!cupti::reach(5, false));
    assert!(!cupti::has_edge_at(6) && !cupti::reach(6, false));
    cupti::window_closes(7);
    cupti::window_has_closed(7, false);
    PLAN.lock().on(PlanEvent::Opens);
    assert!(!cupti::reach(8, false));
    cupti::finish(9, false);
    let contents = record.read();
    let why = "no kernels: the CUDA driver was not found in this process";
    let refused = contents.facts(Info::Refused).into_iter();
    assert_eq!(refused.filter(|line| line.contains(why)).count(), 1);
}
