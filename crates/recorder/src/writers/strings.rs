//! The strings of a record: each text is written once, and known by its number from then on.
//!
//! A table of hashes, open addressing, nothing locked or allocated. A text
//! that finds no place is written each time it is met; of more than a reader would keep the rest is counted. Two texts of
//! the same 64 bits of hash would be one; that is not expected to happen.
//!
//! Where the oldest windows go (`TLLMPROF_KEEP`) so do their names: a text is written into the chunk of the thread that
//! meets it, and forgotten when the next window opens, which begins an era. A window's names are in chunks that go no
//! sooner than the window does. A place of an earlier era is free again.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::{Counter, LAST_LASTING, NO_STRING, StringId};

use super::{Writer, lasting};
use crate::{arena, keep, reuse, space, writers};
use tllmprof_platform::errno::Kept;
use tllmprof_sync::hash::MIX;

/// Texts that are known again.
const PLACES: usize = 1 << 15;
/// How far a text may lie behind its place.
const REACH: usize = 16;
/// The numbers of strings that go with windows, which begin anew behind the last one: no record has room for as many.
const PASSING: u64 = (u32::MAX - LAST_LASTING) as u64;
/// Bytes of a name of the program's that are kept.
pub const LONGEST: usize = 512;

/// Where a text is known. Its era only grows, so each era has one text there.
struct Place {
    /// The hash of the text and of its era; 0 for a place that was never used.
    hash: AtomicU64,
    /// The text's number, 0 until it is written, behind its era in the upper half.
    known: AtomicU64,
}

impl Place {
    /// The number of the text that is there, if it is of this era.
    #[inline]
    fn id(&self, era: u32) -> StringId {
        id_in(self.known.load(Ordering::Acquire), era)
    }

    /// Takes the place for a text, if what is there is of an era before `until`.
    fn take(&self, hash: u64, era: u32, until: u32) -> bool {
        let known = self.known.load(Ordering::Acquire);
        let is_taken = (known >> 32) < u64::from(until)
            && self
                .known
                .compare_exchange(known, pair(era, 0), Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if is_taken {
            self.hash.store(hash, Ordering::Release);
        }
        is_taken
    }

    /// The text has its number, unless a later era has the place or another thread was sooner.
    fn publish(&self, era: u32, id: StringId) {
        let (none, known) = (pair(era, 0), pair(era, id));
        let _ = self
            .known
            .compare_exchange(none, known, Ordering::Release, Ordering::Relaxed);
    }
}

const fn pair(era: u32, id: StringId) -> u64 {
    (era as u64) << 32 | id as u64
}

/// The number of what is known, if it is of this era.
#[inline]
const fn id_in(known: u64, era: u32) -> StringId {
    match known ^ pair(era, 0) {
        id if id >> 32 == 0 => id as StringId,
        _ => NO_STRING,
    }
}

/// A text that is met again and again.
pub struct Label {
    text: &'static [u8],
    /// Its number, behind its era in the upper half.
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

    /// The text's number, until the next window opens; [`NO_STRING`] where it could not be written.
    pub fn id(&self) -> StringId {
        match self.known(era()) {
            NO_STRING => writers::take().map_or(NO_STRING, |writer| self.id_by(&writer)),
            id => id,
        }
    }

    /// As [`Label::id`], by a writer that the caller has taken.
    #[inline]
    pub fn id_by(&self, writer: &Writer) -> StringId {
        let era = era();
        match self.known(era) {
            NO_STRING => self.learn(writer, era),
            id => id,
        }
    }

    /// As [`Label::id`], of a text that events outside windows refer to, too.
    pub fn lasting_id(&self) -> StringId {
        if !reuse::has_flight() {
            return self.id();
        }
        let era = lasting_era();
        match self.known(era) {
            NO_STRING => {
                writers::take().map_or(NO_STRING, |writer| match self.learn(&writer, era) {
                    NO_STRING => self.id_by(&writer),
                    id => id,
                })
            }
            id => id,
        }
    }

    #[inline]
    fn known(&self, era: u32) -> StringId {
        id_in(self.known.load(Ordering::Relaxed), era)
    }

