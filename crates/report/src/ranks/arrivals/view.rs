//! The collectives of several ranks as JSON.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use crate::collectives::ROWS;
use crate::ledger::difference::Difference;
use crate::ranks::Rank;
use crate::ranks::arrivals::{
    Arrivals, Bound, ClockJump, CollectiveGroup, HostClock, StepSum, Sum,
};

/// The collectives of one operation of one library, found by the kernels in the record.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Collective")]
pub struct CollectiveSum {
    /// The operation and the library, such as `all-reduce (NCCL)`.
    name: String,
    /// The number of collectives.
    #[schemars(extend("unit" = "collectives"))]
    count: u64,
    /// The number of them that were found on all ranks of their group, in iterations that qualify. The first one of a
    /// window is never matched.
    #[schemars(extend("unit" = "collectives"))]
    matched: u64,
    /// The time that the matched ones took after the last rank had arrived; `null` if none was matched.
    transfer_ns: Option<u64>,
    /// The time that the matched ones waited for the last rank; `null` if none was matched.
    wait_ns: Option<u64>,
    /// The time of the collectives that were not matched. It is in neither of the other two times.
    unmatched_ns: u64,
}

/// The collectives of several ranks together, in the iterations in which kernels were recorded. The clocks of several
/// hosts are aligned by the ends of collectives.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Collectives")]
pub struct ArrivalsView<'a> {
    /// The verdict on the time of the collectives.
    verdict: Bound,
    /// The reason why the verdict is inconclusive; `null` if it is not.
    why: Option<&'a str>,
    /// The number of collectives that were matched, each counted on each rank.
    #[schemars(extend("unit" = "collectives"))]
    matched: u64,
    /// The time that they waited for the last rank, summed over ranks.
    wait_ns: u64,
    /// The time that they took after that, summed over ranks.
    transfer_ns: u64,
    /// The mean share of these iterations' time that ranks wait.
    #[schemars(extend("unit" = "part of 1"))]
    wait_share: f64,
    /// The mean share of the same time that transfers take.
    #[schemars(extend("unit" = "part of 1"))]
    transfer_share: f64,
    /// Groups of ranks whose collectives of one kind are the same events.
    groups: Vec<GroupView<'a>>,
    /// The clock of each host.
    clocks: &'a [HostClock],
    /// Clocks that jump. Moments before and after a jump are aligned separately.
    jumps: &'a [ClockJump],
    /// Notes on what is left out, and why.
    notes: &'a [String],
    /// The collectives of each of `processes`.
    ranks: Vec<RankView>,
    /// The iterations in which collectives were matched, in the order of their numbers.
    #[schemars(with = "Vec<StepView>")]
    iterations: StepRows<'a>,
}

/// Ranks whose collectives of one kind are the same events.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CollectiveGroup")]
struct GroupView<'a> {
    /// The operation and the library.
    name: &'a str,
    /// The ranks' group: `TP`, `PP`, `EP`, `DP`, `world`, or `communicator` for an NCCL communicator without a name;
    /// `null` if the records do not name it. Then the ranks were found by the times of their collectives.
    group: Option<&'a str>,
    /// The number of ranks in that group, including those without a record; `null` if the records do not name the
    /// group.
    #[schemars(extend("unit" = "ranks"))]
    size: Option<u64>,
    /// The indexes of its processes in `processes`.
    processes: &'a [usize],
    /// The number of collectives that they have in common.
    #[schemars(extend("unit" = "collectives"))]
    events: u64,
    /// The time that these waited for the last rank, summed over ranks.
    wait_ns: u64,
    /// The time that they took after that, summed over ranks.
    transfer_ns: u64,
}

/// The collectives of a rank.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RankInCollectives")]
struct RankView {
    /// The number of its collectives that were matched.
    #[schemars(extend("unit" = "collectives"))]
    matched: u64,
    /// The time that it waited in them for the last rank.
    wait_ns: u64,
    /// The time that they took after that.
    transfer_ns: u64,
    /// The number of iterations in which it held the others up longest, by at least a hundredth of the iteration.
    #[schemars(extend("unit" = "iterations"))]
    last: u64,
    /// The time by which it arrived later than the median rank, summed over the collectives that it reached last.
    late_ns: u64,
    /// The time that the others waited for it in those, summed over ranks.
    lost_ns: u64,
    /// The time of the mean iteration.
    iteration_ns: u64,
    /// The time that the mean iteration would take if this rank arrived at each collective together with the last of
    /// the others.
    iteration_without_ns: u64,
    /// Causes of its lateness, as differences from the median rank: the greatest first, and the unexplained part last.
    causes: Vec<Difference>,
}

