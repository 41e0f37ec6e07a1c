//! Sets the signal handling of the child processes that tests start. No signal is blocked or ignored in a child, and
//! the kernel kills a child when the test that started it ends.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes the kernel kill the child as soon as the thread that started it ends, for example because the test fails.
pub(crate) fn end_with_test(command: &mut Command) -> &mut Command {
    let end = || {
        // SAFETY: prctl with these arguments takes only numbers.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: prctl may be called between fork and exec.
    unsafe { command.pre_exec(end) }
}

/// Starts the child with no signal blocked or ignored. Children inherit both states, and a shell ignores SIGINT for
/// background jobs, which may include the tests.
pub(crate) fn reset(command: &mut Command) -> &mut Command {
    let reset = || {
        for number in 1..=libc::SIGRTMAX() {
            // SAFETY: signal takes no pointers but the handler. For a number that is not a signal, it returns an error,
            // which is harmless.
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
