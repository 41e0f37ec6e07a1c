//! Event loops of Python (asyncio, uvloop) in sampled stacks: times in which a loop runs a callback and does not wait
//! for events.

use std::collections::{BTreeSet, HashMap, HashSet};

use tllmprof_record::Taken;

use crate::events::iteration::Iteration;
use crate::events::samples::{Frames, Sampled, SleepKind, StackSample, callback_start};
use crate::events::spans::Span;
use crate::events::window::Window;
use crate::process::Process;

/// Minimum length of a block, in nanoseconds. A block is a time in which an event loop does not wait for events.
pub(super) const MIN_BLOCK_NS: u64 = 50_000_000;
/// Minimum length of a block, in sampling periods.
pub(super) const MIN_BLOCK_PERIODS: u64 = 5;
/// Minimum share of the samples in callbacks, as a fraction, for a loop to count as saturated.
pub(super) const MIN_SATURATED: f64 = 0.9;
/// Maximum time between two samples of a thread, in sampling periods, for the report to take the thread's state as
/// known in between.
const MAX_GAP_PERIODS: u64 = 5;
/// Minimum for the time of [`MAX_GAP_PERIODS`], in nanoseconds. It allows for a sampling thread that is late because it
/// has no processor.
const MIN_GAP_NS: u64 = 20_000_000;
/// The limit for the length of a block is chosen so that, by chance, at most this number of runs of samples in
/// callbacks is expected to exceed the limit.
const MAX_BY_CHANCE: f64 = 0.05;
/// Minimum share of a thread's samples that must contain a function of an event loop, as a fraction. The thread then
/// counts as one that runs an event loop, even if no sample shows that it waits for events.
const MIN_IN_LOOP: f64 = 0.5;
/// End of the text for the cause of a wait for the GIL.
const GIL_WAIT: &str = ": the GIL";

/// A thread that runs an event loop.
#[derive(Debug)]
pub(super) struct LoopThread {
    pub thread: u32,
    /// True if the thread makes steps itself.
    pub makes_steps: bool,
    /// The number of samples of the thread.
    pub samples: u64,
    /// Number of times that a callback is known to have ended: samples that are not in a callback, and runs of samples
    /// in callbacks, except for the first run.
    pub turns: u64,
    /// Share of the thread's samples that are in a callback, as a fraction.
    pub busy: f64,
    /// Number of blocks. A block is a time longer than `limit` in which the loop does not wait for events.
    pub blocks: u64,
    /// Minimum length of the blocks, in nanoseconds.
    pub limit: u64,
    /// Length of the longest block or, without blocks, of the longest time in callbacks, in nanoseconds.
    pub longest: u64,
    /// Share of blocks in the time in which the thread was sampled, as a fraction.
    pub blocked: f64,
    /// The innermost function that all samples of a block have in common. If it differs between blocks, it is the
    /// function whose blocks take the longest time. The number is the share of these blocks in the time of all blocks,
    /// as a fraction.
    pub function: Option<(String, f64)>,
    /// Share of samples in which the thread waits for the GIL, among all samples in blocks, as a fraction.
    pub gil: f64,
    /// The activity of the threads that run steps, during the blocks or, if the loop is saturated, during all
    /// callbacks.
    pub meanwhile: Meanwhile,
}

/// The activity of the threads that run steps, while an event loop is blocked.
#[derive(Debug, Default)]
pub(super) struct Meanwhile {
    /// Share of samples in which a thread waits for work, among the samples of these threads during the blocks, as a
    /// fraction.
    pub waits: f64,
    /// Share of the samples during the blocks in which a thread waits for work, among all samples of these threads, as
    /// a fraction.
    pub of_all: f64,
    /// The numbers of the iterations in which a thread waits for work during a block.
    pub waiting: BTreeSet<u64>,
    /// The numbers of the iterations during which the event loop was blocked at some time.
    pub overlapping: BTreeSet<u64>,
}

/// Consecutive samples of a thread in the same callback, or in callbacks with a common function. The loop did not wait
/// for events at any of these samples.
#[derive(Debug)]
struct Run {
    span: Span,
    /// The functions that are common to the stacks of all samples, outermost first, without the functions that run the
    /// loop.
    common: Vec<u32>,
    samples: u64,
    gil_waits: u64,
}

