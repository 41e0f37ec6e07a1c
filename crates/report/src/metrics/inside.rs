//! The parts of samples that lie inside windows.

use std::collections::BTreeMap;

use tllmprof_record::Metric;

use super::MetricSum;
use super::samples::MetricSample;
use crate::events::window::Window;

/// The times of windows that count, in order.
pub(crate) struct WindowSpans(Vec<(u64, u64)>);

/// Returns the times of windows that count.
pub(crate) fn spans(windows: &[Window]) -> WindowSpans {
    let mut spans: Vec<_> = windows.iter().flat_map(Window::stretches).collect();
    spans.sort_unstable();
    WindowSpans(spans)
}

impl WindowSpans {
    /// Returns the length of the part of a time that lies inside.
    pub(crate) fn overlap(&self, start: u64, end: u64) -> u64 {
        let first = self.0.partition_point(|(_, until)| *until <= start);
        let within = self.0[first..].iter().take_while(|(from, _)| *from < end);
        within.fold(0, |sum, (from, until)| {
            (*until).min(end).saturating_sub((*from).max(start)) + sum
        })
    }

    /// Returns the length of all times.
    pub(crate) fn length(&self) -> u64 {
        self.0.iter().map(|(from, until)| until - from).sum()
    }

    /// Returns the first and the last moment; `None` if there is no time.
    pub(crate) fn ends(&self) -> Option<(u64, u64)> {
        let last = self.0.iter().map(|(_, until)| *until).max()?;
        Some((self.0.first()?.0, last))
    }
}

/// Returns the sums of samples inside windows, by device and metric. A sample that overlaps a window only partly
/// counts for the overlap.
pub(crate) fn inside<'a>(
    samples: impl Iterator<Item = &'a MetricSample>,
    windows: &[Window],
) -> Vec<MetricSum> {
    let spans = spans(windows);
    let mut sums: BTreeMap<(u8, Metric), (MetricSum, f64)> = BTreeMap::new();
    for sample in samples.filter(|sample| sample.metric.has_mean()) {
        let weight = spans.overlap(sample.start, sample.end());
        if weight == 0 {
            continue;
        }
        let (device, metric, value) = (sample.device, sample.metric, f64::from(sample.value));
        let none = MetricSum {
            device,
            metric,
            unit: metric.unit(),
            mean: 0.0,
            max: value,
            samples: 0,
        };
        let (sum, weights) = sums.entry((device, metric)).or_insert((none, 0.0));
        *weights += weight as f64;
        sum.mean += value * weight as f64;
        sum.max = sum.max.max(value);
        sum.samples += 1;
    }
    let mean = |(sum, weights): (MetricSum, f64)| MetricSum {
        mean: sum.mean / weights,
        ..sum
    };
    sums.into_values().map(mean).collect()
}
