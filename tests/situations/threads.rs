//! Checks programs with many threads, and with threads that wait for each other.

use std::collections::BTreeSet;

use super::twice::{Situation, processes, start, stop, total};
use crate::common::{INEXACT, Ran, Switch};

/// Returns two numbers of launches: those that reached the driver before the profiler started, and those that reached
/// the driver before the profiler stopped. Asserts that the profiler started once and then stopped once.
#[track_caller]
fn edges(ran: &Ran) -> (usize, usize) {
    match ran.switches()[..] {
        [
            Switch::Start {
                launches: first, ..
            },
            Switch::Stop { launches: end, .. },
        ] => (first, end),
        ref other => panic!("{other:?}\n{}", ran.output.err()),
    }
}

#[test]
fn sixty_four_threads_launch_at_once() {
    const THREADS: usize = 64;
    for program in ["threads", "threads_static"] {
        let situation = Situation::new(program).args("--launchers 64 --launches 100 --short 0");
        let plain = situation.run_plain();
        let mut exact = 0;
        for _ in 0..4 {
            let ran = situation
                .clone()
                .window("3000-3999", "cudaGraphLaunch")
                .run_shimmed();
            assert_eq!(ran.output.out(), plain.output.out());
            if ran.output.err().contains(INEXACT) {
                continue;
            }
            exact += 1;
            assert_eq!(ran.output.status, plain.output.status);
            assert_eq!(total(&ran.said()), 6400, "{program}");
            let (first, end) = edges(&ran);
            // When the profiler is started or stopped, each of the other threads may have a launch in progress. So the
            // number of launches before the start may differ from 3000 by up to THREADS, and the number before the stop
            // may be up to THREADS lower than 4000.
            assert!(
                first.abs_diff(3000) <= THREADS,
                "{program}: Start after {first} launches"
            );
            assert!(
                end >= 4000 - THREADS,
                "{program}: Stop after {end} launches"
            );
            assert_eq!(ran.said().len(), 3, "{:?}", ran.said());
            assert!(ran.log.iter().all(|record| record.mark.is_empty()));
        }
        assert!(exact > 0, "{program}: the machine is too busy");
    }
}

#[test]
fn steady_iterations_of_threads_that_launch_at_once() {
    let situation = Situation::new("threads").args("--launchers 16 --launches 200 --short 0");
    let mut exact = 0;
    for _ in 0..4 {
        let ran = situation
            .clone()
            .window("steady:500", "cudaGraphLaunch")
            .run_shimmed();
        // On some machines, the window opens so late that fewer than 500 iterations are left, or threads cannot wait
        // until it has opened or closed. The library says so, and this run is not checked.
        if [INEXACT, "captured in part"]
            .iter()
            .any(|said| ran.output.err().contains(said))
        {
            continue;
        }
        exact += 1;
        let (first, end) = edges(&ran);
        // Other threads may be making launches when the window opens and when it closes. So a few launches, up to 16,
        // may be missing or additional.
        let few = (end - first).abs_diff(500) <= 16;
        assert!(few, "{first} to {end}: {}", ran.output.err());
        assert_eq!(total(&ran.said()), 3200);
    }
    assert!(exact > 0, "no run was exact");
}

#[test]
fn sixty_four_threads_wait_at_once() {
    let situation = Situation::new("threads").args("--launchers 64 --launches 100 --short 0");
    let ran = situation
        .window("3000-3999", "cudaStreamSynchronize")
        .run_shimmed();
    assert!(ran.output.status.success());
    assert_eq!(total(&ran.said()), 6400);
    edges(&ran);
}

#[test]
fn many_narrow_windows_among_many_threads() {
    let windows: Vec<String> = (1..40)
        .map(|n| format!("{}-{}", n * 100, n * 100 + 9))
        .collect();
    let situation = Situation::new("threads")
        .args("--launchers 32 --launches 125 --short 0")
        .window(&windows.join(","), "cudaGraphLaunch");
    // On a busy machine, a step may last longer than a whole window, which then never opens. So only some windows
    // have to open, and only in one of several runs.
    let some_open = (0..5).any(|_| {
        let ran = situation.clone().run_shimmed();
        assert_eq!(total(&ran.said()), 4000);
        let switches = ran.switches();
        assert_alternating(&switches);
        switches.len() > 2
    });
    assert!(some_open, "no run opened more than one window");
}

#[test]
fn two_thousand_threads_live_for_one_step() {
    for program in ["threads", "threads_static"] {
        let both = Situation::new(program)
            .args("--launchers 0 --short 2000 --at-once 16")
            .window("1000-1499", "cudaGraphLaunch")
            .run();
        assert_eq!(both.total(), 2000, "{program}");
        let (first, end) = edges(&both);
        assert!(
            first.abs_diff(1000) <= 16,
            "{program}: Start after {first} launches"
        );
        assert!(end >= 1500 - 16, "{program}: Stop after {end} launches");
        let tids: BTreeSet<u32> = both.log.iter().map(|record| record.tid).collect();
        assert!(tids.len() > 100, "threads came and went: {}", tids.len());
    }
}

