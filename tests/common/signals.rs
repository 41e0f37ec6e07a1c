//! The signals of a child of the tests: none is blocked or ignored, and it ends with the test that started
//! it.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes the kernel kill the child when the thread of the test that started it ends, for any reason.
pub fn end_with_test(command: &mut Command) -> &mut Command {
    let end = || {
        // SAFETY: takes only numbers.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: prctl may be called between fork and exec.
    unsafe { command.pre_exec(end) }
}

/// Starts the child with no signal blocked and none ignored. Children inherit both, and a shell ignores SIGINT for
/// background jobs, which may include the tests.
pub fn reset(command: &mut Command) -> &mut Command {
    let reset = || {
        for number in 1..=libc::SIGRTMAX() {
            // SAFETY: signal takes no pointers but the handler; it refuses the numbers that are none, which is fine.
            unsafe { libc::signal(number, libc::SIG_DFL) };
        }
        // SAFETY: the set is initialized by sigemptyset before it is read.
        unsafe {
            let mut none = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: signal, sigemptyset and sigprocmask may be called between fork and exec.
    unsafe { command.pre_exec(reset) }
}
