//! The results of analyzing recorded kernels and copies.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use super::blocks::Blocks;
use super::streams::{StreamPair, StreamSearch};
use crate::events::busy::DeviceActivity;
use crate::events::iteration::InKernels;
use crate::events::raw::RawIteration;
use crate::numbers::units::Bytes;
use crate::print::json::known;

/// GPU work in the windows in which kernels were recorded.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Kernels {
    /// The recorded GPU kernels, summed by name. The name with the longest total time comes first.
    #[serde(rename = "kernels")]
    pub totals: Vec<KernelTotal>,
    /// Total time of the kernels in `totals`, in nanoseconds.
    #[serde(skip)]
    pub time: u64,
    /// The recorded GPU copies and memory sets, summed by type. The type with the longest total time comes first.
    pub copies: Vec<CopyTotal>,
    /// Sums over the iterations in which kernels were recorded; `null` if there are none.
    #[serde(rename = "kernel_window")]
    pub window: Option<KernelSum>,
    /// Equal blocks of kernels that repeat in an iteration, usually the layers of a model; `null` if none were found.
    pub blocks: Option<Blocks>,
    /// The two streams of a GPU whose overlap would save most; `null` if no two streams have enough work of their own, or
    /// if the record does not contain the streams that calls use.
    #[serde(
        rename = "stream_pair",
        serialize_with = "StreamSearch::serialize_pair"
    )]
    #[schemars(with = "Option<StreamPair>")]
    pub streams: StreamSearch,
    /// Number of iterations in which kernels should have been recorded but were not, although the GPU was busy.
    #[serde(skip)]
    pub missing: u64,
    /// Busy times of each device that worked in the iterations of `window`.
    #[serde(skip)]
    pub devices: Vec<DeviceSum>,
}

/// Times of a GPU, in nanoseconds, in the iterations that have recorded kernels and that the report's figures include.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceSum {
    pub device: u8,
    /// Time in which at least one kernel or copy ran on the GPU.
    pub busy: u64,
    /// Time in which at least one kernel ran on the GPU.
    pub kernels: u64,
}

/// The GPU kernels that have one name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Kernel")]
pub struct KernelTotal {
    /// The demangled name of the kernels, with parameters.
    pub name: String,
    /// The name of the kernels, without parameters and namespaces.
    pub short_name: String,
    /// The number of kernels with this name that ran.
    #[schemars(extend("unit" = "kernels"))]
    pub count: u64,
    /// The total time of the kernels with this name; `null` if the driver did not report times.
    #[serde(rename = "total_ns", serialize_with = "known")]
    #[schemars(with = "Option<u64>")]
    pub total: u64,
    /// The time of the longest kernel with this name; `null` if the driver did not report times.
    #[serde(rename = "max_ns", serialize_with = "known")]
    #[schemars(with = "Option<u64>")]
    pub longest: u64,
    /// The time of the shortest kernel with this name; `null` if the driver did not report times.
    #[serde(rename = "min_ns", serialize_with = "known")]
    #[schemars(with = "Option<u64>")]
    pub shortest: u64,
    /// The total time in each iteration in which a kernel with this name began. The key is the iteration's index among
    /// the iterations with recorded kernels. `None` if there were too many entries to store.
    #[serde(skip)]
    pub(crate) by_step: Option<Vec<(u32, u64)>>,
}

impl KernelTotal {
    /// Returns the mean time of one kernel in nanoseconds; 0 if the count is 0.
    #[must_use]
    pub const fn mean(&self) -> u64 {
        match self.total.checked_div(self.count) {
            Some(mean) => mean,
            None => 0,
        }
    }
}

/// The GPU copies of one type, or all memory sets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Copy")]
pub struct CopyTotal {
    /// The type of the copies, such as `HtoD` (host to device); `memset` for memory sets.
    pub kind: String,
    /// The number of copies of this type, or of memory sets.
    #[schemars(extend("unit" = "copies"))]
    pub count: u64,
    /// The total time of the copies of this type, or of the memory sets; `null` if the driver did not report times.
    #[serde(rename = "total_ns", serialize_with = "known")]
    #[schemars(with = "Option<u64>")]
    pub total: u64,
    /// The total number of bytes that were copied or set.
    #[schemars(extend("unit" = "bytes"))]
    pub bytes: u64,
}

impl CopyTotal {
    /// Returns the total number of bytes as text, such as ` of 4 KiB`; empty if the number of bytes was not
    /// recorded.
    #[must_use]
    pub fn size(&self) -> String {
        match self.bytes {
            0 => String::new(),
            bytes => format!(" of {}", Bytes(bytes)),
        }
    }

    /// Returns the transfer rate in bytes per second, or `None` if the time or the number of bytes is unknown.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        (self.total > 0 && self.bytes > 0).then(|| self.bytes as f64 * 1e9 / self.total as f64)
    }
}

/// Sums over the iterations in which kernels were recorded. Recording kernels makes iterations longer.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, JsonSchema)]
#[schemars(rename = "KernelWindow")]
pub struct KernelSum {
    /// The number of iterations in which kernels were recorded.
    #[schemars(extend("unit" = "iterations"))]
    pub iterations: u64,
    /// The total duration of the iterations in which kernels were recorded.
    #[serde(rename = "wall_ns")]
    pub wall: u64,
    /// The time in which at least one kernel or copy ran in the iterations with recorded kernels, on the GPU that was
    /// busy longest; `null` if the driver did not report the times of kernels.
    #[serde(rename = "busy_ns")]
    pub busy: Option<u64>,
    /// The idle time between two kernels or copies of the same iteration, on the GPU that was busy longest; `null` if
    /// the driver did not report the times of kernels.
    #[serde(rename = "gaps_ns")]
    pub gaps: Option<u64>,
    /// The number of kernels that began during the iterations with recorded kernels.
    #[schemars(extend("unit" = "kernels"))]
    pub kernels: u64,
    /// The number of kernels and copies that ran but are missing in the record.
    pub dropped: u64,
    /// The sampling of kernels, such as `--kernels=20@60s`; `null` if kernels were not sampled.
    pub samples: Option<Samples>,
}

