//! Which of the sites that recur is the iteration.

mod candidate;
mod outer;

use crate::call::SiteCall;
use crate::history::{Entry, LENGTH};
use crate::leader::{engines, leader, rivals, totals};
use crate::rule::Rule;
use crate::site::LEVELS;
use crate::trail::{GRAPH_WEIGHT, Work};

pub(crate) use candidate::SURE;
use candidate::{Candidate, END, LITTLE, OUTER, Occurrences};

/// Periods that must have been seen before a site is chosen.
const PERIODS: u32 = 8;
/// The same, where an iteration would be so little work that it may be one layer of a model.
const PERIODS_OF_LITTLE: u32 = 20;
/// Occurrences at which it may come to that, so that nothing is chosen yet.
const CONTENDER: u32 = 3;
/// The share of periods, in thousandths, that must agree.
const AGREEING: u32 = 500;

const SLOTS: usize = 1024;
const CANDIDATES: usize = 192;

/// What the choice works in.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// Of each entry, the next with the same key.
    next: [[u16; LENGTH]; LEVELS],
    /// The followed thread's work up to and including each entry.
    work: [u32; LENGTH],
    /// Its graphs.
    graphs: [u32; LENGTH],
    sorted: [u32; LENGTH],
    slots: [Slot; SLOTS],
    candidates: [Candidate; CANDIDATES],
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    key: u32,
    level: u8,
    used: bool,
    first: u16,
    last: u16,
    count: u16,
    /// The followed thread's work at `last`.
    at: u32,
    /// Tells which entries are in the list.
    signature: u32,
}

/// A site, how often it occurred in the whole history, and the followed thread's work since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub rule: Rule,
    pub occurrences: u32,
    pub since: Work,
    /// How often the site that was followed until now occurred.
    pub replaced: u32,
    /// It has recurred often enough to be relied on.
    pub sure: bool,
}

impl Scratch {
    pub const fn new() -> Self {
        Self {
            next: [[0; LENGTH]; LEVELS],
            work: [0; LENGTH],
            graphs: [0; LENGTH],
            sorted: [0; LENGTH],
            slots: [Slot {
                key: 0,
                level: 0,
                used: false,
                first: 0,
                last: 0,
                count: 0,
                at: 0,
                signature: 0,
            }; SLOTS],
            candidates: [Candidate::NONE; CANDIDATES],
        }
    }

    /// The site at which iterations end, if the history shows one. `current` is kept unless
    /// another is clearly better.
    ///
    /// Occurrences are counted from entry number `counted` on.
    pub fn choose(
        &mut self,
        history: &[Entry],
        counted: usize,
        current: Option<&Rule>,
    ) -> Option<Choice> {
        let (rule, sure) = self.rule(history, current)?;
        let history = history.get(counted..).unwrap_or(&[]);
        let (occurrences, since) = occurrences(history, &rule);
        Some(Choice {
            rule,
            occurrences,
            since,
            replaced: current.map_or(0, |current| self::occurrences(history, current).0),
            sure,
        })
    }

    fn rule(&mut self, entries: &[Entry], current: Option<&Rule>) -> Option<(Rule, bool)> {
        let totals = totals(entries);
        let leader = leader(entries, &totals, current.map(|rule| rule.thread as usize))?;
        let current = current.filter(|rule| rule.thread as usize == leader);
        let others = engines(&totals, leader) & !(1 << leader);
        let eligible = |entry: &Entry| {
            entry.call.is_some()
                && (entry.thread as usize == leader
                    || entry.helper && others & 1 << entry.thread == 0)
        };
        self.measure(entries, leader);
        self.list(entries, eligible);
        let found = self.candidates(entries, current);
        let followed = self.candidates[..found].iter().find(|c| c.current).copied();
        let chosen = self.outermost(found)?;
        let chosen = self.best_of_its_kind(entries, found, chosen);
        if let Some(current) = current {
            // A good choice is not given up for an inner loop, nor when too little is seen of it.
            let inner = followed.is_some_and(|c| chosen.count * 10 > c.count * 13);
            let short = entries.len() < 6 * current.waits as usize / 10;
            if inner || followed.is_none() && short {
                return None;
            }
        }
        if !self.certain(entries.len(), found, &chosen) {
            return None;
        }
        let entry = entries.get(chosen.first as usize)?;
        let level = chosen.level;
        let waits = entries.iter().filter(|entry| eligible(entry)).count();
        let periods = chosen.count.saturating_sub(1);
        let rule = Rule {
            call: Some(entry.call?),
            level,
            key: *entry.keys.get(level as usize)?,
            helper: entry.helper,
            thread: leader as u8,
            others: others.count_ones() as u8,
            rivals: rivals(&totals, leader),
            median: chosen.median,
            longest: chosen.longest,
            waits: (waits as u32 * 10 + chosen.count / 2) / chosen.count.max(1),
            periods,
            agreeing: periods.saturating_sub(chosen.odd),
            ..Rule::NONE
        };
        let sure = chosen.steady() && self.is_alone(entries.len(), &chosen);
        Some((rule, sure))
    }

