//! Which of the sites that recur is the iteration.

use crate::call::SiteCall;
use crate::history::{Entry, LENGTH};
use crate::rule::Rule;
use crate::site::LEVELS;
use crate::trail::{GRAPH_WEIGHT, THREADS, Work};

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
/// The share of the work, in thousandths, that a rarer site must explain to replace the other.
const EXPLAINED: u64 = 60;
/// The same, where the intervals are little work.
const EXPLAINED_OF_LITTLE: u64 = 10;
/// Launches below which that is so: with a model's layers in mind again.
const LITTLE_TO_EXPLAIN: u32 = 96;
/// How uneven, in thousandths, an outer loop's counts of inner passes may be: random arrivals
/// reach 740, draft lengths do not.
const UNEVEN: u64 = 600;
/// So many occurrences an iteration, always the same number, are parts of it.
const PARTS: u32 = 4;
/// The longest context that makes an outer loop. Longer ones also tell apart iterations that
/// alternate between kernels, or that follow a prefill step.
const OUTER_LEVEL: u8 = 2;
/// Periods after which a choice can be relied on.
pub(crate) const SURE: u32 = 32;
/// The same, where an iteration would be little work.
const SURE_OF_LITTLE: u32 = 128;
/// Launches, without graphs, of a few iterations of a model with many layers.
const WORK_OF_A_FEW: u32 = 4096;
/// The share of periods, in thousandths, that must agree.
const AGREEING: u32 = 500;

/// The last entries, in which a thread that still launches does so.
pub(crate) const LATE: usize = 32;

