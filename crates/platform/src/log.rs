//! One line at a time on standard error, and never any harm by it.

use core::ffi::c_int;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};

use crate::cancel::Uncancelled;
use crate::errno::Kept;
use crate::ids;
use crate::lifecycle::{self, OnlyThread};
use once_cell::race::OnceBox;
pub use tllmprof_config::Level;
use tllmprof_config::printable::Printing;
use tllmprof_sync::kernel;

const PREFIX: &str = "tllmprof: ";
const LONGEST: usize = 1024;

lifecycle::global! {
    stage: Modules;

    #[fork(keep = "the settings are the same")]
    static LEVEL: AtomicU8 = AtomicU8::new(Level::Info as u8);
    /// Device and inode of standard error when the library was loaded; 0 for none.
    #[fork(keep = "descriptor 2 is inherited")]
    static STDERR: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
    #[fork(keep = "as what standard error is")]
    static STARTED: AtomicBool = AtomicBool::new(false);
    #[fork(by = in_child)]
    static PROCESS: AtomicI32 = AtomicI32::new(0);
    /// Who keeps warnings and errors, beside standard error.
    #[fork(keep = "set once, at the start")]
    static KEEPER: OnceBox<fn(&str)> = OnceBox::new();
}

/// Descriptor 2 is the child's own from here on.
fn in_child(_: &OnlyThread) {
    PROCESS.store(ids::process(), Ordering::Relaxed);
}

/// Has `keep` called with each warning and error. Once; it may be called in any place.
pub fn keep(keep: fn(&str)) {
    let _ = KEEPER.set(Box::new(keep));
}

/// Remembers what standard error is. A descriptor 2 that is closed now belongs to the host: what
/// it opens there later is not for our lines. For the constructor, where a variable of ours is set; the first
/// line does it, too.
pub fn start() {
    if !STARTED.swap(true, Ordering::AcqRel) {
        PROCESS.store(ids::process(), Ordering::Relaxed);
        learn();
    }
}

/// The host has redirected descriptor `new`. Not for a child that shares the memory of its parent
/// until it runs another program: what it redirects is its own.
pub fn redirected(new: i32) {
    // Where no line has been or will be written, no system call is made either.
    let matters = new == 2 && STARTED.load(Ordering::Relaxed) && !lifecycle::is_filtered();
    if matters && is_own_process() {
        let _errno = Kept::new();
        learn();
    }
}

/// Whether this is the process in which the library was started, or a copy that has its own memory: not a child that
/// shares its parent's until it runs another program.
pub fn is_own_process() -> bool {
    PROCESS.load(Ordering::Relaxed) == ids::process()
}

fn learn() {
    let (device, inode) = stat().map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
    STDERR[0].store(device, Ordering::Relaxed);
    STDERR[1].store(inode, Ordering::Relaxed);
}

/// Sets the level up to which lines are logged.
pub fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Whether lines of `level` are logged.
pub fn is_logged(level: Level) -> bool {
    level as u8 <= LEVEL.load(Ordering::Relaxed)
}

/// Writes `tllmprof: ` and the message as one line.
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
    let text = Text::of(message);
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

/// As [`line`], by no other system call than the one that writes: the process has a filter that may end it for others.
pub fn line_by_one_call(level: Level, message: fmt::Arguments<'_>) {
    if is_logged(level) {
        let text = Text::of(message);
        let line = text.line();
        // SAFETY: the kernel reads the line.
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

struct Text {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Text {
    fn of(message: fmt::Arguments<'_>) -> Self {
        let mut text = Self {
            bytes: [0; LONGEST],
            length: 0,
        };
        // Names in it are the program's. Text never fails; a longer message is cut.
        let _ = write!(Printing(&mut text), "{PREFIX}{message}");
        text.bytes[text.length] = b'\n';
        text
    }

    /// With the end of the line.
    fn line(&self) -> &[u8] {
        &self.bytes[..=self.length]
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // One byte is kept for the end of the line.
        let room = LONGEST - 1 - self.length;
        let end = text.floor_char_boundary(room.min(text.len()));
        self.bytes[self.length..self.length + end].copy_from_slice(&text.as_bytes()[..end]);
        self.length += end;
        Ok(())
    }
}

fn stat() -> Option<libc::stat> {
    kernel::status(2)
}

/// Whether descriptor 2 still is what it was, or what the host has made it since. What happens to
/// have got the number after a close is the host's own file.
fn is_ours() -> bool {
    let known = STDERR.each_ref().map(|part| part.load(Ordering::Relaxed));
    known != [0, 0] && stat().is_some_and(|now| [now.st_dev, now.st_ino] == known)
}

/// Writes without raising a signal in the host, and without waiting: where the reader is gone or does not read, or the
/// file may not grow, the line is lost.
fn write_quietly(bytes: &[u8]) {
    /// What a write raises that fails with the error.
    const RAISED: [(c_int, c_int); 2] = [
        (libc::EPIPE, libc::SIGPIPE),
        (libc::EFBIG, libc::SIGXFSZ), // as large as RLIMIT_FSIZE lets it be
    ];
    let _uncancelled = Uncancelled::new();
    let mut place = libc::pollfd {
        fd: 2,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one entry, which outlives the call. A pipe that is ready takes a whole page, and a
    // line is shorter.
    let ready = unsafe { libc::poll(&raw mut place, 1, 0) };
    if ready != 1 || place.revents & libc::POLLOUT == 0 {
        return;
    }
    // SAFETY: the signal sets are initialised by sigemptyset before use, and every pointer is to a
    // local that outlives its call. Blocking and unblocking concerns this thread alone; a signal
    // that our write raised is taken off before the old mask returns, one that was pending stays.
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

    /// Standard error is the process's: one test at a time has it.
    static ONE: Mutex<()> = Mutex::new(());
    static KEPT: Mutex<Vec<String>> = Mutex::new(Vec::new());

    /// Descriptor 2, which is put back when this is dropped.
    pub(crate) struct Stderr {
        before: OwnedFd,
        _one: MutexGuard<'static, ()>,
    }

    impl Stderr {
        /// Makes `to` descriptor 2, in place of what the library knows.
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
        // SAFETY: both descriptors are open, and descriptor 2 stays so for who writes to it.
        assert_eq!(unsafe { libc::dup2(to.as_raw_fd(), 2) }, 2);
    }

    pub(crate) fn file() -> File {
        // SAFETY: a terminated name; the descriptor is new and nobody else's.
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
    fn a_long_line_is_cut_between_characters() {
        let file = file();
        let _stderr = Stderr::is(&file);
        redirected(2);
        say!(Info, "{}µ", "a".repeat(LONGEST - PREFIX.len() - 2));
        let text = text(&file);
        assert_eq!(text.len(), LONGEST - 1, "the last character has two bytes");
        assert!(text.ends_with("aa\n"));
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
        // The limit is the process's: in a copy of it.
        // SAFETY: the child sets a limit, logs a line, which allocates nothing, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let limit = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            // SAFETY: reads the limit; ends the child.
            unsafe {
                libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
                let limited = libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
                say!(Info, "too much");
                libc::_exit(7 + limited);
            }
        }
        let mut status = -1;
        // SAFETY: writes the status to the local.
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
