//! The parameters that are needed to attach the library to a process, and the results of attaching it.

use std::path::Path;
use std::time::Duration;

/// The library to load, the glibc version that the library requires, and environment variables for the library.
#[derive(Clone, Copy, Debug)]
pub struct Library<'a> {
    /// The absolute path of the library's file, as this command sees it.
    pub path: &'a Path,
    /// The newest glibc version that the library requires, such as (2, 34). `None` if unknown.
    pub glibc: Option<(u32, u32)>,
    /// Environment variables for the library, each as `NAME=VALUE`.
    pub variables: &'a [String],
}

/// The result of loading the library into a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attached {
    /// The longest time for which any thread of the process was stopped.
    pub stopped: Duration,
    /// Number of times that a thread was stopped. The last of these stops was that of the thread at a safe point.
    pub tries: u32,
    /// The return value of the library's `tllmprof_attach`: the number of a `tllmprof_control::Answer`. 0 means that
    /// the request (to attach or to detach) was carried out.
    pub answer: i32,
}

/// The result of hooking the driver's functions, that is, of writing jumps at their entries.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Hooked {
    /// Number of functions of the CUDA driver that should be hooked; 0 if the process has not loaded the driver.
    pub known: u64,
    /// Number of functions of the CUDA driver that are hooked. The library counts all calls of these functions,
    /// regardless of the module that makes the call.
    pub seen: u64,
    /// Number of rounds that were made to write the jumps. In each round, all threads of the process were stopped
    /// once.
    pub rounds: u32,
    /// The longest time for which one round stopped the threads.
    pub stopped: Duration,
    /// The reason why some functions that could be hooked were not hooked. `None` if all of them were hooked.
    pub why: Option<&'static str>,
}
