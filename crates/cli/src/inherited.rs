//! Makes the program inherit the state that this process inherited from its parent, as if the parent had started the
//! program directly. This state consists of ignored and blocked signals, open descriptors, the order of the variables,
//! and timers.
//!
//! Special code is needed for this, because Rust's runtime changes some of this state before `main`, and `Command`
//! changes some of it between fork and exec.

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::which::{CommandLookup, line_of_script, which};

/// Signals for which this process no longer has the inherited disposition. Rust's runtime ignores SIGPIPE. SIGCHLD gets
/// its default action, because a process that ignores it cannot wait for its children.
const CHANGED: [i32; 2] = [libc::SIGPIPE, libc::SIGCHLD];

static IGNORES: [AtomicBool; CHANGED.len()] = [const { AtomicBool::new(false) }; CHANGED.len()];
static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];
static BLOCKED: OnceLock<libc::sigset_t> = OnceLock::new();

/// Variables in which a service manager writes the id of the process that it starts. A program obeys the manager's
/// other variables only if this id is the program's own process id. So if the program runs in a child process, the
/// child's id is written to these variables.
const PROCESS_VARIABLES: [&str; 3] = ["LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"];
/// The variable in which systemd names the process that may use the passed sockets, by the inode of that process's
/// pidfd. The inode of a child's pidfd is not known before the child starts, so a child does not get this variable.
const LISTEN_PIDFD: &str = "LISTEN_PIDFDID";
/// Number of bytes of the largest process id in decimal, with the terminating zero.
const LONGEST_NUMBER: usize = 11;

const TIMERS: [libc::c_int; 3] = [libc::ITIMER_REAL, libc::ITIMER_VIRTUAL, libc::ITIMER_PROF];

// SAFETY: the loader calls the pointers in this section before `main`; the function ignores its arguments.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = note;

extern "C" fn note() {
    for (descriptor, closed) in (0..).zip(&CLOSED) {
        // SAFETY: F_GETFD reads a flag of a descriptor and changes nothing; a closed descriptor is allowed.
        let is_closed = unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1;
        closed.store(is_closed, Ordering::Relaxed);
        if is_closed {
            occupy();
        }
    }
    for (signal, ignores) in CHANGED.into_iter().zip(&IGNORES) {
        ignores.store(is_ignored(signal), Ordering::Relaxed);
    }
    // SAFETY: the default action takes no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    let _ = BLOCKED.set(blocked());
}

/// Opens `/dev/null` at the lowest free descriptor, which is that of a closed standard stream. If `/dev/null` does not
/// exist, for example in a container, the root folder is opened instead, because Rust's runtime would otherwise abort
/// the process. Reading and writing a folder fails, as with a closed descriptor.
fn occupy() {
    // SAFETY: the paths are zero-terminated. The descriptor that is opened stays open, and no other code uses it.
    unsafe {
        if libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) == -1 {
            libc::open(c"/".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY);
        }
    }
}

/// Returns true if standard output was closed when this process started. The descriptor of standard output is then a
/// placeholder, see `occupy`.
pub(crate) fn has_no_output() -> bool {
    CLOSED[1].load(Ordering::Relaxed)
}

pub(crate) fn is_ignored(signal: i32) -> bool {
    // SAFETY: all zeros are a valid sigaction, and the call only writes to it.
    unsafe {
        let mut now: libc::sigaction = core::mem::zeroed();
        libc::sigaction(signal, core::ptr::null(), &raw mut now) == 0
            && now.sa_sigaction == libc::SIG_IGN
    }
}

/// Returns the signals that the calling thread has blocked.
fn blocked() -> libc::sigset_t {
    // SAFETY: all zeros are a signal set; without a new mask the call only writes the old one.
    unsafe {
        let mut now = core::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), &raw mut now);
        now
    }
}

/// Replaces this process with `command`, as if the command had been started instead of this process. Returns only if
/// the replacement fails.
pub(crate) fn exec(command: &mut Command) -> io::Error {
    match hand_on(command, Heir::ThisProcess) {
        Ok(()) => command.exec(),
        Err(error) => error,
    }
}

