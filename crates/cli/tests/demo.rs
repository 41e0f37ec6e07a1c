//! Tests of `tllmprof demo`: its verdict if the example program and the profilers work, and if they fail.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::{Ended, Scratch, finish, wait};
use tllmprof_record::builder::Builder;
use tllmprof_record::{ClockKind, Edge, Event, What};

/// A script that `tllmprof demo` runs in these tests in place of its example program. With `--steps 0` it prints the
/// name of its device. Otherwise it copies the file `$RECORD` to the path in `TLLMPROF_TRACE`. Then it sleeps for a
/// minute if `$LASTS` is set, or else ends with the status `$STATUS`.
const ENGINE: &str = "#!/bin/sh\n\
    [ \"$1 $2\" = '--steps 0' ] && { echo \"engine: 0.0 steps/s on $DEVICE\"; exit; }\n\
    [ -n \"$TLLMPROF_TRACE\" ] && cp \"$RECORD\" \"$TLLMPROF_TRACE\"\n\
    [ -n \"$LASTS\" ] && { echo lasts; exec sleep 60; }\n\
    exit \"${STATUS:-0}\"\n";

/// Writes a record with one window, from iteration `first` to iteration `last`.
fn record(scratch: &Scratch, first: u64, last: u64) -> PathBuf {
    let mut builder = Builder::new(7, ClockKind::Monotonic);
    let edge = |edge, iteration| What::Window { edge, iteration };
    builder.push(7, &Event::new(1000 * first, 0, edge(Edge::Open, first)));
    for n in first..=last {
        builder.push(
            7,
            &Event::new(1000 * n, 1000, What::Iteration { n, excluded: false }),
        );
    }
    builder.push(
        7,
        &Event::new(1000 * (last + 1), 0, edge(Edge::Close, last)),
    );
    let path = scratch.path("record");
    fs::write(&path, builder.bytes()).unwrap();
    path
}

fn demo(scratch: &Scratch, device: &str) -> Command {
    let mut command = scratch.tllmprof();
    command
        .env("TLLMPROF_ENGINE", scratch.script("engine", ENGINE))
        .env("DEVICE", device)
        .env("RECORD", record(scratch, 5, 9))
        // The demo creates its temporary folder in this folder.
        .env("TMPDIR", scratch.path("tmp"));
    fs::create_dir_all(scratch.path("tmp")).unwrap();
    command.env(
        "TLLMPROF_NSYS",
        scratch.script("nsys", "#!/bin/sh\nexit 1\n"),
    );
    // These variables of the user's shell are meant for other programs. The demo must not pass them to the example.
    command
        .env("TLLMPROF_RANKS", "7")
        .env("TLLM_PROFILE_START_STOP", "wrong");
    command.arg("demo");
    command
}

fn on_stand_in(arguments: &[&str]) -> Ended {
    let scratch = Scratch::new();
    let mut command = demo(&scratch, "stand-in for CUDA");
    let ended = finish(command.args(arguments));
    assert!(is_empty(&scratch));
    ended
}

/// Returns true if the demo has removed all its files.
fn is_empty(scratch: &Scratch) -> bool {
    fs::read_dir(scratch.path("tmp")).unwrap().next().is_none()
}

#[test]
fn exactly_the_window_on_the_stand_in() {
    let ended = on_stand_in(&[]);
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
    // The demo's output ends with the summary of the record, whose heading names the device that the times are from.
    let (_, end) = ended.stdout.split_once("exactly the window.\n\n").unwrap();
    let heading = "What the built-in record of them shows (times of the stand-in, not of a GPU: ";
    assert!(end.starts_with(heading), "{ended:?}");
    assert!(
        end.contains("window 5-9: 5 iterations in 5.00 us"),
        "{ended:?}"
    );
    assert!(!ended.stderr.contains("5 iterations in"), "once: {ended:?}");
}

#[test]
fn a_window_may_last_to_the_examples_end() {
    let scratch = Scratch::new();
    let mut command = demo(&scratch, "stand-in for CUDA");
    command.env("RECORD", record(&scratch, 9, 9));
    let ended = finish(command.args(["--steps", "10", "--window", "9-20"]));
    assert_eq!(ended.code(), Some(0), "{ended:?}");
}

#[test]
fn a_record_of_anything_else_fails() {
    for device in ["stand-in for CUDA", "NVIDIA H200"] {
        for (first, last) in [(4, 9), (5, 10), (5, 8)] {
            let scratch = Scratch::new();
            let mut command = demo(&scratch, device);
            command.env("RECORD", record(&scratch, first, last));
            let ended = finish(&mut command);
            assert_eq!(ended.code(), Some(1), "{first}-{last}: {ended:?}");
            assert!(ended.stderr.contains("not exactly the window"), "{ended:?}");
        }
    }
}

#[test]
fn the_command_line_for_nsys_follows_where_it_is_found() {
    let scratch = Scratch::new();
    let ended = finish(&mut demo(&scratch, "NVIDIA H200"));
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    let (record, under_nsys) = ended.stdout.split_once("under nsys").unwrap();
    assert!(record.contains("window 5-9: 5 iterations in 5.00 us"));
    let line = "$ tllmprof run --window 5-9 --step cudaGraphLaunch --nsys -- ";
    assert!(under_nsys.contains(line), "{ended:?}");
}

#[test]
fn an_example_that_fails_is_no_success() {
    let scratch = Scratch::new();
    let mut command = demo(&scratch, "stand-in for CUDA");
    command.env("STATUS", "3");
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
        &["--window", "steady"],
        &["--window", "none"],
        &["--window", "40-"],
        &["--steps", "3"],
        &["--steps", "x"],
    ] {
        let ended = on_stand_in(arguments);
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

#[test]
fn without_nsys_there_is_the_record() {
    let scratch = Scratch::new();
    let mut command = demo(&scratch, "NVIDIA H200");
    command
        .env_remove("TLLMPROF_NSYS")
        .env("PATH", scratch.path("tmp"));
    // The demo's `PATH` contains no commands. The script that stands in for the example program uses `cp`, so it sets a
    // `PATH` of its own.
    let engine = ENGINE.replacen("#!/bin/sh\n", "#!/bin/sh\nPATH=/usr/bin:/bin\n", 1);
    command.env("TLLMPROF_ENGINE", scratch.script("engine", &engine));
    let ended = finish(&mut command);
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    assert!(!ended.stdout.contains("--nsys"), "{ended:?}");
    assert!(
        ended.stdout.contains("window 5-9: 5 iterations in 5.00 us"),
        "{ended:?}"
    );
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    for (signal, is_to_all) in [(libc::SIGINT, true), (libc::SIGTERM, false)] {
        let scratch = Scratch::new();
        let mut command = demo(&scratch, "stand-in for CUDA");
        let mut child = command
            .env("LASTS", "1")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map(Result::unwrap);
        assert!(lines.any(|line| line == "lasts"));
        assert!(!is_empty(&scratch), "nothing to leave");
        let number = child.id().cast_signed();
        // SAFETY: the child has not been waited for, so no other process can have its process id. A terminal sends the
        // signal to the whole group, kill(1) to one process.
        unsafe { libc::kill(if is_to_all { -number } else { number }, signal) };
        assert_eq!(wait(&mut child).unwrap().signal(), Some(signal));
        assert!(is_empty(&scratch));
    }
}
