//! Adds up recorded kernels by the scope (layer) in which they were launched.

use std::collections::{BTreeMap, HashMap};

use tllmprof_record::{Event, Strings, What};

use super::gaps::Gaps;
use super::graphs::GraphTally;
use super::names;
use super::raw::RawLayers;
use super::scopes::Scopes;
use super::{Layer, LayerTotals, Layers, MAX_TREE_ROWS, Unknown, UnknownScope};
use crate::events::launches::Launches;
use crate::events::spans::{Span, Spans};
use crate::events::work::{GpuWork, GpuWorkKind};

/// Maximum number of kernels outside CUDA graphs that are stored until their launching calls are known. The scope of
/// further kernels counts as unknown.
const MAX_KERNELS: usize = 1 << 20;

/// Maximum number of entries in all lists [`KernelSum::by_step`] together. An entry is the time of one scope in one
/// iteration. If the maximum is reached, the report has no times per iteration for any layer.
const MAX_STEP_TIMES: usize = 1 << 20;

/// A kernel that is not known to belong to a CUDA graph. `place` is the index of the iteration in which it began;
/// `None` outside iterations. `start` and `ns` (the duration) are in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct KernelOutsideGraph {
    correlation: u32,
    start: u64,
    ns: u64,
    place: Option<u32>,
}

impl KernelOutsideGraph {
    const fn span(&self) -> Span {
        Span {
            start: self.start,
            end: self.start.saturating_add(self.ns),
        }
    }
}

/// The latest kernel of a thread, which is not counted yet. If the thread's next event about kernels names a graph
/// node, the kernel belongs to a CUDA graph; if that event is another kernel, it does not.
#[derive(Clone, Copy, Debug)]
struct LatestKernel {
    device: u8,
    stream: u16,
    ticks: u64,
    alone: KernelOutsideGraph,
    counts: bool,
}

/// A kernel's scope. For a kernel outside CUDA graphs, the scope is found later; until then, the kernel's index in
/// [`LayerTally::alone`] is stored instead.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum KernelRef {
    In(u32),
    NoGraph(u32),
}

/// Totals of the kernels that have the same scope or the same layer name.
#[derive(Default, Debug)]
struct KernelSum {
    kernels: u64,
    ns: u64,
    by_step: Vec<(u32, u64)>,
}

impl KernelSum {
    fn add(&mut self, other: Self) {
        self.kernels += other.kernels;
        self.ns = self.ns.saturating_add(other.ns);
        self.by_step.extend(other.by_step);
    }
}

/// Adds up recorded kernels by scope (layer) during a pass over a record.
#[derive(Debug)]
pub(crate) struct LayerTally {
    raw: RawLayers,
    latest: HashMap<u32, LatestKernel>,
    by_scope: HashMap<Result<u32, UnknownScope>, KernelSum>,
    alone: Vec<KernelOutsideGraph>,
    gaps: Gaps<KernelRef>,
    graphs: GraphTally,
    /// Number of entries that may still be added to the lists `by_step` of all scopes before the limit
    /// [`MAX_STEP_TIMES`] is reached.
    room: usize,
    pub left_out: u64,
}

impl LayerTally {
    /// Returns a tally without kernels. `iterations` are the time spans of the iterations, in nanoseconds and sorted by
    /// their starts. `has_graphs` is true if the record has the numbers of the program's executable graphs.
    pub(crate) fn new(raw: RawLayers, iterations: Spans, has_graphs: bool) -> Self {
        Self {
            left_out: raw.left_out,
            raw,
            latest: HashMap::new(),
            by_scope: HashMap::new(),
            alone: Vec::new(),
            gaps: Gaps::new(iterations),
            graphs: GraphTally::new(has_graphs),
            room: MAX_STEP_TIMES,
        }
    }

    /// Adds a piece of GPU work that a thread recorded, as it was launched and as the analyses count it
    /// ([`GpuWork::as_counted`]). `place` is the index of the iteration in which the work began: `Some(None)` outside
    /// iterations, `None` if the report's figures leave out that iteration.
    pub(crate) fn add_work(
        &mut self,
        thread: u32,
        work: &GpuWork,
        counted: &GpuWork,
        place: Option<Option<usize>>,
    ) {
        let is_kernel = matches!(counted.what, GpuWorkKind::Kernel { .. });
        if !is_kernel && place.is_some() {
            self.gaps.add(work.device, work.span(), None);
        }
        let GpuWorkKind::Kernel { correlation, .. } = work.what else {
            return;
        };
        let kernel = LatestKernel {
            device: work.device,
            stream: work.stream,
            ticks: work.ticks,
            alone: KernelOutsideGraph {
                correlation,
                start: work.start,
                ns: work.ns,
                place: place.flatten().map(|place| place as u32),
            },
            counts: place.is_some() && is_kernel,
        };
        let before = self.latest.insert(thread, kernel);
        self.add_outside_graph(before);
    }

