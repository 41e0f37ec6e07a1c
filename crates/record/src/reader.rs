//! Reads a record, whatever it is: unfinished, damaged, cut off, still written to, no record at all.

use std::fs::File;
use std::path::Path;
use std::{fmt, io};

use crate::chunk::{Begins, Head};
use crate::event::{Event, NoEvent, StringId, What};
use crate::header::{Header, Wrong};
use crate::layout::{
    CHUNK_BYTES, CHUNK_HEADER_BYTES, EVENT_BYTES, HEADER_BYTES, MAX_STRING, PAYLOAD_BYTES, VERSION,
    chunk_offset,
};
use crate::source::Source;

/// After so many chunks in a row that are not in use, the rest is not read: chunks are taken in
/// order, so nothing follows, and a sparse file may claim any length.
const EMPTY_LIMIT: u32 = 4096;

/// What was wrong with a record, or left unread. All zero: nothing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Damage {
    /// Chunks that begin with something else than a chunk's header, or are in another chunk's place.
    pub chunks: u64,
    /// Chunks that say they hold more than they can, read as far as they go.
    pub overfull: u64,
    /// Events of kinds that are not known: damage, or a later version's.
    pub unknown: u64,
    /// Events that cannot be.
    pub bad: u64,
    /// Bytes of the last chunk that the file does not have.
    pub missing_bytes: u64,
}

impl Damage {
    /// Whether nothing was wrong.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = [
            (self.chunks, "damaged chunks"),
            (self.overfull, "chunks that claim more than they hold"),
            (self.unknown, "events of unknown kinds"),
            (self.bad, "damaged events"),
            (self.missing_bytes, "bytes missing at the end"),
        ];
        let mut first = true;
        for (count, what) in found.iter().filter(|(count, _)| *count > 0) {
            let separator = if first { "" } else { ", " };
            write!(f, "{separator}{count} {what}")?;
            first = false;
        }
        if first { f.write_str("none") } else { Ok(()) }
    }
}

/// Why there is nothing to read.
#[derive(Debug)]
pub enum Error {
    Io(io::Error),
    /// Some other kind of file.
    NoRecord,
    /// A record of another version of the format.
    Version(u32),
    /// A record whose header contradicts itself: what is wrong.
    Damaged(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::NoRecord => f.write_str("no record of tllmprof"),
            Self::Version(version) => write!(
                f,
                "a record in version {version} of the format (wanted: {VERSION})"
            ),
            Self::Damaged(what) => write!(f, "damaged record, {what}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What a record holds.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    /// An event of the thread with this id. Those of a thread come in the order that they ended, but
    /// chunk by chunk, between those of others.
    Event {
        thread: u32,
        event: Event,
    },
    String {
        id: StringId,
        bytes: &'a [u8],
    },
}

/// An open record.
#[derive(Debug)]
pub struct Reader<S> {
    source: S,
    header: Header,
}

impl Reader<File> {
    /// Opens a record.
    ///
    /// # Errors
    /// Where the file cannot be read or is no record.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path)?;
        if file.metadata()?.is_dir() {
            return Err(Error::NoRecord);
        }
        Self::new(file)
    }
}

impl<S: Source> Reader<S> {
    /// Reads a record's header.
    ///
    /// # Errors
    /// Where the source cannot be read or is no record.
    pub fn new(source: S) -> Result<Self, Error> {
        let mut bytes = vec![0; HEADER_BYTES];
        let length = source.read_at(&mut bytes, 0)?;
        let header = Header::decode(&bytes[..length]).map_err(|wrong| match wrong {
            Wrong::Magic => Error::NoRecord,
            Wrong::Version(version) => Error::Version(version),
            Wrong::Sizes => Error::Damaged("its header has sizes that cannot be".to_owned()),
            Wrong::Clock(kind) => Error::Damaged(format!("its header has a clock of kind {kind}")),
        })?;
        Ok(Self { source, header })
    }

    /// The record's header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Gives every string and event to `each`, in the order they have in the file. A record that is
    /// being written gives what there is at the time.
    ///
    /// # Errors
    /// Where the source cannot be read.
    pub fn read(&self, mut each: impl FnMut(Entry<'_>)) -> io::Result<Damage> {
        let mut damage = Damage::default();
        let mut bytes = vec![0; CHUNK_BYTES];
        let mut empty = 0;
        let mut number = 0;
        while empty < EMPTY_LIMIT {
            let there = self.source.read_at(&mut bytes, chunk_offset(number))?;
            if there == 0 {
                break;
            }
            let Some(head) = bytes[..there].first_chunk::<CHUNK_HEADER_BYTES>() else {
                damage.missing_bytes += (CHUNK_HEADER_BYTES - there) as u64;
                break;
            };
            match Begins::decode(head) {
                Begins::Empty => empty += 1,
                Begins::Chunk(head) if head.number == number => {
                    empty = 0;
                    let payload = committed(&head, &bytes[CHUNK_HEADER_BYTES..there], &mut damage);
                    entries(head.thread, payload, &mut damage, &mut each);
                }
                Begins::Chunk(_) | Begins::Damaged => {
                    empty = 0;
                    damage.chunks += 1;
                }
            }
            let Some(next) = number.checked_add(1).filter(|_| there == CHUNK_BYTES) else {
                break;
            };
            number = next;
        }
        Ok(damage)
    }
}

/// The part of a chunk's payload that its header says is whole, as far as it is there.
fn committed<'a>(head: &Head, payload: &'a [u8], damage: &mut Damage) -> &'a [u8] {
    let mut used = head.used as usize;
    if used > PAYLOAD_BYTES {
        damage.overfull += 1;
        used = PAYLOAD_BYTES;
    }
    match payload.get(..used) {
        Some(whole) => whole,
        None => {
            damage.missing_bytes += (used - payload.len()) as u64;
            payload
        }
    }
}

fn entries(first: u32, payload: &[u8], damage: &mut Damage, each: &mut impl FnMut(Entry<'_>)) {
    let (mut rest, _) = payload.as_chunks::<EVENT_BYTES>();
    let mut thread = first;
    while let [bytes, behind @ ..] = rest {
        rest = behind;
        match Event::decode(bytes) {
            Ok(Event {
                what: What::Thread { tid },
                ..
            }) => thread = tid,
            Ok(Event {
                what: What::String { id, bytes },
                ..
            }) => {
                let length = usize::from(bytes);
                let events = length.div_ceil(EVENT_BYTES);
                let whole = rest.split_at_checked(events);
                let Some((text, behind)) = whole.filter(|_| length <= MAX_STRING) else {
                    // A damaged length: what follows may as well be events.
                    damage.bad += 1;
                    continue;
                };
                rest = behind;
                let bytes = &text.as_flattened()[..length];
                each(Entry::String { id, bytes });
            }
            Ok(event) => each(Entry::Event { thread, event }),
            Err(NoEvent::Unknown) => damage.unknown += 1,
            Err(NoEvent::Bad) => damage.bad += 1,
        }
    }
}
