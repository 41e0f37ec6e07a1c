//! Findings on host activities that leave the GPU idle: launches, waits, copies, allocations.

use tllmprof_calls::Wait;

use super::evidence::{CallTotals, Evidence, KernelAverages, Launching};
use super::{Judgement, copies, gpu};
use crate::events::facts::CallCount;
use crate::ledger::Claim;
use crate::numbers::units::{Rate, Share, Time};

/// Name of the finding `launch-bound`.
pub(crate) const LAUNCH_RULE: &str = "launch-bound";

/// Minimum number of launches in an iteration for the finding `launch-bound`.
const MIN_LAUNCHES: f64 = 20.0;
/// Maximum mean duration of kernels, in nanoseconds, for the finding `launch-bound` if kernels were recorded. Kernels
/// shorter than this end before the host has launched the next kernel.
const MAX_SHORT_KERNEL_NS: u64 = 20_000;
/// Minimum share of the total time, as a fraction, in which the GPU is idle during launches, for
/// the finding `launch-bound`.
pub(crate) const MIN_GAP_SHARE: f64 = 0.2;
/// Minimum share of launches in the host's time, as a fraction, for the finding `launch-bound` if
/// kernels were not recorded.
const MIN_LAUNCHING_SHARE: f64 = 0.5;
/// Maximum share of waits for the GPU in the host's time, as a fraction, for the finding `launch-bound` if
/// kernels were not recorded.
const MAX_WAIT_SHARE: f64 = 0.15;
/// Minimum mean duration of a launch, in nanoseconds, that suggests a full queue of the GPU: launches may be slow
/// because they wait for room in the queue.
const MIN_QUEUED_LAUNCH_NS: u64 = 10_000;
/// Minimum share of the time, as a fraction, in which the host waits for the GPU, for the conclusion that the host
/// launches work faster than the GPU runs it.
const MIN_AHEAD_SHARE: f64 = 0.5;

/// Minimum number of waits for the GPU per iteration for the finding `host-waits`.
const MIN_WAITS: f64 = 3.0;
/// Minimum number of blocking copies per iteration for the finding `blocking-copies`.
const MIN_COPIES: f64 = 2.0;
/// Minimum share of the time, as a fraction, in which the GPU is idle during and after waits or
/// copies, for a finding on these.
const MIN_IDLE_SHARE: f64 = 0.1;

/// Minimum number of calls per iteration that allocate or free memory, for the finding on allocations.
const MIN_ALLOCATIONS: f64 = 0.5;
/// Minimum share of the time, as a fraction, that calls which allocate or free memory take, for the finding on
/// allocations.
const MIN_ALLOCATING_SHARE: f64 = 0.01;

pub(crate) fn launch_bound_when() -> String {
    let (short, gaps) = (Time(MAX_SHORT_KERNEL_NS), Share(MIN_GAP_SHARE));
    let (launching, waiting) = (Share(MIN_LAUNCHING_SHARE), Share(MAX_WAIT_SHARE));
    format!(
        "over {MIN_LAUNCHES} launches in an iteration, kernels shorter than {short}, and a GPU that has nothing to do for over {gaps} of \
         the time in launches and in short code between them, which takes less than 20 launches; without kernels launches over \
         {launching} of the time and waits under {waiting}"
    )
}

pub(crate) fn launch_bound(one: &Evidence<'_>) -> Judgement {
    let count = one.sum.launches;
    if count < MIN_LAUNCHES {
        return Judgement::No(format!("{} launches a step", Rate(count)));
    }
    if let Some(KernelAverages { kernels, mean, .. }) = one.kernels() {
        let gaps = one.process.ledger.details.claims.share(Claim::Launch);
        let evidence = format!(
            "{} kernels a step of {} each; the GPU has nothing to do {} of the time while the host launches the next, or runs \
             short code between launches",
            Rate(kernels),
            Time(mean),
            Share(gaps)
        );
        // A graph launches many kernels in one call. If there are far fewer launches than kernels, the program already
        // uses graphs, so it is not launch-bound.
        let is_eager = count * 4.0 >= kernels;
        return if gaps >= MIN_GAP_SHARE
            && mean < MAX_SHORT_KERNEL_NS
            && kernels >= MIN_LAUNCHES
            && is_eager
        {
            Judgement::Yes {
                evidence,
                loss: Some(gaps),
            }
        } else {
            Judgement::No(evidence)
        };
    }
    let Launching { share, mean } = one.launching();
    let evidence = format!(
        "{} launches a step of {} each are {} of the time, waits {}",
        Rate(count),
        Time(mean),
        Share(share),
        Share(one.waits())
    );
    let has_room = mean < MIN_QUEUED_LAUNCH_NS || one.gpu_ends_first();
    if share >= MIN_LAUNCHING_SHARE && one.waits() < MAX_WAIT_SHARE && has_room {
        Judgement::Yes {
            evidence,
            loss: Some(share),
        }
    } else if one.waits() >= MIN_AHEAD_SHARE {
        Judgement::No(evidence)
    } else {
        Judgement::Unknown(evidence)
    }
}

pub(crate) fn waits_when() -> String {
    format!(
        "at least {MIN_WAITS} waits in an iteration, and nothing to do for the GPU after them for over {} of the \
         time",
        Share(MIN_IDLE_SHARE)
    )
}

