//! Python functions as iterations: how they are found, what of them counts, and what is said of those
//! that are not found. The programs are on the stand-in for CUDA.

mod common;

use std::fs;
use std::path::Path;

use common::python::{Python, pythons};
use common::{Fixture, Ran, Scratch, nvtx, repo};

/// What the programs begin with: `work` is a step's work, one graph launch and one wait.
const LOOP: &str = "
from py_ctypes import Runtime
loop = Runtime('libcudart.so.12')
loop.capture()
work = loop.step
";

/// A Python, to run the files that lie in its folder.
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

/// Runs `program`, which begins as [`LOOP`] does.
fn run(which: &Python, program: &str, rule: &str, windows: &str) -> Ran {
    let fixture = python(which).window(windows, rule).args("main.py");
    write(fixture.folder(), "main.py", &format!("{LOOP}{program}"));
    fixture.run()
}

/// How many launches there were before each start (`+`) and stop (`-`) of the profiler.
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

/// The oldest, the newest, and the newest of each way in which calls are seen.
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
    // Work beside the function shows that a window ends with the call.
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

/// The definition, the name it goes by, a statement that calls it with one launch inside.
const KINDS: [(&str, &str, &str); 18] = [
    ("def step(): work()", "step", "step()"),
    ("step = lambda: work()", "<lambda>", "step()"),
    ("class A:\n  def step(self): work()", "A.step", "A().step()"),
    (
        "class A:\n  @staticmethod\n  def step(): work()",
        "A.step",
        "A.step()",
    ),
    (
        "class A:\n  @classmethod\n  def step(cls): work()",
        "A.step",
        "A().step()",
    ),
    (
        "class A:\n  @property\n  def step(self): work()",
        "A.step",
        "A().step",
    ),
    (
        "class A:\n  class B:\n    def step(self): work()",
        "A.B.step",
        "A.B().step()",
    ),
    (
        "class A:\n  def __step(self): work()\n  def call(self): self.__step()",
        "A.__step",
        "A().call()",
    ),
    (
        "class A:\n  def __init__(self): work()",
        "A.__init__",
        "A()",
    ),
    (
        "def make():\n  def step(): work()\n  return step\nstep = make()",
        "make.<locals>.step",
        "step()",
    ),
    (
        "import functools\ndef wrap(f):\n  @functools.wraps(f)\n  def w(*a): return f(*a)\n  return w\n\
         @wrap\n@wrap\ndef step(): work()",
        "step",
        "step()",
    ),
    (
        "def hide(f):\n  return lambda *a: f(*a)\n@hide\ndef step(): work()",
        "step",
        "step()",
    ),
    (
        "import functools\n@functools.lru_cache(maxsize=None)\ndef step(n): work()\nn = iter(range(99))",
        "step",
        "step(next(n))",
    ),
    // As torch.no_grad() and its like are.
    (
        "import functools\nclass no_grad:\n  def __enter__(self): pass\n  def __exit__(self, *a): pass\n  \
         def __call__(self, f):\n    @functools.wraps(f)\n    def w(*a):\n      with self: return f(*a)\n    \
         return w\nclass A:\n  @no_grad()\n  def step(self): work()",
        "A.step",
        "A().step()",
    ),
    (
        "def step(n): work() if n == 0 else step(n - 1)\nfirst = step",
        "step",
        "first(0)",
    ),
    (
        "import asyncio\nasync def step(): work()",
        "step",
        "asyncio.run(step())",
    ),
    ("def step():\n  work()\n  yield", "step", "list(step())"),
    (
        "def step():\n  work()\n  raise KeyError",
        "step",
        "\n  try: step()\n  except KeyError: pass",
    ),
];

