//! A chunk of a record in memory, and the one writer that it has at a time.

use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::event::{Event, StringId, What};
use crate::layout::{
    CHUNK_BYTES, CHUNK_HEADER_BYTES, CHUNK_MAGIC, EVENT_BYTES, MAX_STRING, PAYLOAD_BYTES,
};

/// A chunk's header, at its start.
#[repr(C)]
struct ChunkHeader {
    /// [`CHUNK_MAGIC`], written last; 0 in a chunk that is not in use.
    magic: AtomicU32,
    /// The chunk's place in the file.
    number: AtomicU32,
    /// The thread of the events up to the first that names one.
    thread: AtomicU32,
    /// Bytes of events behind the header, all of them whole.
    used: AtomicU32,
    reserved: [AtomicU32; 12],
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
/// The count of bytes in the header grows with a release store after the bytes themselves, so what a
/// reader of the file finds below it is whole, also when the process ended in the middle.
#[derive(Debug)]
pub struct EventWriter {
    chunk: Chunk,
    used: u32,
}

impl EventWriter {
    /// Begins a chunk that was all zeros, as number `number` of the file.
    #[must_use]
    pub fn begin(chunk: Chunk, number: u32, thread: u32) -> Self {
        let header = chunk.header();
        header.number.store(number.to_le(), Ordering::Relaxed);
        header.thread.store(thread.to_le(), Ordering::Relaxed);
        header.used.store(0, Ordering::Relaxed);
        header.magic.store(CHUNK_MAGIC.to_le(), Ordering::Release);
        Self { chunk, used: 0 }
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
        (PAYLOAD_BYTES - self.used as usize) / EVENT_BYTES
    }

    /// Writes an event; `false` and nothing where there is no room.
    #[must_use]
    #[inline(always)]
    pub fn push(&mut self, event: &Event) -> bool {
        let Some(place) = self.free().first_chunk_mut() else {
            return false;
        };
        *place = event.encode();
        self.commit(EVENT_BYTES);
        true
    }

    /// Writes a string, cut to [`MAX_STRING`] bytes at a character's edge; `false` and nothing where
    /// there is no room. A chunk that was just begun has room for any.
    #[must_use]
    pub fn push_string(&mut self, id: StringId, text: &str) -> bool {
        let length = text.floor_char_boundary(MAX_STRING);
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
        *head = Event::new(0, 0, what).encode();
        // What lies behind the end was never written: the padding is zeros.
        for (to, byte) in place.iter_mut().zip(&text.as_bytes()[..length]) {
            *to = *byte;
        }
        self.commit(EVENT_BYTES + padded);
        true
    }

    /// The room behind the events.
    #[inline(always)]
    const fn free(&mut self) -> &mut [u8] {
        let used = self.used as usize;
        // SAFETY: `used` grows by what was written into this room, so it is at most PAYLOAD_BYTES and both ends
        // lie in the chunk's CHUNK_BYTES, which nobody else uses while this writer is borrowed (`Chunk::at`).
        unsafe {
            let start = self.chunk.0.as_ptr().add(CHUNK_HEADER_BYTES + used);
            slice::from_raw_parts_mut(start, PAYLOAD_BYTES - used)
        }
    }

    #[inline(always)]
    fn commit(&mut self, bytes: usize) {
        self.used += bytes as u32;
        self.chunk
            .header()
            .used
            .store(self.used.to_le(), Ordering::Release);
    }
}

/// A chunk's header, read from a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub number: u32,
    pub thread: u32,
    /// As the file says, which may be more than the chunk has.
    pub used: u32,
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

impl Begins {
    /// Reads the start of a chunk.
    pub(crate) fn decode(bytes: &[u8; CHUNK_HEADER_BYTES]) -> Self {
        let (words, _) = bytes.as_chunks::<4>();
        let [magic, number, thread, used] = [0, 1, 2, 3].map(|at| u32::from_le_bytes(words[at]));
        match magic {
            0 => Self::Empty,
            CHUNK_MAGIC => Self::Chunk(Head {
                number,
                thread,
                used,
            }),
            _ => Self::Damaged,
        }
    }
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
        let mut writer = EventWriter::begin(memory.chunk(), 3, 42);
        let full = writer.room();
        assert_eq!(full * EVENT_BYTES, PAYLOAD_BYTES);
        for n in 0..full as u64 {
            assert!(writer.push(&Event::new(n, 0, What::Iteration { n })));
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
        let mut writer = EventWriter::begin(memory.chunk(), 0, 1);
        let room = writer.room();
        let long = "x".to_owned() + &"\u{20ac}".repeat(MAX_STRING);
        assert!(writer.push_string(5, &long));
        assert_eq!(room - writer.room(), 1 + MAX_STRING.div_ceil(EVENT_BYTES));
        // Back to the first event of the chunk.
        writer.used = 0;
        let bytes = writer.free().first_chunk().unwrap();
        let what = What::String { id: 5, bytes: 4096 };
        assert_eq!(Event::decode(bytes).unwrap().what, what);
    }
}
