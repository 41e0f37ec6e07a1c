//! Tests of stream captures: calls in a capture are no steps, and a capture may restart the
//! counting.

use core::time::Duration;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use tllmprof_calls::Call::{GraphLaunch, LaunchKernel, StreamBeginCapture, StreamEndCapture};
use tllmprof_steps::window::Point;

use super::{Act, Orders, Process, call, call_with, calls, on_thread};
use crate::{is_any_capturing, is_capturing, stream_capture};

const STREAM: usize = 7;

fn capture_begins() {
    call_with(StreamBeginCapture, &[STREAM], true);
}

fn capture_ends() {
    call_with(StreamEndCapture, &[STREAM], true);
}

#[test]
fn captured_calls_are_no_steps() {
    let process = Process::new("TLLMPROF_START_STOP=2 TLLMPROF_STEP=cudaLaunchKernel");
    calls(2, LaunchKernel);
    capture_begins();
    assert!(is_capturing() && is_any_capturing());
    calls(10, LaunchKernel);
    assert_eq!(process.switches(), [""; 0]);
    capture_ends();
    assert!(!is_capturing() && !is_any_capturing());
    call(LaunchKernel);
    assert_eq!(process.switches(), ["In(2): open 2"]);
}

#[test]
fn a_capture_starts_the_count_again_where_that_is_asked_for() {
    let process =
        Process::new("TLLMPROF_START_STOP=3 TLLMPROF_STEP=cudaGraphLaunch TLLMPROF_WARMUP=capture");
    calls(2, GraphLaunch);
    capture_begins();
    capture_ends();
    calls(3, GraphLaunch);
    assert_eq!(process.switches(), [""; 0]);
    assert_eq!(
        process.exit(),
        "window 3 never opened: 3 iterations by cudaGraphLaunch; the count started again after 1 \
         stream capture (TLLMPROF_WARMUP=0 counts through)"
    );
}

#[test]
fn no_capture_starts_the_count_again_once_a_window_has_opened() {
    let process = Process::new(
        "TLLMPROF_START_STOP=1,4 TLLMPROF_STEP=cudaGraphLaunch TLLMPROF_WARMUP=capture",
    );
    calls(3, GraphLaunch);
    capture_begins();
    capture_ends();
    calls(3, GraphLaunch);
    let expected = [
        "In(1): open 1",
        "In(2): close 1",
        "In(4): open 4",
        "In(5): close 4",
    ];
    assert_eq!(process.switches(), expected);
}

#[test]
fn a_capture_that_the_driver_refuses_is_none() {
    let process = Process::new("TLLMPROF_START_STOP=1 TLLMPROF_STEP=cudaGraphLaunch");
    call_with(StreamBeginCapture, &[STREAM], false);
    assert!(!is_capturing() && !is_any_capturing());
    capture_ends(); // ends a capture that never began
    assert!(!is_any_capturing());
    calls(2, GraphLaunch);
    assert_eq!(process.switches(), ["In(1): open 1"]);
}

#[test]
fn a_capture_may_end_on_another_thread() {
    let _process = Process::new("TLLMPROF_START_STOP=9 TLLMPROF_STEP=cudaGraphLaunch");
    capture_begins();
    on_thread(|| {
        call(LaunchKernel);
        assert!(!is_capturing() && is_any_capturing());
        capture_ends();
    });
    assert!(!is_capturing() && !is_any_capturing());
}

#[test]
fn a_thread_that_ends_captures_no_more() {
    let _process = Process::new("TLLMPROF_START_STOP=9 TLLMPROF_STEP=cudaGraphLaunch");
    on_thread(|| {
        capture_begins();
        assert!(is_any_capturing());
    });
    assert!(!is_any_capturing());
}

#[test]
fn the_sink_learns_that_a_thread_captures() {
    let process = Process::new("TLLMPROF_START_STOP=0 TLLMPROF_STEP=cudaGraphLaunch");
    let (is_capturing, captures) = channel();
    let (go_on, goes_on) = channel::<()>();
    let other = std::thread::spawn(move || {
        capture_begins();
        is_capturing.send(()).expect("the test waits for it");
        let _ = goes_on.recv();
    });
    captures.recv().expect("it captures");
    calls(2, GraphLaunch);
    assert_eq!(
        process.switches(),
        ["In(0): open 0 capturing", "In(1): close 0 capturing"]
    );
    process.exit();
    assert_eq!(process.asked_for(&["ends"]), ["ends after 2, capturing"]);
    drop(go_on);
    other.join().expect("it returns");
}

#[test]
fn a_window_that_is_open_at_the_end_is_not_drained_for_while_a_stream_is_captured() {
    let process = Process::new("TLLMPROF_START_STOP=0- TLLMPROF_STEP=cudaGraphLaunch");
    call(GraphLaunch);
    capture_begins();
    process.exit();
    assert_eq!(
        process.asked_for(&["finish after"]),
        ["finish after 1, drain false, here true"]
    );
}

#[test]
fn a_capture_waits_for_a_drain_that_is_about_to_begin_but_not_for_long() {
    let _process = Process::new("TLLMPROF_START_STOP=0 TLLMPROF_STEP=cudaGraphLaunch");
    call(LaunchKernel);
    assert!(!stream_capture::about_to_drain(true));
    let since = Instant::now();
    stream_capture::begins();
    assert!(
        since.elapsed() >= Duration::from_millis(50),
        "{:?}",
        since.elapsed()
    );
    assert!(stream_capture::about_to_drain(true), "it captures now");
    stream_capture::drained();
    let mut waits = (0..100).map(|_| {
        let before = waits_of_this_thread();
        stream_capture::begins();
        waits_of_this_thread() - before
    });
    assert!(waits.any(|waits| waits == 0), "each has waited");
}

/// Returns the number of times that the calling thread has given up its processor in order to wait.
fn waits_of_this_thread() -> libc::c_long {
    // SAFETY: all zeros is a valid `rusage`, and the kernel writes only to it.
    unsafe {
        let mut usage: libc::rusage = core::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nvcsw
    }
}

#[test]
fn a_capture_that_begins_while_a_window_closes_waits_for_it() {
    let act: Act = Arc::new(|point| {
        let began = on_thread(|| {
            let since = Instant::now();
            capture_begins();
            since.elapsed()
        });
        // The beginning of a capture is delayed only if a window closes at that point, because only then does the
        // library wait for the device.
        let waits = point == Point::In(1);
        assert!(!waits || began >= Duration::from_millis(50), "{began:?}");
    });
    let orders = Orders {
        while_switching: Some(act),
        ..Orders::NONE
    };
    let process = Process::ordered(
        "TLLMPROF_START_STOP=0 TLLMPROF_STEP=cudaGraphLaunch",
        orders,
    );
    calls(2, GraphLaunch);
    assert_eq!(process.switches(), ["In(0): open 0", "In(1): close 0"]);
}
