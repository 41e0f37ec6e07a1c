//! The slowest iterations of a record, and how they differ from the other iterations.

use std::cmp::Reverse;
use std::collections::HashMap;

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_record::{Batch, Clock, Strings};

use crate::events::batch::{InBatch, write_batch};
use crate::events::causes::{Cause, Overlap, SlowestIterations};
use crate::events::facts::{Facts, name, range_name};
use crate::events::qualify::Qualified;
use crate::events::raw::RawIteration;
use crate::events::tally::Totals;
use crate::ledger::difference::Difference;
use crate::numbers::quantiles::Quantiles;

/// Maximum number of slow iterations that are analyzed.
const MAX_SLOWEST: usize = 10;

/// Maximum number of overlapping activities that are reported for a slow iteration.
const MAX_OVERLAPS: usize = 8;

/// A slow iteration, with the activities that overlapped it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Slow {
    /// The number of the iteration in the process, counted from 0.
    pub n: u64,
    /// The time at which the iteration began.
    #[serde(rename = "start_ns")]
    pub start: u64,
    /// The duration of the iteration.
    #[serde(rename = "dur_ns")]
    pub duration: u64,
    /// The batch that the iteration worked on; `null` if it is not known.
    #[serde(serialize_with = "write_batch")]
    #[schemars(with = "Option<InBatch>")]
    pub batch: Option<Batch>,
    /// True if the iteration's batch has far more tokens than the batches of other iterations.
    #[serde(skip)]
    pub is_large: bool,
    /// The part of `dur_ns` in which the iteration's thread waited for requests.
    #[serde(rename = "idle_ns")]
    pub idle: u64,
    /// The time by which the iteration was longer than the mean of the other iterations, without waits for requests.
    /// Iterations in which kernels were recorded are compared only with each other, because recording makes them
    /// longer.
    #[serde(rename = "more_ns")]
    pub more: i64,
    /// The causes of the extra time `more_ns`. Their times add up to `more_ns`. The greatest cause comes first, and the
    /// unexplained time last.
    pub causes: Vec<Difference>,
    /// Up to 8 activities that overlapped the iteration. They are sorted by the time by which their overlap
    /// exceeds their mean overlap with an iteration, the largest first.
    pub overlaps: Vec<SlowCause>,
}

/// The type of an activity that overlapped a slow iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "OverlapKind")]
pub enum CauseKind {
    /// A garbage collection of Python ran, on any thread.
    Gc,
    /// The iteration's thread waited for Python's global interpreter lock (GIL).
    GilWait,
    /// Another thread held the GIL.
    GilHold,
    /// The iteration's thread was in a CUDA call that waits for the GPU.
    Wait,
    /// A marked Python function ran on the iteration's thread.
    Function,
    /// An NVTX range of the program was open on the iteration's thread.
    Range,
}

/// An activity that overlapped a slow iteration.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Overlap")]
pub struct SlowCause {
    /// The type of the activity, such as `gc` for a garbage collection of Python.
    pub kind: CauseKind,
    /// The name of the activity: of the CUDA call, of the function or range, of the thread that held the GIL, or of the
    /// generation that was collected.
    pub name: String,
    /// The number of times that the activity overlapped the iteration.
    #[schemars(extend("unit" = "times"))]
    pub count: u64,
    /// The total time for which the activity overlapped the iteration.
    #[serde(rename = "ns")]
    pub time: u64,
    /// The mean time for which the activity overlaps an iteration.
    #[serde(rename = "usual_ns")]
    pub usual: u64,
}

impl Slow {
    /// Stores the extra time and its causes. If the iteration's batch is far larger than other
    /// batches, the batch is named as the reason for more GPU work.
    pub fn explain(&mut self, (more, mut causes): (i64, Vec<Difference>)) {
        let batch = self.batch.filter(|_| self.is_large);
        let work = causes.iter_mut().find(|cause| cause.is_work());
        if let (Some(batch), Some(work)) = (batch, work) {
            let large = format!("{} of {} tokens", batch.phase().name(), batch.tokens);
            let details = [Some(large), work.detail.take()];
            work.detail = Some(details.into_iter().flatten().collect::<Vec<_>>().join(", "));
        }
        (self.more, self.causes) = (more, causes);
    }

    /// Returns the iteration's duration without waits for requests, in nanoseconds.
    #[must_use]
    pub const fn busy(&self) -> u64 {
        self.duration.saturating_sub(self.idle)
    }

    /// Returns the name of the thread that held the GIL longer than usual during this iteration; `None` if no thread
    /// did. If several threads did, returns the one with the largest additional time.
    pub fn holder(&self) -> Option<&str> {
        let mut overlaps = self.overlaps.iter();
        let holds = |cause: &&SlowCause| cause.kind == CauseKind::GilHold && cause.beyond() > 0;
        overlaps.find(holds).map(|cause| &*cause.name)
    }
}

impl SlowCause {
    /// Returns the time in nanoseconds by which the activity's overlap with this iteration exceeds its mean
    /// overlap with an iteration; 0 if the overlap is shorter than the mean.
    pub const fn beyond(&self) -> u64 {
        self.time.saturating_sub(self.usual)
    }
}

