//! Blocks signals while the library does a piece of work, so that no signal handler of the program runs meanwhile. If
//! the work itself raises the signal that the caller expects, such as `SIGXFSZ`, this signal is discarded.

use core::ffi::c_int;
use core::mem::zeroed;

/// While this value lives, signals are blocked for the calling thread, because a signal handler might jump out of the
/// library's work. If the work raised the signal that [`Quiet::new`] was given, dropping the value discards that
/// signal.
pub(crate) struct Quiet {
    signal: c_int,
    old: libc::sigset_t,
    was_pending: bool,
}

impl Quiet {
    /// Blocks signals for the calling thread until the value is dropped. `signal` is the signal that the
    /// library's work may raise.
    pub(crate) fn new(signal: c_int) -> Self {
        // SAFETY: the sets are initialised before use, and the pointers are to locals.
        unsafe {
            let (mut set, mut old, mut pending) = (zeroed(), zeroed(), zeroed());
            libc::sigfillset(&raw mut set);
            // Signals that report faults (such as SIGSEGV) must not be blocked, because the kernel kills a
            // process that raises a blocked one.
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
        // SAFETY: the set is initialised before use, and the pointers are to locals and to the signal mask
        // saved in `new`. A signal that was already pending when `new` was called stays pending.
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

    /// Returns two flags: the first is true if `signal` is blocked for the calling thread, the second if it
    /// is pending.
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
        // SAFETY: `raise` takes no pointer, and the thread has blocked the signal.
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
