//! Where the time of iterations goes, each nanosecond once: the host's and the GPU's.

mod claims;
pub mod compare;
pub mod difference;
mod differences;
mod groups;
mod host;
mod keys;
pub mod slow;
mod split;
pub mod text;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

pub use claims::{Claims, NAMED};
pub use groups::Groups;
pub use host::HostLedger;
pub use keys::{ASLEEP, Named};

/// How many causes have a row of their own, and the share from which one does.
const ROWS: usize = 40;
const SMALL: f64 = 0.001;

/// Where the time of iterations goes. The shares of each list add up to 1.
#[derive(Clone, PartialEq, Debug, Default, Serialize, JsonSchema)]
pub struct Ledger {
    /// How many iterations qualify.
    #[schemars(extend("unit" = "iterations"))]
    pub iterations: u64,
    /// Of how many of them `host` is.
    #[schemars(extend("unit" = "iterations"))]
    pub host_iterations: u64,
    /// The time of the threads of the iterations, the greatest first. Time in a call that another one contains counts
    /// for the inner one alone.
    pub host: Vec<LedgerRow>,
    /// Of how many of them `gpu` is.
    #[schemars(extend("unit" = "iterations"))]
    pub gpu_iterations: u64,
    /// The time of the GPU in the iterations that `gpu_from` of `inside` names, the greatest first; empty: not measured.
    /// `from first work to last`: CUDA events measured it, and gaps between kernels are in it.
    /// Time in which it had nothing to do is by what the thread of the iteration did meanwhile.
    pub gpu: Vec<LedgerRow>,
    /// Whether kernels were recorded in all iterations that `host` is of, which makes them longer. Otherwise those in
    /// which kernels were recorded are left out.
    pub stretched: bool,
}

/// What the ledger comes of: the ledgers of windows, and what findings may claim of it.
#[derive(Debug, Default)]
pub struct LedgerDetails {
    pub windows: Vec<Ledger>,
    pub claims: Claims,
}

/// A cause, and the time that is spent on it.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct LedgerRow {
    /// What kind of cause it is.
    pub kind: LedgerKind,
    /// What the time is spent on. `other` has the causes that are too small for a row, `unknown` the time of which the
    /// record says nothing.
    pub cause: String,
    /// How long that is over all these iterations.
    pub ns: u64,
    /// How much of the time that is.
    #[schemars(extend("unit" = "part of 1"))]
    pub share: f64,
}

/// What kind of cause time is spent on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LedgerKind {
    /// Host: a CUDA call that waits for the GPU.
    Wait,
    /// Host: launches of kernels and graphs.
    Launch,
    /// Host: calls that copy or set memory.
    Copy,
    /// Host: captures and instantiations of graphs.
    Capture,
    /// Host: calls that allocate or free memory.
    Allocation,
    /// Host: other CUDA calls.
    Call,
    /// Host: Python's garbage collection, on this thread.
    Gc,
    /// Host: waits for the GIL.
    GilWait,
    /// Host: a marked Python function, without what has a row of its own.
    Function,
    /// Host: code between two of the things above.
    Code,
    /// Host: a Python function, by samples of the thread's stack, which divide such code and the time of marked functions.
    Python,
    /// Host: native code, by samples.
    Native,
    /// Host: the thread was asleep or blocked in such code or such a function: in a sleep, for a lock, a file or another
    /// thread. By samples, or for certain by what the kernel counts.
    Blocked,
    /// Host: the thread could have run, and another one had its processor.
    Delayed,
    /// Host: waiting for requests, which is neither work nor a fault.
    Requests,
    /// GPU: at work.
    Busy,
    /// GPU: nothing to do.
    Idle,
    /// Causes that are too small for a row.
    Other,
    /// The record says nothing about it.
    Unknown,
}

impl LedgerKind {
    /// Its name in exports, as JSON has it.
    #[must_use]
    pub fn name(self) -> String {
        let name = serde_json::to_value(self).unwrap_or_default();
        name.as_str().unwrap_or_default().to_owned()
    }
}

impl Ledger {
    /// How much of the host's time causes of a kind take.
    #[must_use]
    pub fn host_share(&self, kind: LedgerKind) -> f64 {
        let rows = self.host.iter().filter(|row| row.kind == kind);
        rows.fold(0.0, |sum, row| sum + row.share)
    }
}

/// How much of the time goes elsewhere by one list than by another one.
#[must_use]
pub fn difference(some: &[LedgerRow], others: &[LedgerRow]) -> f64 {
    let more = |row: &LedgerRow| {
        let same = others.iter().find(|other| other.cause == row.cause);
        (row.share - same.map_or(0.0, |same| same.share)).max(0.0)
    };
    some.iter().map(more).sum()
}

/// Rows of causes and their times, the greatest first; small ones are one row.
fn rows(times: Vec<((LedgerKind, String), u64)>) -> Vec<LedgerRow> {
    let mut sums: BTreeMap<(LedgerKind, String), u64> = BTreeMap::new();
    for (cause, time) in times {
        *sums.entry(cause).or_default() += time;
    }
    let mut times: Vec<_> = sums.into_iter().filter(|(_, time)| *time > 0).collect();
    let total: u64 = times.iter().map(|(_, time)| time).sum();
    times.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let share = |time: u64| time as f64 / total.max(1) as f64;
    let large = times.iter().take_while(|(_, time)| share(*time) >= SMALL);
    let kept = large.count().min(ROWS);
    let mut rest: BTreeMap<(LedgerKind, &str), u64> = BTreeMap::new();
    for ((kind, _), time) in times.drain(kept..) {
        let other = match kind {
            LedgerKind::Busy => (kind, "busy: other work"),
            LedgerKind::Idle => (kind, "idle: other"),
            LedgerKind::Python => (kind, "Python: other functions"),
            LedgerKind::Native => (kind, "native: other functions"),
            LedgerKind::Blocked => (kind, "asleep or blocked elsewhere"),
            _ => (LedgerKind::Other, "other"),
        };
        *rest.entry(other).or_default() += time;
    }
    let rest = rest.into_iter();
    let rest = rest.map(|((kind, cause), time)| ((kind, cause.to_owned()), time));
    let rows = times.into_iter().chain(rest);
    rows.map(|((kind, cause), ns)| LedgerRow {
        kind,
        cause,
        ns,
        share: share(ns),
    })
    .collect()
}
