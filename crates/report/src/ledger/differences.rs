//! Differences between a slow iteration and the other iterations, by cause. The differences add up to the slow
//! iteration's extra time.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::LedgerKind;
use super::keys::{HostCause, NameSources};
use super::times::Times;
use crate::ledger::difference::Difference;
use crate::ledger::difference::cause::{REST, WORK};
use crate::numbers::units::Rate;

/// Minimum difference that is reported by name, as a fraction of the slow iteration's time. Smaller differences are
/// part of the unexplained rest.
const MIN_SHARE: f64 = 0.002;
/// Minimum difference that is reported by name, as a fraction of the slow iteration's extra time. Smaller differences
/// are part of the unexplained rest.
const MIN_SHARE_OF_EXTRA: f64 = 0.05;
/// Maximum number of differences that are reported by name. Further differences are part of the unexplained rest.
const MAX_NAMED: usize = 6;

/// Sums over the iterations on one side of a comparison: over the slow iteration, or over the other
/// iterations.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct SideSums<'a> {
    pub iterations: u64,
    pub spent: &'a [(HostCause, Times)],
    /// GPU busy time in nanoseconds; `None` if it is not known for these iterations.
    pub gpu: Option<u64>,
    pub launches: u64,
}

impl SideSums<'_> {
    fn mean(&self, time: u64) -> i64 {
        (time / self.iterations.max(1)) as i64
    }

    /// Returns the total time of each cause over the iterations, in nanoseconds, without waits for requests.
    fn causes(&self, named: NameSources<'_>) -> BTreeMap<(LedgerKind, String), u64> {
        let mut causes = BTreeMap::new();
        for (spent, times) in self.spent {
            let cause = named.cause(*spent);
            if cause.0 != LedgerKind::Requests {
                *causes.entry(cause).or_default() += times.all;
            }
        }
        causes
    }
}

/// Returns the extra time of one iteration in nanoseconds, and its causes. The extra time is the time by which the
/// iteration was longer than the mean of the other iterations, both without waits for requests. The greatest cause
/// comes first, and the unexplained rest last. `holder` is the name of the thread that held the GIL.
pub(super) fn differences(
    one: SideSums<'_>,
    others: SideSums<'_>,
    holder: Option<&str>,
    named: NameSources<'_>,
) -> (i64, Vec<Difference>) {
    let (own, usual) = (one.causes(named), others.causes(named));
    let own_time: u64 = own.values().sum();
    let all = own_time as i64 - others.mean(usual.values().sum());
    let mut found: Vec<((LedgerKind, &str), i64)> = Vec::new();
    for (kind, cause) in own
        .keys()
        .chain(usual.keys().filter(|key| !own.contains_key(key)))
    {
        let key = (*kind, cause.clone());
        let time = |side: &BTreeMap<_, u64>| side.get(&key).copied().unwrap_or(0);
        let more = time(&own) as i64 - others.mean(time(&usual));
        found.push(((*kind, cause), more));
    }
    let of_kind = |side: &BTreeMap<(LedgerKind, String), u64>, kind| {
        let of = side.iter().filter(|((other, _), _)| *other == kind);
        of.map(|(_, time)| *time).sum::<u64>()
    };
    // Extra time in waits for the GPU counts as more GPU work, up to the time by which the GPU was busy longer than in
    // the mean of the other iterations.
    let waits = found
        .iter()
        .filter(|((kind, _), _)| *kind == LedgerKind::Wait);
    let waited: i64 = waits.map(|(_, more)| *more).sum();
    let work = match (one.gpu, others.gpu) {
        (Some(own), Some(usual)) => own as i64 - others.mean(usual),
        _ => 0,
    };
    let work = work.min(waited).max(0);
    let mut left = work;
    found.sort_by_key(|(cause, more)| (Reverse(*more), *cause));
    for ((kind, _), more) in &mut found {
        if *kind == LedgerKind::Wait && *more > 0 {
            let taken = left.min(*more);
            (*more, left) = (*more - taken, left - taken);
        }
    }
    let work = work - left;
    let detail = |captures: bool| detail(one, others, captures);
    let captures = of_kind(&own, LedgerKind::Capture);
    let usually = others.mean(of_kind(&usual, LedgerKind::Capture));
    let anew = captures > 0 && captures as i64 > 10 * usually;
    let difference = |cause: &str, more, detail, held_by: Option<&str>| Difference {
        cause: cause.to_owned(),
        detail,
        held_by: held_by.map(str::to_owned),
        more,
    };
    let mut named: Vec<Difference> = vec![difference(WORK, work, detail(anew), None)];
    for ((kind, cause), more) in found {
        named.push(match kind {
            LedgerKind::Unknown | LedgerKind::Other => continue,
            LedgerKind::GilWait => difference(cause, more, None, holder),
            LedgerKind::Launch if work == 0 => difference(cause, more, detail(anew), None),
            _ => difference(cause, more, None, None),
        });
    }
    let least = (own_time as f64 * MIN_SHARE).max(all.unsigned_abs() as f64 * MIN_SHARE_OF_EXTRA);
    named.retain(|one| one.more != 0 && one.more.unsigned_abs() as f64 >= least);
    named.sort_by_key(|one| Reverse(one.more.unsigned_abs()));
    named.truncate(MAX_NAMED);
    let rest = all - named.iter().map(|one| one.more).sum::<i64>();
    if rest != 0 {
        named.push(difference(REST, rest, None, None));
    }
    (all, named)
}

