//! A chunk of a record in memory, and the one writer that it has at a time.

use std::ptr::{self, NonNull};
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

/// The memory of a chunk: [`CHUNK_BYTES`] that a file is mapped to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk(NonNull<u8>);

// SAFETY: a chunk is an address; who may write there is up to EventWriter.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// The chunk at an address.
    ///
    /// # Safety
    /// [`CHUNK_BYTES`] from there, aligned to 8, can be read and written for as long as the chunk or a
    /// writer of it is used.
    #[must_use]
    pub const unsafe fn at(address: NonNull<u8>) -> Self {
        Self(address)
    }

    /// Where it is.
    #[must_use]
    pub const fn address(self) -> NonNull<u8> {
        self.0
    }

    const fn header(&self) -> &ChunkHeader {
        // SAFETY: the memory is there and aligned (`at`), and the header has atomics alone.
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
    ///
    /// # Safety
    /// The chunk has no other writer as long as this one is used.
    #[must_use]
    pub unsafe fn begin(chunk: Chunk, number: u32, thread: u32) -> Self {
        let header = chunk.header();
        header.number.store(number.to_le(), Ordering::Relaxed);
        header.thread.store(thread.to_le(), Ordering::Relaxed);
        header.used.store(0, Ordering::Relaxed);
        header.magic.store(CHUNK_MAGIC.to_le(), Ordering::Release);
        Self { chunk, used: 0 }
    }

    /// Goes on in a chunk that another writer has begun and left; what follows is of `thread`.
    ///
    /// # Safety
    /// As for [`EventWriter::begin`]; what the last writer did happened before.
    #[must_use]
    pub unsafe fn resume(chunk: Chunk, thread: u32) -> Self {
        let used = u32::from_le(chunk.header().used.load(Ordering::Relaxed));
        // Written by the program by mistake, it must lead nowhere but to a chunk that is full.
        let good = used as usize <= PAYLOAD_BYTES && (used as usize).is_multiple_of(EVENT_BYTES);
        let used = if good { used } else { PAYLOAD_BYTES as u32 };
        let mut writer = Self { chunk, used };
        // Where this has no room nothing else has.
        let _ = writer.push(&Event::new(0, 0, What::Thread { tid: thread }));
        writer
    }

    /// The chunk that it writes to.
    #[must_use]
    pub const fn chunk(&self) -> Chunk {
        self.chunk
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
        if self.room() == 0 {
            return false;
        }
        let bytes = event.encode();
        // SAFETY: there is room for an event, and this is the chunk's one writer.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.end(), EVENT_BYTES) };
        self.commit(EVENT_BYTES);
        true
    }

    /// Writes a string, cut to [`MAX_STRING`] bytes at a character's edge; `false` and nothing where
    /// there is no room. A chunk that was just begun has room for any.
    #[must_use]
    pub fn push_string(&mut self, id: StringId, text: &str) -> bool {
        let length = text.floor_char_boundary(MAX_STRING);
        let padded = length.next_multiple_of(EVENT_BYTES);
        if self.room() < 1 + padded / EVENT_BYTES {
            return false;
        }
        let what = What::String {
            id,
            bytes: length as u16,
        };
        let head = Event::new(0, 0, what).encode();
        let end = self.end();
        // SAFETY: there is room for the event and the padded text, and this is the one writer. What
        // lies behind the end was never written: the padding is zeros.
        unsafe {
            ptr::copy_nonoverlapping(head.as_ptr(), end, EVENT_BYTES);
            ptr::copy_nonoverlapping(text.as_ptr(), end.add(EVENT_BYTES), length);
        }
        self.commit(EVENT_BYTES + padded);
        true
    }

    /// Where the next event goes.
    #[inline]
    const fn end(&self) -> *mut u8 {
        // SAFETY: `used` is at most the payload.
        unsafe {
            self.chunk
                .0
                .as_ptr()
                .add(CHUNK_HEADER_BYTES + self.used as usize)
        }
    }

    #[inline]
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
            // SAFETY: the box is large enough, and the tests drop it last.
            unsafe { Chunk::at(at) }
        }
    }

    #[test]
    fn a_chunk_takes_what_fits_and_no_more() {
        let mut memory = Memory::new();
        let chunk = memory.chunk();
        // SAFETY: no other writer.
        let mut writer = unsafe { EventWriter::begin(chunk, 3, 42) };
        let full = writer.room();
        assert_eq!(full * EVENT_BYTES, PAYLOAD_BYTES);
        for n in 0..full as u64 {
            assert!(writer.push(&Event::new(n, 0, What::Iteration { n })));
        }
        assert_eq!(writer.room(), 0);
        assert!(!writer.push(&Event::new(0, 0, What::GilWait)));
        assert!(!writer.push_string(1, ""));
        // SAFETY: the last writer is done with it.
        let again = unsafe { EventWriter::resume(chunk, 43) };
        assert_eq!(again.room(), 0);
    }

    #[test]
    fn strings_are_cut_at_a_characters_edge() {
        let mut memory = Memory::new();
        // SAFETY: no other writer.
        let mut writer = unsafe { EventWriter::begin(memory.chunk(), 0, 1) };
        let room = writer.room();
        let long = "x".to_owned() + &"\u{20ac}".repeat(MAX_STRING);
        assert!(writer.push_string(5, &long));
        assert_eq!(room - writer.room(), 1 + MAX_STRING.div_ceil(EVENT_BYTES));
        // SAFETY: the first event of the chunk.
        let bytes = unsafe { writer.chunk.0.add(CHUNK_HEADER_BYTES).cast().read() };
        let what = What::String { id: 5, bytes: 4096 };
        assert_eq!(Event::decode(&bytes).unwrap().what, what);
    }
}
