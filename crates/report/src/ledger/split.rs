//! Time of which no event says what it is spent on, divided by the samples of stacks that fell into it.

use std::collections::{BTreeMap, HashMap};

use super::host::{Sums, Times};
use super::keys::Spent;
use crate::events::samples::{SampleCounts, Seen};

/// So many samples, and those of them at which the GPU had nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Count {
    pub all: u64,
    pub idle: u64,
}

/// What samples show in the time of some iterations.
#[derive(Clone, Default, Debug)]
pub struct SeenIn {
    /// In all of it.
    total: HashMap<Seen, Count>,
    /// By what the time is spent on, where that is known.
    by: HashMap<(Spent, Seen), Count>,
}

impl Count {
    const fn add(&mut self, more: Self) {
        self.all += more.all;
        self.idle += more.idle;
    }
}

impl SeenIn {
    /// Adds samples to all.
    pub fn total(&mut self, seen: Seen, count: Count) {
        self.total.entry(seen).or_default().add(count);
    }

    /// Adds samples to what the time is spent on that they fell into.
    pub fn add(&mut self, spent: Spent, seen: Seen, count: Count) {
        self.by.entry((spent, seen)).or_default().add(count);
    }

    pub fn and(&mut self, more: &Self) {
        more.total
            .iter()
            .for_each(|(seen, count)| self.total(*seen, *count));
        let by = more.by.iter();
        by.for_each(|((spent, seen), count)| self.add(*spent, *seen, *count));
    }

    /// Whether they are enough to distinguish functions.
    pub fn enough(&self) -> bool {
        let mut counts = SampleCounts::default();
        for (seen, count) in &self.total {
            match seen.is_native() {
                true => counts.native += count.all,
                false => counts.samples += count.all,
            }
        }
        counts.enough()
    }

    /// The samples by what the time is spent on that they fell into.
    fn by_spent(self) -> BTreeMap<Spent, BTreeMap<Seen, Count>> {
        let mut unknown: BTreeMap<_, _> = self.total.into_iter().collect();
        let mut found: BTreeMap<Spent, BTreeMap<Seen, Count>> = BTreeMap::new();
        for ((spent, seen), count) in self.by {
            found.entry(spent).or_default().insert(seen, count);
            if let Some(left) = unknown.get_mut(&seen) {
                left.all = left.all.saturating_sub(count.all);
                left.idle = left.idle.saturating_sub(count.idle);
            }
        }
        unknown.retain(|_, left| left.all > 0);
        if !unknown.is_empty() {
            found.insert(Spent::Unknown, unknown);
        }
        found
    }
}

/// What some groups spend their time on: what `is_open` is divided by samples, which are enough. The sum stays.
pub fn split(
    sums: &Sums,
    groups: &[usize],
    is_open: impl Fn(Spent) -> bool,
) -> Vec<(Spent, Times)> {
    let by_spent = sums.seen(groups).by_spent();
    let mut found: BTreeMap<Spent, Times> = BTreeMap::new();
    for (spent, times) in sums.of(groups) {
        let seen = by_spent.get(&spent).filter(|_| is_open(spent));
        for (spent, part) in match seen {
            Some(seen) => parts(seen, times),
            None => vec![(spent, times)],
        } {
            let sum = found.entry(spent).or_default();
            *sum = sum.and(part);
        }
    }
    found.into_iter().collect()
}

