//! Compares two runs and decides whether one is faster.
//!
//! If a run has several ranks, its slowest rank represents it, because the other ranks wait for this rank. The other
//! ranks are compared only in the table of ranks. With one run on each side, the confidence intervals express only the
//! variation *within* these runs, not the variation from run to run.

mod formats;
mod gate;
mod mix;
mod notes;
mod pace;
mod runs;
mod series;
mod text;
mod verdict;
mod why;

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::{Serialize, Serializer};
use tllmprof_config::PerfectRouter;
use tllmprof_record::Phase;

use crate::events::origin::Data;
use crate::kernels::Kernels;
use crate::kernels::compare::are_comparable;
use crate::layers::compare::unknown;
use crate::numbers::bootstrap::{Change, Statistic, changes};
use crate::numbers::parts::PartChange;
use crate::numbers::quantiles::has_enough;
use crate::print::json::write;
use crate::process::Process;
pub use gate::{Checked, Condition, Met};
use pace::{Gpu, IterationClass, Pace};
use series::Series;
use verdict::MIN_DIFFERENCE;
pub use verdict::Outcome;
pub(crate) use verdict::WITHIN;
use why::RankedCauses;

/// Name of the median iteration time in the list of measured quantities. Its change can contradict the verdict (see
/// [`most`]).
const MEDIAN: &str = "iteration, p50";

/// Minimum speed-up by balanced routing of tokens to experts, as a fraction, for the report to call the imbalance of
/// the learned routing significant.
const MIN_ROUTING_CHANGE: f64 = 0.10;

/// The comparison of two runs, or of several runs of each side.
#[derive(Debug, Serialize)]
pub struct Comparison {
    pub verdict: Outcome,
    /// Number of runs on each side (base and other). With one run on each side, the verdict is
    /// based on the variation within a run.
    runs: [usize; 2],
    base: Side,
    other: Side,
    measures: Vec<Measure>,
    why: RankedCauses,
    kernels: Vec<PartChange>,
    /// Numbers of iterations with recorded kernels, in base and other. The fields `kernels` and `layers` are computed
    /// from these iterations.
    kernels_of: [u64; 2],
    /// Changes of the layers' times, computed from the same iterations as `kernels`.
    layers: Vec<PartChange>,
    functions: Vec<PartChange>,
    functions_of: [u64; 2],
    /// Changes of the host's time by cause; empty if both sides have only one run.
    causes: Vec<PartChange>,
    ranks: Vec<RankChange>,
    routing: Option<Routing>,
    notes: Vec<String>,
    /// True if no iterations were found in the traces, so that the figures describe the whole
    /// traces.
    #[serde(skip)]
    is_of_trace: bool,
    /// A note about the median iteration time, if its change contradicts the verdict.
    but: Option<String>,
    /// The results of the conditions that the user asked for.
    pub conditions: Vec<Checked>,
}

/// Options of a comparison: the limit for equality, and the conditions to check.
#[derive(Clone, Debug)]
pub struct ComparisonOptions {
    /// Limit for the verdict that two runs are equal: the whole confidence interval of the rate's change must lie
    /// between minus and plus this limit. A smaller change is still called faster or slower if it is certain. The limit
    /// is a fraction, such as 0.02 for 2 %.
    pub within: f64,
    pub conditions: Vec<Condition>,
}

impl Default for ComparisonOptions {
    fn default() -> Self {
        Self {
            within: WITHIN,
            conditions: Vec::new(),
        }
    }
}

impl ComparisonOptions {
    /// Returns the names of the kernels or layers that the conditions are about: the names after
    /// the prefix `kind`, such as `kernel:`.
    fn parts(&self, kind: &str) -> Vec<&str> {
        let names = self.conditions.iter();
        names
            .filter_map(|condition| condition.name().strip_prefix(kind))
            .collect()
    }
}

/// The base or the other side of a comparison.
#[derive(Debug, Serialize)]
struct Side {
    file: String,
    command: String,
    rule: String,
    processes: usize,
    /// Number of the slowest rank, which represents the run.
    rank: u64,
    iterations: usize,
    #[serde(rename = "perfect_router")]
    is_balanced: bool,
}

