//! What ends the windows of a process for good.

use core::fmt;

/// What ends the windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The process, by its exit handlers.
    Exit,
    /// The process now, maybe from a signal handler: what a profiler has to do for it is done on another thread or not at
    /// all.
    AtOnce,
    /// A filter for system calls that the program is about to install.
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
