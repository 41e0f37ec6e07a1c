//! The values of a run that a measure is computed of.

use tllmprof_record::Phase;

use super::pace::{self, Gpu, Pace};
use crate::events::iteration::GpuFrom;
use crate::numbers::bootstrap::Statistic;
use crate::process::Process;

/// A series of values of iterations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Series {
    /// The periods, of which the rate is the inverse.
    Rate,
    Durations,
    Launches,
    /// Durations of iterations whose batch is of this phase.
    Phase(Phase),
    /// GPU times that were measured in this way.
    Gpu(GpuFrom),
    /// Times in which a kernel ran.
    Busy,
}

impl Series {
    /// Returns the statistic of the values of one run; `None` if the run has none.
    pub fn compute(self, statistic: Statistic, process: &Process, pace: &Pace) -> Option<f64> {
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
