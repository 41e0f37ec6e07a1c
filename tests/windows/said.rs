//! Checks the library's messages about windows, and that the report gives the same figures.

use std::time::Duration;

use crate::assert_unharmed;
use crate::common::{Fixture, PROFILED, Scratch, command, run, shim, standin, tllmprof};

#[test]
fn a_window_that_the_end_of_the_program_cuts_off() {
    for (windows, last) in [
        (
            "35-60",
            "window 35-60 captured in part: 35-39, the program ended: 40 iterations by cudaGraphLaunch",
        ),
        (
            "2,39-40",
            "windows 2,39-40 captured, 39-40 in part: 39, the program ended: 40 iterations by cudaGraphLaunch",
        ),
        (
            "2-3,39-",
            "windows 2-3,39- captured: 40 iterations by cudaGraphLaunch",
        ),
        (
            "38-39,50",
            "window 38-39 captured; window 50 never opened: 40 iterations by cudaGraphLaunch",
        ),
    ] {
        let ran = Fixture::new("steps_shared12")
            .window(windows, "cudaGraphLaunch")
            .run();
        assert_eq!(ran.said().last().map(String::as_str), Some(last));
    }
}

#[test]
fn the_three_lines() {
    let ran = Fixture::new("steps_shared12")
        .window("5-9", "cudaGraphLaunch")
        .run();
    let said = ran.said();
    assert_eq!(said.len(), 3, "{said:?}");
    assert_eq!(
        said[0],
        "window 5-9 opened at iteration 5 (cudaGraphLaunch)"
    );
    assert!(
        said[1].starts_with("window 5-9 closed: 5 iterations in "),
        "{said:?}"
    );
    assert_eq!(
        said[2],
        "window 5-9 captured: 40 iterations by cudaGraphLaunch"
    );
}

#[test]
fn a_window_that_never_opens_is_reported_with_the_reason() {
    let ran = Fixture::new("steps_shared12")
        .window("100-150", "cudaGraphLaunch")
        .run();
    assert_eq!(
        ran.said(),
        ["window 100-150 never opened: 40 iterations by cudaGraphLaunch"]
    );
    let ran = Fixture::new("steps_static")
        .window("3,100-150", "cudaEventSynchronize")
        .args("--kernels 2")
        .run();
    assert_eq!(
        ran.said(),
        [
            "windows 3,100-150 never opened: 0 iterations by cudaEventSynchronize; it made 40 graph \
          launches, 80 kernel launches and 40 stream waits: try auto"
        ]
    );
    let ran = Fixture::new("steps_static")
        .window("3", "cudaGraphLaunch")
        .args("--graphs 0 --kernels 2")
        .run();
    assert_eq!(
        ran.said(),
        [
            "window 3 never opened: 0 iterations by cudaGraphLaunch; it made 80 kernel launches \
             and 40 stream waits: try auto"
        ]
    );
    let ran = Fixture::new("steps_static")
        .window("7,100-150", "cudaGraphLaunch")
        .run();
    assert_eq!(
        ran.said().last().map(String::as_str),
        Some("window 7 captured; window 100-150 never opened: 40 iterations by cudaGraphLaunch")
    );
}

#[test]
fn a_bad_range_gives_its_line_and_nothing_else() {
    let plain = Fixture::plain("steps_shared12").run();
    let ran = Fixture::new("steps_shared12")
        .window("9-5", "cudaGraphLaunch")
        .run();
    let said = ran.said();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].starts_with("TLLM_PROFILE_START_STOP=\"9-5\": "),
        "{said:?}"
    );
    assert!(ran.switches().is_empty());
    assert_unharmed(&ran, &plain);
    assert_eq!(ran.log.len(), plain.log.len());
}

