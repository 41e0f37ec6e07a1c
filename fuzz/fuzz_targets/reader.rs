//! A damaged record gives an error or what is left of it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tllmprof_fuzz::unpack;
use tllmprof_record::{Clock, EVENT_BYTES, Entry, Reader, Strings};

fuzz_target!(|packed: &[u8]| {
    let record = unpack(packed);
    let Ok(reader) = Reader::new(&record[..]) else {
        return;
    };
    let header = reader.header();
    let clock = Clock::new(header.clock, &header.anchors);
    let mut strings = Strings::default();
    let mut entries = 0;
    let mut latest = 0;
    let damage = reader.read(|entry| {
        entries += 1;
        match entry {
            Entry::String { id, bytes } => strings.add(id, bytes),
            Entry::Event { event, .. } => {
                // Encoding takes no event for another.
                let again = tllmprof_record::Event::decode(&event.encode());
                assert_eq!(again.map(|event| event.duration), Ok(event.duration));
                latest = latest.max(event.start);
            }
        }
    });
    assert!(damage.is_ok(), "a slice can be read");
    assert!(entries <= record.len() / EVENT_BYTES);
    assert!(
        clock.ns(latest / 2) <= clock.ns(latest),
        "the clock goes forward"
    );
    let _ = (strings.get(1), header.outside.quantile(0.5));
});
