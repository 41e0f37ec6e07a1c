//! Why a rank came late to a collective: what it did longer than the median of the other ranks since the one before.

use std::collections::HashMap;

use super::fit::median;
use super::matching::{Group, Lane};
use crate::collectives::Collective;
use crate::events::iteration::Iteration;
use crate::ledger::difference::{Difference, cause};
use crate::numbers::units::Rate;
use crate::ranks::Rank;

/// What the host does that is known of each iteration.
const HOST: usize = 5;
const NAMES: [&str; HOST] = [
    cause::GC,
    cause::GIL,
    cause::DELAYED,
    cause::BLOCKED,
    cause::LAUNCHING,
];

/// How many more tokens, or kernels, a rank has than the median one to have more to do.
const MORE: f64 = 1.1;

/// What some lateness is made of, in nanoseconds: it adds up.
#[derive(Clone, Copy, Default, Debug)]
pub struct Why {
    pub late: u64,
    host: [u64; HOST],
    /// The GPU was at other work for longer.
    work: u64,
    /// The GPU had nothing to do, and nothing above is why.
    launch: u64,
    /// Tokens and kernels of the rank and of the median one, where the GPU's work is why.
    tokens: [u64; 2],
    kernels: [u64; 2],
}

/// What a rank's host did by cause, and the tokens of its last batch.
type Did = ([i64; HOST], i64);

/// Iterations of processes by their numbers.
#[derive(Debug)]
pub struct Known<'a> {
    by_number: Vec<Vec<(u32, &'a Iteration)>>,
    usual: HashMap<(usize, usize, u32, u32), Did>,
    /// In order, the first iterations of each process's windows.
    first: Vec<Vec<u32>>,
    /// What of an iteration's causes has made a rank late already.
    spent: HashMap<(usize, u32), [u64; HOST]>,
}

impl<'a> Known<'a> {
    pub fn new(processes: &'a [Rank<'a>]) -> Self {
        let of = |process: &Rank<'a>| {
            let all = process.windows.iter().flat_map(|window| &window.iterations);
            let mut all: Vec<_> = all.map(|one| (one.n as u32, one)).collect();
            all.sort_by_key(|one| one.0);
            all
        };
        let first = |process: &Rank<'_>| {
            let mut first: Vec<_> = process.windows.iter().map(|one| one.first as u32).collect();
            first.sort_unstable();
            first
        };
        Self {
            first: processes.iter().map(first).collect(),
            by_number: processes.iter().map(of).collect(),
            usual: HashMap::new(),
            spent: HashMap::new(),
        }
    }

    pub fn get(&self, place: usize, number: u32) -> Option<&'a Iteration> {
        let all = &self.by_number[place];
        let at = all.binary_search_by_key(&number, |one| one.0).ok()?;
        Some(all[at].1)
    }

    /// Whether one of a process's windows begins behind one iteration and up to another.
    pub fn opens(&self, place: usize, behind: u32, to: u32) -> bool {
        let first = &self.first[place];
        let next = first.partition_point(|first| *first <= behind);
        first.get(next).is_some_and(|first| *first <= to)
    }

    fn between(&self, place: usize, from: u32, to: u32) -> Did {
        let all = &self.by_number[place];
        let first = all.partition_point(|one| one.0 < from);
        let (mut host, mut tokens) = ([0; HOST], 0);
        for (number, one) in &all[first..] {
            if *number > to {
                break;
            }
            let own = [
                one.gc,
                one.gil_wait,
                one.delayed_in_code(),
                one.blocked(),
                one.launching,
            ];
            for (sum, own) in host.iter_mut().zip(own) {
                *sum = i64::saturating_add(*sum, i64::try_from(own).unwrap_or(i64::MAX));
            }
            tokens = one.batch.map_or(0, |batch| i64::from(batch.tokens));
        }
        (host, tokens)
    }

    /// What the median of a group's other ranks does from one iteration to another. `at` is the group's place.
    fn usual(&mut self, (at, group): (usize, &Group<'_>), lane: usize, from: u32, to: u32) -> Did {
        let key = (at, lane, from, to);
        if let Some(known) = self.usual.get(&key) {
            return *known;
        }
        let each: Vec<_> = others(group, lane)
            .map(|(_, other)| self.between(other.place, from, to))
            .collect();
        let middle =
            |of: &dyn Fn(&Did) -> i64| median(&mut each.iter().map(of).collect::<Vec<_>>());
        let host = std::array::from_fn(|cause| middle(&|one| one.0[cause]));
        let usual = (host, middle(&|one| one.1));
        self.usual.insert(key, usual);
        usual
    }
}

