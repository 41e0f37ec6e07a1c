//! Whose time the GPU's is.

use super::lines::Lines;
use crate::layers::{Layers, Pattern};
use crate::process::Process;
use crate::units::{Rate, Share, Time};

/// How many layers have a line, at most.
pub const ROWS: usize = 8;

/// How many lines [`layers`] adds besides rows.
pub fn fixed(process: &Process) -> usize {
    process.layers.as_ref().map_or(0, |layers| {
        usize::from(layers.kernels > 0) + usize::from(!layers.unknown.is_empty())
    })
}

/// How many rows it has.
pub fn rows(process: &Process) -> usize {
    let layers = process.layers.as_ref();
    layers.map_or(0, |layers| shown(layers).len().min(ROWS))
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
pub fn layers(process: &Process, most: usize, lines: &mut Lines) {
    let Some(layers) = process.layers.as_ref().filter(|layers| layers.kernels > 0) else {
        return;
    };
    let steps = process
        .kernel_window
        .map_or(1, |taken| taken.iterations)
        .max(1);
    let mut rows: Vec<_> = shown(layers).into_iter().enumerate().collect();
    let all = rows.len();
    rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.ns));
    rows.truncate(most);
    rows.sort_by_key(|(at, _)| *at);
    let more = match all - rows.len() {
        0 => String::new(),
        more => format!(" ({more} more)"),
    };
    lines.heading(format_args!(
        "{:<42}{:>8}{:>10}{:>10}{:>10}",
        format!("layers{more}"),
        "layers",
        "kernels",
        "a step",
        "of all"
    ));
    for (_, row) in rows {
        let name = lines.name(&row.name, 40);
        lines.add(format_args!(
            "  {name:<40}{:>8}{:>10}{:>10}{:>10}",
            row.layers,
            Rate(row.kernels as f64 / steps as f64).to_string(),
            Time(row.ns / steps).to_string(),
            Share(layers.share(row.ns)).to_string(),
        ));
    }
    let unknown = layers.unknown.iter().map(|row| {
        let share = Share(layers.share(row.ns));
        format!("{share}: {}", row.why.text())
    });
    let unknown: Vec<_> = unknown.collect();
    if !unknown.is_empty() {
        lines.list("layer not known: ", &unknown);
    }
}