pub(crate) fn waits(one: &Evidence<'_>) -> Judgement {
    let calls = one.calls(|row| row.waits_for().is_some_and(|wait| wait != Wait::CopyToHost));
    let after = one.process.calls.turnaround.after_waits;
    // If there is at least one copy to the host for every two waits, the host seems to wait in order to read results.
    // The GPU idle time during copies then counts as a consequence of the waits, too, unless the finding on small
    // copies already counts it.
    let reads = one.calls(|row| row.name.contains("DtoH")).count >= calls.count / 2
        && !matches!(copies::small(one), Judgement::Yes { .. });
    let claims = [Claim::Wait, Claim::Copy];
    let claims = if reads { &claims[..] } else { &claims[..1] };
    idle_after("waits", one, calls, MIN_WAITS, (after, claims))
}

pub(crate) fn copies_when() -> String {
    format!(
        "at least {MIN_COPIES} such copies in an iteration, and nothing to do for the GPU after them for over {} of \
         the time, or that time in copies and in these calls",
        Share(MIN_IDLE_SHARE)
    )
}

pub(crate) fn copies(one: &Evidence<'_>) -> Judgement {
    let calls = one.calls(|row| row.waits_for() == Some(Wait::CopyToHost));
    let count = one.sum.a_step(calls.count);
    // The recorded copies include asynchronous ones. The copies that block take at most as long as their calls.
    let in_calls = one.share(calls.total);
    // A copy costs nothing while kernels run.
    let no_kernel = gpu::only_copying(one).unwrap_or(1.0);
    if count >= MIN_COPIES
        && let Some(KernelAverages { copies, .. }) = one.kernels()
        && copies.min(in_calls).min(no_kernel) >= MIN_IDLE_SHARE
    {
        let count = Rate(count);
        let bound = match in_calls < copies {
            true => format!(", and the calls that block take {}", Share(in_calls)),
            false => String::new(),
        };
        return Judgement::Yes {
            evidence: format!(
                "{count} copies a step that block; copying is {} of the time{bound}",
                Share(copies)
            ),
            loss: Some(copies.min(in_calls).min(no_kernel)),
        };
    }
    let after = one.process.calls.turnaround.after_copies;
    idle_after(
        "copies that block",
        one,
        calls,
        MIN_COPIES,
        (after, &[Claim::Read]),
    )
}

/// Judges the waits or copies in `calls` by the GPU's idle time during and after them, which the ledger (time by
/// cause) lists under the categories `claims`. If kernels were not recorded, `after` is used, too: the time in
/// nanoseconds from these calls to the next launch.
fn idle_after(
    what: &str,
    one: &Evidence<'_>,
    calls: CallTotals,
    many: f64,
    (after, claims): (u64, &[Claim]),
) -> Judgement {
    let count = one.sum.a_step(calls.count);
    let some = format!("{} {what} a step", Rate(count));
    if count < many {
        return Judgement::No(some);
    }
    let is_measured = one.kernels().is_some();
    let known = &one.process.ledger.details.claims;
    let claimed = known.share_of(known.idle_in(claims).ns);
    let until_launch = one.share(after);
    let idle = match is_measured {
        true => claimed,
        false => until_launch.max(claimed),
    };
    let when = if is_measured || claimed > until_launch {
        "at their end and after them"
    } else {
        "after them"
    };
    let place = known.mostly_in(claims);
    let evidence = format!(
        "{some}; {when} the GPU has nothing to do {} of the time{place}",
        Share(idle)
    );
    // Without recorded kernels it is unknown whether other streams worked until the next launch.
    // The GPU was surely idle only if the program uses one stream.
    match is_measured || claimed >= MIN_IDLE_SHARE || one.process.calls.turnaround.one_stream {
        _ if idle < MIN_IDLE_SHARE => Judgement::No(evidence),
        true => Judgement::yes(evidence, idle),
        false => Judgement::Unknown(format!("{some}, and work on several streams")),
    }
}

pub(crate) fn allocations_when() -> String {
    format!(
        "at least one in {} iterations, for over {} of the time; where kernels were recorded, the GPU has nothing to do for as \
         long meanwhile",
        1.0 / MIN_ALLOCATIONS,
        Share(MIN_ALLOCATING_SHARE)
    )
}

pub(super) fn allocations(one: &Evidence<'_>) -> Judgement {
    if !one.process.facts.calls.iter().any(CallCount::allocates) {
        return Judgement::Unknown("the record does not have them".to_owned());
    }
    let calls = one.calls(CallCount::allocates);
    let (count, share) = (one.sum.a_step(calls.count), one.share(calls.total));
    let lost = one.idle_part(share, Claim::Allocation);
    let idle = idle_meanwhile(share, lost);
    let evidence = format!(
        "{} allocations and releases a step, {} of the time{idle}",
        Rate(count),
        Share(share)
    );
    match count >= MIN_ALLOCATIONS && lost >= MIN_ALLOCATING_SHARE {
        true => Judgement::yes(evidence, lost),
        false => Judgement::No(evidence),
    }
}

/// Returns words for the time in which the GPU is idle during an activity. `share` is the activity's share of the time,
/// as a fraction, and `lost` is the share in which the GPU is also idle. The words are empty if the GPU is idle during
/// the whole activity, or if it is not known when it is idle.
pub(super) fn idle_meanwhile(share: f64, lost: f64) -> String {
    match lost < share {
        true => format!(
            "; the GPU has nothing to do meanwhile {} of the time",
            Share(lost)
        ),
        false => String::new(),
    }
}
