//! Findings on the utilization of the GPU.

use super::Judgement;
use super::evidence::{Evidence, Metrics};
use crate::events::origin::Data;
use crate::numbers::units::{Share, Time};
use crate::process::gpu::Busy;

/// Minimum share of the time, as a fraction, in which a GPU should be busy. Below this share, its
/// utilization is called low.
const MIN_BUSY: f64 = 0.5;
/// Upper limit for the share of the time that the host waits for the GPU, as a fraction. The evidence of the finding on
/// low utilization states the share only if it is below this limit.
const MAX_MENTIONED_WAITS: f64 = 0.2;

/// Name of the finding `copy-bound`: the GPU copies for much of the time without running kernels
/// meanwhile.
pub(crate) const COPIES_RULE: &str = "copy-bound";

/// Minimum share of the time, as a fraction, in which the GPU copies and runs no kernel, for the
/// finding `copy-bound`.
const MIN_COPYING: f64 = 0.2;

/// Minimum memory bandwidth of a GPU that is called bound by its memory, as a fraction of the
/// maximum.
const MIN_MEMORY_BANDWIDTH: f64 = 0.9;
/// Maximum SM utilization of a GPU that is called bound by its memory, as a fraction.
const MAX_MEMORY_SM: f64 = 0.7;

/// Minimum SM utilization of a GPU that is called bound by computing, as a fraction.
const MIN_COMPUTE_SM: f64 = 0.9;
/// Maximum memory bandwidth of a GPU that is called bound by computing, as a fraction of the
/// maximum.
const MAX_COMPUTE_BANDWIDTH: f64 = 0.6;

/// SM utilization, as a fraction, that is assumed for a program that uses its GPU well.
const TARGET_SM: f64 = 0.8;
/// Memory bandwidth of a program that uses its GPU well, as a fraction of the maximum.
const TARGET_BANDWIDTH: f64 = 0.7;

/// Maximum share of kernels that begin between iterations, as a fraction. With a larger share, and without sampled SM
/// utilization, the finding on low utilization is unknown, because the iterations do not show how busy the GPU is.
const MAX_BETWEEN: f64 = 0.2;

pub(crate) fn low_when() -> String {
    let low = Share(MIN_BUSY);
    format!(
        "the GPU works less than {low} of the time, or its SMs do and no resource is at its limit; unknown if over {} of the \
         kernels run between iterations",
        Share(MAX_BETWEEN)
    )
}

/// Returns words for the share of time in which the GPU is busy, with the number of iterations in
/// which it was measured.
fn works(one: &Evidence<'_>, busy: Busy) -> String {
    let (gpu, by_kernels) = (one.the_gpu(), one.measured_in(one.process.kernels.steps()));
    match busy {
        Busy::ByKernels(share) => {
            format!("{gpu} is busy {} of the time{by_kernels}", Share(share))
        }
        Busy::Sampled(share) => format!(
            "kernels run {} of the time, by the GPU's metrics",
            Share(share)
        ),
        Busy::Between(low, _) if is_of_unknown_cost(one) => format!(
            "{gpu} is busy {} of the time of the trace; recording made that longer, it is not known by how much",
            Share(low)
        ),
        Busy::Between(low, high) => format!(
            "{gpu} is busy {} to {} of the time; recording kernels made the iterations longer",
            Share(low),
            Share(high)
        ),
    }
}

/// Returns true if another profiler recorded the process, and it is unknown how much time its
/// recording took.
fn is_of_unknown_cost(one: &Evidence<'_>) -> bool {
    let origin = &one.process.facts.origin;
    !origin.is_own() && origin.cost.is_none()
}

/// Returns the share of time, as a fraction, in which the process does not wait for requests or
/// other work.
fn working(one: &Evidence<'_>) -> f64 {
    let claims = &one.process.ledger.details.claims;
    match claims.gpu + claims.waited.ns {
        0 => 1.0,
        _ => claims.of_all(claims.gpu),
    }
}

pub(crate) fn low(one: &Evidence<'_>) -> Judgement {
    let metrics = one.metrics();
    let sm = metrics.and_then(|metrics| metrics.sm);
    let bandwidth = metrics.and_then(|metrics| metrics.bandwidth);
    let host = match one.waits() {
        _ if one.process.facts.origin.lacks(Data::Calls) => String::new(),
        waits if waits < MAX_MENTIONED_WAITS => {
            let in_copies = match one.process.ledger.share_in_copies() > 0.0 {
                true => ", copies included",
                false => "",
            };
            format!("; the host waits for it {}{in_copies}", Share(waits))
        }
        _ => String::new(),
    };
    let between = one.process.kernels.between_iterations();
    match (one.busy(), sm) {
        (Some(_), None) if between > MAX_BETWEEN => Judgement::Unknown(format!(
            "{} of the kernels run between iterations, so that iterations do not show how busy the GPU is",
            Share(between)
        )),
        (Some(busy), _) if busy.most() < MIN_BUSY * working(one) => Judgement::Yes {
            evidence: works(one, busy) + &host,
            loss: (!is_of_unknown_cost(one)).then_some(1.0 - busy.most()),
        },
        (_, Some(sm)) if sm < MIN_BUSY && bandwidth.is_none_or(|part| part < TARGET_BANDWIDTH) => {
            Judgement::Yes {
                evidence: format!("the SMs are busy {} of the time{host}", Share(sm)),
                loss: Some(1.0 - sm),
            }
        }
        (Some(Busy::Between(busy, _)), None) if busy < MIN_BUSY => Judgement::Unknown(
            "kernels were taken in all iterations, which slows the host".to_owned(),
        ),
        (Some(busy), None) => Judgement::No(works(one, busy)),
        (_, Some(sm)) => Judgement::No(format!("the SMs are busy {} of the time", Share(sm))),
        (None, None) => Judgement::Unknown("how long the GPU is busy was not measured".to_owned()),
    }
}

