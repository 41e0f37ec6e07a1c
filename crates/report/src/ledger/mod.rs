//! The ledger of iterations: a table of their time by cause, for the host and for the GPU. Each
//! nanosecond counts once.

mod claim;
mod claims;
pub(crate) mod compare;
pub(crate) mod difference;
mod differences;
mod groups;
mod host;
mod keys;
mod paths;
pub(crate) mod slow;
mod split;
pub(crate) mod text;
mod times;

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;

use crate::events::samples::Location;
pub(crate) use claim::Claim;
pub(crate) use claims::NAMED;
pub(crate) use claims::{Claimed, Claims};
pub(crate) use groups::Groups;
pub(crate) use host::HostLedger;
pub(crate) use keys::NameSources;
pub(crate) use keys::{ASLEEP, REQUESTS_CAUSE, is_wait_in_copy};
use keys::{NATIVE, PYTHON};
pub(crate) use paths::{Path, Paths};

/// Maximum number of rows for single causes in each list of a ledger (`host` and `gpu`). Further causes are added up in
/// additional rows such as `other`.
const MAX_ROWS: usize = 40;
/// Minimum share of the time, as a fraction, for a cause to get a row of its own. Causes with a smaller share are added
/// up in rows such as `other`.
const MIN_ROW_SHARE: f64 = 0.001;

/// Prefix of the names of causes of GPU idle time. The host's activity follows.
pub(crate) const IDLE: &str = "idle: ";

/// The time of iterations, divided by cause. Each nanosecond counts for one cause, so the shares of each list add up to
/// 1.
#[derive(Clone, PartialEq, Debug, Default, Serialize, JsonSchema)]
pub struct Ledger {
    /// The number of qualifying iterations, which are those whose `qualifies` is true.
    #[schemars(extend("unit" = "iterations"))]
    pub iterations: u64,
    /// The number of iterations that `host` is based on.
    #[schemars(extend("unit" = "iterations"))]
    pub host_iterations: u64,
    /// The time of the iterations' threads by cause, the longest first. Time in a call inside another call counts only
    /// for the inner one.
    pub host: Vec<LedgerRow>,
    /// The number of iterations that `gpu` is based on.
    #[schemars(extend("unit" = "iterations"))]
    pub gpu_iterations: u64,
    /// The data from which `gpu` was computed: CUDA events, or recorded kernels.
    pub gpu_from: Basis,
    /// The time of the GPU by cause, the longest first; empty if it was not measured. The cause `from first work to
    /// last` is time between CUDA events, which includes the gaps between kernels. Idle time is divided by the activity
    /// of the iteration's thread at that time.
    pub gpu: Vec<LedgerRow>,
    /// True if kernels were recorded in all iterations that `host` is based on. Recording kernels makes iterations
    /// longer. If false, `host` leaves out the iterations in which kernels were recorded.
    pub stretched: bool,
    #[serde(skip)]
    pub details: LedgerDetails,
    /// The causes without a row of their own. The ledger of a single window does not have them.
    #[serde(skip)]
    pub folded: FoldedCauses,
    /// The share of the host's time by kind of cause, including causes that are too small for a row.
    #[serde(skip)]
    pub host_kinds: BTreeMap<LedgerKind, f64>,
}

impl Ledger {
    /// Removes the host's causes, and joins the rows of GPU idle time to one row, because these rows are named by the
    /// host's activities. This is needed if the host's calls were not recorded.
    pub fn forget_host(&mut self) {
        self.host.clear();
        self.host_kinds.clear();
        self.host_iterations = 0;
        let is_idle = |row: &LedgerRow| row.kind == LedgerKind::Idle;
        self.folded.host.clear();
        self.folded.gpu.retain(|row| !is_idle(row));
        let idle = self.gpu.iter().filter(|row| is_idle(row));
        let (ns, share) = idle.fold((0, 0.0), |(ns, share), row| {
            (ns + row.ns, share + row.share)
        });
        self.gpu.retain(|row| !is_idle(row));
        if ns > 0 {
            self.gpu.push(LedgerRow {
                location: None,
                kind: LedgerKind::Idle,
                cause: "idle".to_owned(),
                ns,
                share,
            });
            self.gpu.sort_by_key(|row| std::cmp::Reverse(row.ns));
        }
        self.details.windows.iter_mut().for_each(Self::forget_host);
    }
}

