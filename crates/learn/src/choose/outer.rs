//! Finds the outer loop around a call site: the loop that explains why the work between the site's occurrences
//! varies. The search begins with the most frequent call site and moves to rarer ones.

use super::candidates::Occurrences;
use super::{Candidate, LITTLE_TO_EXPLAIN, MIN_OUTER, MIN_PERIODS, OUTER_LEVEL, Scratch};
use crate::history::HistoryEntry;

/// Minimum share of the work, in thousandths, that a rarer call site must explain to replace a more frequent one. A
/// call site explains the additional work in the intervals in which it occurs.
const EXPLAINED: u64 = 60;
/// Like [`EXPLAINED`], for intervals with less work than [`LITTLE_TO_EXPLAIN`] if each pass (stretch between two
/// occurrences of the rarer call site) has the same number of intervals.
const EXPLAINED_OF_LITTLE: u64 = 10;
/// Minimum share of the work, in thousandths, that must be in the large interval of each pass (the stretch between
/// two occurrences of the outer call site). `MOST_IN_LARGE_OF_EQUAL` applies if all passes have the same number of
/// intervals, `MOST_IN_LARGE` otherwise.
const MOST_IN_LARGE: u64 = 600;
const MOST_IN_LARGE_OF_EQUAL: u64 = 250;
/// An interval counts as large if it has at least this many times the mean work of an interval.
const LARGE_FACTOR: u32 = 4;
/// Maximum unevenness of the number of inner intervals per pass: the mean deviation from the mean, in thousandths of
/// the mean. A pass is the stretch between two occurrences of the outer call site. More uneven passes are taken for
/// requests that arrive at random, whose unevenness reached 740 in measurements. In speculative decoding, the number of
/// inner intervals varies with the number of drafted tokens, whose unevenness stays below this limit.
const MAX_UNEVENNESS: u64 = 600;
/// Maximum number of inner intervals that are taken for equal parts of one iteration if only their number or their work
/// suggests this. With more intervals, the host's pauses must show that they are parts (see `parts.rs`).
pub(super) const MAX_PARTS_BY_COUNT: u32 = 4;

/// Maximum number of passes (stretches between two occurrences of the outer call site) for which the numbers of inner
/// intervals are stored and compared.
const MAX_COUNTED_PASSES: usize = 64;

/// The reason why a rarer call site replaces a more frequent one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Why {
    /// The outer call site explains why the work between occurrences of the inner one varies.
    Work,
    /// The inner call site occurs at each layer of a model, and the outer one once in each pass
    /// over the layers.
    Layers,
}

/// One pass: the intervals of an inner call site between two occurrences of an outer call site.
#[derive(Clone, Copy, Default, Debug)]
struct Pass {
    /// True if the pass began at an occurrence of the outer call site. False only for the first pass.
    is_whole: bool,
    inners: u32,
    work: u64,
    /// Sum of the excess work of all intervals in the pass: an interval's work beyond the lower quartile.
    deviations: u64,
    /// Excess work of the interval in which the outer call site occurs.
    at_outer: u32,
    /// Number of large intervals in the pass (see `LARGE_FACTOR`). `excess` is their excess work.
    large: u32,
    excess: u64,
    is_between_requests: bool,
}

impl Pass {
    fn add(&mut self, work: u32, deviation: u32, is_large: bool) {
        self.inners += 1;
        self.work += u64::from(work);
        self.deviations += u64::from(deviation);
        if is_large {
            self.large += 1;
            self.excess += u64::from(deviation);
        }
    }
}

/// Returns true if `outer` ends iterations more steadily than `inner`: the intervals of `outer` are alike and have as
/// much work as iterations, but at least a quarter of the intervals of `inner` have much less work than usual. Such
/// short intervals arise, for example, if some tokens are read twice.
fn is_steadier(outer: &Candidate, inner: &Candidate) -> bool {
    outer.level <= OUTER_LEVEL
        && !outer.one_helper
        && outer.count >= 2 * MIN_PERIODS
        && outer.count * 2 > inner.count
        && outer.even()
        && inner.short * 4 >= inner.count
}

