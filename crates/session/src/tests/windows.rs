//! Tests which iterations a window contains, for each kind of rule for a step, and which iterations the record gets.

use tllmprof_calls::Call::{
    EventSynchronize, GraphLaunch, LaunchKernel, ProfilerStart, StreamSynchronize,
};
use tllmprof_config::Condition;
use tllmprof_steps::step::counted::Counted;
use tllmprof_steps::window::Point;

use super::{MADE, Orders, Process, begins, call, calls, decodes, passes, runs_named};
use crate::live::{self, WindowRequest};
use crate::state::STATE;
use crate::{LostData, activity, by_name, slot};

const RECORD: Orders = Orders {
    wants_record: true,
    ..Orders::NONE
};

#[test]
fn a_launch_opens_and_closes_the_window_exactly() {
    let process = Process::new("TLLMPROF_START_STOP=5-9 TLLMPROF_STEP=cudaGraphLaunch");
    for number in 0..40 {
        call(GraphLaunch);
        let switched = match number {
            0..5 => 0,
            5..10 => 1,
            _ => 2,
        };
        assert_eq!(process.switches().len(), switched, "launch {number}");
    }
    assert_eq!(process.switches(), ["In(5): open 5-9", "In(10): close 5-9"]);
    assert_eq!(
        process.exit(),
        "window 5-9 captured: 40 iterations by cudaGraphLaunch"
    );
}

#[test]
fn the_last_line_says_what_the_record_lacks() {
    let process = Process::new("TLLMPROF_START_STOP=5-9 TLLMPROF_STEP=cudaGraphLaunch");
    (0..40).for_each(|_| call(GraphLaunch));
    MADE.orders().lost = Some(LostData {
        iterations: 1,
        events: 1200,
    });
    assert_eq!(
        process.exit(),
        "window 5-9 captured: 40 iterations by cudaGraphLaunch; the record ended early and lacks 1 iteration, 1200 events"
    );
}

#[test]
fn the_profilers_are_ready_before_the_first_call_goes_on() {
    let process = Process::new("TLLMPROF_START_STOP=0 TLLMPROF_STEP=cudaGraphLaunch");
    call(GraphLaunch);
    assert_eq!(process.asked()[0], "start");
    assert_eq!(process.switches(), ["In(0): open 0"]);
    assert_eq!(process.asked_for(&["start"]).len(), 1);
    assert!(activity::uses_cuda());
}

#[test]
fn several_windows_far_apart() {
    let process =
        Process::new("TLLMPROF_START_STOP=3,1000-1001,5000- TLLMPROF_STEP=cudaGraphLaunch");
    calls(6000, GraphLaunch);
    let expected = [
        "In(3): open 3",
        "In(4): close 3",
        "In(1000): open 1000-1001",
        "In(1002): close 1000-1001",
        "In(5000): open 5000-",
    ];
    assert_eq!(process.switches(), expected);
    assert_eq!(
        process.exit(),
        "windows 3,1000-1001,5000- captured: 6000 iterations by cudaGraphLaunch"
    );
    let end = ["ends", "finish"];
    let expected = [
        "ends after 6000",
        "finish after 6000, drain true, here true",
        "finish record, in order true",
    ];
    assert_eq!(process.asked_for(&end), expected);
}

#[test]
fn a_window_that_ends_where_the_next_begins() {
    let process = Process::new("TLLMPROF_START_STOP=2,4 TLLMPROF_STEP=cudaGraphLaunch/2");
    calls(12, GraphLaunch);
    let expected = [
        "In(2): open 2",
        "In(3): close 2",
        "In(4): open 4",
        "In(5): close 4",
    ];
    assert_eq!(process.switches(), expected);
}

#[test]
fn a_wait_closes_its_iteration_when_it_returns() {
    let process = Process::new("TLLMPROF_START_STOP=0,2-3 TLLMPROF_STEP=cudaStreamSynchronize");
    call(LaunchKernel);
    assert_eq!(process.switches(), ["In(0): open 0"]);
    for _ in 0..10 {
        calls(3, LaunchKernel);
        call(StreamSynchronize);
    }
    let expected = [
        "In(0): open 0",
        "In(1): close 0",
        "In(2): open 2-3",
        "In(4): close 2-3",
    ];
    assert_eq!(process.switches(), expected);
    assert_eq!(
        process.exit(),
        "windows 0,2-3 captured: 10 iterations by cudaStreamSynchronize"
    );
}

#[test]
fn a_warm_up_is_not_counted() {
    let process =
        Process::new("TLLMPROF_START_STOP=1 TLLMPROF_STEP=cudaGraphLaunch TLLMPROF_WARMUP=10");
    calls(11, GraphLaunch);
    assert_eq!(process.switches(), [""; 0]);
    call(GraphLaunch);
    assert_eq!(process.switches(), ["In(1): open 1"]);
}

