//! Tests of the verdicts of `tllmprof hang`. The tests make up the states of the ranks.

use tllmprof_record::{
    Called, CapturedCollective, CapturedGroup, Collective, Operation, Ring, RingCommunicator,
    RingDirection, RingStep,
};

use super::device_fault::DeviceFault;
use super::judge::judge;
use super::state::{Life, ProcessThread, RankState};
use super::verdict::{Answer, VerdictKind};

const SECOND: u64 = 1_000_000_000;
const COMMUNICATOR: u64 = 7;
const RANKS: usize = 8;

fn operation(collective: Collective, count: u64) -> Operation {
    Operation {
        collective,
        count,
        data_type: 9,
        peer: None,
    }
}

fn all_reduce() -> Operation {
    operation(Collective::AllReduce, 1 << 21)
}

fn call(communicator: u64, sequence: u64, operation: Operation) -> Called {
    Called {
        communicator,
        sequence,
        operation,
        stream: 1,
        thread: 100,
        begin_ns: sequence,
        end_ns: Some(sequence + 1),
    }
}

/// Returns the state of a thread that waits for the GPU.
fn waiting(id: u32) -> ProcessThread {
    let names = [
        ("clock_nanosleep", "libc.so.6"),
        ("cuStreamSynchronize", "libcuda.so.1"),
        ("main", "server"),
    ];
    ProcessThread {
        id,
        name: format!("t{id}"),
        state: 'S',
        call: Some("clock_nanosleep".to_owned()),
        native: names
            .map(|(name, module)| (name.to_owned(), module.to_owned()))
            .to_vec(),
        ..ProcessThread::default()
    }
}

fn asleep(id: u32, function: &str) -> ProcessThread {
    ProcessThread {
        call: Some("futex".to_owned()),
        native: vec![(function.to_owned(), "server".to_owned())],
        ..waiting(id)
    }
}

/// Returns the state of a rank that waits for the GPU. It has entered 10 all-reduces, with the numbers 0 to 9.
fn rank(number: u32) -> RankState {
    let pid = 100 * (number + 1);
    let ring = Ring {
        pid,
        rank: Some(number.into()),
        steps_begun: 5,
        step_thread: pid,
        collectives_begun: 10,
        groups: vec![CapturedGroup {
            name: "TP".to_owned(),
            rank: number,
            size: RANKS as u32,
        }],
        communicators: vec![RingCommunicator {
            id: COMMUNICATOR,
            place: Some((number, RANKS as u32)),
            sequence: 10,
            directions: Some(Vec::new()),
        }],
        steps: vec![RingStep {
            number: 3,
            begin_ns: 0,
            end_ns: Some(SECOND),
        }],
        collectives: (0..10)
            .map(|n| call(COMMUNICATOR, n, all_reduce()))
            .collect(),
        ..Ring::default()
    };
    RankState {
        pid,
        life: Life::Runs,
        tracer: None,
        before: ring.clone(),
        ring,
        quiet_ns: Some(41 * SECOND),
        threads: vec![waiting(pid), asleep(pid + 1, "helper")],
        gil_holder: None,
        fault: None,
    }
}

fn ranks() -> Vec<RankState> {
    (0..RANKS as u32).map(rank).collect()
}

/// Changes the content of a rank's ring file in the same way in both readings (`ring` and `before`), so that the rank
/// does not seem to move.
fn change(rank: &mut RankState, act: impl Fn(&mut Ring)) {
    act(&mut rank.ring);
    act(&mut rank.before);
}

/// Returns the states of ranks. Rank 3 has not entered the last `count` collectives, which all other ranks have
/// entered.
fn without_last(count: usize) -> Vec<RankState> {
    let mut ranks = ranks();
    change(&mut ranks[3], |ring| {
        ring.collectives.truncate(10 - count);
        ring.communicators[0].sequence -= count as u64;
    });
    ranks
}

fn judged(ranks: &[RankState]) -> (Answer, VerdictKind, Vec<usize>, String) {
    let verdict = judge(ranks);
    (verdict.answer, verdict.kind, verdict.ranks, verdict.text)
}

#[test]
fn a_rank_that_sleeps_before_a_collective_is_named_with_its_function() {
    let mut ranks = without_last(2);
    ranks[3].threads[0] = asleep(400, "hold_up");
    let text = "rank 3 did not enter all_reduce #8 of TP (4.00 MiB, bfloat16): sleeps in futex, in hold_up (server) since \
                41.0 s";
    let expected = (
        Answer::Stuck,
        VerdictKind::NotEntered,
        vec![3],
        text.to_owned(),
    );
    assert_eq!(judged(&ranks), expected);
    // If the Python function of the thread is known, the verdict names it, because the user wrote that function.
    ranks[3].threads[0].python = vec!["f (a.py:3)".to_owned()];
    assert!(judged(&ranks).3.contains("in f (a.py:3) since"));
    // A function of the standard library says little without the program's function that called it. So the verdict
    // names both.
    let python = [
        "Popen._try_wait (/usr/lib/python3.12/subprocess.py:2011)",
        "run (/usr/lib/python3.12/subprocess.py:550)",
        "compile (/usr/lib/python3.12/site-packages/jit/a.py:3)",
    ];
    ranks[3].threads[0].python = python.map(str::to_owned).to_vec();
    let expected = "subprocess.py:2011), called by compile (/usr/lib/python3.12/site-packages/jit/a.py:3) since";
    assert!(judged(&ranks).3.contains(expected));
    // Ranks that have been quiet for only a second are not called stuck.
    ranks
        .iter_mut()
        .for_each(|rank| rank.quiet_ns = Some(SECOND));
    assert_eq!(judged(&ranks).0, Answer::CannotTell);
}

