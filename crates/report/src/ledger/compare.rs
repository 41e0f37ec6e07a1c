//! Comparison of the host's time in two runs: of the times of functions, which come from sampled stacks, and of the
//! times of other causes, such as CUDA calls.

use std::collections::{BTreeMap, BTreeSet};

use super::{Ledger, LedgerKind, LedgerRow, collecting_row, shown_causes, unfold};
use crate::events::samples::SampleCounts;
use crate::numbers::bootstrap::Change;
use crate::numbers::parts::PartChange;

/// Maximum number of functions in a comparison. If there are more, the comparison shows those whose times differ most.
const MAX_FUNCTIONS: usize = 20;

/// Minimum number of samples of a function that occurs in only one of the two runs. With fewer samples, the function is
/// not reported.
const MIN_NEW_SAMPLES: f64 = 10.0;

/// Half width of a 95 % confidence interval of the normal distribution, in standard deviations.
const DEVIATIONS_OF_95_PERCENT: f64 = 1.96;

/// The mean time of a function per iteration, in nanoseconds, and the number of samples that it is based on.
#[derive(Clone, Copy, Default)]
struct FunctionTime {
    ns: f64,
    samples: f64,
}

/// Returns the functions, and the causes in which the thread was asleep or had no processor, whose times differ by more
/// than chance can explain. The largest difference comes first. The result is empty if one of the runs has too few
/// samples.
pub(crate) fn changes(runs: [(&Ledger, SampleCounts); 2]) -> Vec<PartChange> {
    if !runs.iter().all(|(_, counts)| counts.enough()) {
        return Vec::new();
    }
    let wanted = shown_causes(runs.map(|(ledger, _)| &ledger.host[..]));
    let mut by_name: BTreeMap<String, [FunctionTime; 2]> = BTreeMap::new();
    for (side, (ledger, counts)) in runs.into_iter().enumerate() {
        for (name, row) in rows(ledger, counts, &wanted) {
            by_name.entry(name).or_default()[side] = row;
        }
    }
    let all = by_name.into_iter().filter_map(|(name, [base, other])| {
        let change = change(base, other)?;
        Some(PartChange {
            counts: None,
            label: name.clone(),
            name,
            base: base.ns,
            other: other.ns,
            change,
            is_few: false,
        })
    });
    let mut all: Vec<_> = all.collect();
    let differs = |one: &PartChange| (one.other - one.base).abs();
    all.sort_by(|a, b| differs(b).total_cmp(&differs(a)));
    all.truncate(MAX_FUNCTIONS);
    all
}

/// Returns the changes of all causes in the host's ledger except the functions that only samples show, the largest
/// difference first. The changes have no confidence interval, because two single runs do not show how much runs vary.
pub(crate) fn causes(runs: [&Ledger; 2]) -> Vec<PartChange> {
    let wanted = shown_causes(runs.map(|ledger| &ledger.host[..]));
    let hosts = runs.map(|ledger| unfold(&ledger.host, &ledger.folded.host, &wanted));
    let mut by_name: BTreeMap<&str, [f64; 2]> = BTreeMap::new();
    for (side, (ledger, host)) in runs.into_iter().zip(&hosts).enumerate() {
        let is_sampled =
            |row: &LedgerRow| matches!(row.kind, LedgerKind::Python | LedgerKind::Native);
        for row in host.iter().filter(|row| !is_sampled(row)) {
            by_name.entry(&row.cause).or_default()[side] += ns_of(row, ledger);
        }
    }
    let mut all: Vec<_> = by_name
        .into_iter()
        .map(|(name, [base, other])| PartChange {
            counts: None,
            label: name.to_owned(),
            name: name.to_owned(),
            base,
            other,
            change: (base > 0.0 && other > 0.0).then(|| Change {
                relative: other / base - 1.0,
                interval: None,
            }),
            is_few: false,
        })
        .collect();
    let differs = |one: &PartChange| (one.other - one.base).abs();
    all.sort_by(|a, b| differs(b).total_cmp(&differs(a)));
    all
}

/// Returns the mean time of a cause per iteration, in nanoseconds; `None` if the ledger does not have the cause. Only
/// the causes in `wanted` have a time of their own. The time of all other causes is in rows such as `other`, which add
/// up small causes. So no time counts twice, and such a row stands for the same causes in all ledgers.
pub(crate) fn time(
    ledger: &Ledger,
    cause: &str,
    wanted: &BTreeSet<(LedgerKind, &str)>,
) -> Option<f64> {
    let host = unfold(&ledger.host, &ledger.folded.host, wanted);
    let rows = host.iter().filter(|row| {
        let is_wanted = wanted.contains(&(row.kind, &*row.cause));
        let counted = match is_wanted {
            true => &*row.cause,
            false => collecting_row(row).1,
        };
        counted == cause && row.ns > 0
    });
    let times = rows.map(|row| ns_of(row, ledger));
    times.reduce(|sum, ns| sum + ns)
}