impl Run {
    const fn length(&self) -> u64 {
        self.span.end - self.span.start
    }
}

/// The samples of one thread, divided into runs.
#[derive(Debug, Default)]
struct CallbackRuns {
    all: Vec<Run>,
    samples: u64,
    /// Number of samples in callbacks.
    busy: u64,
    /// Time in which the thread was sampled, in nanoseconds.
    observed: u64,
}

impl LoopThread {
    /// Returns the thread with the event loop that is blocked longest; `None` if no sampled thread runs an event loop.
    /// A thread that makes no steps is preferred to one that does.
    pub(super) fn find(process: &Process) -> Option<Self> {
        let sampled = &process.stacks.sampled;
        let steps = process.windows.iter().flat_map(Window::qualified);
        let steps: Vec<_> = steps.collect();
        let makers: HashSet<u32> = steps.iter().map(|step| step.thread).collect();
        let threads = sampled.samples.chunk_by(|a, b| a.thread == b.thread);
        let loops = threads.filter_map(|samples| {
            let makes_steps = makers.contains(&samples.first()?.thread);
            Self::of_thread(samples, sampled, makes_steps, &steps)
        });
        loops.max_by(|a, b| {
            let (a_other, b_other) = (!a.makes_steps, !b.makes_steps);
            let order = a_other.cmp(&b_other);
            let order = order.then(a.blocked.total_cmp(&b.blocked));
            order.then(a.busy.total_cmp(&b.busy))
        })
    }

    fn of_thread(
        samples: &[StackSample],
        sampled: &Sampled,
        makes_steps: bool,
        steps: &[&Iteration],
    ) -> Option<Self> {
        let stacks = LoopStacks::of_loop(samples, &sampled.frames)?;
        let runs = CallbackRuns::find(samples, sampled, &stacks);
        let limit = runs.limit();
        let busy = runs.busy as f64 / runs.samples.max(1) as f64;
        let blocks: Vec<_> = runs.all.iter().filter(|run| run.length() > limit).collect();
        let time: u64 = blocks.iter().map(|block| block.length()).sum();
        let in_blocks: u64 = blocks.iter().map(|block| block.samples).sum();
        let gil_waits: u64 = blocks.iter().map(|block| block.gil_waits).sum();
        let mut functions: HashMap<u32, u64> = HashMap::new();
        for block in &blocks {
            if let Some(innermost) = block.common.last() {
                *functions.entry(*innermost).or_default() += block.length();
            }
        }
        let function = functions
            .into_iter()
            .max_by_key(|(function, ns)| (*ns, *function));
        let times = match busy >= MIN_SATURATED {
            true => runs.all.iter().map(|run| run.span).collect(),
            false => blocks.iter().map(|block| block.span).collect::<Vec<_>>(),
        };
        Some(Self {
            thread: samples.first()?.thread,
            makes_steps,
            samples: runs.samples,
            turns: runs.samples - runs.busy + (runs.all.len() as u64).saturating_sub(1),
            busy,
            blocks: blocks.len() as u64,
            limit,
            longest: runs.all.iter().map(Run::length).max().unwrap_or(0),
            blocked: time as f64 / runs.observed.max(1) as f64,
            function: function.map(|(function, ns)| {
                let label = sampled.frames.label(function).to_owned();
                (label, ns as f64 / time.max(1) as f64)
            }),
            gil: gil_waits as f64 / in_blocks.max(1) as f64,
            meanwhile: Meanwhile::find(&times, sampled, steps),
        })
    }

    /// Returns true if the loop hardly ever waits for events.
    pub(super) fn is_saturated(&self) -> bool {
        self.busy >= MIN_SATURATED
    }
}

/// The stacks of a thread that runs an event loop, found by the IDs of their innermost frames.
struct LoopStacks {
    /// For each stack, the functions of the callback, outermost first. They are empty if the loop itself runs.
    callbacks: HashMap<u32, Vec<u32>>,
}

