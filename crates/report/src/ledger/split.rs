//! Division of the host's time that no event explains, in proportion to the stack samples that lie in this time.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use super::keys::HostCause;
use super::times::Times;
use crate::events::samples::{SampleCounts, SampledState};

/// Maximum weight of a sample of a sleeping thread, relative to a sample of a running thread (see
/// [`SamplesByCause::asleep_weight`]). The minimum weight is the inverse of this number.
const MAX_WEIGHT: f64 = 4.0;
/// Native stacks are sampled only while a thread runs in user space, not in the operating system's kernel. This limit
/// is compared with a ratio: the number of native stack samples divided by the number of samples outside Python
/// functions, both in the time of one cause. With a smaller ratio, the thread is assumed to have been mostly in the
/// kernel. If the thread was always in user space, the ratio is about 1. It is about 0.25 if the kernel's timer limits
/// native stacks to 250 Hz and the other samples are taken at 1000 Hz.
const MAX_IN_KERNEL: f64 = 0.05;
/// Number of steps of the binary search for the weight of a sample of a sleeping thread (see
/// [`SamplesByCause::asleep_weight`]).
const SEARCH_STEPS: u32 = 32;
/// Factor by which the weight of a sample is multiplied before it is rounded to an integer. The factor is large so that
/// rounding errors are negligible.
const SAMPLE_WEIGHT: f64 = 1024.0;

/// Number of samples, and the number of those that were taken while the GPU was idle.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Count {
    pub all: u64,
    pub idle: u64,
}

/// Numbers of samples that were taken during some iterations.
#[derive(Clone, Default, Debug)]
pub(crate) struct SampleSums {
    /// Number of all samples, by the state of the thread.
    total: HashMap<SampledState, Count>,
    /// Number of samples, by the cause to which the host's time around the sample is attributed, and
    /// by the state of the thread. Samples without a known cause count only in `total`.
    by: HashMap<(HostCause, SampledState), Count>,
}

impl Count {
    const fn add(&mut self, more: Self) {
        self.all += more.all;
        self.idle += more.idle;
    }
}

impl SampleSums {
    /// Adds `count` samples, in which the thread had the state `seen`, to the number of all samples.
    pub(crate) fn total(&mut self, seen: SampledState, count: Count) {
        self.total.entry(seen).or_default().add(count);
    }

    /// Adds `count` samples to the cause of the host's time (such as a CUDA call) in which they were taken.
    pub(crate) fn add(&mut self, spent: HostCause, seen: SampledState, count: Count) {
        self.by.entry((spent, seen)).or_default().add(count);
    }

    pub(crate) fn and(&mut self, more: &Self) {
        more.total
            .iter()
            .for_each(|(seen, count)| self.total(*seen, *count));
        let by = more.by.iter();
        by.for_each(|((spent, seen), count)| self.add(*spent, *seen, *count));
    }

    /// Returns true if there are enough samples to compare functions.
    pub(crate) fn enough(&self) -> bool {
        let mut counts = SampleCounts::default();
        for (seen, count) in &self.total {
            match seen.is_native() {
                true => counts.native += count.all,
                false => counts.samples += count.all,
            }
        }
        counts.enough()
    }

    /// Returns true if all samples are of native stacks, which are never sampled while the thread
    /// sleeps.
    pub(crate) fn are_native(&self) -> bool {
        self.total.keys().all(|seen| seen.is_native())
    }

    /// Returns the numbers of samples by cause (see [`SamplesByCause`]). Samples without a known cause get the cause
    /// `Unknown`.
    pub(crate) fn by_spent(self) -> SamplesByCause {
        let mut unknown: BTreeMap<_, _> = self.total.into_iter().collect();
        let mut found: BTreeMap<HostCause, BTreeMap<SampledState, Count>> = BTreeMap::new();
        for ((spent, seen), count) in self.by {
            found.entry(spent).or_default().insert(seen, count);
            if let Some(left) = unknown.get_mut(&seen) {
                left.all = left.all.saturating_sub(count.all);
                left.idle = left.idle.saturating_sub(count.idle);
            }
        }
        unknown.retain(|_, left| left.all > 0);
        if !unknown.is_empty() {
            found.insert(HostCause::Unknown, unknown);
        }
        SamplesByCause(found)
    }
}

