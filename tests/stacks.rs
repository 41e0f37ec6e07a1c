//! Checks sampled stacks in each available CPython. The samples show the program's functions, and the program is not
//! disturbed.
//!
//! The program's functions take known shares of the processor time (`tests/stacks/program.py`). Only samples of a
//! running thread are counted: on a busy machine, the thread waits for a processor most of the time, in any function.

mod common;
#[allow(dead_code, reason = "only a part of it is used here")]
#[path = "record/read.rs"]
mod read;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use common::python::{Python, pythons};
use common::pythons::few;
use common::{Output, Scratch, command, repo, run, shim, standin};
use read::Read;
use tllmprof_record::{Event, Info, SystemCall, Taken, Task, ThreadState, What};

const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// Returns the command that runs the program with its stacks sampled at 1000 Hz, in one window from the first step
/// until the end.
fn program(python: &Python, scratch: &Scratch, situation: &str, steps: u32) -> Command {
    let mut started = command(&python.path);
    started
        .arg(repo().join("tests/stacks/program.py"))
        .args([situation, "--steps", &steps.to_string()])
        .env("LD_PRELOAD", shim())
        .env("LD_LIBRARY_PATH", standin())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TLLMPROF_START_STOP", "0-")
        .env("TLLMPROF_STEP", "cudaDeviceSynchronize")
        .env("TLLMPROF_TRACE", "%p.tllmprof")
        .env("TLLMPROF_STACKS", "1000")
        .current_dir(scratch.folder());
    started
}

/// Runs the program in the given situation. Returns its output, and the stack samples of each of its processes.
#[track_caller]
fn sampled(python: &Python, situation: &str, steps: u32) -> (Output, Vec<Samples>) {
    let scratch = Scratch::new("stacks");
    let output = run(
        &mut program(python, &scratch, situation, steps),
        TEST_TIMEOUT,
    );
    let records = Read::all(scratch.folder());
    (output, records.iter().map(Samples::from_record).collect())
}

/// Like [`sampled`], for a program with one process that ends without an error.
#[track_caller]
fn sampled_alone(python: &Python, situation: &str, steps: u32) -> (Output, Samples) {
    let (output, mut all) = sampled(python, situation, steps);
    assert!(
        output.status.success(),
        "{python} {situation}: {}",
        output.err()
    );
    assert_eq!(all.len(), 1, "{python} {situation}: {}", output.err());
    let samples = all.remove(0);
    println!("{python} {situation}: {}", samples.summary());
    (output, samples)
}

struct Sample {
    taken: Taken,
    state: Option<ThreadState>,
    thread: u32,
    /// The functions, innermost first, as `NAME (FILE:LINE)`.
    stack: Vec<String>,
    /// The time that taking this sample took, in ticks of the record's clock.
    took: u64,
}

struct Samples(Vec<Sample>);

impl Samples {
    /// Returns the samples of the threads that make steps.
    #[track_caller]
    fn from_record(record: &Read) -> Self {
        let mut samples = Self::of_all_threads(record);
        let others = others(record);
        samples.0.retain(|sample| !others.contains(&sample.thread));
        samples
    }

    #[track_caller]
    fn of_all_threads(record: &Read) -> Self {
        let mut frames = BTreeMap::new();
        for (_, event) in &record.events {
            if let What::Frame { id, parent, name } = event.what {
                let text = record.strings.get(name).to_owned();
                assert!(
                    frames.insert(id, (parent, text)).is_none(),
                    "id {id} is given twice"
                );
            }
        }
        let stack_of = |innermost: u32| {
            let frame = |id: &u32| {
                frames
                    .get(id)
                    .expect("a frame that is referred to is there")
            };
            let ids = std::iter::successors(Some(innermost).filter(|id| *id != 0), |id| {
                Some(frame(id).0).filter(|id| *id != 0)
            });
            ids.map(|id| frame(&id).1.clone()).collect()
        };
        let samples = record
            .events
            .iter()
            .filter_map(|(_, event)| match event.what {
                What::Sample {
                    taken,
                    state,
                    thread,
                    frame,
                } => Some(Sample {
                    taken,
                    state,
                    thread,
                    stack: stack_of(frame),
                    took: event.duration,
                }),
                _ => None,
            });
        Self(samples.collect())
    }

