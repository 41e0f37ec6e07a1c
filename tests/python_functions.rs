//! Checks the Python functions that `TLLMPROF_PY_RANGES` names, whose calls the library records as ranges, in each
//! available CPython. The programs write down their own calls, which must match the ranges.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use common::python::{Bench, Event, Python, Ran, pythons};
use common::{Scratch, command, repo, run, skipped};

const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// For each thread, its pushes and pops of ranges in order, as `push NAME` or `pop NAME`. The key is the process number
/// and the thread number.
type Sequences = BTreeMap<(u32, u32), Vec<String>>;

/// Returns the value of `TLLMPROF_PY_RANGES` that marks these functions of a module.
fn functions(module: &str, names: &[&str]) -> String {
    let all: Vec<_> = names
        .iter()
        .map(|name| format!("{module}:{name}"))
        .collect();
    all.join(",")
}

/// Returns each thread's sequence of pushes and pops according to the NVTX tool's events. A pop has no name, so it
/// gets the name of its push.
fn seen(events: &[Event]) -> Sequences {
    let mut open: BTreeMap<(u32, u32), Vec<String>> = BTreeMap::new();
    let mut sequences = Sequences::new();
    for event in events {
        let thread = (event.process, event.thread);
        let name = match event.kind.as_str() {
            "push" => {
                open.entry(thread).or_default().push(event.name.clone());
                event.name.clone()
            }
            "pop" => {
                let last = open.entry(thread).or_default().pop();
                last.unwrap_or_else(|| "nothing".to_owned())
            }
            _ => continue,
        };
        let sequence = sequences.entry(thread).or_default();
        sequence.push(format!("{} {name}", event.kind));
    }
    sequences
}

/// Reads the sequences that programs write with `truth_of_calls.py`.
fn truth(text: &str) -> Sequences {
    let mut sequences = Sequences::new();
    for line in text.lines() {
        let mut words = line.splitn(3, ' ');
        let mut next = || words.next().expect("a whole line");
        let process = next().parse().expect("a number");
        let thread = next().parse().expect("a number");
        let sequence = sequences.entry((process, thread)).or_default();
        sequence.push(next().to_owned());
    }
    sequences
}

#[track_caller]
fn assert_alike(python: &Python, seen: &Sequences, truth: &Sequences) {
    assert!(!truth.is_empty(), "{python}: the program reported nothing");
    for (thread, wanted) in truth {
        let got = seen.get(thread).map_or(&[][..], Vec::as_slice);
        let first = wanted
            .iter()
            .zip(got)
            .position(|(wanted, got)| wanted != got);
        if let Some(at) = first.or((wanted.len() != got.len()).then(|| wanted.len().min(got.len())))
        {
            let from = at.saturating_sub(5);
            panic!(
                "{python}: thread {thread:?}, event {at}:\nwanted {:#?}\ngot {:#?}",
                wanted.iter().skip(from).take(12).collect::<Vec<_>>(),
                got.iter().skip(from).take(12).collect::<Vec<_>>()
            );
        }
    }
    assert_eq!(seen.len(), truth.len(), "{python}: threads");
}

/// Runs, with the library, a program that writes down its own calls. Returns the result of the run, and the program's
/// sequences of calls.
#[track_caller]
fn run_with_truth(bench: &Bench, python: &Python, program: &str, ranges: &str) -> (Ran, Sequences) {
    let scratch = Scratch::new("truth");
    let file = scratch.path("truth");
    let path = file.to_str().expect("a path in UTF-8");
    let variables = [("TLLMPROF_PY_RANGES", ranges), ("TRUTH", path)];
    let ran = bench.run(python, program, &variables);
    let lines = fs::read_to_string(&file).expect("read what the program took down");
    (ran, truth(&lines))
}

#[test]
fn every_kind_of_call_has_its_range() {
    const NAMES: [&str; 14] = [
        "plain",
        "Some.method",
        "Some.static",
        "Some.of_class",
        "recursive",
        "raises",
        "generator",
        "delegates",
        "within",
        "outer",
        "inner",
        "sleeps",
        "asynchronous",
        "forks",
    ];
    let bench = Bench::new();
    for python in pythons() {
        let ranges = functions("__main__", &NAMES);
        let (ran, truth) = run_with_truth(&bench, python, "functions", &ranges);
        assert_alike(python, &seen(&ran.events), &truth);
        assert_eq!(ran.output.err(), "", "{python}");
        let scratch = Scratch::new("plain");
        let plain = run(
            command(&python.path)
                .arg(repo().join("tests/python/functions.py"))
                .env("TRUTH", scratch.path("truth")),
            TEST_TIMEOUT,
        );
        assert_eq!(ran.output.out(), plain.out(), "{python}");
    }
}

/// Returns a folder with the package greenlet for this Python; `None` if it cannot be installed.
fn greenlet(python: &Python) -> Option<PathBuf> {
    let cache =
        std::env::var_os("TLLMPROF_CACHE").map_or_else(|| repo().join(".cache"), PathBuf::from);
    let (major, minor) = python.version;
    let folder = cache.join(format!("greenlet-{major}.{minor}"));
    if !folder.join("greenlet").is_dir() {
        let mut pip = command(&python.path);
        pip.args([
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            "--target",
        ]);
        let got = run(pip.arg(&folder).arg("greenlet"), TEST_TIMEOUT);
        if !got.status.success() {
            skipped(&format!("{python} cannot get greenlet"));
            return None;
        }
    }
    Some(folder)
}

