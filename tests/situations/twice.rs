//! Runs a program without and with the library under test, and compares the two runs.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::ops::Deref;

use crate::common::{Fixture, Ran, Record, Switch, shim};

/// A program with its arguments, variables and preloaded libraries.
#[derive(Clone)]
pub(crate) struct Situation {
    program: String,
    args: String,
    env: Vec<(String, OsString)>,
    before_shim: Vec<String>,
    after_shim: Vec<String>,
}

/// The results of the run with the library under test and of the run without it.
pub(crate) struct Both {
    pub plain: Ran,
    ran: Ran,
}

impl Deref for Both {
    type Target = Ran;
    fn deref(&self) -> &Ran {
        &self.ran
    }
}

impl Situation {
    /// Returns a program to run. `program` is the name of a fixture or the absolute path of any program.
    pub(crate) fn new(program: impl Into<String>) -> Self {
        Self {
            program: program.into(),
            args: String::new(),
            env: Vec::new(),
            before_shim: Vec::new(),
            after_shim: Vec::new(),
        }
    }

    pub(crate) fn args(mut self, args: impl Into<String>) -> Self {
        self.args = args.into();
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn window(self, windows: &str, step: &str) -> Self {
        self.env("TLLM_PROFILE_START_STOP", windows)
            .env("TLLMPROF_STEP", step)
    }

    /// Preloads another library in front of the library under test, also in the run without the library under test.
    pub(crate) fn preload_before_shim(mut self, library: impl Into<String>) -> Self {
        self.before_shim.push(library.into());
        self
    }

    /// Preloads another library after the library under test, also in the run without the library under test.
    pub(crate) fn preload_after_shim(mut self, library: impl Into<String>) -> Self {
        self.after_shim.push(library.into());
        self
    }

    fn fixture(&self, shim: Option<String>) -> Fixture {
        let mut preload = self.before_shim.clone();
        preload.extend(shim);
        preload.extend(self.after_shim.iter().cloned());
        let mut fixture = Fixture::plain(&self.program).args(&self.args);
        if !preload.is_empty() {
            fixture = fixture.env("LD_PRELOAD", preload.join(":"));
        }
        for (name, value) in &self.env {
            fixture = fixture.env(name, value);
        }
        fixture
    }

    /// Runs the program without the library under test.
    pub(crate) fn run_plain(&self) -> Ran {
        self.fixture(None).run()
    }

    /// Runs the program with the library under test.
    pub(crate) fn run_shimmed(&self) -> Ran {
        self.fixture(Some(shim().display().to_string())).run()
    }

    /// Runs the program without and with the library under test. Asserts that exit status and output are the same,
    /// except for the library's messages on standard error, and that the driver refused none of the library's calls.
    #[track_caller]
    pub(crate) fn run(&self) -> Both {
        let both = Both {
            plain: self.run_plain(),
            ran: self.run_shimmed(),
        };
        let (output, plain) = (&both.output, &both.plain.output);
        let said = format!(
            "{} {}\n{}without the shim:\n{}",
            self.program,
            self.args,
            output.err(),
            plain.err()
        );
        assert_eq!(output.out(), plain.out(), "{said}");
        assert_eq!(output.status, plain.status, "{said}");
        let others: String = output
            .err()
            .split_inclusive('\n')
            .filter(|line| !(line.starts_with("tllmprof: ") && line.ends_with('\n')))
            .collect();
        assert_eq!(others, plain.err(), "{said}");
        let workers = workers(&both.ran.log);
        let refused: Vec<String> = both
            .ran
            .log
            .iter()
            .filter(|record| !record.mark.is_empty())
            .filter(|record| {
                workers.contains(&record.tid) || record.function.starts_with("cuProfiler")
            })
            .map(word)
            .collect();
        assert_eq!(refused, Vec::<String>::new(), "{said}");
        both
    }
}

impl Both {
    /// Asserts that with and without the library under test, the program's calls reached the driver in the same order,
    /// in the same functions, from the same runtimes and with the same success. Only for programs whose order of calls
    /// is certain.
    #[track_caller]
    pub(crate) fn assert_same_calls(&self) -> &Self {
        assert_eq!(
            calls(&self.ran.log),
            calls(&self.plain.log),
            "{}",
            self.output.err()
        );
        self
    }

