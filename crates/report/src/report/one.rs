//! One process.

use std::os::unix::ffi::OsStrExt;

use tllmprof_config::Printable;
use tllmprof_record::Ended;

use crate::batches::text::batches;
use crate::events::facts::Facts;
use crate::events::window::Window;
use crate::findings::Finding;
use crate::findings::text as findings;
use crate::iterations::sum::Sum;
use crate::kernels::text as gpu;
use crate::layers::text as layers;
use crate::ledger::{self, LedgerKind};
use crate::metrics::text as metrics;
use crate::numbers::quantiles::Quantiles;
use crate::numbers::units::{Bytes, Rate, Share, Time, of_some};
use crate::print::lines::{Lines, WIDTH, short};
use crate::print::rows::Rows;
use crate::process::{Named, Process};
use crate::routing::expert_gpus;
use crate::routing::text as routing;
use crate::stacks::text as stacks;

/// How many windows, calls, kernels, functions, ranges and slow iterations have a line, at most.
const WINDOWS: usize = 3;
const CALLS: usize = 4;
const KERNELS: usize = 5;
const NAMES: usize = 3;
const LAYERS: usize = 3;
const SLOW: usize = 5;
/// How wide the names of times are.
const LABEL: usize = 28;
/// How many lines the ledgers of the host and of the GPU have, each.
const LEDGER: usize = 3;
/// How many lines there are for what was found and for notes, where those can be shorter.
const FOUND: usize = 9;

pub fn process(process: &Process, found: &[Finding], lines: &mut Lines) {
    head(process, lines);
    let notes = notes(process);
    let found = findings::findings(found, FOUND.saturating_sub(notes.len()));
    match &process.sum {
        Some(sum) => inside(process, sum, notes.len() + found.len(), lines),
        None if process.unqualified.is_empty() => {
            lines.add(format_args!("{}", process.nothing().unwrap_or_default()));
        }
        None => windows(&process.windows, lines),
    }
    findings::add(&found, lines);
    for note in notes {
        lines.add(format_args!("{note}"));
    }
}

/// The rank, and what it is known from.
fn rank(facts: &Facts) -> String {
    let mut text = format!("rank {}", facts.rank);
    if let Some(size) = facts.world_size {
        text += &format!(" of {size}");
    }
    if !facts.rank_source.is_empty() {
        text += &format!(" by {}", facts.rank_source);
    }
    text
}

fn head(process: &Process, lines: &mut Lines) {
    let facts = &process.facts;
    lines.add(format_args!(
        "{}",
        Printable(process.file.as_os_str().as_bytes())
    ));
    if !facts.command.is_empty() {
        lines.add(format_args!("{}", facts.command));
    }
    let mut parts = vec![format!("pid {}", process.pid), rank(facts)];
    parts.push(facts.in_groups());
    parts.retain(|part| !part.is_empty());
    if !facts.host.is_empty() {
        parts.push(facts.host.clone());
    }
    parts.extend(facts.gpus.first().cloned());
    if !facts.python.is_empty() {
        parts.push(format!("Python {}", facts.python));
    }
    if !facts.engine.is_empty() {
        parts.push(facts.engine.clone());
    }
    if process.ended == Some(Ended::AtOnce) {
        parts.push("ended at once".to_owned());
    }
    lines.list("", &parts);
    if !facts.rule.is_empty() {
        let rule = format!("iteration: {}", facts.rule);
        let why = &facts.rule_why;
        let whole = format!("{rule} ({why})");
        if why.is_empty() {
            lines.add(format_args!("{rule}"));
        } else if whole.chars().count() <= WIDTH {
            lines.add(format_args!("{whole}"));
        } else {
            lines.add(format_args!("{rule}"));
            lines.add(format_args!("  {why}"));
        }
    }
    lines.blank();
}

