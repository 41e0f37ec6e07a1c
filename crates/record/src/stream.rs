//! A record of one thread that is written to a file as it grows: for who is not in somebody else's
//! process and need not map it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::SystemTime;

use crate::block::{OwnChunk, OwnHeader};
use crate::counter::Counter;
use crate::event::{Event, StringId};
use crate::header::{ClockKind, Ended, HeaderBlock};
use crate::layout::{CHUNK_HEADER_BYTES, EVENT_BYTES, MAGIC, PAYLOAD_BYTES, chunk_offset};

/// Writes a record. What was pushed is in the file after [`StreamWriter::flush`]; whatever ends the
/// process, the file reads up to the last one.
#[derive(Debug)]
pub struct StreamWriter {
    file: File,
    header: OwnHeader,
    chunk: OwnChunk,
    thread: u32,
    number: u32,
    /// Bytes of the chunk's payload that are in the file.
    flushed: usize,
    strings: StringId,
}

impl StreamWriter {
    /// Begins the record of a process in a file that is empty. The first anchor should follow at once.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn begin(file: File, pid: u32, parent: u32, clock: ClockKind) -> io::Result<Self> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let id = now.map_or(0, |now| now.as_nanos() as u64) ^ u64::from(pid) << 32;
        let mut new = Self {
            file,
            header: OwnHeader::new(),
            chunk: OwnChunk::begin(id, 0, pid),
            thread: pid,
            number: 0,
            flushed: 0,
            strings: 0,
        };
        new.header().begin(id, pid, parent, clock);
        // An empty file becomes a whole header: its first word goes last.
        let (first, rest) = new.header.bytes().split_at(MAGIC.len());
        new.file.write_all_at(rest, first.len() as u64)?;
        new.file.write_all_at(first, 0)?;
        new.begin_chunk()?;
        Ok(new)
    }

    /// Its header block, which goes to the file with the next flush.
    #[must_use]
    pub const fn header(&self) -> &HeaderBlock {
        self.header.block()
    }

    /// Bytes of the file, with what is not flushed.
    #[must_use]
    pub const fn length(&self) -> u64 {
        chunk_offset(self.number) + (CHUNK_HEADER_BYTES + self.used()) as u64
    }

    /// Adds an event.
    ///
    /// # Errors
    /// Where a chunk was full and could not be written.
    pub fn push(&mut self, event: &Event) -> io::Result<()> {
        if !self.chunk.push(event) {
            self.next_chunk()?;
            let _ = self.chunk.push(event);
        }
        Ok(())
    }

    /// Adds a string; its id.
    ///
    /// # Errors
    /// As of [`StreamWriter::push`].
    pub fn string(&mut self, text: &str) -> io::Result<StringId> {
        self.strings += 1;
        if !self.chunk.push_string(self.strings, text) {
            self.next_chunk()?;
            let _ = self.chunk.push_string(self.strings, text);
        }
        Ok(self.strings)
    }

    /// Brings the file up to date.
    ///
    /// # Errors
    /// Where it cannot be written. What was there before stays whole.
    pub fn flush(&mut self) -> io::Result<()> {
        self.flush_chunk()?;
        self.header().snapshot();
        self.file.write_all_at(self.header.bytes(), 0)
    }

    /// Brings the file up to date for the last time, with how the process ended.
    ///
    /// # Errors
    /// Where it cannot be written. What was there before stays whole.
    pub fn finish(mut self, ended: Ended) -> io::Result<()> {
        self.flush_chunk()?;
        self.header().finish(ended, self.length());
        self.file.write_all_at(self.header.bytes(), 0)
    }

    fn flush_chunk(&mut self) -> io::Result<()> {
        let used = self.used();
        let (head, payload) = self.chunk.bytes().split_at(CHUNK_HEADER_BYTES);
        let at = chunk_offset(self.number);
        let new = payload.get(self.flushed..used).unwrap_or_default();
        let place = at + (CHUNK_HEADER_BYTES + self.flushed) as u64;
        self.file.write_all_at(new, place)?;
        // The count of what is whole goes last.
        self.file.write_all_at(head, at)?;
        self.flushed = used;
        Ok(())
    }

    const fn used(&self) -> usize {
        PAYLOAD_BYTES - self.chunk.room() * EVENT_BYTES
    }

    fn next_chunk(&mut self) -> io::Result<()> {
        self.flush()?;
        self.number += 1;
        self.chunk = OwnChunk::begin(self.header().id(), self.number, self.thread);
        self.flushed = 0;
        self.begin_chunk()
    }

    /// A chunk's header comes before its events, and is counted when it is there.
    fn begin_chunk(&mut self) -> io::Result<()> {
        self.flush_chunk()?;
        self.header().add(Counter::Chunks, 1);
        Ok(())
    }
}
