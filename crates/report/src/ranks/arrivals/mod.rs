//! The collectives of several ranks together: the time spent waiting for the last rank, the time of
//! the transfers, and the causes for which the last rank was late.

mod clocks;
mod fit;
mod lateness;
mod matching;
mod sums;
mod view;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::collectives::ROWS;
use crate::ledger::difference::Difference;
use crate::numbers::units::{Change, Count, Share, Time};
use crate::ranks::Rank;
use crate::ranks::groups::{GroupName, Members};
pub use clocks::{ClockJump, HostClock};
pub(crate) use sums::Sum;
use sums::{NONE, Sums};
pub use sums::{RankSum, StepSum};
pub(crate) use view::{ArrivalsView, CollectiveSum};

/// Minimum share of waiting in the time of collectives, as a fraction, for the verdict that waiting
/// dominates.
const MIN_DOMINANT_SHARE: f64 = 2.0 / 3.0;
/// Maximum share of waiting in the time of collectives, as a fraction, for the verdict that the
/// transfer dominates.
const MAX_MINOR_SHARE: f64 = 1.0 / 3.0;
/// Minimum number of iterations for a verdict on the time of all collectives. With fewer, the verdict is inconclusive.
const MIN_ITERATIONS: usize = 5;
/// Minimum share of collectives, as a fraction, that must be matched between the ranks for a
/// verdict. With a smaller share, the verdict is inconclusive.
const MIN_MATCHED_SHARE: f64 = 0.5;

/// The verdict on the time of collectives: transfer of data, or waiting for the last rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "CollectiveVerdict")]
pub enum Bound {
    /// More than two thirds of the time is transfer of data.
    TransferBound,
    /// More than two thirds of the time is waiting for the last rank to arrive.
    ArrivalSkew,
    /// Both transfer and waiting for the last rank take at least a third of the time.
    Mixed,
    /// The records do not show how the time is divided.
    Inconclusive,
}

impl Bound {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TransferBound => "transfer-bound",
            Self::ArrivalSkew => "arrival skew",
            Self::Mixed => "mixed",
            Self::Inconclusive => "inconclusive",
        }
    }

    /// Returns the verdict on the time in `sum`. `is_whole` is true if no rank is missing in the comparison (see
    /// `Arrivals::is_whole`). If a rank is missing, the other ranks may wait for it during the time that seems to be
    /// transfer, so the verdict is never transfer-bound or mixed.
    fn judge(sum: &Sum, is_whole: bool) -> Self {
        let all = (sum.wait + sum.transfer).max(1) as f64;
        let off = sum.unsure as f64 / all;
        match sum.share() {
            // The error of the clocks is so large that any verdict might be wrong.
            _ if off > MAX_MINOR_SHARE => Self::Inconclusive,
            share if share > MIN_DOMINANT_SHARE => Self::ArrivalSkew,
            _ if !is_whole => Self::Inconclusive,
            share if share < MAX_MINOR_SHARE => Self::TransferBound,
            _ => Self::Mixed,
        }
    }
}

/// Processes that take part in the same collectives of one operation and library.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CollectiveGroup {
    /// The name of the operation and of the library, such as `all-reduce (NCCL)`.
    pub name: String,
    /// The name and size of the group of ranks, such as `TP`; `None` if it is not known.
    pub group: Option<GroupName>,
    /// Indexes of the processes in this group.
    pub processes: Vec<usize>,
    pub events: u64,
    /// Sums over the group's collectives. The sums leave out the first collective of each window, collectives in
    /// iterations that do not qualify, and collectives that seem to end on one rank before they begin on another.
    pub sum: Sum,
}