/// Numbers of stack samples, by cause and by the state of the thread. The cause of a sample is the one to which the
/// ledger attributes the host's time around the sample, such as a CUDA call.
#[derive(Debug)]
pub(crate) struct SamplesByCause(BTreeMap<HostCause, BTreeMap<SampledState, Count>>);

impl SamplesByCause {
    /// Returns the number of samples that were taken during the cause `spent`, and for whose state `is` returns true.
    fn count(&self, spent: HostCause, is: impl Fn(SampledState) -> bool) -> u64 {
        let counts = self.0.get(&spent).into_iter().flatten();
        let counts = counts.filter(|(seen, _)| is(**seen));
        counts.map(|(_, count)| count.all).sum()
    }

    /// Returns the number of native stack samples taken during a cause.
    pub(crate) fn native_in(&self, spent: HostCause) -> u64 {
        self.count(spent, SampledState::is_native)
    }

    /// Returns the weight of a sample of a sleeping thread, relative to a sample of a running thread. The weight is
    /// chosen so that the samples show a total time of sleep in the range `asleep`, which the operating system
    /// measured, in nanoseconds. If no weight that [`MAX_WEIGHT`] permits achieves this, the result is the weight that
    /// comes closest.
    ///
    /// A weight other than 1 is needed when all processors are busy. The sampler is then late and takes fewer samples
    /// of running threads, so the samples would show too much sleep.
    ///
    /// `work` contains all causes except waits, with their times. `is_open` returns true for the causes whose time the
    /// samples divide. Only the samples of these causes are weighted.
    pub(crate) fn asleep_weight(
        &self,
        work: impl Iterator<Item = (HostCause, u64)>,
        is_open: impl Fn(HostCause) -> bool,
        asleep: RangeInclusive<u64>,
    ) -> f64 {
        let row = |(spent, time): (HostCause, u64)| {
            let slept = self.count(spent, SampledState::is_asleep) as f64;
            let ran = self.count(spent, |seen| !seen.is_asleep() && !seen.is_native()) as f64;
            (is_open(spent), time as f64, slept, ran)
        };
        let rows: Vec<_> = work
            .map(row)
            .filter(|(_, _, slept, _)| *slept > 0.0)
            .collect();
        let sum = |are_open: bool, weight: f64| {
            let rows = rows.iter().filter(|(is_open, ..)| *is_open == are_open);
            let part = |(_, time, slept, ran): &(bool, f64, f64, f64)| {
                time * weight * slept / (weight * slept + ran)
            };
            rows.map(part).fold(0.0, |sum, part| sum + part)
        };
        let elsewhere = sum(false, 1.0);
        let (least, most) = (*asleep.start() as f64, *asleep.end() as f64);
        let wanted = sum(true, 1.0).clamp(least.min(most) - elsewhere, most - elsewhere);
        let (mut low, mut high) = (1.0 / MAX_WEIGHT, MAX_WEIGHT);
        if sum(true, 1.0) == wanted || rows.is_empty() {
            return 1.0;
        }
        // The amount of sleep grows with the weight, so a binary search finds the weight.
        for _ in 0..SEARCH_STEPS {
            let middle = f64::sqrt(low * high);
            match sum(true, middle) < wanted {
                true => low = middle,
                false => high = middle,
            }
        }
        high
    }

