//! The statistics of one launch context (a launch and those before it): the number of its occurrences and the
//! intervals between them.

use super::{LAYER, LITTLE};
use crate::trail::{DEPTH, ThreadLaunches, Trails};

/// Minimum work of a model's first and last kernels together, in tenths of a layer's work. An interval with this much
/// additional work may contain them.
const ENDS_OF_LAYER: u32 = 3;
/// Intervals are nearly equal if their work differs by at most the usual interval's work divided by this number.
const NEAR: u32 = 4;
/// If the work by which other intervals exceed the usual interval ([`Recurrence::interval`]) is less than this share of
/// all work, in thousandths, no outer loop is needed to explain it.
const EXPLAINED: u64 = 60;
/// If the work by which other intervals exceed the usual interval ([`Recurrence::interval`]) is more than this share of
/// all work, in thousandths, the usual intervals are not most of the work.
const UNCOVERED: u64 = 250;
/// Minimum number of launches that a model makes outside its layers: in its first and last kernels.
const ENDS: u32 = 4;
/// When the number of equal intervals reaches this number, all counts of intervals are halved, so that older intervals
/// count less.
const HALVED_AT: u16 = 128;
/// Minimum number of equal intervals before a context (a launch with the launches before it) counts as steady.
const MIN_INTERVALS: u16 = 8;
/// Minimum number of runs (series of equal intervals) before their lengths are compared.
const MIN_RUNS: u16 = 4;
/// A context counts as stale (no longer recurring) if it has not recurred within the work of four intervals
/// plus this number of launches.
const STALE_AFTER: u32 = 48;

/// Statistics of one context: a launch with the seven launches before it, and the intervals between its
/// occurrences.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recurrence {
    pub key: u32,
    pub thread: u8,
    pub is_used: bool,
    /// Number of times that the context has occurred.
    pub count: u32,
    /// The thread's cumulative work (launches of kernels and graphs) when the context occurred last.
    at: ThreadLaunches,
    /// Number of waits of the process when the context occurred last.
    waits: u32,
    /// The usual interval: the work between two occurrences of the context.
    pub interval: ThreadLaunches,
    /// Number of intervals between occurrences whose length is exactly `interval`.
    pub equal: u16,
    /// Number of intervals between occurrences whose length is nearly `interval`.
    near: u16,
    /// Number of intervals between occurrences that have another length than `interval` and contain
    /// no wait.
    odd: u16,
    /// Number of intervals between occurrences that have another length than `interval` and contain
    /// a wait, so that an outer loop may have ended in them.
    broken: u16,
    /// Sum of the work by which intervals of other lengths exceed `interval`.
    excess: u32,
    /// Number of equal intervals in the current run (series of equal intervals). `last_run` is the number in the
    /// previous run.
    pub run: u16,
    last_run: u16,
    /// Number of runs that were as long as the run before them. `other_runs` counts those of another length.
    same_runs: u8,
    other_runs: u8,
    /// Number of intervals since the last wait. `most_unwaited` is the highest value that `unwaited` has reached
    /// before a wait.
    pub unwaited: u16,
    most_unwaited: u16,
    /// Number of intervals between occurrences that contain a wait of the process.
    waited: u16,
}

impl Recurrence {
    pub(crate) const NONE: Self = Self {
        key: 0,
        thread: 0,
        is_used: false,
        count: 0,
        at: ThreadLaunches::NONE,
        waits: 0,
        interval: ThreadLaunches::NONE,
        equal: 0,
        near: 0,
        odd: 0,
        broken: 0,
        excess: 0,
        run: 0,
        last_run: 0,
        same_runs: 0,
        other_runs: 0,
        unwaited: 0,
        most_unwaited: 0,
        waited: 0,
    };

    /// Returns the statistics of a context that occurs for the first time.
    pub(crate) fn first(key: u32, thread: usize, at: ThreadLaunches, waits: u32) -> Self {
        Self {
            key,
            thread: thread as u8,
            is_used: true,
            count: 1,
            at,
            waits,
            ..Self::NONE
        }
    }

