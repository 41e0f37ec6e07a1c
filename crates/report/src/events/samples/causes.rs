//! The causes of waits: a task (a thread or a child process of the program) that prepares the waiting thread's input,
//! or input from outside the program, such as requests.
//!
//! A thread that waits for a queue may wait for a client's request, or for a slow task of the program that prepares
//! input. Both waits look the same on the thread's stack. They are distinguished by the activity of the tasks during
//! the wait. A task that is on a processor is at work. A task that sleeps for a given time, or waits for a file or a
//! lock, is at work only if it causes the waits to end. This is assumed if it has run between almost every wait and the
//! next, and rarely inside a wait.
//!
//! A child process may be at work for another purpose, such as a process that uses the same GPU. It counts as the cause
//! only if it works more during the waits than between them, or if the thread waits for a pipe and no thread is at
//! work.
//!
//! A waiting thread may get its input from another thread, which passes the input on. If no task is at work, and this
//! other thread waits for a socket or a pipe, then the cause is input from outside.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use tllmprof_record::SystemCall;

use super::sleep::SleepKind;

/// Minimum share of a wait's samples, as a fraction, in which a task must be at work for the wait to count as a wait
/// for this task.
const MIN_AT_WORK: f64 = 0.5;
/// Minimum share of the samples of all waits in the same function, as a fraction, in which a task must be at work for
/// any of these waits to count as a wait for this task. A task that is at work in only a few of the waits is assumed
/// not to cause them.
const MIN_AT_WORK_IN_ALL: f64 = 0.25;
/// Minimum number of waits of a thread (`MIN_WAITS`), and minimum number of samples in these waits (`MIN_INSIDE`), for
/// a sleeping task to count as the cause of the waits. The first sample of each wait does not count. With fewer than
/// `MIN_WAITS` waits, a child process is also not compared with the times between the waits (see
/// [`MIN_MORE_IN_WAITS`]).
const MIN_WAITS: u64 = 8;
const MIN_INSIDE: u64 = 8;
/// Minimum share of a thread's waits, as a fraction, before which another task must have run. With a smaller share, a
/// sleeping task does not count as the cause of the waits, and a thread does not count as the one that passes input on.
/// The time before a wait is the time since the thread's previous wait.
const MIN_RUNS: f64 = 0.8;
/// Maximum share of the samples inside a thread's waits, as a fraction, at which a sleeping task has run since the
/// previous sample. A task that runs more often, such as one that polls, does not count as the cause of the waits. The
/// first sample of each wait is left out.
const MAX_RUNS_INSIDE: f64 = 0.5;
/// Minimum difference of two shares, as a fraction, for a child process to count as the cause of waits. The first share
/// is that of the waits' samples at which the process is on a processor. The second share is that of the times between
/// waits during which the process may have been on a processor without a break.
const MIN_MORE_IN_WAITS: f64 = 0.25;
/// Minimum number of waits of a thread for another thread to count as the one that passes input on to it.
const MIN_PASSED: u64 = 4;

/// A thread of the program, by its id, or all child processes with the same name. Child processes are joined by name
/// because a program may start a new one for each step.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum TaskKey {
    Thread(u32),
    Child(Rc<str>),
}

/// A wait of a thread: the samples from the time at which the thread fell asleep to the time at which it woke.
#[derive(Debug)]
pub(super) struct SampledWait {
    pub thread: u32,
    pub sleep: u32,
    /// Indexes in the list of samples.
    pub samples: Vec<usize>,
    /// True if the thread woke during the wait, gave no work to the GPU, and waited again.
    pub is_repeated: bool,
}

/// The activity of a task at the time when a waiting thread was sampled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TaskActivity {
    /// The task is on a processor, or waits for a processor.
    Busy,
    /// The task sleeps for a given time, or waits for a file or a lock.
    Asleep(SleepKind),
    /// The task waits in this system call for a socket, a pipe or another stream.
    Outside(SystemCall),
    /// The task waits for something else, such as another thread.
    Waits,
    Unknown,
}

