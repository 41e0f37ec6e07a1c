//! The strings of a record: each text is written once, and events refer to it by its number from then on.
//!
//! The numbers are in a hash table with open addressing, without locks or allocations. If there is no free entry for a
//! text, the text is written each time it occurs. If there are more texts than a reader would keep, further texts are
//! only counted. Two texts with the same 64-bit hash would be confused, which is not expected to happen.
//!
//! If the record drops the oldest windows (`TLLMPROF_KEEP`), their names have to be dropped with them. So a name is
//! written into the chunk of the thread that uses it, and again in each window: when a window opens, a new era
//! begins, and the table forgets the names of earlier eras. The chunks with a window's names are dropped no sooner
//! than the window.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::{Counter, LAST_LASTING, NO_STRING, StringId};

use super::{Writer, lasting};
use crate::{arena, keep, reuse, space, writers};
use tllmprof_platform::errno::SavedErrno;
use tllmprof_sync::hash::MIX;

/// The number of texts that the table can hold.
const PLACES: usize = 1 << 15;
/// The number of consecutive entries in which a text is searched, beginning with the entry that its hash selects.
const REACH: usize = 16;
/// The number of ids for strings that are dropped with their windows. After the last id, numbering starts
/// again from the first, whose string is no longer in the record by then.
const PASSING: u64 = (u32::MAX - LAST_LASTING) as u64;
/// The maximum length in bytes of a name that the program chose. Longer names are cut.
pub const LONGEST: usize = 512;

/// An entry of the hash table of texts. Each entry has an era (a number that changes when texts are forgotten). The
/// era of an entry never decreases, so each entry takes at most one text in each era.
struct TextEntry {
    /// The hash of the text and of its era; 0 if the entry was never used.
    hash: AtomicU64,
    /// The era in the upper 32 bits and the text's number in the lower 32. The number is 0 until the text is
    /// written.
    known: AtomicU64,
}

impl TextEntry {
    /// Returns the number of the entry's text; [`NO_STRING`] if the entry is of another era, or if its text is not
    /// written yet.
    #[inline]
    fn id(&self, era: u32) -> StringId {
        id_in(self.known.load(Ordering::Acquire), era)
    }

    /// Claims the entry for a text of era `era`, if the entry's era is before `until`. Returns true if this
    /// thread has claimed it.
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

    /// Stores the number of the entry's text, unless another thread has claimed the entry for a later era or
    /// has stored a number.
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

/// Returns the text's number in the lower half of `known` if the upper half is the era `era`; otherwise
/// [`NO_STRING`].
#[inline]
const fn id_in(known: u64, era: u32) -> StringId {
    match known ^ pair(era, 0) {
        id if id >> 32 == 0 => id as StringId,
        _ => NO_STRING,
    }
}

/// A text that is needed repeatedly, with its number in the record.
pub struct Label {
    text: &'static [u8],
    /// The era (a number that changes when texts are forgotten) in which the text was written, in the upper 32 bits.
    /// The lower 32 bits hold the text's number.
    known: AtomicU64,
}

impl Label {
    /// Stores a text permanently: the memory is never freed.
    pub fn new(text: &str) -> &'static Self {
        Box::leak(Box::new(Self {
            text: Box::leak(Box::from(text.as_bytes())),
            known: AtomicU64::new(0),
        }))
    }

    /// Stores a text permanently, like [`Label::new`], but without the allocator, so that it can be called inside a
    /// hooked call. Returns `None` if the memory for texts is used up.
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

    /// Returns the text's number, like [`Label::id`], using a writer that the caller has already taken.
    #[inline]
    pub fn id_by(&self, writer: &Writer) -> StringId {
        let era = era();
        match self.known(era) {
            NO_STRING => self.learn(writer, era),
            id => id,
        }
    }

    /// Returns a number of the text, like [`Label::id`], for events that may be outside windows. If the settings ask
    /// for the flight recorder, which records such events, the number stays valid when a window opens, unless there is
    /// no more room for lasting texts.
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
    /// The last id that was given to a lasting text (one that stays as long as the record).
    #[fork(reset)]
    static LAST: AtomicU32 = AtomicU32::new(NO_STRING);
    /// The number of ids that have been given so far to texts that are dropped with windows.
    #[fork(reset)]
    static PASSED: AtomicU64 = AtomicU64::new(0);
    /// The current era, which is part of every hash. The child of a fork gets a different era, because the
    /// parent's texts are not in the child's record.
    #[fork(by = in_child)]
    static ERA: AtomicU32 = AtomicU32::new(1);
    /// The era of lasting texts, which stay as long as the record. It never equals the era of a text that is dropped
    /// with its window.
    #[fork(by = in_child)]
    static LASTING: AtomicU32 = AtomicU32::new(u32::MAX);
}

