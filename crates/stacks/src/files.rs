//! Keeps files of `/proc` about the followed threads open. Each file is opened once in a window (a recorded
//! interval). If the sampler opened and closed descriptors more often, files of the host could get numbers that the
//! host does not expect.

use std::fs::File;
use std::os::unix::fs::FileExt;

use tllmprof_platform::descriptor::OwnFile;
use tllmprof_platform::lifecycle::{self, OnlyThread, Stage};
use tllmprof_sync::Lock;

use super::followed::{Followed, MAX_THREADS};

/// The longest time that the sampler waits for the lock of the open files, which is held during a
/// fork.
const FORK_TIMEOUT: core::time::Duration = core::time::Duration::from_millis(10);

/// Number of bytes at the start of a file in `/proc` that are read.
pub(crate) const LENGTH: usize = 512;

/// A file in `/proc` about a thread.
#[derive(Clone, Copy)]
pub(crate) enum ThreadFile {
    Stat,
    Syscall,
}

const NAMES: [&str; 2] = ["stat", "syscall"];

lifecycle::global! {
    stage: Sinks;

    /// The open files of the followed threads. The first index is [`Followed::place`], and the
    /// second is the [`ThreadFile`].
    #[fork(hold)]
    static FILES: Lock<[[Option<OwnFile>; NAMES.len()]; MAX_THREADS]> = Lock::new([const { [const { None }; NAMES.len()] }; MAX_THREADS]);
}

lifecycle::at_fork! {
    stage: Stage::Again,
    child: in_child,
}

/// Closes the files in the child of a fork, because they are about the parent's threads.
fn in_child(_: &OnlyThread) {
    close_all();
}

/// Closes the files of all threads.
pub(crate) fn close_all() {
    (0..MAX_THREADS).for_each(close);
}

/// Closes the files of the followed thread with the index `place`.
pub(crate) fn close(place: usize) {
    if let Some(mut files) = FILES.lock_for(FORK_TIMEOUT) {
        files[place] = [const { None }; NAMES.len()];
    }
}

/// Reads a file about a thread. Returns `None` if the file does not exist or may not be read.
pub(crate) fn read(thread: Followed, of: ThreadFile, text: &mut [u8; LENGTH]) -> Option<&[u8]> {
    let mut files = FILES.lock_for(FORK_TIMEOUT)?;
    let file = files.get_mut(thread.place)?.get_mut(of as usize)?;
    if file.is_none() {
        let path = format!("/proc/self/task/{}/{}", thread.number, NAMES[of as usize]);
        *file = OwnFile::new(File::open(path).ok()?).ok();
    }
    let length = file.as_ref()?.get()?.read_at(text, 0).ok()?;
    text.get(..length)
}

#[cfg(test)]
pub(crate) fn is_open(place: usize) -> bool {
    FILES.lock()[place].iter().any(Option::is_some)
}