impl LoopStacks {
    /// Returns the stacks of the samples of one thread; `None` if the thread does not run an event loop.
    fn of_loop(samples: &[StackSample], frames: &Frames) -> Option<Self> {
        let python = || samples.iter().filter(|one| one.taken == Taken::Python);
        let mut stacks: HashMap<u32, (Vec<u32>, Option<usize>)> = HashMap::new();
        let (mut all, mut in_loop, mut waits) = (0_u64, 0_u64, false);
        // The innermost frame of a sample in which the loop waits for events. uvloop calls its callbacks from this
        // frame, so the functions after it on a stack are those of a callback. It is needed only if no function on the
        // stack is known to run an event loop.
        let mut base: Option<u32> = None;
        for sample in python() {
            let (stack, start) = stacks.entry(sample.frame).or_insert_with(|| {
                let stack = frames.stack(sample.frame);
                let start = callback_start(&stack, frames);
                (stack, start)
            });
            all += 1;
            in_loop += u64::from(start.is_some());
            waits |= sample.waits_for_events;
            if sample.waits_for_events && *start != Some(stack.len()) {
                base = base.or(Some(sample.frame));
            }
        }
        if !waits && (in_loop == 0 || (in_loop as f64) < MIN_IN_LOOP * all as f64) {
            return None;
        }
        let base = base.map_or_else(Vec::new, |base| frames.stack(base));
        let callbacks = stacks.into_iter().map(|(frame, (mut stack, start))| {
            let pairs = stack.iter().zip(&base);
            let same = pairs.take_while(|(a, b)| a == b).count();
            let start = match (start, base.is_empty()) {
                (Some(start), _) => start.max(same),
                (None, false) => same,
                // The thread runs no event loop at this sample.
                (None, true) => stack.len(),
            };
            stack.drain(..start);
            (frame, stack)
        });
        Some(Self {
            callbacks: callbacks.collect(),
        })
    }

    fn callback(&self, sample: &StackSample) -> &[u32] {
        match self.callbacks.get(&sample.frame) {
            Some(callback) if !sample.waits_for_events => callback,
            _ => &[],
        }
    }
}

impl CallbackRuns {
    fn find(samples: &[StackSample], sampled: &Sampled, stacks: &LoopStacks) -> Self {
        let walked = samples.iter().filter(|one| one.taken != Taken::Native);
        let walked: Vec<_> = walked.collect();
        let max_gap = max_gap(&walked);
        let mut runs = Self::default();
        let mut open: Option<Run> = None;
        let mut last: Option<u64> = None;
        for sample in walked {
            runs.samples += 1;
            match last.map(|last| sample.at.saturating_sub(last)) {
                Some(gap) if gap <= max_gap => runs.observed += gap,
                _ => runs.all.extend(open.take()),
            }
            last = Some(sample.at);
            if sample.taken == Taken::Torn {
                runs.busy += u64::from(open.is_some());
                continue;
            }
            let callback = stacks.callback(sample);
            if callback.is_empty() {
                runs.all.extend(open.take());
                continue;
            }
            runs.busy += 1;
            let gil_wait = u64::from(waits_for_gil(sample, sampled));
            let same = open.as_ref().map_or(0, |open| {
                let pairs = open.common.iter().zip(callback);
                pairs.take_while(|(a, b)| a == b).count()
            });
            match &mut open {
                Some(open) if same > 0 => {
                    open.common.truncate(same);
                    open.span.end = sample.at;
                    open.samples += 1;
                    open.gil_waits += gil_wait;
                }
                _ => {
                    runs.all.extend(open.take());
                    let (start, end) = (sample.at, sample.at);
                    open = Some(Run {
                        span: Span { start, end },
                        common: callback.to_vec(),
                        samples: 1,
                        gil_waits: gil_wait,
                    });
                }
            }
        }
        runs.all.extend(open);
        runs
    }