#[test]
fn a_range_closes_the_window_where_it_ends() {
    let process = Process::new("TLLMPROF_START_STOP=1 TLLMPROF_STEP=nvtx:^step");
    call(LaunchKernel);
    assert!(begins(Counted::Named).is_some());
    assert_eq!(begins(Counted::Named), Some(1));
    assert_eq!(process.switches(), ["In(1): open 1"]);
    by_name::has_ended(1);
    assert_eq!(process.switches(), ["In(1): open 1", "After(1): close 1"]);
    passes(Counted::Named);
    by_name::has_ended(1); // another thread's range from before, which ends late
    assert_eq!(process.switches().len(), 2);
    assert_eq!(
        process.exit(),
        "window 1 captured: 3 iterations by nvtx:^step"
    );
}

#[test]
fn what_is_named_is_counted_before_cuda_is_used_and_opens_nothing() {
    let process = Process::new("TLLMPROF_START_STOP=0,3 TLLMPROF_STEP=py:m:step");
    passes(Counted::Python);
    passes(Counted::Python);
    assert_eq!(process.asked_for(&["start", "In("]), [""; 0]);
    assert!(!activity::uses_cuda());
    call(LaunchKernel);
    passes(Counted::Python);
    passes(Counted::Python);
    assert_eq!(
        process.asked_for(&["start", "In(", "After("]),
        ["start", "In(2):", "In(3): open 3", "After(3): close 3"]
    );
    assert_eq!(
        process.exit(),
        "window 3 captured; window 0 never opened: 4 iterations by py:m:step"
    );
}

#[test]
fn a_native_function_is_hooked_at_the_start_and_missed_at_the_end() {
    let process = Process::new("TLLMPROF_START_STOP=1-2 TLLMPROF_STEP=sym:step");
    call(LaunchKernel);
    assert_eq!(process.asked_for(&["report named"]).len(), 1);
    for _ in 0..5 {
        runs_named();
        call(LaunchKernel);
    }
    assert_eq!(
        process.switches(),
        ["In(1): open 1-2", "After(2): close 1-2"]
    );
    process.exit();
    assert_eq!(
        process.asked_for(&["report unmatched"]),
        ["report unmatched sym:step, search true"]
    );
}

#[test]
fn rules_that_met_nothing_say_what_there_was_instead() {
    let cases = [
        (
            "nvtx:^step",
            "window 3 never opened: 0 iterations by nvtx:^step; no range; it made 4 graph launches, \
             8 kernel launches and 3 stream waits: try auto",
        ),
        (
            "py:m:f",
            "window 3 never opened: 0 iterations by py:m:f; no function; it made 4 graph launches, \
             8 kernel launches and 3 stream waits: try auto",
        ),
        (
            "cudaEventSynchronize",
            "window 3 never opened: 0 iterations by cudaEventSynchronize; it made 4 graph launches, \
             8 kernel launches and 3 stream waits: try auto",
        ),
    ];
    for (step, expected) in cases {
        let process = Process::new(&format!("TLLMPROF_START_STOP=3 TLLMPROF_STEP={step}"));
        calls(4, GraphLaunch);
        calls(8, LaunchKernel);
        calls(3, StreamSynchronize);
        assert_eq!(process.exit(), expected);
    }
    let process = Process::new("TLLMPROF_START_STOP=3 TLLMPROF_STEP=cudaGraphLaunch");
    call(EventSynchronize);
    assert_eq!(
        process.exit(),
        "window 3 never opened: 0 iterations by cudaGraphLaunch; it made 1 stream waits"
    );
}

#[test]
fn a_rank_that_is_not_asked_for_opens_nothing() {
    let variables = "TLLMPROF_START_STOP=1 TLLMPROF_STEP=cudaGraphLaunch TLLMPROF_RANKS=4000000";
    let process = Process::new(variables);
    calls(5, GraphLaunch);
    let opened = process.asked_for(&["In("]);
    assert!(
        opened.iter().all(|line| !line.contains("open")),
        "{opened:?}"
    );
    let last = process.exit();
    let expected = "no window here by TLLMPROF_RANKS: 5 iterations by cudaGraphLaunch";
    assert!(last.starts_with(expected), "{last}");
}

