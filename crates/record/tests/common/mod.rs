//! Generated records, and what they must read as.

#![allow(dead_code)] // each test file uses its part

use std::collections::BTreeMap;

use tllmprof_record::builder::Builder;
use tllmprof_record::{
    CallKind, ClockKind, Damage, Edge, Entry, Error, Event, Info, RangeKind, Reader, What,
};

/// splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Events by thread and strings by id.
#[derive(Default, Debug)]
pub struct Found {
    pub threads: BTreeMap<u32, Vec<Event>>,
    pub strings: BTreeMap<u32, String>,
}

impl Found {
    pub fn is_empty(&self) -> bool {
        self.threads.is_empty() && self.strings.is_empty()
    }
}

pub struct Written {
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
        4 => What::Iteration { n: value },
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

/// A record of about `events` events of some threads, which end and hand their chunks over.
pub fn generate(random: &mut Random, events: u64) -> Written {
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
                    // The 32 upper bits are kept.
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
    written.bytes = builder.bytes();
    written
}

/// Everything that a record holds.
pub fn read(bytes: &[u8]) -> Result<(Found, Damage), Error> {
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
