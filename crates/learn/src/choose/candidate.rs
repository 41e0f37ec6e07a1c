//! A site that may be the one at which iterations end.

use crate::history::LENGTH;
use crate::site::LEVELS;

/// Launches below which an interval without a graph is little work.
pub(super) const LITTLE: u32 = 48;
/// Periods after which a choice can be relied on.
pub(crate) const SURE: u32 = 32;
/// The same, where an iteration would be little work.
pub(super) const SURE_OF_LITTLE: u32 = 128;
/// Launches, without graphs, of a few iterations of a model with many layers.
pub(super) const WORK_OF_A_FEW: u32 = 4096;
/// Occurrences that a rarer site needs to replace a more frequent one.
pub(super) const OUTER: u32 = 5;

/// The end of a list.
pub(super) const END: u16 = u16::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub level: u8,
    pub first: u16,
    pub last: u16,
    pub count: u32,
    pub signature: u32,
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
    /// It is the site that is followed now.
    pub current: bool,
}

impl Candidate {
    pub const NONE: Self = Self {
        level: 0,
        first: 0,
        last: 0,
        count: 0,
        signature: 0,
        median: 0,
        graphs: 0,
        least: 0,
        longest: 0,
        odd: 0,
        short: 0,
        long: 0,
        since_long: 0,
        current: false,
    };

    /// Whether `other` occurs about as often.
    pub fn alike(&self, other: &Self) -> bool {
        other.count * 10 >= self.count * 7 && other.count * 10 <= self.count * 13
    }

    /// Whether it has recurred for so long without an interval that is longer, which an outer loop
    /// makes, or with so many of them that an outer loop would have been found. Little work may
    /// be a layer of a model, or a warm-up that tries kernels out, and takes longer.
    pub fn steady(&self) -> bool {
        let even = self.wanted();
        let uneven = if self.little() { 2 * even } else { even };
        self.since_long >= even || self.count > uneven && self.long > OUTER
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

    pub fn usual(&self, work: u32) -> bool {
        let (work, median) = (u64::from(work), u64::from(self.median));
        work * 2 >= median && work * 2 <= median * 3
    }
}

/// The occurrences of a site, one after the other.
pub(super) struct Occurrences<'a> {
    next: &'a [u16; LENGTH],
    at: u16,
}

impl<'a> Occurrences<'a> {
    pub fn of(next: &'a [[u16; LENGTH]; LEVELS], candidate: &Candidate) -> Self {
        Self {
            next: &next[candidate.level as usize % LEVELS],
            at: candidate.first,
        }
    }

    pub fn pairs(mut self) -> impl Iterator<Item = (usize, usize)> {
        let mut from = self.next();
        core::iter::from_fn(move || {
            let to = self.next()?;
            let pair = (from?, to);
            from = Some(to);
            Some(pair)
        })
    }
}

impl Iterator for Occurrences<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let at = self.at as usize;
        self.at = *self.next.get(at)?;
        Some(at)
    }
}
