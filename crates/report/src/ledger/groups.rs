//! The iterations in groups whose time is added up apart: by window, by whether kernels were recorded in them, and by
//! whether the GPU's time is known of them.

use std::collections::HashMap;

use tllmprof_record::Strings;

use super::host::{Placed, Sums, Times};
use super::keys::{Named, Spent};
use super::{Ledger, LedgerKind, LedgerRow, rows};
use crate::busy::Did;
use crate::iteration::Iteration;
use crate::kernels::work_name;
use crate::spans::{Span, Spans};
use crate::sum::GpuFrom;
use crate::window::Window;

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
}

/// The iterations of some windows.
#[derive(Debug)]
pub struct Groups {
    groups: Vec<Group>,
    gpu_from: GpuFrom,
    /// In the order of their starts.
    pub placed: Vec<Placed>,
    /// Of each group: how long its iterations are, and what the GPU was at work.
    took: Vec<(u64, u64)>,
}

impl Groups {
    pub fn of(windows: &[Window], gpu_from: GpuFrom) -> Self {
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
            gpu_from,
            placed: Vec::with_capacity(all.len()),
            took: Vec::new(),
        };
        for ((window, one), span) in all.into_iter().zip(spans.spans()) {
            let gpu = gpu_from.time(one);
            let group = Group {
                window,
                qualified: one.qualifies(),
                taken: one.gpu_busy.is_some(),
                counted: gpu.is_some() && one.qualifies(),
            };
            let index = *known.entry(group).or_insert_with(|| {
                found.groups.push(group);
                found.took.push((0, 0));
                found.groups.len() - 1
            });
            let (took, at_work) = &mut found.took[index];
            *took = took.saturating_add(one.duration);
            *at_work = at_work.saturating_add(gpu.unwrap_or(0));
            found.placed.push(Placed {
                span: *span,
                thread: one.thread,
                group: index,
            });
        }
        found
    }

    /// The ledger of a window, or of all.
    pub fn ledger(
        &self,
        window: Option<usize>,
        sums: &Sums,
        did: Option<&Did>,
        named: Named<'_>,
    ) -> Ledger {
        let is_of =
            |group: &Group| group.qualified && window.is_none_or(|window| group.window == window);
        let mut own = self.groups.iter().filter(|group| is_of(group)).peekable();
        let stretched = own.peek().is_some() && own.all(|group| group.taken);
        let is_hosts = |at: usize| is_of(&self.groups[at]) && (stretched || !self.groups[at].taken);
        let host = sums.of(is_hosts).into_iter();
        let host = host.map(|(spent, times)| (named.cause(spent), times.all));
        let is_counted = |at: usize| is_of(&self.groups[at]) && self.groups[at].counted;
        Ledger {
            host: rows(host.collect()),
            gpu: self.gpu(&is_counted, sums, did, named),
            stretched,
        }
    }

    fn gpu(
        &self,
        is_counted: &impl Fn(usize) -> bool,
        sums: &Sums,
        did: Option<&Did>,
        named: Named<'_>,
    ) -> Vec<LedgerRow> {
        let counted = (0..self.groups.len()).filter(|at| is_counted(*at));
        let (took, at_work) = counted.fold((0_u64, 0_u64), |(took, at_work), group| {
            let (more, work) = self.took[group];
            (took.saturating_add(more), at_work.saturating_add(work))
        });
        let mut times = match did.filter(|_| self.gpu_from == GpuFrom::Kernels) {
            Some(did) => self.by_kernel(is_counted, did, named.strings),
            None => vec![(
                (LedgerKind::Busy, "busy by events".to_owned()),
                at_work.min(took),
            )],
        };
        let busy: u64 = times.iter().map(|(_, time)| time).sum();
        let idle = sums.of(is_counted).into_iter();
        let idle: Vec<_> = idle.filter(|(_, times)| times.idle > 0).collect();
        let idle = fit(idle, took.saturating_sub(busy));
        times.extend(idle.into_iter().map(|(spent, time)| {
            let (_, cause) = named.cause(spent);
            ((LedgerKind::Idle, format!("idle: {cause}")), time)
        }));
        rows(times)
    }

    /// The time in which a device ran anything, by what that was.
    fn by_kernel(
        &self,
        is_counted: &impl Fn(usize) -> bool,
        did: &Did,
        strings: &Strings,
    ) -> Vec<((LedgerKind, String), u64)> {
        let is_inside = |place: usize| {
            let placed = self.placed.get(place);
            placed.is_some_and(|placed| is_counted(placed.group))
        };
        let parts = did.parts.iter().filter(|part| is_inside(part.place));
        let busy: u64 = parts.map(|part| part.busy).sum();
        let mut by: HashMap<u32, u64> = HashMap::new();
        for ((place, what), ns) in &did.by {
            if is_inside(*place as usize) {
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

/// Idle time by what the host did, so that it adds up to what is known of it. Where events bound the GPU's work, the
/// moments of that are known less well than how long it took.
fn fit(mut idle: Vec<(Spent, Times)>, total: u64) -> Vec<(Spent, u64)> {
    idle.sort_by_key(|(spent, times)| (std::cmp::Reverse(times.idle), *spent));
    let found: u64 = idle.iter().map(|(_, times)| times.idle).sum();
    let scaled = |time: u64| match found > total {
        true => (u128::from(time) * u128::from(total) / u128::from(found)) as u64,
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
}
