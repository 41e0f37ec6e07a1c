//! Recognizes the layers of a model, in programs that wait for the GPU at each layer.

use super::candidates::Occurrences;
use super::{BUSY, Candidate, ENDS, LITTLE_TO_EXPLAIN, Scratch};

/// The largest number of layers that a model is assumed to have.
const MAX_LAYERS: usize = 128;
/// Minimum number of passes over a model's layers with the same number of layers, before a call site is taken for one
/// that occurs at each layer.
const MIN_PASSES: u32 = 2;
/// Minimum work of a model's first and last kernels together, in tenths of a layer's work, to recognize a pass over the
/// layers by these kernels.
const ENDS_OF_LAYER: i64 = 3;
/// The number of calls per interval counts as varying if its mean deviation is at least the usual number divided by
/// `VARIES`. An example is a layer that loops over its experts.
const VARIES: usize = 16;

impl Scratch {
    /// Returns true if `inner` occurs at each layer of a model and `outer` once in each pass over the layers. There
    /// are two signs: each pass has the same number of layers, and one interval of each pass has more work, because
    /// it includes the first and last kernels of the model. Requests of equal length do not look like passes:
    /// compared with a token, little work is launched between requests.
    pub(super) fn passes_over_layers(&self, outer: &Candidate, inner: &Candidate) -> bool {
        let Some((ends, others)) = self.passes(outer, inner) else {
            return false;
        };
        let usual = others.0.max(i64::from(inner.median));
        let more = ends.0 - usual;
        let wanted = if self.varies(inner) {
            0
        } else {
            usual * ENDS_OF_LAYER / 10
        };
        ends.1 - others.1 <= BUSY as i64 && more >= wanted.max(i64::from(ENDS))
    }

    /// Returns the mean work and the mean number of calls for two groups of intervals of `inner`. The first group is
    /// the intervals in which `outer` occurs, or those that begin where `outer` occurs, whichever have more work. The
    /// second group is all other intervals. Returns `None` if `inner` cannot be a layer, or if too many passes of
    /// `outer` (stretches between two of its occurrences) have another number of intervals of `inner` than the rest.
    fn passes(&self, outer: &Candidate, inner: &Candidate) -> Option<(Mean, Mean)> {
        if inner.count < 2 * outer.count || !inner.may_be_layer() {
            return None;
        }
        let mut counts = [0u16; MAX_LAYERS + 1];
        let (mut periods, mut passes, mut same) = (0, 0usize, 0);
        let amiss = outer.count.saturating_sub(1) / 6;
        let mut outers = Occurrences::new(&self.next, outer).peekable();
        let (mut ending, mut beginning, mut others) =
            (IntervalSum::NONE, IntervalSum::NONE, IntervalSum::NONE);
        let mut begins = false;
        for (from, to) in Occurrences::new(&self.next, inner).pairs() {
            let (mut holds, mut next_begins) = (false, false);
            while let Some(at) = outers.next_if(|&at| at <= to) {
                if at <= from {
                    continue;
                }
                (holds, next_begins) = (true, at == to);
                // The history may begin in the middle of a pass over the layers, so the pass before the first
                // occurrence of `outer` is not counted.
                if periods > 0 {
                    let count = counts.get_mut(passes)?;
                    *count += 1;
                    if passes > 1 {
                        same = same.max(u32::from(*count));
                    }
                    if periods - same > amiss {
                        return None;
                    }
                }
                periods += 1;
                passes = 0;
            }
            passes += 1;
            let sum = match (holds, begins) {
                (true, _) => &mut ending,
                (_, true) => &mut beginning,
                _ => &mut others,
            };
            sum.add(self.work[to] - self.work[from], to - from);
            begins = next_begins;
        }
        let periods = u32::saturating_sub(periods, 1);
        (same >= MIN_PASSES && periods - same <= periods / 6)
            .then(|| (ending.mean().max(beginning.mean()), others.mean()))
    }

    /// Returns true if `chosen` may be a layer of a model. If a model has many layers, the history holds only a few
    /// passes over all layers, too few to recognize the layers by them.
    pub(super) fn may_be_layer(&self, found: usize, chosen: &Candidate) -> bool {
        let layers = |c: &Candidate| self.passes(chosen, c).is_some();
        chosen.is_busy()
            && !chosen.layered
            && self.is_in_pieces(chosen)
            && !self.candidates[..found].iter().any(layers)
    }

    /// Returns true if waits and copies split the work between two occurrences of `of` into small pieces. On average,
    /// the largest piece of an interval must have less than two thirds of the interval's work, and fewer launches than
    /// a whole model (`LITTLE_TO_EXPLAIN`).
    fn is_in_pieces(&self, of: &Candidate) -> bool {
        let (mut pieces, mut all) = (0u64, 0u64);
        for (from, to) in Occurrences::new(&self.next, of).pairs() {
            let works = &self.work[from..=to];
            let piece = works.windows(2).map(|pair| pair[1] - pair[0]).max();
            pieces += u64::from(piece.unwrap_or(0));
            all += u64::from(self.work[to] - self.work[from]);
        }
        let models = u64::from(LITTLE_TO_EXPLAIN) * u64::from(of.count - 1);
        pieces * 3 < all * 2 && pieces < models
    }

    /// Returns true if the number of calls varies between the intervals of `inner`. An example is a layer that loops
    /// over the experts that the router chose.
    fn varies(&self, inner: &Candidate) -> bool {
        let calls = inner.calls;
        let pairs = Occurrences::new(&self.next, inner).pairs();
        let apart = pairs.map(|(from, to)| (to - from).abs_diff(calls));
        apart.sum::<usize>() * VARIES >= calls * inner.count as usize
    }
}

/// The mean work of a group of intervals, in launches, and their mean number of calls.
type Mean = (i64, i64);

/// Sums over a group of intervals, from which its mean is computed.
struct IntervalSum {
    work: u64,
    calls: u64,
    intervals: u64,
}

impl IntervalSum {
    const NONE: Self = Self {
        work: 0,
        calls: 0,
        intervals: 0,
    };

    fn add(&mut self, work: u32, calls: usize) {
        self.work += u64::from(work);
        self.calls += calls as u64;
        self.intervals += 1;
    }

    fn mean(&self) -> Mean {
        let intervals = self.intervals.max(1);
        (
            (self.work / intervals) as i64,
            (self.calls / intervals) as i64,
        )
    }
}
