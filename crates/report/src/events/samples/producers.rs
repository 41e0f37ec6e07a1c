//! Names the causes of waits in the report's texts: the task of the program that prepares the waiting thread's input,
//! or the thread that itself waits for this input from outside the program. The module `causes` finds these causes.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use tllmprof_record::{StringId, Strings, SystemCall, Taken, Task, ThreadState};

use super::StackSample;
use super::causes::{
    AtWork, Causes, Linked, SampledWait, TaskActivity, TaskKey, TaskSample, WaitCause,
};
use super::frames::Frames;
use super::function::Origin;
use super::location::Location;
use super::polls::Polls;
use super::sleep::{FOR_SERVICE, ProducerShare, Sleep, SleepKind};
use super::workers::Workers;
use crate::events::facts::{Facts, name};

/// Maximum time in nanoseconds between a sample of a waiting thread and a sample of another thread, for the second
/// sample to show what the other thread did at the time of the first.
const MAX_APART_NS: u64 = 5_000_000;
/// Minimum share of a task's stacks, as a fraction, that must contain a function for the report to name the function.
const MIN_IN_FUNCTION: f64 = 0.5;

/// End of the text for the cause of a wait in the system call `futex`, if the function that made the system call is not
/// known.
const UNNAMED_WAIT: &str = ": futex";
/// Ends of the texts for the causes of waits that are not for input.
const NO_INPUT: [&str; 3] = [
    ": queue.put",
    ": threading.join",
    ": threading.Semaphore.acquire",
];
/// Parts of the names of functions in Python's standard library that use a pipe to a child process.
const PIPE_FILES: [&str; 3] = [
    "/multiprocessing/",
    "/concurrent/futures/process.py:",
    "/subprocess.py:",
];

/// The state of another thread or a child process at the time when a waiting thread was sampled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meanwhile {
    pub task: Task,
    pub is_busy: bool,
    pub has_run: bool,
    /// True if a thread waits for the end of this child process, or of the process that has started it.
    pub is_awaited: bool,
    /// The system call that a child process sleeps in.
    pub call: Option<SystemCall>,
    pub name: StringId,
    pub id: u32,
}

/// Data of a sample of a sleeping thread, for finding the cause of a wait.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct WaitSample {
    /// True if the thread has not woken since its previous sample.
    pub continues: bool,
    /// The system call that the thread sleeps in; `None` if it is not known, or if the thread does not sleep.
    pub call: Option<SystemCall>,
}

/// Waits for input from outside the program that have the same cause.
#[derive(Debug, Default)]
struct OutsideWaits {
    /// The indexes of the samples of these waits.
    waits: Vec<usize>,
    /// The system calls in which the thread that passes the input on waited for it, with their numbers of samples.
    calls: HashMap<&'static str, u64>,
}

/// The waits for which a task is the cause.
#[derive(Debug, Default)]
struct Produced {
    share: ProducerShare,
    busy: u64,
    asleep: HashMap<SleepKind, u64>,
    /// The indexes of the task's own samples in these waits.
    own: Vec<usize>,
    /// The indexes of the samples of these waits.
    waits: Vec<usize>,
    /// The times of these waits in nanoseconds. After [`Self::join_spans`], they are sorted and do not overlap.
    spans: Vec<(u64, u64)>,
}

/// The names of the tasks that were observed during waits.
#[derive(Debug, Default)]
struct TaskNames {
    /// The names of child processes, by the ids of their strings. Each is stored once, because there may be millions of
    /// observations.
    children: HashMap<StringId, Rc<str>>,
    /// For each thread, the id of its latest name, and the time in ticks at which the thread was last seen with a name.
    threads: HashMap<u32, (u64, StringId)>,
}

/// The data from which the cause of each wait is found. All lists of samples must be sorted by thread and time.
pub(super) struct Producers<'a> {
    pub meanwhile: &'a HashMap<u64, Vec<Meanwhile>>,
    /// The data for each sample, in the order of the samples.
    pub waits: &'a [WaitSample],
    pub workers: &'a Workers,
    pub facts: &'a Facts,
    pub strings: &'a Strings,
}

