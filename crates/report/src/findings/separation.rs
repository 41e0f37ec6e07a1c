//! The rules that separate findings. Each nanosecond counts in the loss of one finding, so a finding that explains time
//! of another one takes that time from it, or replaces it.

use std::collections::HashMap;

use super::definition::{FindingKind, Judge, Rule};
use super::evidence::Evidence;
use super::python::GC_RULE;
use super::{
    ClaimedRow, Finding, Judgement, LedgerSide, Verdict, arrivals, compilation, event_loop,
    fallback, gpu, host, ledger, limits, padding, ranks, state, streams,
};
use crate::ledger::{Claim, LedgerKind};

/// Changes findings, which were judged independently of each other, so that no time counts in the losses of two
/// findings. Withdraws findings that other findings explain. The order of the steps matters: each one uses the losses
/// that the steps before it have left.
pub(super) fn separate(findings: &mut [Finding], all: &[Evidence<'_>]) {
    separate_delays(findings);
    separate_compiler_memory(findings);
    separate_faults(findings);
    separate_fallback(findings);
    separate_compilation(findings, all);
    separate_event_loop(findings);
    withdraw_code_after_waits(findings, all);
    merge_code_into_slow_rank(findings, all);
    separate_skew(findings);
    withdraw_explained_idle(findings);
    withdraw_explained_copies(findings);
    separate_idle(findings);
    remove_upper_bounds(findings, all);
    limit_losses(findings);
}

/// Returns the finding of the rule called `name`; `None` if there is no such rule.
fn find_finding<'a>(findings: &'a mut [Finding], name: &str) -> Option<&'a mut Finding> {
    let mut findings = findings.iter_mut();
    findings.find(|finding| finding.rule.name == name)
}

/// Returns the loss of the finding called `name`, as a fraction; `None` if the finding does not
/// hold or its loss is unknown.
fn loss(findings: &[Finding], name: &str) -> Option<f64> {
    let mut findings = findings.iter();
    findings.find(|finding| finding.rule.name == name)?.loss
}

/// Returns the index of the only process that the finding called `name` is about; `None` if it is about several
/// processes or none.
fn place_of(findings: &[Finding], name: &str) -> Option<usize> {
    let mut findings = findings.iter();
    findings.find(|finding| finding.rule.name == name)?.place
}

/// Returns true if two findings can be about the same process, so that one of them may explain time of the other. The
/// arguments are the indexes of the processes that the findings are about (see [`Finding::place`]).
const fn is_about_same(a: Option<usize>, b: Option<usize>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    }
}

/// Returns the losses of the findings called `a` and `b`, as fractions. Returns `None` if one of these losses is not
/// known, or if the findings are about different processes.
fn losses(findings: &[Finding], a: &str, b: &str) -> Option<(f64, f64)> {
    is_about_same(place_of(findings, a), place_of(findings, b)).then_some(())?;
    Some((loss(findings, a)?, loss(findings, b)?))
}

/// Removes waits for a processor, which the finding `preempted` reports, from the losses of other findings about the
/// same process. Such waits prolong every activity of the host, so each loss contains a part of them. The losses of
/// rules with [`Judge::Undelayed`] contain none of them. The losses of rules with [`Judge::AtMost`] are only upper
/// bounds.
fn separate_delays(findings: &mut [Finding]) {
    let Some(delayed) = loss(findings, ledger::DELAYED_RULE) else {
        return;
    };
    let place = place_of(findings, ledger::DELAYED_RULE);
    let is_without = |rule: &Rule| matches!(rule.judge, Judge::Undelayed(_) | Judge::AtMost(_));
    let others = findings
        .iter_mut()
        .filter(|finding| !is_without(finding.rule) && is_about_same(finding.place, place));
    for loss in others.filter_map(|finding| finding.loss.as_mut()) {
        *loss *= 1.0 - delayed;
    }
}

