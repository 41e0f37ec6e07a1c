//! The functions in which threads hold Python's global interpreter lock (GIL) while other threads wait for it.

use std::collections::{BTreeMap, HashMap, HashSet};

use tllmprof_record::Taken;

use super::StackSample;
use super::frames::Frames;
use super::function::Origin;
use super::producers::common;
use crate::events::by_thread::ByThread;
use crate::events::spans::{self, Span};

/// Maximum number of waits, of all threads together, that [`GilWaits`] stores. Further waits are left out.
const MAX_WAITS: usize = 1 << 20;
/// Minimum number of samples of a thread during waits of other threads for the GIL. With fewer samples, the report
/// names no function of the thread.
const MIN_SAMPLES: usize = 8;

/// The function in which a thread was while other threads waited for the GIL.
#[derive(Clone, PartialEq, Debug)]
pub struct GilHolder {
    pub function: String,
    /// The share of the samples in which the thread was in this function; `None` if that is at least half of them.
    pub share: Option<f64>,
}

impl GilHolder {
    fn of_most(label: &str) -> Self {
        Self {
            function: label.to_owned(),
            share: None,
        }
    }
}

/// The times in which each thread waited for the GIL, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct GilWaits {
    waits: ByThread<Vec<Span>>,
    count: usize,
}

impl GilWaits {
    pub(super) fn add(&mut self, thread: u32, wait: Span) {
        if self.count == MAX_WAITS {
            return;
        }
        if let Some(waits) = self.waits.get_mut(thread) {
            waits.push(wait);
            self.count += 1;
        }
    }

    /// Returns for each thread the function in which it was while other threads waited for the GIL. Samples in which
    /// the thread itself waited for the GIL or for events do not count. `samples` are sorted by thread and time. A
    /// thread with too few samples in these waits has no entry.
    pub(super) fn holders(
        &self,
        samples: &[StackSample],
        frames: &Frames,
    ) -> BTreeMap<u32, GilHolder> {
        let mut holders = BTreeMap::new();
        if self.count == 0 {
            return holders;
        }
        let waiting = self.waiting();
        for own in samples.chunk_by(|a, b| a.thread == b.thread) {
            let Some(thread) = own.first().map(|sample| sample.thread) else {
                continue;
            };
            let mut waits = self.waits.iter();
            let waits = waits.find(|(waiting, _)| *waiting == thread);
            let mut own_waits = waits.map_or_else(Vec::new, |(_, waits)| waits.clone());
            spans::join(&mut own_waits);
            // A thread that waits for the GIL or for events does not hold the GIL.
            let may_hold = |sample: &&StackSample| {
                sample.taken == Taken::Python
                    && !sample.waits_for_events
                    && !spans::contain(&own_waits, sample.at)
                    && is_any_waiting(&waiting, sample.at)
            };
            let stacks = own.iter().filter(may_hold).map(|sample| sample.frame);
            let stacks: Vec<_> = stacks.collect();
            if stacks.len() >= MIN_SAMPLES
                && let Some(function) = function(&stacks, frames)
            {
                holders.insert(thread, function);
            }
        }
        holders
    }

    /// Returns the times at which the number of waiting threads changes, in order, with the number from that time on.
    fn waiting(&self) -> Vec<(u64, i64)> {
        let waits = self.waits.iter().flat_map(|(_, waits)| waits);
        let mut changes: Vec<(u64, i64)> = waits
            .flat_map(|wait| [(wait.start, 1), (wait.end, -1)])
            .collect();
        changes.sort_unstable();
        let mut count = 0;
        for (_, change) in &mut changes {
            count += *change;
            *change = count;
        }
        changes
    }
}

/// Returns true if at least one thread waits at the time `at`. `waiting` contains the numbers of waiting threads (see
/// [`GilWaits::waiting`]).
fn is_any_waiting(waiting: &[(u64, i64)], at: u64) -> bool {
    let after = waiting.partition_point(|(from, _)| *from <= at);
    let last = after.checked_sub(1).and_then(|last| waiting.get(last));
    last.is_some_and(|(_, count)| *count > 0)
}

/// Returns a function of the program that is typical of the stacks. This is the function that is most often the
/// program's innermost one, if it is the innermost one on at least half of the stacks. Otherwise, it is the innermost
/// function that most of the stacks have in common, unless that is an outermost function of a stack. Otherwise, it is
/// the function that is most often the innermost one, with its share of the stacks. `stacks` contains the innermost
/// frame of each stack.
fn function(stacks: &[u32], frames: &Frames) -> Option<GilHolder> {
    let is_own = |function: &u32| {
        let known = frames.functions.get(*function as usize);
        known.is_some_and(|known| known.origin == Origin::Program)
    };
    let mut innermost: HashMap<u32, usize> = HashMap::new();
    let mut outermost = HashSet::new();
    for frame in stacks {
        let own: Vec<_> = frames.stack(*frame).into_iter().filter(is_own).collect();
        if let (Some(first), Some(last)) = (own.first(), own.last()) {
            outermost.insert(*first);
            *innermost.entry(*last).or_default() += 1;
        }
    }
    let most = innermost.into_iter().max_by(|a, b| {
        let order = a.1.cmp(&b.1);
        order.then_with(|| b.0.cmp(&a.0))
    });
    let (function, count) = most?;
    let label = frames.label(function);
    if 2 * count >= stacks.len() {
        return Some(GilHolder::of_most(label));
    }
    match common(stacks.iter().copied(), frames) {
        Some(common) if !outermost.contains(&common) => {
            Some(GilHolder::of_most(frames.label(common)))
        }
        _ => Some(GilHolder {
            function: label.to_owned(),
            share: Some(count as f64 / stacks.len() as f64),
        }),
    }
}

