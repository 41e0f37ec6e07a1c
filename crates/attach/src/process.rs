//! Data about a process from `/proc`, and the checks that are made before any of its threads is stopped.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
#[cfg(target_arch = "x86_64")]
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
#[cfg(target_arch = "x86_64")]
use std::thread;
#[cfg(target_arch = "x86_64")]
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;

use crate::refusal::AttachRefusal;

/// The fields of `/proc/PID/status` that decide if the process can be attached to.
#[derive(Debug, Default)]
pub struct ProcStatus {
    pub state: char,
    /// The process id. For a thread, this is the id of the process to which it belongs.
    pub process: i32,
    tracer: i32,
    /// The real, effective, saved and file system user ids, in this order.
    users: Vec<u32>,
    seccomp: u32,
    filters: Option<u32>,
}

impl ProcStatus {
    /// Returns the id of the process that traces this process or thread; 0 if none does.
    #[cfg(target_arch = "x86_64")]
    pub const fn tracer(&self) -> i32 {
        self.tracer
    }

    /// Reads the status of the process or thread with the id `pid`.
    ///
    /// # Errors
    /// Returns an error if there is no such process or thread, or if it is hidden because it belongs to another user.
    pub fn from_pid(pid: i32) -> io::Result<Self> {
        Self::read(&folder(pid))
    }

    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        fs::read_to_string(path.join("status")).map(|text| Self::parse(&text))
    }

    fn has_more_filters(&self, own: &Self) -> bool {
        self.seccomp > own.seccomp || self.filters > own.filters
    }

    fn parse(text: &str) -> Self {
        let mut status = Self::default();
        for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
            let mut words = value.split_whitespace();
            let mut number = || words.next().and_then(|word| word.parse().ok());
            match name {
                "State" => status.state = value.trim_start().chars().next().unwrap_or('?'),
                "Tgid" => status.process = number().map_or(0, u32::cast_signed),
                "TracerPid" => status.tracer = number().map_or(0, u32::cast_signed),
                "Uid" => status.users = words.filter_map(|word| word.parse().ok()).collect(),
                "Seccomp" => status.seccomp = number().unwrap_or(0),
                "Seccomp_filters" => status.filters = number(),
                _ => {}
            }
        }
        status
    }
}

/// A lock on a process, which keeps other commands from attaching to the process. The lock is released when this
/// value is dropped, or when this command ends.
#[derive(Debug)]
pub struct Turn {
    _lock: Option<Flock<fs::File>>,
}

impl Turn {
    /// Takes the lock on the process `pid`. If the process does not exist, nothing is locked.
    ///
    /// # Errors
    /// Returns an error if another command holds the lock.
    pub fn take(pid: i32) -> Result<Self, AttachRefusal> {
        let lock = match fs::File::open(folder(pid)) {
            Ok(folder) => {
                let locked = Flock::lock(folder, FlockArg::LockExclusiveNonblock);
                Some(locked.map_err(|_| AttachRefusal::Busy)?)
            }
            Err(_) => None,
        };
        Ok(Self { _lock: lock })
    }
}

/// Value of the `Seccomp` field in strict mode, in which a process can make almost no system calls.
const STRICT: u32 = 1;

/// Returns true if the thread has more system call filters (seccomp) than the process of this command.
#[cfg(target_arch = "x86_64")]
pub(crate) fn is_filtered(tid: i32) -> bool {
    let own = ProcStatus::read(Path::new("/proc/self")).unwrap_or_default();
    ProcStatus::from_pid(tid).is_ok_and(|status| status.has_more_filters(&own))
}

