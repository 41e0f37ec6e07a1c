//! Finds out which collectives in the records of several ranks are the same collective.

use std::collections::BTreeMap;

use super::fit::Fit;
use crate::collectives::{Collective, ROWS};
use crate::ranks::Rank;
use crate::ranks::groups::Members;

/// Maximum number of collectives by which two ranks are compared. If there are more, every n-th one is used.
const MAX_COMPARED: usize = 256;
/// Minimum number of collectives that are needed to compare two ranks.
const MIN_COMPARED: usize = 3;
/// Minimum share of collectives in which no rank ends before another rank has begun, as a fraction,
/// for the conclusion that two ranks run the same collectives.
const MIN_FITTING_SHARE: f64 = 0.9;
/// Maximum offset between the times of processes that share a clock, in nanoseconds. With a larger
/// offset, their collectives are not the same.
const MAX_SHARED_CLOCK_OFFSET_NS: u64 = 100_000;
/// Maximum error between the times of two processes on one host, in nanoseconds.
const MAX_ERROR_ON_HOST_NS: i64 = 20_000;
/// Maximum error between the aligned times of processes on two hosts, in nanoseconds.
const MAX_ERROR_BETWEEN_HOSTS_NS: i64 = 50_000;
/// Minimum ratio of a rank's number of iterations to the median number of the group's ranks. A rank with fewer
/// iterations is left out of the group.
const MIN_ITERATION_SHARE: f64 = 0.5;

/// The collectives of one operation and library that one process ran on one stream, in order. The lanes of several
/// processes are compared to find collectives that are the same.
#[derive(Debug)]
pub(crate) struct Lane<'a> {
    /// Index of the process among all processes.
    pub place: usize,
    all: &'a [Collective],
    /// The lane's collectives in order, as indexes in `all`, which contains all collectives of the process.
    of: Vec<u32>,
    /// The iterations in the order of their numbers: the number of each iteration, and the range of its collectives, as
    /// a start index and an end index in `of`.
    steps: Vec<(u32, u32, u32)>,
}

/// Processes that take part in the same collectives of one operation and library. One such collective, in all these
/// processes together, is called an event.
#[derive(Debug)]
pub(crate) struct Group<'a> {
    pub row: u8,
    pub lanes: Vec<Lane<'a>>,
    /// For each event (a collective of all lanes), one index per lane: the lane's collective in
    /// this event, as an index in the lane's `of`.
    events: Vec<u32>,
}

/// Result of finding out which collectives of several processes are the same.
#[derive(Debug, Default)]
pub(crate) struct Matched<'a> {
    pub groups: Vec<Group<'a>>,
    /// Number of collectives in which no rank can end before all ranks have begun. Only such
    /// collectives are matched. A collective counts once for each of its ranks.
    pub all: u64,
    /// Number of the collectives in `all` that were matched with collectives of other ranks.
    pub matched: u64,
    /// Indexes of the processes that have far fewer iterations than the median process of their group. The group leaves
    /// these processes out.
    pub few: Vec<usize>,
    /// Indexes of the processes of which no collective was matched with a collective of another process. Processes
    /// without collectives and the processes in `few` are left out.
    pub alone: Vec<usize>,
}

impl<'a> Lane<'a> {
    fn new(place: usize, all: &'a [Collective], of: Vec<u32>) -> Self {
        let mut steps: Vec<(u32, u32, u32)> = Vec::new();
        for (at, index) in of.iter().enumerate() {
            let step = all[*index as usize].step;
            match steps.last_mut() {
                Some(last) if last.0 == step => last.2 = at as u32 + 1,
                _ => steps.push((step, at as u32, at as u32 + 1)),
            }
        }
        steps.sort_unstable();
        // If a count of iterations is restarted, one number can stand for two iterations. Such
        // numbers are ambiguous, so remove them.
        let twice: Vec<_> = steps
            .windows(2)
            .filter(|pair| pair[0].0 == pair[1].0)
            .collect();
        let twice: Vec<_> = twice.into_iter().map(|pair| pair[0].0).collect();
        steps.retain(|step| twice.binary_search(&step.0).is_err());
        Self {
            place,
            all,
            of,
            steps,
        }
    }

