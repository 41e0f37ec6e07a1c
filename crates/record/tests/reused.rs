//! Tests records in which chunks are overwritten, to keep only the latest iterations outside windows, or only the
//! latest windows. A window is a period in which events are recorded in detail. A chunk is a piece of the record's
//! file.

mod common;

use std::ptr::NonNull;

use common::read;
use tllmprof_record::builder::Builder;
use tllmprof_record::{
    Anchor, CHUNK_BYTES, Chunk, ClockKind, Counter, Edge, Entry, Event, EventWriter, Reader, What,
};

fn iteration(n: u64) -> Event {
    Event::new(n * 100, 90, What::Iteration { n, excluded: false })
}

fn edge(ticks: u64, edge: Edge, iteration: u64) -> Event {
    Event::new(ticks, 0, What::Window { edge, iteration })
}

/// Reads a record. Returns the starts of its iterations in the order in which the reader returns them, and the number
/// of strings.
fn given(bytes: &[u8]) -> (Vec<u64>, usize) {
    let (mut starts, mut strings) = (Vec::new(), 0);
    let damage = Reader::new(bytes).unwrap().read(|entry| match entry {
        Entry::Event { event, .. } if matches!(event.what, What::Iteration { .. }) => {
            starts.push(event.start);
        }
        Entry::Event { .. } => {}
        Entry::String { .. } => strings += 1,
    });
    assert!(damage.unwrap().is_none());
    (starts, strings)
}

/// Returns a record with iterations in three chunks, each of another thread. The first chunk in the file has the
/// latest iterations, as if it had been overwritten. `steps` is the number of iterations outside windows that the
/// record keeps; 0 if it keeps none. `edges` are the openings and closings of windows.
fn kept(steps: u64, edges: &[Event]) -> Vec<u8> {
    let mut builder = Builder::new(1, ClockKind::Monotonic);
    builder.header().set(Counter::Flight, steps);
    for (chunk, of) in [(1, 8..10), (2, 2..5), (3, 5..8)] {
        for n in of {
            builder.push(chunk, &iteration(n));
        }
    }
    builder.string(3, "a name");
    for event in edges {
        builder.push(4, event);
    }
    builder.bytes()
}

#[test]
fn events_come_in_their_order_and_those_that_are_not_kept_any_more_do_not() {
    let open = [edge(500, Edge::Open, 5)];
    assert_eq!(given(&kept(5, &open)), (vec![500, 600, 700, 800, 900], 1));
    // This record has two windows: an earlier one, and the window of the kept iterations. Only iterations inside these
    // windows must be read.
    let windows = [
        edge(300, Edge::Open, 3),
        edge(395, Edge::Close, 3),
        edge(800, Edge::Open, 8),
        edge(895, Edge::Close, 8),
    ];
    assert_eq!(given(&kept(5, &windows)).0, [300, 800]);
    assert_eq!(given(&kept(5, &[])).0, []);
    // A record that keeps no iterations outside windows counts as one without overwritten chunks. So all its iterations
    // are read, in the order of the file.
    let all = [800, 900, 200, 300, 400, 500, 600, 700];
    assert_eq!(given(&kept(0, &open)).0, all);
}

/// Tests a record whose first window of three was dropped, because the third window has overwritten the chunk with
/// the first window's beginning.
#[test]
fn what_is_left_of_windows_that_are_dropped_is_not_given() {
    let given_where = |dropped_until: u64| {
        let mut builder = Builder::new(1, ClockKind::Monotonic);
        builder.header().set(Counter::WindowsDropped, 1);
        builder.header().set(Counter::DroppedUntil, dropped_until);
        let gc = |start, duration| {
            let (generation, collected) = (2, 0);
            Event::new(
                start,
                duration,
                What::Gc {
                    generation,
                    collected,
                },
            )
        };
        builder.string(0, "a name");
        builder.push(1, &edge(600, Edge::Open, 6));
        builder.push(1, &iteration(6));
        builder.push(2, &iteration(2));
        builder.push(2, &edge(295, Edge::Close, 2));
        builder.push(2, &gc(296, 3));
        builder.push(2, &gc(297, 10));
        builder.push(2, &edge(300, Edge::Open, 3));
        builder.push(2, &iteration(3));
        builder.push(2, &edge(395, Edge::Close, 3));
        let mut kept = Vec::new();
        let bytes = builder.bytes();
        let damage = Reader::new(&bytes[..]).unwrap().read(|entry| {
            if let Entry::Event { event, .. } = entry {
                kept.push(event.start);
            }
        });
        assert!(damage.unwrap().is_none());
        kept
    };
    // The garbage collection from 297 to 307 ends in a kept window, so it belongs to that window.
    assert_eq!(given_where(280), [297, 300, 300, 395, 600, 600]);
    assert_eq!(given_where(300), [600, 600]);
    // No window has opened after tick 700, so no window is kept and no iteration is returned.
    assert_eq!(given_where(700), []);
    assert_eq!(given_where(0).len(), 9);
}

/// Tests a process that drops its first window hours after it began. The counter in the last snapshot then differs
/// greatly from the current one.
#[test]
fn windows_that_were_dropped_since_the_last_snapshot_are_dropped() {
    const HOURS: u64 = 1 << 50;
    let until = |anchored: u64, dropped_until: u64| {
        let builder = Builder::new(1, ClockKind::Counter);
        builder.header().anchor(Anchor {
            ticks: anchored,
            monotonic_ns: 5,
            unix_ns: 5,
        });
        let mut bytes = builder.bytes();
        // Changes the current counter in the header, not its copies in the snapshots.
        let at = 2304 + 8 * Counter::DroppedUntil.index();
        bytes[at..at + 8].copy_from_slice(&dropped_until.to_le_bytes());
        let reader = Reader::new(&bytes[..]).unwrap();
        reader.header().counter(Counter::DroppedUntil)
    };
    assert_eq!(until(HOURS, HOURS - 7), HOURS - 7);
    assert_eq!(until(HOURS, HOURS + 7), HOURS + 7);
    // This value of the counter is too far after the latest anchor, so it is ignored, and the snapshot's value is used.
    assert_eq!(until(HOURS, 3 * HOURS), 0);
}

#[test]
fn a_chunk_that_is_used_again_has_what_was_written_since() {
    let mut builder = Builder::new(1, ClockKind::Monotonic);
    for n in 0..100 {
        builder.push(7, &iteration(n));
    }
    let bytes = builder.bytes();
    let id = builder.header().id();
    let at = bytes.len() - CHUNK_BYTES;
    for thread in [7, 9] {
        let mut words: Vec<u64> = bytes[at..]
            .as_chunks()
            .0
            .iter()
            .map(|word| u64::from_ne_bytes(*word))
            .collect();
        // SAFETY: the memory has CHUNK_BYTES, is aligned to 8, outlives the writer and is used only by it.
        let chunk = unsafe { Chunk::at(NonNull::new(words.as_mut_ptr()).unwrap().cast()) };
        let mut writer = EventWriter::again(chunk, id, 0, thread);
        assert!(writer.push(&iteration(500)));
        let chunk = words.iter().flat_map(|word| word.to_ne_bytes());
        let again: Vec<u8> = bytes[..at].iter().copied().chain(chunk).collect();
        let (found, damage) = read(&again).unwrap();
        assert!(damage.is_none(), "{damage}");
        assert_eq!(found.threads[&thread], [iteration(500)]);
        assert_eq!(found.threads.len(), 1);
    }
}
