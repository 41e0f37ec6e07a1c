//! What was measured of GPUs, as JSON.

use schemars::JsonSchema;
use serde::Serialize;

use crate::metrics::MetricSum;

/// A metric of a GPU inside windows.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Metric")]
pub struct JsonMetric {
    /// The GPU's number, as the driver numbers them.
    device: u8,
    /// The metric's name, such as `SM busy`.
    metric: &'static str,
    /// The unit of `mean` and `max`.
    unit: &'static str,
    /// The mean over time.
    #[schemars(extend("unit" = "`unit`"))]
    mean: f64,
    /// The largest sample.
    #[schemars(extend("unit" = "`unit`"))]
    max: f64,
    /// How many samples there are.
    #[schemars(extend("unit" = "samples"))]
    samples: u64,
}

impl JsonMetric {
    pub const fn of(sum: &MetricSum) -> Self {
        Self {
            device: sum.device,
            metric: sum.metric.name(),
            unit: sum.metric.unit(),
            mean: sum.mean,
            max: sum.max,
            samples: sum.samples,
        }
    }
}
