//! Two runs side by side, and whether one is faster.
//!
//! Of several ranks the slowest counts: the others wait for it. Intervals say how sure a difference is
//! *between these two runs*; that a run of the same program may go faster or slower as a whole they
//! cannot know.

mod mix;
mod notes;
mod pace;
mod text;

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::{Serialize, Serializer};
use tllmprof_config::PerfectRouter;
use tllmprof_record::Phase;

use crate::kernels::Kernels;
use crate::kernels::compare::are_comparable;
use crate::layers::compare::unknown;
use crate::numbers::bootstrap::{Change, Statistic, changes};
use crate::numbers::parts::PartChange;
use crate::print::json::write;
use crate::process::Process;
use pace::{Gpu, Pace, Which};

/// A difference below this part is none, however sure.
const FLOOR: f64 = 0.005;

/// The measure of what most iterations take.
const MEDIAN: &str = "iteration, p50";

/// From which difference on between balanced and learned routing its imbalance matters.
const IMBALANCE: f64 = 0.10;

/// Two runs side by side.
#[derive(Debug, Serialize)]
pub struct Comparison {
    #[serde(serialize_with = "write_name")]
    pub verdict: Outcome,
    base: Side,
    other: Side,
    measures: Vec<Measure>,
    kernels: Vec<PartChange>,
    /// Of how many iterations those are, of both runs.
    kernels_of: [u64; 2],
    /// Of the same iterations.
    layers: Vec<PartChange>,
    functions: Vec<PartChange>,
    functions_of: [u64; 2],
    ranks: Vec<RankChange>,
    routing: Option<Routing>,
    notes: Vec<String>,
    /// What most iterations do, where that is not what the verdict says of all.
    but: Option<String>,
}

/// Whether the other run is faster, by its iterations a second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Outcome {
    /// By this part, and the interval of it that holds the truth 95 times in a hundred.
    Faster(f64, (f64, f64)),
    Slower(f64, (f64, f64)),
    NoDifference(f64, (f64, f64)),
    /// There are so few iterations, of the two runs.
    TooFew(usize, usize),
    /// They have so many ranks: what one does in a step, several share.
    NotComparable(usize, usize),
}

/// One of the two.
#[derive(Debug, Serialize)]
struct Side {
    file: String,
    command: String,
    rule: String,
    processes: usize,
    /// The slowest rank, which stands for all.
    rank: u64,
    iterations: usize,
    #[serde(rename = "perfect_router")]
    is_balanced: bool,
}

/// Something measured in both runs.
#[derive(Debug, Serialize)]
struct Measure {
    name: &'static str,
    unit: Unit,
    base: f64,
    other: f64,
    change: Change,
    /// The numbers of iterations that it is of.
    base_iterations: usize,
    other_iterations: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
enum Unit {
    #[serde(rename = "1/s")]
    PerSecond,
    #[serde(rename = "ns")]
    Nanoseconds,
}

/// A rank's iterations a second.
#[derive(Debug, Serialize)]
struct RankChange {
    rank: u64,
    #[serde(rename = "base_per_second")]
    base: f64,
    #[serde(rename = "other_per_second")]
    other: f64,
    change: Change,
}

/// What balanced routing of experts is worth.
#[derive(Debug, Serialize)]
struct Routing {
    /// How much faster the run with it is.
    change: Change,
    #[serde(rename = "significant")]
    is_significant: bool,
}

/// A comparison as JSON.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    comparison: &'a Comparison,
    /// The verdict in words.
    text: String,
    /// Of iterations a second.
    change: Option<Change>,
}

fn write_name<S: Serializer>(verdict: &Outcome, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match verdict {
        Outcome::Faster(..) => "faster",
        Outcome::Slower(..) => "slower",
        Outcome::NoDifference(..) => "no difference",
        Outcome::TooFew(..) => "too few",
        Outcome::NotComparable(..) => "not comparable",
    })
}

type Ranks<'a> = BTreeMap<u64, &'a Process>;

