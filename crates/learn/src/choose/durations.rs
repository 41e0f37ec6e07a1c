//! Distinguishes the passes of a target model from those of its draft model (speculative decoding). If each pass of
//! both models is a graph launch, all passes have about the same number of launches, and only their durations differ.

use super::candidates::Occurrences;
use super::{CONTENDER, Candidate, OUTER_LEVEL, Scratch};
use crate::history::HistoryEntry;

/// Minimum number of passes of the target model (the model that verifies drafted tokens) before durations are compared.
const MIN_PASSES: u32 = 16;
/// Maximum number of short intervals before each pass of the target model (the model that verifies drafted tokens).
/// There is one short interval for each drafted token.
const MAX_DRAFTS: u32 = 16;
/// Minimum difference between the lowest and the highest number of drafted tokens for one pass of the target model. If
/// the number were constant, the passes could be ordinary steps of which each n-th takes longer.
const VARIES: u32 = 2;
/// The last intervals of the passes (stretches between two occurrences of the outer call site) must last, on average,
/// at least this many times as long as the other intervals.
const LONGER: u64 = 2;

impl Scratch {
    /// Returns true if the intervals of `chosen` may turn out to be passes of a draft model when more intervals have
    /// been seen.
    pub(super) fn may_end_in_long_interval(
        &self,
        entries: &[HistoryEntry],
        found: usize,
        chosen: &Candidate,
    ) -> bool {
        chosen.even()
            && self.candidates[..found].iter().any(|c| {
                c.level <= OUTER_LEVEL
                    && c.count <= MIN_PASSES
                    && !c.one_helper
                    && self.ends_in_long_interval(entries, c, chosen, true)
            })
    }

    /// Returns true if nearly every pass of `outer` (the stretch between two of its occurrences) consists of short
    /// intervals of `inner` and one long interval at the end. The number of short intervals must vary. It must also
    /// stay small: a pass with many of them may be all steps of a request, with a pause before the next request. If
    /// `early` is true, fewer passes suffice: the result then means that the passes may turn out to have this form when
    /// more passes have been seen.
    pub(super) fn ends_in_long_interval(
        &self,
        entries: &[HistoryEntry],
        outer: &Candidate,
        inner: &Candidate,
        early: bool,
    ) -> bool {
        let wanted = if early { CONTENDER } else { MIN_PASSES };
        if inner.graphs == 0 || outer.count <= wanted || outer.count * 17 > inner.count * 10 {
            return false;
        }
        let lasted = |from: usize, to: usize| match (entries.get(from), entries.get(to)) {
            (Some(from), Some(to)) => to.times.since(from.times),
            _ => 0,
        };
        let mut outers = Occurrences::new(&self.next, outer).peekable();
        let (mut long, mut longs, mut short, mut shorts) = (0, 0, 0, 0);
        let (mut drafts, mut fewest, mut most) = (0, u32::MAX, 0);
        // `longest` is the duration of the longest interval of the current pass, without the pass's last interval.
        // `agreeing` is the number of passes whose last interval is longer than all of their other intervals.
        let (mut longest, mut agreeing) = (0, 0);
        for (from, to) in Occurrences::new(&self.next, inner).pairs() {
            let lasted = lasted(from, to);
            let ends = outers.next_if(|&at| at <= to).is_some();
            if !ends {
                (short, shorts) = (short + lasted, shorts + 1);
                drafts += 1;
                longest = lasted.max(longest);
                continue;
            }
            (long, longs) = (long + lasted, longs + 1);
            if longs > 1 {
                (fewest, most) = (drafts.min(fewest), drafts.max(most));
            }
            agreeing += u64::from(lasted > longest);
            (drafts, longest) = (0, 0);
        }
        // With a constant number of short intervals, the passes could be ordinary steps of which each n-th takes
        // longer. So the number must vary.
        let vary = longs > 1 && fewest > 0 && most <= MAX_DRAFTS && most - fewest >= VARIES;
        let average = |lasted: u64, intervals: u64| lasted / intervals.max(1);
        vary && agreeing * 8 >= longs * 7 && average(long, longs) >= average(short, shorts) * LONGER
    }
}
