//! Tests with a thread that waits in each of its steps, and other tasks.

use super::*;
use crate::events::spans::Span;
use tllmprof_record::ThreadState;

const MAIN: u32 = 7;
const OTHER: u32 = 9;
const CHILD: u32 = 70;
const NEIGHBOUR: u32 = 71;
/// Number of steps in a test. A step takes 20 ms, and the thread waits in the second half of the step. A sample is
/// taken every 2 ms.
const STEPS: u64 = 40;
const MS: u64 = 1_000_000;

/// The activity of a task at a sample: whether it is busy, whether it has run since the previous sample, and the
/// sleep that it is in if it is not busy.
#[derive(Clone, Copy)]
struct Doing {
    is_busy: bool,
    has_run: bool,
    kind: SleepKind,
    /// True if there is a sample of the task's own. Child processes have no samples.
    is_sampled: bool,
}

const BUSY: Doing = Doing {
    is_busy: true,
    has_run: true,
    kind: SleepKind::Other,
    is_sampled: true,
};
const IDLE: Doing = Doing {
    is_busy: false,
    has_run: false,
    kind: SleepKind::Work,
    is_sampled: true,
};

fn asleep(kind: SleepKind, has_run: bool) -> Doing {
    Doing {
        has_run,
        kind,
        ..IDLE
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

/// Waits of the thread `MAIN`: their kind, the function that it called, and the system call.
#[derive(Clone, Copy)]
struct MainWaits {
    kind: SleepKind,
    called: &'static str,
    call: SystemCall,
}

const WORK: MainWaits = MainWaits {
    kind: SleepKind::Work,
    called: "queue.get",
    call: SystemCall::Futex,
};
/// Waits with a time limit.
const LIMITED: MainWaits = MainWaits {
    kind: SleepKind::Other,
    ..WORK
};
/// Waits for a pipe.
const PIPE: MainWaits = MainWaits {
    kind: SleepKind::Work,
    called: "read",
    call: SystemCall::ReadStream,
};

/// Returns the causes of the sleeps of `MAIN`, each with its number of samples. `does` returns the activity of the
/// other task at a sample of a wait. Its arguments are the number of the step and the number of the sample in the
/// wait. If the other task is a child process, each step starts another one.
fn divided(main: MainWaits, task: Task, does: impl Fn(u64, u64) -> Doing) -> Vec<(String, usize)> {
    divided_by(main, |step, order| {
        let id = match task {
            Task::Thread => OTHER,
            Task::Child => CHILD + step as u32,
        };
        vec![(task, id, does(step, order))]
    })
}

/// Returns the state of a task as the record has it.
fn meanwhile((task, id, doing): (Task, u32, Doing)) -> Meanwhile {
    let call = match doing.kind {
        SleepKind::Sleep => SystemCall::ClockNanosleep,
        SleepKind::File => SystemCall::Fsync,
        _ => SystemCall::EpollWait,
    };
    Meanwhile {
        task,
        is_busy: doing.is_busy,
        has_run: doing.has_run,
        is_awaited: false,
        call: (task == Task::Child && !doing.is_busy).then_some(call),
        name: 0,
        id,
    }
}

/// Returns the same as [`divided`] for several other tasks. All child processes have the same name.
fn divided_by(
    main: MainWaits,
    does: impl Fn(u64, u64) -> Vec<(Task, u32, Doing)>,
) -> Vec<(String, usize)> {
    let (mut samples, mut others) = (Vec::new(), Vec::new());
    let mut tasks: HashMap<u64, Vec<Meanwhile>> = HashMap::new();
    let (mut waits, mut of_others) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        for order in 0..10 {
            let at = (step * 20 + order * 2) * MS;
            let is_wait = order >= 5;
            samples.push(sample(MAIN, at, is_wait.then_some(0), !is_wait));
            waits.push(WaitSample {
                continues: order > 5,
                call: is_wait.then_some(main.call),
            });
            if !is_wait {
                continue;
            }
            let all = does(step, order - 5);
            for (task, id, doing) in &all {
                let sleep = match doing.kind {
                    SleepKind::Sleep => 1,
                    SleepKind::File => 2,
                    _ => 3,
                };
                if *task == Task::Thread && doing.is_sampled {
                    let sleep = (!doing.is_busy).then_some(sleep);
                    others.push(sample(*id, at + 1000, sleep, doing.is_busy));
                    let call = sleep.filter(|sleep| *sleep == 3);
                    of_others.push(WaitSample {
                        continues: false,
                        call: call.map(|_| SystemCall::Poll),
                    });
                }
            }
            tasks.insert(at, all.into_iter().map(meanwhile).collect());
        }
    }
    let of_main = samples.len();
    samples.extend(others);
    waits.extend(of_others);
    let mut frames = Frames::default();
    frames.sleeps = sleeps(main.kind, main.called);
    let producers = Producers {
        meanwhile: &tasks,
        waits: &waits,
        workers: &Workers::default(),
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
            if let Some(share) = sleep.producer {
                let is_asleep = !sleep.cause.contains("(busy)");
                assert_eq!(share.is_asleep, is_asleep, "{sleep:?}");
            }
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
    let found = divided(WORK, Task::Thread, |_, _| BUSY);
    assert_eq!(found, all(FOR_BUSY));
    // A wait with a time limit while another thread is busy is a wait for that thread, too.
    let found = divided(LIMITED, Task::Thread, |_, _| BUSY);
    assert_eq!(found, all(FOR_BUSY));
    let found = divided(WORK, Task::Thread, |_, _| IDLE);
    assert_eq!(found, all(FOR_WORK));
    // A wait for a lock keeps its cause, although another thread is busy.
    let lock = MainWaits {
        kind: SleepKind::Lock,
        ..WORK
    };
    let found = divided(lock, Task::Thread, |_, _| BUSY);
    assert_eq!(found, all("blocked in take: queue.get"));
}

/// Returns the activity of a task that is on a processor during the waits, and never between them.
fn busy_in_waits(order: u64) -> Doing {
    Doing {
        has_run: order > 0,
        ..BUSY
    }
}

#[test]
fn a_wait_that_may_be_for_a_lock_names_the_other_thread_and_is_no_wait_for_input() {
    let unnamed = MainWaits {
        called: "futex",
        ..LIMITED
    };
    // `divided_by` asserts that only sleeps of the kind `Producer` have a producer.
    let found = divided(unnamed, Task::Thread, |_, _| BUSY);
    let expected = all("waiting for another thread (busy) in take: futex");
    assert_eq!(found, expected);
    let found = divided(unnamed, Task::Child, |_, order| busy_in_waits(order));
    assert_eq!(
        found,
        all("waiting for a child process (busy) in take: futex")
    );
}

#[test]
fn waits_are_divided_one_by_one() {
    let found = divided(
        WORK,
        Task::Thread,
        |step, _| {
            if step % 2 == 0 { BUSY } else { IDLE }
        },
    );
    let half = 5 * STEPS as usize / 2;
    assert_eq!(
        found,
        [(FOR_BUSY.to_owned(), half), (FOR_WORK.to_owned(), half)]
    );
    // The other thread is busy for less than half of each wait.
    let found = divided(
        WORK,
        Task::Thread,
        |_, order| {
            if order < 2 { BUSY } else { IDLE }
        },
    );
    assert_eq!(found, all(FOR_WORK));
    // The other thread is busy in few of the waits, so it does not cause the waits.
    let found = divided(
        WORK,
        Task::Thread,
        |step, _| {
            if step % 5 == 0 { BUSY } else { IDLE }
        },
    );
    assert_eq!(found, all(FOR_WORK));
}

#[test]
fn a_thread_that_sleeps_causes_waits_if_it_runs_at_their_ends() {
    let sleeps = |kind| move |_, order| asleep(kind, order == 0);
    let found = divided(WORK, Task::Thread, sleeps(SleepKind::Sleep));
    assert_eq!(found, all(FOR_ASLEEP));
    let found = divided(WORK, Task::Thread, sleeps(SleepKind::File));
    let for_file = "waiting for another thread (waiting for a file) in take: queue.get";
    assert_eq!(found, all(for_file));
    // The other thread waits for requests itself, and passes them to the waiting thread.
    let found = divided(WORK, Task::Thread, sleeps(SleepKind::Work));
    assert_eq!(found, all(FOR_WORK));
    // The other thread wakes only now and then, as a monitoring thread does.
    let found = divided(WORK, Task::Thread, |step, order| {
        asleep(SleepKind::Sleep, order == 0 && step % 4 == 0)
    });
    assert_eq!(found, all(FOR_WORK));
    // The other thread polls: it has run since the previous sample at each sample.
    let found = divided(WORK, Task::Thread, |_, _| asleep(SleepKind::Sleep, true));
    assert_eq!(found, all(FOR_WORK));
}

#[test]
fn children_with_one_name_are_one_task() {
    let found = divided(PIPE, Task::Child, |_, _| BUSY);
    let cause = "waiting for a child process (busy) in take: read";
    assert_eq!(found, all(cause));
    let found = divided(PIPE, Task::Child, |_, order| {
        asleep(SleepKind::Sleep, order == 0)
    });
    let cause = "waiting for a child process (asleep) in take: read";
    assert_eq!(found, all(cause));
    let found = divided(PIPE, Task::Child, |_, order| {
        asleep(SleepKind::Work, order == 0)
    });
    assert_eq!(found, all("waiting for work in take: read"));
}

#[test]
fn a_child_that_may_work_for_itself_is_not_the_cause() {
    // The thread waits for another thread, and not for a pipe. So a child process is the cause only if it is busy
    // during the waits, and not between them.
    let found = divided(WORK, Task::Child, |_, _| BUSY);
    assert_eq!(found, all(FOR_WORK));
    let found = divided(LIMITED, Task::Child, |_, _| BUSY);
    assert_eq!(found, all(BLOCKED_IN_TAKE));
    let found = divided(WORK, Task::Child, |_, order| busy_in_waits(order));
    assert_eq!(
        found,
        all("waiting for a child process (busy) in take: queue.get")
    );
    let found = divided(WORK, Task::Child, |_, order| {
        asleep(SleepKind::Sleep, order == 0)
    });
    assert_eq!(found, all(FOR_WORK));
    // Of two child processes with the same name, one runs at the ends of the waits, because it sends requests. The
    // other one sleeps most of the time, and runs in every fourth step.
    let found = divided_by(PIPE, |step, order| {
        let neighbour = match step % 4 {
            0 => BUSY,
            _ => asleep(SleepKind::Sleep, false),
        };
        vec![
            (Task::Child, CHILD, asleep(SleepKind::Work, order == 0)),
            (Task::Child, NEIGHBOUR, neighbour),
        ]
    });
    let quarter = 5 * STEPS as usize / 4;
    let expected = [
        (
            "waiting for a child process (busy) in take: read".to_owned(),
            quarter,
        ),
        ("waiting for work in take: read".to_owned(), 3 * quarter),
    ];
    assert_eq!(found, expected);
}

const BLOCKED_IN_TAKE: &str = "blocked in take: queue.get";
const FOR_OUTSIDE: &str =
    "waiting for input from outside (another thread is in poll) in take: queue.get";

#[test]
fn a_wait_for_a_thread_that_waits_for_a_socket_is_one_for_input_from_outside() {
    let passes_on = |order| asleep(SleepKind::Work, order == 0);
    let found = divided(LIMITED, Task::Thread, |_, order| passes_on(order));
    assert_eq!(found, all(FOR_OUTSIDE));
    // The other thread does not run between the waits, so it passes nothing on.
    let found = divided(LIMITED, Task::Thread, |_, _| IDLE);
    assert_eq!(found, all(BLOCKED_IN_TAKE));
    // The state of the other thread is not known.
    let found = divided(LIMITED, Task::Thread, |_, order| Doing {
        is_sampled: false,
        ..passes_on(order)
    });
    assert_eq!(found, all(BLOCKED_IN_TAKE));
    // These are not waits for input.
    for called in ["futex", "queue.put"] {
        let main = MainWaits { called, ..LIMITED };
        let found = divided(main, Task::Thread, |_, order| passes_on(order));
        assert_eq!(found, all(&format!("blocked in take: {called}")));
    }
}

#[test]
fn a_task_at_work_may_be_the_cause_of_a_wait_for_input_from_outside() {
    let with_child = |child: fn(u64) -> Doing| {
        divided_by(LIMITED, |step, order| {
            vec![
                (Task::Thread, OTHER, asleep(SleepKind::Work, order == 0)),
                (Task::Child, CHILD, child(step)),
            ]
        })
    };
    // The child process is a client. In the first case it waits for its answer, in the second case it pauses.
    assert_eq!(with_child(|_| IDLE), all(FOR_OUTSIDE));
    let pauses = with_child(|_| asleep(SleepKind::Sleep, false));
    assert_eq!(pauses, all(FOR_OUTSIDE));
    // A child process that is busy in only some of the steps does not cause the waits, because they also end without
    // it.
    let bursts = |step: u64| if step.is_multiple_of(4) { BUSY } else { IDLE };
    assert_eq!(with_child(bursts), all(FOR_OUTSIDE));
    // A child process that is always busy, or waits for a file, may prepare the input.
    assert_eq!(with_child(|_| BUSY), all(BLOCKED_IN_TAKE));
    let reads = with_child(|_| asleep(SleepKind::File, false));
    assert_eq!(reads, all(BLOCKED_IN_TAKE));
}

#[test]
fn a_thread_has_its_latest_name() {
    let mut strings = Strings::default();
    strings.add(1, b"python");
    strings.add(2, b"loader");
    let named = |name| Meanwhile {
        name,
        ..meanwhile((Task::Thread, OTHER, BUSY))
    };
    let tasks = HashMap::from([
        (10, vec![named(1)]),
        (30, vec![named(0)]),
        (20, vec![named(2)]),
    ]);
    let names = TaskNames::collect(&tasks, &strings);
    assert_eq!(names.threads[&OTHER], (20, 2));
}

/// Returns the causes of the sleeps of `MAIN` if it waits with a short time limit in the second half of each step. It
/// gives work to the GPU once a step, and also after each wait in the steps for which `has_work` returns true. If
/// `is_fed`, another thread runs before the first wait of a step, and otherwise sleeps.
fn polled(has_work: impl Fn(u64) -> bool, is_fed: bool) -> Vec<String> {
    let mut workers = Workers::default();
    let (mut samples, mut others) = (Vec::new(), Vec::new());
    let mut tasks = HashMap::new();
    for step in 0..STEPS {
        for order in 0..10 {
            let at = (step * 20 + order * 2) * MS;
            let is_wait = order >= 5;
            samples.push(sample(MAIN, at, is_wait.then_some(0), !is_wait));
            if order == 4 || (is_wait && has_work(step)) {
                let start = at + MS;
                let end = start + 1000;
                workers.add(MAIN, Span { start, end });
            }
            if is_wait && is_fed {
                others.push(sample(OTHER, at + 1000, Some(1), false));
                let feeds = asleep(SleepKind::Sleep, order == 5);
                tasks.insert(at, vec![meanwhile((Task::Thread, OTHER, feeds))]);
            }
        }
    }
    samples.extend(others);
    let wait = WaitSample {
        continues: false,
        call: Some(SystemCall::EpollWait),
    };
    let mut frames = Frames::default();
    frames.sleeps = sleeps(SleepKind::Poll, "epoll_wait");
    let producers = Producers {
        meanwhile: &tasks,
        waits: &vec![wait; samples.len()],
        workers: &workers,
        facts: &Facts::default(),
        strings: &Strings::default(),
    };
    producers.name_waits(&mut samples, &mut frames);
    let own = samples.iter().filter(|sample| sample.thread == MAIN);
    let mut sleeps: Vec<_> = own.filter_map(|sample| sample.sleep).collect();
    sleeps.dedup();
    let causes = sleeps.into_iter();
    let causes = causes.map(|sleep| frames.sleeps[sleep as usize].cause.clone());
    causes.collect()
}

#[test]
fn short_waits_again_and_again_without_work_between_them_are_for_work() {
    let polls = polled(|_| false, false);
    assert_eq!(polls, ["waiting for work in take: epoll_wait"]);
    // Work follows each wait, so the time limit may be what holds the work up.
    let holds_up = polled(|_| true, false);
    assert_eq!(holds_up, ["blocked in take: epoll_wait"]);
    // The waits that work ended are like the others if most waits are repeated.
    assert_eq!(polled(|step| step % 4 == 0, false), polls);
    assert_eq!(polled(|step| step % 4 != 0, false), holds_up);
}

#[test]
fn short_waits_until_another_thread_has_run_are_for_that_thread() {
    assert_eq!(
        polled(|_| false, true),
        ["waiting for another thread (asleep) in take: epoll_wait"]
    );
}
