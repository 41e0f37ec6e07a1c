//! Waits for a task (a thread or a child process of the program) that prepares the waiting thread's input.
//!
//! A thread that waits for a queue may wait for a client's request, or for a slow task of the program that prepares
//! input. Both waits look the same on the thread's stack. They are distinguished by the activity of the tasks during
//! the wait. A task that is on a processor is at work. A task that sleeps for a given time, or waits for a file or a
//! lock, is at work only if it causes the waits to end. It does if it has run between almost every wait and the next,
//! and rarely inside a wait.

use std::collections::{BTreeSet, HashMap};

use tllmprof_record::{StringId, Strings, SystemCall, Taken, Task, ThreadState};

use super::StackSample;
use super::frames::Frames;
use super::function::Origin;
use super::location::Location;
use super::sleep::{ProducerShare, Sleep, SleepKind};
use crate::events::facts::{Facts, name};

/// Minimum share of a wait's samples, as a fraction, in which a task must be at work for the wait to count as a wait
/// for this task.
const MIN_AT_WORK: f64 = 0.5;
/// Minimum share of the samples of all waits in the same function, as a fraction, in which a task must be at work for
/// any of these waits to count as a wait for this task. A task that is at work only in short bursts has nothing to do
/// with the waits.
const MIN_AT_WORK_IN_ALL: f64 = 0.25;
/// Minimum number of waits of a thread (`MIN_WAITS`), and minimum number of samples in these waits without the first
/// sample of each wait (`MIN_INSIDE`). With fewer, a sleeping task does not count as the cause of the waits.
const MIN_WAITS: u64 = 8;
const MIN_INSIDE: u64 = 8;
/// Minimum share of a thread's waits, as a fraction, before which a sleeping task must have run to count as the cause
/// of the waits. The time before a wait is the time since the thread's previous wait.
const MIN_RUNS: f64 = 0.8;
/// Maximum share of the samples inside a thread's waits, as a fraction, at which a sleeping task has run since the
/// previous sample. A task that runs more often, such as one that polls, does not count as the cause of the waits. The
/// first sample of each wait is left out.
const MAX_RUNS_INSIDE: f64 = 0.5;
/// Maximum time in nanoseconds between a sample of a waiting thread and a sample of another thread, for the second
/// sample to show what the other thread did at the time of the first.
const MAX_APART_NS: u64 = 5_000_000;
/// Minimum share of a task's stacks, as a fraction, that must contain a function for the report to name the function.
const MIN_IN_FUNCTION: f64 = 0.5;

/// End of the text for the cause of a wait in the system call `futex`, if the function that made the system call is not
/// known.
const UNNAMED_WAIT: &str = ": futex";

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

/// A thread of the program, by its id, or all child processes with the same name. Child processes are joined by name
/// because a program may start a new one for each step.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum TaskKey {
    Thread(u32),
    Child(String),
}

/// A wait of a thread: its samples from the time that it fell asleep to the time that it woke.
#[derive(Debug)]
struct SampledWait {
    thread: u32,
    sleep: u32,
    /// Indexes in the list of samples.
    samples: Vec<usize>,
}

/// The activity of a task at the time when a waiting thread was sampled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TaskActivity {
    Busy,
    /// The task sleeps for a given time, or waits for a file or a lock.
    Asleep(SleepKind),
    /// The task waits for something else, such as work, or its state is not known.
    Waits,
}

/// A task and its activity at the time when a waiting thread was sampled.
#[derive(Clone, Debug)]
struct TaskSample {
    key: TaskKey,
    activity: TaskActivity,
    has_run: bool,
    /// For a thread, the index of its own sample that is nearest in time to the sample of the wait. `None` for child
    /// processes, or if the thread has no sample within [`MAX_APART_NS`].
    sample: Option<usize>,
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
    /// The times of these waits in nanoseconds.
    spans: Vec<(u64, u64)>,
}

/// The data from which the cause of each wait is found. All lists of samples must be sorted by thread and time.
pub(super) struct Producers<'a> {
    pub meanwhile: &'a HashMap<u64, Vec<Meanwhile>>,
    /// For each sample, true if its thread has not woken since its previous sample.
    pub continues: &'a [bool],
    pub facts: &'a Facts,
    pub strings: &'a Strings,
}