#[test]
fn a_rank_that_waits_for_requests_before_a_collective_is_idle() {
    let mut ranks = without_last(1);
    ranks[3].threads[0] = ProcessThread {
        python: [
            "wait (t.py:9)",
            "EngineCoreProc._process_input_queue (core.py:1)",
        ]
        .map(str::to_owned)
        .to_vec(),
        ..asleep(400, "sem_wait")
    };
    let (answer, kind, its, _) = judged(&ranks);
    assert_eq!(
        (answer, kind, its),
        (Answer::NotStuck, VerdictKind::Idle, vec![3])
    );
}

#[test]
fn a_rank_that_works_is_late_and_not_stuck() {
    let mut ranks = without_last(1);
    ranks[3].threads[0] = ProcessThread {
        state: 'R',
        ran: true,
        call: None,
        ..asleep(400, "compile")
    };
    let (answer, kind, its, text) = judged(&ranks);
    assert_eq!(
        (answer, kind, its),
        (Answer::NotStuck, VerdictKind::Busy, vec![3])
    );
    assert!(
        text.contains("rank 3 did not enter all_reduce #9") && text.contains("runs"),
        "{text}"
    );
}

#[test]
fn other_arguments_are_a_mismatch_and_swapped_calls_another_order() {
    let mut ranks = ranks();
    let smaller = operation(Collective::AllReduce, 1 << 20);
    change(&mut ranks[5], |ring| {
        ring.collectives[9].operation = smaller
    });
    let (answer, kind, its, text) = judged(&ranks);
    assert_eq!(
        (answer, kind, its),
        (Answer::Stuck, VerdictKind::Mismatch, vec![5])
    );
    let expected = "rank 5 called all_reduce (2.00 MiB, bfloat16) as #9 of TP, where rank 0, rank 1, rank 2, rank 3 and 3 \
                    more called all_reduce (4.00 MiB, bfloat16)";
    assert_eq!(text, expected);
    let broadcast = operation(Collective::Broadcast, 5);
    for (index, rank) in ranks.iter_mut().enumerate() {
        let (first, second) = match index {
            5 => (broadcast, all_reduce()),
            _ => (all_reduce(), broadcast),
        };
        change(rank, |ring| {
            ring.collectives[8].operation = first;
            ring.collectives[9].operation = second;
        });
    }
    let (_, kind, its, text) = judged(&ranks);
    assert_eq!((kind, its), (VerdictKind::Order, vec![5]));
    assert!(text.ends_with("another order"), "{text}");
}

#[test]
fn a_rank_that_is_gone_or_stopped_is_named_at_once() {
    let mut ranks = without_last(1);
    ranks[3].life = Life::Gone;
    let (answer, kind, its, text) = judged(&ranks);
    assert_eq!(
        (answer, kind, its),
        (Answer::Stuck, VerdictKind::Dead, vec![3])
    );
    assert!(
        text.contains("was killed or has crashed after all_reduce #8 of TP"),
        "{text}"
    );
    ranks[3].life = Life::Stopped;
    // If a rank is stopped, the ranks are stuck, although other ranks may still begin steps that do not need the
    // stopped rank.
    ranks[0].ring.steps_begun += 1;
    let (answer, kind, its, text) = judged(&ranks);
    assert_eq!(
        (answer, kind, its),
        (Answer::Stuck, VerdictKind::Stopped, vec![3])
    );
    assert!(text.contains("kill -CONT 400"), "{text}");
}

