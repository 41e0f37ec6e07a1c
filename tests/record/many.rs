//! Checks windows over steps that many threads make at once. A window must contain exactly the requested steps,
//! counted in the order in which they begin. Each of its iterations must be either recorded or counted as missing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tllmprof_record::Counter;

use crate::common::python::pythons;
use crate::common::{INEXACT, Output, Scratch, command, nvtx, repo, run, shim, standin};
use crate::read::Read;

const TEST_TIMEOUT: Duration = Duration::from_secs(300);
/// Number of steps that all threads of a run make together.
const STEPS: u64 = 960;

/// One of the ways in which the program marks its steps, and the rule that counts these steps.
struct Steps {
    how: &'static str,
    rule: &'static str,
    /// Number of the program's steps in one iteration of the rule.
    every: u64,
}

const ALL: [Steps; 7] = [
    steps("launch", "cudaGraphLaunch", 1),
    steps("launch", "cudaGraphLaunch/3", 3),
    steps("wait", "cudaStreamSynchronize", 1),
    steps("wait", "cudaStreamSynchronize/2", 2),
    steps("range", "nvtx:^step$", 1),
    steps("started", "nvtx:^step$/2", 2),
    steps("function", "sym:^many_step$", 1),
];

const fn steps(how: &'static str, rule: &'static str, every: u64) -> Steps {
    Steps { how, rule, every }
}

/// Returns the number of runs of each case: `TLLMPROF_TEST_MANY` if it is set, else 1.
fn times() -> u64 {
    std::env::var("TLLMPROF_TEST_MANY").map_or(1, |times| times.parse().unwrap())
}

/// Returns windows of different sizes that lie within this number of iterations.
fn windows(iterations: u64) -> Vec<(u64, u64)> {
    let sizes = [5, 1, 2, 9].into_iter().cycle();
    let mut windows = Vec::new();
    let mut first = 3;
    for size in sizes {
        if first + size + 8 >= iterations {
            return windows;
        }
        windows.push((first, first + size - 1));
        first += size + 1 + 5 * size;
    }
    windows
}

struct Program {
    path: PathBuf,
    scratch: Scratch,
}

/// The results of a run with several windows.
struct Ran {
    output: Output,
    /// The record; `None` if no window opened.
    record: Option<Read>,
    windows: Vec<(u64, u64)>,
}

/// A start or stop of the profiler, as the program saw it.
struct Switch {
    /// The number of steps that had begun before.
    begun: u64,
    /// The number of threads that were beginning a step, besides the one that called the profiler: the library may have
    /// counted their steps, and the program not yet. Known only for rules under which a step begins in the program's
    /// own code.
    beginning: u64,
}

impl Program {
    fn new() -> Self {
        let scratch = Scratch::new("many");
        let path = nvtx::program(&scratch, "record/many.c");
        Self { path, scratch }
    }

    fn run(&self, steps: &Steps, threads: u64, work: u64) -> Ran {
        let windows = windows(STEPS / steps.every);
        self.run_with(steps, threads, work, windows)
    }

    fn run_with(&self, steps: &Steps, threads: u64, work: u64, windows: Vec<(u64, u64)>) -> Ran {
        let mut program = command(&self.path);
        program
            .args([threads.to_string(), (STEPS / threads).to_string()])
            .args([steps.how.to_owned(), work.to_string()])
            .env("TLLMPROF_DRAIN", if threads == 2 { "1" } else { "0" });
        run_in(&self.scratch, program, steps.rule, windows)
    }
}

/// Runs the program with these windows and this rule. Its record is the file `many.tllmprof` in the folder of
/// `scratch`.
fn run_in(scratch: &Scratch, mut program: Command, rule: &str, windows: Vec<(u64, u64)>) -> Ran {
    let texts: Vec<_> = windows.iter().map(|(a, b)| format!("{a}-{b}")).collect();
    let path = scratch.path("many.tllmprof");
    let _ = std::fs::remove_file(&path);
    program
        .env("LD_LIBRARY_PATH", standin())
        .env("LD_PRELOAD", shim())
        .env("TLLMPROF_START_STOP", texts.join(","))
        .env("TLLMPROF_STEP", rule)
        .env("TLLMPROF_TRACE", &path);
    let output = run(&mut program, TEST_TIMEOUT);
    assert!(output.status.success(), "{}", output.err());
    Ran {
        record: path.exists().then(|| Read::open(&path)),
        output,
        windows,
    }
}

