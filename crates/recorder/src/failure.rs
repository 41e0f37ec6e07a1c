//! The error of an operation on the record's file. It can be formatted without allocating.

use core::fmt;
use std::io;

/// The operation that failed, and its error number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub tried: &'static str,
    pub errno: i32,
}

impl Failure {
    /// Returns a failure of the operation `tried`, with the current `errno`.
    pub(crate) fn last(tried: &'static str) -> Self {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Self { tried, errno }
    }

    pub(crate) const fn new(tried: &'static str, errno: i32) -> Self {
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
            libc::EISDIR => "it is a folder",
            libc::ENOTDIR => "a part of the path is not a folder",
            libc::ENAMETOOLONG => "the name is too long",
            libc::EMFILE | libc::ENFILE => "there are too many open files",
            libc::ENOMEM => "there is no memory for it",
            libc::EAGAIN => "no more memory may be locked",
            libc::ENODEV => {
                "the file system lets no file be shared in memory (name a folder of another one)"
            }
            errno => return write!(f, "{}: error {errno}", self.tried),
        };
        write!(f, "{}: {why}", self.tried)
    }
}

#[cfg(test)]
mod tests {
    use super::Failure;

    #[test]
    fn a_failure_says_what_was_tried_and_why_it_failed() {
        let shown = |errno| Failure::new("it could not grow", errno).to_string();
        assert_eq!(shown(libc::ENOSPC), "it could not grow: the disk is full");
        assert_eq!(
            shown(libc::EROFS),
            "it could not grow: the file system is read-only"
        );
        assert_eq!(shown(libc::EISDIR), "it could not grow: it is a folder");
        assert_eq!(
            shown(libc::ENODEV),
            "it could not grow: the file system lets no file be shared in memory (name a folder of another one)"
        );
        assert_eq!(shown(libc::EIO), "it could not grow: error 5");
        assert_eq!(shown(0), "it could not grow");
    }

    #[test]
    fn the_last_error_is_that_of_the_last_call() {
        // SAFETY: `close` takes no pointer, and there is no descriptor -1.
        assert_eq!(unsafe { libc::close(-1) }, -1);
        assert_eq!(Failure::last("it").errno, libc::EBADF);
    }
}
