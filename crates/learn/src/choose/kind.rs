//! Chooses the best call site among those that occur equally often, because they belong to the same loop.

use super::Scratch;
use super::candidate::Candidate;
use crate::call::SiteCall;
use crate::history::HistoryEntry;

impl Scratch {
    /// Returns the steadiest of the call sites that occur about as often as `chosen`.
    pub(super) fn best_of_its_kind(
        &self,
        entries: &[HistoryEntry],
        found: usize,
        chosen: Candidate,
    ) -> Candidate {
        let candidates = &self.candidates[..found];
        // A call site that recurs irregularly can have a similar count only by chance, so it is left out.
        let erratic = |c: &Candidate| c.odd > chosen.odd.max(c.count / 4);
        let alike = |c: &&Candidate| chosen.alike(c) && !erratic(c);
        // The host waits for the results that it reads back, so a device-to-host copy marks the end of an
        // iteration best. A wait of another type must be much steadier to be preferred, and a read is
        // compared only with other reads.
        let reads = |c: &Candidate| {
            let entry = entries.get(c.last as usize);
            entry.is_some_and(|entry| entry.call == Some(SiteCall::CopyToHost))
        };
        let most = |like: &Candidate, clean: bool| {
            let kind = candidates
                .iter()
                .filter(alike)
                .filter(|c| (!reads(like) || reads(c)) && (!clean || c.short == 0));
            kind.map(|c| c.count).max().unwrap_or(0)
        };
        // Computes how many occurrences a call site has too many or too few, compared with the others. If
        // the others have more occurrences only because some of theirs are surplus, occurrences count as
        // missing only as far as there are long intervals in their place.
        let amiss = |c: &Candidate| {
            let missed = most(c, true).saturating_sub(c.count);
            let more = most(c, false).saturating_sub(c.count);
            2 * c.short + missed.max(more.min(c.long + 1))
        };
        let rank = |c: &&Candidate| {
            let entry = entries.get(c.last as usize);
            let helper = entry.is_some_and(|entry| entry.helper);
            let reads = reads(c);
            (
                // One deviation among only a few occurrences means little.
                amiss(c).saturating_sub(u32::from(c.count < 24))
                    + if reads && !(helper && c.level > 0) {
                        0
                    } else {
                        1 + c.count / 8
                    },
                helper,
                !reads,
                // The read that follows most of the work is the one that reads its result.
                u32::MAX
                    - entry.map_or(0, |e| e.work().weight().min(c.median) * 8 / c.median.max(1)),
                preference(helper, c.level),
                u32::MAX - entry.map_or(0, |e| e.work().weight()),
            )
        };
        let best = candidates.iter().filter(alike).min_by_key(rank);
        let best = best.unwrap_or(&chosen);
        // In the middle of a period, the call site that occurs last in it has one occurrence fewer.
        let behind = |c: &Candidate| u32::from(c.last < best.last && c.first > best.first);
        // Changing the call site costs an iteration, so the current site is kept unless another is clearly
        // better.
        let kept = candidates.iter().filter(alike).find(|c| {
            let tolerated = amiss(best) + behind(c) + c.count / 48;
            c.current && (amiss(c) <= tolerated || amiss(c) < 2 * amiss(best))
        });
        Candidate {
            layered: chosen.layered,
            ..*kept.unwrap_or(best)
        }
    }
}

/// Returns the rank of a level of context among call sites that are otherwise equal; the lowest is best. A
/// context of one earlier call distinguishes most sites, and it stays the same when the batch changes. Level
/// 0, without context, is best for helper threads: only the call identifies a pool of threads.
pub(super) const fn preference(helper: bool, level: u8) -> u8 {
    match level {
        _ if helper => level,
        0 => 2,
        1 | 2 => level - 1,
        _ => level,
    }
}
