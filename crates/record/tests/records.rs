//! Tests reading whole, cut and damaged records that the library's writer has made. A chunk is a piece of a record's
//! file that holds events.

mod common;

use common::{Random, Written, generate, read};
use tllmprof_record::builder::Builder;
use tllmprof_record::{
    Anchor, CHUNK_BYTES, CHUNK_HEADER_BYTES, ClockKind, Counter, EVENT_BYTES, Ended, Entry, Event,
    HEADER_BYTES, MAX_STRING, PAYLOAD_BYTES, Reader, RecordError, What,
};

#[test]
fn what_is_written_is_read() {
    for seed in 0..20 {
        let written = generate(&mut Random(seed), 20_000);
        let (found, damage) = read(&written.bytes).unwrap();
        assert!(damage.is_none(), "{damage}");
        assert_eq!(found.threads, written.threads);
        assert_eq!(found.strings, written.strings);
    }
}

#[test]
fn the_header_says_who_wrote_it() {
    let mut builder = Builder::new(4711, ClockKind::Counter);
    builder.end(Ended::AtOnce);
    let header = builder.header();
    header.add(Counter::CallsInside(3), 7);
    header.add(Counter::CallsOutside(3), 1);
    header.set(Counter::Windows, 2);
    for value in [5, 50, 500] {
        header.outside().add(value);
    }
    for order in 0..1000 {
        header.anchor(Anchor {
            ticks: order,
            monotonic_ns: 2 * order,
            unix_ns: 3 * order,
        });
    }
    let bytes = builder.bytes();
    let reader = Reader::new(&bytes[..]).unwrap();
    let read = reader.header();
    assert_eq!((read.pid, read.parent), (4711, 1));
    assert_eq!(
        (read.clock, read.ended),
        (ClockKind::Counter, Some(Ended::AtOnce))
    );
    assert_eq!(read.counter(Counter::CallsInside(3)), 7);
    assert_eq!(read.counter(Counter::CallsOutside(3)), 1);
    assert_eq!(read.counter(Counter::Windows), 2);
    assert_eq!(read.counter(Counter::Iterations), 0);
    assert_eq!((read.outside.count(), read.outside.max()), (3, 500));
    // The header has kept the first 32 anchors and the latest 32.
    let ticks: Vec<_> = read.anchors.iter().map(|anchor| anchor.ticks).collect();
    let expected: Vec<_> = (0..32).chain(968..1000).collect();
    assert_eq!(ticks, expected);
}

#[test]
fn any_prefix_reads() {
    let written = generate(&mut Random(5), 9_000);
    let whole = &written.bytes;
    let mut random = Random(6);
    let edges = [HEADER_BYTES, CHUNK_BYTES, 64, EVENT_BYTES, 1, 0];
    let lengths = (0..300)
        .map(|_| random.below(whole.len() as u64 + 1) as usize)
        .chain(
            edges
                .iter()
                .flat_map(|edge| (0..5).map(move |n| n * CHUNK_BYTES + edge)),
        );
    for length in lengths {
        let prefix = &whole[..length.min(whole.len())];
        match read(prefix) {
            Ok((found, damage)) => {
                assert_eq!(
                    (damage.chunks, damage.unknown, damage.bad),
                    (0, 0, 0),
                    "{length}"
                );
                let is_cut = prefix.len() < whole.len();
                assert_eq!(
                    damage.cut.is_some() || damage.missing > 0,
                    is_cut,
                    "{length}"
                );
                // Each thread's events must be events that this thread has written, in the same order and without
                // repetition.
                for (tid, events) in &found.threads {
                    assert!(is_part(events, &written.threads[tid]), "{length}: {tid}");
                }
                // If the remaining part of the file has at least one complete block of 64 events, some of the contents
                // must be read.
                let events = prefix
                    .len()
                    .saturating_sub(HEADER_BYTES + CHUNK_HEADER_BYTES);
                assert!(!found.is_empty() || events < 64 * EVENT_BYTES, "{length}");
            }
            Err(RecordError::Empty(0)) => assert_eq!(length, 0),
            Err(RecordError::Cut(bytes)) => assert!(bytes == length as u64 && length < 72),
            Err(error) => panic!("{length}: {error}"),
        }
    }
}

