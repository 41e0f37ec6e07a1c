//! Wait against transfer: of each collective, of each iteration, of each rank.

use std::collections::{BTreeMap, HashMap};

use super::clocks::Clocks;
use super::fit::median;
use super::matching::{Group, Matched};
use super::why::{Known, Why, why};
use crate::collectives::ROWS;
use crate::events::iteration::Iteration;
use crate::ranks::Rank;

/// A rank that comes less later than the median one is not looked into, in nanoseconds.
const LATE: u64 = 5_000;
/// A rank that holds an iteration up by less than this part of it does not.
const HELD: f64 = 0.01;
/// A rank ends no more than this before another one begins, whose collective is the same; in nanoseconds.
const SLACK: u64 = 5_000;

/// So much of something, summed over ranks. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sum {
    /// Collectives, each of one rank.
    pub count: u64,
    /// Until the last rank came, and after that.
    pub wait: u64,
    pub transfer: u64,
    /// How far that may be wrong, as clocks are not known better.
    pub unsure: u64,
}

/// A rank.
#[derive(Clone, Default, Debug)]
pub struct RankSum {
    pub sum: Sum,
    /// In how many iterations it held the others up longest.
    pub last: u64,
    /// How much later than the median rank it came to collectives, where it came last.
    pub late: u64,
    /// What the other ranks waited for it in all, and how much sooner collectives would have begun without it.
    pub lost: u64,
    pub saved: u64,
    pub why: Why,
}

/// An iteration over the ranks.
#[derive(Clone, Debug)]
pub struct StepSum {
    pub n: u32,
    pub ranks: u32,
    pub sum: Sum,
    /// The mean iteration of the ranks.
    pub took: u64,
    /// The process that held the others up longest, and how much sooner collectives would have begun without it; `None`: by
    /// less than a hundredth of the iteration.
    pub last: Option<(usize, u64)>,
    pub why: Why,
}

/// What comes of all events.
#[derive(Debug, Default)]
pub struct Sums {
    pub all: Sum,
    /// Of each process.
    pub ranks: Vec<RankSum>,
    pub steps: Vec<StepSum>,
    /// Of each process by row of the table of names.
    pub kinds: Vec<BTreeMap<u8, Sum>>,
    /// For each of `steps` and each process: how much later than the median one it came to collectives, in microseconds;
    /// it took part in some where that is not `NONE`.
    pub late: Vec<u32>,
    /// Of each of the groups that were matched.
    pub groups: Vec<Sum>,
    /// Events in which a rank ends before another one begins: they are none.
    pub impossible: u64,
}

/// Nothing is known.
pub const NONE: u32 = u32::MAX;

impl Sum {
    pub fn and(&mut self, more: &Self) {
        self.count += more.count;
        self.wait += more.wait;
        self.transfer += more.transfer;
        self.unsure += more.unsure;
    }

    /// How much of the collectives' time is waiting.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.wait as f64 / (self.wait + self.transfer).max(1) as f64
    }
}

/// What is known of each iteration and rank.
struct Cells {
    ranks: usize,
    /// The iterations, in order.
    steps: Vec<u32>,
    sums: Vec<Sum>,
    /// For each of `steps` and each rank; nanoseconds, and `UNKNOWN`.
    late: Vec<u64>,
    saved: Vec<u64>,
    /// Of those that came late, by their place in these lists.
    why: HashMap<usize, Why>,
}

const UNKNOWN: u64 = u64::MAX;

impl Cells {
    fn new(matched: &Matched<'_>, ranks: usize) -> Self {
        let mut steps: Vec<_> = matched.groups.iter().flat_map(Group::steps).collect();
        steps.sort_unstable();
        steps.dedup();
        let count = steps.len() * ranks;
        Self {
            ranks,
            sums: vec![Sum::default(); steps.len()],
            steps,
            late: vec![UNKNOWN; count],
            saved: vec![0; count],
            why: HashMap::new(),
        }
    }
}

pub fn sums(processes: &[Rank<'_>], matched: &Matched<'_>, clocks: &Clocks) -> Sums {
    let ranks = processes.len();
    let mut sums = Sums {
        ranks: vec![RankSum::default(); ranks],
        kinds: vec![BTreeMap::new(); ranks],
        ..Sums::default()
    };
    let mut known = Known::new(processes);
    let mut cells = Cells::new(matched, ranks);
    for (at, group) in matched.groups.iter().enumerate() {
        let lanes = group.lanes.iter();
        let mut events = Events {
            at,
            group,
            clocks,
            error: clocks.error(group),
            is_work_known: lanes
                .clone()
                .all(|lane| !processes[lane.place].collectives.is_work_lost),
            begins: Vec::new(),
            ends: Vec::new(),
            each: vec![Sum::default(); group.lanes.len()],
        };
        let mut latest = None;
        for event in group.events() {
            let step = group.step(event);
            let counts = match latest {
                Some((same, counts)) if same == step => counts,
                _ => lanes.clone().all(|lane| {
                    let one = known.get(lane.place, step);
                    one.is_none_or(Iteration::qualifies)
                }),
            };
            latest = Some((step, counts));
            if !counts || !events.follows(event, &known) {
                continue;
            }
            match cells.steps.binary_search(&step) {
                Ok(place) if events.begin(event) => {
                    events.add(event, place, &mut sums, &mut known, &mut cells);
                }
                _ => sums.impossible += 1,
            }
        }
        let kind = ROWS[usize::from(group.row)].first();
        let mut together = Sum::default();
        for (lane, own) in group.lanes.iter().zip(&events.each) {
            together.and(own);
            let kind = sums.kinds[lane.place].entry(kind);
            kind.or_default().and(own);
            sums.ranks[lane.place].sum.and(own);
            sums.all.and(own);
        }
        sums.groups.push(together);
    }
    finish(&mut sums, &known, cells);
    sums
}

struct Events<'a> {
    at: usize,
    group: &'a Group<'a>,
    clocks: &'a Clocks,
    error: u64,
    is_work_known: bool,
    /// Of each lane, on one clock.
    begins: Vec<i64>,
    ends: Vec<i64>,
    each: Vec<Sum>,
}