impl Ran {
    fn record(&self) -> &Read {
        let record = self.record.as_ref();
        record.unwrap_or_else(|| panic!("no record: {}", self.output.err()))
    }

    /// Returns true if the rule `auto` found no step, so that no window opened. The run then has no record, and the
    /// library has logged the reason.
    fn learnt_nothing(&self) -> bool {
        let said = |word| self.output.err().contains(word);
        self.record.is_none() && said("never opened") && !said("captured") && !said("closed: ")
    }

    /// Asserts that each iteration of each window is in the record or counted as missing, and that the library logged
    /// the same numbers.
    fn assert_nothing_is_lost(&self, what: &str, iterations: u64) {
        let (output, record) = (&self.output, self.record());
        let counter = |counter| record.header.counter(counter);
        let recorded = record.iterations().len() as u64;
        let dropped = counter(Counter::EventsDropped);
        let held = record.held();
        assert_eq!(recorded + dropped, held, "{what}: {}", output.err());
        assert_eq!(counter(Counter::IterationsPassed), dropped, "{what}");
        let outside = record.header.outside.count();
        let all = outside + recorded + dropped;
        assert!(all <= iterations, "{what}: {all} of {iterations}");
        if self.is_exact() {
            assert_eq!(all, iterations, "{what}");
            assert_eq!(counter(Counter::Iterations), iterations, "{what}");
        }
        assert!(record.damage.is_none(), "{what}: {}", record.damage);
        let logged: u64 = self.closed().values().sum();
        assert_eq!(logged, held, "{what}: {}", output.err());
    }

    /// Returns the number of iterations of each closed window according to the library's messages.
    fn closed(&self) -> BTreeMap<String, u64> {
        let err = self.output.err();
        let closed = err.lines().filter_map(|line| {
            let (window, rest) = line
                .strip_prefix("tllmprof: window ")?
                .split_once(" closed: ")?;
            let (held, _) = rest.split_once(" iteration")?;
            Some((window.to_owned(), held.parse().unwrap()))
        });
        closed.collect()
    }

    /// Returns true if the record has exactly the requested windows, with all their iterations.
    fn is_exact(&self) -> bool {
        let wanted: Vec<u64> = self.windows.iter().flat_map(|&(a, b)| a..=b).collect();
        let held = self.windows.iter().map(|(a, b)| b + 1 - a);
        self.record().windows() == self.windows
            && self.record().iterations() == wanted
            && self.closed().len() == self.windows.len()
            && held.sum::<u64>() == self.closed().values().sum::<u64>()
    }

    /// Returns the starts and stops of the profiler, as the program saw them, each with the number of steps at which the
    /// requested window opens or closes.
    fn switches(&self, every: u64) -> Vec<(Switch, u64)> {
        let out = self.output.out();
        let switches = out.lines().map(|line| {
            let numbers: Vec<_> = line
                .split(' ')
                .skip(1)
                .map(|n| n.parse().unwrap())
                .collect();
            let [begun, beginning] = numbers[..] else {
                panic!("{line}: two numbers were wanted")
            };
            Switch { begun, beginning }
        });
        let edges = self.windows.iter().flat_map(|&(a, b)| [a, b + 1]);
        switches.zip(edges.map(|edge| edge * every)).collect()
    }
}

/// Makes a run. Repeats it, up to three times, if it is not exact and the library logs that a thread waited too long
/// for a window to open or close. This can happen if several programs share each core. Returns the last run.
fn unless_too_busy(what: &str, run: impl Fn() -> Ran) -> Ran {
    for _ in 0..3 {
        let ran = run();
        if ran.is_exact() || !ran.output.err().contains(INEXACT) {
            return ran;
        }
        println!("{what}: the machine was too busy");
    }
    run()
}

