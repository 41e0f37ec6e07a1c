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
    /// Number of attempts to stop a thread at a safe point, where it can run injected code. Only the last attempt
    /// succeeded.
    pub tries: u32,
    /// The return value of the library's `tllmprof_attach`: the number of a `tllmprof_control::Answer`. 0 means that
    /// the request (to attach or to detach) was carried out.
    pub answer: i32,
}

/// The result of hooking the driver's functions, that is, of writing jumps at their entries.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Hooked {
    /// Number of functions of the CUDA driver that the library wants to hook, including those whose entries cannot be
    /// patched. 0 if the process has not loaded the driver.
    pub known: u64,
    /// Number of functions of the CUDA driver that are hooked. The library counts all calls of these functions,
    /// regardless of the module that makes the call.
    pub seen: u64,
    /// Number of rounds that were made to write the jumps. In each round, all threads of the process were stopped
    /// once.
    pub rounds: u32,
    /// The longest time for which one round stopped the threads.
    pub stopped: Duration,
    /// The reason why some functions whose entries can be patched were not hooked. `None` if all of these were hooked.
    pub why: Option<&'static str>,
}
