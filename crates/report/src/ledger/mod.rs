//! Where the time of iterations goes, each nanosecond once: the host's and the GPU's.

mod host;

use schemars::JsonSchema;
use serde::Serialize;

pub use host::HostLedger;

use crate::kernels::KernelSum;
use crate::sum::{GpuFrom, Sum};
use crate::window::Window;

/// How many causes have a row of their own, and the share from which one does.
const ROWS: usize = 24;
const SMALL: f64 = 0.001;

/// Where the time of iterations goes. The shares of each list add up to 1.
#[derive(Clone, PartialEq, Debug, Default, Serialize, JsonSchema)]
pub struct Ledger {
    /// The time of the threads of the iterations, the greatest first. Time in a call that another one contains counts
    /// for the inner one alone.
    pub host: Vec<LedgerRow>,
    /// The time of the GPU in the iterations that `gpu_from` of `inside` names; empty: not measured.
    pub gpu: Vec<LedgerRow>,
    /// Whether kernels were recorded in all iterations that `host` is of, which makes them longer. Otherwise those in
    /// which kernels were recorded are left out.
    pub stretched: bool,
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
    /// GPU: at work.
    Busy,
    /// GPU: nothing to do.
    Idle,
    /// Causes that are too small for a row.
    Other,
    /// The record says nothing about it.
    Unknown,
}

impl Ledger {
    /// How much of the host's time causes of a kind take.
    #[must_use]
    pub fn host_share(&self, kind: LedgerKind) -> f64 {
        let rows = self.host.iter().filter(|row| row.kind == kind);
        rows.fold(0.0, |sum, row| sum + row.share)
    }
}

/// Rows of causes and their times, the greatest first; small ones are one row.
fn rows(mut times: Vec<((LedgerKind, String), u64)>, ns: impl Fn(u64) -> u64) -> Vec<LedgerRow> {
    let total: u64 = times.iter().map(|(_, time)| time).sum();
    times.retain(|(_, time)| *time > 0);
    times.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let share = |time: u64| time as f64 / total.max(1) as f64;
    let large = times.iter().take_while(|(_, time)| share(*time) >= SMALL);
    let kept = large.count().min(ROWS);
    let rest: u64 = times.drain(kept..).map(|(_, time)| time).sum();
    let rest = (rest > 0).then(|| ((LedgerKind::Other, "other".to_owned()), rest));
    let rows = times.into_iter().chain(rest);
    rows.map(|((kind, cause), time)| LedgerRow {
        kind,
        cause,
        ns: ns(time),
        share: share(time),
    })
    .collect()
}

/// The GPU's time: by events where they measured it, else by kernels.
pub fn gpu(sum: &Sum, windows: &[Window], kernels: Option<KernelSum>) -> Vec<LedgerRow> {
    let named = |times: &[(LedgerKind, &str, u64)]| {
        let times = times
            .iter()
            .map(|(kind, cause, time)| ((*kind, (*cause).to_owned()), *time));
        rows(times.collect(), |ns| ns)
    };
    if sum.gpu_from != GpuFrom::Kernels {
        let iterations = windows.iter().flat_map(|window| &window.iterations);
        let measured = iterations.filter_map(|one| Some((sum.gpu_from.time(one)?, one.duration)));
        let (at_work, took) = measured.fold((0_u64, 0_u64), |(at_work, took), (more, long)| {
            (at_work.saturating_add(more), took.saturating_add(long))
        });
        let at_work = at_work.min(took);
        return named(&[
            (LedgerKind::Busy, "from the first work to the last", at_work),
            (LedgerKind::Idle, "idle", took - at_work),
        ]);
    }
    kernels.map_or_else(Vec::new, |taken| {
        let busy = taken.busy.min(taken.wall);
        let gaps = taken.gaps.min(taken.wall - busy);
        named(&[
            (LedgerKind::Busy, "kernels and copies", busy),
            (LedgerKind::Idle, "between kernels", gaps),
            (LedgerKind::Idle, "idle", taken.wall - busy - gaps),
        ])
    })
}
