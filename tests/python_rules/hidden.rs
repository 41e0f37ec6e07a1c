//! Checks Python functions whose calls are hard to see: code without a file, functions that the program replaces, and
//! functions that other tools hook by the same mechanism as the library. Either the calls are counted exactly, or a
//! message says that calls may be missing.

use std::time::Duration;

use super::*;
use common::{command, run as run_command, skipped};

const TIMEOUT: Duration = Duration::from_secs(180);

const RULE: &str = "py:eng:Engine.step";
const MAY_LACK: &str = "; calls of it may be missing";

/// Runs `program` with this rule, the window 5-9 and these settings. The program can import a module `eng`.
fn run_with_engine(which: &Python, program: &str, rule: &str, settings: &[(&str, &str)]) -> Ran {
    let mut fixture = python(which).window("5-9", rule).args("main.py");
    for (name, value) in settings {
        fixture = fixture.env(name, value);
    }
    write(
        fixture.folder(),
        "eng.py",
        "class Engine:\n    def step(self, work):\n        work()\n",
    );
    write(fixture.folder(), "main.py", &format!("{LOOP}{program}"));
    fixture.run()
}

/// Returns the library's only message that contains `text`.
#[track_caller]
fn line(ran: &Ran, text: &str) -> String {
    let mut said = ran.said();
    said.retain(|line| line.contains(text));
    assert_eq!(said.len(), 1, "{text:?} in:\n{}", ran.output.err());
    said.remove(0)
}

/// Asserts that the profiler was started and stopped at `edges`, and that the library logged exactly three messages,
/// the last of which says that window 5-9 was captured.
#[track_caller]
fn assert_only_captured(which: &Python, ran: &Ran, edges: &[(char, usize)], iterations: usize) {
    assert_edges(which, ran, edges);
    let said = ran.said();
    assert_eq!(said.len(), 3, "{which:?} {said:?}");
    let captured = format!("window 5-9 captured: {iterations} iterations by py:");
    assert!(said[2].starts_with(&captured), "{which:?} {said:?}");
}

fn monitored() -> impl Iterator<Item = &'static Python> {
    some().filter(|python| python.version >= (3, 12))
}

#[test]
fn a_frozen_programs_functions_count_from_their_first_call() {
    // Imitates a frozen program (such as PyInstaller's), in which a function's code has a relative file name but its
    // module has an absolute one.
    let program = "
import importlib.abc, importlib.machinery, marshal, sys

packed = marshal.dumps(compile(open('eng.py').read(), 'eng.py', 'exec'))

class Loader(importlib.abc.Loader):
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(marshal.loads(packed), module.__dict__)

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == 'eng':
            spec = importlib.machinery.ModuleSpec(name, Loader(), origin='/app/_internal/eng.py')
            spec.has_location = True
            return spec

sys.meta_path.insert(0, Finder())
import eng
assert eng.__file__ == '/app/_internal/eng.py'
engine = eng.Engine()
for _ in range(12):
    engine.step(work)
";
    for which in pythons() {
        let ran = run_with_engine(which, program, RULE, &[]);
        assert_only_captured(which, &ran, &[('+', 5), ('-', 10)], 12);
    }
}

#[test]
fn a_frozen_programs_main_counts_from_its_first_call() {
    // Runs `__main__` as the loader of a frozen program does: without any event by which the library could notice it.
    let program = "
import ctypes, sys

sys.frozen = True
code = compile('def step(): work()\\nfor _ in range(12): step()', 'app.py', 'exec')
names = ctypes.py_object(globals())
evaluate = ctypes.pythonapi.PyEval_EvalCode
evaluate.restype = ctypes.py_object
import colorsys
evaluate(ctypes.py_object(code), names, names)
";
    for which in pythons() {
        let ran = run_with_engine(which, program, "py:__main__:step", &[]);
        assert_only_captured(which, &ran, &[('+', 5), ('-', 10)], 12);
    }
}

