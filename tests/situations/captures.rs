//! Checks stream captures. Launches during a capture are not iterations, and the library
//! invalidates no capture.

use super::twice::{Both, Situation, count, start, stop, workers};

const MODES: [&str; 3] = ["global", "thread", "relaxed"];
const PROGRAMS: [&str; 4] = [
    "steps_shared12",
    "steps_static",
    "steps_driver_gpa2",
    "steps_ptsz",
];

#[track_caller]
fn assert_captures_held(both: &Both) {
    assert!(
        both.log.iter().all(|record| record.mark.is_empty()),
        "{:#?}",
        both.log
    );
    both.assert_same_calls();
}

#[test]
fn launches_under_capture_are_no_iterations() {
    // The program makes a capture at step 7, and launches a graph within it. So the driver's log has one more launch
    // from step 7 on, which is no iteration.
    for program in PROGRAMS {
        for mode in MODES {
            for step in [
                "cudaGraphLaunch",
                "cudaLaunchKernel/2",
                "cudaStreamSynchronize",
            ] {
                let both = Situation::new(program)
                    .args(format!("--kernels 2 --capture-at 7 --capture-mode {mode}"))
                    .window("5-9", step)
                    .run();
                let said = both.output.err();
                assert_eq!(
                    both.switches(),
                    [start(5, 5), stop(11, 10)],
                    "{program} {mode} by {step}\n{said}"
                );
                assert_eq!(both.total(), 40);
                assert_captures_held(&both);
            }
        }
    }
}

#[test]
fn a_capture_lies_on_the_edge_of_a_window() {
    for mode in MODES {
        for program in PROGRAMS {
            // The capture comes before the launch that begins iteration 5. So the driver's log has the captured launch
            // before the start of the profiler.
            let opens = Situation::new(program)
                .args(format!("--capture-at 5 --capture-mode {mode}"))
                .window("5-9", "cudaGraphLaunch")
                .run();
            assert_eq!(
                opens.switches(),
                [start(6, 5), stop(11, 10)],
                "{program} {mode}"
            );
            assert_captures_held(&opens);
            // The window closes at the launch that begins iteration 10. The capture comes just before that launch, so
            // the captured launch is counted before the window closes.
            let closes = Situation::new(program)
                .args(format!("--capture-at 10 --capture-mode {mode}"))
                .window("5-9", "cudaGraphLaunch")
                .run();
            assert_eq!(
                closes.switches(),
                [start(5, 5), stop(11, 10)],
                "{program} {mode}"
            );
            assert_captures_held(&closes);
        }
    }
}

#[test]
fn the_count_starts_again_after_a_capture_until_a_window_opens() {
    for (step, program) in [
        ("cudaGraphLaunch", "steps_static"),
        ("cudaStreamSynchronize", "steps_driver"),
    ] {
        let situation = |at: u32| {
            Situation::new(program)
                .args(format!("--capture-at {at}"))
                .env("TLLMPROF_WARMUP", "capture")
                .window("5-9", step)
                .run()
        };
        // A capture restarts the count of iterations: the capture at step 3 makes step 3 iteration 0.
        let before = situation(3);
        assert_eq!(
            before.switches(),
            [start(9, 8), stop(14, 13)],
            "{step}\n{}",
            before.output.err()
        );
        assert_eq!(before.total(), 37, "{step}");
        assert_captures_held(&before);
        for at in [7, 20] {
            let after = situation(at);
            let last = if at == 7 { 11 } else { 10 };
            assert_eq!(
                after.switches(),
                [start(5, 5), stop(last, 10)],
                "{step} at {at}"
            );
            assert_eq!(after.total(), 40, "{step} at {at}");
            assert_captures_held(&after);
        }
    }
}

#[test]
fn auto_warms_up_by_captures_by_itself() {
    // The capture in step 3 is during the warm-up, so it restarts the count of iterations. The capture in step 60 comes
    // after the warm-up, which 32 iterations without a capture have ended.
    for (at, warmup) in [(3, 3), (60, 0)] {
        let both = Situation::new("steps_shared13")
            .args(format!("--kernels 2 --steps 200 --capture-at {at}"))
            .env("TLLM_PROFILE_START_STOP", "100-104")
            .run();
        assert_eq!(
            both.switches(),
            [
                start(101 + warmup, 100 + warmup),
                stop(106 + warmup, 105 + warmup)
            ],
            "{}",
            both.output.err()
        );
        assert_eq!(both.total(), 200 - warmup as u64);
        assert_captures_held(&both);
    }
}