/// Time divided by the samples in it. Native stacks are sampled apart from the others: they divide what is of no Python
/// function, or all where there are no others.
fn parts(seen: &BTreeMap<Seen, Count>, times: Times) -> Vec<(Spent, Times)> {
    let (native, others): (Vec<_>, Vec<_>) = seen.iter().partition(|(seen, _)| seen.is_native());
    let weights = |of: fn(&Count) -> u64| -> Vec<u128> {
        let sum: u64 = native.iter().map(|(_, count)| of(count)).sum();
        let outside = others.iter().find(|(seen, _)| **seen == Seen::Outside);
        let outside = match (outside, others.is_empty()) {
            (Some((_, count)), _) => of(count),
            (None, is_empty) => u64::from(is_empty),
        };
        let is_divided = sum > 0;
        let other = |(seen, count): &(&Seen, &Count)| match (is_divided, **seen == Seen::Outside) {
            (true, true) => 0,
            (true, false) => u128::from(of(count)) * u128::from(sum),
            (false, _) => u128::from(of(count)),
        };
        let native = native
            .iter()
            .map(|(_, count)| u128::from(of(count)) * u128::from(outside));
        others.iter().map(other).chain(native).collect()
    };
    let all = weights(|count| count.all);
    let idle = weights(|count| count.idle);
    let idle = if idle.iter().any(|weight| *weight > 0) {
        &idle
    } else {
        &all
    };
    let whole = divided(times.all, &all);
    let idle = divided(times.idle, idle);
    let seen = others.iter().chain(&native).map(|(seen, _)| **seen);
    let parts = seen.zip(whole.into_iter().zip(idle));
    let parts = parts.map(|(seen, (all, idle))| (Spent::Seen(seen), Times { all, idle }));
    parts.collect()
}

/// A sum in parts as great as their weights, to the last nanosecond.
fn divided(sum: u64, weights: &[u128]) -> Vec<u64> {
    let all: u128 = weights.iter().sum::<u128>().max(1);
    let (mut before, mut given) = (0_u128, 0_u64);
    let parts = weights.iter().map(|weight| {
        before += weight;
        let until = (before as f64 / all as f64 * sum as f64) as u64;
        let until = if before == all { sum } else { until.min(sum) };
        let part = until.saturating_sub(given);
        given += part;
        part
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(seen: &[(Seen, u64, u64)], all: u64, idle: u64) -> Vec<(Seen, u64, u64)> {
        let seen = seen.iter().copied();
        let seen = seen.map(|(seen, all, idle)| (seen, Count { all, idle }));
        let parts = parts(&seen.collect(), Times { all, idle });
        assert_eq!(parts.iter().map(|(_, part)| part.all).sum::<u64>(), all);
        assert_eq!(parts.iter().map(|(_, part)| part.idle).sum::<u64>(), idle);
        let seen = parts.into_iter().map(|(spent, part)| match spent {
            Spent::Seen(seen) => (seen, part.all, part.idle),
            _ => panic!("{spent:?}"),
        });
        seen.collect()
    }

    #[test]
    fn time_is_divided_to_the_last_nanosecond() {
        let seen = [(Seen::Python(1), 2, 0), (Seen::Python(2), 1, 1)];
        let expected = [(Seen::Python(1), 66, 0), (Seen::Python(2), 34, 50)];
        assert_eq!(found(&seen, 100, 50), expected);
        // Where no sample was taken while the GPU was idle, that time is as all is.
        let seen = [(Seen::Python(1), 1, 0), (Seen::Waiting, 1, 0)];
        let expected = [(Seen::Python(1), 50, 2), (Seen::Waiting, 50, 3)];
        assert_eq!(found(&seen, 100, 5), expected);
    }

    #[test]
    fn native_stacks_divide_what_is_of_no_python_function() {
        let seen = [
            (Seen::Python(1), 60, 60),
            (Seen::Outside, 40, 40),
            (Seen::Native(7), 5, 5),
            (Seen::Native(8), 15, 15),
        ];
        let expected = [
            (Seen::Python(1), 600, 600),
            (Seen::Outside, 0, 0),
            (Seen::Native(7), 100, 100),
            (Seen::Native(8), 300, 300),
        ];
        assert_eq!(found(&seen, 1000, 1000), expected);
        let alone = [(Seen::Native(7), 1, 0), (Seen::Native(8), 1, 0)];
        let expected = [(Seen::Native(7), 50, 0), (Seen::Native(8), 50, 0)];
        assert_eq!(found(&alone, 100, 0), expected);
    }
}