const SLOTS: usize = 1024;
const CANDIDATES: usize = 192;
const END: u16 = u16::MAX;

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
        current: false,
    };

    /// Whether `other` occurs about as often.
    fn alike(&self, other: &Self) -> bool {
        other.count * 10 >= self.count * 7 && other.count * 10 <= self.count * 13
    }

    /// Whether it has recurred for so long without an interval that is longer, which an outer loop
    /// makes, or with so many of them that an outer loop would have been found. Little work may
    /// be a layer of a model, or a warm-up that tries kernels out, and takes longer.
    fn steady(&self) -> bool {
        let even = self.wanted();
        let uneven = if self.little() { 2 * even } else { even };
        self.since_long >= even || self.count > uneven && self.long > OUTER
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

    fn usual(&self, work: u32) -> bool {
        let (work, median) = (u64::from(work), u64::from(self.median));
        work * 2 >= median && work * 2 <= median * 3
    }
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

    /// Goes from the most frequent site outward.
    fn outermost(&self, found: usize) -> Option<Candidate> {
        let mut chosen = *self.candidates[..found].first()?;
        for candidate in &self.candidates[1..found] {
            if candidate.count >= OUTER && self.replaces_any(found, candidate, &chosen) {
                chosen = *candidate;
            }
        }
        Some(chosen)
    }

    /// Whether `outer` replaces `inner` or a site that occurs as often.
    fn replaces_any(&self, found: usize, outer: &Candidate, inner: &Candidate) -> bool {
        outer.level <= OUTER_LEVEL
            && self.candidates[..found]
                .iter()
                .filter(|c| {
                    c.level <= OUTER_LEVEL && c.count.abs_diff(inner.count) * 5 <= inner.count
                })
                .any(|c| self.replaces(outer, c))
    }

    /// Whether the rarer `outer` is what explains why the work between `inner`'s occurrences
    /// varies, so that it, and not `inner`, is the iteration.
    fn replaces(&self, outer: &Candidate, inner: &Candidate) -> bool {
        if outer.count * 17 > inner.count * 10 {
            return false;
        }
        let mut inner_pairs = Occurrences::of(&self.next, inner).pairs().peekable();
        let (mut before, mut periods, mut sum) = (None, 0, 0u64);
        let (mut fewest, mut most) = (u32::MAX, 0);
        let (mut explained, mut all) = (0, 0);
        let (mut usual, mut occurrences) = (0, 0);
        let mut counts = [0u32; 64];
        for at in Occurrences::of(&self.next, outer) {
            // Inner intervals that end by `at`; then the one that holds it, or begins there.
            let mut passes = 0;
            let mut deviation = 0;
            while let Some(&(from, to)) = inner_pairs.peek() {
                if from > at {
                    break;
                }
                let work = self.work[to] - self.work[from];
                if to >= at {
                    deviation = deviation.max(self.deviation(inner, from, to));
                }
                if to > at {
                    break;
                }
                passes += 1;
                all += u64::from(work);
                usual += u64::from(self.deviation(inner, from, to));
                inner_pairs.next();
            }
            explained += u64::from(deviation);
            occurrences += 1;
            if before.is_some() {
                if let Some(count) = counts.get_mut(periods) {
                    *count = passes;
                }
                periods += 1;
                sum += u64::from(passes);
                fewest = fewest.min(passes);
                most = most.max(passes);
            }
            before = Some(at);
        }
        // Only what there is more of at `outer` than elsewhere.
        let explained = explained.saturating_sub(usual * occurrences / u64::from(inner.count));
        let kept = periods.min(counts.len());
        if kept == 0 || sum == 0 || all == 0 {
            return false;
        }
        let (mean, each) = (sum, periods as u64);
        let spread = counts[..kept]
            .iter()
            .map(|&passes| (u64::from(passes) * each).abs_diff(mean))
            .sum::<u64>()
            / each;
        let total: u64 = counts[..kept].iter().map(|&passes| u64::from(passes)).sum();
        if spread * 1000 > total * UNEVEN {
            return false;
        }
        let wanted = if inner.graphs == 0 && inner.median < LITTLE_TO_EXPLAIN {
            EXPLAINED_OF_LITTLE
        } else {
            EXPLAINED
        };
        let parts = fewest == most && (2..=PARTS).contains(&most) && periods as u32 >= PERIODS;
        parts || explained * 1000 >= all * wanted
    }

    /// How much more work an interval holds than the shorter ones do.
    fn deviation(&self, of: &Candidate, from: usize, to: usize) -> u32 {
        let graphs = self.graphs[to] - self.graphs[from];
        if graphs < of.graphs {
            // Not the usual work and more, but other work in its place: a prefill step.
            return 0;
        }
        (self.work[to] - self.work[from]).saturating_sub(of.least)
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

/// Work of each thread.
fn totals(entries: &[Entry]) -> [u32; THREADS] {
    let mut totals = [0u32; THREADS];
    for entry in entries {
        if let Some(total) = totals.get_mut(entry.thread as usize) {
            *total = total.saturating_add(entry.work().weight());
        }
    }
    totals
}

/// The thread that launched most, of those that still launch. The one that is `followed` stays
/// so unless another does more than twice as much.
fn leader(entries: &[Entry], totals: &[u32; THREADS], followed: Option<usize>) -> Option<usize> {
    let late = |last| {
        let begin = entries.len().saturating_sub(last);
        self::totals(entries.get(begin..).unwrap_or(&[]))
    };
    if let Some(followed) = followed {
        let active = |late: [u32; THREADS]| {
            let most = late.iter().max().copied().unwrap_or(0);
            late.get(followed).is_some_and(|&work| work > most / 2)
        };
        if active(late(LATE)) || active(late(LATE / 4)) {
            return Some(followed);
        }
    }
    let late = late(LATE);
    (0..THREADS)
        .filter(|&thread| late[thread] > 0)
        .max_by_key(|&thread| (totals[thread], THREADS - thread))
}

/// Whether this thread has its part in what is launched of late.
pub(crate) fn active(entries: &[Entry], thread: usize) -> bool {
    let late = totals(
        entries
            .get(entries.len().saturating_sub(LATE)..)
            .unwrap_or(&[]),
    );
    let most = late.iter().max().copied().unwrap_or(0);
    late.get(thread).is_some_and(|&work| work > most / 2)
}

/// The thread that launched most.
pub(crate) fn most_active(entries: &[Entry]) -> usize {
    let totals = totals(entries);
    let most = (0..THREADS).max_by_key(|&thread| (totals[thread], THREADS - thread));
    most.unwrap_or(0)
}

/// Whether another thread than the one that is `followed` launches now.
pub(crate) fn handed_over(entries: &[Entry], followed: usize) -> bool {
    let leader = leader(entries, &totals(entries), Some(followed));
    leader.is_some_and(|leader| leader != followed)
}

/// Whether the thread that launched most has stopped, and others go on.
pub(crate) fn stale(entries: &[Entry]) -> bool {
    let now = leader(entries, &totals(entries), None);
    now.is_some_and(|now| now != most_active(entries))
}

/// The threads that launch at least half as much as `leader`, as bits.
fn engines(totals: &[u32; THREADS], leader: usize) -> u64 {
    totals
        .iter()
        .enumerate()
        .filter(|&(_, &total)| total > 0 && total >= totals[leader] / 2)
        .map(|(thread, _)| 1 << thread)
        .sum()
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

/// Other threads that launch as engines do, as bits.
fn rivals(totals: &[u32; THREADS], leader: usize) -> u64 {
    totals
        .iter()
        .enumerate()
        .filter(|&(thread, &total)| thread != leader && total > totals[leader] / 16)
        .map(|(thread, _)| 1 << thread)
        .sum()
}

struct Occurrences<'a> {
    next: &'a [u16; LENGTH],
    at: u16,
}

impl<'a> Occurrences<'a> {
    fn of(next: &'a [[u16; LENGTH]; LEVELS], candidate: &Candidate) -> Self {
        Self {
            next: &next[candidate.level as usize % LEVELS],
            at: candidate.first,
        }
    }

    fn pairs(mut self) -> impl Iterator<Item = (usize, usize)> {
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
