//! Chooses the site that ends an iteration, among the sites that recur.

mod candidate;
mod candidates;
mod durations;
mod kind;
mod layers;
mod outer;
mod parts;

use candidate::Candidate;
use candidates::Occurrences;
pub(crate) use parts::Parts;

use crate::engine;
use crate::history::{Entry, History, MAX_ENTRIES};
use crate::rule::Rule;
use crate::site::LEVELS;
use crate::trail::{Threads, Work};

/// Minimum number of periods before a site is chosen.
const MIN_PERIODS: u32 = 8;
/// The minimum for an iteration of so little work that it may be one layer of a model.
const MIN_PERIODS_OF_LITTLE: u32 = 20;
/// Number of launches below which an interval without a graph is little work.
const LITTLE: u32 = 48;
/// Minimum number of occurrences at which a rarer site replaces a more frequent one.
const MIN_OUTER: u32 = 5;
/// Number of occurrences at which a rarer site may still do so. Nothing is chosen until that is clear.
const CONTENDER: u32 = 3;
/// Number of launches below which an interval is so little work that a smaller share has to be explained.
/// Models' layers are meant again.
const LITTLE_TO_EXPLAIN: u32 = 96;
/// An iteration counts as ended, before anything was known, only after at least one part in this number of
/// its usual work.
const MIN_WORK_DIVISOR: u32 = 4;
/// Number of periods without a model's first and last kernels that rules out layers: more than a model has.
pub(crate) const PERIODS_BEYOND_LAYERS: u32 = 127;
/// Minimum number of periods until the next look at a site that is steady.
pub(crate) const MIN_PERIODS_TO_NEXT_LOOK: u32 = 8;
/// Minimum number of launches that a model has before and after its layers: an embedding, a norm, a head, a
/// choice.
const ENDS: u32 = 4;
/// Number of waits and copies that a model does not have before and after its layers.
const BUSY: usize = 8;
/// The level of the longest context of an outer loop. Longer contexts also separate iterations that alternate
/// between kernels, or that follow a prefill step.
const OUTER_LEVEL: u8 = 2;
/// The least share of periods, in thousandths, that must agree.
const MIN_AGREEING: u32 = 500;

const MAX_SLOTS: usize = 1024;
const MAX_CANDIDATES: usize = 192;
const END: u16 = u16::MAX;

/// The working memory of a choice.
#[derive(Debug)]
pub(crate) struct Scratch {
    listed: ListContents,
    /// For each entry, the next one with the same key, by level.
    next: [[u16; MAX_ENTRIES]; LEVELS],
    /// The followed threads' work up to and including each entry.
    work: [u32; MAX_ENTRIES],
    /// The graphs in that work.
    graphs: [u32; MAX_ENTRIES],
    sorted: [u32; MAX_ENTRIES],
    slots: [SiteSlot; MAX_SLOTS],
    /// The indices of the slots in use.
    taken: [u16; MAX_SLOTS],
    takes: usize,
    candidates: [Candidate; MAX_CANDIDATES],
}

/// The contents of the lists: the number of entries of the history, and the threads whose work and sites they
/// have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ListContents {
    entries: usize,
    drops: u32,
    threads: Threads,
    others: Threads,
}

#[derive(Clone, Copy, Debug)]
struct SiteSlot {
    key: u32,
    level: u8,
    used: bool,
    first: u16,
    last: u16,
    count: u16,
    /// The followed threads' work at `last`.
    at: u32,
    /// A hash of the entries in the list.
    signature: u32,
}

/// A chosen site, the number of its occurrences in the whole history, and the followed threads' work since
/// the last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub rule: Rule,
    pub occurrences: u32,
    /// Lower quartile of the work between occurrences, in launches.
    pub least: u32,
    pub since: Work,
    /// Number of occurrences of the site that was followed until now.
    pub replaced: u32,
    /// Number of iterations that the old site seems to have ended before this one first occurred.
    pub earlier: u32,
    /// Minimum number of periods until it can be relied on; 0 if it can be already.
    pub unsure_for: u32,
    /// Says if the occurrences are parts of a step.
    pub parts: Parts,
    /// Number of periods since the last one that was far longer than usual.
    steady: u32,
    /// True if none in the history was.
    unbroken: bool,
}

impl Choice {
    /// Returns the number of periods since the last one that was far longer than usual; `before` were known
    /// before.
    pub const fn steady(&self, before: u32) -> u32 {
        if self.unbroken && before > self.steady {
            before
        } else {
            self.steady
        }
    }
}

/// The rule that was followed until now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Followed<'a> {
    pub rule: &'a Rule,
    /// True if windows may have been opened by it.
    pub relied_on: bool,
    /// Number of periods since the last one that was far longer than usual, including those before the
    /// history.
    pub steady: u32,
}

