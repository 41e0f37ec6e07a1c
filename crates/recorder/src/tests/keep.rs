//! Tests of a record that keeps only the latest windows. Each runs in the child of a fork, which has a record of its
//! own. A window is a period in which events are recorded.

use std::path::Path;

use tllmprof_record::StringId;

use super::*;
use crate::keep::while_locked;

/// The size limit of the record, which leaves room for 15 chunks.
const KEEP: &str = "1M";
/// A number of events that exceeds the size limit of the record in these tests.
const TOO_MANY_EVENTS: u64 = 16 * (CHUNK_BYTES / EVENT_BYTES) as u64;

/// Runs `act` in a child process, and returns the contents of the child's record.
fn of_a_child(act: impl FnOnce()) -> Contents {
    lifecycle::register();
    let record = record();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("child.tlm");
    in_a_child(|| {
        begin_kept(&path);
        act();
    });
    drop(record);
    Contents::read(&fs::File::open(&path).unwrap())
}

fn begin_kept(path: &Path) {
    let settings = Settings::from_env(|name| match name {
        "TLLMPROF_TRACE" => Some(path.into()),
        "TLLMPROF_KEEP" => Some(KEEP.into()),
        _ => None,
    });
    let settings = settings.unwrap();
    start(&settings);
    let facts = SessionFacts {
        rank: None,
        python: None,
        rule: &"auto",
        why: None,
        engine: None,
        is_span: false,
    };
    begin(&settings, &facts);
    assert!(is_on());
}

/// Writes `events` events, even if the record has ended.
fn write(events: u64) {
    for n in 0..events {
        writers::write(&Event::new(ticks(), 0, What::GilForced));
        core::hint::black_box(n);
    }
}

#[test]
fn a_thread_that_writes_behind_the_end_drops_no_window() {
    let contents = of_a_child(|| {
        window_opens(1, false);
        write(TOO_MANY_EVENTS / 2);
        window_closes(2);
        window_opens(3, false);
        window_closes(4);
        ends(5);
        finish(Ended::InOrder);
        // Simulates a thread that sees that there is a record, is interrupted, and writes its
        // events only after the record has ended.
        write(TOO_MANY_EVENTS);
    });
    assert_eq!(contents.header.ended, Some(Ended::InOrder));
    assert_eq!(contents.header.counter(Counter::WindowsDropped), 0);
}

/// Returns the number of lost events, not counting the events of skipped iterations.
fn lost(header: &Header) -> u64 {
    header.counter(Counter::EventsDropped) - header.counter(Counter::IterationsPassed)
}

/// Tests names that occur in only one window, like those of requests: they must be dropped together with that window.
#[test]
fn names_go_with_their_windows_and_those_that_are_kept_have_all() {
    const WINDOWS: u64 = 40;
    const NAMES: u64 = 2000;
    let name = |n: u64| format!("request {n} of many that a server serves from morning to night");
    let contents = of_a_child(|| {
        for window in 0..WINDOWS {
            window_opens(window * 2, false);
            expert_loads(4, "layers.4.moe", [7].into_iter());
            for n in window * NAMES..(window + 1) * NAMES {
                let (first, again) = (id_of(&name(n)), id_of(&name(n)));
                assert_ne!(first, NO_STRING);
                assert_eq!(first, again);
                let what = What::Function { name: first };
                // The event ends now, as all events that a thread writes by itself.
                writers::write(&Event::new(ticks() - n, n, what));
            }
            window_closes(window * 2 + 1);
        }
    });
    let header = &contents.header;
    assert_eq!(header.counter(Counter::StringsDropped), 0);
    assert_eq!(lost(header), 0);
    let dropped = header.counter(Counter::WindowsDropped);
    assert!((WINDOWS / 2..WINDOWS).contains(&dropped), "{dropped}");
    let mut kept = Vec::new();
    for (_, event) in &contents.events {
        if let What::Function { name: id } = event.what {
            assert_eq!(contents.strings.get(id), name(event.duration));
            kept.push(event.duration);
        }
    }
    let runs = kept.chunk_by(|one, next| one + 1 == *next);
    let runs: Vec<_> = runs.map(|run| run[0]..run[run.len() - 1] + 1).collect();
    let wanted = dropped * NAMES..WINDOWS * NAMES;
    assert_eq!(runs, std::slice::from_ref(&wanted));
}

