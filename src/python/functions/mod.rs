//! Python functions by name.

mod function;

use tllmprof_config::Settings;

use super::api::Raw;
use super::object::Python;

/// The marked functions that a thread is in.
pub struct Spans {}

impl Spans {
    pub const fn new() -> Self {
        Self {}
    }

    /// The thread has ended.
    pub fn leave(&mut self) {}

    /// The process is the child of a fork: ranges are their process's.
    pub fn in_child(&mut self) {}
}

/// Whether functions are to be marked or counted.
pub fn are_asked_for(_: &Settings) -> bool {
    false
}

/// Interpreters start anew in the process.
pub fn begins() {}

pub fn install(_: Python<'_>) {}

/// Whether an audited event may bring a function that is wanted.
pub fn wants(_: &[u8]) -> bool {
    false
}

/// # Safety
/// `args` are those of the event.
pub unsafe fn audited(_: Python<'_>, _: &[u8], _: Raw) {}