/// Windows that opened by themselves at regular intervals to record kernels. Each is one sample.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, JsonSchema)]
#[schemars(rename = "KernelSamples")]
pub struct Samples {
    /// The number of samples, which are windows that opened by themselves.
    #[schemars(extend("unit" = "samples"))]
    pub count: u64,
    /// The number of iterations that each sample was meant to have.
    #[schemars(extend("unit" = "iterations"))]
    pub steps: u64,
    /// The intended time from the start of one sample to the start of the next.
    #[serde(rename = "every_ns")]
    pub every: u64,
    /// The number of windows with recorded kernels that are not samples. The figures of kernels include them.
    #[schemars(extend("unit" = "windows"))]
    pub others: u64,
    /// A description of the sampling, as the text report shows it.
    pub text: String,
}

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = |count: &u64| if *count == 1 { "" } else { "s" };
        let Self { count, steps, .. } = self;
        let seconds = self.every as f64 / 1e9;
        write!(
            f,
            "{steps} step{} each {seconds} s, {count} sample{}",
            s(steps),
            s(count)
        )?;
        match self.others {
            0 => Ok(()),
            others => write!(f, " and {others} other window{}", s(&others)),
        }
    }
}

impl KernelSum {
    /// Returns a time in nanoseconds as a fraction of the total time of the iterations with
    /// recorded kernels.
    #[must_use]
    pub fn share(&self, part: u64) -> f64 {
        (part as f64 / self.wall.max(1) as f64).min(1.0)
    }

    /// Returns true if the driver reported when kernels began and ended; some drivers do not.
    #[must_use]
    pub const fn has_times(&self) -> bool {
        self.busy.is_some()
    }

    /// Converts a total number to the mean number per iteration.
    #[must_use]
    pub fn a_step(&self, count: u64) -> f64 {
        count as f64 / self.iterations.max(1) as f64
    }
}

impl Kernels {
    /// Returns the number of iterations in which kernels were recorded.
    pub fn steps(&self) -> u64 {
        self.window.as_ref().map_or(0, |sum| sum.iterations)
    }

    /// Returns true if iterations have recorded kernels, and the driver reported when these began
    /// and ended.
    #[must_use]
    pub fn has_times(&self) -> bool {
        self.window.as_ref().is_some_and(KernelSum::has_times)
    }

    /// Returns the number of recorded kernels, both in iterations and between them. Kernels in iterations that the
    /// report's figures leave out do not count.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.totals.iter().map(|kernel| kernel.count).sum()
    }

    /// Returns the share of recorded kernels that began between iterations, as a fraction. If an
    /// iteration is a call of a function or a range, the work that it launches may run after the
    /// iteration's end.
    #[must_use]
    pub fn between_iterations(&self) -> f64 {
        let within = self.window.as_ref().map_or(0, |sum| sum.kernels);
        self.count().saturating_sub(within) as f64 / self.count().max(1) as f64
    }

    /// Returns a kernel's share of the total time of all kernels, as a fraction.
    #[must_use]
    pub fn share(&self, kernel: &KernelTotal) -> f64 {
        kernel.total as f64 / self.time.max(1) as f64
    }
}

/// Results of [`KernelTally`](super::KernelTally), which adds up the recorded kernels and copies.
#[derive(Debug, Default)]
pub(crate) struct Tallied {
    pub kernels: Kernels,
    /// For each iteration, its number of kernels and its GPU busy time. Empty if the record has no GPU work and no
    /// window in which kernels were to be recorded.
    pub iterations: Vec<InKernels>,
    /// The work of the GPU that was busy longest in the iterations with recorded kernels; `None` if
    /// no GPU worked.
    pub busiest: Option<DeviceActivity>,
    /// For each iteration, its index among the iterations that have recorded kernels and that the report's figures
    /// include; `None` for other iterations.
    pub numbers: Vec<Option<u32>>,
    pub left_out: u64,
}

impl Tallied {
    /// Removes the results if no kernel and no copy was recorded although the times in `gpu` show that the GPU was
    /// busy. The kernels are then missing from the record, so a report of zero kernels would be wrong. `gpu` contains
    /// the numbers of iterations whose GPU time CUDA events measured, each with that time.
    pub(crate) fn forget_missing(&mut self, raw: &[RawIteration], gpu: &[(u64, u64)]) {
        if !self.kernels.totals.is_empty() || !self.kernels.copies.is_empty() {
            return;
        }
        let works = |iteration: &RawIteration| {
            let at = gpu.binary_search_by_key(&iteration.n, |(n, _)| *n);
            at.is_ok_and(|at| gpu[at].1 > 0)
        };
        let taken = raw.iter().zip(&self.iterations);
        let taken = taken.filter(|(_, kernels)| kernels.busy.is_some());
        let missing = taken.filter(|(iteration, _)| works(iteration)).count();
        if missing > 0 {
            *self = Self::default();
            self.kernels.missing = missing as u64;
        }
    }
}
