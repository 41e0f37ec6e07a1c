//! Blocks the host's signal handlers during some work, and discards a signal that the work may raise itself.

use core::ffi::c_int;
use core::mem::zeroed;

/// Blocks signals for the calling thread while it lives, because a handler might jump out of our work. It
/// discards the signal if our work raised it.
pub struct Quiet {
    signal: c_int,
    old: libc::sigset_t,
    was_pending: bool,
}

impl Quiet {
    /// `signal` is the signal that our work may raise.
    pub fn new(signal: c_int) -> Self {
        // SAFETY: the sets are initialised before use, and the pointers are to locals.
        unsafe {
            let (mut set, mut old, mut pending) = (zeroed(), zeroed(), zeroed());
            libc::sigfillset(&raw mut set);
            // Signals of faults must not be blocked.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether a signal is blocked for the calling thread, and whether it is pending.
    fn state(signal: c_int) -> (bool, bool) {
        // SAFETY: the sets are filled before they are read, and the pointers are to locals.
        unsafe {
            let (mut mask, mut pending) = (zeroed(), zeroed());
            libc::pthread_sigmask(libc::SIG_BLOCK, core::ptr::null(), &raw mut mask);
            libc::sigpending(&raw mut pending);
            let is_in = |set: &libc::sigset_t| libc::sigismember(set, signal) == 1;
            (is_in(&mask), is_in(&pending))
        }
    }

    fn raise(signal: c_int) {
        // SAFETY: takes no pointer; the thread has the signal blocked.
        unsafe { libc::raise(signal) };
    }

    #[test]
    fn what_our_work_raises_never_arrives() {
        std::thread::spawn(|| {
            let quiet = Quiet::new(libc::SIGUSR2);
            assert_eq!(state(libc::SIGUSR2), (true, false));
            assert_eq!(state(libc::SIGSEGV), (false, false));
            raise(libc::SIGUSR2);
            assert_eq!(state(libc::SIGUSR2), (true, true));
            drop(quiet);
            assert_eq!(state(libc::SIGUSR2), (false, false));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn what_was_pending_before_stays() {
        std::thread::spawn(|| {
            let outer = Quiet::new(libc::SIGUSR2);
            raise(libc::SIGUSR2);
            drop(Quiet::new(libc::SIGUSR2));
            assert_eq!(state(libc::SIGUSR2), (true, true));
            drop(outer);
        })
        .join()
        .unwrap();
    }
}
