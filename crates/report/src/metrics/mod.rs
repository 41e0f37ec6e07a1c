//! Metrics of GPUs inside windows, such as SM utilization or power. The `tllmprof` command samples
//! them while the program runs.

pub(crate) mod text;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tllmprof_record::{Clock, Event, Metric, What};

use crate::events::window::Window;

/// Maximum number of metric samples to keep. Further samples are only counted.
const MAX_SAMPLES: usize = 1 << 22;

/// A sample of a GPU metric, averaged over a short time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MetricSample {
    /// Start of the sample's time span, in nanoseconds of `CLOCK_MONOTONIC`.
    pub start: u64,
    /// Length of the sample's time span, in microseconds.
    pub duration: u32,
    /// The value, in the unit of the metric.
    pub value: f32,
    pub metric: Metric,
    pub device: u8,
}

/// GPU metrics of a process, such as SM utilization.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Metrics {
    /// GPU metrics inside windows, one row for each metric of each GPU.
    // Samples may be in the record of another process on the same machine. In that case the report sets this field.
    #[serde(rename = "gpu_metrics")]
    pub sums: Vec<MetricSum>,
    /// The samples in this record.
    #[serde(skip)]
    pub samples: Vec<MetricSample>,
}

/// One metric of one GPU, inside windows.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Metric")]
pub struct MetricSum {
    /// The number of the GPU, as the driver numbers GPUs.
    pub device: u8,
    /// The name of the metric, such as `SM busy`.
    #[serde(serialize_with = "write_name")]
    #[schemars(with = "String")]
    pub metric: Metric,
    /// The unit of `mean` and `max`.
    pub unit: &'static str,
    /// The mean of the metric over time.
    #[schemars(extend("unit" = "`unit`"))]
    pub mean: f64,
    /// The largest sample of the metric.
    #[schemars(extend("unit" = "`unit`"))]
    pub max: f64,
    /// The number of samples of the metric.
    #[schemars(extend("unit" = "samples"))]
    pub samples: u64,
}

fn write_name<S: Serializer>(metric: &Metric, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(metric.name())
}

/// Collects the metric samples of a record.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    pub samples: Vec<MetricSample>,
    pub left_out: u64,
}

impl Samples {
    /// Adds an event if it is a metric sample.
    pub(crate) fn add(&mut self, clock: &Clock, event: &Event) {
        let What::GpuMetric {
            device,
            metric: Some(metric),
            thousandths,
        } = event.what
        else {
            return;
        };
        if self.samples.len() == MAX_SAMPLES {
            self.left_out += 1;
            return;
        }
        let micros = clock.duration_ns(event.start, event.duration) / 1000;
        self.samples.push(MetricSample {
            start: clock.ns(event.start),
            duration: u32::try_from(micros).unwrap_or(u32::MAX),
            value: (thousandths as f64 / 1000.0) as f32,
            metric,
            device,
        });
    }
}

/// Returns sums over the samples inside windows, by GPU and metric. Only the part of a sample that
/// lies in a window is counted.
pub(crate) fn inside<'a>(
    samples: impl Iterator<Item = &'a MetricSample>,
    windows: &[Window],
) -> Vec<MetricSum> {
    let mut spans: Vec<_> = windows.iter().flat_map(Window::stretches).collect();
    spans.sort_unstable();
    let mut sums: BTreeMap<(u8, Metric), (MetricSum, f64)> = BTreeMap::new();
    for sample in samples {
        // A sample with a duration of 0 counts as one nanosecond long.
        let end = sample
            .start
            .saturating_add(u64::from(sample.duration) * 1000)
            .max(sample.start.saturating_add(1));
        let first = spans.partition_point(|(_, until)| *until <= sample.start);
        let within = spans[first..].iter().take_while(|(from, _)| *from < end);
        let weight = within.fold(0, |sum, (from, until)| {
            (*until).min(end).saturating_sub((*from).max(sample.start)) + sum
        });
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
