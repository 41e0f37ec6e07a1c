//! The text of a report on one process.

use std::os::unix::ffi::OsStrExt;
use std::slice;

use tllmprof_config::Printable;

use crate::batches::text as batches;
use crate::calls::text as calls;
use crate::events::facts::Facts;
use crate::events::iteration::GpuFrom;
use crate::events::origin::Data;
use crate::findings::text as findings;
use crate::findings::{Finding, is_set};
use crate::iterations::sum::Sum;
use crate::iterations::text::{self as iterations, GpuShares};
use crate::kernels::text as kernels;
use crate::layers::text as layers;
use crate::ledger::LedgerKind;
use crate::ledger::text as ledger;
use crate::metrics::text as metrics;
use crate::numbers::units::{Share, of_some};
use crate::print::lines::Lines;
use crate::print::rows::Rows;
use crate::process::Process;
use crate::process::state::End;
use crate::process::text;
use crate::python::text as python;
use crate::routing::expert_gpus;
use crate::routing::text as routing;
use crate::stacks::text as stacks;

/// Maximum number of lines for CUDA calls on a screen.
const MAX_CALLS: usize = 4;
/// Maximum number of lines for kernels on a screen.
const MAX_KERNELS: usize = 5;
/// Maximum number of lines for functions on a screen; the same maximum applies to NVTX ranges.
const MAX_NAMES: usize = 3;
/// Maximum number of lines for layers with experts on a screen.
const MAX_LAYERS: usize = 3;
/// Maximum number of lines for slow iterations on a screen.
const MAX_SLOW: usize = 5;
/// Maximum number of rows on a screen for each of the two ledgers (host and GPU).
const MAX_LEDGER_ROWS: usize = 5;
/// If this number of rows of each ledger fits beside all rows of the other tables, the ledgers get all rows that fit.
/// Otherwise, each ledger gets at most this number of rows, as long as there is room for one row of each table.
const MIN_LEDGER_ROWS: usize = 2;

/// Maximum number of lines of one note on a screen.
const MAX_NOTE_LINES: usize = 3;

pub(crate) fn process(process: &Process, found: &[Finding], lines: &mut Lines) {
    let last = lines.measure(|lines| notes(process, lines));
    lines.keep(last + usize::from(last > 0));
    head(process, lines);
    if process.facts.origin.lacks(Data::Iterations) {
        lines.show_trace();
    }
    match &process.sum {
        Some(sum) => inside(process, sum, found, lines),
        None if process.others.unqualified.is_empty() => {
            lines.add(format_args!("{}", process.nothing().unwrap_or_default()));
        }
        None => iterations::windows(&process.windows, process.own_share_with_pauses(), lines),
    }
    lines.keep(0);
    notes(process, lines);
}

fn notes(process: &Process, lines: &mut Lines) {
    let notes = text::notes(process, lines.rows(1).max(1));
    if !notes.is_empty() {
        lines.blank();
    }
    for note in notes {
        // Limit the number of lines, because in a damaged record the text of a note may be very
        // long.
        lines.text_within(&note, 2, MAX_NOTE_LINES);
    }
}

/// Returns words for the process's rank and the source of the rank; empty if the rank is not known.
fn rank(facts: &Facts) -> String {
    let Some(rank) = facts.known_rank() else {
        return String::new();
    };
    let mut text = format!("rank {rank}");
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
    let pid = match process.pid {
        0 => String::new(),
        pid => format!("pid {pid}"),
    };
    let mut parts = vec![pid, rank(facts)];
    parts.push(facts.in_groups.clone());
    parts.retain(|part| !part.is_empty());
    if !facts.host.is_empty() {
        parts.push(facts.host.clone());
    }
    let gpus = facts.software.known_gpus();
    parts.extend(gpus.first().map(|name| (*name).to_owned()));
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
        } else if whole.chars().count() <= lines.width() {
            lines.add(format_args!("{whole}"));
        } else {
            lines.add(format_args!("{rule}"));
            lines.add(format_args!("  {why}"));
        }
    }
}

