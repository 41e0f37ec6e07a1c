//! How well the GPU is used.

use super::Judged;
use super::evidence::{Busy, Evidence, Metrics};
use crate::numbers::units::Share;

/// Under this the GPU is idle too often.
const LOW: f64 = 0.5;
/// A host that waits less than this for it is the one that is waited for.
const HOST_BOUND: f64 = 0.2;

/// Bound by the memory's bandwidth: it is over the first, the SMs are under the second.
const MEMORY: f64 = 0.9;
const MEMORY_SM: f64 = 0.7;

/// Bound by computing: the SMs are over the first, bandwidth under the second.
const COMPUTE_SM: f64 = 0.9;
const COMPUTE: f64 = 0.6;

/// What a program that uses its GPU well reaches.
const TARGET_SM: f64 = 0.8;
const TARGET: f64 = 0.7;

pub fn low_when() -> String {
    let low = Share(LOW);
    format!(
        "the GPU works less than {low} of the time, or its SMs do and no resource is at its limit"
    )
}

/// How much of which time the GPU works, and in how many iterations that was measured.
fn works(one: &Evidence<'_>, busy: Busy) -> String {
    let taken = one.process.kernels.steps();
    let by_kernels = one.measured_in(taken);
    match busy {
        Busy::Is(share) => {
            let of = one.measured_in(one.process.ledger.gpu_iterations);
            format!("the GPU works {} of {}{of}", Share(share), one.worked())
        }
        Busy::ByKernels(share) => {
            format!(
                "the GPU works {} of the time that iterations take without recording kernels{by_kernels}",
                Share(share)
            )
        }
        Busy::Between(low, high) => format!(
            "the GPU works {} to {} of {}; recording kernels made all iterations longer",
            Share(low),
            Share(high),
            one.worked()
        ),
    }
}

pub fn low(one: &Evidence<'_>) -> Judged {
    let metrics = one.metrics();
    let sm = metrics.and_then(|metrics| metrics.sm);
    let bandwidth = metrics.and_then(|metrics| metrics.bandwidth);
    let host = match one.waits() {
        waits if waits < HOST_BOUND => format!("; the host waits for it {}", Share(waits)),
        _ => String::new(),
    };
    match (one.busy(), sm) {
        (Some(busy), _) if busy.most() < LOW => Judged::Yes {
            evidence: works(one, busy) + &host,
            loss: Some(1.0 - busy.most()),
        },
        (_, Some(sm)) if sm < LOW && bandwidth.is_none_or(|part| part < TARGET) => Judged::Yes {
            evidence: format!("the SMs are busy {} of the time{host}", Share(sm)),
            loss: Some(1.0 - sm),
        },
        (Some(Busy::Between(busy, _)), None) if busy < LOW => {
            Judged::Unknown("kernels were taken in all iterations, which slows the host".to_owned())
        }
        (Some(busy), None) => Judged::No(works(one, busy)),
        (_, Some(sm)) => Judged::No(format!("the SMs are busy {} of the time", Share(sm))),
        (None, None) => Judged::Unknown("GPU time was not measured".to_owned()),
    }
}

pub fn memory_when() -> String {
    let (bandwidth, sm) = (Share(MEMORY), Share(MEMORY_SM));
    format!("bandwidth over {bandwidth} with SMs under {sm}")
}

pub fn memory(one: &Evidence<'_>) -> Judged {
    both(one, |sm, bandwidth| bandwidth > MEMORY && sm < MEMORY_SM)
}

pub fn compute_when() -> String {
    let (sm, bandwidth) = (Share(COMPUTE_SM), Share(COMPUTE));
    format!("SMs over {sm} with bandwidth under {bandwidth}")
}

pub fn compute(one: &Evidence<'_>) -> Judged {
    both(one, |sm, bandwidth| sm > COMPUTE_SM && bandwidth < COMPUTE)
}

pub fn targets_when() -> String {
    let (sm, bandwidth) = (Share(TARGET_SM), Share(TARGET));
    format!("neither SMs over {sm} nor bandwidth over {bandwidth}, the targets")
}

pub fn targets(one: &Evidence<'_>) -> Judged {
    both(one, |sm, bandwidth| sm <= TARGET_SM && bandwidth <= TARGET)
}

fn both(one: &Evidence<'_>, is_so: fn(f64, f64) -> bool) -> Judged {
    match one.metrics() {
        Some(Metrics {
            sm: Some(sm),
            bandwidth: Some(bandwidth),
            ..
        }) => {
            let evidence = format!("SMs {}, bandwidth {}", Share(sm), Share(bandwidth));
            if is_so(sm, bandwidth) {
                Judged::Yes {
                    evidence,
                    loss: None,
                }
            } else {
                Judged::No(evidence)
            }
        }
        Some(_) => Judged::Unknown("this GPU does not report it".to_owned()),
        None => Judged::Unknown("no GPU metrics were sampled".to_owned()),
    }
}
