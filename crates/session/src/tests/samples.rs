//! Tests of kernel samples: windows that the library opens at intervals to record GPU kernels.

use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tllmprof_calls::Call::GraphLaunch;

use super::{Orders, Process, call, calls};
use crate::live::{self, DemandProgress, WindowRequest};

fn second() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

/// Makes steps until a kernel sample opens. Returns the number of steps.
fn until_sampled(process: &Process) -> u64 {
    let mut made = 0;
    while process.switches().is_empty() {
        assert!(made < 60_000, "there is no sample");
        call(GraphLaunch);
        sleep(Duration::from_millis(1));
        made += 1;
    }
    made
}

#[test]
fn a_window_that_is_asked_for_ends_the_sample_that_is_open() {
    let variables = "TLLMPROF_STEP=cudaGraphLaunch TLLMPROF_TRACE= TLLMPROF_KERNELS=5000@1s";
    let process = Process::ordered(variables, Orders::NONE);
    let first = until_sampled(&process) - 1;
    let sample = format!("{first}-{}", first + 4999);
    calls(4, GraphLaunch);
    let next = first + 5;
    let ask = |first| {
        live::ask(WindowRequest {
            first,
            iterations: Some(2),
            ..WindowRequest::default()
        })
    };
    let asked = ask(None).unwrap();
    let window = format!("{next}-{}", next + 1);
    assert_eq!(asked.window.to_string(), window);
    assert!(ask(Some(next + 9)).is_err(), "the first request is kept");
    call(GraphLaunch);
    let progress = || live::progress(asked.number);
    assert_eq!(progress(), Some(DemandProgress::Open(next)));
    calls(2, GraphLaunch);
    let closed = Some(DemandProgress::Closed(Some((next, next + 1))));
    assert_eq!(progress(), closed);
    let switches = process.switches();
    assert_eq!(
        switches[..3],
        [
            format!("In({first}): open {sample}"),
            format!("In({next}): close {first}-{} open {window}", next - 1),
            format!("In({}): close {window}", next + 2),
        ]
    );
}

#[test]
fn the_numbers_of_a_planned_window_stay_those_after_the_last_stream_capture() {
    let variables = "TLLMPROF_STEP=cudaGraphLaunch TLLMPROF_TRACE= TLLMPROF_KERNELS=3@1s TLLMPROF_WARMUP=capture";
    let planned = format!("{variables} TLLMPROF_START_STOP=50000-50001");
    let process = Process::ordered(&planned, Orders::NONE);
    let end = second() + 2;
    while second() < end {
        call(GraphLaunch);
        sleep(Duration::from_millis(1));
    }
    assert!(process.switches().is_empty(), "{:?}", process.switches());
    drop(process);
    // No window is planned by iteration numbers, so a kernel sample may open at once.
    until_sampled(&Process::ordered(variables, Orders::NONE));
}