/// Returns the current era, a number that changes whenever texts are forgotten. Stored numbers of texts are
/// valid as long as the era stays the same.
#[inline]
pub fn era() -> u32 {
    ERA.load(Ordering::Acquire)
}

/// Returns the era of lasting texts, which are never forgotten.
#[inline]
pub fn lasting_era() -> u32 {
    LASTING.load(Ordering::Relaxed)
}

/// Called when a window opens, after the window was counted. If the record drops old windows, this begins a
/// new era, so that the names are written again for the new window.
pub(crate) fn window_opens() {
    if keep::is_wanted() {
        ERA.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns the number of a text, valid until the next window opens; [`NO_STRING`] if it could not be written.
pub fn id_of(text: &str) -> StringId {
    writers::take().map_or(NO_STRING, |writer| id_by(&writer, text.as_bytes()))
}

/// Returns the number of a text, valid as long as the record. If there is no more room for lasting texts, the
/// number is valid only until the next window opens.
pub fn lasting_id_of(text: &str) -> StringId {
    if !reuse::is_wanted() {
        return id_of(text);
    }
    match only_lasting_id_of(text) {
        NO_STRING => id_of(text),
        id => id,
    }
}

/// Returns the number of a text that stays as long as the record, like [`lasting_id_of`]. Returns [`NO_STRING`] if
/// there is no more room for such texts, or if the record overwrites no chunks.
pub(crate) fn only_lasting_id_of(text: &str) -> StringId {
    if !reuse::is_wanted() {
        return NO_STRING;
    }
    writers::take().map_or(NO_STRING, |writer| {
        id_by_in(&writer, text.as_bytes(), lasting_era())
    })
}

/// Returns the number of a name that the program chose, like [`id_of`], using a writer that the caller has already
/// taken. The name is cut to [`LONGEST`] bytes.
#[inline]
pub(crate) fn name_id_by(writer: &Writer, name: &[u8]) -> StringId {
    id_by(writer, name.get(..LONGEST).unwrap_or(name))
}

/// Returns the number of a text, like [`id_of`], using a writer that the caller has already taken.
#[inline]
pub(crate) fn id_by(writer: &Writer, text: &[u8]) -> StringId {
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
    // A lasting text (one that stays as long as the record) must not claim an entry that a text of the current era
    // uses. The text may already be in any entry within reach, so all of them are searched before one is claimed.
    let until = era.min(self::era());
    let stays = until != era;
    let known = stays.then(|| places.clone().find(|place| is_it(place)));
    // If the text is a lasting one, it claims an entry only if there is room left to write the
    // text.
    let may_take = !stays || lasting::has_room();
    let known = known.flatten().or_else(|| {
        places.find(|place| is_it(place) || (may_take && place.take(hash, era, until)))
    });
    // Another thread may have claimed the entry without having written the text yet. Then this thread writes the
    // text, too, and the text gets two numbers.
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
        // Another thread may take the last number between this check and `fetch_add`, so the new number is checked as
        // well.
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
    // The text could not be written. For a lasting text this is no loss: the caller tries again with a number that is
    // dropped with its window. Otherwise the text counts as dropped.
    if !stays && let Some(header) = space::header() {
        header.add(Counter::StringsDropped, 1);
    }
    NO_STRING
}

fn next_passing() -> StringId {
    let passed = PASSED.fetch_add(1, Ordering::Relaxed);
    LAST_LASTING + 1 + (passed % PASSING) as u32
}

/// Calls `write` with a new string id, for a text that is used in only one chunk. Returns the id, or
/// [`NO_STRING`] if `write` fails.
pub(crate) fn passing_id(write: impl FnOnce(StringId) -> bool) -> StringId {
    let id = next_passing();
    match write(id) {
        true => id,
        false => NO_STRING,
    }
}

/// Calls `write` with the text, in which invalid UTF-8 is replaced with `?`.
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

/// Returns a hash of a text and its era, which is never 0. Each eight bytes are mixed in with a 128-bit
/// multiplication.
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

/// Gives the child of a fork different eras, because its record has none of the parent's texts.
fn in_child(_: &OnlyThread) {
    ERA.fetch_add(1, Ordering::Relaxed);
    LASTING.fetch_sub(1, Ordering::Relaxed);
}
