//! The finding `graph-padding`: decode batches run in CUDA graphs that were captured for more tokens than the batches
//! have.

use std::collections::{BTreeMap, BTreeSet};

use super::Judgement;
use super::decode::{Decode, worked};
use super::definition::Rule;
use super::evidence::{Evidence, first_numbers};
use super::streams::MIN_BUSY;
use crate::events::iteration::Iteration;
use crate::kernels::KernelSum;
use crate::numbers::quantiles::Quantiles;
use crate::numbers::units::{Count, Share, Time};

/// Name of the finding `graph-padding`.
pub(crate) const PADDING_RULE: &str = "graph-padding";

/// Minimum number of iterations that ran in a larger graph than they need, for a finding. The same minimum applies to
/// the iterations from which the GPU time of a graph is taken.
const MIN_EACH: usize = 4;
/// Minimum share of the iterations that run in a larger graph than they need, as a fraction, that must take longer on
/// the GPU than a graph of the right size is estimated to take.
const MIN_LONGER: f64 = 0.75;
/// Minimum share of the time that padding must cost for a finding, as a fraction. A smaller difference may come from
/// other reasons, such as the lengths of the requests or the GPU's clock.
const MIN_COST: f64 = 0.02;

pub(super) fn when() -> String {
    format!(
        "at least {MIN_EACH} decode iterations run in a CUDA graph that also runs batches of more tokens (of as many tokens a \
         request); {} of them or more take the GPU longer than graphs of their size would, by the times of this graph and of \
         the next smaller one; and all together by over {} of the time, for as long as the host waits for the GPU or the GPU \
         is busy for {} of the iteration. Not judged where no smaller graph runs, or where several graphs run batches of the \
         same size",
        Share(MIN_LONGER),
        Share(MIN_COST),
        Share(MIN_BUSY),
    )
}

pub(super) fn judge(one: &Evidence<'_>) -> Judgement {
    if one.iterations().all(|iteration| iteration.batch.is_none()) {
        return Judgement::Unknown("what is in batches is not known".to_owned());
    }
    let decodes = one.iterations().filter_map(Decode::new);
    let decodes: Vec<_> = decodes.filter(Decode::is_by_graph).collect();
    if decodes.is_empty() {
        return Judgement::No("no decode iteration launches a graph".to_owned());
    }
    let size = |decode: &Decode<'_>| (decode.tokens_each(), decode.batch.tokens);
    let sizes: BTreeSet<_> = decodes.iter().map(size).collect();
    let tokens_each: BTreeSet<_> = sizes.iter().map(|(each, _)| each).collect();
    if sizes.len() == tokens_each.len() {
        return Judgement::No("graphs ran decode batches of one size only".to_owned());
    }
    let (uses, taken) = match graph_uses(one, &decodes) {
        Ok(found) => found,
        Err(why) => return Judgement::Unknown(why.to_owned()),
    };
    let all = uses.len();
    let padded = padded(uses);
    if padded.len() < MIN_EACH {
        return Judgement::No(format!(
            "{} of {all} decode iterations ran in a larger graph than they need",
            padded.len()
        ));
    }
    let has_cost = |batch: &&PaddedBatch<'_>| batch.fitting.is_some();
    let known: Vec<_> = padded.iter().filter(has_cost).collect();
    if known.len() < MIN_EACH {
        let every: Vec<_> = padded.iter().collect();
        return Judgement::No(format!(
            "{}; what that costs is not known, because no smaller graph can be compared",
            which(&every, all)
        ));
    }
    let others = match padded.len() - known.len() {
        0 => String::new(),
        others => format!(
            "; {} in a larger graph cannot be compared",
            Count(others as u64, "more iteration")
        ),
    };
    judge_cost(one, taken, &known, which(&known, all), &others)
}

/// Returns advice on how to record the data that the finding lacks: as a sentence, and in a few words. The words are
/// empty if recorded layers would not help, because batches are not known or no decode iteration launches a graph.
pub(super) fn to_know(all: &[Evidence<'_>], rule: &Rule) -> (&'static str, &'static str) {
    let lacks_layers = |one: &Evidence<'_>| {
        let mut decodes = one.iterations().filter_map(Decode::new);
        one.process.layers.is_none() && decodes.any(|decode| decode.is_by_graph())
    };
    match all.iter().any(lacks_layers) {
        true => (rule.to_know, rule.needs),
        false => (rule.to_know, ""),
    }
}

