//! Input and results of attaching to a process.

use std::path::Path;
use std::time::Duration;

/// The library to load, the glibc version that it requires, and its environment variables.
#[derive(Clone, Copy, Debug)]
pub struct Library<'a> {
    /// The library's absolute path, as this command sees it.
    pub path: &'a Path,
    /// The newest glibc version that the library requires, such as (2, 34). `None` if unknown.
    pub glibc: Option<(u32, u32)>,
    /// Environment variables for the library, as `NAME=VALUE`.
    pub variables: &'a [String],
}

/// The result of loading the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attached {
    /// Longest time for which any thread was stopped.
    pub stopped: Duration,
    /// Number of times that a thread was stopped, including the thread that was at a safe point.
    pub tries: u32,
    /// The return value of the library's `tllmprof_attach`: 0 if the library started.
    pub answer: i32,
}

/// The result of hooking the driver's functions at their entries.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Hooked {
    /// Number of driver functions that should be hooked; 0 if the process has not loaded the
    /// driver.
    pub known: u64,
    /// Number of functions that are hooked, so that calls from all modules are counted.
    pub seen: u64,
    /// Number of rounds, that is, of times that all threads were stopped.
    pub rounds: u32,
    /// Longest time for which a round stopped the threads.
    pub stopped: Duration,
    /// The reason why some functions that can be hooked were not. `None` if all of them were hooked.
    pub why: Option<&'static str>,
}