    fn share(&self, is: impl Fn(&Sample) -> bool) -> f64 {
        self.0.iter().filter(|sample| is(sample)).count() as f64 / self.0.len().max(1) as f64
    }

    fn torn(&self) -> f64 {
        self.share(|sample| sample.taken == Taken::Torn)
    }

    fn summary(&self) -> String {
        let mut took: Vec<_> = self.0.iter().map(|sample| sample.took).collect();
        took.sort_unstable();
        format!(
            "{} samples, of which {:.3} ran, {:.4} torn, median {:?} ticks",
            self.0.len(),
            self.share(|sample| sample.state == Some(ThreadState::Running)),
            self.torn(),
            took.get(took.len() / 2)
        )
    }

    /// Returns the number of samples of a running thread whose stack contains the function.
    fn count(&self, function: &str) -> usize {
        let ran = self
            .0
            .iter()
            .filter(|sample| sample.state == Some(ThreadState::Running));
        ran.filter(|sample| sample.stack.iter().any(|name| is(name, function)))
            .count()
    }

    /// Returns the functions that call the given function in the samples. Rare callers are left out: a stack that
    /// changes while it is read may seem complete, but with wrong callers.
    fn callers(&self, function: &str) -> BTreeSet<&str> {
        let pairs = self.0.iter().flat_map(|sample| sample.stack.windows(2));
        let mut callers = BTreeMap::<_, usize>::new();
        for pair in pairs.filter(|pair| is(&pair[0], function)) {
            *callers
                .entry(pair[1].split(' ').next().unwrap())
                .or_default() += 1;
        }
        let all: usize = callers.values().sum();
        callers.retain(|_, count| *count * 100 >= all);
        callers.into_keys().collect()
    }

    /// Asserts that the program's functions have their expected shares of the samples. In some runs in a thousand, the
    /// shares deviate too much only by chance. So if the check fails, the test takes the same number of samples again,
    /// and all samples together must pass the check. The accepted error is smaller for more samples.
    #[track_caller]
    fn have_their_shares(&mut self, python: &Python, situation: &str, steps: u32) {
        let Err(wrong) = self.shares() else {
            return;
        };
        println!("{python}: {wrong}");
        let (_, more) = sampled_alone(python, situation, steps);
        self.0.extend(more.0);
        if let Err(wrong) = self.shares() {
            panic!("{python}: {wrong}");
        }
    }

    /// Compares the functions' shares of the samples with the expected shares. Returns an error that describes the
    /// first wrong share. If no more than 200 samples contain the functions, the error is a summary of all samples.
    fn shares(&self) -> Result<(), String> {
        let functions = [("seventy", 0.7), ("twenty", 0.2), ("ten", 0.1)];
        let all: usize = functions
            .iter()
            .map(|(function, _)| self.count(function))
            .sum();
        if all <= 200 {
            return Err(self.summary());
        }
        for (function, truth) in functions {
            let found = self.count(function) as f64 / all as f64;
            // The largest accepted error of a share: 0.03 for 2000 samples or more, and larger for fewer samples.
            let most = 0.03 * (2000.0 / all as f64).sqrt().max(1.0);
            if (found - truth).abs() >= most {
                return Err(format!(
                    "{function} {found:.3}, not {truth} to {most:.3} ({all} samples)"
                ));
            }
        }
        Ok(())
    }
}

/// Returns the threads that make no steps, and that the record notes because a thread that makes steps was waiting.
/// Unless they run an event loop, they are sampled only during such waits.
fn others(record: &Read) -> BTreeSet<u32> {
    let is_iteration = |event: &Event| matches!(event.what, What::Iteration { .. });
    let events = record.events.iter();
    let steps = events.filter(|(_, event)| is_iteration(event));
    let steps: BTreeSet<u32> = steps.map(|(thread, _)| *thread).collect();
    record
        .events
        .iter()
        .filter_map(|(_, event)| match event.what {
            What::Meanwhile {
                task: Task::Thread,
                id,
                ..
            } if !steps.contains(&id) => Some(id),
            _ => None,
        })
        .collect()
}