    /// Divides the time of each cause for which `is_open` returns true by the samples in that time. The total stays
    /// the same. A sample of a sleep counts `weight` times.
    pub(crate) fn split(
        &self,
        spent: Vec<(HostCause, Times)>,
        is_open: impl Fn(HostCause) -> bool,
        weight: f64,
    ) -> Vec<CausePart> {
        let divided = spent.into_iter().flat_map(|(whole, times)| {
            let seen = self.0.get(&whole).filter(|_| is_open(whole));
            let parts = match seen {
                Some(seen) => parts(whole, &weighted(seen, weight), times),
                None => vec![(whole, times)],
            };
            parts.into_iter().map(move |(cause, times)| CausePart {
                whole,
                cause,
                times,
            })
        });
        divided.collect()
    }
}

/// A part of the time of a cause, after samples divided that time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CausePart {
    /// The cause to which the whole time belonged before samples divided it.
    pub whole: HostCause,
    /// The cause to which this part belongs after the division, such as a function.
    pub cause: HostCause,
    pub times: Times,
}

impl CausePart {
    /// Returns a part that contains the whole time of a cause.
    pub(crate) const fn all((cause, times): (HostCause, Times)) -> Self {
        Self {
            whole: cause,
            cause,
            times,
        }
    }

    /// Adds up the times of those parts that have the same cause after samples have divided the time.
    pub(crate) fn sum(parts: Vec<Self>) -> Vec<(HostCause, Times)> {
        let mut found: BTreeMap<HostCause, Times> = BTreeMap::new();
        for Self { cause, times, .. } in parts {
            let sum = found.entry(cause).or_default();
            *sum = sum.and(times);
        }
        found.into_iter().collect()
    }
}

/// Converts numbers of samples to integer weights. A sample of a sleep counts `weight` times.
fn weighted(seen: &BTreeMap<SampledState, Count>, weight: f64) -> BTreeMap<SampledState, Count> {
    let times = |seen: SampledState, count: u64| {
        let weight = if seen.is_asleep() { weight } else { 1.0 };
        (count as f64 * weight * SAMPLE_WEIGHT).round() as u64
    };
    let one = |(seen, count): (&SampledState, &Count)| {
        let count = Count {
            all: times(*seen, count.all),
            idle: times(*seen, count.idle),
        };
        (*seen, count)
    };
    seen.iter().map(one).collect()
}