fn inside(process: &Process, sum: &Sum, found: &[Finding], lines: &mut Lines) {
    measured(process, sum, lines);
    lines.blank();
    if !lines.is_of_trace() {
        iterations::windows(&process.windows, process.own_share_with_pauses(), lines);
    }
    iterations::times(
        sum,
        GpuShares {
            span: process.gpu.span,
            busy: process.gpu.share,
            gpu: &process.gpu.label(),
            busy_name: &process.gpu.busy_name(),
        },
        process.ledger.host_share(LedgerKind::Requests),
        &batches::times(&process.phases),
        &process.others.outside,
        lines,
    );
    batches::batches(&process.phases, lines);
    lines.blank();
    findings::findings(found, slice::from_ref(process), lines);
    lines.blank();
    if lines.is_brief() {
        return ledger::ledger(
            &process.ledger,
            (&process.gpu.label(), sum.gpu_from),
            lines.rows(MAX_LEDGER_ROWS),
            lines,
        );
    }
    let wanted = TableSizes::new(process, lines);
    let most = wanted.ledger(process, lines);
    let of_gpu = (&*process.gpu.label(), sum.gpu_from);
    lines.if_room(|lines| ledger::ledger(&process.ledger, of_gpu, most, lines));
    lines.if_room(|lines| stacks::one(&process.stacks, lines));
    wanted.unlike(process, lines);
    lines.blank();
    tables(process, sum, &wanted, lines);
}

/// Adds a line that states which data the record contains and how they were measured.
fn measured(process: &Process, sum: &Sum, lines: &mut Lines) {
    let mut parts = Vec::new();
    let origin = &process.facts.origin;
    if !origin.is_own() {
        let cost = process.profiler_share().map(Share);
        let cost = cost.map(|cost| format!(", which took {cost} of the time by an estimate"));
        parts.push(format!("by {}{}", origin.tool, cost.unwrap_or_default()));
    }
    if lines.is_of_trace() {
        let held = [(Data::Calls, "CUDA calls"), (Data::Gpu, "GPU work")];
        let held = held.iter().filter(|(data, _)| !origin.lacks(*data));
        parts.extend(held.map(|(_, what)| (*what).to_owned()));
    } else if let Some(kernels) = &process.kernels.window {
        parts.push(match kernels.iterations {
            0 => "no kernels (no iteration had all its kernels recorded)".to_owned(),
            some => format!("kernels in {some} of {} iterations", sum.iterations),
        });
    }
    if sum.gpu_from != GpuFrom::Kernels && sum.gpu.is_some() {
        let of = of_some(sum.gpu_iterations, sum.iterations);
        parts.push(format!("GPU spans by events{of}"));
    }
    if process.stacks.is_there() {
        parts.push("stacks".to_owned());
    }
    for (name, what) in [("TLLM_PROFILE_RECORD_GC", "GC"), ("TLLMPROF_GIL", "GIL")] {
        if is_set(process, name) && !process.facts.software.python.is_empty() {
            parts.push(what.to_owned());
        }
    }
    if process.layers.is_some() {
        parts.push("layers".to_owned());
    }
    if let Some(own) = process.own_share().filter(|own| *own > 0.0) {
        parts.push(format!("the recorder took {} of the time", Share(own)));
    }
    if !parts.is_empty() {
        lines.list("measured: ", &parts);
    }
}

/// The numbers of lines that the tables need if each has all its rows, up to its maximum (such as [`MAX_CALLS`] on a
/// screen).
struct TableSizes {
    /// Numbers of rows of the tables for slow iterations, kernels, calls, functions, ranges,
    /// experts and layers, in this order.
    rows: [usize; 7],
    /// Number of lines that are not rows of tables, such as headings.
    others: usize,
    /// Number of the lines in `others` that are shown even if no table has a row.
    alone: usize,
    /// True if layers are known. If they are not, repeated blocks of kernels are shown instead.
    has_layers: bool,
}

impl TableSizes {
    fn new(process: &Process, lines: &Lines) -> Self {
        let layers = process.layers.as_ref();
        let has_layers = layers.is_some_and(|layers| !layers.patterns.is_empty());
        let layer_rows = layers.map_or(0, |layers| layers::rows(layers, lines));
        // If layers are shown, they already contain the NVTX ranges.
        let ranges = if layer_rows == 0 { MAX_NAMES } else { 0 };
        let most = |all: usize, on_screen: usize| all.min(lines.rows(on_screen));
        let slowest = most(process.slowest.len(), MAX_SLOW);
        let kernels = most(process.kernels.totals.len(), MAX_KERNELS);
        let calls = most(process.calls.calls.len(), MAX_CALLS);
        let functions = most(process.calls.functions.len(), MAX_NAMES);
        let ranges = match ranges {
            0 => 0,
            ranges => most(process.calls.ranges.len(), ranges),
        };
        let experts = most(process.experts.len(), MAX_LAYERS);
        // Each of these tables has a heading. The table of kernels is not among them, because
        // `kernels::fixed` counts its heading.
        let headings = [slowest, calls, functions, ranges].into_iter();
        let blocks = match has_layers {
            true => 0,
            false => kernels::block_lines(&process.kernels),
        };
        let alone = python::fixed(&process.python)
            + kernels::fixed(&process.kernels)
            + usize::from(!process.metrics.sums.is_empty())
            + blocks
            + layers.map_or(0, layers::fixed)
            + routing::fixed(&process.experts);
        let others = alone + headings.filter(|rows| *rows > 0).count();
        Self {
            rows: [
                slowest, kernels, calls, functions, ranges, experts, layer_rows,
            ],
            others,
            alone,
            has_layers,
        }
    }