/// Returns the path of the process's folder in `/proc`.
pub(crate) fn folder(pid: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

/// Returns the ids of all threads of the process. The list is empty if the process has ended.
#[cfg(target_arch = "x86_64")]
pub(crate) fn threads(pid: i32) -> Vec<i32> {
    let entries = fs::read_dir(folder(pid).join("task"))
        .into_iter()
        .flatten()
        .flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Waits until the kernel no longer reports the process as traced, at most 1 s. The kernel releases traced threads only
/// some time after their tracer thread was joined.
#[cfg(target_arch = "x86_64")]
pub(crate) fn await_untraced(pid: i32) {
    const TIMEOUT: Duration = Duration::from_secs(1);
    const POLL_INTERVAL: Duration = Duration::from_micros(30);
    let since = Instant::now();
    while ProcStatus::from_pid(pid).is_ok_and(|status| status.tracer != 0)
        && since.elapsed() < TIMEOUT
    {
        thread::sleep(POLL_INTERVAL);
    }
}

/// Returns true if the thread has created child processes that it has not waited for yet.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_children(pid: i32, tid: i32) -> bool {
    let path = folder(pid).join(format!("task/{tid}/children"));
    fs::read(path).is_ok_and(|children| !children.is_empty())
}

/// Returns true if a command is still loading the library into the process: the thread that the command created there
/// has not ended. The command itself may have been killed since.
#[cfg(target_arch = "x86_64")]
pub(crate) fn is_being_attached(pid: i32) -> bool {
    let mut threads = threads(pid).into_iter();
    threads.any(|tid| thread_name(pid, tid).trim_end() == "tllmprof-attach")
}

/// Returns the thread's name from `/proc`. It is empty if the thread has ended.
#[cfg(target_arch = "x86_64")]
pub(crate) fn thread_name(pid: i32, tid: i32) -> String {
    let path = folder(pid).join(format!("task/{tid}/comm"));
    fs::read_to_string(path).unwrap_or_default()
}

/// Returns true if a signal that the thread does not block is pending for it, or if this is unknown. Ignored signals
/// do not count, although they can be pending for a traced thread.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_signal(pid: i32, tid: i32) -> bool {
    let path = folder(pid).join(format!("task/{tid}/status"));
    fs::read_to_string(path).map_or(true, |text| is_pending(&text).unwrap_or(true))
}

/// Returns true if the process ignores the signal. An ignored signal wakes no thread, except a traced one.
#[cfg(target_arch = "x86_64")]
pub(crate) fn ignores(tid: i32, signal: i32) -> bool {
    let ignored = status_of(tid).and_then(|text| ignored(&text));
    ignored.is_some_and(|ignored| (1..=64).contains(&signal) && ignored & 1 << (signal - 1) != 0)
}

/// Returns true if the thread blocks the signal, that is, has it in its signal mask.
#[cfg(target_arch = "x86_64")]
pub(crate) fn blocks(tid: i32, signal: i32) -> bool {
    let blocked = status_of(tid).and_then(|text| mask(&text, "SigBlk:"));
    blocked.is_some_and(|blocked| blocked & 1 << (signal - 1) != 0)
}

#[cfg(target_arch = "x86_64")]
fn status_of(tid: i32) -> Option<String> {
    fs::read_to_string(folder(tid).join("status")).ok()
}

#[cfg(target_arch = "x86_64")]
fn is_pending(status: &str) -> Option<bool> {
    let pending = mask(status, "SigPnd:")? | mask(status, "ShdPnd:")?;
    Some(pending & !mask(status, "SigBlk:")? & !ignored(status)? != 0)
}

/// Returns the set of ignored signals: those that the process ignores explicitly, and those that are ignored by
/// default and have no handler.
#[cfg(target_arch = "x86_64")]
fn ignored(status: &str) -> Option<u64> {
    const BY_DEFAULT: [i32; 4] = [libc::SIGCHLD, libc::SIGURG, libc::SIGWINCH, libc::SIGCONT];
    let by_default = BY_DEFAULT
        .iter()
        .fold(0, |all, signal| all | 1 << (signal - 1));
    Some(mask(status, "SigIgn:")? | by_default & !mask(status, "SigCgt:")?)
}

