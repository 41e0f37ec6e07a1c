//! Tests of triggers, which open a window after an iteration that meets a condition.

use tllmprof_calls::Call::GraphLaunch;
use tllmprof_steps::trigger::Spent;

use super::{MADE, Orders, Process, call, calls};
use crate::live::{self, WindowRequest};

/// Ends the current iteration, as if it had waited `ms` milliseconds for the GPU, and begins the next one.
fn waited(ms: u64) {
    MADE.orders().spent = Spent {
        wait: ms * 1_000_000,
        ..Spent::default()
    };
    call(GraphLaunch);
    MADE.orders().spent = Spent::default();
}

// Environment variables for a process with a trigger: a window of three iterations opens after an iteration that waits
// for the GPU for more than 20 ms.
const WHEN: &str =
    "TLLMPROF_STEP=cudaGraphLaunch TLLMPROF_TRACE= TLLMPROF_WHEN=wait>20ms TLLMPROF_WHEN_STEPS=3";

#[test]
fn a_window_opens_behind_an_iteration_and_not_within_another_window() {
    let process = Process::ordered(&format!("{WHEN} TLLMPROF_START_STOP=20-22"), Orders::NONE);
    calls(5, GraphLaunch);
    waited(30);
    assert_eq!(process.switches(), ["In(5): open 5-7"]);
    waited(30);
    calls(9, GraphLaunch);
    waited(10);
    waited(25);
    calls(20, GraphLaunch);
    let expected = [
        "In(5): open 5-7",
        "In(8): close 5-7",
        "In(17): open 17-19",
        "In(20): close 17-19 open 20-22",
        "In(23): close 20-22",
    ];
    assert_eq!(process.switches(), expected);
    let why = process.log.lines();
    let line = "window 5-7 opens as wait>20ms held for iteration 4: ";
    assert!(why.iter().any(|said| said.contains(line)), "{why:?}");
}

#[test]
fn who_has_asked_for_a_window_gets_that_and_hears_of_no_other() {
    let process = Process::ordered(WHEN, Orders::NONE);
    calls(3, GraphLaunch);
    let asked = live::ask(WindowRequest {
        delay: 2,
        iterations: Some(2),
        ..WindowRequest::default()
    });
    assert_eq!(asked.unwrap().to_string(), "5-6");
    waited(30);
    calls(6, GraphLaunch);
    let closed = Some(live::DemandProgress::Closed(Some((5, 6))));
    assert_eq!(live::progress(), closed);
    waited(30);
    assert_eq!(live::progress(), closed);
    assert_eq!(
        live::status().unwrap().window.unwrap().0.to_string(),
        "10-12"
    );
    // A request can stop a window that a trigger has opened, like any other window.
    assert!(live::stop());
    call(GraphLaunch);
    assert_eq!(live::progress(), closed);
    assert_eq!(
        live::planned_progress(),
        Some(live::DemandProgress::Closed(Some((10, 10))))
    );
    assert_eq!(process.switches().len(), 4);
}
