//! The strings of a record: each text is written once, and referred to by its number from then on.
//!
//! They are in a hash table with open addressing, without locks or allocations. A text that finds no place is
//! written each time it occurs. If there are more texts than a reader would keep, the rest is only counted.
//! Two texts with the same hash of 64 bits would be confused; that is not expected to happen.
//!
//! If the oldest windows are dropped (`TLLMPROF_KEEP`), their names are dropped with them: a text is written
//! into the chunk of the thread that needs it, and forgotten when the next window opens, which begins a new
//! era. The chunks with a window's names are dropped no sooner than the window. A place of an earlier era is
//! free again.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::{Counter, LAST_LASTING, NO_STRING, StringId};

use super::{Writer, lasting};
use crate::{arena, keep, reuse, space, writers};
use tllmprof_platform::errno::SavedErrno;
use tllmprof_sync::hash::MIX;

/// The number of texts that can be remembered.
const PLACES: usize = 1 << 15;
/// The largest distance of a text from its first place.
const REACH: usize = 16;
/// The number of strings that are dropped with windows. They are numbered from the start again after the last
/// one: no record has room for as many.
const PASSING: u64 = (u32::MAX - LAST_LASTING) as u64;
/// The largest length in bytes of a program's name. Longer ones are cut.
pub const LONGEST: usize = 512;

/// An entry of the table. Its era only grows, so in each era it has at most one text.
struct TextEntry {
    /// The hash of the text and of its era; 0: never used.
    hash: AtomicU64,
    /// The era in the upper half and the text's number in the lower half, 0 until it is written.
    known: AtomicU64,
}

impl TextEntry {
    /// Returns the number of the entry's text, if it belongs to this era.
    #[inline]
    fn id(&self, era: u32) -> StringId {
        id_in(self.known.load(Ordering::Acquire), era)
    }

    /// Takes the entry for a text, if it belongs to an era before `until`. Returns true if it was taken.
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

    /// Stores the text's number, unless a later era has the entry or another thread was sooner.
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

/// Returns the number in `known`, if it belongs to this era.
#[inline]
const fn id_in(known: u64, era: u32) -> StringId {
    match known ^ pair(era, 0) {
        id if id >> 32 == 0 => id as StringId,
        _ => NO_STRING,
    }
}

/// A text that is needed repeatedly.
pub struct Label {
    text: &'static [u8],
    /// The era in the upper half and the text's number in the lower half.
    known: AtomicU64,
}

impl Label {
    /// Stores a text, for good.
    pub fn new(text: &str) -> &'static Self {
        Box::leak(Box::new(Self {
            text: Box::leak(Box::from(text.as_bytes())),
            known: AtomicU64::new(0),
        }))
    }

    /// Like [`Label::new`], but may be called from anywhere. `None` if there is no more room for texts.
    pub fn keep<T: Iterator<Item = u8>>(text: impl Fn() -> T) -> Option<&'static Self> {
        let _errno = SavedErrno::new();
        let length = text().take(LONGEST).count();
        let place = arena::take(size_of::<Self>() + length)?.cast::<Self>();
        // SAFETY: `arena::take` gives that many bytes, aligned to 8 and all zeros, only to this caller and for good:
        // a label, followed by `length` bytes.
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

    /// Returns the text, which need not be UTF-8.
    pub const fn text(&self) -> &'static [u8] {
        self.text
    }

    /// Returns the text's number, valid until the next window opens; [`NO_STRING`] if it could not be
    /// written.
    pub fn id(&self) -> StringId {
        match self.known(era()) {
            NO_STRING => writers::take().map_or(NO_STRING, |writer| self.id_by(&writer)),
            id => id,
        }
    }

    /// Like [`Label::id`], with a writer that the caller has taken.
    #[inline]
    pub fn id_by(&self, writer: &Writer) -> StringId {
        let era = era();
        match self.known(era) {
            NO_STRING => self.learn(writer, era),
            id => id,
        }
    }

    /// Like [`Label::id`], for a text that events outside windows refer to as well.
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
    #[together(tables)]
    static TABLE: [TextEntry; PLACES] = [const {
        TextEntry {
            hash: AtomicU64::new(0),
            known: AtomicU64::new(0),
        }
    }; PLACES];
    /// The last number of a text that stays, and the number of texts that are dropped with windows.
    #[fork(reset)]
    static LAST: AtomicU32 = AtomicU32::new(NO_STRING);
    #[fork(reset)]
    static PASSED: AtomicU64 = AtomicU64::new(0);
    /// Part of every hash. It differs in the child of a fork, where the parent's texts are not written.
    #[fork(by = in_child)]
    static ERA: AtomicU32 = AtomicU32::new(1);
    /// The era of texts that stay while others are dropped. It never equals the era of a text that is dropped.
    #[fork(by = in_child)]
    static LASTING: AtomicU32 = AtomicU32::new(u32::MAX);
}

