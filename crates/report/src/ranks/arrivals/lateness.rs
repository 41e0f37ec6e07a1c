//! Causes of a rank's late arrival at a collective: activities since the previous collective that
//! took longer on this rank than on the median of the other ranks.

use std::collections::HashMap;

use super::fit::median;
use super::matching::{Group, Lane};
use crate::collectives::Collective;
use crate::events::iteration::Iteration;
use crate::ledger::difference::{Difference, cause};
use crate::numbers::units::Rate;
use crate::ranks::Rank;

/// Number of causes on the host whose time is known for each iteration.
const HOST_CAUSES: usize = 5;
const HOST_CAUSE_NAMES: [&str; HOST_CAUSES] = [
    cause::GC,
    cause::GIL,
    cause::DELAYED,
    cause::BLOCKED,
    cause::LAUNCHING,
];

/// Minimum ratio of a rank's number of tokens or kernels to that of the median rank, for the
/// conclusion that the rank has more work.
const MIN_WORK_RATIO: f64 = 1.1;

/// Causes of a rank's late arrivals. The times `host`, `work` and `launch`, and an unexplained rest, add up to `late`.
/// All times are in nanoseconds.
#[derive(Clone, Copy, Default, Debug)]
pub struct LatenessCauses {
    pub late: u64,
    host: [u64; HOST_CAUSES],
    /// Time for which the rank's GPU ran other kernels between the previous collective and the late one, minus the same
    /// time of the median rank.
    work: u64,
    /// The part of the lateness that additional idle time of the rank's GPU explains, and the other causes do not. It
    /// is the idle time between the previous collective and the late one, compared with the median rank.
    launch: u64,
    /// Number of tokens of this rank, and of the median rank. Both are 0 unless `work` is greater than 0.
    tokens: [u64; 2],
    /// Number of kernels of this rank, and of the median rank. Both are 0 unless `work` is greater than 0.
    kernels: [u64; 2],
}

/// Times of a rank's host by cause in nanoseconds, and the number of tokens in its last batch.
type HostActivity = ([i64; HOST_CAUSES], i64);

/// The iterations of all processes, found by process and number.
#[derive(Debug)]
pub(crate) struct KnownIterations<'a> {
    by_number: Vec<Vec<(u32, &'a Iteration)>>,
    usual: HashMap<(usize, usize, u32, u32), HostActivity>,
    /// For each process, the numbers of the first iterations of its windows, in ascending order.
    first: Vec<Vec<u32>>,
    /// Times by cause that already explain an earlier late arrival, so that no time is used twice. The key is the
    /// index of the process and the number of the iteration.
    spent: HashMap<(usize, u32), [u64; HOST_CAUSES]>,
}

