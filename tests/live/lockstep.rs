//! Checks captures of ranks in lockstep: all ranks capture the same steps, whatever one of them does.

use std::fs;
use std::process::Stdio;

use tllmprof_control::Phase;

use crate::place::{Place, Running, wait_until};

/// Starts four ranks that begin each step together. Rank 2 is slower than the others.
pub(crate) fn ranks(place: &Place) -> Vec<Running> {
    let command = |rank: usize| {
        let period = if rank == 2 { 2000 } else { 100 };
        let mut command = place.server(&format!("{period} barrier {rank} 4"));
        command
            .env("TLLMPROF_RANK", rank.to_string())
            .env("TLLMPROF_RUN", "r");
        command.env_remove("STANDIN_LOG");
        command
    };
    // All ranks are started before the test waits for any of them, because no rank ends its first step before all have
    // started.
    let ranks: Vec<_> = (0..4).map(|rank| place.spawn(&mut command(rank))).collect();
    ranks.iter().for_each(|rank| rank.wait_for("ready"));
    ranks
}

/// Returns the windows that all ranks captured. A rank that has already begun the requested step refuses the request,
/// and the command then requests a later step. The other ranks may have captured the earlier step by then, so that
/// window is not common.
fn common(ranks: &[Running]) -> Vec<(u64, u64)> {
    let all: Vec<_> = ranks.iter().map(Running::windows).collect();
    let is_common = |window: &&(u64, u64)| all.iter().all(|of| of.contains(window));
    all[0].iter().filter(is_common).copied().collect()
}

#[test]
fn ranks_in_lockstep_are_captured_in_the_same_steps() {
    let times = std::env::var("TLLMPROF_TEST_CAPTURES").map_or(25, |n| n.parse().unwrap());
    let place = Place::new();
    let mut ranks = ranks(&place);
    wait_until("the sockets", || place.sockets().len() == 4);
    for _ in 0..times {
        let captured = place.tllmprof("capture --run r --steps 5");
        assert!(captured.status.success(), "{}", captured.err());
        assert!(
            !captured.err().contains("not in lockstep"),
            "{}",
            captured.err()
        );
    }
    assert_eq!(common(&ranks).len(), times);
    // A rank that is not in lockstep with the others opens its window at its own next step.
    let mut command = place.server("700");
    command.env("TLLMPROF_RANK", "4").env("TLLMPROF_RUN", "r");
    let mut other = place.start(&mut command);
    let captured = place.tllmprof("capture --run r --steps 5 -o copies");
    assert!(captured.status.success(), "{}", captured.err());
    let line = format!("{} (rank 4) is not in lockstep", other.pid());
    assert!(captured.err().contains(&line), "{}", captured.err());
    assert!(captured.out().contains("5 processes"), "{}", captured.out());
    assert_eq!(fs::read_dir(place.path("copies")).unwrap().count(), 5);
    let last: Vec<_> = ranks
        .iter()
        .map(|rank| *rank.windows().last().unwrap())
        .collect();
    assert!(last.iter().all(|window| *window == last[0]), "{last:?}");
    other.end();
    ranks.iter_mut().for_each(|rank| drop(rank.end()));
}

#[test]
fn a_rank_that_has_no_requests_is_named_and_the_others_are_whole() {
    let place = Place::new();
    let mut ranks = ranks(&place);
    fs::create_dir(place.path("idle")).unwrap();
    let mut command = place.server("500");
    command
        .env("TLLMPROF_RANK", "4")
        .env("TLLMPROF_RUN", "r")
        .current_dir(place.path("idle"));
    let mut idle = place.start(&mut command);
    wait_until("the sockets", || place.sockets().len() == 5);
    fs::write(place.path("idle/pause"), "").unwrap();
    wait_until("the pause", || place.path("idle/paused").exists());
    let captured = place.tllmprof("capture --run r --steps 5 --wait 1s");
    assert_eq!(captured.status.code(), Some(1), "{}", captured.err());
    let line = format!("{} (rank 4): no iteration began for long", idle.pid());
    assert!(captured.err().contains(&line), "{}", captured.err());
    assert!(captured.out().contains("4 processes"), "{}", captured.out());
    assert_eq!(common(&ranks).len(), 1);
    // The last command has given up on the idle rank and has withdrawn its request there. So the next window that this
    // rank captures is that of the next command.
    fs::remove_file(place.path("idle/pause")).unwrap();
    let captured = place.tllmprof(&format!("capture {} --steps 5", idle.pid()));
    assert!(captured.status.success(), "{}", captured.err());
    ranks.iter_mut().for_each(|rank| drop(rank.end()));
    fs::write(place.path("idle/end"), "").unwrap();
    wait_until("the end", || idle.child.try_wait().unwrap().is_some());
}

#[test]
fn a_run_is_captured_although_a_process_outside_it_refuses() {
    let place = Place::new();
    let mut ranks = ranks(&place);
    // The settings of this process request a window without an end, so the process refuses every capture.
    let mut other = place.start(place.server("500").env("TLLMPROF_START_STOP", "5-"));
    wait_until("the sockets", || place.sockets().len() == 5);
    let mut peer = other.connect();
    wait_until("the window", || peer.status().phase == Phase::Open);
    let (rank, pid) = (ranks[0].pid(), other.pid());
    let refused = place.tllmprof(&format!("capture {rank} {pid} --steps 5"));
    assert_eq!(refused.status.code(), Some(1), "{}", refused.err());
    let why = format!("{pid}: window 5- is open: it has no last iteration");
    assert!(refused.err().contains(&why), "{}", refused.err());
    let captured = place.tllmprof("capture --run r --steps 5");
    assert!(captured.status.success(), "{}", captured.err());
    assert!(captured.out().contains("4 processes"), "{}", captured.out());
    other.end();
    ranks.iter_mut().for_each(|rank| drop(rank.end()));
}

#[test]
fn a_rank_that_dies_in_the_midst_leaves_the_others_whole() {
    let place = Place::new();
    let mut ranks = ranks(&place);
    wait_until("the sockets", || place.sockets().len() == 4);
    // The window is long enough to be seen open on a busy machine. The capture is limited to the run, because `--all`
    // would also select processes that other tests have started under `tllmprof run`. If one of them refuses, nothing
    // is captured.
    let mut capture = place
        .command("capture --run r --steps 2000")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut peer = ranks[3].connect();
    wait_until("the window, or the end of the capture", || {
        peer.status().phase == Phase::Open || capture.try_wait().unwrap().is_some()
    });
    ranks[3].kill();
    let output = capture.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    let line = format!(
        "{} (rank 3): the process ended before its window closed",
        ranks[3].pid()
    );
    assert!(err.contains(&line), "{err}");
    let whole = |window: &(u64, u64)| window.1 - window.0 == 1999;
    let whole = common(&ranks[..3]).into_iter().filter(whole).count();
    let windows = || ranks[..3].iter().map(Running::windows).collect::<Vec<_>>();
    assert_eq!(whole, 1, "{:?}\n{err}", windows());
    assert_eq!(place.ps().len(), 3);
    assert_eq!(place.sockets().len(), 3, "the dead one's is swept");
    ranks[..3].iter_mut().for_each(|rank| drop(rank.end()));
}
