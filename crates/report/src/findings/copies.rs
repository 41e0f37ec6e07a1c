//! Findings on copies that do not wait: many small ones, and few that are long.

use tllmprof_calls::{CallPurpose, Direction, kind_of};
use tllmprof_record::CallKind;

use super::evidence::Evidence;
use super::{Judgement, gpu};
use crate::events::facts::CallCount;
use crate::ledger::Claim;
use crate::numbers::units::{Bytes, Rate, Share};

/// Minimum number of copies per iteration for the finding on small copies. The finding on few but large copies requires
/// fewer copies than this.
const MIN_COPIES: f64 = 8.0;
/// Maximum mean size of the copies, in bytes, for the finding on small copies.
const MAX_SMALL_COPY: u64 = 64 << 10;
/// Minimum share of the time, as a fraction, that is lost in copies, for the finding on small copies.
const MIN_COPYING: f64 = 0.05;

/// Minimum mean size of copies to the host, in bytes, for the assumption that their calls take long because of this
/// size. Calls that make smaller copies to the host are assumed to wait for earlier work of the GPU.
const MIN_LONG_COPY: u64 = 1 << 20;

/// Minimum share of the time, as a fraction, that is lost in copies, for the finding on few but long copies.
const MIN_LONG_COPYING: f64 = 0.1;

/// Words for the evidence if the GPU's idle time during copies is unknown, so that the loss is an upper limit.
const NOT_KNOWN: &str = "; how long the GPU had nothing to do meanwhile is not known";

