//! Reads a record that may be unfinished, damaged, cut off, still growing, or not a record at all. A record consists of
//! a header block and of chunks: pieces of the file that hold the events.

mod reused;

use std::fs::File;
use std::path::Path;
use std::{fmt, io};

use crate::chunk::{Begins, Checked, Head};
use crate::counter::Counter;
use crate::event::{Event, NoEvent, StringId, What};
use crate::header::Ended;
use crate::layout::{CHUNK_BYTES, EVENT_BYTES, HEADER_BYTES, MAX_STRING, VERSION, chunk_offset};
use crate::read_header::{Header, Wrong};
use crate::source::Source;
use reused::Reused;

/// The number of consecutive unused chunks after which reading stops. Threads take chunks in order, so no used chunk
/// is expected after that many unused ones. The limit is needed because a sparse file can have any length.
pub(crate) const EMPTY_LIMIT: u32 = 4096;

/// The number of attempts to read a chunk into which its thread may be writing.
const MAX_READS: u32 = 3;

/// Damage found in a record, and data left out because of it. The default value means that there is no damage.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Damage {
    /// Set if the file ends before the end of the data that was written to the record.
    pub cut: Option<Cut>,
    /// True if the header block is damaged, so that counters, clock or data about the process are lost.
    pub header: bool,
    /// The number of damaged chunks: those with an invalid header or changed events, and those whose number does not
    /// match their position in the file.
    pub chunks: u64,
    /// The number of chunks that the process has begun but that are missing in the file.
    pub missing: u64,
    /// The approximate number of events in damaged chunks that are left out, because they may have been
    /// changed.
    pub left_out: u64,
    /// The number of events of unknown kinds, if the record has no checks (checksums); otherwise 0. If there are any,
    /// the record is damaged, or it was written by a later version of tllmprof.
    pub unknown: u64,
    /// The number of events with impossible contents, such as an invalid code, that were left out.
    pub bad: u64,
}

/// The sizes of a record's file that ends before the end of the written data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// The size of the cut-off file in bytes.
    pub at: u64,
    /// The number of bytes that the process wrote, if it is known.
    pub of: Option<u64>,
}

impl Damage {
    /// Returns true if there is no damage.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of {
            Some(of) => write!(f, "cut at {} of {of} bytes", self.at),
            None => write!(f, "cut at {} bytes", self.at),
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = [
            (self.chunks, "damaged chunk", "damaged chunks"),
            (self.missing, "chunk missing", "chunks missing"),
            (self.left_out, "event left out", "events left out"),
            (
                self.unknown,
                "event of an unknown kind",
                "events of unknown kinds",
            ),
            (self.bad, "damaged event", "damaged events"),
        ];
        let cut = self.cut.map(|cut| cut.to_string());
        let header = self.header.then(|| "its header is damaged".to_owned());
        let counted = counted
            .into_iter()
            .filter(|(count, ..)| *count > 0)
            .map(|(count, one, many)| format!("{count} {}", if count == 1 { one } else { many }));
        let found: Vec<_> = cut.into_iter().chain(header).chain(counted).collect();
        if found.is_empty() {
            return f.write_str("none");
        }
        f.write_str(&found.join(", "))
    }
}

/// The reason why a record cannot be read.
#[derive(Debug)]
pub enum RecordError {
    Io(io::Error),
    /// The file is not a record.
    NoRecord,
    /// A file of this size in bytes that contains no data, usually because its process was killed before it recorded
    /// anything.
    Empty(u64),
    /// The beginning of a record. The file ends after this number of bytes, within the header.
    Cut(u64),
    /// A record in a later version of the format.
    Version(u32),
    /// A record whose header has an impossible value. The text says which.
    Damaged(String),
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::NoRecord => f.write_str("not a tllmprof record"),
            Self::Empty(0) => f.write_str("0 bytes, nothing was recorded"),
            Self::Empty(bytes) => write!(f, "{bytes} zero bytes, nothing was recorded"),
            Self::Cut(bytes) => write!(f, "cut off: {bytes} bytes"),
            Self::Version(version) => write!(
                f,
                "a record in version {version} of the format (wanted: {VERSION} or earlier)"
            ),
            Self::Damaged(what) => write!(f, "damaged record, {what}"),
        }
    }
}

impl std::error::Error for RecordError {}

impl From<io::Error> for RecordError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// An event or a string in a record.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    /// An event of the thread with this id. A thread's events come in the order in which they were written. Events of
    /// most kinds are written when they end. Between two chunks of a thread, events of other threads may come.
    Event {
        thread: u32,
        event: Event,
    },
    String {
        id: StringId,
        bytes: &'a [u8],
    },
}

/// Reads the contents of a record from a file or another source.
#[derive(Debug)]
pub struct Reader<S> {
    source: S,
    header: Header,
    /// The number of bytes of the header block that could be read from the source.
    header_bytes: usize,
}

