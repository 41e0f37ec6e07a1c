//! What the verbs list and take: medians, captures again and again, windows for a profiler alone.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

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
        let pid = pid.to_string();
        let mut rows = table.lines().map(str::trim_start);
        rows.find(|row| row.starts_with(&pid)).unwrap()
    };
    assert!(row(server.pid()).contains(" ms  armed  /"), "{table}");
    assert!(row(untimed.pid()).contains(" -  armed  -"), "{table}");
}

#[test]
fn captures_repeat_at_intervals_and_one_page_has_them_all() {
    let place = Place::new();
    let mut server = place.start(&mut place.server("500"));
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
    let windows = server.windows();
    assert_eq!(windows.len(), 3, "{windows:?}");
    assert_eq!(fs::read_dir(place.path("copies")).unwrap().count(), 3);
    assert!(place.path("page.html").exists());
    // What is wrong at once ends it.
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
    // SAFETY: takes no pointer; the process is a child that nobody has waited for.
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
    // A record is begun by a capture that is not for the profiler alone.
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
