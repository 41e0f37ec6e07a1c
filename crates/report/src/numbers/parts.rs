//! Comparison of the parts of iterations, such as kernels or layers, between two runs.

use std::borrow::Cow;

use serde::Serialize;

use super::bootstrap::{Change, Statistic, changes};

/// A part of iterations (such as a kernel) with its times in two runs.
#[derive(Debug, Serialize)]
pub(crate) struct PartChange {
    pub name: String,
    /// The part's name as the text output shows it.
    #[serde(skip)]
    pub label: String,
    /// The base's mean time per iteration, in nanoseconds; 0 if the base does not have this part.
    #[serde(rename = "base_ns")]
    pub base: f64,
    #[serde(rename = "other_ns")]
    pub other: f64,
    /// Mean number of times that the part occurs in an iteration, in the base and in the other run; `None` if the part
    /// is not counted.
    pub counts: Option<[f64; 2]>,
    /// The relative change of the time; `None` if one of the runs does not have the part.
    pub change: Option<Change>,
    /// True if there are too few iterations or runs for an interval of the change.
    #[serde(skip)]
    pub is_few: bool,
}

/// The time of a part of iterations (such as a kernel) in one run, in nanoseconds.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub ns: u64,
    /// Indexes of iterations, each with the part's time in that iteration in nanoseconds; `None` if times per
    /// iteration are unknown. An index may occur several times.
    pub by_step: Option<Cow<'a, [(u32, u64)]>>,
}

impl Part<'_> {
    /// Returns the part's time in each of the `steps` iterations. Returns `None` if these times are
    /// unknown, or if the part ran only outside iterations.
    fn series(&self, steps: u64) -> Option<Vec<f64>> {
        let mut series = vec![0.0; usize::try_from(steps).ok()?];
        for (step, ns) in self.by_step.as_ref()?.iter() {
            *series.get_mut(*step as usize)? += *ns as f64;
        }
        series.iter().any(|ns| *ns > 0.0).then_some(series)
    }
}

/// Returns true if one of the runs has too few iterations for an interval of the change of a part's time. `steps`
/// contains the number of iterations of each run.
pub(crate) fn are_few(steps: [u64; 2]) -> bool {
    steps
        .iter()
        .any(|count| *count < Statistic::Mean.least() as u64)
}

/// Returns the change of a part's time between two runs; `None` if one of the runs does not have the part. `steps`
/// contains the number of iterations of each run.
pub(crate) fn change(sides: [Option<Part<'_>>; 2], steps: [u64; 2]) -> Option<Change> {
    let [Some(base), Some(other)] = sides else {
        return None;
    };
    match (base.series(steps[0]), other.series(steps[1])) {
        (Some(base), Some(other)) => Some(changes(&base, &other, &[Statistic::Mean])[0]),
        _ => {
            let relative =
                (other.ns as f64 / steps[1] as f64) / (base.ns as f64 / steps[0] as f64) - 1.0;
            Some(Change {
                relative,
                interval: None,
            })
        }
    }
}
