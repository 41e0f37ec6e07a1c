//! Which collectives of several ranks are the same event.

use std::collections::BTreeMap;

use super::fit::Fit;
use crate::collectives::{Collective, ROWS};
use crate::ranks::Rank;
use crate::ranks::groups::Members;

/// How many events two ranks are compared by, and how many they need to have.
const COMPARED: usize = 256;
const LEAST: usize = 3;
/// In how much of them no rank may end before the other has begun.
const FITS: f64 = 0.9;
/// How far clocks may be apart that are the same one, and how well they are known of one host and of two; in nanoseconds.
const SAME: u64 = 100_000;
const HERE: i64 = 20_000;
const THERE: i64 = 50_000;
/// A rank that has less of the iterations than this part of what others have is left out.
const PART: f64 = 0.5;

/// The collectives of one kind of a process, in their order.
#[derive(Debug)]
pub struct Lane<'a> {
    /// The process's place.
    pub place: usize,
    all: &'a [Collective],
    of: Vec<u32>,
    /// Its iterations in order: a number, and where its collectives begin and end in `of`.
    steps: Vec<(u32, u32, u32)>,
}

/// Ranks whose collectives of one kind are the same events.
#[derive(Debug)]
pub struct Group<'a> {
    pub row: u8,
    pub lanes: Vec<Lane<'a>>,
    /// For each event the place in `of` of each lane.
    events: Vec<u32>,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Matched<'a> {
    pub groups: Vec<Group<'a>>,
    /// Collectives that no rank can end before all have begun, and how many of them are in events.
    pub all: u64,
    pub matched: u64,
    /// Processes that have too few of the iterations of their group.
    pub few: Vec<usize>,
    /// Processes with collectives that nobody shares.
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
        // One that comes again is of two counts.
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

    pub fn get(&self, at: u32) -> &'a Collective {
        &self.all[self.of[at as usize] as usize]
    }

    /// The collective of the same process before it.
    pub fn before(&self, at: u32) -> Option<&'a Collective> {
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
    /// The iteration of an event.
    pub fn step(&self, event: &[u32]) -> u32 {
        self.lanes[0].get(event[0]).step
    }

    /// All iterations that it has events in.
    pub fn steps(&self) -> impl Iterator<Item = u32> {
        self.lanes[0].all_steps()
    }

    /// The events: for each lane the place of its collective.
    pub fn events(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.events.chunks_exact(self.lanes.len().max(1))
    }

    /// So many of them, evenly.
    pub fn some(&self, most: usize) -> impl Iterator<Item = &[u32]> {
        let each = self.events().len().div_ceil(most.max(1)).max(1);
        self.events().step_by(each)
    }
}

/// Pairs the collectives of some processes up, each of a rank of its own. `hosts` says whose clock each process has,
/// `members` which of them may be in a group.
pub fn matched<'a>(
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

/// Takes the first lane, and those whose collectives are its.
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

/// Takes those away that have few of the iterations that the others have.
fn without_late(group: Vec<Lane<'_>>) -> (Vec<Lane<'_>>, Vec<Lane<'_>>) {
    let mut counts: Vec<_> = group.iter().map(|lane| lane.steps.len()).collect();
    counts.sort_unstable();
    let usual = counts[counts.len() / 2] as f64;
    let is_whole = |lane: &Lane<'_>| lane.steps.len() as f64 >= PART * usual;
    group.into_iter().partition(is_whole)
}

/// The events of some lanes: where all have as many from the same iteration to the same other one, the n-th of each; else
/// those of iterations in which all have as many.
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

/// Whether the collectives of two lanes are the same events: none ends before the other has begun, however far their
/// clocks are apart; those of one host are not.
fn are_same(one: &Lane<'_>, other: &Lane<'_>, is_here: bool) -> bool {
    let events = events(&[one, other]);
    let pairs = events.chunks_exact(2);
    if pairs.len() < LEAST {
        return false;
    }
    let each = pairs.len().div_ceil(COMPARED);
    let pairs: Vec<_> = pairs
        .step_by(each)
        .map(|pair| (one.get(pair[0]), other.get(pair[1])))
        .collect();
    let points = pairs.iter().map(|(one, other)| {
        let end = other.end() as i64;
        (end, end - one.end() as i64)
    });
    let fit = Fit::of(&points.collect::<Vec<_>>());
    if is_here && fit.least() > SAME {
        return false;
    }
    let slack = if is_here { HERE } else { THERE };
    if fit.error > slack as u64 {
        return false;
    }
    let fits = pairs.iter().filter(|(one, other)| {
        let ahead = fit.at(other.end() as i64);
        let (begin, end) = (other.start as i64 - ahead, other.end() as i64 - ahead);
        begin <= one.end() as i64 + slack && one.start as i64 <= end + slack
    });
    fits.count() as f64 >= FITS * pairs.len() as f64
}