/// The data from which the list `gpu` of the ledger was computed: CUDA events, recorded kernels, or waits of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "GpuLedgerFrom")]
pub enum Basis {
    /// CUDA events before the first GPU work of an iteration and after its last. Gaps between kernels are not known.
    #[default]
    #[serde(rename = "events")]
    Span,
    /// The recorded kernels, in the iterations in which they were recorded. Recording kernels makes these iterations
    /// longer.
    #[serde(rename = "kernels")]
    Kernels,
    /// Kernels that were recorded in other iterations that do the same work. The busy time, and the idle time during
    /// each activity of the host, are assumed to be the same.
    #[serde(rename = "kernels of other iterations")]
    Projected,
    /// Waits of the host that left the GPU without work. It certainly had none until the next call that gave it work.
    /// The idle times are a lower bound, and it is not known if the GPU was busy at other times, which are in the row
    /// `unknown`.
    #[serde(rename = "waits of the host")]
    Waits,
}

/// Results that belong to a ledger: the ledgers of single windows, and the times that findings may explain ("claim").
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LedgerDetails {
    pub windows: Vec<Ledger>,
    pub claims: Claims,
    /// True if another profiler recorded the process and its recording took at most a tenth of the windows' time, by an
    /// estimate. The text then does not say that recording made iterations longer.
    pub is_exact: bool,
}

/// The causes that are too small for a row of a ledger's lists `host` and `gpu`, the longest first. Their times are also
/// in the rows of these lists that add up small causes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FoldedCauses {
    pub host: Vec<LedgerRow>,
    pub gpu: Vec<LedgerRow>,
}

/// A cause on which iterations spent time, and that time.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct LedgerRow {
    /// The type of the cause, such as `launch` for calls that launch kernels or graphs.
    pub kind: LedgerKind,
    /// The name of the cause, which is an activity such as a CUDA call. `other` stands for causes that are too small
    /// for a row, and `unknown` for time about which the record has no information.
    pub cause: String,
    /// The function in which the time was spent, known from stack samples or because the function is marked. In a row
    /// of the GPU it is the function that the host ran at that time. `null` if the row stands for several functions, or
    /// if the function is not known.
    #[serde(rename = "where")]
    pub location: Option<Location>,
    /// The total time of the cause over all iterations that the list is based on.
    pub ns: u64,
    /// The share of this cause in the total time of the list that contains this row (`host` or `gpu`).
    #[schemars(extend("unit" = "part of 1"))]
    pub share: f64,
}

/// The type of a cause of the ledger. Types whose description begins with `Host` occur in `host`, and those whose
/// description begins with `GPU` in `gpu`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LedgerKind {
    /// Host: a CUDA call that waits for the GPU.
    Wait,
    /// Host: CUDA calls that launch kernels or graphs.
    Launch,
    /// Host: CUDA calls that copy or set memory.
    Copy,
    /// Host: CUDA calls that capture or instantiate graphs.
    Capture,
    /// Host: CUDA calls that allocate or free memory.
    Allocation,
    /// Host: calls that load code into a context or compile it.
    Compilation,
    /// Host: CUDA calls that do not wait, launch, copy, capture, allocate or compile.
    Call,
    /// Host: Python's garbage collection on the iteration's thread.
    Gc,
    /// Host: waits for Python's global interpreter lock (GIL).
    GilWait,
    /// Host: a marked Python function, without the time of activities inside it that have their own rows.
    Function,
    /// Host: code that ran between two recorded activities, such as two CUDA calls.
    Code,
    /// Host: a Python function, known from samples of the thread's stack. The samples divide the time of `code` and of
    /// marked functions.
    Python,
    /// Host: native code, known from samples of the thread's stack.
    Native,
    /// Host: the thread was asleep or blocked in its code, for example in a sleep, or while it waited for a lock, a
    /// file or another thread. Known from samples of the thread's stack, or from the kernel's counters.
    Blocked,
    /// Host: the thread was ready to run, but another thread ran on its processor.
    Delayed,
    /// Host: waits for requests, which are neither work nor a fault.
    Requests,
    /// GPU: the time from the first GPU work of an iteration to its last, with the gaps between kernels.
    Span,
    /// GPU: at least one kernel or copy ran.
    Busy,
    /// GPU: no kernel or copy ran.
    Idle,
    /// Causes that are too small for a row.
    Other,
    /// Time about which the record has no information.
    Unknown,
}

impl LedgerKind {
    /// Returns the name of this kind in exports and in JSON.
    #[must_use]
    pub fn name(self) -> String {
        let name = serde_json::to_value(self).unwrap_or_default();
        name.as_str().unwrap_or_default().to_owned()
    }
}