#[cfg(target_arch = "x86_64")]
fn mask(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Checks everything that can be checked without stopping a thread of the process.
///
/// # Errors
/// Returns the reason why the process cannot be attached to.
pub(crate) fn check(pid: i32, library: &Path) -> Result<(), AttachRefusal> {
    let folder = folder(pid);
    let status = ProcStatus::from_pid(pid).map_err(|_| AttachRefusal::NoProcess)?;
    if status.process != pid {
        return Err(AttachRefusal::Thread(status.process));
    }
    match status.state {
        'Z' | 'X' => return Err(AttachRefusal::Zombie),
        't' | 'T' if status.tracer == 0 => return Err(AttachRefusal::Stopped),
        _ => {}
    }
    if status.tracer != 0 {
        return Err(AttachRefusal::Traced(status.tracer));
    }
    let us = geteuid();
    if !us.is_root()
        && let Some(user) = status.users.iter().find(|user| **user != us.as_raw())
    {
        return Err(AttachRefusal::AnotherUser(*user));
    }
    let maps = match fs::read(folder.join("maps")) {
        // The kernel frees the memory of a process early when the process ends, so a process without mappings may also
        // be one that is ending.
        Ok(maps) if maps.is_empty() => {
            let is_kernel = fs::read(folder.join("stat")).is_ok_and(|stat| is_kernel_thread(&stat));
            return Err(match is_kernel {
                true => AttachRefusal::Kernel,
                false => AttachRefusal::Ended,
            });
        }
        Ok(maps) => maps,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Err(not_permitted()),
        Err(error) => return Err(AttachRefusal::System(format!("/proc/{pid}/maps: {error}"))),
    };
    // Only root can read the filters of another process, and only if the reading process has no filters itself. If
    // this command cannot read them, it refuses a process that has more filters than the command, because these
    // filters may be harmful.
    let own = ProcStatus::read(Path::new("/proc/self")).unwrap_or_default();
    let is_read = us.is_root() && own.seccomp == 0;
    if status.seccomp == STRICT || status.has_more_filters(&own) && !is_read {
        return Err(AttachRefusal::Seccomp);
    }
    check_machine(&folder)?;
    if !library.is_file() {
        let library = library.display();
        return Err(AttachRefusal::System(format!("{library} is not there")));
    }
    other_library(&maps, library)
}

/// Returns the likely reason why the system does not permit tracing or reading another process: the setting
/// `ptrace_scope` if it restricts this, otherwise missing rights.
pub(crate) fn not_permitted() -> AttachRefusal {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    let scope = scope.and_then(|text| text.trim().parse().ok());
    match scope {
        Some(scope @ 1..) => AttachRefusal::Yama(scope),
        _ => AttachRefusal::NotPermitted("operation not permitted".to_owned()),
    }
}

/// Checks that the program in the process is a 64-bit program for x86-64, and that this command is one, too.
fn check_machine(folder: &Path) -> Result<(), AttachRefusal> {
    const X86_64: [u8; 2] = [62, 0];
    const I386: [u8; 2] = [3, 0];
    let mut header = [0; 20];
    let program = fs::File::open(folder.join("exe"));
    let read = program.and_then(|mut file| io::Read::read_exact(&mut file, &mut header));
    if let Err(error) = read {
        return Err(match error.kind() {
            ErrorKind::PermissionDenied => not_permitted(),
            _ => AttachRefusal::NoProcess,
        });
    }
    match [header[18], header[19]] {
        _ if header[4] == 1 => Err(AttachRefusal::Bits32),
        I386 => Err(AttachRefusal::Bits32),
        X86_64 if cfg!(target_arch = "x86_64") => Ok(()),
        _ => Err(AttachRefusal::Architecture),
    }
}

/// Returns true if the library's path leads to the same file in the process as in this command. In a process with
/// another root directory, such as one in a container, the path usually leads to no file or to another file.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_file(pid: i32, library: &Path) -> bool {
    let relative = library.strip_prefix("/").unwrap_or(library);
    let identity = |path: &Path| {
        let status = fs::metadata(path).ok()?;
        Some((status.dev(), status.ino()))
    };
    let theirs = identity(&folder(pid).join("root").join(relative));
    theirs.is_some() && theirs == identity(library)
}

/// Returns true if `/proc` is mounted in the process's root folder. The process needs `/proc` to open a file by its
/// descriptor.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_proc(pid: i32) -> bool {
    let proc = folder(pid).join("root/proc");
    nix::sys::statfs::statfs(&proc)
        .is_ok_and(|status| status.filesystem_type() == nix::sys::statfs::PROC_SUPER_MAGIC)
}

/// Checks that no other copy of the tllmprof library is loaded in the process.
fn other_library(maps: &[u8], library: &Path) -> Result<(), AttachRefusal> {
    let real = fs::canonicalize(library).unwrap_or_else(|_| library.to_owned());
    let name = b"libtllmprof.so";
    for line in maps.split(|byte| *byte == b'\n') {
        let Some(start) = line.iter().position(|byte| *byte == b'/') else {
            continue;
        };
        let path = &line[start..];
        let file = path.rsplit(|byte| *byte == b'/').next();
        if file.is_some_and(|file| file.starts_with(name)) && path != real.as_os_str().as_bytes() {
            let path = String::from_utf8_lossy(path).into_owned();
            return Err(AttachRefusal::AnotherLibrary(path));
        }
    }
    Ok(())
}

/// Returns true if a process with the id `pid` exists and has not ended.
#[must_use]
pub fn is_there(pid: i32) -> bool {
    ProcStatus::from_pid(pid).is_ok_and(|status| !matches!(status.state, 'Z' | 'X'))
}

