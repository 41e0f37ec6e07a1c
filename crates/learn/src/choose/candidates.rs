//! Lists the call sites (waits and copies) that recur, and measures the intervals between their occurrences.

use super::kind::preference;
use super::{
    CONTENDER, Candidate, END, ENDS, LITTLE, ListContents, MAX_CANDIDATES, MAX_SLOTS, Scratch,
    SiteSlot, may_hold_ends,
};
use crate::engine::Engine;
use crate::history::{History, HistoryEntry, MAX_ENTRIES};
use crate::rule::LearnedRule;
use crate::site::LEVELS;
use crate::trail::{GRAPH_WEIGHT, Threads};

impl Scratch {
    /// Sums up the work of the followed threads (those that launch for the loop), and links the occurrences of every
    /// call site at every level of context (number of preceding calls). Results for entries that were listed before are
    /// reused if the threads are still the same and the history has dropped no entries since.
    pub(super) fn list(&mut self, history: &History, engine: &Engine) {
        let entries = history.entries();
        let all = ListContents {
            entries: entries.len(),
            drops: history.drops(),
            threads: engine.threads,
            others: engine.others,
        };
        let before = ListContents {
            entries: self.listed.entries,
            ..all
        };
        let first = if self.listed == before && before.entries <= all.entries {
            before.entries
        } else {
            for &place in &self.taken[..self.takes] {
                self.slots[usize::from(place)].used = false;
            }
            self.takes = 0;
            0
        };
        self.listed = all;
        self.measure(entries, first, engine.threads);
        for (index, entry) in entries.iter().enumerate().skip(first) {
            if !engine.counts(entry) {
                continue;
            }
            let at = self.work[index];
            for (level, &key) in entry.keys.iter().enumerate() {
                let Some((place, slot)) = find(&mut self.slots, key, level as u8) else {
                    continue;
                };
                if slot.used && slot.at == at || !slot.used && at == 0 {
                    // The followed threads (those that launch for the loop) have launched nothing since the last
                    // occurrence of the call site. So no iteration ended at this occurrence.
                    continue;
                }
                if slot.used {
                    self.next[level][slot.last as usize] = index as u16;
                    slot.count += 1;
                } else {
                    self.taken[self.takes] = place as u16;
                    self.takes += 1;
                    *slot = SiteSlot {
                        key,
                        level: level as u8,
                        used: true,
                        first: index as u16,
                        last: 0,
                        count: 1,
                        at,
                        signature: 0,
                    };
                }
                self.next[level][index] = END;
                slot.last = index as u16;
                slot.at = at;
                slot.signature = slot
                    .signature
                    .rotate_left(5)
                    .wrapping_add((index as u32).wrapping_mul(0x9e37_79b9));
            }
        }
    }

    fn measure(&mut self, entries: &[HistoryEntry], first: usize, threads: Threads) {
        let (mut work, mut graphs) = match first.checked_sub(1) {
            Some(last) => (self.work[last], self.graphs[last]),
            None => (0, 0),
        };
        for (index, entry) in entries.iter().enumerate().skip(first) {
            if threads & 1 << entry.thread != 0 {
                work = entry.work().weight().saturating_add(work);
                graphs = entry.work().graphs.saturating_add(graphs);
            }
            self.work[index] = work;
            self.graphs[index] = graphs;
        }
    }

