//! Selects the ledger rows whose time a finding explains; such rows are called claimed. A ledger
//! lists the time of iterations by cause. Findings of the kind `Cause` (a cause that can be fixed) must not claim the
//! same time twice.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::copies;
use super::evidence::Evidence;
use super::ledger::code_waited_for;
use crate::ledger::{Claim, IDLE, LedgerKind, LedgerRow, is_wait_in_copy, other_idle};

/// A description of the ledger rows whose time a rule's finding explains. A ledger lists the time
/// of iterations by cause; explained rows are called claimed.
pub(crate) enum ClaimRule {
    /// No rows: the rule's finding claims no time of the ledger.
    None,
    /// All rows in the host's ledger that have one of the given kinds.
    Host(&'static [LedgerKind]),
    /// Rows of GPU idle time during the given activities of the host.
    Idle(&'static [Claim]),
    /// Rows of GPU idle time during the host's copies. Without recorded kernels, the rows of copies in the host's
    /// ledger are claimed instead, if these have the greater share of the time.
    Copies,
    /// The rows of copies in the host's ledger. If their time is shorter than the loss by large copies, also the rows
    /// of waits for the GPU in copies, which contain the transfers to the host. All rows together claim at most that
    /// loss.
    LongCopies,
    /// Rows of GPU idle time during the host code for which the GPU had to wait.
    Code,
    /// All rows of GPU idle time in the ledger.
    AllIdle,
}

/// A row of a process's `ledger` (time by cause) whose time a finding claims. A finding claims the time that it
/// explains.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ClaimedRow {
    /// The index of the process in `processes`.
    pub process: usize,
    /// The list of the process's `ledger` that contains the row: `host` or `gpu`.
    pub ledger: LedgerSide,
    /// The `cause` of the row in the list that `ledger` names.
    pub cause: String,
    /// The time that the finding claims, at most the time of the row.
    pub ns: u64,
}

/// A list of a process's `ledger` (time by cause): `host` or `gpu`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LedgerSide {
    /// The list `host`: the time of the iterations' threads.
    Host,
    /// The list `gpu`: the time of the GPU.
    Gpu,
}

impl ClaimRule {
    /// Returns those ledger rows of a process whose time this rule explains ("claims"). If a cause of GPU idle time is
    /// too small for a row of its own, the row that sums up such small causes is claimed instead, and comes last.
    pub(crate) fn claim(&self, one: &Evidence<'_>) -> Vec<ClaimedRow> {
        let ledger = &one.process.ledger;
        let row = |side, row: &LedgerRow, ns: u64| ClaimedRow {
            process: one.place,
            ledger: side,
            cause: row.cause.clone(),
            ns,
        };
        let host = |kinds: &[LedgerKind]| {
            let rows = ledger.host.iter().filter(|row| kinds.contains(&row.kind));
            rows.map(|of| row(LedgerSide::Host, of, of.ns)).collect()
        };
        let idle = || ledger.gpu.iter().filter(|row| row.kind == LedgerKind::Idle);
        let idle_in = |claimed: Vec<(String, u64)>| {
            let mut small: BTreeMap<&str, u64> = BTreeMap::new();
            let mut rows = Vec::new();
            for (cause, ns) in &claimed {
                let mut all = idle();
                match all.find(|row| row.cause.strip_prefix(IDLE) == Some(cause)) {
                    Some(of) => rows.push(row(LedgerSide::Gpu, of, (*ns).min(of.ns))),
                    None => *small.entry(other_idle(cause)).or_default() += ns,
                }
            }
            let others = idle().filter_map(|of| Some((of, *small.get(&*of.cause)?)));
            rows.extend(others.map(|(of, ns)| row(LedgerSide::Gpu, of, ns.min(of.ns))));
            rows
        };
        let claims = &ledger.details.claims;
        match self {
            Self::None => Vec::new(),
            Self::Host(kinds) => host(kinds),
            Self::AllIdle => idle().map(|of| row(LedgerSide::Gpu, of, of.ns)).collect(),
            Self::Idle(some) => idle_in(claims.rows(some)),
            Self::Copies
                if one.kernels().is_some()
                    || claims.share(Claim::Copy) > claims.copying_without_waits() =>
            {
                idle_in(claims.rows(&[Claim::Copy]))
            }
            Self::Copies => host(&[LedgerKind::Copy]),
            Self::LongCopies => {
                let mut rows: Vec<ClaimedRow> = host(&[LedgerKind::Copy]);
                let claimed: u64 = rows.iter().map(|of| of.ns).sum();
                let loss = match one.kernels() {
                    Some(_) => (copies::long_loss(one) * claims.host as f64) as u64,
                    None => 0,
                };
                let mut left = loss.saturating_sub(claimed);
                let waits = ledger.host.iter();
                for of in waits.filter(|of| is_wait_in_copy(&of.cause)) {
                    let ns = of.ns.min(left);
                    left -= ns;
                    rows.extend((ns > 0).then(|| row(LedgerSide::Host, of, ns)));
                }
                rows
            }
            Self::Code => idle_in(code_waited_for(one).rows),
        }
    }
}