impl Reader<File> {
    /// Opens a record.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is not a record.
    pub fn open(path: &Path) -> Result<Self, RecordError> {
        let file = File::open(path)?;
        if file.metadata()?.is_dir() {
            return Err(RecordError::NoRecord);
        }
        Self::new(file)
    }
}

impl<S: Source> Reader<S> {
    /// Reads the header of a record.
    ///
    /// # Errors
    /// Returns an error if the source cannot be read or is not a record.
    pub fn new(source: S) -> Result<Self, RecordError> {
        let mut bytes = vec![0; HEADER_BYTES];
        let length = source.read_at(&mut bytes, 0)?;
        let decoded = Header::decode(&bytes[..length]);
        let header = match decoded {
            Ok(header) => header,
            Err(Wrong::Magic) => {
                let empty = empty(&source, &bytes[..length])?;
                return Err(empty.map_or(RecordError::NoRecord, RecordError::Empty));
            }
            Err(Wrong::Cut) => return Err(RecordError::Cut(length as u64)),
            Err(Wrong::Version(version)) => return Err(RecordError::Version(version)),
            Err(Wrong::Sizes) => {
                let what = "its header has sizes that cannot be";
                return Err(RecordError::Damaged(what.to_owned()));
            }
            Err(Wrong::Clock(kind)) => {
                return Err(RecordError::Damaged(format!(
                    "its header has a clock of kind {kind}"
                )));
            }
        };
        Ok(Self {
            source,
            header,
            header_bytes: length,
        })
    }

