//! Checks the finding on two streams that take turns, with a program whose streams are ordered in several ways
//! (`two_streams.c`). The streams of the stand-in for CUDA run at once if nothing orders them.

use super::*;

use common::{Built, build_once};
use common::{Scratch, built_command, run, shim, standin};
use tllmprof_report::{Finding, Process, Report, Verdict};

/// Duration of each piece of work, in nanoseconds. It is long, so that the program launches the next work in time even
/// on a busy machine.
const WORK_NS: &str = "3000000";
/// Number of steps whose kernels are recorded.
const STEPS: u64 = 12;

/// Runs the program, and returns the report on its record.
fn report(mode: &str) -> Report {
    static BUILT: Built = Built::new();
    let program = build_once(&BUILT, "kernels/two_streams.c", &["-ldl"]);
    let scratch = Scratch::new("two-streams");
    let mut command = built_command(program);
    let folders = std::env::join_paths([standin(), standin().join("cupti")]).unwrap();
    command
        .args([mode, "20", WORK_NS, "4096"])
        .env("LD_LIBRARY_PATH", folders)
        .env("LD_PRELOAD", shim())
        .env("TLLMPROF_STEP", "cuStreamSynchronize/2")
        .env("TLLMPROF_START_STOP", format!("5-{}", 4 + STEPS))
        .env("TLLMPROF_KERNELS", STEPS.to_string())
        .env("TLLMPROF_TRACE", "record.tllmprof")
        .env("STANDIN_STREAM_NS", WORK_NS)
        .current_dir(scratch.folder());
    let output = run(&mut command, program::TEST_TIMEOUT);
    assert_eq!(output.out(), "done\n", "{}", output.err());
    let record = scratch.path("record.tllmprof");
    let reader = tllmprof_record::Reader::open(&record).unwrap();
    Report::new(vec![Process::read(record, &reader).unwrap()])
}

fn finding(report: &Report) -> &Finding {
    let mut findings = report.findings.iter();
    findings
        .find(|finding| finding.rule.name == "serial-streams")
        .unwrap()
}

/// Asserts that the finding holds, that its evidence contains `words`, and that its loss is a share of 0.05 to 0.5 of
/// the time. If two equal streams that take turns ran at once, this would save half of the time.
#[track_caller]
fn takes_turns(mode: &str, words: &str) {
    let report = report(mode);
    let found = finding(&report);
    assert_eq!(found.verdict, Verdict::Yes, "{found:#?}");
    assert!(found.evidence.contains(words), "{}", found.evidence);
    let words = "if this order is not needed, overlap would save at most ";
    assert!(found.evidence.contains(words), "{}", found.evidence);
    let loss = found.loss.unwrap();
    assert!((0.05..=0.5).contains(&loss), "{loss}");
}

#[test]
fn streams_that_an_event_orders_take_turns() {
    takes_turns(
        "events",
        "waits for an event (1.00 cuStreamWaitEvent a step) and continues when stream 14's work has ended",
    );
    takes_turns(
        "copies",
        "waits for an event (1.00 cuStreamWaitEvent a step) and continues when stream 14's work has ended",
    );
    takes_turns("each", "cuStreamWaitEvent a step)");
}

#[test]
fn streams_that_the_legacy_default_stream_orders_take_turns() {
    takes_turns("legacy", "one of them is the legacy default stream (7)");
}

#[test]
fn streams_that_the_host_orders_take_turns() {
    takes_turns(
        "host",
        "the host waits for stream 14 before it launches on stream 15 (1.00 cuStreamSynchronize a step",
    );
}

#[test]
fn streams_at_once_and_streams_that_cannot_be_judged_are_no_finding() {
    for (mode, words) in [
        ("at_once", "run at once"),
        ("graphs", "no two streams"),
        ("short", "no two streams"),
    ] {
        let report = report(mode);
        let found = finding(&report);
        assert_eq!(found.verdict, Verdict::No, "{mode}: {found:#?}");
        assert!(found.evidence.contains(words), "{mode}: {found:#?}");
    }
}
