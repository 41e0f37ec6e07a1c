//! Tests of a record of the test process itself: the tests write events and then read the file.

mod gpu;
mod keep;
mod used;

use core::sync::atomic::AtomicU32;
use core::time::Duration;
use std::fs;
use std::thread;

use tllmprof_calls::CALLS;
use tllmprof_config::{RankSource, Ranked, Settings};
use tllmprof_platform::ids;
use tllmprof_record::contents::{Contents, Record, on_a_thread};
use tllmprof_record::{
    CHUNK_BYTES, EVENT_BYTES, Entry, Header, Histogram, Info, NO_STRING, Reader,
};
use tllmprof_session::SessionFacts;

use super::*;
use crate::ranges::{RangeName, RangeNames};

const EARLY: &str = "a warning from before the record";

/// Returns the record of this process. The first test that calls this begins it.
pub(crate) fn record() -> Record {
    Record::of_process(begin_here)
}

/// Runs `act` in a window that opens with iteration `first` and closes before iteration `first + 1`.
pub(crate) fn in_window<T>(first: u64, act: impl FnOnce() -> T) -> T {
    window_opens(first, false);
    let result = act();
    window_closes(first + 1);
    result
}

/// Begins the record in a temporary folder. The folder is deleted, but the open file stays readable.
fn begin_here() -> fs::File {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("%p.tlm");
    let settings = Settings::from_env(|name| match name {
        "TLLMPROF_TRACE" => Some(path.clone().into()),
        "TLLMPROF_START_STOP" => Some("5-6".into()),
        _ => None,
    });
    let settings = settings.unwrap();
    assert!(!is_on() && !is_wanted());
    start(&settings);
    keep_warning(EARLY);
    let facts = SessionFacts {
        rank: Some(Ranked {
            rank: 3,
            world_size: Some(8),
            source: RankSource::Torch,
        }),
        python: Some("3.12.1"),
        rule: &"nvtx:step",
        why: None,
        engine: None,
        is_span: false,
    };
    begin(&settings, &facts);
    assert!(is_on() && is_wanted() && !is_recording());
    let path = folder.path().join(format!("{}.tlm", std::process::id()));
    fs::File::open(path).unwrap()
}

/// Returns the domain and the name of a range or mark.
fn name(contents: &Contents, what: What) -> (&str, &str) {
    let text = |id| match id {
        NO_STRING => "",
        id => contents.strings.get(id),
    };
    match what {
        What::Range { domain, name, .. } | What::Mark { domain, name } => {
            (text(domain), text(name))
        }
        other => panic!("{other:?}"),
    }
}

fn text(text: &[u8]) -> RangeNames<'_> {
    RangeNames {
        domain: None,
        name: RangeName::Text(text),
    }
}

#[test]
fn a_record_begins_with_what_is_known_of_its_process() {
    let contents = record().read();
    let header = &contents.header;
    assert_eq!(header.pid, std::process::id());
    assert_eq!(header.ended, Some(Ended::Not));
    assert!(!header.anchors.is_empty());
    let names = contents
        .events
        .iter()
        .filter_map(|(_, event)| match event.what {
            What::CallName { row, name, .. } => {
                Some((usize::from(row), contents.strings.get(name)))
            }
            _ => None,
        });
    let expected = CALLS.iter().map(|row| row.call.name()).enumerate();
    assert!(names.eq(expected));
    assert_eq!(contents.facts(Info::Rule), ["nvtx:step"]);
    assert_eq!(contents.facts(Info::Python), ["3.12.1"]);
    assert_eq!(contents.facts(Info::Version), [env!("CARGO_PKG_VERSION")]);
    assert!(contents.facts(Info::RuleWhy).is_empty());
    assert!(contents.facts(Info::Refused).contains(&EARLY));
    for (key, value) in [(Info::Rank, 3), (Info::WorldSize, 8)] {
        let key = Some(key);
        let fact = What::Info { key, value };
        assert!(contents.events.iter().any(|(_, event)| event.what == fact));
    }
    assert_eq!(contents.facts(Info::RankSource), ["torch.distributed"]);
}

