//! Tests of the session in a process that forks or exits, or in which the library has nothing to
//! do.

use core::sync::atomic::Ordering;

use tllmprof_calls::Call::{GraphLaunch, LaunchKernel};
use tllmprof_steps::step::counted::Counted;

use super::{
    Orders, Process, after_fork_in_parent, before_fork, begins, call, calls, fork, on_thread,
    passes,
};
use crate::{OWNER, STATE, activity, slot};

#[test]
fn a_child_begins_anew() {
    let process = Process::new("TLLMPROF_START_STOP=2-4 TLLMPROF_STEP=cudaGraphLaunch");
    calls(4, GraphLaunch);
    assert_eq!(process.switches(), ["In(2): open 2-4"]);
    fork();
    assert!(slot().is_none() && !activity::uses_cuda());
    assert!(STATE.try_lock().is_some_and(|state| state.is_none()));
    crate::finish();
    assert_eq!(
        process.asked_for(&["ends"]),
        [""; 0],
        "the parent's window stays open"
    );
    calls(6, GraphLaunch);
    let expected = ["In(2): open 2-4", "In(2): open 2-4", "In(5): close 2-4"];
    assert_eq!(process.switches(), expected);
    assert_eq!(process.asked_for(&["start"]).len(), 2);
    assert_eq!(
        process.exit(),
        "window 2-4 captured: 6 iterations by cudaGraphLaunch"
    );
}

#[test]
fn a_child_of_a_process_that_has_ended_is_counted() {
    let process = Process::new("TLLMPROF_START_STOP=1 TLLMPROF_STEP=cudaGraphLaunch");
    calls(2, GraphLaunch);
    process.exit();
    fork();
    calls(3, GraphLaunch);
    let expected = ["In(1): open 1", "In(1): open 1", "In(2): close 1"];
    assert_eq!(process.switches(), expected);
}

#[test]
fn the_parent_goes_on_where_it_was() {
    let process = Process::new("TLLMPROF_START_STOP=2-4 TLLMPROF_STEP=cudaGraphLaunch");
    calls(4, GraphLaunch);
    before_fork();
    assert!(STATE.try_lock().is_none(), "it is held over the fork");
    after_fork_in_parent();
    calls(4, GraphLaunch);
    assert_eq!(process.switches(), ["In(2): open 2-4", "In(5): close 2-4"]);
}

#[test]
fn a_copy_of_the_process_for_which_no_handler_ran_is_left_alone() {
    let process = Process::new("TLLMPROF_START_STOP=2 TLLMPROF_STEP=cudaGraphLaunch");
    call(GraphLaunch);
    OWNER.fetch_add(1, Ordering::Relaxed);
    calls(5, GraphLaunch);
    assert_eq!(process.switches(), [""; 0]);
    assert_eq!(process.exit(), "");
    assert_eq!(process.asked_for(&["ends", "finish"]), [""; 0]);
}

#[test]
fn an_open_window_is_closed_at_the_end_once() {
    let process = Process::new("TLLMPROF_START_STOP=2-9 TLLMPROF_STEP=cudaGraphLaunch");
    calls(4, GraphLaunch);
    assert_eq!(
        process.exit(),
        "window 2-9 captured in part: 2-3, the program ended: 4 iterations by cudaGraphLaunch"
    );
    let asked = process.asked();
    crate::finish();
    crate::finish_at_once();
    calls(10, GraphLaunch);
    on_thread(|| calls(2, GraphLaunch));
    assert_eq!(process.asked(), asked, "nothing comes after it");
    assert_eq!(process.log.lines().len(), 1);
}

#[test]
fn what_a_signal_handler_may_not_do_is_left_out_where_the_process_ends_at_once() {
    let process = Process::new("TLLMPROF_START_STOP=0- TLLMPROF_STEP=sym:step");
    call(LaunchKernel);
    crate::finish_at_once();
    let expected = [
        "ends after 0",
        "record calls",
        "report unmatched sym:step, search false",
        "report missing",
        "finish after 0, drain true, here false",
        "finish record, in order false",
        "report totals at info",
    ];
    let asked = process.asked();
    let end = asked.iter().position(|line| line.starts_with("ends"));
    assert_eq!(asked[end.expect("it ends")..], expected);
}