/// Judges the cost of iterations in a larger graph. `which` describes these iterations, and `others` those that are
/// left out because their cost is not known.
fn judge_cost(
    one: &Evidence<'_>,
    taken: &KernelSum,
    known: &[&PaddedBatch<'_>],
    which: String,
    others: &str,
) -> Judgement {
    let fitting = || known.iter().filter_map(|batch| batch.fitting);
    // The cost is a sum of differences. Means differ by as much on average, while medians need not.
    let mean =
        |times: &mut dyn Iterator<Item = u64>| times.sum::<u64>() / known.len().max(1) as u64;
    let took = mean(&mut known.iter().map(|batch| batch.used.ns));
    let estimate = mean(&mut fitting().map(|fitting| fitting.ns));
    let compared: BTreeSet<_> = fitting().flat_map(|fitting| fitting.sizes).collect();
    // Add up signed differences: if only positive ones counted, random differences would seem to be a cost.
    let more = known.iter().map(|batch| batch.more()).sum::<i64>().max(0);
    let lost = known.iter().map(|batch| batch.lost()).sum::<i64>().max(0);
    let cost = taken.share(lost as u64);
    let host = match lost < more / 2 {
        true => "; the host, not the GPU, mostly decides how long these iterations take",
        false => "",
    };
    let evidence = format!(
        "{which}; by the graphs of {} tokens they would take {} of GPU time on average, not {}: {} of the time{}{host}{others}",
        name_sizes(&compared),
        Time(estimate),
        Time(took),
        Share(cost),
        one.measured_in(taken.iterations),
    );
    let longer = known.iter().filter(|batch| batch.more() > 0).count();
    let is_longer = longer as f64 >= MIN_LONGER * known.len() as f64;
    match is_longer && cost >= MIN_COST {
        true => Judgement::yes(evidence, cost),
        false => Judgement::No(evidence),
    }
}

/// Returns words that say which iterations ran in a larger graph than they need. `all` is the number of iterations
/// whose graph is known.
fn which(padded: &[&PaddedBatch<'_>], all: usize) -> String {
    let numbers = |of: fn(&PaddedBatch<'_>) -> u32| -> BTreeSet<u64> {
        padded.iter().map(|batch| u64::from(of(batch))).collect()
    };
    let largest = numbers(|batch| batch.largest);
    let graph = match largest.len() {
        1 => "their graph",
        _ => "their graphs",
    };
    format!(
        "{} of {all} decode iterations ({}) ran in a larger graph than they need: they have {} tokens, {graph} ran batches \
         of up to {}",
        padded.len(),
        first_numbers(padded.iter().map(|batch| batch.used.decode.iteration.n)),
        first_numbers(numbers(|batch| batch.used.decode.batch.tokens).into_iter()),
        first_numbers(largest.into_iter()),
    )
}

/// Returns sizes as text: the first ones as [`first_numbers`] returns them or, if there are two, `8 and 16`.
fn name_sizes(sizes: &BTreeSet<u32>) -> String {
    let mut all = sizes.iter();
    match (all.next(), all.next(), all.next()) {
        (Some(one), Some(other), None) => format!("{one} and {other}"),
        _ => first_numbers(sizes.iter().map(|size| u64::from(*size))),
    }
}

/// A decode iteration for which the graph and the kernels of each graph launch are known.
struct GraphUse<'a> {
    decode: Decode<'a>,
    /// The numbers of the captured graphs, sorted, one for each launch. An engine that captures a model in pieces
    /// launches several graphs in an iteration. All of them together then count as one graph.
    graphs: Vec<u32>,
    /// GPU time of the graphs, in nanoseconds.
    ns: u64,
}

/// Returns the decode iterations whose graphs are known, and the sums over all iterations with recorded kernels.
/// Returns the reason, in words, if no graph is known.
///
/// A graph belongs to the iteration in which it was launched, even if its kernels run in the next one. It counts only
/// if the iteration's thread launched it. If another thread launches the graphs, an iteration's graph may be launched
/// in the iteration before or after it.
fn graph_uses<'a>(
    one: &Evidence<'a>,
    decodes: &[Decode<'a>],
) -> Result<(Vec<GraphUse<'a>>, &'a KernelSum), &'static str> {
    let process = one.process;
    let Some(taken) = process
        .kernels
        .window
        .as_ref()
        .filter(|sum| sum.has_times())
    else {
        return Err("kernels were not recorded");
    };
    if !process.facts.origin.is_own() {
        return Err("the trace does not show which graph was launched");
    }
    if process.record.dropped > 0 || taken.dropped > 0 {
        return Err("events are missing in the record");
    }
    let Some(layers) = &process.layers else {
        return Err("which graph an iteration ran was not recorded");
    };
    let is_measured = |decode: &&Decode<'_>| {
        decode.iteration.gpu_busy.is_some() && !decode.prepares() && !decode.iteration.cut
    };
    let measured = decodes.iter().filter(is_measured);
    let mut uses: BTreeMap<_, _> = measured
        .map(|decode| {
            let graph_use = GraphUse {
                decode: *decode,
                graphs: Vec::new(),
                ns: 0,
            };
            ((decode.iteration.thread, decode.iteration.start), graph_use)
        })
        .collect();
    for run in &layers.graph_runs {
        let before = uses.range_mut((run.thread, 0)..=(run.thread, run.launched));
        if let Some((_, graph_use)) = before.last()
            && run.launched < graph_use.decode.iteration.end()
        {
            graph_use.graphs.push(run.graph);
            graph_use.ns = graph_use.ns.saturating_add(run.ns);
        }
    }
    let is_whole = |graph_use: &GraphUse<'_>| {
        graph_use.graphs.len() == graph_use.decode.iteration.launching.graphs as usize
    };
    let mut uses: Vec<_> = uses.into_values().filter(is_whole).collect();
    if uses.is_empty() {
        return Err("it is not known which graph an iteration ran");
    }
    for graph_use in &mut uses {
        graph_use.graphs.sort_unstable();
    }
    uses.sort_by_key(|graph_use| graph_use.decode.iteration.n);
    Ok((uses, taken))
}