/// Numbers of inner intervals per pass (stretch between two occurrences of the outer call site), in whole passes, as
/// evidence for or against an outer loop.
struct PassCounts {
    periods: u32,
    fewest: u32,
    most: u32,
    /// Number of inner intervals in each of the first passes (stretches between two occurrences of the outer call site)
    /// that were counted.
    first: [u32; MAX_COUNTED_PASSES],
    sum: u64,
}

impl PassCounts {
    const NONE: Self = Self {
        periods: 0,
        fewest: u32::MAX,
        most: 0,
        first: [0; MAX_COUNTED_PASSES],
        sum: 0,
    };

    fn add(&mut self, pass: &Pass) {
        if !pass.is_whole {
            return;
        }
        if let Some(count) = self.first.get_mut(self.periods as usize) {
            *count = pass.inners;
        }
        self.periods += 1;
        self.sum += u64::from(pass.inners);
        self.fewest = self.fewest.min(pass.inners);
        self.most = self.most.max(pass.inners);
    }

    /// Returns true if all passes (stretches between two occurrences of the outer call site) have the same number of
    /// inner intervals.
    const fn are_same(&self) -> bool {
        self.fewest == self.most
    }

    /// Returns true if the inner intervals may be equal parts of a step: all passes so far have the same small number
    /// of inner intervals.
    const fn may_be_parts(&self) -> bool {
        self.periods == 0 || self.are_same() && self.most <= MAX_PARTS_BY_COUNT
    }

    /// Returns true if the number of inner intervals varies from pass to pass as much as with random arrivals of
    /// requests. A pass is the stretch between two occurrences of the outer call site.
    fn are_uneven(&self) -> bool {
        let each = u64::from(self.periods);
        let first = self.first.iter().take(self.periods as usize);
        let (mut spread, mut total) = (0, 0);
        for &count in first {
            spread += (u64::from(count) * each).abs_diff(self.sum);
            total += u64::from(count);
        }
        spread / each.max(1) * 1000 > total * MAX_UNEVENNESS
    }
}

/// Sums over the work of passes (stretches between two occurrences of the outer call site), as evidence for an outer
/// loop. The sums show how much of the work the outer call site explains.
struct Works {
    passes: u64,
    all: u64,
    deviations: u64,
    at_outer: u64,
}

impl Works {
    const NONE: Self = Self {
        passes: 0,
        all: 0,
        deviations: 0,
        at_outer: 0,
    };

    fn add(&mut self, pass: &Pass) {
        self.passes += 1;
        self.all += pass.work;
        self.deviations += pass.deviations;
        self.at_outer += u64::from(pass.at_outer);
    }

    /// Returns the excess work of the intervals in which the outer call site occurs. The excess work that the same
    /// number of average intervals of `inner` would have is subtracted.
    fn explained(&self, inner: &Candidate) -> u64 {
        let usual = self.deviations * self.passes / u64::from(inner.count).max(1);
        self.at_outer.saturating_sub(usual)
    }
}

/// Evidence for an outer loop from passes (stretches between two occurrences of the outer call site) that have most of
/// their work in one large interval. This interval may be at any position in the pass.
struct Large {
    /// Number of whole passes with exactly one large interval (see `LARGE_FACTOR`), and the excess work of those
    /// intervals.
    once: u32,
    excess: u64,
}

impl Large {
    const NONE: Self = Self { once: 0, excess: 0 };

    fn add(&mut self, pass: &Pass) {
        if pass.is_whole && pass.large == 1 {
            self.once += 1;
            self.excess += pass.excess;
        }
    }

    fn is_once(&self, counts: &PassCounts, works: &Works) -> bool {
        self.once * 8 >= counts.periods * 7 && self.excess * 1000 >= works.all * EXPLAINED
    }
}

