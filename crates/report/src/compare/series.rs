//! The series of values in a run that a measure is computed from.

use tllmprof_record::Phase;

use super::pace::{self, Gpu, Pace};
use crate::events::iteration::GpuFrom;
use crate::numbers::bootstrap::Statistic;
use crate::process::Process;

/// A series of values of iterations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Series {
    /// The periods of iterations. The measure is their rate, the inverse of the mean period.
    Rate,
    Durations,
    Launches,
    /// Durations of the iterations whose batch is in this phase.
    Phase(Phase),
    /// GPU times that were measured by this method. Times from different methods are not
    /// comparable.
    Gpu(GpuFrom),
    /// Time in which at least one kernel ran, for each iteration.
    Busy,
}

impl Series {
    /// Returns the statistic over the values of one run, or `None` if the run has no such values.
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
