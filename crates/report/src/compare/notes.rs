//! Notes on differences between the conditions of two runs, such as their GPUs, software versions
//! or settings.

use std::collections::{BTreeMap, BTreeSet};

use tllmprof_record::Metric;

use super::pace::IterationClass;
use super::{Ranks, Side};
use crate::events::origin::SMALL_COST;
use crate::numbers::units::Share;
use crate::print::lines::short;
use crate::process::Process;
use crate::process::state::State;

/// Minimum relative change, as a fraction, of a GPU's clock, power or temperature, or of the energy of a step, for
/// which the comparison shows a note.
const MIN_CONDITION_CHANGE: f64 = 0.02;

/// Prefixes of settings (`NAME=value`) whose values differ in every run, such as file names. These settings are not
/// compared.
const OF_A_RUN: [&str; 4] = [
    "TLLMPROF_TRACE=",
    "TLLMPROF_RUN=",
    "TLLMPROF_CONTROL=",
    "TLLM_TORCH_PROFILE_TRACE=",
];

/// Returns notes on the differences between two runs, except those between their batches and GPU times. There are also
/// notes on the overhead of recording and on incomplete records, which can affect the comparison.
pub(crate) fn find(
    runs: &[Ranks<'_>; 2],
    base: &Side,
    other: &Side,
    which: IterationClass,
) -> Vec<String> {
    let mut notes = Vec::new();
    if base.rule != other.rule && base.iterations > 0 && other.iterations > 0 {
        notes.push(format!(
            "an iteration is not the same: {} and {}",
            base.rule, other.rule
        ));
    }
    let conditions = runs.each_ref().map(|run| {
        let mut all = run
            .values()
            .map(|process| process.facts.asked.condition.as_str());
        all.find(|condition| !condition.is_empty()).unwrap_or("all")
    });
    if conditions[0] != conditions[1] {
        let [base, other] = conditions;
        notes.push(format!("not the same iterations: {base}, and {other}"));
    }
    notes.extend(unlike(&base.command, &other.command));
    if let [Some(base), Some(other)] = runs.each_ref().map(|run| run.values().next()) {
        notes.extend(unlike_conditions([base, other]));
    }
    notes.extend(unlike_ranks(runs));
    let all = || runs.iter().flat_map(BTreeMap::values);
    let have_kernels = all().any(|process| process.kernels.window.is_some());
    for process in all() {
        if let Some(cost) = process.profiler_share().filter(|cost| *cost > SMALL_COST) {
            let (tool, cost) = (&process.facts.origin.tool, Share(cost));
            notes.push(format!("recording by {tool} took about {cost} of the time"));
        }
    }
    // The notes below are about iterations in which kernels were recorded, which makes iterations longer. For the
    // traces of other profilers, the note above already states the estimated overhead if it is large. So the notes
    // below are added only if tllmprof recorded all processes.
    let have_kernels = have_kernels && all().all(|process| process.facts.origin.is_own());
    match which {
        IterationClass::WithoutKernels if have_kernels => {
            notes.push("iterations in which kernels were taken are left out".to_owned());
        }
        IterationClass::WithKernels if have_kernels => {
            notes.push("kernels were taken in all of these, which stretches them".to_owned())
        }
        IterationClass::All if have_kernels => {
            notes.push("kernels were taken in some of these, which stretches them".to_owned());
        }
        IterationClass::WithKernels | IterationClass::WithoutKernels | IterationClass::All => (),
    }
    for (name, run) in ["BASE", "OTHER"].into_iter().zip(runs) {
        if run
            .values()
            .any(|process| process.record.dropped > 0 || process.state() == State::Damaged)
        {
            notes.push(format!("{name} is not whole: see its report"));
        }
    }
    notes
}

/// Returns a note on the difference between two command lines: the words from the first to the last difference, and the
/// option that precedes them. Returns `None` if the command lines are equal, or if one of them is unknown (empty).
fn unlike(base: &str, other: &str) -> Option<String> {
    if base == other || base.is_empty() || other.is_empty() {
        return None;
    }
    let sides = [base, other].map(|side| side.split_whitespace().collect::<Vec<_>>());
    let [a, b] = &sides;
    let same = |(one, other): &(&&str, &&str)| one == other;
    let mut before = a.iter().zip(b).take_while(same).count();
    let most = a.len().min(b.len()) - before;
    let after = a
        .iter()
        .rev()
        .zip(b.iter().rev())
        .take(most)
        .take_while(same)
        .count();
    if before > 0 && a[before - 1].starts_with('-') {
        before -= 1;
    }
    let [a, b] = sides.each_ref().map(|side| {
        match side.get(before..side.len() - after).unwrap_or_default() {
            [] => "nothing there".to_owned(),
            words => short(&words.join(" "), 25),
        }
    });
    Some(format!("the commands differ: {a} and {b}"))
}

/// Returns notes on differences between two processes in their GPUs, versions, settings, GPU metrics (clock, power,
/// temperature) and energy per step. A value that is unknown for one of the processes is not compared. The settings are
/// compared only if tllmprof recorded both processes.
fn unlike_conditions(processes: [&Process; 2]) -> Vec<String> {
    let texts = |what: &'static str, text: fn(&Process) -> String| {
        let [base, other] = processes.map(text);
        let differ = base != other && !base.is_empty() && !other.is_empty();
        differ.then(|| format!("{what} differ: {base} and {other}"))
    };
    let software = [
        texts("the GPUs", |one| one.facts.software.known_gpus().join(", ")),
        texts("the CUDA drivers", |one| {
            let version = one.facts.software.cuda_driver;
            let text = |version| format!("{}.{}", version / 1000, version % 1000 / 10);
            version.map_or_else(String::new, text)
        }),
        texts("the versions of Python", |one| {
            one.facts.software.python.clone()
        }),
        texts("the engines", |one| one.facts.engine.clone()),
        texts("the profilers", |one| one.facts.origin.tool.clone()),
    ];
    let mut notes: Vec<_> = software.into_iter().flatten().collect();
    if processes.iter().all(|one| one.facts.origin.is_own()) {
        let sides = processes.map(|one| settings(&one.facts.asked.settings));
        let alone = |side: usize| {
            let other = &sides[1 - side];
            let mine = sides[side].iter().filter(|one| !other.contains(*one));
            short(&mine.copied().collect::<Vec<_>>().join(" "), 60)
        };
        let [base, other] = [alone(0), alone(1)].map(|text| match text.is_empty() {
            true => "none there".to_owned(),
            false => text,
        });
        if base != other {
            notes.push(format!("the settings differ: {base} and {other}"));
        }
    }
    for metric in [Metric::SmClock, Metric::Power, Metric::Temperature] {
        let [base, other] = processes.map(|one| {
            let sums = one.metrics.sums.iter();
            let of = sums.filter(|sum| sum.metric == metric).map(|sum| sum.mean);
            of.reduce(f64::max)
        });
        if let (Some(base), Some(other)) = (base, other)
            && (other / base - 1.0).abs() >= MIN_CONDITION_CHANGE
        {
            let (name, unit) = (metric.name(), metric.unit());
            notes.push(format!("{name} differs: {base:.0} and {other:.0} {unit}"));
        }
    }
    let energy = |one: &Process| {
        let of_gpus = one.metrics.state.iter().filter_map(|gpu| gpu.per_step);
        of_gpus.reduce(|all, joules| all + joules)
    };
    if let [Some(base), Some(other)] = processes.map(energy)
        && (other / base - 1.0).abs() >= MIN_CONDITION_CHANGE
    {
        notes.push(format!(
            "the energy of a step differs: {base:.3} and {other:.3} J"
        ));
    }
    notes
}

