//! What GPUs ran and what was measured of them, as JSON.

use serde::Serialize;

use crate::kernels::{CopyTotal, KernelSum, KernelTotal};
use crate::metrics::MetricSum;

#[derive(Serialize)]
pub struct JsonKernel<'a> {
    name: &'a str,
    /// Without what it takes and where it is.
    short_name: String,
    count: u64,
    total_ns: u64,
    max_ns: u64,
    min_ns: u64,
}

#[derive(Serialize)]
pub struct JsonCopy<'a> {
    kind: &'a str,
    count: u64,
    total_ns: u64,
    bytes: u64,
}

#[derive(Serialize)]
pub struct JsonKernelSum {
    iterations: u64,
    wall_ns: u64,
    busy_ns: u64,
    gaps_ns: u64,
    kernels: u64,
    dropped: u64,
}

#[derive(Serialize)]
pub struct JsonMetric {
    device: u8,
    metric: &'static str,
    unit: &'static str,
    mean: f64,
    max: f64,
    samples: u64,
}

impl<'a> JsonKernel<'a> {
    pub fn of(kernel: &'a KernelTotal) -> Self {
        Self {
            name: &kernel.name,
            short_name: kernel.short_name(),
            count: kernel.count,
            total_ns: kernel.total,
            max_ns: kernel.longest,
            min_ns: kernel.shortest,
        }
    }
}

impl<'a> JsonCopy<'a> {
    pub fn of(copy: &'a CopyTotal) -> Self {
        Self {
            kind: &copy.kind,
            count: copy.count,
            total_ns: copy.total,
            bytes: copy.bytes,
        }
    }
}

impl JsonKernelSum {
    pub const fn of(sum: &KernelSum) -> Self {
        Self {
            iterations: sum.iterations,
            wall_ns: sum.wall,
            busy_ns: sum.busy,
            gaps_ns: sum.gaps,
            kernels: sum.kernels,
            dropped: sum.dropped,
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
