//! The report's lines for GPU metrics: one line for each GPU.

use tllmprof_record::Metric;

use super::state::GpuState;
use super::{MetricSum, Metrics};
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

/// Adds the GPU metrics and the energy inside windows. By default, a brief report and a report for a screen show only
/// the first GPU.
pub(crate) fn metrics(metrics: &Metrics, lines: &mut Lines) {
    let sums = &metrics.sums;
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
        let mut parts = of_device(sums, device);
        let state = metrics.state.iter().find(|state| state.device == device);
        parts.extend(state.map(energy).unwrap_or_default());
        lines.list(&format!("GPU {device}{others}: "), &parts);
    }
}

/// Returns texts with the energy of a step and of a token, as far as these are known.
fn energy(state: &GpuState) -> Vec<String> {
    let parts = [(state.per_step, "a step"), (state.per_token, "a token")];
    let known = parts
        .into_iter()
        .filter_map(|(joules, of)| Some((joules?, of)));
    known
        .map(|(joules, of)| match joules {
            _ if joules >= 100.0 => format!("{joules:.0} J {of}"),
            _ if joules >= 1.0 => format!("{joules:.2} J {of}"),
            _ => format!("{:.3} mJ {of}", joules * 1000.0),
        })
        .collect()
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
