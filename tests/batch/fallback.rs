//! Checks that the report finds decode batches that run without a CUDA graph although they fit one.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::common::python::{Python, pythons};
use crate::common::{run, tllmprof};
use crate::fixture;

/// Runs `fallback.py` and returns the finding `eager-fallback` of the report on its record.
fn finding(which: &Python, way: &str) -> Value {
    let fixture = fixture(which, "fallback.py", &[way], &[]);
    let record = fixture.folder().join("steps.tllmprof");
    let (ran, report) = fixture.run_and(|| {
        let mut command = Command::new(tllmprof());
        run(
            command.arg("report").arg("--json").arg(&record),
            Duration::from_secs(300),
        )
    });
    let context = format!("{}{}", report.err(), ran.output.err());
    let report: Value = serde_json::from_str(&report.out()).expect(&context);
    let mut findings = report["findings"].as_array().unwrap().iter();
    let finding = findings.find(|finding| finding["rule"] == "eager-fallback");
    finding.expect(&context).clone()
}

#[test]
fn batches_that_leave_their_graph_are_found() {
    let Some(which) = pythons().last() else {
        return;
    };
    let found = finding(which, "some");
    assert_eq!(found["verdict"], "yes", "{found}");
    let evidence = found["evidence"].as_str().unwrap();
    // The last of the 41 decode iterations does not count if the process ends in it. So there are 40 or 41 iterations.
    assert!(evidence.starts_with("8 of 4"), "{evidence}");
    let batches = " decode iterations (4, 9, 14, 19, …) launched no graph although their batches fit one: they have 7, 12 tokens, \
                   and graphs ran batches of up to 32; they take ";
    assert!(evidence.contains(batches), "{evidence}");
    assert!(found["loss"].as_f64().unwrap() > 0.0, "{found}");
    let without_graphs = finding(which, "eager");
    assert_eq!(without_graphs["verdict"], "no", "{without_graphs}");
    assert_eq!(
        without_graphs["evidence"],
        "no decode iteration launches a graph"
    );
}