#[test]
fn facts_that_never_end_have_a_share_and_go_with_windows_then() {
    const WINDOWS: u64 = 60;
    let contents = of_a_child(|| {
        facts::write_text(Info::Rule, "the rule of the first day");
        for window in 0..WINDOWS {
            window_opens(window * 2, false);
            for n in 0..1000 {
                facts::write_text(Info::Refused, &format!("warning {n} of window {window}"));
            }
            window_closes(window * 2 + 1);
        }
    });
    assert!(contents.header.counter(Counter::WindowsDropped) > 0);
    assert_eq!(lost(&contents.header), 0);
    assert_eq!(
        contents.facts(Info::Rule).last(),
        Some(&"the rule of the first day")
    );
    let said = contents.facts(Info::Refused);
    assert!(!said.contains(&"?"));
    let of_the_last =
        (0..1000).all(|n| said.contains(&&*format!("warning {n} of window {}", WINDOWS - 1)));
    assert!(of_the_last);
}

/// Writes more lasting texts (texts that stay as long as the record) than there is room for. The texts that
/// do not fit must not use up the entries in the hash table of texts that the windows' texts need.
#[test]
fn texts_that_find_no_room_to_stay_take_no_places_of_those_of_windows() {
    let contents = of_a_child(|| {
        for n in 0..200_000 {
            let _ =
                writers::strings::only_lasting_id_of(&format!("text {n} of those that never end"));
        }
        window_opens(0, false);
        for n in 0..2000 {
            let name = format!("name {n}");
            assert_eq!(id_of(&name), id_of(&name));
        }
        window_closes(1);
    });
    assert_eq!(contents.header.counter(Counter::StringsDropped), 0);
}

/// Tests thread names that Python sets: a name is lasting while there is room for lasting texts, and later names are
/// dropped with their windows.
#[test]
fn what_python_calls_a_thread_stays_while_there_is_room_and_goes_with_its_window_then() {
    const WINDOWS: u64 = 60;
    const THREADS: u32 = 8000;
    let contents = of_a_child(|| {
        window_opens(0, false);
        assert_eq!(facts::thread_name(1, "engine"), lasting_era());
        let stays =
            |n: &u32| facts::thread_name(*n, &format!("Thread-{n} (serve)")) == lasting_era();
        let staying = (2..THREADS).filter(stays).count();
        assert!(
            (100..THREADS as usize - 100).contains(&staying),
            "{staying}"
        );
        window_closes(1);
        for window in 1..WINDOWS {
            window_opens(window * 2, false);
            assert_eq!(
                facts::thread_name(THREADS, &format!("of window {window}")),
                era()
            );
            write(2000);
            window_closes(window * 2 + 1);
        }
    });
    let dropped = contents.header.counter(Counter::WindowsDropped);
    assert!(dropped > 1, "{dropped}");
    let name = |(_, event): &(u32, Event)| match event.what {
        What::Info {
            key: Some(Info::Thread),
            value,
        } => Some(contents.strings.get(value as StringId)),
        _ => None,
    };
    let names: Vec<_> = contents.events.iter().filter_map(name).collect();
    assert!(names.contains(&"engine") && !names.contains(&"?"));
    let last = (dropped..WINDOWS).map(|window| format!("of window {window}"));
    let of_windows = names.iter().filter(|name| name.starts_with("of window"));
    assert!(last.eq(of_windows.copied()));
}

/// Tests that chunks are reused even if they became full while another thread held the lock on the list of full
/// chunks. A thread may hold the lock for long if the kernel does not schedule the thread.
#[test]
fn a_chunk_that_is_filled_while_the_others_are_locked_is_used_again() {
    let contents = of_a_child(|| {
        for window in 0..200 {
            window_opens(window * 2, false);
            while_locked(|| write(TOO_MANY_EVENTS / 15));
            write(TOO_MANY_EVENTS / 30);
            window_closes(window * 2 + 1);
        }
    });
    assert!(contents.header.counter(Counter::WindowsDropped) > 150);
    let last = contents.events.iter().filter(|(_, event)| {
        let closes = |what| {
            matches!(
                what,
                What::Window {
                    edge: Edge::Close,
                    iteration: 398
                }
            )
        };
        closes(event.what)
    });
    assert_eq!(last.count(), 1);
}
