//! The iterations in groups whose time is added up apart: by window, by whether kernels were recorded in them, and by
//! whether the GPU's time is known of them.

use std::collections::{BTreeMap, HashMap};

use tllmprof_record::Strings;

use super::difference::Difference;
use super::differences::{Side, differences};
use super::host::{Placed, Sums, Times};
use super::keys::{Named, Spent};
use super::split::split;
use super::{Ledger, LedgerKind, LedgerRow, rows};
use crate::events::busy::Did;
use crate::events::busy::work_name;
use crate::events::iteration::GpuFrom;
use crate::events::iteration::{Iteration, part};
use crate::events::samples::Place;
use crate::events::spans::{Span, Spans};
use crate::events::window::Window;

/// What the iterations of a group have in common.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Group {
    window: usize,
    /// They count in figures.
    qualified: bool,
    /// Kernels were recorded in them.
    taken: bool,
    /// The GPU's time is known of them.
    counted: bool,
    /// It is the one slow iteration of this place among those that are looked into.
    slow: Option<usize>,
}

/// What the iterations of a group come to.
#[derive(Clone, Copy, Default, Debug)]
struct GroupSum {
    iterations: u64,
    took: u64,
    /// What the GPU was at work.
    at_work: u64,
    launches: u64,
    /// How long their threads had no processor, and were asleep or blocked in code.
    delayed: u64,
    blocked: u64,
}

/// What a device ran in the iterations of a group.
#[derive(Clone, Default, Debug)]
struct Ran {
    busy: u64,
    by: HashMap<u32, u64>,
}

/// The iterations of some windows.
#[derive(Debug)]
pub struct Groups {
    groups: Vec<Group>,
    /// Those of each window.
    by_window: Vec<Vec<usize>>,
    /// What the device ran in each, where that is the GPU's time.
    ran: Vec<Ran>,
    gpu_from: GpuFrom,
    /// In the order of their starts.
    pub placed: Vec<Placed>,
    sums: Vec<GroupSum>,
}

impl Groups {
    /// `slow` has the iterations that are looked into, by their numbers and starts.
    pub fn of(windows: &[Window], gpu_from: GpuFrom, slow: &[(u64, u64)]) -> Self {
        let mut all: Vec<(usize, &Iteration)> = (0..)
            .zip(windows)
            .flat_map(|(window, of)| of.iterations.iter().map(move |one| (window, one)))
            .collect();
        all.sort_by_key(|(_, one)| one.start);
        let spans = all.iter().map(|(_, one)| Span {
            start: one.start,
            end: one.end(),
        });
        let spans = Spans::new(spans.collect());
        let mut known: HashMap<Group, usize> = HashMap::new();
        let mut found = Self {
            groups: Vec::new(),
            by_window: vec![Vec::new(); windows.len()],
            ran: Vec::new(),
            gpu_from,
            placed: Vec::with_capacity(all.len()),
            sums: Vec::new(),
        };
        for ((window, one), span) in all.into_iter().zip(spans.spans()) {
            let gpu = gpu_from.time(one);
            let group = Group {
                window,
                qualified: one.qualifies(),
                taken: one.gpu_busy.is_some(),
                counted: gpu.is_some() && one.qualifies(),
                slow: slow.iter().position(|known| *known == (one.n, one.start)),
            };
            let index = *known.entry(group).or_insert_with(|| {
                found.groups.push(group);
                found.by_window[window].push(found.groups.len() - 1);
                found.sums.push(GroupSum::default());
                found.groups.len() - 1
            });
            found.sums[index].add(GroupSum {
                iterations: 1,
                took: one.duration,
                at_work: gpu.unwrap_or(0),
                launches: u64::from(one.launches),
                delayed: one.delayed_in_code(),
                blocked: one.blocked(),
            });
            found.placed.push(Placed {
                span: *span,
                thread: one.thread,
                group: index,
            });
        }
        found
    }

    /// Takes what the device ran that was at work longest.
    pub fn ran(&mut self, did: &Did) {
        self.ran = vec![Ran::default(); self.groups.len()];
        for part in &did.parts {
            if let Some(placed) = self.placed.get(part.place) {
                self.ran[placed.group].busy += part.busy;
            }
        }
        for ((place, what), ns) in &did.by {
            if let Some(placed) = self.placed.get(*place as usize) {
                *self.ran[placed.group].by.entry(*what).or_default() += ns;
            }
        }
    }