/// This test runs with only some of the Python versions. Together, they cover each way in which the library sees calls
/// of Python functions.
#[test]
fn calls_of_greenlets_end_in_any_order() {
    let bench = Bench::new();
    let is_one =
        |python: &&Python| python.has_gil && [8, 10, 11, 12, 13].contains(&python.version.1);
    for python in pythons().iter().filter(is_one) {
        let Some(folder) = greenlet(python) else {
            continue;
        };
        let variables = [
            ("TLLMPROF_PY_RANGES", "__main__:short,__main__:long"),
            ("PYTHONPATH", folder.to_str().expect("a path in UTF-8")),
        ];
        let ran = bench.run(python, "functions_in_greenlets", &variables);
        assert_eq!(ran.output.err(), "", "{python}");
        // If the calls of two greenlets overlap, the call that lasts longer is recorded as two ranges. The first of
        // them ends where the other greenlet's call ends.
        let (_, sequence) = seen(&ran.events).pop_first().expect("a thread");
        let expected = [
            "push short",
            "push long",
            "pop long",
            "pop short",
            "push long",
            "pop long",
        ];
        assert_eq!(sequence, expected, "{python}");
        // The program repeats these calls in 20 more rounds, in which each call has exactly one start-end range. The
        // times that the program measured for the call must match the range.
        let times = ran.numbers("times");
        for (name, at) in [("short", 0), ("long", 1)] {
            let spans = ran.started(name);
            assert_eq!(spans.len(), 20, "{python} {name}");
            for (span, times) in spans
                .iter()
                .zip(times.iter().filter(|times| times[0] == at))
            {
                assert!(
                    span.start <= times[1] && times[2] <= span.end,
                    "{python} {name}: {span:?} {times:?}"
                );
                assert!(span.end <= times[3], "{python} {name}: {span:?} {times:?}");
            }
        }
    }
}

#[test]
fn every_interpreter_has_its_own() {
    let bench = Bench::new();
    for python in pythons() {
        let ranges = functions("functions_of_module", &["called", "generated"]);
        let program = "functions_in_interpreters";
        let (ran, truth) = run_with_truth(&bench, python, program, &ranges);
        let calls: usize = truth.values().map(Vec::len).sum();
        assert_eq!(calls, 13 * 2 * (4 + 2), "{python}");
        assert_alike(python, &seen(&ran.events), &truth);
        assert_eq!(ran.output.err(), "", "{python}");
    }
}

#[test]
fn a_million_calls_leave_nothing() {
    let bench = Bench::new();
    let tool = bench.library("nvtx/tool.c");
    let tool = tool.to_str().expect("a path in UTF-8");
    // Selects one CPython with a GIL and one without for each version, because other builds of the same version behave
    // alike.
    let kind = |python: &&Python| (python.version, python.has_gil);
    let each: BTreeMap<_, _> = pythons().iter().map(|one| (kind(&one), one)).collect();
    for python in each.values() {
        let names = ["plain", "raises", "generator", "coroutine", "Some.method"];
        let ranges = functions("__main__", &names);
        let variables = [
            ("TLLMPROF_PY_RANGES", ranges.as_str()),
            ("NVTX_INJECTION64_PATH", tool),
        ];
        let ran = bench.run(python, "functions_without_leaks", &variables);
        let number = |word: &str| ran.numbers(word)[0][0];
        assert!(number("calls") >= 1_000_000, "{python}");
        assert!(number("blocks") < 500, "{python}: {}", ran.output.out());
        assert!(number("references") < 500, "{python}: {}", ran.output.out());
        // Of five calls, one is of a generator, which is entered twice. So five calls make six pushes.
        let runs = number("calls") / 5 * 6;
        let counts = format!(" pushes={runs} pops={runs} ");
        assert!(
            ran.output.err().contains(&counts),
            "{python}: {}",
            ran.output.err()
        );
    }
}

#[test]
fn threads_may_end_with_the_interpreter() {
    let bench = Bench::new();
    for python in pythons() {
        let names = ["spins", "generator", "endless", "waits"];
        let ranges = functions("__main__", &names);
        for _ in 0..3 {
            let variables = [("TLLMPROF_PY_RANGES", ranges.as_str())];
            let ran = bench.run(python, "functions_at_the_end", &variables);
            assert_eq!(ran.output.out(), "ends\n", "{python}");
            assert_eq!(ran.output.err(), "", "{python}");
            for (thread, sequence) in seen(&ran.events) {
                let lost = sequence.iter().find(|event| *event == "pop nothing");
                assert_eq!(lost, None, "{python}: thread {thread:?}");
                let pushes = sequence.iter().filter(|event| event.starts_with("push"));
                assert!(pushes.count() > 0, "{python}: thread {thread:?}");
            }
        }
    }
}

#[test]
fn calls_may_nest_as_deep_as_before() {
    let bench = Bench::new();
    for python in pythons() {
        let ranges = functions("__main__", &["marked"]);
        let variables = [("TLLMPROF_PY_RANGES", ranges.as_str())];
        let ran = bench.run(python, "functions_deep", &variables);
        assert_eq!(ran.count("push", "marked"), 4, "{python}");
        assert_eq!(ran.events.len(), 8, "{python}");
    }
}