/// A batch in a graph that also ran batches with more tokens.
struct PaddedBatch<'a> {
    used: GraphUse<'a>,
    /// The greatest number of tokens of a batch that the graph ran. The graph was captured for at least as many.
    largest: u32,
    /// An estimate of the time of a graph for exactly this batch's tokens; `None` if it cannot be estimated.
    fitting: Option<FittingGraph>,
}

/// An estimate of the GPU time that a graph of exactly a batch's size would take.
#[derive(Clone, Copy)]
struct FittingGraph {
    /// The estimated time, in nanoseconds.
    ns: u64,
    /// The sizes, in tokens, of the two graphs from whose times it is estimated.
    sizes: [u32; 2],
}

impl PaddedBatch<'_> {
    /// Returns the GPU time that a graph of exactly the batch's size would save, in nanoseconds; negative if it would
    /// take longer.
    fn more(&self) -> i64 {
        let fitting = self.fitting.map_or(self.used.ns, |fitting| fitting.ns);
        self.used.ns as i64 - fitting as i64
    }

    /// Returns the part of [`Self::more`] by which the iteration would be shorter.
    fn lost(&self) -> i64 {
        self.more()
            .min(limited_by_gpu(self.used.decode.iteration) as i64)
    }
}

/// Returns the time in nanoseconds for which the GPU decides how long an iteration takes. If the GPU is busy for nearly
/// all of the iteration, this is the GPU's busy time. Otherwise, it is the busy time, but at most the time for which
/// the iteration's thread waits for the GPU. The time that other findings are about is left out.
fn limited_by_gpu(iteration: &Iteration) -> u64 {
    let busy = iteration.gpu_busy.unwrap_or(0).min(worked(iteration));
    match busy as f64 >= MIN_BUSY * iteration.busy() as f64 {
        true => busy,
        false => busy.min(iteration.wait),
    }
}

/// The batches that one graph ran.
#[derive(Default)]
struct BatchesOfGraph<'a> {
    uses: Vec<GraphUse<'a>>,
}

/// The GPU time of a graph, and the number of tokens for which it takes this time.
#[derive(Clone, Copy)]
struct GraphTime {
    tokens: u32,
    ns: u64,
}

