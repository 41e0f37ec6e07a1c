//! What Rust's runtime changes of the process before `main`, and a program that is started in its
//! place would inherit: SIGPIPE ignored or not, and whether the standard descriptors are open.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

static IGNORES_SIGPIPE: AtomicBool = AtomicBool::new(false);
static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

// SAFETY: the loader calls what stands in this section before `main`; the function takes no
// notice of the arguments that it gets.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = note;

extern "C" fn note() {
    for (descriptor, closed) in (0..).zip(&CLOSED) {
        // SAFETY: F_GETFD reads a flag of a descriptor's and changes nothing, also where it is not open.
        let is_closed = unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1;
        closed.store(is_closed, Ordering::Relaxed);
    }
    IGNORES_SIGPIPE.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
}

/// Whether this process takes no notice of a signal.
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: all zeros are a sigaction, and it is only written to.
    unsafe {
        let mut now: libc::sigaction = core::mem::zeroed();
        libc::sigaction(signal, core::ptr::null(), &raw mut now) == 0
            && now.sa_sigaction == libc::SIG_IGN
    }
}

/// Runs `command` in this process's place, as it would run had it been started instead of us.
/// Returns only if that fails.
pub fn exec(command: &mut Command) -> io::Error {
    hand_on(command);
    command.exec()
}

/// Has `command` inherit what this process did.
pub fn hand_on(command: &mut Command) {
    // SAFETY: the closure makes system calls alone, which may be made between fork and exec.
    unsafe {
        command.pre_exec(|| {
            if IGNORES_SIGPIPE.load(Ordering::Relaxed) {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            }
            for (descriptor, closed) in (0..).zip(&CLOSED) {
                if closed.load(Ordering::Relaxed) {
                    libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC);
                }
            }
            Ok(())
        });
    }
}
