//! Tests of jobs with many ranks whose clocks differ: the last rank at collectives, its delay, and
//! the causes of this delay.

use crate::common::job::{Cause, FIRST, Job, Jump, MS, Plant, US};
use crate::common::{fits, json, process};
use serde_json::Value;
use tllmprof_record::Reader;
use tllmprof_report::{Arrivals, Bound, Process, Report, Verdict};

fn processes(job: &Job, keep: impl Fn(u64) -> bool) -> Vec<Process> {
    let truth = job.truth();
    let ranks = (0..job.ranks()).filter(|rank| keep(*rank));
    ranks
        .map(|rank| process(&format!("rank-{rank}"), &job.record(rank, &truth)))
        .collect()
}

fn report(job: &Job) -> Report {
    Report::new(processes(job, |_| true))
}

#[track_caller]
fn arrivals(report: &Report) -> &Arrivals {
    report.arrivals.as_ref().unwrap()
}

const fn plant(rank: u64, steps: (u64, u64), cause: Cause, by: u64) -> Plant {
    Plant {
        rank,
        steps,
        cause,
        by,
    }
}

const NAMED: [(Cause, &str); 7] = [
    (Cause::Gc, "GC"),
    (Cause::Gil, "waiting for the GIL"),
    (Cause::Asleep, "asleep or blocked"),
    (Cause::Delayed, "waiting for a processor"),
    (Cause::Tokens, "GPU work"),
    (Cause::Kernels, "GPU work"),
    (Cause::Launch, "late launch"),
];

#[test]
fn a_late_rank_is_named_with_its_cause() {
    for (cause, name) in NAMED {
        let job = Job {
            plants: vec![plant(5, (10, 29), cause, 3 * MS)],
            ..Job::default()
        };
        let report = report(&job);
        let found = arrivals(&report);
        assert_eq!(found.slowest().first(), Some(&5), "{cause:?}");
        assert_eq!(found.ranks[5].last, 20, "{cause:?}");
        assert_eq!(
            found.verdict,
            Bound::ArrivalSkew,
            "{cause:?}: {}",
            found.why
        );
        let late = found.ranks[5].late as f64 / 20.0;
        assert!(
            (late / (3 * MS) as f64 - 1.0).abs() < 0.01,
            "{cause:?}: {late}"
        );
        let causes = found.causes(5);
        assert_eq!(causes[0].cause, name, "{cause:?}: {causes:?}");
        assert!(
            causes[0].more as f64 > 0.95 * late * 20.0,
            "{cause:?}: {causes:?}"
        );
        assert_eq!(
            causes.iter().map(|one| one.more).sum::<i64>(),
            found.ranks[5].late as i64
        );
        let detail = causes[0].detail.as_deref();
        match cause {
            Cause::Tokens => assert_eq!(detail, Some("3.00 times the tokens of the median rank")),
            Cause::Kernels => assert_eq!(detail, Some("the same kernels took longer")),
            _ => assert_eq!(detail, None),
        }
        for step in &found.steps {
            let is_late = (10..30).contains(&(u64::from(step.n) - FIRST));
            assert_eq!(
                step.last.map(|last| last.0) == Some(5) && step.last.unwrap().1 > MS,
                is_late
            );
            let bound = if is_late {
                Bound::ArrivalSkew
            } else {
                Bound::TransferBound
            };
            assert_eq!(found.bound(step), bound, "{cause:?}: {step:?}");
        }
        assert_eq!(found.notes, Vec::<String>::new());
    }
}

#[test]
fn of_two_ranks_the_late_one_has_its_cause() {
    for (cause, name) in NAMED {
        let job = Job {
            hosts: 1,
            per_host: 2,
            plants: vec![plant(1, (10, 29), cause, 3 * MS)],
            ..Job::default()
        };
        let report = report(&job);
        let found = arrivals(&report);
        assert_eq!(found.ranks[1].last, 20, "{cause:?}");
        let causes = found.causes(1);
        assert_eq!(causes[0].cause, name, "{causes:?}");
        let late = found.ranks[1].late as f64;
        assert!(causes[0].more as f64 > 0.95 * late, "{cause:?}: {causes:?}");
    }
}

