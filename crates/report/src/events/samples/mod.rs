//! Samples of the stacks of threads, from the record.

mod causes;
mod children;
mod compilers;
mod frames;
mod function;
mod gil;
mod location;
mod loops;
mod native;
mod polls;
mod producers;
mod sleep;
mod sleeps;
mod workers;

use std::collections::{BTreeMap, HashMap, HashSet};

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_record::{Clock, Event, NO_STRING, StringId, Strings, Taken, ThreadState, What};

use super::facts::Facts;
use super::spans::Span;
pub(crate) use compilers::{Compiler, CompilerStack, has_compiler_process, is_of_compiler};
pub(crate) use frames::Frames;
use frames::RawFrames;
pub(crate) use function::{Function, Origin};
pub(crate) use gil::GilHolder;
use gil::GilWaits;
pub(crate) use location::Location;
pub(crate) use loops::callback_start;
use loops::is_event_wait;
use native::Modules;
use producers::{Meanwhile, Producers, WaitSample};
pub(crate) use sleep::{ProducerShare, SleepKind};
use sleeps::{Asleep, Sleeps};
use workers::Workers;

/// Minimum number of samples that is enough to compare functions by their shares.
pub const ENOUGH: u64 = 200;

/// Maximum number of samples to store. Further samples are only counted.
const MAX_SAMPLES: usize = 1 << 20;
/// Beginning of the names of the functions of a CUDA runtime that is linked statically.
const STATIC_RUNTIME: &str = "libcudart_static_";
/// The name in the record for code that is neither in the program's file nor in a library, such as generated code.
const NO_MODULE: &str = "[no module]";
/// Maximum number of tasks (other threads and child processes) whose states are stored for one sample of a waiting
/// thread.
const MAX_TASKS: usize = 8;

/// A sample of a thread's stack.
#[derive(Clone, Copy, Debug)]
pub struct StackSample {
    /// Time of the sample, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// Time of the sample, in ticks of the record's clock.
    pub ticks: u64,
    pub thread: u32,
    pub taken: Taken,
    pub state: Option<ThreadState>,
    /// ID of the innermost frame of the sampled stack.
    pub frame: u32,
    /// The sleep of the thread, as an index in [`Frames::sleeps`]; `None` if the thread did not
    /// sleep, or if the sleep is not known.
    pub sleep: Option<u32>,
    /// True if the thread slept because its event loop (asyncio, uvloop) waited for events.
    pub waits_for_events: bool,
}

/// The state of a thread at the time of a sample. A function is given by its index in [`Frames::functions`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SampledState {
    Python(u32),
    /// The thread slept, but it is not known in which lock or system call. The field is the Python function that the
    /// thread was in, or `None` if it was in none.
    Asleep(Option<u32>),
    /// The thread slept, and the sleep is known. The field is its index in [`Frames::sleeps`].
    AsleepIn(u32),
    /// The thread was ready to run but had no processor.
    Waiting,
    /// The thread ran, but in no Python function.
    Outside,
    Native(u32),
}

impl SampledState {
    /// Returns true for a sample of a native stack. Native stacks are sampled separately from Python stacks.
    pub const fn is_native(self) -> bool {
        matches!(self, Self::Native(_))
    }

    pub const fn is_asleep(self) -> bool {
        matches!(self, Self::Asleep(_) | Self::AsleepIn(_))
    }

    /// Returns true if the thread was running.
    pub const fn ran(self) -> bool {
        matches!(self, Self::Python(_) | Self::Outside | Self::Native(_))
    }

    /// Returns true if the innermost function in the sample is a Python function.
    pub const fn is_python(self) -> bool {
        matches!(self, Self::Python(_) | Self::Asleep(Some(_)))
    }
}

/// The frames and samples that were read from a record so far.
#[derive(Debug, Default)]
pub(crate) struct RawStacks {
    frames: RawFrames,
    samples: Vec<StackSample>,
    /// For each sample of a sleeping thread, the system call and the stacks by which the sleep is classified. The key
    /// is the thread and the time of its sample in ticks.
    asleep: HashMap<(u32, u64), Asleep>,
    /// The keys (thread and time in ticks) of the samples at which a thread had not woken since its previous sample.
    continuing: HashSet<(u32, u64)>,
    /// The states of other threads and child processes when a waiting thread was sampled. The key is the time of that
    /// sample in ticks.
    meanwhile: HashMap<u64, Vec<Meanwhile>>,
    workers: Workers,
    gil_waits: GilWaits,
    /// The names of host functions that were enqueued in streams, with the number of times.
    host_functions: HashMap<StringId, u64>,
    pub left_out: u64,
}

