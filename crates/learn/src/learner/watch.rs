//! Checks that the chosen call site (the wait or copy that ends iterations) still recurs as it did when it was
//! chosen.

use super::{Learner, LearnerState};
use crate::trail::Trails;

/// Limit for the work without an occurrence of the call site. If the limit is exceeded, the loop counts as ended. The
/// limit is `GONE` times the work of the longest period (interval between two occurrences), plus `GONE_WORK` launches.
const GONE: u32 = 4;
const GONE_WORK: u32 = 128;
/// Limit for the number of waits without an occurrence of the call site. If the limit is exceeded, the loop counts as
/// ended. The limit is `GONE_PERIODS` times the waits of a period (interval between two occurrences), plus
/// `GONE_WAITS`.
const GONE_PERIODS: u32 = 8;
const GONE_WAITS: u32 = 64;
/// One in this number of the calls that are not at the call site is examined.
const EXAMINED_IN: u32 = 4;
/// The golden ratio as a fraction of 2^32. A counter to which this number is added for each call selects the calls to
/// examine in an irregular order, which matches no rhythm of the process.
const GOLDEN: u32 = 0x9e37_79b9;
/// Maximum number of history entries for which the learner watches its choice of a call site again after the choice was
/// put in doubt.
const WATCHED_IN_DOUBT: usize = 512;
/// Number of periods (iterations as the rule counts them) that are judged together as a group.
const JUDGED_PERIODS: u32 = 32;
/// Number of unusual periods (iterations with much more or less work than the median) in a group of `JUDGED_PERIODS`
/// that put the choice of a call site in doubt for the first time.
const UNUSUAL_PERIODS: u32 = 4;

impl Learner {
    /// Called for a call that is not at the chosen call site. Checks whether the loop has ended. Only one call in
    /// [`EXAMINED_IN`] is examined, and it counts as that number of calls. The number of calls between two examined
    /// calls varies, because threads may take turns in a fixed rhythm. Always returns false.
    #[inline]
    pub(super) fn miss(&mut self, trails: &Trails, thread: u32) -> bool {
        self.misses = self.misses.wrapping_add(GOLDEN);
        if self.misses < u32::MAX / EXAMINED_IN {
            self.count_misses(trails, thread, EXAMINED_IN);
            self.check_gone(trails);
        }
        false
    }

    pub(super) fn count_misses(&mut self, trails: &Trails, thread: u32, calls: u32) {
        // Waits of a thread that launches nothing may be polling, so they are no sign that the loop has ended.
        if !trails.helper(thread) {
            self.waits = self.waits.saturating_add(calls);
        }
    }

    pub(super) fn check_gone(&mut self, trails: &Trails) {
        let since = trails.work_of(self.rule.threads).since(self.at);
        let work = self.rule.longest.saturating_mul(GONE);
        let waits = (self.rule.waits / 10).saturating_mul(GONE_PERIODS);
        if since.weight() > work.saturating_add(GONE_WORK)
            || self.waits > waits.saturating_add(GONE_WAITS)
        {
            self.lose(trails);
        }
    }

    /// Returns the number of iterations that stay counted after the loop has ended. Iterations of a rule that
    /// never became reliable do not stay counted, because the rule probably counted a warm-up.
    pub(super) const fn standing(&self) -> u64 {
        if self.understood {
            self.closed
        } else {
            self.confirmed
        }
    }

    pub(super) fn lose(&mut self, trails: &Trails) {
        if self.resting {
            let since = trails.work_of(self.rule.threads).since(self.at);
            self.unseen = since.weight();
        }
        self.state = LearnerState::Lost;
        self.periods.search();
        self.pending = None;
        self.closed = self.standing();
        self.understood = false;
        if self.resting {
            self.start_recording(trails);
        } else {
            // Only the history entries after the last occurrence of the old call site are kept, because they belong
            // to the new loop.
            self.keep(self.entries_since);
            self.before = self.closed;
            self.confirmed = self.closed;
            self.look = 0;
        }
    }

    /// Drops all but the last `last` entries of the history.
    pub(super) fn keep(&mut self, last: usize) {
        let forgotten = self.history.entries().len().saturating_sub(last);
        self.history.keep(last);
        self.uncounted = self.uncounted.saturating_sub(forgotten);
    }

    /// Compares `since`, the work of the period that has just ended, with the work of the periods from which the rule
    /// was chosen. If many periods differ, the history is recorded again for a new choice.
    pub(super) fn judge(&mut self, trails: &Trails, since: u32) {
        let (since, median) = (u64::from(since), u64::from(self.rule.median));
        self.judged += 1;
        self.rule.longest = self.rule.longest.max(since as u32);
        if since * 2 < median || since * 4 > median * 7 {
            self.unusual += 1;
        }
        if self.judged >= JUDGED_PERIODS {
            self.judged = 0;
            self.unusual = 0;
        }
        // A doubt is the finding that many periods differed. Each of the first three doubts doubles the number of
        // unusual periods that the next doubt requires.
        let patience = UNUSUAL_PERIODS << self.doubts.min(3);
        if self.unusual >= patience && self.resting {
            self.judged = 0;
            self.unusual = 0;
            self.doubts += 1;
            self.start_recording(trails);
            self.since = self.closed;
            self.watch = WATCHED_IN_DOUBT;
        }
    }

    fn start_recording(&mut self, trails: &Trails) {
        self.resting = false;
        self.history.clear();
        self.uncounted = 0;
        self.before = self.closed;
        self.confirmed = self.closed;
        self.look = 0;
        for (thread, seen) in self.seen.iter_mut().enumerate() {
            *seen = trails.work(thread as u32);
        }
    }
}
