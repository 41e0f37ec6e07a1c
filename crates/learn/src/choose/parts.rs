//! Recognizes steps that consist of several equal parts, with a wait after each part.
//!
//! If a call site's intervals have about the same work, no other site distinguishes a step from its parts.
//! The host's time does: the program does more on the host before the first part of a step than before the
//! other parts. So if a step has `k` parts, the longest of each `k` successive pauses always comes before the
//! same part. If successive pauses are grouped by another number than `k`, this is not so. The parts of a step may
//! differ in work (an embedding precedes the first part) if they differ in the same way in each step.
//!
//! The work by itself can distinguish only a few parts, such as micro-batches: the optimizer runs after the last one.
//! With more parts, the work could also be that of a loop in which, say, each ninth step does more.

use super::candidates::Occurrences;
use super::outer::MAX_PARTS_BY_COUNT;
use super::{Candidate, ENDS, Scratch};
use crate::history::{HistoryEntry, MAX_ENTRIES};

/// Maximum number of equal parts that a step may have. More equal intervals in a row are separate steps: a small
/// model has at most 32 layers, and most requests have more than 32 tokens.
const MAX_PARTS: usize = 32;
/// Maximum mean duration of a part, in nanoseconds. Longer intervals are whole steps: a recurring pause between them
/// is due to a log line, a garbage collection or a request. For steps of up to [`MAX_PARTS_BY_COUNT`] parts, the
/// longest pause is not included in the mean, because few programs log or collect garbage that often.
const LONGEST_PART: u64 = 2_000_000;
/// Maximum difference in launches between the same part of two successive steps. With a larger difference, the
/// intervals are not parts of equal steps.
const MAX_DIFFERENCE: u32 = 4;
/// Minimum share of steps, in hundredths, whose longest pause comes before the same part.
const MIN_AGREEING: usize = 60;
/// Minimum [`evidence`] that a step has several parts: a probability of 2^-20 that the pauses agree by chance. The
/// limit is strict because the history is examined dozens of times, each time for up to 31 numbers of parts.
const IMPROBABLE: u32 = 20 * 256;
/// Number of successive steps in which each part must have exactly the same work as in the step before. This condition
/// applies if the parts are recognized only by their work.
const MIN_REPEATS: usize = 12;
/// Minimum [`evidence`] for suspecting that a step has several parts. The learner then waits for more steps before it
/// relies on the call site.
const SUSPICIOUS: u32 = 8 * 256;
/// After this number of occurrences of the call site, the learner no longer suspects that the occurrences are parts of
/// a step. It is the number of occurrences in six steps of [`MAX_PARTS`] parts.
const MAX_SUSPECTED_OCCURRENCES: u32 = 192;

/// The relation between the occurrences of a call site and the steps of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parts {
    /// Each occurrence of the call site is a whole step.
    Whole,
    /// Occurrences may be parts of a step, judging by the pauses, but too few steps have been seen
    /// to know this.
    Suspected,
    /// A step has `each` occurrences of the call site.
    Of {
        each: u32,
        /// Number of occurrences since the last occurrence that ended a step.
        since: u32,
    },
}

impl Scratch {
    /// Returns whether the occurrences of `site` are parts of a step, and the number of parts in a step.
    pub(super) fn parts(&mut self, entries: &[HistoryEntry], site: &Candidate) -> Parts {
        if let Some(parts) = self.parts_by_work(site) {
            return parts;
        }
        let (count, duration) = self.measure_pauses(entries, site);
        let pauses = self.sorted.get(..count).unwrap_or(&[]);
        let mut suspected = false;
        for each in 2..=MAX_PARTS.min(count / 2) {
            let (part, agreeing) = longest_before(pauses, each);
            if duration_of_parts(pauses, duration, each, part) > LONGEST_PART * count as u64 {
                continue;
            }
            let evidence = evidence(agreeing, count / each, each);
            suspected |= evidence >= SUSPICIOUS && site.count < MAX_SUSPECTED_OCCURRENCES;
            if evidence >= IMPROBABLE && self.repeats_after(site, count, each) {
                // Interval number `part` is the first part of a step, so `since` is the number of parts since the
                // last step ended.
                let since = (count - part) % each;
                return Parts::Of {
                    each: each as u32,
                    since: since as u32,
                };
            }
        }
        if suspected {
            Parts::Suspected
        } else {
            Parts::Whole
        }
    }

    /// Returns true if each of the latest `count` intervals has about the same work as the interval that came
    /// `each` intervals earlier.
    fn repeats_after(&self, site: &Candidate, count: usize, each: usize) -> bool {
        let skipped = (site.count as usize).saturating_sub(count + 1);
        let mut before = [0; MAX_PARTS];
        let intervals = Occurrences::new(&self.next, site).pairs().skip(skipped);
        intervals.enumerate().all(|(n, (from, to))| {
            let work = self.work[to] - self.work[from];
            let last = core::mem::replace(&mut before[n % each], work);
            n < each || work.abs_diff(last) <= MAX_DIFFERENCE
        })
    }