#[test]
fn warnings_are_in_the_record() {
    let record = record();
    keep_warning("a late warning");
    assert!(
        record
            .read()
            .facts(Info::Refused)
            .contains(&"a late warning")
    );
}

#[test]
fn calls_are_kept_while_a_window_is_open() {
    let record = record();
    let what = |stream| What::Call {
        row: 2,
        capturing: false,
        stream,
    };
    // `call_at_once` refuses some events, such as the last one of a block (a part of a chunk that has its own
    // checksum). So the test makes several attempts.
    let mut is_at_once = false;
    let mut attempts = (0..100).map(|_| {
        let thread = on_a_thread(|| {
            call(ticks(), ticks(), false, what(1));
            in_window(5, || {
                is_at_once = call_at_once(ticks(), ticks(), what(0xabcd));
                call(ticks(), ticks(), true, what(0));
                event(7, 9 << 32, What::GilWait);
            });
            call(ticks(), ticks(), false, what(2));
            event(8, 0, What::GilWait);
        });
        is_at_once.then_some(thread)
    });
    let thread = attempts.find_map(|thread| thread).expect("at once");
    let events = record.read().find_events(thread);
    let [open, good, bad, wait, close] = events.as_slice() else {
        panic!("{events:?}");
    };
    let edge = |edge| What::Window { edge, iteration: 5 };
    assert_eq!(
        [open.what, close.what],
        [edge(Edge::Open), edge(Edge::Close)]
    );
    assert_eq!((good.what, good.failed), (what(0xabcd), false));
    assert_eq!((bad.what, bad.failed), (what(0), true));
    assert_eq!((wait.start, wait.duration), (7, 9 << 32));
    assert!(open.start <= good.start && good.start <= bad.start && bad.start <= close.start);
}

#[test]
fn a_thread_has_its_name_in_the_record() {
    let record = record();
    let named = thread::Builder::new().name("a worker".to_owned());
    let thread = named.spawn(|| {
        late(&Event::new(1, 0, What::GilHold));
        ids::thread().cast_unsigned()
    });
    let thread = thread.unwrap().join().unwrap();
    let contents = record.read();
    let is_its = |(of, event): &&(u32, Event)| {
        let is_name = |id| contents.strings.get(id) == "a worker";
        *of == thread && matches!(event.what, What::ThreadName { name } if is_name(name))
    };
    assert_eq!(contents.events.iter().filter(is_its).count(), 1);
    assert_eq!(
        contents.find_events(thread),
        [Event::new(1, 0, What::GilHold)]
    );
}

#[test]
fn more_events_than_a_chunk_holds_go_into_the_next() {
    let record = record();
    let many = (40 * CHUNK_BYTES / EVENT_BYTES) as u64;
    let chunks = record.read().header.counter(Counter::Chunks);
    let thread = on_a_thread(|| {
        for n in 0..many {
            late(&Event::new(n, 0, What::Iteration { n, excluded: false }));
        }
    });
    let contents = record.read();
    let starts = contents
        .find_events(thread)
        .into_iter()
        .map(|event| event.start);
    assert!(starts.eq(0..many));
    assert!(contents.header.counter(Counter::Chunks) >= chunks + 40);
}

#[test]
fn strings_that_need_more_chunks_leave_errno_as_it_is() {
    let _record = record();
    on_a_thread(|| {
        let text = "x".repeat(1000);
        let writer = writers::take().unwrap();
        assert!(fs::File::open("/no/such/file").is_err());
        // This many strings need more space than is reserved in one go.
        for _ in 0..40 * CHUNK_BYTES / text.len() {
            let id = writers::strings::passing_id(|id| writer.push_string(id, &text));
            assert_ne!(id, NO_STRING);
        }
        assert_eq!(tllmprof_platform::errno::now(), libc::ENOENT);
    });
}