impl BatchesOfGraph<'_> {
    fn tokens(&self) -> impl Iterator<Item = u32> {
        self.uses.iter().map(|one| one.decode.batch.tokens)
    }

    fn smallest(&self) -> u32 {
        self.tokens().min().unwrap_or(0)
    }

    fn largest(&self) -> u32 {
        self.tokens().max().unwrap_or(0)
    }

    /// Returns the median time for the largest batches that the graph ran, and the smallest number of tokens among
    /// them; `None` if the graph ran too few batches. Smaller batches are left out, because attention depends on the
    /// batch even in a padded graph.
    fn time(&self) -> Option<GraphTime> {
        let mut tokens: Vec<_> = self.tokens().collect();
        tokens.sort_unstable_by(|a, b| b.cmp(a));
        let tokens = *tokens.get(MIN_EACH - 1)?;
        let large = self
            .uses
            .iter()
            .filter(|one| one.decode.batch.tokens >= tokens);
        let ns = Quantiles::from_values(large.map(|one| one.ns))?.p50;
        Some(GraphTime { tokens, ns })
    }
}

/// Returns the batches that ran in a graph which also ran larger batches, in the order of the iterations. Batches are
/// compared only with batches that have the same number of tokens for each request and the same number of graph
/// launches.
fn padded(uses: Vec<GraphUse<'_>>) -> Vec<PaddedBatch<'_>> {
    let mut groups: BTreeMap<_, BTreeMap<Vec<u32>, BatchesOfGraph<'_>>> = BTreeMap::new();
    for one in uses {
        let group = groups.entry((one.decode.tokens_each(), one.graphs.len()));
        let graphs = group.or_default();
        graphs.entry(one.graphs.clone()).or_default().uses.push(one);
    }
    let mut found = Vec::new();
    for group in groups.into_values() {
        let mut graphs: Vec<_> = group.into_values().collect();
        graphs.sort_by_key(|graph| (graph.smallest(), graph.largest()));
        let alone = ranges_without_overlap(&graphs);
        let mut smaller = None;
        for (graph, is_alone) in graphs.into_iter().zip(alone) {
            let (largest, time) = (graph.largest(), graph.time().filter(|_| is_alone));
            let padded = |one: &GraphUse<'_>| one.decode.batch.tokens < largest;
            let padded = graph.uses.into_iter().filter(padded);
            found.extend(padded.map(|used| PaddedBatch {
                fitting: fitting(smaller, time, used.decode.batch.tokens),
                used,
                largest,
            }));
            smaller = time;
        }
    }
    found.sort_by_key(|batch| batch.used.decode.iteration.n);
    found
}

/// Returns, for each graph, true if its range of sizes, from its smallest to its largest batch, overlaps with the range
/// of no other graph. Graphs whose ranges overlap differ in something else than their size, so their times must not be
/// compared. `graphs` must be in the order of the smallest batches.
fn ranges_without_overlap(graphs: &[BatchesOfGraph<'_>]) -> Vec<bool> {
    let mut alone = vec![true; graphs.len()];
    let mut widest: Option<(usize, u32)> = None;
    for (place, graph) in graphs.iter().enumerate() {
        let largest = graph.largest();
        if let Some((other, until)) = widest
            && graph.smallest() <= until
        {
            alone[other] = false;
            alone[place] = false;
        }
        if widest.is_none_or(|(_, until)| largest > until) {
            widest = Some((place, largest));
        }
    }
    alone
}

/// Estimates the time of a graph of `tokens` tokens by linear interpolation between the times of a smaller graph and of
/// the graph that ran. Returns `None` if one of these times is not known, or if `tokens` does not lie between the sizes
/// of these two graphs.
fn fitting(
    smaller: Option<GraphTime>,
    ran: Option<GraphTime>,
    tokens: u32,
) -> Option<FittingGraph> {
    let (smaller, ran) = (smaller?, ran?);
    let part = tokens.checked_sub(smaller.tokens)?;
    let whole = ran
        .tokens
        .checked_sub(smaller.tokens)
        .filter(|whole| part < *whole)?;
    let more = ran.ns as f64 - smaller.ns as f64;
    let ns = smaller.ns as f64 + more * f64::from(part) / f64::from(whole);
    Some(FittingGraph {
        ns: ns as u64,
        sizes: [smaller.tokens, ran.tokens],
    })
}
