//! Tests of triggers, which open a window after an iteration that meets a condition.

use tllmprof_calls::Call::GraphLaunch;
use tllmprof_steps::trigger::Spent;

use super::{MADE, Orders, Process, call, calls};
use crate::live::{self, DemandProgress, WindowRequest};

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
    // The planned window opens where the trigger's window closes. No trigger has opened it.
    let opens = why.iter().filter(|said| said.contains(" opens as "));
    assert_eq!(opens.count(), 2, "{why:?}");
}

#[test]
fn the_iteration_in_which_a_window_was_closed_opens_none() {
    let process = Process::ordered(&format!("{WHEN} TLLMPROF_START_STOP=2-3"), Orders::NONE);
    calls(5, GraphLaunch);
    waited(30);
    assert_eq!(process.switches(), ["In(2): open 2-3", "In(4): close 2-3"]);
    waited(30);
    assert_eq!(process.switches()[2..], ["In(6): open 6-8"]);
}

#[test]
fn a_window_that_overlaps_a_planned_one_is_counted_as_skipped() {
    let variables = format!("{WHEN} TLLMPROF_WHEN_AT_MOST=1/1h TLLMPROF_START_STOP=7-8");
    let process = Process::ordered(&variables, Orders::NONE);
    calls(5, GraphLaunch);
    waited(30);
    calls(5, GraphLaunch);
    waited(30);
    assert_eq!(
        process.switches(),
        ["In(7): open 7-8", "In(9): close 7-8", "In(11): open 11-13"]
    );
    let why = process.log.lines();
    let line = "; 1 more before, for which no window was opened";
    assert!(why.iter().any(|said| said.contains(line)), "{why:?}");
}

#[test]
fn a_trigger_opens_nothing_on_a_rank_that_is_not_selected() {
    for (ranks, opened) in [("0", &["In(5): open 5-7"][..]), ("1", &[])] {
        let variables = format!("{WHEN} TLLMPROF_START_STOP=50-51 TLLMPROF_RANKS={ranks}");
        let process = Process::ordered(&variables, Orders::NONE);
        calls(5, GraphLaunch);
        waited(30);
        let mut switches = process.switches();
        switches.retain(|switch| switch.contains("open"));
        assert_eq!(switches, opened, "{ranks}");
    }
}

#[test]
fn a_window_that_is_asked_for_may_follow_a_triggers() {
    let process = Process::ordered(WHEN, Orders::NONE);
    calls(5, GraphLaunch);
    waited(30);
    let asked = live::ask(WindowRequest {
        delay: 2,
        iterations: Some(2),
        ..WindowRequest::default()
    });
    let asked = asked.unwrap();
    assert_eq!(asked.window.to_string(), "8-9");
    calls(3, GraphLaunch);
    assert_eq!(
        process.switches(),
        ["In(5): open 5-7", "In(8): close 5-7 open 8-9"]
    );
    assert_eq!(live::progress(asked.number), Some(DemandProgress::Open(8)));
}

#[test]
fn of_two_windows_that_were_asked_for_each_has_its_own_progress() {
    let process = Process::ordered(WHEN, Orders::NONE);
    calls(5, GraphLaunch);
    let ask = |first, iterations| {
        let asked = live::ask(WindowRequest {
            first: Some(first),
            iterations: Some(iterations),
            ..WindowRequest::default()
        });
        asked.unwrap().number
    };
    let one = ask(5, 2);
    call(GraphLaunch);
    let other = ask(8, 1);
    let progress = || [one, other].map(|number| live::progress(number).unwrap());
    assert_eq!(progress(), [DemandProgress::Open(5), DemandProgress::Waits]);
    live::close(other); // it is not open, so nothing is closed
    calls(2, GraphLaunch);
    let closed = DemandProgress::Closed(Some((5, 6)));
    assert_eq!(progress(), [closed, DemandProgress::Waits]);
    call(GraphLaunch);
    assert_eq!(progress(), [closed, DemandProgress::Open(8)]);
    call(GraphLaunch);
    assert_eq!(progress(), [closed, DemandProgress::Closed(Some((8, 8)))]);
    assert_eq!(live::progress(other + 1), None);
    assert_eq!(process.switches().len(), 4);
}

#[test]
fn a_window_is_closed_early_and_the_one_behind_it_still_opens() {
    let process = Process::ordered(WHEN, Orders::NONE);
    calls(5, GraphLaunch);
    let ask = |first, iterations| {
        let asked = live::ask(WindowRequest {
            first: Some(first),
            iterations: Some(iterations),
            ..WindowRequest::default()
        });
        asked.unwrap().number
    };
    let one = ask(5, 3);
    call(GraphLaunch);
    let other = ask(9, 1);
    live::close(one);
    calls(5, GraphLaunch);
    let closed = |first, last| Some(DemandProgress::Closed(Some((first, last))));
    assert_eq!(live::progress(one), closed(5, 5));
    assert_eq!(live::progress(other), closed(9, 9));
    assert_eq!(process.switches().len(), 4);
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
    let asked = asked.unwrap();
    assert_eq!(asked.window.to_string(), "5-6");
    waited(30);
    calls(6, GraphLaunch);
    let closed = Some(DemandProgress::Closed(Some((5, 6))));
    let progress = || live::progress(asked.number);
    assert_eq!(progress(), closed);
    waited(30);
    assert_eq!(progress(), closed);
    assert_eq!(
        live::status().unwrap().window.unwrap().0.to_string(),
        "10-12"
    );
    // A request can stop a window that a trigger has opened, like any other window.
    assert!(live::stop());
    call(GraphLaunch);
    assert_eq!(progress(), closed);
    assert_eq!(
        live::planned_progress(Some(10)),
        Some(DemandProgress::Closed(Some((10, 10))))
    );
    assert_eq!(process.switches().len(), 4);
}
