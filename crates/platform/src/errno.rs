//! The host's `errno`, kept over our own work.

/// Puts `errno` back when dropped.
pub struct Kept(i32);

impl Kept {
    /// Remembers `errno` as it is now.
    pub fn new() -> Self {
        // SAFETY: the location is the calling thread's own and always valid.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = self.0 };
    }
}