#[test]
fn room_is_asked_for_again_after_a_helper_that_was_fast() {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let _record = record();
    // The helper of this test reserves the space at once, on the calling thread. The library's own helper lets another
    // thread do it.
    set_helper(|| {
        ASKED.fetch_add(1, Ordering::Relaxed);
        make_room();
        true
    });
    let many = (40 * CHUNK_BYTES / EVENT_BYTES) as u64;
    on_a_thread(|| {
        (0..many).for_each(|n| late(&Event::new(n, 0, What::Iteration { n, excluded: false })))
    });
    assert!(ASKED.load(Ordering::Relaxed) > 1);
}

#[test]
fn ranges_are_written_when_they_are_popped() {
    let record = record();
    let (domain, registered) = (Label::new("library"), Label::new("registered"));
    let thread = on_a_thread(|| {
        in_window(5, || {
            ranges::pushed(0, text(b"outer"));
            ranges::pushed(0, text(b"inner \xff name"));
            ranges::pushed(
                8,
                RangeNames {
                    domain: Some(domain),
                    name: RangeName::Registered(registered),
                },
            );
            ranges::popped(0);
            ranges::popped(0);
            ranges::popped(0);
            ranges::popped(8);
            ranges::marked(text(&[b'x'; 2 * LONGEST]));
            let nameless = RangeNames {
                domain: None,
                name: RangeName::None,
            };
            ranges::marked(nameless);
        });
    });
    let contents = record.read();
    let events = contents.find_events(thread);
    let names = events[1..events.len() - 1].iter();
    let names: Vec<_> = names.map(|event| name(&contents, event.what)).collect();
    let long = "x".repeat(LONGEST);
    let expected = [
        ("", "inner ? name"),
        ("", "outer"),
        ("library", "registered"),
        ("", &long),
        ("", ""),
    ];
    assert_eq!(names, expected);
    let (inner, outer) = (&events[1], &events[2]);
    assert!(outer.start <= inner.start && inner.duration <= outer.duration && !outer.cut);
}

#[test]
fn a_started_range_may_end_on_another_thread() {
    let record = record();
    const ID: u64 = 0x5eed;
    window_opens(7, false);
    on_a_thread(|| ranges::started(ID, text(b"crossing")));
    let thread = on_a_thread(|| {
        ranges::finished(ID + 1);
        ranges::finished(ID);
        ranges::finished(ID);
    });
    window_closes(8);
    let contents = record.read();
    let events = contents.find_events(thread);
    let [range] = events.as_slice() else {
        panic!("{events:?}");
    };
    assert_eq!(name(&contents, range.what), ("", "crossing"));
    let kind = RangeKind::StartEnd;
    assert!(matches!(range.what, What::Range { kind: is, .. } if is == kind));
}

#[test]
fn a_range_that_outlives_its_window_is_cut_there_and_given_up_in_the_next() {
    let record = record();
    let thread = on_a_thread(|| {
        in_window(5, || {
            ranges::pushed(0, text(b"lost"));
            ranges::pushed(0, text(b"cut"));
        });
        ranges::popped(0);
        in_window(9, || ranges::popped(0));
    });
    let contents = record.read();
    let is_range = |event: &Event| matches!(event.what, What::Range { .. });
    let events = contents.find_events(thread);
    let ranges: Vec<_> = events.iter().copied().filter(is_range).collect();
    let [cut] = ranges.as_slice() else {
        panic!("{ranges:?}");
    };
    assert_eq!((name(&contents, cut.what), cut.cut), (("", "cut"), true));
    let closed = events.iter().find(|event| {
        let edge = Edge::Close;
        matches!(event.what, What::Window { edge: is, iteration: 5 } if is == edge)
    });
    assert!(cut.start + cut.duration <= closed.unwrap().start);
}

#[test]
fn spans_of_the_librarys_own_are_kept_by_the_window_that_they_began_in() {
    let record = record();
    let name = id_of("a function");
    let what = What::Function { name };
    let thread = on_a_thread(|| {
        let (window, since) = in_window(5, || {
            let (window, since) = (ranges::window(), ticks());
            ended(window, since, || what);
            ended(0, since, || unreachable!("it began outside"));
            (window, since)
        });
        ended(window, since, || what);
        in_window(6, || ended(window, since, || unreachable!("it is too old")));
    });
    let events = record.read().find_events(thread);
    let kept: Vec<_> = events.iter().filter(|event| event.what == what).collect();
    assert_eq!(
        kept.iter().map(|event| event.cut).collect::<Vec<_>>(),
        [false, true]
    );
}

