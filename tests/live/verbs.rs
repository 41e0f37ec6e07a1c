//! Checks the output of commands for running processes: median step times in `ps`, repeated captures, and captures that
//! start and stop the CUDA profiler without recording.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tllmprof_control::Phase;

use crate::common::PROFILED;
use crate::place::{Place, switches, wait_until};

#[test]
fn ps_shows_the_median_step_of_a_process_that_times_its_steps() {
    let place = Place::new();
    let server = place.start(&mut place.server("2000"));
    let mut untimed = place.server("2000");
    untimed.env_remove("TLLMPROF_TRACE");
    let untimed = place.start(&mut untimed);
    server.connect();
    untimed.connect();
    let listed = place.ps();
    let of = |pid: u32| {
        let its = |process: &&serde_json::Value| process["pid"] == pid;
        listed.iter().find(its).unwrap()
    };
    let p50 = of(server.pid())["p50_ns"].as_u64().unwrap();
    assert!((2_000_000..1_000_000_000).contains(&p50), "{p50}");
    assert!(of(untimed.pid())["p50_ns"].is_null(), "{listed:?}");
    let table = place.tllmprof("ps").out();
    let header = table.lines().next().unwrap();
    let columns: Vec<_> = header.split_whitespace().collect();
    assert_eq!(
        columns,
        [
            "PID", "RANK", "ENGINE", "RULE", "STEPS", "STEPS/S", "P50", "STATE", "RECORD"
        ]
    );
    let row = |pid: u32| {
        let pid = format!("{pid} ");
        let mut rows = table.lines().map(str::trim_start);
        rows.find(|row| row.starts_with(&pid)).unwrap()
    };
    assert!(row(server.pid()).contains(" ms  armed  /"), "{table}");
    assert!(row(untimed.pid()).contains(" -  armed  -"), "{table}");
}

#[test]
fn captures_repeat_at_intervals_and_one_page_has_them_all() {
    let place = Place::new();
    // The server ignores this argument, which makes its command line long.
    let long = "x".repeat(120);
    let mut server = place.start(&mut place.server(&format!("500 {long}")));
    server.connect();
    let pid = server.pid();
    let since = Instant::now();
    let captured = place.tllmprof(&format!(
        "capture {pid} --steps 4 --repeat 3 --every 300ms -o copies --html page.html"
    ));
    assert!(captured.status.success(), "{}", captured.err());
    assert!(
        captured.err().contains("capture 3 of 3"),
        "{}",
        captured.err()
    );
    assert!(since.elapsed() >= 2 * Duration::from_millis(300));
    let reports = captured.out().matches(": 4 iterations in").count();
    assert_eq!(reports, 3, "{}", captured.out());
    // Output to a pipe is not cut at the width of a screen.
    assert_eq!(captured.out().matches(&long).count(), 3);
    let windows = server.windows();
    assert_eq!(windows.len(), 3, "{windows:?}");
    assert_eq!(fs::read_dir(place.path("copies")).unwrap().count(), 3);
    assert!(place.path("page.html").exists());
    // If the process does not exist, the command ends at the first attempt instead of repeating.
    server.end();
    let gone = place.tllmprof(&format!("capture {pid} --repeat 3 --every 100ms"));
    assert_eq!(gone.status.code(), Some(1));
    assert_eq!(
        gone.err().matches("there is no such process").count(),
        1,
        "{}",
        gone.err()
    );
}

