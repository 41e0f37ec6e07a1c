//! What is asked for, and what came of it.

use std::path::Path;
use std::time::Duration;

/// What is loaded, and what it is given.
#[derive(Clone, Copy, Debug)]
pub struct Library<'a> {
    /// Its absolute path, the same in both processes.
    pub path: &'a Path,
    /// The variables that it reads, as `NAME=VALUE`.
    pub variables: &'a [String],
}

/// How the attach went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attached {
    /// For how long the thread was stopped.
    pub stopped: Duration,
    /// How often a thread was stopped until one was at a safe point.
    pub tries: u32,
    /// What the library's `tllmprof_attach` returned: 0 if it started.
    pub answer: i32,
}
