//! The reasons why a process opens no more windows.

use core::fmt;

/// The reason why the open window is closed and no further window opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndReason {
    /// The process exits normally, and its exit handlers run.
    Exit,
    /// The process ends immediately, perhaps from a signal handler. A profiler's closing work then runs on a
    /// thread of the library or not at all.
    AtOnce,
    /// The program is about to install a filter for system calls (seccomp), after which the library
    /// can no longer work safely.
    Filter,
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exit | Self::AtOnce => "the end of the process",
            Self::Filter => "a filter for system calls",
        })
    }
}