/// The collectives of an iteration, over all ranks.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Arrival")]
struct StepView {
    /// The iteration's number.
    n: u32,
    /// The verdict on the time of its collectives.
    verdict: Bound,
    /// The time that ranks waited in them, summed over ranks.
    wait_ns: u64,
    /// The time that they took after that, summed over ranks.
    transfer_ns: u64,
    /// The index in `processes` of the rank that held the others up longest; `null` if none did by at least a hundredth
    /// of the iteration.
    last: Option<usize>,
    /// The time by which the iteration would have ended sooner if that rank had arrived together with the last of the
    /// others.
    saved_ns: u64,
    /// Causes of that rank's lateness.
    causes: Vec<Difference>,
    /// For each of `processes`, the time by which it arrived at these collectives later than the median rank; `null` if
    /// none of its collectives was matched.
    #[schemars(extend("unit" = "us"))]
    late: Vec<Option<u32>>,
}

/// The iterations, converted to JSON one by one to save memory.
#[derive(Debug)]
struct StepRows<'a>(Option<&'a Arrivals>);

impl Serialize for StepRows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let arrivals = self.0.into_iter();
        let all =
            arrivals.flat_map(|all| all.steps.iter().enumerate().map(move |step| (all, step)));
        serializer.collect_seq(all.map(|(all, (at, step))| StepView::new(all, at, step)))
    }
}

impl StepView {
    fn new(all: &Arrivals, at: usize, step: &StepSum) -> Self {
        Self {
            n: step.n,
            verdict: all.bound(step),
            wait_ns: step.sum.wait,
            transfer_ns: step.sum.transfer,
            last: step.last.map(|last| last.0),
            saved_ns: step.last.map_or(0, |last| last.1),
            causes: step.causes(),
            late: all.late(at).collect(),
        }
    }
}

impl CollectiveSum {
    /// Returns the collectives of the process at index `place`, a row for each operation and library.
    pub fn of_process(process: &Rank<'_>, place: usize, arrivals: Option<&Arrivals>) -> Vec<Self> {
        let of = |(row, (count, ns)): (u8, (u64, u64))| {
            let sum: Option<&Sum> = arrivals.and_then(|arrivals| arrivals.kind(place, row));
            Self {
                name: ROWS[usize::from(row)].label(),
                count,
                matched: sum.map_or(0, |sum| sum.count),
                transfer_ns: sum.map(|sum| sum.transfer),
                wait_ns: sum.map(|sum| sum.wait),
                unmatched_ns: sum.map_or(ns, |sum| ns.saturating_sub(sum.wait + sum.transfer)),
            }
        };
        process.collectives.kinds().into_iter().map(of).collect()
    }
}

impl<'a> ArrivalsView<'a> {
    pub fn new(arrivals: &'a Arrivals, each: bool) -> Self {
        Self {
            verdict: arrivals.verdict,
            why: Some(&*arrivals.why).filter(|why| !why.is_empty()),
            matched: arrivals.all.count,
            wait_ns: arrivals.all.wait,
            transfer_ns: arrivals.all.transfer,
            wait_share: arrivals.part(arrivals.all.wait),
            transfer_share: arrivals.part(arrivals.all.transfer),
            groups: arrivals.groups.iter().map(GroupView::new).collect(),
            clocks: &arrivals.clocks,
            jumps: &arrivals.jumps,
            notes: &arrivals.notes,
            ranks: (0..arrivals.ranks.len())
                .map(|place| RankView::new(arrivals, place))
                .collect(),
            iterations: StepRows(each.then_some(arrivals)),
        }
    }
}

impl<'a> GroupView<'a> {
    fn new(group: &'a CollectiveGroup) -> Self {
        Self {
            name: &group.name,
            group: group.group.as_ref().map(|group| &*group.name),
            size: group.group.as_ref().map(|group| group.size),
            processes: &group.processes,
            events: group.events,
            wait_ns: group.sum.wait,
            transfer_ns: group.sum.transfer,
        }
    }
}

impl RankView {
    fn new(arrivals: &Arrivals, place: usize) -> Self {
        let rank = &arrivals.ranks[place];
        let (now, then) = arrivals.step_without(place);
        Self {
            matched: rank.sum.count,
            wait_ns: rank.sum.wait,
            transfer_ns: rank.sum.transfer,
            last: rank.last,
            late_ns: rank.late,
            lost_ns: rank.lost,
            iteration_ns: now,
            iteration_without_ns: then,
            causes: arrivals.causes(place),
        }
    }
}
