//! The event that ends the windows of a process for good.

use core::fmt;

/// The event that ends the windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The process exits, by its exit handlers.
    Exit,
    /// The process ends immediately, maybe from a signal handler: work of a profiler is done on another
    /// thread or not at all.
    AtOnce,
    /// The program is about to install a filter for system calls.
    Filter,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exit | Self::AtOnce => "the end of the process",
            Self::Filter => "a filter for system calls",
        })
    }
}