#[test]
fn iterations_are_events_in_a_window_and_counted_outside() {
    let record = record();
    let before = record.read().header;
    let thread = on_a_thread(|| {
        iteration_begins(3, false);
        iteration_ends(true);
        iteration_begins(4, false);
        iteration_ends(false);
        in_window(5, || {
            iteration_begins(5, true);
            iteration_ends(true);
            iteration_ends(true);
            iteration_begins(6, false);
            iteration_ends(true);
        });
    });
    let contents = record.read();
    let after = &contents.header;
    let more = |counter| after.counter(counter) - before.counter(counter);
    assert_eq!((more(Counter::Iterations), more(Counter::Windows)), (3, 1));
    assert_ne!(before.outside, after.outside);
    let events = contents.find_events(thread);
    let iterations = events.iter().filter_map(|event| match event.what {
        What::Iteration { n, excluded } => Some((n, excluded)),
        _ => None,
    });
    assert_eq!(iterations.collect::<Vec<_>>(), [(5, true), (6, false)]);
}

#[test]
fn what_iterations_took_before_a_window_is_in_it() {
    let record = record();
    let before = record.read();
    for n in 0..5 {
        iteration_begins(n, false);
        iteration_ends(true);
    }
    write_before();
    let since = clock::ticks();
    in_window(5, write_before);
    iteration_begins(6, false);
    iteration_ends(true);
    let after = record.read();
    // The `OutsideBefore` events are searched for in the events of all threads. They need not be the last events,
    // because a reader may return chunks of other threads after them.
    let buckets = after
        .events
        .iter()
        .filter_map(|(_, event)| match event.what {
            What::OutsideBefore { bucket, iterations } if event.start >= since => {
                Some((bucket, iterations))
            }
            _ => None,
        });
    let then = Histogram::of_buckets(buckets);
    let all = &after.header.outside;
    assert_eq!(all.since(&then).count(), 1);
    assert_eq!(then.count(), before.header.outside.count() + 5);
}

#[test]
fn iterations_of_a_window_that_were_passed_over_count_as_dropped() {
    let record = record();
    let before = record.read().header;
    let thread = on_a_thread(|| {
        window_opens(5, false);
        iteration_begins(5, false);
        iteration_ends(true);
        // The library misses iterations 6, 7 and 9: it sees only that iteration 8 begins after iteration 5 has ended,
        // and that the window closes before iteration 10.
        iteration_begins(8, false);
        iteration_ends(true);
        window_closes(10);
    });
    let contents = record.read();
    let after = &contents.header;
    let more = |counter| after.counter(counter) - before.counter(counter);
    let events = contents.find_events(thread);
    let recorded = events
        .iter()
        .filter(|event| matches!(event.what, What::Iteration { .. }));
    assert_eq!(recorded.count(), 2);
    let counters = [
        Counter::Iterations,
        Counter::EventsDropped,
        Counter::IterationsPassed,
    ];
    assert_eq!(counters.map(more), [5, 3, 3]);
}

#[test]
fn calls_are_counted_inside_windows_and_outside() {
    let record = record();
    let of = |header: &Header| {
        let inside = header.counter(Counter::CallsInside(1));
        (header.counter(Counter::CallsOutside(1)), inside)
    };
    let (outside, inside) = of(&record.read().header);
    count_calls([10, 100].into_iter());
    in_window(5, || count_calls([10, 107].into_iter()));
    // A number of calls that is lower than the previous one adds nothing to the counter.
    count_calls([10, 105].into_iter());
    assert_eq!(of(&record.read().header), (outside + 100, inside + 7));
}

