//! The setting `TLLMPROF_WHEN`: windows that open automatically after an iteration for which a condition holds.

use std::time::Duration;

use crate::condition::Condition;
use crate::error::{Problem, quoted};
use crate::{number, time};

/// Default limit on the number of windows that open automatically.
const AT_MOST: AtMost = AtMost {
    windows: 10,
    per: Duration::from_secs(3600),
};
/// Default number of iterations in a window that opens automatically.
pub const STEPS: u64 = 50;

/// A trigger, which opens a window after an iteration for which the trigger's condition holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trigger {
    pub condition: Condition,
    pub at_most: AtMost,
    /// Number of iterations in each window that the trigger opens.
    pub steps: u64,
}

/// A limit: at most `windows` windows may open within the time `per`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtMost {
    pub windows: u64,
    pub per: Duration,
}

impl Default for AtMost {
    fn default() -> Self {
        AT_MOST
    }
}

impl AtMost {
    /// Maximum value of `windows` in a limit. It is bounded because the times of all these windows are kept in memory.
    pub const MAX_WINDOWS: u64 = 10_000;

    /// Parses a limit such as `10/1h`. Without a time, the limit is per hour.
    ///
    /// # Errors
    /// Returns an error if the number, or the time after a `/`, is missing, malformed, zero or too large.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        const WANTED: &str = "how many windows, 1 to 10000, in how long: 10/1h";
        let (windows, per) = text.split_once('/').unwrap_or((text, "1h"));
        let windows = number::parse(windows, WANTED)?;
        match windows {
            0 => return Err(Problem::new("no window could open", WANTED)),
            1..=Self::MAX_WINDOWS => {}
            _ => return Err(Problem::new(format!("{windows} are too many"), WANTED)),
        }
        let per = per.trim();
        let time = time::parse(per).filter(|time| !time.is_zero());
        let no_time = || Problem::new(format!("{} is no time", quoted(per)), WANTED);
        let per = time.ok_or_else(no_time)?;
        Ok(Self { windows, per })
    }
}

/// Parses the number of iterations in a window that opens automatically.
///
/// # Errors
/// Returns an error if the text is not a number, or is 0.
pub fn parse_steps(text: &str) -> Result<u64, Problem> {
    const WANTED: &str = "a number of iterations, from 1 on";
    match number::parse(text, WANTED)? {
        0 => Err(Problem::new("a window has no fewer than 1", WANTED)),
        steps => Ok(steps),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_windows_in_so_long() {
        let at_most = |windows, seconds| {
            Ok(AtMost {
                windows,
                per: Duration::from_secs(seconds),
            })
        };
        assert_eq!(AtMost::parse("3/30m"), at_most(3, 1800));
        assert_eq!(AtMost::parse(" 1 / 10s "), at_most(1, 10));
        assert_eq!(AtMost::parse("7"), at_most(7, 3600));
        for bad in ["", "x", "3/", "3/0s", "3/hour", "-1/1h", "0", "10001/1h"] {
            assert!(AtMost::parse(bad).is_err(), "{bad}");
        }
        assert!(parse_steps("0").is_err() && parse_steps("50") == Ok(50));
    }
}