/// Reduces the losses by page faults and by garbage collections, because a part of both occurs in compilers of the same
/// process. The loss by compilation contains that part. The record does not show in which code they occur, so they are
/// assumed to be evenly distributed. Compilers allocate much memory, so at least this part occurs in them.
fn separate_compiler_memory(findings: &mut [Finding]) {
    let Some(compilation) = loss(findings, compilation::RULE) else {
        return;
    };
    let place = place_of(findings, compilation::RULE);
    for (name, least) in [
        (ledger::FAULTS_RULE, ledger::MIN_IN_KERNEL),
        (GC_RULE, limits::INTERRUPTION.any),
    ] {
        let part = loss(findings, name).unwrap_or(0.0) * compilation;
        subtract_loss(findings, (name, least), place, part);
    }
}

/// Subtracts the loss by page faults from the loss by host code of the same process, because page faults occur in host
/// code. If less than [`ledger::MIN_CODE`] is left, the finding on host code is withdrawn.
fn separate_faults(findings: &mut [Finding]) {
    let Some((faults, code)) = losses(findings, ledger::FAULTS_RULE, ledger::CODE_RULE) else {
        return;
    };
    let left = (code - faults).max(0.0);
    if let Some(code) = find_finding(findings, ledger::CODE_RULE) {
        match left >= ledger::MIN_CODE {
            true => code.loss = Some(left),
            false => code.withdraw(),
        }
    }
}

/// Subtracts the loss by iterations that ran without their graph from the losses by launches and by host code of the
/// same process, because these iterations take longer due to the launches and the code between them.
fn separate_fallback(findings: &mut [Finding]) {
    if let Some(fallback) = loss(findings, fallback::FALLBACK_RULE) {
        let place = place_of(findings, fallback::FALLBACK_RULE);
        let launches = (host::LAUNCH_RULE, host::MIN_GAP_SHARE);
        let left = subtract_loss(findings, launches, place, fallback);
        subtract_loss(findings, (ledger::CODE_RULE, ledger::MIN_CODE), place, left);
    }
}

