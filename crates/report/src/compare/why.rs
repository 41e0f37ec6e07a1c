//! Why the time of an iteration differs: one list of causes, whose times are disjoint and add up, with a rest, to the
//! change that was measured.
//!
//! An iteration's time is divided as the GPU spent it: by what it ran, and by what the host did while it had nothing to
//! do. Without a measurement of the GPU, it is divided as the host spent it. Both are divisions of the same time, so
//! their rows are never added.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::MIN_DIFFERENCE;
use crate::collectives::names::find_row;
use crate::events::kernel_name;
use crate::layers::starred;
use crate::ledger::difference::cause;
use crate::ledger::{LedgerKind, LedgerRow};
use crate::process::Process;

/// Prefix of the causes of the GPU's work in a ledger.
const BUSY: &str = "busy: ";

/// The row of work that is too small for a row, and the other rows of several causes.
const OTHER_WORK: &str = "other work";
const OTHER: &str = "other";
const COLLECTED: [&str; 3] = [OTHER_WORK, OTHER, "unknown"];

/// The row of launches.
const LAUNCHING: &str = cause::LAUNCHING;

/// A row that only one of the runs has, and that is smaller than this part of an iteration, may be in the row of small
/// ones in the other run.
const MIN_LONELY_SHARE: f64 = 0.003;

/// Maximum ratio of the kernels' times to the time in which any ran. Above, kernels overlap, and layers do not divide
/// that time.
const MAX_OVERLAP: f64 = 1.02;

/// Minimum share of the change of all kernels in one layer, to divide their time by layer.
const MIN_LAYER_SHARE: f64 = 0.5;

/// Minimum ratio of the change of alike layers to that of any kernel to divide time by layer; its inverse is that of one
/// layer.
const CLEARLY_MORE: f64 = 1.25;

/// Minimum share of the difference of alike layers in one of them for this layer to get a row of its own.
const MIN_SINGLE_SHARE: f64 = 0.5;

/// The causes of a change of the time of an iteration.
#[derive(Debug, Default, Serialize)]
pub struct RankedCauses {
    /// The time that is divided, the GPU's or the host's; `None` if neither the GPU's time nor the host's was recorded in both runs.
    pub view: Option<CauseView>,
    /// Mean time from the start of an iteration to that of the next, in nanoseconds.
    #[serde(rename = "base_ns")]
    pub base: f64,
    #[serde(rename = "other_ns")]
    pub other: f64,
    /// The largest difference first.
    pub causes: Vec<RankedCause>,
    /// The part of the change that no cause has, in nanoseconds.
    #[serde(rename = "rest_ns")]
    pub rest: f64,
}

/// A division of an iteration's time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CauseView {
    /// By the GPU's work, and by the activity of the host while it had none.
    Gpu,
    /// By the activity of the iteration's thread.
    Host,
}

/// A part of an iteration that takes more or less time.
#[derive(Debug, Serialize)]
pub struct RankedCause {
    pub kind: Kind,
    pub name: String,
    /// The kind of the difference, such as `slower` or `new`.
    pub what: &'static str,
    /// Mean time in an iteration, in nanoseconds.
    #[serde(rename = "base_ns")]
    pub base: f64,
    #[serde(rename = "other_ns")]
    pub other: f64,
    /// The difference, in nanoseconds.
    #[serde(rename = "ns")]
    pub more: f64,
    /// Mean number of kernels or launches in an iteration, in both runs; `None` if it is not counted.
    pub counts: Option<[f64; 2]>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Kernel,
    /// A kernel that communicates with other ranks. Its time contains waits for them.
    Collective,
    /// The kernels of a layer, without those of layers inside it.
    Layer,
    /// A copy, or memory that is set.
    Copy,
    /// Other work of the GPU.
    Gpu,
    /// The GPU had nothing to do during this activity of the host.
    Idle,
    /// An activity of the host.
    Host,
}

impl fmt::Display for RankedCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Kernel => "kernel ",
            Kind::Collective => "collective ",
            Kind::Layer => "layer ",
            Kind::Copy | Kind::Gpu | Kind::Host => "",
            Kind::Idle => "GPU idle: ",
        };
        write!(f, "{}: {kind}{}", self.what, self.name)
    }
}

/// Times and numbers in an iteration of one run.
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

/// The parts of an iteration, by kind and a name that both runs have.
type PartAmounts = BTreeMap<(Kind, String), (String, [Amount; 2])>;

/// A process of each run of one side, and the mean time from the start of one iteration to that of the next.
pub type WeightedRuns<'a> = [(&'a Process, f64)];