fn inside(process: &Process, sum: &Sum, notes: usize, lines: &mut Lines) {
    windows(&process.windows, lines);
    lines.blank();
    times(process, sum, lines);
    batches(&process.phases, lines);
    let layers_known = (process.layers.as_ref()).is_some_and(|layers| !layers.patterns.is_empty());
    let layers = process.layers.as_ref().map_or(0, layers::rows);
    // Ranges are layers, where there are any.
    let [slowest, kernels, ranges] = match layers {
        0 => [SLOW, KERNELS, NAMES],
        _ => [SLOW - 2, KERNELS - 2, 0],
    };
    let tables = [
        process.slowest.len().min(slowest),
        process.kernels.totals.len().min(kernels),
        process.calls.len().min(CALLS),
        process.functions.len().min(NAMES),
        process.ranges.len().min(ranges),
        process.experts.len().min(LAYERS),
        layers,
    ];
    // A line is above each table; the kernels' is among what they have besides rows.
    let headings = [0, 2, 3, 4]
        .iter()
        .filter(|table| tables[**table] > 0)
        .count();
    let python_lines =
        usize::from(!process.gc.is_empty()) + usize::from(process.gil_wait.count > 0);
    let others = headings
        + python_lines
        + gpu::fixed(&process.kernels)
        + usize::from(!process.metrics.is_empty())
        + if layers_known {
            0
        } else {
            gpu::block_lines(&process.kernels)
        }
        + process.layers.as_ref().map_or(0, layers::fixed)
        + routing::fixed(&process.experts)
        + notes;
    // A screen that is full of other tables has less room for it.
    let sampled = stacks::LINES * usize::from(process.stacks.is_there());
    let wanted = others + sampled + tables.iter().sum::<usize>() + 1 + 2 * LEDGER;
    let most = if lines.left() >= wanted { LEDGER } else { 1 };
    ledger::text::ledger(&process.ledger, sum.gpu_from, most, lines);
    stacks::one(&process.stacks, lines);
    let room = lines
        .left()
        .saturating_sub(others + 1 + tables.iter().min().unwrap_or(&0));
    ledger::text::unlike(
        &process.ledger,
        &process.windows,
        &process.window_ledgers,
        room,
        lines,
    );
    lines.blank();
    let Rows(rows) = Rows::share(tables, lines.left().saturating_sub(others));
    calls(process, sum, rows[2], lines);
    gpu::kernels(
        &process.kernels,
        [sum.with_kernels, sum.without_kernels],
        rows[1],
        lines,
    );
    if !layers_known {
        gpu::blocks(&process.kernels, lines);
    }
    if let Some(layers) = &process.layers {
        layers::layers(layers, rows[6], lines);
    }
    metrics::metrics(&process.metrics, lines);
    routing::layers(
        &process.experts,
        &process.facts,
        expert_gpus(&process.facts.command, 1).unwrap_or(routing::GPUS),
        rows[5],
        lines,
    );
    python(process, lines);
    named("function", "runs", &process.functions, rows[3], lines);
    named("range", "count", &process.ranges, rows[4], lines);
    ledger::text::slow(
        &process.slowest,
        lines.left().saturating_sub(notes + 1).min(rows[0]),
        notes,
        lines,
    );
}

fn windows(windows: &[Window], lines: &mut Lines) {
    for window in windows.iter().take(WINDOWS) {
        let Some(sum) = Sum::of(std::slice::from_ref(window)) else {
            let no = match window.iterations.len() {
                0 => "no iteration".to_owned(),
                all => format!("0 of {all} iterations count"),
            };
            lines.add(format_args!("window {}: {no}", window.name()));
            continue;
        };
        let all = window.iterations.len() as u64;
        let of = match all == sum.iterations {
            true => String::new(),
            false => format!(" of {all}"),
        };
        let many = if all == 1 { "" } else { "s" };
        // What was kept is short, and its line has no room for more.
        let (past, rate) = match window.past {
            true => (" (flight recorder)", None),
            false => ("", sum.rate()),
        };
        let rate = rate.map_or_else(String::new, |rate| format!(", {} a second", Rate(rate)));
        let open = match (window.closed, window.cut) {
            (false, _) => "; never closed",
            (true, true) => "; closed by the end of the process",
            (true, false) => "",
        };
        let missing = match window.gaps() {
            0 => String::new(),
            gaps => format!("; {gaps} are missing"),
        };
        lines.add(format_args!(
            "window {}{past}: {}{of} iteration{many} in {}{rate}{missing}{open}",
            window.name(),
            sum.iterations,
            Time(sum.wall)
        ));
    }
    let more = windows.len().saturating_sub(WINDOWS);
    if more > 0 {
        lines.add(format_args!("and {more} more windows"));
    }
}

fn times(process: &Process, sum: &Sum, lines: &mut Lines) {
    lines.heading(format_args!(
        "{:<LABEL$}{:>10}{:>10}{:>10}{:>10}{:>12}",
        "", "p50", "p90", "p99", "max", "of the time"
    ));
    let mut row = |what: &str, times: &Quantiles, share: Option<f64>| {
        lines.add(format_args!(
            "{:<LABEL$}{:>10}{:>10}{:>10}{:>10}{:>12}",
            short(what, LABEL),
            Time(times.p50),
            Time(times.p90),
            Time(times.p99),
            Time(times.max),
            share.map_or_else(String::new, |share| Share(share).to_string())
        ));
    };
    let host = of_some(sum.host_iterations, sum.iterations);
    row(&format!("iteration ({})", sum.iterations), &sum.time, None);
    if let Some(gpu) = &sum.gpu {
        row(&format!("  {}", sum.gpu_name()), gpu, sum.gpu_share);
    }
    if sum.wait.max > 0 {
        row(
            &format!("  waits for the GPU{host}"),
            &sum.wait,
            Some(process.ledger.host_share(LedgerKind::Wait)),
        );
    }
    if sum.idle.max > 0 {
        let share = process.ledger.host_share(LedgerKind::Requests);
        let what = format!("  waits for requests{host}");
        row(&what, &sum.idle, Some(share));
    }
    for phase in process.phases.iter().filter(|_| process.phases.len() > 1) {
        let all = &phase.all;
        let what = format!("  {} ({})", phase.phase.name(), all.iterations);
        row(&what, &all.time, Some(sum.share(all.total)));
    }
    let outside = &process.outside;
    if let (Some(p50), Some(p90), Some(p99), Some(max)) =
        (outside.p50, outside.p90, outside.p99, outside.max)
    {
        lines.add(format_args!(
            "{:<LABEL$}{:>10}{:>10}{:>10}{:>10}",
            short(&format!("outside ({})", outside.iterations), LABEL),
            Time(p50),
            Time(p90),
            Time(p99),
            Time(max)
        ));
    }
}