#[test]
fn an_interrupted_wait_for_the_next_capture_ends_them() {
    let place = Place::new();
    let mut server = place.start(&mut place.server("500"));
    server.connect();
    let capture = place
        .command(&format!("capture {} --steps 4 --repeat 5", server.pid()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the first window", || server.windows().len() == 1);
    // SAFETY: kill takes no pointer. The process is a child that has not been waited for.
    unsafe { libc::kill(capture.id().cast_signed(), libc::SIGINT) };
    let output = capture.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{err}");
    assert!(
        err.contains("capture 1 of 5") && !err.contains("capture 2 of 5"),
        "{err}"
    );
    server.end();
    assert_eq!(server.windows().len(), 1);
}

#[test]
fn a_window_for_a_profiler_begins_no_record_and_is_refused_where_none_waits() {
    let place = Place::new();
    let mut command = place.server("500");
    command.env_remove("TLLMPROF_TRACE");
    let mut server = place.start(&mut command);
    server.connect();
    let captured = place.tllmprof(&format!("capture {} --steps 4 --profiler", server.pid()));
    assert!(captured.status.success(), "{}", captured.err());
    assert!(
        captured.err().contains("the profiler took iterations "),
        "{}",
        captured.err()
    );
    assert!(captured.out().is_empty(), "{}", captured.out());
    let records = || {
        let all = fs::read_dir(place.0.folder()).unwrap().flatten();
        all.filter(|entry| entry.file_name().to_str().unwrap().ends_with(".tllmprof"))
            .count()
    };
    assert_eq!(records(), 0);
    let taken = switches(&place.path("calls"), server.pid());
    assert!(
        taken.len() == 1 && taken[0].1 - taken[0].0 == 3,
        "{taken:?}"
    );
    // This capture also records, so it starts a record. The earlier capture only started and stopped the CUDA profiler.
    let recorded = place.tllmprof(&format!("capture {} --steps 4", server.pid()));
    assert!(recorded.status.success(), "{}", recorded.err());
    assert_eq!(records(), 1);
    server.end();
    fs::remove_file(place.path("end")).unwrap();
    let mut alone = place.start(place.server("500").env_remove(PROFILED));
    alone.connect();
    let refused = place.tllmprof(&format!("capture {} --profiler", alone.pid()));
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        refused
            .err()
            .contains("profiler: the process was started without it")
            && refused.err().contains("nsys profile -c cudaProfilerApi"),
        "{}",
        refused.err()
    );
    alone.end();
}

#[test]
fn the_default_window_gives_way_to_a_capture_and_opens_again() {
    let place = Place::new();
    let mut command = place.server("2000");
    command
        .env("TLLMPROF_START_STOP", "auto")
        .env_remove(PROFILED);
    let mut server = place.start(&mut command);
    let pid = server.pid();
    let mut peer = server.connect();
    wait_until("the window", || peer.status().phase == Phase::Open);
    // The server pauses until the capture is requested, so that the default window is still open then.
    server.pause();
    let capture = place
        .command(&format!("capture {pid} --steps 5"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the request", || {
        server.err().contains("was asked for on demand")
    });
    server.resume();
    let captured = capture.wait_with_output().unwrap();
    let out = String::from_utf8_lossy(&captured.stdout);
    assert!(
        captured.status.success() && out.contains(": 5 iterations in"),
        "{}",
        String::from_utf8_lossy(&captured.stderr)
    );
    let is_over = || {
        let err = server.err();
        err.lines()
            .filter(|line| line.contains(" closed: "))
            .count()
            == 2
    };
    wait_until("the end of both windows", is_over);
    server.end();
    let windows = server.windows();
    let [before, demanded, after] = windows[..] else {
        panic!("{windows:?}");
    };
    assert_eq!(demanded.1 - demanded.0, 4);
    assert_eq!((before.1 + 1, demanded.1 + 1), (demanded.0, after.0));
    let err = server.err();
    assert!(
        err.contains(&format!(
            "gives way to window {}-{}",
            demanded.0, demanded.1
        )),
        "{err}"
    );
    assert!(err.contains(", in 2 parts"), "{err}");
    // In this run, the settings request a window for a profiler. Such a window has priority over a capture on demand.
    fs::remove_file(place.path("end")).unwrap();
    let mut profiled = place.start(
        place
            .server("2000")
            .env("TLLMPROF_START_STOP", "steady:100000"),
    );
    let refused = place.tllmprof(&format!("capture {} --steps 5", profiled.pid()));
    let why = [
        "is to come first, for the profiler",
        "is open: it ends with iteration",
    ];
    assert!(
        why.iter().any(|why| refused.err().contains(why)),
        "{}",
        refused.err()
    );
    profiled.end();
}

#[test]
fn a_window_that_was_asked_for_is_waited_for_or_refuses_the_capture() {
    let place = Place::new();
    let mut server = place.start(place.server("500").env("TLLMPROF_START_STOP", "0-4000"));
    let pid = server.pid();
    // The server pauses in the window, so that the window is still open when the capture is requested.
    server.pause();
    wait_until("the window", || place.ps()[0]["state"] == "open");
    let refused = place.tllmprof(&format!("capture {pid} --steps 5"));
    assert!(!refused.status.success());
    assert!(
        refused.err().contains(
            "window 0-4000 is open: it ends with iteration 4000 (--wait TIME waits for it)"
        ),
        "{}",
        refused.err()
    );
    server.resume();
    let waited = place.tllmprof(&format!("capture {pid} --steps 5 --wait 60s"));
    assert!(waited.status.success(), "{}", waited.err());
    server.end();
    assert_eq!(server.windows(), [(0, 4000), (4001, 4005)]);
}
