//! The iterations of several ranks compared: the slowest rank in each iteration, and the time by which it exceeds the
//! other ranks.

use schemars::JsonSchema;
use serde::Serialize;

use crate::events::window::Window;
use crate::numbers::quantiles::Quantiles;
use crate::ranks::Rank;

/// A comparison of the durations of iterations between processes. Only iterations that at least two processes have are
/// compared, matched by their numbers. Iterations that did not reach their end are left out.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Skew {
    /// The distribution of the difference between the slowest and the fastest process, over the compared iterations.
    pub spread: Quantiles,
    /// For each of `processes`, the number of compared iterations that the process has.
    #[schemars(extend("unit" = "iterations"))]
    pub common: Vec<u64>,
    /// For each of `processes`, the number of compared iterations in which the process took longer than all other
    /// processes.
    #[schemars(extend("unit" = "iterations"))]
    pub slowest: Vec<u64>,
    /// The iterations, in the order of their numbers.
    #[serde(skip)]
    pub iterations: Vec<Step>,
}

/// One iteration that at least two processes have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "SkewStep")]
pub struct Step {
    /// The number of the iteration, which is the same in all compared processes.
    pub n: u64,
    /// The index in `processes` of the process that took longest. If several took equally long, it is one of them.
    pub slowest: usize,
    /// The index in `processes` of the process that took the least time.
    pub fastest: usize,
    /// The duration of the iteration on the slowest process.
    #[serde(rename = "dur_ns")]
    pub duration: u64,
    /// The duration on the slowest process minus the duration on the fastest process.
    #[serde(rename = "spread_ns")]
    pub spread: u64,
    /// Time that the slowest process took beyond the slowest of the other processes, in nanoseconds.
    #[serde(skip)]
    pub ahead: u64,
}

/// A comparison of the durations of iterations between processes. Only iterations that at least two processes have are
/// compared, matched by their numbers. Iterations that did not reach their end are left out.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Skew")]
pub(crate) struct SkewView<'a> {
    #[serde(flatten)]
    skew: &'a Skew,
    /// The compared iterations, in the order of their numbers.
    iterations: &'a [Step],
}

impl<'a> SkewView<'a> {
    /// Returns the skew in the form for JSON. The single iterations are included only if `each` is
    /// true, because there may be a million.
    pub(crate) fn new(skew: &'a Skew, each: bool) -> Self {
        let iterations = if each { &skew.iterations[..] } else { &[] };
        Self { skew, iterations }
    }
}

impl Skew {
    /// Returns the index of the process that was the slowest in the most iterations, and the number of
    /// these iterations; `None` if no process was ever the slowest.
    #[must_use]
    pub fn most_often(&self) -> Option<(usize, u64)> {
        let often = self.slowest.iter().copied().enumerate();
        let often = often.filter(|(_, often)| *often > 0);
        often.max_by_key(|(_, often)| *often)
    }

    /// Returns two times in nanoseconds. The first is the sum of the slowest process's time in each of `iterations`.
    /// The second is the part of that sum that would be saved if the process at the index `place` were never slower
    /// than the slowest of the other processes.
    #[must_use]
    pub fn saved(&self, place: usize) -> (u64, u64) {
        let steps = self.iterations.iter();
        steps.fold((0, 0), |(all, saved), step| {
            let ahead = if step.slowest == place { step.ahead } else { 0 };
            (all + step.duration, saved + ahead)
        })
    }

    /// Compares the iterations of processes. Returns `None` if there is no iteration that at least
    /// two processes have in common.
    pub fn find(processes: &[Rank<'_>]) -> Option<Self> {
        let mut all: Vec<(u64, u64, usize)> = Vec::new();
        for (place, process) in processes.iter().enumerate() {
            let iterations = process.windows.iter().flat_map(Window::qualified);
            // Leave out an iteration that was cut off, because its time says nothing about the
            // rank's speed.
            let whole = iterations.filter(|iteration| !iteration.cut);
            all.extend(whole.map(|iteration| (iteration.n, iteration.busy(), place)));
        }
        all.sort_unstable();
        let [mut common, mut slowest] = [(); 2].map(|()| vec![0; processes.len()]);
        let mut iterations = Vec::new();
        for same in all.chunk_by(|a, b| a.0 == b.0) {
            let (Some(short), Some(long)) = (same.first(), same.last()) else {
                continue;
            };
            if same.iter().all(|other| other.2 == short.2) {
                continue;
            }
            let mut places: Vec<_> = same.iter().map(|one| one.2).collect();
            places.sort_unstable();
            places.dedup();
            places.into_iter().for_each(|place| common[place] += 1);
            let others = same.iter().rev().find(|other| other.2 != long.2);
            // If several processes took equally long, none of them is counted as the slowest.
            let is_slowest = others.is_some_and(|other| other.1 < long.1);
            slowest[long.2] += u64::from(is_slowest);
            iterations.push(Step {
                n: long.0,
                slowest: long.2,
                fastest: short.2,
                duration: long.1,
                spread: long.1 - short.1,
                ahead: long.1 - others.map_or(long.1, |other| other.1),
            });
        }
        let spread = Quantiles::from_values(iterations.iter().map(|step| step.spread))?;
        Some(Self {
            common,
            slowest,
            spread,
            iterations,
        })
    }
}
