//! `tllmprof demo`: its verdict, with examples and profilers that do right and wrong.

mod common;

use std::fmt::Write;
use std::process::Command;

use common::{Ended, Scratch, finish};

/// Answers to the question which device there is, and else does as its test says.
const ENGINE: &str = "#!/bin/sh\n\
    [ \"$1 $2\" = '--steps 0' ] && { echo \"engine: 0.0 steps/s on $DEVICE\"; exit; }\n\
    [ -n \"$STANDIN_LOG\" ] && cp \"$CALLS\" \"$STANDIN_LOG\"\n\
    exit \"${STATUS:-0}\"\n";

/// Runs the program, and counts as many kernels as its test says.
const NSYS: &str = "#!/bin/sh\n\
    if [ \"$1\" = stats ]; then\n\
        printf 'Time (%%),Total Time (ns),Instances,Name\\n100.0,1,%s,\"decode(a, b)\"\\n' \"$KERNELS\"\n\
        exit\n\
    fi\n\
    while [ \"${1#*/engine}\" = \"$1\" ]; do shift; done\n\
    exec \"$@\"\n";

/// A log in which the profiler is on from before iteration `first` to behind iteration `last`.
fn calls(steps: u64, first: u64, last: u64) -> String {
    let mut log = String::new();
    for n in 0..steps {
        if n == first {
            log.push_str("0 1 1 cuProfilerStart 0x0 via=-\n");
        }
        for call in [
            "cuGraphLaunch",
            "cuStreamSynchronize",
            "cuStreamSynchronize_end",
        ] {
            writeln!(log, "0 1 1 {call} 0x55 via=-").unwrap();
        }
        if n == last {
            log.push_str("0 1 1 cuProfilerStop 0x0 via=-\n");
        }
    }
    log
}

fn demo(scratch: &Scratch, device: &str) -> Command {
    let mut command = scratch.tllmprof();
    command
        .env("TLLMPROF_ENGINE", scratch.script("engine", ENGINE))
        .env("DEVICE", device);
    command.env("TLLMPROF_NSYS", scratch.script("nsys", NSYS));
    // For another program, and not to get in the way of this one.
    command
        .env("TLLMPROF_RANKS", "7")
        .env("TLLM_PROFILE_START_STOP", "wrong");
    command.arg("demo");
    command
}

fn on_stand_in(log: &str, arguments: &[&str]) -> Ended {
    let scratch = Scratch::new();
    let mut command = demo(&scratch, "stand-in for CUDA");
    finish(
        command
            .args(arguments)
            .env("CALLS", scratch.write("calls", log)),
    )
}

#[test]
fn exactly_the_window_on_the_stand_in() {
    let ended = on_stand_in(&calls(40, 5, 9), &[]);
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    assert!(
        ended.stdout.contains("Captured: iterations 5-9 of 40"),
        "{ended:?}"
    );
    assert!(
        ended
            .stdout
            .contains("$ tllmprof run --window 5-9 --step cudaGraphLaunch")
    );
    // A window that the example does not live to see the end of.
    let ended = on_stand_in(&calls(10, 9, 9), &["--steps", "10", "--window", "9-20"]);
    assert_eq!(ended.code(), Some(0), "{ended:?}");
}

#[test]
fn anything_else_on_the_stand_in_fails() {
    for (first, last) in [(4, 9), (6, 9), (5, 8), (5, 10), (5, 100), (100, 100)] {
        let ended = on_stand_in(&calls(40, first, last), &[]);
        assert_eq!(ended.code(), Some(1), "{first}-{last}: {ended:?}");
        assert!(ended.stderr.contains("not exactly the window"), "{ended:?}");
    }
    assert_eq!(on_stand_in("", &[]).code(), Some(1));
}

#[test]
fn nsys_counts_the_kernels_of_the_window() {
    let scratch = Scratch::new();
    // Five iterations of four kernels.
    let with = |kernels| finish(demo(&scratch, "NVIDIA H200").env("KERNELS", kernels));
    let ended = with("20");
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    assert!(ended.stdout.contains("counts 20 kernels"), "{ended:?}");
    for wrong in ["24", "16", "160", "0"] {
        assert_eq!(with(wrong).code(), Some(1), "{wrong}");
    }
    let mut two = demo(&scratch, "NVIDIA H200");
    assert_eq!(finish(two.args(["--window", "2,7"])).code(), Some(2));
}

#[test]
fn an_example_that_fails_is_no_success() {
    let scratch = Scratch::new();
    let mut command = demo(&scratch, "stand-in for CUDA");
    command
        .env("CALLS", scratch.write("calls", &calls(40, 5, 9)))
        .env("STATUS", "3");
    let ended = finish(&mut command);
    assert_eq!(ended.code(), Some(1), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("the example ended with exit status: 3"),
        "{ended:?}"
    );
}

#[test]
fn what_is_asked_for_wrongly() {
    for arguments in [
        &["--window", "9-5"][..],
        &["--window", "40-"],
        &["--steps", "3"],
        &["--steps", "x"],
    ] {
        let ended = on_stand_in("", arguments);
        assert_eq!(
            (ended.code(), ended.stdout.as_str()),
            (Some(2), ""),
            "{ended:?}"
        );
    }
    let scratch = Scratch::new();
    let ended = finish(demo(&scratch, "").env("TLLMPROF_ENGINE", "/none"));
    assert_eq!(
        (ended.code(), ended.stderr.lines().count()),
        (Some(2), 1),
        "{ended:?}"
    );
}
