//! The comparison of the collectives of several ranks, in the form in which it is written as JSON.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use crate::collectives::ROWS;
use crate::ledger::difference::Difference;
use crate::ranks::Rank;
use crate::ranks::arrivals::{
    Arrivals, Bound, ClockJump, CollectiveGroup, HostClock, StepSum, Sum,
};

/// The collectives of one process that have the same operation and library, found by their recorded kernels.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Collective")]
pub(crate) struct CollectiveSum {
    /// The operation and the library, such as `all-reduce (NCCL)`.
    name: String,
    /// The number of the process's collectives with this operation and library.
    #[schemars(extend("unit" = "collectives"))]
    count: u64,
    /// The number of collectives that were matched: found on all ranks of their group, in iterations that qualify. The
    /// first collective of a window is never matched.
    #[schemars(extend("unit" = "collectives"))]
    matched: u64,
    /// The time that the matched collectives took after the last rank had arrived; `null` if no collective was matched.
    transfer_ns: Option<u64>,
    /// The time that the matched collectives waited for the last rank to arrive; `null` if no collective was matched.
    wait_ns: Option<u64>,
    /// The time of the collectives that were not matched. `transfer_ns` and `wait_ns` do not include it.
    unmatched_ns: u64,
}

/// The collectives of several ranks compared with each other, in the iterations in which kernels were recorded. The
/// clocks of several hosts are aligned by the ends of collectives. A collective is *matched* if it was found on all
/// ranks of its group.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Collectives")]
pub(crate) struct ArrivalsView<'a> {
    /// The verdict on the time of the matched collectives.
    verdict: Bound,
    /// The reason why the verdict is inconclusive, in words; `null` for other verdicts.
    why: Option<&'a str>,
    /// The number of matched collectives. A collective counts once for each of its ranks.
    #[schemars(extend("unit" = "collectives"))]
    matched: u64,
    /// The time that the matched collectives waited for the last rank to arrive, summed over ranks.
    wait_ns: u64,
    /// The time that the matched collectives took after the last rank had arrived, summed over ranks.
    transfer_ns: u64,
    /// The time that a rank waits for the last rank in matched collectives, divided by the time of the iterations
    /// with recorded kernels. This share is the mean over ranks.
    #[schemars(extend("unit" = "part of 1"))]
    wait_share: f64,
    /// The time that the transfers of matched collectives take, divided by the time of the iterations with recorded
    /// kernels. This share is the mean over ranks.
    #[schemars(extend("unit" = "part of 1"))]
    transfer_share: f64,
    /// The groups of ranks that take part in the same collectives.
    groups: Vec<GroupView<'a>>,
    /// The clock of each host, compared with the clock of a reference host.
    clocks: &'a [HostClock],
    /// The jumps of clocks. Times before and after a jump are aligned separately.
    jumps: &'a [ClockJump],
    /// Notes on the collectives and ranks that are left out, with the reasons.
    notes: &'a [String],
    /// Sums over the matched collectives of each process, in the order of `processes`.
    ranks: Vec<RankView>,
    /// The iterations in which collectives were matched, in the order of their numbers.
    #[schemars(with = "Vec<StepView>")]
    iterations: StepRows<'a>,
}

/// A group of ranks that take part in the same collectives of one operation.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CollectiveGroup")]
struct GroupView<'a> {
    /// The operation and the library, such as `all-reduce (NCCL)`.
    name: &'a str,
    /// The name of the group: `TP`, `PP`, `EP`, `DP`, `world`, or `communicator` for an NCCL communicator without a
    /// name. `null` if the records do not name the group, and its ranks were found by the times of their collectives.
    group: Option<&'a str>,
    /// The number of ranks in the group, including ranks without a record; `null` if the records do not name the group.
    #[schemars(extend("unit" = "ranks"))]
    size: Option<u64>,
    /// The indexes in `processes` of the ranks of the group that have a record.
    processes: &'a [usize],
    /// The number of collectives of the group that were matched.
    #[schemars(extend("unit" = "collectives"))]
    events: u64,
    /// The time that the group's matched collectives waited for the last rank to arrive, summed over ranks.
    wait_ns: u64,
    /// The time that the group's matched collectives took after the last rank had arrived, summed over ranks.
    transfer_ns: u64,
}

/// The matched collectives of one rank.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RankInCollectives")]
struct RankView {
    /// The number of the rank's collectives that were matched.
    #[schemars(extend("unit" = "collectives"))]
    matched: u64,
    /// The time that the rank waited in matched collectives for the last rank to arrive.
    wait_ns: u64,
    /// The time that the rank's matched collectives took after the last rank had arrived.
    transfer_ns: u64,
    /// The number of iterations in which this rank delayed the other ranks longest, and by at least a hundredth of the
    /// iteration.
    #[schemars(extend("unit" = "iterations"))]
    last: u64,
    /// The time by which this rank arrived later than the median rank, summed over the collectives at which it arrived
    /// last.
    late_ns: u64,
    /// The time that the other ranks waited for this rank in the collectives at which it arrived last, summed over
    /// those ranks.
    lost_ns: u64,
    /// The mean duration of the iterations with matched collectives, over all ranks, without waits for requests.
    iteration_ns: u64,
    /// The mean duration that these iterations would have if this rank arrived at each collective together with the
    /// last of the other ranks.
    iteration_without_ns: u64,
    /// The causes of the rank's late arrivals, as times in addition to those of the median rank. The greatest cause
    /// comes first, and the unexplained time last.
    causes: Vec<Difference>,
}

/// The matched collectives of one iteration, over all ranks.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Arrival")]
struct StepView {
    /// The number of the iteration.
    n: u32,
    /// The verdict on the time of the iteration's collectives.
    verdict: Bound,
    /// The time that the iteration's collectives waited for the last rank to arrive, summed over ranks.
    wait_ns: u64,
    /// The time that the iteration's collectives took after the last rank had arrived, summed over ranks.
    transfer_ns: u64,
    /// The index in `processes` of the rank that delayed the other ranks longest; `null` if no rank delayed them by at
    /// least a hundredth of the iteration.
    last: Option<usize>,
    /// The time by which the iteration would have been shorter if the rank `last` had arrived together with the last of
    /// the other ranks; 0 if `last` is `null`.
    saved_ns: u64,
    /// The causes of the late arrivals of the rank `last`; empty if `last` is `null`.
    causes: Vec<Difference>,
    /// For each of `processes`, the time by which it arrived at the iteration's collectives later than the median rank;
    /// `null` for a process without matched collectives in the iteration.
    #[schemars(extend("unit" = "us"))]
    late: Vec<Option<u32>>,
}

/// The iterations, which are converted to JSON one by one to save memory.
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
    /// Returns the collectives of the process at the index `place`, with a row for each operation
    /// and library.
    pub(crate) fn of_process(
        process: &Rank<'_>,
        place: usize,
        arrivals: Option<&Arrivals>,
    ) -> Vec<Self> {
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
    pub(crate) fn new(arrivals: &'a Arrivals, each: bool) -> Self {
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
