//! Several processes side by side.

use std::collections::BTreeMap;

use super::ranks;
use crate::Report;
use crate::findings::text as findings;
use crate::iterations::sum::of_which;
use crate::ledger::slow::Slow;
use crate::ledger::text::{SLOWEST, causes, longer};
use crate::numbers::units::{Rate, Share, Time};
use crate::print::lines::Lines;
use crate::process::Process;
use crate::process::text::shortcomings;
use crate::ranks::skew::Skew;
use crate::ranks::text as collectives;
use crate::routing::text as routing;
use crate::routing::{expert_gpus, together};
use crate::stacks::text as stacks;

/// How many processes, slow iterations and notes have a line.
const PROCESSES: usize = 16;
const SLOW: usize = 5;
const NOTES: usize = 6;
const LAYERS: usize = 3;
const SHARED: usize = 2;

pub fn processes(report: &Report, lines: &mut Lines) {
    let Report {
        processes,
        names,
        skew,
        arrivals,
        findings: found,
    } = report;
    let skew = skew.as_ref();
    head(processes, lines);
    table(processes, skew, lines);
    if let Some(skew) = skew {
        lines.blank();
        skewed(skew, names, lines);
    }
    if let Some(arrivals) = arrivals {
        collectives::add(arrivals, &ranks(processes), names, lines);
    }
    let sampled = processes.iter().map(|process| &process.stacks);
    stacks::several(sampled.zip(names), lines);
    let ranks = processes.iter().map(|process| &process.experts[..]);
    if let Some(first) = processes.first() {
        routing::layers(
            &together(ranks),
            &first.facts,
            expert_gpus(&first.facts.command, processes.len()).unwrap_or(processes.len()),
            LAYERS,
            lines,
        );
    }
    let notes = processes.iter().zip(names).flat_map(|(process, who)| {
        shortcomings(process)
            .into_iter()
            .map(move |note| format!("{who}: {note}"))
    });
    let notes: Vec<_> = notes.collect();
    let last = notes.len().min(NOTES + 1);
    // Besides a heading and the slowest iteration, and blank lines.
    let found = findings::findings(found, lines.left().saturating_sub(last + 4));
    let others = found.len() + usize::from(!found.is_empty()) + last + 2;
    slowest(processes, names, lines.left().saturating_sub(others), lines);
    if !found.is_empty() {
        lines.blank();
        findings::add(&found, lines);
    }
    for note in notes.iter().take(NOTES) {
        lines.add(format_args!("{note}"));
    }
    let more = notes.len().saturating_sub(NOTES);
    if more > 0 {
        lines.add(format_args!("and {more} more notes"));
    }
}

fn head(processes: &[Process], lines: &mut Lines) {
    let Some(first) = processes.first() else {
        return;
    };
    let command = &first.facts.command;
    if processes
        .iter()
        .all(|process| process.facts.command == *command)
        && !command.is_empty()
    {
        lines.add(format_args!("{} processes: {command}", processes.len()));
    } else {
        lines.add(format_args!("{} processes", processes.len()));
    }
    let rule = &first.facts.rule;
    if processes.iter().all(|process| process.facts.rule == *rule) && !rule.is_empty() {
        lines.add(format_args!("iteration: {rule}"));
    }
    lines.blank();
}

fn table(processes: &[Process], skew: Option<&Skew>, lines: &mut Lines) {
    lines.heading(format_args!(
        "{:>4} {:<9}{:>8}{:>6}{:>6}{:>8}{:>8}{:>8}{:>6}{:>8}{:>8}",
        "rank", "host", "pid", "iters", "per s", "p50", "max", "GPU", "timed", "waits", "slowest"
    ));
    for (place, process) in processes.iter().enumerate().take(PROCESSES) {
        let facts = &process.facts;
        let start = format!(
            "{:>4} {:<9}{:>8}",
            facts.rank,
            lines.name(&facts.host, 8),
            process.pid
        );
        let Some(sum) = &process.sum else {
            lines.add(format_args!(
                "{start}   {}",
                process.nothing().unwrap_or_default()
            ));
            continue;
        };
        let skew = skew.filter(|skew| skew.common.get(place).is_some_and(|common| *common > 0));
        let slowest = skew.and_then(|skew| skew.slowest.get(place));
        lines.add(format_args!(
            "{start}{:>6}{:>6}{:>8}{:>8}{:>8}{:>6}{:>8}{:>8}",
            sum.iterations,
            sum.per_second
                .map_or_else(String::new, |rate| Rate(rate).to_string()),
            Time(sum.time.p50),
            Time(sum.time.max),
            sum.gpu_share
                .map_or_else(String::new, |share| Share(share).to_string()),
            sum.gpu_iterations,
            Share(sum.wait_share),
            slowest.map_or_else(String::new, ToString::to_string)
        ));
    }
    let more = processes.len().saturating_sub(PROCESSES);
    if more > 0 {
        lines.add(format_args!("and {more} more processes"));
    }
    for line in of_which(processes.iter().filter_map(|one| one.sum.as_ref())) {
        lines.add(format_args!("{line}"));
    }
    for (rank, pids) in shared_ranks(processes).iter().take(SHARED) {
        let pids: Vec<_> = pids.iter().map(ToString::to_string).collect();
        lines.list(
            &format!("rank {rank} is that of several processes, which are kept apart by pid: "),
            &pids,
        );
    }
}

/// The ranks that several processes have, and the processes.
fn shared_ranks(processes: &[Process]) -> Vec<(u64, Vec<u32>)> {
    let mut ranks = BTreeMap::<_, Vec<_>>::new();
    for process in processes {
        ranks
            .entry(process.facts.rank)
            .or_default()
            .push(process.pid);
    }
    ranks
        .into_iter()
        .filter(|(_, pids)| pids.len() > 1)
        .collect()
}

fn skewed(skew: &Skew, names: &[String], lines: &mut Lines) {
    lines.add(format_args!(
        "skew over {} iterations, slowest less fastest: {} (p50), {} at most",
        skew.iterations.len(),
        Time(skew.spread.p50),
        Time(skew.spread.max)
    ));
    if let Some((place, often)) = skew.most_often() {
        lines.add(format_args!(
            "{} was the slowest in {often} of {}",
            names[place],
            skew.iterations.len()
        ));
    }
    let apart = skew.iterations.iter().filter(|step| step.spread > 0);
    if let Some(worst) = apart.max_by_key(|step| step.spread) {
        lines.add(format_args!(
            "furthest apart in iteration {}: {} in {}, {} in {}",
            worst.n,
            Time(worst.duration),
            names[worst.slowest],
            Time(worst.duration - worst.spread),
            names[worst.fastest]
        ));
    }
}

fn slowest(processes: &[Process], names: &[String], room: usize, lines: &mut Lines) {
    let all = processes
        .iter()
        .zip(names)
        .flat_map(|(process, who)| process.slowest.iter().map(move |slow| (who, slow)));
    let mut all: Vec<(&String, &Slow)> = all.collect();
    all.sort_by_key(|(_, slow)| std::cmp::Reverse((slow.more, slow.busy())));
    if all.is_empty() || room == 0 {
        return;
    }
    lines.blank();
    lines.heading(format_args!("{SLOWEST}"));
    for (who, slow) in all.into_iter().take(SLOW.min(room)) {
        let start = format!(
            "  {who} {:<8}{:>9}  ",
            slow.n,
            Time(slow.busy()).to_string()
        );
        let causes = causes(slow, lines);
        lines.list(&(start + &longer(slow)), &causes);
    }
}