    /// Sums up the followed thread's work.
    fn measure(&mut self, entries: &[Entry], leader: usize) {
        let mut sum = Work::default();
        let into = self.work.iter_mut().zip(&mut self.graphs);
        for (entry, (work, graphs)) in entries.iter().zip(into) {
            if entry.thread as usize == leader {
                sum.launches = sum.launches.saturating_add(entry.work().launches);
                sum.graphs = sum.graphs.saturating_add(entry.work().graphs);
            }
            *work = sum.weight();
            *graphs = sum.graphs;
        }
    }

    /// Links the occurrences of every site at every level.
    fn list(&mut self, entries: &[Entry], eligible: impl Fn(&Entry) -> bool) {
        for slot in &mut self.slots {
            slot.used = false;
        }
        for (index, entry) in entries.iter().enumerate().filter(|(_, e)| eligible(e)) {
            let at = self.work[index];
            for (level, &key) in entry.keys.iter().enumerate() {
                let Some(slot) = find(&mut self.slots, key, level as u8) else {
                    continue;
                };
                if slot.used && slot.at == at || !slot.used && at == 0 {
                    // Nothing was launched since: no iteration.
                    continue;
                }
                if slot.used {
                    self.next[level][slot.last as usize] = index as u16;
                    slot.count += 1;
                } else {
                    *slot = Slot {
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

    /// Gathers the sites that still recur, the most frequent first; says how many.
    fn candidates(&mut self, entries: &[Entry], current: Option<&Rule>) -> usize {
        let mut found = 0;
        let total = match entries.len() {
            0 => return 0,
            length => self.work[length - 1],
        };
        for slot in &self.slots {
            if !slot.used || u32::from(slot.count) < 2 {
                continue;
            }
            let candidate = Candidate {
                level: slot.level,
                first: slot.first,
                last: slot.last,
                count: u32::from(slot.count),
                signature: slot.signature,
                current: current
                    .is_some_and(|rule| rule.level == slot.level && rule.key == slot.key),
                ..Candidate::NONE
            };
            let helper = entries.get(slot.first as usize).is_some_and(|e| e.helper);
            // A site that two levels know is one.
            let same = self.candidates[..found]
                .iter_mut()
                .find(|c| c.signature == candidate.signature && c.count == candidate.count);
            if let Some(same) = same {
                let better = preference(helper, candidate.level) < preference(helper, same.level);
                if candidate.current || better && !same.current {
                    *same = candidate;
                }
            } else if found < CANDIDATES {
                self.candidates[found] = candidate;
                found += 1;
            }
        }
        let mut kept = 0;
        for n in 0..found {
            let mut candidate = self.candidates[n];
            self.interval_stats(&mut candidate);
            let since = total - self.work[candidate.last as usize];
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

    fn interval_stats(&mut self, candidate: &mut Candidate) {
        let mut intervals = 0;
        let mut graphs = 0;
        for (from, to) in Occurrences::of(&self.next, candidate).pairs() {
            self.sorted[intervals] = self.work[to] - self.work[from];
            graphs += self.graphs[to] - self.graphs[from];
            intervals += 1;
        }
        let lengths = &mut self.sorted[..intervals];
        if lengths.is_empty() {
            return;
        }
        let (_, median, _) = lengths.select_nth_unstable(intervals / 2);
        candidate.median = *median;
        let (_, least, _) = lengths.select_nth_unstable(intervals / 4);
        candidate.least = *least;
        // At least every other interval has so many.
        candidate.graphs = (graphs + intervals as u32 / 2) / intervals as u32;
        if candidate.median < GRAPH_WEIGHT {
            candidate.graphs = 0;
        }
        for (from, to) in Occurrences::of(&self.next, candidate).pairs() {
            let work = self.work[to] - self.work[from];
            candidate.longest = candidate.longest.max(work);
            // Fewer graphs than usual are other work in their place: a prefill step.
            let replaced = self.graphs[to] - self.graphs[from] < candidate.graphs
                && work >= candidate.median / 8;
            if !replaced && !candidate.usual(work) {
                candidate.odd += 1;
                candidate.short += u32::from(work < candidate.median);
            }
            let long = !replaced && work > candidate.median && !candidate.usual(work);
            candidate.long += u32::from(long);
            candidate.since_long = if long { 0 } else { candidate.since_long + 1 };
        }
    }

    /// Of the sites that occur as often, the steadiest.
    fn best_of_its_kind(&self, entries: &[Entry], found: usize, chosen: Candidate) -> Candidate {
        let candidates = &self.candidates[..found];
        let alike = |c: &&Candidate| chosen.alike(c);
        // What the host reads back is what it waits for: other waits must be steadier by far, and
        // reads are measured by reads alone.
        let reads = |c: &Candidate| {
            let entry = entries.get(c.last as usize);
            entry.is_some_and(|entry| entry.call == Some(SiteCall::CopyToHost))
        };
        let most = |like: &Candidate| {
            let kind = candidates
                .iter()
                .filter(alike)
                .filter(|c| !reads(like) || reads(c));
            kind.map(|c| c.count).max().unwrap_or(0)
        };
        // Occurrences too many, and too few.
        let amiss = |c: &Candidate| 2 * c.short + most(c).saturating_sub(c.count);
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
            )
        };
        let best = candidates.iter().filter(alike).min_by_key(rank);
        let best = best.unwrap_or(&chosen);
        // A change of site costs an iteration: only for a clear gain.
        let kept = candidates.iter().filter(alike).find(|c| {
            c.current && (amiss(c) <= amiss(best) + c.count / 48 || amiss(c) < 2 * amiss(best))
        });
        *kept.unwrap_or(best)
    }

    /// Whether no site has been seen of late that is too rare to tell whether it is an outer loop.
    fn is_alone(&self, length: usize, chosen: &Candidate) -> bool {
        let wanted = chosen.wanted();
        let total = length.checked_sub(1).map_or(0, |last| self.work[last]);
        chosen.count > 8 * wanted
            || !self.slots.iter().any(|slot| {
                let late = u64::from(total.saturating_sub(slot.at));
                slot.used
                    && slot.level == 1
                    && u32::from(slot.count) < OUTER
                    && late < u64::from(wanted) * u64::from(chosen.median)
            })
    }

    /// Whether there is evidence enough.
    fn certain(&self, length: usize, found: usize, chosen: &Candidate) -> bool {
        let periods = chosen.count - 1;
        let wanted = if chosen.little() {
            PERIODS_OF_LITTLE
        } else {
            PERIODS
        };
        if periods < wanted || (periods - chosen.odd) * 1000 < periods * AGREEING {
            return false;
        }
        let total = length.checked_sub(1).map_or(0, |last| self.work[last]);
        !self.candidates[..found].iter().any(|c| {
            // Seen of late, for what it is.
            let since = total - self.work[c.last as usize];
            (CONTENDER..OUTER).contains(&c.count)
                && u64::from(since) * 2 <= u64::from(c.median) * 3
                && self.replaces_any(found, c, chosen)
        })
    }
}

/// Which level to take where several would do, the least first. One call back tells most sites
/// apart and survives a change of batch; a pool of threads is known only by the call.
const fn preference(helper: bool, level: u8) -> u8 {
    match level {
        _ if helper => level,
        0 => 2,
        1 | 2 => level - 1,
        _ => level,
    }
}

/// How often the site of `rule` ended an iteration, and the work since.
pub(crate) fn occurrences(entries: &[Entry], rule: &Rule) -> (u32, Work) {
    let mut count = 0;
    let mut since = Work::default();
    for entry in entries {
        let own = entry.thread == rule.thread;
        if own {
            since = since.plus(entry.work());
        }
        if let Some(call) = entry.call
            && (own || rule.helper)
            && since != Work::default()
            && rule.matches(call, entry.helper, &entry.keys)
        {
            count += 1;
            since = Work::default();
        }
    }
    (count, since)
}

fn find(slots: &mut [Slot; SLOTS], key: u32, level: u8) -> Option<&mut Slot> {
    let start = key as usize ^ (level as usize) << 7;
    let place = (0..16).map(|step| (start + step) % SLOTS).find(|&place| {
        let slot = &slots[place];
        !slot.used || slot.key == key && slot.level == level
    })?;
    slots.get_mut(place)
}
