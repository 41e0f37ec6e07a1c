//! What the host does to the GPU: launches, waits, copies, allocations.

use tllmprof_calls::Wait;

use super::Judged;
use super::evidence::{Calls, Evidence, Kernels, Launching};
use crate::events::facts::CallRow;
use crate::numbers::units::{Rate, Share, Time};

/// Fewer launches in an iteration bind nobody.
const LAUNCHES: f64 = 20.0;
/// Kernels that are shorter than this do not hide the launch of the next, in nanoseconds.
const SHORT: u64 = 20_000;
/// What gaps between kernels have to take of the time, and what they take where there is nothing to improve.
const GAPS: f64 = 0.2;
const FEW_GAPS: f64 = 0.1;
/// What the host's launches have to take of the time, and its waits at most.
const LAUNCHING: f64 = 0.5;
const WAITING: f64 = 0.15;
/// A launch that takes longer may wait itself, for room in a full queue, in nanoseconds.
const FULL: u64 = 10_000;
/// Where each iteration ends with an empty stream, and a wait as short as this, the queue was not full.
const NO_WAIT: f64 = 0.02;
/// Where the host waits for as long as this, it is ahead of the GPU.
const AHEAD: f64 = 0.5;

/// Waits in an iteration, and copies that block; and what the GPU does nothing after them.
const WAITS: f64 = 3.0;
const COPIES: f64 = 2.0;
const IDLE: f64 = 0.1;

/// Allocations in an iteration, and what they take of the time.
const ALLOCATIONS: f64 = 0.5;
const ALLOCATING: f64 = 0.01;

pub fn launch_bound_when() -> String {
    let (short, gaps) = (Time(SHORT), Share(GAPS));
    let (launching, waiting) = (Share(LAUNCHING), Share(WAITING));
    format!(
        "over {LAUNCHES} launches in an iteration, and kernels shorter than {short} with gaps of over {gaps} of \
         the time; or launches over {launching} of the time and waits under {waiting}"
    )
}

pub fn launch_bound(one: &Evidence<'_>) -> Judged {
    let count = one.sum.launches;
    if count < LAUNCHES {
        return Judged::No(format!("{} launches a step", Rate(count)));
    }
    let turnaround = one.process.calls.turnaround;
    if let Some(kernels) = one.kernels() {
        let waited = one.share(
            turnaround
                .after_waits
                .saturating_add(turnaround.after_copies),
        );
        // What has a finding of its own is not the launches'.
        let allocations = one.calls(CallRow::allocates).total;
        let held = [one.sum.totals.gc, one.sum.totals.gil_wait, allocations];
        let held: f64 = held.iter().map(|time| one.share(*time)).sum();
        let gaps = (kernels.gaps - waited - held).max(0.0);
        let Kernels { kernels, mean, .. } = kernels;
        let evidence = format!(
            "{} kernels a step of {} each, with gaps of {} of the time",
            Rate(kernels),
            Time(mean),
            Share(gaps)
        );
        // Kernels of a graph have one launch among them.
        let is_eager = count * 4.0 >= kernels;
        return if gaps >= GAPS && mean < SHORT && kernels >= LAUNCHES && is_eager {
            Judged::Yes {
                evidence,
                loss: Some(gaps),
            }
        } else {
            Judged::No(evidence)
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
    let drains = one.calls(|row| row.waits_for().is_some_and(|wait| wait != Wait::Event));
    let has_room = mean < FULL || one.sum.a_step(drains.count) > 0.9 && one.waits() < NO_WAIT;
    if share >= LAUNCHING && one.waits() < WAITING && has_room {
        Judged::Yes {
            evidence,
            loss: Some(share),
        }
    } else if one.waits() >= AHEAD {
        Judged::No(evidence)
    } else {
        Judged::Unknown(evidence)
    }
}

pub fn waits_when() -> String {
    format!(
        "at least {WAITS} waits in an iteration, and nothing to do for the GPU after them for over {} of the \
         time",
        Share(IDLE)
    )
}

pub fn waits(one: &Evidence<'_>) -> Judged {
    let calls = one.calls(|row| row.waits_for().is_some_and(|wait| wait != Wait::CopyToHost));
    let after = one.process.calls.turnaround.after_waits;
    idle_after("waits", one, calls, WAITS, after)
}

pub fn copies_when() -> String {
    format!(
        "at least {COPIES} such copies in an iteration, and nothing to do for the GPU after them for over {} of \
         the time, or that time in copies",
        Share(IDLE)
    )
}

pub fn copies(one: &Evidence<'_>) -> Judged {
    let calls = one.calls(|row| row.waits_for() == Some(Wait::CopyToHost));
    let count = one.sum.a_step(calls.count);
    if count >= COPIES
        && let Some(Kernels { copies, .. }) = one.kernels()
        && copies >= IDLE
    {
        let count = Rate(count);
        return Judged::Yes {
            evidence: format!(
                "{count} copies a step that block; copying is {} of the time",
                Share(copies)
            ),
            loss: Some(copies),
        };
    }
    let after = one.process.calls.turnaround.after_copies;
    idle_after("copies that block", one, calls, COPIES, after)
}

/// What `calls`, after which nothing was launched for `after` nanoseconds, cost.
fn idle_after(what: &str, one: &Evidence<'_>, calls: Calls, many: f64, after: u64) -> Judged {
    let count = one.sum.a_step(calls.count);
    let some = format!("{} {what} a step", Rate(count));
    if count < many {
        return Judged::No(some);
    }
    let idle = one.share(after);
    let evidence = format!(
        "{some}; after them the GPU has nothing to do {} of the time",
        Share(idle)
    );
    let gaps = one.kernels().map(|kernels| kernels.gaps);
    // What others launch meanwhile shows in the kernels alone.
    let is_idle = match gaps {
        Some(gaps) => Some(gaps >= FEW_GAPS),
        None => one.process.calls.turnaround.one_stream.then_some(true),
    };
    match is_idle {
        _ if idle < IDLE => Judged::No(evidence),
        Some(true) => Judged::Yes {
            evidence,
            loss: Some(gaps.map_or(idle, |gaps| gaps.min(idle))),
        },
        Some(false) => Judged::No(evidence),
        None => Judged::Unknown(format!("{some}, and work on several streams")),
    }
}

pub fn allocations_when() -> String {
    format!(
        "at least one in {} iterations, for over {} of the time",
        1.0 / ALLOCATIONS,
        Share(ALLOCATING)
    )
}

pub fn allocations(one: &Evidence<'_>) -> Judged {
    if !one.process.facts.calls.iter().any(CallRow::allocates) {
        return Judged::Unknown("the record does not have them".to_owned());
    }
    let calls = one.calls(CallRow::allocates);
    let (count, share) = (one.sum.a_step(calls.count), one.share(calls.total));
    let evidence = format!(
        "{} allocations and releases a step, {} of the time",
        Rate(count),
        Share(share)
    );
    if count >= ALLOCATIONS && share >= ALLOCATING {
        Judged::Yes {
            evidence,
            loss: Some(share),
        }
    } else {
        Judged::No(evidence)
    }
}