/// Rank 5 comes 20 ms late to the window's first collective. In real jobs the ranks wait for each other in this
/// collective because CUPTI attaches at a different time on each rank. So the report must leave this collective out.
#[test]
fn the_first_collective_of_a_window_makes_no_rank_late() {
    let job = Job {
        plants: vec![plant(5, (0, 0), Cause::Asleep, 20 * MS)],
        ..Job::default()
    };
    let report = report(&job);
    let found = arrivals(&report);
    assert_eq!(found.verdict, Bound::TransferBound, "{}", found.why);
    assert_eq!((found.ranks[5].last, found.ranks[5].late), (0, 0));
}

#[test]
fn wait_and_transfer_are_all_of_the_collectives() {
    let job = Job::default();
    let report = report(&job);
    let found = arrivals(&report);
    // Each of the 8 ranks has 40 iterations with 8 collectives. Only the window's first collective
    // is left out.
    assert_eq!(found.all.count, 8 * (40 * 8 - 1));
    assert_eq!(found.verdict, Bound::TransferBound, "{}", found.why);
    assert!(
        found
            .slowest()
            .iter()
            .all(|place| found.gain(*place) < 0.01)
    );
    let kernels = report.processes.iter().flat_map(|one| &one.kernels.totals);
    let all = kernels
        .filter(|one| one.name.starts_with("nccl"))
        .map(|one| one.total);
    let json = json(&report);
    let processes = json["processes"].as_array().unwrap().iter();
    let first: u64 = processes
        .map(|one| one["collectives"][0]["unmatched_ns"].as_u64().unwrap())
        .sum();
    let all = all.sum::<u64>();
    assert_eq!(found.all.wait + found.all.transfer + first, all);
    assert!((1..all / 200).contains(&first), "{first} of {all}");
    let transfer = found.all.transfer / found.all.count;
    assert!((30 * US..=33 * US).contains(&transfer), "{transfer}");
}

#[test]
fn clocks_of_hosts_are_aligned_by_the_ends_of_collectives() {
    let job = Job {
        hosts: 5,
        per_host: 4,
        steps: 200,
        plants: vec![plant(9, (50, 149), Cause::Gc, 2 * MS)],
        ..Job::default()
    };
    let report = report(&job);
    let found = arrivals(&report);
    assert_eq!(found.clocks.len(), 5);
    for (host, clock) in (0..).zip(&found.clocks) {
        let (offset, drift) = job.clock(host);
        // Because of the drift, a clock's offset changes during the record. The report gives the offset for the middle
        // of the record.
        let middle = report.processes[clock.process].windows[0].iterations[100].start;
        let at = (middle as i64 - offset - 5_000 * MS as i64) as f64;
        let expected = offset + (at * drift / 1e6) as i64;
        let off = clock.offset.unwrap() - expected;
        let most = if host == 0 { 5 * US } else { 50 * US };
        assert!(off.unsigned_abs() < most, "{host}: {off}");
        assert!(clock.error < most, "{clock:?}");
        assert!((clock.drift - drift).abs() < 2.0, "{clock:?} {drift}");
    }
    assert_eq!(found.slowest().first(), Some(&9));
    assert_eq!(found.ranks[9].last, 100);
    assert_eq!(found.jumps, []);
}

