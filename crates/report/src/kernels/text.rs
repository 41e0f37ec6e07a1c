//! The text output of recorded kernels and copies.

use super::blocks::Blocks;
use super::{KernelSum, Kernels};
use crate::numbers::units::{Count, Rate, Share, Time};
use crate::print::lines::{Lines, UNKNOWN};

/// Maximum number of lines for the description of repeated blocks of kernels.
const MAX_BLOCK_LINES: usize = 2;

/// Minimum share of the kernels that began between iterations, as a fraction. If the share is smaller, the text does
/// not mention these kernels.
const MIN_BETWEEN: f64 = 0.1;

/// Returns the maximum number of lines that [`kernels`] adds, not counting the rows of the table.
pub(crate) fn fixed(kernels: &Kernels) -> usize {
    match &kernels.window {
        Some(_) => {
            2 + usize::from(!kernels.copies.is_empty()) + usize::from(is_much_between(kernels))
        }
        None => 0,
    }
}

/// Returns the maximum number of lines that [`blocks`] adds.
pub(crate) fn block_lines(kernels: &Kernels) -> usize {
    kernels.blocks.as_ref().map_or(0, |_| MAX_BLOCK_LINES)
}

/// Adds a description of the repeated blocks of kernels to the text.
pub(crate) fn blocks(kernels: &Kernels, lines: &mut Lines) {
    if let Some(blocks) = &kernels.blocks {
        lines.wrapped("equal blocks: ", &in_words(blocks), MAX_BLOCK_LINES);
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

/// Adds a table of the kernels with the longest total time, with at most `rows` rows, and a line about copies to the
/// text. Adds nothing if the recording of kernels was never switched on. `gpu` is the number of the GPU that was busy
/// longest, if the process used several GPUs.
pub(crate) fn kernels(kernels: &Kernels, gpu: Option<u8>, rows: usize, lines: &mut Lines) {
    let Some(taken) = &kernels.window else {
        return;
    };
    if taken.iterations == 0 {
        lines.add(format_args!(
            "kernels were taken in no iteration that counts"
        ));
        return;
    }
    lines.add(format_args!("{}", heading(taken, gpu, lines.is_of_trace())));
    if is_much_between(kernels) {
        lines.add(format_args!(
            "  {} of the kernels began between iterations, in which no time is measured",
            Share(kernels.between_iterations())
        ));
    }
    let rows = rows.min(kernels.totals.len());
    if rows > 0 {
        let more = kernels.totals.len() - rows;
        let more = if more > 0 {
            format!(" ({more} more)")
        } else {
            String::new()
        };
        let is_of_trace = lines.is_of_trace();
        let each = |count: u64| match is_of_trace {
            true => count.to_string(),
            false => Rate(taken.a_step(count)).to_string(),
        };
        lines.heading(format_args!(
            "{:>8}{:>10}{:>10}{:>10}  {}",
            lines.a_step(),
            "mean",
            "longest",
            "of all",
            format_args!("{} kernels {}{more}", each(kernels.count()), lines.a_step())
        ));
        for kernel in kernels.totals.iter().take(rows) {
            let name = lines.name(&kernel.short_name, lines.width().saturating_sub(40));
            lines.add(format_args!(
                "{:>8}{:>10}{:>10}{:>10}  {name}",
                each(kernel.count),
                known(kernel.mean()),
                known(kernel.longest),
                match kernel.total {
                    0 => UNKNOWN.to_owned(),
                    _ => Share(kernels.share(kernel)).to_string(),
                }
            ));
        }
    }
    if !kernels.copies.is_empty() {
        let copies = kernels.copies.iter().map(|copy| {
            let kind = &copy.kind;
            let size = copy.size();
            let time = match copy.total {
                0 => String::new(),
                total => format!(" in {}", Time(total)),
            };
            format!("{} {kind}{size}{time}", copy.count)
        });
        lines.list("copies, in all: ", &copies.collect::<Vec<_>>());
    }
}

fn is_much_between(kernels: &Kernels) -> bool {
    kernels.has_times() && kernels.between_iterations() >= MIN_BETWEEN
}

/// Returns a GPU time in nanoseconds as text. A time of 0 means that the time is unknown.
fn known(ns: u64) -> String {
    match ns {
        0 => UNKNOWN.to_owned(),
        ns => Time(ns).to_string(),
    }
}

/// Returns the line above the table of kernels. It states the number of iterations with recorded kernels (unless the
/// kernels are those of a whole trace), and the shares of the time in which the GPU was busy, idle between pieces of
/// work, and idle before the first or after the last work of an iteration. `gpu` is the number of that GPU, if the
/// process used several.
fn heading(taken: &KernelSum, gpu: Option<u8>, is_of_trace: bool) -> String {
    let gpu = gpu.map_or_else(String::new, |gpu| format!("GPU {gpu} "));
    let of = match &taken.samples {
        _ if is_of_trace => "the trace".to_owned(),
        Some(samples) => format!("{} ({})", Count(taken.iterations, "step"), samples.text),
        None => Count(taken.iterations, "step").to_string(),
    };
    match (taken.busy, taken.gaps) {
        (Some(0), _) if taken.kernels == 0 => format!("kernels of {of}: none was recorded"),
        (Some(busy), Some(gaps)) => format!(
            "kernels of {of}: {gpu}busy {}, gaps {}, before and after work {}",
            Share(taken.share(busy)),
            Share(taken.share(gaps)),
            Share(taken.share(taken.wall.saturating_sub(busy + gaps)))
        ),
        _ => format!("kernels of {of}, whose times are not known"),
    }
}
