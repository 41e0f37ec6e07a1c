//! Explains why the iteration time differs between two runs: a list of causes whose times do not
//! overlap. The differences of the causes and an unexplained rest add up to the measured change.
//!
//! If GPU time was measured in both runs, the time in which the GPU worked is split into kernels and copies, and the
//! time in which the GPU was idle is split into activities of the host. Otherwise, the whole iteration is split into
//! activities of the host. A comparison uses only one of these two divisions, because each covers the whole iteration.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::MIN_DIFFERENCE;
use crate::collectives::names::find_row;
use crate::events::kernel_name;
use crate::layers::starred;
use crate::ledger::difference::{WAITING, cause};
use crate::ledger::{LedgerKind, LedgerRow, shown_causes, unfold};
use crate::process::Process;

/// Prefix of ledger rows for GPU work. A ledger divides the time of iterations by cause, one row
/// for each cause.
const BUSY: &str = "busy: ";

/// Name of the ledger row for kernels and copies that are too small for rows of their own.
const OTHER_WORK: &str = "other work";
/// Name of the ledger row that collects small causes other than GPU work.
const OTHER: &str = "other";
/// Names of the ledger rows that each collect several small or unknown causes.
const COLLECTED: [&str; 6] = [
    OTHER_WORK,
    OTHER,
    "unknown",
    "Python: other functions",
    "native: other functions",
    "asleep or blocked elsewhere",
];

/// Name of the ledger row for the time that the host spends in launches.
const LAUNCHING: &str = cause::LAUNCHING;

/// Suffix of the name of a kernel whose time includes idle time of the GPU before and after the kernel (see
/// [`move_gaps`]).
const WITH_GAPS: &str = ", with the idle time next to it";

/// Minimum share of an iteration for a ledger row (a cause and its time) that only one run has. A smaller row is added
/// to the row `other` or `other work`, because in the other run the same activity may be part of that row.
const MIN_LONELY_SHARE: f64 = 0.003;

/// Maximum ratio of the sum of the layers' times to the time in which any kernel ran. A larger
/// ratio means that kernels overlap, so the layers' times do not add up to the total.
const MAX_OVERLAP: f64 = 1.02;

/// Minimum share of the change of the total kernel time, as a fraction, that one layer or one group of layers must
/// explain. Otherwise, the kernel time is not divided by layer. The names of a group's layers differ only in numbers.
const MIN_LAYER_SHARE: f64 = 0.5;

/// Minimum ratio of two changes, for the kernel time to be divided by layer: the change of the time of a group of
/// layers, and the largest change of the time of a kernel. The names of a group's layers differ only in numbers. For a
/// single layer that explains most of its group's change, the inverse of this ratio is enough.
const CLEARLY_MORE: f64 = 1.25;

/// Minimum share of the change of a group of layers, as a fraction, that a single layer of the group must explain to
/// get its own row. The names of a group's layers differ only in numbers.
const MIN_SINGLE_SHARE: f64 = 0.5;

/// The causes of a change of the iteration time between two runs, with the unexplained rest.
#[derive(Debug, Default, Serialize)]
pub(crate) struct RankedCauses {
    /// The way in which an iteration is divided; `None` if neither the GPU's nor the host's time
    /// was recorded in both runs.
    pub view: Option<CauseView>,
    /// The base's mean time from one iteration's start to the next, in nanoseconds.
    #[serde(rename = "base_ns")]
    pub base: f64,
    #[serde(rename = "other_ns")]
    pub other: f64,
    /// The causes of the change. The cause with the largest difference is the first.
    pub causes: Vec<RankedCause>,
    /// The part of the change that no cause explains, in nanoseconds.
    #[serde(rename = "rest_ns")]
    pub rest: f64,
}

/// The way in which an iteration's time is divided into causes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CauseView {
    /// By the GPU's work and, while the GPU was idle, by the host's activity.
    Gpu,
    /// By the activity of the thread that runs the iterations.
    Host,
}

