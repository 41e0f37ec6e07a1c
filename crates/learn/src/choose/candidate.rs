//! A site that recurs, and the intervals between its occurrences.

use crate::history::Entry;

use super::{BUSY, LITTLE, LITTLE_TO_EXPLAIN, MIN_OUTER, PERIODS_BEYOND_LAYERS};

/// Number of periods after which a choice can be relied on.
const SURE_AFTER: u32 = 32;
/// The number of periods for an iteration of little work.
const SURE_OF_LITTLE_AFTER: u32 = PERIODS_BEYOND_LAYERS + 1;
/// Number of launches, without graphs, in a few iterations of a model with many layers.
const WORK_OF_A_FEW: u32 = 4096;
/// Duration of an interval, in nanoseconds, from which on it is no layer: a mixture of eight experts takes 10
/// ms, eagerly, on an H200.
const BEYOND_LAYERS: u64 = 40_000_000;
/// Total duration, in nanoseconds, for which such an interval must have recurred before it is relied on …
const MIN_DURATION: u64 = 3_000_000_000;
/// … and the least number of its periods.
const MIN_SURE: u64 = 8;
/// A site is missing in many steps if one in this number of its intervals is longer than usual.
const MISSING_IN: u32 = 8;
/// Minimum number of launches in a layer.
const LAYER: u32 = 24;

#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub level: u8,
    pub first: u16,
    pub last: u16,
    pub count: u32,
    pub signature: u32,
    /// Mean number of waits and copies in an interval.
    pub calls: usize,
    /// Median work of an interval.
    pub median: u32,
    /// Mean number of graphs in an interval.
    pub graphs: u32,
    /// Lower quartile of the intervals' work.
    pub least: u32,
    /// Work of the longest interval.
    pub longest: u32,
    /// Number of intervals unlike the median one.
    pub odd: u32,
    /// Number of these odd intervals that are shorter than the median one: something else came between.
    pub short: u32,
    /// Number of the odd intervals that are longer than the median one.
    pub long: u32,
    /// Number of intervals since the last of these longer ones.
    pub since_long: u32,
    /// Number of intervals since the last one that may include a model's first and last kernels besides a
    /// layer.
    pub since_more: u32,
    /// True if it is the site that is followed now.
    pub current: bool,
    /// True if it is the site of one helper thread. A pool's other threads reach the same place in the
    /// program.
    pub one_helper: bool,
    /// True if it is a pass over the layers of a model.
    pub layered: bool,
    /// Duration of an interval, in nanoseconds; 0 if it is not known.
    pub lasts: u64,
}

impl Candidate {
    pub const NONE: Self = Self {
        level: 0,
        first: 0,
        last: 0,
        count: 0,
        signature: 0,
        calls: 0,
        median: 0,
        graphs: 0,
        least: 0,
        longest: 0,
        odd: 0,
        short: 0,
        long: 0,
        since_long: 0,
        since_more: 0,
        current: false,
        one_helper: false,
        layered: false,
        lasts: 0,
    };

    /// Returns true if `other` occurs about as often.
    pub fn alike(&self, other: &Self) -> bool {
        other.count * 10 >= self.count * 7 && other.count * 10 <= self.count * 13
    }

    /// Returns the minimum number of periods until it has recurred for long enough. Either no interval was
    /// longer, as an outer loop makes it, or enough were for an outer loop to have been found. Little
    /// work takes longer, as it may be a layer of a model, or a warm-up that tries kernels out. `steady` is
    /// the number of periods that were not longer, including those before the history.
    pub fn unsteady_for(&self, steady: u32) -> u32 {
        let even = self.wanted();
        let uneven = if self.little() { 2 * even } else { even };
        let explained = (uneven + 1).saturating_sub(self.count);
        let unbroken = self.is_unbroken();
        even.saturating_sub(if unbroken {
            self.since_long.max(steady)
        } else {
            self.since_long
        })
        .min(self.varied_for())
        .min(explained.max((MIN_OUTER + 1).saturating_sub(self.long)))
    }

    /// Returns true if it is the same call as `other` with a shorter context, so that it includes all
    /// occurrences of `other`, and `other` is missing in many steps: these come to the call another way.
    pub fn completes(&self, other: &Self, entries: &[Entry]) -> bool {
        let level = usize::from(self.level);
        let site = |candidate: &Self| {
            let entry = entries.get(usize::from(candidate.first))?;
            Some((entry.call?, entry.helper, *entry.keys.get(level)?))
        };
        self.level < other.level
            && site(self) == site(other)
            && other.long * MISSING_IN >= other.count
            && self.long * MISSING_IN < self.count
    }

    /// Returns true if no interval was far longer than usual.
    pub const fn is_unbroken(&self) -> bool {
        self.since_long + 1 >= self.count
    }

    /// Returns the number of periods after which it is relied on.
    pub fn wanted(&self) -> u32 {
        let by_work = match self.graphs {
            0 => (WORK_OF_A_FEW / self.median.max(1)).clamp(SURE_AFTER, SURE_OF_LITTLE_AFTER),
            _ => SURE_AFTER,
        };
        match self.is_beyond_layers() {
            true => by_work.min((MIN_DURATION / self.lasts).max(MIN_SURE) as u32),
            false => by_work,
        }
    }

    /// Returns true if its intervals last longer than any layer.
    pub const fn is_beyond_layers(&self) -> bool {
        self.lasts >= BEYOND_LAYERS
    }

    pub fn little(&self) -> bool {
        self.graphs == 0 && self.median < LITTLE
    }

    /// Returns the minimum number of periods until it has recurred more often in a row than a model has
    /// layers, without an interval that includes a model's first and last kernels. After that, rarer sites
    /// explain nothing.
    pub fn varied_for(&self) -> u32 {
        PERIODS_BEYOND_LAYERS.saturating_sub(self.since_more)
    }

    /// Returns true if requests end and begin in an interval: it has many more calls than usual, but not much
    /// more work. A model has few waits before and after its layers.
    pub fn between_requests(&self, from: usize, to: usize, work: u32) -> bool {
        to - from > BUSY + 4 * self.calls && work < 4 * self.median
    }

    /// Returns true if its intervals are as large as iterations, and alike.
    pub fn even(&self) -> bool {
        (self.graphs > 0 || self.median >= LITTLE_TO_EXPLAIN) && self.odd * 16 <= self.count
    }

    pub fn usual(&self, work: u32) -> bool {
        let (work, median) = (u64::from(work), u64::from(self.median));
        work * 2 >= median && work * 2 <= median * 3
    }

    /// Returns true if its intervals may be layers: alike, with many waits and copies, and without a graph,
    /// as when a layer loops over its experts.
    pub fn may_be_layer(&self) -> bool {
        self.is_busy() && self.median >= LAYER && self.odd * 4 <= self.count
    }

    /// Returns true if there are many waits and copies in an interval, and no graph.
    pub fn is_busy(&self) -> bool {
        self.graphs == 0 && self.calls >= BUSY
    }
}