#[test]
fn threads_follow_each_other() {
    for step in ["cudaGraphLaunch", "cudaStreamSynchronize"] {
        let both = Situation::new("threads")
            .args("--launchers 0 --short 300 --at-once 1")
            .window("100-149,250-", step)
            .run();
        let expected = [(100, "Start"), (150, "Stop"), (250, "Start"), (300, "Stop")];
        let seen: Vec<(usize, &str)> = both
            .switches()
            .iter()
            .map(|switch| match switch {
                Switch::Start { launches, .. } => (*launches, "Start"),
                Switch::Stop { launches, .. } => (*launches, "Stop"),
            })
            .collect();
        assert_eq!(seen, expected, "by {step}");
        assert_eq!(both.assert_same_calls().total(), 300);
    }
}

#[test]
fn another_thread_waits_than_launches() {
    for program in ["two_threads", "two_threads_static"] {
        for (step, first) in [
            ("cudaStreamSynchronize", 5),
            ("cudaGraphLaunch", 5),
            ("auto", 100),
        ] {
            let both = Situation::new(program)
                .args("wait-elsewhere global 140")
                .env("TLLMPROF_WARMUP", "0")
                .window(&format!("{first}-{},130-", first + 4), step)
                .run();
            let said = both.output.err();
            let expected = [
                start(first, first),
                stop(first + 5, first + 5),
                start(130, 130),
                stop(140, 140),
            ];
            assert_eq!(
                super::twice::switches(&both.log),
                expected,
                "{program} by {step}\n{said}"
            );
            assert_eq!(both.assert_same_calls().total(), 140);
        }
    }
}

#[test]
fn every_launch_comes_from_a_fresh_thread() {
    for program in ["two_threads", "two_threads_static"] {
        let both = Situation::new(program)
            .args("fresh-threads")
            .window("5-9,30-", "cudaGraphLaunch")
            .run();
        let expected = [start(5, 5), stop(10, 10), start(30, 30), stop(40, 40)];
        let said = both.output.err();
        assert_eq!(
            super::twice::switches(&both.log),
            expected,
            "{program}\n{said}"
        );
        assert_eq!(both.assert_same_calls().total(), 40);
    }
}

#[test]
fn a_step_waits_for_another_threads_launch() {
    for program in ["two_threads", "two_threads_static"] {
        // The main thread makes the even launches. During each wait of the main thread, the other thread makes an odd
        // launch.
        for (step, windows, expected) in [
            ("cudaGraphLaunch/2", "5-9", [start(10, 5), stop(20, 10)]),
            ("cudaGraphLaunch", "10-19", [start(10, 5), stop(20, 10)]),
            ("cudaGraphLaunch", "11-12", [start(11, 6), stop(13, 7)]),
            ("cudaStreamSynchronize", "5-9", [start(10, 5), stop(20, 10)]),
        ] {
            let both = Situation::new(program)
                .args("wait-needs-launch")
                .window(windows, step)
                .run();
            assert_eq!(
                both.switches(),
                expected,
                "{program} {windows} by {step}\n{}",
                both.output.err()
            );
            both.assert_same_calls();
        }
    }
}

#[test]
fn the_device_becomes_idle_only_by_another_threads_launch() {
    // To close a window, the library waits for an idle device. In this program, the device becomes idle only after
    // another launch, so the library must not block that launch.
    let both = Situation::new("two_threads")
        .args("drain-needs-launch")
        .window("5-9", "cudaGraphLaunch")
        .run_shimmed();
    assert!(both.output.status.success(), "{}", both.output.err());
    assert_eq!(both.switches(), [start(5, 5), stop(11, 10)]);
    assert!(!both.output.err().contains("busy"), "{}", both.output.err());
    assert_eq!(total(&both.said()), 41);
}

#[test]
fn children_are_forked_while_threads_launch() {
    let windows: Vec<String> = (1..20)
        .map(|n| format!("{}-{}", n * 100, n * 100 + 49))
        .collect();
    for program in ["among_threads", "among_threads_static"] {
        for step in ["cudaGraphLaunch", "cudaStreamSynchronize"] {
            let both = Situation::new(program)
                .args("forks")
                .window(&windows.join(","), step)
                .run();
            assert_eq!(both.total(), 2400, "{program} by {step}");
            assert_eq!(processes(&both.log).len(), 1, "{program} by {step}");
            assert_alternating(&both.switches());
        }
    }
}

#[test]
fn the_process_ends_while_threads_launch() {
    for program in ["among_threads", "among_threads_static"] {
        for ending in ["return", "_exit", "quick_exit", "sigterm"] {
            for windows in ["100-", "100-120,900-"] {
                let both = Situation::new(program)
                    .args(ending)
                    .window(windows, "cudaGraphLaunch")
                    .run();
                assert_eq!(both.output.status.code(), Some(5));
                let switches = both.switches();
                assert_alternating(&switches);
                let wanted = if windows == "100-" { 2 } else { 4 };
                assert_eq!(switches.len(), wanted, "{program} {ending}: {switches:?}");
                assert!(both.total() >= 1000, "{program} {ending}");
            }
        }
    }
}

/// Asserts that the profiler is started and stopped in turn, beginning with a start and ending with a stop.
#[track_caller]
fn assert_alternating(switches: &[Switch]) {
    for (k, switch) in switches.iter().enumerate() {
        let starts = matches!(switch, Switch::Start { .. });
        assert_eq!(starts, k % 2 == 0, "{switches:?}");
    }
    assert!(switches.len().is_multiple_of(2), "{switches:?}");
    assert!(!switches.is_empty());
}