#[test]
fn the_record_begins_with_the_first_iteration_and_has_each() {
    let process = Process::ordered("TLLMPROF_STEP=cudaGraphLaunch", RECORD);
    calls(3, GraphLaunch);
    let rule = r#"Some("3.12.1") cudaGraphLaunch None "#;
    let asked = process.asked_for(&["record: ", "In(", "passes"]);
    assert!(
        asked[0].starts_with("record: ") && asked[0].ends_with(rule),
        "{asked:?}"
    );
    assert_eq!(asked[1..], ["In(0):", "passes In(1)", "passes In(2)"]);
    process.exit();
    assert_eq!(
        process.asked_for(&["finish", "report totals"]),
        [
            "finish after 3, drain true, here true",
            "finish record, in order true",
            "report totals at debug"
        ]
    );
    assert_eq!(process.log.lines(), [""; 0], "no window was asked for");
}

#[test]
fn a_record_that_cannot_be_made_is_asked_for_once() {
    let orders = Orders {
        has_no_record: true,
        ..RECORD
    };
    let variables = "TLLMPROF_START_STOP=2 TLLMPROF_STEP=cudaGraphLaunch";
    let process = Process::ordered(variables, orders);
    calls(5, GraphLaunch);
    assert_eq!(process.asked_for(&["record: "]).len(), 1);
    assert_eq!(process.asked_for(&["passes"]), [""; 0]);
    assert_eq!(
        process.switches(),
        ["In(0):", "In(2): open 2", "In(3): close 2"],
        "windows do not depend on it"
    );
}

#[test]
fn an_iteration_that_ends_after_the_next_has_begun_ends_nothing() {
    let process = Process::ordered("TLLMPROF_STEP=nvtx:^step", RECORD);
    call(LaunchKernel);
    passes(Counted::Named);
    assert_eq!(begins(Counted::Named), Some(1));
    assert_eq!(begins(Counted::Named), Some(2));
    by_name::has_ended(1);
    by_name::has_ended(2);
    assert_eq!(
        process.asked_for(&["In", "passes"]),
        [
            "In(0):",
            "passes After(0)",
            "passes In(1)",
            "passes In(2)",
            "passes After(2)"
        ]
    );
}

#[test]
fn the_records_counts_of_calls_are_brought_up_to_date_where_they_are_old() {
    let process = Process::ordered("TLLMPROF_STEP=cudaGraphLaunch", RECORD);
    calls(3, GraphLaunch);
    assert_eq!(process.asked_for(&["calls"]), [""; 0]);
    MADE.orders().wants_calls = true;
    calls(2, GraphLaunch);
    assert_eq!(
        process.asked_for(&["calls"]),
        ["calls: 4 graph launches", "calls: 5 graph launches"]
    );
}

#[test]
fn the_sink_may_have_edges_of_its_own() {
    let process = Process::new("TLLMPROF_START_STOP=9 TLLMPROF_STEP=cudaGraphLaunch");
    MADE.orders().edge = Some(Point::In(2));
    calls(5, GraphLaunch);
    assert_eq!(process.switches(), ["In(2):"]);
}