    /// Returns the number of rows to show of each ledger (host and GPU). The other tables get the lines that they
    /// need first; the ledgers get the remaining lines.
    fn ledger(&self, process: &Process, lines: &Lines) -> usize {
        // The 1 stands for the blank line before the tables.
        let others = 1 + self.others + stacks::LINES * usize::from(process.stacks.is_there());
        let all: usize = self.rows.iter().sum();
        let tables = self.rows.iter().filter(|rows| **rows > 0).count();
        let fits = |most: usize, rows: usize| {
            ledger::lines(&process.ledger, most) + others + rows <= lines.left()
        };
        let most = lines.rows(MAX_LEDGER_ROWS);
        let enough = (MIN_LEDGER_ROWS..=most).rev().find(|most| fits(*most, all));
        let some = || {
            (1..=MIN_LEDGER_ROWS.min(most))
                .rev()
                .find(|most| fits(*most, tables))
        };
        // If not even one row of each table fits, the ledgers may take the room of all table rows and headings. Only if
        // that is not enough, they may also take the room of all other lines.
        let alone = |beside: usize| {
            let fits =
                |most: &usize| ledger::lines(&process.ledger, *most) + beside <= lines.left();
            (1..=most).rev().find(fits)
        };
        let with_lines = || alone(1 + self.alone);
        let most = enough.or_else(some).or_else(with_lines);
        most.or_else(|| alone(0)).unwrap_or(1)
    }

    /// Adds to the text the ledger of each window that differs much from the ledger of all windows together (see
    /// [`ledger::unlike`]).
    fn unlike(&self, process: &Process, lines: &mut Lines) {
        let fewest = self.rows.iter().min().unwrap_or(&0);
        let room = lines.left().saturating_sub(self.others + 1 + fewest);
        let windows = process.windows.iter().zip(&process.ledger.details.windows);
        ledger::unlike(&process.ledger, windows, room, lines);
    }
}

/// Adds the tables (slow iterations, kernels, calls, functions, ranges, experts and layers) to the text, each with as
/// many rows as fit.
fn tables(process: &Process, sum: &Sum, wanted: &TableSizes, lines: &mut Lines) {
    let room = lines.left().saturating_sub(wanted.others);
    let Rows([slowest, kernels, calls, functions, ranges, experts, layers]) =
        Rows::share(wanted.rows, room);
    let Process { kernels: ran, .. } = process;
    lines.if_room(|lines| {
        calls::calls(
            &process.calls.calls,
            sum.launches,
            sum.iterations,
            calls,
            lines,
        );
    });
    lines.if_room(|lines| kernels::kernels(ran, process.gpu.numbered(), kernels, lines));
    if !wanted.has_layers {
        lines.if_room(|lines| kernels::blocks(ran, lines));
    }
    if let Some(found) = &process.layers {
        lines.if_room(|lines| layers::layers(found, layers, lines));
    }
    lines.if_room(|lines| metrics::metrics(&process.metrics, lines));
    let gpus = expert_gpus(&process.facts.command, 1).unwrap_or(routing::GPUS);
    lines.if_room(|lines| {
        routing::layers(&process.experts, &process.facts, gpus, experts, lines);
    });
    lines.if_room(|lines| python::python(&process.python, lines));
    let (marked, found) = (&process.calls.functions, &process.calls.ranges);
    lines.if_room(|lines| calls::named("function", "runs", marked, functions, lines));
    lines.if_room(|lines| calls::named("range", "count", found, ranges, lines));
    let room = lines.left().saturating_sub(1).min(slowest);
    lines.if_room(|lines| ledger::slow(&process.slowest, room, 0, lines));
}
