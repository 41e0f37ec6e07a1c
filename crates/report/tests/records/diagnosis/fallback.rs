//! Tests of the rule `eager-fallback`. It finds decode iterations that launch no graph, although other iterations ran
//! batches of the same size or larger as graphs.

use tllmprof_record::Used;
use tllmprof_report::Verdict;

use super::synthetic::{Call, GRAPH, LAUNCH, LENGTH, MS, SyntheticLoop, US, WAIT};
use super::{finds, says, times};

const RULE: &str = "eager-fallback";

/// Returns the calls of an iteration that launches a graph and, outside the graph, 4 kernels.
fn by_graph(_: u64) -> Vec<Call> {
    let mut calls = times(4, 10 * US, &[(LAUNCH, 0, 5 * US)]);
    calls.extend([(GRAPH, 50 * US, 60 * US), (WAIT, 70 * US, 9_500 * US)]);
    calls
}

/// Returns the calls of an iteration that launches all kernels one by one.
fn eager(_: u64) -> Vec<Call> {
    let mut calls = times(40, 10 * US, &[(LAUNCH, 0, 5 * US)]);
    calls.push((WAIT, 500 * US, 9_500 * US));
    calls
}

/// Returns true for the iterations that launch no graph: from 14 on every fifth one.
const fn is_eager(n: u64) -> bool {
    n >= 14 && n % 5 == 4
}

const fn requests(n: u64) -> u16 {
    match n {
        n if is_eager(n) => 3 + (n % 10) as u16,
        n => 16 + (n % 3) as u16 * 24,
    }
}

/// Returns a loop whose graphs run batches of 16 to 64 requests. In every fifth iteration a batch of 7 or 12 requests
/// runs without a graph, and takes 3 ms longer.
fn server() -> SyntheticLoop {
    SyntheticLoop {
        calls_of: Some(|n| if is_eager(n) { eager(n) } else { by_graph(n) }),
        longer: |n| if is_eager(n) { 3 * MS } else { 0 },
        requests,
        tokens: Some(|n| i64::from(requests(n))),
        used: Vec::new(),
        ..SyntheticLoop::default()
    }
}

#[test]
fn batches_that_fit_a_graph_and_run_without_one() {
    let evidence = finds(server(), &[RULE]);
    assert_eq!(
        evidence,
        "6 of 40 decode iterations (14, 19, 24, 29, …) launched no graph although their batches fit one: they have 7, 12 tokens, \
         and graphs ran batches of up to 64; they take 13.0 ms, iterations of such batches with a graph 10.0 ms: 4.3 % of the time"
    );
}

#[test]
fn batches_that_fit_no_graph_are_no_fallback() {
    // In the first loop, the batches without a graph are larger than all batches with one. In the second loop, only
    // three batches with a graph are at least as large as those without one.
    let larger = SyntheticLoop {
        requests: |n| if is_eager(n) { 65 } else { requests(n) },
        tokens: Some(|n| if is_eager(n) { 65 } else { requests(n).into() }),
        ..server()
    };
    says(larger, RULE, Verdict::No);
    let few = SyntheticLoop {
        requests: |n| match n {
            n if is_eager(n) => 60,
            5..8 => 64,
            _ => 16,
        },
        tokens: Some(|n| match n {
            n if is_eager(n) => 60,
            5..8 => 64,
            _ => 16,
        }),
        ..server()
    };
    says(few, RULE, Verdict::No);
    // With speculative decoding, batches with a graph have two tokens for each request, and batches without one have
    // one token. Batches are compared only with batches that have as many tokens a request.
    let drafts = SyntheticLoop {
        tokens: Some(|n| match is_eager(n) {
            true => requests(n).into(),
            false => i64::from(requests(n)) * 2,
        }),
        ..server()
    };
    says(drafts, RULE, Verdict::No);
}

#[test]
fn prompts_run_without_a_graph_by_design() {
    let prompts = SyntheticLoop {
        prompt_tokens: |n| i64::from(is_eager(n)),
        ..server()
    };
    says(prompts, RULE, Verdict::No);
}

#[test]
fn engines_without_graphs_are_no_fallback() {
    let without = SyntheticLoop {
        calls_of: Some(eager),
        ..server()
    };
    says(without, RULE, Verdict::No);
    let unknown = SyntheticLoop {
        tokens: None,
        ..server()
    };
    says(unknown, RULE, Verdict::Unknown);
}

#[test]
fn batches_before_the_first_graph_are_no_fallback() {
    let later = SyntheticLoop {
        calls_of: Some(|n| if n < 10 { eager(n) } else { by_graph(n) }),
        longer: |n| if n < 10 { 3 * MS } else { 0 },
        ..server()
    };
    says(later, RULE, Verdict::No);
}