#[test]
fn runtime_functions_are_attended_near_an_edge_alone() {
    let process = Process::new("TLLMPROF_START_STOP=1000 TLLMPROF_STEP=cudaGraphLaunch");
    assert!(crate::attends(LaunchKernel), "at first all are");
    call(GraphLaunch);
    assert!(!crate::attends(GraphLaunch) && !crate::attends(LaunchKernel));
    calls(1000, GraphLaunch);
    assert_eq!(process.switches(), ["In(1000): open 1000"]);
    assert!(crate::attends(GraphLaunch) && !crate::attends(LaunchKernel));
    calls(20, GraphLaunch);
    assert!(!crate::attends(GraphLaunch));
    assert_eq!(
        process.asked_for(&["attend"]),
        ["attend []", r#"attend ["cuGraphLaunch"]"#, "attend []"]
    );
}

#[test]
fn far_from_an_edge_calls_do_not_ask() {
    let _process = Process::new("TLLMPROF_START_STOP=100000 TLLMPROF_STEP=cudaGraphLaunch");
    calls(10, GraphLaunch);
    let cell = slot().expect("the thread counts").live(GraphLaunch);
    assert!(cell.limit() > 50_000, "{}", cell.limit());
}

#[test]
fn the_programs_own_profiler_calls_are_passed_through() {
    let process = Process::new("TLLMPROF_START_STOP=1 TLLMPROF_STEP=cudaGraphLaunch");
    call(ProfilerStart);
    calls(3, GraphLaunch);
    assert_eq!(process.switches(), ["In(1): open 1", "In(2): close 1"]);
}

#[test]
fn iterations_for_which_the_condition_does_not_hold_are_marked() {
    let variables = "TLLMPROF_START_STOP=1-2 TLLMPROF_STEP=py:a:f TLLMPROF_WHERE=tokens>4";
    let process = Process::ordered(variables, RECORD);
    call(StreamSynchronize);
    for tokens in [9, 1, 8, 2, 7, 3] {
        decodes(tokens);
    }
    let expected = [
        "In(2): open 2-3",
        "passes In(3), excluded",
        "passes In(4)",
        "In(5): close 2-4",
    ];
    let switched = process.asked_for(&["In(", "passes In("]);
    assert_eq!(switched[2..], expected);
    assert_eq!(
        process.exit(),
        "window 1-2 captured as 2-4: 6 iterations by py:a:f"
    );
}

/// Requests a window of one iteration whose batch has more than four tokens.
fn asks_with_condition() {
    let asked = live::ask(WindowRequest {
        iterations: Some(1),
        condition: Some(Condition::parse("tokens>4").unwrap()),
        ..WindowRequest::default()
    });
    asked.unwrap();
}

#[test]
fn the_condition_of_a_requested_window_ends_with_the_window() {
    let process = Process::new("TLLMPROF_START_STOP=5-6 TLLMPROF_STEP=py:a:f");
    call(StreamSynchronize);
    [9, 9].into_iter().for_each(decodes);
    asks_with_condition();
    decodes(1);
    assert!(live::stop());
    [1; 6].into_iter().for_each(decodes);
    assert_eq!(process.switches(), ["In(5): open 5-6", "In(7): close 5-6"]);
}

#[test]
fn the_condition_of_a_requested_window_is_not_counted_with_that_of_the_settings() {
    let variables = "TLLMPROF_START_STOP=50-51 TLLMPROF_STEP=py:a:f TLLMPROF_WHERE=tokens>99";
    let process = Process::new(variables);
    call(StreamSynchronize);
    [1, 1].into_iter().for_each(decodes);
    asks_with_condition();
    [1, 1, 9].into_iter().for_each(decodes);
    assert_eq!(process.switches(), ["In(4): open 4"]);
    [1, 1].into_iter().for_each(decodes);
    // The two iterations before the request and those after the requested window were checked.
    let held = STATE.lock().as_ref().unwrap().filter.held;
    assert_eq!((held.asked, held.held), (3, 0));
}

#[test]
fn a_window_is_closed_while_the_condition_does_not_hold_but_not_too_often() {
    let variables = "TLLMPROF_START_STOP=1-5 TLLMPROF_STEP=py:a:f TLLMPROF_WHERE=tokens>4 TLLMPROF_WHERE_SPLIT=1";
    // On a busy machine, so much time may pass between the first and the second split that the second one is allowed.
    // The test then repeats the steps.
    let process = loop {
        let process = Process::ordered(variables, RECORD);
        call(StreamSynchronize);
        let begun = std::time::Instant::now();
        for tokens in [9, 9, 1, 8, 2, 7] {
            decodes(tokens);
        }
        if begun.elapsed().as_millis() < 100 {
            break process;
        }
    };
    // The second split would come too soon after the first one. So the window stays open, and the iteration that
    // `TLLMPROF_WHERE` excludes is marked.
    let expected = [
        "In(1): open 1-5",
        "In(2): close 1",
        "In(3): open 3-6",
        "passes In(4), excluded",
        "passes In(5)",
    ];
    let switched = process.asked_for(&["In(", "passes In("]);
    assert_eq!(switched[1..], expected);
    std::thread::sleep(core::time::Duration::from_millis(110));
    for tokens in [3, 3, 9] {
        decodes(tokens);
    }
    let expected = [
        "In(6): close 3-5",
        "passes In(7), excluded",
        "In(8): open 8-9",
    ];
    let switched = process.asked_for(&["In(", "passes In("]);
    assert_eq!(switched[6..], expected);
    assert_eq!(
        process.exit(),
        "window 1-5 captured as 1,3-5,8-9 in part: 8, the program ended: 9 iterations by py:a:f; TLLMPROF_WHERE: \
         tokens>4 held in 5 of 9 iterations"
    );
}

#[test]
fn a_window_that_is_closed_in_between_at_the_end_says_what_it_lacks() {
    let variables = "TLLMPROF_START_STOP=0-2 TLLMPROF_STEP=py:a:f TLLMPROF_WHERE=tokens>4 TLLMPROF_WHERE_SPLIT=1";
    let process = Process::new(variables);
    call(StreamSynchronize);
    for tokens in [9, 1, 2] {
        decodes(tokens);
    }
    assert_eq!(
        process.exit(),
        "window 0-2 captured as 0 in part: 2 of its iterations did not come, the program ended: 3 iterations by py:a:f; \
         TLLMPROF_WHERE: tokens>4 held in 1 of 3 iterations"
    );
}
