//! Which of the sites that recur is the iteration.

mod candidates;
mod outer;

use crate::call::SiteCall;
use crate::engine::{self, Threads};
use crate::history::{Entry, History, LENGTH};
use crate::rule::Rule;
use crate::site::LEVELS;
use crate::trail::Work;

/// Periods that must have been seen before a site is chosen.
const PERIODS: u32 = 8;
/// The same, where an iteration would be so little work that it may be one layer of a model.
const PERIODS_OF_LITTLE: u32 = 20;
/// Launches below which an interval without a graph is little work.
const LITTLE: u32 = 48;
/// Occurrences that a rarer site needs to replace a more frequent one.
const OUTER: u32 = 5;
/// Occurrences at which it may come to that, so that nothing is chosen yet.
const CONTENDER: u32 = 3;
/// Launches below which that is so: with a model's layers in mind again.
const LITTLE_TO_EXPLAIN: u32 = 96;
/// The part of an iteration's work at which it may have ended, before anything was known.
const SHORT: u32 = 4;
/// Periods after which a choice can be relied on.
const SURE: u32 = 32;
/// The same, where an iteration would be little work.
const SURE_OF_LITTLE: u32 = 128;
/// Periods without a model's ends: more than a model has layers.
const MONOTONOUS: u32 = SURE_OF_LITTLE - 1;
/// Periods until what is steady is looked at again, at the least.
pub(crate) const AGAIN: u32 = 8;
/// Launches, without graphs, of a few iterations of a model with many layers.
const WORK_OF_A_FEW: u32 = 4096;
/// Launches that a model has before and after its layers, at the least: an embedding, a norm, a head,
/// a choice.
const ENDS: u32 = 4;
/// Waits and copies that a model does not have before and after its layers.
const BUSY: usize = 8;
/// The share of periods, in thousandths, that must agree.
const AGREEING: u32 = 500;

const SLOTS: usize = 1024;
const CANDIDATES: usize = 192;
const END: u16 = u16::MAX;

/// What the choice works in.
#[derive(Debug)]
pub(crate) struct Scratch {
    listed: Listed,
    /// Of each entry, the next with the same key.
    next: [[u16; LENGTH]; LEVELS],
    /// The followed threads' work up to and including each entry.
    work: [u32; LENGTH],
    /// Its graphs.
    graphs: [u32; LENGTH],
    sorted: [u32; LENGTH],
    slots: [Slot; SLOTS],
    candidates: [Candidate; CANDIDATES],
}

/// What the lists hold: so many entries of the history, with these threads' work and sites.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Listed {
    entries: usize,
    drops: u32,
    threads: Threads,
    others: Threads,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    key: u32,
    level: u8,
    used: bool,
    first: u16,
    last: u16,
    count: u16,
    /// The followed threads' work at `last`.
    at: u32,
    /// Tells which entries are in the list.
    signature: u32,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    level: u8,
    first: u16,
    last: u16,
    count: u32,
    signature: u32,
    /// Work and graphs of the middle interval.
    median: u32,
    graphs: u32,
    /// Work of the shorter intervals: a quarter of them have no more.
    least: u32,
    /// Work of the longest interval.
    longest: u32,
    /// Intervals unlike the middle one.
    odd: u32,
    /// Of them, those that are shorter: something else came by.
    short: u32,
    /// Of them, those that are longer, and the intervals since the last of them.
    long: u32,
    since_long: u32,
    /// The intervals since the last that may hold a model's ends besides a layer.
    since_more: u32,
    /// It is the site that is followed now.
    current: bool,
}

impl Candidate {
    const NONE: Self = Self {
        level: 0,
        first: 0,
        last: 0,
        count: 0,
        signature: 0,
        median: 0,
        graphs: 0,
        least: 0,
        longest: 0,
        odd: 0,
        short: 0,
        long: 0,
        since_long: 0,
        since_more: 0,
        current: false,
    };

    /// Whether `other` occurs about as often.
    fn alike(&self, other: &Self) -> bool {
        other.count * 10 >= self.count * 7 && other.count * 10 <= self.count * 13
    }

    /// Periods until, at the earliest, it has recurred for long enough without an interval that is
    /// longer, which an outer loop makes, or with so many of them that an outer loop would have
    /// been found. Little work may be a layer of a model, or a warm-up that tries kernels out, and
    /// takes longer.
    fn unsteady_for(&self) -> u32 {
        let even = self.wanted();
        let uneven = if self.little() { 2 * even } else { even };
        let explained = (uneven + 1).saturating_sub(self.count);
        even.saturating_sub(self.since_long)
            .min(self.varied_for())
            .min(explained.max((OUTER + 1).saturating_sub(self.long)))
    }

    /// Periods that it takes to rely on it.
    fn wanted(&self) -> u32 {
        match self.graphs {
            0 => (WORK_OF_A_FEW / self.median.max(1)).clamp(SURE, SURE_OF_LITTLE),
            _ => SURE,
        }
    }

    fn little(&self) -> bool {
        self.graphs == 0 && self.median < LITTLE
    }

    /// Periods until, at the earliest, it has recurred for longer than a model has layers, and not
    /// even a model's first and last few kernels came in between: whatever rarer sites there are,
    /// they explain nothing.
    fn varied_for(&self) -> u32 {
        MONOTONOUS.saturating_sub(self.since_more)
    }