/// A task and its activity at the time when a waiting thread was sampled.
#[derive(Clone, Debug)]
pub(super) struct TaskSample {
    pub key: TaskKey,
    /// The id of the thread or the process.
    pub id: u32,
    pub activity: TaskActivity,
    /// True if the task has used a processor since the previous sample of a wait.
    pub has_run: bool,
    /// For a thread, the index of its own sample that is nearest in time to the sample of the wait. `None` for child
    /// processes, or if the thread has no sample at about that time.
    pub sample: Option<usize>,
}

/// The cause of a wait of a thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum WaitCause {
    /// A thread or a child process of the program is at work.
    Task(TaskKey),
    /// No task of the program is at work. The thread with this id passes input on to the waiting thread, and itself
    /// waits for input from outside the program.
    Outside(u32),
    Unknown,
}

/// A task whose runs are compared with the waits of a thread. The number is the process ID of a child process that was
/// observed in at least [`MIN_WAITS`] waits. The number is 0 for a thread. It is also 0 for child processes that were
/// observed in fewer waits; those with the same name count as one task.
type LinkKey = (TaskKey, u32);

/// Tasks that run regularly between the waits of a thread. The first number of each entry is the id of the waiting
/// thread.
#[derive(Default)]
pub(super) struct Linked {
    /// The tasks that end a thread's waits when they run. This is assumed if the task has run between almost every wait
    /// and the next, but rarely inside a wait (see [`MIN_RUNS`] and [`MAX_RUNS_INSIDE`]).
    ends: HashSet<(u32, LinkKey)>,
    /// The threads that have run between almost every wait and the next, and so may pass input on to the waiting
    /// thread.
    passes: HashSet<(u32, u32)>,
    /// The process IDs of the child processes that were observed in at least [`MIN_WAITS`] waits.
    lasting: HashSet<u32>,
}

/// Numbers of samples of a thread's waits at which a task has run since the previous sample: at first samples of
/// waits (`at_start`), and at later samples (`inside`).
#[derive(Default)]
struct RunCounts {
    at_start: u64,
    inside: u64,
}

impl Linked {
    pub(super) fn find(waits: &[SampledWait], tasks: &HashMap<usize, Vec<TaskSample>>) -> Self {
        let mut linked = Self {
            lasting: lasting(waits, tasks),
            ..Self::default()
        };
        // For each thread, its number of waits, and the number of samples of these waits without the first ones.
        let mut all: HashMap<u32, (u64, u64)> = HashMap::new();
        let mut runs: HashMap<(u32, LinkKey), RunCounts> = HashMap::new();
        for wait in waits {
            let all = all.entry(wait.thread).or_default();
            all.0 += 1;
            all.1 += wait.samples.len() as u64 - 1;
            for (order, index) in wait.samples.iter().enumerate() {
                let ran = tasks.get(index).into_iter().flatten();
                let ran = ran.filter(|task| task.has_run);
                let ran: BTreeSet<_> = ran.map(|task| linked.key(task)).collect();
                for key in ran {
                    let runs = runs.entry((wait.thread, key)).or_default();
                    match order {
                        0 => runs.at_start += 1,
                        _ => runs.inside += 1,
                    }
                }
            }
        }
        for ((thread, key), runs) in runs {
            let (waits, inside) = all.get(&thread).copied().unwrap_or_default();
            // It is not known if the task ran before the first wait, so assume that it did.
            let may_pass =
                waits >= MIN_PASSED && (runs.at_start + 1) as f64 >= MIN_RUNS * waits as f64;
            if let TaskKey::Thread(number) = key.0
                && may_pass
            {
                linked.passes.insert((thread, number));
            }
            let ends = waits >= MIN_WAITS
                && inside >= MIN_INSIDE
                && runs.at_start as f64 >= MIN_RUNS * waits as f64
                && runs.inside as f64 <= MAX_RUNS_INSIDE * inside as f64;
            if ends {
                linked.ends.insert((thread, key));
            }
        }
        linked
    }

    fn key(&self, task: &TaskSample) -> LinkKey {
        let is_lasting = self.lasting.contains(&task.id);
        match task.key {
            TaskKey::Child(_) if is_lasting => (task.key.clone(), task.id),
            _ => (task.key.clone(), 0),
        }
    }

    /// Returns true if a task is at work at a sample of a thread's wait.
    pub(super) fn is_at_work(&self, thread: u32, task: &TaskSample) -> bool {
        match task.activity {
            TaskActivity::Busy => true,
            TaskActivity::Asleep(_) => self.ends.contains(&(thread, self.key(task))),
            TaskActivity::Outside(_) | TaskActivity::Waits | TaskActivity::Unknown => false,
        }
    }
}

