//! Steps of several equal parts, each of which is waited for.
//!
//! Where a site's intervals are all the same work, no other site distinguishes a step from its parts. What is left is
//! the host's time: before the first part of a step the program does more than before the others. So the longest of
//! `k` pauses in a row always comes before the same part, if a step has `k` parts, and for no other `k`.

use super::candidates::Occurrences;
use super::{Candidate, Scratch};
use crate::history::{Entry, LENGTH};

/// Parts of a step, at most: as many layers as a small model has, and fewer than the tokens of most requests.
const MAX_PARTS: usize = 32;
/// A part that takes longer, in nanoseconds, is a step: what recurs around it is a log line, a collection, a
/// request.
const LONGEST_PART: u64 = 2_000_000;
/// Launches by which parts that are alike differ, at most.
const ALIKE: u32 = 4;
/// The share of steps, in hundredths, in which the longest pause comes before the same part, at least.
const AGREEING: usize = 60;
/// Evidence, as [`evidence`] gives it, at which parts are relied on: the history is looked at dozens of times, with 31
/// numbers of parts each time.
const IMPROBABLE: u32 = 20 * 256;
/// Evidence at which more of it is waited for.
const SUSPICIOUS: u32 = 8 * 256;
/// Occurrences after which a suspicion no longer counts: six steps of [`MAX_PARTS`].
const MOST_OCCURRENCES: u32 = 192;

/// What is known of a site's occurrences as parts of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parts {
    /// Each is a step.
    Whole,
    /// Few steps were seen, and their pauses may distinguish parts.
    Suspected,
    /// So many are a step.
    Of {
        each: u32,
        /// Occurrences since the last that ended a step.
        since: u32,
    },
}

impl Scratch {
    /// Whether the occurrences of `site` are parts of a step.
    pub(super) fn parts(&mut self, entries: &[Entry], site: &Candidate) -> Parts {
        let count = self.measure_pauses(entries, site);
        let pauses = self.sorted.get(..count).unwrap_or(&[]);
        let mut suspected = false;
        for each in 2..=MAX_PARTS.min(count / 2) {
            let (part, agreeing) = longest_before(pauses, each);
            let evidence = evidence(agreeing, count / each, each);
            suspected |= evidence >= SUSPICIOUS && site.count < MOST_OCCURRENCES;
            if evidence >= IMPROBABLE {
                // Interval `part` begins where a step ends.
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

    /// Writes the pauses in the last intervals that are all alike to `sorted`. Returns their number.
    fn measure_pauses(&mut self, entries: &[Entry], site: &Candidate) -> usize {
        let mut count = 0;
        let (mut calls, mut first) = (0, 0);
        for (from, to) in Occurrences::of(&self.next, site).pairs() {
            let work = self.work[to] - self.work[from];
            let graphs = self.graphs[to] - self.graphs[from];
            let within = entries.get(from + 1..=to).unwrap_or(&[]);
            let pause = within.iter().map(|entry| entry.times.pause).max();
            let alike = work.abs_diff(site.median) <= ALIKE
                && (count == 0 || to - from == calls)
                && (site.graphs == 0) == (graphs == 0);
            calls = to - from;
            match pause {
                Some(pause) if pause > 0 && alike && count < LENGTH => {
                    first = if count == 0 { from } else { first };
                    self.sorted[count] = pause;
                    count += 1;
                }
                _ => count = 0,
            }
        }
        let last = usize::from(site.last);
        let lasted = match (entries.get(first), entries.get(last)) {
            (Some(begin), Some(end)) => end.times.since(begin.times) / count.max(1) as u64,
            _ => u64::MAX,
        };
        if lasted > LONGEST_PART { 0 } else { count }
    }
}

/// Of `each` parts, the one before which the longest pause comes most often, and how often. It counts as the longest
/// where it is a tenth longer than the others.
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

/// How improbable it is by chance that so many of the steps agree, as a power of two in 256ths. By chance one in `each`
/// does.
fn evidence(agreeing: usize, steps: usize, each: usize) -> u32 {
    if agreeing * 100 < steps * AGREEING {
        return 0;
    }
    // Any part may be the one, and any `agreeing` of the steps those that agree: each * C(steps, agreeing) / each^agreeing.
    let exceptions = steps - agreeing;
    let choices: u32 = (0..exceptions)
        .map(|n| log2(steps - n).saturating_sub(log2(n + 1)))
        .sum();
    (agreeing.saturating_sub(1) as u32 * log2(each)).saturating_sub(choices)
}

/// The logarithm to base 2, in 256ths, at most 22 of them too low.
const fn log2(number: usize) -> u32 {
    let whole = number.ilog2();
    let rest = (number << 8 >> whole) as u32 - 256;
    whole * 256 + rest
}