/// Subtracts the loss by compilation from the losses by host code and by waits of the host in the same process. These
/// losses contain the time in which the host runs the compiler's code, or waits for other processes and threads that
/// compile. They do not contain the time of CUDA calls that load or compile code, so the time of these calls is first
/// taken out of the loss by compilation. Samples may show how long the thread runs compilers, and how long it sleeps in
/// them. Then the first time is the most that is subtracted from the loss by host code, and the second time is the most
/// that is subtracted from the losses by waits.
fn separate_compilation(findings: &mut [Finding], all: &[Evidence<'_>]) {
    let Some(compilation) = loss(findings, compilation::RULE) else {
        return;
    };
    let place = place_of(findings, compilation::RULE);
    let about = || {
        let all = all.iter();
        all.filter(|one| is_about_same(Some(one.place), place))
    };
    let calls = about().map(|one| one.worked_share(LedgerKind::Compilation));
    let mut left = (compilation - calls.fold(0.0, f64::max)).max(0.0);
    let parts = about().map(|one| one.recompiles().ran_and_slept());
    let parts = parts.reduce(|a, b| [a[0].max(b[0]), a[1].max(b[1])]);
    let [ran, slept] = parts.unwrap_or([1.0, 1.0]).map(|part| part * compilation);
    for (name, least, most) in [
        (ledger::CODE_RULE, ledger::MIN_CODE, ran),
        (ledger::BLOCKED_RULE, ledger::MIN_PART, slept),
        (ledger::INPUT_RULE, ledger::MIN_PART, slept),
    ] {
        let explained = left.min(most);
        left -= explained - subtract_loss(findings, (name, least), place, explained);
    }
    for (name, claim, most) in [
        (ledger::CODE_RULE, Claim::Code, ran),
        (ledger::BLOCKED_RULE, Claim::Blocked, slept),
        (ledger::INPUT_RULE, Claim::Input, slept),
    ] {
        let explained = left.min(most);
        left -= explained - withdraw_explained_host(findings, all, (name, claim), place, explained);
    }
}

/// Withdraws the finding called `name` if another finding explains at least half of the host's time that it is about.
/// Does nothing if the loss of the finding called `name` is known. `claim` is the category of the host's time that the
/// finding called `name` is about. `place` is the index of the process that the other finding is about. `explained` is
/// the share of the time that the other finding explains. Returns the part of `explained` that is left.
fn withdraw_explained_host(
    findings: &mut [Finding],
    all: &[Evidence<'_>],
    (name, claim): (&str, Claim),
    place: Option<usize>,
    explained: f64,
) -> f64 {
    let finding = find_finding(findings, name).filter(|finding| {
        let is_open = finding.verdict == Verdict::Yes && finding.loss.is_none();
        is_open && is_about_same(finding.place, place)
    });
    let Some(finding) = finding else {
        return explained;
    };
    let about = all
        .iter()
        .filter(|one| is_about_same(Some(one.place), finding.place));
    let ran = about.map(|one| {
        let claims = &one.process.ledger.details.claims;
        claims.ran_in(claim).ns as f64 / claims.host.max(1) as f64
    });
    let ran = ran.fold(0.0, f64::max);
    if explained * 2.0 < ran {
        return explained;
    }
    finding.withdraw();
    (explained - ran).max(0.0)
}

/// Subtracts the loss by a blocked event loop from the losses by waits of the host in the same process, because these
/// contain the waits for the event loop.
fn separate_event_loop(findings: &mut [Finding]) {
    let Some(mut left) = loss(findings, event_loop::RULE) else {
        return;
    };
    let place = place_of(findings, event_loop::RULE);
    for rule in [ledger::INPUT_RULE, ledger::BLOCKED_RULE] {
        left = subtract_loss(findings, (rule, ledger::MIN_PART), place, left);
    }
}

/// Subtracts `explained`, which is the loss of another finding, from the loss of the finding called `name`. `place` is
/// the index of the process that the other finding is about. Nothing is subtracted if the finding called `name` is
/// about another process. That finding is withdrawn if its remaining loss is less than `least` and less than half of
/// its loss before. Returns the part of `explained` that could not be subtracted.
fn subtract_loss(
    findings: &mut [Finding],
    (name, least): (&str, f64),
    place: Option<usize>,
    explained: f64,
) -> f64 {
    let Some(finding) = find_finding(findings, name) else {
        return explained;
    };
    if !is_about_same(finding.place, place) {
        return explained;
    }
    let Some(loss) = finding.loss else {
        return explained;
    };
    let left = loss - explained;
    match left >= least || left * 2.0 >= loss {
        true => finding.loss = Some(left),
        false => finding.withdraw(),
    }
    (explained - loss).max(0.0)
}

/// Withdraws the finding on host code if a finding on waits for the GPU or on blocking copies holds for the same
/// process, and the record has neither kernels nor samples that name a function. Without these, GPU idle time during
/// host code cannot be distinguished from idle time after such waits and copies.
fn withdraw_code_after_waits(findings: &mut [Finding], all: &[Evidence<'_>]) {
    let is_named = |one: &Evidence<'_>| one.process.ledger.details.claims.code_in.are_known();
    let place = place_of(findings, ledger::CODE_RULE);
    let waits = |finding: &Finding| {
        let is_one = ["host-waits", "blocking-copies"].contains(&finding.rule.name);
        is_one && finding.verdict == Verdict::Yes && is_about_same(finding.place, place)
    };
    let is_measured = |one: &Evidence<'_>| one.kernels().is_some();
    if !findings.iter().any(waits) || all.iter().any(is_named) || all.iter().any(is_measured) {
        return;
    }
    if let Some(code) = find_finding(findings, ledger::CODE_RULE)
        && code.verdict == Verdict::Yes
    {
        code.withdraw();
    }
}

/// Merges the finding on host code into the finding on a slow rank, if the slowest rank is the only rank with slow host
/// code. Otherwise both findings stay, and the loss by the slow rank is subtracted from the loss by host code.
fn merge_code_into_slow_rank(findings: &mut [Finding], all: &[Evidence<'_>]) {
    let place = |name| {
        let is_it = |finding: &Finding| {
            finding.rule.name == name && finding.verdict == Verdict::Yes && finding.loss.is_some()
        };
        findings.iter().position(is_it)
    };
    let (Some(slow), Some(code)) = (place(ranks::SLOW_RULE), place(ledger::CODE_RULE)) else {
        return;
    };
    let loss = findings[slow].loss.unwrap_or(0.0);
    let mut bound = all.iter().filter_map(|one| match ledger::code(one) {
        Judgement::Yes { evidence, .. } => Some((one.place, evidence)),
        Judgement::No(_) | Judgement::Unknown(_) => None,
    });
    let (first, others) = (bound.next(), bound.next());
    match (first, others) {
        (Some((place, evidence)), None) if ranks::slowest(all) == Some(place) => {
            findings[slow].evidence += &format!("; there {evidence}");
            findings[code].withdraw();
        }
        _ => {
            let code = &mut findings[code];
            code.loss = code.loss.map(|other| (other - loss).max(0.0));
        }
    }
}

/// Returns true if a finding's loss is time in which the GPU works. Such a loss does not explain GPU idle time.
fn is_about_gpu_work(rule: &Rule) -> bool {
    rule.is_at_most() || rule.name == padding::PADDING_RULE
}

/// Withdraws the finding `gpu-idle` if a finding on a cause in the same process holds and has a loss of at least
/// [`ledger::MIN_PART`]. Findings whose loss is time in which the GPU works do not count.
fn withdraw_explained_idle(findings: &mut [Finding]) {
    let place = place_of(findings, ledger::IDLE_RULE);
    let says_why = |finding: &&Finding| {
        let is_cause = finding.rule.kind == FindingKind::Cause
            && finding.rule.name != ledger::IDLE_RULE
            && !is_about_gpu_work(finding.rule);
        let explains = finding.loss.is_some_and(|loss| loss >= ledger::MIN_PART);
        let is_about_it = is_about_same(finding.place, place);
        finding.verdict == Verdict::Yes && is_cause && explains && is_about_it
    };
    if findings.iter().any(|finding| says_why(&finding))
        && let Some(idle) = find_finding(findings, ledger::IDLE_RULE)
        && idle.verdict == Verdict::Yes
    {
        idle.withdraw();
    }
}

/// Subtracts GPU idle time from the claims and from the loss of the finding `gpu-idle`, if findings on other causes
/// claim the same time.
fn separate_idle(findings: &mut [Finding]) {
    let mut claimed: HashMap<(usize, LedgerSide, String), u64> = HashMap::new();
    let others = findings.iter().filter(|finding| {
        finding.verdict == Verdict::Yes
            && finding.rule.kind == FindingKind::Cause
            && finding.rule.name != ledger::IDLE_RULE
    });
    for row in others.flat_map(|finding| &finding.claims) {
        let key = (row.process, row.ledger, row.cause.clone());
        *claimed.entry(key).or_default() += row.ns;
    }
    let Some(idle) = find_finding(findings, ledger::IDLE_RULE) else {
        return;
    };
    // The loss of `gpu-idle` is that of one process, so only the claims on rows of this process reduce it.
    let place = idle.place;
    let sum = |claims: &[ClaimedRow]| -> u64 {
        let its = |row: &&ClaimedRow| place.is_none_or(|place| place == row.process);
        claims.iter().filter(its).map(|row| row.ns).sum()
    };
    let all = sum(&idle.claims);
    for row in &mut idle.claims {
        let key = (row.process, row.ledger, row.cause.clone());
        row.ns = row
            .ns
            .saturating_sub(claimed.get(&key).copied().unwrap_or(0));
    }
    idle.claims.retain(|row| row.ns > 0);
    let left = sum(&idle.claims);
    match left {
        0 if all > 0 => idle.withdraw(),
        _ if left < all => idle.loss = idle.loss.map(|loss| loss * left as f64 / all as f64),
        _ => {}
    }
}

/// Withdraws the finding `copy-bound` (the GPU copies for much of the time) if any finding on a cause in the same
/// process holds.
fn withdraw_explained_copies(findings: &mut [Finding]) {
    let place = place_of(findings, gpu::COPIES_RULE);
    let is_cause = |finding: &Finding| {
        let is_one = finding.verdict == Verdict::Yes && finding.rule.kind == FindingKind::Cause;
        is_one && is_about_same(finding.place, place)
    };
    if findings.iter().any(is_cause)
        && let Some(copies) = find_finding(findings, gpu::COPIES_RULE)
        && copies.verdict == Verdict::Yes
    {
        copies.withdraw();
    }
}

/// Removes losses that are only upper bounds ([`Judge::AtMost`]) if another cause has a loss of at least
/// [`ledger::MIN_PART`], so that the other cause comes first. Keeps them if the GPUs of all processes are busy for at
/// least [`streams::MIN_BUSY`] of the time. Also keeps the loss of the finding `shared-gpu`: time in which another
/// process uses the GPU looks like idle time of the GPU, so another cause's loss may contain that time.
fn remove_upper_bounds(findings: &mut [Finding], all: &[Evidence<'_>]) {
    let is_busy = |one: &Evidence<'_>| {
        one.busy()
            .is_some_and(|busy| busy.share() >= streams::MIN_BUSY)
    };
    let is_other = |finding: &Finding| {
        finding.verdict == Verdict::Yes
            && finding.rule.kind == FindingKind::Cause
            && !finding.rule.is_at_most()
            && finding.loss.is_some_and(|loss| loss >= ledger::MIN_PART)
    };
    if all.iter().all(is_busy) || !findings.iter().any(is_other) {
        return;
    }
    let bounds = findings.iter_mut();
    let is_bound = |finding: &&mut Finding| {
        finding.rule.is_at_most() && finding.rule.name != state::SHARED_RULE
    };
    for finding in bounds.filter(is_bound) {
        finding.loss = None;
    }
}

/// Subtracts the loss by arrival skew from the loss by a slow rank, because both losses contain the
/// waits for that rank.
fn separate_skew(findings: &mut [Finding]) {
    let Some(skew) = loss(findings, arrivals::SKEW_RULE) else {
        return;
    };
    if let Some(slow) = find_finding(findings, ranks::SLOW_RULE) {
        slow.loss = slow.loss.map(|slow| slow - skew).filter(|left| *left > 0.0);
    }
}

/// Reduces the losses of causes so that their total is at most 1, which is all of the time. From the largest loss to
/// the smallest, each loss is limited to 1 minus the sum of the larger losses. Losses that are only upper bounds are
/// limited after all others, so that they reduce no measured loss.
fn limit_losses(findings: &mut [Finding]) {
    let is_cause = |finding: &&mut Finding| {
        finding.verdict == Verdict::Yes && finding.rule.kind == FindingKind::Cause
    };
    let mut causes: Vec<_> = findings.iter_mut().filter(is_cause).collect();
    causes.sort_by(|a, b| {
        let order = a.rule.is_at_most().cmp(&b.rule.is_at_most());
        order.then_with(|| b.loss.unwrap_or(0.0).total_cmp(&a.loss.unwrap_or(0.0)))
    });
    let mut left = 1.0_f64;
    for loss in causes.into_iter().filter_map(|cause| cause.loss.as_mut()) {
        *loss = loss.min(left);
        left = (left - *loss).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::{Confidence, RULES};

    /// Returns a finding of the rule `name` that holds. `claims` contains the causes of GPU idle time that the finding
    /// claims, each with its time in nanoseconds.
    fn claiming(name: &str, loss: f64, claims: &[(&str, u64)]) -> Finding {
        let rule = RULES.iter().find(|rule| rule.name == name).unwrap();
        let row = |&(cause, ns): &(&str, u64)| ClaimedRow {
            process: 0,
            ledger: LedgerSide::Gpu,
            cause: cause.to_owned(),
            ns,
        };
        Finding {
            id: rule.name,
            rule,
            verdict: Verdict::Yes,
            confidence: Some(Confidence::High),
            evidence: String::new(),
            advice: String::new(),
            loss: Some(loss),
            claims: claims.iter().map(row).collect(),
            loss_is_at_most: rule.is_at_most(),
            loss_is_at_least: false,
            is_partly_others: false,
            place: Some(0),
            needs: "",
            is_foreign: false,
        }
    }

    #[test]
    fn idle_time_that_another_cause_claims_is_not_claimed_twice() {
        let mut findings = [
            claiming(
                ledger::IDLE_RULE,
                0.4,
                &[("idle: wait", 300), ("idle: copy", 100)],
            ),
            claiming("small-copies", 0.08, &[("idle: copy", 80)]),
        ];
        separate_idle(&mut findings);
        let claims = findings[0].claims.iter().map(|row| (&*row.cause, row.ns));
        assert_eq!(
            claims.collect::<Vec<_>>(),
            [("idle: wait", 300), ("idle: copy", 20)]
        );
        assert!((findings[0].loss.unwrap() - 0.32).abs() < 1e-9);
        assert_eq!(
            (findings[1].loss, findings[1].claims[0].ns),
            (Some(0.08), 80)
        );
        // If another cause claims all of the idle time, the finding is withdrawn.
        let mut findings = [
            claiming(ledger::IDLE_RULE, 0.3, &[("idle: copy", 80)]),
            claiming("small-copies", 0.08, &[("idle: copy", 80)]),
        ];
        separate_idle(&mut findings);
        assert_eq!((findings[0].verdict, findings[0].loss), (Verdict::No, None));
    }

    #[test]
    fn time_in_which_the_gpu_works_does_not_explain_idle_time() {
        for (name, is_explained) in [("gc", true), (padding::PADDING_RULE, false)] {
            let mut findings = [(ledger::IDLE_RULE, 0.3), (name, 0.2)]
                .map(|(name, loss)| claiming(name, loss, &[]));
            withdraw_explained_idle(&mut findings);
            let is_withdrawn = findings[0].verdict == Verdict::No;
            assert_eq!(is_withdrawn, is_explained, "{name}");
        }
    }

    #[test]
    fn an_upper_bound_reduces_no_measured_loss() {
        let mut findings =
            [(state::SHARED_RULE, 0.9), ("gc", 0.4)].map(|(name, loss)| claiming(name, loss, &[]));
        limit_losses(&mut findings);
        assert!((findings[0].loss.unwrap() - 0.6).abs() < 1e-9);
        assert!((findings[1].loss.unwrap() - 0.4).abs() < 1e-9);
    }

    #[test]
    fn findings_on_different_processes_do_not_explain_each_other() {
        let rules = [
            (ledger::DELAYED_RULE, 0.3),
            (ledger::FAULTS_RULE, 0.15),
            (ledger::CODE_RULE, 0.2),
            (ledger::IDLE_RULE, 0.4),
        ];
        let of_places = |places: [usize; 4]| {
            let mut findings = rules.map(|(name, loss)| claiming(name, loss, &[]));
            for (finding, place) in findings.iter_mut().zip(places) {
                finding.place = Some(place);
            }
            findings
        };
        let kept = |places| {
            let mut findings = of_places(places);
            separate_faults(&mut findings);
            withdraw_explained_idle(&mut findings);
            findings.map(|finding| finding.verdict == Verdict::Yes)
        };
        assert_eq!(kept([0, 0, 0, 0]), [true, true, false, false]);
        assert_eq!(kept([0, 0, 1, 2]), [true, true, true, true]);
        // The finding on host code explains the idle time of its own process.
        assert_eq!(kept([0, 0, 1, 1]), [true, true, true, false]);
        let faults = |place| {
            let mut findings = of_places([0, place, 0, 0]);
            separate_delays(&mut findings);
            findings[1].loss.unwrap()
        };
        assert!((faults(0) - 0.105).abs() < 1e-9 && (faults(1) - 0.15).abs() < 1e-9);
        // A finding without a place is about all processes, so it may explain a finding about one process.
        assert!(is_about_same(None, Some(1)) && !is_about_same(Some(0), Some(1)));
    }
}