#[test]
fn clocks_that_jump_are_found_and_spoil_nothing() {
    let by = 7 * MS as i64;
    for (jump, per_host) in [
        (
            Jump {
                host: Some(1),
                rank: None,
                step: 60,
                by,
            },
            4,
        ),
        (
            Jump {
                host: Some(0),
                rank: None,
                step: 60,
                by,
            },
            4,
        ),
        (
            Jump {
                host: None,
                rank: Some(6),
                step: 60,
                by,
            },
            4,
        ),
    ] {
        let job = Job {
            hosts: 3,
            per_host,
            steps: 121,
            jumps: vec![jump],
            plants: vec![plant(2, (1, 120), Cause::Asleep, MS)],
            ..Job::default()
        };
        let report = report(&job);
        let found = arrivals(&report);
        assert_eq!(found.jumps.len(), 1, "{jump:?}: {:?}", found.jumps);
        let one = &found.jumps[0];
        assert_eq!(one.is_host, jump.host.is_some());
        assert_eq!(one.process as u64 / per_host, jump.host.unwrap_or(1));
        assert!((one.by - by).abs() < 50_000, "{one:?}");
        assert!(u64::from(one.step).abs_diff(FIRST + 60) <= 1, "{one:?}");
        assert_eq!(found.slowest().first(), Some(&2));
        assert!(found.ranks[2].last >= 119, "{:?}", found.ranks[2]);
        assert_eq!(found.ranks[2].causes_first(), "asleep or blocked");
        assert!(
            found
                .notes
                .iter()
                .any(|note| note.contains("jumps by +7.0")),
            "{:?}",
            found.notes
        );
    }
}

trait First {
    fn causes_first(&self) -> String;
}

impl First for tllmprof_report::RankSum {
    fn causes_first(&self) -> String {
        self.why.differences()[0].cause.clone()
    }
}

#[test]
fn ranks_that_are_missing_leave_it_open_what_the_others_wait_for() {
    let job = Job::default();
    let report = Report::new(processes(&job, |rank| rank != 3));
    let found = arrivals(&report);
    assert_eq!(found.verdict, Bound::Inconclusive);
    assert!(
        found.notes[0].contains("rank 3: what the others wait for"),
        "{:?}",
        found.notes
    );
    // The record of rank 3 is missing. But the other ranks are known to wait for rank 5, so the verdict is certain.
    let late = Job {
        plants: vec![plant(5, (0, 39), Cause::Gc, 3 * MS)],
        ..job
    };
    let report = Report::new(processes(&late, |rank| rank != 3));
    let found = arrivals(&report);
    assert_eq!(found.verdict, Bound::ArrivalSkew);
    assert_eq!(report.processes[found.slowest()[0]].facts.rank, 5);
}

#[test]
fn what_does_not_match_is_said_and_left_out() {
    // An iteration is left out if a collective of one rank is missing in it.
    let job = Job {
        lost: Some((2, 17)),
        ..Job::default()
    };
    let lost = report(&job);
    let found = arrivals(&lost);
    assert_eq!(found.steps.len(), 39);
    assert!(found.steps.iter().all(|step| step.n != FIRST as u32 + 17));
    assert!(
        found.notes[0].contains("2.5 % of the collectives have no match"),
        "{:?}",
        found.notes
    );
    // If one rank's record begins a little later than those of the other ranks, the earlier iterations of the other
    // ranks are left out. If it begins much later, that rank is left out.
    for (later, steps, note) in [
        (5, 35, "have no match"),
        (30, 40, "rank 6: records of too few"),
    ] {
        let job = Job {
            later: Some((6, later)),
            ..Job::default()
        };
        let report = report(&job);
        let found = arrivals(&report);
        assert_eq!(found.steps.len(), steps, "{later}");
        assert!(
            found.notes.iter().any(|one| one.contains(note)),
            "{:?}",
            found.notes
        );
    }
}

#[test]
fn records_of_another_run_are_left_out() {
    let job = Job::default();
    let mut all = processes(&job, |rank| rank < 6);
    // Ranks 6 and 7 are taken from another run of the job, so their collectives do not match those
    // of ranks 0 to 5.
    let other = Job {
        transfer: 90 * US,
        ..Job::default()
    };
    all.extend(processes(&other, |rank| rank >= 6));
    let report = Report::new(all);
    let found = arrivals(&report);
    assert_eq!(found.groups.len(), 2);
    assert_eq!(found.groups[0].processes, [0, 1, 2, 3, 4, 5]);
    let mut all = processes(&job, |_| true);
    all.extend(processes(&other, |rank| rank == 4));
    let report = Report::new(all);
    let found = arrivals(&report);
    assert!(
        found.notes[0].starts_with("rank 4 is that of 2 processes"),
        "{:?}",
        found.notes
    );
    assert!(found.groups.iter().all(|group| group.processes.len() == 7));
}

