//! The clock for events in Python, and the display of durations.

use core::fmt;

use tllmprof_platform::system::{SystemClock, nanoseconds};

/// Returns the time of the monotonic clock in ns.
#[inline]
pub(crate) fn now() -> u64 {
    nanoseconds(SystemClock::Monotonic)
}

/// A duration in ns that is displayed in ms.
pub(crate) struct Milliseconds(pub u64);

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000_000, self.0 / 1000 % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_have_three_digits_behind_the_point() {
        assert_eq!(Milliseconds(0).to_string(), "0.000");
        assert_eq!(Milliseconds(1_002_999).to_string(), "1.002");
        assert_eq!(Milliseconds(61_000_000_000).to_string(), "61000.000");
    }

    #[test]
    fn the_clock_goes_on() {
        let before = now();
        assert!(before > 0 && now() >= before);
    }
}
