//! Watches whether what was chosen still recurs as it did.

use super::{Learner, State};
use crate::trail::Trails;

/// The pattern is gone when there was so many times the work of the longest period, and some …
const GONE: u32 = 4;
const GONE_WORK: u32 = 128;
/// … or so many times the waits of a period, and some, without an occurrence.
const GONE_PERIODS: u32 = 8;
const GONE_WAITS: u32 = 64;
/// Of so many calls that are not the site, one is looked at …
const LOOKED_AT: u32 = 4;
/// … at steps of the golden ratio, which no rhythm of the process's own falls in with.
const GOLDEN: u32 = 0x9e37_79b9;
/// Entries watched where there is doubt about the choice.
const DOUBTFUL: usize = 512;
/// Of so many periods …
const JUDGED: u32 = 32;
/// … so many unusual ones cast doubt on the choice.
const DOUBTED: u32 = 4;

impl Learner {
    /// A call that is not the site: is the pattern gone? One of so many is looked at, and stands for
    /// as many: at uneven distances, as threads may take turns.
    #[inline]
    pub(super) fn miss(&mut self, trails: &Trails, thread: u32) -> bool {
        self.misses = self.misses.wrapping_add(GOLDEN);
        if self.misses < u32::MAX / LOOKED_AT {
            self.count_misses(trails, thread, LOOKED_AT);
            self.check_gone(trails);
        }
        false
    }

    pub(super) fn count_misses(&mut self, trails: &Trails, thread: u32, calls: u32) {
        // A thread that only polls says nothing by it.
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

    /// The iterations that stand when the rule is gone. What one counted that was never
    /// understood was a warm-up.
    pub(super) const fn standing(&self) -> u64 {
        if self.understood {
            self.closed
        } else {
            self.confirmed
        }
    }

    fn lose(&mut self, trails: &Trails) {
        if self.resting {
            let since = trails.work_of(self.rule.threads).since(self.at);
            self.unseen = since.weight();
        }
        self.state = State::Lost;
        self.pending = None;
        self.closed = self.standing();
        self.understood = false;
        if self.resting {
            self.start_recording(trails);
        } else {
            // What came after the last occurrence is the new pattern's.
            self.keep(self.entries_since);
            self.before = self.closed;
            self.confirmed = self.closed;
            self.look = 0;
        }
    }

    /// Forgets all but the last entries.
    pub(super) fn keep(&mut self, last: usize) {
        let forgotten = self.history.entries().len().saturating_sub(last);
        self.history.keep(last);
        self.uncounted = self.uncounted.saturating_sub(forgotten);
    }

    /// Watches whether periods still look as they did when the rule was chosen.
    pub(super) fn judge(&mut self, trails: &Trails, since: u32) {
        let (since, median) = (u64::from(since), u64::from(self.rule.median));
        self.judged += 1;
        self.rule.longest = self.rule.longest.max(since as u32);
        if since * 2 < median || since * 4 > median * 7 {
            self.unusual += 1;
        }
        if self.judged >= JUDGED {
            self.judged = 0;
            self.unusual = 0;
        }
        // Doubt that came to nothing comes less easily the next time.
        let patience = DOUBTED << self.doubts.min(3);
        if self.unusual >= patience && self.resting {
            self.judged = 0;
            self.unusual = 0;
            self.doubts += 1;
            self.start_recording(trails);
            self.since = self.closed;
            self.watch = DOUBTFUL;
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