    /// Collects the call sites that still recur as candidates for the end of an iteration, the most frequent
    /// first. Returns the number of candidates.
    pub(super) fn candidates(
        &mut self,
        entries: &[HistoryEntry],
        current: Option<&LearnedRule>,
    ) -> usize {
        let total = match entries.len() {
            0 => return 0,
            length => self.work[length - 1],
        };
        let mut least = CONTENDER;
        let found = loop {
            match self.recurring(entries, current, least) {
                Some(found) => break found,
                None => least += 1,
            }
        };
        let mut kept = 0;
        for n in 0..found {
            let mut candidate = self.candidates[n];
            let [first, last] = [candidate.first, candidate.last].map(|n| self.work[n as usize]);
            let since = total - last;
            if u64::from(since) > 4 * u64::from(last - first) + u64::from(LITTLE) {
                continue;
            }
            self.interval_stats(&mut candidate);
            let over = u64::from(since) > 4 * u64::from(candidate.median) + u64::from(LITTLE);
            if candidate.median > 0 && !over {
                self.candidates[kept] = candidate;
                kept += 1;
            }
        }
        self.candidates[..kept]
            .sort_unstable_by_key(|c| (u32::MAX - c.count, c.level, c.first, c.signature));
        kept
    }

    /// Lists the call sites that occurred at least `least` times, each once. For the site of `current`, two occurrences
    /// are enough. Returns `None` if there are more than [`MAX_CANDIDATES`] such sites.
    fn recurring(
        &mut self,
        entries: &[HistoryEntry],
        current: Option<&LearnedRule>,
        least: u32,
    ) -> Option<usize> {
        let mut found = 0;
        let mut known = CandidateTable::new();
        for &place in &self.taken[..self.takes] {
            let slot = &self.slots[usize::from(place)];
            let followed =
                current.is_some_and(|rule| rule.level == slot.level && rule.key == slot.key);
            if u32::from(slot.count) < if followed { 2 } else { least } {
                continue;
            }
            let helper = entries.get(slot.first as usize).is_some_and(|e| e.helper);
            let candidate = Candidate {
                level: slot.level,
                first: slot.first,
                last: slot.last,
                count: u32::from(slot.count),
                signature: slot.signature,
                current: followed,
                one_helper: helper && slot.level > 0,
                ..Candidate::NONE
            };
            // At two levels of context (numbers of preceding calls), a call may have the same occurrences. Then the
            // call site is listed only once, at the level that `preference` ranks first.
            let same = known.find_or_add(&self.candidates, &candidate, found);
            if let Some(same) = same.and_then(|same| self.candidates.get_mut(same)) {
                let better = preference(helper, candidate.level) < preference(helper, same.level);
                if candidate.current || better && !same.current {
                    *same = candidate;
                }
            } else {
                *self.candidates.get_mut(found)? = candidate;
                found += 1;
            }
        }
        Some(found)
    }

    fn interval_stats(&mut self, candidate: &mut Candidate) {
        let mut intervals = 0;
        let mut graphs = 0;
        let (mut least, mut longest) = (u32::MAX, 0);
        for (from, to) in Occurrences::new(&self.next, candidate).pairs() {
            let work = self.work[to] - self.work[from];
            (least, longest) = (least.min(work), longest.max(work));
            self.sorted[intervals] = work;
            graphs += self.graphs[to] - self.graphs[from];
            intervals += 1;
        }
        let lengths = &mut self.sorted[..intervals];
        if lengths.is_empty() {
            return;
        }
        (candidate.median, candidate.least) = (least, least);
        candidate.longest = longest;
        candidate.calls = usize::from(candidate.last - candidate.first) / intervals;
        if least < longest {
            let (shorter, median, _) = lengths.select_nth_unstable(intervals / 2);
            candidate.median = *median;
            candidate.least = match shorter.len() {
                0 => *median,
                _ => *shorter.select_nth_unstable(intervals / 4).1,
            };
        }
        // The mean number of graphs per interval, rounded to the nearest integer. An interval is the stretch between
        // two occurrences of the call site.
        candidate.graphs = (graphs + intervals as u32 / 2) / intervals as u32;
        if candidate.median < GRAPH_WEIGHT {
            candidate.graphs = 0;
        }
        let alike = candidate.usual(least) && candidate.usual(longest);
        if alike && longest < candidate.median + ENDS {
            let intervals = intervals as u32;
            (candidate.since_long, candidate.since_more) = (intervals, intervals);
            return;
        }
        for (from, to) in Occurrences::new(&self.next, candidate).pairs() {
            let work = self.work[to] - self.work[from];
            // An interval with fewer graphs than usual does not count as odd if the program launched kernels in place
            // of the graphs, as in a prefill step.
            let replaced = self.graphs[to] - self.graphs[from] < candidate.graphs
                && work >= candidate.median / 8;
            if !replaced && !candidate.usual(work) {
                candidate.odd += 1;
                let has_graphs = self.graphs[to] > self.graphs[from];
                candidate.odd_with_graphs += u32::from(has_graphs);
                candidate.short += u32::from(work < candidate.median);
            }
            let long = !replaced && work > candidate.median && !candidate.usual(work);
            candidate.long += u32::from(long);
            let more = may_hold_ends(work, candidate.median)
                && !candidate.between_requests(from, to, work);
            candidate.since_more = if more { 0 } else { candidate.since_more + 1 };
            candidate.since_long = if long { 0 } else { candidate.since_long + 1 };
        }
    }
}

