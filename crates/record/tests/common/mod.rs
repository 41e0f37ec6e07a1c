//! Generates records, together with the contents that a reader must find in them. A chunk is a piece of a record's file
//! that holds events.

#![allow(dead_code)] // each test file uses only some of these items

use std::collections::BTreeMap;

use tllmprof_record::builder::Builder;
use tllmprof_record::{
    CHUNK_BYTES, CHUNK_HEADER_BYTES, CallKind, ClockKind, Damage, EVENT_BYTES, Edge, Ended, Entry,
    Event, Info, RangeKind, Reader, RecordError, What,
};

/// A pseudo-random number generator (splitmix64).
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// The contents of a record: its events by thread, and its strings by id.
#[derive(Default, Debug)]
pub(crate) struct Found {
    pub threads: BTreeMap<u32, Vec<Event>>,
    pub strings: BTreeMap<u32, String>,
}

impl Found {
    pub(crate) fn is_empty(&self) -> bool {
        self.threads.is_empty() && self.strings.is_empty()
    }
}

pub(crate) struct Written {
    pub bytes: Vec<u8>,
    pub threads: BTreeMap<u32, Vec<Event>>,
    pub strings: BTreeMap<u32, String>,
}

fn what(random: &mut Random) -> What {
    let (value, code, id) = (random.next(), random.next() as u16, random.next() as u32);
    let row = code as u8;
    match random.below(15) {
        0 => What::ThreadName { name: id },
        1 => What::Info {
            key: Info::from_code(code % 16),
            value,
        },
        2 => What::CallName {
            row,
            kind: Some(CallKind::Wait),
            name: id,
        },
        3 => What::Call {
            row,
            capturing: code > 999,
            stream: value,
        },
        4 => What::Iteration {
            n: value,
            excluded: false,
        },
        5 => What::Window {
            edge: Edge::Close,
            iteration: value,
        },
        6 => What::Range {
            kind: RangeKind::StartEnd,
            domain: id,
            name: !id,
        },
        7 => What::Mark {
            domain: id,
            name: 3,
        },
        8 => What::Gc {
            generation: code,
            collected: value,
        },
        9 => What::GilWait,
        10 => What::GilHold,
        11 => What::GilForced,
        12 => What::Function { name: id },
        13 => What::GpuSpan {
            device: row & 15,
            stream: code & 4095,
            iteration: value,
        },
        _ => What::Dropped { events: value },
    }
}

/// Generates a record with about `events` events of some threads. Threads end and pass their chunks on to
/// other threads.
pub(crate) fn generate(random: &mut Random, events: u64) -> Written {
    let mut builder = Builder::new(77, ClockKind::Counter);
    let mut written = Written {
        bytes: Vec::new(),
        threads: BTreeMap::new(),
        strings: BTreeMap::new(),
    };
    let mut live = [1_u32, 2, 3];
    for _ in 0..events {
        let at = random.below(live.len() as u64) as usize;
        let tid = live[at];
        match random.below(100) {
            0 => {
                let text = "é".repeat(random.below(300) as usize);
                let id = builder.string(tid, &text);
                written.strings.insert(id, text);
            }
            1 => {
                let next = random.next() as u32;
                if !written.threads.contains_key(&next) && !live.contains(&next) {
                    builder.hand_over(tid, next);
                    live[at] = next;
                }
            }
            _ => {
                let event = Event {
                    start: random.next(),
                    // At most 32 significant bits, because a record keeps no more of a duration.
                    duration: (random.next() >> 32) << random.below(33),
                    cut: random.below(2) == 0,
                    failed: random.below(2) == 0,
                    what: what(random),
                };
                builder.push(tid, &event);
                written.threads.entry(tid).or_default().push(event);
            }
        }
    }
    builder.end(Ended::InOrder);
    written.bytes = builder.bytes();
    written
}

/// Changes a record's bytes in one random way. Returns a description and the changed bytes.
pub(crate) fn change(random: &mut Random, bytes: &[u8]) -> (String, Vec<u8>) {
    let mut changed = bytes.to_vec();
    let length = bytes.len();
    let blocks = length.div_ceil(CHUNK_BYTES);
    let any = |random: &mut Random, below: usize| random.below(below.max(1) as u64) as usize;
    // Two of three places are near the start of a block (the header block or a chunk). The headers are a small part of
    // a record and would otherwise rarely be changed.
    let place = |random: &mut Random| {
        let block = any(random, blocks);
        let reach = match random.below(3) {
            0 => 96,
            1 => CHUNK_HEADER_BYTES + 40 * EVENT_BYTES,
            _ => CHUNK_BYTES,
        };
        (block * CHUNK_BYTES + any(random, reach)).min(length - 1)
    };
    let block = |at: usize| at * CHUNK_BYTES..((at + 1) * CHUNK_BYTES).min(length);
    let what = match random.below(10) {
        0 => {
            let edges = [0, 1, 2, 8, 40, 64, 72, 208, 4096];
            let edge = edges[any(random, edges.len())];
            let end = any(random, blocks + 1) * CHUNK_BYTES + edge * any(random, 2);
            changed.truncate(end.min(length));
            format!("cut to {}", changed.len())
        }
        1 => {
            changed.truncate(any(random, length));
            format!("cut to {}", changed.len())
        }
        2 | 3 => {
            let from = place(random);
            let long = 1 << random.below(18);
            let to = (from + any(random, long) + 1).min(length);
            changed[from..to].fill(0);
            format!("zeros from {from} to {to}")
        }
        4 => {
            let from = place(random);
            let to = (from + any(random, 600) + 1).min(length);
            changed[from..to].fill_with(|| random.next() as u8);
            format!("random bytes from {from} to {to}")
        }
        5..=7 => {
            let (at, bit) = (place(random), random.below(8));
            changed[at] ^= 1 << bit;
            format!("bit {bit} of {at}")
        }
        _ => {
            let (one, other) = (any(random, blocks), any(random, blocks));
            let [from, to] = [one, other].map(block);
            match random.below(3) {
                0 => {
                    changed.drain(from);
                    format!("without block {one}")
                }
                1 => {
                    let again = changed[from].to_vec();
                    changed.splice(to.start..to.start, again);
                    format!("block {one} again before block {other}")
                }
                _ if from.len() == to.len() => {
                    changed[from.clone()].copy_from_slice(&bytes[to.clone()]);
                    changed[to].copy_from_slice(&bytes[from]);
                    format!("blocks {one} and {other} swapped")
                }
                _ => "nothing".to_owned(),
            }
        }
    };
    (what, changed)
}

/// Returns the number of changes that the longest test makes to records; other tests make a fraction of them. It is
/// 3000 unless the variable `TLLMPROF_TEST_DAMAGE` is set to another number.
pub(crate) fn changes() -> u64 {
    std::env::var("TLLMPROF_TEST_DAMAGE").map_or(3000, |many| many.parse().unwrap())
}

/// Reads a record completely. Returns its contents and the damage found.
pub(super) fn read(bytes: &[u8]) -> Result<(Found, Damage), RecordError> {
    let reader = Reader::new(bytes)?;
    let mut found = Found::default();
    let damage = reader.read(|entry| match entry {
        Entry::Event { thread, event } => found.threads.entry(thread).or_default().push(event),
        Entry::String { id, bytes } => {
            let text = String::from_utf8_lossy(bytes).into_owned();
            found.strings.insert(id, text);
        }
    })?;
    Ok((found, damage))
}
