//! Keeps files of `/proc` about threads and child processes open. Each file is opened once in a window (a recorded
//! interval). If the sampler opened and closed descriptors more often, files that the host (the profiled program) opens
//! could get descriptor numbers that the host does not expect. No further file is opened once the host could run short
//! of descriptors.

use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, Ordering};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use tllmprof_platform::descriptor::OwnFile;
use tllmprof_platform::lifecycle::{self, OnlyThread, Stage};
use tllmprof_sync::{Lock, kernel};

/// The longest time that the sampler waits for the lock of the open files, which is held during a
/// fork.
const FORK_TIMEOUT: core::time::Duration = core::time::Duration::from_millis(10);

/// Maximum number of bytes of a file in `/proc` that are read, from its start.
pub(crate) const LENGTH: usize = 512;

/// The most threads that are followed at a time; stacks of further threads are not sampled. In the table of open files,
/// the entries of the followed threads are the first.
pub(crate) const MAX_THREADS: usize = 8;
/// The most other threads and child processes that are observed at a time. In the table of open files, their entries
/// come after those of the followed threads.
pub(crate) const MAX_OTHERS: usize = 24;
/// The index of the process's main thread in the table of open files.
pub(crate) const MAIN_THREAD: usize = MAX_THREADS + MAX_OTHERS;
const PLACES: usize = MAIN_THREAD + 1;
/// The divisor for the share of descriptors that is left to the host. With 4, the host keeps the last quarter of the
/// descriptors that the process may have (`RLIMIT_NOFILE`). A file that gets one of these descriptors is closed again.
const PART_OF_HOST: u64 = 4;

/// A file in `/proc` about a thread or a process.
#[derive(Clone, Copy)]
pub(crate) enum TaskFile {
    Stat,
    Syscall,
    /// The ids of the processes that the thread has started.
    Children,
    Comm,
}

const NAMES: [&str; 4] = ["stat", "syscall", "children", "comm"];

/// The thread or process that a file in `/proc` is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TaskId {
    /// A thread of this process.
    Thread(i32),
    /// The main thread of another process.
    Process(i32),
}

/// A thread or a process, with its index (`place`) in the table of open files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskFiles {
    pub place: usize,
    pub id: TaskId,
}

lifecycle::global! {
    stage: Sinks;

    /// The open files. The first index is [`TaskFiles::place`], and the second is the [`TaskFile`].
    #[fork(hold)]
    static FILES: Lock<[[Option<OwnFile>; NAMES.len()]; PLACES]> = Lock::new([const { [const { None }; NAMES.len()] }; PLACES]);
    /// The folder with the process's threads.
    #[fork(hold)]
    static THREADS: Lock<Option<OwnFile>> = Lock::new(None);
    /// True once a file has got one of the descriptors that are left to the host. Until [`close_all`] is called, no
    /// further file is opened.
    #[fork(reset)]
    static IS_FULL: AtomicBool = AtomicBool::new(false);
}

lifecycle::at_fork! {
    stage: Stage::Again,
    child: in_child,
}

/// Closes the files in the child of a fork, because they are about the parent's threads.
fn in_child(_: &OnlyThread) {
    close_all();
}

/// Closes all files.
pub(crate) fn close_all() {
    if let Some(mut files) = FILES.lock_for(FORK_TIMEOUT) {
        files
            .iter_mut()
            .for_each(|files| *files = [const { None }; NAMES.len()]);
    }
    if let Some(mut folder) = THREADS.lock_for(FORK_TIMEOUT) {
        *folder = None;
    }
    IS_FULL.store(false, Ordering::Relaxed);
}

/// Opens a file. Returns `None` if this is not possible, or if the host could run short of descriptors.
fn open(path: &str) -> Option<OwnFile> {
    if IS_FULL.load(Ordering::Relaxed) {
        return None;
    }
    let file = OwnFile::new(File::open(path).ok()?).ok()?;
    let number = u64::try_from(file.get()?.as_raw_fd()).ok()?;
    let is_full = number >= descriptor_limit() / PART_OF_HOST * (PART_OF_HOST - 1);
    IS_FULL.store(is_full, Ordering::Relaxed);
    (!is_full).then_some(file)
}

/// Returns the number of descriptors that the process may have; `u64::MAX` if it is not known.
fn descriptor_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: u64::MAX,
        rlim_max: u64::MAX,
    };
    // SAFETY: the kernel writes the limits to the local variable. On an error the variable stays as it is.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur
}

/// Closes the files of the thread or process with the index `place`.
pub(crate) fn close(place: usize) {
    if let Some(mut files) = FILES.lock_for(FORK_TIMEOUT) {
        files[place] = [const { None }; NAMES.len()];
    }
}

/// Reads a file about a thread or a process. Returns `None` if the file does not exist or may not be read.
pub(crate) fn read(task: TaskFiles, of: TaskFile, text: &mut [u8; LENGTH]) -> Option<&[u8]> {
    let mut files = FILES.lock_for(FORK_TIMEOUT)?;
    let file = files.get_mut(task.place)?.get_mut(of as usize)?;
    if file.is_none() {
        let folder = match task.id {
            TaskId::Thread(number) => format!("/proc/self/task/{number}"),
            TaskId::Process(number) => format!("/proc/{number}/task/{number}"),
        };
        let path = format!("{folder}/{}", NAMES[of as usize]);
        *file = open(&path);
    }
    let length = file.as_ref()?.get()?.read_at(text, 0).ok()?;
    text.get(..length)
}