impl Producers<'_> {
    /// Finds the samples in which a thread waits for a task of the program, and replaces the sleeps of these samples by
    /// sleeps whose texts name the task.
    pub(super) fn name_waits(&self, samples: &mut [StackSample], frames: &mut Frames) {
        if self.meanwhile.is_empty() {
            return;
        }
        let waits = self.waits(samples, frames);
        let tasks: HashMap<usize, Vec<TaskSample>> = waits
            .iter()
            .flat_map(|wait| &wait.samples)
            .map(|index| (*index, self.tasks_at(*index, samples, frames)))
            .collect();
        let linked = Linked::find(&waits, &tasks);
        let at_work = AtWork::count(&waits, &tasks, &linked);
        let mut found: HashMap<(u32, TaskKey), Produced> = HashMap::new();
        for wait in &waits {
            if let Some(key) = at_work.producer(wait, &tasks, &linked) {
                let produced = found.entry((wait.sleep, key.clone())).or_default();
                produced.add(wait, &key, &tasks, &linked, samples);
            }
        }
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        for ((sleep, key), produced) in found {
            let Some(wait) = frames.sleeps.get(sleep as usize) else {
                continue;
            };
            let sleep = self.sleep(wait, &key, &produced, samples, frames);
            let place = match frames.sleeps.iter().position(|known| *known == sleep) {
                Some(place) => place,
                None => {
                    frames.sleeps.push(sleep);
                    frames.sleeps.len() - 1
                }
            };
            for index in produced.waits {
                samples[index].sleep = Some(place as u32);
            }
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
                sleep.is_some_and(|it| matches!(it.kind, SleepKind::Work | SleepKind::Other))
            });
            let now = sleep.map(|sleep| (sample.thread, sleep));
            if let Some((thread, sleep)) = now {
                let is_same = last == now && self.continues.get(index) == Some(&true);
                match waits.last_mut().filter(|_| is_same) {
                    Some(wait) => wait.samples.push(index),
                    None => waits.push(SampledWait {
                        thread,
                        sleep,
                        samples: vec![index],
                    }),
                }
            }
            last = now;
        }
        waits
    }

    /// Returns the tasks that were observed at a sample of a wait.
    fn tasks_at(&self, index: usize, samples: &[StackSample], frames: &Frames) -> Vec<TaskSample> {
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
            let activity = match (one.is_busy || is_runnable, one.task) {
                (true, _) => TaskActivity::Busy,
                (false, Task::Thread) => own
                    .and_then(|own| frames.sleeps.get(samples[own].sleep? as usize))
                    .map_or(TaskActivity::Waits, |sleep| {
                        TaskActivity::asleep(sleep.kind)
                    }),
                (false, Task::Child) => one
                    .call
                    .and_then(SleepKind::of_call)
                    .map_or(TaskActivity::Waits, TaskActivity::Asleep),
            };
            TaskSample {
                key: match one.task {
                    Task::Thread => TaskKey::Thread(one.id),
                    Task::Child if one.name == 0 => TaskKey::Child(String::new()),
                    Task::Child => TaskKey::Child(name(self.strings.get(one.name))),
                },
                activity,
                has_run: one.has_run,
                sample: own,
            }
        };
        all.map(task).collect()
    }

    /// Returns the sleep, with its text for the report, that replaces `wait` in the samples of waits for the task
    /// `key`.
    fn sleep(
        &self,
        wait: &Sleep,
        key: &TaskKey,
        produced: &Produced,
        samples: &[StackSample],
        frames: &Frames,
    ) -> Sleep {
        let who = match key {
            TaskKey::Child(name) if name.is_empty() => "a child process".to_owned(),
            TaskKey::Child(name) => format!("child process {name}"),
            TaskKey::Thread(number) => match self.thread_name(*number) {
                Some(name) => format!("thread {name}"),
                None => "another thread".to_owned(),
            },
        };
        let (does, location) = produced.does(key, samples, frames);
        // A wait of unknown kind in a futex may also be a wait for a lock or a semaphore that another thread holds. No
        // function on the stack shows which of the two it is, so such a wait does not count as a wait for input.
        let may_be_lock = wait.kind == SleepKind::Other
            && matches!(key, TaskKey::Thread(_))
            && wait.cause.ends_with(UNNAMED_WAIT);
        Sleep {
            kind: match may_be_lock {
                true => wait.kind,
                false => SleepKind::Producer,
            },
            cause: wait.cause_for(&format!("{who} ({does})")),
            location: location.or_else(|| wait.location.clone()),
            producer: (!may_be_lock).then_some(produced.share),
        }
    }

    /// Returns the name of a thread; `None` if the thread has no name or only the name of the process.
    fn thread_name(&self, number: u32) -> Option<String> {
        if let Some(known) = self.facts.threads.get(&number) {
            return Some(known.clone());
        }
        let mut all = self.meanwhile.values().flatten();
        let task = all.find(|one| one.task == Task::Thread && one.id == number)?;
        let own = name(self.strings.get(task.name));
        let is_distinct = task.name != 0 && !self.facts.process.starts_with(&own);
        is_distinct.then_some(own)
    }
}