#[test]
fn functions_of_every_kind_are_found_before_their_first_call() {
    for which in some() {
        for (definition, name, call) in KINDS {
            let program = format!("{definition}\nfor _ in range(8):\n  {call}\n  work()\n");
            let ran = run(which, &program, &format!("py:__main__:{name}"), "2-4");
            assert_edges(which, &ran, &[('+', 4), ('-', 9)]);
            assert!(
                !ran.said().iter().any(|line| line.contains("late")),
                "{which:?} {definition}\n{}",
                ran.output.err()
            );
        }
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
        // Of two at a time, the second is open until both have ended.
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
fn a_program_is_found_however_it_is_started() {
    let program = format!(
        "{LOOP}
def step():
    work()

for _ in range(12):
    step()
"
    );
    for which in pythons() {
        let with = |args: &str, rule: &str| {
            let fixture = python(which).window("5-9", rule).args(args);
            let folder = fixture.folder();
            write(folder, "main.py", &program);
            write(folder, "pkg/__init__.py", "");
            write(folder, "pkg/main.py", &program);
            write(folder, "pkg/inner/__init__.py", &program);
            write(folder, "imports.py", "import pkg.main");
            write(folder, "app/__main__.py", &program);
            write(folder, "runs.py", "import runpy; runpy.run_path('main.py')");
            let ran = fixture.run();
            assert_edges(which, &ran, &[('+', 5), ('-', 10)]);
        };
        with("main.py", "py:__main__:step");
        with("main.py", "py:main:step");
        with("-m pkg.main", "py:__main__:step");
        with("-m pkg.main", "py:pkg.main:step");
        with("imports.py", "py:pkg.main:step");
        with("-S -B imports.py", "py:pkg.main:step");
        with("app", "py:__main__:step");
        let fixture = python(which).window("5-9", "py:__main__:step");
        let fixture = fixture.arg("-c").arg(&program);
        assert_edges(which, &fixture.run(), &[('+', 5), ('-', 10)]);
    }
}

#[test]
fn a_module_in_an_archive_is_found() {
    let program = "
import sys, zipfile

with zipfile.ZipFile('packed.zip', 'w') as packed:
    packed.writestr('packed/__init__.py', '')
    packed.writestr('packed/steps.py', 'def step(work): work()')
sys.path.insert(0, 'packed.zip')
from packed.steps import step

for _ in range(12):
    step(work)
";
    for which in some() {
        let ran = run(which, program, "py:packed.steps:step", "5-9");
        assert_edges(which, &ran, &[('+', 5), ('-', 10)]);
    }
}

#[test]
fn a_module_that_is_frozen_or_loaded_again_is_found() {
    let frozen = "
import __hello__

for _ in range(12):
    work()
    __hello__.main()
";
    let again = "
import importlib, os, steps

for _ in range(4):
    for _ in range(3):
        steps.step(work)
    importlib.reload(steps)
";
    for which in some() {
        if which.version.1 >= 11 {
            let ran = run(which, frozen, "py:__hello__:main", "5-9");
            assert_edges(which, &ran, &[('+', 6), ('-', 10)]);
        }
        let fixture = python(which).window("5-9", "py:steps:step").args("main.py");
        write(fixture.folder(), "steps.py", "def step(work): work()");
        write(fixture.folder(), "main.py", &format!("{LOOP}{again}"));
        assert_edges(which, &fixture.run(), &[('+', 5), ('-', 10)]);
    }
}

#[test]
fn a_child_that_multiprocessing_has_spawned_counts() {
    let program = "
import multiprocessing

def step(work):
    work()

def run():
    from py_ctypes import Runtime
    loop = Runtime('libcudart.so.12')
    loop.capture()
    for _ in range(12):
        step(loop.step)

if __name__ == '__main__':
    for how in ['spawn', 'forkserver']:
        child = multiprocessing.get_context(how).Process(target=run)
        child.start()
        child.join()
        assert child.exitcode == 0
";
    for which in some() {
        let fixture = python(which)
            .window("5-9", "py:__main__:step")
            .args("main.py");
        write(fixture.folder(), "main.py", program);
        let ran = fixture.run();
        assert_edges(which, &ran, &[('+', 5), ('-', 10), ('+', 17), ('-', 22)]);
    }
}

#[test]
fn a_module_of_another_that_is_called_the_same_is_not_taken_for_it() {
    for which in some() {
        let fixture = python(which).window("5-9", "py:steps:step").args("main.py");
        let step = "def step(work): work()";
        write(fixture.folder(), "steps.py", step);
        write(fixture.folder(), "vendored/__init__.py", "");
        write(fixture.folder(), "vendored/steps.py", step);
        let program = format!(
            "{LOOP}
import steps, vendored.steps
for _ in range(12):
    vendored.steps.step(work)
    steps.step(work)
"
        );
        write(fixture.folder(), "main.py", &program);
        assert_edges(which, &fixture.run(), &[('+', 11), ('-', 20)]);
    }
}

#[test]
fn what_is_made_while_the_program_runs_is_found_late_and_told() {
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
fn a_rule_that_names_nothing_is_told_with_the_reason() {
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
fn a_process_without_python_is_told_so() {
    let ran = Fixture::new("steps_shared12").window("5-9", "py:m:f").run();
    let said = ran.said();
    assert_eq!(said.len(), 1, "{said:?}");
    let expected = "0 iterations by py:m:f; no Python from 3.8 on is in the process; it made";
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

/// Modules that are called as those of an engine.
fn write_engines(folder: &Path) {
    let step = "
class GPUModelRunner:
    def _prepare_inputs(self):
        pass

    def execute_model(self, work):
        self._prepare_inputs()
        work()
";
    for package in [
        "vllm",
        "vllm/v1",
        "vllm/v1/worker",
        "transformers",
        "transformers/generation",
    ] {
        write(folder, &format!("{package}/__init__.py"), "");
    }
    write(folder, "vllm/v1/worker/gpu_model_runner.py", step);
    let generate = "
class GenerationMixin:
    def prepare_inputs_for_generation(self, work):
        work()
";
    write(folder, "transformers/generation/utils.py", generate);
}

fn run_engines(which: &Python, windows: &str, program: &str) -> Ran {
    let fixture = python(which).window(windows, "auto").args("main.py");
    write_engines(fixture.folder());
    write(fixture.folder(), "main.py", program);
    fixture.run()
}

const VLLM: &str = "auto: vLLM, model runner V1 is known, iteration = \
                    py:vllm.v1.worker.gpu_model_runner:GPUModelRunner._prepare_inputs";

#[test]
fn auto_follows_the_step_of_an_engine_in_python() {
    let program = format!(
        "
from transformers.generation.utils import GenerationMixin
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

# Before CUDA is used, nothing is a step.
GenerationMixin().prepare_inputs_for_generation(lambda: None)
{LOOP}
runner = GPUModelRunner()
for _ in range(7):
    work()
for _ in range(12):
    runner.execute_model(work)
    # Another engine's function that is called as well changes nothing.
    GenerationMixin().prepare_inputs_for_generation(work)
"
    );
    for which in pythons() {
        let ran = run_engines(which, "2-3,5-9", &program);
        // The function returns before the work: an iteration goes on until the next.
        let expected = [('+', 11), ('-', 15), ('+', 17), ('-', 27)];
        assert_edges(which, &ran, &expected);
        let said = ran.said();
        assert_eq!(
            said.iter().filter(|line| *line == VLLM).count(),
            1,
            "{said:?}"
        );
        let last = said.last().unwrap();
        assert!(
            last.contains("captured: 12 iterations by py:vllm.v1."),
            "{said:?}"
        );
    }
}

/// Pushes that a tool got to see in a run, by name and in order, and the run.
fn pushes(which: &Python, program: &str, variables: &[(&str, &str)]) -> (Vec<String>, Ran) {
    let scratch = Scratch::new("tool");
    let (tool, log) = (
        nvtx::library(&scratch, "nvtx/log_tool.c", ""),
        scratch.path("events"),
    );
    let fixture = python(which).args("main.py");
    let fixture = fixture
        .env("NVTX_INJECTION64_PATH", tool)
        .env("LOG_TOOL", &log);
    let with = |fixture: Fixture, (name, value): &(&str, &str)| fixture.env(name, value);
    let fixture = variables.iter().fold(fixture, with);
    write_engines(fixture.folder());
    write(fixture.folder(), "main.py", program);
    let ran = fixture.run();
    let events = fs::read_to_string(log).unwrap_or_default();
    let pushed = |line: &str| {
        Some(
            line.split_once(" push ")?
                .1
                .splitn(3, ' ')
                .nth(2)?
                .to_owned(),
        )
    };
    (events.lines().filter_map(pushed).collect(), ran)
}

#[test]
fn an_engines_api_gets_ranges() {
    let program = format!(
        "
from transformers.generation.utils import GenerationMixin
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
{LOOP}
for _ in range(3):
    GPUModelRunner().execute_model(work)
    GenerationMixin().prepare_inputs_for_generation(work)
"
    );
    let asked = [
        ("TLLM_LLMAPI_ENABLE_NVTX", "1"),
        ("TLLMPROF_STEP", "cudaGraphLaunch"),
    ];
    for which in some() {
        let (pushed, ran) = pushes(which, &program, &asked);
        assert_eq!(
            pushed,
            ["GPUModelRunner.execute_model"; 3],
            "{}",
            ran.output.err()
        );
        assert_eq!(ran.said(), [""; 0]);
        let (pushed, ran) = pushes(which, LOOP, &asked);
        assert_eq!(pushed, [""; 0]);
        let said = ran.said();
        assert!(
            said[0].contains("no engine that is known was imported"),
            "{said:?}"
        );
    }
}

#[test]
fn a_function_may_be_a_step_and_have_ranges() {
    let program = format!(
        "{LOOP}
import math

def step():
    work()

class A:
    step = step

for _ in range(12):
    A().step if step() else None
"
    );
    let variables = [
        ("TLLMPROF_STEP", "py:__main__:step"),
        ("TLLM_PROFILE_START_STOP", "5-9"),
        (
            "TLLMPROF_PY_RANGES",
            "__main__:step,__main__:stepp,math:sqrt,no.where:f",
        ),
    ];
    for which in some() {
        let (pushed, ran) = pushes(which, &program, &variables);
        assert_edges(which, &ran, &[('+', 5), ('-', 10)]);
        let steps = pushed.iter().filter(|name| *name == "step").count();
        assert_eq!(steps, 12, "{pushed:?}");
        let said = ran.said();
        for expected in [
            "TLLMPROF_PY_RANGES: __main__:stepp was not found; __main__ has no such function; nearest: step",
            "TLLMPROF_PY_RANGES: math:sqrt was not found; it is no Python function but a builtin_function_or_method",
            "TLLMPROF_PY_RANGES: no.where:f was not found; no.where was never imported",
        ] {
            assert!(said.iter().any(|line| line == expected), "{said:?}");
        }
    }
}

#[test]
fn a_step_that_is_relied_on_is_not_replaced() {
    let program = format!(
        "{LOOP}
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

for _ in range(120):
    work()
runner = GPUModelRunner()
for _ in range(60):
    runner.execute_model(work)
"
    );
    let Some(which) = newest() else { return };
    let ran = run_engines(which, "100-104,150-154", &program);
    let said = ran.said();
    assert!(!said.iter().any(|line| line == VLLM), "{said:?}");
    assert_eq!(edges(&ran).len(), 4, "{said:?}");
    let last = said.last().unwrap();
    assert!(last.contains("180 iterations by auto"), "{said:?}");
}

#[test]
fn an_engine_that_is_not_called_is_no_step() {
    let program = format!(
        "{LOOP}
import transformers.generation.utils, vllm.v1.worker.gpu_model_runner

for _ in range(120):
    work()
"
    );
    let Some(which) = newest() else { return };
    let ran = run_engines(which, "100-104", &program);
    assert_edges(which, &ran, &[('+', 100), ('-', 105)]);
}
