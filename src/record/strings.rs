//! The strings of a record: each text is written once, and known by its number from then on.
//!
//! A table of hashes, open addressing, nothing is ever removed. Two texts of the same 64 bits of
//! hash would be one; that is not expected to happen.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tllmprof_record::{Counter, NO_STRING, StringId};

use super::space;
use super::writers::{self, Writer};

/// Texts that are known again. More are written each time they are met.
const PLACES: usize = 1 << 14;
/// How far a text may lie behind its place.
const REACH: usize = 64;

struct Place {
    /// The text's hash; 0 for a free place.
    hash: AtomicU64,
    /// Its number, 0 until it is written.
    id: AtomicU32,
}

/// A text that is met again and again.
pub struct Label {
    text: Box<str>,
    /// Its number, behind the process's [`PROCESS`] in the upper half.
    known: AtomicU64,
}

impl Label {
    /// Keeps a text, for good.
    pub fn new(text: &str) -> &'static Self {
        Box::leak(Box::new(Self {
            text: text.into(),
            known: AtomicU64::new(0),
        }))
    }

    /// The text's number; [`NO_STRING`] where it could not be written.
    pub fn id(&self) -> StringId {
        let process = PROCESS.load(Ordering::Relaxed) << 32;
        let known = self.known.load(Ordering::Relaxed);
        let id = known as u32;
        if known ^ process == u64::from(id) && id != NO_STRING {
            return id;
        }
        let id = id_of(&self.text);
        self.known.store(process | u64::from(id), Ordering::Relaxed);
        id
    }
}

static TABLE: [Place; PLACES] = [const {
    Place {
        hash: AtomicU64::new(0),
        id: AtomicU32::new(0),
    }
}; PLACES];
static LAST: AtomicU32 = AtomicU32::new(NO_STRING);
/// Part of every hash, and another one in the child of a fork: what its parent wrote is not there.
static PROCESS: AtomicU64 = AtomicU64::new(0);

/// The number of a text; [`NO_STRING`] where it could not be written.
pub fn id_of(text: &str) -> StringId {
    let mut id = NO_STRING;
    writers::with(|writer| {
        id = id_by(writer, text);
        true
    });
    id
}

/// As [`id_of`], by a writer that the caller has and is busy with.
pub fn id_by(writer: &Writer, text: &str) -> StringId {
    let hash = hash(text);
    let start = hash as usize % PLACES;
    let places = (0..REACH).map(|step| &TABLE[(start + step) % PLACES]);
    for place in places {
        let known = match place
            .hash
            .compare_exchange(0, hash, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => return write(writer, text, Some(place)),
            Err(known) => known,
        };
        if known == hash {
            return match place.id.load(Ordering::Acquire) {
                // Another thread is about to write it: the same text may have two numbers.
                NO_STRING => write(writer, text, None),
                id => id,
            };
        }
    }
    write(writer, text, None)
}

fn write(writer: &Writer, text: &str, place: Option<&Place>) -> StringId {
    let id = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    if !writer.push_string(id, text) {
        if let Some(header) = space::header() {
            header.add(Counter::StringsDropped, 1);
        }
        return NO_STRING;
    }
    if let Some(place) = place {
        place.id.store(id, Ordering::Release);
    }
    id
}

/// FNV-1a, with its bits mixed; never 0.
fn hash(text: &str) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64.wrapping_add(PROCESS.load(Ordering::Relaxed));
    for byte in text.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash ^= hash >> 32;
    hash.max(1)
}

/// The child of a fork has written none.
pub fn in_child() {
    LAST.store(NO_STRING, Ordering::Relaxed);
    PROCESS.fetch_add(1, Ordering::Relaxed);
}
