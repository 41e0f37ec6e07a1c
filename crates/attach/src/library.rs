//! What is asked for, and what came of it.

use std::path::Path;
use std::time::Duration;

/// What is loaded, and what it is given.
#[derive(Clone, Copy, Debug)]
pub struct Library<'a> {
    /// Its absolute path, here.
    pub path: &'a Path,
    /// The newest glibc whose functions it uses, such as (2, 34).
    pub glibc: Option<(u32, u32)>,
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

/// How many functions of the driver lead to the library by their entries.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Hooked {
    /// Functions that matter; 0 where the process had not loaded the driver.
    pub known: u64,
    /// Those whose calls are seen, whoever makes them.
    pub seen: u64,
    /// How often all threads were stopped, and for how long at most.
    pub rounds: u32,
    pub stopped: Duration,
    /// Why others of them were not patched that can be.
    pub why: Option<&'static str>,
}
