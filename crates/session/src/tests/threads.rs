//! Several threads: one has the turn, and the others wait for it, but not for ever.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::spawn;
use std::time::Instant;

use tllmprof_calls::Call::{GraphLaunch, LaunchKernel, MemcpyDtoHAsync};
use tllmprof_steps::step::counted::Counted;
use tllmprof_steps::turn::{CLOSING, OPENING};
use tllmprof_steps::window::Point;

use super::{Act, MADE, Orders, Process, call, calls, lock, on_thread};
use crate::{STATE, by_name, slot};

/// A process whose sink, at `point`, sends word and switches until it gets word.
fn held_at(variables: &str, point: Point, gil: bool) -> (Process, Receiver<()>, Sender<()>) {
    let (is_switching, switches) = channel();
    let (go_on, goes_on) = channel();
    let goes_on = Mutex::new(goes_on);
    let act: Act = Arc::new(move |at| {
        if at == point {
            is_switching.send(()).expect("the test waits for it");
            // It fails where the test has.
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
    // The thread that has the turn may go on to points with nothing to switch, too.
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
    // Threads of other tests, which end meanwhile, leave records, too.
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

/// A thread makes three launches and one that opens the window at `iteration`; the launch of another
/// waits for that.
fn waits_for_the_window(variables: &str, iteration: u64) {
    let (process, switches, go_on) = held_at(variables, Point::In(iteration), false);
    let opener = spawn(|| calls(4, GraphLaunch));
    switches.recv().expect("the window opens");
    let is_open = Arc::new(AtomicBool::new(false));
    let waiter = spawn({
        let is_open = is_open.clone();
        move || {
            call(GraphLaunch);
            is_open.load(Ordering::SeqCst)
        }
    });
    // Time to come to its call. It must not go on meanwhile, however long that takes.
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
    let since = Instant::now();
    call(LaunchKernel);
    call(GraphLaunch);
    let (waited, in_all) = (since.elapsed(), begun.elapsed());
    assert!(
        waited < OPENING && in_all >= CLOSING,
        "{waited:?} {in_all:?}"
    );
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
    let since = Instant::now();
    call(GraphLaunch);
    let waited = since.elapsed();
    assert!(waited < OPENING / 2, "{waited:?}");
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
    // As where a signal handler that exits has interrupted the holder.
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
        // The window is being closed: the other thread waits its limit, and then goes on.
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
