//! Finds iterations from named ranges.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use tllmprof_record::Batch;

use crate::batch::{self, Family};
use crate::{Iteration, Moment, Range, Trace};

/// Maximum number of ranges that are stored. Further ranges are only counted.
const MAX_RANGES: usize = 1 << 20;

/// Maximum length of the last iteration if it lasts to the end of the trace, as a multiple of the median length of the
/// other iterations. An iteration that would be longer ends with its own range, because the trace may end with a long
/// idle time.
const LONGEST_LAST: i64 = 2;

/// A range that may be an iteration of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RangeCandidate {
    thread: u64,
    start: Moment,
    end: Moment,
    number: Option<u64>,
    batch: Option<Batch>,
}

/// Ranges that may be iterations of the program: those that match the user's rule for iterations (`--step`), and those
/// whose names a known engine or profiler gives to its steps.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    /// The ranges that match the rule for iterations that the user typed (`--step`).
    pub asked: Vec<RangeCandidate>,
    known: [Vec<RangeCandidate>; Family::ALL.len()],
    pub left_out: u64,
}

/// Ranges that were chosen as iterations. Ranges of different threads do not overlap, and no range lies within another
/// range of its thread. Two ranges of one thread may overlap in part.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub ranges: Vec<RangeCandidate>,
    /// Number of ranges that were left out because they belong to other threads. It is 0 if no ranges of different
    /// threads overlap: then the ranges of all threads are chosen.
    pub others: usize,
}

impl Candidates {
    /// Adds a range. `is_asked` is true if the rule for iterations that the user typed (`--step`) matches the range.
    pub(crate) fn add(&mut self, range: &Range<'_>, is_asked: bool) {
        let family = Family::from_name(range.name);
        if range.end < range.start || (family.is_none() && !is_asked) {
            return;
        }
        let candidate = RangeCandidate {
            thread: range.thread,
            start: range.start,
            end: range.end,
            number: batch::number(range.name),
            batch: batch::batch(range.name),
        };
        let known = family.map(|family| &mut self.known[family as usize]);
        let asked = is_asked.then_some(&mut self.asked);
        for list in known.into_iter().chain(asked) {
            if list.len() < MAX_RANGES {
                list.push(candidate);
            } else {
                self.left_out += 1;
            }
        }
    }

    /// Returns the family that has the most ranges; `None` if no range belongs to a known family. A
    /// family is the set of names that one program gives to its steps.
    pub(crate) fn most_frequent(&self) -> Option<Family> {
        let count = |family: &Family| self.known[*family as usize].len();
        let most = Family::ALL
            .into_iter()
            .max_by_key(|family| (count(family), Reverse(*family)))?;
        (count(&most) > 0).then_some(most)
    }

    /// Returns the family that has the most ranges, and its ranges; `None` if no range belongs to a
    /// known family. A family is the set of names that one program gives to its steps.
    pub(crate) fn take_known(&mut self) -> Option<(Family, Vec<RangeCandidate>)> {
        let most = self.most_frequent()?;
        Some((most, self.known[most as usize].clone()))
    }

    /// Returns true if at least one range has a name that a known engine or profiler gives to its steps.
    pub(crate) fn has_known(&self) -> bool {
        self.known.iter().any(|ranges| !ranges.is_empty())
    }

    /// Sets the batches of iterations from the ranges whose names describe a batch. An iteration
    /// gets a batch if at least one such range began in it and the ranges of all families that began
    /// in it describe the same batch. An iteration in which several ranges of one family began has
    /// several steps, so it gets no batch. Ranges within the first of these ranges, on the same
    /// thread, do not count.
    pub(crate) fn add_batches(&self, iterations: &mut [Iteration]) {
        let mut found: HashMap<usize, Option<Batch>> = HashMap::new();
        let mut with_several: HashSet<usize> = HashSet::new();
        for family in &self.known {
            if family.iter().all(|range| range.batch.is_none()) {
                continue;
            }
            let mut ranges: Vec<_> = family.iter().collect();
            ranges.sort_unstable_by_key(|range| (range.start, Reverse(range.end)));
            let mut firsts: HashMap<usize, &RangeCandidate> = HashMap::new();
            for range in ranges {
                let after = iterations.partition_point(|one| one.start <= range.start);
                let Some(place) = after.checked_sub(1) else {
                    continue;
                };
                if range.start >= iterations[place].end {
                    continue;
                }
                if let Some(first) = firsts.get(&place) {
                    if range.thread != first.thread || range.end > first.end {
                        with_several.insert(place);
                    }
                    continue;
                }
                firsts.insert(place, range);
                if let Some(batch) = range.batch {
                    let same = found.entry(place).or_insert(Some(batch));
                    if *same != Some(batch) {
                        *same = None;
                    }
                }
            }
        }
        for (place, batch) in found {
            let one = &mut iterations[place];
            one.batch = one.batch.or(batch);
        }
        for place in with_several {
            iterations[place].batch = None;
        }
    }
}

