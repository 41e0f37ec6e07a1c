//! A terminal: the command's end, and the end that a test reads and writes.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};

/// Opens a terminal, without a size unless given. Returns the test's end and the command's.
pub fn open(size: Option<&libc::winsize>) -> (File, File) {
    let (mut master, mut slave) = (0, 0);
    // SAFETY: writes two descriptors, and reads the size where there is one; no name or attributes.
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
    // SAFETY: both were opened here and are owned by nothing else.
    unsafe { (File::from_raw_fd(master), File::from_raw_fd(slave)) }
}

/// Returns true if a terminal edits lines, echoes them and makes keys signals, as a shell has it.
pub fn is_as_a_shell_has_it(terminal: &File) -> bool {
    // SAFETY: all zeros are a termios.
    let mut now: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: writes the local.
    let got = unsafe { libc::tcgetattr(terminal.as_raw_fd(), &raw mut now) };
    assert_eq!(got, 0);
    let wanted = libc::ICANON | libc::ECHO | libc::ISIG;
    now.c_lflag & wanted == wanted
}
