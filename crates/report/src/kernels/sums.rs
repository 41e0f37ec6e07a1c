//! What kernels and copies come to.

use std::fmt;

use crate::blocks::Blocks;
use crate::busy::Did;
use crate::first::RawIteration;
use crate::kernel_name;

/// The kernels of one name. Durations are in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelTotal {
    /// Demangled, with what it takes.
    pub name: String,
    pub count: u64,
    pub total: u64,
    pub longest: u64,
    pub shortest: u64,
    /// What they took in all in each iteration where any of them began, by its place among those in
    /// which kernels were taken; `None` where that was too much to keep.
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

    /// The name without what it takes and where it is: what people know it by.
    #[must_use]
    pub fn short_name(&self) -> String {
        kernel_name::short(&self.name)
    }
}

/// The copies of one kind, or all memory that was set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyTotal {
    /// `HtoD` and the like, or `memset`.
    pub kind: String,
    pub count: u64,
    /// In nanoseconds.
    pub total: u64,
    pub bytes: u64,
}

impl CopyTotal {
    /// Bytes a second; `None` where they took no time.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        (self.total > 0).then(|| self.bytes as f64 * 1e9 / self.total as f64)
    }
}

/// The iterations in which kernels were taken, of those that count.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct KernelSum {
    pub iterations: u64,
    /// How long at least one kernel or copy ran in them, of the device where that is longest, in
    /// nanoseconds.
    pub busy: u64,
    /// What they took without waiting for requests, in nanoseconds.
    pub wall: u64,
    /// Kernels that began in them.
    pub kernels: u64,
    /// Of that device: what lay between two pieces of work of the same iteration, in nanoseconds.
    pub gaps: u64,
    /// Kernels and copies that are missing.
    pub dropped: u64,
    /// Where they were sampled.
    pub samples: Option<Samples>,
}

/// Windows that opened by themselves, again and again, to take kernels.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Samples {
    pub count: u64,
    /// How many iterations each was to have.
    pub steps: u64,
    /// From one beginning to the next, in nanoseconds.
    pub every: u64,
    /// How many other windows have kernels, which are in the same sums.
    pub others: u64,
}

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = |count| if count == 1 { "" } else { "s" };
        let Self { count, steps, .. } = *self;
        let seconds = self.every as f64 / 1e9;
        write!(
            f,
            "{steps} step{} each {seconds} s, {count} sample{}",
            s(steps),
            s(count)
        )?;
        match self.others {
            0 => Ok(()),
            others => write!(f, " and {others} other window{}", s(others)),
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
        self.busy > 0 || self.kernels == 0
    }

    /// So many in each iteration.
    #[must_use]
    pub fn a_step(&self, count: u64) -> f64 {
        count as f64 / self.iterations.max(1) as f64
    }
}

/// Of an iteration: the kernels that began in it, and what the GPU was at work if they were taken.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct InKernels {
    pub kernels: u32,
    pub busy: Option<u64>,
}

/// What [`KernelTally`] comes to.
#[derive(Debug, Default)]
pub struct Kernels {
    /// By iteration; empty where no kernels were taken.
    pub iterations: Vec<InKernels>,
    /// The longest in all first.
    pub totals: Vec<KernelTotal>,
    pub copies: Vec<CopyTotal>,
    pub sum: Option<KernelSum>,
    /// What the device did that was at work longest in the iterations that are inside.
    pub busiest: Option<Did>,
    /// Blocks of kernels that repeat in these iterations.
    pub blocks: Option<Blocks>,
    /// Of each iteration, by its place, its number among those in which kernels were taken and that count.
    pub numbers: Vec<Option<u32>>,
    pub left_out: u64,
}

impl Kernels {
    /// Forgets iterations in which nothing was taken though the GPU was at work, as its times say: there kernels are
    /// unknown, and not none. How many they are.
    pub fn missing(&mut self, raw: &[RawIteration], gpu: &[(u64, u64)]) -> u64 {
        if !self.totals.is_empty() || !self.copies.is_empty() {
            return 0;
        }
        let works = |iteration: &RawIteration| {
            let at = gpu.binary_search_by_key(&iteration.n, |(n, _)| *n);
            at.is_ok_and(|at| gpu[at].1 > 0)
        };
        let taken = raw.iter().zip(&self.iterations);
        let mut taken = taken.filter(|(_, kernels)| kernels.busy.is_some());
        if !taken.any(|(iteration, _)| works(iteration)) {
            return 0;
        }
        let sum = std::mem::take(self).sum;
        sum.map_or(0, |sum| sum.iterations)
    }
}
