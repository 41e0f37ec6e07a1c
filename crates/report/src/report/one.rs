//! One process.

use std::os::unix::ffi::OsStrExt;

use tllmprof_config::Printable;

use crate::batches::text as batches;
use crate::calls::text as calls;
use crate::events::facts::Facts;
use crate::findings::Finding;
use crate::findings::text as findings;
use crate::iterations::sum::Sum;
use crate::iterations::text as iterations;
use crate::kernels::text as kernels;
use crate::layers::text as layers;
use crate::ledger::LedgerKind;
use crate::ledger::text as ledger;
use crate::metrics::text as metrics;
use crate::print::lines::{Lines, WIDTH};
use crate::print::rows::Rows;
use crate::process::Process;
use crate::process::state::End;
use crate::process::text::notes;
use crate::python::text as python;
use crate::routing::expert_gpus;
use crate::routing::text as routing;
use crate::stacks::text as stacks;

/// How many calls, kernels, functions, ranges and slow iterations have a line, at most.
const CALLS: usize = 4;
const KERNELS: usize = 5;
const NAMES: usize = 3;
const LAYERS: usize = 3;
const SLOW: usize = 5;
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
        None if process.others.unqualified.is_empty() => {
            lines.add(format_args!("{}", process.nothing().unwrap_or_default()));
        }
        None => iterations::windows(&process.windows, lines),
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
    parts.push(facts.in_groups.clone());
    parts.retain(|part| !part.is_empty());
    if !facts.host.is_empty() {
        parts.push(facts.host.clone());
    }
    parts.extend(facts.software.gpus.first().cloned());
    if !facts.software.python.is_empty() {
        parts.push(format!("Python {}", facts.software.python));
    }
    if !facts.engine.is_empty() {
        parts.push(facts.engine.clone());
    }
    if process.record.ended == End::AtOnce {
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
    iterations::windows(&process.windows, lines);
    lines.blank();
    iterations::times(
        sum,
        process.ledger.host_share(LedgerKind::Requests),
        &batches::times(&process.phases),
        &process.others.outside,
        lines,
    );
    batches::batches(&process.phases, lines);
    let wanted = Wanted::of(process, notes);
    wanted.ledger(process, sum, lines);
    lines.blank();
    tables(process, sum, &wanted, notes, lines);
}

/// The lines that tables would have if there were room for all.
struct Wanted {
    /// Slow iterations, kernels, calls, functions, ranges, experts, layers.
    rows: [usize; 7],
    /// What is printed besides rows.
    others: usize,
    /// Whether layers are known: else blocks of kernels stand for them.
    has_layers: bool,
}

impl Wanted {
    fn of(process: &Process, notes: usize) -> Self {
        let layers = process.layers.as_ref();
        let has_layers = layers.is_some_and(|layers| !layers.patterns.is_empty());
        let layer_rows = layers.map_or(0, layers::rows);
        // Ranges are layers, where there are any.
        let [slowest, kernels, ranges] = match layer_rows {
            0 => [SLOW, KERNELS, NAMES],
            _ => [SLOW - 2, KERNELS - 2, 0],
        };
        let slowest = process.slowest.len().min(slowest);
        let kernels = process.kernels.totals.len().min(kernels);
        let calls = process.calls.calls.len().min(CALLS);
        let functions = process.calls.functions.len().min(NAMES);
        let ranges = process.calls.ranges.len().min(ranges);
        let experts = process.experts.len().min(LAYERS);
        // A line is above each table; the kernels' is among what they have besides rows.
        let headings = [slowest, calls, functions, ranges].into_iter();
        let blocks = match has_layers {
            true => 0,
            false => kernels::block_lines(&process.kernels),
        };
        let others = headings.filter(|rows| *rows > 0).count()
            + python::fixed(&process.python)
            + kernels::fixed(&process.kernels)
            + usize::from(!process.metrics.sums.is_empty())
            + blocks
            + layers.map_or(0, layers::fixed)
            + routing::fixed(&process.experts)
            + notes;
        Self {
            rows: [
                slowest, kernels, calls, functions, ranges, experts, layer_rows,
            ],
            others,
            has_layers,
        }
    }

    /// The ledgers, and the samples of stacks.
    fn ledger(&self, process: &Process, sum: &Sum, lines: &mut Lines) {
        // A screen that is full of other tables has less room for it.
        let sampled = stacks::LINES * usize::from(process.stacks.is_there());
        let all = self.others + sampled + self.rows.iter().sum::<usize>() + 1 + 2 * LEDGER;
        let most = if lines.left() >= all { LEDGER } else { 1 };
        ledger::ledger(&process.ledger, sum.gpu_from, most, lines);
        stacks::one(&process.stacks, lines);
        let fewest = self.rows.iter().min().unwrap_or(&0);
        let room = lines.left().saturating_sub(self.others + 1 + fewest);
        let windows = process.windows.iter().zip(&process.details.windows);
        ledger::unlike(&process.ledger, windows, room, lines);
    }
}

/// The tables, each with as many rows as there is room for.
fn tables(process: &Process, sum: &Sum, wanted: &Wanted, notes: usize, lines: &mut Lines) {
    let room = lines.left().saturating_sub(wanted.others);
    let Rows([slowest, kernels, calls, functions, ranges, experts, layers]) =
        Rows::share(wanted.rows, room);
    calls::calls(
        &process.calls.calls,
        sum.launches,
        sum.iterations,
        calls,
        lines,
    );
    let medians = [sum.with_kernels, sum.without_kernels];
    kernels::kernels(&process.kernels, medians, kernels, lines);
    if !wanted.has_layers {
        kernels::blocks(&process.kernels, lines);
    }
    if let Some(found) = &process.layers {
        layers::layers(found, layers, lines);
    }
    metrics::metrics(&process.metrics.sums, lines);
    let gpus = expert_gpus(&process.facts.command, 1).unwrap_or(routing::GPUS);
    routing::layers(&process.experts, &process.facts, gpus, experts, lines);
    python::python(&process.python, lines);
    calls::named(
        "function",
        "runs",
        &process.calls.functions,
        functions,
        lines,
    );
    calls::named("range", "count", &process.calls.ranges, ranges, lines);
    let room = lines.left().saturating_sub(notes + 1).min(slowest);
    ledger::slow(&process.slowest, room, notes, lines);
}