/// Returns words for the difference between the launches of the slow iteration (`one`) and those of the other
/// iterations, and for a repeated graph capture, if `captures` is true. Returns `None` if the launches do not differ
/// and no graph is captured.
fn detail(one: SideSums<'_>, others: SideSums<'_>, captures: bool) -> Option<String> {
    let usual = others.launches as f64 / others.iterations.max(1) as f64;
    let own = one.launches as f64;
    let differ = (own - usual).abs() >= 1.0 && (own - usual).abs() > usual * 0.1;
    let many = if one.launches == 1 { "" } else { "es" };
    let launches = differ.then(|| format!("{own} launch{many} instead of {}", Rate(usual)));
    let captures = captures.then(|| "graph captured again".to_owned());
    let said: Vec<_> = launches.into_iter().chain(captures).collect();
    (!said.is_empty()).then(|| said.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::facts::{CallCount, Facts};
    use crate::events::samples::Frames;
    use crate::ledger::keys::ActivityKey;
    use tllmprof_record::{CallKind, Strings};

    fn facts() -> Facts {
        let row = |row, name: &str, kind| CallCount {
            row,
            name: name.to_owned(),
            kind,
            inside: 0,
            outside: 0,
        };
        Facts {
            calls: vec![
                row(0, "cuLaunchKernel", CallKind::KernelLaunch),
                row(1, "cuStreamSynchronize", CallKind::Wait),
            ],
            ..Facts::default()
        }
    }

    const LAUNCH: HostCause = HostCause::On(ActivityKey::Call(0));
    const WAIT: HostCause = HostCause::On(ActivityKey::Call(1));
    const CAPTURE: HostCause = HostCause::On(ActivityKey::Capturing);
    const GIL: HostCause = HostCause::On(ActivityKey::Gil);

    fn spent(times: &[(HostCause, u64)]) -> Vec<(HostCause, Times)> {
        let times = times.iter();
        times
            .map(|(spent, all)| (*spent, Times { all: *all, idle: 0 }))
            .collect()
    }

    #[track_caller]
    fn found(one: SideSums<'_>, others: SideSums<'_>) -> (i64, Vec<(String, i64)>) {
        let (facts, strings) = (facts(), Strings::default());
        let named = NameSources {
            facts: &facts,
            strings: &strings,
            frames: &Frames::default(),
        };
        let (all, found) = differences(one, others, Some("tokenise"), named);
        assert_eq!(found.iter().map(|one| one.more).sum::<i64>(), all);
        let said = found.into_iter().map(|one| {
            let more = [one.held_by, one.detail].into_iter().flatten();
            let said = more.fold(one.cause, |said, more| format!("{said} ({more})"));
            (said, one.more)
        });
        (all, said.collect())
    }

    #[test]
    fn differences_add_up_and_waits_are_for_work() {
        let own = spent(&[
            (LAUNCH, 100),
            (WAIT, 700),
            (CAPTURE, 200),
            (HostCause::Unknown, 30),
        ]);
        let usual = spent(&[(LAUNCH, 200), (WAIT, 1000), (HostCause::Unknown, 100)]);
        let one = SideSums {
            iterations: 1,
            spent: &own,
            gpu: Some(696),
            launches: 65,
        };
        let others = SideSums {
            iterations: 10,
            spent: &usual,
            gpu: Some(1880),
            launches: 12,
        };
        let wait = "waiting for the GPU: cuStreamSynchronize";
        let expected = [
            (
                "GPU work (65 launches instead of 1.20, graph captured again)",
                508,
            ),
            ("graph capture", 200),
            (wait, 92),
            ("launching", 80),
            ("unexplained", 20),
        ];
        let expected = expected.map(|(said, more)| (said.to_owned(), more));
        assert_eq!(found(one, others), (900, expected.to_vec()));
        // If the GPU's busy time is not known, all extra time of the wait is reported as a wait for the GPU.
        let blind = SideSums { gpu: None, ..one };
        assert_eq!(found(blind, others).1[0], (wait.to_owned(), 600));
        // If the GPU was busy no longer than in the mean of the other iterations, the result is the same.
        let same = SideSums {
            gpu: Some(188),
            ..one
        };
        assert_eq!(found(same, others).1[0], (wait.to_owned(), 600));
    }

    #[test]
    fn what_is_less_counts_too_and_requests_do_not() {
        let requests = HostCause::On(ActivityKey::Requests);
        let own = spent(&[(GIL, 500), (requests, 9000)]);
        let usual = spent(&[(WAIT, 200), (requests, 10)]);
        let side = |spent, iterations| SideSums {
            iterations,
            spent,
            gpu: None,
            launches: 0,
        };
        let gil = "waiting for the GIL (tokenise)".to_owned();
        let wait = "waiting for the GPU: cuStreamSynchronize".to_owned();
        let (all, found) = found(side(&own, 1), side(&usual, 2));
        assert_eq!((all, found), (400, vec![(gil, 500), (wait, -100)]));
    }
}
