//! Tests of the rule `graph-padding`. It finds decode batches that run in a graph which also runs larger batches, and
//! estimates what that costs by the times of smaller graphs.

use tllmprof_record::GraphState;
use tllmprof_report::Verdict;

use super::says;
use super::synthetic::{
    Call, GRAPH, LENGTH, MS, Replay, SyntheticLoop, US, WAIT, find_finding, report, yes,
};

const RULE: &str = "graph-padding";

/// Number of an iteration that would begin after the record's last kernel.
const END: u64 = 50;

/// Returns the calls of an iteration that launches one graph and waits for it.
fn one_graph(_: u64) -> Vec<Call> {
    vec![(GRAPH, 0, 50 * US), (WAIT, 70 * US, 18 * MS)]
}

/// Returns the number of tokens in a batch, with one token for each request.
const fn tokens(n: u64) -> u16 {
    match n % 5 {
        0 => 8,
        1 => 16,
        2 => 32,
        3 => 17,
        _ => 18,
    }
}

/// Returns the replay of the smallest of the graphs 1 (8 tokens), 2 (16 tokens) and 3 (32 tokens) that the batch fits.
/// They take 2, 4 and 12 ms.
fn smallest_graph(n: u64) -> Vec<Replay> {
    let (exec, ns) = match tokens(n) {
        8 => (1, 2 * MS),
        16 => (2, 4 * MS),
        _ => (3, 12 * MS),
    };
    vec![(exec, 100 * US, 100 * US + ns)]
}

/// Returns a loop with three graphs, in which two of five batches have 17 or 18 tokens and run in the graph for 32.
/// Kernels are recorded in all iterations, which take 20 ms.
fn server() -> SyntheticLoop {
    SyntheticLoop {
        calls_of: Some(one_graph),
        replays: Some(smallest_graph),
        graph_states: (1..=3).map(known).collect(),
        kernel_steps: Some(40),
        requests: tokens,
        tokens: Some(|n| tokens(n).into()),
        used: Vec::new(),
        ..SyntheticLoop::default()
    }
}

/// Returns the state of an executable graph that is known, and whose captured graph has the same number.
const fn known(exec: u32) -> (u64, u32, GraphState, u32) {
    (END, exec, GraphState::Known, exec)
}

/// Returns the evidence and the loss of the finding. Fails the test if its verdict is not `verdict`.
#[track_caller]
fn judged(made: SyntheticLoop, verdict: Verdict) -> (String, Option<f64>) {
    let report = report(&[made]);
    let finding = find_finding(&report, RULE);
    assert_eq!(finding.verdict, verdict, "{finding:#?}");
    (finding.evidence.clone(), finding.loss)
}

const PADDED: &str = "16 of 40 decode iterations (3, 4, 8, 9, …) ran in a larger graph than they need: they have 17, 18 tokens, \
                      their graph ran batches of up to 32";

#[test]
fn batches_that_run_in_a_larger_graph() {
    let (evidence, loss) = judged(server(), Verdict::Yes);
    let cost = "; by the graphs of 16 and 32 tokens they would take 4.75 ms of GPU time on average, not 12.0 ms: 14.5 % of the time";
    assert_eq!(evidence, PADDED.to_owned() + cost);
    // Between 16 tokens (4 ms) and 32 tokens (12 ms), each token takes 0.5 ms. So graphs of 17 and 18 tokens would take
    // 4.5 and 5 ms.
    let saved = 8.0 * (7.5 + 7.0) * MS as f64;
    let all = (40 * 2 * LENGTH) as f64;
    assert!((loss.unwrap() - saved / all).abs() < 1e-6, "{loss:?}");
}

#[test]
fn graphs_that_take_equally_long_cost_nothing() {
    let flat = SyntheticLoop {
        replays: Some(|n| vec![(smallest_graph(n)[0].0, 100 * US, 12 * MS)]),
        ..server()
    };
    let (evidence, _) = judged(flat, Verdict::No);
    let cost = "; by the graphs of 16 and 32 tokens they would take 11.9 ms of GPU time on average, not 11.9 ms: 0.0 % of the time";
    assert_eq!(evidence, PADDED.to_owned() + cost);
    // Random differences of the times are no cost: here, some padded batches take longer than the estimate, and others
    // take less time.
    let random = SyntheticLoop {
        replays: Some(|n| {
            let more = if n % 2 == 0 { 2 * MS } else { 0 };
            vec![(smallest_graph(n)[0].0, 100 * US, 10 * MS + more)]
        }),
        ..server()
    };
    says(random, RULE, Verdict::No);
}