/// Chooses ranges for iterations. Of nested ranges of one thread, the outermost is chosen; ranges of one thread that
/// overlap only in part are all chosen. If ranges of different threads overlap, only ranges of the thread with the most
/// ranges are chosen.
pub(crate) fn choose(mut ranges: Vec<RangeCandidate>) -> Chosen {
    ranges.sort_unstable_by_key(|range| (range.start, Reverse(range.end)));
    let mut open: HashMap<u64, Moment> = HashMap::new();
    ranges.retain(|range| match open.get_mut(&range.thread) {
        Some(end) if range.start < *end && range.end <= *end => false,
        Some(end) => {
            *end = range.end;
            true
        }
        None => {
            open.insert(range.thread, range.end);
            true
        }
    });
    let overlap = ranges
        .windows(2)
        .any(|two| two[1].thread != two[0].thread && two[1].start < two[0].end);
    let before = ranges.len();
    if overlap {
        let mut counts: HashMap<u64, usize> = HashMap::new();
        for range in &ranges {
            *counts.entry(range.thread).or_default() += 1;
        }
        let most = counts
            .into_iter()
            .max_by_key(|(thread, count)| (*count, Reverse(*thread)));
        ranges.retain(|range| most.is_some_and(|(thread, _)| thread == range.thread));
    }
    Chosen {
        others: before - ranges.len(),
        ranges,
    }
}

/// Returns true if the last iteration has all its ranges, so that it ends with its last range or with the trace. If
/// `every` does not divide the number of ranges, fewer than `every` ranges are left at the end. The last iteration then
/// ends where the first of these begins.
pub(crate) fn is_last_open(ranges: usize, every: u64) -> bool {
    (ranges as u64).is_multiple_of(every.max(1))
}

/// Returns the iterations that begin at every `every`-th range. If fewer than `every` ranges are left at the end, they
/// are not an iteration.
pub(crate) fn iterations(ranges: &[RangeCandidate], every: u64, trace: &Trace) -> Vec<Iteration> {
    let every = usize::try_from(every).unwrap_or(usize::MAX).max(1);
    let begins: Vec<_> = ranges.iter().step_by(every).collect();
    let numbers = begins.iter().map(|range| range.number);
    let is_numbered = numbers.clone().all(|number| number.is_some())
        && begins.windows(2).all(|two| two[0].number < two[1].number);
    let mut all: Vec<_> = (0..)
        .zip(&begins)
        .map(|(place, range)| Iteration {
            number: range.number.filter(|_| is_numbered).unwrap_or(place),
            thread: range.thread,
            start: range.start,
            end: range.end,
            batch: range.batch.filter(|_| every == 1),
        })
        .collect();
    let starts: Vec<_> = all.iter().map(|one| one.start).collect();
    for (one, next) in all.iter_mut().zip(starts.iter().skip(1)) {
        one.end = *next;
    }
    match is_last_open(ranges.len(), every as u64) {
        true => end_last(&mut all, ranges.last().map_or(0, |range| range.end), trace),
        false => {
            all.pop();
        }
    }
    all.retain(|one| one.start < one.end);
    all
}