#[test]
fn ranks_wait_for_a_rank_that_is_gone_only_if_they_are_quiet_and_not_at_work() {
    let mut ranks = without_last(1);
    ranks[3].life = Life::Gone;
    ranks[0].quiet_ns = Some(SECOND);
    let (answer, kind, its, text) = judged(&ranks);
    assert_eq!(
        (answer, kind, its),
        (Answer::CannotTell, VerdictKind::Dead, vec![3])
    );
    assert!(text.ends_with("ask again)"), "{text}");
    ranks[0].quiet_ns = Some(41 * SECOND);
    ranks[5].threads[0] = ProcessThread {
        state: 'R',
        ran: true,
        call: None,
        ..asleep(600, "compile")
    };
    let (answer, kind, its, text) = judged(&ranks);
    assert_eq!(
        (answer, kind, its),
        (Answer::NotStuck, VerdictKind::Busy, vec![5])
    );
    assert!(text.contains("; rank 5: runs"), "{text}");
    // After a minute the thread may wait in a busy loop.
    ranks
        .iter_mut()
        .for_each(|rank| rank.quiet_ns = Some(61 * SECOND));
    let (answer, kind, its, text) = judged(&ranks);
    assert_eq!(
        (answer, kind, its),
        (Answer::Stuck, VerdictKind::Dead, vec![3])
    );
    assert!(text.ends_with("; the others advance no more"), "{text}");
}

#[test]
fn of_ranks_that_are_gone_those_that_were_killed_are_named() {
    let mut ranks = ranks();
    for index in [1, 2, 4] {
        ranks[index].life = Life::Gone;
    }
    ranks[4].ring.has_ended = true;
    let (answer, kind, its, text) = judged(&ranks);
    assert_eq!(
        (answer, kind, its),
        (Answer::Stuck, VerdictKind::Dead, vec![1, 2])
    );
    let expected = "rank 1 and rank 2 were killed or have crashed after all_reduce #9 of TP (4.00 MiB, bfloat16); the \
                    others wait";
    assert_eq!(text, expected);
    ranks[1].ring.has_ended = true;
    let (_, _, its, text) = judged(&ranks);
    assert_eq!(its, [2]);
    assert!(text.starts_with("rank 2 was killed"), "{text}");
    ranks[2].ring.has_ended = true;
    let (_, _, its, text) = judged(&ranks);
    assert_eq!(its, [1, 2, 4]);
    assert!(text.contains("rank 4 have ended by themselves"), "{text}");
}

#[test]
fn a_rank_that_a_debugger_holds_is_named_with_the_debugger() {
    let mut ranks = without_last(1);
    ranks[3].life = Life::Held;
    ranks[3].tracer = Some(77);
    let (answer, kind, its, text) = judged(&ranks);
    assert_eq!(
        (answer, kind, its),
        (Answer::Stuck, VerdictKind::Stopped, vec![3])
    );
    assert_eq!(text, "rank 3 is held by a debugger or tracer (process 77)");
    ranks[3].tracer = None;
    assert!(judged(&ranks).3.ends_with("or tracer"));
    // A tracer that lets the rank continue does not hold it.
    ranks[3].ring.steps_begun += 1;
    assert_eq!(judged(&ranks).1, VerdictKind::Moves);
}

#[test]
fn a_rank_is_gone_only_if_its_process_is_known_to_be_absent() {
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let ring = |pid: u32, host: &str, has_ended: bool| Ring {
        pid,
        host: host.to_owned(),
        has_ended,
        begin_ns: super::monotonic_ns(),
        ..Ring::default()
    };
    let own = std::process::id();
    assert!(!super::has_gone(&ring(own, &host, false)), "it runs");
    assert!(super::has_gone(&ring(own, &host, true)));
    assert!(super::has_gone(&ring(u32::MAX, &host, false)));
    let other = format!("{host}-other");
    assert!(!super::has_gone(&ring(u32::MAX, &other, false)));
    // This process was started after the ring file was begun.
    let older = Ring {
        begin_ns: 0,
        ..ring(own, &host, false)
    };
    assert!(super::has_gone(&older));
}

#[test]
fn a_lock_is_followed_to_the_thread_that_holds_it() {
    let mut ranks = without_last(1);
    ranks[3].threads[0] = ProcessThread {
        mutex_owner: Some(401),
        ..asleep(400, "take")
    };
    let (answer, kind, its, text) = judged(&ranks);
    assert_eq!(
        (answer, kind, its),
        (Answer::Stuck, VerdictKind::Lock, vec![3])
    );
    let expected = "thread 400 (t400) waits for a lock, in take (server), which thread 401 (t401) holds: it sleeps in \
                    futex, in helper (server)";
    assert!(text.contains(expected), "{text}");
    ranks[3].threads[1].mutex_owner = Some(400);
    let (_, kind, _, text) = judged(&ranks);
    assert_eq!(kind, VerdictKind::Deadlock);
    assert!(
        text.contains("threads wait for each other: thread 400"),
        "{text}"
    );
}

#[test]
fn the_gil_is_followed_to_the_thread_that_holds_it() {
    let mut ranks = without_last(1);
    let rank = &mut ranks[3];
    rank.threads[0] = ProcessThread {
        waits_for_gil: true,
        ..asleep(400, "take_gil")
    };
    rank.threads[1].python = vec!["holder (a.py:9)".to_owned()];
    rank.gil_holder = Some(401);
    let (answer, kind, its, text) = judged(&ranks);
    assert_eq!(
        (answer, kind, its),
        (Answer::Stuck, VerdictKind::Gil, vec![3])
    );
    assert!(text.contains("waits for the GIL"), "{text}");
    assert!(
        text.contains("thread 401 (t401) holds: it sleeps in futex, in holder (a.py:9)"),
        "{text}"
    );
    // The thread that holds the GIL now waits for a lock that the first thread owns.
    ranks[3].threads[1].mutex_owner = Some(400);
    assert_eq!(judged(&ranks).1, VerdictKind::Deadlock);
}

