//! Windows that open by themselves, behind a step for which a condition holds: programs that stall in known steps and
//! ways, on mixed load.

mod common;

use std::time::Duration;

use common::python::pythons;
use common::{Output, Scratch, command, repo, run, shim, skipped, standin, tllmprof};
use serde_json::Value;

/// Longer than any of them needs on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

const BATCH: &str = "__main__:step=requests:requests,tokens:tokens,prefill_tokens:prompt";

struct Ran {
    output: Output,
    /// What the report says of the process; nothing where there is no record.
    process: Option<Value>,
    _scratch: Scratch,
}

/// The serving loop, with these stalls.
fn load(planted: &str, variables: &[(&str, &str)]) -> Option<Ran> {
    let python = pythons().iter().find(|python| python.has_gil);
    let Some(python) = python else {
        skipped("no CPython with a GIL");
        return None;
    };
    let scratch = Scratch::new("triggers");
    let record = scratch.path("steps.tllmprof");
    let mut program = command(&python.path);
    program
        .arg(repo().join("tests/triggers/load.py"))
        .args(planted.split_whitespace())
        .env("PYTHONPATH", repo().join("examples/slow"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("LD_LIBRARY_PATH", standin())
        .env("LD_PRELOAD", shim())
        .env("STANDIN_WORK_NS", "300000")
        .env("TLLMPROF_BATCH", BATCH)
        .env("TLLMPROF_TRACE", &record)
        .envs(variables.iter().copied())
        .current_dir(scratch.folder());
    let output = run(&mut program, PATIENCE);
    let mut report = command(tllmprof());
    let report = run(report.args(["report", "--json"]).arg(&record), PATIENCE);
    let report: Option<Value> = serde_json::from_str(&report.out()).ok();
    Some(Ran {
        output,
        process: report.map(|report| report["processes"][0].clone()),
        _scratch: scratch,
    })
}

impl Ran {
    /// The iterations behind which windows opened, with what is said of them.
    fn fired(&self) -> Vec<(u64, String)> {
        let said = self.output.err();
        let lines = said.lines().filter_map(|line| {
            let (_, behind) = line.split_once(" held for iteration ")?;
            let (number, why) = behind.split_once(": ")?;
            Some((number.parse().unwrap(), why.to_owned()))
        });
        lines.collect()
    }

    /// The windows of the record.
    fn windows(&self) -> Vec<(u64, u64)> {
        let process = self.process.as_ref().expect(&self.output.err());
        let windows = process["windows"].as_array().unwrap().iter();
        let number = |of: &Value| of.as_u64().unwrap();
        windows
            .map(|window| (number(&window["first"]), number(&window["last"])))
            .collect()
    }
}

#[test]
fn stalls_on_mixed_load_are_found_with_their_causes_and_prefills_are_none() {
    let planted = "200:sleeps 210:waits 221:collects 232:needs_gil 244:sleeps";
    let when = [
        ("TLLMPROF_WHEN", "iteration > 6*p50 and iteration > 300ms"),
        ("TLLMPROF_WHEN_STEPS", "5"),
        ("TLLMPROF_GIL", "1"),
        ("TLLM_PROFILE_RECORD_GC", "1"),
    ];
    let Some(ran) = load(planted, &when) else {
        return;
    };
    let context = ran.output.err();
    let fired = ran.fired();
    let numbers: Vec<_> = fired.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [200, 210, 221, 232], "{context}");
    // The last is one of a prefill, which takes a fifth of that at any time: it is not six times as slow.
    for (place, cause) in [
        (1, "waits for the GPU"),
        (2, "garbage collection"),
        (3, "waits for the GIL"),
    ] {
        assert!(fired[place].1.contains(cause), "{cause}: {context}");
    }
    assert!(fired[0].1.contains("decode, 8 to 15 requests"), "{context}");
    let windows: Vec<_> = numbers
        .iter()
        .map(|number| (number + 1, number + 5))
        .collect();
    assert_eq!(ran.windows(), windows, "{context}");
    // The record says why it has these windows.
    let process = ran.process.unwrap().to_string();
    assert!(process.contains("held for iteration 210"), "{process}");
}

#[test]
fn a_condition_on_causes_has_them_measured_and_so_many_windows_open_at_most() {
    let planted = "50:collects 80:sleeps 110:waits 140:needs_gil 200:waits";
    let when = [
        (
            "TLLMPROF_WHEN",
            "gc > 20ms or gil > 300ms or wait > 300ms and phase=decode",
        ),
        ("TLLMPROF_WHEN_STEPS", "5"),
        ("TLLMPROF_WHEN_AT_MOST", "3/1h"),
        // What is found is said, where nothing is recorded, too.
        ("TLLMPROF_TRACE", ""),
    ];
    let Some(ran) = load(planted, &when) else {
        return;
    };
    let context = ran.output.err();
    let numbers: Vec<_> = ran.fired().iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [50, 110, 140], "{context}");
}

#[test]
fn a_condition_that_is_none_is_refused_with_one_line() {
    for (options, says) in [
        ("--when iteration>5", "--when \"iteration>5\""),
        ("--when gpu>5ms", "gpu is measured inside windows only"),
        (
            "--at-most 3",
            "there is no condition that could open a window",
        ),
        ("--when gc>1ms --per never", "\"never\" is no time"),
        (
            "--when gc>1ms --when-steps 0",
            "a window has no fewer than 1",
        ),
    ] {
        let mut command = command(tllmprof());
        command
            .arg("run")
            .args(options.split_whitespace())
            .args(["--", "true"]);
        let output = run(&mut command, PATIENCE);
        let err = output.err();
        assert_eq!(output.status.code(), Some(2), "{options}: {err}");
        assert!(
            err.contains(says) && err.trim_end().lines().count() == 1,
            "{options}: {err}"
        );
    }
}