#[test]
fn a_variable_that_nothing_reads_is_named_once() {
    let plain = Fixture::plain("steps_shared12").run();
    let ran = Fixture::new("steps_shared12")
        .env("TLLMPROF_STEPP", "cudaGraphLaunch")
        .run();
    let line = "TLLMPROF_STEPP means nothing; TLLMPROF_STEP does";
    assert_eq!(ran.said(), [line]);
    assert_unharmed(&ran, &plain);
    let ran = Fixture::new("steps_shared12")
        .env("TLLMPROF_STEPP", "cudaGraphLaunch")
        .window("5-9", "cudaGraphLaunch")
        .run();
    assert_eq!(ran.said().iter().filter(|said| *said == line).count(), 1);
    assert_eq!(ran.switches().len(), 2, "the others count");
    let ran = Fixture::new("steps_shared12")
        .env("TLLMPROF_STEPP", "cudaGraphLaunch")
        .env("TLLMPROF_LOG", "off")
        .run();
    assert_eq!(ran.output.err(), "");
}

#[test]
fn what_only_python_can_give_is_said_to_be_missing_where_there_is_none() {
    let ran = Fixture::new("steps_shared12")
        .window("5-9", "cudaGraphLaunch")
        .env("TLLM_PROFILE_RECORD_GC", "1")
        .env("TLLMPROF_PERFECT_ROUTER", "1")
        .run();
    let line = "no Python from 3.8 on was found in this process: TLLM_PROFILE_RECORD_GC, the perfect router had no effect";
    assert_eq!(
        ran.said().iter().filter(|said| *said == line).count(),
        1,
        "{:?}",
        ran.said()
    );
    assert_eq!(ran.switches().len(), 2);
}

#[test]
fn without_a_window_nothing_is_said_or_switched() {
    let ran = Fixture::new("steps_shared12").run();
    assert_eq!(ran.output.err(), "");
    assert!(ran.switches().is_empty());
}

#[test]
fn a_window_that_nobody_records_is_reported_once() {
    let line = "window 5-9 closed, but nothing recorded it: TLLMPROF_TRACE is not set, and no profiler was found in this \
                process (set TLLMPROF_TRACE=PATH)";
    let alone = |windows: &str| {
        let fixture = Fixture::new("steps_shared12").without(PROFILED);
        fixture.window(windows, "cudaGraphLaunch")
    };
    let ran = alone("5-9,20").run();
    let said = ran.said();
    assert_eq!(said[2], line, "{said:?}");
    assert_eq!((said.len(), ran.switches().len()), (6, 4), "{said:?}");
    assert_eq!(
        said[5],
        "windows 5-9,20 opened: 40 iterations by cudaGraphLaunch; nothing recorded them"
    );
    assert_unharmed(&ran, &Fixture::plain("steps_shared12").run());
    // This window has no last iteration, so it is closed by the end of the process.
    let ran = alone("5-").args("--exit _exit").run();
    let line = line.replace("5-9", "5-");
    assert_eq!(ran.said().iter().filter(|said| **said == line).count(), 1);

    let hears = |fixture: Fixture| {
        let ran = fixture.run();
        let said = ran.said();
        assert!(
            said.iter().all(|line| !line.contains("nothing recorded")),
            "{said:?}"
        );
    };
    hears(alone("100-150"));
    hears(alone("5-9").env("TLLMPROF_TRACE", "x.tllmprof"));
    hears(alone("5-9").env("TLLMPROF_LOG", "error"));
    hears(alone("5-9").env("TLLMPROF_PERFECT_ROUTER", "window"));
    for profiler in [
        "NSYS_PROFILING_SESSION_ID",
        "CUDA_INJECTION64_PATH",
        PROFILED,
    ] {
        hears(alone("5-9").env(profiler, "/x"));
    }
}

/// The user has requested a record, but it could not be written. So the message about the window must not advise
/// setting the variable for a record.
#[test]
fn a_window_whose_record_could_not_be_written() {
    let ran = Fixture::new("steps_shared12")
        .without(PROFILED)
        .window("5-9", "cudaGraphLaunch")
        .env("TLLMPROF_TRACE", "/nonexistent/x.tllmprof")
        .env("TLLMPROF_STACKS", "1")
        .run();
    assert_eq!(
        ran.said(),
        [
            "no record at /nonexistent/x.tllmprof: it could not be created: there is no such folder",
            "window 5-9 opened at iteration 5 (cudaGraphLaunch)",
            "TLLMPROF_STACKS: no stacks are sampled, as the record would hold them: its record could not be written",
            &ran.said()[3],
            "window 5-9 closed, but nothing recorded it: its record could not be written, and no profiler was found in this \
             process",
            "no Python from 3.8 on was found in this process: TLLMPROF_STACKS had no effect",
            "window 5-9 opened: 40 iterations by cudaGraphLaunch; nothing recorded it",
        ]
    );
    assert!(ran.said()[3].starts_with("window 5-9 closed: 5 iterations in "));
}