/// Divides the time of a cause by the samples in that time. Samples of native stacks are separate:
/// they divide only the time outside Python functions, or all of the time if there are no other
/// samples. They are taken only while the thread runs in user space. If they are so few that the thread was mostly in
/// the operating system's kernel (see [`MAX_IN_KERNEL`]), each stands only for the time of one sample.
fn parts(
    spent: HostCause,
    seen: &BTreeMap<SampledState, Count>,
    times: Times,
) -> Vec<(HostCause, Times)> {
    let (native, others): (Vec<_>, Vec<_>) = seen.iter().partition(|(seen, _)| seen.is_native());
    let sums = |of: fn(&Count) -> u64| -> (u64, u64) {
        let sum: u64 = native.iter().map(|(_, count)| of(count)).sum();
        let outside = others
            .iter()
            .find(|(seen, _)| **seen == SampledState::Outside);
        let outside = match (outside, others.is_empty()) {
            (Some((_, count)), _) => of(count),
            (None, is_empty) => u64::from(is_empty),
        };
        (sum, outside)
    };
    let (ran, outside) = sums(|count| count.all);
    let is_mostly_in_kernel = ran > 0 && (ran as f64) < MAX_IN_KERNEL * outside as f64;
    let weights = |of: fn(&Count) -> u64| -> Vec<u128> {
        let (sum, outside) = sums(of);
        if is_mostly_in_kernel {
            let other = |(seen, count): &(&SampledState, &Count)| match **seen {
                SampledState::Outside => of(count).saturating_sub(sum),
                _ => of(count),
            };
            let native = native.iter().map(|(_, count)| of(count));
            let all = others.iter().map(other).chain(native);
            return all.map(u128::from).collect();
        }
        let is_divided = sum > 0;
        let other = |(seen, count): &(&SampledState, &Count)| match (
            is_divided,
            **seen == SampledState::Outside,
        ) {
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
    let has_python = others.iter().any(|(seen, _)| seen.is_python());
    let shown = |seen| match (seen, spent.code()) {
        // Samples outside Python functions, and sleeps in no known function, name no function. They show only that the
        // thread ran or slept during the cause `spent`.
        (SampledState::Outside, _) if !has_python => spent,
        (SampledState::Asleep(None), Some(code)) => HostCause::Blocked(code),
        _ => HostCause::SampledState(seen),
    };
    let parts = parts.map(|(seen, (all, idle))| (shown(seen), Times { all, idle }));
    parts.collect()
}

/// Divides a sum in proportion to weights. The parts add up exactly to the sum.
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
    use crate::ledger::keys::{ActivityKey, Code};

    const EDGE: HostCause = HostCause::Edge(ActivityKey::Gc, ActivityKey::Gil);

    fn found(
        seen: &[(SampledState, u64, u64)],
        all: u64,
        idle: u64,
    ) -> Vec<(SampledState, u64, u64)> {
        let seen = seen.iter().copied();
        let seen = seen.map(|(seen, all, idle)| (seen, Count { all, idle }));
        let parts = parts(EDGE, &seen.collect(), Times { all, idle });
        assert_eq!(parts.iter().map(|(_, part)| part.all).sum::<u64>(), all);
        assert_eq!(parts.iter().map(|(_, part)| part.idle).sum::<u64>(), idle);
        let seen = parts.into_iter().map(|(spent, part)| match spent {
            HostCause::SampledState(seen) => (seen, part.all, part.idle),
            _ => panic!("{spent:?}"),
        });
        seen.collect()
    }

    #[test]
    fn time_is_divided_to_the_last_nanosecond() {
        let seen = [
            (SampledState::Python(1), 2, 0),
            (SampledState::Python(2), 1, 1),
        ];
        let expected = [
            (SampledState::Python(1), 66, 0),
            (SampledState::Python(2), 34, 50),
        ];
        assert_eq!(found(&seen, 100, 50), expected);
        // If no sample was taken while the GPU was idle, the idle time is divided in the same
        // proportion as all time.
        let seen = [
            (SampledState::Python(1), 1, 0),
            (SampledState::Waiting, 1, 0),
        ];
        let expected = [
            (SampledState::Python(1), 50, 2),
            (SampledState::Waiting, 50, 3),
        ];
        assert_eq!(found(&seen, 100, 5), expected);
    }

    #[test]
    fn native_stacks_divide_what_is_of_no_python_function() {
        let seen = [
            (SampledState::Python(1), 60, 60),
            (SampledState::Outside, 40, 40),
            (SampledState::Native(7), 5, 5),
            (SampledState::Native(8), 15, 15),
        ];
        let expected = [
            (SampledState::Python(1), 600, 600),
            (SampledState::Outside, 0, 0),
            (SampledState::Native(7), 100, 100),
            (SampledState::Native(8), 300, 300),
        ];
        assert_eq!(found(&seen, 1000, 1000), expected);
        let alone = [
            (SampledState::Native(7), 1, 0),
            (SampledState::Native(8), 1, 0),
        ];
        let expected = [
            (SampledState::Native(7), 50, 0),
            (SampledState::Native(8), 50, 0),
        ];
        assert_eq!(found(&alone, 100, 0), expected);
    }
    #[test]
    fn sleeps_add_up_to_what_the_kernel_says() {
        let (call, ran) = (HostCause::On(ActivityKey::Call(1)), SampledState::Native(7));
        let (asleep, awake) = (SampledState::AsleepIn(3), SampledState::Outside);
        let mut seen = SampleSums::default();
        for (spent, of, all) in [
            (EDGE, asleep, 60),
            (EDGE, awake, 40),
            (EDGE, ran, 10),
            (call, asleep, 10),
            (call, awake, 10),
        ] {
            seen.add(spent, of, Count { all, idle: 0 });
        }
        let seen = seen.by_spent();
        let is_open = |spent| spent == EDGE;
        let slept = |least, most| {
            let rows = [(EDGE, 1000), (call, 100)];
            let weight = seen.asleep_weight(rows.into_iter(), is_open, least..=most);
            let times = Times { all: 1000, idle: 0 };
            let parts = CausePart::sum(seen.split(vec![(EDGE, times)], is_open, weight));
            let sum: u64 = parts.iter().map(|(_, part)| part.all).sum();
            assert_eq!(sum, 1000);
            let is_it =
                |(spent, _): &&(HostCause, Times)| *spent == HostCause::SampledState(asleep);
            parts.iter().find(is_it).unwrap().1.all
        };
        // By the samples, the thread slept for 600 ns in the code and for 50 ns in the call. The total of 650 ns is
        // within the range that the operating system measured, so the weight is 1.
        assert_eq!(slept(0, 1100), 600);
        assert_eq!(slept(600, 700), 600);
        // The total that the operating system measured includes 50 ns of sleep in the call. The rest is in the code.
        assert!(slept(0, 350).abs_diff(300) <= 1, "{}", slept(0, 350));
        assert!(slept(850, 900).abs_diff(800) <= 1, "{}", slept(850, 900));
        // The weight cannot be less than a quarter, so the sleep in the code stays longer than the operating
        // system measured.
        assert!(slept(0, 50).abs_diff(273) <= 1, "{}", slept(0, 50));
    }

    #[test]
    fn what_samples_do_not_name_stays_what_it_is() {
        let count = |all| Count { all, idle: 0 };
        let seen = |rows: &[(SampledState, u64)]| {
            let rows = rows.iter().map(|(seen, all)| (*seen, count(*all)));
            let times = Times { all: 100, idle: 0 };
            let parts = parts(EDGE, &rows.collect(), times).into_iter();
            parts
                .filter(|(_, part)| part.all > 0)
                .map(|(spent, part)| (spent, part.all))
                .collect::<Vec<_>>()
        };
        let blocked = HostCause::Blocked(Code::Edge(ActivityKey::Gc, ActivityKey::Gil));
        let (asleep, sleep) = (SampledState::Asleep(None), SampledState::AsleepIn(3));
        let found = seen(&[(asleep, 20), (sleep, 30), (SampledState::Outside, 50)]);
        assert_eq!(
            found,
            [
                (blocked, 20),
                (HostCause::SampledState(sleep), 30),
                (EDGE, 50)
            ]
        );
        // Native stacks are sampled only while the thread runs. So they divide only the time in which it runs, and not
        // its sleep.
        let found = seen(&[
            (sleep, 30),
            (SampledState::Outside, 70),
            (SampledState::Native(7), 4),
        ]);
        let native = HostCause::SampledState(SampledState::Native(7));
        assert_eq!(found, [(HostCause::SampledState(sleep), 30), (native, 70)]);
        // Samples show the thread running far more often than native stacks were sampled. So it was in the operating
        // system's kernel for most of the time, in which native stacks are not sampled.
        let found = seen(&[
            (sleep, 10),
            (SampledState::Outside, 90),
            (SampledState::Native(7), 4),
        ]);
        assert_eq!(
            found,
            [
                (HostCause::SampledState(sleep), 10),
                (EDGE, 86),
                (native, 4)
            ]
        );
        let python = HostCause::SampledState(SampledState::Python(1));
        let found = seen(&[(SampledState::Python(1), 50), (SampledState::Outside, 50)]);
        assert_eq!(
            found,
            [
                (python, 50),
                (HostCause::SampledState(SampledState::Outside), 50)
            ]
        );
    }
}