impl Comparison {
    /// Writes the comparison as JSON, with a line's end.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn json(&self, to: &mut impl Write) -> io::Result<()> {
        let written = Written {
            comparison: self,
            text: self.verdict.to_string(),
            change: self.measures.first().map(|rate| rate.change),
        };
        write(&written, to)
    }

    /// Compares two runs, each the processes of one report.
    #[must_use]
    pub fn of(base: &[Process], other: &[Process]) -> Self {
        let runs = [ranks(base), ranks(other)];
        let which = which(&runs);
        let paces = runs.each_ref().map(|run| {
            let pace = |(rank, process): (&u64, &&Process)| (*rank, Pace::of(process, which));
            run.iter().map(pace).collect::<BTreeMap<_, _>>()
        });
        let [many, others] = runs.each_ref().map(BTreeMap::len);
        let is_comparable = many == others || many == 0 || others == 0;
        let slowest = paces.each_ref().map(slowest);
        let [base_side, other_side] = [0, 1].map(|side| {
            Side::of(
                [base, other][side],
                &runs[side],
                slowest[side],
                &paces[side],
            )
        });
        let mut notes = notes::of(&runs, &base_side, &other_side, which);
        let mut measures = Vec::new();
        let (mut kernels, mut layers, mut functions) = (Vec::new(), Vec::new(), Vec::new());
        let [mut kernels_of, mut functions_of] = [[0; 2]; 2];
        if let ([Some(a), Some(b)], true) = (slowest, is_comparable) {
            let processes = [runs[0][&a], runs[1][&b]];
            let of_slowest = [&paces[0][&a], &paces[1][&b]];
            times(of_slowest, &mut measures);
            let differences = mix::differences(of_slowest);
            let is_alike = differences.is_empty();
            notes.extend(differences);
            gpu_times(processes, is_alike, &mut measures, &mut notes);
            let runs = processes.map(|process| &process.kernels);
            kernels_of = runs.map(Kernels::steps);
            functions_of = processes.map(|process| process.ledger.host_iterations);
            kernels = crate::kernels::compare::changes(runs);
            if let [Some(base), Some(other)] = processes.map(|process| process.layers.as_ref())
                && are_comparable(runs)
            {
                layers = crate::layers::compare::changes([base, other], kernels_of);
                notes.extend(unknown([base, other]).filter(|_| !layers.is_empty()));
            }
            let sampled = processes.map(|process| (&process.ledger, process.stacks.counts));
            functions = crate::ledger::compare::changes(sampled);
        }
        let verdict = match is_comparable {
            true => Outcome::of(&measures, &base_side, &other_side),
            false => Outcome::NotComparable(many, others),
        };
        let routing = routing(&measures, &base_side, &other_side);
        let but = most(&measures, verdict);
        let several = many > 1 && is_comparable;
        Self {
            verdict,
            base: base_side,
            other: other_side,
            measures,
            kernels,
            kernels_of,
            layers,
            functions,
            functions_of,
            ranks: if several {
                rank_changes(&paces)
            } else {
                Vec::new()
            },
            routing,
            notes,
            but,
        }
    }
}

/// The process of each rank: the one with the most iterations.
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

