//! Counts passes: periods of repeating launches. Each pass begins with the same launch and need not end with a wait.
//! If the program waits for nothing, passes are the iterations. Otherwise they are parts of an iteration.

use super::{Boundary, Learner, LearnerState};
use crate::choose::{Choice, MIN_PERIODS_TO_NEXT_LOOK};
use crate::periods::{Recurrence, UNWAITED, UNWAITED_FOR_LONG};
use crate::rule::LearnedRule;
use crate::site;
use crate::trail::Trails;

/// Number of passes (periods of repeating launches) after which they count as reliable parts of an iteration.
const SURE_AFTER: u32 = 32;
/// Number of passes (periods of repeating launches) in a row with equal work after which iterations may be counted by
/// passes instead of by another thread's copies to the host.
const EVEN_RUN: u16 = 32;

/// The level below iterations, if there are two levels: the equal parts of which each iteration consists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inner {
    /// The rule for the call that begins or ends an inner part.
    pub rule: LearnedRule,
    /// Number of inner parts that each iteration has.
    pub each: u32,
    /// The rule for the iterations, which consist of these parts.
    pub outer: LearnedRule,
}

impl Learner {
    /// Returns the inner level (the equal parts of an iteration), if two levels have been found.
    #[must_use]
    pub fn inner(&self) -> Option<Inner> {
        if self.state != LearnerState::Settled {
            return None;
        }
        if self.rule.more_parts > 0 {
            return Some(Inner {
                rule: self.part_rule(),
                each: self.rule.parts(),
                outer: self.rule,
            });
        }
        let anchor = self.part_of_iteration()?;
        let (all, waited) = anchor.intervals();
        let each = match self.held {
            0 => u32::from((all + waited / 2) / waited.max(1)),
            held => held,
        };
        Some(Inner {
            rule: self.pass_rule()?,
            each,
            outer: self.rule,
        })
        .filter(|inner| inner.each > 1)
    }

    /// Returns the launch at which each pass (period of repeating launches) begins, if an iteration ends with a wait
    /// and consists of several passes. Otherwise returns `None`.
    fn part_of_iteration(&self) -> Option<&Recurrence> {
        let anchor = self.periods.found()?;
        let own = self.rule.threads & 1 << anchor.thread != 0;
        (self.rule.period.is_none() && own && anchor.is_part()).then_some(anchor)
    }

    /// Returns the number of passes (periods of repeating launches) found so far. This includes passes that are only
    /// parts of an iteration.
    #[must_use]
    pub fn passes_found(&self) -> u64 {
        self.periods.passes()
    }

    /// Returns true if the learner counts passes (periods of repeating launches) as parts of iterations.
    #[inline]
    pub(super) fn counts_passes(&self) -> bool {
        self.counts_inner && self.has_passes()
    }

    #[cold]
    fn has_passes(&self) -> bool {
        match self.state {
            LearnerState::Settled => {
                self.rule.more_parts == 0 && self.part_of_iteration().is_some()
            }
            LearnerState::Learning | LearnerState::Lost => {
                self.periods.found().is_some_and(Recurrence::is_part)
            }
        }
    }

    /// Returns true if the learner counts the equal parts of an iteration, each of which ends with a wait.
    #[inline]
    pub(super) fn counts_parts(&self) -> bool {
        self.counts_inner && self.state == LearnerState::Settled && self.rule.more_parts > 0
    }

    /// Returns the rule for one of the equal parts of an iteration.
    pub(super) fn part_rule(&self) -> LearnedRule {
        LearnedRule {
            more_parts: 0,
            ..self.rule
        }
    }

    /// Returns the rule that counts passes (periods of repeating launches), or `None` if no passes have been found.
    /// Each pass begins with the same launch after the same preceding launches.
    pub(super) fn pass_rule(&self) -> Option<LearnedRule> {
        let anchor = self.periods.found()?;
        let thread = anchor.thread;
        Some(LearnedRule {
            key: anchor.key,
            thread,
            threads: 1 << thread,
            median: anchor.weight(),
            longest: anchor.weight(),
            periods: u32::from(anchor.intervals().0),
            agreeing: u32::from(anchor.equal),
            period: Some(anchor.interval),
            context: self.pass_context,
            ..LearnedRule::NONE
        })
    }

    /// Returns true if passes (periods of repeating launches) have recurred for long enough to count as reliable
    /// parts.
    pub(super) fn understands_passes(&self) -> bool {
        self.periods.found().is_some_and(|anchor| {
            let outer = anchor.intervals().1 >= 2;
            anchor.count >= SURE_AFTER
                && anchor.is_regular()
                && (outer || anchor.is_unwaited(UNWAITED_FOR_LONG))
        })
    }

    /// Returns true if passes (periods of repeating launches) recur more steadily than another thread's copies to the
    /// host. That thread may be late. It then makes several copies together, after several passes.
    pub(super) fn passes_are_steadier(&self, choice: &Choice) -> bool {
        let rule = &choice.rule;
        self.periods.found().is_some_and(|anchor| {
            rule.helper
                && anchor.run >= EVEN_RUN
                && rule.threads & 1 << anchor.thread != 0
                && anchor.is_even()
                && [rule.median, choice.least].iter().any(|work| {
                    anchor.weight() * 13 >= work * 10 && anchor.weight() * 10 <= work * 13
                })
        })
    }