impl Scratch {
    /// Returns the call site of the outermost loop, or `None` if `found`, the number of candidates, is 0. The search
    /// starts at the most frequent site and moves outward.
    pub(super) fn outermost(&self, entries: &[HistoryEntry], found: usize) -> Option<Candidate> {
        let mut chosen = *self.candidates[..found].first()?;
        for candidate in &self.candidates[1..found] {
            if candidate.count < MIN_OUTER {
                continue;
            }
            if is_steadier(candidate, &chosen) {
                chosen = *candidate;
            } else if let Some(why) = self.replaces_any(entries, found, candidate, &chosen, false) {
                let layered = chosen.layered || why == Why::Layers;
                chosen = Candidate {
                    layered,
                    ..*candidate
                };
            }
        }
        Some(chosen)
    }

    /// Returns the reason why `outer` replaces `inner`, or why it replaces another call site that occurs as often as
    /// `inner`. Returns `None` if `outer` replaces none of these sites. If `early` is true, it is enough that `outer`
    /// may replace one of these sites later, when more occurrences have been seen.
    pub(super) fn replaces_any(
        &self,
        entries: &[HistoryEntry],
        found: usize,
        outer: &Candidate,
        inner: &Candidate,
        early: bool,
    ) -> Option<Why> {
        let alike = |c: &Candidate| {
            c.level <= OUTER_LEVEL && c.count.abs_diff(inner.count) * 5 <= inner.count
        };
        // If the intervals of `inner` are alike, no outer loop is needed to explain them. `inner` can then be
        // replaced only if its intervals are parts of a step.
        let alone = inner.even();
        // The threads of a pool take turns, so the call site of one thread recurs more rarely than that of the whole
        // pool. But the site of one thread is not that of an outer loop, so it does not replace `inner`.
        if outer.one_helper {
            return None;
        }
        if outer.level > OUTER_LEVEL {
            let large = inner.little() && self.begins_with_most_work(outer, inner);
            return large.then_some(Why::Work);
        }
        let inners = || {
            let found = self.candidates[..found].iter();
            found.filter(|c| alike(c) && (early || !self.at_each(outer, c)))
        };
        let layers = |c: &Candidate| self.passes_over_layers(outer, c);
        if !inner.layered && self.candidates[..found].iter().any(layers) {
            return Some(Why::Layers);
        }
        let explains = |c: &Candidate| {
            let only_parts = alone && c.signature != inner.signature;
            self.replaces(outer, c, only_parts)
                || only_parts && self.ends_in_long_interval(entries, outer, c, early)
        };
        inners().any(explains).then_some(Why::Work)
    }

    /// Returns true if the rarer call site `outer` ends the iteration, because it explains why the work
    /// between occurrences of `inner` varies. If `only_parts` is true, returns true only if each interval of
    /// `outer` consists of the same small number of inner intervals.
    fn replaces(&self, outer: &Candidate, inner: &Candidate, only_parts: bool) -> bool {
        if outer.count * 17 > inner.count * 10 {
            return false;
        }
        let (mut counts, mut works, mut large) = (PassCounts::NONE, Works::NONE, Large::NONE);
        let mut requests = 0;
        for pass in self.passes_of(outer, inner) {
            counts.add(&pass);
            works.add(&pass);
            large.add(&pass);
            requests += u64::from(pass.is_between_requests);
            if only_parts && !counts.may_be_parts() {
                return false;
            }
        }
        if counts.sum == 0 || works.all == 0 || counts.are_uneven() {
            return false;
        }
        let parts = counts.may_be_parts() && counts.fewest > 1 && counts.periods >= MIN_PERIODS;
        if parts || only_parts {
            return parts;
        }
        let little = inner.graphs == 0 && inner.median < LITTLE_TO_EXPLAIN;
        if little && large.is_once(&counts, &works) {
            return true;
        }
        // True if each pass has the same number of inner intervals, like the passes of a model with a fixed number of
        // layers. In that case the outer call site has to explain less work.
        let layers = counts.are_same() && requests * 2 < works.passes;
        let wanted = if little && layers {
            EXPLAINED_OF_LITTLE
        } else {
            EXPLAINED
        };
        works.explained(inner) * 1000 >= works.all * wanted
    }