#[test]
fn groups_are_ranks_whose_collectives_are_the_same_events() {
    let job = Job {
        hosts: 2,
        group: 4,
        plants: vec![
            plant(5, (0, 39), Cause::Gc, 3 * MS),
            plant(13, (20, 29), Cause::Gil, MS),
        ],
        ..Job::default()
    };
    let report = report(&job);
    let found = arrivals(&report);
    let groups: Vec<_> = found
        .groups
        .iter()
        .map(|group| group.processes.clone())
        .collect();
    assert_eq!(
        groups,
        [
            vec![0, 1, 2, 3],
            vec![4, 5, 6, 7],
            vec![8, 9, 10, 11],
            vec![12, 13, 14, 15]
        ]
    );
    assert_eq!(found.slowest()[..2], [5, 13]);
    // The ranks of the two hosts have no collective in common, so the offset between the hosts'
    // clocks is not known.
    assert_eq!(found.clocks[1].offset, None);
}

#[test]
fn ranks_without_collectives_have_no_arrivals() {
    let job = Job {
        name: "some_kernel",
        ..Job::default()
    };
    assert!(report(&job).arrivals.is_none());
    let one = Job::default();
    assert!(
        Report::new(processes(&one, |rank| rank == 0))
            .arrivals
            .is_none()
    );
}

#[test]
fn five_hundred_ranks() {
    let causes = [
        (3, Cause::Gc, "GC"),
        (77, Cause::Gil, "waiting for the GIL"),
        (200, Cause::Asleep, "asleep or blocked"),
        (301, Cause::Tokens, "GPU work"),
        (402, Cause::Kernels, "GPU work"),
        (511, Cause::Launch, "late launch"),
    ];
    let plants = (0..).zip(causes).map(|(at, (rank, cause, _))| {
        let from = 1 + at * 30;
        plant(rank, (from, from + 19), cause, (2 + at) * MS)
    });
    let job = Job {
        hosts: 64,
        steps: 200,
        collectives: 4,
        kernels: 1,
        plants: plants.collect(),
        ..Job::default()
    };
    let report = report(&job);
    let found = arrivals(&report);
    assert_eq!(found.groups.len(), 1);
    assert_eq!(found.groups[0].processes.len(), 512);
    let mut slowest: Vec<_> = found.slowest()[..6].to_vec();
    slowest.sort_unstable();
    assert_eq!(slowest, [3, 77, 200, 301, 402, 511]);
    for (rank, cause, name) in causes {
        let own = &found.ranks[rank as usize];
        assert_eq!((own.last, &*own.causes_first()), (20, name), "{cause:?}");
    }
    for (host, clock) in (0..).zip(&found.clocks) {
        let (offset, drift) = job.clock(host);
        let middle = report.processes[clock.process].windows[0].iterations[100].start;
        let at = (middle as i64 - offset - 5_000 * MS as i64) as f64;
        let off = clock.offset.unwrap() - offset - (at * drift / 1e6) as i64;
        assert!(off.unsigned_abs() < 50 * US, "{host}: {off}");
    }
    let json: Value = json(&report);
    assert_eq!(json["collectives"]["verdict"], "arrival-skew");
}

#[test]
fn the_text_names_the_rank_and_why() {
    let job = Job {
        plants: vec![plant(5, (10, 29), Cause::Gc, 3 * MS)],
        ..Job::default()
    };
    let text = report(&job).text();
    fits(&text, 44);
    let begins = "\ncollectives of 40 iterations: arrival skew\n  ranks wait 5";
    assert!(text.contains(begins), "{text}");
    assert!(
        text.contains("  rank 5 last in 20; without it 1."),
        "{text}"
    );
    assert!(text.contains("+60.0 ms GC"), "{text}");
    assert!(text.contains("\n  arrival-skew: ranks wait"), "{text}");
}

