//! Copies a record whose process still runs and overwrites chunks. The copy shows the record as of one moment: it can
//! be read several times, and every window in it is complete.
//!
//! The process marks windows as dropped before it overwrites their chunks, and the header is copied after all chunks.
//! So if a window is not marked in the copied header, its chunks were not overwritten before they were copied. Events
//! that ended after a certain moment are left out, so that the last window has events of all threads up to the same
//! time.
//!
//! Chunks are copied from the last to the first. An early chunk has the event that marks the first of the iterations
//! outside windows that the record keeps. The process rewrites this event when it drops iterations, so the event must
//! be copied after the iterations.

#[cfg(test)]
mod tests;

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::check;
use crate::chunk::{Begins, Head};
use crate::counter::Counter;
use crate::event::{Event, What};
use crate::header::Ended;
use crate::layout::{CHUNK_BYTES, EVENT_BYTES, HEADER_BYTES, chunk_offset};
use crate::read_header::Header;
use crate::reader::{ChunkState, EMPTY_LIMIT, RecordError};
use crate::source::Source;

/// The maximum number of attempts to copy a chunk that the process overwrites during the copy. The same limit applies
/// to the passes over the record: a pass is repeated if the process has begun new chunks meanwhile.
const MAX_ATTEMPTS: u32 = 16;

/// The largest number of names that are tried for the file of a copy.
const MAX_NAMES: u32 = 1000;

/// Opens a record for reading. If the record's process may still overwrite chunks, opens an unnamed copy instead of
/// the record itself.
///
/// The copy is in the record's folder or in the folder for temporary files. The disk must have twice the record's size
/// free, so that the program does not run out of space. If neither folder has that space, or if the process ends
/// meanwhile, the record itself is opened.
///
/// # Errors
/// Returns an error if the record cannot be read.
pub fn open_still(path: &Path) -> Result<File, RecordError> {
    // The path may be that of a FIFO (named pipe). Opening it would block until another process
    // writes to it.
    if !fs::metadata(path)?.is_file() {
        return Err(RecordError::NoRecord);
    }
    let file = File::open(path)?;
    if !is_used_again(&file)? {
        return Ok(file);
    }
    let bytes = file.metadata()?.len();
    // If the path is only a file name, `parent` returns an empty path, which stands for the current
    // folder.
    let folder = path.parent().unwrap_or(path);
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let mut folders = [folder.to_owned(), std::env::temp_dir()].into_iter();
    let copy = folders.find_map(|folder| {
        let copy = without_name(&folder).ok()?;
        if !has_room(&copy, bytes) {
            return None;
        }
        copy_still(&file, &copy).ok().map(|()| copy)
    });
    match copy {
        // If the process has ended in the meantime, the record itself no longer changes and is used.
        Some(copy) if is_used_again(&file)? => Ok(copy),
        _ => Ok(file),
    }
}

/// Returns true if the file's disk has free space for twice `bytes`. Returns false for a file system in memory,
/// because the copy could leave the program without memory.
fn has_room(file: &File, bytes: u64) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    let kind = rustix::fs::fstatfs(file).map(|of| of.f_type as u64 & 0xffff_ffff);
    let room = rustix::fs::fstatvfs(file).map(|of| of.f_bavail.saturating_mul(of.f_frsize));
    kind.is_ok_and(|kind| kind != TMPFS && kind != RAMFS)
        && room.is_ok_and(|room| room / 2 >= bytes)
}

/// Copies a record to the path `to`.
///
/// # Errors
/// Returns an error if the record cannot be read, if the copy cannot be written, or if `to` is the record itself.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let file = File::open(from)?;
    let which = |of: &Metadata| (of.dev(), of.ino());
    if fs::metadata(to).map(|to| which(&to)).ok() == Some(which(&file.metadata()?)) {
        // Opening `to` for writing truncates it. If it were the record itself, the process that writes the
        // record would die of SIGBUS at its next write.
        let what = "a record cannot be copied to itself";
        return Err(io::Error::new(ErrorKind::InvalidInput, what));
    }
    if !is_used_again(&file)? {
        return fs::copy(from, to).map(|_| ());
    }
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    copy_still(&file, &options.open(to)?)
}

/// Returns true if the record's process may still overwrite its chunks.
fn is_used_again(file: &File) -> io::Result<bool> {
    let mut bytes = vec![0; HEADER_BYTES];
    let length = Source::read_at(file, &mut bytes, 0)?;
    let is_wanted = |header: Header| {
        let wanted = [Counter::Keep, Counter::Flight].map(|counter| header.counter(counter) > 0);
        header.ended == Some(Ended::Not) && wanted.contains(&true)
    };
    let is_wanted = Header::decode(&bytes[..length]).is_ok_and(is_wanted);
    Ok(is_wanted && !has_no_process(file))
}

/// Returns true if the process that wrote the record has ended without recording its end. A process locks its
/// record as long as it lives.
fn has_no_process(file: &File) -> bool {
    let is_free = file.try_lock_shared().is_ok();
    if is_free {
        let _ = file.unlock();
    }
    is_free
}

