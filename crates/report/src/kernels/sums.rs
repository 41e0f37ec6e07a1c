//! What kernels and copies come to.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use super::blocks::Blocks;
use crate::events::busy::Did;
use crate::events::iteration::InKernels;
use crate::events::raw::RawIteration;
use crate::print::json::known;

/// What GPUs ran where kernels were recorded.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Kernels {
    /// GPU kernels, by name, where kernels were recorded; the longest in all first.
    #[serde(rename = "kernels")]
    pub totals: Vec<KernelTotal>,
    /// How long those took in all.
    #[serde(skip)]
    pub time: u64,
    /// Copies and memory sets of the GPU, by kind, where kernels were recorded; the longest in all first.
    pub copies: Vec<CopyTotal>,
    /// The iterations in which kernels were recorded; `null`: there are none.
    #[serde(rename = "kernel_window")]
    pub window: Option<KernelSum>,
    /// Equal blocks of those kernels; `null`: there are none.
    pub blocks: Option<Blocks>,
    /// Iterations in which kernels were to be recorded and none was, though the GPU was at work.
    #[serde(skip)]
    pub missing: u64,
}

/// The kernels of one name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Kernel")]
pub struct KernelTotal {
    /// The demangled name, with parameters.
    pub name: String,
    /// The name without parameters and namespaces.
    pub short_name: String,
    /// How many ran.
    #[schemars(extend("unit" = "kernels"))]
    pub count: u64,
    /// How long they took in all; `null`: the driver did not say.
    #[serde(rename = "total_ns", serialize_with = "known")]
    #[schemars(with = "Option<u64>")]
    pub total: u64,
    /// How long the longest took; `null` likewise.
    #[serde(rename = "max_ns", serialize_with = "known")]
    #[schemars(with = "Option<u64>")]
    pub longest: u64,
    /// How long the shortest took; `null` likewise.
    #[serde(rename = "min_ns", serialize_with = "known")]
    #[schemars(with = "Option<u64>")]
    pub shortest: u64,
    /// What they took in all in each iteration where any of them began, by its place among those in
    /// which kernels were taken; `None` where that was too much to keep.
    #[serde(skip)]
    pub(crate) by_step: Option<Vec<(u32, u64)>>,
}

impl KernelTotal {
    /// How long each took on average.
    #[must_use]
    pub const fn mean(&self) -> u64 {
        match self.total.checked_div(self.count) {
            Some(mean) => mean,
            None => 0,
        }
    }
}

/// The copies of one kind, or all memory sets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Copy")]
pub struct CopyTotal {
    /// Such as `HtoD`; `memset` for memory sets.
    pub kind: String,
    /// How many there were.
    #[schemars(extend("unit" = "copies"))]
    pub count: u64,
    /// How long they took in all; `null`: the driver did not say.
    #[serde(rename = "total_ns", serialize_with = "known")]
    #[schemars(with = "Option<u64>")]
    pub total: u64,
    /// How much they moved or set in all.
    #[schemars(extend("unit" = "bytes"))]
    pub bytes: u64,
}

impl CopyTotal {
    /// Bytes a second; `None` where they took no time.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        (self.total > 0).then(|| self.bytes as f64 * 1e9 / self.total as f64)
    }
}

/// The iterations in which kernels were recorded, which makes them longer.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, JsonSchema)]
#[schemars(rename = "KernelWindow")]
pub struct KernelSum {
    /// How many there are.
    #[schemars(extend("unit" = "iterations"))]
    pub iterations: u64,
    /// How long they took in all.
    #[serde(rename = "wall_ns")]
    pub wall: u64,
    /// How long at least one kernel or copy ran in them, of the device where that is longest; `null`: the driver did not say
    /// when kernels ran.
    #[serde(rename = "busy_ns")]
    pub busy: Option<u64>,
    /// How long that device did nothing between two kernels or copies of one iteration; `null` likewise.
    #[serde(rename = "gaps_ns")]
    pub gaps: Option<u64>,
    /// Kernels that began in them.
    #[schemars(extend("unit" = "kernels"))]
    pub kernels: u64,
    /// Kernels and copies that are missing.
    pub dropped: u64,
    /// Where kernels were sampled (`--kernels=20@60s`): how; `null`: they were not.
    pub samples: Option<Samples>,
}

/// Windows that opened by themselves, again and again, to record kernels.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, JsonSchema)]
#[schemars(rename = "KernelSamples")]
pub struct Samples {
    /// How many samples there are.
    #[schemars(extend("unit" = "samples"))]
    pub count: u64,
    /// How many iterations each was to have.
    #[schemars(extend("unit" = "iterations"))]
    pub steps: u64,
    /// How long from the beginning of one to that of the next.
    #[serde(rename = "every_ns")]
    pub every: u64,
    /// How many other windows have kernels, which are in the same figures.
    #[schemars(extend("unit" = "windows"))]
    pub others: u64,
    /// All of that in words, as the report says it.
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
    /// A part of what the iterations took.
    #[must_use]
    pub fn share(&self, part: u64) -> f64 {
        (part as f64 / self.wall.max(1) as f64).min(1.0)
    }

    /// Whether it is known how long kernels took: a driver may say when none began or ended.
    #[must_use]
    pub const fn has_times(&self) -> bool {
        self.busy.is_some()
    }

    /// So many in each iteration.
    #[must_use]
    pub fn a_step(&self, count: u64) -> f64 {
        count as f64 / self.iterations.max(1) as f64
    }
}

impl Kernels {
    /// The number of iterations in which kernels were recorded.
    pub fn steps(&self) -> u64 {
        self.window.as_ref().map_or(0, |sum| sum.iterations)
    }

    /// Whether it is known how long kernels took in iterations: a driver may not say.
    #[must_use]
    pub fn has_times(&self) -> bool {
        self.window.as_ref().is_some_and(KernelSum::has_times)
    }

    /// A kernel's part of what all kernels took.
    #[must_use]
    pub fn share(&self, kernel: &KernelTotal) -> f64 {
        kernel.total as f64 / self.time.max(1) as f64
    }
}

/// What [`KernelTally`](super::KernelTally) comes to.
#[derive(Debug, Default)]
pub struct Tallied {
    pub kernels: Kernels,
    /// By iteration; empty where no kernels were taken.
    pub iterations: Vec<InKernels>,
    /// What the device did that was at work longest in the iterations that are inside.
    pub busiest: Option<Did>,
    /// Of each iteration, by its place, its number among those in which kernels were taken and that count.
    pub numbers: Vec<Option<u32>>,
    pub left_out: u64,
}

impl Tallied {
    /// Forgets iterations in which nothing was taken though the GPU was at work, as its times say: there kernels are
    /// unknown, and not none.
    pub fn forget_missing(&mut self, raw: &[RawIteration], gpu: &[(u64, u64)]) {
        if !self.kernels.totals.is_empty() || !self.kernels.copies.is_empty() {
            return;
        }
        let works = |iteration: &RawIteration| {
            let at = gpu.binary_search_by_key(&iteration.n, |(n, _)| *n);
            at.is_ok_and(|at| gpu[at].1 > 0)
        };
        let taken = raw.iter().zip(&self.iterations);
        let mut taken = taken.filter(|(_, kernels)| kernels.busy.is_some());
        if taken.any(|(iteration, _)| works(iteration)) {
            let missing = std::mem::take(self).kernels.steps();
            self.kernels.missing = missing;
        }
    }
}