#[test]
fn a_wait_for_the_gpu_is_stuck_if_it_is_longer_than_steps_are() {
    let ranks = ranks();
    let (answer, kind, _, text) = judged(&ranks);
    assert_eq!((answer, kind), (Answer::Stuck, VerdictKind::Gpu));
    assert!(
        text.contains("waits for the GPU in cuStreamSynchronize"),
        "{text}"
    );
    let mut slow = ranks;
    change(&mut slow[0], |ring| {
        ring.steps[0].end_ns = Some(30 * SECOND)
    });
    assert_eq!(judged(&slow).0, Answer::NotStuck);
    // A wait for the GPU that is longer than the latest steps may be a long prefill, so it must last 10 s before the
    // ranks are called stuck.
    let mut prefill = self::ranks();
    for (quiet, answer) in [(9, Answer::NotStuck), (10, Answer::Stuck)] {
        prefill
            .iter_mut()
            .for_each(|rank| rank.quiet_ns = Some(quiet * SECOND));
        assert_eq!(judged(&prefill).0, answer, "{quiet} s");
    }
}

#[test]
fn a_rank_that_sleeps_while_all_others_wait_for_the_gpu_is_named() {
    // All ranks have entered the same numbered collectives. All except rank 6 then wait in a collective of a CUDA
    // graph. Such collectives have no numbers that show which rank is late. Only the function in which rank 6 sleeps
    // shows that rank 6 has not entered the collective.
    let mut ranks = ranks();
    ranks[6].threads[0] = asleep(700, "hold_up");
    let (answer, kind, its, text) = judged(&ranks);
    assert_eq!(
        (answer, kind, its),
        (Answer::Stuck, VerdictKind::NotEntered, vec![6])
    );
    assert!(text.contains("while the others wait for the GPU"), "{text}");
}

#[test]
fn ranks_that_are_read_while_a_long_wait_ends_are_not_stuck() {
    // All ranks have waited for the GPU. The wait ends while the ranks are read, so rank 6 already sleeps in its next
    // step. At the second reading all ranks have moved.
    let mut ending = ranks();
    ending[6].threads[0] = asleep(700, "usleep");
    assert_eq!(judged(&ending).0, Answer::Stuck);
    let mut later = ending.clone();
    later.iter_mut().for_each(|rank| rank.ring.steps_begun += 1);
    let confirmed = |all: &[&[RankState]]| {
        let mut reads = all.iter();
        let ranks = super::confirm(|| reads.next().unwrap().to_vec());
        assert!(reads.next().is_none(), "each reading is used");
        judged(&ranks).1
    };
    assert_eq!(confirmed(&[&ending, &later]), VerdictKind::Moves);
    assert_eq!(confirmed(&[&ending, &ending]), VerdictKind::NotEntered);
    assert_eq!(confirmed(&[&later]), VerdictKind::Moves);
    // Ranks that have all ended do not change any more, so they are read only once.
    let mut ended = ending.clone();
    ended.iter_mut().for_each(|rank| rank.life = Life::Gone);
    assert_eq!(confirmed(&[&ended]), VerdictKind::Dead);
}

#[test]
fn ranks_whose_graphs_hold_other_collectives_are_named() {
    let mut ranks = ranks();
    for (index, rank) in ranks.iter_mut().enumerate() {
        let times = if index == 2 { 159 } else { 160 };
        change(rank, |ring| {
            ring.captured = vec![CapturedCollective {
                communicator: COMMUNICATOR,
                operation: all_reduce(),
                times,
            }];
        });
    }
    let (answer, kind, its, _) = judged(&ranks);
    assert_eq!(
        (answer, kind, its),
        (Answer::Stuck, VerdictKind::Mismatch, vec![2])
    );
}

#[test]
fn a_rank_that_is_at_work_for_long_may_as_well_wait() {
    let mut ranks = ranks();
    for rank in &mut ranks {
        rank.threads[0] = ProcessThread {
            state: 'R',
            ran: true,
            call: None,
            native: Vec::new(),
            ..waiting(rank.pid)
        };
    }
    let (answer, kind, ..) = judged(&ranks);
    assert_eq!((answer, kind), (Answer::NotStuck, VerdictKind::Busy));
    ranks[0].quiet_ns = Some(61 * SECOND);
    assert_eq!(judged(&ranks).0, Answer::CannotTell);
    // These threads use the processor, but their Python function shows that they wait for the GPU.
    let python = "Event.synchronize (/lib/torch/cuda/streams.py:226)".to_owned();
    ranks
        .iter_mut()
        .for_each(|rank| rank.threads[0].python = vec![python.clone()]);
    assert_eq!(judged(&ranks).1, VerdictKind::Gpu);
}

