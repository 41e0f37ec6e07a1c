//! A copy of a record whose process goes on and uses chunks again: as it is at one moment, so that it can be read more than
//! once, and no window in it has lost a part.
//!
//! The process says which windows go before it writes over them. So the header is copied behind all chunks: of a
//! window that it does not say to be dropped no chunk was written over before. What ended behind a moment is left out, so
//! that no thread has written more of it than others. Chunks are copied from the last to the first, as the chunk that says
//! from where on iterations outside windows are kept is an early one: what it says is newer than what is there of them.

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
use crate::reader::{EMPTY_LIMIT, Error, Found};
use crate::source::Source;

/// How often a chunk is copied that is written over meanwhile, and how often chunks are looked for that were begun
/// meanwhile.
const LOOKS: u32 = 16;

/// Names that are tried for a copy.
const MOST_NAMES: u32 = 1000;

/// Opens a record to be read: itself, or a copy without a name where its process may use chunks again. The copy is in the
/// record's folder or with temporary files, on a disk that has room for twice as much, as the program may need it; else, and
/// where the process ends meanwhile, the record is read itself.
///
/// # Errors
/// Where it cannot be read.
pub fn open_still(path: &Path) -> Result<File, Error> {
    // Whoever opens a FIFO waits until somebody writes to it.
    if !fs::metadata(path)?.is_file() {
        return Err(Error::NoRecord);
    }
    let file = File::open(path)?;
    if !is_used_again(&file)? {
        return Ok(file);
    }
    let bytes = file.metadata()?.len();
    // The parent of a bare name is empty.
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
        // All of it is there once the process has ended.
        Some(copy) if is_used_again(&file)? => Ok(copy),
        _ => Ok(file),
    }
}

/// Whether there is room for so many bytes, and as many that are left. Never in memory: the program may be the next that
/// gets none.
fn has_room(file: &File, bytes: u64) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    let kind = rustix::fs::fstatfs(file).map(|of| of.f_type as u64 & 0xffff_ffff);
    let room = rustix::fs::fstatvfs(file).map(|of| of.f_bavail.saturating_mul(of.f_frsize));
    kind.is_ok_and(|kind| kind != TMPFS && kind != RAMFS)
        && room.is_ok_and(|room| room / 2 >= bytes)
}

/// Copies a record to another path.
///
/// # Errors
/// Where it cannot be read, or the copy cannot be written.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let file = File::open(from)?;
    let which = |of: &Metadata| (of.dev(), of.ino());
    if fs::metadata(to).map(|to| which(&to)).ok() == Some(which(&file.metadata()?)) {
        // A process that goes on would be killed by a signal where it writes to what was cut off.
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

/// Whether the process of a record may use its chunks again from here on.
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

/// Whether the process that wrote a record is gone, though it did not see its end: it has a lock for as long as it lives.
fn has_no_process(file: &File) -> bool {
    let is_free = file.try_lock_shared().is_ok();
    if is_free {
        let _ = file.unlock();
    }
    is_free
}

/// A file that is gone once it is closed.
fn without_name(folder: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create_new(true).mode(0o600);
    let mut number = 0;
    loop {
        // Another thread, or a process of the same number that shares the folder, may have the name for a moment.
        let path = folder.join(format!(".tllmprof-{}-{number}", std::process::id()));
        match options.open(&path) {
            Ok(file) => {
                fs::remove_file(&path)?;
                return Ok(file);
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number < MOST_NAMES => {
                number += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Copies a record whose chunks are used again, into an empty file.
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
    // What ended by now has been written, by all threads; of what comes there are pieces.
    let until = copy.latest;
    for _ in 0..LOOKS {
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

/// Bytes of a chunk by which it is seen that something was written to it.
const HEAD: usize = 16;
/// Where they have the bytes of events and their check.
const COMMITTED: usize = 8;

struct Copy<'a> {
    /// The record's.
    id: Option<u64>,
    to: &'a File,
    bytes: Vec<u8>,
    /// Bytes that the record has.
    length: u64,
    /// How each chunk began when it was copied.
    chunks: Vec<[u8; HEAD]>,
    /// When the last event ended of those that were copied.
    latest: u64,
}

impl Copy<'_> {
    /// Copies the chunks to which something was written since they were copied; of these what ended by `until`.
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

    /// Copies a chunk.
    fn chunk(&mut self, source: &impl Source, number: u32, until: u64) -> io::Result<()> {
        let at = chunk_offset(number);
        let header = Begins::bytes(self.id);
        let mut looks = LOOKS;
        let (there, used) = loop {
            let there = source.read_at(&mut self.bytes, at)?;
            looks -= 1;
            match Found::of(self.id, number, &self.bytes[..there]) {
                Found::Empty => break (there, 0),
                Found::Whole(head, length) => {
                    // Seen as it is here, and not as it is left by what follows.
                    self.see(number);
                    let length = self.cut(&head, length, until);
                    break (there, header + length);
                }
                Found::Part(..) | Found::Nothing if looks == 0 => break (there, there),
                Found::Part(..) | Found::Nothing => {}
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

    /// Leaves out what a chunk has from the first event on that ended behind `until`; how many bytes are left.
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

/// When an event ended that was written then; 0 where that is not known.
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