    /// Returns the record's header, as it was when this reader was created.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Calls `each` for every string and event, in the order of the file. In a record whose chunks were overwritten,
    /// the strings come first. The events that the record still keeps follow, ordered by the time of their chunks. If
    /// the record is still growing, its current state is read. A damaged chunk is read up to the damage.
    ///
    /// # Errors
    /// Returns an error if the source cannot be read.
    pub fn read(&self, mut each: impl FnMut(Entry<'_>)) -> io::Result<Damage> {
        let Some(mut reused) = Reused::new(&self.header) else {
            return self.read_chunks(|_, entry| each(entry));
        };
        // In this record chunks were overwritten. So their order in the file is not the order of their events, and some
        // chunks hold events that the record has dropped. Strings are read first, because a string may be in a later
        // chunk than the events that refer to it.
        let damage = self.read_chunks(|chunk, entry| {
            reused.see(chunk, &entry);
            if let Entry::String { .. } = entry {
                each(entry);
            }
        })?;
        let mut bytes = vec![0; CHUNK_BYTES];
        for number in reused.order() {
            let there = self.source.read_at(&mut bytes, chunk_offset(number))?;
            self.entries(
                number,
                &mut bytes,
                there,
                &mut Damage::default(),
                &mut |entry| {
                    if reused.is_kept(&entry) {
                        each(entry);
                    }
                },
            )?;
        }
        for (thread, event) in reused.moved() {
            each(Entry::Event { thread, event });
        }
        Ok(damage)
    }

    /// Reads all entries like [`Reader::read`], in the order of the chunks. `each` also gets the number of
    /// the entry's chunk.
    fn read_chunks(&self, mut each: impl FnMut(u32, Entry<'_>)) -> io::Result<Damage> {
        let mut damage = Damage {
            header: self.header.is_damaged,
            ..Damage::default()
        };
        let mut bytes = vec![0; CHUNK_BYTES];
        let mut begun = 0;
        let mut empty = 0;
        let mut number = 0;
        let mut end = None;
        if self.header_bytes < HEADER_BYTES {
            end = Some(self.header_bytes as u64);
            self.cut_at(self.header_bytes as u64, &mut damage);
        }
        while end.is_none() && empty < EMPTY_LIMIT {
            let there = self.source.read_at(&mut bytes, chunk_offset(number))?;
            if there < CHUNK_BYTES {
                end = Some(chunk_offset(number) + there as u64);
            }
            if there == 0 {
                break;
            }
            let is_empty = self.entries(number, &mut bytes, there, &mut damage, &mut |entry| {
                each(number, entry)
            })?;
            empty = if is_empty { empty + 1 } else { 0 };
            begun += u64::from(!is_empty);
            let Some(next) = number.checked_add(1) else {
                break;
            };
            number = next;
        }
        if let (Some(end), Some(length)) = (end, self.header.length)
            && end < length
        {
            self.cut_at(end, &mut damage);
        }
        if self.header.id.is_some() {
            damage.unknown = 0; // with valid checks, an unknown kind means a later version
            let chunks = self.header.counter(Counter::Chunks);
            damage.missing = chunks.saturating_sub(begun);
        }
        Ok(damage)
    }

    /// Calls `each` for the strings and events of a chunk. `there` is the number of bytes of the chunk that
    /// were read. Returns true if the chunk is unused.
    fn entries(
        &self,
        number: u32,
        bytes: &mut [u8],
        there: usize,
        damage: &mut Damage,
        each: &mut impl FnMut(Entry<'_>),
    ) -> io::Result<bool> {
        let found = self.chunk(number, bytes, there)?;
        let header = Begins::bytes(self.header.id);
        match found {
            ChunkState::Empty | ChunkState::Whole(..) => {}
            ChunkState::Part(head, length) => {
                let behind = head.used as usize - length.min(head.used as usize);
                damage.left_out += (behind.min(CHUNK_BYTES) / EVENT_BYTES) as u64;
                if there < CHUNK_BYTES && header + head.used as usize > there {
                    self.cut_at(chunk_offset(number) + there as u64, damage);
                } else {
                    damage.chunks += 1;
                }
            }
            ChunkState::Nothing => damage.chunks += 1,
        }
        if let ChunkState::Whole(head, length) | ChunkState::Part(head, length) = found {
            let events = &bytes[header..header + length];
            let is_checked = self.header.id.is_some();
            entries(head.thread, events, is_checked, damage, each);
        }
        Ok(found == ChunkState::Empty)
    }

    fn cut_at(&self, at: u64, damage: &mut Damage) {
        damage.cut.get_or_insert(Cut {
            at,
            of: self.header.length,
        });
    }

    /// Returns the state of a chunk. `there` is the number of bytes of the chunk that were read. If the chunk
    /// seems damaged, it is read again, because its thread may have been writing to it.
    fn chunk(&self, number: u32, bytes: &mut [u8], mut there: usize) -> io::Result<ChunkState> {
        let is_running = matches!(self.header.ended, Some(Ended::Not));
        let mut looks = if is_running { MAX_READS } else { 1 };
        loop {
            let found = ChunkState::classify(self.header.id, number, &bytes[..there]);
            looks -= 1;
            if looks == 0 || matches!(found, ChunkState::Empty | ChunkState::Whole(..)) {
                return Ok(found);
            }
            there = self.source.read_at(bytes, chunk_offset(number))?;
        }
    }
}

/// The state of a chunk, as a reader found it. `Whole` and `Part` hold its header, and the number
/// of bytes of its events that are unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChunkState {
    /// The chunk is unused.
    Empty,
    Whole(Head, usize),
    Part(Head, usize),
    /// The bytes are not a valid chunk, or they are a chunk whose number does not match its position in the file.
    Nothing,
}

impl ChunkState {
    pub(crate) fn classify(record: Option<u64>, number: u32, bytes: &[u8]) -> Self {
        let header = Begins::bytes(record);
        let payload = bytes.get(header..).unwrap_or_default();
        match Begins::decode(bytes, record) {
            // If the header and all bytes after it are zeros, the chunk is unused, because a writer writes
            // the header before any event.
            Begins::Empty if is_zero(payload) => Self::Empty,
            Begins::Chunk(head) if head.number == number => match head.checked(payload) {
                Checked::All(length) => Self::Whole(head, length),
                Checked::UpTo(length) => Self::Part(head, length),
            },
            Begins::Empty | Begins::Chunk(_) | Begins::Damaged => Self::Nothing,
        }
    }
}

/// Returns true if all bytes are zero. Compares 256 bytes at a time, because a sparse file has megabytes of
/// zeros.
fn is_zero(bytes: &[u8]) -> bool {
    let (pieces, rest) = bytes.as_chunks();
    pieces.iter().all(|piece| *piece == [0; 256]) && rest.iter().all(|byte| *byte == 0)
}

/// If the file was created for a record but nothing was recorded, returns the file's size; otherwise `None`.
/// The fields before the first anchor may already be written, except for the magic number, which is written last.
fn empty(source: &impl Source, header: &[u8]) -> io::Result<Option<u64>> {
    /// The offset of the first anchor in a header block.
    const FIRST_ANCHOR: usize = 256;
    let mut chunk = vec![0; CHUNK_BYTES + 1];
    let behind = source.read_at(&mut chunk, header.len() as u64)?;
    let is_one = is_zero(header.get(..8).unwrap_or(header))
        && is_zero(header.get(FIRST_ANCHOR..).unwrap_or_default())
        && behind <= CHUNK_BYTES
        && is_zero(&chunk[..behind]);
    Ok(is_one.then_some((header.len() + behind) as u64))
}

fn entries(
    first: u32,
    payload: &[u8],
    is_checked: bool,
    damage: &mut Damage,
    each: &mut impl FnMut(Entry<'_>),
) {
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
                    if is_checked {
                        return; // the rest of the text is damaged
                    }
                    // The length in this `String` event may be damaged. The bytes after it may be events, so
                    // they are not skipped.
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