impl Ledger {
    /// Returns the share of a kind of cause in the host's time, as a fraction.
    #[must_use]
    pub fn host_share(&self, kind: LedgerKind) -> f64 {
        self.host_kinds.get(&kind).copied().unwrap_or(0.0)
    }

    /// Returns the share of waits for the GPU in the host's time, as a fraction, without the time in which copies to the
    /// host wait.
    pub(crate) fn share_of_waits(&self) -> f64 {
        (self.host_share(LedgerKind::Wait) - self.share_in_copies()).max(0.0)
    }

    /// Returns the share of the host's time in which copies to the host wait for the GPU, or transfer data, as a fraction.
    pub(crate) fn share_in_copies(&self) -> f64 {
        let rows = self.host.iter().chain(&self.folded.host);
        let in_copies = rows.filter(|row| keys::is_wait_in_copy(&row.cause));
        in_copies.fold(0.0, |sum, row| sum + row.share)
    }
}

/// Returns the difference between two lists of rows, as a fraction: the sum of the amounts by which
/// causes have a larger share in the first list than in the second.
#[must_use]
pub(crate) fn difference(some: &[LedgerRow], others: &[LedgerRow]) -> f64 {
    let more = |row: &LedgerRow| {
        let same = others.iter().find(|other| other.cause == row.cause);
        (row.share - same.map_or(0.0, |same| same.share)).max(0.0)
    };
    some.iter().map(more).sum()
}

/// A cause of time with its kind, name and location, and its time in nanoseconds.
struct CauseTime {
    kind: LedgerKind,
    cause: String,
    location: Option<Location>,
    ns: u64,
}

/// Returns the share of each kind of cause in the total time, as a fraction.
fn kinds(times: &[CauseTime]) -> BTreeMap<LedgerKind, f64> {
    let total: u64 = times.iter().map(|time| time.ns).sum();
    let mut kinds = BTreeMap::new();
    for time in times {
        *kinds.entry(time.kind).or_default() += time.ns as f64 / total.max(1) as f64;
    }
    kinds
}

/// The causes of one list of a ledger: the rows of the list, and the causes that are too small for a row of their own.
struct SplitCauses {
    shown: Vec<LedgerRow>,
    folded: Vec<LedgerRow>,
}

/// Divides causes into those with a row of their own and those without. The rows are those of the causes whose share is
/// at least [`MIN_ROW_SHARE`], the longest first, but at most [`MAX_ROWS`] rows. Rows with the sums of the remaining
/// causes follow.
fn rows(times: Vec<CauseTime>) -> SplitCauses {
    let mut sums: BTreeMap<(LedgerKind, String), (u64, Option<Location>)> = BTreeMap::new();
    for time in times {
        let sum = sums.entry((time.kind, time.cause)).or_default();
        sum.0 += time.ns;
        sum.1 = sum.1.take().or(time.location);
    }
    let total: u64 = sums.values().map(|(ns, _)| ns).sum();
    let share = |ns: u64| ns as f64 / total.max(1) as f64;
    let named = sums
        .into_iter()
        .map(|((kind, cause), (ns, location))| LedgerRow {
            kind,
            cause,
            location,
            ns,
            share: share(ns),
        });
    let mut rows: Vec<_> = named.filter(|row| row.ns > 0).collect();
    rows.sort_by(|a, b| {
        b.ns.cmp(&a.ns)
            .then_with(|| (a.kind, &a.cause).cmp(&(b.kind, &b.cause)))
    });
    let large = rows
        .iter()
        .take_while(|row| row.share >= MIN_ROW_SHARE)
        .count();
    let mut rest: BTreeMap<(LedgerKind, &str), u64> = BTreeMap::new();
    let folded = rows.split_off(large.min(MAX_ROWS));
    for row in &folded {
        *rest.entry(collecting_row(row)).or_default() += row.ns;
    }
    rows.extend(rest.into_iter().map(|((kind, cause), ns)| LedgerRow {
        kind,
        cause: cause.to_owned(),
        location: None,
        ns,
        share: share(ns),
    }));
    SplitCauses {
        shown: rows,
        folded,
    }
}

/// Returns the kind and the name of the row to which the time of a small cause is added.
fn collecting_row(small: &LedgerRow) -> (LedgerKind, &'static str) {
    match small.kind {
        LedgerKind::Idle => (small.kind, other_idle(&small.cause)),
        kind => folded(kind),
    }
}

