//! Finds iterations with the learner, which gets a trace's calls in the same order in which it would see them in the
//! preloaded library.

use std::collections::HashMap;

use tllmprof_learn::{Learner, Trails};
use tllmprof_record::CopyKind;

use crate::calls::{Meaning, kernel_of};
use crate::{Call, Iteration, Moment, Work};

/// Maximum numbers of calls (and of pieces of work) to keep, and of names. Further calls are only counted.
const MAX_CALLS: usize = 1 << 24;
const MAX_NAMES: usize = u16::MAX as usize;

/// Lowest number that stands for a copy. Kernels have lower numbers.
const COPIES: u32 = UNKNOWN - 0x100;
/// The number that stands for unknown work.
const UNKNOWN: u32 = u32::MAX;

/// A call that the learner uses.
#[derive(Clone, Copy, Debug)]
struct HeldCall {
    moment: Moment,
    /// The correlation number of the call's work. Once all work is read, the number that stands for the work instead.
    work: u32,
    /// Index in the list of threads.
    thread: u16,
    /// Index in the list of meanings.
    meaning: u16,
}

/// A trace's calls, and the work that they launched.
#[derive(Debug, Default)]
pub(crate) struct TraceCalls {
    held: Vec<HeldCall>,
    /// Work of the GPU: correlation number, and number that stands for the work.
    works: Vec<(u32, u32)>,
    threads: Vec<u64>,
    meanings: Vec<Meaning>,
    by_name: HashMap<String, Option<u16>>,
    by_thread: HashMap<u64, u16>,
    pub left_out: u64,
}

/// The iterations that the learner found.
#[derive(Debug)]
pub(crate) struct Learned {
    pub iterations: Vec<Iteration>,
    /// The description of an iteration's beginning, in words.
    pub words: String,
}

impl TraceCalls {
    /// Returns the meaning of a function and its index, or `None` if the function neither counts nor concerns the
    /// learner.
    pub(crate) fn meaning(&mut self, name: &str) -> Option<(u16, Meaning)> {
        let place = match self.by_name.get(name) {
            Some(place) => *place,
            None => {
                let place = Meaning::from_name(name).map(|meaning| {
                    self.meanings.push(meaning);
                    (self.meanings.len() - 1) as u16
                });
                if self.by_name.len() < MAX_NAMES {
                    self.by_name.insert(name.to_owned(), place);
                }
                place
            }
        }?;
        Some((place, self.meanings[usize::from(place)]))
    }

    /// Adds a call with its meaning.
    pub(crate) fn add(&mut self, call: &Call<'_>, (place, meaning): (u16, Meaning)) {
        if self.held.len() >= MAX_CALLS {
            self.left_out += 1;
            return;
        }
        let next = self.threads.len().min(MAX_NAMES) as u16;
        let thread = *self.by_thread.entry(call.thread).or_insert(next);
        if thread == next && self.threads.len() < MAX_NAMES {
            self.threads.push(call.thread);
        }
        self.held.push(HeldCall {
            moment: meaning.moment(call.start, call.end),
            work: call.correlation,
            thread,
            meaning: place,
        });
    }

    /// Adds work that a call launched.
    pub(crate) fn add_work(&mut self, correlation: u32, work: Work) {
        // All work that a graph launched has the same correlation number, so keep only the first piece.
        let is_known = self.works.last().is_some_and(|last| last.0 == correlation);
        if self.works.len() < MAX_CALLS && !is_known {
            self.works.push((correlation, number_of(work)));
        }
    }

    /// Learns what an iteration is, and finds the iterations. Returns `None` if no call recurs in a pattern that can be
    /// relied on.
    pub(crate) fn learn(
        mut self,
        inner: bool,
        kernel_name: &dyn Fn(u32) -> String,
    ) -> Option<Learned> {
        self.find_work();
        self.held.sort_by_key(|held| held.moment);
        let trails = Trails::new();
        let mut learner = Box::new(Learner::new());
        learner.begin(&trails, inner);
        self.replay(&trails, &mut learner, 0, |_, _| ());
        if !learner.understands() {
            return None;
        }
        // The learner has now seen the whole trace. A second replay also finds the early iterations, during which it
        // was still learning.
        learner.rely();
        let first = self.held.first()?.moment;
        let again = self.held.last()?.moment.abs_diff(first).saturating_add(1);
        let mut begins: Vec<(Moment, u16)> = Vec::new();
        self.replay(&trails, &mut learner, again, |moment, thread| {
            begins.push((moment, thread));
        });
        let rule = learner.rule()?;
        let mut words = String::new();
        // Writing to a string cannot fail.
        let _ = rule.describe(&mut words, |out, handle| match kernel_of(handle) {
            Some(number) => out.write_str(&kernel_name(number)),
            None => out.write_str("?"),
        });
        begins.dedup_by_key(|begin| begin.0);
        let pairs = begins.windows(2);
        let iterations = (0..).zip(pairs).map(|(number, two)| Iteration {
            number,
            thread: self
                .threads
                .get(usize::from(two[0].1))
                .copied()
                .unwrap_or(0),
            start: two[0].0,
            end: two[1].0,
            batch: None,
        });
        let iterations: Vec<_> = iterations.collect();
        (!iterations.is_empty()).then_some(Learned { iterations, words })
    }

    /// Passes all calls to the learner, with `later` nanoseconds added to their times, and the boundaries of iterations
    /// to `each`.
    fn replay(
        &self,
        trails: &Trails,
        learner: &mut Learner,
        later: u64,
        mut each: impl FnMut(Moment, u16),
    ) {
        let first = self.held.first().map_or(0, |held| held.moment);
        for held in &self.held {
            let meaning = &self.meanings[usize::from(held.meaning)];
            let Some(call) = meaning.learned(work_of(held.work)) else {
                continue;
            };
            let now = held.moment.abs_diff(first).saturating_add(later);
            let boundary = learner.event(trails, held.thread.into(), call, &|| now);
            if boundary.is_some() {
                each(held.moment, held.thread);
            }
        }
    }

    /// Replaces the correlation number in each call by the number that stands for its work.
    fn find_work(&mut self) {
        let mut works = std::mem::take(&mut self.works);
        works.sort_by_key(|(correlation, _)| *correlation);
        // The next call usually launched the next piece of work, so try that piece before searching.
        let mut next = 0;
        for held in &mut self.held {
            let correlation = held.work;
            let is_it = |(number, _): &&(u32, u32)| *number == correlation && correlation != 0;
            let mut work = works.get(next).filter(is_it);
            if work.is_none() {
                next = works.partition_point(|(number, _)| *number < correlation);
                work = works.get(next).filter(is_it);
            }
            held.work = work.map_or(UNKNOWN, |(_, work)| *work);
            next += usize::from(work.is_some());
        }
    }
}

/// Returns the number that stands for work.
const fn number_of(work: Work) -> u32 {
    match work {
        Work::Kernel(number) if number < COPIES => number,
        Work::Kernel(_) => UNKNOWN,
        Work::Copy(kind) => COPIES + kind as u32,
    }
}

/// Returns the work that a number stands for; `None` if it is not known.
fn work_of(number: u32) -> Option<Work> {
    match number.checked_sub(COPIES) {
        None => Some(Work::Kernel(number)),
        Some(kind) => {
            let kind = u8::try_from(kind).ok()?;
            Some(Work::Copy(CopyKind::from_code(kind)))
        }
    }
}
