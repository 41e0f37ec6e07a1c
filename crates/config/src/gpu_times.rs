//! The choice of iterations whose GPU times are measured.

use crate::error::Problem;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GpuTimes {
    /// No iterations.
    Off,
    /// All iterations where that is cheap, else some.
    #[default]
    Auto,
    /// All iterations.
    All,
}

impl GpuTimes {
    /// # Errors
    /// The text is none of the words.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        match text.trim().to_ascii_lowercase().as_str() {
            "0" | "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            "1" | "all" => Ok(Self::All),
            _ => Err(Problem::new("there is no such choice", "auto, all or off")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        assert_eq!(GpuTimes::parse(" All"), Ok(GpuTimes::All));
        assert_eq!(GpuTimes::parse("auto"), Ok(GpuTimes::Auto));
        assert_eq!(GpuTimes::parse("0"), Ok(GpuTimes::Off));
        for bad in ["", "8", "every", "auto,all"] {
            assert!(GpuTimes::parse(bad).is_err(), "{bad:?}");
        }
    }
}
