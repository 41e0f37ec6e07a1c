//! The finding `eager-fallback`: decode iterations launch their kernels one by one, although CUDA graphs ran batches
//! that are at least as large.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tllmprof_record::{Batch, Phase};

use super::Judgement;
use super::decode::{Decode, worked};
use super::evidence::{Evidence, first_numbers};
use super::limits::EXTRA_WORK;
use crate::events::iteration::Iteration;
use crate::numbers::quantiles::Quantiles;
use crate::numbers::units::{Share, Time};

/// Name of the finding `eager-fallback`.
pub(crate) const FALLBACK_RULE: &str = "eager-fallback";

/// Minimum number of iterations that ran without a graph, for a finding. The same minimum applies to the iterations
/// with a graph that each of them is compared with.
const MIN_EACH: usize = 4;
/// Minimum ratio of the number of launches in an iteration without a graph to that in iterations with one. With fewer
/// launches, the iteration probably did not launch the graph's kernels one by one, so it is not a [`Fallback`].
const MIN_LAUNCHES_RATIO: u64 = 2;
/// Minimum share of the iterations without a graph that must take longer than those with a graph, as a fraction.
const MIN_LONGER: f64 = 0.75;

pub(super) fn when() -> String {
    format!(
        "at least {MIN_EACH} decode iterations launch no graph, although graphs, before and in at least {MIN_EACH} iterations, ran \
         batches of at least their tokens and of as many tokens a request; they make at least {MIN_LAUNCHES_RATIO} times the \
         launches of those, {} of them or more are longer, and all together by {EXTRA_WORK}",
        Share(MIN_LONGER),
    )
}

pub(super) fn judge(one: &Evidence<'_>) -> Judgement {
    if one.iterations().all(|iteration| iteration.batch.is_none()) {
        return Judgement::Unknown("what is in batches is not known".to_owned());
    }
    let decodes: Vec<_> = one.iterations().filter_map(Decode::new).collect();
    let by_graph = decodes.iter().filter(|decode| decode.is_by_graph());
    let Some(largest) = by_graph.map(|decode| decode.batch.tokens).max() else {
        return Judgement::No("no decode iteration launches a graph".to_owned());
    };
    let fallbacks = fallbacks(one, &decodes);
    if fallbacks.len() < MIN_EACH {
        return Judgement::No(format!(
            "{} of {} decode iterations launched no graph although their batches fit one",
            fallbacks.len(),
            decodes.len()
        ));
    }
    let median = |times: &mut dyn Iterator<Item = u64>| {
        Quantiles::from_values(times).map_or(0, |times| times.p50)
    };
    let took = median(&mut fallbacks.iter().map(|one| worked(one.iteration)));
    let usual = median(&mut fallbacks.iter().map(|one| one.usual));
    let more = median(&mut fallbacks.iter().map(Fallback::more));
    let cost = one.share(more.saturating_mul(fallbacks.len() as u64));
    let evidence = format!(
        "{} of {} decode iterations ({}) launched no graph although their batches fit one: they have {} tokens, and graphs ran \
         batches of up to {largest}; they take {}, iterations of such batches with a graph {}: {} of the time",
        fallbacks.len(),
        decodes.len(),
        first_numbers(fallbacks.iter().map(|one| one.iteration.n)),
        first_numbers(sizes(&fallbacks).into_iter()),
        Time(took),
        Time(usual),
        Share(cost)
    );
    let longer = fallbacks.iter().filter(|one| one.more() > 0).count();
    let is_longer = longer as f64 >= MIN_LONGER * fallbacks.len() as f64;
    let beyond: HashMap<_, _> = (fallbacks.iter())
        .map(|one| (one.iteration.n, one.more()))
        .collect();
    let lost = one.beyond(|iteration| beyond.get(&iteration.n).copied().unwrap_or(0));
    match is_longer && EXTRA_WORK.are_reached(cost, lost.of_slow) {
        true => Judgement::yes(evidence, cost),
        false => Judgement::No(evidence),
    }
}

/// An iteration that launched no graph although graphs ran batches that are at least as large.
struct Fallback<'a> {
    iteration: &'a Iteration,
    tokens: u32,
    /// The median of [`worked`] of comparable iterations with a graph, in nanoseconds.
    usual: u64,
}

impl Fallback<'_> {
    fn more(&self) -> u64 {
        worked(self.iteration).saturating_sub(self.usual)
    }
}

/// Iterations with a graph, in groups. The key of a group is the number of tokens of each request (as a fraction), and
/// a flag that is true if kernels were recorded. Recording makes iterations longer, so the flag keeps these iterations
/// apart. The value contains the group's iterations, each with the number of tokens in its batch, and is sorted by this
/// number.
type GraphGroups<'a> = BTreeMap<((u32, u32), bool), Vec<(u32, &'a Iteration)>>;