#[test]
fn a_finding_names_the_rank_that_comes_last() {
    let of = |plants: &[Plant]| {
        let job = Job {
            plants: plants.to_vec(),
            ..Job::default()
        };
        let report = report(&job);
        let losses: f64 = report.findings.iter().filter_map(|one| one.loss).sum();
        assert!(losses <= 1.0 + 1e-9, "{:#?}", report.findings);
        let mut findings = report.findings.into_iter();
        findings
            .find(|one| one.rule.name == "arrival-skew")
            .unwrap()
    };
    let found = of(&[plant(5, (0, 39), Cause::Kernels, 3 * MS)]);
    assert_eq!(found.verdict, Verdict::Yes);
    assert!(
        found
            .evidence
            .contains("; rank 5 comes last in 40 of 40 iterations: +119 ms GPU work"),
        "{}",
        found.evidence
    );
    assert!(found.loss.unwrap() > 0.5, "{found:?}");
    // In this test a different rank is late in each iteration.
    let all: Vec<_> = (0..40)
        .map(|step| plant(step % 8, (step, step), Cause::Asleep, MS))
        .collect();
    let found = of(&all);
    assert_eq!(found.verdict, Verdict::Yes);
    // In this job no rank is late.
    let found = of(&[]);
    assert_eq!(found.verdict, Verdict::No, "{}", found.evidence);
    assert!(!found.evidence.contains("rank 5"));
}

#[test]
fn json_has_wait_and_transfer_of_each_process() {
    let job = Job {
        plants: vec![plant(5, (10, 29), Cause::Gc, 3 * MS)],
        ..Job::default()
    };
    let report = report(&job);
    let json = json(&report);
    let found = &json["collectives"];
    assert_eq!(found["verdict"], "arrival-skew");
    assert_eq!(found["iterations"].as_array().unwrap().len(), 40);
    let late = &found["iterations"][12];
    assert_eq!(
        (&late["last"], &late["verdict"]),
        (&5.into(), &"arrival-skew".into())
    );
    assert_eq!(late["causes"][0]["cause"], "GC");
    let us = late["late"][5].as_u64().unwrap();
    assert!((3000..3020).contains(&us), "{us}");
    let sum = |key: &str| -> u64 {
        let all = json["processes"].as_array().unwrap().iter();
        all.map(|one| one["collectives"][0][key].as_u64().unwrap())
            .sum()
    };
    assert_eq!(
        json["processes"][3]["collectives"][0]["name"],
        "all-reduce (NCCL)"
    );
    assert_eq!(sum("count"), 8 * 40 * 8);
    assert_eq!(sum("matched"), 8 * (40 * 8 - 1));
    assert_eq!(found["wait_ns"], sum("wait_ns"));
    assert_eq!(found["transfer_ns"], sum("transfer_ns"));
}

#[test]
fn damaged_records_have_a_report() {
    let job = Job {
        hosts: 2,
        per_host: 2,
        plants: vec![plant(3, (10, 29), Cause::Gc, 3 * MS)],
        ..Job::default()
    };
    let truth = job.truth();
    let records: Vec<_> = (0..4).map(|rank| job.record(rank, &truth)).collect();
    let mut random = 7_u64;
    let mut next = |below: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as usize % below
    };
    for round in 0..60 {
        let damaged = records.iter().map(|bytes| {
            let mut bytes = bytes.clone();
            for _ in 0..1 << (round % 12) {
                let at = next(bytes.len());
                bytes[at] = next(256) as u8;
            }
            bytes
        });
        let read = damaged.filter_map(|bytes| {
            let reader = Reader::new(&bytes[..]).ok()?;
            Process::read("damaged".into(), &reader).ok()
        });
        let report = Report::new(read.collect());
        let json = json(&report);
        assert!(report.text().len() > 10 && json["processes"].is_array());
    }
}
