//! Finds iterations with the learner of `tllmprof_learn`, which recognizes them by a repeating pattern of calls. The
//! learner receives the calls of a trace in the same order in which it would see them in the preloaded library.

use std::collections::HashMap;

use tllmprof_learn::{Learner, Trails};
use tllmprof_record::CopyKind;

use crate::calls::{Meaning, kernel_of};
use crate::{Call, Iteration, Moment, Work};

/// Maximum number of calls that are stored; the same maximum applies to pieces of GPU work. Further calls are only
/// counted.
const MAX_CALLS: usize = 1 << 24;
/// Maximum number of function names for which the meaning of the function (the purpose of its calls) is cached. It is
/// also the maximum number of threads that are distinguished; further threads count as one thread.
const MAX_NAMES: usize = u16::MAX as usize;

/// The lowest number that stands for a kind of copy in `HeldCall::work`. Lower numbers stand for kernels. The highest
/// number is [`UNKNOWN`].
const COPIES: u32 = UNKNOWN - 0x100;
/// The number that stands for GPU work that the trace does not contain.
const UNKNOWN: u32 = u32::MAX;

/// A call that is stored for the learner, which finds iterations by a repeating pattern of calls.
#[derive(Clone, Copy, Debug)]
struct HeldCall {
    moment: Moment,
    /// At first the correlation number of the work that the call launched. After `find_work`, the
    /// number that stands for that work.
    work: u32,
    /// Index of the calling thread in `TraceCalls::threads`.
    thread: u16,
    /// Index in `TraceCalls::meanings` of the meaning of the called function, that is, the purpose of its calls.
    meaning: u16,
}

/// The CUDA calls of a trace, and the GPU work that they launched.
#[derive(Debug, Default)]
pub(crate) struct TraceCalls {
    held: Vec<HeldCall>,
    /// Pieces of GPU work, each with its correlation number and the number that stands for the
    /// work.
    works: Vec<(u32, u32)>,
    threads: Vec<u64>,
    meanings: Vec<Meaning>,
    by_name: HashMap<String, Option<u16>>,
    by_thread: HashMap<u64, u16>,
    pub left_out: u64,
}

/// The iterations that the learner of `tllmprof_learn` found by a repeating pattern of calls, and the pattern's
/// description.
#[derive(Debug)]
pub(crate) struct Learned {
    pub iterations: Vec<Iteration>,
    /// Description of the call at which an iteration begins, in words.
    pub words: String,
}

impl TraceCalls {
    /// Returns the meaning of a function (the purpose of its calls) and the index of that meaning. Returns `None` if
    /// calls of the function are neither counted nor passed to the learner (which finds iterations).
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

    /// Adds a call. `meaning` is the meaning of the called function (the purpose of its calls), and `place` is the
    /// index of that meaning.
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

    /// Adds a piece of GPU work. `correlation` is the number that the work shares with the call that launched the
    /// work.
    pub(crate) fn add_work(&mut self, correlation: u32, work: Work) {
        // All work that one graph launch started has the same correlation number. If such pieces follow one another,
        // only the first one is stored, which is enough for the learner.
        let is_known = self.works.last().is_some_and(|last| last.0 == correlation);
        if self.works.len() < MAX_CALLS && !is_known {
            self.works.push((correlation, number_of(work)));
        }
    }

    /// Learns the pattern of an iteration, and finds the iterations. If `inner` is true (the rule `auto:inner`), counts
    /// repeating parts of steps instead of whole steps. Returns `None` if no call recurs in a pattern that is reliable
    /// enough, or if fewer than two iterations begin.
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
        // In the first replay, the learner learnt the pattern. In the second replay, it also recognizes the early
        // iterations, during which it was still learning.
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

    /// Passes all calls to the learner, which finds iterations. The time that the learner gets for a call is the time
    /// since the first call plus `later`, in nanoseconds. Calls `each` with the time in the trace, and the index of the
    /// thread, of each call at which an iteration begins.
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

    /// Sets [`HeldCall::work`] of each call, which is a correlation number at first. Afterwards it is the number that
    /// stands for the GPU work that the call launched, or [`UNKNOWN`] if the trace does not contain that work.
    fn find_work(&mut self) {
        let mut works = std::mem::take(&mut self.works);
        works.sort_by_key(|(correlation, _)| *correlation);
        // Calls and work are mostly in the same order. So try the next piece of work before
        // searching for the call's correlation number.
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

/// Returns the number that stands for a piece of GPU work.
const fn number_of(work: Work) -> u32 {
    match work {
        Work::Kernel(number) if number < COPIES => number,
        Work::Kernel(_) => UNKNOWN,
        Work::Copy(kind) => COPIES + kind as u32,
    }
}

/// Returns the work that a number stands for (see [`COPIES`]); `None` if the work is unknown.
fn work_of(number: u32) -> Option<Work> {
    match number.checked_sub(COPIES) {
        None => Some(Work::Kernel(number)),
        Some(kind) => {
            let kind = u8::try_from(kind).ok()?;
            Some(Work::Copy(CopyKind::from_code(kind)))
        }
    }
}
