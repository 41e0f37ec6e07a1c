//! Finds the CPythons to test with, runs programs in them, and reads the events that an NVTX tool logged.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use super::{Output, Scratch, command, nvtx, repo, run, shim, skipped};

/// Time limit of a run, longer than any program needs on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// A CPython on this machine, as `scripts/list-pythons` prints it.
#[derive(Debug, Clone)]
pub(crate) struct Python {
    pub path: PathBuf,
    /// Major and minor version.
    pub version: (u32, u32),
    /// True if the interpreter is in a shared library instead of the executable.
    pub is_shared: bool,
    pub has_gil: bool,
    /// True if CPython's own test package is installed.
    pub has_tests: bool,
}

impl fmt::Display for Python {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path.to_string_lossy())
    }
}

/// The CPythons to test with. `TLLMPROF_TEST_PYTHONS` selects them: `one` is the newest shared build with a GIL, and
/// `all` is every CPython of the machine. The default is one CPython of each minor version with a GIL, and one of each
/// minor version without a GIL. A shared build is preferred for an even minor version, and a static build for an odd
/// one. If no CPython is found, the running test is reported as skipped.
pub(crate) fn pythons() -> &'static [Python] {
    static FOUND: OnceLock<Vec<Python>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let output = run(
            &mut Command::new(repo().join("scripts/list-pythons")),
            TEST_TIMEOUT,
        );
        assert!(output.status.success(), "{}", output.err());
        let all: Vec<Python> = output.out().lines().map(parse).collect();
        match std::env::var("TLLMPROF_TEST_PYTHONS").as_deref() {
            Ok("all") => all,
            Ok("one") => all
                .into_iter()
                .rfind(|python| python.has_gil && python.is_shared)
                .into_iter()
                .collect(),
            Ok(other) => panic!("TLLMPROF_TEST_PYTHONS={other}: neither all nor one"),
            Err(_) => one_a_version(&all),
        }
    });
    if found.is_empty() {
        skipped("no CPython from 3.8 on (scripts/setup --tests)");
    }
    found
}

fn one_a_version(all: &[Python]) -> Vec<Python> {
    let kinds: BTreeSet<_> = all.iter().map(|one| (one.version, one.has_gil)).collect();
    let chosen = kinds.into_iter().filter_map(|kind| {
        let of_kind = all.iter().filter(|one| (one.version, one.has_gil) == kind);
        let is_wanted = |one: &&Python| one.is_shared == one.version.1.is_multiple_of(2);
        of_kind.max_by_key(|one| (is_wanted(one), one.has_tests))
    });
    chosen.cloned().collect()
}

fn parse(line: &str) -> Python {
    let words: Vec<&str> = line.split_whitespace().collect();
    let &[path, version, linkage, gil, tests] = words.as_slice() else {
        panic!("not a line of list-pythons: {line}");
    };
    let mut version = version.split('.').map(|part| part.parse().unwrap());
    Python {
        path: path.into(),
        version: (version.next().unwrap(), version.next().unwrap()),
        is_shared: linkage == "shared",
        has_gil: gil == "gil",
        has_tests: tests == "test",
    }
}

/// An event of the NVTX domain `tllmprof`, as the tool `tests/nvtx/log_tool.c` logs it.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub process: u32,
    pub thread: u32,
    /// Time of the event, in nanoseconds of the monotonic clock.
    pub time: u64,
    /// The type of the event: `push`, `pop`, `start`, `end` or `mark`.
    pub kind: String,
    /// A number that the start and the end of the same range share.
    pub id: u64,
    pub payload: u64,
    pub name: String,
}

/// A range, made of two events of the log. If the log has no end for the range, `end` is the largest possible time.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub process: u32,
    pub thread: u32,
    pub payload: u64,
    pub name: String,
    pub start: u64,
    pub end: u64,
}

/// The result of a run of a program of `tests/python`.
pub(crate) struct Ran {
    pub output: Output,
    pub events: Vec<Event>,
}