impl TaskActivity {
    const fn asleep(kind: SleepKind) -> Self {
        match kind {
            SleepKind::Sleep | SleepKind::File | SleepKind::Lock => Self::Asleep(kind),
            _ => Self::Waits,
        }
    }
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

/// For each waiting thread and task, true if the thread's waits end because the task runs. This is assumed if the task
/// has run between almost every wait and the next, but rarely inside a wait (see [`MIN_RUNS`] and [`MAX_RUNS_INSIDE`]).
struct Linked(HashMap<(u32, TaskKey), bool>);

/// Numbers of samples of a thread's waits at which a task has run since the previous sample: at first samples of
/// waits (`at_start`), and at later samples (`inside`).
#[derive(Default)]
struct RunCounts {
    at_start: u64,
    inside: u64,
}

impl Linked {
    fn find(waits: &[SampledWait], tasks: &HashMap<usize, Vec<TaskSample>>) -> Self {
        // For each thread, its number of waits, and the number of samples of these waits without the first ones.
        let mut all: HashMap<u32, (u64, u64)> = HashMap::new();
        let mut runs: HashMap<(u32, TaskKey), RunCounts> = HashMap::new();
        for wait in waits {
            let all = all.entry(wait.thread).or_default();
            all.0 += 1;
            all.1 += wait.samples.len() as u64 - 1;
            for (order, index) in wait.samples.iter().enumerate() {
                for key in keys(tasks.get(index), |task| task.has_run) {
                    let runs = runs.entry((wait.thread, key.clone())).or_default();
                    match order {
                        0 => runs.at_start += 1,
                        _ => runs.inside += 1,
                    }
                }
            }
        }
        let linked = runs.into_iter().map(|((thread, key), runs)| {
            let (waits, inside) = all.get(&thread).copied().unwrap_or_default();
            let is_linked = waits >= MIN_WAITS
                && inside >= MIN_INSIDE
                && runs.at_start as f64 >= MIN_RUNS * waits as f64
                && runs.inside as f64 <= MAX_RUNS_INSIDE * inside as f64;
            ((thread, key), is_linked)
        });
        Self(linked.collect())
    }

    /// Returns true if a task is at work at a sample of a thread's wait.
    fn is_at_work(&self, thread: u32, task: &TaskSample) -> bool {
        match task.activity {
            TaskActivity::Busy => true,
            TaskActivity::Asleep(_) => self.0.get(&(thread, task.key.clone())) == Some(&true),
            TaskActivity::Waits => false,
        }
    }
}

/// For each sleep, by its index in `Frames::sleeps`, the number of samples of waits in that sleep (`all`), and the
/// number of these samples at which each task was at work (`by_task`).
struct AtWork {
    all: HashMap<u32, u64>,
    by_task: HashMap<(u32, TaskKey), u64>,
}

impl AtWork {
    fn count(
        waits: &[SampledWait],
        tasks: &HashMap<usize, Vec<TaskSample>>,
        linked: &Linked,
    ) -> Self {
        let (mut all, mut by_task) = (HashMap::new(), HashMap::new());
        for wait in waits {
            *all.entry(wait.sleep).or_default() += wait.samples.len() as u64;
            for (key, count) in in_wait(wait, tasks, linked) {
                *by_task.entry((wait.sleep, key)).or_default() += count;
            }
        }
        Self { all, by_task }
    }

