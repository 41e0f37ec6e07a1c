//! Preserves the program's `errno` while code of the library runs.

use core::ffi::c_int;

/// Saves `errno`, and restores it when dropped. The value must not move to another thread, because it contains
/// the address of the thread's `errno`.
pub struct SavedErrno {
    place: *mut c_int,
    value: c_int,
}

impl SavedErrno {
    /// Saves the current `errno`.
    #[inline]
    pub fn new() -> Self {
        // SAFETY: the function returns the address of the calling thread's `errno`, which is valid on this thread.
        let (place, value) = unsafe {
            let place = libc::__errno_location();
            (place, place.read())
        };
        Self { place, value }
    }
}

impl Default for SavedErrno {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the current `errno`, which the last failed C library call set.
pub fn now() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

impl Drop for SavedErrno {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the pointer field prevents a move to another thread, so the word belongs to this thread.
        unsafe { self.place.write(self.value) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_meanwhile_is_not_the_hosts_error() {
        let fails = |fd| {
            // SAFETY: there is no such descriptor, and `close` accepts any number.
            assert_eq!(unsafe { libc::close(fd) }, -1);
        };
        fails(-1);
        assert_eq!(now(), libc::EBADF);
        {
            let _kept = SavedErrno::new();
            assert!(std::fs::File::open("/no/such/file").is_err());
            assert_eq!(now(), libc::ENOENT);
        }
        assert_eq!(now(), libc::EBADF);
    }
}