impl TaskNames {
    /// Returns the names of all tasks in `meanwhile`, which contains the tasks at each time in ticks.
    fn collect(meanwhile: &HashMap<u64, Vec<Meanwhile>>, strings: &Strings) -> Self {
        let mut names = Self::default();
        for (at, all) in meanwhile {
            for one in all.iter().filter(|one| one.name != 0) {
                match one.task {
                    Task::Child => {
                        let known = names.children.entry(one.name);
                        known.or_insert_with(|| name(strings.get(one.name)).into());
                    }
                    Task::Thread => {
                        let latest = names.threads.entry(one.id).or_default();
                        *latest = (*latest).max((*at, one.name));
                    }
                }
            }
        }
        names
    }

    /// Returns the name of a child process, given by the id of its string; empty if the child process has no name.
    fn of_child(&self, id: StringId) -> Rc<str> {
        self.children.get(&id).cloned().unwrap_or_default()
    }
}

impl Producers<'_> {
    /// Finds the samples in which a thread waits for a task of the program, or for input from outside, and replaces the
    /// sleeps of these samples by sleeps whose texts name the cause.
    pub(super) fn name_waits(&self, samples: &mut [StackSample], frames: &mut Frames) {
        let polls = |sleep: &Sleep| sleep.kind == SleepKind::Poll;
        if self.meanwhile.is_empty() && !frames.sleeps.iter().any(polls) {
            return;
        }
        let names = TaskNames::collect(self.meanwhile, self.strings);
        let waits = self.waits(samples, frames);
        let tasks: HashMap<usize, Vec<TaskSample>> = waits
            .iter()
            .flat_map(|wait| &wait.samples)
            .map(|index| (*index, self.tasks_at(*index, samples, frames, &names)))
            .collect();
        let linked = Linked::find(&waits, &tasks);
        let causes = Causes {
            at_work: AtWork::count(&waits, &tasks, &linked),
            pipes: self.pipes(&tasks, samples, frames),
            tasks: &tasks,
            linked: &linked,
        };
        let mut found: HashMap<(u32, TaskKey), Produced> = HashMap::new();
        let mut outside: HashMap<(u32, u32), OutsideWaits> = HashMap::new();
        let mut polls = Polls::default();
        for wait in &waits {
            match causes.cause(wait) {
                WaitCause::Task(key) => {
                    let produced = found.entry((wait.sleep, key.clone())).or_default();
                    produced.add(wait, &key, &tasks, &linked, samples);
                }
                WaitCause::Outside(thread) => {
                    let known = outside.entry((wait.sleep, thread)).or_default();
                    known.add(wait, thread, &tasks);
                }
                WaitCause::Unknown => polls.add(wait),
            }
        }
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        for ((sleep, key), mut produced) in found {
            produced.join_spans();
            let Some(wait) = frames.sleeps.get(sleep as usize) else {
                continue;
            };
            let sleep = self.sleep(wait, (&key, &names), &produced, samples, frames);
            replace(sleep, &produced.waits, samples, frames);
        }
        let mut outside: Vec<_> = outside.into_iter().collect();
        outside.sort_by_key(|(key, _)| *key);
        for ((sleep, thread), found) in outside {
            let wait = frames.sleeps.get(sleep as usize);
            let sleep = wait.and_then(|wait| self.outside(wait, (thread, &names), &found));
            if let Some(sleep) = sleep {
                replace(sleep, &found.waits, samples, frames);
            }
        }
        for (sleep, waits) in polls.for_work(frames) {
            replace(sleep, &waits, samples, frames);
        }
    }

    /// Returns the waits of which a task may be the cause: waits for work, and waits of unknown kind.
    fn waits(&self, samples: &[StackSample], frames: &Frames) -> Vec<SampledWait> {
        let mut waits: Vec<SampledWait> = Vec::new();
        let mut last = None;
        for (index, sample) in samples.iter().enumerate() {
            if sample.taken == Taken::Native {
                continue;
            }
            let sleep = sample.sleep.filter(|sleep| {
                let sleep = frames.sleeps.get(*sleep as usize);
                sleep.is_some_and(|it| is_for_others(it.kind))
            });
            let now = sleep.map(|sleep| (sample.thread, sleep));
            if let Some((thread, sleep)) = now {
                let continues = self.waits.get(index).is_some_and(|it| it.continues);
                let is_again = || self.is_again(sleep, waits.last(), sample, samples, frames);
                let is_repeated = last == now && !continues && is_again();
                let is_same = last == now && (continues || is_repeated);
                match waits.last_mut().filter(|_| is_same) {
                    Some(wait) => {
                        wait.samples.push(index);
                        wait.is_repeated |= is_repeated;
                    }
                    None => waits.push(SampledWait {
                        thread,
                        sleep,
                        samples: vec![index],
                        is_repeated: false,
                    }),
                }
            }
            last = now;
        }
        waits
    }

    /// Returns true if `sample` is in a wait with a short time limit, and the thread has given no work to the GPU since
    /// the wait `before`, which is in the same sleep. The thread then found no work, and waits again.
    fn is_again(
        &self,
        sleep: u32,
        before: Option<&SampledWait>,
        sample: &StackSample,
        samples: &[StackSample],
        frames: &Frames,
    ) -> bool {
        let sleep = frames.sleeps.get(sleep as usize);
        let before = before.and_then(|wait| samples.get(*wait.samples.last()?));
        sleep.is_some_and(|sleep| sleep.kind == SleepKind::Poll)
            && before
                .is_some_and(|before| self.workers.gave_none(sample.thread, before.at, sample.at))
    }

    /// Returns the tasks that were observed at a sample of a wait.
    fn tasks_at(
        &self,
        index: usize,
        samples: &[StackSample],
        frames: &Frames,
        names: &TaskNames,
    ) -> Vec<TaskSample> {
        let Some(sample) = samples.get(index) else {
            return Vec::new();
        };
        let all = self.meanwhile.get(&sample.ticks).into_iter().flatten();
        let all = all.filter(|one| one.task == Task::Child || one.id != sample.thread);
        let task = |one: &Meanwhile| {
            let own = match one.task {
                Task::Thread => nearest(samples, one.id, sample.at),
                Task::Child => None,
            };
            let state = own.and_then(|own| samples[own].state);
            let is_runnable = matches!(state, Some(ThreadState::Running | ThreadState::Runnable));
            let activity = match (one.is_busy || is_runnable, one.task, own) {
                (true, ..) => TaskActivity::Busy,
                (false, Task::Thread, Some(own)) => self.activity(own, samples, frames),
                (false, Task::Thread, None) => TaskActivity::Unknown,
                (false, Task::Child, _) => TaskActivity::of_child(one.call),
            };
            TaskSample {
                key: match one.task {
                    Task::Thread => TaskKey::Thread(one.id),
                    Task::Child => TaskKey::Child(names.of_child(one.name)),
                },
                id: one.id,
                activity,
                has_run: one.has_run,
                sample: own,
            }
        };
        all.map(task).collect()
    }

    /// Returns the activity of a thread that is not busy. `own` is the index of the thread's sample.
    fn activity(&self, own: usize, samples: &[StackSample], frames: &Frames) -> TaskActivity {
        use SleepKind as Kind;
        let sleep = samples.get(own).and_then(|sample| sample.sleep);
        let sleep = sleep.and_then(|sleep| frames.sleeps.get(sleep as usize));
        let call = self.waits.get(own).and_then(|sample| sample.call);
        match sleep.map(|sleep| sleep.kind) {
            Some(kind @ (Kind::Sleep | Kind::File | Kind::Lock)) => TaskActivity::Asleep(kind),
            Some(Kind::Work | Kind::Poll | Kind::Other) => call
                .filter(|call| is_outside(*call))
                .map_or(TaskActivity::Waits, TaskActivity::Outside),
            Some(Kind::Called | Kind::Gpu | Kind::Child) => TaskActivity::Waits,
            Some(Kind::Worker | Kind::Producer) | None => TaskActivity::Unknown,
        }
    }

    /// Returns the samples of waits at which the waiting thread, or another waiting thread, waits for a pipe. There may
    /// be a child process at the other end of the pipe.
    fn pipes(
        &self,
        tasks: &HashMap<usize, Vec<TaskSample>>,
        samples: &[StackSample],
        frames: &Frames,
    ) -> HashSet<usize> {
        let mut known: HashMap<u32, bool> = HashMap::new();
        let mut waits_for_pipe = |index: usize| {
            let call = self.waits.get(index).and_then(|sample| sample.call);
            let of_python = samples.get(index).filter(|it| it.taken == Taken::Python);
            call == Some(SystemCall::ReadStream)
                || of_python.is_some_and(|sample| {
                    let frame = sample.frame;
                    *known
                        .entry(frame)
                        .or_insert_with(|| uses_pipe(frame, frames))
                })
        };
        let mut pipes = HashSet::new();
        for (index, tasks) in tasks {
            let waiting = tasks
                .iter()
                .filter(|task| task.activity != TaskActivity::Busy);
            let mut waiting = waiting.filter_map(|task| task.sample);
            if waits_for_pipe(*index) || waiting.any(&mut waits_for_pipe) {
                pipes.insert(*index);
            }
        }
        pipes
    }

    /// Returns the sleep that replaces `wait` in the samples of waits for input from outside the program. The text of
    /// this sleep names the cause. `thread` is the thread that passes the input on. Returns `None` if the wait may be
    /// for something other than input, or if it has no time limit: such waits count as waits for work already.
    fn outside(
        &self,
        wait: &Sleep,
        (thread, names): (u32, &TaskNames),
        found: &OutsideWaits,
    ) -> Option<Sleep> {
        let cause = &wait.cause;
        let is_no_input = cause.starts_with(FOR_SERVICE)
            || cause.ends_with(UNNAMED_WAIT)
            || NO_INPUT.iter().any(|name| cause.ends_with(name));
        if !matches!(wait.kind, SleepKind::Other | SleepKind::Poll) || is_no_input {
            return None;
        }
        let who = self.who(&TaskKey::Thread(thread), names);
        let calls = found.calls.iter();
        let (call, _) = calls.max_by_key(|(call, count)| (**count, **call))?;
        Some(Sleep {
            kind: SleepKind::Work,
            cause: wait.cause_for(&format!("input from outside ({who} is in {call})")),
            location: wait.location.clone(),
            producer: None,
        })
    }

    /// Returns the sleep, with its text for the report, that replaces `wait` in the samples of waits for the task
    /// `key`.
    fn sleep(
        &self,
        wait: &Sleep,
        (key, names): (&TaskKey, &TaskNames),
        produced: &Produced,
        samples: &[StackSample],
        frames: &Frames,
    ) -> Sleep {
        let who = self.who(key, names);
        let (does, location) = produced.does(key, samples, frames);
        // A futex wait of unknown kind may be a wait for input, or for a lock or a semaphore that another thread holds.
        // The stack does not show which of them it is, so the wait does not count as a wait for input.
        let may_be_lock = matches!(wait.kind, SleepKind::Other | SleepKind::Poll)
            && matches!(key, TaskKey::Thread(_))
            && wait.cause.ends_with(UNNAMED_WAIT);
        Sleep {
            kind: match may_be_lock {
                true => wait.kind,
                false => SleepKind::Producer,
            },
            cause: wait.cause_for(&format!("{who} ({does})")),
            location: location.or_else(|| wait.location.clone()),
            producer: (!may_be_lock).then(|| ProducerShare {
                is_asleep: produced.sleep().is_some(),
                ..produced.share
            }),
        }
    }

    /// Returns words for a task, such as `thread NAME`.
    fn who(&self, key: &TaskKey, names: &TaskNames) -> String {
        match key {
            TaskKey::Child(name) if name.is_empty() => "a child process".to_owned(),
            TaskKey::Child(name) => format!("child process {name}"),
            TaskKey::Thread(number) => match self.thread_name(*number, names) {
                Some(name) => format!("thread {name}"),
                None => "another thread".to_owned(),
            },
        }
    }

    /// Returns the name of a thread; `None` if the thread has no name or only the name of the process.
    fn thread_name(&self, number: u32, names: &TaskNames) -> Option<String> {
        if let Some(known) = self.facts.threads.get(&number) {
            return Some(known.clone());
        }
        let (_, id) = names.threads.get(&number)?;
        let own = name(self.strings.get(*id));
        let is_distinct = !self.facts.process.starts_with(&own);
        is_distinct.then_some(own)
    }
}