    /// Returns the task that is the cause of a wait; `None` if there is no such task. The candidates are the tasks that
    /// are at work at enough samples (see [`MIN_AT_WORK`] and [`MIN_AT_WORK_IN_ALL`]). Of these, the task that is at
    /// work at the largest number of the wait's samples is returned.
    fn producer(
        &self,
        wait: &SampledWait,
        tasks: &HashMap<usize, Vec<TaskSample>>,
        linked: &Linked,
    ) -> Option<TaskKey> {
        let counts = in_wait(wait, tasks, linked).into_iter();
        let of_all = |key: &TaskKey| {
            let count = self.by_task.get(&(wait.sleep, key.clone())).copied();
            count.unwrap_or(0)
        };
        let all = self.all.get(&wait.sleep).copied().unwrap_or(0) as f64;
        let is_enough = |(key, count): &(TaskKey, u64)| {
            *count as f64 >= MIN_AT_WORK * wait.samples.len() as f64
                && of_all(key) as f64 >= MIN_AT_WORK_IN_ALL * all
        };
        let most = counts.filter(is_enough).max_by(|(a, n), (b, m)| {
            let order = (n, of_all(a)).cmp(&(m, of_all(b)));
            order.then_with(|| b.cmp(a))
        });
        most.map(|(key, _)| key)
    }
}

/// Returns for each task the number of samples of a wait at which the task was at work.
fn in_wait(
    wait: &SampledWait,
    tasks: &HashMap<usize, Vec<TaskSample>>,
    linked: &Linked,
) -> HashMap<TaskKey, u64> {
    let mut counts = HashMap::new();
    for index in &wait.samples {
        let is_at_work = |task: &TaskSample| linked.is_at_work(wait.thread, task);
        for key in keys(tasks.get(index), is_at_work) {
            *counts.entry(key.clone()).or_default() += 1;
        }
    }
    counts
}

/// Returns the keys, without duplicates, of the tasks at a sample for which `is` returns true. Several child processes
/// may have the same key.
fn keys(tasks: Option<&Vec<TaskSample>>, is: impl Fn(&TaskSample) -> bool) -> BTreeSet<&TaskKey> {
    let all = tasks.into_iter().flatten().filter(|task| is(task));
    all.map(|task| &task.key).collect()
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
                TaskActivity::Waits => (),
            }
        }
    }

    /// Returns words for the activity of the task `key` in the waits in `self`, such as `busy in FUNCTION`, and the
    /// location of the function.
    fn does(
        &self,
        key: &TaskKey,
        samples: &[StackSample],
        frames: &Frames,
    ) -> (String, Option<Location>) {
        let asleep = self
            .asleep
            .iter()
            .max_by_key(|(kind, count)| (**count, **kind));
        let does = match asleep {
            Some((kind, count)) if *count > self.busy => match kind {
                SleepKind::File => "waiting for a file",
                SleepKind::Lock => "waiting for a lock",
                _ => "asleep",
            },
            _ => "busy",
        };
        match self.function(key, samples, frames) {
            Some(function) => (
                format!("{does} in {}", frames.label(function)),
                frames.location(function),
            ),
            None => (does.to_owned(), None),
        }
    }

    /// Returns the innermost function of the program in which the thread `key` is in most of its samples during the
    /// waits in `self`. Returns `None` for a child process, because its stacks are not sampled.
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
fn common(innermost: impl Iterator<Item = u32>, frames: &Frames) -> Option<u32> {
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
mod tests {
    use super::*;
    use tllmprof_record::ThreadState;

    const MAIN: u32 = 7;
    const OTHER: u32 = 9;
    const CHILD: u32 = 70;
    /// Number of steps in a test. A step takes 20 ms, and the thread waits in the second half of the step. A sample is
    /// taken every 2 ms.
    const STEPS: u64 = 40;
    const MS: u64 = 1_000_000;

    /// The activity of a task at a sample: whether it is busy, whether it has run since the previous sample, and the
    /// sleep that it is in.
    #[derive(Clone, Copy)]
    struct Doing {
        is_busy: bool,
        has_run: bool,
        kind: SleepKind,
    }

    const BUSY: Doing = Doing {
        is_busy: true,
        has_run: true,
        kind: SleepKind::Other,
    };
    const IDLE: Doing = Doing {
        is_busy: false,
        has_run: false,
        kind: SleepKind::Work,
    };

    fn asleep(kind: SleepKind, has_run: bool) -> Doing {
        Doing {
            is_busy: false,
            has_run,
            kind,
        }
    }

    fn sleep(kind: SleepKind, cause: &str) -> Sleep {
        Sleep {
            kind,
            cause: cause.to_owned(),
            location: None,
            producer: None,
        }
    }

    /// Returns the list of sleeps. The sleep of the thread `MAIN` is the first, and the sleeps of `OTHER` follow.
    fn sleeps(main: SleepKind, called: &str) -> Vec<Sleep> {
        let begins = match main {
            SleepKind::Work => "waiting for work",
            _ => "blocked",
        };
        vec![
            sleep(main, &format!("{begins} in take: {called}")),
            sleep(SleepKind::Sleep, "asleep in load: nanosleep"),
            sleep(SleepKind::File, "waiting for a file in load: read"),
            sleep(SleepKind::Work, "waiting for work in serve: poll"),
        ]
    }

    fn sample(thread: u32, at: u64, sleep: Option<u32>, is_busy: bool) -> StackSample {
        StackSample {
            at,
            ticks: at,
            thread,
            taken: Taken::NoPython,
            state: Some(match is_busy {
                true => ThreadState::Running,
                false => ThreadState::Sleeping,
            }),
            frame: 0,
            sleep,
            waits_for_events: false,
        }
    }

    /// Returns the causes of the sleeps of `MAIN`, each with its number of samples. `does` returns the activity of the
    /// other task at a sample of a wait. Its arguments are the number of the step and the number of the sample in the
    /// wait.
    fn divided(
        main: SleepKind,
        task: Task,
        does: impl Fn(u64, u64) -> Doing,
    ) -> Vec<(String, usize)> {
        divided_in(main, "queue.get", task, does)
    }

    /// Returns the same as [`divided`] for waits in the function `called` instead of `queue.get`.
    fn divided_in(
        main: SleepKind,
        called: &str,
        task: Task,
        does: impl Fn(u64, u64) -> Doing,
    ) -> Vec<(String, usize)> {
        let (mut samples, mut others) = (Vec::new(), Vec::new());
        let mut meanwhile: HashMap<u64, Vec<Meanwhile>> = HashMap::new();
        let mut continues = Vec::new();
        for step in 0..STEPS {
            for order in 0..10 {
                let at = (step * 20 + order * 2) * MS;
                let waits = order >= 5;
                samples.push(sample(MAIN, at, waits.then_some(0), !waits));
                continues.push(order > 5);
                if !waits {
                    continue;
                }
                let doing = does(step, order - 5);
                let sleep = match doing.kind {
                    SleepKind::Sleep => 1,
                    SleepKind::File => 2,
                    _ => 3,
                };
                let call = match doing.kind {
                    SleepKind::Sleep => SystemCall::ClockNanosleep,
                    SleepKind::File => SystemCall::Fsync,
                    _ => SystemCall::ReadStream,
                };
                let is_thread = task == Task::Thread;
                if is_thread {
                    let sleep = (!doing.is_busy).then_some(sleep);
                    others.push(sample(OTHER, at + 1000, sleep, doing.is_busy));
                }
                meanwhile.insert(
                    at,
                    vec![Meanwhile {
                        task,
                        is_busy: doing.is_busy,
                        has_run: doing.has_run,
                        is_awaited: false,
                        call: (!is_thread && !doing.is_busy).then_some(call),
                        name: 0,
                        // Each step starts another child process. All child processes have the same name.
                        id: if is_thread {
                            OTHER
                        } else {
                            CHILD + step as u32
                        },
                    }],
                );
            }
        }
        let of_main = samples.len();
        continues.resize(of_main + others.len(), false);
        samples.extend(others);
        let mut frames = Frames::default();
        frames.sleeps = sleeps(main, called);
        let producers = Producers {
            meanwhile: &meanwhile,
            continues: &continues,
            facts: &Facts::default(),
            strings: &Strings::default(),
        };
        producers.name_waits(&mut samples, &mut frames);
        let mut counts: HashMap<String, usize> = HashMap::new();
        for sample in &samples[..of_main] {
            if let Some(sleep) = sample.sleep {
                let sleep = &frames.sleeps[sleep as usize];
                assert_eq!(
                    sleep.producer.is_some(),
                    sleep.kind == SleepKind::Producer,
                    "{sleep:?}"
                );
                *counts.entry(sleep.cause.clone()).or_default() += 1;
            }
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort();
        counts
    }

    fn all(cause: &str) -> Vec<(String, usize)> {
        vec![(cause.to_owned(), 5 * STEPS as usize)]
    }

    const FOR_WORK: &str = "waiting for work in take: queue.get";
    const FOR_BUSY: &str = "waiting for another thread (busy) in take: queue.get";
    const FOR_ASLEEP: &str = "waiting for another thread (asleep) in take: queue.get";

    #[test]
    fn a_wait_while_another_thread_is_busy_is_a_wait_for_it() {
        let found = divided(SleepKind::Work, Task::Thread, |_, _| BUSY);
        assert_eq!(found, all(FOR_BUSY));
        // A wait with a time limit while another thread is busy is a wait for that thread, too.
        let found = divided(SleepKind::Other, Task::Thread, |_, _| BUSY);
        assert_eq!(found, all(FOR_BUSY));
        let found = divided(SleepKind::Work, Task::Thread, |_, _| IDLE);
        assert_eq!(found, all(FOR_WORK));
        // A wait for a lock keeps its cause, although another thread is busy.
        let found = divided(SleepKind::Lock, Task::Thread, |_, _| BUSY);
        assert_eq!(found, all("blocked in take: queue.get"));
    }

    #[test]
    fn a_wait_that_may_be_for_a_lock_names_the_other_thread_and_is_no_wait_for_input() {
        // `divided_in` asserts that only sleeps of the kind `Producer` have a producer.
        let found = divided_in(SleepKind::Other, "futex", Task::Thread, |_, _| BUSY);
        let expected = all("waiting for another thread (busy) in take: futex");
        assert_eq!(found, expected);
        let found = divided_in(SleepKind::Other, "futex", Task::Child, |_, _| BUSY);
        assert_eq!(
            found,
            all("waiting for a child process (busy) in take: futex")
        );
    }

    #[test]
    fn waits_are_divided_one_by_one() {
        let found = divided(SleepKind::Work, Task::Thread, |step, _| {
            if step % 2 == 0 { BUSY } else { IDLE }
        });
        let half = 5 * STEPS as usize / 2;
        assert_eq!(
            found,
            [(FOR_BUSY.to_owned(), half), (FOR_WORK.to_owned(), half)]
        );
        // The other thread is busy for less than half of each wait.
        let found = divided(SleepKind::Work, Task::Thread, |_, order| {
            if order < 2 { BUSY } else { IDLE }
        });
        assert_eq!(found, all(FOR_WORK));
        // The other thread is busy in few of the waits, so it does not cause the waits.
        let found = divided(SleepKind::Work, Task::Thread, |step, _| {
            if step % 5 == 0 { BUSY } else { IDLE }
        });
        assert_eq!(found, all(FOR_WORK));
    }

    #[test]
    fn a_thread_that_sleeps_causes_waits_if_it_runs_at_their_ends() {
        let sleeps = |kind| move |_, order| asleep(kind, order == 0);
        let found = divided(SleepKind::Work, Task::Thread, sleeps(SleepKind::Sleep));
        assert_eq!(found, all(FOR_ASLEEP));
        let found = divided(SleepKind::Work, Task::Thread, sleeps(SleepKind::File));
        let for_file = "waiting for another thread (waiting for a file) in take: queue.get";
        assert_eq!(found, all(for_file));
        // The other thread waits for requests itself, and passes them to the waiting thread.
        let found = divided(SleepKind::Work, Task::Thread, sleeps(SleepKind::Work));
        assert_eq!(found, all(FOR_WORK));
        // The other thread wakes only now and then, as a monitoring thread does.
        let found = divided(SleepKind::Work, Task::Thread, |step, order| {
            asleep(SleepKind::Sleep, order == 0 && step % 4 == 0)
        });
        assert_eq!(found, all(FOR_WORK));
        // The other thread polls: it has run since the previous sample at each sample.
        let found = divided(SleepKind::Work, Task::Thread, |_, _| {
            asleep(SleepKind::Sleep, true)
        });
        assert_eq!(found, all(FOR_WORK));
    }

    #[test]
    fn children_with_one_name_are_one_task() {
        let found = divided(SleepKind::Work, Task::Child, |_, _| BUSY);
        assert_eq!(
            found,
            all("waiting for a child process (busy) in take: queue.get")
        );
        let found = divided(SleepKind::Other, Task::Child, |_, order| {
            asleep(SleepKind::Sleep, order == 0)
        });
        let cause = "waiting for a child process (asleep) in take: queue.get";
        assert_eq!(found, all(cause));
        let found = divided(SleepKind::Work, Task::Child, |_, order| {
            asleep(SleepKind::Work, order == 0)
        });
        assert_eq!(found, all(FOR_WORK));
    }
}