/// A hash table that finds a candidate by the occurrences of its call site. It stores indices into the list
/// of candidates.
struct CandidateTable([u8; Self::PLACES]);

impl CandidateTable {
    /// Number of cells in the table: more than twice the number of candidates, so that some cell is always
    /// free and each search ends.
    const PLACES: usize = 512;
    const FREE: u8 = u8::MAX;

    const fn new() -> Self {
        const { assert!(MAX_CANDIDATES < Self::FREE as usize) };
        Self([Self::FREE; Self::PLACES])
    }

    /// Returns the index of the candidate that has the same occurrences as `candidate`. If there is none,
    /// adds `candidate` with the index `new` and returns `None`.
    fn find_or_add(
        &mut self,
        candidates: &[Candidate],
        candidate: &Candidate,
        new: usize,
    ) -> Option<usize> {
        let hash = candidate.signature ^ candidate.signature >> 16 ^ candidate.count;
        let places = (0..Self::PLACES).map(|step| (hash as usize + step) % Self::PLACES);
        for place in places {
            let at = self.0.get_mut(place)?;
            let known = usize::from(*at);
            if *at == Self::FREE {
                if new < MAX_CANDIDATES {
                    *at = new as u8;
                }
                return None;
            }
            let same = candidates.get(known)?;
            if same.signature == candidate.signature && same.count == candidate.count {
                return Some(known);
            }
        }
        None
    }
}

fn find(slots: &mut [SiteSlot; MAX_SLOTS], key: u32, level: u8) -> Option<(usize, &mut SiteSlot)> {
    let start = key as usize ^ (level as usize) << 7;
    let place = (0..16)
        .map(|step| (start + step) % MAX_SLOTS)
        .find(|&place| {
            let slot = &slots[place];
            !slot.used || slot.key == key && slot.level == level
        })?;
    Some((place, slots.get_mut(place)?))
}

/// An iterator over the indices of the history entries at which a call site occurs.
pub(super) struct Occurrences<'a> {
    next: &'a [u16; MAX_ENTRIES],
    at: u16,
}

impl<'a> Occurrences<'a> {
    pub(super) fn new(next: &'a [[u16; MAX_ENTRIES]; LEVELS], candidate: &Candidate) -> Self {
        Self {
            next: &next[candidate.level as usize % LEVELS],
            at: candidate.first,
        }
    }

    /// Returns each interval between two successive occurrences, as the indices of the two history entries.
    pub(super) fn pairs(mut self) -> impl Iterator<Item = (usize, usize)> {
        let mut from = self.next();
        core::iter::from_fn(move || {
            let to = self.next()?;
            let pair = (from?, to);
            from = Some(to);
            Some(pair)
        })
    }
}

impl Iterator for Occurrences<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let at = self.at as usize;
        self.at = *self.next.get(at)?;
        Some(at)
    }
}
