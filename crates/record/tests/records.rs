//! Records written by the writer that the library uses, whole, cut off and damaged.

mod common;

use common::{Random, Written, generate, read};
use tllmprof_record::builder::Builder;
use tllmprof_record::{
    Anchor, CHUNK_BYTES, ClockKind, Counter, EVENT_BYTES, Ended, Entry, Error, Event, HEADER_BYTES,
    MAX_STRING, Reader, What,
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
    let builder = Builder::new(4711, ClockKind::Counter);
    let header = builder.header();
    header.add(Counter::CallsInside(3), 7);
    header.add(Counter::CallsOutside(3), 1);
    header.set(Counter::Windows, 2);
    header.set_ended(Ended::AtOnce);
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
    // The first half stays, and the latest.
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
                assert_eq!((damage.chunks, damage.unknown), (0, 0), "{length}");
                // Each thread's events up to somewhere: no other, none twice.
                for (tid, events) in &found.threads {
                    assert!(is_part(events, &written.threads[tid]), "{length}: {tid}");
                }
                let whole_chunks = (prefix.len() / CHUNK_BYTES).saturating_sub(1);
                assert!(!found.is_empty() || whole_chunks == 0, "{length}");
            }
            Err(Error::NoRecord) => assert!(length < 8, "{length}"),
            Err(Error::Version(0)) => assert!(length < 12, "{length}"),
            Err(Error::Damaged(_)) => assert!(length < 40, "{length}"),
            Err(error) => panic!("{length}: {error}"),
        }
    }
}

/// Whether `part` is `whole` without some of its events.
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
            // Headers are a small part of a record: half of the damage goes there.
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
    let mut builder = Builder::new(1, ClockKind::Monotonic);
    for n in 0..3 * 2728 {
        builder.push(1, &Event::new(n, 0, What::Iteration { n }));
    }
    let mut bytes = builder.bytes();
    bytes[HEADER_BYTES + CHUNK_BYTES] = b'X';
    let (found, damage) = read(&bytes).unwrap();
    assert_eq!(damage.chunks, 1);
    assert_eq!(found.threads[&1].len(), 2 * 2728);
    // A chunk that lies in another's place.
    let (from, to) = (HEADER_BYTES, HEADER_BYTES + CHUNK_BYTES);
    bytes.copy_within(from..from + CHUNK_BYTES, to);
    assert_eq!(read(&bytes).unwrap().1.chunks, 1);
    // One that claims more than it can hold.
    bytes[HEADER_BYTES + 12..HEADER_BYTES + 16].fill(0xff);
    let (found, damage) = read(&bytes).unwrap();
    assert_eq!((damage.chunks, damage.overfull), (1, 1));
    assert_eq!(found.threads[&1].len(), 2 * 2728);
}

#[test]
fn what_is_unknown_is_skipped_and_counted() {
    let mut builder = Builder::new(1, ClockKind::Monotonic);
    for n in 0..10 {
        builder.push(1, &Event::new(n, 0, What::Iteration { n }));
    }
    let mut bytes = builder.bytes();
    bytes[HEADER_BYTES + 64 + 3 * EVENT_BYTES + 12] = 250;
    let (found, damage) = read(&bytes).unwrap();
    assert_eq!(damage.unknown, 1);
    assert_eq!(found.threads[&1].len(), 9);
}

#[test]
fn a_string_with_a_damaged_length_costs_no_event() {
    for length in [[0x01, 0x10], [0xff, 0xff]] {
        let mut builder = Builder::new(1, ClockKind::Monotonic);
        builder.string(1, "text");
        for n in 0..1000 {
            builder.push(1, &Event::new(n, 0, What::Iteration { n }));
        }
        let mut bytes = builder.bytes();
        bytes[HEADER_BYTES + 64 + 14..HEADER_BYTES + 64 + 16].copy_from_slice(&length);
        let (found, damage) = read(&bytes).unwrap();
        assert_eq!(damage.bad, 1);
        assert!(found.strings.is_empty());
        assert_eq!(found.threads[&1].len(), 1000);
    }
}

#[test]
fn what_is_no_record_is_refused() {
    assert!(matches!(read(b""), Err(Error::NoRecord)));
    assert!(matches!(read(&[0; 100_000]), Err(Error::NoRecord)));
    assert!(matches!(read(b"SQLite format 3\0"), Err(Error::NoRecord)));
    let mut bytes = Builder::new(1, ClockKind::Monotonic).bytes();
    bytes[8] = 2;
    assert!(matches!(read(&bytes), Err(Error::Version(2))));
    bytes[8] = 1;
    bytes[16] = 1;
    assert!(matches!(read(&bytes), Err(Error::Damaged(_))));
}

/// Zeros without an end, as a sparse file may claim.
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
