//! Checks `tllmprof demo` on the stand-in for CUDA: the profiler is on only during the window's iterations.

use std::process::Command;
use std::time::Duration;

use crate::common::{Scratch, read_log, run, shim, standin, tllmprof};

#[test]
fn the_demo_switches_the_profiler_for_the_window_alone() {
    let scratch = Scratch::new("demo");
    let log = scratch.path("calls");
    let mut demo = Command::new(tllmprof());
    demo.args(["demo", "--window", "3-4,7", "--steps", "12"])
        .env("TLLMPROF_LIB", shim())
        .env("TLLMPROF_ENGINE", standin().join("bin/engine"))
        .env("LD_LIBRARY_PATH", standin())
        .env("STANDIN_LOG", &log);
    let ended = run(&mut demo, Duration::from_secs(300));
    assert!(ended.status.success(), "{}{}", ended.out(), ended.err());
    let mut seen = Vec::new();
    for record in read_log(&log) {
        match record.function.as_str() {
            "cuProfilerStart" => seen.push("("),
            "cuProfilerStop" => seen.push(")"),
            "cuGraphLaunch" => seen.push("+"),
            _ => {}
        }
    }
    assert_eq!(seen.concat(), "+++(++)++(+)++++");
}