/// A quantity that was measured in both runs.
#[derive(Debug, Serialize)]
struct Measure {
    name: &'static str,
    /// The kind of values from which `statistic` is computed, such as the durations of iterations. If a side has
    /// several runs, the statistic is computed for each run separately.
    #[serde(skip)]
    series: Series,
    #[serde(skip)]
    statistic: Statistic,
    unit: Unit,
    base: f64,
    other: f64,
    change: Change,
    /// True if there are too few iterations or runs for an interval of the change.
    #[serde(skip)]
    is_few: bool,
    /// Number of the base's iterations for which the quantity was measured.
    base_iterations: usize,
    other_iterations: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unit {
    PerSecond,
    Nanoseconds,
    Launches,
}

impl Serialize for Unit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl Unit {
    /// Returns the unit's name for JSON and CSV.
    const fn name(self) -> &'static str {
        match self {
            Self::PerSecond => "1/s",
            Self::Nanoseconds => "ns",
            Self::Launches => "launches",
        }
    }
}

/// Change of one rank's rate, in iterations per second.
#[derive(Debug, Serialize)]
struct RankChange {
    rank: u64,
    #[serde(rename = "base_per_second")]
    base: f64,
    #[serde(rename = "other_per_second")]
    other: f64,
    change: Change,
    /// True if there are too few iterations for an interval of the change.
    #[serde(skip)]
    is_few: bool,
}

/// The effect of balanced routing (the same number of tokens for each expert) compared with the
/// routing that the model learned.
#[derive(Debug, Serialize)]
struct Routing {
    /// Change of the rate (iterations per second) from learned routing to balanced routing.
    change: Change,
    #[serde(rename = "significant")]
    is_significant: bool,
}

/// A comparison in the form in which it is written as JSON.
#[derive(Serialize)]
struct ComparisonView<'a> {
    #[serde(flatten)]
    comparison: &'a Comparison,
    /// The verdict on the two runs, as text.
    text: String,
    /// The change of the rate (iterations per second), or `None` if it was not measured.
    change: Option<Change>,
    /// An estimate of the number of iterations or runs that are needed for a verdict, or `None` if there is a
    /// verdict.
    effort: Option<verdict::Effort>,
}

type Ranks<'a> = BTreeMap<u64, &'a Process>;

impl Comparison {
    /// Writes the comparison as JSON, with a line break at the end.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn json(&self, to: &mut impl Write) -> io::Result<()> {
        let written = ComparisonView {
            comparison: self,
            text: self.verdict.to_string(),
            change: self.measures.first().map(|rate| rate.change),
            effort: self.verdict.effort(),
        };
        write(&written, to)
    }

    /// Compares two runs with default options. Each run is a list of processes, one or several for
    /// each rank.
    #[must_use]
    pub fn compare(base: &[Process], other: &[Process]) -> Self {
        Self::asked(base, other, &ComparisonOptions::default())
    }

    /// Compares two runs. `asked` contains the options of the comparison.
    fn asked(base: &[Process], other: &[Process], asked: &ComparisonOptions) -> Self {
        let runs = [ranks(base), ranks(other)];
        let which = which(&runs);
        let paces = runs.each_ref().map(|run| {
            let pace = |(rank, process): (&u64, &&Process)| (*rank, Pace::new(process, which));
            run.iter().map(pace).collect::<BTreeMap<_, _>>()
        });
        let [many, others] = runs.each_ref().map(BTreeMap::len);
        let is_comparable = many == others || many == 0 || others == 0;
        let mut all = base.iter().chain(other);
        let is_of_trace = all.any(|process| process.facts.origin.lacks(Data::Iterations));
        let slowest = paces.each_ref().map(slowest);
        let [base_side, other_side] = [0, 1].map(|side| {
            Side::new(
                [base, other][side],
                &runs[side],
                slowest[side],
                &paces[side],
            )
        });
        let mut notes = notes::find(&runs, &base_side, &other_side, which);
        let mut measures = Vec::new();
        let mut parts = Parts::default();
        let mut why = RankedCauses::default();
        if let ([Some(a), Some(b)], true) = (slowest, is_comparable) {
            let processes = [runs[0][&a], runs[1][&b]];
            let of_slowest = [&paces[0][&a], &paces[1][&b]];
            times(of_slowest, is_of_trace, &mut measures);
            let differences = mix::differences(of_slowest);
            let is_alike = differences.is_empty();
            notes.extend(differences);
            gpu_times(processes, is_alike, &mut measures, &mut notes);
            parts = Parts::compare(processes, asked, &mut notes);
            let [base, other] = [0, 1].map(|side| [(processes[side], of_slowest[side].period())]);
            why = RankedCauses::find([&base, &other]);
        }
        let verdict = match is_comparable {
            true if is_of_trace => Outcome::NoIterations,
            true => {
                let rate = measures.first().map(|rate| rate.change);
                Outcome::judge(rate, [&base_side, &other_side], [1, 1], asked.within)
            }
            false => Outcome::NotComparable(many, others),
        };
        let routing = routing(&measures, &base_side, &other_side);
        let but = most(&measures, verdict);
        let several = many > 1 && is_comparable && !is_of_trace;
        let found = Self {
            verdict,
            runs: [1, 1],
            base: base_side,
            other: other_side,
            measures,
            why,
            kernels: parts.kernels,
            kernels_of: parts.kernels_of,
            layers: parts.layers,
            functions: parts.functions,
            functions_of: parts.functions_of,
            causes: Vec::new(),
            ranks: if several {
                rank_changes(&paces)
            } else {
                Vec::new()
            },
            routing,
            notes,
            is_of_trace,
            but,
            conditions: Vec::new(),
        };
        found.judged(&asked.conditions)
    }

    /// Checks the conditions, stores the results in the comparison, and returns the comparison.
    fn judged(mut self, conditions: &[Condition]) -> Self {
        let checked = conditions.iter().map(|condition| self.check(condition));
        self.conditions = checked.collect();
        self
    }
}