    /// Asserts that the library logged exactly one message for each text in `wanted`, in this order, and that each
    /// message contains its text.
    #[track_caller]
    pub(crate) fn assert_said(&self, wanted: &[&str]) -> &Self {
        let said = self.said();
        assert_eq!(said.len(), wanted.len(), "{said:#?}");
        for (line, part) in said.iter().zip(wanted) {
            assert!(line.contains(part), "wanted {part:?} in {said:#?}");
        }
        self
    }

    /// Asserts that the library made no driver calls of its own and logged nothing.
    #[track_caller]
    pub(crate) fn assert_untouched(&self) -> &Self {
        assert_eq!(self.said(), Vec::<String>::new());
        assert_eq!(words(&self.ran.log), words(&self.plain.log));
        self
    }

    /// Returns the number of iterations that the library's last message states.
    #[track_caller]
    pub(crate) fn total(&self) -> u64 {
        total(&self.said())
    }
}

#[track_caller]
pub(crate) fn total(said: &[String]) -> u64 {
    let words: Vec<&str> = said
        .last()
        .map_or(Vec::new(), |line| line.split(' ').collect());
    words
        .windows(2)
        .find(|pair| pair[1] == "iterations")
        .and_then(|pair| pair[0].parse().ok())
        .unwrap_or_else(|| panic!("no total in {said:#?}"))
}

pub(crate) fn start(launches: usize, waits: usize) -> Switch {
    Switch::Start { launches, waits }
}

pub(crate) fn stop(launches: usize, waits: usize) -> Switch {
    Switch::Stop { launches, waits }
}

/// Returns the IDs of the processes that called the driver, in the order of their first calls.
pub(crate) fn processes(log: &[Record]) -> Vec<u32> {
    let mut seen = BTreeSet::new();
    let pids = log.iter().map(|record| record.pid);
    pids.filter(|pid| seen.insert(*pid)).collect()
}

/// Returns the lines of one process in a log.
pub(crate) fn of_process(log: &[Record], pid: u32) -> Vec<Record> {
    log.iter()
        .filter(|record| record.pid == pid)
        .cloned()
        .collect()
}

/// Returns each start and stop of the profiler, with two counts before it: graph launches, and waits that have
/// returned.
pub(crate) fn switches(log: &[Record]) -> Vec<Switch> {
    let workers = workers(log);
    let (mut launches, mut waits) = (0, 0);
    let mut switches = Vec::new();
    for record in log {
        match record.function.as_str() {
            "cuProfilerStart" => switches.push(start(launches, waits)),
            "cuProfilerStop" => switches.push(stop(launches, waits)),
            name if name.starts_with("cuGraphLaunch") => launches += 1,
            name if name.ends_with("_end") && !workers.contains(&record.tid) => waits += 1,
            _ => {}
        }
    }
    switches
}

/// Returns the IDs of the library's own threads. They are recognized by their calls: they only wait for the device, and
/// start or stop the profiler. A fixture's thread always makes other calls, too.
pub(crate) fn workers(log: &[Record]) -> BTreeSet<u32> {
    let ours = |record: &Record| {
        let name = record.function.as_str();
        name.starts_with("cuCtxSynchronize") || name.starts_with("cuProfiler")
    };
    let all: BTreeSet<u32> = log.iter().map(|record| record.tid).collect();
    let busy: BTreeSet<u32> = log
        .iter()
        .filter(|r| !ours(r))
        .map(|record| record.tid)
        .collect();
    &all - &busy
}

/// Returns the program's own calls, without starts and stops of the profiler.
fn calls(log: &[Record]) -> Vec<String> {
    let workers = workers(log);
    let own = |record: &&Record| {
        !workers.contains(&record.tid) && !record.function.starts_with("cuProfiler")
    };
    log.iter().filter(own).map(word).collect()
}

fn words(log: &[Record]) -> Vec<String> {
    log.iter().map(word).collect()
}

fn word(record: &Record) -> String {
    format!("{} {} via={}", record.mark, record.function, record.via)
}

/// Returns the number of driver calls of a function.
pub(crate) fn count(log: &[Record], function: &str) -> usize {
    log.iter()
        .filter(|record| record.function == function)
        .count()
}
