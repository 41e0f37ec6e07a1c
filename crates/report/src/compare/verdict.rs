//! The verdict of a comparison: which run is faster, and how certain that is.

use std::fmt;

use serde::{Serialize, Serializer};

use super::Side;
use crate::numbers::bootstrap::{Change, Statistic};

/// Default of the limit for the verdict that two runs are equal (see [`super::ComparisonOptions`]), as a fraction of
/// the rate.
pub(crate) const WITHIN: f64 = 0.02;
/// Minimum relative change of the rate for the verdict "faster" or "slower", as a fraction. The whole 95 % confidence
/// interval of the change has to be at least this far from 0. Two runs of the same program differ by some tenths of a
/// percent, for example because of the GPU's clock rate. The confidence interval is computed only from the compared
/// runs, so it does not always cover this variation.
pub(crate) const MIN_DIFFERENCE: f64 = 0.005;

/// Half width of a 99.95 % confidence interval divided by the half width of a 95 % interval, for the normal
/// distribution. The report shows 95 % intervals, but the verdict requires 99.95 %, so the verdict widens the intervals
/// by this factor. For three runs on each side, the intervals come from Student's t distribution with 4 degrees of
/// freedom, for which the widened interval is only a 99.2 % interval.
const VERDICT_WIDTH_RATIO: f64 = 3.5 / 1.96;
/// Smallest change that the verdict detects in 8 of 10 cases, divided by the half width of a 95 %
/// confidence interval.
const DETECTABLE_RATIO: f64 = (3.5 + 0.842) / 1.96;

/// Text for a missing confidence interval, if enough values were measured.
pub(super) const NOT_KNOWN: &str = "not known";

/// The verdict on the other run's rate (iterations per second), relative to the base. Changes are fractions. Intervals
/// are 95 % confidence intervals.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Outcome {
    Faster(f64, (f64, f64)),
    Slower(f64, (f64, f64)),
    /// The whole interval lies between `-within` and `within`, so the runs are called equal.
    Equal {
        change: f64,
        interval: (f64, f64),
        within: f64,
    },
    /// The interval is too wide to conclude either a difference or equality.
    CannotTell {
        change: f64,
        interval: (f64, f64),
        effort: Effort,
    },
    /// The confidence interval of the change is not known, although both runs have enough iterations.
    NoInterval,
    /// At least one of the runs has too few iterations for a verdict. The fields are the numbers of
    /// iterations of base and other.
    TooFew(usize, usize),
    /// The runs have different numbers of ranks, so a step of one run does a different amount of work per rank. The
    /// fields are the numbers of ranks of base and other.
    NotComparable(usize, usize),
    /// No iterations were found in at least one of the runs, so only the duration of the whole
    /// trace is known.
    NoIterations,
}

/// An estimate of how many measurements are needed to detect a change.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Effort {
    /// The smallest change, as a fraction, that a comparison of these runs would have detected in 8
    /// of 10 cases.
    pub smallest: f64,
    /// The number of iterations or runs that each side needs to detect a change as small as
    /// `within`.
    pub needed: u64,
    pub of: Unit,
    /// The limit for the verdict that two runs are equal, as a fraction.
    pub within: f64,
}

/// The unit of the values that a verdict is computed from: iterations of two single runs, or whole
/// runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    Iterations,
    Runs,
}

