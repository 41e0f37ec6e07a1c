//! Observes the other threads of the process, and its child processes, while a followed thread (one that makes steps)
//! waits for something. One of these threads or processes (called tasks here) may prepare what the followed thread
//! waits for.
//!
//! At each sample at which a followed thread waits, the sampler reads the processor time of each task, without opening
//! a file. It selects a few tasks that may be the cause of the wait: the processes for whose end the thread waits, the
//! busiest task, and those that have run between two waits most often. Nothing is read while no followed thread waits.

use core::cmp::Reverse;
use core::ops::ControlFlow;
use core::time::Duration;
use std::time::Instant;

use tllmprof_platform::own_threads;
use tllmprof_platform::sorted::sorted;
use tllmprof_platform::system::{processor_time, processor_time_of_process};
use tllmprof_recorder::{self as recorder, NO_STRING, StringId, SystemCall, Task, What};

use super::asleep;
use super::files::{
    self, LENGTH, MAIN_THREAD, MAX_OTHERS, MAX_THREADS, TaskFile, TaskFiles, TaskId,
};
use super::followed::Followed;

/// The shortest time between two searches for new threads. New processes are also searched for when a wait begins,
/// and while a thread waits for the end of a process.
const LIST_INTERVAL: Duration = Duration::from_millis(100);
/// The most threads of the process that a search reads.
const MAX_LISTED: usize = 1024;
/// The most child processes that are observed at a time.
const MAX_CHILDREN: usize = MAX_OTHERS / 2;
/// The most child processes that are observed in a window. A program may start new ones all the time, and files of
/// each are opened, so the number of opened files has to be limited.
const MAX_CHILDREN_IN_ALL: usize = 256;
/// The most threads and processes that are selected at a sample.
const MAX_SELECTED: usize = 4;
/// The most processes that are selected because a waiting thread waits for their ends.
const MAX_AWAITED: usize = MAX_SELECTED / 2;
/// The longest time since the previous sample of a wait, in sampling periods. After a longer time, the processor time
/// that a thread has used since that sample does not show if the thread is busy now.
const MAX_PERIODS: u64 = 4;

/// Another thread of the process, or a child process.
#[derive(Clone, Debug)]
struct OtherTask {
    files: TaskFiles,
    /// The processor time in ns that the task had used until the latest sample of a wait.
    used: u64,
    /// The processor time in ns that the task used between the two latest samples of waits.
    ran: u64,
    /// Number of waits before which the task had run: it had used processor time since the previous sample of a wait.
    runs: u32,
    /// The id of the record's string for the name; `None` if it has not been read yet.
    name: Option<StringId>,
    /// The process that has started the task; `None` for threads, and for processes that the profiled process itself
    /// has started.
    parent: Option<TaskId>,
    /// The id of the process that a followed thread waits for, if this task is that process or a descendant of it;
    /// otherwise `None`.
    awaited: Option<i32>,
}

/// All observed threads and processes.
pub(crate) struct OtherTasks {
    /// The sampling period.
    period: Duration,
    tasks: Vec<OtherTask>,
    /// Number of child processes that were observed so far in this window (a recorded interval).
    children: usize,
    /// The threads of the process when they were last listed, sorted by thread id, each with its processor time in ns.
    listed: Vec<(i32, u64)>,
    /// The time at which the threads were last listed.
    searched: Option<Instant>,
    /// The time of the latest sample of a wait.
    looked: Option<Instant>,
}

/// A task that was selected at a sample of a wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SelectedTask {
    pub files: TaskFiles,
    name: StringId,
    used: u64,
    /// True if the task used a processor for at least half of the time since the previous sample of a wait.
    was_busy: bool,
    has_run: bool,
    /// The id of the process that a followed thread waits for, if this task is that process or a descendant of it;
    /// otherwise `None`.
    awaited: Option<i32>,
}

/// Returns true if another thread or a child process can end a wait in this system call.
pub(crate) const fn is_wait(call: SystemCall) -> bool {
    use SystemCall as Call;
    matches!(
        call,
        Call::Futex
            | Call::Poll
            | Call::Select
            | Call::EpollWait
            | Call::SignalWait
            | Call::ReadStream
            | Call::Receive
            | Call::ReceiveFromService
            | Call::Accept
            | Call::WaitProcess
    )
}