    pub(crate) fn get(&self, at: u32) -> &'a Collective {
        &self.all[self.of[at as usize] as usize]
    }

    /// Returns the process's previous collective, of any operation; `None` for the first collective. `at` is an index
    /// in `of`.
    pub(crate) fn before(&self, at: u32) -> Option<&'a Collective> {
        let before = (self.of[at as usize] as usize).checked_sub(1)?;
        self.all.get(before)
    }

    fn all_steps(&self) -> impl Iterator<Item = u32> {
        self.steps.iter().map(|step| step.0)
    }

    fn step(&self, number: u32) -> Option<(u32, u32)> {
        let at = self
            .steps
            .binary_search_by_key(&number, |step| step.0)
            .ok()?;
        Some((self.steps[at].1, self.steps[at].2))
    }

    fn ends(&self) -> Option<(usize, u32, u32)> {
        Some((self.of.len(), self.steps.first()?.0, self.steps.last()?.0))
    }
}

impl Group<'_> {
    /// Returns the number of the iteration that an event (a matched collective) belongs to.
    pub(crate) fn step(&self, event: &[u32]) -> u32 {
        self.lanes[0].get(event[0]).step
    }

    /// Returns the numbers of all iterations in which the group has collectives.
    pub(crate) fn steps(&self) -> impl Iterator<Item = u32> {
        self.lanes[0].all_steps()
    }

    /// Returns the events (matched collectives). An event is a list with one index per lane, which
    /// identifies the lane's collective.
    pub(crate) fn events(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.events.chunks_exact(self.lanes.len().max(1))
    }

    /// Returns at most `most` events (matched collectives), evenly spaced; all events if there are not
    /// more than `most`.
    pub(crate) fn some(&self, most: usize) -> impl Iterator<Item = &[u32]> {
        let each = self.events().len().div_ceil(most.max(1)).max(1);
        self.events().step_by(each)
    }
}

/// Matches the collectives of several processes. `places` contains their indexes in `processes`, and no two of these
/// processes may have the same rank. `hosts` contains the host of each process, and `members` shows which processes may
/// be in one group.
pub(crate) fn matched<'a>(
    processes: &'a [Rank<'a>],
    places: &[usize],
    hosts: &[usize],
    members: &Members<'_>,
) -> Matched<'a> {
    let mut found = Matched::default();
    let mut kinds: BTreeMap<(u8, u8), Vec<Lane<'a>>> = BTreeMap::new();
    for place in places {
        let all = &processes[*place].collectives.all;
        let mut own: BTreeMap<(u8, u8), Vec<u32>> = BTreeMap::new();
        for (at, one) in all.iter().enumerate() {
            if ROWS[usize::from(one.row)].operation.meets() {
                own.entry((one.row, one.stream))
                    .or_default()
                    .push(at as u32);
                found.all += 1;
            }
        }
        for (kind, of) in own {
            kinds
                .entry(kind)
                .or_default()
                .push(Lane::new(*place, all, of));
        }
    }
    let mut few = Vec::new();
    for ((row, _), mut lanes) in kinds {
        while !lanes.is_empty() {
            let group = take_group(&mut lanes, hosts, |one, other| {
                members.may_share(row, one, other)
            });
            let (group, left) = without_late(group);
            few.extend(left.iter().map(|lane| lane.place));
            let events = events(&group.iter().collect::<Vec<_>>());
            if group.len() < 2 || events.is_empty() {
                continue;
            }
            found.matched += events.len() as u64;
            found.groups.push(Group {
                row,
                lanes: group,
                events,
            });
        }
    }
    few.sort_unstable();
    few.dedup();
    let is_in = |place: &usize| {
        let mut lanes = found.groups.iter().flat_map(|group| &group.lanes);
        lanes.any(|lane| lane.place == *place)
    };
    let has_some = |place: &&usize| !processes[**place].collectives.all.is_empty();
    let alone = places.iter().filter(has_some).copied();
    found.alone = alone
        .filter(|place| !is_in(place) && !few.contains(place))
        .collect();
    found.few = few;
    found
}