/// The lanes of a group but this one, with their places.
fn others<'a>(group: &'a Group<'_>, lane: usize) -> impl Iterator<Item = (usize, &'a Lane<'a>)> {
    let lanes = group.lanes.iter().enumerate();
    lanes.filter(move |(at, _)| *at != lane)
}

/// Why the rank of one lane came so much later than the median of the others. `at` is the group's place.
pub fn why(
    known: &mut Known<'_>,
    (at, group): (usize, &Group<'_>),
    event: &[u32],
    lane: usize,
    late: u64,
    is_work_known: bool,
) -> Why {
    let mut why = Why {
        late,
        ..Why::default()
    };
    let own = group.lanes[lane].get(event[lane]);
    let usual = |of: &dyn Fn(&Collective) -> i64| {
        median(
            &mut others(group, lane)
                .map(|(at, other)| of(other.get(event[at])))
                .collect::<Vec<_>>(),
        )
    };
    let before = group.lanes[lane].before(event[lane]);
    let from = before.map_or(own.step, |before| before.step);
    // Without one before, nothing says since when.
    if before.is_none() || !is_work_known {
        return why;
    }
    let work = own.busy as i64 - usual(&|one| one.busy as i64);
    why.work = (work.max(0) as u64).min(late);
    let mut left = late - why.work;
    let place = group.lanes[lane].place;
    let (host, tokens) = known.between(place, from, own.step);
    let (usual_host, usual_tokens) = known.usual((at, group), lane, from, own.step);
    let spent = known.spent.entry((place, own.step)).or_default();
    for (cause, sum) in why.host.iter_mut().enumerate() {
        let more = host[cause].saturating_sub(usual_host[cause]).max(0) as u64;
        *sum = more.saturating_sub(spent[cause]).min(left);
        spent[cause] += *sum;
        left -= *sum;
    }
    let idle = |one: &Collective| one.since.saturating_sub(one.busy) as i64;
    let idle = (idle(own) - usual(&idle)).max(0) as u64;
    why.launch = left.min(idle);
    if why.work > 0 {
        why.tokens = [tokens as u64, usual_tokens as u64];
        let kernels = usual(&|one| i64::from(one.kernels));
        why.kernels = [u64::from(own.kernels), kernels as u64];
    }
    why
}

impl Why {
    pub fn add(&mut self, other: &Self) {
        self.late += other.late;
        self.work += other.work;
        self.launch += other.launch;
        for (sum, more) in self.host.iter_mut().zip(other.host) {
            *sum += more;
        }
        for (sum, more) in self.tokens.iter_mut().zip(other.tokens) {
            *sum += more;
        }
        for (sum, more) in self.kernels.iter_mut().zip(other.kernels) {
            *sum += more;
        }
    }

    /// What it is made of, the greatest first and what is unexplained last: it adds up to the lateness.
    pub fn differences(&self) -> Vec<Difference> {
        let host = NAMES
            .iter()
            .zip(self.host)
            .map(|(name, ns)| (*name, ns, None));
        let own = [
            (cause::WORK, self.work, self.work_detail()),
            (cause::LATE, self.launch, None),
        ];
        let all = host
            .chain(own)
            .filter(|(_, ns, _)| *ns > 0 && *ns * 20 >= self.late);
        let mut all: Vec<_> = all
            .map(|(name, ns, detail)| Difference::new(name, ns as i64, detail))
            .collect();
        all.sort_by_key(|one| std::cmp::Reverse(one.more));
        let rest = self.late as i64 - all.iter().map(|one| one.more).sum::<i64>();
        if rest > 0 {
            all.push(Difference::new(cause::REST, rest, None));
        }
        all
    }

    fn work_detail(&self) -> Option<String> {
        let more = |[own, usual]: [u64; 2]| own as f64 > MORE * usual as f64 && usual > 0;
        let [kernels, usual] = self.kernels;
        Some(match () {
            () if more(self.tokens) => {
                let [own, usual] = self.tokens;
                let times = Rate(own as f64 / usual as f64);
                format!("{times} times the tokens of the median rank")
            }
            () if kernels == usual => "the same kernels took longer".to_owned(),
            () if more(self.kernels) => {
                let times = Rate(kernels as f64 / usual as f64);
                format!("{times} times the kernels of the median rank")
            }
            () => return None,
        })
    }
}