/// Files that all runs of a test need, built once per test: the NVTX tool and a C library.
pub(crate) struct Bench {
    scratch: Scratch,
    tool: PathBuf,
    /// The library built from `tests/python/gil.c`.
    library: PathBuf,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let scratch = Scratch::new("python");
        let tool = nvtx::library(&scratch, "nvtx/log_tool.c", "");
        let library = nvtx::library(&scratch, "python/gil.c", "");
        Self {
            scratch,
            tool,
            library,
        }
    }

    /// Builds a library from another source of `tests/`.
    pub(crate) fn library(&self, source: &str) -> PathBuf {
        nvtx::library(&self.scratch, source, "")
    }

    /// Runs `tests/python/PROGRAM.py` with the library and the NVTX tool.
    #[track_caller]
    pub(crate) fn run(&self, python: &Python, program: &str, variables: &[(&str, &str)]) -> Ran {
        let log = self.scratch.path("events");
        let _ = std::fs::remove_file(&log);
        let mut started = command(&python.path);
        started
            .arg(repo().join(format!("tests/python/{program}.py")))
            .env("LD_PRELOAD", shim())
            .env("NVTX_INJECTION64_PATH", &self.tool)
            .env("LOG_TOOL", &log)
            .env("TEST_LIBRARY", &self.library)
            .current_dir(self.scratch.folder())
            .envs(variables.iter().copied());
        let output = run(&mut started, TEST_TIMEOUT);
        assert!(
            output.status.success(),
            "{python} {program}: {}\n{}",
            output.status,
            output.err()
        );
        let events = read_events(&log);
        Ran { output, events }
    }
}

fn read_events(path: &Path) -> Vec<Event> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(e) => panic!("read {}: {e}", path.display()),
    };
    text.lines()
        .map(|line| {
            let mut words = line.splitn(7, ' ');
            let mut next = || {
                words
                    .next()
                    .unwrap_or_else(|| panic!("not an event: {line}"))
            };
            assert!(!line.contains(" parent's "), "of another process: {line}");
            Event {
                process: next().parse().unwrap(),
                thread: next().parse().unwrap(),
                time: next().parse().unwrap(),
                kind: next().to_owned(),
                id: next().parse().unwrap(),
                payload: next().parse().unwrap(),
                name: next().to_owned(),
            }
        })
        .collect()
}

impl Ran {
    /// Returns the numbers of each line of standard output that begins with `word`.
    pub(crate) fn numbers(&self, word: &str) -> Vec<Vec<u64>> {
        self.output
            .out()
            .lines()
            .filter_map(|line| line.strip_prefix(word)?.strip_prefix(' '))
            .map(|line| line.split(' ').map(|n| n.parse().unwrap()).collect())
            .collect()
    }

    /// Returns the only message of the library that contains `text`.
    #[track_caller]
    pub(crate) fn line(&self, text: &str) -> String {
        let said = self.output.err();
        let mut lines = said
            .lines()
            .filter_map(|line| line.strip_prefix("tllmprof: "))
            .filter(|line| line.contains(text));
        match (lines.next(), lines.next()) {
            (Some(line), None) => line.to_owned(),
            _ => panic!("not one line with {text:?} in:\n{said}"),
        }
    }

    /// Returns the number of events of this kind with this name.
    pub(crate) fn count(&self, kind: &str, name: &str) -> u64 {
        let is_it = |event: &&Event| event.kind == kind && event.name == name;
        self.events.iter().filter(is_it).count() as u64
    }

    /// Returns the ranges that were started under `name`, in the order of their starts.
    pub(crate) fn started(&self, name: &str) -> Vec<Span> {
        let ends = self.events.iter().filter(|event| event.kind == "end");
        // Within a process, each range has a different number, so the number finds the end of a range.
        let ends: HashMap<_, _> = ends.map(|end| ((end.process, end.id), end.time)).collect();
        let starts = self.events.iter();
        starts
            .filter(|event| event.kind == "start" && event.name == name)
            .map(|start| Span {
                process: start.process,
                thread: start.thread,
                payload: start.payload,
                name: start.name.clone(),
                start: start.time,
                end: ends
                    .get(&(start.process, start.id))
                    .copied()
                    .unwrap_or(u64::MAX),
            })
            .collect()
    }

    /// Returns the ranges that were pushed and popped. Ranges of one thread are in the order of their ends.
    pub(crate) fn pushed(&self) -> Vec<Span> {
        let mut open: Vec<&Event> = Vec::new();
        let mut spans = Vec::new();
        for event in &self.events {
            let is_ours =
                |other: &&Event| (other.process, other.thread) == (event.process, event.thread);
            match event.kind.as_str() {
                "push" => open.push(event),
                "pop" => {
                    let last = open.iter().rposition(is_ours).expect("a pop has a push");
                    let push = open.remove(last);
                    spans.push(Span {
                        process: push.process,
                        thread: push.thread,
                        payload: push.payload,
                        name: push.name.clone(),
                        start: push.time,
                        end: event.time,
                    });
                }
                _ => {}
            }
        }
        spans
    }
}