impl Events<'_> {
    /// Whether a collective lies before it in the same window, on each rank. The first one of a window has ranks wait for each other as long as CUPTI
    /// took to come, 8 to 32 ms on each.
    fn follows(&self, event: &[u32], known: &Known<'_>) -> bool {
        let mut lanes = self.group.lanes.iter().zip(event);
        lanes.all(|(lane, at)| {
            let before = lane.before(*at);
            before.is_some_and(|before| !known.opens(lane.place, before.step, lane.get(*at).step))
        })
    }

    /// Takes an event; whether it can be one.
    fn begin(&mut self, event: &[u32]) -> bool {
        self.begins.clear();
        self.ends.clear();
        for (lane, at) in self.group.lanes.iter().zip(event) {
            let one = lane.get(*at);
            let begin = self.clocks.aligned(lane.place, one.start);
            self.begins.push(begin);
            self.ends.push(begin + one.ns as i64);
        }
        let last = self.begins.iter().max();
        let first = self.ends.iter().min();
        let slack = (SLACK + self.error) as i64;
        last.zip(first)
            .is_some_and(|(last, first)| *last <= first + slack)
    }

    fn add(
        &mut self,
        event: &[u32],
        step: usize,
        sums: &mut Sums,
        known: &mut Known<'_>,
        cells: &mut Cells,
    ) {
        let begins = self.begins.iter().copied().enumerate();
        let Some((lane, last)) = begins.clone().max_by_key(|one| one.1) else {
            return;
        };
        let others = || begins.clone().filter(|one| one.0 != lane).map(|one| one.1);
        let second = others().max().unwrap_or(last);
        let middle = median(&mut others().collect::<Vec<_>>());
        // A wait that other work covers costs nothing.
        let mut exposed = Vec::with_capacity(event.len());
        let mut lost = 0;
        let row = step * cells.ranks;
        for (at, begin) in begins {
            let of = &self.group.lanes[at];
            let one = of.get(event[at]);
            let wait = ((last - begin) as u64).min(one.ns);
            let own = Sum {
                count: 1,
                wait,
                transfer: one.ns - wait,
                unsure: self.error.min(one.ns),
            };
            self.each[at].and(&own);
            cells.sums[step].and(&own);
            if at != lane {
                lost += wait;
                exposed.push(wait.saturating_sub(u64::from(one.covered)) as i64);
            }
            let late = &mut cells.late[row + of.place];
            let before = if *late == UNKNOWN { 0 } else { *late };
            *late = before + (begin - middle).max(0) as u64;
        }
        let place = self.group.lanes[lane].place;
        let ahead = (last - second) as u64;
        // Which of two that come at the same time is the last one nobody knows.
        if ahead <= self.error {
            return;
        }
        let saved = ahead.min(median(&mut exposed) as u64);
        let late = (last - middle) as u64;
        let rank = &mut sums.ranks[place];
        rank.lost += lost;
        rank.saved += saved;
        cells.saved[row + place] += saved;
        if late < LATE {
            return;
        }
        let group = (self.at, self.group);
        let why = why(known, group, event, lane, late, self.is_work_known);
        rank.late += late;
        rank.why.add(&why);
        cells.why.entry(row + place).or_default().add(&why);
    }
}

fn finish(sums: &mut Sums, known: &Known<'_>, cells: Cells) {
    for (at, (n, sum)) in cells.steps.iter().zip(&cells.sums).enumerate() {
        if sum.count == 0 {
            continue;
        }
        let of = at * cells.ranks..(at + 1) * cells.ranks;
        let mut last: Option<(usize, u64)> = None;
        let (mut there, mut took, mut timed) = (0, 0, 0);
        for (place, (late, saved)) in cells.late[of.clone()]
            .iter()
            .zip(&cells.saved[of.clone()])
            .enumerate()
        {
            sums.late.push(match *late {
                UNKNOWN => NONE,
                late => u32::try_from(late / 1000).unwrap_or(NONE - 1),
            });
            if *late == UNKNOWN {
                continue;
            }
            there += 1;
            if *saved > last.map_or(0, |last| last.1) {
                last = Some((place, *saved));
            }
            if let Some(one) = known.get(place, *n) {
                took = u64::saturating_add(took, one.busy());
                timed += 1;
            }
        }
        let took = took / timed.max(1);
        last = last.filter(|last| last.1 as f64 >= HELD * took as f64);
        if let Some((place, _)) = last {
            sums.ranks[place].last += 1;
        }
        let why = last.and_then(|(place, _)| cells.why.get(&(of.start + place)));
        sums.steps.push(StepSum {
            n: *n,
            ranks: there,
            sum: *sum,
            took,
            last,
            why: why.copied().unwrap_or_default(),
        });
    }
}