#[test]
fn time_between_iterations_is_not_counted_as_the_librarys_own() {
    const BETWEEN: Duration = Duration::from_millis(50);
    let record = record();
    let own = || record.read().header.counter(Counter::OwnTicks);
    let before = own();
    in_window(1, || {
        for n in 1..4 {
            iteration_ends(true);
            iteration_begins(n, false);
            iteration_ends(true);
            thread::sleep(BETWEEN);
        }
    });
    // The program slept twice between two iterations.
    let between = (2.0 * BETWEEN.as_nanos() as f64 * clock::ticks_per_ns()) as u64;
    let own = own() - before;
    assert!(own > 0 && own < between, "{own} of {between} ticks");
}

#[test]
fn events_of_threads_that_are_not_the_programs_cost_nothing() {
    let _record = record();
    let before = writers::costly_events();
    let write = |write: fn(&Event)| {
        on_a_thread(|| (0..9).for_each(|n| write(&Event::new(n, 0, What::GilHold))));
    };
    write(late_for_free);
    assert_eq!(writers::costly_events(), before);
    write(late);
    assert_eq!(writers::costly_events(), before + 9);
}

#[test]
fn counters_of_others_are_in_the_header() {
    let record = record();
    set(Counter::GilHandoffs, 40);
    add(Counter::GilHandoffs, 2);
    assert_eq!(record.read().header.counter(Counter::GilHandoffs), 42);
}

#[test]
fn events_of_a_writer_that_is_in_use_are_dropped_and_reported() {
    let record = record();
    // The events that other tests have dropped are added to the header's counter first. Otherwise this test would count
    // them.
    writers::count_dropped();
    let before = record.read().header.counter(Counter::EventsDropped);
    let thread = on_a_thread(|| {
        let writer = writers::take().unwrap();
        assert!(writers::take().is_none());
        late(&Event::new(1, 0, What::GilWait));
        assert_eq!(id_of("what a signal handler has"), NO_STRING);
        drop(writer);
        late(&Event::new(2, 0, What::GilHold));
        writers::count_dropped();
    });
    let contents = record.read();
    let events: Vec<_> = contents
        .find_events(thread)
        .iter()
        .map(|event| event.what)
        .collect();
    assert_eq!(events, [What::Dropped { events: 3 }, What::GilHold]);
    assert_eq!(contents.header.counter(Counter::EventsDropped), before + 3);
}

#[test]
fn a_writer_that_was_left_in_use_is_taken_after_many_refusals() {
    let record = record();
    let thread = on_a_thread(|| {
        core::mem::forget(writers::take());
        let refused = (0..).take_while(|_| writers::take().is_none()).count();
        assert!((100..10_000).contains(&refused), "{refused}");
        late(&Event::new(5, 0, What::GilHold));
    });
    let events = record.read().find_events(thread);
    assert!(events.contains(&Event::new(5, 0, What::GilHold)));
}

#[test]
fn a_text_has_one_number_and_is_written_once() {
    let record = record();
    let label = Label::new("said by all");
    let keep = Label::keep(|| "kept in the arena".bytes()).unwrap();
    let ids = [id_of("said by all"), label.id(), label.id(), keep.id()];
    assert_eq!(ids[..2], ids[1..3]);
    assert_ne!(ids[3], ids[0]);
    assert_ne!(ids[0], NO_STRING);
    on_a_thread(|| assert_eq!(id_of("said by all"), ids[0]));
    let mut times = 0;
    let reader = Reader::new(record.file.try_clone().unwrap()).unwrap();
    let read = reader.read(|entry| {
        times += u32::from(matches!(
            entry,
            Entry::String {
                bytes: b"said by all",
                ..
            }
        ));
    });
    assert!(read.is_ok());
    assert_eq!(times, 1);
    assert_eq!(record.read().strings.get(ids[3]), "kept in the arena");
}