/// Creates a file without a name. The file disappears when it is closed.
fn without_name(folder: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create_new(true).mode(0o600);
    let mut number = 0;
    loop {
        // The name may be in use for a moment: by another thread, or by a process in another
        // container that has the same process id and shares the folder.
        let path = folder.join(format!(".tllmprof-{}-{number}", std::process::id()));
        match options.open(&path) {
            Ok(file) => {
                fs::remove_file(&path)?;
                return Ok(file);
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number < MAX_NAMES => {
                number += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Copies a record into an empty file, while its process overwrites chunks.
fn copy_still(source: &impl Source, to: &File) -> io::Result<()> {
    let mut header = vec![0; HEADER_BYTES];
    let length = source.read_at(&mut header, 0)?;
    let mut copy = Copy {
        id: Header::decode(&header[..length]).ok().and_then(|of| of.id),
        to,
        bytes: vec![0; CHUNK_BYTES],
        length: 0,
        chunks: Vec::new(),
        latest: 0,
    };
    copy.take(source, u64::MAX)?;
    // `until` is the latest end of any event that the first pass has found. By now all threads have written their
    // events up to this time. Later events are left out, because only some threads may have written theirs.
    let until = copy.latest;
    for _ in 0..MAX_ATTEMPTS {
        copy.take(source, until)?;
        let length = source.read_at(&mut header, 0)?;
        to.write_all_at(&header[..length], 0)?;
        copy.length = copy.length.max(length as u64);
        let begun = copy.chunks.iter().filter(|begins| **begins != [0; HEAD]);
        let counted = Header::decode(&header[..length]).map(|of| of.counter(Counter::Chunks));
        if counted.is_ok_and(|counted| counted <= begun.count() as u64) {
            break;
        }
    }
    to.set_len(copy.length)
}

/// The number of bytes at the start of a chunk that show whether an event was written since the chunk was last copied:
/// the magic number, the chunk's number, and the word at [`COMMITTED`].
const HEAD: usize = 16;
/// The offset in a chunk of the word with the events' byte count and their check (checksum).
const COMMITTED: usize = 8;

struct Copy<'a> {
    /// The record's id; `None` if the record has no checks (checksums).
    id: Option<u64>,
    to: &'a File,
    bytes: Vec<u8>,
    /// The size in bytes that the copy has so far.
    length: u64,
    /// The first bytes of each chunk at the time when it was copied.
    chunks: Vec<[u8; HEAD]>,
    /// The latest end of any event that was copied, in ticks.
    latest: u64,
}

impl Copy<'_> {
    /// Copies the chunks that were written to since they were last copied. Leaves out events that ended after
    /// `until`.
    fn take(&mut self, source: &impl Source, until: u64) -> io::Result<()> {
        let mut begins = [0; HEAD];
        let (mut empty, mut count) = (0, 0);
        while empty < EMPTY_LIMIT && source.read_at(&mut begins, chunk_offset(count))? > 0 {
            empty = match begins {
                [0, 0, 0, 0, ..] => empty + 1,
                _ => 0,
            };
            count += 1;
        }
        for number in (0..count).rev() {
            begins = [0; HEAD];
            source.read_at(&mut begins, chunk_offset(number))?;
            if self.chunks.get(number as usize) != Some(&begins) {
                self.chunk(source, number, until)?;
            }
        }
        Ok(())
    }

    /// Copies chunk `number`, leaving out events that ended after `until`.
    fn chunk(&mut self, source: &impl Source, number: u32, until: u64) -> io::Result<()> {
        let at = chunk_offset(number);
        let header = Begins::bytes(self.id);
        let mut looks = MAX_ATTEMPTS;
        let (there, used) = loop {
            let there = source.read_at(&mut self.bytes, at)?;
            looks -= 1;
            match ChunkState::classify(self.id, number, &self.bytes[..there]) {
                ChunkState::Empty => break (there, 0),
                ChunkState::Whole(head, length) => {
                    // `see` reads the chunk's original bytes, which `cut` changes. So `see` must
                    // come first.
                    self.see(number);
                    let length = self.cut(&head, length, until);
                    break (there, header + length);
                }
                ChunkState::Part(..) | ChunkState::Nothing if looks == 0 => break (there, there),
                ChunkState::Part(..) | ChunkState::Nothing => {}
            }
        };
        if used == 0 || used == there {
            self.see(number);
        }
        self.to.write_all_at(&self.bytes[..used], at)?;
        self.length = self.length.max(at + there as u64);
        Ok(())
    }

    fn see(&mut self, number: u32) {
        let number = number as usize;
        if self.chunks.len() <= number {
            self.chunks.resize(number + 1, [0; HEAD]);
        }
        if let Some(begins) = self.bytes.first_chunk() {
            self.chunks[number] = *begins;
        }
    }

    /// Cuts the chunk before its first event that ended after `until`. Returns the number of bytes of events
    /// that are left.
    fn cut(&mut self, head: &Head, length: usize, until: u64) -> usize {
        let Some(id) = self.id else { return length };
        let header = Begins::bytes(self.id);
        let (rows, _) = self.bytes[header..header + length].as_chunks::<EVENT_BYTES>();
        let mut check = check::first(id, head.number, head.thread);
        let mut texts = 0;
        for (at, row) in rows.iter().enumerate() {
            if texts > 0 {
                texts -= 1;
            } else if let Ok(event) = Event::decode(row) {
                match event.what {
                    What::String { bytes, .. } => texts = usize::from(bytes).div_ceil(EVENT_BYTES),
                    _ => {
                        let end = end(&event);
                        if end > until {
                            let used = at * EVENT_BYTES;
                            let committed = used as u64 | u64::from(check) << 32;
                            self.bytes[COMMITTED..HEAD].copy_from_slice(&committed.to_le_bytes());
                            return used;
                        }
                        self.latest = self.latest.max(end);
                    }
                }
            }
            check = check::next(check, Event::words_of(row));
        }
        length
    }
}

/// Returns the end of an event, if it is of a kind that is written when it ends; otherwise 0.
const fn end(event: &Event) -> u64 {
    match event.what {
        What::Iteration { .. }
        | What::Call { .. }
        | What::Gc { .. }
        | What::GilWait
        | What::GilHold
        | What::Function { .. }
        | What::Mark { .. }
        | What::Window { .. } => event.start.saturating_add(event.duration),
        What::Range { .. } if !event.cut => event.start.saturating_add(event.duration),
        _ => 0,
    }
}