/// Returns the indexes of the slowest of the iterations that the report's figures include: those that exceed the
/// median of comparable iterations the most. `taken` returns true for iterations with recorded kernels. These are
/// longer, so iterations with and without recorded kernels are not compared with each other.
pub(crate) fn slowest(
    iterations: &[RawIteration],
    qualified: &Qualified,
    taken: impl Fn(&RawIteration) -> bool,
) -> Vec<usize> {
    let places = 0..iterations.len();
    let (with, without): (Vec<_>, Vec<_>) = places
        .filter(|place| qualified.has(*place))
        .partition(|place| taken(&iterations[*place]));
    let beyond = |places: Vec<usize>| {
        let times = places.iter().map(|place| iterations[*place].busy());
        let usual = Quantiles::from_values(times).map_or(0, |times| times.p50);
        let beyond = move |place: usize| iterations[place].busy() as i64 - usual as i64;
        places.into_iter().map(move |place| (beyond(place), place))
    };
    let mut all: Vec<_> = beyond(with).chain(beyond(without)).collect();
    if all.len() > MAX_SLOWEST {
        all.select_nth_unstable_by_key(MAX_SLOWEST, |one| Reverse(*one));
        all.truncate(MAX_SLOWEST);
    }
    all.into_iter().map(|(_, place)| place).collect()
}

/// Ratio of a batch's number of tokens to the mean number of tokens of all batches. A batch above this ratio is called
/// large.
pub(crate) const LARGE_BATCH_RATIO: u64 = 2;

/// The iterations of a record, in the order of their starts, with their batches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps<'a> {
    pub iterations: &'a [RawIteration],
    /// The batch of each iteration; `None` if it is not known.
    pub batches: &'a [Option<Batch>],
    pub qualified: &'a Qualified,
}

/// Returns the slowest iterations with the activities that overlapped them, the slowest first.
pub(crate) fn slow(
    steps: Steps<'_>,
    watched: SlowestIterations,
    totals: &Totals,
    facts: &Facts,
    strings: &Strings,
    clock: &Clock,
) -> Vec<Slow> {
    let Steps {
        iterations,
        batches,
        qualified,
    } = steps;
    let counted = (0..iterations.len()).filter(|place| qualified.has(*place));
    let count = counted.clone().count().max(1) as u64;
    let known: Vec<_> = counted
        .filter_map(|place| batches.get(place).copied().flatten())
        .map(|batch| u64::from(batch.tokens))
        .collect();
    let mean = known.iter().sum::<u64>() / known.len().max(1) as u64;
    let mut slow: Vec<_> = watched
        .found()
        .filter_map(|(place, found)| {
            let raw = iterations.get(place)?;
            let ns = |ticks| clock.duration_ns(raw.start, ticks);
            let usual = |cause| ns(totals.spent(cause) / count);
            let batch = batches.get(place).copied().flatten();
            Some(Slow {
                n: raw.n,
                start: clock.ns(raw.start),
                duration: ns(raw.duration),
                batch,
                is_large: batch
                    .is_some_and(|batch| u64::from(batch.tokens) > LARGE_BATCH_RATIO * mean),
                idle: ns(raw.idle),
                overlaps: overlaps(&found, facts, strings, &ns, &usual),
                more: 0,
                causes: Vec::new(),
            })
        })
        .collect();
    slow.sort_by_key(|slow| Reverse(slow.busy()));
    slow
}

fn overlaps(
    found: &HashMap<Cause, Overlap>,
    facts: &Facts,
    strings: &Strings,
    ns: &impl Fn(u64) -> u64,
    usual: &impl Fn(Cause) -> u64,
) -> Vec<SlowCause> {
    let mut causes: Vec<_> = found
        .iter()
        .map(|(cause, overlap)| {
            let (kind, name) = match *cause {
                Cause::Gc(generation) => (CauseKind::Gc, format!("GC gen{generation}")),
                Cause::GilWait => (CauseKind::GilWait, "GIL wait".to_owned()),
                Cause::GilHold(thread) => (CauseKind::GilHold, facts.thread(thread)),
                Cause::Wait(row) => (CauseKind::Wait, facts.call(row)),
                Cause::Function(id) => (CauseKind::Function, name(strings.get(id))),
                Cause::Range(domain, name) => (CauseKind::Range, range_name(strings, domain, name)),
            };
            let (count, time, usual) = (overlap.count, ns(overlap.ticks), usual(*cause));
            SlowCause {
                kind,
                name,
                count,
                time,
                usual,
            }
        })
        .collect();
    causes.sort_by(|a, b| {
        b.beyond()
            .cmp(&a.beyond())
            .then_with(|| a.name.cmp(&b.name))
    });
    causes.truncate(MAX_OVERLAPS);
    causes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_batch_is_why_the_gpu_has_more_to_do() {
        let difference = |cause: &str, more, detail: Option<&str>| Difference {
            cause: cause.to_owned(),
            detail: detail.map(str::to_owned),
            held_by: None,
            more,
        };
        let details = |is_large, differences: &[Difference]| -> Vec<_> {
            let mut slow = Slow {
                n: 1,
                start: 0,
                duration: 100,
                batch: Batch::new(2, 900, 900),
                is_large,
                idle: 0,
                overlaps: Vec::new(),
                more: 0,
                causes: Vec::new(),
            };
            slow.explain((60, differences.to_vec()));
            assert_eq!((slow.more, slow.causes.len()), (60, differences.len()));
            slow.causes.into_iter().map(|cause| cause.detail).collect()
        };
        let large = || Some("prefill of 900 tokens".to_owned());
        let gc = difference("GC", 20, None);
        let work = difference("GPU work", 40, None);
        assert_eq!(details(true, &[work.clone(), gc.clone()]), [large(), None]);
        assert_eq!(details(false, &[work]), [None]);
        assert_eq!(details(true, &[gc]), [None]);
        assert_eq!(details(true, &[difference("GPU work", -5, None)]), [None]);
        let wait = difference("waiting for the GPU: cuStreamSynchronize", 9, None);
        assert_eq!(details(true, &[wait]), [large()]);
        let launches = difference("GPU work", 40, Some("65 launches"));
        let both = large().map(|large| large + ", 65 launches");
        assert_eq!(details(true, &[launches]), [both]);
    }
}
