//! What GPUs ran, and what was measured of them.

use super::blocks::Blocks;
use super::{KernelSum, Kernels};
use crate::numbers::quantiles::Quantiles;
use crate::numbers::units::{Bytes, Rate, Share, Time};
use crate::print::lines::{Lines, UNKNOWN};

/// How many lines blocks have, at most.
const BLOCK_LINES: usize = 2;

/// The number of lines that [`kernels`] adds besides rows.
pub fn fixed(kernels: &Kernels) -> usize {
    match &kernels.window {
        Some(_) => 2 + usize::from(!kernels.copies.is_empty()),
        None => 0,
    }
}

/// The number of lines that [`blocks`] adds, at most.
pub fn block_lines(kernels: &Kernels) -> usize {
    kernels.blocks.as_ref().map_or(0, |_| BLOCK_LINES)
}

/// Blocks of kernels, where nothing says what the layers are.
pub fn blocks(kernels: &Kernels, lines: &mut Lines) {
    if let Some(blocks) = &kernels.blocks {
        lines.wrapped("equal blocks: ", &in_words(blocks), BLOCK_LINES);
    }
}

fn in_words(blocks: &Blocks) -> Vec<String> {
    let (count, kernels) = (blocks.blocks.len(), blocks.kernels.len());
    let mut said = vec![format!("{count} of {kernels} kernels")];
    if blocks.all() > 0 {
        said.push(format!("{} each", Time(blocks.mean)));
        said.push(format!("{} of all", Share(blocks.share)));
    }
    if let Some(partly) = blocks.partly {
        said.push(format!("one more alike up to kernel {partly}"));
    }
    for (outside, place) in [(blocks.before, "before"), (blocks.behind, "behind")] {
        if outside.kernels > 0 {
            said.push(format!("{} {place}", outside.kernels));
        }
    }
    if blocks.iterations < blocks.of {
        said.push(format!("in {} of {} steps", blocks.iterations, blocks.of));
    }
    said
}

/// Some kernels, the longest in all first, and copies.
/// `with` and `without` are the medians of iterations in which kernels were recorded, and of the others.
pub fn kernels(
    kernels: &Kernels,
    [with, without]: [Option<Quantiles>; 2],
    rows: usize,
    lines: &mut Lines,
) {
    let Some(taken) = &kernels.window else {
        return;
    };
    if taken.iterations == 0 {
        lines.add(format_args!(
            "kernels were taken in no iteration that counts"
        ));
        return;
    }
    lines.add(format_args!("{}", heading(taken, with, without)));
    let more = kernels.totals.len().saturating_sub(rows);
    let more = if more > 0 {
        format!(" ({more} more)")
    } else {
        String::new()
    };
    let each = |count: u64| Rate(taken.a_step(count));
    lines.heading(format_args!(
        "{:<42}{:>8}{:>10}{:>10}{:>10}",
        format!("{} kernels a step{more}", each(taken.kernels)),
        "a step",
        "mean",
        "longest",
        "of all"
    ));
    for kernel in kernels.totals.iter().take(rows) {
        let name = lines.name(&kernel.short_name, 40);
        lines.add(format_args!(
            "  {name:<40}{:>8}{:>10}{:>10}{:>10}",
            each(kernel.count).to_string(),
            known(kernel.mean()),
            known(kernel.longest),
            match kernel.total {
                0 => UNKNOWN.to_owned(),
                _ => Share(kernels.share(kernel)).to_string(),
            }
        ));
    }
    if !kernels.copies.is_empty() {
        let copies = kernels.copies.iter().map(|copy| {
            let (kind, bytes) = (&copy.kind, Bytes(copy.bytes));
            let time = match copy.total {
                0 => String::new(),
                total => format!(" in {}", Time(total)),
            };
            format!("{} {kind} of {bytes}{time}", copy.count)
        });
        lines.list("copies: ", &copies.collect::<Vec<_>>());
    }
}

/// A time of the GPU, which is not known where it is nothing.
fn known(ns: u64) -> String {
    match ns {
        0 => UNKNOWN.to_owned(),
        ns => Time(ns).to_string(),
    }
}

/// What was taken, what the GPU did there, and that taking it has its price.
fn heading(taken: &KernelSum, with: Option<Quantiles>, without: Option<Quantiles>) -> String {
    let of = match &taken.samples {
        Some(samples) => format!("{} steps ({})", taken.iterations, samples.text),
        None => format!("{} steps", taken.iterations),
    };
    let mut text = match (taken.busy, taken.gaps) {
        (Some(busy), Some(gaps)) => format!(
            "kernels of {of}: busy {}, gaps {}",
            Share(taken.share(busy)),
            Share(taken.share(gaps))
        ),
        _ => format!("kernels of {of}, whose times are not known"),
    };
    if let (Some(with), Some(without)) = (with, without) {
        text += &format!("; p50 {}, others {}", Time(with.p50), Time(without.p50));
    }
    text
}