    /// If the event names the graph node of the thread's latest kernel, adds this kernel to the scope in which the node
    /// was captured. Ignores other events.
    pub(crate) fn add(&mut self, thread: u32, event: &Event) {
        let What::KernelNode {
            device,
            stream,
            exec,
            node,
        } = event.what
        else {
            return;
        };
        let is_its = |kernel: &&LatestKernel| {
            (kernel.ticks, kernel.device, kernel.stream) == (event.start, device, stream)
        };
        let Some(kernel) = self.latest.get(&thread).filter(is_its).copied() else {
            return;
        };
        self.latest.remove(&thread);
        let graph = self.raw.captured(exec, event.start);
        let (correlation, span) = (kernel.alone.correlation, kernel.alone.span());
        self.graphs.add(exec, graph, correlation, span);
        if kernel.counts {
            let scope = self.raw.of_node(exec, node, event.start);
            self.ran(device, &kernel.alone, scope.ok().map(KernelRef::In));
            self.sum(scope, &kernel.alone);
        }
    }

    fn ran(&mut self, device: u8, kernel: &KernelOutsideGraph, what: Option<KernelRef>) {
        self.gaps.add(device, kernel.span(), what);
    }

    fn add_outside_graph(&mut self, kernel: Option<LatestKernel>) {
        let Some(kernel) = kernel.filter(|kernel| kernel.counts) else {
            return;
        };
        if self.alone.len() < MAX_KERNELS {
            let what = KernelRef::NoGraph(self.alone.len() as u32);
            self.ran(kernel.device, &kernel.alone, Some(what));
            self.alone.push(kernel.alone);
        } else {
            self.ran(kernel.device, &kernel.alone, None);
            self.sum(Err(UnknownScope::Call), &kernel.alone);
        }
    }

    fn sum(&mut self, scope: Result<u32, UnknownScope>, kernel: &KernelOutsideGraph) {
        let sum = self.by_scope.entry(scope).or_default();
        sum.kernels += 1;
        sum.ns = sum.ns.saturating_add(kernel.ns);
        let Some(place) = kernel.place.filter(|_| scope.is_ok()) else {
            return;
        };
        match sum.by_step.last_mut() {
            Some((last, ns)) if *last == place => *ns = ns.saturating_add(kernel.ns),
            _ if self.room > 0 => {
                self.room -= 1;
                sum.by_step.push((place, kernel.ns));
            }
            _ => (),
        }
    }

    /// Returns the layers. `steps` has an entry for each iteration: its index among the iterations with recorded
    /// kernels, or `None` if the iteration has no recorded kernels. `ns_of` converts ticks to nanoseconds.
    pub(crate) fn finish(
        mut self,
        launches: Launches,
        strings: &Strings,
        steps: &[Option<u32>],
        ns_of: impl Fn(u64) -> u64,
    ) -> Layers {
        let latest = std::mem::take(&mut self.latest);
        for kernel in latest.into_values() {
            self.add_outside_graph(Some(kernel));
        }
        self.raw.use_ns(ns_of);
        let alone_in = self.scopes_of_calls(&launches);
        let graph_runs = self.graphs.finish(&launches);
        let scopes = Scopes {
            raw: self.raw,
            launches,
        };
        let mut whole = LayerTotals {
            steps: steps.iter().flatten().count().max(1) as u64,
            ..LayerTotals::default()
        };
        for sum in self.by_scope.values() {
            whole.kernels += sum.kernels;
            whole.ns = whole.ns.saturating_add(sum.ns);
        }
        // If the driver did not report when kernels ran, the idle times between kernels are
        // unknown, too.
        let between = self.gaps.finish().filter(|_| whole.ns > 0);
        whole.has_gaps = between.is_some();
        let (by_name, names, unknown) = named(self.by_scope, &scopes, strings, steps, whole);
        let name_of = |ran: KernelRef| match ran {
            KernelRef::In(scope) => names.get(&scope),
            KernelRef::NoGraph(at) => names.get(alone_in.get(at as usize)?.as_ref().ok()?),
        };
        let mut gaps: BTreeMap<&str, u64> = BTreeMap::new();
        for ((before, after), ns) in between.into_iter().flatten() {
            if let (Some(before), Some(after)) = (name_of(before), name_of(after)) {
                let sum = gaps.entry(names::around(before, after)).or_default();
                *sum = sum.saturating_add(ns);
            }
        }
        let sums = by_name.iter();
        let sums = sums.map(|(name, sum)| (name.clone(), (sum.kernels, sum.ns)));
        let sums = sums.collect();
        let mut patterns = names::patterns(&sums, &gaps, names::starred);
        let mut tree = names::largest(names::patterns(&sums, &gaps, str::to_owned), MAX_TREE_ROWS);
        whole.fill_in(&mut patterns);
        whole.fill_in(&mut tree);
        Layers {
            // If the limit on entries was reached, the times per iteration are incomplete for all scopes, so they are
            // left out.
            rows: rows(by_name, whole, self.room > 0),
            patterns,
            tree,
            unknown,
            all: whole,
            graph_runs,
            scopes,
        }
    }