/// Returns the number of times that texts were forgotten. Stored numbers of texts are valid while it stays
/// the same.
#[inline]
pub fn era() -> u32 {
    ERA.load(Ordering::Acquire)
}

/// Returns the value that stands for the era of texts that are not forgotten.
#[inline]
pub fn lasting_era() -> u32 {
    LASTING.load(Ordering::Relaxed)
}

/// Called when a window opens, after it was counted. If windows are dropped, it gets names of its own.
pub fn window_opens() {
    if keep::is_wanted() {
        ERA.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns the number of a text, valid until the next window opens; [`NO_STRING`] if it could not be written.
pub fn id_of(text: &str) -> StringId {
    writers::take().map_or(NO_STRING, |writer| id_by(&writer, text.as_bytes()))
}

/// Returns the number of a text, valid as long as the record, or until the next window opens if there is no
/// more room for lasting texts.
pub fn lasting_id_of(text: &str) -> StringId {
    if !reuse::is_wanted() {
        return id_of(text);
    }
    match only_lasting_id_of(text) {
        NO_STRING => id_of(text),
        id => id,
    }
}

/// Like [`lasting_id_of`], but returns [`NO_STRING`] if there is no more room for lasting texts, or if no
/// chunk is used again.
pub fn only_lasting_id_of(text: &str) -> StringId {
    if !reuse::is_wanted() {
        return NO_STRING;
    }
    writers::take().map_or(NO_STRING, |writer| {
        id_by_in(&writer, text.as_bytes(), lasting_era())
    })
}

/// Like [`id_of`], with a writer that the caller has taken, for a name of the program: cut to [`LONGEST`]
/// bytes.
#[inline]
pub fn name_id_by(writer: &Writer, name: &[u8]) -> StringId {
    id_by(writer, name.get(..LONGEST).unwrap_or(name))
}

/// Like [`id_of`], with a writer that the caller has taken.
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
    let is_it = |place: &TextEntry| place.hash.load(Ordering::Acquire) == hash;
    // A lasting text does not take a place that is used in the current era. It may be found after places that
    // were taken at that time and are free now.
    let until = era.min(self::era());
    let stays = until != era;
    let known = stays.then(|| places.clone().find(|place| is_it(place)));
    // Nor does it take a place without room to write the text.
    let may_take = !stays || lasting::has_room();
    let known = known.flatten().or_else(|| {
        places.find(|place| is_it(place) || (may_take && place.take(hash, era, until)))
    });
    // Another thread may be about to write it, or could not: the same text may get two numbers.
    match known.map_or(NO_STRING, |place| place.id(era)) {
        NO_STRING => write(writer, text, era, known),
        id => id,
    }
}

fn write(writer: &Writer, text: &[u8], era: u32, place: Option<&TextEntry>) -> StringId {
    let stays = era == lasting_era();
    let id = match (stays, keep::is_wanted()) {
        (true, _) if !lasting::has_room() => return NO_STRING,
        (false, true) => next_passing(),
        // Other threads may have been sooner.
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
    // The caller tries again for a lasting text.
    if !stays && let Some(header) = space::header() {
        header.add(Counter::StringsDropped, 1);
    }
    NO_STRING
}

fn next_passing() -> StringId {
    let passed = PASSED.fetch_add(1, Ordering::Relaxed);
    LAST_LASTING + 1 + (passed % PASSING) as u32
}

/// Returns the number of a text that is written by `write` into one chunk and used only there.
pub fn passing_id(write: impl FnOnce(StringId) -> bool) -> StringId {
    let id = next_passing();
    match write(id) {
        true => id,
        false => NO_STRING,
    }
}

/// Has a text written; invalid UTF-8 in it becomes `?`.
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

/// Hashes eight bytes at a time, each mixed in by a multiplication of 128 bits; never 0.
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

/// The child of a fork gets other eras, as it has written no texts.
fn in_child(_: &OnlyThread) {
    ERA.fetch_add(1, Ordering::Relaxed);
    LASTING.fetch_sub(1, Ordering::Relaxed);
}