fn ns_of(row: &LedgerRow, ledger: &Ledger) -> f64 {
    row.ns as f64 / ledger.host_iterations.max(1) as f64
}

/// Returns the rows of the host's ledger whose time may come from samples: functions, and the time in which the thread
/// was asleep or had no processor. Each row has its estimated number of samples. Causes in `wanted` have a row of their
/// own even if they are small.
fn rows(
    ledger: &Ledger,
    counts: SampleCounts,
    wanted: &BTreeSet<(LedgerKind, &str)>,
) -> Vec<(String, FunctionTime)> {
    // No samples are counted in waits for requests. So a row's part of the samples is the row's share of the time
    // without these waits.
    let worked = 1.0 - ledger.host_share(LedgerKind::Requests);
    let host = unfold(&ledger.host, &ledger.folded.host, wanted);
    let rows = host.into_iter().filter_map(move |row| {
        let samples = match row.kind {
            LedgerKind::Python | LedgerKind::Blocked | LedgerKind::Delayed => counts.samples,
            LedgerKind::Native => counts.samples.max(counts.native),
            _ => return None,
        };
        let row_of = FunctionTime {
            ns: ns_of(&row, ledger),
            samples: samples as f64 * row.share / worked.max(f64::EPSILON),
        };
        Some((row.cause, row_of))
    });
    rows.collect()
}

/// Returns the change from the base's row to the other run's row: `None` if the change may be
/// chance, `Some(None)` if only one run has the function.
fn change(base: FunctionTime, other: FunctionTime) -> Option<Option<Change>> {
    if base.ns == 0.0 || other.ns == 0.0 {
        return (base.samples.max(other.samples) >= MIN_NEW_SAMPLES).then_some(None);
    }
    let ratio = other.ns / base.ns;
    let deviation = ratio * (1.0 / base.samples + 1.0 / other.samples).sqrt();
    let relative = ratio - 1.0;
    let interval = (
        relative - DEVIATIONS_OF_95_PERCENT * deviation,
        relative + DEVIATIONS_OF_95_PERCENT * deviation,
    );
    let is_sure = interval.0 > 0.0 || interval.1 < 0.0;
    is_sure.then_some(Some(Change {
        relative,
        interval: Some(interval),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_shown_that_is_more_than_chance() {
        let row = |ns, samples| FunctionTime { ns, samples };
        let sure = change(row(100.0, 1000.0), row(200.0, 2000.0));
        let sure = sure.flatten().unwrap();
        let (low, high) = sure.interval.unwrap();
        assert!((sure.relative - 1.0).abs() < 1e-9);
        assert!(low > 0.8 && low < 1.0 && high > 1.0 && high < 1.2);
        // The ratio of the times is the same as in the first test case, but there are too few samples to
        // exclude chance.
        assert!(change(row(100.0, 5.0), row(200.0, 10.0)).is_none());
        assert!(change(row(100.0, 1000.0), row(101.0, 1010.0)).is_none());
        // In this test case, only one of the runs has the function.
        assert!(
            change(FunctionTime::default(), row(100.0, 50.0))
                .unwrap()
                .is_none()
        );
        assert!(change(FunctionTime::default(), row(100.0, 5.0)).is_none());
    }

    #[test]
    fn no_time_is_in_two_rows() {
        let row = |kind: LedgerKind, cause: &str, ns: u64| LedgerRow {
            kind,
            cause: cause.to_owned(),
            location: None,
            ns,
            share: ns as f64 / 100.0,
        };
        let (call, other) = (LedgerKind::Call, LedgerKind::Other);
        let mut ledger = Ledger {
            host_iterations: 1,
            host: vec![row(call, "a", 90), row(other, "other", 10)],
            ..Ledger::default()
        };
        ledger.folded.host = vec![row(call, "b", 7), row(call, "c", 3)];
        let times = |wanted: &[(LedgerKind, &'static str)]| {
            let wanted: BTreeSet<_> = wanted.iter().copied().collect();
            ["a", "b", "other"].map(|cause| time(&ledger, cause, &wanted))
        };
        let all = [(call, "a"), (call, "b"), (other, "other")];
        assert_eq!(times(&all), [Some(90.0), Some(7.0), Some(3.0)]);
        // A row that the other ledgers do not show counts as one of the small causes.
        assert_eq!(times(&all[1..]), [None, Some(7.0), Some(93.0)]);
        assert_eq!(times(&all[2..]), [None, None, Some(100.0)]);
    }
}