#[test]
fn a_thread_whose_system_call_is_unknown_is_not_accused() {
    let mut ranks = ranks();
    for rank in &mut ranks {
        rank.threads[0] = asleep(rank.pid, "wait_for_work");
        rank.threads[0].call = None;
    }
    let (answer, kind, _, text) = judged(&ranks);
    assert_eq!((answer, kind), (Answer::CannotTell, VerdictKind::Unclear));
    assert!(text.contains("sleeps in an unknown system call"), "{text}");
    // Now the system call of one thread is known, and shows that the thread waits for work. So the ranks count as
    // idle.
    ranks[3].threads[0] = asleep(ranks[3].pid, "wait_for_work");
    let (answer, kind, _, _) = judged(&ranks);
    assert_eq!((answer, kind), (Answer::NotStuck, VerdictKind::Idle));
}

#[test]
fn ranks_that_move_or_wait_for_work_are_not_stuck() {
    let mut moving = without_last(2);
    moving[0].ring.collectives_begun += 1;
    assert_eq!(judged(&moving).1, VerdictKind::Moves);
    let mut ended = ranks();
    ended[7].ring.steps[0].end_ns = Some(2 * SECOND);
    assert_eq!(judged(&ended).1, VerdictKind::Moves);
    let mut idle = ranks();
    for rank in &mut idle {
        rank.threads[0] = asleep(rank.pid, "wait_for_work");
    }
    let (answer, kind, _, text) = judged(&idle);
    assert_eq!((answer, kind), (Answer::NotStuck, VerdictKind::Idle));
    assert!(
        text.starts_with("8 ranks have entered the same collectives; rank 0: sleeps in futex"),
        "{text}"
    );
}

#[test]
fn a_chain_of_communicators_leads_to_the_rank_that_waits_in_none() {
    // Rank 0 waits in the first communicator for rank 1, which waits in the second communicator for rank 2.
    let mut ranks: Vec<_> = (0..3).map(rank).collect();
    let use_of = |ring: &mut Ring, id, sequence| {
        ring.communicators.push(RingCommunicator {
            id,
            place: Some((0, 2)),
            sequence,
            directions: Some(Vec::new()),
        });
    };
    for (index, communicators) in [&[(1, 5)][..], &[(1, 4), (2, 9)], &[(2, 8)]]
        .iter()
        .enumerate()
    {
        change(&mut ranks[index], |ring| {
            ring.communicators.clear();
            ring.collectives.clear();
            for (id, sequence) in *communicators {
                use_of(ring, *id, *sequence);
            }
        });
    }
    ranks[2].threads[0] = asleep(300, "hold_up");
    let (answer, kind, its, text) = judged(&ranks);
    assert_eq!(
        (answer, kind, its),
        (Answer::Stuck, VerdictKind::NotEntered, vec![2])
    );
    assert!(
        text.starts_with("rank 2 did not enter collective #8"),
        "{text}"
    );
    // Rank 2 now also waits for rank 0, so that all three ranks wait for each other in a circle.
    change(&mut ranks[0], |ring| use_of(ring, 3, 1));
    change(&mut ranks[2], |ring| use_of(ring, 3, 2));
    assert_eq!(judged(&ranks).1, VerdictKind::Order);
}

/// Adds `count` sends or receives (`collective`) of 1 MiB to a rank's ring file (its latest steps and collectives).
/// `peer` is the other rank.
fn transfer(rank: &mut RankState, collective: Collective, peer: u32, count: u64) {
    change(rank, |ring| {
        let directions = ring.communicators[0].directions.as_mut().unwrap();
        directions.push(RingDirection {
            collective,
            peer,
            count,
        });
        let operation = Operation {
            peer: Some(peer),
            ..operation(collective, 1 << 19)
        };
        ring.collectives
            .extend((0..count).map(|n| call(COMMUNICATOR, n, operation)));
    });
}

