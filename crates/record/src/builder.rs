//! Builds complete records in memory, with the same writer that the library uses. For tests, examples and fuzzing. A
//! record consists of a header block and of chunks: pieces of the file that hold the events.

use std::io::{self, Write};

use crate::block::{OwnChunk, OwnHeader};
use crate::counter::Counter;
use crate::event::{Event, StringId};
use crate::header::{ClockKind, Ended, HeaderBlock};
use crate::layout::chunk_offset;

/// A record under construction.
#[derive(Debug)]
pub struct Builder {
    header: OwnHeader,
    chunks: Vec<OwnChunk>,
    threads: Vec<ThreadChunk>,
    strings: StringId,
    ended: Option<Ended>,
}

#[derive(Debug)]
struct ThreadChunk {
    tid: u32,
    /// The index of the chunk that the thread writes into at present.
    chunk: usize,
}

impl Builder {
    /// Returns an empty record.
    #[must_use]
    pub fn new(pid: u32, clock: ClockKind) -> Self {
        let new = Self {
            header: OwnHeader::new(),
            chunks: Vec::new(),
            threads: Vec::new(),
            strings: 0,
            ended: None,
        };
        new.header().begin(pid.into(), pid, 1, clock);
        new
    }

    /// Returns the record's header block.
    #[must_use]
    pub const fn header(&self) -> &HeaderBlock {
        self.header.block()
    }

    /// Sets the way in which the process ended.
    pub fn end(&mut self, ended: Ended) {
        self.ended = Some(ended);
    }

    /// Writes an event of thread `tid`. Each thread has chunks of its own.
    pub fn push(&mut self, tid: u32, event: &Event) {
        self.write(tid, |chunk| chunk.push(event));
    }

    /// Writes a string into a thread's chunk, and returns the string's id.
    pub fn string(&mut self, tid: u32, text: &str) -> StringId {
        self.strings += 1;
        let id = self.strings;
        self.write(tid, |chunk| chunk.push_string(id, text));
        id
    }

    /// Writes a string of at most 4096 bytes, which may be invalid UTF-8, and returns its id.
    pub fn text(&mut self, tid: u32, text: &[u8]) -> StringId {
        self.strings += 1;
        let id = self.strings;
        self.write(tid, |chunk| chunk.push_text(id, text));
        id
    }

    /// Ends thread `from`. Thread `to` then continues to write into the chunk of `from`.
    pub fn hand_over(&mut self, from: u32, to: u32) {
        let index = self.thread(from);
        let thread = &mut self.threads[index];
        thread.tid = to;
        self.chunks[thread.chunk].hand_over(to);
    }

    /// Returns the record's bytes. The process counts as still running unless [`Builder::end`] was
    /// called.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut all = Vec::new();
        self.blocks().for_each(|bytes| all.extend_from_slice(bytes));
        all
    }

    /// Writes the record's bytes.
    ///
    /// # Errors
    /// Returns an error if writing to `to` fails.
    pub fn write_to(&self, to: &mut impl Write) -> io::Result<()> {
        self.blocks().try_for_each(|bytes| to.write_all(bytes))
    }

    fn blocks(&self) -> impl Iterator<Item = &[u8]> {
        match self.ended {
            Some(ended) => {
                let length = chunk_offset(self.chunks.len() as u32);
                self.header().finish(ended, length);
            }
            None => self.header().snapshot(),
        }
        std::iter::once(self.header.bytes()).chain(self.chunks.iter().map(OwnChunk::bytes))
    }

    /// Writes into the thread's chunk, or into a new chunk if the current one is full.
    fn write(&mut self, tid: u32, push: impl Fn(&mut OwnChunk) -> bool) {
        let index = self.thread(tid);
        if !push(&mut self.chunks[self.threads[index].chunk]) {
            let chunk = self.begin_chunk(tid);
            self.threads[index].chunk = chunk;
            let _ = push(&mut self.chunks[chunk]);
        }
    }

    /// Returns the index of a thread, and adds the thread if it is new.
    fn thread(&mut self, tid: u32) -> usize {
        if let Some(index) = self.threads.iter().position(|thread| thread.tid == tid) {
            return index;
        }
        let chunk = self.begin_chunk(tid);
        self.threads.push(ThreadChunk { tid, chunk });
        self.threads.len() - 1
    }

    /// Begins a chunk of a thread, and returns the chunk's index.
    fn begin_chunk(&mut self, tid: u32) -> usize {
        let index = self.chunks.len();
        let chunk = OwnChunk::begin(self.header().id(), index as u32, tid);
        self.chunks.push(chunk);
        self.header().add(Counter::Chunks, 1);
        index
    }
}