#[test]
fn batches_of_the_sizes_of_graphs_are_not_padded() {
    let fits = SyntheticLoop {
        requests: |n| tokens(n).next_power_of_two(),
        tokens: Some(|n| tokens(n).next_power_of_two().into()),
        ..server()
    };
    let (evidence, _) = judged(fits, Verdict::No);
    let expected = "0 of 40 decode iterations ran in a larger graph than they need";
    assert_eq!(evidence, expected);
    let one_size = SyntheticLoop {
        requests: |_| 17,
        tokens: Some(|_| 17),
        replays: Some(|_| vec![(3, 100 * US, 12 * MS)]),
        ..server()
    };
    let (evidence, _) = judged(one_size, Verdict::No);
    assert_eq!(evidence, "graphs ran decode batches of one size only");
}

#[test]
fn what_the_record_does_not_show_is_unknown() {
    let unknown = |made, why| {
        let (evidence, _) = judged(made, Verdict::Unknown);
        assert_eq!(evidence, why);
    };
    let no_batches = SyntheticLoop {
        tokens: None,
        ..server()
    };
    says(no_batches.clone(), RULE, Verdict::Unknown);
    unknown(no_batches, "what is in batches is not known");
    let no_layers = SyntheticLoop {
        kernels: vec![(100 * US, 12 * MS)],
        replays: None,
        graph_states: Vec::new(),
        ..server()
    };
    unknown(no_layers, "which graph an iteration ran was not recorded");
    let no_kernels = SyntheticLoop {
        calls_of: Some(|_| vec![(GRAPH, 0, 50 * US), (WAIT, 70 * US, 9 * MS)]),
        replays: None,
        graph_states: Vec::new(),
        kernel_steps: None,
        ..server()
    };
    unknown(no_kernels, "kernels were not recorded");
    let dropped = SyntheticLoop {
        dropped: 1,
        ..server()
    };
    unknown(dropped, "events are missing in the record");
    let without_graphs = SyntheticLoop {
        calls_of: None,
        ..server()
    };
    says(without_graphs, RULE, Verdict::No);
    // A graph that was changed after its capture may have run batches of any size.
    let changed = SyntheticLoop {
        graph_states: (1..=3)
            .map(|exec| (END, exec, GraphState::Changed, exec))
            .collect(),
        ..server()
    };
    unknown(changed, "it is not known which graph an iteration ran");
}

#[test]
fn an_iteration_with_a_graph_launch_that_is_not_known_is_left_out() {
    // In every second iteration, the graph number of one of two launches is not known.
    let two = SyntheticLoop {
        calls_of: Some(|n| {
            let mut calls = one_graph(n);
            if n % 2 == 0 {
                calls.insert(1, (GRAPH, 55 * US, 60 * US));
            }
            calls
        }),
        replays: Some(|n| {
            let mut replays = smallest_graph(n);
            if n % 2 == 0 {
                replays.push((9, 13 * MS, 14 * MS));
            }
            replays
        }),
        ..server()
    };
    let (evidence, _) = judged(two, Verdict::Yes);
    let expected = "8 of 20 decode iterations (3, 9, 13, 19, …) ran in a larger graph";
    assert!(evidence.starts_with(expected), "{evidence}");
}

#[test]
fn a_graph_belongs_to_the_iteration_that_launched_it() {
    // The GPU is one iteration behind the host, as with an asynchronous scheduler.
    let behind = SyntheticLoop {
        replays: Some(|n| {
            let later = |(exec, from, to): &Replay| (*exec, from + 2 * LENGTH, to + 2 * LENGTH);
            smallest_graph(n).iter().map(later).collect()
        }),
        ..server()
    };
    let (evidence, _) = judged(behind, Verdict::Yes);
    assert!(evidence.starts_with(PADDED), "{evidence}");
}

#[test]
fn without_a_smaller_graph_the_cost_is_not_known() {
    let not_known = |made| {
        let (evidence, _) = judged(made, Verdict::No);
        let end = "; what that costs is not known, because no smaller graph can be compared";
        assert!(
            evidence.contains("ran in a larger graph") && evidence.ends_with(end),
            "{evidence}"
        );
    };
    let smallest = SyntheticLoop {
        replays: Some(|_| vec![(3, 100 * US, 12 * MS)]),
        ..server()
    };
    not_known(smallest);
    // Two graphs ran batches of 17 tokens, so they differ in something else than their size.
    let alike = SyntheticLoop {
        replays: Some(|n| match n % 10 {
            3 => vec![(2, 100 * US, 5 * MS)],
            _ => smallest_graph(n),
        }),
        ..server()
    };
    not_known(alike);
    // The smaller graph ran only three batches.
    let few = SyntheticLoop {
        requests: |n| match (n, tokens(n)) {
            (15.., ..=16) => 32,
            (_, tokens) => tokens,
        },
        tokens: Some(|n| match (n, tokens(n)) {
            (15.., ..=16) => 32,
            (_, tokens) => tokens.into(),
        }),
        replays: Some(|n| match n {
            15.. => vec![(3, 100 * US, 12 * MS)],
            _ => smallest_graph(n),
        }),
        ..server()
    };
    not_known(few);
}

