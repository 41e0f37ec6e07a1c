//! Chooses the best of several call sites that occur equally often because they belong to the same loop.

use super::Scratch;
use super::candidate::Candidate;
use crate::call::SiteCall;
use crate::history::HistoryEntry;

impl Scratch {
    /// Returns the steadiest of the call sites that occur about as often as `chosen`: the site with the fewest missing
    /// and surplus occurrences, with some preference for copies to the host.
    pub(super) fn best_of_its_kind(
        &self,
        entries: &[HistoryEntry],
        found: usize,
        chosen: Candidate,
    ) -> Candidate {
        let candidates = &self.candidates[..found];
        // A call site that recurs irregularly may have a similar number of occurrences only by
        // chance, so it is left out.
        let erratic = |c: &Candidate| c.odd > chosen.odd.max(c.count / 4);
        let alike = |c: &&Candidate| chosen.alike(c) && !erratic(c);
        // A device-to-host copy (a read) marks the end of an iteration best, because the host waits for results in
        // this way. A wait of another type must be much steadier to be preferred. A read is compared only with other
        // reads.
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
        // A penalty for occurrences that seem surplus or missing. A short interval points to a surplus occurrence. The
        // comparison with sites without short intervals shows how many occurrences are missing. A site with short
        // intervals may have more occurrences only because some of its own are surplus. So the comparison with such a
        // site counts at most one missing occurrence for each long interval, and one more.
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
                // A single surplus or missing occurrence among fewer than 24 means little, so it is
                // not counted.
                amiss(c).saturating_sub(u32::from(c.count < 24))
                    + if reads && !(helper && c.level > 0) {
                        0
                    } else {
                        1 + c.count / 8
                    },
                helper,
                !reads,
                // Prefer the read that follows most of the period's work: it reads the result of that work.
                u32::MAX
                    - entry.map_or(0, |e| e.work().weight().min(c.median) * 8 / c.median.max(1)),
                preference(helper, c.level),
                u32::MAX - entry.map_or(0, |e| e.work().weight()),
            )
        };
        let best = candidates.iter().filter(alike).min_by_key(rank);
        let best = best.unwrap_or(&chosen);
        // The history ends in the middle of a period. So a call site that comes late in the period has one occurrence
        // fewer than the sites that come early.
        let behind = |c: &Candidate| u32::from(c.last < best.last && c.first > best.first);
        // A change to another call site may disturb the count of iterations, so the current site is kept unless another
        // site is clearly better.
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

/// Returns the rank of a level of context (number of preceding calls). Among call sites that are otherwise equal, the
/// site with the lowest rank is chosen. A context of one preceding call distinguishes most sites, and it stays the
/// same when the batch changes. For helper threads level 0, without context, is best: it treats all threads of a pool
/// as one site.
pub(super) const fn preference(helper: bool, level: u8) -> u8 {
    match level {
        _ if helper => level,
        0 => 2,
        1 | 2 => level - 1,
        _ => level,
    }
}
