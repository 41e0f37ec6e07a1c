//! Why something about the file could not be done, told without allocating.

use core::fmt;
use std::io;

/// What was tried, and the error that it met.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    pub tried: &'static str,
    pub errno: i32,
}

impl Failure {
    /// What was just tried, and `errno`.
    pub fn last(tried: &'static str) -> Self {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Self { tried, errno }
    }

    pub const fn new(tried: &'static str, errno: i32) -> Self {
        Self { tried, errno }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.errno {
            0 => return f.write_str(self.tried),
            libc::ENOSPC => "the disk is full",
            libc::EDQUOT => "the quota is used up",
            libc::EFBIG => "files may not become as large",
            libc::EACCES | libc::EPERM => "it is not permitted",
            libc::EROFS => "the file system is read-only",
            libc::ENOENT => "there is no such folder",
            libc::ENOTDIR => "a part of the path is no folder",
            libc::ENAMETOOLONG => "the name is too long",
            libc::EMFILE | libc::ENFILE => "there are too many open files",
            libc::ENOMEM => "there is no memory for it",
            errno => return write!(f, "{}: error {errno}", self.tried),
        };
        write!(f, "{}: {why}", self.tried)
    }
}