fn fallbacks<'a>(one: &Evidence<'a>, decodes: &[Decode<'a>]) -> Vec<Fallback<'a>> {
    let key = |decode: &Decode<'_>| (decode.tokens_each(), decode.iteration.gpu_busy.is_some());
    let mut groups = GraphGroups::new();
    for decode in decodes.iter().filter(|decode| decode.is_by_graph()) {
        let group = groups.entry(key(decode)).or_default();
        group.push((decode.batch.tokens, decode.iteration));
    }
    for group in groups.values_mut() {
        group.sort_by_key(|(tokens, iteration)| (*tokens, iteration.n));
    }
    let recompiles = one.recompiles();
    let displaced = beside_displaced_launches(one);
    let mut compared = HashMap::new();
    let is_eager = |decode: &&Decode<'_>| {
        let n = decode.iteration.n;
        decode.is_eager() && !displaced.contains(&n) && !recompiles.iterations.contains(&n)
    };
    let found = decodes.iter().filter(is_eager).filter_map(|decode| {
        let (iteration, tokens) = (decode.iteration, decode.batch.tokens);
        let key = key(decode);
        let like = compared
            .entry((key, tokens))
            .or_insert_with(|| ComparableRuns::new(groups.get(&key)?, tokens));
        let like = like.as_ref()?;
        let launches = u64::from(iteration.launches);
        let fits = like.first < iteration.n && launches >= MIN_LAUNCHES_RATIO * like.launches;
        fits.then_some(Fallback {
            iteration,
            tokens,
            usual: like.time,
        })
    });
    found.collect()
}

/// Figures of the iterations with a graph that iterations without one are compared with.
struct ComparableRuns {
    /// Number of the first iteration in which a graph ran a batch at least as large as that of the iterations without a
    /// graph.
    first: u64,
    /// Median of [`worked`], in nanoseconds.
    time: u64,
    /// Median number of launches.
    launches: u64,
}

impl ComparableRuns {
    /// Returns the figures for batches of `tokens` tokens; `None` if graphs ran too few batches that are at least as
    /// large. The smallest of these batches are used, because larger ones may take longer.
    fn new(group: &[(u32, &Iteration)], tokens: u32) -> Option<Self> {
        let larger = &group[group.partition_point(|(other, _)| *other < tokens)..];
        let (most, _) = larger.get(MIN_EACH - 1)?;
        let like = &larger[..larger.partition_point(|(other, _)| other <= most)];
        let iterations = || like.iter().map(|(_, iteration)| *iteration);
        let launches = iterations().map(|iteration| u64::from(iteration.launches));
        Some(Self {
            first: larger.iter().map(|(_, iteration)| iteration.n).min()?,
            time: Quantiles::from_values(iterations().map(worked))?.p50,
            launches: Quantiles::from_values(launches)?.p50,
        })
    }
}

/// Returns the numbers of the iterations directly before or after an iteration with more graph launches than usual for
/// its phase. If another thread launches the graphs, the launch of an iteration's graph may lie in the iteration before
/// or after it.
fn beside_displaced_launches(one: &Evidence<'_>) -> BTreeSet<u64> {
    let phase = |iteration: &Iteration| iteration.batch.map(Batch::phase);
    let all = || one.process.windows.iter().flat_map(|one| &one.iterations);
    let mut by_phase: HashMap<_, Vec<u64>> = HashMap::new();
    for iteration in all() {
        // Decode iterations without a graph may be the ones that the finding is about. They would lower the median, so
        // leave them out.
        let graphs = iteration.launching.graphs;
        if graphs > 0 || phase(iteration) != Some(Phase::Decode) {
            let counts = by_phase.entry(phase(iteration)).or_default();
            counts.push(u64::from(graphs));
        }
    }
    let usual = |(phase, counts)| Some((phase, Quantiles::from_values(counts)?.p50));
    let usual: HashMap<_, _> = by_phase.into_iter().filter_map(usual).collect();
    let has_more = |iteration: &&Iteration| {
        let usual = usual.get(&phase(iteration)).copied();
        u64::from(iteration.launching.graphs) > usual.unwrap_or(0)
    };
    all()
        .filter(has_more)
        .flat_map(|iteration| [iteration.n.wrapping_sub(1), iteration.n.wrapping_add(1)])
        .collect()
}

/// Returns the different batch sizes of the iterations, in tokens, the smallest first.
fn sizes(fallbacks: &[Fallback<'_>]) -> BTreeSet<u64> {
    fallbacks.iter().map(|one| u64::from(one.tokens)).collect()
}
