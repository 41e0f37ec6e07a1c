//! Which of the sites that recur is the iteration.

mod candidate;
mod candidates;
mod kind;
mod layers;
mod outer;
mod parts;

use candidate::Candidate;
pub(crate) use parts::Parts;

use crate::engine;
use crate::history::{Entry, History, LENGTH};
use crate::rule::Rule;
use crate::site::LEVELS;
use crate::trail::{Threads, Work};

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
/// Periods without a model's ends: more than a model has layers.
const MONOTONOUS: u32 = 127;
/// Periods until what is steady is looked at again, at the least.
pub(crate) const AGAIN: u32 = 8;
/// Launches that a model has before and after its layers, at the least: an embedding, a norm, a head,
/// a choice.
const ENDS: u32 = 4;
/// Waits and copies that a model does not have before and after its layers.
const BUSY: usize = 8;
/// The longest context that makes an outer loop. Longer ones also separate iterations that
/// alternate between kernels, or that follow a prefill step.
const OUTER_LEVEL: u8 = 2;
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
    /// The slots in use, as so many places.
    taken: [u16; SLOTS],
    takes: usize,
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
    /// Identifies the entries in the list.
    signature: u32,
}

/// A site, how often it occurred in the whole history, and the followed threads' work since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub rule: Rule,
    pub occurrences: u32,
    pub since: Work,
    /// How often the site that was followed until now occurred.
    pub replaced: u32,
    /// Iterations that one ended, as it seems, before this one first occurred.
    pub earlier: u32,
    /// Periods until, at the earliest, it can be relied on; 0: it can be.
    pub unsure_for: u32,
    /// Whether the occurrences are parts of a step.
    pub parts: Parts,
    /// Periods since the last that was far longer than usual.
    steady: u32,
    /// None in the history was.
    unbroken: bool,
}

impl Choice {
    /// Periods since the last that was far longer than usual, of which `before` were known.
    pub const fn steady(&self, before: u32) -> u32 {
        if self.unbroken && before > self.steady {
            before
        } else {
            self.steady
        }
    }
}

/// What is followed until now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Followed<'a> {
    pub rule: &'a Rule,
    /// Windows may have been opened by it.
    pub relied_on: bool,
    /// Periods since the last that was far longer than usual, those before the history included.
    pub steady: u32,
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
            taken: [0; SLOTS],
            takes: 0,
            candidates: [Candidate::NONE; CANDIDATES],
        }
    }

    fn sites(&self) -> impl Iterator<Item = &Slot> {
        let taken = self.taken.iter().take(self.takes);
        taken.filter_map(|&place| self.slots.get(usize::from(place)))
    }

    /// The site at which iterations end, if the history shows one. `current` is kept unless
    /// another is clearly better.
    ///
    /// Occurrences are counted from entry number `counted` on.
    pub fn choose(
        &mut self,
        history: &History,
        counted: usize,
        current: Option<Followed>,
    ) -> Option<Choice> {
        let (chosen, rule, unsure_for) = self.rule(history, current)?;
        let parts = self.parts(history.entries(), &chosen);
        let history = history.since(counted);
        let (occurrences, since) = occurrences(history, &rule);
        Some(Choice {
            rule,
            parts,
            occurrences,
            since,
            replaced: current.map_or(0, |current| self::occurrences(history, current.rule).0),
            earlier: current.map_or(0, |current| earlier(history, current.rule, &rule)),
            unsure_for: match parts {
                Parts::Suspected => unsure_for.max(AGAIN),
                _ => unsure_for,
            },
            steady: chosen.since_long,
            unbroken: chosen.is_unbroken(),
        })
    }

    fn rule(
        &mut self,
        history: &History,
        followed: Option<Followed>,
    ) -> Option<(Candidate, Rule, u32)> {
        let current = followed.map(|followed| followed.rule);
        let entries = history.entries();
        let engine = engine::engine(entries, current)?;
        let current = current.filter(|rule| rule.threads & 1 << engine.lead != 0);
        self.list(history, &engine);
        let found = self.candidates(entries, current);
        let was = self.candidates[..found].iter().find(|c| c.current).copied();
        let chosen = self.outermost(found)?;
        let chosen = self.best_of_its_kind(entries, found, chosen);
        if let Some(current) = current {
            // A good choice is not given up for an inner loop, nor when too little is seen of it.
            let inner = was.is_some_and(|c| chosen.count * 10 > c.count * 13);
            let short = entries.len() < 6 * current.waits as usize / 10;
            if inner || was.is_none() && short {
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
        let steady = followed.filter(|_| was.is_some_and(|c| c.alike(&chosen)));
        let steady = steady.map_or(0, |followed| followed.steady);
        let unsure_for = match chosen.unsteady_for(steady) {
            0 if self.is_alone(entries.len(), found, &chosen) => 0,
            0 => (chosen.count / 4).min(chosen.varied_for()).max(AGAIN),
            periods => periods,
        };
        // What is relied on gives way only to what has recurred for long.
        let relied_on = followed.is_some_and(|followed| followed.relied_on);
        let other = was.is_some_and(|c| !c.alike(&chosen));
        let kept = relied_on && other && chosen.count <= 2 * PERIODS;
        (!kept).then_some((chosen, rule, unsure_for))
    }

    /// Whether no site has been seen of late that is too rare to know whether it is an outer loop.
    /// Around iterations that are alike, none is, be they large or many.
    fn is_alone(&self, length: usize, found: usize, chosen: &Candidate) -> bool {
        let wanted = chosen.wanted();
        let total = length.checked_sub(1).map_or(0, |last| self.work[last]);
        if self.may_be_layer(found, chosen) {
            return chosen.varied_for() == 0;
        }
        chosen.even()
            || chosen.varied_for() == 0
            || chosen.count > 8 * wanted
            || !self.sites().any(|slot| {
                let late = u64::from(total.saturating_sub(slot.at));
                slot.level == 1
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
                && self.replaces_any(found, c, chosen, true).is_some()
        })
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

/// How often the site of `old` seems to have ended an iteration before that of `new` occurred: after
/// at least half the usual work.
fn earlier(entries: &[Entry], old: &Rule, new: &Rule) -> u32 {
    let mut count = 0;
    let mut since = Work::default();
    for entry in entries {
        if new.threads & 1 << entry.thread != 0 {
            since = since.plus(entry.work());
        }
        let Some(call) = entry.call else {
            continue;
        };
        if new.matches(call, entry.helper, &entry.keys) {
            break;
        }
        if since.weight() >= new.median / 2 && old.matches(call, entry.helper, &entry.keys) {
            count += 1;
            since = Work::default();
        }
    }
    count
}