#[test]
fn a_function_by_value_counts_from_its_first_call() {
    // Makes functions as cloudpickle does: their class is in no module, and their globals have only few names.
    let program = "
import marshal, types

source = 'class Engine:\\n    def step(self, work): work()\\n'
inner = lambda code: next(c for c in code.co_consts if isinstance(c, types.CodeType))
code = marshal.loads(marshal.dumps(inner(inner(compile(source, 'worker.py', 'exec')))))

def by_value(module):
    step = types.FunctionType(code.replace(co_firstlineno=7), {'__name__': module}, 'step')
    step.__qualname__ = 'Engine.step'
    return type('Engine', (), {'step': step})()

others, ours = by_value('others'), by_value('__main__')
for _ in range(12):
    others.step(work)
    ours.step(work)
";
    for which in pythons() {
        let ran = run_with_engine(which, program, "py:__main__:Engine.step", &[]);
        assert_only_captured(which, &ran, &[('+', 11), ('-', 20)], 12);
    }
}

#[test]
fn a_notebooks_cell_counts_from_its_first_call() {
    let program = "
def cell(number, names):
    source = 'def step():\\n    work()\\n'
    exec(compile(source, '<ipython-input-%d>' % number, 'exec'), names)
    return names['step']

others = cell(1, {'__name__': 'others', 'work': work})
ours = cell(2, {'__name__': '__main__', 'work': work})
for _ in range(12):
    others()
    ours()
again = cell(3, {'__name__': '__main__', 'work': work})
for _ in range(5):
    again()
";
    for which in pythons() {
        let ran = run_with_engine(which, program, "py:__main__:step", &[]);
        assert_only_captured(which, &ran, &[('+', 11), ('-', 20)], 17);
    }
}

#[test]
fn a_function_that_is_replaced_is_followed_and_reported() {
    let program = "
import time, types
import eng

def fast(self, work):
    work()

fast.__module__ = 'plugin'
eng.Engine.step = fast
time.sleep(0.05)
import colorsys
engine = eng.Engine()
for _ in range(12):
    engine.step(work)
";
    for which in pythons() {
        let ran = run_with_engine(which, program, RULE, &[]);
        assert_edges(which, &ran, &[('+', 5), ('-', 10)]);
        assert_eq!(
            line(&ran, "was replaced"),
            "py:eng:Engine.step was replaced by plugin:fast, noticed after 0 calls: calls of plugin:fast before that \
             are missing"
        );
        let captured = line(&ran, "captured");
        assert!(captured.ends_with(MAY_LACK), "{captured}");
    }
}

#[test]
fn a_function_that_its_replacement_calls_counts_once() {
    let program = "
import time
import eng

original = eng.Engine.step

def wrapped(self, work):
    return original(self, work)

eng.Engine.step = wrapped
time.sleep(0.05)
import colorsys
engine = eng.Engine()
for _ in range(12):
    engine.step(work)
";
    for which in pythons() {
        let ran = run_with_engine(which, program, RULE, &[]);
        assert_only_captured(which, &ran, &[('+', 5), ('-', 10)], 12);
    }
}

#[test]
fn a_function_that_no_python_function_replaces_is_reported() {
    let program = "
import functools
import eng

class Fast:
    def __call__(self, work):
        work()

eng.Engine.step = Fast()
engine = eng.Engine()
for _ in range(12):
    engine.step(work)
";
    for which in some() {
        let ran = run_with_engine(which, program, RULE, &[]);
        assert_edges(which, &ran, &[]);
        let said = line(&ran, "never opened");
        let why = "window 5-9 never opened: 0 iterations by py:eng:Engine.step; it was replaced by an object of type \
                   Fast, noticed after 0 calls: calls of that are missing";
        assert!(said.starts_with(why), "{said}");
    }
}

/// If the program ends by `os._exit`, the library cannot check at the end of the interpreter if the program has
/// replaced the function. Its message about missing calls must say that this was not checked.
#[test]
fn a_replacement_before_os_exit_is_not_taken_for_a_function_without_calls() {
    let program = |made: &str, end: &str| {
        format!(
            "
import eng, os, sys

class Fast:
    def __call__(self, work):
        work()

{made}
engine = eng.Engine()
for _ in range(12):
    engine.step(work)
{end}
"
        )
    };
    let unchecked = "whether it was replaced was not checked at the end, as the interpreter did not end (os._exit)";
    for which in some() {
        let replaced = program("eng.Engine.step = Fast()", "os._exit(0)");
        let ran = run_with_engine(which, &replaced, RULE, &[]);
        let said = line(&ran, "never opened");
        let why = format!(
            "window 5-9 never opened: 0 iterations by {RULE}; it is there, and no call of it was seen; {unchecked}; it made"
        );
        assert!(said.starts_with(&why), "{said}");
        for (end, note) in [
            ("os._exit(0)", format!("; {unchecked}")),
            ("sys.exit(0)", String::new()),
        ] {
            let ran = run_with_engine(which, &program("", end), RULE, &[]);
            let said = line(&ran, "captured");
            let expected = format!("window 5-9 captured: 12 iterations by {RULE}{note}");
            assert_eq!(said, expected);
        }
    }
}