impl RawStacks {
    /// Adds an event of a thread, if it is part of a sample of a stack or a wait for the GIL, or if it counts a host
    /// function that was enqueued.
    pub(crate) fn take(&mut self, clock: &Clock, thread: u32, event: &Event) {
        match event.what {
            What::GilWait => self.gil_waits.add(thread, span(clock, event)),
            What::Frame { id, parent, name } => {
                self.left_out += u64::from(!self.frames.add(id, parent, name));
            }
            What::Sample { .. } if self.samples.len() == MAX_SAMPLES => self.left_out += 1,
            What::Sample {
                taken,
                state,
                thread,
                frame,
            } => self.samples.push(StackSample {
                at: clock.ns(event.start),
                ticks: event.start,
                thread,
                taken,
                state,
                frame,
                sleep: None,
                waits_for_events: false,
            }),
            What::Asleep { .. } if self.asleep.len() == MAX_SAMPLES => self.left_out += 1,
            What::Asleep {
                call,
                has_timeout,
                has_short_timeout,
                continues,
                thread,
                frame,
            } => {
                if continues {
                    self.continuing.insert((thread, event.start));
                }
                let asleep = Asleep {
                    call,
                    has_timeout,
                    has_short_timeout,
                    native: frame,
                    python: 0,
                };
                self.asleep.insert((thread, event.start), asleep);
            }
            What::Meanwhile { .. } if self.meanwhile.len() == MAX_SAMPLES => self.left_out += 1,
            What::Meanwhile {
                task,
                is_busy,
                has_run,
                is_awaited,
                call,
                name,
                id,
            } => {
                let meanwhile = Meanwhile {
                    task,
                    is_busy,
                    has_run,
                    is_awaited,
                    call,
                    name,
                    id,
                };
                let known = self.meanwhile.entry(event.start).or_default();
                if known.len() < MAX_TASKS {
                    known.push(meanwhile);
                }
            }
            What::HostFunction { name, count } => {
                *self.host_functions.entry(name).or_default() += u64::from(count);
            }
            _ => (),
        }
    }

    /// Adds a thread's call that gives work to the GPU. A thread that sleeps during the call may wait for this thread.
    pub(crate) fn take_work(&mut self, clock: &Clock, thread: u32, event: &Event) {
        self.workers.add(thread, span(clock, event));
    }

    /// Returns the samples, sorted by thread and time, the frames with their names, and the host functions.
    pub(crate) fn finish(mut self, facts: &Facts, strings: &Strings) -> Sampled {
        self.samples
            .sort_by_key(|sample| (sample.thread, sample.at));
        let native = |sample: &&StackSample| sample.taken == Taken::Native;
        let native = self.samples.iter().filter(native);
        let native = native.map(|sample| sample.frame);
        let asleep = self.asleep.values().map(|asleep| asleep.native);
        let mut frames = (self.frames).finish(native.chain(asleep).collect(), facts, strings);
        let mut sleeps = Sleeps::default();
        let mut event_waits: HashMap<Asleep, bool> = HashMap::new();
        for sample in &mut self.samples {
            let is_native = sample.taken == Taken::Native;
            let asleep = self.asleep.get(&(sample.thread, sample.ticks));
            if let Some(asleep) = asleep.filter(|_| !is_native) {
                let asleep = Asleep {
                    python: sample.frame,
                    ..*asleep
                };
                sample.sleep = Some(sleeps.place(asleep, &frames));
                sample.waits_for_events = *event_waits
                    .entry(asleep)
                    .or_insert_with(|| is_event_wait(&asleep, &frames));
            }
        }
        frames.sleeps = sleeps.finish();
        self.workers.name_waits(&self.samples, &mut frames.sleeps);
        children::name_waits(&self.samples, &self.meanwhile, strings, &mut frames.sleeps);
        let of_sample = |sample: &StackSample| {
            let key = (sample.thread, sample.ticks);
            WaitSample {
                continues: self.continuing.contains(&key),
                call: self.asleep.get(&key).and_then(|asleep| asleep.call),
            }
        };
        let producers = Producers {
            meanwhile: &self.meanwhile,
            waits: &self.samples.iter().map(of_sample).collect::<Vec<_>>(),
            workers: &self.workers,
            facts,
            strings,
        };
        producers.name_waits(&mut self.samples, &mut frames);
        let has_calls = self.asleep.values().any(|asleep| asleep.call.is_some());
        Sampled {
            gil_holders: self.gil_waits.holders(&self.samples, &frames),
            frames,
            samples: self.samples,
            has_calls,
            host_functions: host_functions(&self.host_functions, facts, strings),
        }
    }
}

/// Returns the time span of an event in nanoseconds.
fn span(clock: &Clock, event: &Event) -> Span {
    let end = event.start.saturating_add(event.duration);
    Span {
        start: clock.ns(event.start),
        end: clock.ns(end),
    }
}