/// Returns true if a frame's name is that of the function. A class name in front of the function's name is ignored.
fn is(name: &str, function: &str) -> bool {
    let qualified = name.split(' ').next().unwrap();
    qualified.rsplit('.').next() == Some(function)
}

#[test]
fn shares_are_those_of_the_program() {
    for python in pythons() {
        let (output, mut samples) = sampled_alone(python, "shares", 2500);
        assert_eq!(
            output.err().matches("TLLMPROF_STACKS").count(),
            0,
            "{}",
            output.err()
        );
        samples.have_their_shares(python, "shares", 2500);
        assert!(samples.torn() < 0.05, "{python}: {}", samples.summary());
        assert_eq!(samples.callers("seventy"), ["step"].into(), "{python}");
        assert_eq!(samples.callers("step"), ["shares"].into(), "{python}");
        // In every stack, the outermost frame is the program's module, whose first line is 1.
        let names: BTreeSet<_> = samples
            .0
            .iter()
            .filter_map(|sample| sample.stack.last())
            // The window also contains the end of the interpreter, which runs functions of Python's own library. These
            // are left out.
            .filter(|name| !name.contains("/lib/python"))
            .collect();
        assert!(
            names.iter().all(|name| name.ends_with("program.py:1)")),
            "{python}: {names:?}"
        );
    }
}

#[test]
fn a_record_says_how_often() {
    let python = &pythons()[0];
    let scratch = Scratch::new("stacks-rate");
    let mut started = program(python, &scratch, "shares", 300);
    let output = run(started.env("TLLMPROF_STACKS", "1"), TEST_TIMEOUT);
    assert!(output.status.success(), "{}", output.err());
    let records = Read::all(scratch.folder());
    let rate = records[0]
        .events
        .iter()
        .find_map(|(_, event)| match event.what {
            What::Info {
                key: Some(Info::StacksRate),
                value,
            } => Some(value),
            _ => None,
        });
    assert_eq!(rate, Some(200));
}

#[test]
fn coroutines_are_read_with_their_callers() {
    for python in pythons() {
        let (_, mut samples) = sampled_alone(python, "coroutines", 1500);
        samples.have_their_shares(python, "coroutines", 1500);
        assert!(samples.torn() < 0.15, "{python}: {}", samples.summary());
        assert_eq!(samples.callers("inner"), ["middle"].into(), "{python}");
    }
}

#[test]
fn deep_stacks_are_whole() {
    for python in few() {
        let (_, mut samples) = sampled_alone(python, "deep", 600);
        let deepest = samples.0.iter().map(|sample| sample.stack.len()).max();
        assert!(
            deepest > Some(800),
            "{python}: {deepest:?}, {}",
            samples.summary()
        );
        // Before Python 3.11, each frame is a separate object in memory. Reading the frames of a deep stack takes about
        // as long as the program's short functions run, so shares are not checked there.
        if python.version >= (3, 11) {
            samples.have_their_shares(python, "deep", 600);
        }
        assert_eq!(samples.callers("step"), ["down"].into(), "{python}");
    }
}

#[test]
fn only_threads_that_make_steps_are_sampled() {
    for python in few() {
        let (output, samples) = sampled_alone(python, "threads", 1000);
        let out = output.out();
        let mut numbers = out
            .split_whitespace()
            .filter_map(|word| word.parse::<u32>().ok());
        let (first, second) = (numbers.next().unwrap(), numbers.next().unwrap());
        let found: BTreeSet<_> = samples.0.iter().map(|sample| sample.thread).collect();
        assert_eq!(found, [first, second].into(), "{python}");
        let of = |thread, function: &str| {
            let mut of = samples.0.iter().filter(|sample| sample.thread == thread);
            of.any(|sample| sample.stack.iter().any(|name| is(name, function)))
        };
        assert!(
            of(first, "seventy") && !of(first, "second_steps"),
            "{python}"
        );
        assert!(
            of(second, "second_steps") && !of(second, "seventy"),
            "{python}"
        );
    }
}

