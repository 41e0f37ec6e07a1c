//! The setting `TLLMPROF_WARMUP`: iterations at the start that are not counted.

use std::fmt;

use crate::error::Problem;
use crate::number;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Warmup {
    /// This number of iterations at the start is skipped. The next one becomes iteration 0.
    Iterations(u64),
    /// The count of iterations restarts at 0 after each stream capture during the warm-up. The warm-up ends when a
    /// window opens or is requested, when enough iterations in a row had no stream capture, or when stream captures
    /// turn out to be part of the iterations.
    Capture,
}

impl Warmup {
    /// Parses a value of `TLLMPROF_WARMUP`.
    ///
    /// # Errors
    /// Returns an error if the text is neither a number nor `capture`.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        const WANTED: &str = "a number of iterations, or capture";
        let text = text.trim();
        if text.eq_ignore_ascii_case("capture") {
            return Ok(Self::Capture);
        }
        if text.starts_with(|c: char| c.is_alphabetic()) {
            return Err(Problem::new("it is neither a number nor capture", WANTED));
        }
        number::parse(text, WANTED).map(Self::Iterations)
    }
}

impl fmt::Display for Warmup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iterations(n) => write!(f, "{n}"),
            Self::Capture => f.write_str("capture"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_capture() {
        assert_eq!(Warmup::parse(" 10"), Ok(Warmup::Iterations(10)));
        assert_eq!(Warmup::parse("Capture "), Ok(Warmup::Capture));
        for bad in ["", "-1", "captures", "1,2", "1-2"] {
            assert!(Warmup::parse(bad).is_err(), "{bad:?}");
        }
    }
}