/// Returns the process IDs of the child processes that were observed in at least [`MIN_WAITS`] waits.
fn lasting(waits: &[SampledWait], tasks: &HashMap<usize, Vec<TaskSample>>) -> HashSet<u32> {
    let mut counts: HashMap<u32, u64> = HashMap::new();
    for wait in waits {
        let all = wait.samples.iter().filter_map(|index| tasks.get(index));
        let children = all
            .flatten()
            .filter(|task| matches!(task.key, TaskKey::Child(_)));
        let children: BTreeSet<_> = children.map(|task| task.id).collect();
        for id in children {
            *counts.entry(id).or_default() += 1;
        }
    }
    let lasting = counts.into_iter().filter(|(_, count)| *count >= MIN_WAITS);
    lasting.map(|(id, _)| id).collect()
}

/// Numbers of samples of waits. A sleep is given by its index in `Frames::sleeps`.
#[derive(Default)]
pub(super) struct AtWork {
    /// For each sleep, the number of samples of waits in that sleep.
    all: HashMap<u32, u64>,
    /// For each sleep and task, the number of these samples at which the task was at work.
    by_task: HashMap<(u32, TaskKey), u64>,
    /// For each sleep and task, the number of these samples at which the task was on a processor.
    busy: HashMap<(u32, TaskKey), u64>,
    /// For each waiting thread, its number of waits.
    waits: HashMap<u32, u64>,
    /// For each waiting thread and task, the number of waits before which the task may have been on a processor all the
    /// time: it was on one when the wait began, and it had run since the previous wait.
    before: HashMap<(u32, TaskKey), u64>,
}

impl AtWork {
    pub(super) fn count(
        waits: &[SampledWait],
        tasks: &HashMap<usize, Vec<TaskSample>>,
        linked: &Linked,
    ) -> Self {
        let mut counts = Self::default();
        let is_busy = |task: &TaskSample| task.activity == TaskActivity::Busy;
        for wait in waits {
            *counts.all.entry(wait.sleep).or_default() += wait.samples.len() as u64;
            *counts.waits.entry(wait.thread).or_default() += 1;
            for (key, count) in in_wait(wait, tasks, linked) {
                *counts.by_task.entry((wait.sleep, key)).or_default() += count;
            }
            for index in &wait.samples {
                for key in keys(tasks.get(index), is_busy) {
                    *counts.busy.entry((wait.sleep, key.clone())).or_default() += 1;
                }
            }
            let first = wait.samples.first().and_then(|index| tasks.get(index));
            for key in keys(first, |task| is_busy(task) && task.has_run) {
                *counts.before.entry((wait.thread, key.clone())).or_default() += 1;
            }
        }
        counts
    }

    /// Returns the share of the samples of a sleep at which a task was on a processor, as a fraction.
    fn busy_share(&self, sleep: u32, key: &TaskKey) -> f64 {
        let busy = self.busy.get(&(sleep, key.clone())).copied().unwrap_or(0);
        let all = self.all.get(&sleep).copied().unwrap_or(0);
        busy as f64 / all.max(1) as f64
    }

    /// Returns true if a task is on a processor clearly more during a thread's waits in a sleep than between the
    /// thread's waits.
    fn is_more_in_waits(&self, wait: &SampledWait, key: &TaskKey) -> bool {
        let waits = self.waits.get(&wait.thread).copied().unwrap_or(0);
        let before = self.before.get(&(wait.thread, key.clone())).copied();
        let before = before.unwrap_or(0) as f64 / waits.max(1) as f64;
        waits >= MIN_WAITS && self.busy_share(wait.sleep, key) >= before + MIN_MORE_IN_WAITS
    }
}

/// The data by which the cause of a wait is found.
pub(super) struct Causes<'a> {
    pub tasks: &'a HashMap<usize, Vec<TaskSample>>,
    pub linked: &'a Linked,
    pub at_work: AtWork,
    /// The indexes of the samples at which the waiting thread, or another thread that waits, too, waits for a pipe.
    pub pipes: HashSet<usize>,
}

