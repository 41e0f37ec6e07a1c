//! A chunk of a record in memory, and the one writer that it has at a time.

use std::mem::offset_of;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::check;
use crate::event::{Event, Row, StringId, What};
use crate::layout::{
    BLOCK_BYTES, BLOCKS, CHUNK_BYTES, CHUNK_HEADER_BYTES, CHUNK_MAGIC, EVENT_BYTES, MAX_STRING,
    PAYLOAD_BYTES, UNCHECKED_HEADER_BYTES,
};

/// A chunk's header, at its start.
#[repr(C)]
struct ChunkHeader {
    /// [`CHUNK_MAGIC`], written last; 0 in a chunk that is not in use.
    magic: AtomicU32,
    /// The chunk's place in the file.
    number: AtomicU32,
    /// Bytes of events behind the header, and above them their check: one store, so that one is never without
    /// the other.
    committed: AtomicU64,
    /// The thread of the events up to the first that names one.
    thread: AtomicU32,
    reserved: AtomicU32,
    /// The check of the events up to the end of each block that is full.
    blocks: [AtomicU32; BLOCKS],
    more: [AtomicU32; 4],
}

const _: () = assert!(size_of::<ChunkHeader>() == CHUNK_HEADER_BYTES);

/// The memory of a chunk that nobody else writes: [`CHUNK_BYTES`] that a file is mapped to.
#[derive(Debug)]
pub struct Chunk(NonNull<u8>);

// SAFETY: whoever has the chunk is the only one who writes its memory (`at`), which belongs to no thread.
unsafe impl Send for Chunk {}

impl Chunk {
    /// The chunk at an address.
    ///
    /// # Safety
    /// [`CHUNK_BYTES`] from there, aligned to 8, can be read and written for as long as the chunk or its
    /// writer is used, and nothing else of the process uses them while the writer writes.
    #[must_use]
    pub const unsafe fn at(address: NonNull<u8>) -> Self {
        Self(address)
    }

    const fn header(&self) -> &ChunkHeader {
        // SAFETY: the memory is there and aligned (`at`), and the header consists of atomics, for which
        // every bit pattern is a value.
        unsafe { self.0.cast::<ChunkHeader>().as_ref() }
    }
}

/// Writes events into a chunk, behind those that are there.
///
/// The count of bytes in the header grows, together with their check, with a release store after the bytes
/// themselves, so what a reader of the file finds below it is whole, also when the process ended in the middle.
#[derive(Debug)]
pub struct EventWriter {
    chunk: Chunk,
    committed: Committed,
}

/// Bytes of events, and above them their check. In one word: a signal handler that jumps out of a write
/// leaves both or neither.
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

    /// With one more row.
    #[inline(always)]
    const fn and(self, words: [u64; 3]) -> Self {
        let used = self.used() + EVENT_BYTES;
        Self::new(used as u32, check::next(self.check(), words))
    }
}

impl EventWriter {
    /// Begins a chunk that was all zeros, as number `number` of the record that has the id `record`
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

    /// Begins chunk `number` of the record `record` anew, which is in use and which nobody writes to any more: what it
    /// holds is gone with one store, so that a process may be killed at any moment.
    #[must_use]
    pub fn again(chunk: Chunk, record: u64, number: u32, thread: u32) -> Self {
        let header = chunk.header();
        let before = u32::from_le(header.thread.load(Ordering::Relaxed));
        let committed = Committed::new(0, check::first(record, number, before));
        header
            .committed
            .store(committed.0.to_le(), Ordering::Relaxed);
        // Before anything of what comes.
        fence(Ordering::SeqCst);
        let mut writer = Self { chunk, committed };
        if before != thread {
            writer.hand_over(thread);
        }
        writer
    }

    /// Hands the writer over to another thread: what follows is of `thread`.
    pub fn hand_over(&mut self, thread: u32) {
        // Where this has no room nothing else has.
        let _ = self.push(&Event::new(0, 0, What::Thread { tid: thread }));
    }

    /// How many more events there is room for.
    #[must_use]
    #[inline]
    pub const fn room(&self) -> usize {
        (PAYLOAD_BYTES - self.committed.used()) / EVENT_BYTES
    }

    /// Writes an event; `false` and nothing where there is no room.
    #[must_use]
    #[inline(always)]
    pub fn push(&mut self, event: &Event) -> bool {
        self.push_row(event.row())
    }

