//! Conditions on a comparison, such as `p50 > +2%`, by which a CI job decides whether a run is good
//! enough.

use std::fmt;
use std::ops::RangeInclusive;

use serde::Serialize;

use super::{Comparison, Measure};
use crate::numbers::bootstrap::Change;
use crate::numbers::parts::PartChange;

/// Names that conditions may use, each with the name of its measure (a measured quantity) in the
/// comparison.
const NAMES: &[(&str, &str)] = &[
    ("rate", "iterations a second"),
    ("mean", "iteration, mean"),
    ("p50", "iteration, p50"),
    ("p90", "iteration, p90"),
    ("p99", "iteration, p99"),
    ("gpu", "GPU time, mean"),
    ("busy", "GPU busy, mean"),
    ("launches", "launches a step"),
];

/// The limits that a condition may have, in percent. No quantity falls by more than 100 %, so the result of a condition
/// with a limit below -100 % would be the same for every change.
const LIMITS: RangeInclusive<f64> = -100.0..=1e6;

/// A condition such as `p50 > +2%`. It describes a change that must not happen: the condition is
/// exceeded if the change is beyond the limit.
#[derive(Clone, PartialEq, Debug)]
pub struct Condition {
    /// The condition as the user typed it.
    text: String,
    name: String,
    is_above: bool,
    /// The limit for the change, as a signed fraction: `+2%` is 0.02.
    limit: f64,
}

/// A condition, the measured change, and the result of checking the condition against that change.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    pub condition: String,
    pub result: Met,
    /// The measured change, or `None` if one of the runs lacks the measured quantity.
    pub change: Option<Change>,
    /// The reason why the result is [`Met::CannotTell`]; empty for the other results.
    pub why: String,
}

/// The result of checking a condition. It depends on the 95 % confidence interval of the measured change, which the
/// variants call the interval.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Met {
    /// The whole interval lies within the limit of the condition.
    Kept,
    /// The interval contains the limit of the condition, or there is no interval.
    CannotTell,
    /// The whole interval lies beyond the limit of the condition.
    Exceeded,
}

impl Condition {
    /// Returns the name of the quantity, kernel or layer that the condition is about.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Parses `NAME > +N%` or `NAME < -N%`.
    ///
    /// # Errors
    /// Returns a description of the expected form if `text` is not a condition.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wanted = "wanted: NAME > +N% or NAME < -N%, such as p50 > +2%";
        let at = text.rfind(['<', '>']).ok_or(wanted)?;
        let (name, limit) = (text[..at].trim(), text[at + 1..].trim());
        let is_known = NAMES.iter().any(|(known, _)| *known == name);
        let is_part = ["kernel:", "layer:"]
            .iter()
            .any(|kind| name.strip_prefix(kind).is_some_and(|rest| !rest.is_empty()));
        if !is_known && !is_part {
            let known: Vec<_> = NAMES.iter().map(|(known, _)| *known).collect();
            let known = known.join(", ");
            return Err(format!(
                "\"{name}\" is no name (wanted: {known}, kernel:NAME or layer:NAME)"
            ));
        }
        let number = limit.strip_suffix('%').ok_or(wanted)?.trim_end();
        let limit: f64 = number.parse().map_err(|_| wanted)?;
        // NaN is outside every range.
        if !LIMITS.contains(&limit) {
            return Err(format!(
                "{number}% is no limit of a change (wanted: {}% to +{}%)",
                LIMITS.start(),
                LIMITS.end()
            ));
        }
        Ok(Self {
            text: text.trim().to_owned(),
            name: name.to_owned(),
            is_above: text[at..].starts_with('>'),
            limit: limit / 100.0,
        })
    }
}

