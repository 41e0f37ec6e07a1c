//! Chooses the call site (a wait or a copy) that ends an iteration, from the sites that recur in the history.

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
use crate::history::{History, HistoryEntry, MAX_ENTRIES};
use crate::rule::LearnedRule;
use crate::site::LEVELS;
use crate::trail::{ThreadLaunches, Threads};

/// Minimum number of periods (intervals between two occurrences) before a call site is chosen.
const MIN_PERIODS: u32 = 8;
/// Minimum number of periods (intervals between two occurrences) before a call site is chosen, if the periods are so
/// small that each may be one layer of a model.
const MIN_PERIODS_OF_LITTLE: u32 = 20;
/// Number of launches below which an interval without a graph launch counts as little work.
const LITTLE: u32 = 48;
/// Minimum number of occurrences that a rarer call site needs to replace a more frequent one.
const MIN_OUTER: u32 = 5;
/// Minimum number of occurrences before a call site counts as a candidate. While a candidate that is rarer than the
/// best one may turn out to belong to an outer loop, no site is chosen.
const CONTENDER: u32 = 3;
/// Number of launches below which an interval may be a layer of a model. For such small intervals, a rarer call site
/// needs to explain only a smaller share of the work to replace a more frequent one.
const LITTLE_TO_EXPLAIN: u32 = 96;
/// When a site is chosen, its earlier occurrences in the history are counted as iterations. Such an occurrence counts
/// only if the work since the previous counted occurrence is at least the usual work divided by this number.
const MIN_WORK_DIVISOR: u32 = 4;
/// A number of periods (intervals between two occurrences of the call site) that exceeds the number of layers of any
/// model. After this many periods without a model's first and last kernels, the periods cannot be layers.
pub(crate) const PERIODS_BEYOND_LAYERS: u32 = 127;
/// Minimum number of periods (intervals between two occurrences of the call site) until the history is examined again
/// to decide whether a new or doubtful choice is reliable.
pub(crate) const MIN_PERIODS_TO_NEXT_LOOK: u32 = 8;
/// Number of launches that each model makes outside its layers, at least: an embedding, a norm, the output head and
/// the sampling of a token. An interval with this many launches more than a layer may contain them.
const ENDS: u32 = 4;
/// Minimum number of waits and copies in an interval that counts as busy, like a layer that loops over its experts.
/// The part of a model before and after its layers has fewer waits and copies.
const BUSY: usize = 8;
/// Longest context that may identify an outer loop, as a level (an index into `site::REACH`). With a longer context,
/// iterations that only alternate between two kernels, or that follow a prefill step, look like an outer loop.
const OUTER_LEVEL: u8 = 2;
/// Minimum share of periods (intervals between two occurrences) with the usual work, in thousandths. A call site with a
/// smaller share is not chosen.
const MIN_AGREEING: u32 = 500;

const MAX_SLOTS: usize = 1024;
const MAX_CANDIDATES: usize = 192;
const END: u16 = u16::MAX;

/// Working memory for the choice of a call site. The lists stay in memory between choices, so that the next choice
/// processes only new entries.
#[derive(Debug)]
pub(crate) struct Scratch {
    listed: ListContents,
    /// For each level of context and each history entry, the index of the next entry with the same key
    /// (occurrence of the same call site).
    next: [[u16; MAX_ENTRIES]; LEVELS],
    /// For each history entry, the total work, in launches, of the followed threads (those that launch for the loop) up
    /// to and including the entry.
    work: [u32; MAX_ENTRIES],
    /// For each history entry, the number of graph launches that are included in its element of `work`.
    graphs: [u32; MAX_ENTRIES],
    sorted: [u32; MAX_ENTRIES],
    slots: [SiteSlot; MAX_SLOTS],
    /// The indices of the elements of `slots` that are in use, so that only these have to be
    /// cleared.
    taken: [u16; MAX_SLOTS],
    takes: usize,
    candidates: [Candidate; MAX_CANDIDATES],
}

/// The input from which the lists of [`Scratch`] were computed: the number of history entries, the number of times
/// that the history had dropped entries, and the threads whose work and call sites were used.
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
    /// Cumulative work of the followed threads (those that launch for the loop) up to the history entry `last`.
    at: u32,
    /// A hash of the indices of all entries at which the call site occurs.
    signature: u32,
}

/// A chosen call site with its evidence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub rule: LearnedRule,
    /// Number of occurrences of the call site in the history, without entries from before the last restart of the count
    /// of iterations.
    pub occurrences: u32,
    /// Lower quartile of the work in the intervals between occurrences of the call site, in launches.
    pub least: u32,
    /// Work of the followed threads (those that launch for the loop) since the last occurrence of the call site.
    pub since: ThreadLaunches,
    /// Number of occurrences of the previously followed call site, in the same part of the history as `occurrences`.
    pub replaced: u32,
    /// Number of iterations that the previously followed call site seems to have ended before the new site first
    /// occurred.
    pub earlier: u32,
    /// Number of further periods (intervals between occurrences) until the choice counts as reliable; 0 if it already
    /// does.
    pub unsure_for: u32,
    /// The relation between occurrences of the site and steps: an occurrence may end a whole step, or only one of
    /// several equal parts of a step.
    pub parts: Parts,
    /// True if enough periods (intervals between occurrences) have about the usual work for a reliable choice.
    pub has_agreement: bool,
    /// Number of periods (intervals between occurrences) since the last period that was far longer than usual.
    steady: u32,
    /// True if no period (interval between occurrences) in the history was far longer than usual.
    unbroken: bool,
}

