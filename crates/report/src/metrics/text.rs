//! The report's lines for GPU metrics: one line for each GPU.

use tllmprof_record::Metric;

use super::MetricSum;
use crate::numbers::units::Quantity;
use crate::print::lines::Lines;

/// The metrics that the text shows, with their labels in the text.
const SHOWN_METRICS: [(Metric, &str); 7] = [
    (Metric::SmUtil, "SM busy"),
    (Metric::TensorUtil, "tensor"),
    (Metric::DramBandwidth, "DRAM"),
    (Metric::GpuUtil, "busy"),
    (Metric::MemoryUtil, "memory busy"),
    (Metric::Power, "power"),
    (Metric::MemoryUsed, "used"),
];

/// Adds the metrics of GPUs inside windows to the text. A short report shows only the first GPU.
pub(crate) fn metrics(sums: &[MetricSum], lines: &mut Lines) {
    let mut devices: Vec<_> = sums.iter().map(|sum| sum.device).collect();
    devices.sort_unstable();
    devices.dedup();
    let most = lines.rows(1).max(1);
    let more = devices.len().saturating_sub(most);
    for (place, device) in devices.into_iter().take(most).enumerate() {
        let others = match more {
            1.. if place == 0 => format!(" (and {more} more)"),
            _ => String::new(),
        };
        lines.list(&format!("GPU {device}{others}: "), &of_device(sums, device));
    }
}

fn of_device(sums: &[MetricSum], device: u8) -> Vec<String> {
    let mut parts = Vec::new();
    for (metric, what) in SHOWN_METRICS {
        let is_it = |sum: &&MetricSum| sum.metric == metric && sum.device == device;
        if let Some(sum) = sums.iter().find(is_it) {
            let mean = Quantity(sum.mean, metric.unit());
            parts.push(match metric {
                Metric::MemoryUsed => format!("{mean} {what}"),
                _ => format!("{what} {mean}"),
            });
        }
    }
    parts
}