/// Sets the end of the last iteration to the end of the trace, because work that the last range
/// launched may run until then. If that would make the last iteration far longer than the other
/// iterations, its end is set to the end of the last range.
fn end_last(all: &mut [Iteration], range_end: Moment, trace: &Trace) {
    let Some((last, others)) = all.split_last_mut() else {
        return;
    };
    let mut long: Vec<_> = others
        .iter()
        .map(|one| one.end.saturating_sub(one.start))
        .collect();
    let own = range_end.saturating_sub(last.start);
    long.sort_unstable();
    let usual = long.get(long.len() / 2).copied().unwrap_or(own);
    let to_end = trace.span.end.saturating_sub(last.start);
    last.end = match to_end <= usual.saturating_mul(LONGEST_LAST) {
        true => range_end.max(trace.span.end),
        false => range_end,
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RangeSource;

    fn range(name: &str, thread: u64, start: Moment, end: Moment) -> Range<'_> {
        Range {
            thread,
            source: RangeSource::Annotation,
            name,
            domain: None,
            start,
            end,
        }
    }

    fn trace(end: Moment) -> Trace {
        Trace {
            span: crate::Span { start: 0, end },
            main_thread: None,
        }
    }

    #[test]
    fn nested_ranges_and_those_of_other_threads_are_left_out() {
        let mut candidates = Candidates::default();
        for (thread, start, end) in [(1, 20, 30), (1, 0, 10), (1, 2, 5), (2, 5, 25), (1, 10, 18)] {
            candidates.add(&range("step", thread, start, end), true);
        }
        let chosen = choose(candidates.asked);
        let starts: Vec<_> = chosen.ranges.iter().map(|range| range.start).collect();
        assert_eq!((starts, chosen.others), (vec![0, 10, 20], 1));
    }

    #[test]
    fn iterations_last_until_the_next_one_begins() {
        let mut candidates = Candidates::default();
        for n in 0..4 {
            let name = format!("ProfilerStep#{}", n + 7);
            candidates.add(&range(&name, 1, n * 100, n * 100 + 60), false);
        }
        let (family, known) = candidates.take_known().unwrap();
        assert_eq!(family, Family::Profiler);
        let chosen = choose(known);
        let spans = |end| {
            let all = iterations(&chosen.ranges, 1, &trace(end));
            all.iter()
                .map(|one| (one.number, one.start, one.end))
                .collect::<Vec<_>>()
        };
        let to_end = spans(450);
        assert_eq!(
            to_end,
            [(7, 0, 100), (8, 100, 200), (9, 200, 300), (10, 300, 450)]
        );
        // If the trace ends with a long idle time, that time does not belong to the last iteration.
        assert_eq!(spans(9000)[3], (10, 300, 360));
        let every = iterations(&chosen.ranges, 2, &trace(400));
        assert_eq!(every.len(), 2);
        assert_eq!((every[1].start, every[1].end), (200, 400));
        // The fourth range is only a part of the second group of three ranges, so it only ends the first group.
        let parts = iterations(&chosen.ranges, 3, &trace(400));
        assert_eq!(parts.len(), 1);
        assert_eq!((parts[0].start, parts[0].end), (0, 300));
        assert!(iterations(&chosen.ranges, 5, &trace(400)).is_empty());
    }

    #[test]
    fn ranges_that_overlap_in_part_on_one_thread_all_count() {
        let mut candidates = Candidates::default();
        for (thread, start, end) in [(1, 0, 12), (1, 10, 22), (1, 20, 32), (1, 23, 30)] {
            candidates.add(&range("step", thread, start, end), true);
        }
        let chosen = choose(candidates.asked);
        let starts: Vec<_> = chosen.ranges.iter().map(|range| range.start).collect();
        assert_eq!((starts, chosen.others), (vec![0, 10, 20], 0));
    }

    #[test]
    fn batches_come_from_the_one_range_within() {
        let mut candidates = Candidates::default();
        for (name, start) in [
            ("execute_context_0(0)_generation_4(4)", 10),
            ("step[DECODE bs=4]", 11),
            ("execute_context_0(0)_generation_4(4)", 110),
            ("execute_context_0(0)_generation_5(5)", 120),
        ] {
            candidates.add(&range(name, 1, start, start + 5), false);
        }
        // Two steps with the same batch are two steps, but a range within the first range is no further step.
        for (start, end) in [(210, 215), (220, 225), (310, 330), (312, 315)] {
            let name = "execute_context_0(0)_generation_4(4)";
            candidates.add(&range(name, 1, start, end), false);
        }
        let mut all: Vec<_> = [0, 100, 200, 300, 400]
            .map(|start| Iteration {
                number: 0,
                thread: 1,
                start,
                end: start + 100,
                batch: None,
            })
            .into();
        candidates.add_batches(&mut all);
        let requests: Vec<_> = all
            .iter()
            .map(|one| one.batch.map(|batch| batch.requests))
            .collect();
        assert_eq!(requests, [Some(4), None, None, Some(4), None]);
    }
}
