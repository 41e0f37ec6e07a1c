//! A candidate for the end of an iteration: a call site (a wait or a copy) that recurs, with statistics of
//! the intervals between its occurrences.

use crate::history::HistoryEntry;

use super::{BUSY, LITTLE, LITTLE_TO_EXPLAIN, MIN_OUTER, PERIODS_BEYOND_LAYERS};

/// Number of periods (intervals between two occurrences of the call site) after which a choice counts as
/// reliable.
const SURE_AFTER: u32 = 32;
/// Number of periods (intervals between two occurrences of the call site) after which a choice counts as reliable,
/// for iterations with few launches.
const SURE_OF_LITTLE_AFTER: u32 = PERIODS_BEYOND_LAYERS + 1;
/// Number of launches that all periods (intervals between two occurrences of the call site) together should contain
/// before a choice counts as reliable. This is about the number of launches in a few iterations of a model with many
/// layers. Applies only to periods without graph launches.
const WORK_OF_A_FEW: u32 = 4096;
/// Duration in nanoseconds that no layer of a model reaches: a longer interval between two occurrences is not a layer.
/// For comparison: a layer with a mixture of eight experts takes 10 ms on an H200 in eager mode.
const BEYOND_LAYERS: u64 = 40_000_000;
/// Minimum total duration in nanoseconds of the periods (intervals between two occurrences of the call site) before a
/// choice counts as reliable, if each period lasts at least `BEYOND_LAYERS`. Fewer of these long periods are needed
/// than of shorter ones.
const MIN_DURATION: u64 = 3_000_000_000;
/// Minimum number of periods (intervals between two occurrences of the call site) before a choice counts as reliable,
/// if each period lasts at least `BEYOND_LAYERS`. This minimum applies even if fewer periods last `MIN_DURATION`
/// together.
const MIN_SURE: u64 = 8;
/// Minimum share of periods (intervals between two occurrences of the call site) with about the usual work, in
/// thousandths, before a choice counts as reliable. In recorded programs at least 85 % of the true iterations have the
/// usual work. A pattern with a share below this minimum usually belongs to a warm-up.
const MIN_AGREEING_TO_RELY: u32 = 667;
/// If at least one in this number of intervals has clearly more work than usual, the call site is considered missing in
/// many steps: two steps without the call site between them seem to be one interval.
const MISSING_IN: u32 = 8;
/// Minimum number of launches in a layer of a model.
const LAYER: u32 = 24;

#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub level: u8,
    pub first: u16,
    pub last: u16,
    pub count: u32,
    pub signature: u32,
    /// Mean number of history entries in an interval between two occurrences of the call site. These are waits, copies,
    /// and the entries for the work that other threads launched before a wait or copy.
    pub calls: usize,
    /// Median work of an interval between two occurrences, in launches.
    pub median: u32,
    /// Mean number of graph launches in an interval between two occurrences.
    pub graphs: u32,
    /// Lower quartile of the work of the intervals between occurrences, in launches.
    pub least: u32,
    /// Work of the interval between occurrences that has the most work, in launches.
    pub longest: u32,
    /// Number of odd intervals: intervals whose work differs clearly from the median (see `usual`). An interval in
    /// which the program launched kernels in place of the usual graphs does not count.
    pub odd: u32,
    /// Number of odd intervals with graph launches. A program that runs some of its steps as graphs has many such
    /// intervals, although all its steps do the same work.
    pub odd_with_graphs: u32,
    /// Number of odd intervals with less work than the median. They arise if an additional occurrence of the call site
    /// splits an interval.
    pub short: u32,
    /// Number of odd intervals with more work than the median.
    pub long: u32,
    /// Number of intervals since the last interval that is counted in `long`.
    pub since_long: u32,
    /// Number of intervals since the last interval that may contain a model's first and last kernels in addition to a
    /// layer.
    pub since_more: u32,
    /// True if this is the call site that the learner follows now.
    pub current: bool,
    /// True if this call site belongs to one helper thread (a thread that launches nothing itself). If other threads of
    /// a pool reach the same place in the program, this site recurs more rarely than the site of the whole pool.
    pub one_helper: bool,
    /// True if each interval is a pass over the layers of a model.
    pub layered: bool,
    /// Lower quartile of the durations of the intervals between occurrences, in nanoseconds; 0 if unknown.
    pub lasts: u64,
}

impl Candidate {
    pub(crate) const NONE: Self = Self {
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
        odd_with_graphs: 0,
        short: 0,
        long: 0,
        since_long: 0,
        since_more: 0,
        current: false,
        one_helper: false,
        layered: false,
        lasts: 0,
    };

    /// Returns true if `other` occurs about as often as `self`: 70 to 130 % as many times.
    pub(crate) fn alike(&self, other: &Self) -> bool {
        other.count * 10 >= self.count * 7 && other.count * 10 <= self.count * 13
    }

