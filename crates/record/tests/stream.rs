//! Tests records that are written to a file as they grow.

mod common;

use std::fs::{self, File};

use common::read;
use tllmprof_record::{
    Anchor, ClockKind, Ended, Entry, Event, MAX_STRING, Metric, Reader, StreamWriter, What,
};

fn event(n: u64) -> Event {
    let what = What::GpuMetric {
        device: (n % 8) as u8,
        metric: Some(Metric::Power),
        thousandths: n,
    };
    Event::new(1000 * n, 1000, what)
}

#[test]
fn what_was_flushed_is_read() {
    let name = format!("tllmprof-stream-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let file = File::create(&path).unwrap();
    let mut writer = StreamWriter::begin(file, 7, 3, ClockKind::Monotonic).unwrap();
    let mut events = Vec::new();
    let mut strings = Vec::new();
    // The events and strings fill several chunks. Some strings do not fit into the rest of a chunk.
    for round in 0..60_u64 {
        for n in 0..=round * 7 {
            let event = event(1000 * round + n);
            writer.push(&event).unwrap();
            events.push(event);
        }
        let text = "x".repeat(MAX_STRING - round as usize);
        strings.push((writer.string(&text).unwrap(), text));
        let anchor = Anchor {
            ticks: round,
            monotonic_ns: round,
            unix_ns: 2 * round,
        };
        writer.header().anchor(anchor);
        writer.flush().unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, writer.length());
        let (found, damage) = read(&bytes).unwrap();
        assert!(damage.is_none(), "{damage}");
        assert_eq!(found.threads[&7], events);
        assert_eq!(
            found.strings.into_iter().collect::<Vec<_>>(),
            strings,
            "{round}"
        );
    }
    let bytes = fs::read(&path).unwrap();
    assert!(bytes.len() > 3 * 65536);
    writer.push(&event(0)).unwrap();
    assert_eq!(
        fs::read(&path).unwrap(),
        bytes,
        "nothing before it is asked for"
    );
    writer.finish(Ended::InOrder).unwrap();
    let reader = Reader::open(&path).unwrap();
    let header = reader.header();
    assert_eq!((header.pid, header.parent), (7, 3));
    assert_eq!(header.ended, Some(Ended::InOrder));
    assert_eq!(header.anchors.last().unwrap().unix_ns, 118);
    fs::remove_file(&path).unwrap();
}

#[test]
fn any_prefix_reads() {
    let name = format!("tllmprof-prefix-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let file = File::create(&path).unwrap();
    let mut writer = StreamWriter::begin(file, 7, 3, ClockKind::Monotonic).unwrap();
    for n in 0..4000 {
        writer.push(&event(n)).unwrap();
    }
    writer.flush().unwrap();
    let bytes = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    for length in (0..bytes.len()).step_by(977).chain([bytes.len()]) {
        let Ok(reader) = Reader::new(&bytes[..length]) else {
            assert!(length < 72, "{length}");
            continue;
        };
        let mut next = 0;
        let damage = reader
            .read(|entry| {
                let Entry::Event { event: found, .. } = entry else {
                    panic!("{entry:?}");
                };
                assert_eq!(found, event(next));
                next += 1;
            })
            .unwrap();
        assert_eq!(
            length == bytes.len(),
            damage.is_none(),
            "{length}: {damage}"
        );
        assert!(length < bytes.len() || next == 4000);
    }
}