impl Causes<'_> {
    /// Returns the cause of a wait.
    pub(super) fn cause(&self, wait: &SampledWait) -> WaitCause {
        match (self.producer(wait), self.passes_on(wait)) {
            (Some(key), _) => WaitCause::Task(key),
            (None, Some(thread)) => WaitCause::Outside(thread),
            (None, None) => WaitCause::Unknown,
        }
    }

    /// Returns the task that is the cause of a wait; `None` if there is no such task. The candidates are the tasks that
    /// are at work at enough samples (see [`MIN_AT_WORK`] and [`MIN_AT_WORK_IN_ALL`]). Of these, the task that is at
    /// work at the largest number of the wait's samples is returned. A child process is a candidate only if it is on a
    /// processor more during waits than between them, or if the wait is for a pipe and no thread is a candidate.
    fn producer(&self, wait: &SampledWait) -> Option<TaskKey> {
        let of_all = |key: &TaskKey| {
            let count = self.at_work.by_task.get(&(wait.sleep, key.clone()));
            count.copied().unwrap_or(0)
        };
        let all = self.at_work.all.get(&wait.sleep).copied().unwrap_or(0) as f64;
        let counts = in_wait(wait, self.tasks, self.linked).into_iter();
        let counts = counts.filter(|(key, count)| {
            *count as f64 >= MIN_AT_WORK * wait.samples.len() as f64
                && of_all(key) as f64 >= MIN_AT_WORK_IN_ALL * all
        });
        let counts: Vec<_> = counts.collect();
        let is_thread = |key: &TaskKey| matches!(key, TaskKey::Thread(_));
        let only_children = !counts.iter().any(|(key, _)| is_thread(key));
        let of_pipe = wait.samples.iter();
        let of_pipe = of_pipe.filter(|index| self.pipes.contains(*index)).count();
        let is_for_pipe = of_pipe as f64 >= MIN_AT_WORK * wait.samples.len() as f64;
        let possible = counts.into_iter().filter(|(key, _)| {
            is_thread(key)
                || self.at_work.is_more_in_waits(wait, key)
                || (is_for_pipe && only_children)
        });
        let most = possible.max_by(|(a, n), (b, m)| {
            let order = (n, of_all(a)).cmp(&(m, of_all(b)));
            order.then_with(|| b.cmp(a))
        });
        most.map(|(key, _)| key)
    }

    /// Returns the thread that passes input on to the waiting thread, if in enough of the wait's samples (see
    /// [`MIN_AT_WORK`]) that thread itself waits for a socket, a pipe or another stream, and no other task of the
    /// program may be at work.
    fn passes_on(&self, wait: &SampledWait) -> Option<u32> {
        let mut counts: HashMap<u32, usize> = HashMap::new();
        for index in &wait.samples {
            let Some(tasks) = self.tasks.get(index) else {
                continue;
            };
            if !tasks.iter().all(|task| self.is_quiet(wait, task)) {
                continue;
            }
            for task in tasks {
                if let (TaskKey::Thread(number), TaskActivity::Outside(_)) =
                    (&task.key, task.activity)
                    && self.linked.passes.contains(&(wait.thread, *number))
                {
                    *counts.entry(*number).or_default() += 1;
                }
            }
        }
        let counts = counts.into_iter();
        let (number, count) = counts.max_by_key(|(number, count)| (*count, *number))?;
        (count as f64 >= MIN_AT_WORK * wait.samples.len() as f64).then_some(number)
    }

    /// Returns true if a task is assumed not to prepare input at a sample of a wait. A task that waits for a file or a
    /// lock may prepare input, and so may a task whose activity is unknown. A child process that is on a processor in
    /// less than half of the samples of such waits is assumed to work for another purpose, because the waits also end
    /// without it.
    fn is_quiet(&self, wait: &SampledWait, task: &TaskSample) -> bool {
        match task.activity {
            TaskActivity::Outside(_)
            | TaskActivity::Waits
            | TaskActivity::Asleep(SleepKind::Sleep) => true,
            TaskActivity::Busy => {
                matches!(task.key, TaskKey::Child(_))
                    && self.at_work.busy_share(wait.sleep, &task.key) < MIN_AT_WORK
            }
            TaskActivity::Asleep(_) | TaskActivity::Unknown => false,
        }
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
