//! Work that no signal handler of the host is to come into, and a signal that it may raise itself.

use core::ffi::c_int;
use core::mem::zeroed;

/// Keeps signals from the calling thread as long as it lives: a handler might jump out of what we
/// are doing. What our work raised of one of them is taken off.
pub struct Quiet {
    signal: c_int,
    old: libc::sigset_t,
    was_pending: bool,
}

impl Quiet {
    /// `signal` is what our work may raise.
    pub fn new(signal: c_int) -> Self {
        // SAFETY: the sets are initialised before use, and the pointers are to locals.
        unsafe {
            let (mut set, mut old, mut pending) = (zeroed(), zeroed(), zeroed());
            libc::sigfillset(&raw mut set);
            // What a fault raises is not to be put off.
            for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE] {
                libc::sigdelset(&raw mut set, fault);
            }
            libc::sigpending(&raw mut pending);
            let was_pending = libc::sigismember(&raw const pending, signal) == 1;
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut old);
            Self {
                signal,
                old,
                was_pending,
            }
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the set is initialised before use, and the pointers are to locals and to the mask that
        // was in force. A signal that was pending before stays so.
        unsafe {
            let mut set = zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, self.signal);
            if !self.was_pending {
                libc::sigtimedwait(&raw const set, core::ptr::null_mut(), &raw const now);
            }
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.old,
                core::ptr::null_mut(),
            );
        }
    }
}