/// Returns true if a child could not be started because processes, descriptors or memory are used up. In this
/// situation, the program can still replace this process, with [`exec_instead`].
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    let shortages = [libc::EAGAIN, libc::EMFILE, libc::ENFILE, libc::ENOMEM];
    error
        .raw_os_error()
        .is_some_and(|it| shortages.contains(&it))
}

/// Replaces this process with `command`, which [`hand_on`] has prepared for a child process. Returns only if the
/// replacement fails.
pub(crate) fn exec_instead(command: &mut Command) -> io::Error {
    command.exec()
}

/// The process in which the user's program is executed: this process or a child of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heir {
    ThisProcess,
    Child,
}

/// Makes `command` inherit the state that this process inherited from its parent, such as blocked signals and open
/// descriptors.
///
/// # Errors
/// An argument or a variable has a zero byte.
pub(crate) fn hand_on(command: &mut Command, heir: Heir) -> io::Result<()> {
    let mut image = ProgramImage::new(command, heir)?;
    let wrapper = std::process::id().cast_signed();
    let blocked = BLOCKED.get().copied();
    let timers = match heir {
        Heir::ThisProcess => [None; TIMERS.len()],
        Heir::Child => TIMERS.map(running),
    };
    let is_reaper = is_subreaper();
    // SAFETY: the closure makes only system calls, and writes to memory of its own; it may run between fork and exec.
    unsafe {
        command.pre_exec(move || {
            for (signal, ignores) in CHANGED.into_iter().zip(&IGNORES) {
                if ignores.load(Ordering::Relaxed) {
                    libc::signal(signal, libc::SIG_IGN);
                }
            }
            for (descriptor, closed) in (0..).zip(&CLOSED) {
                if closed.load(Ordering::Relaxed) {
                    libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC);
                }
            }
            // The closure also runs without a fork, in `exec_instead`. The steps in this block are only for a child
            // process.
            if libc::getpid() != wrapper {
                for (timer, left) in TIMERS.into_iter().zip(&timers) {
                    if let Some(left) = left {
                        libc::setitimer(timer, left, ptr::null_mut());
                    }
                }
                libc::prctl(libc::PR_SET_CHILD_SUBREAPER, libc::c_ulong::from(is_reaper));
                // If this command gets SIGKILL, it cannot pass the signal on to the program. So this setting makes the
                // kernel kill the program when the command is killed.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::getppid() != wrapper {
                    libc::_exit(128 | libc::SIGKILL);
                }
            }
            // Signals are unblocked last, because a signal that arrived while signals were blocked may end the process
            // at this point.
            if let Some(blocked) = &blocked {
                libc::pthread_sigmask(libc::SIG_SETMASK, blocked, ptr::null_mut());
            }
            Err(image.exec())
        });
    }
    Ok(())
}

/// Returns the remaining time of an interval timer of this process, or `None` if the timer is not running.
fn running(timer: libc::c_int) -> Option<libc::itimerval> {
    // SAFETY: all zeros are an itimerval, which the call only writes to.
    let (result, left) = unsafe {
        let mut left: libc::itimerval = core::mem::zeroed();
        (libc::getitimer(timer, &raw mut left), left)
    };
    let runs = left.it_value.tv_sec != 0 || left.it_value.tv_usec != 0;
    (result == 0 && runs).then_some(left)
}

/// Stops this process's interval timers after a child has taken them over.
pub(crate) fn stop_timers() {
    // SAFETY: all zeros are a stopped timer, and the old value is not requested.
    unsafe {
        let none: libc::itimerval = core::mem::zeroed();
        for timer in TIMERS {
            libc::setitimer(timer, &raw const none, ptr::null_mut());
        }
    }
}

fn is_subreaper() -> bool {
    let mut is_one: libc::c_int = 0;
    // SAFETY: the call writes only to the local variable.
    unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut is_one) };
    is_one != 0
}