impl TaskActivity {
    /// Returns the activity of a child process that is not busy. `call` is the system call that it sleeps in.
    const fn of_child(call: Option<SystemCall>) -> Self {
        let Some(call) = call else {
            return Self::Unknown;
        };
        match SleepKind::of_call(call) {
            Some(kind) => Self::Asleep(kind),
            None if is_outside(call) => Self::Outside(call),
            None => Self::Waits,
        }
    }
}

impl OutsideWaits {
    fn add(&mut self, wait: &SampledWait, thread: u32, tasks: &HashMap<usize, Vec<TaskSample>>) {
        self.waits.extend(&wait.samples);
        let all = wait.samples.iter().filter_map(|index| tasks.get(index));
        for task in all.flatten() {
            if task.key == TaskKey::Thread(thread)
                && let TaskActivity::Outside(call) = task.activity
            {
                *self.calls.entry(call.name()).or_default() += 1;
            }
        }
    }
}

/// Sets the sleep of the samples `waits`, which are given by their indexes.
fn replace(sleep: Sleep, waits: &[usize], samples: &mut [StackSample], frames: &mut Frames) {
    let place = match frames.sleeps.iter().position(|known| *known == sleep) {
        Some(place) => place,
        None => {
            frames.sleeps.push(sleep);
            frames.sleeps.len() - 1
        }
    };
    for index in waits {
        samples[*index].sleep = Some(place as u32);
    }
}

