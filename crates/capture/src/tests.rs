//! Windows as the session has them switched, with a record of this very process and the worker.

use std::fs;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use tllmprof_platform::ids;
use tllmprof_record::{Counter, Entry, Event, Header, Info, Reader, Strings, What};
use tllmprof_session::Sink;
use tllmprof_steps::window::Edge as Switched;

use super::*;

/// The record. There is one in a process, with one window at a time: a test has it alone.
pub struct Record {
    file: &'static fs::File,
    _alone: MutexGuard<'static, ()>,
}

/// What is in a record.
pub struct Contents {
    pub header: Header,
    pub strings: Strings,
    /// By thread.
    pub events: Vec<(u32, Event)>,
}

impl Record {
    /// The record, which the first caller begins.
    pub fn of_process() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        static FILE: OnceLock<fs::File> = OnceLock::new();
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        Self {
            file: FILE.get_or_init(begin_here),
            _alone: alone,
        }
    }

    pub fn read(&self) -> Contents {
        let reader = Reader::new(self.file.try_clone().unwrap()).unwrap();
        let mut contents = Contents {
            header: reader.header().clone(),
            strings: Strings::default(),
            events: Vec::new(),
        };
        let damage = reader.read(|entry| match entry {
            Entry::String { id, bytes } => contents.strings.add(id, bytes),
            Entry::Event { thread, event } => contents.events.push((thread, event)),
        });
        assert_eq!(damage.unwrap(), tllmprof_record::Damage::default());
        contents
    }
}

impl Contents {
    /// What a thread has written, without its name.
    pub fn of(&self, thread: u32) -> Vec<Event> {
        let events = self.events.iter().filter(|(of, _)| *of == thread);
        let events = events.map(|(_, event)| *event);
        events
            .filter(|event| !matches!(event.what, What::ThreadName { .. }))
            .collect()
    }
}

/// Settings of a process that is to have a record at `path`.
pub fn settings(more: &[(&str, &str)]) -> Settings {
    let value = |name: &str| {
        let found = more.iter().find(|(is, _)| *is == name);
        found.map(|(_, value)| (*value).into())
    };
    Settings::from_env(value).unwrap()
}

/// Begins the record in a temporary folder, of which the file alone is left.
fn begin_here() -> fs::File {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.tlm");
    let settings = settings(&[("TLLMPROF_TRACE", path.to_str().unwrap())]);
    let facts = Facts {
        rank: None,
        python: None,
        rule: &"auto",
        why: None,
        engine: None,
    };
    assert!(!Profilers.wants_record());
    recorder::start(&settings);
    assert!(Profilers.wants_record());
    let settings: &'static Settings = Box::leak(Box::new(settings));
    Profilers.start(settings);
    assert!(Profilers.begin_record(settings, &facts));
    fs::File::open(path).unwrap()
}

/// Runs `act` on a thread of its own; returns its number.
pub fn on_a_thread(act: impl FnOnce() + Send) -> u32 {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            act();
            ids::thread().cast_unsigned()
        });
        thread.join().unwrap()
    })
}

const ASKED: Window = Window {
    first: 5,
    last: Some(6),
};

/// The window 5-6, taken from iteration `first` on.
fn taken(first: u64) -> Taken {
    let last = Some(first + 1);
    Taken {
        asked: ASKED,
        window: Window { first, last },
    }
}

fn place(point: Point) -> Place<'static> {
    Place {
        point,
        by: format_args!("a test"),
        rank: None,
        capturing: false,
    }
}

fn reach(point: Point, close: Option<Taken>, open: Option<Taken>) {
    Profilers.switch(&place(point), Switched { close, open });
}

