//! What GPUs ran and what was measured of them, as JSON.

use schemars::JsonSchema;
use serde::Serialize;

use crate::kernels::{CopyTotal, KernelSum, KernelTotal, Samples};
use crate::metrics::MetricSum;

/// The kernels of one name.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Kernel")]
pub struct JsonKernel<'a> {
    /// The demangled name, with parameters.
    name: &'a str,
    /// The name without parameters and namespaces.
    short_name: String,
    /// How many ran.
    #[schemars(extend("unit" = "kernels"))]
    count: u64,
    /// How long they took in all; `null`: the driver did not say.
    total_ns: Option<u64>,
    /// How long the longest took; `null` likewise.
    max_ns: Option<u64>,
    /// How long the shortest took; `null` likewise.
    min_ns: Option<u64>,
}

/// The copies of one kind, or all memory sets.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Copy")]
pub struct JsonCopy<'a> {
    /// Such as `HtoD`; `memset` for memory sets.
    kind: &'a str,
    /// How many there were.
    #[schemars(extend("unit" = "copies"))]
    count: u64,
    /// How long they took in all; `null`: the driver did not say.
    total_ns: Option<u64>,
    /// How much they moved or set in all.
    #[schemars(extend("unit" = "bytes"))]
    bytes: u64,
}

/// The iterations in which kernels were recorded, which makes them longer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "KernelWindow")]
pub struct JsonKernelSum {
    /// How many there are.
    #[schemars(extend("unit" = "iterations"))]
    iterations: u64,
    /// How long they took in all.
    wall_ns: u64,
    /// How long at least one kernel or copy ran in them, of the device where that is longest; `null`: the driver did not say
    /// when kernels ran.
    busy_ns: Option<u64>,
    /// How long that device did nothing between two kernels or copies of one iteration; `null` likewise.
    gaps_ns: Option<u64>,
    /// Kernels that began in them.
    #[schemars(extend("unit" = "kernels"))]
    kernels: u64,
    /// Kernels and copies that are missing.
    dropped: u64,
    /// Where kernels were sampled (`--kernels=20@60s`): how; `null`: they were not.
    samples: Option<JsonSamples>,
}

/// Windows that opened by themselves, again and again, to record kernels.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "KernelSamples")]
pub struct JsonSamples {
    /// How many samples there are.
    #[schemars(extend("unit" = "samples"))]
    count: u64,
    /// How many iterations each was to have.
    #[schemars(extend("unit" = "iterations"))]
    steps: u64,
    /// How long from the beginning of one to that of the next.
    every_ns: u64,
    /// How many other windows have kernels, which are in the same figures.
    #[schemars(extend("unit" = "windows"))]
    others: u64,
    /// All of that in words, as the report says it.
    text: String,
}

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

/// A time of the GPU: none is as short as nothing.
fn known(ns: u64) -> Option<u64> {
    Some(ns).filter(|ns| *ns > 0)
}

impl<'a> JsonKernel<'a> {
    pub fn of(kernel: &'a KernelTotal) -> Self {
        Self {
            name: &kernel.name,
            short_name: kernel.short_name(),
            count: kernel.count,
            total_ns: known(kernel.total),
            max_ns: known(kernel.longest),
            min_ns: known(kernel.shortest),
        }
    }
}

impl<'a> JsonCopy<'a> {
    pub fn of(copy: &'a CopyTotal) -> Self {
        Self {
            kind: &copy.kind,
            count: copy.count,
            total_ns: known(copy.total),
            bytes: copy.bytes,
        }
    }
}

impl JsonSamples {
    fn of(samples: Samples) -> Self {
        Self {
            count: samples.count,
            steps: samples.steps,
            every_ns: samples.every,
            others: samples.others,
            text: samples.to_string(),
        }
    }
}

impl JsonKernelSum {
    pub fn of(sum: &KernelSum) -> Self {
        Self {
            iterations: sum.iterations,
            wall_ns: sum.wall,
            busy_ns: sum.has_times().then_some(sum.busy),
            gaps_ns: sum.has_times().then_some(sum.gaps),
            kernels: sum.kernels,
            dropped: sum.dropped,
            samples: sum.samples.map(JsonSamples::of),
        }
    }
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
