//! The request to attach, and its result.

use std::path::Path;
use std::time::Duration;

/// The library to load, and its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Library<'a> {
    /// The library's absolute path outside the process.
    pub path: &'a Path,
    /// The newest glibc whose functions it uses, such as (2, 34).
    pub glibc: Option<(u32, u32)>,
    /// The variables for it, as `NAME=VALUE`.
    pub variables: &'a [String],
}

/// The result of attaching.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attached {
    /// Longest time for which a thread was stopped.
    pub stopped: Duration,
    /// Number of stops until a thread was at a safe point.
    pub tries: u32,
    /// The result of the library's `tllmprof_attach`: 0 if it started.
    pub answer: i32,
}

/// The driver functions that are hooked at their entries.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Hooked {
    /// Number of functions that matter; 0 if the process had not loaded the driver.
    pub known: u64,
    /// Number of functions whose calls are seen, whichever module makes them.
    pub seen: u64,
    /// Number of times that all threads were stopped.
    pub rounds: u32,
    /// Longest duration of such a stop.
    pub stopped: Duration,
    /// The reason why some functions that could be patched were not.
    pub why: Option<&'static str>,
}