#[test]
fn a_window_is_in_the_record_with_its_iterations() {
    let record = Record::of_process();
    crate::worker::tests::start_once();
    let before = record.read().header;
    let thread = on_a_thread(|| {
        Profilers.passes(Point::In(4));
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
        Profilers.passes(Point::After(7));
    });
    let contents = record.read();
    let edge = |edge, iteration| What::Window { edge, iteration };
    let what: Vec<_> = contents.of(thread).iter().map(|event| event.what).collect();
    let expected = [
        edge(Edge::Open, 5),
        What::Iteration { n: 5 },
        What::Iteration { n: 6 },
        edge(Edge::Close, 6),
    ];
    assert_eq!(what[..4], expected);
    let more = |counter| contents.header.counter(counter) - before.counter(counter);
    // The fourth and the seventh are outside.
    assert_eq!((more(Counter::Iterations), more(Counter::Windows)), (4, 1));
}

#[test]
fn what_a_window_held_is_one_figure_though_later_iterations_have_begun() {
    let record = Record::of_process();
    crate::worker::tests::start_once();
    let thread = on_a_thread(|| {
        let bounded = Taken {
            window: Window {
                first: 5,
                last: Some(6),
            },
            ..taken(5)
        };
        reach(Point::In(5), None, Some(bounded));
        reach(Point::In(9), Some(bounded), None);
    });
    let what: Vec<_> = record
        .read()
        .of(thread)
        .iter()
        .map(|event| event.what)
        .collect();
    let edge = |edge, iteration| What::Window { edge, iteration };
    let expected = [
        edge(Edge::Open, 5),
        What::Iteration { n: 5 },
        edge(Edge::Close, 6),
    ];
    assert_eq!(what[..3], expected);
}

#[test]
fn one_window_closes_where_the_next_opens() {
    let record = Record::of_process();
    crate::worker::tests::start_once();
    let thread = on_a_thread(|| {
        reach(Point::In(5), None, Some(taken(5)));
        reach(Point::In(7), Some(taken(5)), Some(taken(7)));
        reach(Point::After(8), Some(taken(7)), None);
    });
    let contents = record.read();
    let edges = contents
        .of(thread)
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
    let record = Record::of_process();
    crate::worker::tests::start_once();
    let thread = on_a_thread(|| {
        reach(Point::In(5), None, Some(taken(5)));
        assert!(!Profilers.has_edge_at(Point::In(5)) && !Profilers.has_edge_at(Point::Start));
        Profilers.ends(6, false);
        assert!(STATE.lock().open.is_some());
        Profilers.finish(6, true, false);
        assert!(STATE.lock().open.is_none());
    });
    let what: Vec<_> = record
        .read()
        .of(thread)
        .iter()
        .map(|event| event.what)
        .collect();
    let (edge, iteration) = (Edge::Close, 5);
    assert_eq!(
        what[1..],
        [What::Iteration { n: 5 }, What::Window { edge, iteration }]
    );
}

#[test]
fn calls_are_counted_now_and_then() {
    let record = Record::of_process();
    let of = |contents: &Contents| contents.header.counter(Counter::CallsOutside(2));
    let before = of(&record.read());
    while !Profilers.wants_calls() {
        thread::yield_now();
    }
    assert!(!Profilers.wants_calls());
    Profilers.count_calls(&mut [0, 0, 1_000].into_iter());
    assert_eq!(of(&record.read()), before + 1_000);
}

#[test]
fn ranges_of_the_librarys_own_are_in_the_record() {
    let record = Record::of_process();
    let function = marks::Name::of_function("engine.step").unwrap();
    let range = marks::Name::of_range("wait for the GIL").unwrap();
    assert!(marks::Name::new("nobody listens").is_none());
    let thread = on_a_thread(|| {
        drop(function.push());
        recorder::window_opens(5);
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
    let events = contents.of(thread);
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
    let record = Record::of_process();
    crate::worker::tests::start_once();
    on_a_thread(|| {
        reach(Point::In(15), None, Some(taken(15)));
        reach(Point::After(16), Some(taken(15)), None);
    });
    let contents = record.read();
    let refused = contents
        .events
        .iter()
        .filter_map(|(_, event)| match event.what {
            What::Info {
                key: Some(Info::Refused),
                value,
            } => Some(contents.strings.get(value as u32)),
            _ => None,
        });
    let mut refused = refused.filter(|line| line.contains("the profiler did not start"));
    assert!(
        refused
            .next()
            .is_some_and(|line| line.starts_with("window 5-6"))
    );
}
