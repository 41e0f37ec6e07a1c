//! Tests that a reader of a changed record either returns the original contents or reports damage.

mod common;

use common::{Random, Written, change, changes, generate};
use tllmprof_record::builder::Builder;
use tllmprof_record::{
    Anchor, ClockKind, Counter, Ended, Entry, Event, HEADER_BYTES, Header, Reader, What,
};

/// The contents that a reader finds in a record, in a form that can be compared.
#[derive(PartialEq, Debug)]
struct Content {
    header: String,
    events: Vec<(u32, Event)>,
    strings: Vec<(u32, Vec<u8>)>,
}

/// Returns the contents of a record and two flags: the first is true if the record says that its process has ended, and
/// the second is true if there is no damage. Returns `None` if the record cannot be read.
fn content(bytes: &[u8]) -> Option<(Content, bool, bool)> {
    let reader = Reader::new(bytes).ok()?;
    let mut found = Content {
        header: header(reader.header()),
        events: Vec::new(),
        strings: Vec::new(),
    };
    let damage = reader.read(|entry| match entry {
        Entry::Event { thread, event } => found.events.push((thread, event)),
        Entry::String { id, bytes } => found.strings.push((id, bytes.to_vec())),
    });
    let has_ended = reader.header().ended != Some(Ended::Not);
    Some((found, has_ended, damage.unwrap().is_none()))
}

fn header(header: &Header) -> String {
    let Header {
        pid,
        parent,
        ended,
        clock,
        anchors,
        outside,
        ..
    } = header;
    let rows = (0..32).flat_map(|row| [Counter::CallsInside(row), Counter::CallsOutside(row)]);
    let others = [
        Counter::Iterations,
        Counter::EventsDropped,
        Counter::StringsDropped,
    ];
    let all = rows
        .chain(others)
        .chain([Counter::Chunks, Counter::OwnTicks]);
    let all = all.chain([
        Counter::GilHandoffs,
        Counter::GpuSpansLost,
        Counter::Windows,
    ]);
    let counters: Vec<_> = all.map(|counter| header.counter(counter)).collect();
    format!("{pid} {parent} {ended:?} {clock:?} {anchors:?} {counters:?} {outside:?}")
}

/// Returns a record with a filled header, several snapshots, and three chunks, of which only the first is full.
fn small(ended: Option<Ended>) -> Vec<u8> {
    let mut builder = Builder::new(7, ClockKind::Counter);
    builder.string(7, "a name");
    for n in 0..4000 {
        builder.push(
            7,
            &Event::new(1000 * n, 900, What::Iteration { n, excluded: false }),
        );
        builder.header().add(Counter::Iterations, 1);
        builder.header().outside().add(n);
        builder.header().add(Counter::CallsInside(2), n);
        if n % 1000 == 0 {
            builder.header().anchor(Anchor {
                ticks: 1000 * n,
                monotonic_ns: 500 * n,
                unix_ns: 500 * n + 7,
            });
            builder.header().snapshot();
        }
    }
    builder.push(9, &Event::new(1, 2, What::GilWait));
    if let Some(ended) = ended {
        builder.end(ended);
    }
    builder.bytes()
}

#[test]
fn a_record_that_was_changed_never_passes_for_whole() {
    let Written { bytes, .. } = generate(&mut Random(1), 9_000);
    let mut random = Random(0x7ea5);
    let records = [
        bytes,
        small(Some(Ended::InOrder)),
        small(Some(Ended::AtOnce)),
    ];
    let mut noticed = 0;
    for bytes in &records {
        let (original, has_ended, is_whole) = content(bytes).unwrap();
        assert!(has_ended && is_whole);
        for _ in 0..changes() / records.len() as u64 {
            let (what, changed) = change(&mut random, bytes);
            match content(&changed) {
                Some((found, true, true)) => assert!(found == original, "{what}"),
                Some((_, false, true)) => {
                    panic!("{what}: its end is not seen, and nothing is wrong")
                }
                Some((_, _, false)) | None => noticed += 1,
            }
        }
    }
    assert!(noticed > changes() / 3, "{noticed}");
}

