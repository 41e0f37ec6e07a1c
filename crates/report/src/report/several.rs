//! The text of a report on several processes.

use std::collections::BTreeMap;

use super::ranks;
use crate::Report;
use crate::events::origin::Data;
use crate::findings::text as findings;
use crate::iterations::sum::of_which;
use crate::ledger::slow::Slow;
use crate::ledger::text::{SLOWEST, causes, longer, most_beyond};
use crate::numbers::units::{Count, Rate, Share, Time};
use crate::print::lines::{Lines, UNKNOWN, WIDTH, short};
use crate::process::Process;
use crate::process::text;
use crate::ranks::names::program;
use crate::ranks::skew::Skew;
use crate::ranks::text as collectives;
use crate::routing::text as routing;
use crate::routing::{expert_gpus, together};
use crate::stacks::text as stacks;

/// Maximum number of processes that get a line.
const MAX_PROCESSES: usize = 16;
/// Minimum number of processes that get a line, even if there is no room.
const MIN_PROCESSES: usize = 4;
/// Maximum number of slow iterations that the text lists.
const MAX_SLOW: usize = 5;
/// Maximum number of notes that the text lists.
const MAX_NOTES: usize = 6;
/// Maximum number of layers with experts that the text lists.
const MAX_LAYERS: usize = 3;
/// Maximum number of lines about rank numbers that several processes have.
const MAX_SHARED_RANKS: usize = 2;

pub(crate) fn processes(report: &Report, lines: &mut Lines) {
    let Report {
        processes,
        names,
        is_one_job,
        skew,
        arrivals,
        findings: found,
    } = report;
    let skew = skew.as_ref();
    let stand_out = |lines: &mut Lines| findings::findings(found, processes, lines);
    let last = lines.measure(|lines| notes(processes, names, lines));
    lines.keep(last);
    head(processes, *is_one_job, lines);
    let room = lines.left().saturating_sub(lines.measure(stand_out) + 1);
    table(processes, *is_one_job, skew, room, lines);
    lines.blank();
    stand_out(lines);
    if lines.is_brief() {
        return notes(processes, names, lines);
    }
    if let Some(skew) = skew {
        lines.if_room(|lines| {
            lines.blank();
            skewed(skew, names, lines);
        });
    }
    if let Some(arrivals) = arrivals {
        lines.if_room(|lines| collectives::add(arrivals, &ranks(processes), names, lines));
    }
    let sampled = processes.iter().map(|process| &process.stacks);
    lines.if_room(|lines| stacks::several(sampled.zip(names), lines));
    let ranks = processes.iter().map(|process| &process.experts[..]);
    if let Some(first) = processes.first() {
        let gpus = expert_gpus(&first.facts.command, processes.len()).unwrap_or(processes.len());
        let rows = lines.rows(MAX_LAYERS);
        lines.if_room(|lines| routing::layers(&together(ranks), &first.facts, gpus, rows, lines));
    }
    slowest(processes, names, lines.left().saturating_sub(2), lines);
    notes(processes, names, lines);
}

fn notes(processes: &[Process], names: &[String], lines: &mut Lines) {
    let warnings = lines.rows(1).max(1);
    let notes = processes.iter().zip(names).flat_map(|(process, who)| {
        text::notes(process, warnings)
            .into_iter()
            .map(move |note| format!("{who}: {note}"))
    });
    let notes: Vec<_> = notes.collect();
    for note in notes.iter().take(lines.rows(MAX_NOTES)) {
        lines.add(format_args!("{note}"));
    }
    let more = notes.len().saturating_sub(lines.rows(MAX_NOTES));
    if more > 0 {
        lines.add(format_args!("and {more} more notes"));
    }
}

fn head(processes: &[Process], is_one_job: bool, lines: &mut Lines) {
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
    } else if !is_one_job {
        lines.text(
            &format!(
                "{} processes of several programs, with no run in common: they are not compared with each other",
                processes.len()
            ),
            2,
        );
    } else {
        lines.add(format_args!("{}", Count(processes.len() as u64, "process")));
    }
    let rule = &first.facts.rule;
    if processes.iter().all(|process| process.facts.rule == *rule) && !rule.is_empty() {
        lines.add(format_args!("iteration: {rule}"));
    }
    if processes
        .iter()
        .all(|process| process.facts.rule_why == first.facts.rule_why)
        && first.facts.origin.lacks(Data::Iterations)
    {
        lines.text(&format!("  {}", first.facts.rule_why), 2);
    }
    let origin = &first.facts.origin;
    if processes
        .iter()
        .all(|process| process.facts.origin.tool == origin.tool)
        && !origin.is_own()
    {
        let costs = processes.iter().filter_map(Process::profiler_share);
        let cost = costs
            .max_by(f64::total_cmp)
            .map_or_else(String::new, |cost| {
                format!(", which took {} of the time by an estimate", Share(cost))
            });
        lines.add(format_args!("measured: by {}{cost}", origin.tool));
    }
    lines.blank();
}

/// Returns the width of the column with the programs' names, in characters.
fn program_width(lines: &Lines) -> usize {
    13 + lines.width().saturating_sub(WIDTH) / 2
}

