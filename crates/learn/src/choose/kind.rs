//! Of the sites of one and the same loop, the best.

use super::Scratch;
use super::candidate::Candidate;
use crate::call::SiteCall;
use crate::history::Entry;

impl Scratch {
    /// Of the sites that occur as often, the steadiest.
    pub(super) fn best_of_its_kind(
        &self,
        entries: &[Entry],
        found: usize,
        chosen: Candidate,
    ) -> Candidate {
        let candidates = &self.candidates[..found];
        // What comes by chance may come as often.
        let erratic = |c: &Candidate| c.odd > chosen.odd.max(c.count / 4);
        let alike = |c: &&Candidate| chosen.alike(c) && !erratic(c);
        // What the host reads back is what it waits for: other waits must be steadier by far, and
        // reads are measured by reads alone.
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
        // Occurrences too many, and too few: what another that has too many itself has more of is
        // missed only where there is a long interval instead.
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
                // One among the first few says little.
                amiss(c).saturating_sub(u32::from(c.count < 24))
                    + if reads && !(helper && c.level > 0) {
                        0
                    } else {
                        1 + c.count / 8
                    },
                helper,
                !reads,
                // The read after the bulk of the work is that of its result.
                u32::MAX
                    - entry.map_or(0, |e| e.work().weight().min(c.median) * 8 / c.median.max(1)),
                preference(helper, c.level),
                u32::MAX - entry.map_or(0, |e| e.work().weight()),
            )
        };
        let best = candidates.iter().filter(alike).min_by_key(rank);
        let best = best.unwrap_or(&chosen);
        // In the midst of a period its last site is one behind.
        let behind = |c: &Candidate| u32::from(c.last < best.last && c.first > best.first);
        // A change of site costs an iteration: only for a clear gain.
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

/// Which level to take where several would do, the least first. One call back distinguishes most
/// sites and survives a change of batch; a pool of threads is known only by the call.
pub(super) const fn preference(helper: bool, level: u8) -> u8 {
    match level {
        _ if helper => level,
        0 => 2,
        1 | 2 => level - 1,
        _ => level,
    }
}
