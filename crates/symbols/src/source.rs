//! Opens files, and reads parts of them without mapping them.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::error::SymbolsError;

pub trait Source {
    /// Returns the length in bytes. The file may become shorter before it is read.
    ///
    /// # Errors
    /// Returns an error of the file system.
    fn length(&self) -> io::Result<u64>;

    /// Fills `buffer` with the bytes at `offset`.
    ///
    /// # Errors
    /// Returns an error of the file system, or `UnexpectedEof` if the file ends before the buffer is full.
    fn fill(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

impl Source for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn fill(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }
}

impl Source for [u8] {
    fn length(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn fill(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|offset| self.get(offset..)?.get(..buffer.len()))
            .ok_or(ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }
}

/// Opens a regular file for reading. The descriptor is never 0, 1 or 2: a program that has closed one of these may
/// expect that the next file that it opens gets the free number.
///
/// # Errors
/// Returns an error of the file system, or an error if the file is not a regular one, because reading other files
/// could block forever.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    if !kind.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "no regular file"));
    }
    // `try_clone` chooses the lowest free descriptor that is greater than 2.
    if file.as_raw_fd() > 2 {
        Ok(file)
    } else {
        file.try_clone()
    }
}

/// Maximum size in bytes of a read for which [`read`] does not check the file's length first.
const SMALL_SIZE: u64 = 4096;

/// Reads `size` bytes at `offset`. Returns an error with the text `what` if this range is not inside the file. For a
/// read of more than [`SMALL_SIZE`] bytes, this is checked before memory is allocated, because a damaged file may
/// claim any size.
pub(crate) fn read(
    source: &(impl Source + ?Sized),
    offset: u64,
    size: u64,
    what: &'static str,
) -> Result<Vec<u8>, SymbolsError> {
    let end = offset
        .checked_add(size)
        .ok_or(SymbolsError::Malformed(what))?;
    if size > SMALL_SIZE && end > source.length()? {
        return Err(SymbolsError::Malformed(what));
    }
    let size = usize::try_from(size).map_err(|_| SymbolsError::Malformed(what))?;
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(size)
        .map_err(|_| io::Error::from(ErrorKind::OutOfMemory))?;
    bytes.resize(size, 0);
    match source.fill(&mut bytes, offset) {
        Ok(()) => Ok(bytes),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            Err(SymbolsError::Malformed(what))
        }
        Err(error) => Err(error.into()),
    }
}
