//! Checks rules that count calls of Python functions as iterations: the library finds the functions, counts their
//! calls, and logs functions that it does not find. The programs run on the stand-in for CUDA.

mod common;
#[path = "python_rules/engines.rs"]
mod engines;
#[path = "python_rules/found.rs"]
mod found;
#[path = "python_rules/hidden.rs"]
mod hidden;

use std::fs;
use std::path::Path;
use std::time::Duration;

use common::python::{Python, pythons};
use common::{Fixture, Ran, Scratch, nvtx, repo, tllmprof};

/// The beginning of each program. It defines `work`, which does a step's work: one graph launch and one wait.
const LOOP: &str = "
from py_ctypes import Runtime
loop = Runtime('libcudart.so.12')
loop.capture()
work = loop.step
";

/// Returns a run of this Python with the test's fixtures in its module path.
fn python(python: &Python) -> Fixture {
    Fixture::new(&python.path.to_string_lossy())
        .env("PYTHONPATH", repo().join("tests/fixtures"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
}

fn write(folder: &Path, file: &str, text: &str) {
    let path = folder.join(file);
    fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("make a folder");
    fs::write(path, text).expect("write a program");
}

/// Runs `program` after the lines of [`LOOP`].
fn run(which: &Python, program: &str, rule: &str, windows: &str) -> Ran {
    let fixture = python(which).window(windows, rule).args("main.py");
    write(fixture.folder(), "main.py", &format!("{LOOP}{program}"));
    fixture.run()
}

/// Returns, for each start (`+`) and stop (`-`) of the profiler, the number of launches before it.
fn edges(ran: &Ran) -> Vec<(char, usize)> {
    let mut launches = 0;
    let mut edges = Vec::new();
    for record in &ran.log {
        match record.function.as_str() {
            "cuProfilerStart" => edges.push(('+', launches)),
            "cuProfilerStop" => edges.push(('-', launches)),
            name if name.starts_with("cuGraphLaunch") => launches += 1,
            _ => {}
        }
    }
    edges
}

#[track_caller]
fn assert_edges(which: &Python, ran: &Ran, expected: &[(char, usize)]) {
    let context = format!("{which:?}\n{}{}", ran.output.out(), ran.output.err());
    assert_eq!(edges(ran), expected, "{context}");
    assert!(ran.output.status.success(), "{context}");
}

/// Returns up to three Pythons: the oldest version, 3.11 (the newest version without `sys.monitoring`), and the newest
/// version.
fn some() -> impl Iterator<Item = &'static Python> {
    let all = pythons();
    let last = |minor| all.iter().rfind(move |python| python.version.1 == minor);
    let first = all.first().map(|python| python.version.1);
    let newest = all.last().map(|python| python.version.1);
    let mut wanted = vec![first, Some(11), newest];
    wanted.dedup();
    wanted.into_iter().flatten().filter_map(last)
}

fn newest() -> Option<&'static Python> {
    some().last()
}

#[test]
fn windows_are_exact_in_every_python() {
    // The program also launches between the calls of `step`. These launches must be outside the window, which ends when
    // the last call returns.
    let program = "
def step():
    work()

for _ in range(40):
    step()
    work()
";
    for which in pythons() {
        let ran = run(which, program, "py:__main__:step", "5-9,30-");
        let expected = [('+', 10), ('-', 19), ('+', 60), ('-', 80)];
        assert_edges(which, &ran, &expected);
        let said = ran.said();
        assert_eq!(said.len(), 5, "{said:?}");
        assert_eq!(
            said[4],
            "windows 5-9,30- captured: 40 iterations by py:__main__:step"
        );
        let ran = run(which, program, "py:__main__:step/4", "5-9");
        assert_edges(which, &ran, &[('+', 40), ('-', 79)]);
    }
}

#[test]
fn an_iteration_that_yields_ends_with_the_last_of_its_calls() {
    for which in some() {
        let generator = "
def step():
    work()
    yield
    work()

for _ in range(12):
    for _ in step():
        work()
    work()
";
        let ran = run(which, generator, "py:__main__:step", "5-9");
        assert_edges(which, &ran, &[('+', 20), ('-', 39)]);
        let coroutine = "
import asyncio

async def step():
    work()
    await asyncio.sleep(0)
    work()

async def main():
    for _ in range(12):
        await step()
        work()

asyncio.run(main())
";
        let ran = run(which, coroutine, "py:__main__:step", "5-9");
        assert_edges(which, &ran, &[('+', 15), ('-', 29)]);
        // Here two calls of `step` run at the same time. The iteration that the second call begins lasts until both
        // calls have ended.
        let two = coroutine.replace("await step()", "await asyncio.gather(step(), step())");
        let ran = run(which, &two, "py:__main__:step", "5-9");
        assert_edges(which, &ran, &[('+', 11), ('-', 24)]);
    }
}

