//! Compares two counts of iterations: the calls of a known engine's step function, and the recurrences of the
//! pattern that the learner has found in the CUDA calls.
//!
//! An engine's function may be called more often than once per iteration (for example, if a draft model's
//! passes call it as well) or less often. The learner continues to observe the calls until it is sure of the
//! pattern, and the comparison takes some iterations after that.

use tllmprof_calls::Call;
use tllmprof_learn::LearnedRule;

use super::counted::Counted;
use super::learned::{Begun, Learned};
use super::threads::Slot;

/// The length of a block of the comparison: a block ends when both counts have grown by at least this number.
const BLOCK: u64 = 32;
/// The number of successive blocks in which the factor between the two counts has to be the same.
const BLOCKS: u64 = 3;
/// The divisor for the tolerance. In a block, the larger count must be about a multiple of the smaller count. The
/// allowed difference is the smaller count divided by this number.
const TOLERANCE: u64 = 16;
/// The number of calls of the engine's function after which the comparison ends without a result.
const LONGEST: u64 = 2048;

/// The result of a comparison in which one count is about a multiple (at least twice) of the other. The fields count
/// from the time when the learner became sure of the pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// The number of calls of the engine's function.
    pub counted: u64,
    /// The number of iterations according to the pattern in the CUDA calls.
    pub learnt: u64,
    /// The larger count divided by the smaller one.
    pub factor: u64,
    /// The pattern that recurs in the CUDA calls.
    pub rule: LearnedRule,
}

/// The two counts of iterations that are compared: calls of the engine's function, and recurrences of the
/// learnt pattern.
#[derive(Clone, Copy, Default)]
struct Counts {
    counted: u64,
    learnt: u64,
}

impl Counts {
    const fn since(self, before: Self) -> Self {
        Self {
            counted: self.counted - before.counted,
            learnt: self.learnt - before.learnt,
        }
    }

    /// Returns the factor between the two counts as a whole number; 1 if the counts agree. Returns `None` if the larger
    /// count is not close to a multiple of the smaller one.
    fn factor(self) -> Option<u64> {
        let few = self.counted.min(self.learnt);
        let many = self.counted.max(self.learnt);
        let factor = (many + few / 2).checked_div(few)?;
        (many.abs_diff(factor * few) * TOLERANCE <= few).then_some(factor)
    }
}

/// A comparison of an engine's steps with the learnt pattern, in progress.
pub struct RuleComparison {
    learned: Learned,
    /// The kind of call that is a step of the engine.
    what: Counted,
    /// The number of calls of the engine's function when the comparison began.
    from: u64,
    /// The number of recurrences of the pattern while the learner (which searches the calls for a pattern) was sure of
    /// the pattern.
    learnt: u64,
    /// The counts at the time when the learner (which searches the calls for a pattern) became sure of the pattern.
    /// `block` has the counts at the end of the latest block.
    sure: Option<Counts>,
    block: Counts,
    /// The factor between the two counts. It has been the same in all blocks so far, and `blocks` is the number of
    /// these blocks.
    factor: u64,
    blocks: u64,
}

/// The progress of the comparison after it has examined a call.
pub enum ComparisonProgress {
    Continues,
    Ends(Option<Mismatch>),
}

impl RuleComparison {
    /// Begins to compare the calls of `what` with the pattern that `learned` finds.
    pub fn new(mut learned: Learned, what: Counted, slots: &[&Slot]) -> Self {
        learned.only_observe();
        Self {
            learned,
            what,
            from: made(what, slots),
            learnt: 0,
            sure: None,
            block: Counts::default(),
            factor: 0,
            blocks: 0,
        }
    }

    /// Returns the limit up to which a thread may count the CUDA call `what` without reporting it. The thread
    /// has made this call `count` times so far.
    pub fn limit(&self, what: Counted, thread: u32, count: u64) -> u64 {
        self.learned.limit(what, thread, count)
    }

    /// Updates the comparison when a thread has entered a launch of GPU work. Returns the comparison's progress.
    pub fn launched(&mut self, what: Counted, slots: &[&Slot], slot: &Slot) -> ComparisonProgress {
        let begun = self.learned.launched(what, slots, slot);
        self.note(begun, slots)
    }

    /// Updates the comparison when a copy or a wait has returned. Returns the comparison's progress.
    pub fn returned(&mut self, call: Call, slots: &[&Slot], slot: &Slot) -> ComparisonProgress {
        let begun = self.learned.returned(call, slots, slot);
        self.note(begun, slots)
    }

    fn note(&mut self, begun: Option<Begun>, slots: &[&Slot]) -> ComparisonProgress {
        let Some(begun) = begun else {
            return ComparisonProgress::Continues;
        };
        let counted = made(self.what, slots);
        if counted - self.from > LONGEST {
            return ComparisonProgress::Ends(None);
        }
        if !begun.understood {
            self.sure = None;
            return ComparisonProgress::Continues;
        }
        self.learnt += 1;
        let now = Counts {
            counted,
            learnt: self.learnt,
        };
        let Some(sure) = self.sure else {
            (self.sure, self.block, self.blocks) = (Some(now), now, 0);
            return ComparisonProgress::Continues;
        };
        let block = now.since(self.block);
        if block.counted.min(block.learnt) < BLOCK {
            return ComparisonProgress::Continues;
        }
        let factor = block.factor().unwrap_or(0);
        let is_first = self.blocks == 0;
        if factor < 2 || !is_first && factor != self.factor {
            return ComparisonProgress::Ends(None);
        }
        (self.factor, self.block) = (factor, now);
        self.blocks += 1;
        if self.blocks < BLOCKS {
            return ComparisonProgress::Continues;
        }
        let Counts { counted, learnt } = now.since(sure);
        ComparisonProgress::Ends(self.learned.rule().map(|rule| Mismatch {
            counted,
            learnt,
            factor,
            rule,
        }))
    }
}

/// Returns the number of calls of `what` that all threads have made. Approximate, because threads may make
/// more of these calls meanwhile.
fn made(what: Counted, slots: &[&Slot]) -> u64 {
    slots.iter().map(|slot| slot.live(what).count()).sum()
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn a_factor_is_whole_or_none() {
        let factor = |counted, learnt| Counts { counted, learnt }.factor();
        assert_eq!(factor(32, 32), Some(1));
        assert_eq!(factor(64, 32), Some(2));
        assert_eq!(factor(159, 80), Some(2));
        assert_eq!(factor(32, 97), Some(3));
        assert_eq!(factor(32, 80), None);
        assert_eq!(factor(150, 32), None);
        assert_eq!(factor(32, 0), None);
    }
}
