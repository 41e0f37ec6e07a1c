//! The setting `TLLMPROF_KERNELS`, which chooses the iterations whose GPU kernels are recorded.

use std::time::Duration;

use crate::error::{Problem, quoted};
use crate::{flag, number, time};

/// With `TLLMPROF_KERNELS=1`, kernels are recorded in this number of iterations at the start of each window.
const STEPS: u64 = 20;
/// With `TLLMPROF_KERNELS=auto`, the recording of kernels in a window ends when one of these limits is reached: a
/// number of iterations, or a time.
const AUTO: (u64, Duration) = (STEPS, Duration::from_millis(300));
/// Minimum time between the starts of two samples of kernels. CUPTI is attached for each sample. With more frequent
/// samples, CUPTI would be attached almost all the time.
const SHORTEST: Duration = Duration::from_secs(1);
const WANTED: &str =
    "1, 0, a number of steps, auto, or STEPS@TIME, such as 20@60s, with a TIME of 1s or more";

/// The iterations in which GPU kernels are recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelSelection {
    /// Kernels are recorded in the first N iterations of each window. In a window with automatic length, they are
    /// recorded in N iterations at the end of the window instead.
    Windows(u64),
    /// Kernels are recorded in samples: windows that open periodically for this purpose. Kernels are also recorded in a
    /// window that a user requests with `tllmprof capture --kernels`.
    Samples(KernelSamples),
    /// Kernels are recorded at the end of a window with automatic length (`TLLMPROF_START_STOP=auto`), unless other
    /// settings or the machine make this impossible.
    Auto,
}

/// The setting for samples of kernels: the length of a sample in iterations, and the interval between samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelSamples {
    pub steps: u64,
    /// Time from the start of one sample of kernels to the start of the next sample.
    pub every: Duration,
}

impl KernelSelection {
    /// The value of this setting for `TLLMPROF_KERNELS=1`.
    pub const FIRST: Self = Self::Windows(STEPS);

    /// Parses a value of `TLLMPROF_KERNELS`. Returns `None` if no kernels are to be recorded.
    ///
    /// # Errors
    /// Returns an error if the text is none of the accepted forms.
    pub fn parse(text: &str) -> Result<Option<Self>, Problem> {
        if let Some(is_on) = flag::recognised(text) {
            return Ok(is_on.then_some(Self::FIRST));
        }
        if flag::is_auto(text) {
            return Ok(Some(Self::Auto));
        }
        let Some((steps, every)) = text.split_once('@') else {
            let steps = number::parse(text, WANTED)?;
            return Ok((steps > 0).then_some(Self::Windows(steps)));
        };
        let steps = number::parse(steps, WANTED)?;
        if steps == 0 {
            return Err(Problem::new("a sample has at least 1 step", WANTED));
        }
        let every = every.trim();
        let no_time = || Problem::new(format!("{} is no time", quoted(every)), WANTED);
        let time = time::parse(every).ok_or_else(no_time)?;
        if time < SHORTEST {
            return Err(Problem::new(format!("{every} is too often"), WANTED));
        }
        let every = time;
        Ok(Some(Self::Samples(KernelSamples { steps, every })))
    }

    /// Returns the number of iterations, from the start of each window, in which kernels are recorded. `None` if
    /// kernels are not recorded at the start of windows.
    #[must_use]
    pub const fn steps_of_window(self) -> Option<u64> {
        match self {
            Self::Windows(steps) => Some(steps),
            Self::Samples(_) | Self::Auto => None,
        }
    }

    /// Returns the limits for recording kernels at the end of a window with automatic length: a number of iterations,
    /// and a time. The time is `None` if only the number of iterations is limited. Returns `None` if no kernels are
    /// recorded at the end of windows.
    #[must_use]
    pub const fn at_the_end(self) -> Option<(u64, Option<Duration>)> {
        match self {
            Self::Windows(steps) => Some((steps, None)),
            Self::Samples(_) => None,
            Self::Auto => Some((AUTO.0, Some(AUTO.1))),
        }
    }

    #[must_use]
    pub const fn samples(self) -> Option<KernelSamples> {
        match self {
            Self::Windows(_) | Self::Auto => None,
            Self::Samples(samples) => Some(samples),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_of_each_window_or_of_samples() {
        let parse = |text| KernelSelection::parse(text).unwrap();
        assert_eq!(parse("1"), Some(KernelSelection::Windows(20)));
        assert_eq!(parse("7"), Some(KernelSelection::Windows(7)));
        assert_eq!((parse("0"), parse("00")), (None, None));
        let auto = parse(" Auto ").unwrap();
        assert_eq!(
            (auto, auto.steps_of_window()),
            (KernelSelection::Auto, None)
        );
        let time = Some(Duration::from_millis(300));
        assert_eq!(auto.at_the_end(), Some((20, time)));
        assert_eq!(KernelSelection::Windows(7).at_the_end(), Some((7, None)));
        let samples = |steps, ms| {
            let every = Duration::from_millis(ms);
            Some(KernelSelection::Samples(KernelSamples { steps, every }))
        };
        assert_eq!(parse("20@60s"), samples(20, 60_000));
        assert_eq!(parse(" 1 @ 1.5s "), samples(1, 1500));
        assert_eq!(parse("5@2h"), samples(5, 7_200_000));
    }

    #[test]
    fn what_is_wrong_with_samples_is_said() {
        for (text, problem) in [
            ("20@", "\"\" is no time"),
            ("20@60", "\"60\" is no time"),
            ("0@60s", "a sample has at least 1 step"),
            ("20@1ms", "1ms is too often"),
            ("@60s", ""),
            ("x@60s", ""),
            ("-1@60s", ""),
            ("20@60s@60s", "\"60s@60s\" is no time"),
            ("20@-1s", "\"-1s\" is no time"),
        ] {
            let said = KernelSelection::parse(text).unwrap_err().to_string();
            assert!(
                said.starts_with(problem) && said.contains("20@60s"),
                "{text}: {said}"
            );
        }
    }
}