impl Comparison {
    /// Returns the result of checking a condition against the confidence interval of the measured change.
    pub(super) fn check(&self, condition: &Condition) -> Checked {
        let change = self.change_of(&condition.name);
        let interval = change.and_then(|change| change.interval);
        let (result, why) = match (change, interval) {
            (None, _) => (Met::CannotTell, "the runs do not both have it"),
            (_, None) => (Met::CannotTell, self.why_no_interval(&condition.name)),
            (_, Some((low, high))) => {
                let (nearest, furthest) = match condition.is_above {
                    true => (low - condition.limit, high - condition.limit),
                    false => (condition.limit - high, condition.limit - low),
                };
                match () {
                    () if nearest > 0.0 => (Met::Exceeded, ""),
                    () if furthest <= 0.0 => (Met::Kept, ""),
                    () => (Met::CannotTell, "the interval holds the limit"),
                }
            }
        };
        Checked {
            condition: condition.text.clone(),
            result,
            change,
            why: why.to_owned(),
        }
    }

    fn change_of(&self, name: &str) -> Option<Change> {
        match self.part_of(name) {
            Some(part) => part.change,
            None => Some(self.measure_of(name)?.change),
        }
    }

    /// Returns the kernel or layer that a condition calls `name`; `None` if the comparison does not have it, or if
    /// `name` is that of a measure.
    fn part_of(&self, name: &str) -> Option<&PartChange> {
        let (parts, name) = match name.strip_prefix("kernel:") {
            Some(name) => (&self.kernels, name),
            None => (&self.layers, name.strip_prefix("layer:")?),
        };
        let mut parts = parts.iter();
        parts.find(|part| part.name == name || part.label == name)
    }

    /// Returns the measure that a condition calls `name`; `None` if the runs do not both have it, or if `name` is that
    /// of a kernel or layer.
    fn measure_of(&self, name: &str) -> Option<&Measure> {
        let (_, measure) = NAMES.iter().find(|(known, _)| *known == name)?;
        self.measures.iter().find(|one| one.name == *measure)
    }

    /// Returns the reason why the change of the quantity `name` has no confidence interval.
    fn why_no_interval(&self, name: &str) -> &'static str {
        let is_few = match self.part_of(name) {
            Some(part) => part.is_few,
            None => self.measure_of(name).is_some_and(|measure| measure.is_few),
        };
        match (is_few, self.runs) {
            (true, [1, 1]) => "there are too few iterations",
            (true, _) => "there are too few runs",
            (false, _) => "the interval is not known",
        }
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let result = match self.result {
            Met::Kept => "kept",
            Met::CannotTell => "cannot tell",
            Met::Exceeded => "exceeded",
        };
        write!(f, "{result}: {}", self.condition)?;
        if let Some(change) = self.change {
            write!(f, ": {:+.1} %", change.relative * 100.0)?;
            if let Some((low, high)) = change.interval {
                write!(f, " [{:+.1}, {:+.1}]", low * 100.0, high * 100.0)?;
            }
        }
        match &*self.why {
            "" => Ok(()),
            why => write!(f, "; {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_has_a_name_a_side_and_a_part() {
        let condition = Condition::parse(" p50 > +2% ").unwrap();
        assert_eq!((&*condition.name, condition.is_above), ("p50", true));
        assert!((condition.limit - 0.02).abs() < 1e-12);
        let kernel = Condition::parse("kernel:gemm<128, 64> < -1.5 %").unwrap();
        assert_eq!(
            (&*kernel.name, kernel.is_above),
            ("kernel:gemm<128, 64>", false)
        );
        for wrong in ["", "p50", "p50 > 2", "p50 = 2%", "p51 > 2%", "kernel: > 2%"] {
            assert!(Condition::parse(wrong).is_err(), "{wrong}");
        }
        // With each of these limits, the condition's result would be the same for all plausible changes.
        for wrong in ["nan", "-nan", "inf", "1e400", "1e999", "-100.1", "+1000001"] {
            let why = Condition::parse(&format!("rate < {wrong}%")).unwrap_err();
            let expected = format!("{wrong}% is no limit of a change (wanted: -100% to +1000000%)");
            assert_eq!(why, expected);
        }
    }
}
