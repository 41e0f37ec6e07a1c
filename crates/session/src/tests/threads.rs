//! Tests with several threads: one thread has the turn (the right to switch windows), and other threads wait
//! for that thread for a limited time.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::spawn;
use std::time::Instant;

use tllmprof_calls::Call::{GraphLaunch, LaunchKernel, MemcpyDtoHAsync, StreamSynchronize};
use tllmprof_steps::step::counted::Counted;
use tllmprof_steps::turn::{CLOSING, OPENING};
use tllmprof_steps::window::Point;

use super::{Act, MADE, Orders, Process, begins, call, calls, goes_on, lock, on_thread, passes};
use crate::{STATE, by_name, slot};

/// Returns a fake process with two channels to its sink (profilers and record). When the sink switches windows at
/// `point`, the sink sends a message, and continues only after the test has sent one back. `gil` is true if the
/// switching thread has the GIL and a thread of the library waits for the GIL.
fn held_at(variables: &str, point: Point, gil: bool) -> (Process, Receiver<()>, Sender<()>) {
    let (is_switching, switches) = channel();
    let (go_on, goes_on) = channel();
    let goes_on = Mutex::new(goes_on);
    let act: Act = Arc::new(move |at| {
        if at == point {
            is_switching.send(()).expect("the test waits for it");
            // Receiving fails if the test has already failed and dropped the sender; this ends the
            // wait as well.
            let _ = lock(&goes_on).recv();
        }
    });
    let orders = Orders {
        while_switching: Some(act),
        gil,
        ..Orders::NONE
    };
    (Process::ordered(variables, orders), switches, go_on)
}

