//! Comparison of several runs of each side. It is based on the variation between runs, not on that within a run.

use super::{Asked, Comparison, Outcome};
use crate::numbers::between;
use crate::process::Process;

impl Comparison {
    /// Compares several runs of each side. Each run has the processes of one report. Tables of kernels, layers and
    /// functions are those of the run with the median rate of each side.
    ///
    /// # Panics
    /// If a side has no run.
    #[must_use]
    pub fn of_runs(base: &[Vec<Process>], other: &[Vec<Process>], asked: &Asked) -> Self {
        let (first, against) = (&base[0], &other[0]);
        if let ([base], [other]) = (base, other) {
            return Self::asked(base, other, asked);
        }
        let of_base: Vec<_> = base
            .iter()
            .map(|run| Self::asked(run, against, asked))
            .collect();
        let of_other: Vec<_> = other
            .iter()
            .map(|run| Self::asked(first, run, asked))
            .collect();
        let middle = [
            middle(&of_base, |of| of.measures.first().map(|rate| rate.base)),
            middle(&of_other, |of| of.measures.first().map(|rate| rate.other)),
        ];
        let mut found = Self::asked(&base[middle[0]], &other[middle[1]], asked);
        for measure in &mut found.measures {
            let same = |of: &Self| of.measures.iter().position(|one| one.name == measure.name);
            let values = of_base
                .iter()
                .filter_map(|of| Some(of.measures[same(of)?].base));
            let base: Vec<_> = values.collect();
            let values = of_other
                .iter()
                .filter_map(|of| Some(of.measures[same(of)?].other));
            let other: Vec<_> = values.collect();
            measure.base = mean(&base);
            measure.other = mean(&other);
            if let Some(change) = between::change(&base, &other) {
                measure.change = change;
            }
        }
        found.runs = [base.len(), other.len()];
        let rate = found.measures.first().map(|rate| rate.change);
        if !matches!(
            found.verdict,
            Outcome::NotComparable(..) | Outcome::NoIterations
        ) {
            found.verdict =
                Outcome::judge(rate, [&found.base, &found.other], found.runs, asked.within);
        }
        found.routing = super::routing(&found.measures, &found.base, &found.other);
        found.but = super::most(&found.measures, found.verdict);
        found.judged(&asked.conditions)
    }
}

/// Returns the index of the run with the median value.
fn middle(runs: &[Comparison], value: impl Fn(&Comparison) -> Option<f64>) -> usize {
    let mut order: Vec<_> = (0..runs.len()).collect();
    let value = |place: &usize| value(&runs[*place]).unwrap_or(0.0);
    order.sort_by(|a, b| value(a).total_cmp(&value(b)));
    order[(order.len() - 1) / 2]
}

/// Returns the geometric mean, which changes are based on; 0 if there are no values.
fn mean(values: &[f64]) -> f64 {
    match values.len() {
        0 => 0.0,
        count => (values.iter().map(|value| value.ln()).sum::<f64>() / count as f64).exp(),
    }
}
