//! Iterations by the learner: a trace's calls, in their order, as the preloaded library would see them.

use std::collections::HashMap;

use tllmprof_learn::{Learner, Trails};
use tllmprof_record::CopyKind;

use crate::calls::{Meaning, kernel_of};
use crate::{Call, Iteration, Moment, Work};

/// Calls that are kept, and pieces of work; more are counted.
const MAX_CALLS: usize = 1 << 24;
const MAX_NAMES: usize = u16::MAX as usize;

/// Kinds of copies as numbers of work, above those of kernels.
const COPIES: u32 = UNKNOWN - 0x100;
/// The number of work that is not known.
const UNKNOWN: u32 = u32::MAX;

/// A call that the learner has use for.
#[derive(Clone, Copy, Debug)]
struct HeldCall {
    moment: Moment,
    /// The correlation of its work, and once all work is there the number of the work.
    work: u32,
    /// Place in the list of threads.
    thread: u16,
    /// Place in the list of meanings.
    meaning: u16,
}

/// A trace's calls, and the work that they launched.
#[derive(Debug, Default)]
pub struct Calls {
    held: Vec<HeldCall>,
    /// Correlations, and numbers of work.
    works: Vec<(u32, u32)>,
    threads: Vec<u64>,
    meanings: Vec<Meaning>,
    by_name: HashMap<String, Option<u16>>,
    by_thread: HashMap<u64, u16>,
    pub left_out: u64,
}

/// The result of the learner.
#[derive(Debug)]
pub struct Learned {
    pub iterations: Vec<Iteration>,
    /// The description of an iteration, in words.
    pub words: String,
}

impl Calls {
    /// Returns the meaning of a function, or `None` if nothing counts it.
    pub fn meaning(&mut self, name: &str) -> Option<(u16, Meaning)> {
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

    /// Takes a call with its meaning.
    pub fn add(&mut self, call: &Call<'_>, (place, meaning): (u16, Meaning)) {
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

    /// Takes work that a call launched.
    pub fn add_work(&mut self, correlation: u32, work: Work) {
        // All that one graph launched has the same number.
        let is_known = self.works.last().is_some_and(|last| last.0 == correlation);
        if self.works.len() < MAX_CALLS && !is_known {
            self.works.push((correlation, number_of(work)));
        }
    }

    /// Learns what an iteration is, and finds the iterations; `None`: nothing recurs that can be relied on.
    pub fn learn(mut self, inner: bool, kernel_name: &dyn Fn(u32) -> String) -> Option<Learned> {
        self.find_work();
        self.held.sort_by_key(|held| held.moment);
        let trails = Trails::new();
        let mut learner = Box::new(Learner::new());
        learner.begin(&trails, inner);
        self.replay(&trails, &mut learner, 0, |_, _| ());
        if !learner.understands() {
            return None;
        }
        // What it knows now finds the iterations in which it was still learning.
        learner.rely();
        let first = self.held.first()?.moment;
        let again = self.held.last()?.moment.abs_diff(first).saturating_add(1);
        let mut begins: Vec<(Moment, u16)> = Vec::new();
        self.replay(&trails, &mut learner, again, |moment, thread| {
            begins.push((moment, thread));
        });
        let rule = learner.rule()?;
        let mut words = String::new();
        // Writing to a string does not fail.
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

    /// Shows the learner all calls, `later` nanoseconds after the trace's first, and gives the boundaries to `each`.
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

    /// Finds the work of each call.
    fn find_work(&mut self) {
        let mut works = std::mem::take(&mut self.works);
        works.sort_by_key(|(correlation, _)| *correlation);
        // The next call mostly launched the next work.
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

/// Work as a number.
const fn number_of(work: Work) -> u32 {
    match work {
        Work::Kernel(number) if number < COPIES => number,
        Work::Kernel(_) => UNKNOWN,
        Work::Copy(kind) => COPIES + kind as u32,
    }
}

/// The work that a number stands for.
fn work_of(number: u32) -> Option<Work> {
    match number.checked_sub(COPIES) {
        None => Some(Work::Kernel(number)),
        Some(kind) => {
            let kind = u8::try_from(kind).ok()?;
            Some(Work::Copy(CopyKind::from_code(kind)))
        }
    }
}