impl Choice {
    /// Returns the number of periods (intervals between occurrences) since the last period that was far longer than
    /// usual. `before` is the result of the previous examination, which may include periods that the history no
    /// longer holds.
    pub(crate) const fn steady(&self, before: u32) -> u32 {
        if self.unbroken && before > self.steady {
            before
        } else {
            self.steady
        }
    }
}

/// The call site that was followed until now, as input for a new choice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Followed<'a> {
    pub rule: &'a LearnedRule,
    /// True if the call site counted as reliable, so that windows (recorded intervals) may have been opened at it.
    pub relied_on: bool,
    /// Number of periods (intervals between occurrences) since the last period that was far longer than usual,
    /// including periods that the history no longer holds.
    pub steady: u32,
}

impl Scratch {
    pub(crate) const fn new() -> Self {
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

    /// Returns the call site at which iterations end, if the history shows such a site. The site of `current` is kept
    /// unless another site is clearly better. Only occurrences from history entry number `counted` on are counted as
    /// iterations.
    pub(crate) fn choose(
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
            has_agreement: chosen.has_agreement(),
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
    ) -> Option<(Candidate, LearnedRule, u32)> {
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
            // Keep the current call site if the new site belongs to an inner loop. Also keep the current site if the
            // history is too short to contain an occurrence of the current site.
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
        let rule = LearnedRule {
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
            ..LearnedRule::NONE
        };
        let steady = followed.filter(|_| was.is_some_and(|c| c.alike(&chosen)));
        let steady = steady.map_or(0, |followed| followed.steady);
        let unsure_for = match chosen.unsteady_for(steady) {
            0 if !chosen.has_agreement() => MIN_PERIODS_TO_NEXT_LOOK,
            0 if self.is_alone(entries.len(), found, &chosen) => 0,
            0 => (chosen.count / 4)
                .min(chosen.varied_for())
                .max(MIN_PERIODS_TO_NEXT_LOOK),
            periods => periods,
        };
        // Windows (recorded intervals) may begin and end at the call site of the current rule. So a rule that counted
        // as reliable is replaced only by a call site that has occurred more than `2 * MIN_PERIODS` times.
        let relied_on = followed.is_some_and(|followed| followed.relied_on);
        let other = was.is_some_and(|c| !c.alike(&chosen));
        let kept = relied_on && other && chosen.count <= 2 * MIN_PERIODS;
        (!kept).then_some((chosen, rule, unsure_for))
    }

    /// Returns the lower quartile of the durations of a call site's intervals, in nanoseconds: three quarters
    /// of the intervals last at least as long. Returns 0 if no durations are known.
    fn lasts(&mut self, entries: &[HistoryEntry], site: &Candidate) -> u64 {
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

    /// Returns true if the choice need not wait for rarer call sites, one of which may turn out to belong to an outer
    /// loop. The rarer sites are not examined if the iterations are alike and large, or if many iterations have been
    /// seen.
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

    /// Returns true if there is enough evidence that `chosen` ends the iterations.
    fn certain(&self, entries: &[HistoryEntry], found: usize, chosen: &Candidate) -> bool {
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
            // Wait if the call site `c` is rarer than `chosen`, has occurred recently relative to its interval, and
            // may belong to an outer loop.
            let since = total - self.work[c.last as usize];
            (CONTENDER..MIN_PERIODS).contains(&c.count)
                && u64::from(since) * 2 <= u64::from(c.median) * 3
                && self.replaces_any(entries, found, c, chosen, true).is_some()
        }) && !self.may_end_in_long_interval(entries, found, chosen)
    }
}

/// Returns true if an interval with this work may contain the first and last kernels of a model, with or without a
/// layer. `median` is the work of a layer.
pub(crate) const fn may_hold_ends(work: u32, median: u32) -> bool {
    work >= median + ENDS || work * 2 < median
}

/// Returns the number of occurrences of the rule's call site in `entries`, and the work since the last of them. Each
/// occurrence ends an iteration or one of its equal parts. Occurrences after little work are not counted: they may
/// belong to a warm-up.
pub(crate) fn occurrences(entries: &[HistoryEntry], rule: &LearnedRule) -> (u32, ThreadLaunches) {
    let mut count = 0;
    let mut since = ThreadLaunches::default();
    for entry in entries {
        let own = rule.threads & 1 << entry.thread != 0;
        if own {
            since = since.plus(entry.work());
        }
        if let Some(call) = entry.call
            && (own || rule.helper)
            && since != ThreadLaunches::default()
            && since.weight() >= rule.median / MIN_WORK_DIVISOR
            && rule.matches(call, entry.helper, &entry.keys)
        {
            count += 1;
            since = ThreadLaunches::default();
        }
    }
    (count, since)
}

/// Returns the number of iterations that the call site of `old` seems to have ended before the site of `new`
/// first occurred. An iteration is counted only if it has at least half the usual work.
fn earlier(entries: &[HistoryEntry], old: &LearnedRule, new: &LearnedRule) -> u32 {
    let mut count = 0;
    let mut since = ThreadLaunches::default();
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
            since = ThreadLaunches::default();
        }
    }
    count
}