#[test]
fn few_of_either_kind_are_too_few() {
    let three = SyntheticLoop {
        calls_of: Some(|n| match n {
            14 | 24 | 34 => eager(n),
            _ => by_graph(n),
        }),
        longer: |n| if is_eager(n) { 3 * MS } else { 0 },
        ..server()
    };
    says(three, RULE, Verdict::No);
    let three = SyntheticLoop {
        calls_of: Some(|n| if n < 3 { by_graph(n) } else { eager(n) }),
        ..server()
    };
    says(three, RULE, Verdict::No);
}

#[test]
fn iterations_that_capture_a_graph_are_no_fallback() {
    let captured = SyntheticLoop {
        captures: is_eager,
        ..server()
    };
    finds(captured, &["graph-recapture"]);
}

#[test]
fn a_graph_that_is_launched_in_the_iteration_beside_its_own_is_no_fallback() {
    // In this loop, a separate thread launches the graphs. Sometimes it launches a graph one iteration late. Then the
    // iteration to which the graph belongs has no graph launch, and the next iteration has two.
    fn twice(n: u64) -> Vec<Call> {
        let mut calls = by_graph(n);
        calls.insert(5, (GRAPH, 62 * US, 66 * US));
        calls
    }
    let late = SyntheticLoop {
        calls_of: Some(|n| match n {
            n if is_eager(n) => eager(n),
            n if is_eager(n - n.min(1)) => twice(n),
            n => by_graph(n),
        }),
        ..server()
    };
    says(late, RULE, Verdict::No);
    // Here, an iteration without a graph launches only the 4 kernels that other iterations launch outside the graph. So
    // it did not launch the graph's work itself.
    let beside = SyntheticLoop {
        calls_of: Some(|n| {
            let mut calls = by_graph(n);
            calls.retain(|(row, ..)| !is_eager(n) || *row != GRAPH);
            calls
        }),
        ..server()
    };
    says(beside, RULE, Verdict::No);
}

#[test]
fn a_fallback_that_costs_nothing_is_no_finding() {
    let cheap = SyntheticLoop {
        longer: |_| 0,
        ..server()
    };
    says(cheap, RULE, Verdict::No);
    // In this loop, the thread is asleep during the additional time of an iteration and while it waits for the GPU.
    // This is not a fallback, because sleeps have a finding of their own.
    let asleep = SyntheticLoop {
        used: vec![(Used::Ran, 500 * US, 0), (Used::Waits, 0, 1000)],
        ..server()
    };
    says(asleep, RULE, Verdict::No);
    let collects = SyntheticLoop {
        longer: |_| 0,
        gc: |n| if is_eager(n) { 3 * MS } else { 0 },
        ..server()
    };
    says(collects, RULE, Verdict::No);
}

#[test]
fn kernels_that_are_recorded_make_no_iteration_a_slow_one() {
    // The first 20 iterations have recorded kernels and take twice as long. Those of them without a graph are compared
    // only with iterations that have recorded kernels, too.
    let made = SyntheticLoop {
        kernel_steps: Some(20),
        kernels: vec![(100 * US, 9_500 * US)],
        ..server()
    };
    let report = super::report(&[made]);
    let finding = super::find_finding(&report, RULE);
    assert_eq!(finding.verdict, Verdict::Yes, "{finding:#?}");
    let length = 20 * 2 * LENGTH + 20 * LENGTH + 6 * 3 * MS;
    let cost = 6.0 * 3.0 * MS as f64 / length as f64;
    assert!((finding.loss.unwrap() - cost).abs() < 0.001, "{finding:#?}");
}

#[test]
fn time_of_the_fallback_is_not_that_of_launches_too() {
    // Two of three iterations take 60 ms to launch 6000 kernels. The GPU is idle for most of this time.
    let made = SyntheticLoop {
        calls_of: Some(|n| match n % 3 {
            0 => vec![(GRAPH, 0, 10 * US), (WAIT, 20 * US, 9_900 * US)],
            _ => times(6000, 9_900, &[(LAUNCH, 0, 9_000)]),
        }),
        longer: |n| if n % 3 == 0 { 0 } else { 50 * MS },
        requests: |_| 8,
        tokens: Some(|_| 8),
        used: Vec::new(),
        ..SyntheticLoop::default()
    };
    says(made.clone(), "launch-bound", Verdict::No);
    says(made.clone(), RULE, Verdict::Yes);
    // If the batches are not known, the report cannot know that they fit a graph.
    let unknown = SyntheticLoop {
        tokens: None,
        ..made
    };
    says(unknown.clone(), "launch-bound", Verdict::Yes);
    says(unknown, RULE, Verdict::Unknown);
}
