//! Time in collectives, divided into waiting and transfer, and added up by iteration, rank, operation and group.

use std::collections::{BTreeMap, HashMap};

use super::clocks::Clocks;
use super::fit::median;
use super::lateness::{KnownIterations, LatenessCauses, find_causes};
use super::matching::{Group, Matched};
use crate::collectives::ROWS;
use crate::events::iteration::Iteration;
use crate::ranks::Rank;

/// Minimum lateness of a rank relative to the median rank, in nanoseconds, for which causes are
/// searched.
const MIN_LATENESS_NS: u64 = 5_000;
/// Minimum share of an iteration's time, as a fraction, that a rank must cost the other ranks to be
/// reported as the iteration's last rank.
const MIN_HELD_SHARE: f64 = 0.01;
/// Maximum time, in nanoseconds, by which one rank may seem to end a collective before another rank begins it, in
/// addition to the error between their clocks. A larger time shows that the two ranks ran different collectives.
const MAX_OVERLAP_ERROR_NS: u64 = 5_000;

/// Sums of the time in collectives, over all their ranks. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sum {
    /// Number of collectives, multiplied by the number of their ranks.
    pub count: u64,
    /// Time from a rank's arrival until the last rank's arrival at the collective.
    pub wait: u64,
    /// Time from the last rank's arrival to the end of the collective.
    pub transfer: u64,
    /// Part of `wait` and `transfer` that may be wrong, because the clocks are aligned only
    /// approximately.
    pub unsure: u64,
}

/// Sums of one rank's collectives. Times are in nanoseconds.
#[derive(Clone, Default, Debug)]
pub struct RankSum {
    pub sum: Sum,
    /// Number of iterations in which this rank delayed the other ranks longest (see [`StepSum::last`]).
    pub last: u64,
    /// Sum of this rank's lateness relative to the median rank, over the collectives at which this
    /// rank arrived last.
    pub late: u64,
    /// Time that the other ranks waited for this rank, summed over these ranks.
    pub lost: u64,
    /// Estimated time that would have been saved if this rank had arrived at collectives together with the last of the
    /// other ranks.
    pub saved: u64,
    pub why: LatenessCauses,
}

/// Sums of one iteration's collectives over all ranks. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct StepSum {
    pub n: u32,
    pub ranks: u32,
    pub sum: Sum,
    /// Mean duration of the iteration over all ranks.
    pub took: u64,
    /// The index of the process that delayed the other processes longest, and the estimated time that would have been
    /// saved if that process had arrived at collectives together with the last of the others. `None` if this time is
    /// less than a hundredth of the iteration.
    pub last: Option<(usize, u64)>,
    pub why: LatenessCauses,
}

/// Sums over all collectives that were matched between ranks.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    pub all: Sum,
    /// Sums of each process's collectives.
    pub ranks: Vec<RankSum>,
    pub steps: Vec<StepSum>,
    /// For each process, sums by operation and library. The key is the row of the operation and library in the table of
    /// kernel names.
    pub kinds: Vec<BTreeMap<u8, Sum>>,
    /// Lateness of each process in each iteration of `steps`, relative to the median rank, in
    /// microseconds; [`NONE`] if the process took part in no matched collective of that iteration.
    pub late: Vec<u32>,
    /// For each group of processes with matched collectives, the sums over its collectives.
    pub groups: Vec<Sum>,
    /// Number of matched collectives in which one rank ends before another begins, which is
    /// impossible for a single collective.
    pub impossible: u64,
}

/// Value in `Sums::late` for a lateness that is not known.
pub(crate) const NONE: u32 = u32::MAX;

impl Sum {
    pub fn and(&mut self, more: &Self) {
        self.count += more.count;
        self.wait += more.wait;
        self.transfer += more.transfer;
        self.unsure += more.unsure;
    }

    /// Returns the share of waiting in the time of the collectives, as a fraction.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.wait as f64 / (self.wait + self.transfer).max(1) as f64
    }
}