/// Returns the labels of the host functions that the program enqueued in streams, the most frequent first. Functions of
/// the CUDA runtime are left out, because each of them calls a function of the program that is not known. Functions
/// without a name and code that is in no module are left out, too.
fn host_functions(
    counts: &HashMap<StringId, u64>,
    facts: &Facts,
    strings: &Strings,
) -> Vec<String> {
    let mut modules = Modules::new(facts);
    let mut by_label: HashMap<String, u64> = HashMap::new();
    for (name, count) in counts {
        let text = strings.get(*name);
        if *name == NO_STRING || text == NO_MODULE {
            continue;
        }
        let function = modules.function(text);
        if function.origin != Origin::Driver {
            *by_label.entry(function.label).or_default() += count;
        }
    }
    let functions = by_frequency(by_label).into_iter();
    functions.map(|(label, _)| label).collect()
}

/// Returns names with their counts, the most frequent first. Names with equal counts are in alphabetical order.
fn by_frequency(counts: HashMap<String, u64>) -> Vec<(String, u64)> {
    let mut names: Vec<_> = counts.into_iter().collect();
    names.sort_by(|(a, n), (b, m)| m.cmp(n).then_with(|| a.cmp(b)));
    names
}

/// The samples of a record, sorted by thread and time, and their frames.
#[derive(Debug, Default)]
pub struct Sampled {
    pub samples: Vec<StackSample>,
    pub frames: Frames,
    /// True if at least one sample states the system call in which its thread slept.
    pub has_calls: bool,
    /// The functions in which threads were while other threads waited for the GIL, by the ID of the thread.
    pub gil_holders: BTreeMap<u32, GilHolder>,
    /// The labels of the host functions that the program enqueued in streams, the most frequent first.
    pub host_functions: Vec<String>,
}

impl Sampled {
    /// Returns the thread's state in a sample, or `None` if the sample was rejected or its frame is
    /// missing.
    pub fn seen(&self, sample: &StackSample) -> Option<SampledState> {
        let function = || self.frames.get(sample.frame).map(|frame| frame.function);
        match (sample.taken, sample.state) {
            (Taken::Torn, _) => None,
            (Taken::Native, _) => (self.frames.native(sample.frame)).map(SampledState::Native),
            (_, Some(ThreadState::Sleeping)) if sample.sleep.is_some() => {
                sample.sleep.map(SampledState::AsleepIn)
            }
            (Taken::Python | Taken::NoPython, Some(ThreadState::Runnable)) => {
                Some(SampledState::Waiting)
            }
            (Taken::Python, Some(ThreadState::Sleeping)) => {
                function().map(|function| SampledState::Asleep(Some(function)))
            }
            (Taken::Python, _) => function().map(SampledState::Python),
            (Taken::NoPython, Some(ThreadState::Sleeping)) => Some(SampledState::Asleep(None)),
            (Taken::NoPython, _) => Some(SampledState::Outside),
        }
    }
}

/// The numbers of stack samples in a set of iterations: usable samples, rejected samples, and samples of native stacks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, JsonSchema)]
pub struct SampleCounts {
    /// The number of usable samples, without the samples of native stacks.
    #[schemars(extend("unit" = "samples"))]
    pub samples: u64,
    /// The number of samples that were rejected, because the stack changed while it was read. Samples of native stacks
    /// are never rejected.
    #[schemars(extend("unit" = "samples"))]
    pub rejected: u64,
    /// The number of samples of native stacks, which are taken separately.
    #[schemars(extend("unit" = "samples"))]
    pub native: u64,
}

impl SampleCounts {
    /// Counts a sample. `seen` is the thread's state, or `None` for a rejected sample.
    pub const fn count(&mut self, seen: Option<SampledState>) {
        match seen {
            None => self.rejected += 1,
            Some(SampledState::Native(_)) => self.native += 1,
            Some(_) => self.samples += 1,
        }
    }

    /// Returns true if there are enough samples to compare functions.
    pub fn enough(self) -> bool {
        self.samples.max(self.native) >= ENOUGH
    }

    /// Returns the share of samples that were rejected, as a fraction. Samples of native stacks do not count.
    #[must_use]
    pub fn rejected_share(self) -> f64 {
        self.rejected as f64 / (self.samples + self.rejected).max(1) as f64
    }
}

/// The figures of the report that include one sample: the figures of the sample's window (`in_window`), the figures of
/// all windows (`in_all`), both, or neither. `window` is the index of the sample's window.
#[derive(Clone, Copy, Debug)]
pub struct SamplePlace {
    pub window: usize,
    /// True if the figures of the sample's own window include the sample.
    pub in_window: bool,
    /// True if the figures of all windows include the sample.
    pub in_all: bool,
}
