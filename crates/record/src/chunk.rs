//! A chunk of a record in memory, and its writer. At any time a chunk has at most one writer. A chunk is a piece of the
//! record's file with a fixed size. It holds events, each encoded as a row of 24 bytes.

use std::mem::offset_of;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::check;
use crate::event::{EncodedEvent, Event, StringId, What};
use crate::layout::{
    BLOCK_BYTES, BLOCKS, CHUNK_BYTES, CHUNK_HEADER_BYTES, CHUNK_MAGIC, EVENT_BYTES, MAX_STRING,
    PAYLOAD_BYTES, UNCHECKED_HEADER_BYTES,
};

/// The header of a chunk, at the chunk's start.
#[repr(C)]
struct ChunkHeader {
    /// [`CHUNK_MAGIC`], which is written when the chunk begins, after the other fields have their first values; 0 in an
    /// unused chunk.
    magic: AtomicU32,
    /// The chunk's index in the file, counted from 0.
    number: AtomicU32,
    /// The lower half is the number of bytes of events after the header, and the upper half is the check (checksum) of
    /// these events. One store writes both halves, so they always agree.
    committed: AtomicU64,
    /// The thread that the chunk's events belong to. From the first `Thread` event on, they belong to the
    /// thread that this event names.
    thread: AtomicU32,
    reserved: AtomicU32,
    /// For each full block of events, the check (checksum) of all events up to the block's end.
    blocks: [AtomicU32; BLOCKS],
    more: [AtomicU32; 4],
}

const _: () = assert!(size_of::<ChunkHeader>() == CHUNK_HEADER_BYTES);

/// The memory of a chunk: [`CHUNK_BYTES`], mapped to a file or in the heap. At most one writer uses it.
#[derive(Debug)]
pub struct Chunk(NonNull<u8>);

// SAFETY: the owner of the value is the chunk's only writer (`at`), and the memory is not tied to a thread.
unsafe impl Send for Chunk {}

impl Chunk {
    /// Returns the chunk at an address.
    ///
    /// # Safety
    /// The [`CHUNK_BYTES`] that begin at `address` must be aligned to 8, readable and writable while the chunk or its
    /// writer is in use. Nothing else in the process may use these bytes while the writer writes.
    #[must_use]
    pub const unsafe fn at(address: NonNull<u8>) -> Self {
        Self(address)
    }

    const fn header(&self) -> &ChunkHeader {
        // SAFETY: the memory is valid and aligned (see `at`). The header consists of atomics, for which every
        // bit pattern is valid.
        unsafe { self.0.cast::<ChunkHeader>().as_ref() }
    }
}

/// Appends events to a chunk.
///
/// The header's byte count and check (checksum) are stored with release ordering after the events themselves.
/// So a reader of the file finds only complete events below the count, even if the process ends during a
/// write.
#[derive(Debug)]
pub struct EventWriter {
    chunk: Chunk,
    committed: Committed,
}

/// The number of bytes of events and their check (checksum), in one word. If a signal handler jumps out of a
/// write, either both have changed or neither has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Committed(u64);

impl Committed {
    #[inline(always)]
    const fn new(used: u32, check: u32) -> Self {
        Self(used as u64 | (check as u64) << 32)
    }

    #[inline(always)]
    const fn used(self) -> usize {
        self.0 as u32 as usize
    }

    #[inline(always)]
    const fn check(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns the byte count and the check (checksum) after one more row (an event, or a part of a string).
    #[inline(always)]
    const fn and(self, words: [u64; 3]) -> Self {
        let used = self.used() + EVENT_BYTES;
        Self::new(used as u32, check::next(self.check(), words))
    }
}

impl EventWriter {
    /// Begins writing into a chunk of zeros, as chunk `number` of the record with the id `record`
    /// ([`HeaderBlock::id`](crate::HeaderBlock::id)).
    #[must_use]
    pub fn begin(chunk: Chunk, record: u64, number: u32, thread: u32) -> Self {
        let header = chunk.header();
        let committed = Committed::new(0, check::first(record, number, thread));
        header.number.store(number.to_le(), Ordering::Relaxed);
        header.thread.store(thread.to_le(), Ordering::Relaxed);
        header
            .committed
            .store(committed.0.to_le(), Ordering::Relaxed);
        header.magic.store(CHUNK_MAGIC.to_le(), Ordering::Release);
        Self { chunk, committed }
    }