    /// Adds an occurrence. `at` is the thread's cumulative work, and `waits` the number of the process's
    /// waits so far.
    pub(crate) fn recur(&mut self, at: ThreadLaunches, waits: u32) {
        let interval = at.since(self.at);
        let waited = waits != self.waits;
        (self.at, self.waits) = (at, waits);
        self.count = self.count.saturating_add(1);
        if waited {
            self.most_unwaited = self.most_unwaited.max(self.unwaited);
            self.unwaited = 0;
            self.waited = self.waited.saturating_add(1);
        } else {
            self.unwaited = self.unwaited.saturating_add(1);
        }
        if interval == self.interval {
            self.equal += 1;
            self.run = self.run.saturating_add(1);
            if self.equal >= HALVED_AT {
                self.halve();
            }
            return;
        }
        self.end_run();
        let (weight, usual) = (interval.weight(), self.weight());
        let more = weight.saturating_sub(usual);
        let others = if weight.abs_diff(usual) <= usual / NEAR {
            &mut self.near
        } else if waited {
            &mut self.broken
        } else {
            &mut self.odd
        };
        *others += 1;
        self.excess = self.excess.saturating_add(more);
        if self.others() > self.equal {
            *self = Self {
                interval,
                equal: 1,
                run: 1,
                near: 0,
                odd: 0,
                broken: 0,
                excess: 0,
                last_run: 0,
                same_runs: 0,
                other_runs: 0,
                waited: 0,
                ..*self
            };
        }
    }

    fn end_run(&mut self) {
        if self.last_run > 0 {
            let same = self.run == self.last_run;
            let runs = if same {
                &mut self.same_runs
            } else {
                &mut self.other_runs
            };
            *runs = runs.saturating_add(1);
        }
        (self.last_run, self.run) = (self.run, 0);
    }

    fn halve(&mut self) {
        for count in [
            &mut self.equal,
            &mut self.near,
            &mut self.odd,
            &mut self.broken,
            &mut self.waited,
        ] {
            *count /= 2;
        }
        self.excess /= 2;
    }

    /// Returns the number of intervals, and the number of intervals that contain a wait.
    pub(crate) const fn intervals(&self) -> (u16, u16) {
        (self.equal + self.others(), self.waited)
    }

    /// Returns the number of intervals whose length is not exactly `interval`.
    pub(crate) const fn others(&self) -> u16 {
        self.near + self.odd + self.broken
    }

    /// Returns the work of a usual interval, in launches.
    pub(crate) const fn weight(&self) -> u32 {
        self.interval.weight()
    }

    /// Returns true if an interval is a single launch, of a kernel or of a graph.
    pub(crate) const fn is_one_launch(&self) -> bool {
        self.interval.launches + self.interval.graphs == 1
    }

    /// Returns true if nearly all intervals are equal, apart from those in which an outer loop may have
    /// ended.
    pub(crate) const fn is_regular(&self) -> bool {
        let (equal, odd) = (self.equal as u32, self.odd as u32);
        let alike = equal + self.near as u32;
        self.equal >= MIN_INTERVALS / 2
            && alike * 10 >= (alike + odd) * 9
            && equal * 3 >= (alike + odd + self.broken as u32) * 2
    }

    /// Returns true if the context has stopped recurring. `now` is its thread's cumulative work.
    pub(crate) const fn is_stale(&self, now: ThreadLaunches) -> bool {
        now.since(self.at).weight() > self.weight().saturating_mul(4).saturating_add(STALE_AFTER)
    }

    /// Returns the mean work by which an interval of another length exceeds the usual interval, in launches.
    fn mean_excess(&self) -> u32 {
        self.excess / u32::from(self.others()).max(1)
    }

