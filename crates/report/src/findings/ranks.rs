//! Findings on ranks that the other ranks wait for.

use std::collections::HashSet;

use super::Judgement;
use super::definition::{FindingKind, JobAnalyses, Judge, Rule};
use super::evidence::Evidence;
use super::fallback::FALLBACK_RULE;
use super::host::LAUNCH_RULE;
use super::ledger::{CODE_RULE, IDLE_RULE};
use crate::numbers::quantiles::Quantiles;
use crate::numbers::units::{Rate, Share, Time};
use crate::ranks::skew::Skew;

/// Name of the finding `slow-rank`: the other ranks wait for one slow rank.
pub(crate) const SLOW_RULE: &str = "slow-rank";

/// Minimum difference between the slow rank's median iteration time and that of the other ranks, as
/// a fraction of the slow rank's time.
const MIN_EXCESS: f64 = 0.05;
/// Minimum share of the iterations, as a fraction, in which the slow rank must be the slowest of
/// all ranks.
const MIN_FREQUENCY: f64 = 2.0 / 3.0;
/// Minimum number of iterations that all ranks must have in common for a comparison.
const MIN_COMMON_ITERATIONS: usize = 5;

pub(crate) fn slow_when() -> String {
    format!(
        "one rank is the slowest in over {} of the iterations, and its median over {} longer than the others'",
        Share(MIN_FREQUENCY),
        Share(MIN_EXCESS)
    )
}