/// Returns the settings that can affect the measured times, without settings that contain file
/// names or the name of the run.
fn settings(all: &[String]) -> BTreeSet<&str> {
    let all = all.iter().map(String::as_str);
    all.filter(|setting| !OF_A_RUN.iter().any(|name| setting.starts_with(name)))
        .collect()
}

/// Returns a note if the runs have different ranks, or if a run has no iterations; otherwise `None`.
fn unlike_ranks(runs: &[Ranks<'_>; 2]) -> Option<String> {
    let empty = match runs.each_ref().map(BTreeMap::is_empty) {
        [true, true] => "BASE and OTHER have",
        [true, false] => "BASE has",
        [false, true] => "OTHER has",
        [false, false] if runs[0].keys().eq(runs[1].keys()) => return None,
        [false, false] => {
            let [base, other] = runs.each_ref().map(numbers);
            return Some(format!(
                "not the same ranks: BASE has {base}, OTHER has {other}"
            ));
        }
    };
    Some(format!("{empty} no iterations to compare"))
}

/// Returns the numbers of a run's ranks as text. At most 8 ranks are listed.
fn numbers(run: &Ranks<'_>) -> String {
    let shown: Vec<_> = run.keys().take(8).map(u64::to_string).collect();
    let more = if run.len() > shown.len() { " …" } else { "" };
    let mut all = run.values();
    match (all.next(), all.next()) {
        (Some(only), None) if only.facts.known_rank().is_none() => "no rank".to_owned(),
        (_, None) => format!("rank {}", shown.join(" ")),
        _ => format!("ranks {}{more}", shown.join(" ")),
    }
}