    /// Returns true if the interval may be a model's layer, and some intervals contain the model's first and last
    /// kernels, too. The usual interval must be small, and other intervals must exceed the usual interval by enough
    /// work. If the program waits for nothing, any additional work counts as first and last kernels.
    fn has_ends(&self) -> bool {
        let ends = match self.waited {
            0 => 1,
            _ => (self.weight() * ENDS_OF_LAYER / 10).max(ENDS),
        };
        self.weight() < LITTLE && self.others() > 0 && self.mean_excess() >= ends
    }

    /// Returns the share of the work, in thousandths, by which other intervals exceed the usual interval.
    fn excess_share(&self) -> u64 {
        u64::from(self.excess) * 1000 / self.work().max(1)
    }

    /// Returns the total work of all intervals, in launches.
    fn work(&self) -> u64 {
        let equal = u64::from(self.weight()) * u64::from(self.equal + self.others());
        equal + u64::from(self.excess)
    }

    /// Returns true if the longer period `outer` explains why the intervals are not all equal: in each period of
    /// `outer`, one interval differs from the others. If the differing intervals have almost no additional work,
    /// `outer` explains nothing.
    pub(crate) fn is_explained_by(&self, outer: &Self) -> bool {
        if outer.equal < MIN_INTERVALS / 2 || self.others() == 0 {
            return false;
        }
        let between = self.work() / u64::from(self.others());
        u64::from(outer.weight()) * 2 >= between
            && (self.has_ends() || self.excess_share() >= EXPLAINED)
    }

    /// Returns true if most intervals are equal, these make up most of the work, and each has at least [`DEPTH`]
    /// launches, so that it is not just one kernel that is launched repeatedly.
    pub(crate) fn is_steady(&self) -> bool {
        self.weight() >= DEPTH as u32
            && self.equal >= MIN_INTERVALS
            && self.is_regular()
            && self.covers_work()
    }

    /// Returns true if the usual intervals make up most of the work, because other intervals exceed them by little.
    pub(crate) fn covers_work(&self) -> bool {
        self.excess_share() <= UNCOVERED
    }

    /// Returns true if at most one interval in about 32 has another length than the usual one.
    pub(crate) const fn is_even(&self) -> bool {
        self.others() as u32 * 32 <= self.equal as u32
    }

    /// Returns true if the interval may be one layer of a model: each pass has the same number of layers, and some
    /// additional work before and after the layers.
    pub(crate) fn may_be_layer(&self) -> bool {
        self.has_ends() && self.other_runs <= self.same_runs
    }

    /// Returns the thread's work since the last occurrence, in launches.
    pub(crate) fn age(&self, trails: &Trails) -> u32 {
        trails.work(u32::from(self.thread)).since(self.at).weight()
    }

    /// Returns true if the period (the interval between two occurrences) is a part of a longer iteration: at least a
    /// third of the periods contain no wait, and the period is neither a layer nor as small as an operator.
    pub(crate) fn is_part(&self) -> bool {
        let all = self.equal + self.others();
        self.weight() >= LAYER && !self.may_be_layer() && self.waited * 3 <= all * 2
    }

    /// Returns true if the period is an iteration itself: the latest `intervals` periods contain no wait, and this
    /// series is at least twice as long as any earlier series without a wait. Short periods need a longer series.
    pub(crate) fn is_unwaited(&self, intervals: u16) -> bool {
        let small = u32::from(intervals) * LAYER / self.weight().max(1);
        let wanted = intervals.max(small.min(u32::from(u16::MAX)) as u16);
        self.unwaited >= wanted.max(self.most_unwaited.saturating_mul(2))
            && self.stands_alone(wanted)
    }

    /// Returns true if enough periods (intervals between occurrences) have been seen to exclude an outer loop.
    fn stands_alone(&self, intervals: u16) -> bool {
        let runs = u16::from(self.same_runs) + u16::from(self.other_runs);
        let is_long = self.weight() >= LITTLE || self.weight() >= LAYER && runs >= MIN_RUNS;
        !self.may_be_layer() && (is_long || self.run >= intervals)
    }
}
