//! Runs CPython's own tests of features that the library could disturb, with all of the library's Python options.
//! Tests that pass without the library must pass with it.
//!
//! By default, only some quick tests run. `TLLMPROF_TEST_OWN` names the tests to run instead, or is `all`.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::host::everything_on;
use crate::common::python::Python;
use crate::common::pythons::{few, name};
use crate::common::{Output, Scratch, command, run, skipped};

/// Time limit of a test. The slowest test takes a minute on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(900);
const QUICK: &str = "test_gc test_sys test_audit test_monitoring test_interpreters";
const ALL: &str = "test_gc test_sys test_audit test_monitoring test_interpreters test_embed test_threading \
                   test_concurrent_futures test_multiprocessing_fork test_multiprocessing_spawn test_asyncio";
/// Number of CPython's tests that run at the same time. It may exceed the number of processors, because the tests spend
/// much time waiting.
const WORKERS: usize = 3;

/// Runs `python -m test NAME` without the library, or with the library and all of its Python options.
fn own(python: &Python, test: &str, is_on: bool) -> Output {
    let scratch = Scratch::new("own-tests");
    let mut command = command("sh");
    command
        .args(["-c", "ulimit -c 0; exec \"$@\"", "sh"])
        .arg(&python.path)
        .args(["-W", "ignore", "-m", "test", "-v", test])
        .current_dir(scratch.folder())
        .env("LC_ALL", "C.UTF-8");
    if is_on {
        let counts = scratch.path("counts");
        std::fs::create_dir(&counts).expect("make a folder");
        everything_on(&mut command, &counts);
        if test == "test_monitoring" {
            // This test of CPython requires that no monitoring tool has events set. The library's tool sets events once
            // it has found a marked function. So the function that is marked here does not exist in the test.
            command.env("TLLMPROF_PY_RANGES", "truth:work");
        }
    }
    run(&mut command, TIMEOUT)
}

/// Returns the names of the single test functions that did not pass.
fn failures(output: &Output) -> BTreeSet<String> {
    let text = output.out() + &output.err();
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| line.starts_with("FAIL: ") || line.starts_with("ERROR: "))
        .map(str::to_owned)
        .collect()
}

/// Returns a message if the test fails with the library in a way in which it does not fail without it. Some test
/// functions depend on timing and may fail on a busy machine, so only the failures of a second run with the library
/// count.
fn wrong(python: &Python, test: &str) -> Option<String> {
    let mut with = own(python, test, true);
    if with.status.success() {
        return None;
    }
    with = own(python, test, true);
    if with.status.success() {
        return None;
    }
    let plain = own(python, test, false);
    let (seen, known) = (failures(&with), failures(&plain));
    if plain.status == with.status && seen.is_subset(&known) {
        let what = format!("{}: {test} fails without the library, too", name(python));
        skipped(&what);
        return None;
    }
    let (out, err) = (with.out(), with.err());
    let tail = |text: &str| {
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    };
    Some(format!(
        "{}: {test}: {} instead of {}, and {seen:?} instead of {known:?}\n{}\n{}",
        name(python),
        with.status,
        plain.status,
        tail(&out),
        tail(&err)
    ))
}

fn has(python: &Python, test: &str) -> bool {
    let mut asked: Command = command(&python.path);
    asked.args([
        "-c",
        &format!("import importlib.util as u; exit(u.find_spec('test.{test}') is None)"),
    ]);
    run(&mut asked, TIMEOUT).status.success()
}

#[test]
fn that_are_python_itself() {
    let tests = std::env::var("TLLMPROF_TEST_OWN").unwrap_or_else(|_| QUICK.to_owned());
    let tests = if tests == "all" { ALL } else { &tests };
    let mut jobs = Vec::new();
    for python in few() {
        if !python.has_tests {
            skipped(&format!("{} has no package `test`", name(python)));
            continue;
        }
        jobs.extend(tests.split_whitespace().map(|test| (python, test)));
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut all = Vec::new();
        while let Some((python, test)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let since = Instant::now();
            if has(python, test) {
                let wrong = wrong(python, test);
                let verdict = if wrong.is_none() { "passes" } else { "DIFFERS" };
                println!("{}: {test} {verdict} ({:?})", name(python), since.elapsed());
                all.extend(wrong);
            }
        }
        all
    };
    let wrong: Vec<String> = thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        let joined = workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker"));
        joined.flatten().collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
