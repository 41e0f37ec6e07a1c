//! Tests of GPU idle time that consists of one long gap or of many short gaps.

use tllmprof_report::{Report, Verdict};

use super::synthetic::{LAUNCH, MS, SyntheticLoop, US, WAIT, find_finding, report, yes};
use super::{kernels, times};
use crate::common::json;

/// Returns the report on the loop `made`, with kernels recorded in only the first 10 iterations (of 40 by default).
fn recorded(made: SyntheticLoop) -> Report {
    let kernel_steps = Some(10);
    report(&[SyntheticLoop {
        kernel_steps,
        ..made
    }])
}

/// Returns the share of time in which the GPU is busy, as a fraction.
fn busy(report: &Report) -> f64 {
    let json = json(report);
    json["processes"][0]["gpu_busy_share"].as_f64().unwrap()
}

/// Returns a loop whose iterations have a few kernels at the beginning and at the end. In between the host runs a
/// function that makes no CUDA calls.
fn one_long_gap() -> SyntheticLoop {
    let later = |(row, from, to)| (row, from + 9_300 * US, to + 9_300 * US);
    let burst = |count| times(count, 8 * US, &[(LAUNCH, 0, 4 * US)]);
    let mut calls = burst(13);
    calls.extend(burst(12).into_iter().map(later));
    calls.push((WAIT, 9_400 * US, 9_900 * US));
    let first = kernels(13, 10 * US, 8 * US);
    let last = kernels(12, 10 * US, 8 * US).into_iter();
    let last = last.map(|(from, to)| (from + 9_300 * US, to + 9_300 * US));
    SyntheticLoop {
        calls,
        gpu: Some((0, 9_900 * US)),
        kernels: first.into_iter().chain(last).collect(),
        functions: vec![("Scheduler.plan", 150 * US, 9_250 * US)],
        ..SyntheticLoop::default()
    }
}

#[test]
fn a_gpu_that_is_busy_for_a_moment_is_not_as_busy_as_its_span_is_long() {
    let report = recorded(one_long_gap());
    assert!((busy(&report) - 0.02).abs() < 1e-6, "{}", busy(&report));
    let json = json(&report);
    let span = json["processes"][0]["gpu_span_share"].as_f64().unwrap();
    assert!((span - 0.99).abs() < 1e-6, "{span}");
    let text = report.text();
    let ends = |start: &str, end: &str| {
        let line = text.lines().find(|line| line.starts_with(start));
        assert!(line.is_some_and(|line| line.ends_with(end)), "{text}");
    };
    ends("    GPU span ", " 99.0 %");
    ends("    GPU busy ", " 2.0 %");
    // The three shares (busy, gaps, and before and after work) of the time of iterations with recorded kernels add up
    // to 1.
    let whole = "kernels of 10 steps: busy 1.0 %, gaps 46.1 %, before and after work 52.9 %\n";
    assert!(text.contains(whole), "{text}");
    assert_eq!(yes(&report), ["host-bound", "low-gpu-utilisation"]);
    let found = &report.findings[0];
    assert!(
        found.evidence.contains("Scheduler.plan: its own code (9"),
        "{}",
        found.evidence
    );
    assert_eq!(find_finding(&report, "launch-bound").verdict, Verdict::No);
}

#[test]
fn many_short_gaps_are_launch_bound() {
    let report = recorded(SyntheticLoop {
        calls: times(400, 24 * US, &[(LAUNCH, 0, 4 * US)]),
        kernels: kernels(400, 24 * US, 5 * US),
        ..SyntheticLoop::default()
    });
    assert!((busy(&report) - 0.2).abs() < 1e-6, "{}", busy(&report));
    assert_eq!(yes(&report), ["launch-bound", "low-gpu-utilisation"]);
    assert!(
        report.findings[0].loss.unwrap() > 0.6,
        "{:?}",
        report.findings[0]
    );
}

#[test]
fn findings_claim_no_more_than_the_gpu_is_idle() {
    // In this loop the host still waits for a while after each kernel has ended, and then runs
    // code.
    let waits = SyntheticLoop {
        calls: times(4, 2 * MS, &[(LAUNCH, 0, 5 * US), (WAIT, 10 * US, MS)]),
        kernels: kernels(4, 2 * MS, 600 * US),
        ..SyntheticLoop::default()
    };
    let mut gaps = one_long_gap();
    gaps.calls
        .extend(times(8, 10 * US, &[(WAIT, 9_900 * US, 9_905 * US)]));
    for (made, causes) in [(waits, 2), (gaps, 1), (one_long_gap(), 1)] {
        let report = recorded(made);
        let claimed: Vec<_> = report.findings.iter().filter_map(|one| one.loss).collect();
        assert!(claimed.len() >= causes, "{:#?}", report.findings);
        let sum: f64 = claimed.iter().sum();
        assert!(sum <= 1.0 - busy(&report) + 1e-6, "{claimed:?}");
    }
}

#[test]
fn what_to_do_depends_on_what_was_asked_for() {
    let text = |made: SyntheticLoop| {
        let text = report(&[made]).text();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let quiet = SyntheticLoop::default();
    let asked = SyntheticLoop {
        settings: vec!["TLLMPROF_KERNELS=auto"],
        ..quiet.clone()
    };
    let refused = SyntheticLoop {
        settings: vec!["TLLMPROF_KERNELS=0"],
        ..quiet.clone()
    };
    let without_times = SyntheticLoop {
        kernels: vec![(MS, MS)],
        ..asked.clone()
    };
    let run_with = "not measured: run with --kernels, or with no --window";
    for (made, wanted) in [
        (quiet, run_with),
        (refused, run_with),
        (
            asked.clone(),
            "kernels were asked for, and the record has none",
        ),
        (
            asked,
            "not known without kernels, which were asked for, and could not be recorded",
        ),
        (
            without_times,
            "the kernels that were recorded have no times",
        ),
    ] {
        let text = text(made);
        assert!(text.contains(wanted), "{wanted}:\n{text}");
    }
}
