//! Checks windows that open only in processes with certain ranks.

use tllmprof_config::RANK_VARIABLES;

use super::twice::{Both, Situation, start, stop};

/// Prepares a program for which each environment variable that can give a rank is empty. A test can then set one of
/// them.
fn without_rank(program: &str) -> Situation {
    RANK_VARIABLES
        .into_iter()
        .fold(Situation::new(program), |situation, name| {
            situation.env(name, "")
        })
}

#[track_caller]
fn assert_opened(both: &Both, opened: bool, what: &str) {
    let expected = [start(5, 5), stop(10, 10)];
    let expected = if opened { &expected[..] } else { &[] };
    assert_eq!(both.switches(), expected, "{what}\n{}", both.output.err());
    both.assert_same_calls();
    if opened {
        assert_eq!(both.said().len(), 3, "{what}: {:?}", both.said());
    } else {
        both.assert_said(&["TLLMPROF_RANKS"]);
    }
    assert_eq!(both.total(), 40, "{what}");
}

#[test]
fn every_launchers_variable_is_a_rank() {
    for name in RANK_VARIABLES {
        for (rank, opened) in [("1", false), ("2", true), ("3", true), ("4", false)] {
            let both = without_rank("steps_shared12")
                .env(name, rank)
                .env("TLLMPROF_RANKS", "0,2-3")
                .window("5-9", "cudaGraphLaunch")
                .run();
            assert_opened(&both, opened, &format!("{name}={rank}"));
        }
    }
}

#[test]
fn the_first_variable_that_is_set_is_the_rank() {
    for pair in RANK_VARIABLES.windows(2) {
        let both = without_rank("steps_static")
            .env(pair[0], "0")
            .env(pair[1], "1")
            .env("TLLMPROF_RANKS", "0")
            .window("5-9", "cudaGraphLaunch")
            .run();
        assert_opened(&both, true, pair[0]);
    }
}

#[test]
fn a_process_without_a_rank_is_rank_0() {
    for (ranks, opened) in [("0", true), ("1-", false), ("all", true)] {
        let both = without_rank("steps_driver")
            .env("TLLMPROF_RANKS", ranks)
            .window("5-9", "cudaStreamSynchronize")
            .run();
        assert_opened(&both, opened, ranks);
    }
}

#[test]
fn the_engine_sets_the_rank_late() {
    for (ranks, opened) in [("1", true), ("0", false)] {
        let both = without_rank("sets_variables")
            .args("RANK=1")
            .env("TLLMPROF_RANKS", ranks)
            .window("5-9", "cudaGraphLaunch")
            .run();
        assert_opened(&both, opened, ranks);
        if opened {
            assert!(
                both.said().iter().any(|line| line.contains("rank 1")),
                "{:?}",
                both.said()
            );
        }
    }
}
