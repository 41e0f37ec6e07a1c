//! Comparison of two sides of which at least one has several runs. Its confidence intervals express the variation from
//! run to run, not the variation within a run.

use super::pace::{IterationClass, Pace};
use super::why::RankedCauses;
use super::{Comparison, ComparisonOptions, Outcome, ranks, slowest, which};
use crate::kernels::compare as kernels;
use crate::layers::compare as layers;
use crate::ledger::compare as ledger;
use crate::numbers::between;
use crate::numbers::parts::PartChange;
use crate::numbers::units::Count;
use crate::process::Process;

/// A run, represented by its slowest rank. Times are in nanoseconds.
struct Run<'a> {
    process: &'a Process,
    pace: Pace,
}

impl<'a> Run<'a> {
    /// Returns the run, or `None` if none of its processes has iterations. `which` is the class of the iterations that
    /// are compared.
    fn new(processes: &'a [Process], which: IterationClass) -> Option<Self> {
        let ranks = ranks(processes);
        let paces = ranks
            .iter()
            .map(|(rank, one)| (*rank, Pace::new(one, which)));
        let mut paces = paces.collect();
        let rank = slowest(&paces)?;
        Some(Self {
            process: ranks[&rank],
            pace: paces.remove(&rank)?,
        })
    }
}

fn kernel_time(run: &Run<'_>, name: &str) -> Option<f64> {
    kernels::time(&run.process.kernels, name)
}

fn layer_time(run: &Run<'_>, name: &str) -> Option<f64> {
    let layers = run.process.layers.as_ref()?;
    layers::time(layers, run.process.kernels.steps(), name)
}

/// Returns the time of a row of the host's ledger, in nanoseconds; `None` if the ledger has no such row. The ledger is
/// the table of the host's time by cause, and `name` is the cause.
fn cause_time(run: &Run<'_>, name: &str) -> Option<f64> {
    ledger::time(&run.process.ledger, name)
}

impl Comparison {
    /// Compares two sides that each have one or several runs. Each run is a list of processes. The rows of the tables
    /// of kernels, layers and functions are chosen from one run of each side, the run with the median rate. The times
    /// in these rows are geometric means over all runs of the side. If only some runs of a side have iterations, the
    /// other runs are left out, and a note says so.
    ///
    /// # Panics
    /// If a side has no run.
    #[must_use]
    pub fn of_runs(
        base: &[Vec<Process>],
        other: &[Vec<Process>],
        asked: &ComparisonOptions,
    ) -> Self {
        let used = [base, other].map(with_iterations);
        let mut found = Self::of_used_runs([&used[0], &used[1]], asked);
        for (name, all, used) in [("BASE", base, &used[0]), ("OTHER", other, &used[1])] {
            if used.len() < all.len() {
                let count = Count((all.len() - used.len()) as u64, "run");
                let note = format!("{name}: left out: {count} without iterations");
                found.notes.push(note);
            }
        }
        found
    }

    /// Compares two sides that each have one or several runs.
    fn of_used_runs([base, other]: [&[&[Process]]; 2], asked: &ComparisonOptions) -> Self {
        if let ([base], [other]) = (base, other) {
            return Self::asked(base, other, asked);
        }
        let all: Vec<_> = base.iter().chain(other).map(|run| ranks(run)).collect();
        let which = which(&all);
        let sides = [base, other].map(|side| {
            let runs = side.iter().map(|run| Run::new(run, which));
            runs.collect::<Vec<_>>()
        });
        let [a, b] = sides.each_ref().map(|side| middle(side));
        let mut found = Self::asked(base[a], other[b], asked);
        let values = |value: &dyn Fn(&Run<'_>) -> Option<f64>| {
            let of_side = |side: &Vec<Option<Run<'_>>>| {
                let runs = side.iter().flatten();
                runs.filter_map(value).collect::<Vec<_>>()
            };
            sides.each_ref().map(of_side)
        };
        for measure in &mut found.measures {
            let (series, statistic) = (measure.series, measure.statistic);
            let of_runs = values(&|run| series.compute(statistic, run.process, &run.pace));
            if let Some(change) = between::change(&of_runs[0], &of_runs[1]) {
                [measure.base, measure.other] = of_runs.each_ref().map(|values| mean(values));
                measure.change = change;
            }
        }
        if let [Some(base), Some(other)] = [&sides[0][a], &sides[1][b]] {
            found.causes = ledger::causes([base, other].map(|run| &run.process.ledger));
        }
        for (parts, time) in [
            (&mut found.kernels, kernel_time as fn(&Run<'_>, &str) -> _),
            (&mut found.layers, layer_time),
            (&mut found.functions, cause_time),
            (&mut found.causes, cause_time),
        ] {
            for part in parts.iter_mut() {
                let name = part.name.clone();
                compare_part(part, &values(&|run| time(run, &name)));
            }
            parts.sort_by(|a, b| difference(b).total_cmp(&difference(a)));
        }
        if !matches!(found.verdict, Outcome::NotComparable(..)) {
            let [base, other] = sides.each_ref().map(|side| {
                let runs = side.iter().flatten();
                runs.map(|run| (run.process, run.pace.period()))
                    .collect::<Vec<_>>()
            });
            found.why = RankedCauses::find([&base, &other]);
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

/// Replaces the times and the change of a kernel, layer, function or cause, which come from one run of each side, by
/// figures from all runs. If no change can be computed from all runs, nothing is replaced.
fn compare_part(part: &mut PartChange, [base, other]: &[Vec<f64>; 2]) {
    if part.change.is_some()
        && let Some(change) = between::change(base, other)
    {
        (part.base, part.other) = (mean(base), mean(other));
        part.change = Some(change);
    }
}

fn difference(part: &PartChange) -> f64 {
    (part.other - part.base).abs()
}

/// Returns those runs of a side that have iterations. If none has, returns all runs.
fn with_iterations(side: &[Vec<Process>]) -> Vec<&[Process]> {
    let has_iterations = |run: &&[Process]| {
        let ranks = ranks(run);
        ranks
            .values()
            .any(|process| !Pace::new(process, IterationClass::All).periods.is_empty())
    };
    let all: Vec<_> = side.iter().map(Vec::as_slice).collect();
    let used: Vec<_> = all.iter().copied().filter(has_iterations).collect();
    match used.is_empty() {
        true => all,
        false => used,
    }
}

/// Returns the index of the run with the median rate (iterations per second). Of an even number of runs, it is the
/// slower one of the two runs in the middle.
fn middle(runs: &[Option<Run<'_>>]) -> usize {
    let mut order: Vec<_> = (0..runs.len()).collect();
    let rate = |place: &usize| runs[*place].as_ref().map_or(0.0, |run| run.pace.rate());
    order.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    order[(order.len() - 1) / 2]
}

/// Returns the geometric mean of the values; 0 if there are no values. It is used because [`between::change`] returns
/// the change of the geometric mean.
fn mean(values: &[f64]) -> f64 {
    match values.len() {
        0 => 0.0,
        count => (values.iter().map(|value| value.ln()).sum::<f64>() / count as f64).exp(),
    }
}