#[test]
fn a_rank_that_does_not_send_or_receive_is_named() {
    // The ranks form a pipeline: rank 0 has sent twice to rank 1. Rank 1 has received once, and has sent the received
    // data to rank 2.
    let mut ranks = ranks();
    transfer(&mut ranks[0], Collective::Send, 1, 2);
    transfer(&mut ranks[1], Collective::Receive, 0, 1);
    transfer(&mut ranks[1], Collective::Send, 2, 1);
    transfer(&mut ranks[2], Collective::Receive, 1, 2);
    ranks[1].threads[0] = asleep(200, "hold_up");
    let (answer, kind, its, text) = judged(&ranks);
    assert_eq!(
        (answer, kind, its),
        (Answer::Stuck, VerdictKind::NotEntered, vec![1])
    );
    let expected = "rank 1 did not enter recv #1 from rank 0 of TP (1.00 MiB, bfloat16): sleeps in futex, in hold_up";
    assert!(text.starts_with(expected), "{text}");
    // Rank 1 now waits for data from rank 3, which has not sent any.
    transfer(&mut ranks[1], Collective::Receive, 3, 1);
    ranks[1].threads[0] = waiting(200);
    ranks[3].threads[0] = asleep(400, "hold_up");
    let (_, kind, its, text) = judged(&ranks);
    assert_eq!((kind, its), (VerdictKind::NotEntered, vec![3]));
    assert!(
        text.starts_with("rank 3 did not enter send #0 to rank 1 of TP"),
        "{text}"
    );
    // Rank 3 now waits for rank 0 before it sends, and rank 0 waits for rank 1.
    transfer(&mut ranks[3], Collective::Receive, 0, 1);
    let (_, kind, _, text) = judged(&ranks);
    assert_eq!(kind, VerdictKind::Order);
    assert!(text.starts_with("ranks wait for each other"), "{text}");
    // Without `directions`, the sends and receives of a rank are not counted, so they are not compared with those of
    // other ranks.
    for rank in &mut ranks {
        change(rank, |ring| ring.communicators[0].directions = None);
    }
    assert_ne!(judged(&ranks).1, VerdictKind::Order);
}

#[test]
fn a_receive_of_another_size_is_a_mismatch() {
    let mut ranks = ranks();
    transfer(&mut ranks[0], Collective::Send, 1, 2);
    transfer(&mut ranks[1], Collective::Receive, 0, 2);
    assert_eq!(judged(&ranks).1, VerdictKind::Gpu, "nothing differs");
    change(&mut ranks[1], |ring| {
        ring.collectives.last_mut().unwrap().operation.count = 7;
    });
    let (answer, kind, its, text) = judged(&ranks);
    assert_eq!(
        (answer, kind, its),
        (Answer::Stuck, VerdictKind::Mismatch, vec![0, 1])
    );
    let expected = "rank 0 called send (1.00 MiB, bfloat16) as #1 to rank 1 in TP, which called recv (14 B, bfloat16)";
    assert_eq!(text, expected);
}

#[test]
fn processes_that_are_all_gone_leave_a_verdict() {
    let mut gone = without_last(1);
    gone.iter_mut().for_each(|rank| rank.life = Life::Gone);
    gone.iter_mut().for_each(|rank| rank.threads.clear());
    let (answer, kind, its, text) = judged(&gone);
    assert_eq!(
        (answer, kind, its),
        (Answer::CannotTell, VerdictKind::NotEntered, vec![3])
    );
    let expected = "all processes are gone; at their end rank 3 did not enter all_reduce #9 of TP (4.00 MiB, bfloat16)";
    assert_eq!(text, expected);
    gone.iter_mut().for_each(|rank| rank.ring.has_ended = true);
    assert_eq!(judged(&gone).1, VerdictKind::Ended);
}

#[test]
fn runs_that_share_nothing_are_judged_apart() {
    let mut ranks = without_last(1);
    ranks[3].threads[0] = asleep(400, "hold_up");
    let mut other = rank(0);
    change(&mut other, |ring| {
        ring.communicators.clear();
        ring.collectives.clear();
    });
    other.ring.steps_begun += 1;
    ranks.push(other);
    assert_eq!(
        judged(&ranks).1,
        VerdictKind::NotEntered,
        "what moves hides nothing"
    );
    // The process of one rank has ended, but its ring file, with its latest steps and collectives, still exists. This
    // does not make the run stuck while the other ranks move.
    let mut moving = self::ranks();
    moving
        .iter_mut()
        .for_each(|rank| rank.ring.steps_begun += 1);
    let mut left = ranks.pop().unwrap();
    left.life = Life::Gone;
    moving.push(left);
    assert_eq!(judged(&moving).1, VerdictKind::Moves);
    assert_eq!(judge(&[]).answer, Answer::CannotTell);
}

#[test]
fn a_process_whose_threads_cannot_be_read_is_not_called_stuck() {
    let mut ranks = ranks();
    ranks.iter_mut().for_each(|rank| rank.threads.clear());
    let (answer, kind, ..) = judged(&ranks);
    assert_eq!((answer, kind), (Answer::CannotTell, VerdictKind::Unclear));
}

fn assign(faults: &[DeviceFault], ranks: &mut [RankState]) {
    ranks.iter_mut().for_each(|rank| rank.find_fault(faults));
}

/// Returns a device fault of the process `pid` at the time `time_ns`. By default, the ranks of these tests end their last
/// steps one second after the start of the clock, so a later fault comes after all steps.
fn fault(pid: Option<u32>, time_ns: Option<u64>) -> DeviceFault {
    DeviceFault {
        code: 31,
        device: "0000:4f:00".to_owned(),
        pid,
        time_ns,
    }
}