/// Returns the beginning of each process's row: the rank and the host if the processes belong to
/// one job, otherwise the program.
fn places(processes: &[Process], is_one_job: bool, lines: &Lines) -> Vec<String> {
    let is_ranked = processes.iter().any(|one| one.facts.known_rank().is_some());
    let place = |process: &Process| {
        let facts = &process.facts;
        if !is_one_job {
            let wide = program_width(lines);
            return format!("{:<wide$} ", short(program(&facts.command), wide));
        }
        let rank = match is_ranked {
            true => facts.rank.to_string(),
            false => UNKNOWN.to_owned(),
        };
        format!("{rank:>4} {:<9}", lines.name(&facts.host, 8))
    };
    processes.iter().map(place).collect()
}

/// Adds the table with a row for each process to the text, on at most `room` lines. At least [`MIN_PROCESSES`]
/// processes are shown, even if there is no room.
fn table(
    processes: &[Process],
    is_one_job: bool,
    skew: Option<&Skew>,
    room: usize,
    lines: &mut Lines,
) {
    let sums = || processes.iter().filter_map(|one| one.sum.as_ref());
    // These lines are not rows of the table: the heading, a line about processes that are left out,
    // and the lines below the table.
    let others = 2 + of_which(sums()).len() + MAX_SHARED_RANKS;
    let most = lines
        .rows(MAX_PROCESSES)
        .min(room.saturating_sub(others).max(MIN_PROCESSES));
    let (what, wide) = match is_one_job {
        true => ("rank host", 14),
        false => ("program", program_width(lines) + 1),
    };
    lines.heading(format_args!(
        "{what:<wide$}{:>8}{:>6}{:>6}{:>8}{:>8}{:>7}{:>7}{:>8}{:>8}",
        "pid", "iters", "per s", "p50", "max", "busy", "span", "waits", "slowest"
    ));
    let starts = places(processes, is_one_job, lines);
    for (place, (process, start)) in processes.iter().zip(starts).enumerate().take(most) {
        let start = format!("{start}{:>8}", process.pid);
        row(process, &start, slowest_times(skew, place), lines);
    }
    let more = processes.len().saturating_sub(most);
    if more > 0 {
        lines.add(format_args!("and {}", Count(more as u64, "more process")));
    }
    for line in of_which(sums()) {
        lines.add(format_args!("{line}"));
    }
    let shared = shared_ranks(processes);
    for (rank, pids) in shared
        .iter()
        .take(if is_one_job { MAX_SHARED_RANKS } else { 0 })
    {
        let pids: Vec<_> = pids.iter().map(ToString::to_string).collect();
        lines.list(
            &format!("rank {rank} is that of several processes, which are kept apart by pid: "),
            &pids,
        );
    }
}

/// Returns the number of iterations in which a process is the slowest; `None` if it has no
/// iterations in common with other processes.
fn slowest_times(skew: Option<&Skew>, place: usize) -> Option<u64> {
    let skew = skew.filter(|skew| skew.common.get(place).is_some_and(|common| *common > 0))?;
    skew.slowest.get(place).copied()
}

/// Adds a row with the figures of a process to the table. `start` is the text at the beginning of
/// the row.
fn row(process: &Process, start: &str, slowest: Option<u64>, lines: &mut Lines) {
    let Some(sum) = &process.sum else {
        let nothing = process.nothing().unwrap_or_default();
        return lines.add(format_args!("{start}   {nothing}"));
    };
    lines.add(format_args!(
        "{start}{:>6}{:>6}{:>8}{:>8}{:>7}{:>7}{:>8}{:>8}",
        match process.facts.origin.lacks(Data::Iterations) {
            true => UNKNOWN.to_owned(),
            false => sum.iterations.to_string(),
        },
        sum.per_second
            .map_or_else(String::new, |rate| Rate(rate).to_string()),
        Time(sum.time.p50),
        Time(sum.time.max),
        share(process.gpu.share),
        share(process.gpu.span),
        share(Some(sum.wait_share).filter(|_| !process.facts.origin.lacks(Data::Calls))),
        slowest.map_or_else(String::new, |times| times.to_string())
    ));
}

/// Returns a share as a percentage; a dash if the share is not known.
fn share(share: Option<f64>) -> String {
    share.map_or_else(|| UNKNOWN.to_owned(), |share| Share(share).to_string())
}

/// Returns the ranks that more than one process has, each with the process IDs.
fn shared_ranks(processes: &[Process]) -> Vec<(u64, Vec<u32>)> {
    let mut ranks = BTreeMap::<_, Vec<_>>::new();
    for process in processes {
        if let Some(rank) = process.facts.known_rank() {
            ranks.entry(rank).or_default().push(process.pid);
        }
    }
    ranks
        .into_iter()
        .filter(|(_, pids)| pids.len() > 1)
        .collect()
}

fn skewed(skew: &Skew, names: &[String], lines: &mut Lines) {
    lines.add(format_args!(
        "skew over {}, slowest less fastest: {} (p50), {} at most",
        Count(skew.iterations.len() as u64, "iteration"),
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
    let all: Vec<(&String, &Slow)> = all.collect();
    let all = most_beyond(all, lines.rows(MAX_SLOW).min(room), |(_, slow)| slow);
    if all.is_empty() {
        return;
    }
    lines.blank();
    lines.heading(format_args!("{SLOWEST}"));
    for (who, slow) in all {
        let start = format!(
            "  {who} {:<8}{:>9}  ",
            slow.n,
            Time(slow.busy()).to_string()
        );
        let causes = causes(slow, lines);
        lines.list(&(start + &longer(slow)), &causes);
    }
}