/// A cause: a part of an iteration whose time may differ between the runs.
#[derive(Debug, Serialize)]
pub(super) struct RankedCause {
    pub kind: RankedCauseKind,
    pub name: String,
    /// A word for the kind of difference, such as `slower` or `new`.
    pub what: &'static str,
    /// The base's mean time of this part in an iteration, in nanoseconds.
    #[serde(rename = "base_ns")]
    pub base: f64,
    #[serde(rename = "other_ns")]
    pub other: f64,
    /// The other run's time minus the base's time, in nanoseconds per iteration.
    #[serde(rename = "ns")]
    pub more: f64,
    /// Mean numbers of this part's kernels or launches in an iteration, in base and other; `None`
    /// if they are not counted.
    pub counts: Option<[f64; 2]>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RankedCauseKind {
    Kernel,
    /// A kernel that communicates with other ranks. Its time includes the waits for these ranks.
    Collective,
    /// The kernels of a layer, except the kernels of layers inside this layer.
    Layer,
    /// A memory copy or a memset.
    Copy,
    /// GPU work that is not counted as a kernel, collective, layer or copy, such as the ledger row
    /// for small pieces of work.
    Gpu,
    /// Time in which the GPU was idle during an activity of the host.
    Idle,
    /// An activity of the host, for comparisons that divide an iteration by the host's time
    /// (`CauseView::Host`).
    Host,
}

impl fmt::Display for RankedCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            RankedCauseKind::Kernel => "kernel ",
            RankedCauseKind::Collective => "collective ",
            RankedCauseKind::Layer => "layer ",
            RankedCauseKind::Copy | RankedCauseKind::Gpu | RankedCauseKind::Host => "",
            RankedCauseKind::Idle => "GPU idle: ",
        };
        write!(f, "{}: {kind}{}", self.what, self.name)
    }
}

/// Mean time in nanoseconds and mean number of a part (such as a kernel) in one iteration.
#[derive(Clone, Copy, Default, Debug)]
struct Amount {
    ns: f64,
    count: f64,
}

impl Amount {
    fn add(&mut self, more: Self) {
        self.ns += more.ns;
        self.count += more.count;
    }
}

/// The parts of an iteration. The key is a part's kind and a form of its name that is the same in
/// both runs. The value is the name to display, and the amounts in base and other.
type PartAmounts = BTreeMap<(RankedCauseKind, String), (String, [Amount; 2])>;

/// The runs of one side: the slowest rank's process of each run, with its mean time from one
/// iteration's start to the next, in nanoseconds.
pub(crate) type WeightedRuns<'a> = [(&'a Process, f64)];

