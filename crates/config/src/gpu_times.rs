//! The setting `TLLMPROF_GPU_TIMES`, which chooses the iterations whose GPU times are measured.

use crate::error::Problem;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GpuTimes {
    /// Measures the GPU times of no iterations.
    Off,
    /// Measures the GPU times of all iterations if that takes at most 1/400 of the iterations' time. Otherwise measures
    /// a sample of the iterations.
    #[default]
    Auto,
    /// Measures the GPU times of all iterations.
    All,
}

impl GpuTimes {
    /// Parses a value of `TLLMPROF_GPU_TIMES`.
    ///
    /// # Errors
    /// Returns an error if the text is not one of the accepted words.
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
