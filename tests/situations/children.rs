//! Checks processes that start other processes.

use super::twice::{Situation, of_process, processes, start, stop, switches};

const ENDINGS: [&str; 3] = ["return", "exit", "_exit"];

#[test]
fn a_fork_within_a_window_leaves_it_to_the_parent() {
    for ending in ENDINGS {
        for step in ["cudaGraphLaunch", "cudaStreamSynchronize"] {
            let both = Situation::new("forks")
                .args(format!("--who quiet --child-exit {ending}"))
                .window("5-9", step)
                .run();
            // The forked child makes no CUDA calls, and the library does not stop the profiler in the child.
            assert_eq!(
                processes(&both.log).len(),
                1,
                "{ending} by {step}: {:?}",
                both.log
            );
            assert_eq!(
                both.switches(),
                [start(5, 5), stop(10, 10)],
                "{ending} by {step}"
            );
            both.assert_same_calls();
            both.assert_said(&[
                "opened at iteration 5",
                "closed: 5 iterations",
                "captured: 40 iterations",
            ]);
        }
    }
}

#[test]
fn a_child_is_forked_between_two_steps_of_a_window() {
    for program in ["steps_static", "steps_driver", "steps_rtld_local"] {
        for ending in ["return", "_exit", "quick_exit", "abort", "exec"] {
            let both = Situation::new(program)
                .args(format!("--fork-at 7 --child-exit {ending}"))
                .window("5-9", "cudaGraphLaunch")
                .run();
            assert_eq!(processes(&both.log).len(), 1, "{program} {ending}");
            assert_eq!(
                both.switches(),
                [start(5, 5), stop(10, 10)],
                "{program} {ending}"
            );
            assert_eq!(
                both.assert_same_calls().said().len(),
                3,
                "{program} {ending}"
            );
        }
    }
}

#[test]
fn only_the_child_uses_cuda() {
    for ending in ENDINGS {
        let both = Situation::new("forks")
            .args(format!("--who works --child-exit {ending}"))
            .window("5-9,15-", "cudaGraphLaunch")
            .run();
        assert_eq!(processes(&both.log).len(), 1);
        let expected = [start(5, 5), stop(10, 10), start(15, 15), stop(20, 20)];
        assert_eq!(both.switches(), expected, "{ending}");
        assert_eq!(both.assert_same_calls().total(), 20, "{ending}");
        assert_eq!(
            both.said().len(),
            5,
            "the parent says nothing: {:?}",
            both.said()
        );
    }
}

#[test]
fn child_and_parent_have_windows_of_their_own() {
    for ending in ENDINGS {
        let both = Situation::new("forks")
            .args(format!("--who both --child-exit {ending}"))
            .window("5-9,15-", "cudaGraphLaunch")
            .run();
        let processes = processes(&both.log);
        assert_eq!(processes.len(), 2);
        for (pid, end) in processes.into_iter().zip([20, 40]) {
            let own = switches(&of_process(&both.log, pid));
            assert_eq!(
                own,
                [start(5, 5), stop(10, 10), start(15, 15), stop(end, end)],
                "{ending}"
            );
        }
        both.assert_same_calls();
        assert_eq!(both.said().len(), 10, "{:?}", both.said());
    }
}

#[test]
fn a_worker_forked_before_cuda_ends_by_exit_with_an_open_window() {
    for program in ["steps_shared12", "steps_static", "steps_driver_dlsym"] {
        let both = Situation::new(program)
            .args("--fork-first 12 --child-exit _exit --steps 20")
            .window("10-", "cudaGraphLaunch")
            .run();
        let processes = processes(&both.log);
        assert_eq!(processes.len(), 2, "{program}");
        for (pid, end) in processes.into_iter().zip([12, 20]) {
            let own = switches(&of_process(&both.log, pid));
            assert_eq!(own, [start(10, 10), stop(end, end)], "{program}");
        }
        both.assert_same_calls();
    }
}

#[test]
fn all_is_done_in_a_child_as_multiprocessing_does() {
    for (program, step) in [
        ("steps_static", "cudaGraphLaunch"),
        ("steps_shared13", "cudaStreamSynchronize"),
    ] {
        let both = Situation::new(program)
            .args("--exit fork-child --status 3")
            .window("30-", step)
            .run();
        assert_eq!(both.output.status.code(), Some(3));
        assert_eq!(both.switches(), [start(30, 30), stop(40, 40)], "{program}");
        assert_eq!(both.assert_same_calls().total(), 40);
    }
}

#[test]
fn vfork_and_exec_within_a_window() {
    for program in ["steps_shared12", "steps_static", "steps_driver"] {
        for step in ["cudaGraphLaunch", "cudaStreamSynchronize"] {
            let both = Situation::new(program)
                .args("--vfork-at 7")
                .window("5-9", step)
                .run();
            assert_eq!(processes(&both.log).len(), 1, "{program}");
            assert_eq!(
                both.switches(),
                [start(5, 5), stop(10, 10)],
                "{program} by {step}"
            );
            assert_eq!(both.assert_same_calls().said().len(), 3);
        }
    }
}

#[test]
fn a_vforked_child_that_cannot_exec_leaves_by_exit() {
    for step in ["cudaGraphLaunch", "cudaStreamSynchronize"] {
        let both = Situation::new("vfork_exit").window("5-9", step).run();
        assert_eq!(processes(&both.log).len(), 1);
        assert_eq!(both.switches(), [start(5, 5), stop(10, 10)], "by {step}");
        assert_eq!(
            both.assert_same_calls().said().len(),
            3,
            "{:?}",
            both.said()
        );
    }
}

#[test]
fn the_process_becomes_another_by_exec() {
    let both = Situation::new("steps_shared12")
        .args("--exit exec")
        .window("5-9", "cudaGraphLaunch")
        .run();
    assert_eq!(both.switches(), [start(5, 5), stop(10, 10)]);
    both.assert_same_calls();
}

#[test]
fn a_process_never_uses_cuda() {
    for ending in ENDINGS {
        let situation = Situation::new("nocuda")
            .args(ending)
            .window("5-9", "cudaGraphLaunch");
        let both = situation.run();
        assert_eq!(both.output.status.code(), Some(5));
        assert!(both.log.is_empty());
        both.assert_untouched();
        situation
            .clone()
            .env("TLLMPROF_STEP", "nonsense")
            .run()
            .assert_untouched();
    }
}

#[test]
fn a_process_that_never_uses_cuda_leaves_no_file() {
    // `ls` runs in the scratch folder. It must find no file there. The stand-in driver would create its log there if
    // it was used.
    let both = Situation::new("/bin/ls")
        .args("-A")
        .window("5-9", "cudaGraphLaunch")
        .run();
    assert_eq!(both.output.out(), "");
    both.assert_untouched();
}
