//! The host's `errno`, kept over our own work.

/// Puts `errno` back when dropped.
pub struct Kept(i32);

impl Kept {
    /// Remembers `errno` as it is now.
    pub fn new() -> Self {
        Self(now())
    }
}

impl Default for Kept {
    fn default() -> Self {
        Self::new()
    }
}

/// `errno`, as the last call of the C library that failed left it.
pub fn now() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: the location is the calling thread's own and always valid.
        unsafe { *libc::__errno_location() = self.0 };
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
            let _kept = Kept::new();
            assert!(std::fs::File::open("/no/such/file").is_err());
            assert_eq!(now(), libc::ENOENT);
        }
        assert_eq!(now(), libc::EBADF);
    }
}