#[cfg(test)]
mod tests {
    use tllmprof_record::{Clock, ClockKind, Event, Strings, ThreadState, What};

    use super::super::RawStacks;
    use super::*;
    use crate::events::facts::Facts;

    const MAIN: u32 = 7;
    const ENGINE: u32 = 9;

    const TREE: &[(u32, u32, &str)] = &[
        (1, 0, "<module> (/srv/serve.py:1)"),
        (2, 1, "handle (/srv/serve.py:10)"),
        (3, 2, "tokenise_prompt (/srv/serve.py:40)"),
        (4, 3, "dumps (/usr/lib/python3.12/json/__init__.py:183)"),
        (5, 2, "detokenise (/srv/serve.py:50)"),
        (6, 1, "log (/srv/serve.py:60)"),
    ];

    fn frames() -> Frames {
        let mut strings = Strings::default();
        let mut raw = RawStacks::default();
        let clock = Clock::new(ClockKind::Monotonic, &[]);
        for (id, parent, text) in TREE {
            strings.add(*id, text.as_bytes());
            let (id, parent, name) = (*id, *parent, *id);
            raw.take(
                &clock,
                0,
                &Event::new(0, 0, What::Frame { id, parent, name }),
            );
        }
        raw.finish(&Facts::default(), &strings).frames
    }

    fn sample(thread: u32, at: u64, frame: u32) -> StackSample {
        StackSample {
            at,
            ticks: at,
            thread,
            taken: Taken::Python,
            state: Some(ThreadState::Running),
            frame,
            sleep: None,
            waits_for_events: false,
        }
    }

    /// Returns the function of the thread `MAIN` during the waits of the thread `ENGINE` for the GIL. `MAIN` is in each
    /// frame of `stacks` at one sample of each wait, and in the frame `between` between two waits.
    fn holder(stacks: &[u32], between: u32) -> Option<GilHolder> {
        let (mut waits, mut samples) = (GilWaits::default(), Vec::new());
        for wait in 0..4 {
            let start = wait * 1000;
            let end = start + 10 * stacks.len() as u64;
            waits.add(ENGINE, Span { start, end });
            let of_wait = (0..).zip(stacks);
            samples.extend(of_wait.map(|(order, frame)| sample(MAIN, start + 10 * order, *frame)));
            let pauses = (0..30).map(|order| sample(MAIN, end + 10 * order, between));
            samples.extend(pauses);
        }
        // The thread that waits for the GIL is not its holder.
        samples.extend((0..100).map(|order| sample(ENGINE, 10 * order, 6)));
        let holders = waits.holders(&samples, &frames());
        assert_eq!(holders.get(&ENGINE), None);
        holders.get(&MAIN).cloned()
    }

    #[test]
    fn the_function_of_a_holder_is_the_one_during_waits_of_others() {
        let tokenises = Some(GilHolder::of_most("tokenise_prompt (serve.py:40)"));
        assert_eq!(holder(&[3, 4, 4], 6), tokenises);
        assert_eq!(holder(&[4, 4, 5, 6], 5), tokenises);
        assert_eq!(holder(&[3], 6), None, "too few samples");
    }

    #[test]
    fn a_thread_that_waits_for_the_gil_itself_does_not_hold_it() {
        let mut waits = GilWaits::default();
        for (thread, start, end) in [(ENGINE, 0, 300), (MAIN, 100, 300)] {
            waits.add(thread, Span { start, end });
        }
        let samples: Vec<_> = (0..30)
            .map(|order| sample(MAIN, 10 * order, if order < 10 { 6 } else { 3 }))
            .collect();
        let holders = waits.holders(&samples, &frames());
        let holder = holders.get(&MAIN);
        assert_eq!(holder, Some(&GilHolder::of_most("log (serve.py:60)")));
    }

    #[test]
    fn without_a_common_function_the_most_common_innermost_one_is_named() {
        // The three functions have the caller `handle` in common in most of the samples.
        let handles = Some(GilHolder::of_most("handle (serve.py:10)"));
        assert_eq!(holder(&[3, 4, 5, 5, 6, 2], 6), handles);
        let found = holder(&[3, 3, 6, 6, 6, 1, 1, 5, 2], 2).unwrap();
        assert_eq!(found.function, "log (serve.py:60)");
        assert_eq!(found.share, Some(1.0 / 3.0));
    }
}