fn calls(process: &Process, sum: &Sum, rows: usize, lines: &mut Lines) {
    if rows == 0 {
        return;
    }
    lines.heading(format_args!(
        "{:<32}{:>10}{:>10}{:>10}{:>14}",
        format!("{} launches a step; calls", Rate(sum.launches)),
        "a step",
        "mean",
        "longest",
        "total"
    ));
    for call in process.calls.iter().take(rows) {
        let name = lines.name(&call.name, 30);
        lines.add(format_args!(
            "  {name:<30}{:>10}{:>10}{:>10}{:>14}",
            a_step(sum, call.count),
            Time(call.mean()),
            Time(call.longest),
            Time(call.total)
        ));
    }
}

/// How many of something there are in a step: in all, where that is too few for a figure.
fn a_step(sum: &Sum, count: u64) -> String {
    match sum.a_step(count) {
        ..0.005 => format!("{count} in all"),
        each => Rate(each).to_string(),
    }
}

fn python(process: &Process, lines: &mut Lines) {
    if !process.gc.is_empty() {
        let longest = process.gc.iter().map(|gc| gc.longest).max().unwrap_or(0);
        let total = process
            .gc
            .iter()
            .fold(0_u64, |sum, gc| sum.saturating_add(gc.total));
        let each: Vec<_> = process
            .gc
            .iter()
            .map(|gc| format!("{} {}", gc.count, gc.name))
            .collect();
        lines.add(format_args!(
            "GC: {} in {}, longest {}",
            each.join(" + "),
            Time(total),
            Time(longest)
        ));
    }
    let wait = &process.gil_wait;
    if wait.count > 0 {
        lines.add(format_args!(
            "GIL: {} wait{} in {}, longest {}",
            wait.count,
            if wait.count == 1 { "" } else { "s" },
            Time(wait.total),
            Time(wait.longest)
        ));
    }
}

fn named(what: &str, count: &str, all: &[Named], rows: usize, lines: &mut Lines) {
    if rows == 0 {
        return;
    }
    let more = all.len().saturating_sub(rows);
    let heading = if more > 0 {
        format!("{what} ({more} more)")
    } else {
        what.to_owned()
    };
    lines.heading(format_args!(
        "{heading:<42}{count:>8}{:>10}{:>10}{:>10}",
        "mean", "longest", "total"
    ));
    for named in all.iter().take(rows) {
        let name = lines.name(&named.name, 40);
        lines.add(format_args!(
            "  {name:<40}{:>8}{:>10}{:>10}{:>10}",
            named.count,
            Time(named.mean()),
            Time(named.longest),
            Time(named.total)
        ));
    }
}

/// What a reader of the figures has to know.
fn notes(process: &Process) -> Vec<String> {
    let cost = process.own_share().filter(|share| *share > 0.0);
    let cost = cost.map(|share| format!("the recorder took {} of the time", Share(share)));
    cost.into_iter().chain(shortcomings(process)).collect()
}

/// What is not in the figures.
pub fn shortcomings(process: &Process) -> Vec<String> {
    let mut notes = Vec::from_iter(process.uncounted());
    if let Some(tied) = process.tied_briefly {
        notes.push(format!(
            "times are unsure: the clock was tied for {} alone",
            Time(tied)
        ));
    }
    if process.passed > 0 {
        notes.push(format!(
            "{} iterations are missing: later ones began while a window was being switched",
            process.passed
        ));
    }
    let dropped = process.dropped.saturating_sub(process.passed);
    if dropped > 0 {
        notes.push(format!(
            "{dropped} events were dropped: the record was full"
        ));
    }
    if process.windows_dropped > 0 {
        notes.push(format!(
            "{} older window{} made room for later ones: the record could take {}",
            process.windows_dropped,
            if process.windows_dropped == 1 {
                ""
            } else {
                "s"
            },
            Bytes(process.keep)
        ));
    }
    if process.left_out > 0 {
        notes.push(format!(
            "{} things were too many for this report",
            process.left_out
        ));
    }
    if process.kernels.missing > 0 {
        notes.push(format!(
            "no kernel arrived from {} iterations in which the GPU was busy",
            process.kernels.missing
        ));
    }
    let kernels_lost = process
        .kernels
        .window
        .as_ref()
        .map_or(0, |taken| taken.dropped);
    if kernels_lost > 0 {
        notes.push(format!("{kernels_lost} kernels or copies are missing"));
    }
    if process.gpu_lost > 0 {
        notes.push(format!("{} GPU times could not be read", process.gpu_lost));
    }
    notes.extend(process.condition());
    match process.facts.refused.as_slice() {
        [] => (),
        [one] => notes.push(format!("warned: {one}")),
        [first, rest @ ..] => notes.push(format!("warned ({} more): {first}", rest.len())),
    }
    notes
}