    /// Returns the number of parts of a step, if there are only a few parts and in each step the same part has more
    /// work than the other parts.
    fn parts_by_work(&self, site: &Candidate) -> Option<Parts> {
        let intervals = (site.count as usize).checked_sub(1)?;
        let work = |(from, to): (usize, usize)| self.work[to] - self.work[from];
        (2..=MAX_PARTS_BY_COUNT as usize).find_map(|each| {
            let skipped = intervals.checked_sub(each * (MIN_REPEATS + 1))?;
            let mut step = [0; MAX_PARTS_BY_COUNT as usize];
            let latest = Occurrences::new(&self.next, site).pairs().skip(skipped);
            let repeats = latest.map(work).enumerate().all(|(n, work)| {
                let last = core::mem::replace(&mut step[n % each], work);
                n < each || work == last
            });
            let most = (0..each).max_by_key(|&part| step[part])?;
            let others = (0..each)
                .filter(|&part| part != most)
                .map(|part| step[part]);
            let is_alone =
                others.clone().max()? + ENDS <= step[most] && others.clone().max() == others.min();
            (repeats && is_alone).then(|| Parts::Of {
                each: each as u32,
                since: ((each - most) % each) as u32,
            })
        })
    }

    /// Stores the longest pause of each of the latest intervals in `sorted`, going back as far as the intervals are
    /// alike. Returns the number of these intervals and their total duration in nanoseconds.
    fn measure_pauses(&mut self, entries: &[HistoryEntry], site: &Candidate) -> (usize, u64) {
        let mut count = 0;
        let (mut calls, mut first) = (0, 0);
        for (from, to) in Occurrences::new(&self.next, site).pairs() {
            let work = self.work[to] - self.work[from];
            let graphs = self.graphs[to] - self.graphs[from];
            let within = entries.get(from + 1..=to).unwrap_or(&[]);
            let pause = within.iter().map(|entry| entry.times.pause).max();
            let alike = site.usual(work)
                && (count == 0 || to - from == calls)
                && (site.graphs == 0) == (graphs == 0);
            calls = to - from;
            match pause {
                Some(pause) if pause > 0 && alike && count < MAX_ENTRIES => {
                    first = if count == 0 { from } else { first };
                    self.sorted[count] = pause;
                    count += 1;
                }
                _ => count = 0,
            }
        }
        let last = usize::from(site.last);
        match (entries.get(first), entries.get(last)) {
            (Some(begin), Some(end)) => (count, end.times.since(begin.times)),
            _ => (0, 0),
        }
    }
}

/// Returns the total duration, in nanoseconds, of the intervals whose pauses are `pauses`. If a step has few parts, the
/// result does not include the longest pause of each step. `duration` is the total with all pauses. The longest pause
/// comes before part number `part` of `each` parts.
fn duration_of_parts(pauses: &[u32], duration: u64, each: usize, part: usize) -> u64 {
    if each > MAX_PARTS_BY_COUNT as usize {
        return duration;
    }
    let longest = pauses.iter().skip(part).step_by(each).copied();
    duration.saturating_sub(longest.map(u64::from).sum())
}

/// Returns the part, out of `each` parts, before which the longest pause of a step comes most often, and the
/// number of steps that agree. A pause counts as the longest if it is a tenth longer than the other pauses of
/// its step.
fn longest_before(pauses: &[u32], each: usize) -> (usize, usize) {
    let mut times = [0usize; MAX_PARTS];
    for step in pauses.chunks_exact(each) {
        let Some((part, &longest)) = step.iter().enumerate().max_by_key(|&(_, pause)| pause) else {
            continue;
        };
        let clearly = |pause: &&u32| u64::from(**pause) * 11 >= u64::from(longest) * 10;
        let alone = step.iter().filter(clearly).count() == 1;
        if let Some(count) = times.get_mut(part).filter(|_| alone) {
            *count += 1;
        }
    }
    let most = (0..each).max_by_key(|&part| times.get(part));
    most.map_or((0, 0), |part| (part, times[part % MAX_PARTS]))
}

/// Returns a measure of how improbable it is that in `agreeing` of `steps` steps the longest pause comes before the
/// same part by chance. A probability of 2^-n gives the result 256 n. By chance, one step in `each` agrees.
fn evidence(agreeing: usize, steps: usize, each: usize) -> u32 {
    if agreeing * 100 < steps * MIN_AGREEING {
        return 0;
    }
    // The probability that the steps agree by chance, for any part and any selection of `agreeing` steps, is
    // each * C(steps, agreeing) / each^agreeing.
    let exceptions = steps - agreeing;
    let choices: u32 = (0..exceptions)
        .map(|n| log2(steps - n).saturating_sub(log2(n + 1)))
        .sum();
    (agreeing.saturating_sub(1) as u32 * log2(each)).saturating_sub(choices)
}

/// Returns the logarithm to base 2, in 256ths. The result is too low by at most 22 of these 256ths.
const fn log2(number: usize) -> u32 {
    let whole = number.ilog2();
    let rest = (number << 8 >> whole) as u32 - 256;
    whole * 256 + rest
}
