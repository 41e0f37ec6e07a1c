//! From the most frequent site outward, to the loop that explains why the work varies.

use super::candidates::Occurrences;
use super::{Candidate, LITTLE_TO_EXPLAIN, OUTER, OUTER_LEVEL, PERIODS, Scratch};

/// The share of the work, in thousandths, that a rarer site must explain to replace the other.
const EXPLAINED: u64 = 60;
/// The same, where the intervals are little work.
const EXPLAINED_OF_LITTLE: u64 = 10;
/// How many times as much work as in the mean interval is the bulk of an iteration.
const LARGE: u32 = 4;
/// How uneven, in thousandths, an outer loop's counts of inner passes may be: random arrivals
/// reach 740, draft lengths do not.
const UNEVEN: u64 = 600;
/// So many occurrences an iteration, always the same number, are parts of it.
const PARTS: u32 = 4;

/// Why a rarer site replaces another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Why {
    /// It explains why the work varies.
    Work,
    /// The other comes at each layer of a model.
    Layers,
}

impl Scratch {
    /// Goes from the most frequent site outward.
    pub(super) fn outermost(&self, found: usize) -> Option<Candidate> {
        let mut chosen = *self.candidates[..found].first()?;
        for candidate in &self.candidates[1..found] {
            if candidate.count < OUTER {
                continue;
            }
            if let Some(why) = self.replaces_any(found, candidate, &chosen, false) {
                let layered = chosen.layered || why == Why::Layers;
                chosen = Candidate {
                    layered,
                    ..*candidate
                };
            }
        }
        Some(chosen)
    }

    /// Whether `outer` replaces `inner` or a site that occurs as often.
    /// `early`: or may turn out to.
    pub(super) fn replaces_any(
        &self,
        found: usize,
        outer: &Candidate,
        inner: &Candidate,
        early: bool,
    ) -> Option<Why> {
        let alike = |c: &Candidate| {
            c.level <= OUTER_LEVEL && c.count.abs_diff(inner.count) * 5 <= inner.count
        };
        // Nothing is to be explained where its intervals are alike.
        let alone = inner.even();
        // A pool's threads take turns: the turn of one of them is no loop around the others'.
        if outer.level > OUTER_LEVEL || outer.one_helper {
            return None;
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
        };
        inners().any(explains).then_some(Why::Work)
    }

    /// Whether the rarer `outer` is what explains why the work between `inner`'s occurrences
    /// varies, so that it, and not `inner`, is the iteration. `only_parts`: or because it is made of
    /// a few of them.
    fn replaces(&self, outer: &Candidate, inner: &Candidate, only_parts: bool) -> bool {
        if outer.count * 17 > inner.count * 10 {
            return false;
        }
        let little = inner.graphs == 0 && inner.median < LITTLE_TO_EXPLAIN;
        let even = inner.even();
        let mut inner_pairs = Occurrences::of(&self.next, inner).pairs().peekable();
        let (mut before, mut periods, mut sum) = (None, 0, 0u64);
        let (mut fewest, mut most) = (u32::MAX, 0);
        let (mut explained, mut all) = (0, 0);
        let (mut usual, mut occurrences) = (0, 0);
        // Passes of `outer` with one interval that is far larger than the others, and its work.
        let large = self.mean(inner).saturating_mul(LARGE);
        let (mut once, mut largest) = (0, 0);
        let mut counts = [0u32; 64];
        // Passes of `outer` that begin or end with what happens between requests.
        let mut requests = 0;
        for at in Occurrences::of(&self.next, outer) {
            // Inner intervals that end by `at`; then the one that holds it, or begins there.
            let mut passes = 0;
            let mut deviation = 0;
            let (mut larger, mut excess) = (0, 0);
            while let Some(&(from, to)) = inner_pairs.peek() {
                if from > at {
                    break;
                }
                let work = self.work[to] - self.work[from];
                // Where passes are as large as iterations and alike, one as usual needs no reason.
                if to >= at && !(even && inner.usual(work)) {
                    deviation = deviation.max(self.deviation(inner, from, to));
                    requests += u32::from(to >= at && inner.between_requests(from, to, work));
                }
                if to > at {
                    break;
                }
                passes += 1;
                all += u64::from(work);
                usual += u64::from(self.deviation(inner, from, to));
                if work >= large {
                    larger += 1;
                    excess += u64::from(self.deviation(inner, from, to));
                }
                inner_pairs.next();
            }
            if before.is_some() && larger == 1 {
                once += 1;
                largest += excess;
            }
            explained += u64::from(deviation);
            occurrences += 1;
            if before.is_some() {
                if let Some(count) = counts.get_mut(periods) {
                    *count = passes;
                }
                periods += 1;
                sum += u64::from(passes);
                fewest = fewest.min(passes);
                most = most.max(passes);
                if only_parts && (fewest < most || most > PARTS) {
                    return false;
                }
            }
            before = Some(at);
        }
        // Only what there is more of at `outer` than elsewhere.
        let explained = explained.saturating_sub(usual * occurrences / u64::from(inner.count));
        let kept = periods.min(counts.len());
        if kept == 0 || sum == 0 || all == 0 {
            return false;
        }
        let (mean, each) = (sum, periods as u64);
        let spread = counts[..kept]
            .iter()
            .map(|&passes| (u64::from(passes) * each).abs_diff(mean))
            .sum::<u64>()
            / each;
        let total: u64 = counts[..kept].iter().map(|&passes| u64::from(passes)).sum();
        if spread * 1000 > total * UNEVEN {
            return false;
        }
        // A model has as many layers each time.
        let layers = fewest == most && requests * 2 < occurrences as u32;
        let wanted = if little && layers {
            EXPLAINED_OF_LITTLE
        } else {
            EXPLAINED
        };
        let parts = fewest == most && (2..=PARTS).contains(&most) && periods as u32 >= PERIODS;
        if parts || only_parts {
            return parts;
        }
        // The bulk of an iteration comes once in each, wherever in it the outer site is.
        if little && once * 8 >= periods * 7 && largest * 1000 >= all * EXPLAINED {
            return true;
        }
        explained * 1000 >= all * wanted
    }

    /// Whether `outer` mostly comes at each pass of `inner`, for a while: no loop around it.
    fn at_each(&self, outer: &Candidate, inner: &Candidate) -> bool {
        u64::from(outer.median) * 10 < u64::from(self.mean(inner)) * 15
    }

    fn mean(&self, of: &Candidate) -> u32 {
        let all = self.work[of.last as usize] - self.work[of.first as usize];
        all / (of.count - 1).max(1)
    }

    /// How much more work an interval holds than the shorter ones do.
    fn deviation(&self, of: &Candidate, from: usize, to: usize) -> u32 {
        let graphs = self.graphs[to] - self.graphs[from];
        if graphs < of.graphs {
            // Not the usual work and more, but other work in its place: a prefill step.
            return 0;
        }
        (self.work[to] - self.work[from]).saturating_sub(of.least)
    }
}
