//! Tests of the rules for findings. A finding holds only if its cause is present, and is unknown if
//! the data that its rule needs are missing.

mod between;
mod calls;
mod fallback;
mod gaps;
mod gpu;
mod padding;
mod page;
mod ranks;
mod state;
mod synthetic;

use synthetic::{Call, LAUNCH, MS, SyntheticLoop, US, WAIT, find_finding, report, yes};
use tllmprof_report::Verdict;
use tllmprof_report::findings::RULES;

/// The rules on the state of the GPU and on NUMA nodes.
const STATE_RULES: [&str; 5] = [
    "throttled",
    "power-limited",
    "low-clocks",
    "shared-gpu",
    "far-from-gpu",
];

/// Repeats calls `count` times. Each repetition begins `every` nanoseconds after the previous one.
fn times(count: u64, every: u64, calls: &[Call]) -> Vec<Call> {
    (0..count)
        .flat_map(|n| {
            let later = n * every;
            let shift = move |(row, from, to): &Call| (*row, from + later, to + later);
            calls.iter().map(shift).collect::<Vec<_>>()
        })
        .collect()
}

fn kernels(count: u64, every: u64, length: u64) -> Vec<(u64, u64)> {
    (0..count)
        .map(|n| (n * every, n * every + length))
        .collect()
}

/// Checks that exactly the expected findings hold for the process of a simulated loop. Returns the
/// evidence of the first finding.
#[track_caller]
fn finds(made: SyntheticLoop, expected: &[&str]) -> String {
    let report = report(&[made]);
    assert_eq!(yes(&report), expected, "{:#?}", report.findings);
    let first = &report.findings[0];
    assert_eq!(report.findings.len(), RULES.len());
    first.evidence.clone()
}

#[track_caller]
fn says(made: SyntheticLoop, rule: &str, verdict: Verdict) {
    let report = report(&[made]);
    let finding = find_finding(&report, rule);
    assert_eq!(finding.verdict, verdict, "{finding:#?}");
    match verdict {
        Verdict::No => assert_eq!(finding.advice, ""),
        // If no GPU time was measured, the advice is to record kernels, even if the rule needs other data, too.
        Verdict::Unknown if finding.evidence == "GPU time was not measured" => {
            assert_eq!(finding.advice, "run with --kernels");
        }
        Verdict::Unknown => assert_eq!(finding.advice, finding.rule.to_know),
        Verdict::Yes => (),
    }
}

#[test]
fn nothing_stands_out_in_a_healthy_one() {
    finds(SyntheticLoop::default(), &[]);
    let everything = SyntheticLoop {
        python: true,
        settings: vec!["TLLM_PROFILE_RECORD_GC=1", "TLLMPROF_GIL=yes"],
        kernels: kernels(9, MS, 990 * US),
        experts: vec![vec![100, 101, 99, 100]],
        metrics: vec![(85.0, Some(75.0))],
        tokens: Some(|_| 8),
        ..SyntheticLoop::default()
    };
    let all = report(&[0, 1, 2].map(|rank| SyntheticLoop {
        rank,
        ..everything.clone()
    }));
    let unknown: Vec<_> = all
        .findings
        .iter()
        .filter(|finding| finding.verdict != Verdict::No)
        // The rules on the GPU's state are left out, because they need a separate record of samples, which this loop
        // does not have.
        .filter(|finding| !STATE_RULES.contains(&finding.rule.name))
        // Without sampled stacks it is not known if an event loop is blocked while the steps do not wait for it.
        .filter(|finding| finding.rule.name != "late-answers")
        .collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert!(
        all.text().contains("\nnothing stands out\n"),
        "{}",
        all.text()
    );
    assert!(!all.text().contains("not known"), "{}", all.text());
}

#[test]
fn batches_that_are_far_larger() {
    let made = SyntheticLoop {
        tokens: Some(|n| if n % 10 == 7 { 900 } else { 8 }),
        longer: |n| if n % 10 == 7 { 9 * MS } else { 0 },
        ..SyntheticLoop::default()
    };
    let evidence = finds(made.clone(), &["large-batches"]);
    assert_eq!(
        evidence,
        "4 of 4 slow iterations have a batch of over 2 times the mean's tokens"
    );
    let others = SyntheticLoop {
        tokens: Some(|n| if n % 10 == 8 { 900 } else { 8 }),
        ..made.clone()
    };
    says(others, "large-batches", Verdict::No);
    let unknown = SyntheticLoop {
        tokens: None,
        ..made
    };
    says(unknown, "large-batches", Verdict::Unknown);
}

#[test]
fn a_rule_that_mixes_the_work_of_two_steps() {
    // In some iterations, the host first waits for the previous step, then launches a prompt and waits for the prompt,
    // too.
    let made = |rule, prompts: fn(u64) -> bool| SyntheticLoop {
        rule,
        prompts,
        ..SyntheticLoop::default()
    };
    let evidence = finds(made("cuLaunchKernel", |n| n % 8 == 3), &["mixed-steps"]);
    assert_eq!(
        evidence,
        "in 5 of 40 iterations work is launched after a wait for the GPU (cuStreamSynchronize, 1.12 a step); \
         cuLaunchKernel counts it to the step before, --step cuStreamSynchronize does not"
    );
    says(made("cuLaunchKernel", |_| true), "mixed-steps", Verdict::No);
    says(
        made("cuLaunchKernel", |_| false),
        "mixed-steps",
        Verdict::No,
    );
    let by_wait = made("cuStreamSynchronize", |n| n % 8 == 3);
    says(by_wait, "mixed-steps", Verdict::No);
}

