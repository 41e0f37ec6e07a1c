//! Tests of windows that open only on some ranks of a distributed job. The rank becomes known early
//! or late.

use tllmprof_calls::Call::GraphLaunch;
use tllmprof_config::{RankSource, Ranked};

use super::{MADE, Orders, Process, call, calls, decodes};
use crate::{Rank, communicator};

const UNKNOWN: Rank = Rank::Unknown("nobody says so");

const fn known(rank: u64) -> Rank {
    Rank::Known(Ranked {
        rank,
        world_size: Some(2),
        source: RankSource::Torch,
    })
}

fn process(ranks: &str, rank: Rank) -> Process {
    let variables = format!("TLLMPROF_START_STOP=5-9 TLLMPROF_STEP=cudaGraphLaunch {ranks}");
    let orders = Orders {
        rank,
        ..Orders::NONE
    };
    Process::ordered(&variables, orders)
}

/// Returns the points in the sequence of iterations at which windows opened or closed.
fn edges(process: &Process) -> Vec<String> {
    let mut switches = process.switches();
    switches.retain(|switch| switch.contains("open") || switch.contains("close"));
    switches
}

#[test]
fn a_rank_that_is_known_in_time_opens_its_windows() {
    for (rank, opened) in [
        (known(0), &["In(5): open 5-9", "In(10): close 5-9"][..]),
        (known(1), &[]),
        (Rank::None, &["In(5): open 5-9", "In(10): close 5-9"]),
    ] {
        let process = process("TLLMPROF_RANKS=0", rank);
        calls(40, GraphLaunch);
        assert_eq!(edges(&process), opened, "{rank:?}");
    }
}

#[test]
fn a_window_waits_for_the_rank_and_opens_late() {
    for (rank, opened) in [
        (known(0), &["In(7): open 7-11", "In(12): close 7-11"][..]),
        (known(1), &[]),
    ] {
        let process = process("TLLMPROF_RANKS=0", UNKNOWN);
        calls(7, GraphLaunch);
        assert!(edges(&process).is_empty());
        MADE.orders().rank = rank;
        calls(33, GraphLaunch);
        assert_eq!(edges(&process), opened, "{rank:?}");
    }
}

#[test]
fn a_window_by_a_condition_waits_for_the_rank_too() {
    for (rank, opened) in [
        (known(0), &["In(4): open 4-5", "In(7): close 4-6"][..]),
        (known(1), &[]),
    ] {
        let variables =
            "TLLMPROF_START_STOP=1-2 TLLMPROF_STEP=py:a:f TLLMPROF_WHERE=tokens>4 TLLMPROF_RANKS=0";
        let orders = Orders {
            rank: UNKNOWN,
            ..Orders::NONE
        };
        let process = Process::ordered(variables, orders);
        call(GraphLaunch);
        [1, 9, 9].into_iter().for_each(decodes);
        assert!(edges(&process).is_empty());
        MADE.orders().rank = rank;
        [1, 9, 1, 9, 9, 9].into_iter().for_each(decodes);
        assert_eq!(edges(&process), opened, "{rank:?}");
        let last = process.exit();
        let expected = match opened.is_empty() {
            true => "no window here by TLLMPROF_RANKS: 9 iterations by py:a:f, rank 1",
            false => "window 1-2 captured as 4-6: 9 iterations by py:a:f, rank 0",
        };
        assert_eq!(last, expected);
    }
}

#[test]
fn a_rank_that_never_becomes_known_opens_nothing_and_is_reported() {
    let process = process("TLLMPROF_RANKS=0", UNKNOWN);
    calls(40, GraphLaunch);
    assert!(edges(&process).is_empty());
    assert_eq!(
        process.exit(),
        "window 5-9 never opened: 40 iterations by cudaGraphLaunch; TLLMPROF_RANKS waited for the rank of this \
         process: nobody says so (TLLMPROF_RANK sets it)"
    );
}

#[test]
fn without_ranks_nothing_waits_and_the_record_gets_the_rank_later() {
    let process = process("", UNKNOWN);
    MADE.orders().wants_record = true;
    calls(6, GraphLaunch);
    assert_eq!(edges(&process), ["In(5): open 5-9"]);
    MADE.orders().rank = known(1);
    calls(34, GraphLaunch);
    assert_eq!(
        process.asked_for(&["rank "]),
        ["rank 1 by torch.distributed"]
    );
}

#[test]
fn a_communicator_gives_no_rank_before_python_has_answered() {
    for (answer, opened) in [
        (Rank::None, &["In(7): open 7-11", "In(12): close 7-11"][..]),
        (known(0), &[]),
    ] {
        let process = process("TLLMPROF_RANKS=1", Rank::NOT_ANSWERED);
        communicator(Some((1, 2)));
        calls(7, GraphLaunch);
        assert!(edges(&process).is_empty());
        MADE.orders().rank = answer;
        calls(33, GraphLaunch);
        assert_eq!(edges(&process), opened, "{answer:?}");
    }
}

#[test]
fn one_communicator_gives_the_rank() {
    for (places, opened) in [
        (&[Some((1, 2))][..], true),
        (&[Some((0, 2))], false),
        (&[Some((1, 2)), Some((0, 4))], false),
    ] {
        let process = process("TLLMPROF_RANKS=1", Rank::None);
        places.iter().for_each(|place| communicator(*place));
        calls(40, GraphLaunch);
        assert_eq!(!edges(&process).is_empty(), opened, "{places:?}");
    }
}
