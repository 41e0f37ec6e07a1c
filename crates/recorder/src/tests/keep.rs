//! A record that keeps the latest windows alone: in a child of a fork, which has a record of its own.

use std::path::Path;

use super::*;

/// Bytes that the record may have: 15 chunks.
const KEEP: &str = "1M";
/// More events than a record has room for.
const MANY: u64 = 16 * (CHUNK_BYTES / EVENT_BYTES) as u64;

/// What is in the record of a child in which `act` runs.
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
    let facts = Facts {
        rank: None,
        python: None,
        rule: &"auto",
        why: None,
        engine: None,
    };
    begin(&settings, &facts);
    assert!(is_on());
}

/// Writes so many events, whether or not there is a record still.
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
        write(MANY / 2);
        window_closes(2);
        window_opens(3, false);
        window_closes(4);
        ends(5);
        finish(Ended::InOrder);
        // It saw that there is a record before it was interrupted.
        write(MANY);
    });
    assert_eq!(contents.header.ended, Some(Ended::InOrder));
    assert_eq!(contents.header.counter(Counter::WindowsDropped), 0);
}

#[test]
fn a_text_in_a_chunk_with_the_loads_of_experts_stays() {
    const NAME: &str = "a name of the first window";
    let contents = of_a_child(|| {
        window_opens(1, false);
        // So that the text is in the thread's own chunk.
        writers::while_lasting_is_held(|| assert_ne!(id_of(NAME), NO_STRING));
        expert_loads(4, "layers.4.moe", [7].into_iter());
        for first in 1..4 {
            write(MANY / 2);
            window_closes(2 * first);
            window_opens(2 * first + 1, false);
        }
    });
    assert!(contents.header.counter(Counter::WindowsDropped) > 0);
    let texts = contents.strings;
    assert!((1..1000).any(|id| texts.get(id) == NAME));
}
