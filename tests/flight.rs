//! Checks the flight recorder: the record has the latest steps outside windows, no matter how the process ends.

mod common;
#[path = "flight/no_step.rs"]
mod no_step;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};

use common::load::{Load, iterations, windows};
use serde_json::Value;
use tllmprof_control::{Capture, ControlEvent, Request};

/// Starts the serving loop. Returns it once it has made all its steps and is waiting to be killed.
fn waits(load: &Load, planted: &str, variables: &[(&str, &str)]) -> Option<Child> {
    let mut command = load.command(planted, variables)?;
    let log = fs::File::create(load.scratch.path("err")).unwrap();
    let mut child = command
        .env("END", "waits")
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "waits\n");
    Some(child)
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

#[test]
fn the_latest_steps_are_there_after_a_kill_with_their_causes() {
    let load = Load::new();
    let variables = [
        ("TLLMPROF_FLIGHT", "30"),
        ("LAST", "200"),
        ("TLLMPROF_GIL", "1"),
        ("TLLM_PROFILE_RECORD_GC", "1"),
    ];
    let planted = "90:collects 180:collects 190:needs_gil 195:waits";
    let Some(child) = waits(&load, planted, &variables) else {
        return;
    };
    kill(child);
    let process = load.report().unwrap();
    assert_eq!(process["state"], "unfinished", "{process}");
    assert_eq!(windows(&process), [(170, 199)]);
    assert_eq!(process["windows"][0]["past"], true);
    let kept = iterations(&process);
    let numbers: Vec<_> = kept.iter().map(|one| number(&one["n"])).collect();
    assert_eq!(numbers, (170..=199).collect::<Vec<_>>());
    let longest = |key: &str| kept.iter().max_by_key(|one| number(&one[key])).unwrap();
    assert_eq!(longest("gc_ns")["n"], 180);
    assert_eq!(longest("gil_wait_ns")["n"], 190);
    assert_eq!(longest("wait_ns")["n"], 195);
    assert!(
        kept.iter()
            .all(|one| one["batch"]["requests"] == 8 && number(&one["calls"]) >= 2)
    );
    assert_eq!(process["outside"]["iterations"], 170);
}

#[test]
fn what_is_kept_is_bounded_however_long_it_runs() {
    let size = |steps: &str| {
        let load = Load::new();
        let variables = [("TLLMPROF_FLIGHT", "20"), ("LAST", steps), ("FAST", "1")];
        let child = waits(&load, "", &variables)?;
        let size = fs::metadata(load.scratch.path("steps.tllmprof"))
            .unwrap()
            .len();
        kill(child);
        let process = load.report().unwrap();
        let last: u64 = steps.parse().unwrap();
        assert_eq!(windows(&process), [(last - 20, last - 1)]);
        assert_eq!(process["damage"], Value::Null, "{process}");
        Some(size)
    };
    // The record consists of chunks of 2700 events, and a step has about ten events. Both runs have many more events
    // than the record keeps, so both records must have the same size.
    let (Some(short), Some(long)) = (size("3000"), size("30000")) else {
        return;
    };
    assert_eq!(short, long);
}

#[test]
fn a_trigger_leaves_the_steps_before_it_and_those_behind() {
    // The stalls are so long that a busy machine causes none like them.
    let variables = [
        ("STALL", "2"),
        ("TLLMPROF_FLIGHT", "15"),
        ("TLLMPROF_WHEN", "iteration > 1500ms"),
        ("TLLMPROF_WHEN_STEPS", "5"),
        ("LAST", "140"),
    ];
    let Some(ran) = Load::new().run("60:sleeps 63:sleeps 100:sleeps", &variables) else {
        return;
    };
    let context = ran.output.err();
    let fired: Vec<_> = ran.fired().iter().map(|(number, _)| *number).collect();
    assert_eq!(fired, [60, 100], "{context}");
    // The condition holds at steps 60 and 100. For each of them, the report has two windows: the 15 steps up to and
    // including this step, which the flight recorder has kept, and the next 5 steps, which were captured. The last
    // window has the latest steps, which the process writes when it ends.
    let expected = [(46, 60), (61, 65), (86, 100), (101, 105), (125, 139)];
    assert_eq!(ran.windows(), expected, "{context}");
    let process = ran.process.unwrap();
    assert_eq!(process["state"], "whole");
    let windows = process["windows"].as_array().unwrap().iter();
    let pasts: Vec<_> = windows.map(|window| window["past"] == true).collect();
    assert_eq!(pasts, [true, false, true, false, true]);
    let kept = iterations(&process);
    let slow = kept
        .iter()
        .filter(|one| number(&one["dur_ns"]) > 1_500_000_000);
    assert_eq!(
        slow.map(|one| number(&one["n"])).collect::<Vec<_>>(),
        [60, 63, 100]
    );
    let outside = number(&process["outside"]["iterations"]);
    assert_eq!(outside + kept.len() as u64, 140);
}