/// The kind of iterations of which all processes have enough.
fn which(runs: &[Ranks<'_>; 2]) -> Which {
    let enough = |which: &Which| {
        let all = runs.iter().flat_map(BTreeMap::values);
        all.into_iter()
            .all(|process| Pace::of(process, *which).periods.len() >= Statistic::Mean.least())
    };
    let kinds = [Which::WithoutKernels, Which::WithKernels];
    kinds.into_iter().find(enough).unwrap_or(Which::All)
}

fn slowest(paces: &BTreeMap<u64, Pace>) -> Option<u64> {
    let by_rate = paces
        .iter()
        .min_by(|a, b| a.1.rate().total_cmp(&b.1.rate()));
    by_rate.map(|(rank, _)| *rank)
}

impl Side {
    fn of(
        all: &[Process],
        run: &Ranks<'_>,
        slowest: Option<u64>,
        paces: &BTreeMap<u64, Pace>,
    ) -> Self {
        let rank = slowest.unwrap_or(0);
        // One without iterations has a name, too.
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

/// Whether routers of experts were replaced by balanced ones.
fn is_balanced(process: &Process) -> bool {
    let names = ["ENABLE_PERFECT_ROUTER", "TLLMPROF_PERFECT_ROUTER"];
    process.facts.asked.settings.iter().any(|setting| {
        setting.split_once('=').is_some_and(|(name, value)| {
            names.contains(&name)
                && PerfectRouter::parse(value).is_ok_and(|router| router != PerfectRouter::Off)
        })
    })
}

/// Iterations a second, and how long they take.
fn times([base, other]: [&Pace; 2], measures: &mut Vec<Measure>) {
    if base.periods.is_empty() || other.periods.is_empty() {
        return;
    }
    measures.push(Measure {
        name: "iterations a second",
        unit: Unit::PerSecond,
        base: base.rate(),
        other: other.rate(),
        change: rate_change(base, other),
        base_iterations: base.periods.len(),
        other_iterations: other.periods.len(),
    });
    let all = [
        ("iteration, mean", Statistic::Mean),
        (MEDIAN, Statistic::Quantile(0.5)),
        ("iteration, p90", Statistic::Quantile(0.9)),
        ("iteration, p99", Statistic::Quantile(0.99)),
    ];
    measure(&base.durations, &other.durations, &all, measures);
    for (phase, [base, other]) in mix::by_phase([base, other]) {
        let name = match phase {
            Phase::Prefill => "prefill, mean",
            Phase::Decode => "decode, mean",
            Phase::Mixed => "mixed, mean",
            Phase::Idle => "idle, mean",
            Phase::Draft => "draft, mean",
        };
        measure(&base, &other, &[(name, Statistic::Mean)], measures);
    }
}

/// The change of the rate that follows from that of the time each iteration takes.
fn rate_change(base: &Pace, other: &Pace) -> Change {
    let time = changes(&base.periods, &other.periods, &[Statistic::Mean])[0];
    let rate = |time: f64| 1.0 / (1.0 + time) - 1.0;
    Change {
        relative: rate(time.relative),
        // An interval of the time that goes down to nothing says nothing of the rate.
        interval: time
            .interval
            .filter(|(low, _)| *low > -1.0)
            .map(|(low, high)| (rate(high), rate(low))),
    }
}

/// `is_alike`: the batches of all iterations are.
fn gpu_times(
    processes: [&Process; 2],
    is_alike: bool,
    measures: &mut Vec<Measure>,
    notes: &mut Vec<String>,
) {
    match processes.map(Gpu::of) {
        [Some(base), Some(other)] if base.from == other.from => {
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
            measure(&base.durations, &other.durations, &all, measures);
        }
        [Some(_), Some(_)] => notes.push("GPU times were not measured the same way".to_owned()),
        [Some(_), None] => notes.push("GPU times: BASE alone has them".to_owned()),
        [None, Some(_)] => notes.push("GPU times: OTHER alone has them".to_owned()),
        [None, None] => (),
    }
    let [base, other] = processes.map(pace::busy);
    if !base.is_empty() && !other.is_empty() {
        measure(
            &base,
            &other,
            &[("busy with kernels, mean", Statistic::Mean)],
            measures,
        );
    }
}

fn measure(
    base: &[f64],
    other: &[f64],
    all: &[(&'static str, Statistic)],
    measures: &mut Vec<Measure>,
) {
    let statistics: Vec<_> = all.iter().map(|(_, statistic)| *statistic).collect();
    let changes = changes(base, other, &statistics);
    for ((name, statistic), change) in all.iter().zip(changes) {
        measures.push(Measure {
            name,
            unit: Unit::Nanoseconds,
            base: statistic.of(base),
            other: statistic.of(other),
            change,
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
        })
        .collect()
}

impl Outcome {
    fn of(measures: &[Measure], base: &Side, other: &Side) -> Self {
        let Some((change, interval)) = measures
            .first()
            .and_then(|rate| Some((rate.change.relative, rate.change.interval?)))
        else {
            return Self::TooFew(base.iterations, other.iterations);
        };
        if (interval.0..=interval.1).contains(&0.0) || change.abs() < FLOOR {
            Self::NoDifference(change, interval)
        } else if change > 0.0 {
            Self::Faster(change, interval)
        } else {
            Self::Slower(-change, (-interval.1, -interval.0))
        }
    }
}

/// What the median says where it contradicts the verdict, which is of all iterations and the time between them: few
/// slow ones may make that unsure, or turn it round.
fn most(measures: &[Measure], verdict: Outcome) -> Option<String> {
    let median = measures.iter().find(|measure| measure.name == MEDIAN)?;
    let Change { relative, interval } = median.change;
    let (low, high) = interval?;
    let (what, contradicts) = match verdict {
        _ if low > FLOOR => ("slower", !matches!(verdict, Outcome::Slower(..))),
        _ if high < -FLOOR => ("faster", !matches!(verdict, Outcome::Faster(..))),
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

/// What balanced routing is worth, where one of the runs had it.
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
        is_significant: change.relative > IMBALANCE && low > 0.0,
    })
}

/// The same change, the other way round.
fn inverse(change: Change) -> Change {
    let turned = |part: f64| 1.0 / (1.0 + part) - 1.0;
    Change {
        relative: turned(change.relative),
        interval: change
            .interval
            .map(|(low, high)| (turned(high), turned(low))),
    }
}
