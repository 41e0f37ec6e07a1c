//! Files that the library keeps open. The host may close descriptors that it does not know, and open other
//! files under their numbers.

use core::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;

/// Programs expect to get descriptors below this one.
const LOWEST: c_int = 64;

/// An open file, whose descriptor is checked before each use.
pub struct OwnFile {
    /// `None` once it is closed.
    file: Option<File>,
    /// Device and inode, which identify the file.
    identity: (u64, u64),
}

impl OwnFile {
    /// Takes over an open file, under a high descriptor.
    ///
    /// # Errors
    /// The status of the file cannot be read.
    pub fn new(file: File) -> io::Result<Self> {
        let file = move_up(file);
        let identity = identity_of(&file)?;
        Ok(Self {
            file: Some(file),
            identity,
        })
    }

    /// Returns the file, if the descriptor still belongs to it.
    pub fn get(&self) -> Option<&File> {
        self.file.as_ref().filter(|file| self.is(file))
    }

    /// Returns true if `file` is the same file.
    fn is(&self, file: &File) -> bool {
        identity_of(file).is_ok_and(|is| is == self.identity)
    }

    /// Replaces the closed file by `file`. Returns false if that is another file.
    pub fn reopen(&mut self, file: File) -> bool {
        let is_same = self.is(&file);
        if is_same {
            self.close();
            self.file = Some(move_up(file));
        }
        is_same
    }

    /// Closes the descriptor, if it still belongs to the file.
    pub fn close(&mut self) {
        let is_own = self.get().is_some();
        let file = self.file.take();
        if !is_own {
            // The number belongs to the host by now.
            core::mem::forget(file);
        }
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        self.close();
    }
}

/// Returns the same file under a higher number. The lower one, which the host may expect to get, is closed.
fn move_up(file: File) -> File {
    // SAFETY: the descriptor is the file's; a new one belongs to nothing else.
    unsafe {
        match libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, LOWEST) {
            -1 => file,
            moved => File::from_raw_fd(moved),
        }
    }
}

/// Returns device and inode.
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
        // SAFETY: as a host that closes the descriptor and gets its number for a file of its own.
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
        // The host's is still open.
        assert!(File::from(taken).metadata().is_ok());
    }
}
