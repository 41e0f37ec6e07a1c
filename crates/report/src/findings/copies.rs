//! Findings on copies that do not wait: many small ones, and few that are long.

use tllmprof_calls::{CallPurpose, kind_of};
use tllmprof_record::CallKind;

use super::Judgement;
use super::evidence::Evidence;
use crate::events::facts::CallCount;
use crate::ledger::Claim;
use crate::numbers::units::{Bytes, Rate, Share};

/// Minimum number of copies per iteration for the finding on small copies. The finding on few but large copies requires
/// fewer copies than this.
const MIN_COPIES: f64 = 8.0;
/// Maximum mean size of the copies, in bytes, for the finding on small copies.
const MAX_SMALL_COPY: u64 = 64 << 10;
/// Minimum share of copies in the host's time, as a fraction, for the finding on small copies.
const MIN_COPYING: f64 = 0.05;

/// Minimum mean size of copies, in bytes, for the assumption that their calls take long because of this size. Calls
/// with smaller copies are assumed to wait for earlier work of the GPU.
const MIN_LONG_COPY: u64 = 1 << 20;

/// Minimum share of copies in the host's time, as a fraction, for the finding on few but large
/// copies.
const MIN_LONG_COPYING: f64 = 0.1;

pub(crate) fn small_when() -> String {
    format!(
        "at least {MIN_COPIES} copies in an iteration that do not wait, for over {} of the host's time, or nothing to do for the \
         GPU for as long in them and in short code around them; where kernels were recorded, of under {} each",
        Share(MIN_COPYING),
        Bytes(MAX_SMALL_COPY)
    )
}

pub(crate) fn small(one: &Evidence<'_>) -> Judgement {
    let Copies {
        count,
        share,
        size,
        evidence,
    } = Copies::measure(one);
    let claims = &one.process.ledger.details.claims;
    let idle = claims.share(Claim::Copy);
    let (lost, evidence) = match idle > share {
        true => {
            let evidence = format!(
                "{evidence}; the GPU has nothing to do {} of the time while the host copies, or runs short code around that{}",
                Share(idle),
                claims.mostly_in(&[Claim::Copy])
            );
            (idle, evidence)
        }
        false => (share, evidence),
    };
    let is_small = size.is_none_or(|size| size < MAX_SMALL_COPY);
    match count >= MIN_COPIES && lost >= MIN_COPYING && is_small {
        true => Judgement::yes(evidence, lost),
        false => Judgement::No(evidence),
    }
}

pub(crate) fn long_when() -> String {
    format!(
        "under {MIN_COPIES} copies in an iteration, for over {} of the host's time",
        Share(MIN_LONG_COPYING)
    )
}

pub(crate) fn long(one: &Evidence<'_>) -> Judgement {
    let Copies {
        count,
        share,
        size,
        evidence,
    } = Copies::measure(one);
    // If a copy is small, its call is slow because it waits for earlier work of the GPU. So only GPU idle time during
    // such calls counts as lost. `Claim::Copy` also includes idle time in short code around the calls, so the share is
    // limited to that of the calls.
    let (lost, evidence) = match size {
        Some(size) if size < MIN_LONG_COPY => {
            let idle = one.process.ledger.details.claims.share(Claim::Copy);
            let idle = idle.min(share);
            (
                idle,
                format!(
                    "{evidence}; the GPU has nothing to do meanwhile {} of the time",
                    Share(idle)
                ),
            )
        }
        // A copy to the host waits for earlier work of the GPU. If the size of the copy is unknown,
        // that wait cannot be distinguished from the copying.
        None if share >= MIN_LONG_COPYING && !one.copies_to_device() => {
            return Judgement::Unknown(evidence);
        }
        _ => (share, evidence),
    };
    match count < MIN_COPIES && lost >= MIN_LONG_COPYING {
        true => Judgement::yes(evidence, lost),
        false => Judgement::No(evidence),
    }
}

/// The number, time and size of those copies of a process whose calls do not wait for the GPU.
struct Copies {
    /// Mean number of copies in an iteration.
    count: f64,
    /// Share of the calls that make these copies in the host's time, as a fraction.
    share: f64,
    /// Mean size of all recorded copies and memory sets of the process in bytes, including copies that wait for the
    /// GPU; `None` if it is unknown.
    size: Option<u64>,
    evidence: String,
}

impl Copies {
    fn measure(one: &Evidence<'_>) -> Self {
        let copies = |row: &CallCount| {
            let known = matches!(kind_of(&row.name), Some(CallPurpose::AsyncCopy(_)));
            row.kind == CallKind::AsyncCopy || row.kind == CallKind::Other && known
        };
        let count = one.sum.a_step(one.calls(copies).count);
        let share = one.process.ledger.details.claims.copying();
        let (many, bytes) = one
            .process
            .kernels
            .copies
            .iter()
            .fold((0, 0_u64), |sum, copy| {
                (sum.0 + copy.count, sum.1.saturating_add(copy.bytes))
            });
        // The number of bytes is 0 in the traces of profilers that do not record it.
        let size = bytes.checked_div(many).filter(|size| *size > 0);
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