    /// Returns the minimum length of a block, in nanoseconds. If the samples change between callbacks and waits as
    /// often as they would by chance, the loop runs callbacks that are shorter than the sampling period. Then a long
    /// run of samples in callbacks may be due to chance, and the limit is larger.
    fn limit(&self) -> u64 {
        let period = self.observed as f64 / self.samples.max(1) as f64;
        let fixed = MIN_BLOCK_NS.max((MIN_BLOCK_PERIODS as f64 * period) as u64);
        let (busy, all) = (self.busy as f64, self.samples as f64);
        let waits = all - busy;
        let by_chance = busy * waits / all.max(1.0);
        if waits < 1.0 || busy < 1.0 || 2.0 * (self.all.len() as f64) < by_chance {
            return fixed;
        }
        let samples = (waits / MAX_BY_CHANCE).ln() / -(busy / all).ln();
        fixed.max((samples * period) as u64)
    }
}

/// Returns the maximum time between two samples of a thread, in nanoseconds, for which the thread's state in between is
/// known. `samples` are those of one thread.
fn max_gap(samples: &[&StackSample]) -> u64 {
    let gaps = samples
        .windows(2)
        .map(|two| two[1].at.saturating_sub(two[0].at));
    let mut gaps: Vec<_> = gaps.collect();
    gaps.sort_unstable();
    let median = gaps.get(gaps.len() / 2).copied().unwrap_or(0);
    MIN_GAP_NS.max(MAX_GAP_PERIODS.saturating_mul(median))
}

fn waits_for_gil(sample: &StackSample, sampled: &Sampled) -> bool {
    let sleeps = &sampled.frames.sleeps;
    let sleep = sample.sleep.and_then(|sleep| sleeps.get(sleep as usize));
    sleep.is_some_and(|sleep| sleep.cause.ends_with(GIL_WAIT))
}

impl Meanwhile {
    /// Returns the activity of the threads that run steps during the times `blocks`. The times must be sorted and must
    /// not overlap.
    fn find(blocks: &[Span], sampled: &Sampled, steps: &[&Iteration]) -> Self {
        let is_in = |at: u64| {
            let after = blocks.partition_point(|block| block.start <= at);
            let last = after.checked_sub(1).and_then(|last| blocks.get(last));
            last.is_some_and(|block| at <= block.end)
        };
        let mut threads: HashMap<u32, Vec<&Iteration>> = HashMap::new();
        for step in steps {
            threads.entry(step.thread).or_default().push(step);
        }
        for steps in threads.values_mut() {
            steps.sort_by_key(|step| step.start);
        }
        let mut found = Self::default();
        let (mut all, mut inside, mut waits) = (0_u64, 0_u64, 0_u64);
        for sample in &sampled.samples {
            let is_one = !matches!(sample.taken, Taken::Native | Taken::Torn);
            let Some(steps) = threads.get(&sample.thread).filter(|_| is_one) else {
                continue;
            };
            all += 1;
            if !is_in(sample.at) {
                continue;
            }
            inside += 1;
            if !waits_for_work(sample, sampled) {
                continue;
            }
            waits += 1;
            let after = steps.partition_point(|step| step.start <= sample.at);
            let last = after.checked_sub(1).and_then(|last| steps.get(last));
            if let Some(step) = last.filter(|step| sample.at < step.end()) {
                found.waiting.insert(step.n);
            }
        }
        let overlap = steps.iter().filter(|step| {
            let after = blocks.partition_point(|block| block.end <= step.start);
            let next = blocks.get(after);
            next.is_some_and(|block| block.start < step.end())
        });
        found.overlapping = overlap.map(|step| step.n).collect();
        found.waits = waits as f64 / inside.max(1) as f64;
        found.of_all = waits as f64 / all.max(1) as f64;
        found
    }
}

/// Returns true if a sampled thread waits for work, for a task that prepares the thread's input, or for something
/// unknown, as in a wait with a time limit.
fn waits_for_work(sample: &StackSample, sampled: &Sampled) -> bool {
    let sleeps = &sampled.frames.sleeps;
    let sleep = sample.sleep.and_then(|sleep| sleeps.get(sleep as usize));
    sleep.is_some_and(|sleep| {
        use SleepKind::{Other, Producer, Work};
        matches!(sleep.kind, Work | Producer | Other)
    })
}
