//! Whose time the GPU's is.

use crate::layers::{Layer, Layers, Pattern};
use crate::numbers::units::{Rate, Share, Time};
use crate::print::lines::{Lines, UNKNOWN};

/// How many layers have a line, at most.
pub const ROWS: usize = 8;

/// How many lines [`layers`] adds besides rows.
pub fn fixed(layers: &Layers) -> usize {
    let lines = [
        !layers.patterns.is_empty(),
        outside(layers).is_some(),
        !layers.unknown.is_empty(),
    ];
    lines.into_iter().map(usize::from).sum()
}

/// The kernels that were launched while nothing was open.
fn outside(layers: &Layers) -> Option<&Layer> {
    layers.rows.iter().find(|layer| layer.name.is_empty())
}

/// A figure of the GPU's time, where the driver said how long kernels took.
fn known(layers: &Layers, figure: String) -> String {
    match layers.all.ns {
        0 => UNKNOWN.to_owned(),
        _ => figure,
    }
}

/// The idle time between a row's kernels in an iteration.
fn gaps(row: &Pattern) -> String {
    row.gap
        .map_or_else(|| UNKNOWN.to_owned(), |ns| Time(ns).to_string())
}

/// How many rows it has.
pub fn rows(layers: &Layers) -> usize {
    shown(layers).len().min(ROWS)
}

/// The layers that are more than what is around them, or within them.
fn shown(layers: &Layers) -> Vec<&Pattern> {
    let rows = &layers.patterns;
    let is_all = |(at, row): &(usize, &Pattern)| {
        let within = rows.get(at + 1);
        within.is_some_and(|within| within.depth > row.depth && within.ns == row.ns)
    };
    let rows = rows.iter().enumerate().filter(|row| !is_all(row));
    rows.map(|(_, row)| row).collect()
}

/// The largest layers, in the order of the tree, and what is not known.
pub fn layers(layers: &Layers, most: usize, lines: &mut Lines) {
    if layers.all.kernels == 0 {
        return;
    }
    let mut rows: Vec<_> = shown(layers).into_iter().enumerate().collect();
    let all = rows.len();
    rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.ns));
    rows.truncate(most);
    rows.sort_by_key(|(at, _)| *at);
    let more = match all - rows.len() {
        0 => String::new(),
        more => format!(" ({more} more)"),
    };
    if all > 0 {
        lines.heading(format_args!(
            "{:<29}{:>7}{:>9}{:>9}{:>9}{:>9}{:>8}",
            format!("layers{more}"),
            "layers",
            "kernels",
            "a step",
            "each",
            "gaps",
            "of all"
        ));
    }
    // What is around the row, of those that are shown.
    let mut around: Vec<&str> = Vec::new();
    for (_, row) in rows {
        let within = |around: &&str| {
            let rest = row.name.strip_prefix(around)?;
            rest.starts_with(['/', '.']).then_some(rest)
        };
        while around.last().is_some_and(|last| within(last).is_none()) {
            around.pop();
        }
        let rest = around.last().and_then(within).unwrap_or(&row.name);
        let indent = 2 + 2 * around.len();
        around.push(&row.name);
        let name = lines.name(rest, 28_usize.saturating_sub(indent));
        lines.add(format_args!(
            "{:<29}{:>7}{:>9}{:>9}{:>9}{:>9}{:>8}",
            format!("{:indent$}{name}", ""),
            row.layers,
            Rate(row.kernels_a_step).to_string(),
            known(layers, Time(row.step).to_string()),
            known(layers, Time(row.each).to_string()),
            gaps(row),
            known(layers, Share(row.share).to_string()),
        ));
    }
    let part = |kernels: u64, ns: u64| match layers.all.ns {
        0 => format!("{kernels} kernels"),
        _ => Share(layers.all.share(ns)).to_string(),
    };
    if let Some(outside) = outside(layers) {
        lines.add(format_args!(
            "in no torch module, NVTX range or marked function: {}",
            part(outside.kernels, outside.ns)
        ));
    }
    let unknown = layers.unknown.iter();
    let unknown = unknown.map(|row| format!("{}: {}", part(row.kernels, row.ns), row.why.text()));
    let unknown: Vec<_> = unknown.collect();
    if !unknown.is_empty() {
        lines.list("layer not known: ", &unknown);
    }
}