#[test]
fn a_window_on_demand_takes_its_past_with_it() {
    let load = Load::new();
    let run = load.scratch.path("run");
    fs::create_dir(&run).unwrap();
    let variables = [
        ("TLLMPROF_FLIGHT", "10"),
        ("TLLMPROF_CONTROL", "1"),
        ("XDG_RUNTIME_DIR", run.to_str().unwrap()),
        ("LAST", "100000"),
    ];
    let Some(mut command) = load.command("", &variables) else {
        return;
    };
    let log = fs::File::create(load.scratch.path("err")).unwrap();
    let child = command.stderr(log).spawn().unwrap();
    let socket = run.join(format!("tllmprof/{}.sock", child.id()));
    let since = std::time::Instant::now();
    // The socket's file is there a moment before the process listens.
    let stream = loop {
        match UnixStream::connect(&socket) {
            Ok(stream) => break stream,
            Err(error) => assert!(since.elapsed() < common::load::TEST_TIMEOUT, "{error}"),
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    let mut peer = BufReader::new(stream);
    let mut ask = |past: bool| {
        let request = Request::Capture(Capture {
            steps: Some(5),
            delay: Some(30),
            past,
            ..Capture::default()
        });
        peer.get_mut()
            .write_all(request.to_line().as_bytes())
            .unwrap();
        loop {
            let mut line = Vec::new();
            peer.read_until(b'\n', &mut line).unwrap();
            if let ControlEvent::Closed(closed) = ControlEvent::from_line(&line).unwrap() {
                return closed.steps.unwrap();
            }
        }
    };
    let (with, without) = (ask(true), ask(false));
    kill(child);
    let process = load.report().unwrap();
    let mut found = windows(&process);
    // The record may also have the latest steps before the kill, if any step was complete by then. They come after the
    // first three windows and are not checked.
    found.truncate(3);
    assert_eq!(found, [(with.0 - 10, with.0 - 1), with, without]);
}

#[test]
fn the_past_of_old_windows_goes_with_them_where_the_record_is_bounded() {
    let load = Load::new();
    let variables = [
        ("TLLMPROF_FLIGHT", "4"),
        ("TLLMPROF_WHEN", "prefill_tokens > 0"),
        ("TLLMPROF_WHEN_AT_MOST", "10000/1h"),
        ("TLLMPROF_WHEN_STEPS", "3"),
        ("TLLMPROF_KEEP", "1M"),
        ("LAST", "10000"),
        ("FAST", "1"),
    ];
    let Some(child) = waits(&load, "", &variables) else {
        return;
    };
    let record = load.scratch.path("steps.tllmprof");
    assert_eq!(fs::metadata(&record).unwrap().len(), 1 << 20);
    kill(child);
    let process = load.report().unwrap();
    assert_eq!(process["damage"], Value::Null, "{process}");
    assert_eq!(process["dropped"], 0);
    let found = windows(&process);
    // The trigger fires at step 4 of every 10. The report then has two windows: the four steps up to and including step
    // 4, and the next three. The last two steps of the run are a window, too, because the process writes its latest
    // steps when it ends. The record's size is limited, so it has only the last windows.
    let first = found[0].0 / 10 * 10;
    let triggered = (first..10_000).step_by(10);
    let pairs = triggered.flat_map(|at| [(at + 1, at + 4), (at + 5, at + 7)]);
    let mut expected: Vec<_> = pairs.collect();
    expected.retain(|window| window.0 >= found[0].0);
    expected.push((9_998, 9_999));
    assert_eq!(found, expected);
    let gone = number(&process["windows_dropped"]);
    assert_eq!(gone + found.len() as u64, 2001);
    assert!(found.len() > 50, "{}", found.len());
    let kept: Vec<_> = iterations(&process)
        .iter()
        .map(|one| number(&one["n"]))
        .collect();
    let whole = expected.iter().flat_map(|(first, last)| *first..=*last);
    assert_eq!(kept, whole.collect::<Vec<_>>());
    assert!(
        iterations(&process)
            .iter()
            .all(|one| one["batch"]["requests"] == 8 && number(&one["calls"]) >= 2)
    );
    let named = process["threads"].as_array().unwrap();
    assert!(
        named.iter().any(|thread| thread["name"] != Value::Null),
        "{named:?}"
    );
}
