//! Findings on ranks that wait for each other in collectives, and on the transfers of collectives. A collective's
//! transfer is the time that it takes once all ranks have come to it.

use super::definition::JobAnalyses;
use super::evidence::Evidence;
use super::{Judgement, ranks};
use crate::numbers::units::{Change, Share, Time};
use crate::ranks::arrivals::{Arrivals, Bound};

/// Name of the finding `arrival-skew`: ranks come to a collective at different times, so they wait
/// for the last one.
pub(crate) const SKEW_RULE: &str = "arrival-skew";

/// Minimum share of waits for the last rank in the iterations' time, as a fraction, for the finding
/// on arrival skew.
const MIN_WAITING: f64 = 0.05;
/// Maximum share of the waiting, as a fraction, that may be wrong because of the clocks, for the finding on arrival
/// skew. If more of it may be wrong, the finding is unknown.
const MAX_UNSURE: f64 = 1.0 / 3.0;
/// Minimum share of the iterations' time, as a fraction, that transfers of collectives take, for
/// the finding on transfers.
const MIN_TRANSFERRING: f64 = 0.2;
/// Minimum share of the time, as a fraction, that would be saved if a late rank came together with the
/// others, for the finding to name that rank.
const MIN_NAMED_GAIN: f64 = 0.01;

pub(crate) fn skew_when() -> String {
    format!(
        "ranks wait over {} of the time for the last one to come to a collective",
        Share(MIN_WAITING)
    )
}

pub(crate) fn transfer_when() -> String {
    format!(
        "transfers of collectives take over {} of the time, and more than waiting does",
        Share(MIN_TRANSFERRING)
    )
}

/// Returns the comparison of the ranks' collectives. If there is no comparison, returns the judgement for both rules of
/// this module.
fn known<'a>(all: &[Evidence<'_>], together: JobAnalyses<'a>) -> Result<&'a Arrivals, Judgement> {
    if all.len() < 2 {
        return Err(Judgement::Unknown("one process".to_owned()));
    }
    match together.arrivals {
        Some(arrivals) if arrivals.steps.is_empty() => {
            Err(Judgement::Unknown(arrivals.why.clone()))
        }
        Some(arrivals) => Ok(arrivals),
        None if !all.iter().all(|one| one.process.kernels.window.is_some()) => {
            Err(Judgement::Unknown("kernels were not recorded".to_owned()))
        }
        None if all.iter().any(has_collectives) => Err(Judgement::Unknown(
            "fewer than two processes have collectives to compare".to_owned(),
        )),
        None => Err(Judgement::No(
            "no kernel is that of a collective".to_owned(),
        )),
    }
}

fn has_collectives(one: &Evidence<'_>) -> bool {
    let collectives = &one.process.collectives;
    !collectives.all.is_empty() || collectives.left_out > 0
}

pub(crate) fn skew(all: &[Evidence<'_>], together: JobAnalyses<'_>) -> Judgement {
    let arrivals = match known(all, together) {
        Ok(arrivals) => arrivals,
        Err(judged) => return judged,
    };
    let waiting = arrivals.part(arrivals.all.wait);
    let evidence = format!(
        "ranks wait {} of the time for the last one to come to a collective",
        Share(waiting)
    );
    if arrivals.verdict == Bound::Inconclusive && waiting < MIN_WAITING {
        return Judgement::Unknown(format!("{evidence}; {}", arrivals.why));
    }
    if waiting < MIN_WAITING {
        return Judgement::No(evidence);
    }
    if is_unsure(arrivals) {
        let unsure = Share(arrivals.part(arrivals.all.unsure));
        return Judgement::Unknown(format!(
            "{evidence}; the error of the clocks makes {unsure} of the time unsure"
        ));
    }
    let latest = latest(arrivals);
    let Some(one) = all.iter().find(|one| Some(one.place) == latest) else {
        let evidence = format!("{evidence}, now for one and now for another");
        return Judgement::Yes {
            evidence,
            loss: None,
        };
    };
    let (now, then) = arrivals.step_without(one.place);
    let own = &arrivals.ranks[one.place];
    let causes = arrivals.causes(one.place);
    let cause = causes.first().map_or_else(String::new, |cause| {
        let detail = cause.detail.as_ref();
        let detail = detail.map_or_else(String::new, |detail| format!(" ({detail})"));
        format!(": {} {}{detail}", Change(cause.more), cause.cause)
    });
    let evidence = format!(
        "{evidence}; {} comes last in {} of {} iterations{cause}; if it came with the others, {} a step, not {}",
        one.who,
        own.last,
        arrivals.steps.len(),
        Time(then),
        Time(now)
    );
    // Subtract the time that the late rank loses to causes that other findings report, so that no
    // time counts twice.
    match arrivals.gain(one.place) - ranks::theirs(one, all, together.rules) {
        gain if gain > 0.0 => Judgement::yes(evidence, gain),
        _ => Judgement::Yes {
            evidence,
            loss: None,
        },
    }
}

/// Returns true if the clocks of the processes are not aligned well enough to say that ranks wait for at least
/// [`MIN_WAITING`] of the time.
fn is_unsure(arrivals: &Arrivals) -> bool {
    let (wait, unsure) = (arrivals.all.wait, arrivals.all.unsure);
    unsure as f64 > MAX_UNSURE * wait as f64
        || arrivals.part(wait.saturating_sub(unsure)) < MIN_WAITING
}

/// Returns the index of the process that delays the others most. Returns `None` if less than [`MIN_NAMED_GAIN`] of the
/// time would be saved if that process came to collectives together with the others.
pub(crate) fn latest(arrivals: &Arrivals) -> Option<usize> {
    let mut slowest = arrivals.slowest().into_iter();
    slowest.find(|place| arrivals.gain(*place) >= MIN_NAMED_GAIN)
}

pub(crate) fn transfer(all: &[Evidence<'_>], together: JobAnalyses<'_>) -> Judgement {
    let arrivals = match known(all, together) {
        Ok(arrivals) => arrivals,
        Err(judged) => return judged,
    };
    let part = arrivals.part(arrivals.all.transfer);
    let evidence = format!("transfers of collectives take {} of the time", Share(part));
    match arrivals.verdict {
        Bound::Inconclusive => Judgement::Unknown(arrivals.why.clone()),
        Bound::TransferBound | Bound::Mixed
            if part >= MIN_TRANSFERRING && arrivals.all.transfer > arrivals.all.wait =>
        {
            Judgement::Yes {
                evidence,
                loss: None,
            }
        }
        _ => Judgement::No(evidence),
    }
}
