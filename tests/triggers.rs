//! Checks triggers: windows that open after a step for which a condition holds. The programs make decodes and prefills
//! in turn (mixed load). The test chooses the steps in which a program stalls, and the cause of each stall.

mod common;

use common::load::{Load, TEST_TIMEOUT};
use common::{command, run, tllmprof};

#[test]
fn stalls_on_mixed_load_are_found_with_their_causes_and_prefills_are_none() {
    let planted = "200:sleeps 210:waits 221:collects 232:needs_gil 244:sleeps";
    let when = [
        ("TLLMPROF_WHEN", "iteration > 6*p50 and iteration > 300ms"),
        ("TLLMPROF_WHEN_STEPS", "5"),
        ("TLLMPROF_GIL", "1"),
        ("TLLM_PROFILE_RECORD_GC", "1"),
    ];
    let Some(ran) = Load::new().run(planted, &when) else {
        return;
    };
    let context = ran.output.err();
    let fired = ran.fired();
    let numbers: Vec<_> = fired.iter().map(|(number, _)| *number).collect();
    for (number, cause) in [
        (200, "decode, 8 to 15 requests"),
        (210, "waits for the GPU"),
        (221, "garbage collection"),
        (232, "waits for the GIL"),
    ] {
        let why = fired.iter().find(|(fired, _)| *fired == number);
        let names_cause = why.is_some_and(|(_, why)| why.contains(cause));
        assert!(names_cause, "{number}, {cause}: {context}");
    }
    // The stall at step 244 opens no window. That step has a prefill, which usually takes 150 ms. With a stall of 600
    // ms the step takes less than six times its usual time. On a busy machine, other steps may take as long as a stall,
    // and a prefill with a stall may take six times its usual time.
    let slow = ran.slow();
    let is_slow = |number: &u64| {
        let least = if number % 10 == 4 { 900 } else { 300 };
        slow.get(number).is_some_and(|ms| *ms >= least)
    };
    assert!(numbers.iter().all(is_slow), "{slow:?}: {context}");
    let windows: Vec<_> = numbers
        .iter()
        .map(|number| (number + 1, number + 5))
        .collect();
    assert_eq!(ran.windows(), windows, "{context}");
    // The record contains the reason for each window.
    let process = ran.process.unwrap().to_string();
    assert!(process.contains("held for iteration 210"), "{process}");
}

#[test]
fn a_condition_on_causes_has_them_measured_and_so_many_windows_open_at_most() {
    let planted = "50:collects 80:sleeps 110:waits 140:needs_gil 200:waits";
    // The stalls are so long that a busy machine causes none like them.
    let when = [
        ("STALL", "2"),
        (
            "TLLMPROF_WHEN",
            "gc > 20ms or gil > 1500ms or wait > 1500ms and phase=decode",
        ),
        ("TLLMPROF_WHEN_STEPS", "5"),
        ("TLLMPROF_WHEN_AT_MOST", "3/1h"),
        // The library logs a message about each step for which the condition holds, even if nothing is recorded
        // (`TLLMPROF_TRACE` is empty).
        ("TLLMPROF_TRACE", ""),
    ];
    let Some(ran) = Load::new().run(planted, &when) else {
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
            "tllmprof: --at-most \"3\": there is no condition that could open a window",
        ),
        (
            "--at-most 3 --per 2h",
            "--at-most \"3\" --per \"2h\": there is no condition",
        ),
        ("--per 2h", "tllmprof: --per \"2h\": there is no condition"),
        (
            "--when gc>1ms --per never",
            "--per \"never\": \"never\" is no time",
        ),
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
        let output = run(&mut command, TEST_TIMEOUT);
        let err = output.err();
        assert_eq!(output.status.code(), Some(2), "{options}: {err}");
        assert!(
            err.contains(says) && err.trim_end().lines().count() == 1,
            "{options}: {err}"
        );
    }
    // If an environment variable gives the condition, the error message shows the variable's value.
    let mut command = command(tllmprof());
    command
        .args(["run", "--", "true"])
        .env("TLLMPROF_WHEN_AT_MOST", "3");
    let err = run(&mut command, TEST_TIMEOUT).err();
    assert!(
        err.contains("TLLMPROF_WHEN_AT_MOST=\"3\": there is no condition"),
        "{err}"
    );
}