    /// Counts iterations by passes (periods of repeating launches) instead of by another thread's copies to the host
    /// ("reads"). `ends` is true if a read ends an iteration at this call. Returns true if this read still opens the
    /// next iteration.
    pub(super) fn follow_passes(&mut self, trails: &Trails, ends: bool, unsure_for: u32) -> bool {
        let Some(anchor) = self.periods.found().copied() else {
            return ends;
        };
        self.patience = unsure_for.max(MIN_PERIODS_TO_NEXT_LOOK);
        // If a pass (a period of repeating launches) is a single launch, its result is read after that launch. The next
        // launch then opens the iteration that the read would have opened.
        let is_read = ends && anchor.is_one_launch();
        if self.state != LearnerState::Settled || self.rule.period.is_none() {
            let counted = self.closed - u64::from(is_read);
            self.settle_on_passes(trails, &anchor);
            // Both the passes (periods of repeating launches) and another thread's copies to the host count the
            // iterations. Each of the two counts may have missed some iterations, so the larger count is used.
            self.closed = counted.max(u64::from(anchor.count));
        }
        self.follows_passes = true;
        if unsure_for == 0 && anchor.count >= SURE_AFTER {
            self.understand_passes();
        }
        ends && !is_read
    }

    /// Called when the program has waited, or has copied something to the host. Passes (periods of repeating launches)
    /// may then be only parts of iterations. They are no longer counted as iterations, unless they already count as
    /// reliable or replace late copies to the host (see `follow_passes`).
    pub(super) fn waited(&mut self) {
        self.periods.waited();
        let settled = self.rule.period.is_some() && self.state == LearnerState::Settled;
        if settled && !self.understood && !self.follows_passes {
            self.give_up_passes();
        }
    }

    /// Stops counting passes (periods of repeating launches) as iterations, and discards the iterations counted by
    /// them. The count may still change: the passes never counted as reliable, so no window (recorded interval) has
    /// been opened by them.
    fn give_up_passes(&mut self) {
        self.state = LearnerState::Learning;
        self.follows_passes = false;
        self.closed = self.standing();
        self.before = self.closed;
    }

    /// Stores the number of passes (periods of repeating launches) in the iteration that has just ended.
    pub(super) fn note_held(&mut self) {
        let passes = self.periods.passes();
        let held = passes.saturating_sub(self.passes_at_end);
        self.passes_at_end = passes;
        if held > 0 {
            self.held = u32::try_from(held).unwrap_or(u32::MAX);
        }
    }

    /// Called for a launch that was reported to the learner. Returns the iteration that opens at this launch, if passes
    /// (periods of repeating launches) are counted as iterations or as parts.
    #[inline]
    pub(super) fn passes(&mut self, trails: &Trails, thread: u32) -> Option<Boundary> {
        if self.periods.launched(trails, thread) {
            return self.pass_begins(trails, thread);
        }
        let lost = || self.periods.found().is_none();
        if self.rule.period.is_some() && self.state == LearnerState::Settled && lost() {
            if self.understood {
                self.lose(trails);
            } else {
                self.give_up_passes();
            }
        }
        None
    }

    fn pass_begins(&mut self, trails: &Trails, thread: u32) -> Option<Boundary> {
        let anchor = *self.periods.found()?;
        if self.pass_key != anchor.key {
            self.pass_key = anchor.key;
            self.pass_context = site::launch_context(trails, thread);
        }
        let settled = self.state == LearnerState::Settled;
        if settled && self.rule.period.is_some() && self.rule.key == anchor.key {
            return Some(self.end_pass(trails, &anchor));
        }
        let may_settle = !settled || self.rule.period.is_some();
        if may_settle && anchor.is_unwaited(UNWAITED) {
            self.settle_on_passes(trails, &anchor);
            return Some(self.open());
        }
        self.counts_passes().then(|| self.open())
    }

    /// Begins to count passes (periods of repeating launches) as iterations. `anchor` describes the launch at which
    /// each pass begins.
    fn settle_on_passes(&mut self, trails: &Trails, anchor: &Recurrence) {
        let Some(rule) = self.pass_rule() else { return };
        self.before = self.standing();
        self.closed = self.before + u64::from(anchor.count);
        self.follows_passes = false;
        self.state = LearnerState::Settled;
        self.rule = rule;
        self.understood = false;
        self.at = trails.work_of(rule.threads);
        (self.part, self.waits) = (0, 0);
        (self.judged, self.unusual, self.doubts) = (0, 0, 0);
        self.heir = None;
    }

    fn end_pass(&mut self, trails: &Trails, anchor: &Recurrence) -> Boundary {
        let work = trails.work_of(self.rule.threads);
        let since = work.since(self.at).weight();
        self.at = work;
        self.waits = 0;
        self.closed += 1;
        self.judge(trails, since);
        if !self.understood && anchor.is_unwaited(UNWAITED_FOR_LONG) {
            self.understand_passes();
        }
        self.open()
    }

    fn understand_passes(&mut self) {
        self.understood = true;
        self.since = self.closed;
        self.resting = true;
        self.periods.rest(true);
    }
}
