//! Tests of findings on several processes: the rank that the others wait for, and the process with the greatest loss.

use tllmprof_report::Verdict;

use super::synthetic::{self, LAUNCH, MS, SyntheticLoop, US, WAIT, find_finding, report, yes};

#[test]
fn a_slow_rank_whose_own_causes_are_known_loses_nothing_twice() {
    let ranks = [0, 1, 2].map(|rank| SyntheticLoop {
        rank,
        python: true,
        settings: vec!["TLLM_PROFILE_RECORD_GC=1", "TLLMPROF_GIL=1"],
        gil: if rank == 1 { |_| 2 * MS } else { |_| 0 },
        ..SyntheticLoop::default()
    });
    let report = report(&ranks);
    assert_eq!(yes(&report), ["gil", "slow-rank"]);
    assert!(report.findings[0].loss.is_some());
    let slow = &report.findings[1];
    assert_eq!(slow.loss, None);
    assert!(
        slow.evidence.ends_with(", by causes of its own"),
        "{}",
        slow.evidence
    );
}

#[test]
fn a_slow_rank_and_its_own_causes_claim_what_it_takes_longer_and_no_more() {
    // In this test all ranks wait for the GIL, and rank 1 waits longest.
    let ranks = [0, 1, 2, 3].map(|rank| SyntheticLoop {
        rank,
        python: true,
        settings: vec!["TLLM_PROFILE_RECORD_GC=1", "TLLMPROF_GIL=1"],
        gil: if rank == 1 { |_| 3 * MS } else { |_| MS },
        longer: if rank == 1 { |_| 7 * MS } else { |_| 0 },
        experts: vec![vec![8000, 1000, 1000, 0]],
        ..SyntheticLoop::default()
    });
    let report = report(&ranks);
    assert_eq!(yes(&report), ["slow-rank", "gil", "routing-imbalance"]);
    let losses: Vec<_> = report.findings[..3].iter().map(|one| one.loss).collect();
    // Rank 1 waits for the GIL for 3 of 20 ms, and the other ranks for 1 of 11 ms. The finding on
    // the GIL explains the waits of rank 1. The finding on the slow rank explains the rest of the 9
    // ms by which rank 1 is slower.
    let [slow, gil] = [losses[0].unwrap(), losses[1].unwrap()];
    assert!((gil - 0.15).abs() < 1e-6, "{losses:?}");
    assert!(
        (slow - (0.45 - (0.15 - 1.0 / 11.0))).abs() < 1e-6,
        "{losses:?}"
    );
    assert!(slow + gil <= 10.0 / 20.0 + 1.0 / 11.0, "{losses:?}");
    assert_eq!(losses[2], None);
}

#[test]
fn a_rank_that_is_slow_for_its_code_is_one_finding() {
    let ranks = [0, 1, 2].map(|rank| SyntheticLoop {
        rank,
        calls: vec![(LAUNCH, 0, 5 * US), (WAIT, 10 * US, 9950 * US)],
        gpu: Some((0, 9950 * US)),
        longer: if rank == 1 { |_| 6 * MS } else { |_| 0 },
        ..SyntheticLoop::default()
    });
    let report = report(&ranks);
    assert_eq!(yes(&report), ["slow-rank"]);
    let evidence = &report.findings[0].evidence;
    let code = "; there the GPU has nothing to do 37.8 % of the time while the host runs code: code between \
                cuStreamSynchronize and cuLaunchKernel";
    assert!(evidence.contains(code), "{evidence}");
}

#[test]
fn one_slow_rank() {
    fn slow(_: u64) -> u64 {
        2 * MS
    }
    let ranks = [0, 1, 2].map(|rank| SyntheticLoop {
        rank,
        longer: if rank == 1 { slow } else { |_| 0 },
        ..SyntheticLoop::default()
    });
    let report = report(&ranks);
    let finding = find_finding(&report, "slow-rank");
    assert_eq!(finding.verdict, Verdict::Yes);
    assert_eq!(
        finding.evidence,
        "rank 1: 12.0 ms at the median, the others 10.0 ms; the slowest in 100 % of the iterations; if it were like \
         them, 10.0 ms a step, not 12.0 ms; there the GPU has nothing to do 20.9 % of the time while the host runs code: \
         code between cuStreamSynchronize and cuLaunchKernel (20.3 %), code after cuStreamSynchronize (0.5 %)"
    );
    assert_eq!(yes(&report), ["slow-rank"]);
    assert!(
        (finding.loss.unwrap() - 2.0 / 12.0).abs() < 1e-6,
        "{finding:?}"
    );
    // If another rank is nearly as slow as the slowest, a fix for the slowest rank would save
    // little.
    let mut two = ranks.clone();
    two[2].longer = |_| 1900 * US;
    let four = [
        two[0].clone(),
        two[1].clone(),
        two[2].clone(),
        SyntheticLoop {
            rank: 3,
            ..SyntheticLoop::default()
        },
    ];
    let report = synthetic::report(&four);
    let finding = find_finding(&report, "slow-rank");
    assert_eq!(finding.verdict, Verdict::Yes, "{finding:?}");
    assert!(
        (finding.loss.unwrap() - 0.1 / 12.0).abs() < 1e-6,
        "{finding:?}"
    );
    let one = synthetic::report(&ranks[1..2]);
    assert_eq!(find_finding(&one, "slow-rank").verdict, Verdict::Unknown);
    // Two processes with the same rank number cannot be ranks of the same run.
    let same = synthetic::report(&[ranks[1].clone(), ranks[1].clone()]);
    assert_eq!(find_finding(&same, "slow-rank").verdict, Verdict::Unknown);
    // In this test rank 0 is slower in 11 of 20 iterations. In the others both ranks take equally long.
    let mut some = [ranks[0].clone(), ranks[2].clone()];
    some[0].longer = |n| if n % 20 < 11 { 2 * MS } else { 0 };
    assert_eq!(
        find_finding(&synthetic::report(&some), "slow-rank").verdict,
        Verdict::No
    );
    let even = synthetic::report(&[ranks[0].clone(), ranks[2].clone()]);
    assert_eq!(find_finding(&even, "slow-rank").verdict, Verdict::No);
}

#[test]
fn of_several_processes_the_worst_is_named() {
    let gil = |rank, gil| SyntheticLoop {
        rank,
        python: true,
        gil,
        ..SyntheticLoop::default()
    };
    let ranks = [
        gil(0, |_| 5 * MS),
        gil(1, |_| 6 * MS),
        SyntheticLoop {
            rank: 2,
            ..SyntheticLoop::default()
        },
    ];
    let report = report(&ranks);
    let finding = find_finding(&report, "gil");
    assert_eq!(
        finding.evidence,
        "rank 1: waits for the GIL, held most by tokenise: 37.5 % of the time, and 1 more process"
    );
    let unknown = find_finding(&report, "gc");
    assert_eq!(unknown.verdict, Verdict::Unknown);
    assert_eq!(unknown.evidence, "rank 0: collections were not recorded");
}