pub(crate) fn slow(all: &[Evidence<'_>], together: JobAnalyses<'_>) -> Judgement {
    if all.len() < 2 {
        return judge_incomparable(all, "one process");
    }
    let ranks: HashSet<_> = all.iter().map(|one| one.process.facts.rank).collect();
    let Some(skew) = together.skew.filter(|_| ranks.len() == all.len()) else {
        let are_known = all
            .iter()
            .all(|one| one.process.facts.known_rank().is_some());
        let why = match are_known && ranks.len() == all.len() {
            true => "the ranks have no iteration in common",
            false => "the processes are not ranks of one run",
        };
        return judge_incomparable(all, why);
    };
    let count = skew.iterations.len();
    if count < MIN_COMMON_ITERATIONS {
        let why = format!(
            "the ranks have {count} iterations in common (wanted: {MIN_COMMON_ITERATIONS})"
        );
        return judge_incomparable(all, &why);
    }
    let Some(slowest) = all.iter().find(|one| slowest(all) == Some(one.place)) else {
        return Judgement::No(String::new());
    };
    let others = all.iter().filter(|one| one.place != slowest.place);
    let others =
        Quantiles::from_values(others.map(|one| one.sum.time.p50)).map_or(0, |others| others.p50);
    let own = slowest.sum.time.p50;
    let slower = own.saturating_sub(others) as f64 / own.max(1) as f64;
    let often = often(slowest, skew);
    let evidence = format!(
        "{}: {} at the median, the others {}; the slowest in {} of the iterations{}",
        slowest.who,
        Time(own),
        Time(others),
        Share(often),
        work(slowest, all)
    );
    if slower < MIN_EXCESS || often < MIN_FREQUENCY {
        return Judgement::No(evidence);
    }
    // Subtract the time that the rank loses to causes that other findings report, so that no time
    // counts twice.
    let theirs = theirs(slowest, all, together.rules);
    if slower - theirs < MIN_EXCESS {
        return Judgement::Yes {
            evidence: evidence + ", by causes of its own",
            loss: None,
        };
    }
    // If the ranks wait for each other, a step takes as long as on the slowest rank. So a fix saves
    // the difference between the slowest and the second slowest rank.
    let (steps, saved) = skew.saved(slowest.place);
    let (count, gain) = (skew.iterations.len() as u64, share_of(saved, steps));
    let evidence = format!(
        "{evidence}; if it were like them, {} a step, not {}",
        Time((steps - saved) / count.max(1)),
        Time(steps / count.max(1))
    );
    match gain - theirs {
        gain if gain > 0.0 => Judgement::yes(evidence, gain),
        _ => Judgement::Yes {
            evidence,
            loss: None,
        },
    }
}

/// Returns advice on how to record the data that are missing to find a slow rank: as a sentence,
/// and in a few words.
pub(crate) fn to_know(all: &[Evidence<'_>], rule: &Rule) -> (&'static str, &'static str) {
    let ranks: HashSet<_> = all.iter().map(|one| one.process.facts.rank).collect();
    let size = all
        .iter()
        .filter_map(|one| one.process.facts.world_size)
        .max();
    let are_all = size.is_none_or(|size| size == ranks.len() as u64);
    match ranks.len() > 1 && are_all {
        true => (
            "record more iterations of all ranks",
            "more iterations of all ranks",
        ),
        false => (rule.to_know, rule.needs),
    }
}

/// Returns the judgement on slow ranks for processes that cannot be compared with each other:
/// `Unknown` if at least one of them is one of several ranks, else `No`.
fn judge_incomparable(all: &[Evidence<'_>], why: &str) -> Judgement {
    let is_one_of_several = |one: &Evidence<'_>| {
        let facts = &one.process.facts;
        facts.known_rank().is_some() && facts.world_size != Some(1)
    };
    match all.iter().any(is_one_of_several) {
        true => Judgement::Unknown(why.to_owned()),
        false => Judgement::No(format!("{why}, and none is a rank of several")),
    }
}

fn share_of(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Returns text about the mean number of tokens in the slowest rank's batches. The text is empty if that number hardly
/// differs from the mean of the other ranks (see [`MIN_EXCESS`]), or if batches are unknown.
fn work(slowest: &Evidence<'_>, all: &[Evidence<'_>]) -> String {
    let others = all.iter().filter(|one| one.place != slowest.place);
    let others: Option<Vec<_>> = others.map(tokens).collect();
    let (Some(own), Some(others)) = (tokens(slowest), others) else {
        return String::new();
    };
    let others = others.iter().sum::<f64>() / others.len().max(1) as f64;
    match (own - others).abs() > MIN_EXCESS * others {
        true => format!(
            "; its batches have {} tokens, the others' {}",
            Rate(own),
            Rate(others)
        ),
        false => String::new(),
    }
}

/// Returns the mean number of tokens in a rank's batches; `None` if batches are unknown.
fn tokens(one: &Evidence<'_>) -> Option<f64> {
    let phases = &one.process.phases;
    let iterations: u64 = phases.iter().map(|phase| phase.all.iterations).sum();
    let tokens: u64 = phases.iter().map(|phase| phase.all.tokens).sum();
    (iterations > 0).then(|| tokens as f64 / iterations as f64)
}

/// Returns the index of the process with the longest median iteration time; `None` if `all` is empty.
pub(crate) fn slowest(all: &[Evidence<'_>]) -> Option<usize> {
    let slowest = all.iter().max_by_key(|one| one.sum.time.p50)?;
    Some(slowest.place)
}

/// Returns the share of time that a process loses to causes that other findings report, minus the mean of that share
/// over the other processes. Returns 0 if the difference is negative.
pub(crate) fn theirs(one: &Evidence<'_>, all: &[Evidence<'_>], rules: &[Rule]) -> f64 {
    let others = || all.iter().filter(|other| other.place != one.place);
    let usual =
        others().map(|other| causes(other, rules)).sum::<f64>() / others().count().max(1) as f64;
    (causes(one, rules) - usual).max(0.0)
}

/// Returns the share of time that a process loses to causes that can be judged for each process
/// separately.
fn causes(one: &Evidence<'_>, rules: &[Rule]) -> f64 {
    // Host code, and an idle GPU that waits for the host code, are symptoms of a slow rank. These symptoms do not count
    // as separate causes. Losses that are only upper bounds do not count, either.
    let is_one = |rule: &&Rule| {
        rule.kind == FindingKind::Cause && ![CODE_RULE, IDLE_RULE].contains(&rule.name)
    };
    let loss = |rule: &Rule| match rule.judge {
        Judge::Each(judge) | Judge::Undelayed(judge) => match judge(one) {
            Judgement::Yes { loss, .. } => loss,
            Judgement::No(_) | Judgement::Unknown(_) => None,
        },
        Judge::AtMost(_) | Judge::All(_) => None,
    };
    let all = rules.iter().filter(is_one);
    let all: f64 = all.filter_map(loss).sum();
    // The rules `eager-fallback` and `launch-bound` both count the launches of iterations that ran without their graph.
    // So the smaller of their losses counts as a part of the larger one.
    let of_rule = |name| rules.iter().find(|rule| rule.name == name).and_then(loss);
    let shared = of_rule(FALLBACK_RULE).zip(of_rule(LAUNCH_RULE));
    all - shared.map_or(0.0, |(fallback, launches)| fallback.min(launches))
}

/// Returns the share of the compared iterations in which this process is the slowest, as a fraction.
fn often(one: &Evidence<'_>, skew: &Skew) -> f64 {
    let slowest = skew.slowest.get(one.place).copied().unwrap_or(0);
    slowest as f64 / skew.iterations.len().max(1) as f64
}