impl TaskId {
    /// Returns the processor time in ns; `None` if the thread or process has ended.
    fn processor_time(self) -> Option<u64> {
        match self {
            Self::Thread(number) => processor_time(number),
            Self::Process(number) => processor_time_of_process(number),
        }
    }
}

impl OtherTasks {
    pub(crate) fn new(period: Duration) -> Self {
        Self {
            period,
            tasks: Vec::new(),
            children: 0,
            listed: Vec::new(),
            searched: None,
            looked: None,
        }
    }

    /// Returns true if the thread with the id `number` is among the observed tasks.
    pub(crate) fn has_thread(&self, number: i32) -> bool {
        let mut ids = self.tasks.iter().map(|task| task.files.id);
        ids.any(|id| id == TaskId::Thread(number))
    }

    /// Forgets the names of all tasks, because the ids of their strings are no longer valid.
    pub(crate) fn forget_names(&mut self) {
        self.tasks.iter_mut().for_each(|task| task.name = None);
    }

    /// Reads the processor times at a sample at which the threads `waiting` wait, and returns the selected tasks.
    /// `awaited` are the processes for whose ends these threads wait. `is_new` is true if a wait has begun since the
    /// previous sample of a wait.
    pub(crate) fn look(
        &mut self,
        waiting: &[Followed],
        awaited: &[i32],
        is_new: bool,
    ) -> Vec<SelectedTask> {
        let now = Instant::now();
        let is_late = |at: Instant| now.duration_since(at) >= LIST_INTERVAL;
        if self.searched.is_none_or(is_late) {
            self.searched = Some(now);
            self.list_threads();
            self.list_children(waiting);
        } else if is_new || !awaited.is_empty() {
            // An awaited process may start others at any time, as a shell does.
            self.list_children(waiting);
        }
        let since = self.looked.replace(now).map(|at| now.duration_since(at));
        let recent = since.filter(|since| *since <= self.period * MAX_PERIODS as u32);
        self.tasks.retain_mut(|task| {
            let is_there = task.take_time(is_new);
            if !is_there {
                files::close(task.files.place);
            }
            is_there
        });
        self.mark(awaited);
        let is_waiting = |task: &OtherTask| matches!(waiting, [one] if task.files.id == TaskId::Thread(one.number));
        let order = (0..self.tasks.len()).filter(|index| !is_waiting(&self.tasks[*index]));
        let order = order.map(|index| (Reverse(self.tasks[index].runs), index));
        let order = sorted(order.collect());
        let busiest = order.iter().map(|(_, index)| *index);
        let busiest = busiest.max_by_key(|index| self.tasks[*index].ran);
        let often = order
            .iter()
            .map(|(_, index)| *index)
            .filter(|index| Some(*index) != busiest);
        let awaited = self.innermost_awaited();
        let others = busiest.into_iter().chain(often);
        let others = others.filter(|index| !awaited.contains(index));
        let others = others.take(MAX_SELECTED - awaited.len());
        // The awaited processes come last, because the report names the last awaited process of a sample.
        let selected: Vec<_> = others.chain(awaited.iter().copied()).collect();
        selected
            .into_iter()
            .filter_map(|index| {
                let task = &mut self.tasks[index];
                (awaited.contains(&index) || task.runs > 0 || task.ran > 0)
                    .then(|| task.select(recent))
            })
            .collect()
    }

    /// Marks the processes that are awaited, and those that they have started. In `tasks`, a process comes after the
    /// one that has started it.
    fn mark(&mut self, awaited: &[i32]) {
        let mut marked: Vec<_> = awaited
            .iter()
            .map(|number| (TaskId::Process(*number), *number))
            .collect();
        for task in &mut self.tasks {
            let id = task.files.id;
            let mut known = marked.iter();
            let known = known.find(|(marked, _)| *marked == id || Some(*marked) == task.parent);
            task.awaited = known.map(|(_, awaited)| *awaited);
            marked.extend(task.awaited.map(|awaited| (id, awaited)));
        }
    }

