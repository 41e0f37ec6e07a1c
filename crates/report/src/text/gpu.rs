//! What GPUs ran, and what was measured of them.

use tllmprof_record::Metric;

use super::lines::Lines;
use crate::kernels::KernelSum;
use crate::metrics::MetricSum;
use crate::process::Process;
use crate::sum::Sum;
use crate::units::{Bytes, Quantity, Rate, Share, Time};

/// The metrics that have a place in the text.
const SHOWN: [(Metric, &str); 7] = [
    (Metric::SmUtil, "SM busy"),
    (Metric::TensorUtil, "tensor"),
    (Metric::DramBandwidth, "DRAM"),
    (Metric::GpuUtil, "busy"),
    (Metric::MemoryUtil, "memory busy"),
    (Metric::Power, "power"),
    (Metric::MemoryUsed, "used"),
];

/// What stands for a figure that is not known.
pub const UNKNOWN: &str = "–";

/// How many lines [`kernels`] and [`metrics`] add besides rows.
pub fn fixed(process: &Process) -> usize {
    let kernels = match &process.kernel_window {
        Some(_) => 2 + usize::from(!process.copies.is_empty()),
        None => 0,
    };
    kernels + usize::from(!process.metrics.is_empty())
}

/// Some kernels, the longest in all first, and copies.
pub fn kernels(process: &Process, sum: &Sum, rows: usize, lines: &mut Lines) {
    let Some(taken) = &process.kernel_window else {
        return;
    };
    if taken.iterations == 0 {
        lines.add(format_args!(
            "kernels were taken in no iteration that counts"
        ));
        return;
    }
    lines.add(format_args!("{}", heading(taken, sum)));
    let more = process.kernels.len().saturating_sub(rows);
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
    for kernel in process.kernels.iter().take(rows) {
        let name = lines.name(&kernel.short_name(), 40);
        lines.add(format_args!(
            "  {name:<40}{:>8}{:>10}{:>10}{:>10}",
            each(kernel.count).to_string(),
            known(kernel.mean()),
            known(kernel.longest),
            match kernel.total {
                0 => UNKNOWN.to_owned(),
                _ => Share(process.kernel_share(kernel)).to_string(),
            }
        ));
    }
    if !process.copies.is_empty() {
        let copies = process.copies.iter().map(|copy| {
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
fn heading(taken: &KernelSum, sum: &Sum) -> String {
    let of = match taken.samples {
        Some(samples) => format!("{} steps ({samples})", taken.iterations),
        None => format!("{} steps", taken.iterations),
    };
    let mut text = match taken.busy {
        _ if !taken.has_times() => format!("kernels of {of}, whose times are not known"),
        busy => format!(
            "kernels of {of}: busy {}, gaps {}",
            Share(taken.share(busy)),
            Share(taken.share(taken.gaps))
        ),
    };
    if let (Some(with), Some(without)) = (sum.with_kernels, sum.without_kernels) {
        text += &format!("; p50 {}, others {}", Time(with.p50), Time(without.p50));
    }
    text
}

/// GPU metrics inside windows, of the first GPU.
pub fn metrics(sums: &[MetricSum], lines: &mut Lines) {
    let Some(first) = sums.first() else {
        return;
    };
    let mut parts = Vec::new();
    for (metric, what) in SHOWN {
        let is_it = |sum: &&MetricSum| sum.metric == metric && sum.device == first.device;
        if let Some(sum) = sums.iter().find(is_it) {
            let mean = Quantity(sum.mean, metric.unit());
            parts.push(match metric {
                Metric::MemoryUsed => format!("{mean} {what}"),
                _ => format!("{what} {mean}"),
            });
        }
    }
    let others: std::collections::BTreeSet<_> = sums.iter().map(|sum| sum.device).collect();
    let others = match others.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    lines.list(&format!("GPU {}{others}: ", first.device), &parts);
}
