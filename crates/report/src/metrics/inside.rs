//! Means and maxima of GPU metrics inside windows. In a mean, a sample that lies only partly in a window counts with
//! the length of that part.

use std::collections::BTreeMap;

use tllmprof_record::Metric;

use super::MetricSum;
use super::samples::MetricSample;
use crate::events::window::Window;

/// Time spans of the windows' qualifying iterations, which are those that the report's figures include. The spans are
/// in order, in nanoseconds of `CLOCK_MONOTONIC`.
pub(crate) struct WindowSpans(Vec<(u64, u64)>);

/// Returns the time spans of the windows' qualifying iterations.
pub(crate) fn spans(windows: &[Window]) -> WindowSpans {
    let mut spans: Vec<_> = windows.iter().flat_map(Window::stretches).collect();
    spans.sort_unstable();
    WindowSpans(spans)
}

impl WindowSpans {
    /// Returns the length in nanoseconds of the part of the time from `start` to `end` that lies in these spans.
    pub(crate) fn overlap(&self, start: u64, end: u64) -> u64 {
        let first = self.0.partition_point(|(_, until)| *until <= start);
        let within = self.0[first..].iter().take_while(|(from, _)| *from < end);
        within.fold(0, |sum, (from, until)| {
            (*until).min(end).saturating_sub((*from).max(start)) + sum
        })
    }

    /// Returns the total length of the windows' spans in nanoseconds.
    pub(crate) fn length(&self) -> u64 {
        self.0.iter().map(|(from, until)| until - from).sum()
    }

    /// Returns the start of the first span and the end of the last; `None` if there are no spans.
    pub(crate) fn ends(&self) -> Option<(u64, u64)> {
        let last = self.0.iter().map(|(_, until)| *until).max()?;
        Some((self.0.first()?.0, last))
    }
}

/// Returns the mean and the maximum of each metric of each GPU, from the samples that overlap
/// windows. In the mean, the weight of a sample is its length inside windows.
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