    /// Begins chunk `number` of the record with the id `record` again, to overwrite it. The chunk has old
    /// contents, but no thread writes to it any more. A single store discards the contents, so the record
    /// stays readable even if the process is killed at this moment.
    #[must_use]
    pub fn again(chunk: Chunk, record: u64, number: u32, thread: u32) -> Self {
        let header = chunk.header();
        let before = u32::from_le(header.thread.load(Ordering::Relaxed));
        let committed = Committed::new(0, check::first(record, number, before));
        header
            .committed
            .store(committed.0.to_le(), Ordering::Relaxed);
        // The old byte count must be gone before new events are written. Otherwise a reader would take the new events
        // for old ones.
        fence(Ordering::SeqCst);
        let mut writer = Self { chunk, committed };
        if before != thread {
            writer.hand_over(thread);
        }
        writer
    }

    /// Passes the writer to another thread: later events belong to `thread`.
    pub fn hand_over(&mut self, thread: u32) {
        // If this event does not fit into the chunk, no later event fits either, so the result can
        // be ignored.
        let _ = self.push(&Event::new(0, 0, What::Thread { tid: thread }));
    }

    /// Returns the number of events for which the chunk still has room.
    #[must_use]
    #[inline]
    pub const fn room(&self) -> usize {
        (PAYLOAD_BYTES - self.committed.used()) / EVENT_BYTES
    }

    /// Writes an event. If the event does not fit, returns false and writes nothing.
    #[must_use]
    #[inline(always)]
    pub fn push(&mut self, event: &Event) -> bool {
        self.push_row(event.row())
    }

    /// Writes a row (an encoded event). If the row does not fit, returns false and writes nothing.
    #[must_use]
    #[inline(always)]
    pub fn push_row(&mut self, EncodedEvent(words): EncodedEvent) -> bool {
        let Some(place) = self.free().first_chunk_mut() else {
            return false;
        };
        *place = Event::bytes(words);
        self.commit(std::iter::once(words));
        true
    }

    /// Writes a row like [`EventWriter::push_row`], but also returns false without writing if the row would end a
    /// block. Leaving out this rare case keeps the code short where this function is inlined.
    #[must_use]
    #[inline(always)]
    pub fn push_within_block(&mut self, EncodedEvent(words): EncodedEvent) -> bool {
        if ends_block(self.committed.used() + EVENT_BYTES) {
            return false;
        }
        let Some(place) = self.free().first_chunk_mut() else {
            return false;
        };
        *place = Event::bytes(words);
        self.set_committed(self.committed.and(words));
        true
    }

    /// Writes a string, cut at a character boundary to at most [`MAX_STRING`] bytes. If the string does not
    /// fit, returns false and writes nothing. A new chunk has room for any string.
    #[must_use]
    pub fn push_string(&mut self, id: StringId, text: &str) -> bool {
        self.push_text(id, &text.as_bytes()[..text.floor_char_boundary(MAX_STRING)])
    }

    /// Writes a string of at most [`MAX_STRING`] bytes, which may be invalid UTF-8.
    #[must_use]
    pub(crate) fn push_text(&mut self, id: StringId, text: &[u8]) -> bool {
        let length = text.len();
        let padded = length.next_multiple_of(EVENT_BYTES);
        let what = What::String {
            id,
            bytes: length as u16,
        };
        let Some((head, rest)) = self.free().split_first_chunk_mut() else {
            return false;
        };
        let Some(place) = rest.get_mut(..padded) else {
            return false;
        };
        let words = Event::new(0, 0, what).words();
        *head = Event::bytes(words);
        // The rest of the last row is filled with zeros, because a signal handler that jumped out of an
        // earlier write may have left other bytes there.
        let padding = std::iter::repeat(&0);
        for (to, byte) in place.iter_mut().zip(text.iter().chain(padding)) {
            *to = *byte;
        }
        self.commit(std::iter::once(words).chain(text_rows(text)));
        true
    }