    /// Whether an interval is one in which requests end and begin: with many more calls than usual,
    /// yet not much more work. A model has few waits before and after its layers.
    fn between_requests(&self, from: usize, to: usize, work: u32) -> bool {
        let usual = usize::from(self.last - self.first) / (self.count as usize - 1).max(1);
        to - from > BUSY + 4 * usual && work < 4 * self.median
    }

    /// Whether its intervals are as large as iterations, and alike.
    fn even(&self) -> bool {
        (self.graphs > 0 || self.median >= LITTLE_TO_EXPLAIN) && self.odd * 16 <= self.count
    }

    fn usual(&self, work: u32) -> bool {
        let (work, median) = (u64::from(work), u64::from(self.median));
        work * 2 >= median && work * 2 <= median * 3
    }
}

/// A site, how often it occurred in the whole history, and the followed threads' work since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub rule: Rule,
    pub occurrences: u32,
    pub since: Work,
    /// How often the site that was followed until now occurred.
    pub replaced: u32,
    /// Periods until, at the earliest, it can be relied on; 0: it can be.
    pub unsure_for: u32,
}

impl Scratch {
    pub const fn new() -> Self {
        Self {
            listed: Listed {
                entries: 0,
                drops: 0,
                threads: 0,
                others: 0,
            },
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
    /// Occurrences are counted from entry number `counted` on. `relied_on`: windows may have been
    /// opened by the current rule.
    pub fn choose(
        &mut self,
        history: &History,
        counted: usize,
        current: Option<&Rule>,
        relied_on: bool,
    ) -> Option<Choice> {
        let (rule, unsure_for) = self.rule(history, current, relied_on)?;
        let history = history.since(counted);
        let (occurrences, since) = occurrences(history, &rule);
        Some(Choice {
            rule,
            occurrences,
            since,
            replaced: current.map_or(0, |current| self::occurrences(history, current).0),
            unsure_for,
        })
    }

    fn rule(
        &mut self,
        history: &History,
        current: Option<&Rule>,
        relied_on: bool,
    ) -> Option<(Rule, u32)> {
        let entries = history.entries();
        let engine = engine::engine(entries, current)?;
        let current = current.filter(|rule| rule.threads & 1 << engine.lead != 0);
        self.list(history, &engine);
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
        let waits = entries.iter().filter(|entry| engine.counts(entry)).count();
        let periods = chosen.count.saturating_sub(1);
        let rule = Rule {
            call: Some(entry.call?),
            level,
            key: *entry.keys.get(level as usize)?,
            helper: entry.helper,
            thread: engine.lead as u8,
            threads: engine.threads,
            others: engine.others.count_ones() as u8,
            rivals: engine.rivals,
            median: chosen.median,
            longest: chosen.longest,
            waits: (waits as u32 * 10 + chosen.count / 2) / chosen.count.max(1),
            periods,
            agreeing: periods.saturating_sub(chosen.odd),
            ..Rule::NONE
        };
        let unsure_for = match chosen.unsteady_for() {
            0 if self.is_alone(entries.len(), &chosen) => 0,
            0 => (chosen.count / 4).min(chosen.varied_for()).max(AGAIN),
            periods => periods,
        };
        // What is relied on gives way only to what has recurred for long.
        let other = followed.is_some_and(|c| !c.alike(&chosen));
        (!(relied_on && other && chosen.count <= 2 * PERIODS)).then_some((rule, unsure_for))
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
        // In the midst of a period its last site is one behind.
        let behind = |c: &Candidate| u32::from(c.last < best.last && c.first > best.first);
        // A change of site costs an iteration: only for a clear gain.
        let kept = candidates.iter().filter(alike).find(|c| {
            let tolerated = amiss(best) + behind(c) + c.count / 48;
            c.current && (amiss(c) <= tolerated || amiss(c) < 2 * amiss(best))
        });
        *kept.unwrap_or(best)
    }

    /// Whether no site has been seen of late that is too rare to tell whether it is an outer loop.
    /// Around iterations that are alike, none is, be they large or many.
    fn is_alone(&self, length: usize, chosen: &Candidate) -> bool {
        let wanted = chosen.wanted();
        let total = length.checked_sub(1).map_or(0, |last| self.work[last]);
        chosen.even()
            || chosen.varied_for() == 0
            || chosen.count > 8 * wanted
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
            (CONTENDER..PERIODS).contains(&c.count)
                && u64::from(since) * 2 <= u64::from(c.median) * 3
                && self.replaces_any(found, c, chosen, true)
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

/// How often the site of `rule` ended an iteration, and the work since. It may have been met in a
/// warm-up, too, after little work.
pub(crate) fn occurrences(entries: &[Entry], rule: &Rule) -> (u32, Work) {
    let mut count = 0;
    let mut since = Work::default();
    for entry in entries {
        let own = rule.threads & 1 << entry.thread != 0;
        if own {
            since = since.plus(entry.work());
        }
        if let Some(call) = entry.call
            && (own || rule.helper)
            && since != Work::default()
            && since.weight() >= rule.median / SHORT
            && rule.matches(call, entry.helper, &entry.keys)
        {
            count += 1;
            since = Work::default();
        }
    }
    (count, since)
}