#[test]
fn a_capture_does_not_start_the_count_again_once_a_window_has_opened() {
    let both = Situation::new("steps_shared12")
        .args("--kernels 2 --steps 200 --capture-at 150")
        .window("100-104,160-164", "auto")
        .run();
    assert_eq!(
        both.switches(),
        [
            start(100, 100),
            stop(105, 105),
            start(161, 160),
            stop(166, 165)
        ]
    );
    assert_eq!(both.total(), 200);
    assert_captures_held(&both);
}

#[test]
fn a_number_of_iterations_is_warm_up() {
    for (step, first) in [
        ("cudaGraphLaunch", 5),
        ("cudaStreamSynchronize", 5),
        ("auto", 100),
    ] {
        let both = Situation::new("steps_static")
            .args("--steps 140")
            .env("TLLMPROF_WARMUP", "3")
            .window(&format!("{first}-{}", first + 4), step)
            .run();
        let expected = [start(first + 3, first + 3), stop(first + 8, first + 8)];
        assert_eq!(both.switches(), expected, "by {step}");
        assert_eq!(both.total(), 137, "by {step}");
        both.assert_same_calls();
    }
}

#[test]
fn a_window_opens_and_closes_while_another_thread_captures() {
    for mode in MODES {
        for program in ["two_threads", "two_threads_static"] {
            for step in ["cudaGraphLaunch", "cudaStreamSynchronize"] {
                let both = Situation::new(program)
                    .args(format!("capture-elsewhere {mode}"))
                    .window("5-9", step)
                    .run();
                let said = both.output.err();
                assert_eq!(
                    both.switches(),
                    [start(5, 5), stop(10, 10)],
                    "{program} {mode} by {step}\n{said}"
                );
                // The library closed the window without waiting for the device, because such a wait would have
                // invalidated the capture.
                assert_eq!(count(&both.log, "cuCtxSynchronize"), 0);
                assert_captures_held(&both);
                assert_eq!(both.total(), 40);
            }
        }
    }
}

#[test]
fn after_the_other_threads_capture_the_device_is_drained_again() {
    let both = Situation::new("two_threads")
        .args("capture-elsewhere global")
        .window("5-9,20-24", "cudaGraphLaunch")
        .run();
    assert_eq!(
        both.switches(),
        [start(5, 5), stop(10, 10), start(20, 20), stop(25, 25)]
    );
    assert_eq!(
        workers(&both.log).len(),
        1,
        "the second Stop had the device made idle"
    );
    assert_captures_held(&both);
}

#[test]
fn a_relaxed_capture_ends_on_another_thread() {
    for program in ["two_threads", "two_threads_static"] {
        for step in ["cudaGraphLaunch", "cudaStreamSynchronize"] {
            let both = Situation::new(program)
                .args("capture-ends-elsewhere relaxed")
                .window("5-9,20-24", step)
                .run();
            let expected = [start(5, 5), stop(10, 10), start(20, 20), stop(25, 25)];
            assert_eq!(
                both.switches(),
                expected,
                "{program} by {step}\n{}",
                both.output.err()
            );
            assert_captures_held(&both);
            assert_eq!(both.total(), 40);
        }
    }
}

#[test]
fn a_window_that_captures_put_out_of_reach_is_reported() {
    let situation = Situation::new("steps_shared12")
        .args("--capture-at 7")
        .env("TLLMPROF_WARMUP", "capture");
    let hint = "the count started again after 1 stream capture (TLLMPROF_WARMUP=0";
    for (window, is_reported) in [("35-36", true), ("5-9", false), ("30-31", false)] {
        let both = situation.clone().window(window, "cudaGraphLaunch").run();
        assert_eq!(
            both.output.err().contains(hint),
            is_reported,
            "{window}\n{}",
            both.output.err()
        );
        both.assert_same_calls();
    }
}