/// Returns true for system calls in which a task waits for a socket, a pipe or another stream.
const fn is_outside(call: SystemCall) -> bool {
    use SystemCall as Call;
    matches!(
        call,
        Call::EpollWait
            | Call::Poll
            | Call::Select
            | Call::Accept
            | Call::Receive
            | Call::ReadStream
    )
}

/// Returns true if the innermost function of the program on a Python stack called a function of Python's library that
/// uses a pipe to a child process. `frame` is the stack's innermost frame.
fn uses_pipe(frame: u32, frames: &Frames) -> bool {
    let stack = frames.stack(frame).into_iter().rev();
    let functions = stack.filter_map(|function| frames.functions.get(function as usize));
    let mut library = functions.take_while(|it| it.origin == Origin::PythonLibrary);
    library.any(|function| PIPE_FILES.iter().any(|file| function.name.contains(file)))
}

/// Returns true for waits that another thread or a child process may end.
const fn is_for_others(kind: SleepKind) -> bool {
    use SleepKind::{Called, Other, Poll, Work};
    matches!(kind, Work | Called | Poll | Other)
}

/// Returns the index of the sample of a thread that is nearest to the time `at`; `None` if that sample is more than
/// [`MAX_APART_NS`] away.
fn nearest(samples: &[StackSample], thread: u32, at: u64) -> Option<usize> {
    let after = samples.partition_point(|one| (one.thread, one.at) < (thread, at));
    let distance = |index: &usize| samples[*index].at.abs_diff(at);
    let is_it = |index: &usize| {
        let sample = samples.get(*index);
        sample.is_some_and(|one| one.thread == thread && one.taken != Taken::Native)
    };
    let before = (0..after).rev().take(8).find(is_it);
    let after = (after..after + 8).find(is_it);
    let near = before.into_iter().chain(after).min_by_key(distance)?;
    (distance(&near) <= MAX_APART_NS).then_some(near)
}

