//! What the ledger shows of the host: graphs that are captured anew, small copies, code that the GPU waits for, and
//! waiting for requests.

use tllmprof_calls::{Kind as CallOf, kind_of};
use tllmprof_record::CallKind;

use super::Judged;
use super::evidence::Evidence;
use crate::events::facts::CallRow;
use crate::events::iteration::{Iteration, Used};
use crate::events::requests::gives_work;
use crate::ledger::slow::LARGE as LARGE_BATCH;
use crate::ledger::{ASLEEP, Claims, LedgerKind, LedgerRow, NAMED};
use crate::numbers::units::{Bytes, Rate, Share, Time};

/// The rules of code that the GPU waits for, and of page faults, which are in such code.
pub const CODE_RULE: &str = "host-bound";
pub const FAULTS_RULE: &str = "page-faults";
/// The rule of waiting for a processor.
pub const DELAYED_RULE: &str = "preempted";

/// What captures have to cost of the time; or, of what slow iterations take beyond the median, to explain.
const CAPTURES: f64 = 0.005;
const LEAST: f64 = 0.001;
const OF_SLOW: f64 = 0.5;

/// Copies in an iteration, how large a small one is, and what the host spends on them.
const COPIES: f64 = 8.0;
const SMALL: u64 = 64 << 10;
const COPYING: f64 = 0.05;

/// What the host spends on copies that are few.
const LONG_COPYING: f64 = 0.1;

/// How much of what slow iterations take beyond the median large batches explain.
const LARGE: f64 = 0.5;

/// How much of the time the GPU has to wait for code of the host.
pub const CODE: f64 = 0.3;

/// How much of the time the GPU has to wait for a host that is asleep or blocked.
const BLOCKED: f64 = 0.2;

/// What waiting for a processor has to take of the time; or, of what slow iterations take beyond the median, to explain.
const DELAYED: f64 = 0.05;
const DELAYED_LEAST: f64 = 0.01;

/// Page faults in an iteration, and what the kernel takes of the time.
const FAULTS: f64 = 50.0;
const IN_KERNEL: f64 = 0.05;

/// How much of the time the host is outside CUDA calls where it launches nothing.
const OUTSIDE: f64 = 0.5;

/// How much of the time is waiting for requests, to be said.
const REQUESTS: f64 = 0.05;

pub fn recapture_when() -> String {
    format!(
        "iterations in which a graph is captured take over {} of the time longer than the others; or over {}, and that is \
         over {} of what slow iterations (1.5 times the median) take beyond it",
        Share(CAPTURES),
        Share(LEAST),
        Share(OF_SLOW)
    )
}

pub fn recapture(one: &Evidence<'_>) -> Judged {
    let all = one.iterations().count();
    let captured = one.iterations().filter(|iteration| iteration.captures > 0);
    let captured = captured.count();
    if captured == 0 {
        return Judged::No("no graph is captured".to_owned());
    }
    // Where most of them capture, what that takes is all that is known.
    if captured * 2 > all {
        let share = one.process.ledger.host_share(LedgerKind::Capture);
        let evidence = format!(
            "a graph is captured in {captured} of {all} iterations, for {} of the time",
            Share(share)
        );
        return match share >= CAPTURES {
            true => Judged::yes(evidence, share),
            false => Judged::No(evidence),
        };
    }
    let excess = one.captures();
    let share = one.share(excess.total);
    let evidence = format!(
        "a graph is captured again in {captured} of {all} iterations, which take {} longer each: {} of the time",
        Time(excess.total / captured as u64),
        Share(share)
    );
    let explains = share >= LEAST && excess.of_slow >= OF_SLOW;
    match share >= CAPTURES || explains {
        true => Judged::yes(evidence, share),
        false => Judged::No(evidence),
    }
}

pub fn copies_when() -> String {
    format!(
        "at least {COPIES} copies in an iteration that do not wait, for over {} of the host's time; where kernels were \
         recorded, of under {} each",
        Share(COPYING),
        Bytes(SMALL)
    )
}

pub fn copies(one: &Evidence<'_>) -> Judged {
    let Copies {
        count,
        share,
        size,
        evidence,
    } = Copies::of(one);
    let is_small = size.is_none_or(|size| size < SMALL);
    match count >= COPIES && share >= COPYING && is_small {
        true => Judged::yes(evidence, share),
        false => Judged::No(evidence),
    }
}

pub fn long_copies_when() -> String {
    format!(
        "under {COPIES} copies in an iteration, for over {} of the host's time",
        Share(LONG_COPYING)
    )
}

pub fn long_copies(one: &Evidence<'_>) -> Judged {
    let Copies {
        count,
        share,
        evidence,
        ..
    } = Copies::of(one);
    match count < COPIES && share >= LONG_COPYING {
        true => Judged::yes(evidence, share),
        false => Judged::No(evidence),
    }
}

