//! Checks programs that wait for the GPU by polling: they ask again and again whether work is done.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::common::{Built, Scratch, build_once, command, run, shim, standin, tllmprof};

fn program() -> &'static Path {
    static BUILT: Built = Built::new();
    build_once(
        &BUILT,
        "windows/polls.c",
        &["-l:libcudart.so.12", "-l:libcuda.so.1"],
    )
}

/// Runs the program under `tllmprof run` with the rule `step`. Returns the process's entry in the report, and the
/// messages.
fn ran(arguments: &[&str], step: &str, window: &str) -> (Value, String) {
    let scratch = Scratch::new("polls");
    let mut it = command(tllmprof());
    it.args(["run", "--run", "x", "--light", "--no-summary"])
        .args(["--step", step, "--window", window, "--"])
        .arg(program())
        .args(arguments)
        .env("TLLMPROF_LIB", shim())
        .env("LD_LIBRARY_PATH", standin())
        .env("STANDIN_WORK_NS", "100000")
        .current_dir(scratch.folder());
    let output = run(&mut it, Duration::from_secs(300));
    assert_eq!(output.out(), "300 steps\n", "{}", output.err());
    let mut report = command(tllmprof());
    report
        .args(["report", "--json", "tllmprof-x"])
        .current_dir(scratch.folder());
    let made = run(&mut report, Duration::from_secs(300));
    let mut all: Value = serde_json::from_str(&made.out()).unwrap();
    (all["processes"][0].take(), output.err())
}

/// Returns the share of the host's time that the ledger (the report's table of time by cause) gives to waits in
/// `function`.
fn share_of_wait(process: &Value, function: &str) -> f64 {
    let rows = process["ledger"]["host"].as_array().unwrap();
    let waits = rows
        .iter()
        .filter(|row| row["kind"] == "wait" && row["cause"].as_str().unwrap().ends_with(function));
    waits.map(|row| row["share"].as_f64().unwrap()).sum()
}

#[test]
fn a_wait_by_polling_is_the_step_and_the_host_waits_in_it() {
    for (arguments, function) in [
        (&["event"][..], "cuEventQuery"),
        (&["stream"], "cuStreamQuery"),
        (&["event", "driver"], "cuEventQuery"),
        (&["stream", "driver"], "cuStreamQuery"),
    ] {
        let (process, said) = ran(arguments, "auto", "100-119");
        let learnt = "wait after 3 launches";
        assert!(
            said.contains("iteration = the ") && said.contains("wait"),
            "{said} {learnt}"
        );
        let window = &process["windows"][0];
        let iterations = window["iterations"].as_array().unwrap();
        assert_eq!(iterations.len(), 20, "{arguments:?}: {said}");
        for iteration in iterations {
            assert_eq!(iteration["launches"], 3, "{arguments:?}: {iteration}");
        }
        let share = share_of_wait(&process, function);
        assert!(share > 0.5, "{arguments:?}: {share} {}", process["ledger"]);
    }
}

#[test]
fn a_rule_for_launches_counts_as_before_and_the_waits_are_recorded() {
    let (process, said) = ran(&["event"], "cudaLaunchKernel/3", "100-119");
    let window = &process["windows"][0];
    let ends = (&window["first"], &window["last"]);
    assert_eq!(ends, (&100.into(), &119.into()), "{said}");
    let calls = process["calls"].as_array().unwrap();
    let polls = calls.iter().find(|call| call["name"] == "cuEventQuery");
    let count = polls.map(|polls| polls["count"].as_u64().unwrap());
    assert!((19..=21).contains(&count.unwrap()), "{calls:?}");
    assert!(
        share_of_wait(&process, "cuEventQuery") > 0.5,
        "{}",
        process["ledger"]
    );
}
