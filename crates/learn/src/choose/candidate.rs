//! A site that recurs, and the intervals between its occurrences.

use super::{BUSY, LITTLE, LITTLE_TO_EXPLAIN, MONOTONOUS, OUTER};

/// Periods after which a choice can be relied on.
const SURE: u32 = 32;
/// The same, where an iteration would be little work.
const SURE_OF_LITTLE: u32 = MONOTONOUS + 1;
/// Launches, without graphs, of a few iterations of a model with many layers.
const WORK_OF_A_FEW: u32 = 4096;
/// Launches in a layer, at the least.
const LAYER: u32 = 24;

#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub level: u8,
    pub first: u16,
    pub last: u16,
    pub count: u32,
    pub signature: u32,
    /// Waits and copies in an interval, on average.
    pub calls: usize,
    /// Work and graphs of the middle interval.
    pub median: u32,
    pub graphs: u32,
    /// Work of the shorter intervals: a quarter of them have no more.
    pub least: u32,
    /// Work of the longest interval.
    pub longest: u32,
    /// Intervals unlike the middle one.
    pub odd: u32,
    /// Of them, those that are shorter: something else came by.
    pub short: u32,
    /// Of them, those that are longer, and the intervals since the last of them.
    pub long: u32,
    pub since_long: u32,
    /// The intervals since the last that may hold a model's ends besides a layer.
    pub since_more: u32,
    /// The site that is followed now.
    pub current: bool,
    /// The site of one helper thread: a pool's other threads reach the same place in the program.
    pub one_helper: bool,
    /// It is a pass over the layers of a model.
    pub layered: bool,
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
    };

    /// Whether `other` occurs about as often.
    pub fn alike(&self, other: &Self) -> bool {
        other.count * 10 >= self.count * 7 && other.count * 10 <= self.count * 13
    }

    /// Periods until, at the earliest, it has recurred for long enough without an interval that is
    /// longer, which an outer loop makes, or with so many of them that an outer loop would have
    /// been found. Little work may be a layer of a model, or a warm-up that tries kernels out, and
    /// takes longer.
    /// `steady`: so many were not, before the history as well.
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
        .min(explained.max((OUTER + 1).saturating_sub(self.long)))
    }

    /// Whether no interval was far longer than usual.
    pub const fn is_unbroken(&self) -> bool {
        self.since_long + 1 >= self.count
    }

    /// Periods that it takes to rely on it.
    pub fn wanted(&self) -> u32 {
        match self.graphs {
            0 => (WORK_OF_A_FEW / self.median.max(1)).clamp(SURE, SURE_OF_LITTLE),
            _ => SURE,
        }
    }

    pub fn little(&self) -> bool {
        self.graphs == 0 && self.median < LITTLE
    }

    /// Periods until, at the earliest, it has recurred for longer than a model has layers, and not
    /// even a model's first and last few kernels came in between: whatever rarer sites there are,
    /// they explain nothing.
    pub fn varied_for(&self) -> u32 {
        MONOTONOUS.saturating_sub(self.since_more)
    }

    /// Whether an interval is one in which requests end and begin: with many more calls than usual,
    /// yet not much more work. A model has few waits before and after its layers.
    pub fn between_requests(&self, from: usize, to: usize, work: u32) -> bool {
        to - from > BUSY + 4 * self.calls && work < 4 * self.median
    }

    /// Whether its intervals are as large as iterations, and alike.
    pub fn even(&self) -> bool {
        (self.graphs > 0 || self.median >= LITTLE_TO_EXPLAIN) && self.odd * 16 <= self.count
    }

    pub fn usual(&self, work: u32) -> bool {
        let (work, median) = (u64::from(work), u64::from(self.median));
        work * 2 >= median && work * 2 <= median * 3
    }

    /// Whether its intervals may be layers: alike, and with so many waits and copies, and no graph,
    /// as where a layer loops over its experts.
    pub fn may_be_layer(&self) -> bool {
        self.is_busy() && self.median >= LAYER && self.odd * 4 <= self.count
    }

    /// Whether there are many waits and copies in an interval, and no graph.
    pub fn is_busy(&self) -> bool {
        self.graphs == 0 && self.calls >= BUSY
    }
}
