//! Limits of findings on causes that make some iterations slow, such as garbage collections.

use std::fmt;

use crate::numbers::units::Share;

/// Minimum share of a cause in the total time by which slow iterations exceed the median, as a fraction. A cause with
/// a smaller share does not count as the explanation of slow iterations.
const MIN_SHARE_OF_SLOW: f64 = 0.5;

/// Limits for work that iterations do only sometimes, such as compilation.
pub(super) const EXTRA_WORK: LostLimits = LostLimits {
    any: 0.005,
    explaining: 0.001,
};
/// Limits for interruptions of iterations, such as garbage collections.
pub(super) const INTERRUPTION: LostLimits = LostLimits {
    any: 0.05,
    explaining: 0.01,
};

/// Minimum shares of the time, as fractions, that a cause must cost for a finding.
#[derive(Clone, Copy)]
pub(super) struct LostLimits {
    /// The minimum share of any cause.
    pub any: f64,
    /// The minimum share of a cause that explains at least [`MIN_SHARE_OF_SLOW`] of the time by which slow iterations
    /// exceed the median.
    explaining: f64,
}

impl LostLimits {
    /// Returns true if a cause that costs `share` of the time reaches these limits. `of_slow` is the share of the cause
    /// in the total time by which slow iterations exceed the median. Both are fractions.
    pub(super) fn are_reached(&self, share: f64, of_slow: f64) -> bool {
        share >= self.any || share >= self.explaining && of_slow >= MIN_SHARE_OF_SLOW
    }
}

/// Formats the limits, as the end of a sentence such as `collections take …`.
impl fmt::Display for LostLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "over {} of the time; or over {}, and that is over {} of what slow iterations (1.5 times the median) take beyond \
             it",
            Share(self.any),
            Share(self.explaining),
            Share(MIN_SHARE_OF_SLOW)
        )
    }
}