/// The calls of a process that copy and do not wait for the GPU.
struct Copies {
    /// In an iteration.
    count: f64,
    /// Of the host's time.
    share: f64,
    /// Of one, in bytes, where that is known.
    size: Option<u64>,
    evidence: String,
}

impl Copies {
    fn of(one: &Evidence<'_>) -> Self {
        let copies = |row: &CallRow| {
            let known = matches!(kind_of(&row.name), Some(CallOf::AsyncCopy(_)));
            row.kind == CallKind::AsyncCopy || row.kind == CallKind::Other && known
        };
        let count = one.sum.a_step(one.calls(copies).count);
        let claims = &one.process.details.claims;
        let share = claims.copies as f64 / claims.host.max(1) as f64;
        let (many, bytes) = one
            .process
            .kernels
            .copies
            .iter()
            .fold((0, 0_u64), |sum, copy| {
                (sum.0 + copy.count, sum.1.saturating_add(copy.bytes))
            });
        let size = bytes.checked_div(many);
        let each = size.map_or_else(String::new, |size| format!(" of {} each", Bytes(size)));
        let evidence = format!(
            "{} copies a step{each} take {} of the host's time",
            Rate(count),
            Share(share)
        );
        Self {
            count,
            share,
            size,
            evidence,
        }
    }
}

pub fn batches_when() -> String {
    format!(
        "over {} of what slow iterations (1.5 times the median) take beyond it is in those whose batch has over {LARGE_BATCH} \
         times the mean's tokens",
        Share(LARGE)
    )
}

pub fn batches(one: &Evidence<'_>) -> Judged {
    let mut known = one.iterations().filter_map(|iteration| iteration.batch);
    if known.next().is_none() {
        return Judged::Unknown("what is in batches is not known".to_owned());
    }
    let large = one.large_batches();
    let evidence = format!(
        "{} of {} slow iterations have a batch of over {LARGE_BATCH} times the mean's tokens",
        large.hit, large.slow
    );
    match large.of_slow >= LARGE {
        true => Judged::Yes {
            evidence,
            loss: None,
        },
        false => Judged::No(evidence),
    }
}

pub fn code_when() -> String {
    format!(
        "the GPU has nothing to do for over {} of the time while the host runs code in which it makes no call: not between \
         two launches, and not after a wait inside an iteration",
        Share(CODE)
    )
}

pub fn code(one: &Evidence<'_>) -> Judged {
    let claims = &one.process.details.claims;
    let what = "the host runs its code";
    waited_for(one, what, claims.code, &claims.named, CODE)
}

pub fn blocked_when() -> String {
    format!(
        "the GPU has nothing to do for over {} of the time while the host's thread is asleep or blocked in such code, for \
         certain",
        Share(BLOCKED)
    )
}

pub fn blocked(one: &Evidence<'_>) -> Judged {
    if one.iterations().all(|iteration| iteration.used.is_none()) {
        return Judged::Unknown("the record does not have it".to_owned());
    }
    let claims = &one.process.details.claims;
    let what = format!("the host's thread is {ASLEEP}");
    waited_for(one, &what, claims.blocked, &claims.blocked_in, BLOCKED)
}

/// What the GPU has nothing to do in while the host does `what`, in all and by the greatest rows of the ledger.
fn waited_for(
    one: &Evidence<'_>,
    what: &str,
    time: u64,
    rows: &[(String, u64)],
    least: f64,
) -> Judged {
    let Claims { gpu, delayed, .. } = one.process.details.claims;
    if gpu == 0 {
        return Judged::Unknown("GPU time was not measured".to_owned());
    }
    let of = |time: u64| time as f64 / gpu as f64;
    let named = rows.iter();
    let named = named.map(|(cause, idle)| {
        let place = cause.strip_prefix(ASLEEP).unwrap_or(cause);
        format!("{} ({})", place.trim_start(), Share(of(*idle)))
    });
    let share = of(time);
    let evidence = match rows.is_empty() {
        true => format!("the GPU never waits while {what}"),
        false => format!(
            "the GPU has nothing to do {} of {} while {what}{}: {}",
            Share(share),
            one.worked(),
            one.measured_in(one.process.ledger.gpu_iterations),
            named.collect::<Vec<_>>().join(", ")
        ),
    };
    // What a busy machine adds makes it no smaller.
    match time as f64 / gpu.saturating_sub(delayed).max(1) as f64 {
        share if share < least => Judged::No(evidence),
        _ if one.sum.without_kernels.is_none() => {
            Judged::Unknown("kernels were taken in all iterations, which slows the host".to_owned())
        }
        _ => Judged::yes(evidence, share),
    }
}

