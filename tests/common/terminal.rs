//! Opens a pseudo-terminal. A command gets one end as its terminal, and the test reads and writes at the other end.

use std::ffi::{CStr, OsStr};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a pseudo-terminal, of the given size if there is one. Returns the test's end and the
/// command's end. Children do not inherit them (openpty would let them): a child that another test starts meanwhile
/// would keep the terminal open after the command has ended.
pub(crate) fn open(size: Option<&libc::winsize>) -> (File, File) {
    let open = |path: &Path| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NOCTTY);
        options.open(path).expect("a terminal")
    };
    let master = open(Path::new("/dev/ptmx"));
    let mut name: [libc::c_char; 64] = [0; 64];
    // SAFETY: the calls take an open descriptor, and the last one writes the name into the local variable.
    let is_named = unsafe {
        libc::grantpt(master.as_raw_fd()) == 0
            && libc::unlockpt(master.as_raw_fd()) == 0
            && libc::ptsname_r(master.as_raw_fd(), name.as_mut_ptr(), name.len()) == 0
    };
    assert!(is_named, "a terminal");
    // SAFETY: ptsname_r has ended the name with a 0 byte.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    let slave = open(Path::new(OsStr::from_bytes(name.to_bytes())));
    if let Some(size) = size {
        let size = std::ptr::from_ref(size);
        // SAFETY: the request only reads the size.
        let is_set = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, size) } == 0;
        assert!(is_set, "a terminal's size");
    }
    (master, slave)
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
