//! What the ledger shows of the host: graphs that are captured anew, small copies, code that the GPU waits for, and
//! waiting for requests.

use tllmprof_calls::{Kind as CallOf, kind_of};
use tllmprof_record::CallKind;

use super::Judged;
use super::evidence::Evidence;
use crate::facts::CallRow;
use crate::ledger::LedgerKind;
use crate::units::{Bytes, Rate, Share, Time};

/// The rule of code that the GPU waits for.
pub const CODE_RULE: &str = "host-bound";

/// What captures have to cost of the time; or, of what slow iterations take beyond the median, to explain.
const CAPTURES: f64 = 0.005;
const LEAST: f64 = 0.001;
const OF_SLOW: f64 = 0.5;

/// Copies in an iteration, how large a small one is, and what the host spends on them.
const COPIES: f64 = 8.0;
const SMALL: u64 = 64 << 10;
const COPYING: f64 = 0.05;

/// How much of the time the GPU has to wait for code of the host.
const CODE: f64 = 0.3;

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
    let copies = |row: &CallRow| {
        let known = matches!(kind_of(&row.name), Some(CallOf::AsyncCopy(_)));
        row.kind == CallKind::AsyncCopy || row.kind == CallKind::Other && known
    };
    let count = one.sum.a_step(one.calls(copies).count);
    let claims = &one.process.claims;
    let share = claims.copies as f64 / claims.host.max(1) as f64;
    let (many, bytes) = one.process.copies.iter().fold((0, 0_u64), |sum, copy| {
        (sum.0 + copy.count, sum.1.saturating_add(copy.bytes))
    });
    let size = bytes.checked_div(many);
    let each = size.map_or_else(String::new, |size| format!(" of {} each", Bytes(size)));
    let evidence = format!(
        "{} copies a step{each} take {} of the host's time",
        Rate(count),
        Share(share)
    );
    let is_small = size.is_none_or(|size| size < SMALL);
    match count >= COPIES && share >= COPYING && is_small {
        true => Judged::yes(evidence, share),
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
    let claims = &one.process.claims;
    if claims.gpu == 0 {
        return Judged::Unknown("GPU time was not measured".to_owned());
    }
    let of = |time: u64| time as f64 / claims.gpu as f64;
    let named = claims.named.iter();
    let named = named.map(|(cause, idle)| format!("{cause} ({})", Share(of(*idle))));
    let share = of(claims.code);
    let evidence = match claims.named.is_empty() {
        true => "the GPU waits for no code of the host".to_owned(),
        false => format!(
            "the GPU has nothing to do {} of the time while the host runs its code: {}",
            Share(share),
            named.collect::<Vec<_>>().join(", ")
        ),
    };
    match share {
        ..CODE => Judged::No(evidence),
        _ if one.sum.without_kernels.is_none() => {
            Judged::Unknown("kernels were taken in all iterations, which slows the host".to_owned())
        }
        _ => Judged::yes(evidence, share),
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