    /// Adds the kernels outside CUDA graphs to the scopes of the calls that launched them. Returns
    /// the scope of each of these kernels.
    fn scopes_of_calls(&mut self, launches: &Launches) -> Vec<Result<u32, UnknownScope>> {
        let alone = std::mem::take(&mut self.alone);
        let scope_of = |kernel: &KernelOutsideGraph| {
            let launch = launches.of_kernel(kernel.correlation, kernel.start);
            let launch = launch.ok_or(UnknownScope::Call)?;
            self.raw.of_call(launch.thread, launch.start)
        };
        let scopes: Vec<_> = alone.iter().map(scope_of).collect();
        for (kernel, scope) in alone.iter().zip(&scopes) {
            self.sum(*scope, kernel);
        }
        scopes
    }
}

/// Totals by layer name, the layer name of each scope, and the kernels whose scope is unknown.
type NamedSums = (
    BTreeMap<String, KernelSum>,
    HashMap<u32, String>,
    Vec<Unknown>,
);

/// Adds up the totals of scopes that have the same layer name. `steps` converts indexes of
/// iterations to their indexes among the iterations with recorded kernels.
fn named(
    by_scope: HashMap<Result<u32, UnknownScope>, KernelSum>,
    scopes: &Scopes,
    strings: &Strings,
    steps: &[Option<u32>],
    whole: LayerTotals,
) -> NamedSums {
    let numbered = |sum: &KernelSum| {
        let step = |(place, ns): &(u32, u64)| Some(((*steps.get(*place as usize)?)?, *ns));
        sum.by_step.iter().filter_map(step).collect()
    };
    let mut by_name: BTreeMap<String, KernelSum> = BTreeMap::new();
    let (mut names, mut unknown) = (HashMap::new(), Vec::new());
    for (scope, mut sum) in by_scope {
        match scope {
            Ok(scope) => {
                sum.by_step = numbered(&sum);
                let name = scopes.name(scope, strings);
                by_name.entry(name.clone()).or_default().add(sum);
                names.insert(scope, name);
            }
            Err(why) => unknown.push(Unknown {
                why,
                kernels: sum.kernels,
                ns: sum.ns,
                share: whole.share(sum.ns),
            }),
        }
    }
    unknown.sort_by_key(|row| (u64::MAX - row.ns, row.why));
    (by_name, names, unknown)
}

/// Returns the layers, the one with the longest time first. `has_steps` is true if the times per
/// iteration are complete.
fn rows(by_name: BTreeMap<String, KernelSum>, whole: LayerTotals, has_steps: bool) -> Vec<Layer> {
    let row = |(name, sum): (String, KernelSum)| Layer {
        name,
        kernels: sum.kernels,
        ns: sum.ns,
        share: whole.share(sum.ns),
        by_step: has_steps.then_some(sum.by_step),
    };
    let mut rows: Vec<_> = by_name.into_iter().map(row).collect();
    rows.sort_by(|a, b| (b.ns, &a.name).cmp(&(a.ns, &b.name)));
    rows
}
