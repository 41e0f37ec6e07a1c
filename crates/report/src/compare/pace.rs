//! How fast a process went: the series of its iterations that are compared.

use tllmprof_record::Batch;

use crate::iteration::Iteration;
use crate::process::Process;
use crate::sum::GpuFrom;
use crate::window::Window;

/// Iterations of two processes that may be compared. The taking of kernels makes them longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    WithoutKernels,
    WithKernels,
    All,
}

/// Series of some iterations of a process, in nanoseconds, in their order.
#[derive(Debug, Default)]
pub struct Pace {
    /// From the start of each to that of the next, where that follows at once.
    pub periods: Vec<f64>,
    pub durations: Vec<f64>,
    /// What was in the batch of each.
    pub batches: Vec<Option<Batch>>,
}

impl Which {
    fn has(self, iteration: &Iteration) -> bool {
        match self {
            Self::WithoutKernels => iteration.gpu_busy.is_none(),
            Self::WithKernels => iteration.gpu_busy.is_some(),
            Self::All => true,
        }
    }
}

impl Pace {
    pub fn of(process: &Process, which: Which) -> Self {
        let mut pace = Self::default();
        for window in &process.windows {
            let mut before: Option<&Iteration> = None;
            for (place, iteration) in window.iterations.iter().enumerate() {
                // The end of the taking of kernels falls between two iterations.
                let is_disturbed = which == Which::WithoutKernels
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
                // Waiting for requests is no work.
                let period = period.map(|period| period.saturating_sub(iteration.idle));
                pace.periods.push(period.unwrap_or(iteration.busy()) as f64);
                pace.durations.push(iteration.busy() as f64);
                pace.batches.push(iteration.batch);
            }
        }
        pace
    }

    /// Iterations a second.
    pub fn rate(&self) -> f64 {
        let time: f64 = self.periods.iter().sum();
        if time > 0.0 {
            self.periods.len() as f64 * 1e9 / time
        } else {
            0.0
        }
    }
}

/// GPU times of a process's iterations that can be held against those of one measured the same way.
pub fn gpu(process: &Process) -> Option<(GpuFrom, Vec<f64>)> {
    let from = process.sum.as_ref()?.gpu_from;
    let times: Vec<_> = whole(process)
        .filter_map(|iteration| from.time(iteration))
        .map(|ns| ns as f64)
        .collect();
    (!times.is_empty()).then_some((from, times))
}

/// What kernels kept the GPU busy, in iterations where they were taken.
pub fn busy(process: &Process) -> Vec<f64> {
    whole(process)
        .filter_map(|iteration| iteration.gpu_busy)
        .map(|ns| ns as f64)
        .collect()
}

fn whole(process: &Process) -> impl Iterator<Item = &Iteration> {
    let all = process.windows.iter().flat_map(Window::qualified);
    all.filter(|iteration| !iteration.cut)
}
