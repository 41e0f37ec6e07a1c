//! Parts of iterations in two runs: what they take, and how much that differs.

use std::borrow::Cow;

use serde::Serialize;

use super::bootstrap::{Change, Statistic, changes};

/// Things of one name in both runs.
#[derive(Debug, Serialize)]
pub struct PartChange {
    pub name: String,
    /// The name as text has it.
    #[serde(skip)]
    pub label: String,
    /// What they take in an iteration, in nanoseconds; 0 where there are none.
    #[serde(rename = "base_ns")]
    pub base: f64,
    #[serde(rename = "other_ns")]
    pub other: f64,
    /// `None` where one of the runs has none of them.
    pub change: Option<Change>,
}

/// What things of one name take in a run.
#[derive(Debug)]
pub struct Part<'a> {
    pub ns: u64,
    /// In each iteration, by its place, which may be there more than once; `None`: that is not known.
    pub by_step: Option<Cow<'a, [(u32, u64)]>>,
}

impl Part<'_> {
    /// What they took in each iteration; `None` where that is not known, or was outside iterations.
    fn series(&self, steps: u64) -> Option<Vec<f64>> {
        let mut series = vec![0.0; usize::try_from(steps).ok()?];
        for (step, ns) in self.by_step.as_ref()?.iter() {
            *series.get_mut(*step as usize)? += *ns as f64;
        }
        series.iter().any(|ns| *ns > 0.0).then_some(series)
    }
}

/// How much a part of both runs differs; `None` where one of them lacks it.
pub fn change(sides: [Option<Part<'_>>; 2], steps: [u64; 2]) -> Option<Change> {
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
