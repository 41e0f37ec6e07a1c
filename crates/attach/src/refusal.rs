//! The reasons why a process cannot be attached to, and their messages.

use std::fmt;

/// A reason why a process cannot be attached to. In a message, its text follows the process's
/// number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AttachRefusal {
    NoProcess,
    /// The process has ended, but its parent has not waited for it yet.
    Zombie,
    /// The number is that of a thread. The value is the id of its process.
    Thread(i32),
    Kernel,
    Stopped,
    Uninterruptible,
    /// Another process already traces it. The value is the tracer's id; 0 if unknown.
    Traced(i32),
    /// The process belongs to another user, with this id.
    AnotherUser(u32),
    /// The setting `kernel.yama.ptrace_scope`, which has this value, forbids it.
    Yama(u32),
    /// The system refuses the access with this error.
    NotPermitted(String),
    Architecture,
    Bits32,
    Static,
    CLibrary(&'static str),
    Allocator,
    Sanitizer(&'static str),
    /// Another command is attaching to the process.
    Busy,
    /// The process has another root directory, in which `/proc` is not mounted.
    NoProc,
    /// The process could not make a file in memory for the library. The value is the error number.
    NoFile(i32),
    /// The file in memory could not be written, for this reason.
    NotWritten(String),
    /// The process's C library is older than the version that the library needs.
    OldGlibc {
        has: (u32, u32),
        needs: (u32, u32),
    },
    /// The process has system call filters that may end it or deny what the library needs, or that
    /// cannot be read.
    Seccomp,
    /// Another copy of the library is loaded in the process. The value is its path.
    AnotherLibrary(String),
    NoXsave,
    NoRoom,
    /// No thread was at a safe point in this number of tries. `why` is the reason for the last
    /// thread.
    NeverSafe {
        tries: u32,
        why: &'static str,
    },
    Ended,
    /// The stub has not run in time.
    NotRun,
    /// `pthread_create` returned this error.
    NoThread(i32),
    /// `dlopen` or `dlsym` failed with this text.
    NotLoaded(String),
    /// The library is loaded, but its thread has not started it in time.
    NotStarted,
    TooLong,
    System(String),
}

impl fmt::Display for AttachRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProcess => f.write_str("there is no such process here"),
            Self::Zombie => f.write_str("the process has ended (it is a zombie)"),
            Self::Thread(process) => write!(f, "it is a thread of process {process} (wanted: that number)"),
            Self::Kernel => f.write_str("it is a thread of the kernel (wanted: a program)"),
            Self::Stopped => {
                f.write_str("the process is stopped (state T): let it go on first, with kill -CONT")
            }
            Self::Uninterruptible => f.write_str(
                "all of its threads are in uninterruptible sleep (state D): try again later",
            ),
            Self::Traced(0) => f.write_str("another program traces it (wanted: no gdb, no strace)"),
            Self::Traced(tracer) => write!(
                f,
                "process {tracer} traces it already (wanted: no gdb, no strace on it)"
            ),
            Self::AnotherUser(user) => write!(
                f,
                "it is a process of user {user}; only that user and root can attach to it"
            ),
            Self::Yama(scope) => match scope {
                1 => f.write_str(
                    "kernel.yama.ptrace_scope is 1: only its parent can attach (run this as root, or set it to 0)",
                ),
                2 => f.write_str(
                    "kernel.yama.ptrace_scope is 2: only root can attach (run this as root)",
                ),
                scope => write!(
                    f,
                    "kernel.yama.ptrace_scope is {scope}: no process can be attached to until the next boot"
                ),
            },
            Self::NotPermitted(error) => write!(
                f,
                "the system does not permit it: {error} (it may have changed its user or its capabilities, or a \
                 container may lack CAP_SYS_PTRACE)"
            ),
            Self::Architecture => {
                f.write_str("attach works on x86-64 alone: start the program with tllmprof run")
            }
            Self::Bits32 => f.write_str("it is a 32-bit program (wanted: a 64-bit one for x86-64)"),
            Self::Static => f.write_str(
                "it is a static program: no library can be loaded into it (wanted: one that uses libc.so.6)",
            ),
            Self::CLibrary(lacks) => write!(
                f,
                "its C library has no {lacks} (wanted: glibc 2.17 or later, with threads)"
            ),
            Self::Allocator => f.write_str(
                "the program itself defines malloc: whether a thread is within it cannot be known. Start it with \
                 tllmprof run",
            ),
            Self::Sanitizer(name) => write!(
                f,
                "it runs under {name}, which must see each thread begin: start it with tllmprof run"
            ),
            Self::Busy => f.write_str("another command is attaching to it: try again"),
            Self::NoProc => f.write_str(
                "it has another root file system (a container), in which /proc is not mounted: the library cannot be \
                 loaded there without it",
            ),
            Self::NoFile(error) => write!(
                f,
                "it has another root file system (a container), and no file in memory can be made in it for the \
                 library: {} (memfd_create)",
                std::io::Error::from_raw_os_error(*error)
            ),
            Self::NotWritten(error) => write!(
                f,
                "the library could not be written into the file in memory that was made in it: {error}"
            ),
            Self::OldGlibc { has, needs } => write!(
                f,
                "its glibc is {}.{}, and the library requires {}.{} (wanted: the library of a release, which requires \
                 2.17; set TLLMPROF_LIB to it)",
                has.0, has.1, needs.0, needs.1
            ),
            Self::Seccomp => f.write_str(
                "it filters its system calls (seccomp), and a filter ends it or denies what the library needs, or cannot be \
                 read (which takes root without filters). Start it with tllmprof run",
            ),
            Self::AnotherLibrary(path) => write!(
                f,
                "another copy of the library is loaded in it: {path} (set TLLMPROF_LIB to that, or restart it)"
            ),
            Self::NoXsave => f.write_str("this processor or its system has no XSAVE"),
            Self::NoRoom => f.write_str(
                "no room is left behind the code of its program and of its libraries; each attach takes 1.5 KiB. \
                 Restart it",
            ),
            Self::NeverSafe { tries, why } => write!(
                f,
                "none of its threads was at a safe point in {tries} tries: {why}. Try again, or start it with tllmprof run"
            ),
            Self::Ended => f.write_str("the process ended or became another program meanwhile"),
            Self::NotRun => f.write_str(
                "its thread has not run yet, or could map no memory (RLIMIT_AS): the library is loaded when it can \
                 (tllmprof ps shows it then)",
            ),
            Self::NoThread(error) => write!(
                f,
                "no thread could be created in it: {} (RLIMIT_NPROC, or a limit of its container)",
                std::io::Error::from_raw_os_error(*error)
            ),
            Self::NotLoaded(error) => write!(f, "its loader did not load the library: {error}"),
            Self::NotStarted => f.write_str(
                "the library's thread has not started it yet: a thread of the program may hold the loader's lock \
                 (tllmprof ps shows the process once it has)",
            ),
            Self::TooLong => f.write_str(
                "the path of the library and the variables do not fit behind its code (wanted: shorter ones)",
            ),
            Self::System(error) => f.write_str(error),
        }
    }
}

impl std::error::Error for AttachRefusal {}