/// Closes the pipes and sockets that this process inherited. The program has copies of them, and a process at the other
/// end would wait until this process closes its copies too. Standard error stays open for messages, and files stay
/// open, because closing a file releases its locks.
pub(crate) fn release() {
    let is_stream = |descriptor: RawFd| {
        // SAFETY: all zeros are a stat, which the call writes to; the descriptor need not be open.
        let (result, status) = unsafe {
            let mut status: libc::stat = core::mem::zeroed();
            (libc::fstat(descriptor, &raw mut status), status)
        };
        result == 0 && [libc::S_IFIFO, libc::S_IFSOCK].contains(&(status.st_mode & libc::S_IFMT))
    };
    let null = fs::File::options().read(true).write(true).open("/dev/null");
    if let Ok(null) = null {
        if is_stream(libc::STDIN_FILENO) {
            let _ = rustix::stdio::dup2_stdin(&null);
        }
        if is_stream(libc::STDOUT_FILENO) {
            let _ = rustix::stdio::dup2_stdout(&null);
        }
    }
    for descriptor in open_descriptors() {
        // SAFETY: F_GETFD reads the close-on-exec flag. Descriptors that this process opened have the flag. Inherited
        // descriptors do not have it, and this process does not use inherited descriptors.
        unsafe {
            let flags = libc::fcntl(descriptor, libc::F_GETFD);
            if descriptor > libc::STDERR_FILENO && flags == 0 && is_stream(descriptor) {
                libc::close(descriptor);
            }
        }
    }
}

pub(crate) fn open_descriptors() -> Vec<RawFd> {
    let entries = fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten();
    let names = entries.map(|entry| entry.file_name());
    names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect()
}

unsafe extern "C" {
    static mut environ: *const *const libc::c_char;
}

/// A program, its arguments and its variables, in the form that `execve` takes.
struct ProgramImage {
    /// The path of the program's file if the file is binary, otherwise `None`. If the kernel does not know the format
    /// of a binary file, the program must not be started through a shell, which would read the file as a script.
    binary: Option<*const libc::c_char>,
    arguments: Vec<*const libc::c_char>,
    variables: Vec<*const libc::c_char>,
    /// Addresses inside the strings of the variables. The child process writes its own process id to each of these
    /// addresses.
    numbers: Vec<*mut libc::c_char>,
    /// The strings to which the pointers in the other fields point.
    _strings: Vec<CString>,
}

// SAFETY: the pointers lead to memory that only this value owns and uses.
unsafe impl Send for ProgramImage {}
// SAFETY: a shared reference reads nothing through the pointers; they lead to memory of this value.
unsafe impl Sync for ProgramImage {}

impl ProgramImage {
    /// Prepares the image of `command`. Its variables are those of this process, with the changes that `command` makes.
    /// The variables stay in the same order, with duplicates and with entries that contain no `=`.
    fn new(command: &Command, heir: Heir) -> io::Result<Self> {
        let mut strings = Vec::new();
        let mut add = |bytes: Vec<u8>| -> io::Result<*mut libc::c_char> {
            // The `CString` moves into the list, but its heap memory stays at the same address.
            strings.push(CString::new(bytes)?);
            Ok(strings
                .last()
                .map_or(ptr::null_mut(), |string| string.as_ptr().cast_mut()))
        };
        let binary = match which(command.get_program()) {
            CommandLookup::Program(path) if matches!(line_of_script(&path), Ok(None)) => {
                Some(add(path.into_os_string().into_vec())?.cast_const())
            }
            _ => None,
        };
        let mut arguments = Vec::new();
        for argument in [command.get_program()]
            .into_iter()
            .chain(command.get_args())
        {
            arguments.push(add(argument.as_bytes().to_vec())?.cast_const());
        }
        let mut changes: Vec<(&OsStr, Option<&OsStr>)> = command.get_envs().collect();
        let mut variables = Vec::new();
        let mut numbers = Vec::new();
        let own = std::process::id().to_string();
        for entry in own_variables() {
            let length = entry.iter().position(|byte| *byte == b'=');
            let (name, value) = entry.split_at(length.unwrap_or(entry.len()));
            if let Some(place) = changes
                .iter()
                .position(|change| change.0.as_bytes() == name)
            {
                // If a variable occurs several times, programs read its first entry, so only the first entry is
                // changed.
                if let Some(value) = changes[place].1.take() {
                    variables.push(add([name, b"=", value.as_bytes()].concat())?.cast_const());
                }
                continue;
            }
            let is_number = PROCESS_VARIABLES
                .iter()
                .any(|variable| variable.as_bytes() == name);
            if heir == Heir::Child && is_number && value.get(1..) == Some(own.as_bytes()) {
                let start = [name, b"="].concat();
                let at = start.len();
                // Blanks reserve the space for a process id, because a `CString` cannot contain zeros.
                let place = add([start, vec![b' '; LONGEST_NUMBER]].concat())?;
                variables.push(place.cast_const());
                numbers.push(place.wrapping_add(at));
            } else if heir == Heir::ThisProcess || name != LISTEN_PIDFD.as_bytes() {
                variables.push(add(entry.clone())?.cast_const());
            }
        }
        for (name, value) in changes {
            if let Some(value) = value {
                variables
                    .push(add([name.as_bytes(), b"=", value.as_bytes()].concat())?.cast_const());
            }
        }
        arguments.push(ptr::null());
        variables.push(ptr::null());
        Ok(Self {
            binary,
            arguments,
            variables,
            numbers,
            _strings: strings,
        })
    }