impl RankedCauses {
    /// Finds the causes of the change between two sides. If a side has several runs, its times are
    /// means over these runs.
    pub(crate) fn find(sides: [&WeightedRuns<'_>; 2]) -> Self {
        let [base, other] = sides.map(|runs| mean(runs.iter().map(|(_, period)| *period)));
        let mut why = Self {
            base,
            other,
            ..Self::default()
        };
        let all = || sides.into_iter().flatten().map(|(process, _)| *process);
        if base == 0.0 || other == 0.0 {
            return why;
        }
        let basis = all().next().map(|process| process.ledger.gpu_from);
        let has_gpu = |process: &Process| {
            !process.ledger.gpu.is_empty() && Some(process.ledger.gpu_from) == basis
        };
        let has_host = |process: &Process| process.ledger.host_iterations > 0;
        why.view = match () {
            () if all().all(has_gpu) => Some(CauseView::Gpu),
            () if all().all(has_host) => Some(CauseView::Host),
            () => None,
        };
        let Some(view) = why.view else {
            why.rest = other - base;
            return why;
        };
        let mut parts = parts(view, sides);
        fold_small(&mut parts, [base, other]);
        if let Some(layers) = by_layer(sides, &parts) {
            parts.retain(|(kind, _), _| {
                !matches!(kind, RankedCauseKind::Kernel | RankedCauseKind::Collective)
            });
            parts.extend(layers);
        }
        move_gaps(&mut parts);
        why.causes = causes(parts);
        let explained: f64 = why.causes.iter().map(|cause| cause.more).sum();
        why.rest = other - base - explained;
        why
    }
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    values.sum::<f64>() / count
}

/// Kernels of one side, by a form of the name that is the same in both runs. The `bool` is true for
/// a collective.
type KernelAmounts = BTreeMap<String, (Amount, bool)>;

/// Returns each kernel's mean time and mean number in an iteration, for one side.
fn kernels(runs: &WeightedRuns<'_>) -> KernelAmounts {
    let mut all = KernelAmounts::new();
    for (process, _) in runs
        .iter()
        .filter(|(process, _)| process.kernels.has_times())
    {
        let steps = process.kernels.steps().max(1) as f64 * runs.len() as f64;
        for kernel in &process.kernels.totals {
            let is_collective = find_row(&kernel_name::path(&kernel.name)).is_some();
            let name = kernel_name::comparable(&kernel.short_name);
            let of_name = all.entry(name).or_default();
            of_name.0.ns += kernel.total as f64 / steps;
            of_name.0.count += kernel.count as f64 / steps;
            of_name.1 |= is_collective;
        }
    }
    all
}

/// Returns the host's list or the GPU's list of a process's ledger: its rows, the causes without a row of their own,
/// and the number of iterations that the list is based on.
fn list(view: CauseView, process: &Process) -> (&[LedgerRow], &[LedgerRow], u64) {
    let ledger = &process.ledger;
    match view {
        CauseView::Gpu => (&ledger.gpu, &ledger.folded.gpu, ledger.gpu_iterations),
        CauseView::Host => (&ledger.host, &ledger.folded.host, ledger.host_iterations),
    }
}

/// Returns the rows of both sides' ledgers (times of iterations by cause), as means over each side's runs. A cause with
/// a row in one of the ledgers is looked up in the others, in which it may be too small for a row of its own.
fn parts(view: CauseView, sides: [&WeightedRuns<'_>; 2]) -> PartAmounts {
    let mut parts = PartAmounts::new();
    let kernels = sides.map(kernels);
    let all = sides.into_iter().flatten();
    let wanted = shown_causes(all.map(|(process, _)| list(view, process).0));
    for (side, runs) in sides.into_iter().enumerate() {
        for (process, _) in runs {
            let (shown, folded, iterations) = list(view, process);
            for row in &unfold(shown, folded, &wanted) {
                let (kind, name) = kind_of(view, row);
                let key = kernel_name::comparable(name);
                let known = kernels.iter().find_map(|side| side.get(&key));
                let key = match (kind, known) {
                    (RankedCauseKind::Gpu, Some((_, true))) => (RankedCauseKind::Collective, key),
                    (RankedCauseKind::Gpu, Some((_, false))) => (RankedCauseKind::Kernel, key),
                    _ => (kind, name.to_owned()),
                };
                let part = parts.entry(key);
                let part = part.or_insert_with(|| (name.to_owned(), Default::default()));
                let amount = &mut part.1[side];
                amount.ns += row.ns as f64 / iterations.max(1) as f64 / runs.len() as f64;
                if name == LAUNCHING {
                    let launches = process.sum.as_ref().map_or(0.0, |sum| sum.launches);
                    amount.count += launches / runs.len() as f64;
                }
            }
        }
    }
    count(&kernels, &mut parts);
    parts
}

/// Sets how often each kernel in `parts` ran in an iteration. A kernel that is too small for a row of its own in one
/// side's ledger is part of the row for other work in that ledger. The kernel's time is moved from that row to the
/// kernel.
fn count(kernels: &[KernelAmounts; 2], parts: &mut PartAmounts) {
    let mut small = [0.0; 2];
    for ((kind, key), (_, sides)) in parts.iter_mut() {
        if !matches!(kind, RankedCauseKind::Kernel | RankedCauseKind::Collective) {
            continue;
        }
        for ((amount, kernels), small) in sides.iter_mut().zip(kernels).zip(&mut small) {
            let Some((known, _)) = kernels.get(key) else {
                continue;
            };
            amount.count = known.count;
            if amount.ns == 0.0 {
                amount.ns = known.ns;
                *small += known.ns;
            }
        }
    }
    let other = parts.entry((RankedCauseKind::Gpu, OTHER_WORK.to_owned()));
    let (_, sides) = other.or_insert_with(|| (OTHER_WORK.to_owned(), Default::default()));
    for (amount, small) in sides.iter_mut().zip(small) {
        amount.ns = (amount.ns - small).max(0.0);
    }
}

/// Returns the kind and the name of a ledger row. For the row of a kernel, the kind is [`RankedCauseKind::Gpu`]. The
/// caller looks up the name to find out if the row is a kernel's.
fn kind_of(view: CauseView, row: &LedgerRow) -> (RankedCauseKind, &str) {
    let cause = &*row.cause;
    let kind = match (view, row.kind) {
        (CauseView::Host, _) => return (RankedCauseKind::Host, cause),
        (CauseView::Gpu, LedgerKind::Idle) => RankedCauseKind::Idle,
        (CauseView::Gpu, _) => RankedCauseKind::Gpu,
    };
    let name = cause.strip_prefix(crate::ledger::IDLE);
    let name = name.or_else(|| cause.strip_prefix(BUSY)).unwrap_or(cause);
    let is_copy = name == "memset" || name.starts_with("copy ");
    match kind {
        RankedCauseKind::Gpu if is_copy => (RankedCauseKind::Copy, name),
        kind => (kind, name),
    }
}

/// Merges the small rows that exist in only one run into the row `other work` or the row `other`. Each of these two
/// rows collects several causes.
fn fold_small(parts: &mut PartAmounts, periods: [f64; 2]) {
    let is_lonely = |[base, other]: &[Amount; 2]| {
        let share = (base.ns / periods[0]).max(other.ns / periods[1]);
        (base.ns == 0.0 || other.ns == 0.0) && share < MIN_LONELY_SHARE
    };
    let mut small: BTreeMap<RankedCauseKind, [Amount; 2]> = BTreeMap::new();
    parts.retain(|(kind, _), (_, sides)| {
        let is_small = is_lonely(sides);
        if is_small {
            let kind = match kind {
                RankedCauseKind::Kernel | RankedCauseKind::Collective | RankedCauseKind::Copy => {
                    RankedCauseKind::Gpu
                }
                kind => *kind,
            };
            let sum = small.entry(kind).or_default();
            sum.iter_mut()
                .zip(*sides)
                .for_each(|(sum, one)| sum.add(one));
        }
        !is_small
    });
    for (kind, sides) in small {
        let name = match kind {
            RankedCauseKind::Gpu => OTHER_WORK,
            _ => OTHER,
        };
        let row = parts.entry((kind, name.to_owned()));
        let row = &mut row
            .or_insert_with(|| (name.to_owned(), Default::default()))
            .1;
        for (sum, one) in row.iter_mut().zip(sides) {
            sum.ns += one.ns;
        }
    }
}

/// Returns the kernels' time divided by layer, if a layer explains the change of the iteration time better than a
/// kernel does. That is so if the time of a group of layers changed clearly more than the time of any kernel, or if
/// the time of a single layer of a group changed about as much as the time of the kernel that changed most. The names
/// of a group's layers differ only in numbers.
///
/// Returns `None` otherwise. It also returns `None` if the kernel whose time changed most ran more or less often in
/// the other run, or if the sum of the layers' times exceeds the kernels' time.
fn by_layer(sides: [&WeightedRuns<'_>; 2], kernels: &PartAmounts) -> Option<PartAmounts> {
    let is_kernel = |kind: RankedCauseKind| {
        matches!(kind, RankedCauseKind::Kernel | RankedCauseKind::Collective)
    };
    let kernels = kernels.iter().filter(|((kind, _), _)| is_kernel(*kind));
    let (mut busy, mut most, mut is_as_often) = ([0.0; 2], 0.0, true);
    for (_, (_, [base, other])) in kernels {
        busy[0] += base.ns;
        busy[1] += other.ns;
        if (other.ns - base.ns).abs() > most {
            most = (other.ns - base.ns).abs();
            is_as_often = (other.count / base.count - 1.0).abs() < MIN_DIFFERENCE;
        }
    }
    if !is_as_often {
        return None;
    }
    let mut single: BTreeMap<&str, [f64; 2]> = BTreeMap::new();
    for (side, runs) in sides.into_iter().enumerate() {
        for (process, _) in runs {
            let layers = process.layers.as_ref()?;
            let steps = layers.all.steps as f64 * runs.len() as f64;
            for layer in &layers.rows {
                single.entry(&layer.name).or_default()[side] += layer.ns as f64 / steps;
            }
        }
    }
    let all = [0, 1].map(|side| single.values().map(|times| times[side]).sum::<f64>());
    if (0..2).any(|side| all[side] > busy[side] * MAX_OVERLAP) {
        return None;
    }
    let outside = single.remove("").unwrap_or_default();
    let mut patterns: BTreeMap<String, Vec<(&str, [f64; 2])>> = BTreeMap::new();
    for (name, times) in single {
        patterns
            .entry(starred(name))
            .or_default()
            .push((name, times));
    }
    let more = |times: &[f64; 2]| times[1] - times[0];
    let mut rows: Vec<(String, [f64; 2])> = Vec::new();
    let (change, mut says_more) = (more(&busy).abs(), false);
    let mut add = |name: String, times: [f64; 2], ratio: f64| {
        let more = more(&times).abs();
        says_more |= more >= ratio * most && more >= change * MIN_LAYER_SHARE;
        rows.push((name, times));
    };
    for (pattern, layers) in patterns {
        let mut sum = [0, 1].map(|side| layers.iter().map(|(_, times)| times[side]).sum::<f64>());
        let largest = layers
            .iter()
            .max_by(|a, b| more(&a.1).abs().total_cmp(&more(&b.1).abs()));
        let mut name = pattern;
        if let Some((single, times)) = largest
            && layers.len() > 1
            && more(times) / more(&sum) >= MIN_SINGLE_SHARE
        {
            sum = [0, 1].map(|side| sum[side] - times[side]);
            add((*single).to_owned(), *times, CLEARLY_MORE.recip());
            name = format!("others of {name}");
        }
        add(name, sum, CLEARLY_MORE);
    }
    if !says_more || change < busy[0] * MIN_DIFFERENCE {
        return None;
    }
    let unknown = [0, 1].map(|side| busy[side] - all[side] + outside[side]);
    rows.push(("(in no layer)".to_owned(), unknown));
    let rows = rows.into_iter().map(|(name, times)| {
        let amounts = times.map(|ns| Amount { ns, count: 0.0 });
        ((RankedCauseKind::Layer, name.clone()), (name, amounts))
    });
    Some(rows.collect())
}

/// Moves idle time of the GPU from the rows of waits to the kernels that ran more often or less often in the other run
/// than in the base. Between two kernels the GPU is idle for a moment. If the host already waits then, this moment is
/// in the row of the wait, so more kernels also mean more idle time in waits.
///
/// The function moves the same time for each execution of such a kernel, in base and other. This time is the base's
/// idle time in waits divided by the number of the base's kernels. It is shorter if the additional executions would
/// otherwise explain more than the change of the idle time in waits.
fn move_gaps(parts: &mut PartAmounts) {
    let is_kernel = |kind: RankedCauseKind| {
        matches!(kind, RankedCauseKind::Kernel | RankedCauseKind::Collective)
    };
    let is_wait = |kind, name: &str| kind == RankedCauseKind::Idle && name.starts_with(WAITING);
    let (mut all, mut idle, mut runs) = (0.0, [0.0; 2], [0.0; 2]);
    let mut changed = Vec::new();
    for (key, (name, sides)) in &*parts {
        let [base, other] = *sides;
        if is_kernel(key.0) {
            all += base.count;
            if ["more often", "less often"].contains(&what(key.0, false, base, other)) {
                changed.push(key.clone());
                runs[0] += base.count;
                runs[1] += other.count;
            }
        } else if is_wait(key.0, name) {
            idle[0] += base.ns;
            idle[1] += other.ns;
        }
    }
    let (more, change) = (runs[1] - runs[0], idle[1] - idle[0]);
    if all == 0.0 || idle.contains(&0.0) || more * change <= 0.0 {
        return;
    }
    let each = (idle[0] / all).min(change / more);
    for key in changed {
        if let Some((name, sides)) = parts.get_mut(&key) {
            for amount in sides {
                amount.ns += each * amount.count;
            }
            name.push_str(WITH_GAPS);
        }
    }
    for ((kind, _), (name, sides)) in parts {
        if is_wait(*kind, name) {
            for ((amount, idle), runs) in sides.iter_mut().zip(idle).zip(runs) {
                amount.ns = (amount.ns - each * runs * amount.ns / idle).max(0.0);
            }
        }
    }
}

/// Returns the parts that took time in at least one of the runs, each with a word for the kind of difference. The
/// largest difference comes first.
fn causes(parts: PartAmounts) -> Vec<RankedCause> {
    let all = parts.into_iter().map(|((kind, _), (name, [base, other]))| {
        let is_counted = base.count > 0.0 || other.count > 0.0;
        let is_collected = COLLECTED.contains(&&*name);
        RankedCause {
            kind,
            name,
            what: what(kind, is_collected, base, other),
            base: base.ns,
            other: other.ns,
            more: other.ns - base.ns,
            counts: is_counted.then_some([base.count, other.count]),
        }
    });
    let mut all: Vec<_> = all.collect();
    join_renamed(&mut all);
    all.retain(|cause| cause.base > 0.0 || cause.other > 0.0);
    all.sort_by(|a, b| b.more.abs().total_cmp(&a.more.abs()));
    all
}

/// Returns a word for the kind of difference, such as `slower` or `new`. `is_collected` is true for
/// a row that collects several causes; such a row is never called new or gone.
fn what(kind: RankedCauseKind, is_collected: bool, base: Amount, other: Amount) -> &'static str {
    let differs = |base: f64, other: f64| (other / base - 1.0).abs() >= MIN_DIFFERENCE;
    let is_counted = base.count > 0.0 && other.count > 0.0;
    match () {
        () if base.ns == 0.0 && !is_collected => "new",
        () if other.ns == 0.0 && !is_collected => "gone",
        () if is_counted && differs(base.count, other.count) => match other.count > base.count {
            true => "more often",
            false => "less often",
        },
        () if !differs(base.ns, other.ns) => "the same",
        () => match (kind, other.ns > base.ns) {
            (
                RankedCauseKind::Kernel | RankedCauseKind::Collective | RankedCauseKind::Layer,
                true,
            ) => "slower",
            (
                RankedCauseKind::Kernel | RankedCauseKind::Collective | RankedCauseKind::Layer,
                false,
            ) => "faster",
            (_, true) => "longer",
            (_, false) => "shorter",
        },
    }
}

/// Joins a kernel that only the base has and a kernel that only the other run has into one renamed kernel, if both
/// belong to the same family of names and run equally often. A family is skipped if one of the runs has several such
/// kernels of the family.
fn join_renamed(causes: &mut Vec<RankedCause>) {
    let mut families: BTreeMap<String, [Vec<usize>; 2]> = BTreeMap::new();
    for (place, cause) in causes.iter().enumerate() {
        let side = match cause.what {
            "gone" => 0,
            "new" => 1,
            _ => continue,
        };
        if let Some(counts) = cause.counts {
            // The family is the part of the name before the first digit or `<`. So
            // nvjet_tst_192x192_… and nvjet_tst_192x208_… are one family, and so are instances of
            // one template.
            let end = cause.name.find(|c: char| c == '<' || c.is_ascii_digit());
            let family = &cause.name[..end.unwrap_or(cause.name.len())];
            let key = format!("{family} {:.2}", counts[side]);
            families.entry(key).or_default()[side].push(place);
        }
    }
    let mut joined = Vec::new();
    for sides in families.into_values() {
        if let [[gone], [new]] = sides.each_ref().map(Vec::as_slice) {
            let (name, other) = (causes[*new].name.clone(), causes[*new].other);
            let count = causes[*new].counts.map_or(0.0, |counts| counts[1]);
            let cause = &mut causes[*gone];
            cause.name = format!("{} → {name}", cause.name);
            (cause.what, cause.other, cause.more) = ("renamed", other, other - cause.base);
            cause.counts = cause.counts.map(|counts| [counts[0], count]);
            joined.push(*new);
        }
    }
    joined.sort_unstable();
    for place in joined.into_iter().rev() {
        causes.remove(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(kind: RankedCauseKind, name: &str, base: (f64, f64), other: (f64, f64)) -> PartAmounts {
        let amounts = [base, other].map(|(ns, count)| Amount { ns, count });
        let key = (kind, name.to_owned());
        PartAmounts::from([(key, (name.to_owned(), amounts))])
    }

    /// Returns the parts of a loop. In the base, an iteration runs 32 long kernels and one small kernel. In the other
    /// run, an iteration runs 32 long kernels and `small` small kernels, and the GPU is idle for `idle` nanoseconds in
    /// the wait.
    fn with_small_kernels(small: f64, idle: f64) -> PartAmounts {
        let wait = "waiting for the GPU: cudaStreamSynchronize";
        let mut parts = part(
            RankedCauseKind::Kernel,
            "gemm",
            (960e3, 32.0),
            (960e3, 32.0),
        );
        parts.extend(part(
            RankedCauseKind::Kernel,
            "sample",
            (900.0, 1.0),
            (small * 900.0, small),
        ));
        parts.extend(part(RankedCauseKind::Idle, wait, (33e3, 0.0), (idle, 0.0)));
        parts
    }

    #[test]
    fn idle_time_between_kernels_counts_for_the_kernels_that_run_more_often() {
        let mut parts = with_small_kernels(19.0, 52e3);
        move_gaps(&mut parts);
        let causes = causes(parts);
        let all: Vec<_> = causes
            .iter()
            .map(|cause| (cause.to_string(), cause.more.round()))
            .collect();
        let sample = "more often: kernel sample, with the idle time next to it".to_owned();
        assert_eq!(all[0], (sample, 18.0 * 900.0 + 18e3));
        let sum: f64 = causes.iter().map(|cause| cause.more).sum();
        assert_eq!(sum.round(), 18.0 * 900.0 + 19e3, "nothing is lost");
    }

    #[test]
    fn kernels_that_run_less_often_take_their_idle_time_with_them() {
        let mut parts = with_small_kernels(19.0, 52e3);
        for (_, sides) in parts.values_mut() {
            sides.reverse();
        }
        move_gaps(&mut parts);
        let causes = causes(parts);
        assert_eq!(causes[0].what, "less often");
        assert!(causes[0].more < -18.0 * 900.0 - 15e3, "{:?}", causes[0]);
        assert!(
            causes
                .iter()
                .all(|cause| cause.base >= 0.0 && cause.other >= 0.0)
        );
        let sum: f64 = causes.iter().map(|cause| cause.more).sum();
        assert_eq!(sum.round(), -18.0 * 900.0 - 19e3, "nothing is lost");
    }

    #[test]
    fn idle_time_that_kernels_do_not_explain_stays_where_it_is() {
        // First case: both runs have the same kernels. Second case: the other run has more kernels, but less idle time.
        for (small, idle) in [(1.0, 60e3), (19.0, 20e3)] {
            let mut parts = with_small_kernels(small, idle);
            move_gaps(&mut parts);
            let moved = parts.values().any(|(name, _)| name.ends_with(WITH_GAPS));
            assert!(!moved, "{small} {idle}");
        }
        // The other run has fewer kernels, and no idle time in waits at all.
        let mut parts = with_small_kernels(0.5, 0.0);
        move_gaps(&mut parts);
        let causes_of = causes(parts);
        let idle = causes_of
            .iter()
            .find(|cause| cause.kind == RankedCauseKind::Idle);
        assert_eq!(idle.unwrap().what, "gone");
        assert!(
            causes_of
                .iter()
                .all(|cause| cause.more.is_finite() && cause.other >= 0.0)
        );
        // A pause of 1 ms is far more than the gaps next to 18 kernels.
        let mut parts = with_small_kernels(19.0, 1033e3);
        move_gaps(&mut parts);
        let first = &causes(parts)[0];
        assert_eq!(
            (first.kind, first.more.round()),
            (RankedCauseKind::Idle, 982e3)
        );
    }
}