    /// Returns the number of further periods (intervals) for which the call site must recur before the choice counts
    /// as reliable; 0 if the choice is already reliable.
    ///
    /// An interval is long if it has clearly more work than usual. A long interval points to an outer loop. The choice
    /// is reliable after [`wanted`](Self::wanted) periods without a long interval. It is also reliable if there were
    /// enough long intervals to find the outer loop, but no outer loop was found. Sites with little work need more
    /// periods: they may be a layer of a model, or a warm-up that tries out kernels. `steady` is the number of periods
    /// since the last long interval, including periods that the history no longer holds.
    pub(crate) fn unsteady_for(&self, steady: u32) -> u32 {
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

    /// Returns true if the share of intervals with about the usual work is at least [`MIN_AGREEING_TO_RELY`]. Odd
    /// intervals with graph launches count as usual ones.
    pub(crate) fn has_agreement(&self) -> bool {
        let periods = self.count.saturating_sub(1);
        let unlike = self.odd.saturating_sub(self.odd_with_graphs);
        periods.saturating_sub(unlike) * 1000 >= periods * MIN_AGREEING_TO_RELY
    }

    /// Returns true if this call site should replace `other`. Both are the same call, but this site has a shorter
    /// context (fewer preceding calls), and `other` is missing in many steps that this site occurs in. The program
    /// then reaches the call in more than one way, and only the shorter context matches all of them.
    pub(super) fn completes(&self, other: &Self, entries: &[HistoryEntry]) -> bool {
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

    /// Returns true if no interval (between two occurrences of the call site) in the history has clearly more work than
    /// usual.
    pub(crate) const fn is_unbroken(&self) -> bool {
        self.since_long + 1 >= self.count
    }

    /// Returns the number of periods (intervals between occurrences) after which the call site counts as
    /// reliable.
    pub(crate) fn wanted(&self) -> u32 {
        let by_work = match self.graphs {
            0 => (WORK_OF_A_FEW / self.median.max(1)).clamp(SURE_AFTER, SURE_OF_LITTLE_AFTER),
            _ => SURE_AFTER,
        };
        match self.is_beyond_layers() {
            true => by_work.min((MIN_DURATION / self.lasts).max(MIN_SURE) as u32),
            false => by_work,
        }
    }

    /// Returns true if the intervals between occurrences of the call site last longer than any layer of a model.
    pub(crate) const fn is_beyond_layers(&self) -> bool {
        self.lasts >= BEYOND_LAYERS
    }

    pub(crate) fn little(&self) -> bool {
        self.graphs == 0 && self.median < LITTLE
    }

    /// Returns the number of further periods (intervals between occurrences) until the series of successive periods is
    /// longer than a model has layers. A period that may contain a model's first and last kernels interrupts the
    /// series. Once the result is 0, the periods cannot be layers, so no outer loop has to be searched for.
    pub(crate) fn varied_for(&self) -> u32 {
        PERIODS_BEYOND_LAYERS.saturating_sub(self.since_more)
    }

    /// Returns true if requests probably ended and began in the interval between the history entries `from` and `to`,
    /// which has `work` launches: it has many more waits and copies than usual, but not much more work. An interval
    /// with the first and last kernels of a model looks different, because a model has few waits before and after its
    /// layers.
    pub(crate) fn between_requests(&self, from: usize, to: usize, work: u32) -> bool {
        to - from > BUSY + 4 * self.calls && work < 4 * self.median
    }

    /// Returns true if the intervals (between two occurrences of the call site) have as much work as whole iterations,
    /// and at most one in 16 is odd.
    pub(crate) fn even(&self) -> bool {
        (self.graphs > 0 || self.median >= LITTLE_TO_EXPLAIN) && self.odd * 16 <= self.count
    }

    pub(crate) fn usual(&self, work: u32) -> bool {
        let (work, median) = (u64::from(work), u64::from(self.median));
        work * 2 >= median && work * 2 <= median * 3
    }

    /// Returns true if the intervals (between two occurrences of the call site) may be layers of a model: alike, with
    /// many waits and copies, and without a graph. A layer that loops over its experts looks like this.
    pub(crate) fn may_be_layer(&self) -> bool {
        self.is_busy() && self.median >= LAYER && self.odd * 4 <= self.count
    }

    /// Returns true if a usual interval (between two occurrences of the call site) has many waits and copies, and no
    /// graph.
    pub(crate) fn is_busy(&self) -> bool {
        self.graphs == 0 && self.calls >= BUSY
    }
}

#[cfg(test)]
mod tests {
    use super::Candidate;

    #[test]
    fn two_of_three_periods_have_to_agree() {
        let agrees = |odd, odd_with_graphs| {
            let candidate = Candidate {
                count: 313,
                odd,
                odd_with_graphs,
                ..Candidate::NONE
            };
            candidate.has_agreement()
        };
        assert!(agrees(0, 0) && agrees(100, 0));
        assert!(!agrees(147, 0), "165 of 312 agree");
        assert!(agrees(147, 120), "graphs run some of the steps");
    }
}
