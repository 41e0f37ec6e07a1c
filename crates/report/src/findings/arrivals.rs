//! Ranks that wait for each other in collectives.

use super::evidence::Evidence;
use super::rules::Together;
use super::{Judged, ranks};
use crate::numbers::units::{Change, Share, Time};
use crate::ranks::arrivals::{Arrivals, Bound};

/// Its rule.
pub const SKEW: &str = "arrival-skew";

/// How much of the time ranks wait for the last one, or transfer.
const WAITING: f64 = 0.05;
const TRANSFERRING: f64 = 0.2;
/// How much of the time one rank takes from the others to be named.
const NAMED: f64 = 0.01;

pub fn skew_when() -> String {
    format!(
        "ranks wait over {} of the time for the last one to come to a collective",
        Share(WAITING)
    )
}

pub fn transfer_when() -> String {
    format!(
        "transfers of collectives take over {} of the time, and more than waiting does",
        Share(TRANSFERRING)
    )
}

/// What the collectives show, or why that is not known.
fn known<'a>(all: &[Evidence<'_>], together: Together<'a>) -> Result<&'a Arrivals, Judged> {
    if all.len() < 2 {
        return Err(Judged::Unknown("one process".to_owned()));
    }
    match together.arrivals {
        Some(arrivals) if arrivals.steps.is_empty() => Err(Judged::Unknown(arrivals.why.clone())),
        Some(arrivals) => Ok(arrivals),
        None if all.iter().all(|one| one.process.kernels.window.is_some()) => {
            Err(Judged::No("no kernel is that of a collective".to_owned()))
        }
        None => Err(Judged::Unknown("kernels were not recorded".to_owned())),
    }
}

pub fn skew(all: &[Evidence<'_>], together: Together<'_>) -> Judged {
    let arrivals = match known(all, together) {
        Ok(arrivals) => arrivals,
        Err(judged) => return judged,
    };
    let waiting = arrivals.part(arrivals.all.wait);
    let evidence = format!(
        "ranks wait {} of the time for the last one to come to a collective",
        Share(waiting)
    );
    if arrivals.verdict == Bound::Inconclusive && waiting < WAITING {
        return Judged::Unknown(format!("{evidence}; {}", arrivals.why));
    }
    if waiting < WAITING {
        return Judged::No(evidence);
    }
    let slowest = arrivals.slowest().into_iter().find_map(|place| {
        let one = all.iter().find(|one| one.place == place)?;
        (arrivals.gain(place) >= NAMED).then_some(one)
    });
    let Some(one) = slowest else {
        let evidence = format!("{evidence}, now for one and now for another");
        return Judged::Yes {
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
    // What that rank loses to causes of its own is theirs.
    match arrivals.gain(one.place) - ranks::theirs(one, all) {
        gain if gain > 0.0 => Judged::yes(evidence, gain),
        _ => Judged::Yes {
            evidence,
            loss: None,
        },
    }
}

pub fn transfer(all: &[Evidence<'_>], together: Together<'_>) -> Judged {
    let arrivals = match known(all, together) {
        Ok(arrivals) => arrivals,
        Err(judged) => return judged,
    };
    let part = arrivals.part(arrivals.all.transfer);
    let evidence = format!("transfers of collectives take {} of the time", Share(part));
    match arrivals.verdict {
        Bound::Inconclusive => Judged::Unknown(arrivals.why.clone()),
        Bound::TransferBound | Bound::Mixed
            if part >= TRANSFERRING && arrivals.all.transfer > arrivals.all.wait =>
        {
            Judged::Yes {
                evidence,
                loss: None,
            }
        }
        _ => Judged::No(evidence),
    }
}