impl<'a> KnownIterations<'a> {
    pub(crate) fn new(processes: &'a [Rank<'a>]) -> Self {
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

    pub(crate) fn get(&self, place: usize, number: u32) -> Option<&'a Iteration> {
        let all = &self.by_number[place];
        let at = all.binary_search_by_key(&number, |one| one.0).ok()?;
        Some(all[at].1)
    }

    /// Returns true if a window of the process with the index `place` begins with one of the iterations after `after`,
    /// up to and including `to`.
    pub(crate) fn opens(&self, place: usize, after: u32, to: u32) -> bool {
        let first = &self.first[place];
        let next = first.partition_point(|first| *first <= after);
        first.get(next).is_some_and(|first| *first <= to)
    }

    fn between(&self, place: usize, from: u32, to: u32) -> HostActivity {
        let all = &self.by_number[place];
        let first = all.partition_point(|one| one.0 < from);
        let (mut host, mut tokens) = ([0; HOST_CAUSES], 0);
        for (number, one) in &all[first..] {
            if *number > to {
                break;
            }
            let own = [
                one.gc,
                one.gil_wait,
                one.delayed_in_code(),
                one.blocked(),
                one.launching.ns,
            ];
            for (sum, own) in host.iter_mut().zip(own) {
                *sum = i64::saturating_add(*sum, i64::try_from(own).unwrap_or(i64::MAX));
            }
            tokens = one.batch.map_or(0, |batch| i64::from(batch.tokens));
        }
        (host, tokens)
    }

    /// Returns the host's times by cause from the iteration `from` to the iteration `to`, as medians over all ranks
    /// of a group except the rank with the index `lane` in the group. `at` is the group's index.
    fn usual(
        &mut self,
        (at, group): (usize, &Group<'_>),
        lane: usize,
        from: u32,
        to: u32,
    ) -> HostActivity {
        let key = (at, lane, from, to);
        if let Some(known) = self.usual.get(&key) {
            return *known;
        }
        let each: Vec<_> = others(group, lane)
            .map(|(_, other)| self.between(other.place, from, to))
            .collect();
        let middle = |of: &dyn Fn(&HostActivity) -> i64| {
            median(&mut each.iter().map(of).collect::<Vec<_>>())
        };
        let host = std::array::from_fn(|cause| middle(&|one| one.0[cause]));
        let usual = (host, middle(&|one| one.1));
        self.usual.insert(key, usual);
        usual
    }
}

/// Returns the processes ("lanes") of a group except the one at the index `lane`, with their
/// indexes.
fn others<'a>(group: &'a Group<'_>, lane: usize) -> impl Iterator<Item = (usize, &'a Lane<'a>)> {
    let lanes = group.lanes.iter().enumerate();
    lanes.filter(move |(at, _)| *at != lane)
}

/// Returns the causes for which a rank arrived at a collective later than the median of the other
/// ranks. `lane` is the rank's index in the group, and `at` is the group's index.
pub(crate) fn find_causes(
    known: &mut KnownIterations<'_>,
    (at, group): (usize, &Group<'_>),
    event: &[u32],
    lane: usize,
    late: u64,
    is_work_known: bool,
) -> LatenessCauses {
    let mut causes = LatenessCauses {
        late,
        ..LatenessCauses::default()
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
    // Without a previous collective, it is not known from which time on the rank must be compared with the other ranks.
    // If kernels were dropped, it is not known how long the GPUs worked. In both cases, return no causes.
    if before.is_none() || !is_work_known {
        return causes;
    }
    let work = own.busy as i64 - usual(&|one| one.busy as i64);
    causes.work = (work.max(0) as u64).min(late);
    let mut left = late - causes.work;
    let place = group.lanes[lane].place;
    let (host, tokens) = known.between(place, from, own.step);
    let (usual_host, usual_tokens) = known.usual((at, group), lane, from, own.step);
    let spent = known.spent.entry((place, own.step)).or_default();
    for (cause, sum) in causes.host.iter_mut().enumerate() {
        let more = host[cause].saturating_sub(usual_host[cause]).max(0) as u64;
        *sum = more.saturating_sub(spent[cause]).min(left);
        spent[cause] += *sum;
        left -= *sum;
    }
    let idle = |one: &Collective| one.since.saturating_sub(one.busy) as i64;
    let idle = (idle(own) - usual(&idle)).max(0) as u64;
    causes.launch = left.min(idle);
    if causes.work > 0 {
        causes.tokens = [tokens as u64, usual_tokens as u64];
        let kernels = usual(&|one| i64::from(one.kernels));
        causes.kernels = [u64::from(own.kernels), kernels as u64];
    }
    causes
}

impl LatenessCauses {
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

    /// Returns the causes of the rank's late arrival, the greatest first and the unexplained rest
    /// last. They add up to the lateness.
    pub fn differences(&self) -> Vec<Difference> {
        let host = HOST_CAUSE_NAMES
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
        let more = |[own, usual]: [u64; 2]| own as f64 > MIN_WORK_RATIO * usual as f64 && usual > 0;
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
