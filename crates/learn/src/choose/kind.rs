//! Chooses the best site among those of the same loop.

use super::Scratch;
use super::candidate::Candidate;
use crate::call::SiteCall;
use crate::history::Entry;

impl Scratch {
    /// Returns the steadiest among the sites that occur about as often as `chosen`.
    pub(super) fn best_of_its_kind(
        &self,
        entries: &[Entry],
        found: usize,
        chosen: Candidate,
    ) -> Candidate {
        let candidates = &self.candidates[..found];
        // A site that occurs by chance may occur as often.
        let erratic = |c: &Candidate| c.odd > chosen.odd.max(c.count / 4);
        let alike = |c: &&Candidate| chosen.alike(c) && !erratic(c);
        // The host waits for the results that it reads back. So other waits must be much steadier, and reads
        // are compared only with reads.
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
        // Number of surplus and missing occurrences. Occurrences that only another site with a surplus has
        // are missing only where there is a long interval instead.
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
                // One of them among the first few occurrences means little.
                amiss(c).saturating_sub(u32::from(c.count < 24))
                    + if reads && !(helper && c.level > 0) {
                        0
                    } else {
                        1 + c.count / 8
                    },
                helper,
                !reads,
                // The read after most of the work reads its result.
                u32::MAX
                    - entry.map_or(0, |e| e.work().weight().min(c.median) * 8 / c.median.max(1)),
                preference(helper, c.level),
                u32::MAX - entry.map_or(0, |e| e.work().weight()),
            )
        };
        let best = candidates.iter().filter(alike).min_by_key(rank);
        let best = best.unwrap_or(&chosen);
        // In the middle of a period, its last site has one occurrence less.
        let behind = |c: &Candidate| u32::from(c.last < best.last && c.first > best.first);
        // A change of site costs an iteration, so it needs a clear gain.
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

/// Returns the rank of a level where several would do; the least is best. One call back distinguishes most
/// sites and is stable when the batch changes. A pool of threads is known only by the call.
pub(super) const fn preference(helper: bool, level: u8) -> u8 {
    match level {
        _ if helper => level,
        0 => 2,
        1 | 2 => level - 1,
        _ => level,
    }
}
