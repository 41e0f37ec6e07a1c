//! Files that the library keeps open. The program may close file descriptors that it does not know, and later get the
//! same numbers for files of its own. So each use first checks that the descriptor still belongs to the library's
//! file.

use core::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;

/// The lowest descriptor number for the library's files. The program may expect to get lower numbers.
const LOWEST: c_int = 64;

/// An open file, whose descriptor is checked before each use.
pub struct OwnFile {
    /// The open file, or `None` after it was closed.
    file: Option<File>,
    /// Device and inode number, which identify the file.
    identity: (u64, u64),
}

impl OwnFile {
    /// Takes over an open file, and moves it to a high descriptor number.
    ///
    /// # Errors
    /// Returns an error if the status of the file cannot be read.
    pub fn new(file: File) -> io::Result<Self> {
        let file = move_up(file);
        let identity = identity_of(&file)?;
        Ok(Self {
            file: Some(file),
            identity,
        })
    }

    /// Returns the file. Returns `None` if it was closed by [`OwnFile::close`], or if the descriptor no longer
    /// belongs to the file, because the program has closed or reused the number.
    pub fn get(&self) -> Option<&File> {
        self.file.as_ref().filter(|file| self.is(file))
    }

    /// Returns true if `file` is the file on disk that this value was created with.
    fn is(&self, file: &File) -> bool {
        identity_of(file).is_ok_and(|is| is == self.identity)
    }

    /// Replaces the file by `file`, after the program has closed the old descriptor. If `file` is a different file on
    /// disk, changes nothing and returns false.
    pub fn reopen(&mut self, file: File) -> bool {
        let is_same = self.is(&file);
        if is_same {
            self.close();
            self.file = Some(move_up(file));
        }
        is_same
    }

    /// Closes the descriptor if it still belongs to the file. Otherwise leaves it open.
    pub fn close(&mut self) {
        let is_own = self.get().is_some();
        let file = self.file.take();
        if !is_own {
            // Do not close the descriptor: its number now belongs to a file of the program.
            core::mem::forget(file);
        }
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        self.close();
    }
}

/// Duplicates a file's descriptor to a high number and closes the lower one, which the program may expect to get. If
/// no high number is available, returns the file with its old descriptor.
fn move_up(file: File) -> File {
    // SAFETY: the descriptor belongs to `file`, and nothing else owns the new one.
    unsafe {
        match libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, LOWEST) {
            -1 => file,
            moved => File::from_raw_fd(moved),
        }
    }
}

/// Returns the device and inode number of a file.
fn identity_of(file: &File) -> io::Result<(u64, u64)> {
    let status = file.metadata()?;
    Ok((status.dev(), status.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    fn open(path: &str) -> File {
        File::open(path).unwrap()
    }

    #[test]
    fn a_descriptor_that_the_host_takes_is_the_hosts() {
        let mut own = OwnFile::new(open("/proc/self/stat")).unwrap();
        let number = own.get().unwrap().as_raw_fd();
        assert!(number >= LOWEST);
        let other = open("/proc/self/maps");
        // SAFETY: this simulates a program that closes the descriptor and gets its number for another file.
        let taken = unsafe {
            assert_eq!(libc::dup2(other.as_raw_fd(), number), number);
            OwnedFd::from_raw_fd(number)
        };
        assert!(own.get().is_none());
        assert!(!own.reopen(open("/proc/self/maps")));
        assert!(own.reopen(open("/proc/self/stat")));
        let again = own.get().unwrap().as_raw_fd();
        assert_ne!(again, number);
        own.close();
        assert!(own.get().is_none());
        // The program's file, which got the library's old number, is still open.
        assert!(File::from(taken).metadata().is_ok());
    }
}
