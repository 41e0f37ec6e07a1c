//! Finds the outer loop that explains why the work varies, beginning with the most frequent site.

use super::candidates::Occurrences;
use super::{Candidate, LITTLE_TO_EXPLAIN, MIN_OUTER, MIN_PERIODS, OUTER_LEVEL, Scratch};
use crate::history::Entry;

/// The share of the work, in thousandths, that a rarer site must explain to replace a more frequent one.
const EXPLAINED: u64 = 60;
/// The threshold for intervals of little work.
const EXPLAINED_OF_LITTLE: u64 = 10;
/// An interval has most of an iteration's work if it has this many times the work of the mean interval.
const LARGE_FACTOR: u32 = 4;
/// Largest unevenness, in thousandths, of an outer loop's counts of inner passes: random arrivals reach 740,
/// draft lengths do not.
const MAX_UNEVENNESS: u64 = 600;
/// If an iteration always has the same number of occurrences, and at most this number, they are parts of it.
pub(super) const MAX_PARTS_BY_COUNT: u32 = 4;

/// Number of passes whose counts of inner intervals are compared.
const MAX_COUNTED_PASSES: usize = 64;

/// The reason why a rarer site replaces another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Why {
    /// The outer site explains why the work varies.
    Work,
    /// The inner site occurs at each layer of a model.
    Layers,
}

/// The intervals of an inner site from one occurrence of an outer site to the next.
#[derive(Clone, Copy, Default, Debug)]
struct Pass {
    /// True if the pass began at an occurrence of the outer site.
    is_whole: bool,
    inners: u32,
    work: u64,
    /// Sum of the work by which the intervals exceed the shorter ones.
    deviations: u64,
    /// The work by which the interval at which the outer site occurs exceeds the shorter ones.
    at_outer: u32,
    /// Number of intervals that are far larger than the mean one, and the work by which they exceed the shorter
    /// ones.
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

/// Returns true if the intervals of `outer` are as large as iterations and alike, and those of `inner` are not: what
/// occurs besides `outer` adds hardly any work, as where some tokens are read twice.
fn is_steadier(outer: &Candidate, inner: &Candidate) -> bool {
    outer.level <= OUTER_LEVEL
        && !outer.one_helper
        && outer.count >= 2 * MIN_PERIODS
        && outer.count * 2 > inner.count
        && outer.even()
        && inner.short * 4 >= inner.count
}

/// The numbers of inner intervals that whole passes have, as evidence for or against an outer loop.
struct PassCounts {
    periods: u32,
    fewest: u32,
    most: u32,
    /// The numbers of the first passes.
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

    /// Returns true if all passes have the same number.
    const fn are_same(&self) -> bool {
        self.fewest == self.most
    }

    /// Returns true if all passes so far have the same small number.
    const fn may_be_parts(&self) -> bool {
        self.periods == 0 || self.are_same() && self.most <= MAX_PARTS_BY_COUNT
    }

    /// Returns true if the numbers vary as those of random arrivals do.
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

/// Evidence by work: the share of it that the outer site explains.
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

    /// Returns the work that there is more of at the outer site than elsewhere.
    fn explained(&self, inner: &Candidate) -> u64 {
        let usual = self.deviations * self.passes / u64::from(inner.count).max(1);
        self.at_outer.saturating_sub(usual)
    }
}

/// Evidence by one large interval: most of an iteration's work is in one interval of each pass, wherever in it
/// the outer site is.
struct Large {
    /// Number of whole passes with exactly one such interval, and the excess work of these.
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
    /// Returns the outermost site, found by moving outward from the most frequent one.
    pub(super) fn outermost(&self, entries: &[Entry], found: usize) -> Option<Candidate> {
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

    /// Returns the reason why `outer` replaces `inner` or a site that occurs as often, if it does. If `early`
    /// is true, it is enough that `outer` may turn out to replace it.
    pub(super) fn replaces_any(
        &self,
        entries: &[Entry],
        found: usize,
        outer: &Candidate,
        inner: &Candidate,
        early: bool,
    ) -> Option<Why> {
        let alike = |c: &Candidate| {
            c.level <= OUTER_LEVEL && c.count.abs_diff(inner.count) * 5 <= inner.count
        };
        // If its intervals are alike, no outer loop is needed to explain them.
        let alone = inner.even();
        // A pool's threads take turns. The turn of one of them is not a loop around the others'.
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

    /// Returns true if the rarer `outer` explains why the work between `inner`'s occurrences varies, so that
    /// `outer` ends the iteration and not `inner`. If `only_parts` is true, returns true only if `outer`
    /// consists of a few of them.
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
        // A model has the same number of layers in each pass.
        let layers = counts.are_same() && requests * 2 < works.passes;
        let wanted = if little && layers {
            EXPLAINED_OF_LITTLE
        } else {
            EXPLAINED
        };
        works.explained(inner) * 1000 >= works.all * wanted
    }

    /// Returns true if each pass of `outer` has one large interval, with nearly all of its work, and `outer` occurs
    /// there: the boxes that a detector found are read one by one.
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
        let nearly_all = |work: u64| work * 10 >= works.all * 6;
        !counts.are_uneven()
            && large.is_once(&counts, &works)
            && nearly_all(large.excess)
            && nearly_all(works.explained(inner))
    }

    /// Returns the passes of `outer`. The first one ends at its first occurrence, and its begin is not known.
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
            // Inner intervals that end by `at`, then the one that contains it or begins there.
            while let Some(&(from, to)) = inner_pairs.peek() {
                if from > at {
                    break;
                }
                let work = self.work[to] - self.work[from];
                let deviation = self.deviation(inner, from, to);
                // If passes are as large as iterations and alike, a usual one needs no explanation.
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

    /// Returns true if `outer` mostly occurs at each pass of `inner`, for a while, and so is no loop around
    /// it.
    fn at_each(&self, outer: &Candidate, inner: &Candidate) -> bool {
        u64::from(outer.median) * 10 < u64::from(self.mean(inner)) * 15
    }

    fn mean(&self, of: &Candidate) -> u32 {
        let all = self.work[of.last as usize] - self.work[of.first as usize];
        all / (of.count - 1).max(1)
    }

    /// Returns the work by which an interval exceeds the shorter ones.
    fn deviation(&self, of: &Candidate, from: usize, to: usize) -> u32 {
        let graphs = self.graphs[to] - self.graphs[from];
        if graphs < of.graphs {
            // This is other work in place of the usual one: a prefill step.
            return 0;
        }
        (self.work[to] - self.work[from]).saturating_sub(of.least)
    }
}