    /// Returns the indices of the processes that the report names: for each awaited process, the last one in `tasks`
    /// that it has started, or the process itself.
    fn innermost_awaited(&self) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        for (index, task) in self.tasks.iter().enumerate().rev() {
            let is_known = |known: &usize| self.tasks[*known].awaited == task.awaited;
            if task.awaited.is_some() && found.len() < MAX_AWAITED && !found.iter().any(is_known) {
                found.push(index);
            }
        }
        found
    }

    /// Starts to observe the threads of the process that have used the most processor time since the previous search.
    fn list_threads(&mut self) {
        let mut found = Vec::new();
        files::each_thread(|number| {
            if !own_threads::is_one(number)
                && let Some(used) = processor_time(number)
            {
                found.push((number, used));
            }
            match found.len() < MAX_LISTED {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        // At the first search, the processor time that a thread has used so far does not count, because it is not known
        // when the thread used it. In later searches, a thread that is new is left out until the next search. So no
        // files are opened for threads that live only for a moment.
        let is_first = self.listed.is_empty();
        let ranked = found.iter().filter_map(|(number, used)| {
            let place = self
                .listed
                .binary_search_by_key(number, |(listed, _)| *listed);
            let before = match place {
                Ok(place) => self.listed[place].1,
                Err(_) if is_first => *used,
                Err(_) => return None,
            };
            Some((Reverse(used.saturating_sub(before)), *number, before))
        });
        let mut ranked = sorted(ranked.collect());
        ranked.truncate(MAX_OTHERS - MAX_CHILDREN);
        self.listed = sorted(found);
        let is_ranked = |number: i32| ranked.iter().any(|(_, ranked, _)| *ranked == number);
        self.tasks.retain(|task| match task.files.id {
            TaskId::Thread(number) if !is_ranked(number) => {
                files::close(task.files.place);
                false
            }
            _ => true,
        });
        for (_, number, before) in ranked {
            self.add(TaskId::Thread(number), before, None);
        }
    }

    /// Starts to observe the processes that the waiting threads and the main thread have started, and the child
    /// processes of these processes.
    fn list_children(&mut self, waiting: &[Followed]) {
        let main = TaskFiles {
            place: MAIN_THREAD,
            id: TaskId::Thread(tllmprof_platform::ids::process()),
        };
        let is_main = |thread: &&Followed| TaskId::Thread(thread.number) != main.id;
        let waiting = waiting.iter().filter(is_main).map(|one| one.files());
        let known = self.tasks.iter().map(|task| task.files);
        let known = known.filter(|files| matches!(files.id, TaskId::Process(_)));
        let mut parents: Vec<_> = waiting.chain([main]).chain(known).collect();
        let mut next = 0;
        while let Some(parent) = parents.get(next).copied() {
            next += 1;
            let mut text = [0; LENGTH];
            let Some(text) = files::read(parent, TaskFile::Children, &mut text) else {
                continue;
            };
            for number in numbers(text) {
                let is_process = |task: &&OtherTask| matches!(task.files.id, TaskId::Process(_));
                let count = self.tasks.iter().filter(is_process).count();
                if count >= MAX_CHILDREN || self.children >= MAX_CHILDREN_IN_ALL {
                    return;
                }
                let of = Some(parent.id).filter(|id| matches!(id, TaskId::Process(_)));
                let added = self.add(TaskId::Process(number), 0, of);
                self.children += usize::from(added.is_some());
                parents.extend(added);
            }
        }
    }

    /// Starts to observe a task, unless it is observed already or the table of open files has no free entry. `used` is
    /// the processor time in ns that the task had used before and that does not count. `parent` is the process that has
    /// started the task. Returns the files of the task if it was added.
    fn add(&mut self, id: TaskId, used: u64, parent: Option<TaskId>) -> Option<TaskFiles> {
        let is_there = |task: &OtherTask| task.files.id == id;
        if self.tasks.iter().any(is_there) {
            return None;
        }
        let is_free = |place: &usize| self.tasks.iter().all(|task| task.files.place != *place);
        let place = (MAX_THREADS..MAX_THREADS + MAX_OTHERS).find(is_free)?;
        let files = TaskFiles { place, id };
        files::close(place);
        self.tasks.push(OtherTask {
            files,
            used,
            ran: 0,
            runs: 0,
            name: None,
            parent,
            awaited: None,
        });
        Some(files)
    }
}

impl OtherTask {
    /// Reads the processor time of the task, and computes how much of it was used since the previous sample of a wait.
    /// `is_new` is true if a wait has begun since that sample. Returns false if the task has ended.
    fn take_time(&mut self, is_new: bool) -> bool {
        let Some(used) = self.files.id.processor_time() else {
            return false;
        };
        self.ran = used.saturating_sub(self.used);
        self.used = used;
        self.runs += u32::from(is_new && self.ran > 0);
        true
    }

    /// Returns the data of this task, which has been selected at a sample. `since` is the time since the previous
    /// sample of a wait, if that sample was recent.
    fn select(&mut self, since: Option<Duration>) -> SelectedTask {
        if let TaskId::Process(_) = self.files.id {
            // A process gets another name when it runs another program: at first it has the name of its parent.
            self.name = None;
        }
        SelectedTask {
            files: self.files,
            name: *self.name.get_or_insert_with(|| name_of(self.files)),
            used: self.used,
            was_busy: since.is_some_and(|since| 2 * u128::from(self.ran) >= since.as_nanos()),
            has_run: self.ran > 0,
            awaited: self.awaited,
        }
    }
}

impl SelectedTask {
    /// Returns the event about the task, which is written at the end of a sample. Its field `is_awaited` is false.
    /// [`Self::event_for`] sets it to true for a thread that waits until this task, or an ancestor of it, ends.
    pub(crate) fn event(&self) -> What {
        let now = self.files.id.processor_time();
        let ran = self.was_busy || now.is_some_and(|now| now > self.used);
        let (task, id, is_busy, call) = match self.files.id {
            TaskId::Thread(number) => (Task::Thread, number, ran, None),
            TaskId::Process(number) => {
                let is_busy = ran || asleep::is_runnable(self.files);
                let asleep = (!is_busy).then(|| asleep::look(self.files)).flatten();
                let call = asleep.map(|asleep| asleep.distinguish_streams(self.files.id));
                (Task::Child, number, is_busy, call)
            }
        };
        What::Meanwhile {
            task,
            is_busy,
            has_run: self.has_run,
            is_awaited: false,
            call,
            name: self.name,
            id: id.cast_unsigned(),
        }
    }

    /// Returns the event `what` about the task for a thread that waits for the end of the process `awaited`.
    pub(crate) fn event_for(&self, mut what: What, awaited: Option<i32>) -> What {
        if let What::Meanwhile { is_awaited, .. } = &mut what {
            *is_awaited = awaited.is_some() && self.awaited == awaited;
        }
        what
    }
}

/// Returns the id of the record's string for the name of a thread or a process.
fn name_of(task: TaskFiles) -> StringId {
    let mut text = [0; LENGTH];
    let name = files::read(task, TaskFile::Comm, &mut text).unwrap_or_default();
    match String::from_utf8_lossy(name).trim_end() {
        "" => NO_STRING,
        name => recorder::id_of(name),
    }
}

/// Returns the process ids in `text`, a list with blanks between them. The last id is left out if no blank follows it,
/// because the end of the buffer may have cut it off.
fn numbers(text: &[u8]) -> impl Iterator<Item = i32> {
    let end = text.iter().rposition(|byte| *byte == b' ').unwrap_or(0);
    let text = str::from_utf8(&text[..end]).unwrap_or_default();
    text.split_ascii_whitespace()
        .filter_map(|number| number.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::exclusive::alone;
    use tllmprof_platform::ids;

    fn this_thread() -> Followed {
        Followed {
            place: 0,
            number: ids::thread(),
            target: None,
        }
    }

    fn shell(script: &str) -> Child {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", script]).stdin(Stdio::piped());
        shell.spawn().unwrap()
    }

    /// Calls `look` repeatedly until the event of a selected task satisfies `is`.
    fn await_task(tasks: &mut OtherTasks, is: impl Fn(&What) -> bool) {
        loop {
            let selected = tasks.look(&[this_thread()], &[], true);
            if selected.iter().any(|task| is(&task.event())) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_child(what: &What, child: &Child, busy: bool, sleeps_in: Option<SystemCall>) -> bool {
        matches!(*what, What::Meanwhile { task: Task::Child, is_busy, call, id, .. }
            if id == child.id() && is_busy == busy && call == sleeps_in)
    }

    #[test]
    fn a_busy_child_and_a_child_that_sleeps_are_found() {
        let _alone = alone();
        let mut tasks = OtherTasks::new(Duration::from_millis(5));
        let mut busy = shell("while :; do :; done");
        await_task(&mut tasks, |what| is_child(what, &busy, true, None));
        busy.kill().unwrap();
        busy.wait().unwrap();
        let mut waits = shell("exec cat");
        let call = Some(SystemCall::ReadStream);
        await_task(&mut tasks, |what| is_child(what, &waits, false, call));
        drop(waits.stdin.take());
        waits.wait().unwrap();
        let mut sleeps = shell("exec sleep 100");
        let call = Some(SystemCall::ClockNanosleep);
        await_task(&mut tasks, |what| is_child(what, &sleeps, false, call));
        sleeps.kill().unwrap();
        sleeps.wait().unwrap();
        files::close_all();
    }

    fn is_marked(what: What) -> bool {
        matches!(
            what,
            What::Meanwhile {
                task: Task::Child,
                is_awaited: true,
                ..
            }
        )
    }

    #[test]
    fn a_thread_gets_the_innermost_process_of_the_child_that_it_awaits() {
        let _alone = alone();
        let mut tasks = OtherTasks::new(Duration::from_millis(5));
        // Each shell starts its command as a child process and waits for it. Without `& wait`, a shell could replace
        // itself with the command.
        let script = "sh -c 'sh -c \"sleep 100 & wait\" & wait' & wait";
        let mut children = [shell(script), shell(script)];
        let numbers = children.each_ref().map(|child| child.id().cast_signed());
        let is_sleep = |task: &SelectedTask| {
            let mut text = [0; LENGTH];
            files::read(task.files, TaskFile::Comm, &mut text) == Some(b"sleep\n")
        };
        let found = loop {
            let selected = tasks.look(&[this_thread()], &numbers, false);
            let awaited = selected.iter().filter(|task| task.awaited.is_some());
            let found: Vec<_> = awaited.filter(|task| is_sleep(task)).copied().collect();
            if found.len() == 2 {
                let last = &selected[selected.len() - 2..];
                assert!(last.iter().all(is_sleep), "{selected:?}");
                break found;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        for task in &found {
            let marks = |awaited| is_marked(task.event_for(task.event(), awaited));
            let of = numbers.map(|number| marks(Some(number)));
            assert!(of[0] != of[1], "{found:?}");
            assert!(!marks(None) && !marks(Some(1)));
        }
        assert_ne!(found[0].awaited, found[1].awaited);
        for task in &found {
            let TaskId::Process(number) = task.files.id else {
                panic!("{found:?}");
            };
            // SAFETY: the call takes only numbers. The process is a shell's child, and the shell waits for it.
            assert_eq!(unsafe { libc::kill(number, libc::SIGKILL) }, 0);
        }
        for child in &mut children {
            child.wait().unwrap();
        }
        let selected = tasks.look(&[this_thread()], &[], false);
        assert!(selected.iter().all(|task| task.awaited.is_none()));
        files::close_all();
    }

    #[test]
    fn a_thread_that_has_ended_is_forgotten() {
        let _alone = alone();
        let mut tasks = OtherTasks::new(Duration::from_millis(5));
        let (send, receive) = std::sync::mpsc::channel::<()>();
        let (tell, hear) = std::sync::mpsc::channel();
        let worker = std::thread::spawn(move || {
            tell.send(ids::thread()).unwrap();
            while receive.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                core::hint::spin_loop();
            }
        });
        let number = hear.recv().unwrap();
        await_task(&mut tasks, |what| {
            matches!(*what, What::Meanwhile { task: Task::Thread, is_busy: true, id, .. }
                if id == number.cast_unsigned())
        });
        drop(send);
        worker.join().unwrap();
        let is_it = |task: &OtherTask| task.files.id == TaskId::Thread(number);
        while tasks.tasks.iter().any(is_it) {
            tasks.look(&[this_thread()], &[], false);
        }
        files::close_all();
    }

    #[test]
    fn a_cut_number_is_left_out() {
        assert_eq!(numbers(b"12 345 6").collect::<Vec<_>>(), [12, 345]);
        assert_eq!(numbers(b"12 345 ").collect::<Vec<_>>(), [12, 345]);
        assert_eq!(numbers(b"").count(), 0);
    }
}