#[test]
fn calls_after_the_end_ask_for_nothing() {
    let process = Process::new("TLLMPROF_START_STOP=0 TLLMPROF_STEP=nvtx:step");
    call(LaunchKernel);
    passes(Counted::Named);
    process.exit();
    let asked = process.asked();
    assert_eq!(begins(Counted::Named), None);
    crate::by_name::has_ended(1);
    crate::returned(tllmprof_calls::Call::StreamSynchronize, 0, true);
    assert_eq!(process.asked(), asked);
}

#[test]
fn a_process_that_does_not_use_cuda_is_left_alone() {
    let process = Process::new("TLLMPROF_START_STOP=0 TLLMPROF_STEP=py:m:f");
    passes(Counted::Python);
    assert_eq!(process.exit(), "");
    assert_eq!(
        process.asked_for(&["start", "ends", "finish", "In("]),
        [""; 0]
    );
}

#[test]
fn a_process_that_met_nothing_ends_without_a_word() {
    let process = Process::new("TLLMPROF_START_STOP=0 TLLMPROF_STEP=cudaGraphLaunch");
    assert_eq!(process.exit(), "");
    assert_eq!(process.asked(), [""; 0]);
}

#[test]
fn without_windows_and_record_nothing_is_done() {
    let process = Process::new("TLLMPROF_STEP=cudaGraphLaunch TLLMPROF_NVTX=0");
    assert!(!activity::is_active());
    calls(3, GraphLaunch);
    assert!(slot().is_none());
    assert_eq!(process.asked(), [""; 0]);
}

#[test]
fn a_wrong_variable_is_reported_once_cuda_is_used_and_turns_the_library_off() {
    let process = Process::new("TLLMPROF_START_STOP=9-3");
    assert!(!activity::is_active() && activity::settings().is_none());
    assert_eq!(process.log.lines(), [""; 0]);
    activity::touched();
    activity::touched();
    let lines = process.log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("TLLMPROF_START_STOP"), "{lines:?}");
    calls(3, GraphLaunch);
    crate::new_thread(true);
    assert!(slot().is_none());
    assert_eq!(process.exit(), lines[0], "nothing more is logged");
}

#[test]
fn a_variable_that_is_right_is_not_complained_about() {
    let process = Process::new("TLLMPROF_START_STOP=1");
    activity::touched();
    assert!(activity::is_active());
    assert_eq!(process.log.lines(), [""; 0]);
}

#[test]
fn the_level_of_the_log_holds_from_the_first_call_on() {
    let process =
        Process::new("TLLMPROF_START_STOP=0 TLLMPROF_STEP=cudaGraphLaunch TLLMPROF_LOG=warn");
    call(GraphLaunch);
    assert_eq!(process.exit(), "");
    assert_eq!(process.asked_for(&["finish record"]).len(), 1);
}

#[test]
fn ranges_are_counted_and_recorded_where_they_are_asked_for() {
    let counts = |variables| {
        let _process = Process::new(variables);
        let settings = activity::settings().expect("they are right");
        [
            activity::counts_ranges(settings),
            activity::records_ranges(settings),
        ]
    };
    assert_eq!(
        counts("TLLMPROF_START_STOP=1 TLLMPROF_STEP=nvtx:a"),
        [true, false]
    );
    assert_eq!(counts("TLLMPROF_START_STOP=1"), [false, false]);
    let orders = Orders {
        wants_record: true,
        ..Orders::NONE
    };
    let _process = Process::ordered("TLLMPROF_START_STOP=1", orders);
    let settings = activity::settings().expect("they are right");
    assert!(activity::records_ranges(settings));
}
