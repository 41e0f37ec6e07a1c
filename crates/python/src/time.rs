//! Moments and durations of what happens in Python.

use core::fmt;

use tllmprof_platform::system::{Clock, nanoseconds};

/// Nanoseconds of the monotonic clock.
#[inline]
pub fn now() -> u64 {
    nanoseconds(Clock::Monotonic)
}

/// Nanoseconds, as milliseconds.
pub struct Milliseconds(pub u64);

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000_000, self.0 / 1000 % 1000)
    }
}