#[test]
fn an_event_loop_is_sampled_though_its_thread_makes_no_steps() {
    for python in few() {
        let scratch = Scratch::new("stacks-loop");
        let mut started = program(python, &scratch, "event_loop", 8000);
        let output = run(&mut started, TEST_TIMEOUT);
        assert!(output.status.success(), "{python}: {}", output.err());
        let number = output.out().split_whitespace().nth(1).unwrap().parse();
        let number: u32 = number.unwrap();
        let record = &Read::all(scratch.folder())[0];
        let samples = Samples::of_all_threads(record);
        let is_loop = |sample: &&Sample| sample.thread == number;
        // The sampler may spend only a small part of its time on the search for the thread. So on a busy machine, the
        // search ends late.
        let of_loop = samples.0.iter().filter(is_loop).count();
        println!("{python}: {of_loop} of {}", samples.0.len());
        let is_one = |sample: &&Sample| is_loop(sample) && sample.taken == Taken::Python;
        let own: Vec<_> = samples.0.iter().filter(is_one).collect();
        let has = |function: &'static str| {
            let within = |sample: &&&Sample| sample.stack.iter().any(|name| is(name, function));
            own.iter().filter(within).count()
        };
        let waits = record.events.iter().filter(|(_, event)| {
            matches!(event.what, What::Asleep { call: Some(SystemCall::EpollWait), thread, .. } if thread == number)
        });
        let found = (own.len(), has("spin"), has("select"), waits.count());
        println!("{python}: {found:?}");
        let (all, spins, selects, waits) = found;
        assert!(
            all > 100 && spins > 20 && selects > 20 && waits > 20,
            "{python}: {found:?}"
        );
    }
}

#[test]
fn a_fork_in_a_window_ends_sampling_in_the_child_alone() {
    for python in few() {
        let (_, samples) = sampled_alone(python, "fork", 400);
        let threads: BTreeSet<_> = samples.0.iter().map(|sample| sample.thread).collect();
        assert_eq!(threads.len(), 1, "{python}");
        // The forked child calls `ten` without `step`. So the only caller `step` shows that no stack of the child was
        // sampled.
        assert!(
            samples.count("step") > 0 && samples.callers("ten") == ["step"].into(),
            "{python}"
        );
    }
}

#[test]
fn what_changes_all_the_time_is_read_or_rejected() {
    for python in pythons() {
        // In a Python without a GIL, starting and ending a thread takes ten times as long, so the program makes fewer
        // steps.
        let steps = if python.has_gil { 1500 } else { 200 };
        let (_, samples) = sampled_alone(python, "churn", steps);
        // Each function in the samples must be from the program or from Python's library, even if threads began or
        // ended while the sample was taken.
        let is_odd = |name: &&String| {
            let places = [".py:", "<string>:", "<frozen "];
            !places.iter().any(|place| name.contains(place))
        };
        let odd: Vec<_> = samples
            .0
            .iter()
            .flat_map(|sample| &sample.stack)
            .filter(is_odd)
            .collect();
        assert!(odd.is_empty(), "{python}: {odd:?}");
        assert!(samples.torn() < 0.9, "{python}: {}", samples.summary());
    }
}

#[test]
fn a_thread_that_sleeps_is_seen_to_sleep() {
    for python in few() {
        let (_, samples) = sampled_alone(python, "sleeps", 300);
        let is_asleep = |sample: &Sample| sample.state == Some(ThreadState::Sleeping);
        let asleep = samples.share(is_asleep);
        assert!(asleep > 0.3, "{python}: {asleep}");
        // Samples that are taken while the interpreter ends have no frames, and their number depends on the machine.
        // So the check uses only samples in which the thread sleeps: `sleeps` must be in more than 90 % of them.
        let in_sleeps = samples.share(|sample| {
            is_asleep(sample) && sample.stack.iter().any(|name| is(name, "sleeps"))
        });
        assert!(
            in_sleeps > 0.9 * asleep,
            "{python}: {in_sleeps} of {asleep}"
        );
    }
}