#[test]
fn a_device_fault_in_the_kernel_log_is_named_first() {
    let mut ranks = without_last(1);
    ranks[3].threads[0] = asleep(400, "hold_up");
    assign(&[fault(Some(400), Some(SECOND))], &mut ranks);
    let (answer, kind, its, text) = judged(&ranks);
    assert_eq!(
        (answer, kind, its),
        (Answer::Stuck, VerdictKind::DeviceFault, vec![3])
    );
    let expected = "the kernel log names rank 3 in Xid 31 (GPU memory page fault) of GPU 0000:4f:00 after all_reduce";
    assert!(text.starts_with(expected), "{text}");
    // First only the process that had the fault has ended, then all processes have ended.
    ranks[3].life = Life::Gone;
    assert_eq!(judged(&ranks).1, VerdictKind::DeviceFault);
    ranks.iter_mut().for_each(|rank| rank.life = Life::Gone);
    let (answer, kind, _, text) = judged(&ranks);
    assert_eq!(
        (answer, kind),
        (Answer::CannotTell, VerdictKind::DeviceFault)
    );
    assert!(
        text.contains("at their end the kernel log names rank 3 in Xid 31"),
        "{text}"
    );
}

#[test]
fn a_device_fault_without_a_process_counts_if_the_ranks_stopped_with_it() {
    let mut ranks = without_last(1);
    assign(&[fault(None, Some(SECOND))], &mut ranks);
    let (answer, kind, its, text) = judged(&ranks);
    let all: Vec<_> = (0..RANKS).collect();
    assert_eq!(
        (answer, kind, its),
        (Answer::Stuck, VerdictKind::DeviceFault, all)
    );
    assert!(text.contains("from when the ranks stopped"), "{text}");
}

#[test]
fn device_faults_that_did_not_stop_the_ranks_do_not_count() {
    let mut ranks = without_last(1);
    change(&mut ranks[3], |ring| {
        ring.steps[0].end_ns = Some(60 * SECOND);
    });
    let mut others = ranks.clone();
    others.iter_mut().for_each(|rank| {
        change(rank, |ring| ring.steps[0].end_ns = Some(60 * SECOND));
    });
    // None of these faults is the reason: they happened long before or long after the ranks stopped, or name another
    // process (which may have ended), or have no time.
    for fault in [
        fault(Some(400), Some(SECOND)),
        fault(None, Some(SECOND)),
        fault(None, Some(2000 * SECOND)),
        fault(None, Some(u64::MAX)),
        fault(Some(7), Some(60 * SECOND)),
        fault(None, None),
    ] {
        assign(std::slice::from_ref(&fault), &mut others);
        assert_ne!(judged(&others).1, VerdictKind::DeviceFault, "{fault:?}");
    }
    // A server without requests is idle, even if a GPU had a fault.
    let mut idle = self::ranks();
    idle.iter_mut()
        .for_each(|rank| rank.threads[0] = asleep(rank.pid, "poll_requests"));
    assign(&[fault(None, Some(SECOND))], &mut idle);
    assert_eq!(judged(&idle).1, VerdictKind::Idle);
    // As soon as the ranks make steps, a fault is no longer the reason of a verdict.
    assign(&[fault(Some(400), Some(60 * SECOND))], &mut ranks);
    assert_eq!(judged(&ranks).1, VerdictKind::DeviceFault);
    ranks[0].ring.steps_begun += 1;
    assert_eq!(judged(&ranks).1, VerdictKind::Moves);
}

#[test]
fn a_full_queue_is_named_with_the_function_that_puts() {
    let mut ranks = without_last(1);
    let thread = |python: &[&str]| ProcessThread {
        python: python.iter().map(|&name| name.to_owned()).collect(),
        ..asleep(400, "sem_wait")
    };
    let full: [&[&str]; 3] = [
        &[
            "Condition.wait (/l/threading.py:327)",
            "Queue.put (/l/queue.py:140)",
            "Worker.step (worker.py:7)",
        ],
        &[
            "Queue.put (/l/multiprocessing/queues.py:89)",
            "Worker.step (worker.py:7)",
        ],
        &[
            "wait (/l/threading.py:302)",
            "put (/l/queue.py:140)",
            "Worker.step (worker.py:7)",
        ],
    ];
    for python in full {
        ranks[3].threads[0] = thread(python);
        let (answer, kind, its, text) = judged(&ranks);
        assert_eq!(
            (answer, kind, its),
            (Answer::Stuck, VerdictKind::Queue, vec![3]),
            "{text}"
        );
        let expected = "waits for room in a full queue, in Worker.step (worker.py:7) since";
        assert!(text.contains(expected), "{text}");
    }
    let other: [&[&str]; 3] = [
        &["Queue.put (/l/queue.py:133)", "Worker.step (worker.py:7)"],
        &[
            "Condition.wait (/l/threading.py:327)",
            "Queue.get (/l/queue.py:180)",
            "Worker.step (worker.py:7)",
        ],
        &["put (mine.py:3)", "Worker.step (worker.py:7)"],
    ];
    for python in other {
        ranks[3].threads[0] = thread(python);
        assert_eq!(judged(&ranks).1, VerdictKind::NotEntered, "{python:?}");
    }
}

