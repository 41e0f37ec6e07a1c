//! The reasons why a process cannot be attached to, and their messages.

use std::fmt;
use std::io;

/// A reason why a process cannot be attached to. A message consists of the process's id and the text of the
/// reason.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AttachRefusal {
    #[error("there is no such process here")]
    NoProcess,
    /// The process has ended, but its parent has not waited for it yet.
    #[error("the process has ended (it is a zombie)")]
    Zombie,
    /// The id that the user gave belongs to a thread, not to a process. The value is the id of the thread's process.
    #[error("it is a thread of process {0} (wanted: that number)")]
    Thread(i32),
    #[error("it is a thread of the kernel (wanted: a program)")]
    Kernel,
    #[error("the process is stopped (state T): continue it first, with kill -CONT")]
    Stopped,
    #[error(
        "none of its threads stopped in time: all are in uninterruptible sleep (state D), or the machine is too busy. Try again \
         later"
    )]
    Uninterruptible,
    /// Another process already traces the process. The value is the tracer's id; 0 if it is unknown.
    #[error(fmt = traced)]
    Traced(i32),
    /// The process belongs to another user. The value is the id of that user.
    #[error("it is a process of user {0}; only that user and root can attach to it")]
    AnotherUser(u32),
    /// The kernel's setting `kernel.yama.ptrace_scope` forbids the access. The value is the setting's current value.
    #[error(fmt = yama)]
    Yama(u32),
    /// The system refuses access to the process. The value is the error or another reason.
    #[error(
        "the system does not permit it: {0} (it may have changed its user or its capabilities, or a container may lack \
         CAP_SYS_PTRACE)"
    )]
    NotPermitted(String),
    #[error("attach works only on x86-64: start the program with tllmprof run")]
    Architecture,
    #[error("it is a 32-bit program (wanted: a 64-bit one for x86-64)")]
    Bits32,
    #[error(
        "it is a static program: no library can be loaded into it (wanted: one that uses libc.so.6)"
    )]
    Static,
    #[error("its C library has no {0} (wanted: glibc 2.17 or later, with threads)")]
    CLibrary(&'static str),
    #[error(
        "the program itself defines malloc: whether a thread is within it cannot be known. Start it with tllmprof run"
    )]
    Allocator,
    #[error("it runs under {0}, which must see each thread begin: start it with tllmprof run")]
    Sanitizer(&'static str),
    /// Another command is attaching to the process at this moment.
    #[error("another command is attaching to it: try again")]
    Busy,
    /// The process has another root directory, and `/proc` is not mounted there.
    #[error(
        "it has another root file system (a container), in which /proc is not mounted: the library cannot be loaded \
         there without it"
    )]
    NoProc,
    /// The process could not make a file in memory for the library. The value is the error number.
    #[error(
        "it has another root file system (a container), and no file in memory can be made in it for the library: {} \
         (memfd_create)", io::Error::from_raw_os_error(*.0)
    )]
    NoFile(i32),
    /// The library could not be written into the file in memory. The value is the reason.
    #[error("the library could not be written into the file in memory that was made in it: {0}")]
    NotWritten(String),
    /// The process's C library is older than the version that the library needs.
    #[error(
        "its glibc is {}.{}, and the library requires {}.{} (wanted: the library of a release, which requires 2.17; set \
         TLLMPROF_LIB to it)", has.0, has.1, needs.0, needs.1
    )]
    OldGlibc { has: (u32, u32), needs: (u32, u32) },
    /// The system call filters of the process cannot be read, or they may end the process or deny system calls that
    /// the library needs.
    #[error(
        "it filters its system calls (seccomp), and a filter ends it or denies what the library needs, or cannot be read \
         (which takes root without filters). Start it with tllmprof run"
    )]
    Seccomp,
    /// Another copy of the library is loaded in the process. The value is its path.
    #[error(
        "another copy of the library is loaded in it: {0} (set TLLMPROF_LIB to that, or restart it)"
    )]
    AnotherLibrary(String),
    #[error("this processor or its system has no XSAVE")]
    NoXsave,
    #[error(
        "no room is left behind the code of its program and of its libraries; each attach takes 1.5 KiB. Restart it"
    )]
    NoRoom,
    /// No thread was at a safe point (where it can run injected code) in `tries` tries. `why` is the most recent reason
    /// why a thread was not at a safe point.
    #[error(
        "none of its threads was at a safe point in {tries} tries: {why}. Try again, or start it with tllmprof run"
    )]
    NeverSafe { tries: u32, why: &'static str },
    #[error("the process ended or became another program meanwhile")]
    Ended,
    /// The stub (the injected code) has not run in time, although the registers of a thread were set to run it.
    #[error(
        "its thread has not run yet, or could map no memory (RLIMIT_AS): the library is loaded when it can (tllmprof ps \
         shows it then)"
    )]
    NotRun,
    /// The stub's call of `pthread_create` returned this error.
    #[error(
        "no thread could be created in it: {} (RLIMIT_NPROC, or a limit of its container)",
        io::Error::from_raw_os_error(*.0)
    )]
    NoThread(i32),
    /// `dlopen` or `dlsym` failed in the process. The value is the error's text.
    #[error("its loader did not load the library: {0}")]
    NotLoaded(String),
    /// The library is loaded, but the thread that the stub (the injected code) created in the process has not started
    /// it in time.
    #[error(
        "the library's thread has not started it yet: a thread of the program may hold the loader's lock (tllmprof ps \
         shows the process once it has)"
    )]
    NotStarted,
    #[error(
        "the path of the library and the variables do not fit behind its code (wanted: shorter ones)"
    )]
    TooLong,
    #[error("{0}")]
    System(String),
}

fn traced(tracer: &i32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match tracer {
        0 => f.write_str("another program traces it (wanted: no gdb, no strace)"),
        _ => write!(
            f,
            "process {tracer} traces it already (wanted: no gdb, no strace on it)"
        ),
    }
}

fn yama(scope: &u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "kernel.yama.ptrace_scope is {scope}: ")?;
    f.write_str(match scope {
        1 => "only its parent can attach (run this as root, or set it to 0)",
        2 => "only root can attach (run this as root)",
        _ => "no process can be attached to until the next boot",
    })
}