    /// The ledger of a window, or of all.
    pub fn ledger(&self, window: Option<usize>, sums: &Sums, named: Named<'_>) -> Ledger {
        let is_open = |spent| named.is_open(spent);
        let (hosts, counted) = (self.hosts(window), self.counted(window));
        let host = self.spent(&hosts, sums, named, is_open).into_iter();
        let host = host.map(|(spent, times)| (named.cause(spent), times.all));
        Ledger {
            iterations: self.sum(&self.chosen(window, |_| true)).iterations,
            host_iterations: self.sum(&hosts).iterations,
            host: rows(host.collect()),
            gpu_iterations: self.sum(&counted).iterations,
            gpu: self.gpu(&counted, sums, named),
            stretched: self.is_stretched(window),
        }
    }

    /// The groups of a window, or of all, that are so.
    fn chosen(&self, window: Option<usize>, is: impl Fn(&Group) -> bool) -> Vec<usize> {
        let is = |at: &usize| self.groups[*at].qualified && is(&self.groups[*at]);
        match window {
            Some(window) => {
                let all = self.by_window.get(window).map_or(&[][..], Vec::as_slice);
                all.iter().copied().filter(is).collect()
            }
            None => (0..self.groups.len()).filter(is).collect(),
        }
    }

    /// Whether kernels were recorded in all iterations, which makes them longer.
    fn is_stretched(&self, window: Option<usize>) -> bool {
        let own = self.chosen(window, |_| true);
        !own.is_empty() && own.iter().all(|at| self.groups[*at].taken)
    }

    /// Where samples of stacks count that were taken in iterations of some groups.
    pub fn places(&self, groups: &[Option<usize>]) -> Vec<Option<Place>> {
        let of_groups = self.groups.iter().map(|group| Place {
            window: group.window,
            in_window: false,
            in_all: false,
        });
        let mut known: Vec<_> = of_groups.collect();
        for group in self.hosts(None) {
            known[group].in_all = true;
        }
        for window in 0..self.by_window.len() {
            for group in self.hosts(Some(window)) {
                known[group].in_window = true;
            }
        }
        groups.iter().map(|group| Some(known[(*group)?])).collect()
    }

    /// The groups that the host's ledger is of.
    pub fn hosts(&self, window: Option<usize>) -> Vec<usize> {
        let stretched = self.is_stretched(window);
        self.chosen(window, |group| stretched || !group.taken)
    }

    /// The groups that the GPU's ledger is of.
    pub fn counted(&self, window: Option<usize>) -> Vec<usize> {
        self.chosen(window, |group| group.counted)
    }

    fn gpu(&self, counted: &[usize], sums: &Sums, named: Named<'_>) -> Vec<LedgerRow> {
        let GroupSum { took, at_work, .. } = self.sum(counted);
        let mut times = match self.gpu_from {
            GpuFrom::Kernels => self.by_kernel(counted, named.strings),
            GpuFrom::Plain | GpuFrom::Stretched => vec![(
                (LedgerKind::Busy, "from first work to last".to_owned()),
                at_work.min(took),
            )],
        };
        let busy: u64 = times.iter().map(|(_, time)| time).sum();
        let is_open = |spent| named.is_open(spent);
        let idle = self.spent(counted, sums, named, is_open).into_iter();
        let idle: Vec<_> = idle.filter(|(_, times)| times.idle > 0).collect();
        let idle = fit(idle, took.saturating_sub(busy));
        times.extend(idle.into_iter().map(|(spent, time)| {
            let (_, cause) = named.cause(spent);
            ((LedgerKind::Idle, format!("idle: {cause}")), time)
        }));
        rows(times)
    }