/// Returns the causes that have a row in at least one of the lists, which come from several ledgers.
pub(crate) fn shown_causes<'a>(
    lists: impl IntoIterator<Item = &'a [LedgerRow]>,
) -> BTreeSet<(LedgerKind, &'a str)> {
    let rows = lists.into_iter().flatten();
    rows.map(|row| (row.kind, &*row.cause)).collect()
}

/// Returns the rows of a ledger's list, with a row of its own for each cause in `folded` that `wanted` contains.
/// `folded` contains the causes that are too small for a row, and their time is in a row that adds up small causes. The
/// time of a cause that gets its own row is subtracted from that row. A comparison of several ledgers needs this,
/// because a cause may have a row in only some of them.
pub(crate) fn unfold(
    shown: &[LedgerRow],
    folded: &[LedgerRow],
    wanted: &BTreeSet<(LedgerKind, &str)>,
) -> Vec<LedgerRow> {
    let mut rows = shown.to_vec();
    let mut unfolded = Vec::new();
    for row in folded {
        let key = (row.kind, &*row.cause);
        let sum = collecting_row(row);
        if key == sum || !wanted.contains(&key) {
            continue;
        }
        // The rows that add up small causes are the last rows of the list.
        let mut ends = rows.iter_mut().rev();
        if let Some(rest) = ends.find(|rest| (rest.kind, &*rest.cause) == sum) {
            rest.ns = rest.ns.saturating_sub(row.ns);
            rest.share = (rest.share - row.share).max(0.0);
        }
        unfolded.push(row.clone());
    }
    rows.append(&mut unfolded);
    rows
}

/// Returns the name of the row to which small causes of idle time are added. `cause` is the name of
/// a small cause.
pub(crate) fn other_idle(cause: &str) -> &'static str {
    let cause = cause.strip_prefix(IDLE).unwrap_or(cause);
    if cause.starts_with(PYTHON) {
        "idle: Python: other functions"
    } else if cause.starts_with(NATIVE) {
        "idle: native: other functions"
    } else {
        "idle: other"
    }
}

/// Returns the kind and the name of the row to which small causes of the kind `kind` are added.
const fn folded(kind: LedgerKind) -> (LedgerKind, &'static str) {
    match kind {
        LedgerKind::Busy => (kind, "busy: other work"),
        LedgerKind::Python => (kind, "Python: other functions"),
        LedgerKind::Native => (kind, "native: other functions"),
        LedgerKind::Blocked => (kind, "asleep or blocked elsewhere"),
        _ => (LedgerKind::Other, "other"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_a_kind_has_causes_that_are_too_small_for_a_row() {
        let times = [
            (LedgerKind::Code, "code", 99_890),
            (LedgerKind::Wait, "one", 60),
            (LedgerKind::Wait, "another", 50),
        ];
        let times = times.map(|(kind, cause, ns)| CauseTime {
            kind,
            cause: cause.to_owned(),
            location: None,
            ns,
        });
        let ledger = Ledger {
            host_kinds: kinds(&times),
            host: rows(times.into()).shown,
            ..Ledger::default()
        };
        let causes: Vec<_> = ledger.host.iter().map(|row| &*row.cause).collect();
        assert_eq!(causes, ["code", "other"]);
        assert!((ledger.host_share(LedgerKind::Wait) - 0.0011).abs() < 1e-12);
        assert!((ledger.host_share(LedgerKind::Gc)).abs() < 1e-12);
    }

    #[test]
    fn a_folded_cause_gets_its_row_back_if_another_ledger_shows_it() {
        let causes = |longest: usize| {
            let times = (0..50).map(|number| CauseTime {
                kind: LedgerKind::Call,
                cause: format!("call {number}"),
                location: None,
                ns: if number == longest {
                    2000
                } else {
                    1000 - number as u64
                },
            });
            rows(times.collect())
        };
        let (base, other) = (causes(0), causes(49));
        let has = |rows: &[LedgerRow], cause: &str| rows.iter().any(|row| row.cause == cause);
        assert!(!has(&base.shown, "call 49") && has(&base.folded, "call 49"));
        assert!(has(&other.shown, "call 49"));
        let wanted = shown_causes([&base.shown[..], &other.shown[..]]);
        let unfolded = unfold(&base.shown, &base.folded, &wanted);
        let row = unfolded.iter().find(|row| row.cause == "call 49").unwrap();
        assert_eq!(row.ns, 951);
        assert!(!has(&unfolded, "call 45"), "neither ledger shows it");
        let sum = |rows: &[LedgerRow]| rows.iter().map(|row| row.ns).sum::<u64>();
        assert_eq!(sum(&unfolded), sum(&base.shown));
    }
}
