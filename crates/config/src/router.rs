//! The setting `TLLMPROF_PERFECT_ROUTER`, which replaces the routers of mixture-of-experts models with balanced
//! routers, that is, routers that distribute the tokens evenly over the experts.

use crate::error::Problem;
use crate::flag;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PerfectRouter {
    Off,
    On,
    /// Balanced routers, which distribute the tokens evenly over the experts, replace the model's routers only inside
    /// windows.
    Window,
}

impl PerfectRouter {
    /// Parses a value of `TLLMPROF_PERFECT_ROUTER`.
    ///
    /// # Errors
    /// Returns an error if the text is neither a flag nor `window`.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let text = text.trim();
        match flag::recognised(text) {
            Some(true) => Ok(Self::On),
            Some(false) => Ok(Self::Off),
            None if text.eq_ignore_ascii_case("window") => Ok(Self::Window),
            None => Err(Problem::new(
                "it is neither on, off nor window",
                "1, 0 or window",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_values() {
        assert_eq!(PerfectRouter::parse("1"), Ok(PerfectRouter::On));
        assert_eq!(PerfectRouter::parse(""), Ok(PerfectRouter::Off));
        assert_eq!(PerfectRouter::parse("Window"), Ok(PerfectRouter::Window));
        assert!(PerfectRouter::parse("windows").is_err());
    }
}