pub(crate) fn small_when() -> String {
    format!(
        "at least {MIN_COPIES} copies in an iteration that do not wait, and nothing to do for the GPU for over {} of the time in \
         them and in short code around them; where kernels were not recorded, also over that share of the host's time; where \
         they were, of under {} each",
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
    // Without recorded kernels, GPU idle time within an iteration's GPU span (from its first GPU work to its last) is
    // unknown.
    let unwaited = claims.copying_without_waits();
    let is_known = idle > unwaited || count > 0.0 && one.kernels().is_some();
    let (lost, evidence) = match is_known {
        true => {
            let evidence = format!(
                "{evidence}; the GPU has nothing to do {} of the time while the host copies, or runs short code around that{}",
                Share(idle),
                claims.mostly_in(&[Claim::Copy])
            );
            (idle, evidence)
        }
        false => (unwaited, evidence + &waits(share, unwaited)),
    };
    let is_small = size.is_none_or(|size| size < MAX_SMALL_COPY);
    match count >= MIN_COPIES && lost >= MIN_COPYING && is_small {
        true if is_known => Judgement::yes(evidence, lost),
        true => Judgement::yes(evidence + NOT_KNOWN, lost),
        false => Judgement::No(evidence),
    }
}

pub(crate) fn long_when() -> String {
    format!(
        "under {MIN_COPIES} copies in an iteration, in which the GPU has nothing to do, or only copies, for over {} of the time; \
         copies to the host of under {} each do not count; where kernels were not recorded, over that share of the host's time",
        Share(MIN_LONG_COPYING),
        Bytes(MIN_LONG_COPY)
    )
}

pub(crate) fn long(one: &Evidence<'_>) -> Judgement {
    let Copies {
        count,
        share,
        evidence,
        ..
    } = Copies::measure(one);
    if count >= MIN_COPIES || share < MIN_LONG_COPYING {
        return Judgement::No(evidence);
    }
    if one.kernels().is_none() {
        // A copy to the host waits for earlier work of the GPU. Without recorded kernels, that wait cannot be
        // distinguished from the copying.
        let unwaited = one.process.ledger.details.claims.copying_without_waits();
        let evidence = evidence + &waits(share, unwaited);
        return match one.copies_to_device() && unwaited >= MIN_LONG_COPYING {
            true => Judgement::yes(evidence + NOT_KNOWN, unwaited),
            false => Judgement::Unknown(evidence),
        };
    }
    let lost = long_loss(one);
    let evidence = format!(
        "{evidence}; meanwhile the GPU has nothing to do, or only copies, {} of the time",
        Share(lost)
    );
    match lost >= MIN_LONG_COPYING {
        true => Judgement::yes(evidence, lost),
        false => Judgement::No(evidence),
    }
}

/// Returns words for the part of the copies' time in which they wait for the GPU; empty if no such time is known. `share`
/// and `unwaited` are the copies' shares of the host's time with and without these waits, as fractions.
fn waits(share: f64, unwaited: f64) -> String {
    match unwaited < share {
        true => format!(
            "; for {} of the time they wait for the GPU or for their transfer",
            Share(share - unwaited)
        ),
        false => String::new(),
    }
}

/// Returns the loss by few but large copies, as a fraction of the time, if kernels were recorded.
pub(super) fn long_loss(one: &Evidence<'_>) -> f64 {
    lost_in_long(one).min(one.process.ledger.details.claims.copying())
}

/// Returns the share of the time, as a fraction, in which calls copy and the GPU meanwhile runs no kernel: it is idle,
/// or it makes only these copies. Calls that make small copies to the host, or in a direction that is not known, are
/// left out: they are slow because they wait for earlier work of the GPU, and not because of the copies.
fn lost_in_long(one: &Evidence<'_>) -> f64 {
    let (mut in_calls, mut transfers) = (0.0, 0.0);
    for direction in [Direction::ToDevice, Direction::ToHost, Direction::Other] {
        let calls = one.calls(|row| direction_of(row) == Some(direction));
        let calls = one.share(calls.total);
        let transferred = Transferred::measure(one, direction);
        let is_wait = direction != Direction::ToDevice
            && transferred.size.is_some_and(|size| size < MIN_LONG_COPY);
        if !is_wait {
            in_calls += calls;
            transfers += transferred.share.min(calls);
        }
    }
    // `Claim::Copy` also contains idle time in short code around the calls, so the sum is limited to the calls' time.
    let idle = one.process.ledger.details.claims.share(Claim::Copy);
    let only_copying = gpu::only_copying(one).unwrap_or(0.0);
    (idle + transfers.min(only_copying)).min(in_calls)
}

/// Returns the direction of a call that copies without waiting for the GPU; `None` for other calls.
fn direction_of(row: &CallCount) -> Option<Direction> {
    match (row.kind, kind_of(&row.name)) {
        (CallKind::AsyncCopy | CallKind::Other, Some(CallPurpose::AsyncCopy(direction))) => {
            Some(direction)
        }
        (CallKind::AsyncCopy, _) => Some(Direction::Other),
        _ => None,
    }
}

/// Recorded copies between host and GPU that calls of one direction may have made.
struct Transferred {
    /// Share of the time that the copies take on the GPU, as a fraction.
    share: f64,
    /// Mean size of a copy in bytes; `None` if it is unknown.
    size: Option<u64>,
}

impl Transferred {
    fn measure(one: &Evidence<'_>, direction: Direction) -> Self {
        let kinds: &[&str] = match direction {
            Direction::ToDevice => &["HtoD"],
            Direction::ToHost => &["DtoH"],
            Direction::Other => &["HtoD", "DtoH"],
        };
        let kernels = &one.process.kernels;
        let copies = kernels.copies.iter();
        let copies = copies.filter(|copy| kinds.contains(&copy.kind.as_str()));
        let (mut count, mut ns, mut bytes) = (0_u64, 0_u64, 0_u64);
        for copy in copies {
            count += copy.count;
            ns = ns.saturating_add(copy.total);
            bytes = bytes.saturating_add(copy.bytes);
        }
        Self {
            share: kernels
                .window
                .as_ref()
                .map_or(0.0, |window| window.share(ns)),
            size: bytes.checked_div(count).filter(|size| *size > 0),
        }
    }
}

/// The number, time and size of those copies of a process whose calls do not wait for the GPU.
struct Copies {
    /// Mean number of copies in an iteration.
    count: f64,
    /// Share of the calls that make these copies in the host's time, as a fraction.
    share: f64,
    /// Mean size of all recorded copies between host and GPU of the process in bytes, including copies that wait for
    /// the GPU; `None` if it is unknown.
    size: Option<u64>,
    evidence: String,
}

impl Copies {
    fn measure(one: &Evidence<'_>) -> Self {
        let copies = one.calls(|row| direction_of(row).is_some());
        let count = one.sum.a_step(copies.count);
        let share = one.process.ledger.details.claims.copying();
        let size = Transferred::measure(one, Direction::Other).size;
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