#[test]
fn the_loads_of_experts_are_written_with_the_name_of_their_layer() {
    let record = record();
    let thread = on_a_thread(|| expert_loads(4, "layers.4.moe", [7, 0, 9].into_iter()));
    let contents = record.read();
    let events = contents.find_events(thread);
    let What::Info { key, value } = events[0].what else {
        panic!("{events:?}");
    };
    assert_eq!((key, value >> 32), (Some(Info::Router), 4));
    assert_eq!(contents.strings.get(value as u32), "layers.4.moe");
    let loads = events[1..].iter().map(|event| match event.what {
        What::ExpertLoad {
            layer: 4,
            expert,
            tokens,
        } => (expert, tokens),
        other => panic!("{other:?}"),
    });
    assert_eq!(loads.collect::<Vec<_>>(), [(0, 7), (1, 0), (2, 9)]);
}

/// Forks. The child process runs `act` and exits with status 0, or with 1 if `act` panics. Panics in the parent if the
/// child's status is not 0.
fn in_a_child(act: impl FnOnce()) {
    // SAFETY: only this thread runs in the child. Glibc's `fork` leaves the allocator usable there, and the
    // child ends with `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        // SAFETY: `_exit` takes no pointer. It ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(i32::from(ran.is_err())) };
    }
    let mut status = -1;
    // SAFETY: `waitpid` writes only the status to the local variable.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((ended, status), (child, 0));
}

#[test]
fn the_child_of_a_fork_has_a_record_of_its_own_which_ends() {
    lifecycle::register();
    let record = record();
    late(&Event::new(1, 0, What::GilWait));
    let before = record.read();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("child.tlm");
    in_a_child(|| {
        assert!(!is_on() && is_wanted());
        late(&Event::new(2, 0, What::GilHold));
        let settings = Settings::from_env(|name| {
            let is_trace = name == "TLLMPROF_TRACE";
            is_trace.then(|| path.clone().into())
        });
        let facts = SessionFacts {
            rank: None,
            python: None,
            rule: &"auto",
            why: Some(&"of its own"),
            engine: Some("vllm"),
            is_span: false,
        };
        begin(&settings.unwrap(), &facts);
        iteration_begins(0, false);
        window_opens(1, false);
        iteration_begins(1, false);
        ends(2);
        assert!(is_on() && !is_recording());
        finish(Ended::InOrder);
        assert!(!is_on());
        late(&Event::new(3, 0, What::GilHold));
    });
    let reader = Reader::open(&path).unwrap();
    assert_eq!(reader.header().ended, Some(Ended::InOrder));
    assert_eq!(reader.header().parent, std::process::id());
    assert_eq!(reader.header().counter(Counter::EventsDropped), 0);
    let mut ended = Vec::new();
    let read = reader.read(|entry| match entry {
        Entry::Event { event, .. } if !matches!(event.what, What::CallName { .. }) => {
            ended.push(event.what);
        }
        _ => {}
    });
    assert_eq!(read.unwrap(), tllmprof_record::Damage::default());
    assert!(ended.contains(&What::Iteration {
        n: 1,
        excluded: false
    }));
    assert!(!ended.contains(&What::GilHold) && !ended.contains(&What::GilWait));
    // Space of the file that was reserved but not used has been cut off.
    let size = fs::metadata(&path).unwrap().len();
    let chunks = reader.header().counter(Counter::Chunks);
    assert_eq!(
        size,
        tllmprof_record::chunk_offset(u32::try_from(chunks).unwrap())
    );
    let after = record.read();
    assert_eq!(after.events, before.events);
}

#[test]
fn a_window_in_which_no_iteration_ends_says_so() {
    let record = record();
    let thread = on_a_thread(|| {
        for (first, next) in [(0, 0), (5, 5), (5, 6)] {
            window_opens(first, false);
            iteration_begins(first, false);
            iteration_ends(first < next);
            window_closes(next);
        }
    });
    let contents = record.read();
    let events = contents.find_events(thread).into_iter();
    let closes = events.filter(|event| {
        let edge = Edge::Close;
        matches!(event.what, What::Window { edge: is, .. } if is == edge)
    });
    let cut: Vec<_> = closes.map(|event| event.cut).collect();
    assert_eq!(cut, [true, true, false]);
}
