//! Comparison of two sides of which at least one has several runs. Its confidence intervals express the variation from
//! run to run, not the variation within a run.

use std::collections::{BTreeMap, BTreeSet};

use super::pace::{IterationClass, Pace};
use super::why::RankedCauses;
use super::{Comparison, ComparisonOptions, Outcome, ranks, slowest, which};
use crate::kernels::compare as kernels;
use crate::layers::compare as layers;
use crate::ledger::compare as ledger;
use crate::ledger::{LedgerKind, shown_causes};
use crate::numbers::between;
use crate::numbers::parts::PartChange;
use crate::numbers::units::Count;
use crate::process::Process;

/// Names of the two sides in notes.
const SIDES: [&str; 2] = ["BASE", "OTHER"];

/// A run's number on its side, counted from 1, and its processes.
type NumberedRun<'a> = (usize, &'a [Process]);

/// The runs of both sides that have iterations.
type Sides<'a> = [Vec<Run<'a>>; 2];

/// For each side, the numbers of some of its runs, in ascending order.
type RunNumbers = [Vec<usize>; 2];

/// The causes of the host's time that have a row of their own, even in runs in which they are small.
type WantedCauses<'a> = BTreeSet<(LedgerKind, &'a str)>;

/// A run, represented by its slowest rank. Times are in nanoseconds.
struct Run<'a> {
    /// The run's number on its side, counted from 1.
    number: usize,
    process: &'a Process,
    pace: Pace,
}

impl<'a> Run<'a> {
    /// Returns the run, or `None` if none of its processes has iterations. `which` is the class of the iterations that
    /// are compared.
    fn new((number, processes): NumberedRun<'a>, which: IterationClass) -> Option<Self> {
        let ranks = ranks(processes);
        let paces = ranks
            .iter()
            .map(|(rank, one)| (*rank, Pace::new(one, which)));
        let mut paces = paces.collect();
        let rank = slowest(&paces)?;
        Some(Self {
            number,
            process: ranks[&rank],
            pace: paces.remove(&rank)?,
        })
    }
}

/// A table of the comparison, whose rows are parts of an iteration.
struct PartTable {
    name: &'static str,
    /// Returns true if the run has the data of the table.
    has: fn(&Run<'_>) -> bool,
    /// Returns the time of a row in nanoseconds; `None` if the run does not have the row.
    time: fn(&Run<'_>, &str, &WantedCauses<'_>) -> Option<f64>,
}

const KERNELS: PartTable = PartTable {
    name: "kernels",
    has: has_kernels,
    time: |run, name, _| kernels::time(&run.process.kernels, name),
};

const LAYERS: PartTable = PartTable {
    name: "layers",
    has: |run| run.process.layers.is_some() && has_kernels(run),
    time: |run, name, _| {
        let layers = run.process.layers.as_ref()?;
        layers::time(layers, run.process.kernels.steps(), name)
    },
};

const FUNCTIONS: PartTable = PartTable {
    name: "host by samples",
    has: |run| run.process.stacks.counts.enough(),
    time: cause_time,
};

const CAUSES: PartTable = PartTable {
    name: "host",
    has: |run| run.process.ledger.host_iterations > 0,
    time: cause_time,
};

/// Returns true if the run recorded when kernels ran, in at least one iteration.
fn has_kernels(run: &Run<'_>) -> bool {
    kernels::are_comparable([&run.process.kernels; 2])
}

/// Returns the time of a row of the host's ledger, in nanoseconds; `None` if the ledger has no such row. The ledger is
/// the table of the host's time by cause, and `name` is the cause.
fn cause_time(run: &Run<'_>, name: &str, wanted: &WantedCauses<'_>) -> Option<f64> {
    ledger::time(&run.process.ledger, name, wanted)
}

impl Comparison {
    /// Compares two sides that each have one or several runs. Each run is a list of processes. If only some runs of a
    /// side have iterations, the other runs are left out.
    ///
    /// The rows of the tables of kernels, layers and functions are chosen from one run of each side, the run with the
    /// median rate. The measures are those that both chosen runs have. The times in the rows are geometric means over
    /// all runs of the side. A run that does not have a measure, a table or a row is left out of the means. If one of
    /// the chosen runs does not have a table, the table is empty. Notes say which runs are left out.
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
        for (name, all, used) in [(SIDES[0], base, &used[0]), (SIDES[1], other, &used[1])] {
            if used.len() < all.len() {
                let count = Count((all.len() - used.len()) as u64, "run");
                let note = format!("{name}: left out: {count} without iterations");
                found.notes.push(note);
            }
        }
        found
    }