#[test]
fn windows_of_many_threads_steps_are_exact() {
    let program = Program::new();
    let (mut runs, mut inexact) = (0, Vec::new());
    let (mut edges, mut late) = (0u64, 0u64);
    for _ in 0..times() {
        for threads in [2, 8, 16, 64] {
            for steps in &ALL {
                for work in [0, 2] {
                    let what = format!("{threads} threads, {}, work {work}", steps.rule);
                    let ran = unless_too_busy(&what, || {
                        let ran = program.run(steps, threads, work);
                        ran.assert_nothing_is_lost(&what, STEPS.div_ceil(steps.every));
                        ran
                    });
                    runs += 1;
                    if !ran.is_exact() {
                        inexact.push(format!("{what}: {}", ran.output.err()));
                        continue;
                    }
                    for (Switch { begun, beginning }, edge) in ran.switches(steps.every) {
                        // When the profiler is started, no step of the window may have begun yet. When it is stopped,
                        // no step after the window may have begun.
                        assert!(begun <= edge, "{what}: {begun} had begun at {edge}");
                        edges += 1;
                        // When the profiler is started or stopped, all steps before that point must have begun. This
                        // is checked only for rules under which a step begins in the program's own code, where the
                        // program can count it.
                        let is_seen = matches!(steps.how, "range" | "started" | "function");
                        assert!(
                            !is_seen || edge <= begun + beginning,
                            "{what}: {begun} had begun at {edge}, and {beginning} were beginning"
                        );
                        late += u64::from(is_seen && begun < edge);
                    }
                }
            }
        }
    }
    println!(
        "{} of {runs} runs exact, a step was beginning at {late} of {edges} edges",
        runs - inexact.len()
    );
    assert!(inexact.is_empty(), "{inexact:#?}");
}

#[test]
fn windows_of_a_python_function_that_many_threads_call_are_exact() {
    let scratch = Scratch::new("many");
    let (mut runs, mut inexact) = (0, Vec::new());
    for python in pythons() {
        for (threads, work) in (0..times()).flat_map(|_| [(2, 1), (8, 0), (16, 2), (64, 1)]) {
            let what = format!("{python}, {threads} threads, work {work}");
            let ran = unless_too_busy(&what, || {
                let mut program = command(&python.path);
                program
                    .arg(repo().join("tests/record/many.py"))
                    .args([threads, STEPS / threads, work].map(|number| number.to_string()))
                    .env("PYTHONDONTWRITEBYTECODE", "1");
                let ran = run_in(&scratch, program, "py:__main__:step", windows(STEPS));
                ran.assert_nothing_is_lost(&what, STEPS);
                ran
            });
            runs += 1;
            if !ran.is_exact() {
                inexact.push(format!("{what}: {}", ran.output.err()));
            }
        }
    }
    println!("{} of {runs} runs exact", runs - inexact.len());
    assert!(inexact.is_empty(), "{inexact:#?}");
}

/// With a learnt rule (`auto`), the order of the threads' calls decides which calls begin iterations, so windows may
/// differ between runs.
#[test]
fn where_the_step_is_learnt_each_iteration_of_a_window_is_kept_or_counted() {
    let program = Program::new();
    let (mut runs, mut without) = (0, 0);
    for threads in (0..times()).flat_map(|_| [1, 2, 8, 64]) {
        for work in [1, 3] {
            let ran = program.run(&steps("wait", "auto", 1), threads, work);
            runs += 1;
            if threads > 1 && ran.learnt_nothing() {
                without += 1;
                continue;
            }
            ran.assert_nothing_is_lost(&format!("{threads} threads, work {work}"), STEPS);
            assert!(
                threads > 1 || !ran.closed().is_empty(),
                "{}",
                ran.output.err()
            );
        }
    }
    println!("nothing lost in {runs} runs, in {without} of them no window opened");
}

/// The last wait of the program begins iteration 960. No wait follows, so this iteration never ends. A window that
/// opens with this iteration therefore has no iterations.
#[test]
fn a_window_that_opens_with_the_last_iteration_holds_none() {
    let program = Program::new();
    for (window, held) in [
        ((STEPS, STEPS + 5), 0),
        ((STEPS, STEPS), 0),
        ((STEPS - 1, STEPS + 5), 1),
    ] {
        for threads in [1, 8] {
            let wait = steps("wait", "cudaStreamSynchronize", 1);
            let ran = program.run_with(&wait, threads, 1, vec![(9, 9), window]);
            ran.assert_nothing_is_lost(&format!("{threads} threads, {window:?}"), STEPS);
            assert_eq!(ran.record().held(), 1 + held, "{}", ran.output.err());
        }
    }
}