/// Calls `each` with the kernel's id of each thread of this process, until `each` returns `Break`. Returns `None`
/// if the threads cannot be listed.
pub(crate) fn each_thread(mut each: impl FnMut(i32) -> ControlFlow<()>) -> Option<()> {
    let mut folder = THREADS.lock_for(FORK_TIMEOUT)?;
    if folder.is_none() {
        *folder = open("/proc/self/task");
    }
    let descriptor = folder.as_ref()?.get()?.as_raw_fd();
    // SAFETY: the call takes only numbers.
    unsafe { kernel::call(libc::SYS_lseek, [descriptor as usize, 0, 0]) };
    let mut entries = [0_u64; 512];
    loop {
        let bytes = size_of_val(&entries);
        let arguments = [descriptor as usize, entries.as_mut_ptr().addr(), bytes];
        // SAFETY: the kernel writes at most `bytes` bytes to the local array.
        let length = unsafe { kernel::call(libc::SYS_getdents64, arguments) };
        let length = usize::try_from(length).ok()?;
        if length == 0 {
            return Some(());
        }
        // SAFETY: the array has `bytes` initialised bytes, and `length` is at most that.
        let listed = unsafe {
            core::slice::from_raw_parts(entries.as_ptr().cast::<u8>(), length.min(bytes))
        };
        for number in numbers(listed) {
            if each(number).is_break() {
                return Some(());
            }
        }
    }
}

/// Returns the thread ids in a buffer of `linux_dirent64` structures: the file names that are numbers.
fn numbers(mut entries: &[u8]) -> impl Iterator<Item = i32> {
    /// The offset of the field with the structure's length.
    const LENGTH_AT: usize = 16;
    /// The offset of the file name, which ends with a zero byte.
    const NAME_AT: usize = 19;
    core::iter::from_fn(move || {
        let length = entries.get(LENGTH_AT..LENGTH_AT + 2)?;
        let length = usize::from(u16::from_ne_bytes([length[0], length[1]]));
        let (entry, rest) = entries.split_at_checked(length.max(NAME_AT))?;
        entries = rest;
        Some(entry.get(NAME_AT..).unwrap_or_default())
    })
    .filter_map(|name| {
        let name = name.split(|byte| *byte == 0).next()?;
        str::from_utf8(name).ok()?.parse().ok()
    })
}

#[cfg(test)]
pub(crate) fn is_open(place: usize) -> bool {
    FILES.lock()[place].iter().any(Option::is_some)
}

#[cfg(test)]
mod tests {
    use tllmprof_platform::ids;

    use super::*;
    use crate::exclusive::alone;

    #[test]
    fn the_threads_of_the_process_are_listed_again_and_again() {
        let _alone = alone();
        let listed = || {
            let mut found = Vec::new();
            each_thread(|number| {
                found.push(number);
                ControlFlow::Continue(())
            });
            found
        };
        assert!(listed().contains(&ids::process()));
        let number = std::thread::spawn(move || {
            assert!(listed().contains(&ids::thread()));
            ids::thread()
        });
        let number = number.join().unwrap();
        // The thread's folder in `/proc` may exist for a moment after `join`.
        while listed().contains(&number) {
            std::thread::yield_now();
        }
        close_all();
    }

    /// Variable that makes [`the_last_descriptors_are_left_to_the_host`] run its checks in this process.
    const IS_CHILD: &str = "TLLMPROF_TEST_OF_LIMITS";

    #[test]
    fn the_last_descriptors_are_left_to_the_host() {
        // The limit holds for a whole process, so the checks run in a process of their own, without other tests.
        if std::env::var_os(IS_CHILD).is_some() {
            return check_the_last_descriptors();
        }
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let name = "files::tests::the_last_descriptors_are_left_to_the_host";
        child.args(["--exact", name]).env(IS_CHILD, "1");
        let ended = child.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(
            ended.status.success() && said.contains("1 passed"),
            "{said}"
        );
    }

    fn check_the_last_descriptors() {
        let task = TaskFiles {
            place: 0,
            id: TaskId::Thread(ids::thread()),
        };
        let is_read = || read(task, TaskFile::Stat, &mut [0; LENGTH]).is_some();
        let limit = |soft| {
            let mut limits = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            // SAFETY: the kernel writes the limits to the local variable, or reads them from there.
            unsafe {
                libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limits);
                limits.rlim_cur = soft;
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limits)
            }
        };
        assert_eq!(limit(200), 0);
        assert!(is_read());
        close_all();
        // The program opens most of the descriptors that it may have.
        let hosts: Vec<_> = (0..160).map(|_| File::open("/dev/null").unwrap()).collect();
        assert!(!is_read() && !is_open(0));
        drop(hosts);
        // No file is opened before the window ends, although descriptors are free again.
        assert!(!is_read());
        close_all();
        assert!(is_read());
        close_all();
    }

    #[test]
    fn damaged_entries_end_the_list() {
        assert_eq!(numbers(&[]).count(), 0);
        assert_eq!(numbers(&[0; 18]).count(), 0);
        assert_eq!(numbers(&[0; 19]).count(), 0);
        let mut entry = [0; 24];
        entry[16] = 24;
        entry[19] = b'7';
        assert_eq!(numbers(&entry).collect::<Vec<_>>(), [7]);
        entry[16] = 25;
        assert_eq!(numbers(&entry).count(), 0);
    }
}