    /// As [`EventWriter::push`].
    #[must_use]
    #[inline(always)]
    pub fn push_row(&mut self, Row(words): Row) -> bool {
        let Some(place) = self.free().first_chunk_mut() else {
            return false;
        };
        *place = Event::bytes(words);
        self.commit(std::iter::once(words));
        true
    }

    /// As [`EventWriter::push_row`], but `false` and nothing where a block ends with the event, too: one event in many, and
    /// little code for the others.
    #[must_use]
    #[inline(always)]
    pub fn push_within_block(&mut self, Row(words): Row) -> bool {
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

    /// Writes a string, cut to [`MAX_STRING`] bytes at a character's edge; `false` and nothing where
    /// there is no room. A chunk that was just begun has room for any.
    #[must_use]
    pub fn push_string(&mut self, id: StringId, text: &str) -> bool {
        self.push_text(id, &text.as_bytes()[..text.floor_char_boundary(MAX_STRING)])
    }

    /// As [`EventWriter::push_string`], of bytes that may be no UTF-8, at most [`MAX_STRING`].
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
        // A call that a signal handler jumped out of may have left something where the padding is.
        let padding = std::iter::repeat(&0);
        for (to, byte) in place.iter_mut().zip(text.iter().chain(padding)) {
            *to = *byte;
        }
        self.commit(std::iter::once(words).chain(text_rows(text)));
        true
    }

    /// The room behind the events.
    #[inline(always)]
    const fn free(&mut self) -> &mut [u8] {
        let used = self.committed.used();
        // SAFETY: `used` grows by what was written into this room, so it is at most PAYLOAD_BYTES and both ends
        // lie in the chunk's CHUNK_BYTES, which nobody else uses while this writer is borrowed (`Chunk::at`).
        unsafe {
            let start = self.chunk.0.as_ptr().add(CHUNK_HEADER_BYTES + used);
            slice::from_raw_parts_mut(start, PAYLOAD_BYTES - used)
        }
    }

    /// Commits rows that were written into the room, one after the other.
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

/// Whether a block ends behind so many bytes of whole events. Found without a division, as it is asked at each event.
#[inline(always)]
const fn ends_block(used: usize) -> bool {
    const LOW: usize = 1 << BLOCK_BYTES.trailing_zeros();
    const { assert!(EVENT_BYTES.is_multiple_of(BLOCK_BYTES / LOW)) };
    used.is_multiple_of(LOW)
}

/// The words of a text's rows, the last one with zeros at its end.
fn text_rows(text: &[u8]) -> impl Iterator<Item = [u64; 3]> {
    text.chunks(EVENT_BYTES).map(|part| {
        let mut row = [0; EVENT_BYTES];
        row[..part.len()].copy_from_slice(part);
        Event::words_of(&row)
    })
}

/// A chunk's header, read from a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub number: u32,
    pub thread: u32,
    /// As the file says, which may be more than the chunk has.
    pub used: u32,
    /// None in a record without checks.
    checks: Option<Checks>,
}

/// The checks that a chunk's header has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Checks {
    first: u32,
    all: u32,
    blocks: [u32; BLOCKS],
}

/// What the first bytes of a chunk say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Begins {
    /// Not in use.
    Empty,
    Chunk(Head),
    /// Something else.
    Damaged,
}

/// How many bytes of a chunk's events are as they were written, from the first one on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Checked {
    /// All that the chunk says it has.
    All(usize),
    /// So many, and then something else.
    UpTo(usize),
}

impl Begins {
    /// Reads the start of a chunk of the record that has the id `record`; `None`: of one without checks.
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

    /// Bytes of a chunk's header.
    pub(crate) const fn bytes(record: Option<u64>) -> usize {
        match record {
            Some(_) => CHUNK_HEADER_BYTES,
            None => UNCHECKED_HEADER_BYTES,
        }
    }
}

impl Head {
    /// What of the bytes behind the header, as far as they are there, is as it was written.
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

/// The check behind some rows.
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

    /// A chunk's memory, and what is written in it.
    struct Memory(Box<[u64]>);

    impl Memory {
        fn new() -> Self {
            Self(vec![0; CHUNK_BYTES / 8].into())
        }

        fn chunk(&mut self) -> Chunk {
            let at = NonNull::from(&mut *self.0).cast();
            // SAFETY: the box has CHUNK_BYTES, is dropped last, and is read only when nothing is being written.
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
        // Back to the first event of the chunk.
        writer.committed = Committed::new(0, 0);
        let bytes = writer.free().first_chunk().unwrap();
        let what = What::String { id: 5, bytes: 4096 };
        assert_eq!(Event::decode(bytes).unwrap().what, what);
    }
}