pub fn delayed_when() -> String {
    format!(
        "waits for a processor, beside other waits, take over {} of the time; or over {}, and are over {} of what slow \
         iterations (1.5 times the median) take beyond it",
        Share(DELAYED),
        Share(DELAYED_LEAST),
        Share(OF_SLOW)
    )
}

pub fn delayed(one: &Evidence<'_>) -> Judged {
    if one.iterations().all(|iteration| iteration.used.is_none()) {
        return Judged::Unknown("the record does not have it".to_owned());
    }
    let share = one.process.ledger.host_share(LedgerKind::Delayed);
    let times = |iteration: &Iteration| iteration.used.map_or(0, |used| used.preempted);
    let times: u64 = one.iterations().map(|one| u64::from(times(one))).sum();
    let lost = one.lost(Iteration::delayed);
    let slow = match lost.slow {
        0 => String::new(),
        slow => format!("; to blame in {} of {slow} slow iterations", lost.hit),
    };
    let evidence = format!(
        "another thread was given the processor {} times a step: {} of the time{slow}",
        Rate(one.sum.a_step(times)),
        Share(share)
    );
    match share >= DELAYED || share >= DELAYED_LEAST && lost.of_slow >= OF_SLOW {
        true => Judged::yes(evidence, share),
        false => Judged::No(evidence),
    }
}

pub fn faults_when() -> String {
    format!(
        "at least {FAULTS} page faults in an iteration, and the kernel works over {} of the time for its thread",
        Share(IN_KERNEL)
    )
}

pub fn faults(one: &Evidence<'_>) -> Judged {
    let used = || one.iterations().filter_map(|iteration| iteration.used);
    if used().next().is_none() {
        return Judged::Unknown("the record does not have them".to_owned());
    }
    let sum = |of: fn(Used) -> u64| used().map(of).fold(0, u64::saturating_add);
    let faults = one.sum.a_step(sum(|used| used.faults.into()));
    let disk = one.sum.a_step(sum(|used| used.disk_faults.into()));
    let share = one.share(sum(|used| used.in_kernel));
    let disk = match disk {
        0.0 => String::new(),
        _ => format!(", {} of which read a disk", Rate(disk)),
    };
    let evidence = format!(
        "{} page faults a step{disk}; the kernel works {} of the time for that thread",
        Rate(faults),
        Share(share)
    );
    match faults >= FAULTS && share >= IN_KERNEL {
        true => Judged::yes(evidence, share),
        false => Judged::No(evidence),
    }
}

pub fn no_work_when() -> String {
    format!(
        "no call launches or copies anything, and the host spends over {} of the time outside CUDA calls, in code of its own, \
         asleep or blocked",
        Share(OUTSIDE)
    )
}

/// Where nothing is launched, no time of the GPU says what it waits for.
pub fn no_work(one: &Evidence<'_>) -> Judged {
    let (kernels, dropped) = (&one.process.kernels, one.process.record.dropped);
    if one.calls(gives_work).count > 0 || !kernels.totals.is_empty() {
        return Judged::No("the GPU is given work".to_owned());
    }
    if dropped > 0 {
        return Judged::Unknown("events are missing".to_owned());
    }
    let is_outside = |row: &&LedgerRow| {
        use LedgerKind::{Blocked, Code, Function, Native, Python};
        matches!(row.kind, Blocked | Code | Function | Native | Python)
    };
    let outside = || one.process.ledger.host.iter().filter(is_outside);
    let share = outside().fold(0.0, |sum, row| sum + row.share);
    let named = outside().take(NAMED);
    let named = named.map(|row| format!("{} ({})", row.cause, Share(row.share)));
    let named = named.collect::<Vec<_>>().join(", ");
    match share >= OUTSIDE {
        true => Judged::Yes {
            evidence: format!(
                "no work is launched; the host is outside CUDA calls {} of the time: {named}",
                Share(share)
            ),
            loss: None,
        },
        false => Judged::No(format!(
            "no work is launched; the host is outside CUDA calls {} of the time",
            Share(share)
        )),
    }
}

pub fn requests_when() -> String {
    format!("it waits for requests over {} of the time", Share(REQUESTS))
}

pub fn requests(one: &Evidence<'_>) -> Judged {
    let share = one.process.ledger.host_share(LedgerKind::Requests);
    let evidence = format!("it waits for requests {} of the time", Share(share));
    match share >= REQUESTS {
        true => Judged::Yes {
            evidence: format!(
                "{evidence}, {} at the longest; other findings are about the rest",
                Time(one.sum.idle.max)
            ),
            loss: None,
        },
        false => Judged::No(evidence),
    }
}