    /// How much longer a slow iteration took than the others like it, and what of.
    pub fn differences(
        &self,
        slow: usize,
        sums: &Sums,
        holder: Option<&str>,
        named: Named<'_>,
    ) -> (i64, Vec<Difference>) {
        let Some(one) = self.groups.iter().position(|of| of.slow == Some(slow)) else {
            return (0, Vec::new());
        };
        let Group { taken, counted, .. } = self.groups[one];
        // Recording kernels makes iterations longer: such ones are compared with each other.
        let is_like = |at: &usize| {
            let other = &self.groups[*at];
            *at != one && other.qualified && other.taken == taken && other.counted == counted
        };
        let like: Vec<_> = (0..self.groups.len()).filter(is_like).collect();
        let usual = like.iter().copied();
        let usual: Vec<_> = usual.filter(|at| self.groups[*at].slow.is_none()).collect();
        let others = if usual.is_empty() { like } else { usual };
        // Functions are distinguished in both or in none.
        let sides = [&[one][..], &others];
        let is_open = |spent| named.is_open(spent);
        let [own, usual] = match sides.iter().all(|side| sums.seen(side).enough()) {
            true => sides.map(|side| split(sums, side, is_open)),
            false => sides.map(|side| self.counted_off(side, sums, named)),
        };
        let side = |sum: GroupSum, spent| Side {
            iterations: sum.iterations,
            spent,
            gpu: counted.then_some(sum.at_work),
            launches: sum.launches,
        };
        let others = side(self.sum(&others), &usual);
        if others.iterations == 0 {
            return (0, Vec::new());
        }
        differences(side(self.sums[one], &own), others, holder, named)
    }

    /// What some groups spend their time on. Where samples of stacks are enough, `is_open` is divided by them; else what
    /// the kernel counts off the processor is taken out.
    pub fn spent(
        &self,
        groups: &[usize],
        sums: &Sums,
        named: Named<'_>,
        is_open: impl Fn(Spent) -> bool,
    ) -> Vec<(Spent, Times)> {
        match sums.seen(groups).enough() {
            true => split(sums, groups, is_open),
            false => self.counted_off(groups, sums, named),
        }
    }

    fn counted_off(&self, groups: &[usize], sums: &Sums, named: Named<'_>) -> Vec<(Spent, Times)> {
        let mut found: BTreeMap<Spent, Times> = BTreeMap::new();
        for group in groups {
            let of = &self.sums[*group];
            let spent = off_processor(sums.of(&[*group]), of.delayed, of.blocked, named);
            for (spent, times) in spent {
                let sum = found.entry(spent).or_default();
                *sum = sum.and(times);
            }
        }
        found.into_iter().collect()
    }

    fn sum(&self, groups: &[usize]) -> GroupSum {
        let mut sum = GroupSum::default();
        groups.iter().for_each(|at| sum.add(self.sums[*at]));
        sum
    }

    /// The time in which a device ran anything, by what that was.
    fn by_kernel(&self, counted: &[usize], strings: &Strings) -> Vec<((LedgerKind, String), u64)> {
        let mut busy = 0;
        let mut by: HashMap<u32, u64> = HashMap::new();
        for ran in counted.iter().filter_map(|at| self.ran.get(*at)) {
            busy += ran.busy;
            for (what, ns) in &ran.by {
                *by.entry(*what).or_default() += ns;
            }
        }
        let known: u64 = by.values().sum();
        let of = |cause: String| (LedgerKind::Busy, format!("busy: {cause}"));
        let named = by
            .into_iter()
            .map(|(what, ns)| (of(work_name(what, strings)), ns));
        let rest = (of("other work".to_owned()), busy.saturating_sub(known));
        named.chain([rest]).collect()
    }
}

impl GroupSum {
    const fn add(&mut self, more: Self) {
        self.iterations += more.iterations;
        self.took = self.took.saturating_add(more.took);
        self.at_work = self.at_work.saturating_add(more.at_work);
        self.launches = self.launches.saturating_add(more.launches);
        self.delayed = self.delayed.saturating_add(more.delayed);
        self.blocked = self.blocked.saturating_add(more.blocked);
    }
}

/// Takes out of the time of some iterations how long their thread had no processor in code, in equal parts of that; and
/// how long it was asleep or blocked, of each code as much as all other code leaves of that.
fn off_processor(
    mut spent: Vec<(Spent, Times)>,
    delayed: u64,
    blocked: u64,
    named: Named<'_>,
) -> Vec<(Spent, Times)> {
    let mut found = Vec::new();
    let mut waited = Times::default();
    let mut work: Vec<_> = spent
        .iter_mut()
        .filter(|(spent, _)| !named.waits(*spent))
        .map(|(_, times)| times)
        .collect();
    let all: u64 = work.iter().map(|times| times.all).sum();
    for times in &mut work {
        waited = waited.and(times.split(part(times.all, delayed.min(all), all)));
    }
    found.push((Spent::Delayed, waited));
    let code: u64 = spent
        .iter()
        .filter(|(spent, _)| spent.code().is_some())
        .map(|(_, times)| times.all)
        .sum();
    for (spent, times) in &mut spent {
        if let Some(place) = spent.code() {
            let others = code - times.all;
            let certain = blocked.saturating_sub(others).min(times.all);
            found.push((Spent::Blocked(place), times.split(certain)));
        }
    }
    spent.extend(found);
    spent.retain(|(_, times)| times.all > 0);
    spent
}