    /// Returns true if nearly every pass of `outer` (the stretch between two of its occurrences) has one large
    /// interval, `outer` occurs in that interval, and the large intervals have a large share of all work. An example is
    /// a text detector, followed by a recognizer that reads the found boxes one by one.
    fn begins_with_most_work(&self, outer: &Candidate, inner: &Candidate) -> bool {
        if outer.count * 17 > inner.count * 10 || outer.count < MIN_PERIODS {
            return false;
        }
        let (mut counts, mut works, mut large) = (PassCounts::NONE, Works::NONE, Large::NONE);
        for pass in self.passes_of(outer, inner) {
            counts.add(&pass);
            works.add(&pass);
            large.add(&pass);
        }
        // If each pass (stretch between two occurrences of `outer`) has the same number of inner intervals, that is
        // further evidence, and less work has to be in the large interval.
        let wanted = match counts.are_same() {
            true => MOST_IN_LARGE_OF_EQUAL,
            false => MOST_IN_LARGE,
        };
        let is_much = |work: u64| work * 1000 >= works.all * wanted;
        !counts.are_uneven()
            && large.is_once(&counts, &works)
            && is_much(large.excess)
            && is_much(works.explained(inner))
    }

    /// Returns the passes of `outer`: the stretches between its occurrences. The first pass ends at the first
    /// occurrence; its beginning is unknown.
    fn passes_of(&self, outer: &Candidate, inner: &Candidate) -> impl Iterator<Item = Pass> {
        let even = inner.even();
        let much = self.mean(inner).saturating_mul(LARGE_FACTOR);
        let mut inner_pairs = Occurrences::new(&self.next, inner).pairs().peekable();
        let ends = Occurrences::new(&self.next, outer);
        ends.enumerate().map(move |(n, at)| {
            let mut pass = Pass {
                is_whole: n > 0,
                ..Pass::default()
            };
            // Add the inner intervals that end by entry `at`, the occurrence of `outer`, to the pass. The interval that
            // contains `at`, or begins there, contributes only to `at_outer`. The work of this interval is added to the
            // next pass.
            while let Some(&(from, to)) = inner_pairs.peek() {
                if from > at {
                    break;
                }
                let work = self.work[to] - self.work[from];
                let deviation = self.deviation(inner, from, to);
                // If the inner intervals are alike and as large as iterations, an interval of the usual size is no
                // evidence for an outer loop.
                if to >= at && !(even && inner.usual(work)) {
                    pass.at_outer = pass.at_outer.max(deviation);
                    pass.is_between_requests |= inner.between_requests(from, to, work);
                }
                if to > at {
                    break;
                }
                pass.add(work, deviation, work >= much);
                inner_pairs.next();
            }
            pass
        })
    }

    /// Returns true if `outer` occurs at almost each occurrence of `inner`, so that `outer` is no loop around `inner`:
    /// the median work between two occurrences of `outer` is less than 1.5 times the mean work between two occurrences
    /// of `inner`. The numbers of occurrences are not compared, because `outer` may have begun later or stopped
    /// earlier.
    fn at_each(&self, outer: &Candidate, inner: &Candidate) -> bool {
        u64::from(outer.median) * 10 < u64::from(self.mean(inner)) * 15
    }

    fn mean(&self, of: &Candidate) -> u32 {
        let all = self.work[of.last as usize] - self.work[of.first as usize];
        all / (of.count - 1).max(1)
    }

    /// Returns the excess work of an interval: its work beyond the lower quartile.
    fn deviation(&self, of: &Candidate, from: usize, to: usize) -> u32 {
        let graphs = self.graphs[to] - self.graphs[from];
        if graphs < of.graphs {
            // In this interval, kernels took the place of the usual graph, as in a prefill step.
            // The work of such an interval does not count as excess.
            return 0;
        }
        (self.work[to] - self.work[from]).saturating_sub(of.least)
    }
}
