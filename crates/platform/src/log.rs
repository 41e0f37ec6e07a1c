//! Writes log lines to standard error. Writing a line raises no signal in the program and does not wait for a reader.

use core::ffi::c_int;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};

use crate::cancel::Uncancelled;
use crate::errno::SavedErrno;
use crate::ids;
use crate::lifecycle::{self, OnlyThread};
use once_cell::race::OnceBox;
pub use tllmprof_config::Level;
use tllmprof_config::printable::Printing;
use tllmprof_sync::kernel;

const PREFIX: &str = "tllmprof: ";
const LONGEST: usize = 1024;
/// The middle of a line that is too long is left out: about `BEGINNING` bytes at its start and `END` bytes at its end
/// are kept. The end matters, because many messages end with the reason of a failure, after names that may be long.
const END: usize = 400;
const BEGINNING: usize = LONGEST - 1 - END;
/// The text that stands for the middle part that was cut out of a long line.
const CUT: &str = "…";

lifecycle::global! {
    stage: Modules;

    #[fork(keep = "the settings are the same")]
    static LEVEL: AtomicU8 = AtomicU8::new(Level::Info as u8);
    /// Device and inode number of the file that is the program's standard error; both 0 if standard error was
    /// closed. Stored by [`start`], and again when the program redirects descriptor 2.
    #[fork(keep = "descriptor 2 is inherited")]
    static STDERR: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
    /// True if standard error is a regular file or a character device, such as a terminal. A write to it needs no
    /// reader, in contrast to a write to a pipe or a socket. Stored together with [`STDERR`].
    #[fork(keep = "descriptor 2 is inherited")]
    static HAS_NO_READER: AtomicBool = AtomicBool::new(false);
    #[fork(keep = "as what standard error is")]
    static STARTED: AtomicBool = AtomicBool::new(false);
    #[fork(by = in_child)]
    static PROCESS: AtomicI32 = AtomicI32::new(0);
    /// The function that receives warnings and errors, in addition to standard error.
    #[fork(keep = "set once, at the start")]
    static KEEPER: OnceBox<fn(&str)> = OnceBox::new();
}

/// Runs in the child of a fork: stores the child's process ID, so that [`is_own_process`] returns true in it.
fn in_child(_: &OnlyThread) {
    PROCESS.store(ids::process(), Ordering::Relaxed);
}

/// Registers the function `keep`, which then receives each warning and error. Only the first registered function is
/// used. The library may call it in any context, for example in a signal handler.
pub fn keep(keep: fn(&str)) {
    let _ = KEEPER.set(Box::new(keep));
}

/// Stores the identity of the file that is standard error. If descriptor 2 is closed now, a file that the program later
/// opens under this number belongs to the program, and the library must not write its lines there. Called when the
/// library is loaded, if one of the library's environment variables is set. Otherwise called before the first line is
/// written.
pub fn start() {
    if !STARTED.swap(true, Ordering::AcqRel) {
        PROCESS.store(ids::process(), Ordering::Relaxed);
        learn();
    }
}

/// Called after the program has redirected descriptor `new`. If this is descriptor 2, stores the identity of the new
/// standard error. Does nothing in a child that shares its parent's memory until it runs another program (`vfork`),
/// because the child's descriptors are not those of the parent.
pub fn redirected(new: i32) {
    // If `start` has not run, it will store the identity of standard error later. If the process has a seccomp filter,
    // the new file cannot be examined, and no line is written to it. In both cases this function makes no system call.
    if new != 2 || !STARTED.load(Ordering::Relaxed) {
        return;
    }
    if lifecycle::is_filtered() {
        HAS_NO_READER.store(false, Ordering::Relaxed);
        return;
    }
    if is_own_process() {
        let _errno = SavedErrno::new();
        learn();
    }
}

/// Returns true if this is the process in which the library was started, or a forked copy with its own memory. Returns
/// false in a child that shares its parent's memory until it runs another program (`vfork`).
pub fn is_own_process() -> bool {
    PROCESS.load(Ordering::Relaxed) == ids::process()
}

fn learn() {
    let stat = stat();
    let (device, inode) = stat.map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
    STDERR[0].store(device, Ordering::Relaxed);
    STDERR[1].store(inode, Ordering::Relaxed);
    let has_no_reader = stat.is_some_and(|stat| {
        [libc::S_IFREG, libc::S_IFCHR].contains(&(stat.st_mode & libc::S_IFMT))
    });
    HAS_NO_READER.store(has_no_reader, Ordering::Relaxed);
}

/// Sets the log level: lines that are less important than `level` are not written.
pub fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Returns true if lines of `level` are written.
pub fn is_logged(level: Level) -> bool {
    level as u8 <= LEVEL.load(Ordering::Relaxed)
}

