//! Heap memory for header blocks and chunks of records that are not mapped to a file.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use crate::chunk::{Chunk, EventWriter};
use crate::event::{Event, StringId};
use crate::header::HeaderBlock;
use crate::layout::{CHUNK_BYTES, HEADER_BYTES};

/// A record's header block in heap memory.
#[derive(Debug)]
pub(crate) struct OwnHeader(Block);

impl OwnHeader {
    pub(crate) fn new() -> Self {
        Self(Block::new(HEADER_BYTES))
    }

    pub(crate) const fn block(&self) -> &HeaderBlock {
        // SAFETY: the memory has HEADER_BYTES, aligned to 8, and lives as long as `self`, which is borrowed.
        unsafe { HeaderBlock::at(self.0.address()) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// A chunk in heap memory, with the writer that appends events to it.
#[derive(Debug)]
pub(crate) struct OwnChunk {
    memory: Block,
    writer: EventWriter,
}

impl OwnChunk {
    pub(crate) fn begin(record: u64, number: u32, thread: u32) -> Self {
        let memory = Block::new(CHUNK_BYTES);
        // SAFETY: the memory has CHUNK_BYTES, aligned to 8, and lives as long as the writer, which never
        // leaves this struct. Writing borrows the struct mutably, so no caller holds `bytes` at that time.
        let chunk = unsafe { Chunk::at(memory.address()) };
        Self {
            memory,
            writer: EventWriter::begin(chunk, record, number, thread),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }

    #[must_use]
    pub(crate) fn push(&mut self, event: &Event) -> bool {
        self.writer.push(event)
    }

    #[must_use]
    pub(crate) fn push_string(&mut self, id: StringId, text: &str) -> bool {
        self.writer.push_string(id, text)
    }

    #[must_use]
    #[cfg(feature = "builder")]
    pub(crate) fn push_text(&mut self, id: StringId, text: &[u8]) -> bool {
        self.writer.push_text(id, text)
    }

    #[cfg(feature = "builder")]
    pub(crate) fn hand_over(&mut self, thread: u32) {
        self.writer.hand_over(thread);
    }

    /// Returns the number of events that still fit into the chunk.
    #[cfg(feature = "stream")]
    pub(crate) const fn room(&self) -> usize {
        self.writer.room()
    }
}

/// Zeroed heap memory, aligned for a chunk or a header block.
#[derive(Debug)]
struct Block(NonNull<[AtomicU64]>);

impl Block {
    fn new(bytes: usize) -> Self {
        let words: Box<[AtomicU64]> = (0..bytes / size_of::<u64>())
            .map(|_| AtomicU64::new(0))
            .collect();
        Self(NonNull::from(Box::leak(words)))
    }

    const fn address(&self) -> NonNull<u8> {
        self.0.cast()
    }

    fn bytes(&self) -> &[u8] {
        let length = self.0.len() * size_of::<u64>();
        // SAFETY: this is the block's own memory, of this length. A chunk is not written while its bytes are
        // borrowed (`OwnChunk`). A header is written before its bytes are borrowed, because neither the
        // builder nor the stream keeps the borrowed bytes.
        unsafe { std::slice::from_raw_parts(self.address().as_ptr(), length) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the pointer is from `Box::leak` in `new` and is freed only here. The writer of this memory
        // is dropped with it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