/// Figures of iterations. `sums` has an entry for each iteration. `late` and `saved` have a cell for each combination
/// of an iteration and a rank.
struct Cells {
    ranks: usize,
    /// Numbers of the iterations of the table, in ascending order.
    steps: Vec<u32>,
    sums: Vec<Sum>,
    /// Lateness of each cell (an iteration of a rank), in nanoseconds; `UNKNOWN` if the rank took
    /// part in no matched collective of the iteration.
    late: Vec<u64>,
    saved: Vec<u64>,
    /// Causes of the lateness, by index of the cell (an iteration of a rank).
    why: HashMap<usize, LatenessCauses>,
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

pub(crate) fn sums(processes: &[Rank<'_>], matched: &Matched<'_>, clocks: &Clocks) -> Sums {
    let ranks = processes.len();
    let mut sums = Sums {
        ranks: vec![RankSum::default(); ranks],
        kinds: vec![BTreeMap::new(); ranks],
        ..Sums::default()
    };
    let mut known = KnownIterations::new(processes);
    let mut cells = Cells::new(matched, ranks);
    for (at, group) in matched.groups.iter().enumerate() {
        let lanes = group.lanes.iter();
        let mut events = CollectiveEvents {
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

struct CollectiveEvents<'a> {
    at: usize,
    group: &'a Group<'a>,
    clocks: &'a Clocks,
    error: u64,
    is_work_known: bool,
    /// Start of the current collective in each process, in nanoseconds of the reference host's clock.
    begins: Vec<i64>,
    ends: Vec<i64>,
    each: Vec<Sum>,
}

impl CollectiveEvents<'_> {
    /// Returns true if each process has an earlier collective in the same window. The first
    /// collective of a window is left out, because in it the ranks wait for each other while CUPTI
    /// attaches, which takes 8 to 32 ms on each rank.
    fn follows(&self, event: &[u32], known: &KnownIterations<'_>) -> bool {
        let mut lanes = self.group.lanes.iter().zip(event);
        lanes.all(|(lane, at)| {
            let before = lane.before(*at);
            before.is_some_and(|before| !known.opens(lane.place, before.step, lane.get(*at).step))
        })
    }

    /// Stores the starts and ends of a matched collective in `begins` and `ends`. Returns true if these times are
    /// possible for a single collective, that is, if no rank ends before another begins.
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
        let slack = (MAX_OVERLAP_ERROR_NS + self.error) as i64;
        last.zip(first)
            .is_some_and(|(last, first)| *last <= first + slack)
    }

    fn add(
        &mut self,
        event: &[u32],
        step: usize,
        sums: &mut Sums,
        known: &mut KnownIterations<'_>,
        cells: &mut Cells,
    ) {
        let begins = self.begins.iter().copied().enumerate();
        let Some((lane, last)) = begins.clone().max_by_key(|one| one.1) else {
            return;
        };
        let others = || begins.clone().filter(|one| one.0 != lane).map(|one| one.1);
        let second = others().max().unwrap_or(last);
        let middle = median(&mut others().collect::<Vec<_>>());
        // For each rank that waits, the part of the wait in which its GPU did no other work. The
        // rest of the wait costs nothing, because other work overlaps it.
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
        // If two ranks arrive at the same time, within the error of the clocks, it is not known which of them is
        // last. So no rank is named.
        if ahead <= self.error {
            return;
        }
        let saved = ahead.min(median(&mut exposed) as u64);
        let late = (last - middle) as u64;
        let rank = &mut sums.ranks[place];
        rank.lost += lost;
        rank.saved += saved;
        cells.saved[row + place] += saved;
        if late < MIN_LATENESS_NS {
            return;
        }
        let group = (self.at, self.group);
        let causes = find_causes(known, group, event, lane, late, self.is_work_known);
        rank.late += late;
        rank.why.add(&causes);
        cells.why.entry(row + place).or_default().add(&causes);
    }
}

fn finish(sums: &mut Sums, known: &KnownIterations<'_>, cells: Cells) {
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
        last = last.filter(|last| last.1 as f64 >= MIN_HELD_SHARE * took as f64);
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