    /// Replaces this process with the program. The program's file is searched for like in `execvp`. In contrast to
    /// `execvp`, a binary file of an unknown format is not passed to a shell. Returns the error if the replacement
    /// fails. Requires that this process has a single thread, as between fork and exec.
    fn exec(&mut self) -> io::Error {
        // SAFETY: the lists end with a null pointer, and each number has LONGEST_NUMBER bytes and a zero after them.
        // Nothing else reads the environment: this process has one thread, and ends or becomes another program.
        unsafe {
            let mut digits = [0_u8; LONGEST_NUMBER];
            let digits = decimal(libc::getpid().unsigned_abs(), &mut digits);
            for place in &self.numbers {
                ptr::copy_nonoverlapping(digits.as_ptr().cast(), *place, digits.len());
                place.add(digits.len()).write(0);
            }
            let before = environ;
            environ = self.variables.as_ptr();
            match self.binary {
                Some(file) => libc::execv(file, self.arguments.as_ptr()),
                None => libc::execvp(self.arguments[0], self.arguments.as_ptr()),
            };
            environ = before;
        }
        io::Error::last_os_error()
    }
}

/// Converts a number to decimal digits without allocating memory, because memory must not be allocated between fork and
/// exec.
fn decimal(mut number: u32, digits: &mut [u8; LONGEST_NUMBER]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

/// Returns this process's variables in the order in which the kernel passed them.
fn own_variables() -> impl Iterator<Item = Vec<u8>> {
    let mut list = Vec::new();
    // SAFETY: the list ends with a null pointer, its entries with a zero; nothing here changes variables.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            list.push(std::ffi::CStr::from_ptr(*at).to_bytes().to_vec());
            at = at.add(1);
        }
    }
    list.into_iter()
}

/// Returns true if a service manager expects notices from this process (`sd_notify`). By default the manager accepts
/// notices only from the process that it started. It asks the kernel which process sent a notice, so the program's
/// notices are accepted only if the program runs in this process.
pub(crate) fn notices_are_expected() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value: OsString| !value.is_empty());
    let own = std::process::id().to_string().into_bytes();
    // `SYSTEMD_EXEC_PID` is the process that the manager started. If it is the id of another process, this process
    // inherited the variables from an ancestor.
    let other = std::env::var_os("SYSTEMD_EXEC_PID").map(OsString::into_vec);
    is_set("NOTIFY_SOCKET") && other.is_none_or(|process| process == own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_digits() {
        for number in [0, 7, 10, 4_194_304, u32::MAX] {
            let mut digits = [0; LONGEST_NUMBER];
            assert_eq!(decimal(number, &mut digits), number.to_string().as_bytes());
        }
    }
}
