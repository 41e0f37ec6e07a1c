//! Data about a function with which the program replaces a requested function.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::spans::RequestedFunction;

/// A replacement of a requested function by the program.
pub(crate) struct Replaced {
    /// The replacement as `MODULE:QUALNAME`, or its type if it is not a Python function.
    pub by: String,
    pub is_function: bool,
    /// Number of calls of the replaced function that were counted before the library noticed the replacement.
    pub after: u64,
    /// True if calls of the replacement are counted since the library noticed the replacement.
    pub is_followed: AtomicBool,
}

impl Replaced {
    /// Returns true if calls of the replaced function may be missing. Returns false if the replacement has called that
    /// function itself.
    pub(crate) fn hides_calls(&self, replaced: &RequestedFunction) -> bool {
        !replaced.is_called_within()
    }
}

/// Formats the replacement like `was replaced by MODULE:QUALNAME, noticed after 7 calls: …`.
impl fmt::Display for Replaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by, after, .. } = self;
        let calls = if *after == 1 { "call" } else { "calls" };
        match self.is_function {
            true => write!(f, "was replaced by {by}, noticed after {after} {calls}: ")?,
            false => write!(
                f,
                "was replaced by an object of type {by}, noticed after {after} {calls}: "
            )?,
        }
        match self.is_followed.load(Ordering::Relaxed) {
            true => write!(f, "calls of {by} before that are missing"),
            false => f.write_str("calls of that are missing"),
        }
    }
}
