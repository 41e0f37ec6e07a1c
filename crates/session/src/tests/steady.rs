//! Tests of windows that open once the times of iterations are steady.

use core::time::Duration;
use std::thread::sleep;

use tllmprof_calls::Call::StreamSynchronize;
use tllmprof_calls::Call::{GraphLaunch, LaunchKernel, StreamBeginCapture, StreamEndCapture};
use tllmprof_steps::steady::{ENOUGH, NEEDED};

use super::{Process, call, call_with, calls, decodes, on_thread};

const VARIABLES: &str = "TLLMPROF_START_STOP=steady:5 TLLMPROF_STEP=cudaGraphLaunch";

/// Returns the first and last iteration of the only window that opened and closed.
#[track_caller]
fn taken(process: &Process) -> (u64, u64) {
    let switches = process.switches();
    let [open, close] = &switches[..] else {
        panic!("{switches:?}");
    };
    let window = open.rsplit_once(" open ").expect("it opens").1;
    assert!(close.ends_with(&format!(" close {window}")), "{switches:?}");
    let (first, last) = window.split_once('-').expect("a range");
    (first.parse().unwrap(), last.parse().unwrap())
}

#[test]
fn it_opens_once_the_time_of_a_step_has_settled() {
    let process = Process::new(VARIABLES);
    for _ in 0..ENOUGH + 20 {
        call(GraphLaunch);
        sleep(Duration::from_micros(200));
    }
    let (first, last) = taken(&process);
    // The test accepts a range, because on a busy machine the times of steps may take longer to
    // settle.
    assert!((NEEDED..=ENOUGH).contains(&first), "{first}");
    assert_eq!(last - first, 4);
    assert_eq!(
        process.exit(),
        format!("window {first}-{last} captured: 148 iterations by cudaGraphLaunch")
    );
}

#[test]
fn a_program_that_ends_before_says_so() {
    let process = Process::new(VARIABLES);
    calls(12, GraphLaunch);
    assert_eq!(
        process.exit(),
        "window of 5 steady iterations never opened: 12 iterations by cudaGraphLaunch; it opens once \
         24 in a row take about as long, or after 128 or 4 s of them (TLLMPROF_START_STOP=all takes all there are)"
    );
    drop(process);
    let process = Process::new(VARIABLES);
    calls(3, LaunchKernel);
    assert_eq!(
        process.exit(),
        "window of 5 steady iterations never opened: 0 iterations by cudaGraphLaunch; it made \
         3 kernel launches: try auto"
    );
}

#[test]
fn one_that_is_split_is_named_by_where_it_began() {
    let process = Process::new(
        "TLLMPROF_START_STOP=steady:3 TLLMPROF_STEP=py:a:f TLLMPROF_WHERE=tokens>4 TLLMPROF_WHERE_SPLIT=1",
    );
    call(StreamSynchronize);
    let mut first = 0;
    while process.switches().is_empty() {
        decodes(9);
        first += 1;
    }
    first -= 1;
    [1, 9, 9, 9].into_iter().for_each(decodes);
    let (last, next, end) = (first + 2, first + 2, first + 3);
    assert_eq!(
        process.exit(),
        format!(
            "window {first}-{last} captured as {first},{next}-{end}: {} iterations by py:a:f",
            first + 5
        )
    );
}

#[test]
fn one_that_ends_within_has_a_part() {
    let process = Process::new("TLLMPROF_START_STOP=steady:1000 TLLMPROF_STEP=cudaGraphLaunch");
    calls(300, GraphLaunch);
    let last = process.exit();
    let (window, part) = last.split_once(" captured in part: ").expect(&last);
    let first = window.strip_prefix("window ").unwrap().split('-').next();
    let expected = format!(
        "{}-299, the program ended: 300 iterations by cudaGraphLaunch",
        first.unwrap()
    );
    assert_eq!(part, expected);
}

#[test]
fn steps_that_a_stream_capture_interrupts_do_not_count() {
    let process = Process::new(VARIABLES);
    for n in 0..600 {
        call(GraphLaunch);
        if n % 10 == 0 {
            call_with(StreamBeginCapture, &[7], true);
            calls(3, GraphLaunch);
            call_with(StreamEndCapture, &[7], true);
        }
    }
    // A stream is captured in every tenth step, including the first. So there are never `NEEDED` steady steps in a row,
    // and the search for them ends after `ENOUGH` steps. The steps with a capture do not count, so the search takes
    // `ENOUGH / 9 + 1` steps longer.
    let first = ENOUGH + ENOUGH / 9 + 1;
    assert_eq!(taken(&process), (first, first + 4));
    let lines = process.log.lines();
    let why = "the time of an iteration did not settle in 128 iterations: ";
    assert!(lines[0].starts_with(why), "{lines:?}");
}

#[test]
fn a_count_that_starts_again_waits_again() {
    let process = Process::new(
        "TLLMPROF_START_STOP=steady:5 TLLMPROF_STEP=cudaGraphLaunch TLLMPROF_WARMUP=capture",
    );
    calls(20, GraphLaunch);
    call_with(StreamBeginCapture, &[7], true);
    call_with(StreamEndCapture, &[7], true);
    calls(300, GraphLaunch);
    let (first, _) = taken(&process);
    assert!(first >= NEEDED, "{first}");
}

#[test]
fn a_step_that_is_learnt_is_learnt_first() {
    let process = Process::new("TLLMPROF_START_STOP=steady:5");
    for _ in 0..600 {
        for kernel in 1..=2 {
            call_with(LaunchKernel, &[kernel << 32], true);
        }
        call(GraphLaunch);
        call(StreamSynchronize);
    }
    let (first, last) = taken(&process);
    // The learner (which finds the step in the calls) needs about 32 iterations before it relies on a step. The search
    // for steady iterations begins only then.
    assert!(first >= 30 + NEEDED && last - first == 4, "{first}-{last}");
    assert_eq!(
        process.exit(),
        format!("window {first}-{last} captured: 600 iterations by auto")
    );
}

#[test]
fn steps_of_many_threads_are_one_sequence() {
    let process = Process::new(VARIABLES);
    for _ in 0..100 {
        call(GraphLaunch);
        on_thread(|| call(GraphLaunch));
        on_thread(|| calls(2, GraphLaunch));
    }
    let (first, last) = taken(&process);
    assert!((NEEDED..=ENOUGH).contains(&first) && last - first == 4);
}

#[test]
fn once_it_has_closed_calls_are_counted_without_asking() {
    let process = Process::new(VARIABLES);
    calls(1000, GraphLaunch);
    taken(&process);
    let slot = crate::slot().expect("this thread counts");
    let cell = slot.live(GraphLaunch);
    assert!(cell.limit() > cell.count() + 1_000_000, "no more questions");
}

#[test]
fn none_is_no_window() {
    let process = Process::new("TLLMPROF_START_STOP=none TLLMPROF_STEP=cudaGraphLaunch");
    calls(300, GraphLaunch);
    assert_eq!(
        (process.switches().len(), process.exit()),
        (0, String::new())
    );
}
