//! Preserves the host's `errno` across the library's own work.

use core::ffi::c_int;

/// Restores `errno` when dropped. It stays on its thread, and asks the C library for the address once.
pub struct SavedErrno {
    place: *mut c_int,
    value: c_int,
}

impl SavedErrno {
    /// Remembers the current `errno`.
    #[inline]
    pub fn new() -> Self {
        // SAFETY: it returns the address of the calling thread's own word, which is always valid there.
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

/// Returns `errno`, as the last failed call of the C library set it.
pub fn now() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

impl Drop for SavedErrno {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the pointer keeps this on the thread that made it, whose word it is.
        unsafe { self.place.write(self.value) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_meanwhile_is_not_the_hosts_error() {
        let fails = |fd| {
            // SAFETY: there is no such descriptor, and `close` takes any number.
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