#[test]
fn a_function_that_gets_other_code_counts_through() {
    let program = "
import eng

def other(self, work):
    work()

engine = eng.Engine()
for _ in range(7):
    engine.step(work)
eng.Engine.step.__code__ = other.__code__
for _ in range(5):
    engine.step(work)
";
    for which in pythons() {
        let ran = run_with_engine(which, program, RULE, &[]);
        assert_only_captured(which, &ran, &[('+', 5), ('-', 10)], 12);
    }
}

#[test]
fn where_no_tool_of_monitoring_is_free_the_calls_are_not_called_none() {
    let program = "
import sys
for tool in range(6):
    sys.monitoring.use_tool_id(tool, 'mine%d' % tool)
import eng
engine = eng.Engine()
for _ in range(12):
    engine.step(work)
";
    for which in monitored() {
        let ran = run_with_engine(which, program, RULE, &[]);
        assert_edges(which, &ran, &[]);
        assert_eq!(
            line(&ran, "sys.monitoring"),
            "no tool of sys.monitoring was free for tllmprof: calls of Python functions were not seen (5: mine5, 4: \
             mine4, 3: mine3)"
        );
        let said = line(&ran, "never opened");
        let why = "window 5-9 never opened: 0 iterations by py:eng:Engine.step; it is there, and its calls cannot be seen";
        assert!(said.starts_with(why), "{said}");
    }
}

#[test]
fn calls_are_seen_once_a_tool_of_monitoring_is_free() {
    let program = "
import os, sys, time
for tool in range(6):
    sys.monitoring.use_tool_id(tool, 'mine%d' % tool)
import eng
engine = eng.Engine()
for _ in range(7):
    engine.step(work)
sys.monitoring.free_tool_id(4)
while sys.monitoring.get_tool(4) is None:
    time.sleep(0.01)
    os.listdir('.')
for _ in range(12):
    engine.step(work)
";
    for which in monitored() {
        let ran = run_with_engine(which, program, RULE, &[]);
        assert_edges(which, &ran, &[('+', 12), ('-', 17)]);
        let said = line(&ran, "captured");
        assert_eq!(
            said,
            format!("window 5-9 captured: 12 iterations by {RULE}{MAY_LACK}")
        );
    }
}

#[test]
fn what_takes_our_events_of_monitoring_is_reported() {
    for how in [
        "sys.monitoring.set_local_events(5, eng.Engine.step.__code__, 0)",
        "sys.monitoring.set_local_events(5, eng.Engine.step.__code__, 0); sys.monitoring.free_tool_id(5); \
         sys.monitoring.use_tool_id(5, 'mine')",
    ] {
        let program = format!(
            "
import sys
import eng
engine = eng.Engine()
for _ in range(7):
    engine.step(work)
{how}
for _ in range(5):
    engine.step(work)
"
        );
        for which in monitored() {
            let ran = run_with_engine(which, &program, RULE, &[]);
            assert_eq!(
                line(&ran, "sys.monitoring"),
                "the program took tllmprof's tool of sys.monitoring or its events away: calls of Python \
                 functions after that may be missing"
            );
            let said = line(&ran, "5-9 captured");
            assert!(said.ends_with(MAY_LACK), "{how}: {said}");
        }
    }
}

