//! Tests of ranks in groups: how collectives are matched if records name communicators or groups.

use tllmprof_record::{CommunicatorId, Info};
use tllmprof_report::{Arrivals, Report};

use crate::common::job::{Cause, Job, MS, Plant};
use crate::common::{fits, json, process};

fn report(job: &Job) -> Report {
    of_ranks(job, 0..job.ranks())
}

fn of_ranks(job: &Job, ranks: impl Iterator<Item = u64>) -> Report {
    let truth = job.truth();
    let processes = ranks.map(|rank| process(&format!("rank-{rank}"), &job.record(rank, &truth)));
    Report::new(processes.collect())
}

/// Returns the name and the processes of each group of ranks that the report found.
fn found(report: &Report) -> Vec<(String, Vec<usize>)> {
    let arrivals = report.arrivals.as_ref().unwrap();
    let groups = arrivals.groups.iter().map(|group| {
        let name = group.group.as_ref();
        let name = name.map_or_else(String::new, |name| {
            format!("{} of {}", name.name, name.size)
        });
        (name, group.processes.clone())
    });
    groups.collect()
}

fn notes(report: &Report) -> &Arrivals {
    report.arrivals.as_ref().unwrap()
}

/// Returns a record's entry for the membership of a rank in a communicator. The communicator's identifier is made
/// from `name`.
fn communicator(name: &str, rank: u64, size: u64) -> (Info, String) {
    let id = CommunicatorId::from_bytes(name.as_bytes());
    (Info::Communicator, format!("{id} {rank} {size}"))
}

fn group(text: String) -> (Info, String) {
    (Info::Group, text)
}

/// Returns entries for a record that put eight ranks into two groups of four. All of a rank's communicators with more
/// than one rank consist of the same four ranks.
fn halves(rank: u64) -> Vec<(Info, String)> {
    let half = rank / 4;
    vec![
        communicator(&format!("half {half}"), rank % 4, 4),
        // These two communicators do not change the groups: the first has only one rank, and the second has the same
        // ranks as the communicator above.
        communicator(&format!("alone {rank}"), 0, 1),
        communicator(&format!("half {half} again"), rank % 4, 4),
    ]
}

#[test]
fn groups_that_keep_step_are_not_matched_with_each_other() {
    // All eight ranks arrive at collectives together, like replicas with equal batches, so they
    // look like one group.
    let job = Job::default();
    assert_eq!(found(&report(&job)), [(String::new(), (0..8).collect())]);
    let job = Job {
        groups: halves,
        ..job
    };
    let report = report(&job);
    let communicator = || "communicator of 4".to_owned();
    assert_eq!(
        found(&report),
        [
            (communicator(), vec![0, 1, 2, 3]),
            (communicator(), vec![4, 5, 6, 7])
        ]
    );
    assert_eq!(notes(&report).notes, Vec::<String>::new());
}

#[test]
fn the_communicator_of_all_ranks_is_the_world() {
    let job = Job {
        groups: |rank| vec![communicator("all", rank, 8)],
        ..Job::default()
    };
    let report = report(&job);
    assert_eq!(
        found(&report),
        [("world of 8".to_owned(), (0..8).collect())]
    );
    let text = report.text();
    let heading = "\ncollectives of 40 iterations in world of 8: transfer-bound\n";
    assert!(text.contains(heading), "{text}");
}