#[test]
fn calls_of_several_threads_are_one_sequence() {
    const THREADS: u64 = 4;
    let process = Process::new("TLLMPROF_START_STOP=1000-1099 TLLMPROF_STEP=cudaGraphLaunch");
    let launched = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let launched = launched.clone();
            spawn(move || {
                for _ in 0..500 {
                    call(GraphLaunch);
                    launched.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("it returns");
    }
    assert_eq!(launched.load(Ordering::Relaxed), 2000);
    // Only openings and closings of windows are compared: the process may also be moved to points at which no window
    // opens or closes.
    let mut edges = process.switches();
    edges.retain(|line| line.contains("open") || line.contains("close"));
    let expected = ["In(1000): open 1000-1099", "In(1100): close 1000-1099"];
    assert_eq!(edges, expected);
    assert_eq!(
        process.exit(),
        "window 1000-1099 captured: 2000 iterations by cudaGraphLaunch"
    );
}

#[test]
fn a_thread_takes_over_the_slot_of_one_that_has_ended() {
    const THREADS: usize = 300;
    let process = Process::new("TLLMPROF_START_STOP=15 TLLMPROF_STEP=cudaGraphLaunch");
    (0..THREADS).for_each(|_| on_thread(|| calls(4, GraphLaunch)));
    // Threads of other tests may end at the same time. Their thread records become free and have no slot (counters of
    // calls) in this session. A thread that takes over such a record gets a new slot, so the number of slots may be
    // above 1.
    let slots = STATE.lock().as_ref().map(|state| state.slots.len());
    assert!(slots.is_some_and(|slots| slots < THREADS), "{slots:?}");
    assert_eq!(process.switches(), ["In(15): open 15", "In(16): close 15"]);
    assert_eq!(
        process.exit(),
        "window 15 captured: 1200 iterations by cudaGraphLaunch"
    );
}

#[test]
fn a_launch_waits_until_the_window_is_open() {
    waits_for_the_window("TLLMPROF_START_STOP=3 TLLMPROF_STEP=cudaGraphLaunch", 3);
}

#[test]
fn a_launch_that_begins_no_iteration_waits_too() {
    waits_for_the_window("TLLMPROF_START_STOP=1 TLLMPROF_STEP=cudaGraphLaunch/3", 1);
}

/// Tests that a launch waits for a window to open. One thread makes three launches and then a fourth, which
/// opens the window at `iteration`. Meanwhile a launch of another thread has to wait.
fn waits_for_the_window(variables: &str, iteration: u64) {
    let (process, switches, go_on) = held_at(variables, Point::In(iteration), false);
    let opener = spawn(|| calls(4, GraphLaunch));
    switches.recv().expect("the window opens");
    let is_open = Arc::new(AtomicBool::new(false));
    let waiter = spawn({
        let is_open = is_open.clone();
        move || {
            let since = Instant::now();
            call(GraphLaunch);
            // A thread never waits longer than `OPENING`. On a busy machine it may reach this limit
            // before the window is open.
            is_open.load(Ordering::SeqCst) || since.elapsed() >= OPENING
        }
    });
    // Gives the waiting thread time to reach its call, which must not continue before the window is open.
    std::thread::sleep(Duration::from_millis(100));
    is_open.store(true, Ordering::SeqCst);
    go_on.send(()).expect("the sink waits");
    assert!(waiter.join().expect("it returns"), "it went on too early");
    opener.join().expect("it returns");
    calls(3, GraphLaunch);
    let close = format!("In({}): close {iteration}", iteration + 1);
    assert_eq!(
        process.switches(),
        [format!("In({iteration}): open {iteration}"), close]
    );
}

#[test]
fn nobody_waits_long_for_a_window_to_close() {
    let variables = "TLLMPROF_START_STOP=0 TLLMPROF_STEP=cudaGraphLaunch";
    let (process, switches, go_on) = held_at(variables, Point::In(1), false);
    let begun = Instant::now();
    let closer = spawn(|| calls(2, GraphLaunch));
    switches.recv().expect("the window closes");
    call(LaunchKernel);
    call(GraphLaunch);
    assert!(begun.elapsed() >= CLOSING, "{:?}", begun.elapsed());
    assert_eq!(process.switches().len(), 2, "it is still being closed");
    go_on.send(()).expect("the sink waits");
    closer.join().expect("it returns");
    let expected = ["In(0): open 0", "In(1): close 0", "In(2):"];
    assert_eq!(
        process.switches(),
        expected,
        "the closer went on to the other's call"
    );
}

#[test]
fn who_has_the_gil_does_not_wait_for_a_thread_that_waits_for_it() {
    let variables = "TLLMPROF_START_STOP=0 TLLMPROF_STEP=cudaGraphLaunch";
    let (process, switches, go_on) = held_at(variables, Point::In(0), true);
    let opener = spawn(|| call(GraphLaunch));
    switches.recv().expect("the window opens");
    // The shortest of five attempts is compared, because on a busy machine a single call may take
    // long without waiting for the window.
    let took = (0..5).map(|_| {
        let since = Instant::now();
        call(GraphLaunch);
        since.elapsed()
    });
    assert!(took.min() < Some(OPENING), "each has waited for the window");
    go_on.send(()).expect("the sink waits");
    opener.join().expect("it returns");
    assert_eq!(process.switches()[0], "In(0): open 0");
}

#[test]
fn the_end_of_the_process_does_not_wait_for_ever_either() {
    let variables = "TLLMPROF_START_STOP=0 TLLMPROF_STEP=cudaGraphLaunch";
    let (process, switches, go_on) = held_at(variables, Point::In(0), false);
    let opener = spawn(|| call(GraphLaunch));
    switches.recv().expect("the window opens");
    assert_eq!(
        process.exit(),
        "the process ends while a window is being switched: it is left as it is"
    );
    assert_eq!(process.asked_for(&["ends", "finish"]), [""; 0]);
    go_on.send(()).expect("the sink waits");
    opener.join().expect("it returns");
}

#[test]
fn the_end_of_the_process_waits_for_a_switch_that_ends() {
    let variables = "TLLMPROF_START_STOP=0- TLLMPROF_STEP=cudaGraphLaunch";
    let (process, switches, go_on) = held_at(variables, Point::In(0), false);
    let opener = spawn(|| call(GraphLaunch));
    switches.recv().expect("the window opens");
    let ends = spawn(crate::finish);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(process.asked_for(&["ends"]), [""; 0], "it waits");
    go_on.send(()).expect("the sink waits");
    opener.join().expect("it returns");
    ends.join().expect("it returns");
    assert_eq!(
        process.asked_for(&["ends", "finish after"]),
        ["ends after 1", "finish after 1, drain true, here true"]
    );
}

#[test]
fn a_state_that_stays_locked_does_not_keep_the_process_from_ending() {
    let process = Process::new("TLLMPROF_START_STOP=0- TLLMPROF_STEP=cudaGraphLaunch");
    call(GraphLaunch);
    // Simulates a signal handler that interrupts the thread that holds the state's lock, and ends the
    // process.
    let guard = STATE.lock();
    on_thread(crate::finish_at_once);
    drop(guard);
    assert_eq!(process.asked_for(&["ends", "finish"]), [""; 0]);
}

#[test]
fn the_sinks_own_calls_count_for_nothing() {
    let act: Act = Arc::new(|_| {
        calls(3, GraphLaunch);
        call(MemcpyDtoHAsync);
        assert_eq!(by_name::ask(Counted::Named), None);
    });
    let orders = Orders {
        while_switching: Some(act),
        ..Orders::NONE
    };
    let variables = "TLLMPROF_START_STOP=1,3 TLLMPROF_STEP=cudaGraphLaunch";
    let process = Process::ordered(variables, orders);
    calls(6, GraphLaunch);
    let expected = [
        "In(1): open 1",
        "In(2): close 1",
        "In(3): open 3",
        "In(4): close 3",
    ];
    assert_eq!(process.switches(), expected);
    assert_eq!(
        process.exit(),
        "windows 1,3 captured: 6 iterations by cudaGraphLaunch"
    );
}

#[test]
fn a_thread_of_the_sinks_may_make_calls_while_it_switches() {
    let act: Act = Arc::new(|point| {
        // The window is being closed at this point. The other thread's call waits up to its time limit and then
        // continues.
        if point == Point::In(2) {
            on_thread(|| call(GraphLaunch));
        }
    });
    let orders = Orders {
        while_switching: Some(act),
        ..Orders::NONE
    };
    let variables = "TLLMPROF_START_STOP=1 TLLMPROF_STEP=cudaGraphLaunch";
    let process = Process::ordered(variables, orders);
    calls(5, GraphLaunch);
    assert_eq!(process.switches()[..2], ["In(1): open 1", "In(2): close 1"]);
    assert_eq!(
        process.exit(),
        "window 1 captured: 6 iterations by cudaGraphLaunch"
    );
}

#[test]
fn our_own_code_gives_a_thread_no_slot() {
    let _process = Process::new("TLLMPROF_START_STOP=1 TLLMPROF_STEP=nvtx:step");
    let inside = tllmprof_platform::thread::Inside::enter();
    assert!(inside.is_some());
    assert!(!by_name::count(Counted::Named));
    assert!(slot().is_none());
    by_name::has_ended(0);
    drop(inside);
    by_name::count(Counted::Named);
    assert!(slot().is_some());
    assert_eq!(MADE.orders().edge, None);
}

/// Returns the numbers of the iterations that began, in the order in which the fake sink (profilers and record) was
/// notified.
fn begun(process: &Process) -> Vec<u64> {
    let asked = process.asked_for(&["In(", "passes In("]);
    let number = |line: &String| {
        let (_, rest) = line.split_once("In(")?;
        rest.split_once(')')?.0.parse().ok()
    };
    asked.iter().filter_map(number).collect()
}

/// Returns the openings and closings of windows in the fake process.
fn edges(process: &Process) -> Vec<String> {
    let mut edges = process.switches();
    edges.retain(|line| line.contains("open") || line.contains("close"));
    edges
}

/// Each kind of step that the tests use: the rule that counts such steps, and a function that makes one such step.
const STEPS: [(&str, fn()); 5] = [
    ("cudaGraphLaunch", || call(GraphLaunch)),
    ("cudaGraphLaunch/2", || calls(2, GraphLaunch)),
    ("cudaStreamSynchronize", || call(StreamSynchronize)),
    ("nvtx:^step", || {
        begins(Counted::Named);
    }),
    ("py:m:step", || passes(Counted::Python)),
];

#[test]
fn steps_that_meet_a_switch_are_numbered_behind_it() {
    const THREADS: usize = 7;
    for (rule, step) in STEPS {
        let variables = format!("TLLMPROF_START_STOP=5-9 TLLMPROF_STEP={rule}");
        let (process, switches, go_on) = held_at(&variables, Point::In(5), false);
        MADE.orders().wants_record = true;
        let opener = spawn(move || {
            call(LaunchKernel);
            (0..6).for_each(|_| step());
        });
        switches.recv().expect("the window opens");
        let others: Vec<_> = (0..THREADS).map(|_| spawn(step)).collect();
        // The sleep gives the other threads time to reach their steps, where they have to wait for the window.
        std::thread::sleep(Duration::from_millis(50));
        assert!(!begun(&process).contains(&6), "{rule}: they wait");
        go_on.send(()).expect("the sink waits");
        opener.join().expect("it returns");
        for other in others {
            other.join().expect("it returns");
        }
        assert!(begun(&process).is_sorted(), "{rule}");
        assert_eq!(
            begun(&process)[..11],
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
            "{rule}"
        );
        let edges = edges(&process);
        assert_eq!(edges[0], "In(5): open 5-9", "{rule}");
        let closes = edges[1] == "In(10): close 5-9" || edges[1] == "After(9): close 5-9";
        assert!(edges.len() == 2 && closes, "{rule}: {edges:?}");
        assert_eq!(process.log.lines(), [""; 0], "{rule}");
    }
}

#[test]
fn no_iteration_is_passed_over_however_many_threads_begin_them() {
    for threads in [2, 8, 16] {
        for (rule, step) in STEPS {
            // On a busy machine, a thread may stand still between two of its actions for so long that a switch does not
            // wait for it, which is logged. Then the run is repeated.
            let is_judged = (0..10).any(|_| all_are_begun(threads, rule, step));
            assert!(
                is_judged,
                "{threads} threads, {rule}: the machine is too busy"
            );
        }
    }
}

/// Makes steps in several threads and asserts that each of them is an iteration, and that each window opens with its
/// first one. Returns false if a thread stood still for so long that the edge of a window is not exact.
#[track_caller]
fn all_are_begun(threads: usize, rule: &str, step: fn()) -> bool {
    const EACH: u64 = 40;
    let windows = "1,3-4,10-14,16,50-59";
    let variables = format!("TLLMPROF_START_STOP={windows} TLLMPROF_STEP={rule}");
    let orders = Orders {
        wants_record: true,
        // The yield lets other threads run while the fake sink (profilers and record) switches a window.
        while_switching: Some(Arc::new(|_| std::thread::yield_now())),
        ..Orders::NONE
    };
    let process = Process::ordered(&variables, orders);
    call(LaunchKernel);
    let step = move || (0..EACH).for_each(|_| step());
    let threads: Vec<_> = (0..threads).map(|_| spawn(step)).collect();
    let count = threads.len() as u64;
    for thread in threads {
        thread.join().expect("it returns");
    }
    let lines = process.log.lines();
    let is_inexact = |line: &String| line.contains("whose edges are not exact");
    if !lines.is_empty() && lines.iter().all(is_inexact) {
        return false;
    }
    assert_eq!(lines, [""; 0], "{count} threads, {rule}");
    let begun = begun(&process);
    let last = begun.last().copied().unwrap_or(0);
    assert_eq!(
        begun,
        (0..=last).collect::<Vec<_>>(),
        "{count} threads, {rule}"
    );
    assert!(last + 1 >= count * EACH, "{count} threads, {rule}: {last}");
    let edges = edges(&process);
    let opens: Vec<_> = edges.iter().step_by(2).collect();
    let windows = windows.split(',').map(|window| {
        let first = window.split('-').next().unwrap_or_default();
        format!("In({first}): open {window}")
    });
    assert!(
        opens.into_iter().eq(windows.collect::<Vec<_>>().iter()),
        "{edges:?}"
    );
    true
}

#[test]
fn a_step_that_does_not_wait_is_said_to_be_early() {
    let variables = "TLLMPROF_START_STOP=0-2 TLLMPROF_STEP=cudaGraphLaunch";
    let (process, switches, go_on) = held_at(variables, Point::In(0), true);
    let opener = spawn(|| call(GraphLaunch));
    switches.recv().expect("the window opens");
    calls(2, GraphLaunch);
    go_on.send(()).expect("the sink waits");
    opener.join().expect("it returns");
    let lines = process.log.lines();
    assert!(
        lines.len() == 1 && lines[0].starts_with("2 iterations began while a window"),
        "{lines:?}"
    );
    calls(2, GraphLaunch);
    assert_eq!(edges(&process), ["In(0): open 0-2", "In(3): close 0-2"]);
}

#[test]
fn a_switch_waits_for_a_step_that_has_its_number_and_has_not_gone_on() {
    let process = Process::new("TLLMPROF_START_STOP=2 TLLMPROF_STEP=nvtx:^step");
    call(LaunchKernel);
    begins(Counted::Named);
    let (has_number, numbered) = channel();
    let (go_on, may_go_on) = channel();
    let slow = spawn(move || {
        by_name::count(Counted::Named);
        by_name::ask(Counted::Named);
        has_number.send(()).expect("the test waits");
        may_go_on.recv().expect("the test sends");
        let before = edges_now();
        goes_on();
        before
    });
    numbered.recv().expect("it has its number");
    let since = Instant::now();
    let opener = spawn(|| begins(Counted::Named));
    std::thread::sleep(CLOSING / 5);
    go_on.send(()).expect("it waits");
    let before = slow.join().expect("it returns");
    // The thread that opens the window waits for the slow thread, but only for a limited time. On a busy machine the
    // slow thread may continue too late. So its result is checked only if less time than `CLOSING` has passed.
    let is_too_busy = since.elapsed() >= CLOSING;
    assert!(before == 0 || is_too_busy, "the window opened too early");
    opener.join().expect("it returns");
    assert_eq!(edges(&process), ["In(2): open 2"]);
}

/// Returns the number of times so far that the fake sink (profilers and record) has switched at the beginning of an
/// iteration.
fn edges_now() -> usize {
    let asked = lock(&MADE.asked);
    asked.iter().filter(|line| line.starts_with("In(")).count()
}

#[test]
fn a_step_that_never_goes_on_holds_no_switch_up_for_long() {
    let process = Process::new("TLLMPROF_START_STOP=1 TLLMPROF_STEP=nvtx:^step");
    call(LaunchKernel);
    let (has_number, numbered) = channel();
    let (go_on, may_go_on) = channel::<()>();
    let stuck = spawn(move || {
        by_name::count(Counted::Named);
        by_name::ask(Counted::Named);
        has_number.send(()).expect("the test waits");
        may_go_on.recv()
    });
    numbered.recv().expect("it has its number");
    let since = Instant::now();
    begins(Counted::Named);
    assert_eq!(edges(&process), ["In(1): open 1"]);
    assert!(since.elapsed() >= CLOSING);
    drop(go_on);
    assert!(stuck.join().expect("it returns").is_err());
}