impl RankedCauses {
    /// Finds the causes. Each run is one process; of several runs, times are means.
    pub fn find(sides: [&WeightedRuns<'_>; 2]) -> Self {
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
            parts.retain(|(kind, _), _| !matches!(kind, Kind::Kernel | Kind::Collective));
            parts.extend(layers);
        }
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

/// Kernels of one side by the name that both sides have, each with whether it is a collective.
type Kernels = BTreeMap<String, (Amount, bool)>;

/// Returns the kernels of one side, in an iteration.
fn kernels(runs: &WeightedRuns<'_>) -> Kernels {
    let mut all = Kernels::new();
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

/// Returns the parts of the ledgers of both sides.
fn parts(view: CauseView, sides: [&WeightedRuns<'_>; 2]) -> PartAmounts {
    let mut parts = PartAmounts::new();
    let kernels = sides.map(kernels);
    for (side, runs) in sides.into_iter().enumerate() {
        for (process, _) in runs {
            let ledger = &process.ledger;
            let (rows, iterations) = match view {
                CauseView::Gpu => (&ledger.gpu, ledger.gpu_iterations),
                CauseView::Host => (&ledger.host, ledger.host_iterations),
            };
            for row in rows {
                let (kind, name) = kind_of(view, row);
                let key = kernel_name::comparable(name);
                let known = kernels.iter().find_map(|side| side.get(&key));
                let key = match (kind, known) {
                    (Kind::Gpu, Some((_, true))) => (Kind::Collective, key),
                    (Kind::Gpu, Some((_, false))) => (Kind::Kernel, key),
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

/// Sets the numbers of kernels. A kernel that is too small for a row of one side's ledger gets its time there from the
/// row of other work.
fn count(kernels: &[Kernels; 2], parts: &mut PartAmounts) {
    let mut small = [0.0; 2];
    for ((kind, key), (_, sides)) in parts.iter_mut() {
        if !matches!(kind, Kind::Kernel | Kind::Collective) {
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
    let other = parts.entry((Kind::Gpu, OTHER_WORK.to_owned()));
    let (_, sides) = other.or_insert_with(|| (OTHER_WORK.to_owned(), Default::default()));
    for (amount, small) in sides.iter_mut().zip(small) {
        amount.ns = (amount.ns - small).max(0.0);
    }
}

/// Returns the kind of a ledger's row, and its name. Kernels are not distinguished from other work here.
fn kind_of(view: CauseView, row: &LedgerRow) -> (Kind, &str) {
    let cause = &*row.cause;
    let kind = match (view, row.kind) {
        (CauseView::Host, _) => return (Kind::Host, cause),
        (CauseView::Gpu, LedgerKind::Idle) => Kind::Idle,
        (CauseView::Gpu, _) => Kind::Gpu,
    };
    let name = cause.strip_prefix(crate::ledger::IDLE);
    let name = name.or_else(|| cause.strip_prefix(BUSY)).unwrap_or(cause);
    let is_copy = name == "memset" || name.starts_with("copy ");
    match kind {
        Kind::Gpu if is_copy => (Kind::Copy, name),
        kind => (kind, name),
    }
}

/// Adds small rows that only one run has to the row of small ones.
fn fold_small(parts: &mut PartAmounts, periods: [f64; 2]) {
    let is_lonely = |[base, other]: &[Amount; 2]| {
        let share = (base.ns / periods[0]).max(other.ns / periods[1]);
        (base.ns == 0.0 || other.ns == 0.0) && share < MIN_LONELY_SHARE
    };
    let mut small: BTreeMap<Kind, [Amount; 2]> = BTreeMap::new();
    parts.retain(|(kind, _), (_, sides)| {
        let is_small = is_lonely(sides);
        if is_small {
            let kind = match kind {
                Kind::Kernel | Kind::Collective | Kind::Copy => Kind::Gpu,
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
            Kind::Gpu => OTHER_WORK,
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

/// Returns the time of kernels by layer, if that says more than by kernel: one of several alike layers has about as much of
/// the change as any kernel, or alike layers together have clearly more. `None` if not, if that kernel runs more or less
/// often, or if layers do not divide that time.
fn by_layer(sides: [&WeightedRuns<'_>; 2], kernels: &PartAmounts) -> Option<PartAmounts> {
    let is_kernel = |kind: Kind| matches!(kind, Kind::Kernel | Kind::Collective);
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
        ((Kind::Layer, name.clone()), (name, amounts))
    });
    Some(rows.collect())
}

/// Returns the parts that differ, with the words for what differs, the largest difference first.
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

/// Returns the word for what differs. `is_collected`: it is a row of several causes, which is neither new nor gone.
fn what(kind: Kind, is_collected: bool, base: Amount, other: Amount) -> &'static str {
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
            (Kind::Kernel | Kind::Collective | Kind::Layer, true) => "slower",
            (Kind::Kernel | Kind::Collective | Kind::Layer, false) => "faster",
            (_, true) => "longer",
            (_, false) => "shorter",
        },
    }
}

/// Joins a kernel that is gone with a new one of the same family that runs as often, if there is one of each.
fn join_renamed(causes: &mut Vec<RankedCause>) {
    let mut families: BTreeMap<String, [Vec<usize>; 2]> = BTreeMap::new();
    for (place, cause) in causes.iter().enumerate() {
        let side = match cause.what {
            "gone" => 0,
            "new" => 1,
            _ => continue,
        };
        if let Some(counts) = cause.counts {
            // nvjet_tst_192x192_… and nvjet_tst_192x208_… are kernels of one family, as are instances of a template.
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
