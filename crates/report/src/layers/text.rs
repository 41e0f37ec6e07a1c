//! The text output of layers.

use crate::layers::{GpuLayerPattern, Layer, Layers};
use crate::numbers::units::{Rate, Share, Time};
use crate::print::lines::{Lines, UNKNOWN};

/// Maximum number of layers that the table shows.
pub(crate) const MAX_ROWS: usize = 8;

/// Returns the maximum number of lines that [`layers`] adds on a screen, not counting the rows of the table.
pub(crate) fn fixed(layers: &Layers) -> usize {
    let lines = [
        !layers.patterns.is_empty(),
        outside(layers).is_some(),
        !layers.unknown.is_empty(),
    ];
    lines.into_iter().map(usize::from).sum()
}

/// Returns the totals of the kernels that were launched while no scope (module or range) was open; `None` if there are
/// no such kernels.
fn outside(layers: &Layers) -> Option<&Layer> {
    layers.rows.iter().find(|layer| layer.name.is_empty())
}

/// Returns `figure`, which is a GPU time or a share of it as text; a dash if the driver did not report the times of
/// kernels.
fn known(layers: &Layers, figure: String) -> String {
    match layers.all.ns {
        0 => UNKNOWN.to_owned(),
        _ => figure,
    }
}

/// Returns the mean idle time per iteration between the kernels of a layer, as text; a dash if it is unknown.
fn gaps(row: &GpuLayerPattern) -> String {
    row.gap
        .map_or_else(|| UNKNOWN.to_owned(), |ns| Time(ns).to_string())
}

/// Returns the number of rows in the table of layers.
pub(crate) fn rows(layers: &Layers, lines: &Lines) -> usize {
    shown(layers).len().min(lines.rows(MAX_ROWS))
}

/// Returns the layers to show: all except those whose whole time is in one layer inside them.
fn shown(layers: &Layers) -> Vec<&GpuLayerPattern> {
    let rows = &layers.patterns;
    let is_all = |(at, row): &(usize, &GpuLayerPattern)| {
        let within = rows.get(at + 1);
        within.is_some_and(|within| within.depth > row.depth && within.ns == row.ns)
    };
    let rows = rows.iter().enumerate().filter(|row| !is_all(row));
    rows.map(|(_, row)| row).collect()
}

/// Adds the layers with the longest times to the text, in the order of the tree, and the kernels
/// whose layer is unknown. At most `most` layers are shown.
pub(crate) fn layers(layers: &Layers, most: usize, lines: &mut Lines) {
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
    if !rows.is_empty() {
        lines.heading(format_args!(
            "{:<29}{:>7}{:>9}{:>9}{:>9}{:>9}{:>8}",
            format!("layers{more}"),
            "layers",
            "kernels",
            lines.a_step(),
            "each",
            "gaps",
            "of all"
        ));
    }
    // The printed layers that contain the current row, from the outermost to the innermost. The row's name is shown
    // relative to the innermost of these layers, and its indentation grows with the number of these layers.
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