    /// Returns the chunk's free space, which follows its events.
    #[inline(always)]
    const fn free(&mut self) -> &mut [u8] {
        let used = self.committed.used();
        // SAFETY: `used` grows only by what was written into this space, so it is at most PAYLOAD_BYTES, and
        // both ends of the slice are within the chunk's CHUNK_BYTES. Nothing else uses these bytes while this
        // writer is borrowed (`Chunk::at`).
        unsafe {
            let start = self.chunk.0.as_ptr().add(CHUNK_HEADER_BYTES + used);
            slice::from_raw_parts_mut(start, PAYLOAD_BYTES - used)
        }
    }

    /// Adds to the chunk's events the rows that were already written into the free space. For this, updates the byte
    /// count and the checks (checksums).
    #[inline(always)]
    fn commit(&mut self, rows: impl Iterator<Item = [u64; 3]>) {
        let mut committed = self.committed;
        for words in rows {
            committed = committed.and(words);
            let used = committed.used();
            if ends_block(used)
                && let Some(block) = self.chunk.header().blocks.get(used / BLOCK_BYTES - 1)
            {
                block.store(committed.check().to_le(), Ordering::Relaxed);
            }
        }
        self.set_committed(committed);
    }

    #[inline(always)]
    fn set_committed(&mut self, committed: Committed) {
        self.committed = committed;
        self.chunk
            .header()
            .committed
            .store(committed.0.to_le(), Ordering::Release);
    }
}

/// Returns true if a block of events ends after `used` bytes, which must be a multiple of an event's size. This
/// function runs for each event, so it tests a power of two instead of dividing: a multiple of an event's size ends a
/// block if it is also a multiple of `LOW`.
#[inline(always)]
const fn ends_block(used: usize) -> bool {
    const LOW: usize = 1 << BLOCK_BYTES.trailing_zeros();
    const { assert!(EVENT_BYTES.is_multiple_of(BLOCK_BYTES / LOW)) };
    used.is_multiple_of(LOW)
}

/// Returns the words of the rows that hold a text. The last row is padded with zeros.
fn text_rows(text: &[u8]) -> impl Iterator<Item = [u64; 3]> {
    text.chunks(EVENT_BYTES).map(|part| {
        let mut row = [0; EVENT_BYTES];
        row[..part.len()].copy_from_slice(part);
        Event::words_of(&row)
    })
}

/// The header of a chunk, as read from a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub number: u32,
    pub thread: u32,
    /// The number of bytes of events, as the file states it. In a damaged chunk, this number may exceed the size of
    /// the chunk.
    pub used: u32,
    /// The stored checks (checksums); `None` if the record's format has none.
    checks: Option<Checks>,
}

/// The checks (checksums) that are stored in a chunk's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Checks {
    first: u32,
    all: u32,
    blocks: [u32; BLOCKS],
}

/// The result of decoding a chunk's first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Begins {
    /// The chunk is unused: its header consists of zeros.
    Empty,
    Chunk(Head),
    /// The bytes are neither zeros, as in an unused chunk, nor a valid header.
    Damaged,
}

/// The part of a chunk's events whose checks (checksums) are right, counted in bytes from the first event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Checked {
    /// All events are unchanged. The number is the byte count in the header.
    All(usize),
    /// Only the first events, with this number of bytes, are known to be unchanged. Among the events after them, at
    /// least one is damaged or missing.
    UpTo(usize),
}

