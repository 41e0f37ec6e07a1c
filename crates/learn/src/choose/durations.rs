//! Passes of a target model among those of its draft model, if both are graphs: their work looks the same, and
//! only their durations differ.

use super::candidates::Occurrences;
use super::{CONTENDER, Candidate, OUTER_LEVEL, Scratch};
use crate::history::Entry;

/// Minimum number of passes before durations count.
const MIN_PASSES: u32 = 16;
/// Most inner intervals of a pass: as many tokens as are drafted at a time.
const MAX_DRAFTS: u32 = 16;
/// Minimum difference of the shortest and the longest pass.
const VARIES: u32 = 2;
/// An interval at the outer site lasts at least this many times as long as the others.
const LONGER: u64 = 2;

impl Scratch {
    /// Returns true if `chosen` may turn out to be a draft model's pass.
    pub(super) fn may_end_in_long_interval(
        &self,
        entries: &[Entry],
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

    /// Returns true if each pass of `outer` is made of a varying number of short intervals of `inner` and a long one
    /// at its end. Arrivals, such as those of prompts among tokens, also come one after another. If `early` is
    /// true, it is enough that this may turn out to be so.
    pub(super) fn ends_in_long_interval(
        &self,
        entries: &[Entry],
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
        // The longest of the pass's short intervals, and the number of passes whose last interval is the longest.
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
        // As many each time are steps, each n-th of which takes longer.
        let vary = longs > 1 && fewest > 0 && most <= MAX_DRAFTS && most - fewest >= VARIES;
        let average = |lasted: u64, intervals: u64| lasted / intervals.max(1);
        vary && agreeing * 8 >= longs * 7 && average(long, longs) >= average(short, shorts) * LONGER
    }
}
