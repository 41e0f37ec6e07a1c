//! What the collectives of ranks show together, as JSON.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use crate::collectives::ROWS;
use crate::ledger::difference::Difference;
use crate::ranks::Rank;
use crate::ranks::arrivals::{
    Arrivals, Bound, ClockJump, CollectiveGroup, HostClock, StepSum, Sum,
};

/// The collectives of one operation of one library, by the kernels of the record.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Collective")]
pub struct CollectiveSum {
    /// The operation and the library, such as `all-reduce (NCCL)`.
    name: String,
    /// How many there are.
    #[schemars(extend("unit" = "collectives"))]
    count: u64,
    /// How many of them are known on all ranks of their group, and in iterations that qualify; the first one of a window is not.
    #[schemars(extend("unit" = "collectives"))]
    matched: u64,
    /// How long those took after the last rank had come; `null`: there are none.
    transfer_ns: Option<u64>,
    /// How long those waited for the last rank to come; `null` likewise.
    wait_ns: Option<u64>,
    /// How long the others took, which are left out of both.
    unmatched_ns: u64,
}

/// What the collectives of several ranks show together, in the iterations in which kernels were recorded. Moments of
/// several hosts are compared by the ends of collectives.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Collectives")]
pub struct ArrivalsView<'a> {
    /// What the time of the collectives is.
    verdict: Bound,
    /// Why it is inconclusive; `null`: it is not.
    why: Option<&'a str>,
    /// How many collectives were matched, each counted on each rank.
    #[schemars(extend("unit" = "collectives"))]
    matched: u64,
    /// How long they waited for the last rank, summed over ranks.
    wait_ns: u64,
    /// How long they took after that, summed over ranks.
    transfer_ns: u64,
    /// How much of the time of these iterations ranks wait, in the mean.
    #[schemars(extend("unit" = "part of 1"))]
    wait_share: f64,
    /// How much of the same time transfers take, in the mean.
    #[schemars(extend("unit" = "part of 1"))]
    transfer_share: f64,
    /// Ranks whose collectives of one kind are the same events.
    groups: Vec<GroupView<'a>>,
    /// The clock of each host.
    clocks: &'a [HostClock],
    /// Clocks that jump: moments before and after are aligned by themselves.
    jumps: &'a [ClockJump],
    /// What is left out, and why.
    notes: &'a [String],
    /// For each of `processes`.
    ranks: Vec<RankView>,
    /// The iterations in which collectives were matched, in the order of their numbers.
    #[schemars(with = "Vec<StepView>")]
    iterations: Steps<'a>,
}

/// Ranks whose collectives of one kind are the same events.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CollectiveGroup")]
struct GroupView<'a> {
    /// The operation and the library.
    name: &'a str,
    /// The ranks' group: `TP`, `PP`, `EP`, `DP`, `world`, or `communicator` for one of NCCL without a name; `null`: the
    /// records do not say, and the ranks were found by the times of their collectives.
    group: Option<&'a str>,
    /// How many ranks that group has, those without a record among them; `null` likewise.
    #[schemars(extend("unit" = "ranks"))]
    size: Option<u64>,
    /// The places of its processes in `processes`.
    processes: &'a [usize],
    /// How many collectives they have in common.
    #[schemars(extend("unit" = "collectives"))]
    events: u64,
    /// How long those waited for the last rank, summed over ranks.
    wait_ns: u64,
    /// How long they took after that, summed over ranks.
    transfer_ns: u64,
}

/// A rank in its collectives.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RankInCollectives")]
struct RankView {
    /// How many of its collectives were matched.
    #[schemars(extend("unit" = "collectives"))]
    matched: u64,
    /// How long it waited in them for the last rank.
    wait_ns: u64,
    /// How long they took after that.
    transfer_ns: u64,
    /// In how many iterations it held the others up longest, by at least a hundredth of the iteration.
    #[schemars(extend("unit" = "iterations"))]
    last: u64,
    /// How much later than the median rank it came to collectives, of those to which it came last.
    late_ns: u64,
    /// How long the others waited for it in those, summed over ranks.
    lost_ns: u64,
    /// How long the mean iteration takes.
    iteration_ns: u64,
    /// How long it would take if this rank had come to each collective with the last of the others.
    iteration_without_ns: u64,
    /// Why it came late: differences to the median rank, the greatest first and what is unexplained last.
    causes: Vec<Difference>,
}

/// An iteration over the ranks.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Arrival")]
struct StepView {
    /// Its number.
    n: u32,
    /// What the time of its collectives is.
    verdict: Bound,
    /// How long ranks waited in them, summed over ranks.
    wait_ns: u64,
    /// How long they took after that, summed over ranks.
    transfer_ns: u64,
    /// The place in `processes` of the rank that held the others up longest; `null`: none did by a hundredth of the
    /// iteration.
    last: Option<usize>,
    /// How much sooner the iteration would have ended if that rank had come with the last of the others.
    saved_ns: u64,
    /// Why that rank came late.
    causes: Vec<Difference>,
    /// For each of `processes`: how much later than the median rank it came to these collectives; `null`: it is not
    /// among those that were matched.
    #[schemars(extend("unit" = "us"))]
    late: Vec<Option<u32>>,
}

/// Iterations, turned one by one.
#[derive(Debug)]
struct Steps<'a>(Option<&'a Arrivals>);

impl Serialize for Steps<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let arrivals = self.0.into_iter();
        let all =
            arrivals.flat_map(|all| all.steps.iter().enumerate().map(move |step| (all, step)));
        serializer.collect_seq(all.map(|(all, (at, step))| StepView::of(all, at, step)))
    }
}

impl StepView {
    fn of(all: &Arrivals, at: usize, step: &StepSum) -> Self {
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
    /// Those of a process, at that place.
    pub fn of(process: &Rank<'_>, place: usize, arrivals: Option<&Arrivals>) -> Vec<Self> {
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
    pub fn of(arrivals: &'a Arrivals, each: bool) -> Self {
        Self {
            verdict: arrivals.verdict,
            why: Some(&*arrivals.why).filter(|why| !why.is_empty()),
            matched: arrivals.all.count,
            wait_ns: arrivals.all.wait,
            transfer_ns: arrivals.all.transfer,
            wait_share: arrivals.part(arrivals.all.wait),
            transfer_share: arrivals.part(arrivals.all.transfer),
            groups: arrivals.groups.iter().map(GroupView::of).collect(),
            clocks: &arrivals.clocks,
            jumps: &arrivals.jumps,
            notes: &arrivals.notes,
            ranks: (0..arrivals.ranks.len())
                .map(|place| RankView::of(arrivals, place))
                .collect(),
            iterations: Steps(each.then_some(arrivals)),
        }
    }
}

impl<'a> GroupView<'a> {
    fn of(group: &'a CollectiveGroup) -> Self {
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
    fn of(arrivals: &Arrivals, place: usize) -> Self {
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