#[test]
fn threads_count_together() {
    let program = "
import threading

turn = threading.Lock()

def step():
    work()

def run():
    for _ in range(10):
        with turn:
            step()

threads = [threading.Thread(target=run) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
";
    for which in some() {
        let ran = run(which, program, "py:__main__:step", "5-9,30-34");
        assert_edges(which, &ran, &[('+', 5), ('-', 10), ('+', 30), ('-', 35)]);
    }
}

#[test]
fn a_forked_child_counts_anew() {
    let program = format!(
        "
import os, sys

def step():
    work()

def run():
    global work
    exec(compile({LOOP:?}, 'loop.py', 'exec'), globals())
    for _ in range(12):
        step()

if os.fork() == 0:
    run()
    sys.stdout.flush()
    os._exit(0)
os.wait()
run()
"
    );
    for which in some() {
        let fixture = python(which)
            .window("5-9", "py:__main__:step")
            .args("main.py");
        write(fixture.folder(), "main.py", &program);
        let ran = fixture.run();
        let expected = [('+', 5), ('-', 10), ('+', 17), ('-', 22)];
        assert_edges(which, &ran, &expected);
    }
}

#[test]
fn what_is_made_while_the_program_runs_is_found_late_and_reported() {
    let program = "
import os, time

def make():
    def inner():
        work()
    return inner

for _ in range(20):
    work()
step = make()
for _ in range(3):
    step()
for _ in range(10):
    time.sleep(0.02)
    os.listdir('.')
for _ in range(12):
    step()
";
    for which in some() {
        let ran = run(which, program, "py:__main__:step", "5-9");
        assert_edges(which, &ran, &[('+', 28), ('-', 33)]);
        let inherited = program.replace(
            "step = make()",
            "class A:\n    def step(self): work()\nclass B(A): pass\nstep = B().step",
        );
        let of_base = run(which, &inherited, "py:__main__:B.step", "5-9");
        assert_edges(which, &of_base, &[('+', 28), ('-', 33)]);
        let said = ran.said();
        let late = "py:__main__:step was found late: calls before that do not count";
        assert!(said.iter().any(|line| line == late), "{said:?}");
        assert!(
            said.last()
                .unwrap()
                .ends_with("12 iterations by py:__main__:step"),
            "{said:?}"
        );
    }
}

#[test]
fn a_rule_that_names_nothing_is_reported_with_the_reason() {
    let program = "
import math

def step():
    work()

class Engine:
    def step(self):
        pass

number = 3
step()
";
    for which in some() {
        for (rule, why) in [
            ("py:nowhere.steps:step", "nowhere.steps was never imported"),
            (
                "py:__main__:stpe",
                "__main__ has no such function; nearest: step, Engine.step",
            ),
            (
                "py:__main__:Engin.step",
                "__main__ has no such function; nearest: Engine.step, step",
            ),
            (
                "py:__main__:other",
                "__main__ has no such function; it made 1 graph launches",
            ),
            (
                "py:math:sqrt",
                "it is no Python function but a builtin_function_or_method",
            ),
            ("py:math:sqrd", "math has no such function; nearest: sqrt"),
            ("py:__main__:number", "it is no Python function but a int"),
            ("py:__main__:Engine", "it is no Python function but a type"),
            (
                "py:__main__:Engine.step",
                "it is there, and was never called",
            ),
        ] {
            let ran = run(which, program, rule, "5-9");
            assert_edges(which, &ran, &[]);
            let said = ran.said();
            let expected = format!("window 5-9 never opened: 0 iterations by {rule}; {why}");
            assert_eq!(said.len(), 1, "{said:?}");
            assert!(said[0].starts_with(&expected), "{said:?}");
            assert!(said[0].ends_with(": try auto"), "{said:?}");
        }
    }
}

#[test]
fn a_process_without_python_is_reported() {
    let ran = Fixture::new("steps_shared12").window("5-9", "py:m:f").run();
    let said = ran.said();
    assert_eq!(said.len(), 1, "{said:?}");
    let expected =
        "0 iterations by py:m:f; no Python from 3.8 on was found in the process; it made";
    assert!(said[0].contains(expected), "{said:?}");
}

#[test]
fn a_process_that_ends_at_once_says_why_it_counted_nothing() {
    let program = "
import os

def step():
    pass

work()
os._exit(0)
";
    for which in some() {
        let ran = run(which, program, "py:__main__:stepp", "5-9");
        let said = ran.said();
        assert!(
            said[0].contains("__main__ has no such function; nearest: step"),
            "{said:?}"
        );
    }
}

#[test]
fn a_process_without_cuda_says_nothing() {
    for which in pythons() {
        let fixture = python(which)
            .window("5-9", "py:__main__:stepp")
            .args("main.py");
        write(
            fixture.folder(),
            "main.py",
            "def step(): pass\nfor _ in range(20): step()\n",
        );
        let ran = fixture.run();
        assert!(ran.output.status.success());
        assert_eq!((ran.output.out(), ran.output.err()), Default::default());
    }
}

#[test]
fn a_counted_function_stays_what_it_is() {
    let program = "
import inspect, pickle, sys

def step(a, b=1, *, c=2):
    'Says what it is.'
    work()
    return sys._getframe().f_back is frame

class Engine:
    step = step

frame = sys._getframe()
before = (step, step.__code__, step.__dict__, Engine.step)
for _ in range(12):
    assert Engine.step(0) is True
assert before == (step, step.__code__, step.__dict__, Engine.step) and step.__dict__ == {}
assert pickle.loads(pickle.dumps(step)) is step
assert str(inspect.signature(step)) == '(a, b=1, *, c=2)'
assert step.__doc__ == 'Says what it is.' and not hasattr(step, '__wrapped__')
assert type(step) is type(lambda: 0) and sys.gettrace() is None and sys.getprofile() is None
";
    for which in pythons() {
        let ran = run(which, program, "py:__main__:step", "5-9");
        assert_edges(which, &ran, &[('+', 5), ('-', 10)]);
    }
}