    /// Compares two sides that each have one or several runs.
    fn of_used_runs([base, other]: [&[NumberedRun<'_>]; 2], asked: &ComparisonOptions) -> Self {
        if let ([(_, base)], [(_, other)]) = (base, other) {
            return Self::asked(base, other, asked);
        }
        let all = base.iter().chain(other);
        let all: Vec<_> = all.map(|(_, run)| ranks(run)).collect();
        let which = which(&all);
        let runs = [base, other].map(|side| {
            let runs = side.iter().map(|run| Run::new(*run, which));
            runs.collect::<Vec<_>>()
        });
        let [a, b] = runs.each_ref().map(|side| middle(side));
        let mut found = Self::asked(base[a].1, other[b].1, asked);
        if let [Some(base), Some(other)] = [&runs[0][a], &runs[1][b]]
            && [base, other].into_iter().all(CAUSES.has)
        {
            found.causes = ledger::causes([base, other].map(|run| &run.process.ledger));
        }
        let chosen = [runs[0][a].as_ref(), runs[1][b].as_ref()];
        let chosen = chosen.into_iter().flatten().map(|run| run.process);
        let wanted = shown_causes(chosen.map(|process| &process.ledger.host[..]));
        let middle = [base[a].0, other[b].0];
        let sides: Sides<'_> = runs.map(|side| side.into_iter().flatten().collect());
        found.compare_measures(&sides);
        found.compare_parts(&sides, middle, &wanted);
        if !matches!(found.verdict, Outcome::NotComparable(..)) {
            let [base, other] = sides.each_ref().map(|side| {
                let runs = side.iter();
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

    /// Replaces the values and the changes of the measures, which come from one run of each side, by figures from all
    /// runs that have them. Adds notes on the other runs.
    fn compare_measures(&mut self, sides: &Sides<'_>) {
        let mut left_out: BTreeMap<RunNumbers, Vec<&str>> = BTreeMap::new();
        for measure in &mut self.measures {
            let (series, statistic) = (measure.series, measure.statistic);
            let (values, missing) = values(sides, |run| {
                series.compute(statistic, run.process, &run.pace)
            });
            if let Some(change) = between::change(&values[0], &values[1]) {
                [measure.base, measure.other] = values.each_ref().map(|values| mean(values));
                measure.is_few = change.interval.is_none();
                measure.change = change;
            }
            if missing.iter().any(|side| !side.is_empty()) {
                left_out.entry(missing).or_default().push(measure.name);
            }
        }
        for (missing, names) in left_out {
            let (names, runs) = (names.join("; "), list_runs(&missing));
            self.notes.push(format!("left out of {names}: {runs}"));
        }
    }

    /// Replaces the figures in the tables of parts, which come from one run of each side, by figures from all runs that
    /// have them. Adds notes on the other runs. `middle` contains the numbers of the runs from which the rows were
    /// chosen, and `wanted` the causes that have a row in the ledgers of these runs.
    fn compare_parts(&mut self, sides: &Sides<'_>, middle: [usize; 2], wanted: &WantedCauses<'_>) {
        for (parts, table) in [
            (&mut self.kernels, KERNELS),
            (&mut self.layers, LAYERS),
            (&mut self.functions, FUNCTIONS),
            (&mut self.causes, CAUSES),
        ] {
            let mut incomplete = 0;
            let mut lacking = RunNumbers::default();
            for part in parts.iter_mut() {
                let name = part.name.clone();
                let (values, missing) = values(sides, |run| (table.time)(run, &name, wanted));
                let is_compared = compare_part(part, &values);
                let missing = [0, 1].map(|side| with_table(&sides[side], &missing[side], &table));
                if is_compared && missing.iter().any(|side| !side.is_empty()) {
                    incomplete += 1;
                    lacking
                        .iter_mut()
                        .zip(missing)
                        .for_each(|(all, more)| all.extend(more));
                }
            }
            parts.sort_by(|a, b| difference(b).total_cmp(&difference(a)));
            self.notes.extend(note_on_table(&table, sides, middle));
            if incomplete > 0 {
                lacking.iter_mut().for_each(|side| {
                    side.sort_unstable();
                    side.dedup();
                });
                let (name, all, runs) = (table.name, parts.len(), list_runs(&lacking));
                self.notes.push(format!(
                    "{name}: {incomplete} of {all} rows leave out runs without them: {runs}"
                ));
            }
        }
    }
}

/// Returns the values of all runs that have one, and the numbers of the other runs.
fn values(
    sides: &Sides<'_>,
    value: impl Fn(&Run<'_>) -> Option<f64>,
) -> ([Vec<f64>; 2], RunNumbers) {
    let (mut values, mut missing) = <([Vec<f64>; 2], RunNumbers)>::default();
    for (side, runs) in sides.iter().enumerate() {
        for run in runs {
            match value(run) {
                Some(value) => values[side].push(value),
                None => missing[side].push(run.number),
            }
        }
    }
    (values, missing)
}

/// Returns the numbers of those of the given runs of a side that have the data of a table.
fn with_table(side: &[Run<'_>], numbers: &[usize], table: &PartTable) -> Vec<usize> {
    let given = side.iter().filter(|run| numbers.contains(&run.number));
    let with = given.filter(|run| (table.has)(run));
    with.map(|run| run.number).collect()
}

/// Returns a note on the runs that do not have the data of a table; `None` if all runs have the data, or if no run has
/// them. `middle` contains the numbers of the runs from which the rows of the table were chosen. If one of these does
/// not have the data, the table is empty.
fn note_on_table(table: &PartTable, sides: &Sides<'_>, middle: [usize; 2]) -> Option<String> {
    let without = sides.each_ref().map(|side| {
        let without = side.iter().filter(|run| !(table.has)(run));
        without.map(|run| run.number).collect::<Vec<_>>()
    });
    let mut runs = sides.iter().flatten();
    if without.iter().all(Vec::is_empty) || !runs.any(|run| (table.has)(run)) {
        return None;
    }
    let (name, runs) = (table.name, list_runs(&without));
    let is_empty = (0..2).any(|side| without[side].contains(&middle[side]));
    Some(match is_empty {
        true => format!("{name}: not compared, because these runs do not have them: {runs}"),
        false => format!("left out of {name}: {runs}"),
    })
}

/// Returns the names of runs, such as `run 2 of BASE, runs 1 3 of OTHER`.
fn list_runs(numbers: &RunNumbers) -> String {
    let sides = SIDES.iter().zip(numbers).filter(|(_, all)| !all.is_empty());
    let names = sides.map(|(side, all)| {
        let shown: Vec<_> = all.iter().map(usize::to_string).collect();
        let noun = if all.len() == 1 { "run" } else { "runs" };
        format!("{noun} {} of {side}", shown.join(" "))
    });
    names.collect::<Vec<_>>().join(", ")
}

/// Replaces the times and the change of a kernel, layer, function or cause, which come from one run of each side, by
/// figures from all runs. If no change can be computed from all runs, nothing is replaced. Returns true if the figures
/// were replaced.
fn compare_part(part: &mut PartChange, [base, other]: &[Vec<f64>; 2]) -> bool {
    let Some(change) = between::change(base, other) else {
        return false;
    };
    if part.change.is_none() {
        // The part is missing in one of the two runs from which the rows were chosen, but not in all runs of that side.
        // So the counts of these two runs would say wrongly that the part is new or gone.
        part.counts = None;
    }
    (part.base, part.other) = (mean(base), mean(other));
    part.is_few = change.interval.is_none();
    part.change = Some(change);
    true
}

fn difference(part: &PartChange) -> f64 {
    (part.other - part.base).abs()
}

/// Returns those runs of a side that have iterations. If none has, returns all runs.
fn with_iterations(side: &[Vec<Process>]) -> Vec<NumberedRun<'_>> {
    let has_iterations = |(_, run): &NumberedRun<'_>| {
        let ranks = ranks(run);
        ranks
            .values()
            .any(|process| !Pace::new(process, IterationClass::All).periods.is_empty())
    };
    let all: Vec<_> = (1..).zip(side.iter().map(Vec::as_slice)).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn part(change: Option<f64>) -> PartChange {
        PartChange {
            name: "gemm".to_owned(),
            label: "gemm".to_owned(),
            base: 0.0,
            other: 5.0,
            counts: Some([0.0, 1.0]),
            change: change.map(|relative| crate::numbers::bootstrap::Change {
                relative,
                interval: None,
            }),
            is_few: false,
        }
    }

    #[test]
    fn runs_are_listed_by_side() {
        assert_eq!(list_runs(&[vec![2], vec![]]), "run 2 of BASE");
        assert_eq!(
            list_runs(&[vec![2], vec![1, 3]]),
            "run 2 of BASE, runs 1 3 of OTHER"
        );
    }

    #[test]
    fn a_part_is_new_only_if_no_run_of_the_base_has_it() {
        let mut new = part(None);
        assert!(!compare_part(&mut new, &[vec![], vec![5.0, 6.0]]));
        assert_eq!((new.counts, new.other), (Some([0.0, 1.0]), 5.0));
        let mut rare = part(None);
        assert!(compare_part(&mut rare, &[vec![4.0], vec![5.0, 5.0]]));
        assert!(rare.counts.is_none() && rare.change.is_some() && !rare.is_few);
        let mut single = part(Some(0.1));
        assert!(compare_part(&mut single, &[vec![4.0], vec![5.0]]));
        assert!(single.is_few && single.counts.is_some());
    }
}