#[test]
fn a_communicators_group_has_the_name_that_its_ranks_give_it() {
    let job = Job {
        groups: |rank| {
            let half = rank / 4;
            let mut all = halves(rank);
            all.push(group(format!("DP {half} 2 {}", rank % 4)));
            all.push(group(format!("TP {} 4 -", rank % 4)));
            all.push(group(format!("TP {} 4 {}", rank % 4, half * 4)));
            all
        },
        plants: vec![Plant {
            rank: 5,
            steps: (10, 29),
            cause: Cause::Gc,
            by: 3 * MS,
        }],
        ..Job::default()
    };
    let truth = report(&job);
    let tp = || "TP of 4".to_owned();
    assert_eq!(
        found(&truth),
        [(tp(), vec![0, 1, 2, 3]), (tp(), vec![4, 5, 6, 7])]
    );
    let text = truth.text();
    fits(&text, 44);
    for line in [
        "\n  TP of 4, ranks 0 to 3: ",
        "\n  TP of 4, ranks 4 to 7: ",
        "\n  rank 5 last in 20; ",
        "\n    it is TP1 of 4, DP1 of 2\n",
    ] {
        assert!(text.contains(line), "{line:?}: {text}");
    }
    let json = json(&truth);
    let five = &json["processes"][5];
    assert_eq!(five["in_groups"], "TP1 of 4, DP1 of 2");
    assert_eq!(five["groups"][0]["first"], 4);
    assert_eq!(five["communicators"][0]["rank"], 1);
    assert_eq!(
        five["communicators"][0]["id"],
        json["processes"][6]["communicators"][0]["id"]
    );
    let groups = json["collectives"]["groups"].as_array().unwrap();
    let sum = |key: &str| {
        groups
            .iter()
            .map(|one| one[key].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!(json["collectives"]["wait_ns"], sum("wait_ns"));
    assert_eq!(json["collectives"]["transfer_ns"], sum("transfer_ns"));
    assert_eq!(
        (&groups[1]["group"], &groups[1]["size"]),
        (&"TP".into(), &4.into())
    );
}

#[test]
fn in_several_communicators_times_decide_and_it_is_said() {
    let world_too = |rank| {
        let mut all = halves(rank);
        all.push(communicator("world", rank, 8));
        all
    };
    let job = Job {
        groups: world_too,
        ..Job::default()
    };
    let all = report(&job);
    // Each rank is also in a communicator of all ranks, so a kernel may belong to either of the two
    // communicators.
    assert_eq!(found(&all), [(String::new(), (0..8).collect())]);
    let note = "rank 0, rank 1, rank 2, rank 3 and 4 more: in several communicators of NCCL; which one a kernel is of \
                follows from its times alone";
    assert_eq!(notes(&all).notes, [note]);
    // It is not known to which communicator a kernel belongs. But if the two groups do not run in step, the report
    // finds them by the times of their collectives.
    let apart = report(&Job { group: 4, ..job });
    assert_eq!(found(&apart)[1], (String::new(), vec![4, 5, 6, 7]));
}

#[test]
fn a_communicator_that_is_not_known_may_be_any() {
    let job = Job {
        groups: |rank| {
            let mut all = halves(rank);
            // The call that created this communicator did not show the communicator's identifier.
            all.push((
                Info::Communicator,
                format!("{} 0 0", CommunicatorId::UNKNOWN),
            ));
            all
        },
        ..Job::default()
    };
    assert_eq!(found(&report(&job)), [(String::new(), (0..8).collect())]);
}

#[test]
fn a_group_with_a_rank_without_a_record_has_its_size() {
    let job = Job {
        groups: halves,
        ..Job::default()
    };
    let report = of_ranks(&job, [0, 1, 2, 4, 5, 6, 7].into_iter());
    assert_eq!(
        found(&report)[0],
        ("communicator of 4".to_owned(), vec![0, 1, 2])
    );
}

#[test]
fn collectives_of_an_engines_own_are_of_the_group_that_it_has_them_in() {
    let job = Job {
        name: "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 4>(int)",
        groups: |rank| vec![group(format!("TP {} 4 {}", rank % 4, rank / 4 * 4))],
        ..Job::default()
    };
    let tp = || "TP of 4".to_owned();
    assert_eq!(
        found(&report(&job)),
        [(tp(), vec![0, 1, 2, 3]), (tp(), vec![4, 5, 6, 7])]
    );
    // The entries of these records name a group and its size, but do not say which ranks form it.
    let unknown = Job {
        groups: |rank| vec![group(format!("TP {} 4 -", rank % 4))],
        ..job
    };
    assert_eq!(
        found(&report(&unknown)),
        [(String::new(), (0..8).collect())]
    );
}

#[test]
fn damaged_groups_are_none() {
    let job = Job {
        groups: |_| {
            vec![
                (Info::Communicator, "0123456789abcdef 9 4".to_owned()),
                group("TP 1".to_owned()),
                group("A\u{1b}[31m 0 4 0".to_owned()),
            ]
        },
        ..Job::default()
    };
    let report = report(&job);
    let first = &json(&report)["processes"][0];
    assert_eq!(
        (
            &first["in_groups"],
            first["communicators"].as_array().unwrap().len()
        ),
        (&"".into(), 0)
    );
}