#[test]
fn another_frame_evaluator_in_our_place_is_reported() {
    let scratch = Scratch::new("evaluator");
    let library = nvtx::library(&scratch, "python/frame_evaluator.c", "");
    let library = library.to_str().expect("a path in UTF-8");
    let program = |give: &str| {
        format!(
            "
import ctypes, os
import eng
tool = ctypes.PyDLL(os.environ['EVALUATOR'])
tool.take, tool.give_back, tool.give_to_python
engine = eng.Engine()

def calls(count):
    for _ in range(count):
        engine.step(work)

calls(12)
tool.take()
calls(12)
{give}
calls(12)
"
        )
    };
    let with_setter = |which: &&Python| ((3, 9)..(3, 12)).contains(&which.version);
    for which in pythons().iter().filter(with_setter) {
        for (give, calls) in [
            ("tool.give_back()", 24),
            ("tool.give_to_python()", 24),
            ("", 12),
        ] {
            let settings = [("EVALUATOR", library)];
            let ran = run_with_engine(which, &program(give), RULE, &settings);
            assert_edges(which, &ran, &[('+', 5), ('-', 10)]);
            assert_eq!(
                line(&ran, "frames"),
                "another tool evaluated Python's frames for a time, in which no call of a marked function was seen: \
                 calls in that time may be missing"
            );
            assert_eq!(
                line(&ran, "captured"),
                format!("window 5-9 captured: {calls} iterations by {RULE}{MAY_LACK}")
            );
        }
    }
}

#[test]
fn collections_that_are_not_seen_are_counted() {
    let program = "
import gc
import eng
gc.disable()
gc.collect()
gc.callbacks.clear()
for _ in range(3):
    gc.collect()
work()
";
    let missing = "Python GC: 3 collections are missing: the program took tllmprof's entry out of gc.callbacks";
    let settings = [("TLLM_PROFILE_RECORD_GC", "1")];
    for which in pythons() {
        let ran = run_with_engine(which, program, RULE, &settings);
        assert_eq!(line(&ran, "are missing"), missing);
        // In this variant, the program makes no garbage collection after it has cleared `gc.callbacks`. So no
        // collection is missing in the record.
        let none = program.replace("range(3)", "range(0)");
        let ran = run_with_engine(which, &none, RULE, &settings);
        assert!(
            !ran.said().iter().any(|line| line.contains("missing")),
            "{:?}",
            ran.said()
        );
    }
}

#[test]
fn a_python_that_cannot_be_hooked_is_not_called_none() {
    let hide = "mount -t tmpfs none /proc";
    let mut asked = command(Path::new("unshare"));
    if !run_command(asked.args(["-rm", "sh", "-c", hide]), TIMEOUT)
        .status
        .success()
    {
        skipped("no mount namespaces here (unshare -rm)");
        return;
    }
    // This test runs Python without `/proc`, which the loader needs to resolve `$ORIGIN`. So it can only use a Python
    // that finds its libraries without `$ORIGIN`.
    let runs = |which: &&Python| {
        let mut started = command(Path::new("unshare"));
        let hidden = format!("{hide} && exec {which} -V");
        let ran = run_command(started.args(["-rm", "sh", "-c", &hidden]), TIMEOUT);
        ran.status.success()
    };
    let Some(which) = pythons().iter().rfind(runs) else {
        skipped("no mount namespaces here in which a Python finds its libraries");
        return;
    };
    let fixture = Fixture::new("/usr/bin/unshare")
        .env("PYTHONPATH", repo().join("tests/fixtures"))
        .env("TLLM_PROFILE_RECORD_GC", "1")
        .window("5-9", "py:__main__:step")
        .args("-rm sh -c")
        .arg(&format!("{hide} && exec {which} main.py"));
    let program = format!("{LOOP}\ndef step(): work()\nfor _ in range(12): step()\n");
    write(fixture.folder(), "main.py", &program);
    let ran = fixture.run();
    assert_edges(which, &ran, &[]);
    let why = "could not be profiled (/proc/self/maps cannot be read: No such file or directory (os error 2))";
    assert_eq!(
        line(&ran, "TLLM_PROFILE_RECORD_GC"),
        format!("Python in this process {why}: TLLM_PROFILE_RECORD_GC had no effect")
    );
    let opened = line(&ran, "never opened");
    let expected = format!(
        "0 iterations by py:__main__:step; Python in the process {why}; it made 12 graph launches"
    );
    assert!(opened.contains(&expected), "{opened}");
}
