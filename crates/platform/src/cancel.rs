//! Threads that another one cancels.

// SAFETY: declared as in pthread.h.
unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

/// Keeps the calling thread from being cancelled as long as it lives: in the middle of a switch, or of a
/// line.
pub struct Uncancelled(libc::c_int);

impl Uncancelled {
    /// Holds cancellation off.
    pub fn new() -> Self {
        let mut old = 0;
        // SAFETY: writes the old state to the local; PTHREAD_CANCEL_DISABLE is 1 in glibc.
        unsafe { pthread_setcancelstate(1, &raw mut old) };
        Self(old)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: puts back the state that was in force; the old one is not asked for.
        unsafe { pthread_setcancelstate(self.0, core::ptr::null_mut()) };
    }
}
