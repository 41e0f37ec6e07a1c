//! The setting `TLLMPROF_STACKS`, the sampling rate of stacks.

use crate::error::Problem;
use crate::{flag, number};

/// Default rate at which stacks are sampled, in samples per second.
pub const STACKS_RATE: u64 = 200;
/// Maximum rate at which stacks are sampled, in samples per second. A higher rate would slow the program down too much.
const MAX_RATE: u64 = 1000;

const WANTED: &str = "1 for 200 Hz, 0, a number of Hz up to 1000, or auto";

/// Parses a value of `TLLMPROF_STACKS`. Returns the rate, or `None` if no stacks are to be sampled.
///
/// # Errors
/// Returns an error if the text is neither a flag nor a rate up to 1000 Hz.
pub fn parse(text: &str) -> Result<Option<u64>, Problem> {
    match flag::recognised(text) {
        Some(is_on) => Ok(is_on.then_some(STACKS_RATE)),
        None if flag::is_auto(text) => Ok(Some(MAX_RATE)),
        None => match number::parse(text, WANTED)? {
            0 => Ok(None),
            rate @ 1..=MAX_RATE => Ok(Some(rate)),
            rate => Err(Problem::new(
                format!("{rate} Hz is over {MAX_RATE} Hz"),
                WANTED,
            )),
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
            ("auto", Some(1000)),
        ] {
            assert_eq!(parse(text), Ok(rate), "{text:?}");
        }
        for bad in ["1001", "-1", "100Hz", "fast"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