/// The results of comparing the collectives of several ranks with each other.
#[derive(Debug)]
pub struct Arrivals {
    pub verdict: Bound,
    /// The reason why the verdict is inconclusive; empty for other verdicts.
    pub why: String,
    pub all: Sum,
    /// Sums over the collectives of each process.
    pub ranks: Vec<RankSum>,
    pub steps: Vec<StepSum>,
    pub groups: Vec<CollectiveGroup>,
    pub clocks: Vec<HostClock>,
    pub jumps: Vec<ClockJump>,
    /// Notes on data that are left out, with the reasons.
    pub notes: Vec<String>,
    /// True if no rank is missing in the comparison: as far as is known, each rank of the job has a record with
    /// collectives, and no process was left out.
    is_whole: bool,
    kinds: Vec<BTreeMap<u8, Sum>>,
    late: Vec<u32>,
}

impl Arrivals {
    /// Compares the collectives of several processes. Returns `None` if fewer than two processes
    /// have collectives. `names` are the names of the processes.
    pub fn find(processes: &[Rank<'_>], names: &[String]) -> Option<Self> {
        let with: Vec<_> = (0..processes.len())
            .filter(|place| !processes[*place].collectives.all.is_empty())
            .collect();
        if with.len() < 2 {
            return None;
        }
        let mut notes = Vec::new();
        let own = own_ranks(processes, &with, &mut notes);
        let hosts = clocks::hosts(processes);
        let members = Members::new(processes);
        let matched = matching::matched(processes, &own, &hosts, &members);
        let clocks = clocks::Clocks::new(hosts, &matched);
        let sums = sums::sums(processes, &matched, &clocks);
        let missing = missing(processes, &own);
        said(
            processes, names, &matched, &clocks, &sums, &missing, &mut notes,
        );
        in_several(&members, &matched, names, &mut notes);
        let is_whole = missing.is_empty() && matched.few.is_empty() && own.len() == with.len();
        let (verdict, why) = verdict(&sums, &matched, is_whole);
        Some(Self {
            verdict,
            why,
            all: sums.all,
            ranks: sums.ranks,
            steps: sums.steps,
            groups: matched
                .groups
                .iter()
                .zip(sums.groups)
                .map(|(group, sum)| CollectiveGroup::new(group, sum, &members))
                .collect(),
            clocks: clocks.shown(processes),
            jumps: clocks.jumps,
            notes,
            is_whole,
            kinds: sums.kinds,
            late: sums.late,
        })
    }

    /// Returns the sums over a process's matched collectives of one operation and library; `None` if there are none.
    /// `row` is the row of the operation and library in the table of kernel names.
    pub fn kind(&self, process: usize, row: u8) -> Option<&Sum> {
        self.kinds.get(process)?.get(&row)
    }

    /// Returns the verdict on the time of the collectives of one iteration.
    #[must_use]
    pub fn bound(&self, step: &StepSum) -> Bound {
        Bound::judge(&step.sum, self.is_whole)
    }

    /// Returns, for each process, its lateness in the iteration with the index `step` in `steps`: the time in
    /// microseconds by which it arrived at collectives later than the median rank; `None` if none of its collectives in
    /// this iteration was matched.
    pub fn late(&self, step: usize) -> impl Iterator<Item = Option<u32>> {
        let ranks = self.ranks.len();
        let of = self.late.iter().skip(step * ranks).take(ranks);
        of.map(|late| (*late != NONE).then_some(*late))
    }

    /// Returns the indexes of the processes for which the other processes waited. The first is the
    /// process whose punctual arrival would save the most time.
    #[must_use]
    pub fn slowest(&self) -> Vec<usize> {
        let mut places: Vec<_> = (0..self.ranks.len())
            .filter(|place| self.ranks[*place].saved > 0)
            .collect();
        places.sort_by_key(|place| std::cmp::Reverse(self.ranks[*place].saved));
        places
    }

    /// Returns the mean time of the iterations with matched collectives, in nanoseconds: first as recorded, then as
    /// estimated for the case that the process arrived at collectives together with the last of the other processes.
    #[must_use]
    pub fn step_without(&self, process: usize) -> (u64, u64) {
        let steps = self.steps.iter();
        let all = steps.fold(0, |all: u64, step| all.saturating_add(step.took));
        let count = self.steps.len().max(1) as u64;
        let saved = self.ranks.get(process).map_or(0, |rank| rank.saved);
        (all / count, all.saturating_sub(saved) / count)
    }

    /// Returns the share of the time of the iterations with matched collectives, as a fraction, that would be saved if
    /// the process arrived at collectives together with the last of the other processes.
    #[must_use]
    pub fn gain(&self, process: usize) -> f64 {
        let (now, then) = self.step_without(process);
        (now - then) as f64 / now.max(1) as f64
    }

    /// Returns the time `ns`, which is a sum over the ranks, as a fraction of the time of the iterations with matched
    /// collectives on all ranks.
    #[must_use]
    pub fn part(&self, ns: u64) -> f64 {
        let took = |step: &StepSum| step.took as f64 * f64::from(step.ranks);
        ns as f64 / self.steps.iter().map(took).sum::<f64>().max(1.0)
    }

    /// Returns the causes for which the process arrived late at collectives.
    #[must_use]
    pub fn causes(&self, process: usize) -> Vec<Difference> {
        let rank = self.ranks.get(process);
        rank.map_or_else(Vec::new, |rank| rank.why.differences())
    }
}

impl CollectiveGroup {
    fn new(group: &matching::Group<'_>, sum: Sum, members: &Members<'_>) -> Self {
        let processes: Vec<_> = group.lanes.iter().map(|lane| lane.place).collect();
        Self {
            name: ROWS[usize::from(group.row)].label(),
            group: members.name(group.row, &processes),
            processes,
            events: group.events().len() as u64,
            sum,
        }
    }
}

impl StepSum {
    /// Returns the causes for which the last rank of this iteration arrived late.
    #[must_use]
    pub fn causes(&self) -> Vec<Difference> {
        self.why.differences()
    }
}

/// Returns those indexes in `with` whose processes do not share their rank number with another process in `with`. If
/// some processes share a rank number, adds a note on this to `notes`.
fn own_ranks(processes: &[Rank<'_>], with: &[usize], notes: &mut Vec<String>) -> Vec<usize> {
    let mut by_rank: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for place in with {
        by_rank
            .entry(processes[*place].facts.rank)
            .or_default()
            .push(*place);
    }
    let twice: Vec<_> = by_rank
        .iter()
        .filter(|(_, places)| places.len() > 1)
        .collect();
    if let Some((rank, places)) = twice.first() {
        let more = match twice.len() {
            1 => String::new(),
            2 => ", and 1 more rank is of several".into(),
            count => format!(", and {} more ranks are of several", count - 1),
        };
        notes.push(format!(
            "rank {rank} is that of {} processes{more}: their collectives are left out, as they may be of several runs",
            places.len()
        ));
    }
    let own = by_rank.into_values().filter(|places| places.len() == 1);
    own.flatten().collect()
}

/// Returns the ranks of the job that have no record with collectives; an empty list if the number
/// of ranks in the job is not known.
fn missing(processes: &[Rank<'_>], own: &[usize]) -> Vec<u64> {
    let size = own
        .iter()
        .filter_map(|place| processes[*place].facts.world_size)
        .max();
    let there: std::collections::BTreeSet<_> = own
        .iter()
        .map(|place| processes[*place].facts.rank)
        .collect();
    // Limit the number of ranks, because a damaged record may state an enormous number.
    let size = size.unwrap_or(0).min(1 << 20);
    (0..size).filter(|rank| !there.contains(rank)).collect()
}

fn list(names: impl ExactSizeIterator<Item = String>) -> String {
    const MAX_LISTED: usize = 4;
    let count = names.len();
    let mut text = names.take(MAX_LISTED).collect::<Vec<_>>().join(", ");
    if count > MAX_LISTED {
        text += &format!(" and {} more", count - MAX_LISTED);
    }
    text
}

/// Adds notes to `notes` on collectives and ranks that are left out, and on clocks that jump or disagree.
fn said(
    processes: &[Rank<'_>],
    names: &[String],
    matched: &matching::Matched<'_>,
    clocks: &clocks::Clocks,
    sums: &Sums,
    missing: &[u64],
    notes: &mut Vec<String>,
) {
    let named = |places: &[usize]| list(places.iter().map(|place| names[*place].clone()));
    if !missing.is_empty() {
        let ranks = list(missing.iter().map(|rank| format!("rank {rank}")));
        notes.push(format!(
            "no record with collectives of {ranks}: what the others wait for there counts as transfer"
        ));
    }
    if !matched.few.is_empty() {
        notes.push(format!(
            "{}: records of too few of the iterations of the others; left out",
            named(&matched.few)
        ));
    }
    if !matched.alone.is_empty() {
        notes.push(format!(
            "{}: the collectives are not those of the others (of another group or run, or counted from another iteration \
             on); left out",
            named(&matched.alone)
        ));
    }
    let unmatched = matched.all - matched.matched;
    if unmatched > 0 {
        notes.push(format!(
            "{} of the collectives have no match on all ranks of their group (kernels or iterations are missing); left out",
            Share(unmatched as f64 / matched.all.max(1) as f64)
        ));
    }
    if sums.impossible > 0 {
        notes.push(format!(
            "{} collectives end on one rank before they begin on another; left out",
            sums.impossible
        ));
    }
    for jump in &clocks.jumps {
        let whose = match jump.is_host {
            true if processes[jump.process].facts.origin.is_own() => {
                format!("the clock of host {}", processes[jump.process].facts.host)
            }
            _ => format!("{}: its clock", names[jump.process]),
        };
        let either = if jump.is_either {
            " (or the other one)"
        } else {
            ""
        };
        notes.push(format!(
            "{whose}{either} jumps by {} at iteration {}; aligned on each side by itself",
            Change(jump.by),
            jump.step
        ));
    }
    let lost = processes
        .iter()
        .zip(names)
        .filter(|(one, _)| one.collectives.is_work_lost);
    let lost: Vec<_> = lost.map(|(_, name)| name.clone()).collect();
    if !lost.is_empty() {
        notes.push(format!(
            "{}: too many kernels to say what ran between collectives",
            list(lost.into_iter())
        ));
    }
}

/// Adds a note on processes that are in several communicators. For such a process the record does
/// not say which communicator a kernel used.
fn in_several(
    members: &Members<'_>,
    matched: &matching::Matched<'_>,
    names: &[String],
    notes: &mut Vec<String>,
) {
    let groups = matched.groups.iter();
    let of_communicators = groups.filter(|one| ROWS[usize::from(one.row)].is_of_communicator());
    let places = of_communicators.flat_map(|group| group.lanes.iter().map(|lane| lane.place));
    let mut several: Vec<_> = places
        .filter(|place| members.is_in_several(*place))
        .collect();
    several.sort_unstable();
    several.dedup();
    if !several.is_empty() {
        notes.push(format!(
            "{}: in several communicators of NCCL; which one a kernel is of follows from its times alone",
            list(several.iter().map(|place| names[*place].clone()))
        ));
    }
}

/// Returns the verdict on the time of all collectives, and the reason if it is inconclusive.
fn verdict(sums: &Sums, matched: &matching::Matched<'_>, is_whole: bool) -> (Bound, String) {
    let none = |why: String| (Bound::Inconclusive, why);
    if matched.groups.is_empty() {
        return none("no two ranks have collectives that are the same events".to_owned());
    }
    if sums.steps.len() < MIN_ITERATIONS {
        let count = Count(sums.steps.len() as u64, "iteration");
        return none(format!("only {count}"));
    }
    let part = sums.all.count as f64 / matched.all.max(1) as f64;
    if part < MIN_MATCHED_SHARE {
        return none(format!(
            "only {} of the collectives could be matched",
            Share(part)
        ));
    }
    match Bound::judge(&sums.all, is_whole) {
        Bound::Inconclusive if !is_whole => none("ranks are missing".to_owned()),
        Bound::Inconclusive => none(format!(
            "clocks are known to {} a collective, which is too much of what these take",
            Time(sums.all.unsure / sums.all.count.max(1))
        )),
        bound => (bound, String::new()),
    }
}