/// Removes the first lane from `lanes`, together with all lanes that have the same collectives as the first lane. A
/// lane contains collectives of one process. Returns the removed lanes.
fn take_group<'a>(
    lanes: &mut Vec<Lane<'a>>,
    hosts: &[usize],
    may_share: impl Fn(usize, usize) -> bool,
) -> Vec<Lane<'a>> {
    let first = lanes.remove(0);
    let (own, others) = std::mem::take(lanes).into_iter().partition(|lane| {
        let is_here = hosts[lane.place] == hosts[first.place];
        may_share(first.place, lane.place) && are_same(&first, lane, is_here)
    });
    *lanes = others;
    let mut group: Vec<_> = own;
    group.insert(0, first);
    group
}

/// Splits lanes (see [`Lane`]) into those with enough iterations and those with far fewer iterations than the median
/// lane, in this order.
fn without_late(group: Vec<Lane<'_>>) -> (Vec<Lane<'_>>, Vec<Lane<'_>>) {
    let mut counts: Vec<_> = group.iter().map(|lane| lane.steps.len()).collect();
    counts.sort_unstable();
    let usual = counts[counts.len() / 2] as f64;
    let is_whole = |lane: &Lane<'_>| lane.steps.len() as f64 >= MIN_ITERATION_SHARE * usual;
    group.into_iter().partition(is_whole)
}

/// Matches the collectives of several lanes (one for each process). If all lanes have the same
/// first and last iteration and the same number of collectives, the n-th collectives of all lanes
/// are one event. Otherwise, only iterations in which all lanes have the same number of collectives
/// are matched.
fn events(lanes: &[&Lane<'_>]) -> Vec<u32> {
    let Some((first, others)) = lanes.split_first() else {
        return Vec::new();
    };
    let mut found = Vec::new();
    if others.iter().all(|lane| lane.ends() == first.ends()) {
        for at in 0..first.of.len() as u32 {
            found.extend(lanes.iter().map(|_| at));
        }
        return found;
    }
    for (number, from, to) in &first.steps {
        let length = to - from;
        let begins = others.iter().map(|lane| {
            let (begin, end) = lane.step(*number)?;
            (end - begin == length).then_some(begin)
        });
        let Some(begins) = begins.collect::<Option<Vec<_>>>() else {
            continue;
        };
        for at in 0..length {
            found.push(from + at);
            found.extend(begins.iter().map(|begin| begin + at));
        }
    }
    found
}

/// Returns true if the collectives of two lanes (one for each process) are the same: for a suitable offset between
/// their clocks, neither process ends a collective before the other has begun it, with few exceptions. If both
/// processes are on one host (`is_here`), this offset must be nearly 0.
fn are_same(one: &Lane<'_>, other: &Lane<'_>, is_here: bool) -> bool {
    let events = events(&[one, other]);
    let pairs = events.chunks_exact(2);
    if pairs.len() < MIN_COMPARED {
        return false;
    }
    let each = pairs.len().div_ceil(MAX_COMPARED);
    let pairs: Vec<_> = pairs
        .step_by(each)
        .map(|pair| (one.get(pair[0]), other.get(pair[1])))
        .collect();
    let points = pairs.iter().map(|(one, other)| {
        let end = other.end() as i64;
        (end, end - one.end() as i64)
    });
    let fit = Fit::through(&points.collect::<Vec<_>>());
    if is_here && fit.least() > MAX_SHARED_CLOCK_OFFSET_NS {
        return false;
    }
    let slack = if is_here {
        MAX_ERROR_ON_HOST_NS
    } else {
        MAX_ERROR_BETWEEN_HOSTS_NS
    };
    if fit.error > slack as u64 {
        return false;
    }
    let fits = pairs.iter().filter(|(one, other)| {
        let ahead = fit.at(other.end() as i64);
        let (begin, end) = (other.start as i64 - ahead, other.end() as i64 - ahead);
        begin <= one.end() as i64 + slack && one.start as i64 <= end + slack
    });
    fits.count() as f64 >= MIN_FITTING_SHARE * pairs.len() as f64
}
