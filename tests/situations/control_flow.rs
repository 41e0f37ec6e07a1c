//! Checks CUDA calls that do not return, because an exception, a longjmp or a signal leaves them.

use super::twice::{Situation, start, stop};

const PROGRAMS: [&str; 3] = ["throws", "throws_noplt", "throws_static"];

/// Runs 40 steps. In every eighth step, a CUDA call is left in the way `how` (such as an exception), and the program
/// continues.
#[track_caller]
fn left(
    how: &str,
    from: &str,
    step: &str,
    windows: &str,
    expected: &[crate::common::Switch],
    total: u64,
) {
    for program in PROGRAMS {
        let both = Situation::new(program)
            .args(format!("--how {how} --from {from}"))
            .window(windows, step)
            .run();
        assert!(
            both.output.out().contains("caught 5"),
            "{}",
            both.output.out()
        );
        let said = both.output.err();
        assert_eq!(
            both.switches(),
            expected,
            "{program}: {how} from {from} by {step}\n{said}"
        );
        assert_eq!(
            both.total(),
            total,
            "{program}: {how} from {from} by {step}"
        );
        // The log's last column names the runtime that made a call. The column is wrong after a longjmp out of the
        // runtime of the stand-in for CUDA, so only the functions are compared.
        let functions = |log: &[crate::common::Record]| -> Vec<String> {
            let of_program = log.iter().filter(|r| r.tid == log[0].tid);
            let own = of_program.map(|r| r.function.clone());
            own.filter(|function| !function.starts_with("cuProfiler"))
                .collect()
        };
        assert_eq!(
            functions(&both.log),
            functions(&both.plain.log),
            "{program}: {how} from {from}"
        );
    }
}

#[test]
fn an_exception_leaves_a_wait() {
    let expected = [start(5, 5), stop(10, 10), start(17, 17), stop(19, 19)];
    left(
        "throw",
        "wait",
        "cudaGraphLaunch",
        "5-9,17-18",
        &expected,
        40,
    );
}

#[test]
fn longjmp_leaves_a_wait() {
    let expected = [start(5, 5), stop(10, 10), start(17, 17), stop(19, 19)];
    left(
        "longjmp",
        "wait",
        "cudaGraphLaunch",
        "5-9,17-18",
        &expected,
        40,
    );
}

#[test]
fn an_exception_leaves_a_launch() {
    // An exception leaves every eighth launch: launches 7 and 15, and later ones. After such a launch, the program does
    // not make the wait of its step, so there are fewer waits than launches.
    let expected = [start(5, 5), stop(10, 9), start(17, 15), stop(19, 17)];
    left(
        "throw",
        "launch",
        "cudaGraphLaunch",
        "5-9,17-18",
        &expected,
        40,
    );
}

#[test]
fn longjmp_leaves_a_launch() {
    let expected = [start(5, 5), stop(10, 9), start(17, 15), stop(19, 17)];
    left(
        "longjmp",
        "launch",
        "cudaGraphLaunch",
        "5-9,17-18",
        &expected,
        40,
    );
}

#[test]
fn a_launch_is_left_while_waits_are_counted() {
    for how in ["throw", "longjmp"] {
        // Launch 7 is left, so its step has no wait. The waits are numbered from 0: wait 5 is that of launch 5, but
        // wait 9 is that of launch 10. Of the 40 launches, 5 have no wait.
        let expected = [start(5, 5), stop(11, 10), start(19, 17), stop(21, 19)];
        left(
            how,
            "launch",
            "cudaStreamSynchronize",
            "5-9,17-18",
            &expected,
            35,
        );
    }
}

#[test]
fn a_wait_is_left_while_waits_are_counted() {
    for how in ["throw", "longjmp"] {
        let expected = [start(5, 5), stop(10, 10), start(17, 17), stop(19, 19)];
        left(
            how,
            "wait",
            "cudaStreamSynchronize",
            "5-9,17-18",
            &expected,
            40,
        );
    }
}

#[test]
fn sigterm_comes_in_the_middle_of_a_wait() {
    for program in ["sigterm", "sigterm_static"] {
        for (step, windows) in [("cudaGraphLaunch", "5-"), ("cudaStreamSynchronize", "5-9")] {
            let both = Situation::new(program)
                .args("cuStreamSynchronize 7")
                .window(windows, step)
                .run();
            assert_eq!(both.output.status.code(), Some(9));
            // The signal arrives in the wait of step 7, when the device has done the work but the call has not returned
            // to the program.
            assert_eq!(
                both.switches(),
                [start(5, 5), stop(8, 8)],
                "{program} by {step}\n{}",
                both.output.err()
            );
            both.assert_same_calls();
        }
    }
}

#[test]
fn sigterm_comes_in_the_middle_of_a_launch() {
    let both = Situation::new("sigterm")
        .args("cuGraphLaunch 7")
        .window("5-9", "cudaGraphLaunch")
        .run();
    assert_eq!(both.output.status.code(), Some(9));
    assert_eq!(both.switches(), [start(5, 5), stop(8, 7)]);
    both.assert_same_calls();
}

#[test]
fn sigterm_comes_while_the_profiler_is_switched() {
    for (function, switched) in [("cuProfilerStart", 1), ("cuProfilerStop", 2)] {
        let situation = Situation::new("sigterm")
            .args(format!("{function} 0"))
            .window("5-9", "cudaGraphLaunch");
        let ran = situation.run_shimmed();
        assert_eq!(
            ran.output.status.code(),
            Some(9),
            "{function}\n{}",
            ran.output.err()
        );
        assert_eq!(ran.switches().len(), switched, "{function}");
    }
}
