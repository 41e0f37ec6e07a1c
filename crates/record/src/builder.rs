//! Whole records made in memory, by the writer that the library uses: for tests, examples and
//! fuzzing.

use std::io::{self, Write};

use crate::block::Block;
use crate::chunk::{Chunk, EventWriter};
use crate::event::{Event, StringId};
use crate::header::{ClockKind, HeaderBlock};
use crate::layout::{CHUNK_BYTES, HEADER_BYTES};

/// A record that grows.
#[derive(Debug)]
pub struct Builder {
    header: Block,
    chunks: Vec<Block>,
    threads: Vec<Thread>,
    strings: StringId,
}

#[derive(Debug)]
struct Thread {
    tid: u32,
    writer: EventWriter,
}

impl Builder {
    /// A record with nothing in it.
    #[must_use]
    pub fn new(pid: u32, clock: ClockKind) -> Self {
        let new = Self {
            header: Block::new(HEADER_BYTES),
            chunks: Vec::new(),
            threads: Vec::new(),
            strings: 0,
        };
        new.header().begin(pid, 1, clock);
        new
    }

    /// Its header block.
    pub fn header(&self) -> &HeaderBlock {
        // SAFETY: the block is large enough and lives as long as the builder that is borrowed.
        unsafe { HeaderBlock::at(self.header.address()) }
    }

    /// Writes an event of a thread, in a chunk of that thread's own.
    pub fn push(&mut self, tid: u32, event: &Event) {
        let index = self.thread(tid);
        if !self.threads[index].writer.push(event) {
            self.threads[index].writer = self.chunk(tid);
            let _ = self.threads[index].writer.push(event);
        }
    }

    /// Writes a string in a chunk of a thread's; its id.
    pub fn string(&mut self, tid: u32, text: &str) -> StringId {
        self.strings += 1;
        let id = self.strings;
        let index = self.thread(tid);
        if !self.threads[index].writer.push_string(id, text) {
            self.threads[index].writer = self.chunk(tid);
            let _ = self.threads[index].writer.push_string(id, text);
        }
        id
    }

    /// Ends a thread: another one goes on in its chunk.
    pub fn hand_over(&mut self, from: u32, to: u32) {
        let index = self.thread(from);
        let chunk = self.threads[index].writer.chunk();
        // SAFETY: the old writer is replaced here.
        let writer = unsafe { EventWriter::resume(chunk, to) };
        self.threads[index] = Thread { tid: to, writer };
    }

    /// The record's bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut all = Vec::new();
        self.blocks()
            .for_each(|block| all.extend_from_slice(block.bytes()));
        all
    }

    /// Writes the record's bytes.
    ///
    /// # Errors
    /// Where they cannot be written.
    pub fn write_to(&self, to: &mut impl Write) -> io::Result<()> {
        self.blocks()
            .try_for_each(|block| to.write_all(block.bytes()))
    }

    fn blocks(&self) -> impl Iterator<Item = &Block> {
        std::iter::once(&self.header).chain(&self.chunks)
    }

    fn thread(&mut self, tid: u32) -> usize {
        if let Some(index) = self.threads.iter().position(|thread| thread.tid == tid) {
            return index;
        }
        let writer = self.chunk(tid);
        self.threads.push(Thread { tid, writer });
        self.threads.len() - 1
    }

    fn chunk(&mut self, tid: u32) -> EventWriter {
        let number = self.chunks.len() as u32;
        let block = Block::new(CHUNK_BYTES);
        // SAFETY: the block is large enough and stays where it is until the builder is dropped.
        let chunk = unsafe { Chunk::at(block.address()) };
        self.chunks.push(block);
        // SAFETY: the only writer of a new chunk.
        unsafe { EventWriter::begin(chunk, number, tid) }
    }
}
