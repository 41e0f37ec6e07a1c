//! How often stacks are sampled.

use crate::error::Problem;
use crate::{flag, number};

/// Samples a second where the user gives no number.
pub const STACKS_RATE: u64 = 200;
/// More would cost more than they show.
const MOST: u64 = 1000;

const WANTED: &str = "1 for 200 Hz, 0, or a number of Hz up to 1000";

/// Samples a second; nothing where none are to be taken.
///
/// # Errors
/// No flag and no number of Hz up to 1000.
pub fn parse(text: &str) -> Result<Option<u64>, Problem> {
    match flag::recognised(text) {
        Some(is_on) => Ok(is_on.then_some(STACKS_RATE)),
        None => match number::parse(text, WANTED)? {
            0 => Ok(None),
            rate @ 1..=MOST => Ok(Some(rate)),
            rate => Err(Problem::new(format!("{rate} Hz is over {MOST} Hz"), WANTED)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_flag_or_a_number() {
        for (text, rate) in [
            ("1", Some(STACKS_RATE)),
            ("on", Some(STACKS_RATE)),
            ("0", None),
            ("off", None),
            (" 2 ", Some(2)),
            ("1000", Some(1000)),
        ] {
            assert_eq!(parse(text), Ok(rate), "{text:?}");
        }
        for bad in ["1001", "-1", "100Hz", "fast"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
