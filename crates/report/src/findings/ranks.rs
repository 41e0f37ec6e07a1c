//! Ranks that the others wait for.

use std::collections::HashSet;

use super::Judged;
use super::evidence::Evidence;
use super::ledger::CODE_RULE;
use super::rules::{Judge, Kind, RULES, Rule, Together};
use crate::numbers::quantiles::Quantiles;
use crate::numbers::units::{Rate, Share, Time};
use crate::ranks::skew::Skew;

/// Its rule.
pub const SLOW: &str = "slow-rank";

/// How much longer the slow rank takes than the median of the others, of its own time.
const SLOWER: f64 = 0.05;
/// In how many of the iterations it has to be the slowest.
const OFTEN: f64 = 2.0 / 3.0;
/// Iterations that several ranks have to have in common.
const LEAST: usize = 5;

pub fn slow_when() -> String {
    format!(
        "one rank is the slowest in over {} of the iterations, and its median over {} longer than the others'",
        Share(OFTEN),
        Share(SLOWER)
    )
}

pub fn slow(all: &[Evidence<'_>], together: Together<'_>) -> Judged {
    if all.len() < 2 {
        return Judged::Unknown("one process".to_owned());
    }
    let ranks: HashSet<_> = all.iter().map(|one| one.process.facts.rank).collect();
    let skew = together
        .skew
        .filter(|skew| skew.iterations.len() >= LEAST && ranks.len() == all.len());
    let Some(skew) = skew else {
        return Judged::Unknown("the processes are not ranks of one run".to_owned());
    };
    let Some(slowest) = all.iter().find(|one| slowest(all) == Some(one.place)) else {
        return Judged::No(String::new());
    };
    let others = all.iter().filter(|one| one.place != slowest.place);
    let others = Quantiles::of(others.map(|one| one.sum.time.p50)).map_or(0, |others| others.p50);
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
    if slower < SLOWER || often < OFTEN {
        return Judged::No(evidence);
    }
    // What that rank loses to causes of its own is theirs.
    let theirs = theirs(slowest, all);
    if slower - theirs < SLOWER {
        return Judged::Yes {
            evidence: evidence + ", by causes of its own",
            loss: None,
        };
    }
    // A step of ranks that wait for each other takes as long as the slowest: without this one, as the next.
    let (steps, saved) = skew.saved(slowest.place);
    let (count, gain) = (skew.iterations.len() as u64, share_of(saved, steps));
    let evidence = format!(
        "{evidence}; if it were like them, {} a step, not {}",
        Time((steps - saved) / count.max(1)),
        Time(steps / count.max(1))
    );
    match gain - theirs {
        gain if gain > 0.0 => Judged::yes(evidence, gain),
        _ => Judged::Yes {
            evidence,
            loss: None,
        },
    }
}

fn share_of(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// What is in the batches of the slowest rank, if that is not what the others have.
fn work(slowest: &Evidence<'_>, all: &[Evidence<'_>]) -> String {
    let others = all.iter().filter(|one| one.place != slowest.place);
    let others: Option<Vec<_>> = others.map(tokens).collect();
    let (Some(own), Some(others)) = (tokens(slowest), others) else {
        return String::new();
    };
    let others = others.iter().sum::<f64>() / others.len().max(1) as f64;
    match (own - others).abs() > SLOWER * others {
        true => format!(
            "; its batches have {} tokens, the others' {}",
            Rate(own),
            Rate(others)
        ),
        false => String::new(),
    }
}

/// How many tokens a rank's batches have in the mean; `None` where that is not known.
fn tokens(one: &Evidence<'_>) -> Option<f64> {
    let phases = &one.process.phases;
    let iterations: u64 = phases.iter().map(|phase| phase.all.iterations).sum();
    let tokens: u64 = phases.iter().map(|phase| phase.all.tokens).sum();
    (iterations > 0).then(|| tokens as f64 / iterations as f64)
}

/// The place of the rank that takes longest.
pub fn slowest(all: &[Evidence<'_>]) -> Option<usize> {
    let slowest = all.iter().max_by_key(|one| one.sum.time.p50)?;
    Some(slowest.place)
}

/// How much of the time a process loses to causes of its own, more than the others do.
pub fn theirs(one: &Evidence<'_>, all: &[Evidence<'_>]) -> f64 {
    let others = || all.iter().filter(|other| other.place != one.place);
    let usual = others().map(causes).sum::<f64>() / others().count().max(1) as f64;
    (causes(one) - usual).max(0.0)
}

/// How much of the time the causes take that one process has by itself.
fn causes(one: &Evidence<'_>) -> f64 {
    // What the host does is why the rank is slow, and no other cause.
    let is_one = |rule: &&Rule| rule.kind == Kind::Cause && rule.name != CODE_RULE;
    let causes = RULES.iter().filter(is_one);
    let losses = causes.filter_map(|rule| match rule.judge {
        Judge::Each(judge) | Judge::Ledger(judge) => match judge(one) {
            Judged::Yes { loss, .. } => loss,
            Judged::No(_) | Judged::Unknown(_) => None,
        },
        Judge::All(_) => None,
    });
    losses.sum()
}

/// In how many of the iterations that several ranks have a process is the slowest.
fn often(one: &Evidence<'_>, skew: &Skew) -> f64 {
    let slowest = skew.slowest.get(one.place).copied().unwrap_or(0);
    slowest as f64 / skew.iterations.len().max(1) as f64
}
