//! The series of iteration times, launches and batches of a process, from which a comparison
//! computes its figures.

use std::collections::BTreeSet;

use tllmprof_record::Batch;

use crate::events::iteration::GpuFrom;
use crate::events::iteration::Iteration;
use crate::events::window::Window;
use crate::numbers::bootstrap::Statistic;
use crate::process::Process;

/// A class of iterations that are compared with each other. Recording kernels makes iterations
/// longer, so iterations with and without recorded kernels are separate classes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IterationClass {
    WithoutKernels,
    WithKernels,
    All,
}

/// Series of values of a process's iterations. Each list has one entry per iteration, in the iterations' order. In a
/// series of GPU times ([`Gpu::pace`]), `periods` and `launches` are empty. Times are in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Time from each iteration's start to the next iteration's start, without waits for requests.
    /// If the next iteration is missing or of another class, the entry is the iteration's duration.
    pub periods: Vec<f64>,
    pub durations: Vec<f64>,
    /// Number of launches of each iteration.
    pub launches: Vec<f64>,
    /// The batch of each iteration, or `None` if it is unknown.
    pub batches: Vec<Option<Batch>>,
}

impl IterationClass {
    fn has(self, iteration: &Iteration) -> bool {
        match self {
            Self::WithoutKernels => iteration.gpu_busy.is_none(),
            Self::WithKernels => iteration.gpu_busy.is_some(),
            Self::All => true,
        }
    }
}

impl Pace {
    pub(crate) fn new(process: &Process, which: IterationClass) -> Self {
        let mut pace = Self::default();
        for window in &process.windows {
            let mut before: Option<&Iteration> = None;
            for (place, iteration) in window.iterations.iter().enumerate() {
                // Skip an iteration without recorded kernels that directly follows one with
                // recorded kernels: switching the recording off delays the second iteration.
                let is_disturbed = which == IterationClass::WithoutKernels
                    && before.is_some_and(|before| before.gpu_busy.is_some());
                before = Some(iteration);
                if iteration.cut || is_disturbed || !which.has(iteration) || !iteration.qualifies()
                {
                    continue;
                }
                let next = window.iterations.get(place + 1);
                let next = next.filter(|next| {
                    next.n == iteration.n.saturating_add(1) && which.has(next) && next.qualifies()
                });
                let period = next.map(|next| next.start.saturating_sub(iteration.start));
                // Subtract the time in which the engine waited for requests.
                let period = period.map(|period| period.saturating_sub(iteration.idle));
                pace.periods.push(period.unwrap_or(iteration.busy()) as f64);
                pace.durations.push(iteration.busy() as f64);
                pace.launches.push(f64::from(iteration.launches));
                pace.batches.push(iteration.batch);
            }
        }
        pace
    }

    /// Returns the mean time from one iteration's start to the next iteration's start, in
    /// nanoseconds; 0 if there are no iterations.
    pub(crate) fn period(&self) -> f64 {
        self.periods.iter().sum::<f64>() / self.periods.len().max(1) as f64
    }

    /// Returns the number of iterations per second.
    pub(crate) fn rate(&self) -> f64 {
        let time: f64 = self.periods.iter().sum();
        if time > 0.0 {
            self.periods.len() as f64 * 1e9 / time
        } else {
            0.0
        }
    }
}

/// GPU times of a process's iterations. These GPU times may be compared only with GPU times measured by the
/// same method (`from`).
#[derive(Debug)]
pub(crate) struct Gpu {
    pub from: GpuFrom,
    /// True if GPU time is missing for some of the iterations in which the method `from` could have measured it.
    is_sampled: bool,
    /// The numbers of the iterations that have a GPU time.
    numbers: Vec<u64>,
    /// The series of the iterations in `numbers`. Its `durations` are the GPU times, and its `batches` are the batches
    /// of these iterations. Its other lists are empty.
    pub pace: Pace,
}

impl Gpu {
    pub(crate) fn new(process: &Process) -> Option<Self> {
        let from = process.sum.as_ref()?.gpu_from;
        let of_kind = |one: &&Iteration| from != GpuFrom::Plain || one.gpu_busy.is_none();
        let mut gpu = Self {
            from,
            is_sampled: false,
            numbers: Vec::new(),
            pace: Pace::default(),
        };
        for iteration in whole(process).filter(of_kind) {
            match from.time(iteration) {
                Some(ns) => {
                    gpu.numbers.push(iteration.n);
                    gpu.pace.durations.push(ns as f64);
                    gpu.pace.batches.push(iteration.batch);
                }
                None => gpu.is_sampled = true,
            }
        }
        (!gpu.numbers.is_empty()).then_some(gpu)
    }

    fn only(&mut self, numbers: &BTreeSet<u64>) {
        let is_in: Vec<_> = self.numbers.iter().map(|n| numbers.contains(n)).collect();
        let keep = |place: usize| is_in[place];
        retain(&mut self.numbers, keep);
        retain(&mut self.pace.durations, keep);
        retain(&mut self.pace.batches, keep);
    }
}

fn retain<T>(all: &mut Vec<T>, keep: impl Fn(usize) -> bool) {
    let mut place = 0;
    all.retain(|_| {
        place += 1;
        keep(place - 1)
    });
}

/// Makes the GPU times of two runs comparable. If some iterations lack a GPU time, the function keeps only the
/// iterations whose number has a GPU time in both runs, because iterations with different numbers may do different
/// work. Returns false, and changes nothing, if too few iterations would remain.
pub(crate) fn alike(sides: &mut [Gpu; 2]) -> bool {
    if !sides.iter().any(|side| side.is_sampled) {
        return true;
    }
    let [base, other] = sides
        .each_ref()
        .map(|side| side.numbers.iter().copied().collect::<BTreeSet<_>>());
    let both: BTreeSet<_> = base.intersection(&other).copied().collect();
    let is_enough = both.len() >= Statistic::Mean.least();
    if is_enough {
        sides.iter_mut().for_each(|side| side.only(&both));
    }
    is_enough
}

/// Returns, for each iteration with recorded kernels, the time in which at least one kernel or copy ran, in
/// nanoseconds. The list is empty if the driver did not report when kernels began and ended.
pub(crate) fn busy(process: &Process) -> Vec<f64> {
    let has_times = process.kernels.has_times();
    whole(process)
        .filter_map(|iteration| iteration.gpu_busy.filter(|_| has_times))
        .map(|ns| ns as f64)
        .collect()
}

fn whole(process: &Process) -> impl Iterator<Item = &Iteration> {
    let all = process.windows.iter().flat_map(Window::qualified);
    all.filter(|iteration| !iteration.cut)
}