#[test]
fn no_time_is_lost_twice() {
    // A garbage collection between a wait for the GPU and the next launch delays the launch. The delay counts as an
    // effect of the collection, not of the wait.
    let calls = [(LAUNCH, 0, 5 * US), (WAIT, 10 * US, MS)];
    let made = SyntheticLoop {
        calls: times(4, 2 * MS, &calls),
        python: true,
        settings: vec!["TLLM_PROFILE_RECORD_GC=1", "TLLMPROF_GIL=1"],
        gc: |_| 2 * MS,
        gil: |_| 8 * MS,
        ..SyntheticLoop::default()
    };
    let report = report(&[made]);
    let losses = report
        .findings
        .iter()
        .filter(|one| one.verdict == Verdict::Yes);
    let losses: Vec<_> = losses.filter_map(|one| one.loss).collect();
    assert!(losses.len() > 1, "{:#?}", report.findings);
    assert!(losses.iter().sum::<f64>() <= 1.0, "{losses:?}");
    assert!(losses.is_sorted_by(|a, b| a >= b), "{losses:?}");
}

#[test]
fn collections_in_slow_iterations() {
    let made = SyntheticLoop {
        python: true,
        settings: vec!["TLLM_PROFILE_RECORD_GC=1", "TLLMPROF_GIL=1"],
        gc: |n| if n % 20 == 3 { 9 * MS } else { 0 },
        ..SyntheticLoop::default()
    };
    let evidence = finds(made.clone(), &["gc"]);
    assert_eq!(
        evidence,
        "2 collections, the longest 9.00 ms: 4.3 % of the time; to blame in 2 of 2 slow iterations"
    );
    let few = SyntheticLoop {
        gc: |n| if n == 3 { MS } else { 0 },
        ..made.clone()
    };
    finds(few, &[]);
    let rare = SyntheticLoop {
        iterations: 2000,
        gc: |n| if n == 3 { 9 * MS } else { 0 },
        ..made.clone()
    };
    finds(rare, &[]);
    let meanwhile = SyntheticLoop {
        calls: vec![(LAUNCH, 0, 5 * US), (WAIT, 10 * US, 9900 * US)],
        gc: |_| 0,
        hidden_gc: 5 * MS,
        ..made.clone()
    };
    finds(meanwhile, &[]);
    let not_recorded = SyntheticLoop {
        settings: Vec::new(),
        gc: |_| 0,
        ..made.clone()
    };
    says(not_recorded, "gc", Verdict::Unknown);
    let none = SyntheticLoop { gc: |_| 0, ..made };
    says(none, "gc", Verdict::No);
    says(SyntheticLoop::default(), "gc", Verdict::No);
    let by_nsys = SyntheticLoop {
        by_library: false,
        ..SyntheticLoop::default()
    };
    says(by_nsys.clone(), "gc", Verdict::Unknown);
    says(by_nsys, "gil", Verdict::Unknown);
}

#[test]
fn waits_for_the_gil() {
    let made = SyntheticLoop {
        python: true,
        settings: vec!["TLLM_PROFILE_RECORD_GC=1", "TLLMPROF_GIL=1"],
        gil: |_| 5 * MS,
        ..SyntheticLoop::default()
    };
    let evidence = finds(made.clone(), &["gil"]);
    assert_eq!(
        evidence,
        "waits for the GIL, held most by tokenise: 33.3 % of the time"
    );
    let short = SyntheticLoop {
        gil: |_| 50 * US,
        ..made.clone()
    };
    finds(short, &[]);
    let not_recorded = SyntheticLoop {
        settings: vec!["TLLMPROF_GIL=0"],
        gil: |_| 0,
        ..made
    };
    says(not_recorded, "gil", Verdict::Unknown);
}

#[test]
fn the_strongest_comes_first_and_symptoms_after_their_cause() {
    let both = SyntheticLoop {
        python: true,
        settings: vec!["TLLM_PROFILE_RECORD_GC=1", "TLLMPROF_GIL=1"],
        gc: |_| 2 * MS,
        gil: |_| 8 * MS,
        kernels: vec![(0, 4 * MS)],
        ..SyntheticLoop::default()
    };
    let report = report(&[both]);
    assert_eq!(yes(&report), ["gil", "gc", "low-gpu-utilisation"]);
    // The symptom (low utilization) has no loss, because its time is already in the losses of its
    // causes.
    let symptom = &report.findings[2];
    assert_eq!((&*symptom.advice, symptom.loss), ("fix gil first", None));
    let losses: Vec<_> = report.findings[..2].iter().map(|f| f.loss).collect();
    assert_eq!(losses, [Some(0.4), Some(0.1)]);
}