#[test]
fn a_host_function_for_which_the_gpu_waits_is_named() {
    let mut ranks = ranks();
    let frames = |names: &[(&str, &str)]| {
        let owned = |(name, module): &(&str, &str)| ((*name).to_owned(), (*module).to_owned());
        names.iter().map(owned).collect::<Vec<_>>()
    };
    let driver = ("", "libcuda.so.580.159.03");
    ranks[3].threads[1] = ProcessThread {
        call: Some("futex".to_owned()),
        native: frames(&[
            ("pthread_cond_wait", "libc.so.6"),
            ("wait_for_copy", "server"),
            driver,
            driver,
            ("start_thread", "libc.so.6"),
        ]),
        ..asleep(101, "")
    };
    let expected =
        "; the GPU waits for the host function wait_for_copy (server), which sleeps in futex since";
    let (answer, kind, _, text) = judged(&ranks);
    assert_eq!((answer, kind), (Answer::Stuck, VerdictKind::Gpu));
    assert!(
        text.contains(expected) && text.starts_with("rank 3: "),
        "{text}"
    );
    // Neither of these threads runs a host function: the first is a thread of the driver that waits for work, the
    // second is a thread of the program that has called the driver.
    for native in [
        frames(&[("poll", "libc.so.6"), driver, ("start_thread", "libc.so.6")]),
        frames(&[
            ("f", "server"),
            driver,
            ("g", "server"),
            ("start_thread", "libc.so.6"),
        ]),
    ] {
        ranks[3].threads[1].native = native;
        assert!(!judged(&ranks).3.contains("host function"));
    }
}

#[test]
fn a_host_function_is_named_by_what_is_known_of_it() {
    let mut ranks = ranks();
    let driver = "libcuda.so.580.159.03";
    let mut named = |frames: &[(&str, &str)], python: &[&str], waits_for_gil| {
        let owned = |(name, module): &(&str, &str)| ((*name).to_owned(), (*module).to_owned());
        ranks[3].threads[1] = ProcessThread {
            native: frames.iter().map(owned).collect(),
            python: python.iter().map(|&name| name.to_owned()).collect(),
            waits_for_gil,
            ..asleep(401, "")
        };
        judged(&ranks).3
    };
    // After `cudaStreamAddCallback`, the CUDA runtime calls the program's function. The callers of the driver's
    // function may be missing on the stack.
    let text = named(
        &[
            ("pause", "libc.so.6"),
            ("f", "server"),
            ("", "libcudart.so.13"),
            ("", driver),
        ],
        &[],
        false,
    );
    assert!(text.contains("waits for the host function f (server), which sleeps"));
    let callback = [
        ("take_gil", "python3"),
        ("closure_fcn", "_ctypes.so"),
        ("", "libffi.so.8.1.4"),
        ("", driver),
        ("start_thread", "libc.so.6"),
    ];
    let text = named(&callback, &["wait (copy.py:7)"], false);
    assert!(text.contains("waits for the host function wait (copy.py:7), which sleeps"));
    let text = named(&callback, &[], true);
    let expected = "waits for the host function closure_fcn (_ctypes.so), which waits for the GIL";
    assert!(text.contains(expected), "{text}");
    let text = named(&[("", "libhost.so"), ("", driver)], &[], false);
    assert!(text.contains("waits for a host function of libhost.so, which"));
    // A library of the NVIDIA driver also runs on the driver's threads. Its functions are no host functions.
    let text = named(
        &[("", "libnvidia-ptxjitcompiler.so.1"), ("", driver)],
        &[],
        false,
    );
    assert!(!text.contains("host function"), "{text}");
}

#[test]
fn a_host_function_is_named_rather_than_ranks_that_wait_or_sleep() {
    let mut ranks = ranks();
    let frames = [("wait_for_copy", "server"), ("", "libcuda.so.1")];
    ranks[3].threads[0] = ProcessThread {
        state: 'R',
        ran: true,
        call: None,
        native: Vec::new(),
        ..waiting(400)
    };
    ranks[3].threads[1] = ProcessThread {
        native: frames
            .map(|(name, module)| (name.to_owned(), module.to_owned()))
            .to_vec(),
        ..asleep(401, "")
    };
    ranks[5].threads[0] = asleep(600, "wait_for_rank_3");
    let (answer, kind, its, text) = judged(&ranks);
    assert_eq!((answer, kind), (Answer::Stuck, VerdictKind::Gpu), "{text}");
    assert_eq!(its, [0, 1, 2, 3, 4, 6, 7]);
    assert!(
        text.starts_with(
            "rank 3: runs; the GPU waits for the host function wait_for_copy (server)"
        ),
        "{text}"
    );
}