/// Returns true if the file `stat` of a process has the flag of the kernel's own threads. The flags are the seventh field
/// after the name in brackets (proc_pid_stat(5)).
fn is_kernel_thread(stat: &[u8]) -> bool {
    const PF_KTHREAD: u64 = 0x20_0000;
    let text = String::from_utf8_lossy(stat);
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let flags = fields.split_ascii_whitespace().nth(6);
    flags
        .and_then(|flags| flags.parse::<u64>().ok())
        .is_some_and(|flags| flags & PF_KTHREAD != 0)
}

/// Returns true if the process has ended or is ending. An ending process is recognized by its empty list of mappings,
/// because the kernel frees the memory early when a process ends.
pub(crate) fn is_ending(pid: i32) -> bool {
    !is_there(pid) || fs::read(folder(pid).join("maps")).is_ok_and(|maps| maps.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_memory_is_a_kernel_thread_only_by_its_flags() {
        let is_kernel = |text: &str| is_kernel_thread(text.as_bytes());
        assert!(is_kernel("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0\n"));
        // This process is ending: its flags have PF_EXITING, which is 4.
        assert!(!is_kernel("988 (a) b) R 980 980 980 0 -1 4194308 0 0 0\n"));
        assert!(!is_kernel("988 (sleep) R 980"));
        assert!(!is_kernel(""));
        assert!(!is_kernel_thread(&fs::read("/proc/self/stat").unwrap()));
    }

    #[test]
    fn a_status_is_read_with_or_without_what_old_kernels_lack() {
        let text = "Name:\ta: b\nState:\tt (tracing stop)\nTracerPid:\t42\nUid:\t1\t2\t3\t4\nSeccomp:\t2\n";
        let status = ProcStatus::parse(text);
        assert_eq!((status.state, status.tracer), ('t', 42));
        assert_eq!(status.users, [1, 2, 3, 4]);
        assert_eq!((status.seccomp, status.filters), (2, None));
        let with = ProcStatus::parse(&format!("{text}Seccomp_filters:\t3\n"));
        assert_eq!(with.filters, Some(3));
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_signal_waits_where_it_is_pending_and_not_blocked() {
        let with = |thread: &str, all: &str, blocked: &str, ignored: &str, caught: &str| {
            is_pending(&format!(
                "SigPnd:\t{thread}\nShdPnd:\t{all}\nSigBlk:\t{blocked}\nSigIgn:\t{ignored}\nSigCgt:\t{caught}\n"
            ))
        };
        let status = |thread: &str, all: &str, blocked: &str| with(thread, all, blocked, "0", "0");
        let child = "10000";
        assert_eq!(
            with("0", child, "0", "0", "0"),
            Some(false),
            "ignored by default"
        );
        assert_eq!(
            with("0", child, "0", "0", child),
            Some(true),
            "it has a handler"
        );
        assert_eq!(with("2", "0", "0", "2", "0"), Some(false), "ignored");
        assert_eq!(status("0", "0", "ff"), Some(false));
        assert_eq!(status("0000000000000002", "0", "0"), Some(true));
        assert_eq!(status("0", "0000000000000002", "4"), Some(true));
        assert_eq!(status("2", "2", "ff"), Some(false));
        assert_eq!(is_pending("SigPnd:\t0\n"), None);
    }

    #[test]
    fn one_command_at_a_time_attaches() {
        let here = std::process::id().cast_signed();
        let turn = Turn::take(here).unwrap();
        assert_eq!(Turn::take(here).err(), Some(AttachRefusal::Busy));
        drop(turn);
        assert!(Turn::take(here).is_ok() && Turn::take(i32::MAX).is_ok());
    }

    #[test]
    fn another_file_of_the_library_is_seen() {
        let library = Path::new("/l/libtllmprof.so");
        let maps = |path: &str| format!("1-2 r-xp 0 08:01 7    {path}\n3-4 rw-p 0 00:00 0 \n");
        let check = |path: &str| other_library(maps(path).as_bytes(), library);
        assert_eq!(check("/l/libtllmprof.so"), Ok(()));
        assert_eq!(check("/m/libother.so"), Ok(()));
        for other in ["/m/libtllmprof.so", "/l/libtllmprof.so (deleted)"] {
            assert_eq!(
                check(other),
                Err(AttachRefusal::AnotherLibrary(other.to_owned()))
            );
        }
    }

    #[test]
    fn a_process_that_is_not_there_is_refused() {
        let library = std::env::current_exe().unwrap();
        assert_eq!(check(i32::MAX, &library), Err(AttachRefusal::NoProcess));
        let missing = Path::new("/no/such/library.so");
        let here = std::process::id().cast_signed();
        assert!(matches!(
            check(here, missing),
            Err(AttachRefusal::System(_))
        ));
    }
}
