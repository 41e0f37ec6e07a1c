//! Checks that the library finds the Python function of a rule before the function's first call, wherever it is defined
//! and however the program is started.

use super::*;

/// Each entry: a function's definition, the function's qualified name, and a statement that calls it. A call makes one
/// launch.
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
    // A function that is wrapped by a decorator object, as with `torch.no_grad()`.
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
