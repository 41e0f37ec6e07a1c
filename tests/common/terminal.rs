//! Opens a pseudo-terminal. A command gets one end as its terminal, and the test reads and writes at the other end.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};

/// Opens a pseudo-terminal, of the given size if there is one. Returns the test's end and the
/// command's end.
pub(crate) fn open(size: Option<&libc::winsize>) -> (File, File) {
    let (mut master, mut slave) = (0, 0);
    // SAFETY: openpty writes two descriptors, and reads the size if the pointer is not null. The
    // name and the attributes are null.
    let opened = unsafe {
        libc::openpty(
            &raw mut master,
            &raw mut slave,
            std::ptr::null_mut(),
            std::ptr::null(),
            size.map_or(std::ptr::null(), std::ptr::from_ref),
        )
    };
    assert_eq!(opened, 0, "a terminal");
    // SAFETY: openpty has just opened both descriptors, and nothing else owns them.
    unsafe { (File::from_raw_fd(master), File::from_raw_fd(slave)) }
}

/// Returns true if the terminal has a shell's usual mode: it edits lines, echoes input and turns
/// keys into signals.
pub(crate) fn is_as_a_shell_has_it(terminal: &File) -> bool {
    // SAFETY: a termios may be all zeros.
    let mut now: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: tcgetattr only writes into the local variable `now`.
    let got = unsafe { libc::tcgetattr(terminal.as_raw_fd(), &raw mut now) };
    assert_eq!(got, 0);
    let wanted = libc::ICANON | libc::ECHO | libc::ISIG;
    now.c_lflag & wanted == wanted
}