/// The kernels, layers and functions whose times differ most between the runs, with the numbers of
/// iterations that these figures are computed from.
#[derive(Default)]
struct Parts {
    kernels: Vec<PartChange>,
    kernels_of: [u64; 2],
    layers: Vec<PartChange>,
    functions: Vec<PartChange>,
    functions_of: [u64; 2],
}

impl Parts {
    fn compare(
        processes: [&Process; 2],
        asked: &ComparisonOptions,
        notes: &mut Vec<String>,
    ) -> Self {
        let runs = processes.map(|process| &process.kernels);
        let kernels_of = runs.map(Kernels::steps);
        let mut layers = Vec::new();
        if let [Some(base), Some(other)] = processes.map(|process| process.layers.as_ref())
            && are_comparable(runs)
        {
            let sides = [base, other];
            let names = asked.parts("layer:");
            layers = crate::layers::compare::changes(sides, kernels_of, &names);
            notes.extend(unknown(sides).filter(|_| !layers.is_empty()));
        }
        let sampled = processes.map(|process| (&process.ledger, process.stacks.counts));
        Self {
            kernels: crate::kernels::compare::changes(runs, &asked.parts("kernel:")),
            kernels_of,
            layers,
            functions: crate::ledger::compare::changes(sampled),
            functions_of: processes.map(|process| process.ledger.host_iterations),
        }
    }
}

/// Returns a run's processes by rank, without the processes that have no iterations. If several processes have the
/// same rank, only the process with the most iterations is returned for it.
fn ranks(processes: &[Process]) -> Ranks<'_> {
    let count = |process: &Process| process.sum.as_ref().map_or(0, |sum| sum.iterations);
    let mut ranks = Ranks::new();
    for process in processes.iter().filter(|process| count(process) > 0) {
        let of_rank = ranks.entry(process.facts.rank).or_insert(process);
        if count(process) > count(of_rank) {
            *of_rank = process;
        }
    }
    ranks
}

