//! Nested loops: which of two sites is the iteration.

use super::candidate::{Candidate, OUTER, Occurrences};
use super::{PERIODS, Scratch};

/// The share of the work, in thousandths, that a rarer site must explain to replace the other.
const EXPLAINED: u64 = 60;
/// The same, where the intervals are little work.
const EXPLAINED_OF_LITTLE: u64 = 10;
/// Launches below which that is so: with a model's layers in mind again.
const LITTLE_TO_EXPLAIN: u32 = 96;
/// How uneven, in thousandths, an outer loop's counts of inner passes may be: random arrivals
/// reach 740, draft lengths do not.
const UNEVEN: u64 = 600;
/// So many occurrences an iteration, always the same number, are parts of it.
const PARTS: u32 = 4;
/// The longest context that makes an outer loop. Longer ones also tell apart iterations that
/// alternate between kernels, or that follow a prefill step.
const OUTER_LEVEL: u8 = 2;

impl Scratch {
    /// Goes from the most frequent site outward.
    pub(super) fn outermost(&self, found: usize) -> Option<Candidate> {
        let mut chosen = *self.candidates[..found].first()?;
        for candidate in &self.candidates[1..found] {
            if candidate.count >= OUTER && self.replaces_any(found, candidate, &chosen) {
                chosen = *candidate;
            }
        }
        Some(chosen)
    }

    /// Whether `outer` replaces `inner` or a site that occurs as often.
    pub(super) fn replaces_any(&self, found: usize, outer: &Candidate, inner: &Candidate) -> bool {
        outer.level <= OUTER_LEVEL
            && self.candidates[..found]
                .iter()
                .filter(|c| {
                    c.level <= OUTER_LEVEL && c.count.abs_diff(inner.count) * 5 <= inner.count
                })
                .any(|c| self.replaces(outer, c))
    }

    /// Whether the rarer `outer` is what explains why the work between `inner`'s occurrences
    /// varies, so that it, and not `inner`, is the iteration.
    fn replaces(&self, outer: &Candidate, inner: &Candidate) -> bool {
        if outer.count * 17 > inner.count * 10 {
            return false;
        }
        let mut inner_pairs = Occurrences::of(&self.next, inner).pairs().peekable();
        let (mut before, mut periods, mut sum) = (None, 0, 0u64);
        let (mut fewest, mut most) = (u32::MAX, 0);
        let (mut explained, mut all) = (0, 0);
        let (mut usual, mut occurrences) = (0, 0);
        let mut counts = [0u32; 64];
        for at in Occurrences::of(&self.next, outer) {
            // Inner intervals that end by `at`; then the one that holds it, or begins there.
            let mut passes = 0;
            let mut deviation = 0;
            while let Some(&(from, to)) = inner_pairs.peek() {
                if from > at {
                    break;
                }
                let work = self.work[to] - self.work[from];
                if to >= at {
                    deviation = deviation.max(self.deviation(inner, from, to));
                }
                if to > at {
                    break;
                }
                passes += 1;
                all += u64::from(work);
                usual += u64::from(self.deviation(inner, from, to));
                inner_pairs.next();
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
        let wanted = if inner.graphs == 0 && inner.median < LITTLE_TO_EXPLAIN {
            EXPLAINED_OF_LITTLE
        } else {
            EXPLAINED
        };
        let parts = fewest == most && (2..=PARTS).contains(&most) && periods as u32 >= PERIODS;
        parts || explained * 1000 >= all * wanted
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
