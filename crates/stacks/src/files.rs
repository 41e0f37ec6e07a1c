//! Files of `/proc` about the followed threads. Each is opened once in a window: if descriptors were opened and closed
//! more often, a new one of the host's could get a number that the host does not expect.

use std::fs::File;
use std::os::unix::fs::FileExt;

use tllmprof_platform::descriptor::OwnFile;
use tllmprof_platform::lifecycle::{self, OnlyThread, Stage};
use tllmprof_sync::Lock;

use super::followed::{Followed, MAX_THREADS};

/// Longest time that the sampler waits for a fork that holds the files.
const FORK_TIMEOUT: core::time::Duration = core::time::Duration::from_millis(10);

/// Number of bytes of a file that are read.
pub const LENGTH: usize = 512;

/// A file about a thread.
#[derive(Clone, Copy)]
pub enum ThreadFile {
    Stat,
    Syscall,
}

const NAMES: [&str; 2] = ["stat", "syscall"];

lifecycle::global! {
    stage: Sinks;

    /// The files of the followed threads, by slot.
    #[fork(hold)]
    static FILES: Lock<[[Option<OwnFile>; NAMES.len()]; MAX_THREADS]> = Lock::new([const { [const { None }; NAMES.len()] }; MAX_THREADS]);
}

lifecycle::at_fork! {
    stage: Stage::Again,
    child: in_child,
}

/// Closes the files in the child of a fork: they are about the parent's threads.
fn in_child(_: &OnlyThread) {
    close_all();
}

/// Closes the files of all threads.
pub fn close_all() {
    (0..MAX_THREADS).for_each(close);
}

/// Closes the files of the thread in a slot.
pub fn close(place: usize) {
    if let Some(mut files) = FILES.lock_for(FORK_TIMEOUT) {
        files[place] = [const { None }; NAMES.len()];
    }
}

/// Reads a file of a thread; `None` if there is none, or it must not be read.
pub fn read(thread: Followed, of: ThreadFile, text: &mut [u8; LENGTH]) -> Option<&[u8]> {
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
pub fn is_open(place: usize) -> bool {
    FILES.lock()[place].iter().any(Option::is_some)
}
