//! GPU metrics, in a line.

use tllmprof_record::Metric;

use super::MetricSum;
use crate::numbers::units::Quantity;
use crate::print::lines::Lines;

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