impl Times {
    /// Takes so much of it away; returns that.
    const fn split(&mut self, all: u64) -> Self {
        let idle = part(self.idle, all, self.all);
        self.all -= all;
        self.idle -= idle;
        Self { all, idle }
    }
}

/// Idle time by what the host did, so that it adds up to what is known of it. Where events bound the GPU's work, the
/// moments of that are known less well than how long it took.
fn fit(mut idle: Vec<(Spent, Times)>, total: u64) -> Vec<(Spent, u64)> {
    idle.sort_by_key(|(spent, times)| (std::cmp::Reverse(times.idle), *spent));
    let found: u64 = idle.iter().map(|(_, times)| times.idle).sum();
    let scaled = |time: u64| match found > total {
        true => part(time, total, found),
        false => time,
    };
    let mut fitted: Vec<_> = idle
        .into_iter()
        .map(|(spent, times)| (spent, scaled(times.idle)))
        .collect();
    let left = total - fitted.iter().map(|(_, time)| time).sum::<u64>();
    match fitted.first_mut() {
        // What rounding leaves.
        Some((_, greatest)) if found > total => *greatest += left,
        _ => fitted.push((Spent::Unknown, left)),
    }
    fitted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::facts::{CallRow, Facts};
    use crate::events::samples::Frames;
    use crate::ledger::keys::{Code, Key};
    use tllmprof_record::CallKind;

    #[test]
    fn idle_time_adds_up_to_what_is_known_of_it() {
        let idle = |idle| Times { all: 100, idle };
        let some = || vec![(Spent::Other, idle(10)), (Spent::Unknown, idle(20))];
        let sum = |fitted: &[(Spent, u64)]| fitted.iter().map(|(_, time)| time).sum::<u64>();
        for total in [0, 1, 7, 29, 30, 31, 90] {
            assert_eq!(sum(&fit(some(), total)), total);
            assert_eq!(sum(&fit(Vec::new(), total)), total);
        }
        assert_eq!(fit(some(), 15), [(Spent::Unknown, 10), (Spent::Other, 5)]);
    }

    #[test]
    fn what_a_thread_did_off_the_processor_is_taken_out_of_the_rest() {
        let facts = Facts {
            calls: vec![CallRow {
                row: 1,
                name: "cuStreamSynchronize".to_owned(),
                kind: CallKind::Wait,
                inside: 0,
                outside: 0,
            }],
            ..Facts::default()
        };
        let strings = Strings::default();
        let frames = Frames::default();
        let named = Named {
            facts: &facts,
            strings: &strings,
            frames: &frames,
        };
        let wait = Key::Call(1);
        let (edge, after) = (Spent::Edge(wait, wait), Spent::After(wait));
        let times = |all, idle| Times { all, idle };
        let rows = || {
            vec![
                (Spent::On(wait), times(500, 0)),
                (edge, times(400, 200)),
                (after, times(100, 100)),
            ]
        };
        let off = |delayed, blocked| off_processor(rows(), delayed, blocked, named);
        assert_eq!(off(0, 0), rows());
        // A tenth of what is no wait; the wait is as long.
        let delayed = [
            (Spent::On(wait), times(500, 0)),
            (edge, times(360, 180)),
            (after, times(90, 90)),
            (Spent::Delayed, times(50, 30)),
        ];
        assert_eq!(off(50, 0), delayed);
        // The short code may be what blocked.
        assert_eq!(off(0, 90), rows());
        let blocked = [
            (Spent::On(wait), times(500, 0)),
            (edge, times(100, 50)),
            (after, times(100, 100)),
            (Spent::Blocked(Code::Edge(wait, wait)), times(300, 150)),
        ];
        assert_eq!(off(0, 400), blocked);
        let all = off(0, 9999);
        assert_eq!(all.len(), 3);
        assert_eq!(all.iter().map(|(_, times)| times.all).sum::<u64>(), 1000);
    }
}