/// Returns true if `part` consists of events of `whole` in the same order.
fn is_part(part: &[Event], whole: &[Event]) -> bool {
    let mut whole = whole.iter();
    part.iter().all(|event| whole.any(|other| other == event))
}

#[test]
fn damaged_bytes_never_panic() {
    let Written { bytes, .. } = generate(&mut Random(9), 6_000);
    let mut random = Random(10);
    for _ in 0..400 {
        let mut damaged = bytes.clone();
        for _ in 0..=random.below(200) {
            // Half of the damage goes to the headers, which are only a small part of a record.
            let block = random.below(damaged.len() as u64 / CHUNK_BYTES as u64) as usize;
            let reach = if random.below(2) == 0 {
                128
            } else {
                CHUNK_BYTES as u64
            };
            let at = block * CHUNK_BYTES + random.below(reach) as usize;
            damaged[at] = random.next() as u8;
        }
        let mut entries = 0;
        let mut count = |entry: Entry<'_>| {
            entries += 1;
            if let Entry::String { bytes, .. } = entry {
                assert!(bytes.len() <= MAX_STRING);
            }
        };
        if let Ok(reader) = Reader::new(&damaged[..]) {
            let _ = reader.read(&mut count).unwrap();
        }
        assert!(entries <= damaged.len() / EVENT_BYTES);
    }
}

#[test]
fn a_damaged_chunk_costs_no_other() {
    const FULL: u64 = (PAYLOAD_BYTES / EVENT_BYTES) as u64;
    let mut builder = Builder::new(1, ClockKind::Monotonic);
    for n in 0..3 * FULL {
        builder.push(1, &Event::new(n, 0, What::Iteration { n, excluded: false }));
    }
    let mut bytes = builder.bytes();
    bytes[HEADER_BYTES + CHUNK_BYTES] = b'X';
    let (found, damage) = read(&bytes).unwrap();
    assert_eq!(damage.chunks, 1);
    assert_eq!(found.threads[&1].len() as u64, 2 * FULL);
    // Copies a chunk over another one, so that a chunk has the wrong index.
    let (from, to) = (HEADER_BYTES, HEADER_BYTES + CHUNK_BYTES);
    bytes.copy_within(from..from + CHUNK_BYTES, to);
    assert_eq!(read(&bytes).unwrap().1.chunks, 1);
    // Makes a chunk claim more bytes than it can hold. Its whole blocks must still be read.
    bytes[HEADER_BYTES + 8..HEADER_BYTES + 12].fill(0xff);
    let (found, damage) = read(&bytes).unwrap();
    assert_eq!(damage.chunks, 2);
    assert_eq!(found.threads[&1].len() as u64, FULL + FULL / 64 * 64);
}

#[test]
fn an_event_that_was_changed_costs_those_behind_it_in_its_chunk() {
    let mut builder = Builder::new(1, ClockKind::Monotonic);
    for n in 0..1000 {
        builder.push(1, &Event::new(n, 0, What::Iteration { n, excluded: false }));
    }
    let at = HEADER_BYTES + CHUNK_HEADER_BYTES;
    for (place, expected) in [(0, 0), (63, 0), (64, 64), (300, 256), (999, 960)] {
        let mut bytes = builder.bytes();
        bytes[at + place * EVENT_BYTES + 17] ^= 1;
        let (found, damage) = read(&bytes).unwrap();
        assert_eq!((damage.chunks, damage.left_out), (1, 1000 - expected));
        let events = found.threads.get(&1).map_or(0, Vec::len) as u64;
        assert_eq!(events, expected, "{place}");
    }
}

/// Returns a record in the earlier format without checks (checksums), with these events in its only chunk.
fn unchecked(rows: &[[u8; EVENT_BYTES]]) -> Vec<u8> {
    let mut bytes = Builder::new(1, ClockKind::Monotonic).bytes();
    bytes[8] = 1;
    bytes[40..].fill(0);
    let used = (rows.len() * EVENT_BYTES) as u32;
    for word in [u32::from_le_bytes(*b"TLCK"), 0, 1, used] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.resize(HEADER_BYTES + 64, 0);
    bytes.extend_from_slice(rows.as_flattened());
    bytes.resize(HEADER_BYTES + CHUNK_BYTES, 0);
    bytes
}