impl Begins {
    /// Decodes the first bytes of a chunk. `record` is the id of the record; `None` for a record without
    /// checks (checksums).
    pub(crate) fn decode(bytes: &[u8], record: Option<u64>) -> Self {
        let word = |at: usize| {
            let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        match word(0) {
            0 => return Self::Empty,
            CHUNK_MAGIC => {}
            _ => return Self::Damaged,
        }
        let number = word(offset_of!(ChunkHeader, number));
        Self::Chunk(match record {
            None => Head {
                number,
                thread: word(8),
                used: word(12),
                checks: None,
            },
            Some(record) => {
                let thread = word(offset_of!(ChunkHeader, thread));
                let committed = offset_of!(ChunkHeader, committed);
                let blocks = offset_of!(ChunkHeader, blocks);
                Head {
                    number,
                    thread,
                    used: word(committed),
                    checks: Some(Checks {
                        first: check::first(record, number, thread),
                        all: word(committed + size_of::<u32>()),
                        blocks: std::array::from_fn(|at| word(blocks + at * size_of::<u32>())),
                    }),
                }
            }
        })
    }

    /// Returns the size of a chunk's header in bytes. `record` is the id of the record; `None` for a record
    /// without checks (checksums), whose headers are shorter.
    pub(crate) const fn bytes(record: Option<u64>) -> usize {
        match record {
            Some(_) => CHUNK_HEADER_BYTES,
            None => UNCHECKED_HEADER_BYTES,
        }
    }
}

impl Head {
    /// Returns the part of `payload` (the bytes that were read after the header) that is unchanged.
    pub(crate) fn checked(&self, payload: &[u8]) -> Checked {
        let used = self.used as usize;
        let events = payload.get(..used);
        let Some(checks) = &self.checks else {
            return events.map_or(Checked::UpTo(payload.len()), |_| Checked::All(used));
        };
        if let Some(events) = events
            && used.is_multiple_of(EVENT_BYTES)
            && checks.all == check(checks.first, events)
        {
            return Checked::All(used);
        }
        let blocks = payload.chunks_exact(BLOCK_BYTES).zip(checks.blocks);
        let mut before = checks.first;
        let whole = blocks.take_while(|(block, after)| {
            before = check(before, block);
            before == *after
        });
        Checked::UpTo(whole.count() * BLOCK_BYTES)
    }
}

/// Returns the check (checksum) of a chunk's events up to and including `rows`. `before` is the check up to the event
/// before `rows`.
fn check(before: u32, rows: &[u8]) -> u32 {
    let (rows, _) = rows.as_chunks();
    rows.iter().fold(before, |before, row| {
        check::next(before, Event::words_of(row))
    })
}

const _: () = assert!(CHUNK_BYTES - CHUNK_HEADER_BYTES == PAYLOAD_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory of one chunk, for the tests.
    struct Memory(Box<[u64]>);

    impl Memory {
        fn new() -> Self {
            Self(vec![0; CHUNK_BYTES / 8].into())
        }

        fn chunk(&mut self) -> Chunk {
            let at = NonNull::from(&mut *self.0).cast();
            // SAFETY: the box has CHUNK_BYTES and outlives the chunk. The tests read it only while no writer
            // is writing.
            unsafe { Chunk::at(at) }
        }
    }

    #[test]
    fn a_chunk_takes_what_fits_and_no_more() {
        let mut memory = Memory::new();
        let mut writer = EventWriter::begin(memory.chunk(), 7, 3, 42);
        let full = writer.room();
        assert_eq!(full * EVENT_BYTES, PAYLOAD_BYTES);
        for n in 0..full as u64 {
            assert!(writer.push(&Event::new(n, 0, What::Iteration { n, excluded: false })));
        }
        assert_eq!(writer.room(), 0);
        assert!(!writer.push(&Event::new(0, 0, What::GilWait)));
        assert!(!writer.push_string(1, ""));
        writer.hand_over(43);
        assert_eq!(writer.room(), 0);
    }

    #[test]
    fn strings_are_cut_at_a_characters_edge() {
        let mut memory = Memory::new();
        let mut writer = EventWriter::begin(memory.chunk(), 7, 0, 1);
        let room = writer.room();
        let long = "x".to_owned() + &"\u{20ac}".repeat(MAX_STRING);
        assert!(writer.push_string(5, &long));
        assert_eq!(room - writer.room(), 1 + MAX_STRING.div_ceil(EVENT_BYTES));
        // The test resets the writer to the chunk's first event, and reads that event back.
        writer.committed = Committed::new(0, 0);
        let bytes = writer.free().first_chunk().unwrap();
        let what = What::String { id: 5, bytes: 4096 };
        assert_eq!(Event::decode(bytes).unwrap().what, what);
    }
}