impl Outcome {
    /// Returns the verdict on the change of the rate (iterations per second). `runs` contains the
    /// number of runs on each side.
    pub(super) fn judge(
        rate: Option<Change>,
        [base, other]: [&Side; 2],
        runs: [usize; 2],
        within: f64,
    ) -> Self {
        let Some(Change {
            relative: change,
            interval: Some(interval),
        }) = rate
        else {
            let (base, other) = (base.iterations, other.iterations);
            return match base.min(other) < Statistic::Mean.least() {
                true => Self::TooFew(base, other),
                false => Self::NoInterval,
            };
        };
        let (low, high) = interval;
        let sure = |bound: f64| change + (bound - change) * VERDICT_WIDTH_RATIO;
        let is_sure = sure(low) > 0.0 || sure(high) < 0.0;
        let is_clear = low >= MIN_DIFFERENCE || high <= -MIN_DIFFERENCE;
        if is_sure && is_clear {
            return match change > 0.0 {
                true => Self::Faster(change, interval),
                false => Self::Slower(-change, (-high, -low)),
            };
        }
        if low >= -within && high <= within {
            return Self::Equal {
                change,
                interval,
                within,
            };
        }
        let smallest = (high - low) / 2.0 * DETECTABLE_RATIO;
        let (of, values) = match runs {
            [1, 1] => (Unit::Iterations, base.iterations.min(other.iterations)),
            [base, other] => (Unit::Runs, base.min(other)),
        };
        let effort = Effort {
            smallest,
            needed: (values as f64 * (smallest / within).powi(2)).ceil() as u64,
            of,
            within,
        };
        Self::CannotTell {
            change,
            interval,
            effort,
        }
    }

    /// Returns the estimated number of measurements that a verdict needs, if the confidence interval of the change is
    /// too wide for a verdict; otherwise `None`.
    pub(super) const fn effort(&self) -> Option<Effort> {
        match self {
            Self::CannotTell { effort, .. } => Some(*effort),
            _ => None,
        }
    }

    /// Returns the name of the verdict for JSON.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Faster(..) => "faster",
            Self::Slower(..) => "slower",
            Self::Equal { .. } => "equal",
            Self::CannotTell { .. } | Self::NoInterval => "cannot tell",
            Self::TooFew(..) => "too few",
            Self::NoIterations => "no iterations",
            Self::NotComparable(..) => "not comparable",
        }
    }
}

impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl fmt::Display for Effort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = match self.of {
            Unit::Iterations => "iterations",
            Unit::Runs => "runs",
        };
        write!(
            f,
            "it would show a change of {:.1} %; for {}, record {} {of} of each",
            self.smallest * 100.0,
            Percent(self.within),
            self.needed
        )
    }
}

/// A fraction shown in percent, without a sign and without unnecessary digits.
struct Percent(f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounded = (self.0 * 1000.0).round() / 10.0;
        write!(f, "{rounded} %")
    }
}

/// An interval of fractions, shown in percent.
struct Interval((f64, f64));

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = self.0;
        write!(f, "[{:.1}, {:.1}]", low * 100.0, high * 100.0)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = |part: f64| format!("{:.1} %", part * 100.0);
        match *self {
            Self::Faster(part, interval) => {
                write!(f, "faster by {} {}", by(part), Interval(interval))
            }
            Self::Slower(part, interval) => {
                write!(f, "slower by {} {}", by(part), Interval(interval))
            }
            Self::Equal {
                change,
                interval,
                within,
            } => write!(
                f,
                "equal within {}: {:+.1} % {}",
                Percent(within),
                change * 100.0,
                Interval(interval)
            ),
            Self::CannotTell {
                change, interval, ..
            } => write!(
                f,
                "cannot tell: {:+.1} % {}",
                change * 100.0,
                Interval(interval)
            ),
            Self::NoInterval => write!(f, "cannot tell: the interval of the change is {NOT_KNOWN}"),
            Self::NoIterations => f.write_str(
                "no verdict: no iterations were found in these traces (--step names what one is)",
            ),
            Self::NotComparable(base, other) => {
                write!(f, "not comparable: {base} and {other} ranks")
            }
            Self::TooFew(base, other) => {
                let least = Statistic::Mean.least();
                write!(
                    f,
                    "too few iterations to say: {base} and {other} (wanted: {least} or more)"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_interval_is_not_called_a_lack_of_iterations() {
        let side = |iterations| Side {
            file: String::new(),
            command: String::new(),
            rule: String::new(),
            processes: 1,
            rank: 0,
            iterations,
            is_balanced: false,
        };
        let rate = Some(Change {
            relative: 0.1,
            interval: None,
        });
        let judge = |base, other| Outcome::judge(rate, [&side(base), &side(other)], [1, 1], WITHIN);
        assert_eq!(judge(5000, 5000), Outcome::NoInterval);
        assert_eq!(judge(5000, 7), Outcome::TooFew(5000, 7));
    }
}