pub(crate) fn copies_when() -> String {
    let copies = Share(MIN_COPYING);
    format!("the GPU copies while no kernel runs for over {copies} of the time")
}

/// Returns the share of time, as a fraction, in which the process's busiest GPU copies and runs no kernel; `None` if
/// kernels and copies were not recorded.
pub(super) fn only_copying(one: &Evidence<'_>) -> Option<f64> {
    let gpus = one.process.gpu.gpus.iter();
    let known = gpus.filter_map(|gpu| Some((gpu.busy_ns?, gpu.kernel_ns?)));
    let (busy_ns, kernel_ns) = known.max()?;
    let only_copies = busy_ns.saturating_sub(kernel_ns) as f64 / busy_ns.max(1) as f64;
    Some(one.busy()?.share() * only_copies)
}

/// Judges the rule `copy-bound`: the share of time in which the process's busiest GPU copies and
/// runs no kernel.
pub(crate) fn copies(one: &Evidence<'_>) -> Judgement {
    let Some(share) = only_copying(one) else {
        return Judgement::Unknown("kernels and copies were not recorded".to_owned());
    };
    let evidence = format!(
        "the GPU copies and runs no kernel {} of the time{}",
        Share(share),
        one.measured_in(one.process.kernels.steps())
    );
    if share <= MIN_COPYING {
        return Judgement::No(evidence);
    }
    let most = one
        .process
        .kernels
        .copies
        .iter()
        .max_by_key(|copy| copy.total);
    let most = most.map(|copy| {
        let (kind, count) = (&copy.kind, copy.count);
        let size = copy.size();
        format!(
            ": {count} {kind}{size} in {}, both in all",
            Time(copy.total)
        )
    });
    Judgement::Yes {
        evidence: evidence + &most.unwrap_or_default(),
        loss: None,
    }
}

pub(crate) fn memory_when() -> String {
    let (bandwidth, sm) = (Share(MIN_MEMORY_BANDWIDTH), Share(MAX_MEMORY_SM));
    format!("bandwidth over {bandwidth} with SMs under {sm}")
}

pub(crate) fn memory(one: &Evidence<'_>) -> Judgement {
    both(one, |sm, bandwidth| {
        bandwidth > MIN_MEMORY_BANDWIDTH && sm < MAX_MEMORY_SM
    })
}

pub(crate) fn compute_when() -> String {
    let (sm, bandwidth) = (Share(MIN_COMPUTE_SM), Share(MAX_COMPUTE_BANDWIDTH));
    format!("SMs over {sm} with bandwidth under {bandwidth}")
}

pub(crate) fn compute(one: &Evidence<'_>) -> Judgement {
    both(one, |sm, bandwidth| {
        sm > MIN_COMPUTE_SM && bandwidth < MAX_COMPUTE_BANDWIDTH
    })
}

pub(crate) fn targets_when() -> String {
    let (sm, bandwidth) = (Share(TARGET_SM), Share(TARGET_BANDWIDTH));
    format!("neither SMs over {sm} nor bandwidth over {bandwidth}, the targets")
}

pub(crate) fn targets(one: &Evidence<'_>) -> Judgement {
    both(one, |sm, bandwidth| {
        sm <= TARGET_SM && bandwidth <= TARGET_BANDWIDTH
    })
}

fn both(one: &Evidence<'_>, is_so: fn(f64, f64) -> bool) -> Judgement {
    match one.metrics() {
        Some(Metrics {
            sm: Some(sm),
            bandwidth: Some(bandwidth),
            ..
        }) => {
            let evidence = format!("SMs {}, bandwidth {}", Share(sm), Share(bandwidth));
            if is_so(sm, bandwidth) {
                Judgement::Yes {
                    evidence,
                    loss: None,
                }
            } else {
                Judgement::No(evidence)
            }
        }
        Some(_) => Judgement::Unknown("this GPU does not report it".to_owned()),
        None => Judgement::Unknown("no GPU metrics were sampled".to_owned()),
    }
}
