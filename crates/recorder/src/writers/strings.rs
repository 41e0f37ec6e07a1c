//! The strings of a record: each text is written once, and known by its number from then on.
//!
//! A table of hashes, open addressing, nothing is ever removed, nothing locked or allocated. A text
//! that finds no place is written each time it is met, as names that have a number in them are met
//! once anyway; of more than a reader would keep the rest is counted. Two texts of the same 64 bits
//! of hash would be one; that is not expected to happen.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::{Counter, NO_STRING, StringId};

use super::Writer;
use crate::{arena, space, writers};
use tllmprof_platform::errno::Kept;
use tllmprof_sync::hash::MIX;

/// Texts that are known again.
const PLACES: usize = 1 << 15;
/// How far a text may lie behind its place.
const REACH: usize = 16;
/// Strings of one record: no reader keeps more.
const MOST: u32 = 1 << 20;
/// Bytes of a name of the program's that are kept.
pub const LONGEST: usize = 512;

struct Place {
    /// The text's hash; 0 for a free place.
    hash: AtomicU64,
    /// Its number, 0 until it is written.
    id: AtomicU32,
}

/// A text that is met again and again.
pub struct Label {
    text: &'static [u8],
    /// Its number, behind the process's [`PROCESS`] in the upper half.
    known: AtomicU64,
}

impl Label {
    /// Keeps a text, for good.
    pub fn new(text: &str) -> &'static Self {
        Box::leak(Box::new(Self {
            text: Box::leak(Box::from(text.as_bytes())),
            known: AtomicU64::new(0),
        }))
    }

    /// As [`Label::new`], from anywhere; none where there is no more room for texts.
    pub fn keep<T: Iterator<Item = u8>>(text: impl Fn() -> T) -> Option<&'static Self> {
        let _errno = Kept::new();
        let length = text().take(LONGEST).count();
        let place = arena::take(size_of::<Self>() + length)?.cast::<Self>();
        // SAFETY: `arena::take` gives so many bytes, aligned to 8, all zeros, to this caller alone and for good: a
        // label and `length` bytes behind it.
        unsafe {
            let bytes = place.add(1).cast::<u8>();
            for (index, byte) in text().take(length).enumerate() {
                bytes.add(index).write(byte);
            }
            place.write(Self {
                text: core::slice::from_raw_parts(bytes.as_ptr(), length),
                known: AtomicU64::new(0),
            });
            Some(place.as_ref())
        }
    }

    /// The text, of UTF-8 or not.
    pub const fn text(&self) -> &'static [u8] {
        self.text
    }

    /// The text's number; [`NO_STRING`] where it could not be written.
    pub fn id(&self) -> StringId {
        match self.known() {
            NO_STRING => writers::take().map_or(NO_STRING, |writer| self.learn(&writer)),
            id => id,
        }
    }

    /// As [`Label::id`], by a writer that the caller has taken.
    #[inline]
    pub fn id_by(&self, writer: &Writer) -> StringId {
        match self.known() {
            NO_STRING => self.learn(writer),
            id => id,
        }
    }

    #[inline]
    fn known(&self) -> StringId {
        let process = PROCESS.load(Ordering::Relaxed) << 32;
        let known = self.known.load(Ordering::Relaxed);
        let id = known as u32;
        if known ^ process == u64::from(id) {
            id
        } else {
            NO_STRING
        }
    }

    #[cold]
    fn learn(&self, writer: &Writer) -> StringId {
        let process = PROCESS.load(Ordering::Relaxed) << 32;
        let id = id_by(writer, self.text);
        self.known.store(process | u64::from(id), Ordering::Relaxed);
        id
    }
}

lifecycle::global! {
    stage: Sinks;

    #[fork(keep = "no hash of the child's is in it")]
    static TABLE: [Place; PLACES] = [const {
        Place {
            hash: AtomicU64::new(0),
            id: AtomicU32::new(0),
        }
    }; PLACES];
    #[fork(reset)]
    static LAST: AtomicU32 = AtomicU32::new(NO_STRING);
    /// Part of every hash, and another one in the child of a fork: what its parent wrote is not there.
    #[fork(by = in_child)]
    static PROCESS: AtomicU64 = AtomicU64::new(0);
}

/// The number of a text; [`NO_STRING`] where it could not be written.
pub fn id_of(text: &str) -> StringId {
    writers::take().map_or(NO_STRING, |writer| id_by(&writer, text.as_bytes()))
}

/// As [`id_of`], by a writer that the caller has taken, of a name that the program gives: cut to [`LONGEST`]
/// bytes.
#[inline]
pub fn name_id_by(writer: &Writer, name: &[u8]) -> StringId {
    id_by(writer, name.get(..LONGEST).unwrap_or(name))
}

/// As [`id_of`], by a writer that the caller has taken.
#[inline]
pub fn id_by(writer: &Writer, text: &[u8]) -> StringId {
    let hash = hash(text);
    let first = &TABLE[hash as usize % PLACES];
    if first.hash.load(Ordering::Relaxed) == hash {
        let id = first.id.load(Ordering::Acquire);
        if id != NO_STRING {
            return id;
        }
    }
    find(writer, text, hash)
}

#[cold]
fn find(writer: &Writer, text: &[u8], hash: u64) -> StringId {
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
                // Another thread is about to write it, or could not: the same text may have two
                // numbers.
                NO_STRING => write(writer, text, Some(place)),
                id => id,
            };
        }
    }
    write(writer, text, None)
}

fn write(writer: &Writer, text: &[u8], place: Option<&Place>) -> StringId {
    let id = LAST.load(Ordering::Relaxed);
    let has_room = id < MOST;
    let id = if has_room {
        LAST.fetch_add(1, Ordering::Relaxed) + 1
    } else {
        NO_STRING
    };
    if !has_room || !push(writer, id, text) {
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

/// Writes the string; what is no UTF-8 in it becomes `?`.
fn push(writer: &Writer, id: StringId, text: &[u8]) -> bool {
    if let Ok(text) = str::from_utf8(text) {
        return writer.push_string(id, text);
    }
    let mut copy = [b'?'; LONGEST];
    let mut length = 0;
    for part in text.get(..LONGEST).unwrap_or(text).utf8_chunks() {
        let valid = part.valid().as_bytes();
        copy[length..length + valid.len()].copy_from_slice(valid);
        length += valid.len() + part.invalid().len();
    }
    str::from_utf8(&copy[..length]).is_ok_and(|text| writer.push_string(id, text))
}

/// Eight bytes at a time, each mixed in by a multiplication of 128 bits; never 0.
#[inline]
fn hash(text: &[u8]) -> u64 {
    let mix = |hash: u64, word: u64| {
        let product = u128::from(hash ^ word) * u128::from(MIX);
        (product >> 64) as u64 ^ product as u64
    };
    // Another one in the child of a fork.
    let mut hash = PROCESS
        .load(Ordering::Relaxed)
        .wrapping_mul(MIX)
        .wrapping_add(text.len() as u64 ^ 0xcbf2_9ce4_8422_2325);
    let (words, rest) = text.as_chunks::<8>();
    for word in words {
        hash = mix(hash, u64::from_le_bytes(*word));
    }
    let mut last = 0;
    for byte in rest {
        last = last << 8 | u64::from(*byte);
    }
    mix(hash, last).max(1)
}

/// The hashes of the child of a fork are others, as it has written none.
fn in_child(_: &OnlyThread) {
    PROCESS.fetch_add(1, Ordering::Relaxed);
}