impl Produced {
    fn add(
        &mut self,
        wait: &SampledWait,
        key: &TaskKey,
        tasks: &HashMap<usize, Vec<TaskSample>>,
        linked: &Linked,
        samples: &[StackSample],
    ) {
        self.waits.extend(&wait.samples);
        self.share.samples += wait.samples.len() as u64;
        if let [first, ..] = wait.samples[..]
            && let Some(last) = wait.samples.last()
        {
            self.spans.push((samples[first].at, samples[*last].at));
        }
        for index in &wait.samples {
            let all = tasks.get(index).into_iter().flatten();
            let at_work =
                |task: &&TaskSample| task.key == *key && linked.is_at_work(wait.thread, task);
            let Some(task) = all.clone().find(at_work) else {
                continue;
            };
            self.share.at_work += 1;
            self.own.extend(task.sample);
            match task.activity {
                TaskActivity::Busy => self.busy += 1,
                TaskActivity::Asleep(kind) => *self.asleep.entry(kind).or_default() += 1,
                TaskActivity::Outside(_) | TaskActivity::Waits | TaskActivity::Unknown => (),
            }
        }
    }

    /// Sorts the times of the waits, and joins those that overlap. Several threads may wait for the same task.
    fn join_spans(&mut self) {
        self.spans.sort_unstable();
        self.spans.dedup_by(|next, last| {
            let do_overlap = next.0 <= last.1;
            if do_overlap {
                last.1 = last.1.max(next.1);
            }
            do_overlap
        });
    }

    /// Returns the most frequent kind of sleep of the task at the samples at which it is at work; `None` if it is on a
    /// processor at as many of these samples or more.
    fn sleep(&self) -> Option<SleepKind> {
        let asleep = self.asleep.iter();
        let asleep = asleep.max_by_key(|(kind, count)| (**count, **kind));
        let (kind, count) = asleep?;
        (*count > self.busy).then_some(*kind)
    }