/// Writes `tllmprof: ` and the message as one line to standard error. Warnings and errors are also passed to the
/// function that [`keep`] has registered. Does nothing if a seccomp filter may end the process for a system call.
pub fn line(level: Level, message: fmt::Arguments<'_>) {
    if lifecycle::is_filtered() {
        return;
    }
    start();
    let keeper = KEEPER.get().filter(|_| level <= Level::Warn);
    let is_shown = is_logged(level) && is_ours();
    if !is_shown && keeper.is_none() {
        return;
    }
    let text = LineText::format(message);
    if let Some(keep) = keeper
        && let Ok(line) = str::from_utf8(&text.bytes[PREFIX.len()..text.length])
    {
        keep(line);
    }
    if !is_shown {
        return;
    }
    write_quietly(text.line());
}

/// Writes a line like [`line`], but makes no system call other than `write`. Used if the process has a seccomp filter
/// that may kill the process at any other system call. The line is lost if standard error is neither a regular file nor
/// a character device: a write to a pipe or a socket may raise a signal or wait for a reader.
pub fn line_by_one_call(level: Level, message: fmt::Arguments<'_>) {
    if is_logged(level) && HAS_NO_READER.load(Ordering::Relaxed) {
        let text = LineText::format(message);
        let line = text.line();
        // SAFETY: the kernel only reads the line.
        unsafe { kernel::call(libc::SYS_write, [2, line.as_ptr().addr(), line.len()]) };
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __say {
    ($level:ident, $($message:tt)*) => {
        $crate::log::line($crate::log::Level::$level, format_args!($($message)*))
    };
}
pub use crate::__say as say;

#[doc(hidden)]
#[macro_export]
macro_rules! __once {
    ($level:ident, $($message:tt)*) => {{
        $crate::lifecycle::global! {
            #[fork(keep = "the parent has said it")]
            static SAID: core::sync::atomic::AtomicBool =
                core::sync::atomic::AtomicBool::new(false);
        }
        if !SAID.swap(true, core::sync::atomic::Ordering::Relaxed) {
            $crate::log::say!($level, $($message)*);
        }
    }};
}
pub use crate::__once as once;

struct LineText {
    bytes: [u8; LONGEST],
    length: usize,
    /// True if the middle of the line, after [`BEGINNING`] bytes, was left out.
    is_cut: bool,
}

impl LineText {
    fn format(message: fmt::Arguments<'_>) -> Self {
        let mut text = Self {
            bytes: [0; LONGEST],
            length: 0,
            is_cut: false,
        };
        // `Printing` replaces unprintable characters, because names in the message come from the program.
        // Writing to it never fails.
        let _ = write!(Printing(&mut text), "{PREFIX}{message}");
        if text.is_cut {
            text.mark_cut();
        }
        text.bytes[text.length] = b'\n';
        text
    }

    /// Returns the line, including its line feed.
    fn line(&self) -> &[u8] {
        &self.bytes[..=self.length]
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// Puts [`CUT`] between the kept beginning and end of the line, without splitting a UTF-8 character.
    fn mark_cut(&mut self) {
        let whole = str::from_utf8(&self.bytes[..BEGINNING]);
        let begins = whole.map_or_else(|error| error.valid_up_to(), str::len);
        let place = begins + CUT.len();
        let mut rest = place.max(BEGINNING);
        while self.bytes[rest] & 0xc0 == 0x80 {
            rest += 1;
        }
        self.bytes.copy_within(rest..self.length, place);
        self.bytes[begins..place].copy_from_slice(CUT.as_bytes());
        self.length -= rest - place;
    }
}

impl Write for LineText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut text = text.as_bytes();
        // One byte of the buffer is reserved for the line feed.
        if text.len() > LONGEST - 1 - self.length {
            self.is_cut = true;
            let first = BEGINNING.saturating_sub(self.length);
            let (first, rest) = text.split_at(first.min(text.len()));
            self.push(first);
            text = &rest[rest.len().saturating_sub(END)..];
            // If the buffer has too little space for the new text, bytes are removed after the first `BEGINNING` bytes.
            let excess = (self.length + text.len()).saturating_sub(LONGEST - 1);
            self.bytes
                .copy_within(BEGINNING + excess..self.length, BEGINNING);
            self.length -= excess;
        }
        self.push(text);
        Ok(())
    }
}

fn stat() -> Option<libc::stat> {
    kernel::status(2)
}

/// Returns true if descriptor 2 is still the file whose identity is stored: the original file, or one to
/// which the program has redirected descriptor 2. Another file under that number belongs to the program, so the
/// library must not write to it.
fn is_ours() -> bool {
    let known = STDERR.each_ref().map(|part| part.load(Ordering::Relaxed));
    known != [0, 0] && stat().is_some_and(|now| [now.st_dev, now.st_ino] == known)
}

/// Writes to standard error without raising a signal in the program, and without waiting. The line is lost if the
/// reader is gone or does not read, or if the file has reached its size limit.
fn write_quietly(bytes: &[u8]) {
    /// Errors of a failed write, each with the signal that the kernel raises for it.
    const RAISED: [(c_int, c_int); 2] = [
        (libc::EPIPE, libc::SIGPIPE),
        (libc::EFBIG, libc::SIGXFSZ), // the file has reached RLIMIT_FSIZE
    ];
    let _uncancelled = Uncancelled::new();
    let mut place = libc::pollfd {
        fd: 2,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: the call gets one entry, which outlives it. (A pipe that is ready accepts a whole page, and a line is
    // shorter.)
    let ready = unsafe { libc::poll(&raw mut place, 1, 0) };
    if ready != 1 || place.revents & libc::POLLOUT == 0 {
        return;
    }
    // SAFETY: the signal sets are initialised by sigemptyset before use, and every pointer is to a local that outlives
    // its call. Blocking and unblocking affects only this thread. A signal that this write raised is removed before the
    // old mask is restored, and one that was pending before stays.
    unsafe {
        let mut set = core::mem::zeroed::<libc::sigset_t>();
        let mut old = core::mem::zeroed::<libc::sigset_t>();
        let mut pending = core::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        for (_, signal) in RAISED {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::sigpending(&raw mut pending);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut old);
        let written = libc::write(2, bytes.as_ptr().cast(), bytes.len());
        let error = *libc::__errno_location();
        let raised = RAISED.iter().find(|(errno, signal)| {
            *errno == error && libc::sigismember(&raw const pending, *signal) == 0
        });
        if written < 0
            && let Some((_, signal)) = raised
        {
            let now = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, *signal);
            libc::sigtimedwait(&raw const set, core::ptr::null_mut(), &raw const now);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, core::ptr::null_mut());
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
    use std::os::unix::fs::FileExt;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// Lock that lets only one test at a time use standard error, which all tests share.
    static ONE: Mutex<()> = Mutex::new(());
    static KEPT: Mutex<Vec<String>> = Mutex::new(Vec::new());

    /// Redirects descriptor 2, and restores it when dropped.
    pub(crate) struct Stderr {
        before: OwnedFd,
        _one: MutexGuard<'static, ()>,
    }

    impl Stderr {
        /// Makes `to` standard error (descriptor 2), as a redirection by the program would.
        pub(crate) fn is(to: &impl AsRawFd) -> Self {
            let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
            start();
            let before = std::io::stderr().as_fd().try_clone_to_owned().unwrap();
            duplicate(to);
            Self { before, _one: one }
        }
    }

    impl Drop for Stderr {
        fn drop(&mut self) {
            set_level(Level::Info);
            duplicate(&self.before);
            redirected(2);
        }
    }

    fn duplicate(to: &impl AsRawFd) {
        // SAFETY: both descriptors are open, and descriptor 2 stays open for other writers.
        assert_eq!(unsafe { libc::dup2(to.as_raw_fd(), 2) }, 2);
    }

    pub(crate) fn file() -> File {
        // SAFETY: the name is terminated. The descriptor is new and belongs to nothing else.
        unsafe {
            let fd = libc::memfd_create(c"log".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0);
            File::from_raw_fd(fd)
        }
    }

    pub(crate) fn text(file: &File) -> String {
        let mut bytes = vec![0; 1 << 16];
        let length = file.read_at(&mut bytes, 0).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    #[test]
    fn lines_are_logged_up_to_the_level() {
        let file = file();
        let _stderr = Stderr::is(&file);
        redirected(2);
        say!(Error, "{}", 1);
        say!(Info, "{}", 2);
        say!(Debug, "{}", 3);
        set_level(Level::Debug);
        say!(Debug, "{}", 4);
        set_level(Level::Off);
        say!(Error, "{}", 5);
        assert_eq!(text(&file), "tllmprof: 1\ntllmprof: 2\ntllmprof: 4\n");
    }

    #[test]
    fn a_line_is_logged_once() {
        let file = file();
        let _stderr = Stderr::is(&file);
        redirected(2);
        for number in 0..3 {
            once!(Info, "{number}");
        }
        assert_eq!(text(&file), "tllmprof: 0\n");
    }

    #[test]
    fn a_long_line_loses_its_middle_between_characters() {
        let file = file();
        let _stderr = Stderr::is(&file);
        redirected(2);
        let all = |count: usize| format!("{}µ", "a".repeat(count));
        let longest = LONGEST - 1 - PREFIX.len() - "µ".len();
        let mut expected = String::new();
        for (first, second, why) in [
            (longest, 0, ""),
            (longest + 1, 0, ""),
            (5000, 0, ": the name is too long"),
            (BEGINNING - PREFIX.len() - 3, 700, ": the disk is full"),
            (20, 2000, "\u{2026}\u{2026}"),
        ] {
            let (one, other) = ("é".repeat(first / 2), all(second));
            say!(
                Info,
                "{}{one}{other}{why}",
                if first % 2 == 1 { "x" } else { "" }
            );
            let text = text(&file);
            let line = text.strip_prefix(&*expected).unwrap();
            assert!(line.len() <= LONGEST, "{}", line.len());
            let (head, tail) = line.split_once(CUT).unwrap_or((line, line));
            assert!(
                head.starts_with(PREFIX) && tail.ends_with(&format!("µ{why}\n")),
                "{line}"
            );
            let is_whole = PREFIX.len() + first + other.len() + why.len() < LONGEST;
            assert_eq!(head == line, is_whole, "{line}");
            assert!(is_whole || line.len() > LONGEST - 8, "{}", line.len());
            expected = text;
        }
    }

    #[test]
    fn a_file_that_has_got_descriptor_2_by_chance_is_not_ours() {
        let file = file();
        let _stderr = Stderr::is(&file);
        say!(Error, "this is not known to be standard error");
        redirected(1);
        say!(Error, "nor this");
        assert_eq!(text(&file), "");
        redirected(2);
        say!(Error, "it is");
        assert_eq!(text(&file), "tllmprof: it is\n");
    }

    #[test]
    fn a_reader_that_does_not_read_is_not_waited_for() {
        let (mut read, write) = std::io::pipe().unwrap();
        let stderr = Stderr::is(&write);
        redirected(2);
        let line = "a".repeat(LONGEST);
        for _ in 0..1000 {
            say!(Info, "{line}");
        }
        drop((stderr, write));
        let mut text = String::new();
        read.read_to_string(&mut text).unwrap();
        assert!(text.lines().count() < 1000, "the pipe was full");
        let is_whole = |line: &str| line.starts_with(PREFIX) && line.len() == LONGEST - 1;
        assert!(text.lines().all(is_whole), "no line is cut");
    }

    #[test]
    fn a_line_by_one_call_goes_to_a_file_and_not_to_a_pipe() {
        let file = file();
        let stderr = Stderr::is(&file);
        redirected(2);
        line_by_one_call(Level::Info, format_args!("1"));
        drop(stderr);
        assert_eq!(text(&file), "tllmprof: 1\n");
        let (mut read, write) = std::io::pipe().unwrap();
        let stderr = Stderr::is(&write);
        redirected(2);
        line_by_one_call(Level::Info, format_args!("2"));
        drop((stderr, write));
        let mut text = String::new();
        read.read_to_string(&mut text).unwrap();
        assert_eq!(text, "");
    }

    #[test]
    fn a_reader_that_is_gone_does_no_harm() {
        let (read, write) = std::io::pipe().unwrap();
        let _stderr = Stderr::is(&write);
        redirected(2);
        drop(read);
        say!(Info, "no thread reads it");
    }

    #[test]
    fn a_file_that_may_not_grow_does_no_harm() {
        let path = std::env::temp_dir().join(format!("tllmprof-log-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _stderr = Stderr::is(&file);
        redirected(2);
        // The size limit for files (`RLIMIT_FSIZE`) applies to the whole process, so it is set in a forked child.
        // SAFETY: the child sets a limit, logs a line (which allocates nothing) and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let limit = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            // SAFETY: `setrlimit` only reads the limit, and `_exit` ends the child.
            unsafe {
                libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
                let limited = libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
                say!(Info, "too much");
                libc::_exit(7 + limited);
            }
        }
        let mut status = -1;
        // SAFETY: `waitpid` writes the status to the local variable.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(
            (libc::WIFEXITED(status), libc::WEXITSTATUS(status)),
            (true, 7)
        );
        assert_eq!(file.metadata().unwrap().len(), 0);
    }

    #[test]
    fn warnings_are_kept_though_they_are_not_shown() {
        let file = file();
        let _stderr = Stderr::is(&file);
        redirected(2);
        keep(|line| KEPT.lock().unwrap().push(line.to_owned()));
        set_level(Level::Off);
        say!(Warn, "kept");
        say!(Info, "not kept");
        let kept = KEPT.lock().unwrap();
        assert!(kept.contains(&"kept".to_owned()) && !kept.contains(&"not kept".to_owned()));
        assert_eq!(text(&file), "");
    }
}