/// The figures for one window, from the library's message and from the report.
#[derive(Debug)]
struct Said {
    /// Number of iterations according to the library's message.
    logged: u64,
    /// Duration of the window in milliseconds, according to the library's message.
    took: f64,
    /// The text that follows the duration in the library's message.
    more: String,
    /// Number of iterations according to the report, including those that its figures leave out.
    all: u64,
    /// Time in milliseconds from the start of the first iteration to the end of the last, according to the report.
    lasted: f64,
    /// Number of iterations that the report's figures include.
    counted: u64,
    /// The reason why the report's figures leave out the other iterations.
    left_out: serde_json::Value,
    text: String,
}

fn said_of_a_window(windows: &str) -> Said {
    let scratch = Scratch::new("times");
    let mut it = command(tllmprof());
    it.args(["run", "--step", "cudaGraphLaunch", "--window", windows])
        .args(["--trace", "x.tllmprof", "--"])
        .arg(standin().join("bin/steps_shared12"))
        .env("TLLMPROF_LIB", shim())
        .env("LD_LIBRARY_PATH", standin())
        .current_dir(scratch.folder());
    let text = run(&mut it, Duration::from_secs(300)).err();
    let closed = text.lines().find_map(|line| line.split_once(" closed: "));
    let (logged, rest) = closed
        .and_then(|(_, said)| said.split_once(" iterations in "))
        .expect("a count");
    let (took, more) = rest.split_once(" ms").expect("a time");
    let mut report = command(tllmprof());
    report
        .args(["report", "--json", "x.tllmprof"])
        .current_dir(scratch.folder());
    let json = run(&mut report, Duration::from_secs(300)).out();
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let process = &json["processes"][0];
    let iterations = process["windows"][0]["iterations"].as_array();
    let iterations = iterations.expect("iterations");
    let number = |one: &serde_json::Value, key: &str| one[key].as_f64().expect("a number") / 1e6;
    let first = number(iterations.first().expect("an iteration"), "start_ns");
    let last = iterations.last().expect("an iteration");
    Said {
        logged: logged.parse().expect("a number"),
        took: took.parse().expect("a number"),
        more: more.to_owned(),
        all: iterations.len() as u64,
        lasted: number(last, "start_ns") + number(last, "dur_ns") - first,
        counted: process["inside"]["iterations"].as_u64().expect("a number"),
        left_out: process["unqualified"].clone(),
        text: text.clone(),
    }
}

#[test]
fn the_log_and_the_report_say_the_same_of_a_window() {
    // The first window is closed by an iteration, and the second by the end of the process. A thread may be
    // interrupted between the clock readings of the log and of the record, so only one of three runs has to match.
    for windows in ["5-9", "5-"] {
        let runs: Vec<_> = (0..3).map(|_| said_of_a_window(windows)).collect();
        let is_near = |of: &Said| (of.took - of.lasted).abs() < 0.01 + 0.05 * of.lasted;
        assert!(runs.iter().any(is_near), "{windows}: {runs:?}");
        for of in runs {
            assert_eq!(of.logged, of.all, "{of:?}");
            if windows == "5-9" {
                assert_eq!((of.logged, of.counted, &*of.more), (5, 5, ""), "{of:?}");
                assert!(of.text.contains("window 5-9: 5 iterations in "), "{of:?}");
                continue;
            }
            // A launch begins each iteration, so the last iteration does not end before the process does.
            assert_eq!((of.logged, of.counted), (35, 34), "{of:?}");
            assert_eq!(of.more, ", the last cut off by the end of the process");
            assert!(
                of.text.contains("window 5-39: 34 of 35 iterations in "),
                "{of:?}"
            );
            assert!(of.text.contains("left out: 1 iteration cut off"), "{of:?}");
            assert!(of.left_out.to_string().contains("cut"), "{of:?}");
        }
    }
}