    /// Returns words for the activity of the task `key` in the waits in `self`, such as `busy in FUNCTION`, and the
    /// location of the function.
    fn does(
        &self,
        key: &TaskKey,
        samples: &[StackSample],
        frames: &Frames,
    ) -> (String, Option<Location>) {
        let does = match self.sleep() {
            Some(SleepKind::File) => "waiting for a file",
            Some(SleepKind::Lock) => "waiting for a lock",
            Some(_) => "asleep",
            None => "busy",
        };
        match self.function(key, samples, frames) {
            Some(function) => (
                format!("{does} in {}", frames.label(function)),
                frames.location(function),
            ),
            None => (does.to_owned(), None),
        }
    }

    /// Returns the innermost function of the program that is on most of the stacks of the thread `key` during the waits
    /// in `self`. Returns `None` for a child process, because its stacks are not sampled.
    fn function(&self, key: &TaskKey, samples: &[StackSample], frames: &Frames) -> Option<u32> {
        let TaskKey::Thread(thread) = key else {
            return None;
        };
        let own = self.own.iter().map(|index| &samples[*index]);
        let python = own.clone().filter(|one| one.taken == Taken::Python);
        common(python.map(|one| one.frame), frames)
            .or_else(|| common(self.native(*thread, samples), frames))
            .or_else(|| {
                let asleep = own.filter_map(|one| frames.sleeps.get(one.sleep? as usize));
                let location = asleep.filter_map(|sleep| sleep.location.as_ref()).next()?;
                let mut functions = frames.functions.iter();
                let place = functions.position(|one| one.location() == *location)?;
                Some(place as u32)
            })
    }

    /// Returns the innermost frames of the native stacks that were sampled from a thread during the waits in `self`.
    fn native<'a>(
        &'a self,
        thread: u32,
        samples: &'a [StackSample],
    ) -> impl Iterator<Item = u32> + 'a {
        let first = samples.partition_point(|one| one.thread < thread);
        let own = samples[first..].iter();
        let own = own.take_while(move |one| one.thread == thread);
        let is_in = |one: &&StackSample| {
            let after = self.spans.partition_point(|(_, end)| *end < one.at);
            let span = self.spans.get(after);
            one.taken == Taken::Native && span.is_some_and(|(start, _)| *start <= one.at)
        };
        own.filter(is_in).map(|one| one.frame)
    }
}

/// Returns the innermost function of the program that is on most of the given stacks; `None` if there is no such
/// function. `innermost` contains the innermost frame of each stack. An outermost function of the stacks, such as a
/// thread's start function, is returned only if no other function is on most of them.
pub(super) fn common(innermost: impl Iterator<Item = u32>, frames: &Frames) -> Option<u32> {
    // For each function, the number of stacks that contain it, and the sum of its depths in these stacks.
    let mut functions: HashMap<u32, (u64, u64)> = HashMap::new();
    let mut stacks = 0;
    for frame in innermost {
        stacks += 1;
        let mut seen: HashMap<u32, u64> = HashMap::new();
        for (depth, function) in (0..).zip(frames.stack(frame)) {
            let known = frames.functions.get(function as usize);
            if known.is_some_and(|known| known.origin == Origin::Program) {
                seen.insert(function, depth);
            }
        }
        for (function, depth) in seen {
            let sum = functions.entry(function).or_default();
            *sum = (sum.0 + 1, sum.1 + depth);
        }
    }
    let is_in_most =
        |(_, (count, _)): &(u32, (u64, u64))| *count as f64 >= MIN_IN_FUNCTION * f64::from(stacks);
    let depth = |(count, depths): (u64, u64)| depths as f64 / count as f64;
    let most = functions.into_iter().filter(is_in_most).max_by(|a, b| {
        let order = depth(a.1).total_cmp(&depth(b.1));
        order.then_with(|| b.0.cmp(&a.0))
    });
    most.map(|(function, _)| function)
}

impl ProducerShare {
    /// Returns the share of the waits' samples at which the producer was at work, as a fraction.
    pub(crate) fn share(self) -> f64 {
        self.at_work as f64 / self.samples.max(1) as f64
    }
}

#[cfg(test)]
mod tests;