fn iterations(many: u64) -> Vec<[u8; EVENT_BYTES]> {
    let events = (0..many).map(|n| Event::new(n, 0, What::Iteration { n, excluded: false }));
    events.map(|event| event.encode()).collect()
}

#[test]
fn what_is_unknown_is_skipped_and_counted() {
    let mut rows = iterations(10);
    rows[3][12] = 250;
    let (found, damage) = read(&unchecked(&rows)).unwrap();
    assert_eq!(damage.unknown, 1);
    assert_eq!(found.threads[&1].len(), 9);
}

#[test]
fn a_string_with_a_damaged_length_costs_no_event() {
    for bytes in [0x1001, 0xffff] {
        let mut rows = vec![Event::new(0, 0, What::String { id: 1, bytes }).encode()];
        rows.extend(iterations(1000));
        let (found, damage) = read(&unchecked(&rows)).unwrap();
        assert_eq!(damage.bad, 1);
        assert!(found.strings.is_empty());
        assert_eq!(found.threads[&1].len(), 1000);
    }
}

#[test]
fn what_is_no_record_is_refused() {
    assert!(matches!(read(b"TLLMPROX"), Err(RecordError::NoRecord)));
    assert!(matches!(read(&[0; 200_000]), Err(RecordError::NoRecord)));
    assert!(matches!(
        read(b"SQLite format 3\0"),
        Err(RecordError::NoRecord)
    ));
    let mut bytes = Builder::new(1, ClockKind::Monotonic).bytes();
    bytes[8] = 3;
    assert!(matches!(read(&bytes), Err(RecordError::Version(3))));
    bytes[8] = 2;
    bytes[16] = 1;
    assert!(matches!(read(&bytes), Err(RecordError::Damaged(_))));
}

/// Tests the files that a process may leave if it is killed while it creates its record. They consist of zeros, except
/// for the start of the header in some of them.
#[test]
fn what_was_only_begun_is_empty() {
    for length in [0, 65_536, 100_000, 131_072] {
        let zeros = vec![0; length];
        let error = read(&zeros).unwrap_err();
        assert!(matches!(error, RecordError::Empty(bytes) if bytes == length as u64));
    }
    let mut begun = Builder::new(1, ClockKind::Monotonic).bytes();
    begun[..8].fill(0);
    begun[72..].fill(0);
    assert!(matches!(read(&begun), Err(RecordError::Empty(65_536))));
    begun[300] = 1;
    assert!(matches!(read(&begun), Err(RecordError::NoRecord)));
    // Simulates a process that was killed after it had written only the start of the header.
    let mut begun = Builder::new(1, ClockKind::Monotonic).bytes();
    begun[72..].fill(0);
    begun.resize(HEADER_BYTES + CHUNK_BYTES, 0);
    let (found, damage) = read(&begun).unwrap();
    assert!(found.is_empty() && damage.is_none(), "{damage}");
}

#[test]
fn one_byte_in_a_chunk_without_a_header_is_damage() {
    let record = Builder::new(1, ClockKind::Monotonic).bytes();
    for at in [0, 1, 255, 256, PAYLOAD_BYTES - 49, PAYLOAD_BYTES - 1] {
        let mut changed = record.clone();
        changed.resize(HEADER_BYTES + CHUNK_BYTES, 0);
        changed[HEADER_BYTES + CHUNK_HEADER_BYTES + at] = 1;
        let (found, damage) = read(&changed).unwrap();
        assert!(found.is_empty() && damage.chunks == 1, "{at}: {damage}");
    }
}

/// Tests a record that is followed by zeros without end, like a huge sparse file. Reading must stop at some point.
#[test]
fn an_endless_file_is_left() {
    struct Endless(Vec<u8>);
    impl tllmprof_record::Source for Endless {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
            buffer.fill(0);
            (&self.0[..]).read_at(buffer, offset)?;
            Ok(buffer.len())
        }
    }
    let mut builder = Builder::new(1, ClockKind::Monotonic);
    builder.push(1, &Event::new(1, 1, What::GilHold));
    let reader = Reader::new(Endless(builder.bytes())).unwrap();
    let mut events = 0;
    assert!(reader.read(|_| events += 1).unwrap().is_none());
    assert_eq!(events, 1);
}