#[test]
fn batches_with_other_numbers_of_tokens_a_request_are_not_compared() {
    // The largest batches have two tokens a request. So the largest batch that the third graph ran with one token a
    // request has 18 tokens.
    let drafts = SyntheticLoop {
        requests: |n| if n % 5 == 2 { 16 } else { tokens(n) },
        ..server()
    };
    let (evidence, loss) = judged(drafts, Verdict::Yes);
    assert_eq!(
        evidence,
        "8 of 40 decode iterations (3, 8, 13, 18, …) ran in a larger graph than they need: they have 17 tokens, their graph ran \
         batches of up to 18; by the graphs of 16 and 18 tokens they would take 8.00 ms of GPU time on average, not 12.0 ms: 4.0 % of the \
         time"
    );
    assert!((loss.unwrap() - 0.04).abs() < 1e-6, "{loss:?}");
    let alone = SyntheticLoop {
        requests: |n| match n % 5 {
            2 => 16,
            4 => 17,
            _ => tokens(n),
        },
        tokens: Some(|n| match n % 5 {
            4 => 17,
            _ => tokens(n).into(),
        }),
        ..server()
    };
    says(alone, RULE, Verdict::No);
}

#[test]
fn a_graph_number_that_is_used_again_stands_for_another_graph() {
    // Executable graph 3 stands for captured graph 3 in the first half of the record, and for captured graph 4 in the
    // second half. Only the second half has batches of 17 tokens, and all batches of graph 4 have as many.
    const fn half(n: u64) -> u16 {
        match (n % 5, n) {
            (0, _) => 8,
            (1, _) => 16,
            (_, ..20) => 32,
            _ => 17,
        }
    }
    let again = SyntheticLoop {
        requests: half,
        tokens: Some(|n| half(n).into()),
        graph_states: vec![
            known(1),
            known(2),
            (20, 3, GraphState::Known, 3),
            (END, 3, GraphState::Known, 4),
        ],
        ..server()
    };
    let (evidence, _) = judged(again.clone(), Verdict::No);
    let expected = "0 of 40 decode iterations ran in a larger graph than they need";
    assert_eq!(evidence, expected);
    // The same record with one graph for both halves.
    let same = SyntheticLoop {
        graph_states: (1..=3).map(known).collect(),
        ..again
    };
    says(same, RULE, Verdict::Yes);
}

#[test]
fn gpu_time_for_which_the_host_does_not_wait_is_not_lost() {
    let host = SyntheticLoop {
        calls_of: Some(|_| vec![(GRAPH, 0, 50 * US), (WAIT, 12 * MS, 12 * MS + 200 * US)]),
        ..server()
    };
    let (evidence, _) = judged(host, Verdict::No);
    let end = "of the time; the host, not the GPU, mostly decides how long these iterations take";
    assert!(
        evidence.starts_with(PADDED) && evidence.ends_with(end),
        "{evidence}"
    );
}

#[test]
fn graphs_of_a_model_in_pieces_count_as_one() {
    // Each piece of the model is a graph: 1 and 11, 2 and 12, 3 and 13.
    let pieces = SyntheticLoop {
        calls_of: Some(|_| {
            vec![
                (GRAPH, 0, 50 * US),
                (GRAPH, 55 * US, 60 * US),
                (WAIT, 70 * US, 18 * MS),
            ]
        }),
        replays: Some(|n| {
            let (exec, from, to) = smallest_graph(n)[0];
            let middle = from.midpoint(to);
            vec![
                (exec, from, middle),
                (exec + 10, middle + 20 * US, to + 20 * US),
            ]
        }),
        graph_states: [1, 2, 3, 11, 12, 13].map(known).to_vec(),
        ..server()
    };
    let (evidence, loss) = judged(pieces, Verdict::Yes);
    assert!(evidence.starts_with(PADDED), "{evidence}");
    assert!((loss.unwrap() - 0.145).abs() < 1e-6, "{loss:?}");
}

#[test]
fn padding_is_no_reason_for_a_gpu_that_is_idle() {
    let idle = SyntheticLoop {
        metrics: vec![(30.0, Some(30.0))],
        ..server()
    };
    let report = report(&[idle]);
    let names = yes(&report);
    assert!(
        names.contains(&RULE) && names.contains(&"low-gpu-utilisation"),
        "{names:?}"
    );
    let symptom = find_finding(&report, "low-gpu-utilisation");
    assert_ne!(symptom.advice, format!("fix {RULE} first"));
    assert_eq!(symptom.loss, None);
}
