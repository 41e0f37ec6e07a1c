//! Writes a record with the events of one thread to a file as the record grows. Used by tllmprof's own processes, which
//! write the file with system calls instead of mapping it. A chunk is a piece of the file that holds events.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::SystemTime;

use crate::block::{OwnChunk, OwnHeader};
use crate::counter::Counter;
use crate::event::{Event, StringId};
use crate::header::{ClockKind, Ended, HeaderBlock};
use crate::layout::{CHUNK_HEADER_BYTES, EVENT_BYTES, MAGIC, PAYLOAD_BYTES, chunk_offset};

/// Writes a record. Pushed events reach the file at the next [`StreamWriter::flush`]. Even if the process is
/// killed, the file can be read up to the last flush.
#[derive(Debug)]
pub struct StreamWriter {
    file: File,
    header: OwnHeader,
    chunk: OwnChunk,
    thread: u32,
    number: u32,
    /// The number of bytes of the current chunk's events that are in the file.
    flushed: usize,
    strings: StringId,
}

impl StreamWriter {
    /// Begins the record of a process in an empty file. The caller should store the first anchor (the same moment on
    /// three clocks) right afterwards.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
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
        // The first word of the header (the magic number) is written last. Until then, a reader takes the file
        // for one in which nothing was recorded.
        let (first, rest) = new.header.bytes().split_at(MAGIC.len());
        new.file.write_all_at(rest, first.len() as u64)?;
        new.file.write_all_at(first, 0)?;
        new.begin_chunk()?;
        Ok(new)
    }

    /// Returns the header block. The next flush writes it to the file.
    #[must_use]
    pub const fn header(&self) -> &HeaderBlock {
        self.header.block()
    }

    /// Returns the size that the file has after the next flush, in bytes.
    #[must_use]
    pub const fn length(&self) -> u64 {
        chunk_offset(self.number) + (CHUNK_HEADER_BYTES + self.used()) as u64
    }

    /// Adds an event.
    ///
    /// # Errors
    /// Returns an error if a full chunk could not be written to the file.
    pub fn push(&mut self, event: &Event) -> io::Result<()> {
        if !self.chunk.push(event) {
            self.next_chunk()?;
            let _ = self.chunk.push(event);
        }
        Ok(())
    }

    /// Adds a string, and returns its id.
    ///
    /// # Errors
    /// Returns an error if a full chunk could not be written to the file.
    pub fn string(&mut self, text: &str) -> io::Result<StringId> {
        self.strings += 1;
        if !self.chunk.push_string(self.strings, text) {
            self.next_chunk()?;
            let _ = self.chunk.push_string(self.strings, text);
        }
        Ok(self.strings)
    }

    /// Writes all events and the header to the file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written. Data that was flushed before stays intact.
    pub fn flush(&mut self) -> io::Result<()> {
        self.flush_chunk()?;
        self.header().snapshot();
        self.file.write_all_at(self.header.bytes(), 0)
    }

    /// Writes all events and the header to the file for the last time, together with the way in which the
    /// process ended.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written. Data that was flushed before stays intact.
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
        // The start of the chunk has the byte count of its events. This part is written after the events, so that the
        // count never includes events that are not in the file.
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

    /// Writes the new chunk's header before its events, and counts the chunk once it is in the file.
    fn begin_chunk(&mut self) -> io::Result<()> {
        self.flush_chunk()?;
        self.header().add(Counter::Chunks, 1);
        Ok(())
    }
}