#[test]
fn a_process_that_ends_in_a_window_ends_as_it_would() {
    for python in few() {
        let (output, samples) = sampled(python, "at_once", 200);
        assert_eq!(output.status.code(), Some(0), "{python}: {}", output.err());
        assert!(!samples[0].0.is_empty(), "{python}");
        let (output, samples) = sampled(python, "raises", 200);
        assert_eq!(output.status.code(), Some(3), "{python}: {}", output.err());
        assert!(!samples[0].0.is_empty(), "{python}");
    }
}

#[test]
fn without_a_record_nothing_is_sampled_and_one_line_says_so() {
    let scratch = Scratch::new("stacks-without");
    let mut started = program(&pythons()[0], &scratch, "shares", 50);
    let output = run(started.env_remove("TLLMPROF_TRACE"), TEST_TIMEOUT);
    assert!(output.status.success());
    let said = output
        .err()
        .lines()
        .filter(|line| line.contains("TLLMPROF_STACKS"))
        .count();
    assert_eq!(said, 1, "{}", output.err());
}

#[test]
fn a_filter_that_refuses_to_copy_memory_costs_one_line() {
    for python in few() {
        let scratch = Scratch::new("stacks-filter");
        let mut filtered = command(&python.path);
        let given = program(python, &scratch, "shares", 50);
        filtered
            .arg(repo().join("tests/stacks/filtered.py"))
            .args(given.get_args())
            .current_dir(scratch.folder());
        for (name, value) in given.get_envs() {
            value.map(|value| filtered.env(name, value));
        }
        let output = run(&mut filtered, TEST_TIMEOUT);
        if output.status.code() == Some(77) {
            return common::skipped("no filter may be set here");
        }
        assert!(output.status.success(), "{python}: {}", output.err());
        let err = output.err();
        let said: Vec<_> = err
            .lines()
            .filter(|line| line.contains("TLLMPROF_STACKS"))
            .collect();
        let [line] = said[..] else {
            panic!("{python}: {err}")
        };
        assert!(
            line.contains("process_vm_readv on the process itself: Operation not permitted"),
            "{line}"
        );
        let samples = Samples::from_record(&Read::all(scratch.folder())[0]);
        assert_eq!(samples.0.len(), 0, "{python}");
    }
}

#[test]
fn native_stacks_are_sampled_where_the_kernel_permits() {
    /// Number of samples of each kind (Python stacks and native stacks) that the run needs. The run is repeated with
    /// more steps until it has that many, because the kernel's timer may be coarse and the machine busy.
    const MIN_SAMPLES: usize = 50;
    let python = few()[0];
    let mut steps = 1500;
    let (output, samples) = loop {
        let scratch = Scratch::new("stacks-native");
        let mut started = program(python, &scratch, "shares", steps);
        let output = run(started.env("TLLMPROF_NATIVE_STACKS", "1"), TEST_TIMEOUT);
        assert!(output.status.success(), "{}", output.err());
        let samples = Samples::from_record(&Read::all(scratch.folder())[0]);
        let count = |taken| samples.0.iter().filter(|it| it.taken == taken).count();
        let is_refused = output.err().contains("TLLMPROF_NATIVE_STACKS");
        let has_native = is_refused || count(Taken::Native) >= MIN_SAMPLES;
        if count(Taken::Python) >= MIN_SAMPLES && has_native {
            break (output, samples);
        }
        assert!(steps < 50_000, "Python's go on: {}", samples.summary());
        steps *= 2;
    };
    let of = |taken| samples.0.iter().filter(move |sample| sample.taken == taken);
    if let Some(line) = output
        .err()
        .lines()
        .find(|line| line.contains("TLLMPROF_NATIVE_STACKS"))
    {
        assert!(
            line.contains("perf_event_open: ") && of(Taken::Native).count() == 0,
            "{line}"
        );
        return common::skipped(line);
    }
    let native: Vec<_> = of(Taken::Native).collect();
    // A native frame in a file is named FILE+0xOFFSET. A frame in the vDSO is not, because the vDSO is not a file.
    let is_place = |name: &&String| name.contains("+0x");
    let named = native
        .iter()
        .filter(|sample| sample.stack.first().as_ref().is_some_and(is_place));
    assert!(named.count() * 10 > native.len() * 8);
}