impl Scratch {
    pub const fn new() -> Self {
        Self {
            listed: ListContents {
                entries: 0,
                drops: 0,
                threads: 0,
                others: 0,
            },
            next: [[0; MAX_ENTRIES]; LEVELS],
            work: [0; MAX_ENTRIES],
            graphs: [0; MAX_ENTRIES],
            sorted: [0; MAX_ENTRIES],
            slots: [SiteSlot {
                key: 0,
                level: 0,
                used: false,
                first: 0,
                last: 0,
                count: 0,
                at: 0,
                signature: 0,
            }; MAX_SLOTS],
            taken: [0; MAX_SLOTS],
            takes: 0,
            candidates: [Candidate::NONE; MAX_CANDIDATES],
        }
    }

    fn sites(&self) -> impl Iterator<Item = &SiteSlot> {
        let taken = self.taken.iter().take(self.takes);
        taken.filter_map(|&place| self.slots.get(usize::from(place)))
    }

    /// Returns the site at which iterations end, if the history shows one. `current` is kept unless another
    /// is clearly better.
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
            least: chosen.least,
            since,
            replaced: current.map_or(0, |current| self::occurrences(history, current.rule).0),
            earlier: current.map_or(0, |current| earlier(history, current.rule, &rule)),
            unsure_for: match parts {
                Parts::Suspected => unsure_for.max(MIN_PERIODS_TO_NEXT_LOOK),
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
        let chosen = self.outermost(entries, found)?;
        let mut chosen = self.best_of_its_kind(entries, found, chosen);
        chosen.lasts = self.lasts(entries, &chosen);
        if let Some(current) = current {
            // A good choice is not replaced by an inner loop, nor if the history has too few of its periods.
            let inner = was.is_some_and(|c| {
                chosen.count * 10 > c.count * 13 && !chosen.completes(&c, entries)
            });
            let short = entries.len() < 6 * current.waits as usize / 10;
            if inner || was.is_none() && short {
                return None;
            }
        }
        if !self.certain(entries, found, &chosen) {
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
            0 => (chosen.count / 4)
                .min(chosen.varied_for())
                .max(MIN_PERIODS_TO_NEXT_LOOK),
            periods => periods,
        };
        // A rule that is relied on is replaced only by a site that has recurred for long.
        let relied_on = followed.is_some_and(|followed| followed.relied_on);
        let other = was.is_some_and(|c| !c.alike(&chosen));
        let kept = relied_on && other && chosen.count <= 2 * MIN_PERIODS;
        (!kept).then_some((chosen, rule, unsure_for))
    }

    /// Returns the duration of the shorter intervals of a site, in nanoseconds: three quarters of the
    /// intervals last at least as long. Returns 0 if it is not known.
    fn lasts(&mut self, entries: &[Entry], site: &Candidate) -> u64 {
        let mut count = 0;
        for (from, to) in Occurrences::new(&self.next, site).pairs() {
            if let (Some(from), Some(to), Some(place)) = (
                entries.get(from),
                entries.get(to),
                self.sorted.get_mut(count),
            ) {
                *place = u32::try_from(to.times.since(from.times)).unwrap_or(u32::MAX);
                count += 1;
            }
        }
        let lasted = self.sorted.get_mut(..count).unwrap_or_default();
        lasted.sort_unstable();
        lasted.get(count / 4).map_or(0, |lasts| u64::from(*lasts))
    }

    /// Returns true if no site has been seen recently that is too rare to know if it is an outer loop.
    /// Iterations that are alike have no outer loop to find, if they are large or many.
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
                    && u32::from(slot.count) < MIN_OUTER
                    && late < u64::from(wanted) * u64::from(chosen.median)
            })
    }

    /// Returns true if there is enough evidence.
    fn certain(&self, entries: &[Entry], found: usize, chosen: &Candidate) -> bool {
        let periods = chosen.count - 1;
        let wanted = if chosen.little() && !chosen.is_beyond_layers() {
            MIN_PERIODS_OF_LITTLE
        } else {
            MIN_PERIODS
        };
        if periods < wanted || (periods - chosen.odd) * 1000 < periods * MIN_AGREEING {
            return false;
        }
        let last = entries.len().checked_sub(1);
        let total = last.map_or(0, |last| self.work[last]);
        !self.candidates[..found].iter().any(|c| {
            // Seen recently, relative to its interval.
            let since = total - self.work[c.last as usize];
            (CONTENDER..MIN_PERIODS).contains(&c.count)
                && u64::from(since) * 2 <= u64::from(c.median) * 3
                && self.replaces_any(entries, found, c, chosen, true).is_some()
        }) && !self.may_end_in_long_interval(entries, found, chosen)
    }
}

/// Returns true if this much work may include a model's first and last kernels besides a layer, where
/// `median` is the work of a layer.
pub(crate) const fn may_hold_ends(work: u32, median: u32) -> bool {
    work >= median + ENDS || work * 2 < median
}

/// Returns the number of iterations that the site of `rule` ended, and the work since. Occurrences after
/// little work do not count: the site may have occurred in a warm-up, too.
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
            && since.weight() >= rule.median / MIN_WORK_DIVISOR
            && rule.matches(call, entry.helper, &entry.keys)
        {
            count += 1;
            since = Work::default();
        }
    }
    (count, since)
}

/// Returns the number of iterations that the site of `old` seems to have ended before the site of `new` first
/// occurred. Each must have at least half the usual work.
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