/// Returns the class of iterations to compare. It is the class of iterations without recorded kernels, if every process
/// has enough of these. Otherwise, it is the class of iterations with recorded kernels, if every process has enough of
/// these. Otherwise, it is the class of all iterations.
fn which(runs: &[Ranks<'_>]) -> IterationClass {
    let enough = |which: &IterationClass| {
        let all = runs.iter().flat_map(BTreeMap::values);
        all.into_iter()
            .all(|process| Pace::new(process, *which).periods.len() >= Statistic::Mean.least())
    };
    let kinds = [IterationClass::WithoutKernels, IterationClass::WithKernels];
    kinds
        .into_iter()
        .find(enough)
        .unwrap_or(IterationClass::All)
}

fn slowest(paces: &BTreeMap<u64, Pace>) -> Option<u64> {
    let by_rate = paces
        .iter()
        .min_by(|a, b| a.1.rate().total_cmp(&b.1.rate()));
    by_rate.map(|(rank, _)| *rank)
}

impl Side {
    fn new(
        all: &[Process],
        run: &Ranks<'_>,
        slowest: Option<u64>,
        paces: &BTreeMap<u64, Pace>,
    ) -> Self {
        let rank = slowest.unwrap_or(0);
        // If no process of the run has iterations, take the file, the command and the rule from the first process.
        let process = run.get(&rank).copied().or(all.first());
        let text = |of: fn(&Process) -> &str| {
            process.map_or_else(String::new, |process| of(process).to_owned())
        };
        Self {
            file: process.map_or_else(String::new, |process| process.file.display().to_string()),
            command: text(|process| &process.facts.command),
            rule: text(|process| &process.facts.rule),
            processes: run.len(),
            rank,
            iterations: paces.get(&rank).map_or(0, |pace| pace.periods.len()),
            is_balanced: run.values().any(|process| is_balanced(process)),
        }
    }
}

/// Returns true if the program ran with balanced routing of tokens to experts, which replaces the
/// model's learned routing.
fn is_balanced(process: &Process) -> bool {
    let names = ["ENABLE_PERFECT_ROUTER", "TLLMPROF_PERFECT_ROUTER"];
    process.facts.asked.settings.iter().any(|setting| {
        setting.split_once('=').is_some_and(|(name, value)| {
            names.contains(&name)
                && PerfectRouter::parse(value).is_ok_and(|router| router != PerfectRouter::Off)
        })
    })
}

/// Adds the rate, the durations and the numbers of launches of iterations to `measures`. For traces without iterations,
/// adds only the duration of the whole trace. Adds nothing if one of the runs has no values.
fn times([base, other]: [&Pace; 2], is_of_trace: bool, measures: &mut Vec<Measure>) {
    if base.periods.is_empty() || other.periods.is_empty() {
        return;
    }
    if is_of_trace {
        let all = [("the trace", Statistic::Mean)];
        return measure(
            Series::Durations,
            [&base.durations, &other.durations],
            &all,
            measures,
        );
    }
    measures.push(Measure {
        name: "iterations a second",
        series: Series::Rate,
        statistic: Statistic::Mean,
        unit: Unit::PerSecond,
        base: base.rate(),
        other: other.rate(),
        change: rate_change(base, other),
        is_few: are_few(base, other),
        base_iterations: base.periods.len(),
        other_iterations: other.periods.len(),
    });
    let all = [
        ("iteration, mean", Statistic::Mean),
        (MEDIAN, Statistic::Quantile(0.5)),
        ("iteration, p90", Statistic::Quantile(0.9)),
        ("iteration, p99", Statistic::Quantile(0.99)),
    ];
    measure(
        Series::Durations,
        [&base.durations, &other.durations],
        &all,
        measures,
    );
    let launched = [&base.launches, &other.launches];
    if launched
        .iter()
        .all(|side| side.iter().any(|launches| *launches > 0.0))
    {
        let [base, other] = launched;
        measure(
            Series::Launches,
            [base, other],
            &[("launches a step", Statistic::Mean)],
            measures,
        );
        if let Some(launches) = measures.last_mut() {
            launches.unit = Unit::Launches;
        }
    }
    for (phase, [base, other]) in mix::by_phase([base, other]) {
        let name = match phase {
            Phase::Prefill => "prefill, mean",
            Phase::Decode => "decode, mean",
            Phase::Mixed => "mixed, mean",
            Phase::Idle => "idle, mean",
            Phase::Draft => "draft, mean",
        };
        measure(
            Series::Phase(phase),
            [&base, &other],
            &[(name, Statistic::Mean)],
            measures,
        );
    }
}

/// Returns the change of the rate. It is the inverse of the change of the mean period, which is the
/// time from one iteration's start to the next.
fn rate_change(base: &Pace, other: &Pace) -> Change {
    let time = changes(&base.periods, &other.periods, &[Statistic::Mean])[0];
    let rate = |time: f64| 1.0 / (1.0 + time) - 1.0;
    Change {
        relative: rate(time.relative),
        // Drop an interval that reaches -100 %. It contains a period of 0, which would mean an infinite rate.
        interval: time
            .interval
            .filter(|(low, _)| *low > -1.0)
            .map(|(low, high)| (rate(high), rate(low))),
    }
}

/// Returns true if one of the runs has too few iterations for an interval of the rate's change.
fn are_few(base: &Pace, other: &Pace) -> bool {
    base.periods.len().min(other.periods.len()) < Statistic::Mean.least()
}

/// Adds GPU times to `measures`, and notes about them to `notes`. `is_alike` is true if the batches of the two runs
/// do not differ. In that case, the batches of the iterations with GPU times are compared, too. Otherwise a note
/// already states that the batches differ.
fn gpu_times(
    processes: [&Process; 2],
    is_alike: bool,
    measures: &mut Vec<Measure>,
    notes: &mut Vec<String>,
) {
    match processes.map(Gpu::new) {
        [Some(base), Some(other)] if base.from == other.from => {
            let from = base.from;
            let mut sides = [base, other];
            if !pace::alike(&mut sides) {
                notes.push("GPU times were taken in some iterations, not the same ones".to_owned());
            }
            let [base, other] = sides.each_ref().map(|side| &side.pace);
            if is_alike {
                let differences = mix::differences([base, other]);
                notes.extend(
                    differences
                        .into_iter()
                        .map(|note| format!("GPU times: {note}")),
                );
            }
            let all = [
                ("GPU time, mean", Statistic::Mean),
                ("GPU time, p50", Statistic::Quantile(0.5)),
            ];
            measure(
                Series::Gpu(from),
                [&base.durations, &other.durations],
                &all,
                measures,
            );
        }
        [Some(_), Some(_)] => notes.push("GPU times were not measured the same way".to_owned()),
        [Some(_), None] => notes.push("GPU times: BASE alone has them".to_owned()),
        [None, Some(_)] => notes.push("GPU times: OTHER alone has them".to_owned()),
        [None, None] => (),
    }
    let [base, other] = processes.map(pace::busy);
    if !base.is_empty() && !other.is_empty() {
        measure(
            Series::Busy,
            [&base, &other],
            &[("GPU busy, mean", Statistic::Mean)],
            measures,
        );
    }
}

fn measure(
    series: Series,
    [base, other]: [&[f64]; 2],
    all: &[(&'static str, Statistic)],
    measures: &mut Vec<Measure>,
) {
    let fewest = base.len().min(other.len()) as u64;
    let says_something = |statistic: &Statistic| match statistic {
        Statistic::Quantile(share) if *share > 0.5 => has_enough(*share, fewest),
        Statistic::Mean | Statistic::Quantile(_) => true,
    };
    let all: Vec<_> = all.iter().filter(|(_, one)| says_something(one)).collect();
    let statistics: Vec<_> = all.iter().map(|(_, statistic)| *statistic).collect();
    let changes = changes(base, other, &statistics);
    for ((name, statistic), change) in all.into_iter().zip(changes) {
        measures.push(Measure {
            name,
            series,
            statistic: *statistic,
            unit: Unit::Nanoseconds,
            base: statistic.compute(base),
            other: statistic.compute(other),
            change,
            is_few: base.len().min(other.len()) < statistic.least(),
            base_iterations: base.len(),
            other_iterations: other.len(),
        });
    }
}

fn rank_changes(paces: &[BTreeMap<u64, Pace>; 2]) -> Vec<RankChange> {
    let both = paces[0]
        .iter()
        .filter_map(|(rank, base)| Some((rank, base, paces[1].get(rank)?)));
    both.filter(|(_, base, other)| !base.periods.is_empty() && !other.periods.is_empty())
        .map(|(rank, base, other)| RankChange {
            rank: *rank,
            base: base.rate(),
            other: other.rate(),
            change: rate_change(base, other),
            is_few: are_few(base, other),
        })
        .collect()
}

/// Returns a note if the change of the median iteration time contradicts the verdict. Unlike the
/// median, the verdict's rate includes the slowest iterations and the time between iterations, so a
/// few slow iterations may make the verdict uncertain or reverse it.
fn most(measures: &[Measure], verdict: Outcome) -> Option<String> {
    let median = measures.iter().find(|measure| measure.name == MEDIAN)?;
    let Change { relative, interval } = median.change;
    let (low, high) = interval?;
    let (what, contradicts) = match verdict {
        _ if low > MIN_DIFFERENCE => ("slower", !matches!(verdict, Outcome::Slower(..))),
        _ if high < -MIN_DIFFERENCE => ("faster", !matches!(verdict, Outcome::Faster(..))),
        _ => return None,
    };
    contradicts.then(|| {
        format!(
            "but most iterations are {what}: p50 {:+.1} % [{:+.1}, {:+.1}]",
            relative * 100.0,
            low * 100.0,
            high * 100.0
        )
    })
}

/// Returns the effect of balanced routing, if exactly one of the two runs used balanced routing. Returns `None`
/// otherwise, or if the change of the rate has no confidence interval.
fn routing(measures: &[Measure], base: &Side, other: &Side) -> Option<Routing> {
    if base.is_balanced == other.is_balanced {
        return None;
    }
    let change = measures.first()?.change;
    let change = if other.is_balanced {
        change
    } else {
        inverse(change)
    };
    let (low, _) = change.interval?;
    Some(Routing {
        change,
        is_significant: change.relative > MIN_ROUTING_CHANGE && low > 0.0,
    })
}

/// Converts a relative change from base to other into the change from other to base.
fn inverse(change: Change) -> Change {
    let turned = |part: f64| 1.0 / (1.0 + part) - 1.0;
    Change {
        relative: turned(change.relative),
        interval: change
            .interval
            .map(|(low, high)| (turned(high), turned(low))),
    }
}