/// Tests that checksums also protect the events of a process that was killed. The counters in the header are not
/// compared, because a change of a counter since the last snapshot has no checksum.
#[test]
fn the_events_of_an_unfinished_record_are_those_that_were_written() {
    let bytes = small(None);
    let (original, has_ended, is_whole) = content(&bytes).unwrap();
    assert!(!has_ended && is_whole);
    let mut random = Random(0xdead);
    for _ in 0..changes() / 3 {
        let (what, changed) = change(&mut random, &bytes);
        if let Some((found, has_ended, true)) = content(&changed) {
            assert!(!has_ended, "{what}");
            assert!(found.events == original.events, "{what}");
            assert!(found.strings == original.strings, "{what}");
        }
    }
}

/// Tests that the events that are read from a damaged record are events of the original record. To save time, only
/// every 97th event is compared.
#[test]
fn what_is_left_is_what_was_written() {
    let bytes = small(Some(Ended::InOrder));
    let (original, ..) = content(&bytes).unwrap();
    let mut random = Random(0xbeef);
    for _ in 0..changes() / 10 {
        let (what, changed) = change(&mut random, &bytes);
        let Some((found, ..)) = content(&changed) else {
            continue;
        };
        // The damage may have moved blocks, so the order may differ, but each event must be one of the
        // original record's.
        let first = found.events.first().map_or(0, |(_, event)| event.start);
        let is_there = |event: &(u32, Event)| original.events.contains(event);
        assert!(
            found.events.len() <= original.events.len(),
            "{what}: {first}"
        );
        assert!(found.events.iter().step_by(97).all(is_there), "{what}");
    }
}

/// Simulates a process that is killed while it writes a snapshot into the header, after each byte that changes. A
/// reader must then find no damage, and the old or the new number of iterations.
#[test]
fn a_kill_between_two_words_of_a_snapshot_costs_nothing() {
    let mut builder = Builder::new(7, ClockKind::Counter);
    let first = builder.bytes();
    let mut begun = first.clone();
    begun[72..].fill(0);
    killed_between(begun, &first, &[0]);
    builder.push(7, &Event::new(1, 2, What::GilWait));
    builder.header().set(Counter::Iterations, 5);
    let before = builder.bytes();
    builder.header().set(Counter::Iterations, 6);
    killed_between(before, &builder.bytes(), &[5, 6]);
}

fn killed_between(before: Vec<u8>, after: &[u8], counts: &[u64]) {
    let differs: Vec<_> = (0..HEADER_BYTES)
        .filter(|at| before[*at] != after[*at])
        .collect();
    assert!(differs.len() > 9, "{differs:?}");
    let mut torn = before;
    for at in differs {
        torn[at] = after[at];
        let reader = Reader::new(&torn[..]).unwrap();
        let counted = reader.header().counter(Counter::Iterations);
        assert!(counts.contains(&counted), "{at}: {counted}");
        assert!(reader.read(|_| ()).unwrap().is_none(), "{at}");
    }
}

/// Tests that counters and durations that are impossibly large are ignored in the record of a killed process.
#[test]
fn impossible_figures_of_an_unfinished_record_are_left_out() {
    let mut bytes = small(None);
    let original = Reader::new(&bytes[..]).unwrap().header().clone();
    // The offsets in the header of two figures: the number of iterations, and the largest duration outside
    // windows.
    for at in [2304 + 64 * 8, 4352 + 16] {
        bytes[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        let reader = Reader::new(&bytes[..]).unwrap();
        assert_eq!(header(reader.header()), header(&original), "{at}");
    }
}

#[test]
fn chunks_of_another_record_are_none_of_this_one() {
    let mut bytes = small(Some(Ended::InOrder));
    let mut other = Builder::new(8, ClockKind::Counter);
    for n in 0..4000 {
        other.push(7, &Event::new(n, 0, What::Iteration { n, excluded: false }));
    }
    let block = 2 * HEADER_BYTES..3 * HEADER_BYTES;
    bytes[block.clone()].copy_from_slice(&other.bytes()[block]);
    let damage = Reader::new(&bytes[..]).unwrap().read(|_| ()).unwrap();
    assert_eq!(damage.chunks, 1);
}
