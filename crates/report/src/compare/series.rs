//! The series of values in a run from which a measured quantity is computed.

use tllmprof_record::Phase;

use super::pace::{self, Gpu, Pace};
use crate::events::iteration::GpuFrom;
use crate::numbers::bootstrap::Statistic;
use crate::process::Process;

/// A series with one value for each iteration. Some series have values only for a part of the iterations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Series {
    /// The times from one iteration's start to the next. The quantity computed from them is the
    /// rate, the inverse of their mean.
    Rate,
    Durations,
    Launches,
    /// Durations of the iterations whose batch is in the given phase.
    Phase(Phase),
    /// GPU times of iterations, measured by the given method. Times from different methods are not
    /// comparable.
    Gpu(GpuFrom),
    /// For each iteration with recorded kernels, the time in which at least one kernel or copy ran.
    Busy,
}

impl Series {
    /// Returns the statistic of this series for a run's process, or `None` if the process has no values in the series.
    /// For [`Self::Rate`], returns the number of iterations per second and ignores `statistic`.
    pub(crate) fn compute(
        self,
        statistic: Statistic,
        process: &Process,
        pace: &Pace,
    ) -> Option<f64> {
        let values = match self {
            Self::Rate => return Some(pace.rate()).filter(|rate| *rate > 0.0),
            Self::Durations => pace.durations.clone(),
            Self::Launches => pace.launches.clone(),
            Self::Phase(phase) => {
                let all = pace.durations.iter().zip(&pace.batches);
                let of_phase =
                    all.filter(|(_, batch)| batch.is_some_and(|one| one.phase() == phase));
                of_phase.map(|(duration, _)| *duration).collect()
            }
            Self::Gpu(from) => {
                Gpu::new(process)
                    .filter(|gpu| gpu.from == from)?
                    .pace
                    .durations
            }
            Self::Busy => pace::busy(process),
        };
        (!values.is_empty()).then(|| statistic.compute(&values))
    }
}
