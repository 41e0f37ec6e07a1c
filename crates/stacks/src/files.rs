//! Keeps files of `/proc` about threads and child processes open. Each file is opened once in a window (a recorded
//! interval). If the sampler opened and closed files more often, the host (the program that is profiled) could get
//! other descriptor numbers than it expects. No further file is opened once the host could run short of descriptors.
//! Files of the followed threads may use more of the descriptors than other files, because there are no samples
//! without them.

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
/// In the table of open files, the index of the first thread that runs an event loop. The other such threads have the
/// next indices.
pub(crate) const LOOP_THREADS: usize = MAIN_THREAD + 1;
/// The most threads with an event loop that are sampled at a time.
pub(crate) const MAX_LOOPS: usize = 2;
const PLACES: usize = LOOP_THREADS + MAX_LOOPS;
/// The part of the descriptors that is left to the host, as a divisor. Files of other threads than the followed ones
/// may not use this part. With 4, it is the last quarter of the descriptors that the process may have
/// (`RLIMIT_NOFILE`). A file that gets one of these descriptors is closed again.
const PART_OF_HOST: u64 = 4;
/// Number of descriptors that the files of the followed threads leave to the host.
const MIN_OF_HOST: u64 = 16;

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
    /// Two flags, for the files of the followed threads and for all other files. A flag is true if such a file could
    /// not be opened: no descriptor was free, or the file got a descriptor that is left to the host. Until
    /// [`close_all`] is called, no further file of this kind is opened.
    #[fork(reset)]
    static IS_FULL: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
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
    for is_full in &IS_FULL {
        is_full.store(false, Ordering::Relaxed);
    }
}

/// Returns true if no further file of the thread or process with the index `place` may be opened.
pub(crate) fn is_full(place: usize) -> bool {
    IS_FULL[kind(place)].load(Ordering::Relaxed)
}

/// Returns the index in [`IS_FULL`] for the files of the thread or process with the index `place`.
fn kind(place: usize) -> usize {
    usize::from(place >= MAX_THREADS)
}

/// Opens a file for the thread or process with the index `place`. Returns `None` if this is not possible, or if the
/// host could run short of descriptors.
fn open(place: usize, path: &str) -> Option<OwnFile> {
    if is_full(place) {
        return None;
    }
    let limit = descriptor_limit();
    let first_of_host = match place < MAX_THREADS {
        true => limit.saturating_sub(MIN_OF_HOST),
        false => limit / PART_OF_HOST * (PART_OF_HOST - 1),
    };
    let opened = File::open(path);
    let file = match opened {
        Ok(file) => OwnFile::new(file).ok(),
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => None,
        Err(_) => return None,
    };
    let number = file.as_ref().and_then(OwnFile::get).map(AsRawFd::as_raw_fd);
    let is_full = number.is_none_or(|number| u64::from(number.cast_unsigned()) >= first_of_host);
    IS_FULL[kind(place)].store(is_full, Ordering::Relaxed);
    file.filter(|_| !is_full)
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

/// Reads a file about a thread or a process. Returns `None` if the file cannot be opened or read.
pub(crate) fn read(task: TaskFiles, of: TaskFile, text: &mut [u8; LENGTH]) -> Option<&[u8]> {
    let mut files = FILES.lock_for(FORK_TIMEOUT)?;
    let file = files.get_mut(task.place)?.get_mut(of as usize)?;
    if file.is_none() {
        let folder = match task.id {
            TaskId::Thread(number) => format!("/proc/self/task/{number}"),
            TaskId::Process(number) => format!("/proc/{number}/task/{number}"),
        };
        let path = format!("{folder}/{}", NAMES[of as usize]);
        *file = open(task.place, &path);
    }
    let length = file.as_ref()?.get()?.read_at(text, 0).ok()?;
    text.get(..length)
}

/// Calls `each` with the kernel's id of each thread of this process, until `each` returns `Break`. Returns `None`
/// if the threads cannot be listed.
pub(crate) fn each_thread(mut each: impl FnMut(i32) -> ControlFlow<()>) -> Option<()> {
    let mut folder = THREADS.lock_for(FORK_TIMEOUT)?;
    if folder.is_none() {
        *folder = open(MAIN_THREAD, "/proc/self/task");
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
pub(crate) fn set_full(place: usize) {
    IS_FULL[kind(place)].store(true, Ordering::Relaxed);
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

    /// Environment variable that makes [`the_last_descriptors_are_left_to_the_host`] run its checks in this process.
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
        let is_read = |place| {
            let id = TaskId::Thread(ids::thread());
            let task = TaskFiles { place, id };
            read(task, TaskFile::Stat, &mut [0; LENGTH]).is_some()
        };
        let (followed, other) = (0, MAX_THREADS);
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
        assert!(is_read(followed) && is_read(other));
        close_all();
        // The program opens most of the descriptors that it may have.
        let host = || File::open("/dev/null").unwrap();
        let mut hosts: Vec<_> = (0..160).map(|_| host()).collect();
        assert!(!is_read(other) && !is_open(other));
        assert!(is_read(followed) && !is_full(followed) && is_full(other));
        close_all();
        hosts.extend((0..25).map(|_| host()));
        assert!(!is_read(followed) && !is_open(followed) && is_full(followed));
        drop(hosts);
        // No file is opened before the window ends, although descriptors are free again.
        assert!(!is_read(followed));
        close_all();
        assert!(is_read(followed) && is_read(other));
        close_all();
        // With a low limit, there are descriptors only for the files of the followed threads.
        assert_eq!(limit(85), 0);
        assert!(is_read(followed) && !is_read(other));
        close_all();
        // The files of the followed threads are not opened, either, if the program has used all descriptors.
        let mut hosts = Vec::new();
        while let Ok(file) = File::open("/dev/null") {
            hosts.push(file);
        }
        assert!(!is_read(followed) && is_full(followed));
        drop(hosts);
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