    #[cold]
    fn learn(&self, writer: &Writer, era: u32) -> StringId {
        let id = id_by_in(writer, self.text, era);
        if id != NO_STRING {
            self.known.store(pair(era, id), Ordering::Relaxed);
        }
        id
    }
}

lifecycle::global! {
    stage: Sinks;

    #[fork(keep = "the child's eras are others")]
    static TABLE: [Place; PLACES] = [const {
        Place {
            hash: AtomicU64::new(0),
            known: AtomicU64::new(0),
        }
    }; PLACES];
    /// The last number of a text that stays, and how many have gone or will.
    #[fork(reset)]
    static LAST: AtomicU32 = AtomicU32::new(NO_STRING);
    #[fork(reset)]
    static PASSED: AtomicU64 = AtomicU64::new(0);
    /// Part of every hash, and another one in the child of a fork: what its parent wrote is not there.
    #[fork(by = in_child)]
    static ERA: AtomicU32 = AtomicU32::new(1);
    /// The era of texts that stay where others go. Never one of the others.
    #[fork(by = in_child)]
    static LASTING: AtomicU32 = AtomicU32::new(u32::MAX);
}

/// How often texts were forgotten: who keeps numbers of texts keeps them as long as this is the same.
#[inline]
pub fn era() -> u32 {
    ERA.load(Ordering::Acquire)
}

/// In the place of an era, of texts that are not forgotten.
#[inline]
pub fn lasting_era() -> u32 {
    LASTING.load(Ordering::Relaxed)
}

/// A window opens, which has been counted: where windows go, its names are its own.
pub fn window_opens() {
    if keep::is_wanted() {
        ERA.fetch_add(1, Ordering::SeqCst);
    }
}

/// The number of a text, until the next window opens; [`NO_STRING`] where it could not be written.
pub fn id_of(text: &str) -> StringId {
    writers::take().map_or(NO_STRING, |writer| id_by(&writer, text.as_bytes()))
}

/// The number of a text for as long as the record; until the next window opens where there is no more room for such.
pub fn lasting_id_of(text: &str) -> StringId {
    if !reuse::is_wanted() {
        return id_of(text);
    }
    match only_lasting_id_of(text) {
        NO_STRING => id_of(text),
        id => id,
    }
}

/// As [`lasting_id_of`]; [`NO_STRING`] where there is no more room for such, or no chunk is used again.
pub fn only_lasting_id_of(text: &str) -> StringId {
    if !reuse::is_wanted() {
        return NO_STRING;
    }
    writers::take().map_or(NO_STRING, |writer| {
        id_by_in(&writer, text.as_bytes(), lasting_era())
    })
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
    id_by_in(writer, text, era())
}

#[inline]
fn id_by_in(writer: &Writer, text: &[u8], era: u32) -> StringId {
    let hash = hash(text, era);
    let first = &TABLE[hash as usize % PLACES];
    if first.hash.load(Ordering::Acquire) == hash {
        let id = first.id(era);
        if id != NO_STRING {
            return id;
        }
    }
    find(writer, text, hash, era)
}

#[cold]
fn find(writer: &Writer, text: &[u8], hash: u64, era: u32) -> StringId {
    let start = hash as usize % PLACES;
    let mut places = (0..REACH).map(|step| &TABLE[(start + step) % PLACES]);
    let is_it = |place: &Place| place.hash.load(Ordering::Acquire) == hash;
    // What stays takes no place of what is of use now, and may lie behind places that were taken then and are free now.
    let until = era.min(self::era());
    let stays = until != era;
    let known = stays.then(|| places.clone().find(|place| is_it(place)));
    // Nor any that it would have for nothing.
    let may_take = !stays || lasting::has_room();
    let known = known.flatten().or_else(|| {
        places.find(|place| is_it(place) || (may_take && place.take(hash, era, until)))
    });
    // Another thread may be about to write it, or could not: the same text may have two numbers.
    match known.map_or(NO_STRING, |place| place.id(era)) {
        NO_STRING => write(writer, text, era, known),
        id => id,
    }
}

fn write(writer: &Writer, text: &[u8], era: u32, place: Option<&Place>) -> StringId {
    let stays = era == lasting_era();
    let id = match (stays, keep::is_wanted()) {
        (true, _) if !lasting::has_room() => return NO_STRING,
        (false, true) => next_passing(),
        // Others may have been sooner.
        _ if LAST.load(Ordering::Relaxed) < LAST_LASTING => {
            match LAST.fetch_add(1, Ordering::Relaxed) + 1 {
                id if id <= LAST_LASTING => id,
                _ => NO_STRING,
            }
        }
        _ => NO_STRING,
    };
    let is_there = id != NO_STRING
        && push(text, |text| match stays {
            true => writer.push_lasting_string(id, text),
            false => writer.push_string(id, text),
        });
    if let (true, Some(place)) = (is_there, place) {
        place.publish(era, id);
    }
    if is_there {
        return id;
    }
    // What stays is tried again by who asked for it.
    if !stays && let Some(header) = space::header() {
        header.add(Counter::StringsDropped, 1);
    }
    NO_STRING
}

fn next_passing() -> StringId {
    let passed = PASSED.fetch_add(1, Ordering::Relaxed);
    LAST_LASTING + 1 + (passed % PASSING) as u32
}

/// The number of a text that is in one chunk and used there alone, which `write` writes.
pub fn passing_id(write: impl FnOnce(StringId) -> bool) -> StringId {
    let id = next_passing();
    match write(id) {
        true => id,
        false => NO_STRING,
    }
}

/// Has a text written; what is no UTF-8 in it becomes `?`.
fn push(text: &[u8], write: impl Fn(&str) -> bool) -> bool {
    if let Ok(text) = str::from_utf8(text) {
        return write(text);
    }
    let mut copy = [b'?'; LONGEST];
    let mut length = 0;
    for part in text.get(..LONGEST).unwrap_or(text).utf8_chunks() {
        let valid = part.valid().as_bytes();
        copy[length..length + valid.len()].copy_from_slice(valid);
        length += valid.len() + part.invalid().len();
    }
    str::from_utf8(&copy[..length]).is_ok_and(write)
}

/// Eight bytes at a time, each mixed in by a multiplication of 128 bits; never 0.
#[inline]
fn hash(text: &[u8], era: u32) -> u64 {
    let mix = |hash: u64, word: u64| {
        let product = u128::from(hash ^ word) * u128::from(MIX);
        (product >> 64) as u64 ^ product as u64
    };
    let mut hash = u64::from(era)
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

/// The eras of the child of a fork are others, as it has written none.
fn in_child(_: &OnlyThread) {
    ERA.fetch_add(1, Ordering::Relaxed);
    LASTING.fetch_sub(1, Ordering::Relaxed);
}
