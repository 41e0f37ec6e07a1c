//! Runs the Python serving loop `tests/triggers/load.py`, in which one of ten steps has a prompt (prefill) and all
//! others only decode. The test chooses the steps in which the loop stalls, and the cause of each stall.

use std::collections::HashMap;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::python::pythons;
use super::{Output, Scratch, command, repo, run, shim, skipped, standin, tllmprof};

/// Time limit of a run, longer than any run needs on a busy machine.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(240);

const BATCH: &str = "__main__:step=requests:requests,tokens:tokens,prefill_tokens:prompt";

/// A serving loop's working folder, which also holds its record.
pub(crate) struct Load {
    pub scratch: Scratch,
}

pub(crate) struct Ran {
    pub output: Output,
    /// The process's entry of the report; `None` if there is no record.
    pub process: Option<Value>,
    _scratch: Scratch,
}

impl Load {
    pub(crate) fn new() -> Self {
        Self {
            scratch: Scratch::new("load"),
        }
    }

    /// Returns the command that runs the serving loop with the given stalls (`planted`). Returns `None` if there is no
    /// Python with a GIL.
    pub(crate) fn command(&self, planted: &str, variables: &[(&str, &str)]) -> Option<Command> {
        let python = pythons().iter().find(|python| python.has_gil);
        if python.is_none() {
            skipped("no CPython with a GIL");
        }
        let mut program = command(&python?.path);
        program
            .arg(repo().join("tests/triggers/load.py"))
            .args(planted.split_whitespace())
            .env("PYTHONPATH", repo().join("examples/slow"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("LD_LIBRARY_PATH", standin())
            .env("LD_PRELOAD", shim())
            .env("STANDIN_WORK_NS", "300000")
            .env("TLLMPROF_BATCH", BATCH)
            .env("TLLMPROF_TRACE", "steps.tllmprof")
            .envs(variables.iter().copied())
            .current_dir(self.scratch.folder());
        Some(program)
    }

    /// Returns the loop's entry in the report of its record. Returns `None` if there is no record.
    pub(crate) fn report(&self) -> Option<Value> {
        let mut report = command(tllmprof());
        report
            .args(["report", "--json", "steps.tllmprof"])
            .current_dir(self.scratch.folder());
        let report: Value = serde_json::from_str(&run(&mut report, TEST_TIMEOUT).out()).ok()?;
        Some(report["processes"][0].clone())
    }

    /// Runs the serving loop to its end. Returns `None` if there is no Python with a GIL.
    pub(crate) fn run(self, planted: &str, variables: &[(&str, &str)]) -> Option<Ran> {
        let output = run(&mut self.command(planted, variables)?, TEST_TIMEOUT);
        Some(Ran {
            output,
            process: self.report(),
            _scratch: self.scratch,
        })
    }
}

impl Ran {
    /// Returns one pair for each window that a trigger opened: the iteration after which it opened, and the reason in
    /// the library's message about it.
    pub(crate) fn fired(&self) -> Vec<(u64, String)> {
        let said = self.output.err();
        let lines = said.lines().filter_map(|line| {
            let (_, behind) = line.split_once(" held for iteration ")?;
            let (number, why) = behind.split_once(": ")?;
            Some((number.parse().unwrap(), why.to_owned()))
        });
        lines.collect()
    }

    /// Returns the steps that took longer than half of a stall, as measured by the program: their numbers and
    /// durations, in milliseconds.
    pub(crate) fn slow(&self) -> HashMap<u64, u64> {
        let out = self.output.out();
        let steps = out.lines().find_map(|line| line.strip_prefix("slow "));
        let steps = steps.expect("the program's steps").split(' ');
        let step = |step: &str| {
            let (number, ms) = step.split_once(':').unwrap();
            (number.parse().unwrap(), ms.parse().unwrap())
        };
        steps.map(step).collect()
    }

    /// Returns the first and last iteration of each window of the record.
    pub(crate) fn windows(&self) -> Vec<(u64, u64)> {
        windows(
            self.process
                .as_ref()
                .unwrap_or_else(|| panic!("{}", self.output.err())),
        )
    }
}

/// Returns the first and last iteration of each window in a process's entry of the report.
pub(crate) fn windows(process: &Value) -> Vec<(u64, u64)> {
    let number = |of: &Value| of.as_u64().unwrap();
    let windows = process["windows"].as_array().unwrap().iter();
    windows
        .map(|window| (number(&window["first"]), number(&window["last"])))
        .collect()
}

/// Returns the iterations of all windows of a process in the report.
pub(crate) fn iterations(process: &Value) -> Vec<&Value> {
    let windows = process["windows"].as_array().unwrap().iter();
    windows
        .flat_map(|window| window["iterations"].as_array().unwrap())
        .collect()
}
