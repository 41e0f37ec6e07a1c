//! Corrects the checks (checksums) of a record that a fuzzer has changed. Otherwise the reader would reject the
//! record before the changed data reach the code under test.

use std::mem::offset_of;

use crate::check::{self, Words};
use crate::header::{Figures, HeaderBlock, Snapshot};
use crate::layout::{
    BLOCK_BYTES, CHUNK_BYTES, CHUNK_HEADER_BYTES, CHUNK_MAGIC, EVENT_BYTES, HEADER_BYTES,
    PAYLOAD_BYTES, VERSION,
};

/// The offset of the byte count in a chunk's header, in bytes.
const COMMITTED: usize = 8;
/// The offset of the thread in a chunk's header, in bytes.
const THREAD: usize = 16;
/// The offset of the blocks' checks (checksums) in a chunk's header, in bytes.
const BLOCK_CHECKS: usize = 24;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default())
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Recomputes the checks (checksums) in a record's header, in both snapshots and in all chunks. Does not change a
/// record whose format has another version than [`VERSION`], or one without a complete header block.
pub fn repair(record: &mut [u8]) {
    if record.len() < HEADER_BYTES || u32_at(record, offset_of!(HeaderBlock, version)) != VERSION {
        return;
    }
    let (header, chunks) = record.split_at_mut(HEADER_BYTES);
    let id = u64_at(header, offset_of!(HeaderBlock, id));
    repair_header(header, id);
    for chunk in chunks.chunks_exact_mut(CHUNK_BYTES) {
        if u32_at(chunk, 0) == CHUNK_MAGIC {
            repair_chunk(chunk, id);
        }
    }
}

fn repair_header(header: &mut [u8], id: u64) {
    let stays = HeaderBlock::STAYS.map(|place| u64::from(u32_at(header, place)));
    let check = Words::check_all(stays.into_iter().chain([id]));
    put(header, offset_of!(HeaderBlock, check), &check.to_le_bytes());
    let snapshots = &mut header[offset_of!(HeaderBlock, snapshots)..size_of::<HeaderBlock>()];
    for snapshot in snapshots.chunks_exact_mut(size_of::<Snapshot>()) {
        let says = [
            offset_of!(Snapshot, order),
            offset_of!(Snapshot, length),
            offset_of!(Snapshot, ended),
        ];
        let says = says.map(|place| u64_at(snapshot, place));
        if says[0] == 0 {
            continue; // the snapshot was not taken
        }
        let figures = &snapshot[offset_of!(Snapshot, figures)..][..Figures::BYTES];
        let (words, _) = figures.as_chunks();
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        let check = Words::check_all([id].into_iter().chain(says).chain(words));
        put(snapshot, offset_of!(Snapshot, check), &check.to_le_bytes());
    }
}

fn repair_chunk(chunk: &mut [u8], id: u64) {
    let used = u32_at(chunk, COMMITTED) as usize;
    let (header, payload) = chunk.split_at_mut(CHUNK_HEADER_BYTES);
    let mut check = check::first(id, u32_at(header, 4), u32_at(header, THREAD));
    let events = payload[..used.min(PAYLOAD_BYTES)].chunks_exact(EVENT_BYTES);
    for (event, end) in events.zip((EVENT_BYTES..).step_by(EVENT_BYTES)) {
        check = check::next(check, [0, 8, 16].map(|word| u64_at(event, word)));
        if end.is_multiple_of(BLOCK_BYTES) {
            let block = BLOCK_CHECKS + 4 * (end / BLOCK_BYTES - 1);
            put(header, block, &check.to_le_bytes());
        }
    }
    put(header, COMMITTED + 4, &check.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::Builder;
    use crate::{ClockKind, Ended, Entry, Event, Reader, What};

    /// Returns a record with `events` iterations, numbered from 0. `is_over` is true if its process
    /// has ended.
    fn record(events: u64, is_over: bool) -> Vec<u8> {
        let mut builder = Builder::new(1, ClockKind::Monotonic);
        for n in 0..events {
            builder.push(
                7,
                &Event::new(n * 10, 5, What::Iteration { n, excluded: false }),
            );
        }
        if is_over {
            builder.end(Ended::InOrder);
        }
        builder.bytes()
    }

    fn iterations(record: &[u8]) -> (Vec<u64>, bool) {
        let reader = Reader::new(record).unwrap();
        let mut all = Vec::new();
        let damage = reader.read(|entry| {
            if let Entry::Event { event, .. } = entry
                && let What::Iteration { n, .. } = event.what
            {
                all.push(n);
            }
        });
        (all, damage.unwrap().is_none())
    }

    #[test]
    fn a_whole_record_stays_as_it_is() {
        for events in [0, 1, 64, 65, 3000] {
            for is_over in [false, true] {
                let whole = record(events, is_over);
                let mut repaired = whole.clone();
                repair(&mut repaired);
                assert!(repaired == whole, "{events} {is_over}");
            }
        }
    }

    #[test]
    fn what_was_changed_passes_its_checks() {
        for at in [0, 100, 2999] {
            let mut changed = record(3000, true);
            let per_chunk = PAYLOAD_BYTES / EVENT_BYTES;
            let chunk = HEADER_BYTES + at / per_chunk * CHUNK_BYTES + CHUNK_HEADER_BYTES;
            changed[chunk + at % per_chunk * EVENT_BYTES + 16] ^= 0x55;
            assert!(!iterations(&changed).1, "{at}: the change is seen");
            repair(&mut changed);
            let (all, is_whole) = iterations(&changed);
            assert!(is_whole, "{at}");
            assert_eq!(all.len(), 3000);
            assert_eq!(all[at], at as u64 ^ 0x55);
        }
    }

    #[test]
    fn a_changed_header_passes_its_checks() {
        for place in [
            offset_of!(HeaderBlock, pid),
            offset_of!(HeaderBlock, id),
            offset_of!(HeaderBlock, snapshots) + 4000,
        ] {
            let mut changed = record(5, false);
            changed[place] ^= 1;
            repair(&mut changed);
            assert_eq!(iterations(&changed), ((0..5).collect(), true), "{place}");
        }
    }

    #[test]
    fn what_is_no_record_of_this_version_is_left_alone() {
        let mut old = record(5, true);
        old[offset_of!(HeaderBlock, version)] = 1;
        for bytes in [vec![], vec![7; 100], vec![0; HEADER_BYTES], old] {
            let mut repaired = bytes.clone();
            repair(&mut repaired);
            assert!(repaired == bytes);
        }
    }
}
