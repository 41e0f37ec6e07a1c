//! Each rule says yes where its cause is there and nowhere else, and what to switch on where that is unknown.

mod made;
mod page;

use made::{
    ALLOCATE, COPY, COPY_ASYNC, Call, EVENT_WAIT, LAUNCH, MS, Made, US, WAIT, of, report, yes,
};
use tllmprof_record::Used;
use tllmprof_report::Verdict;
use tllmprof_report::diagnosis::RULES;

/// `count` times the calls, each time `every` nanoseconds later.
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

/// 1000 launches that take 9 ms of the 10.
fn small_kernels() -> Made {
    Made {
        calls: times(1000, 9900, &[(LAUNCH, 0, 9000)]),
        ..Made::default()
    }
}

/// Four times a kernel of 1 ms, a wait for it and 1 ms of thinking.
fn host_waits(waits: u8) -> Made {
    let calls = [(LAUNCH, 0, 5 * US), (waits, 10 * US, MS)];
    Made {
        calls: times(4, 2 * MS, &calls),
        ..Made::default()
    }
}

/// What is found in one process: nothing else than `expected`.
#[track_caller]
fn finds(made: Made, expected: &[&str]) -> String {
    let report = report(&[made]);
    assert_eq!(yes(&report), expected, "{:#?}", report.findings);
    let first = &report.findings[0];
    assert_eq!(report.findings.len(), RULES.len());
    first.evidence.clone()
}

#[track_caller]
fn says(made: Made, rule: &str, verdict: Verdict) {
    let report = report(&[made]);
    let finding = of(&report, rule);
    assert_eq!(finding.verdict, verdict, "{finding:#?}");
    match verdict {
        Verdict::No => assert_eq!(finding.advice, ""),
        Verdict::Unknown => assert_eq!(finding.advice, finding.rule.to_know),
        Verdict::Yes => (),
    }
}

#[test]
fn nothing_stands_out_in_a_healthy_one() {
    finds(Made::default(), &[]);
    let everything = Made {
        python: true,
        settings: vec!["TLLM_PROFILE_RECORD_GC=1", "TLLMPROF_GIL=yes"],
        kernels: kernels(9, MS, 990 * US),
        experts: vec![vec![100, 101, 99, 100]],
        metrics: vec![(85.0, Some(75.0))],
        tokens: Some(|_| 8),
        ..Made::default()
    };
    let all = report(&[0, 1, 2].map(|rank| Made {
        rank,
        ..everything.clone()
    }));
    let unknown: Vec<_> = all
        .findings
        .iter()
        .filter(|finding| finding.verdict != Verdict::No)
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
fn launches_that_take_the_time() {
    let evidence = finds(small_kernels(), &["launch-bound"]);
    assert_eq!(
        evidence,
        "1000 launches a step of 9.00 µs each are 90.0 % of the time, waits 0.0 %"
    );
    // Each waits for room in a full queue.
    let full = Made {
        calls: times(400, 24 * US, &[(LAUNCH, 0, 23 * US)]),
        ..Made::default()
    };
    says(full.clone(), "launch-bound", Verdict::Unknown);
    // Or the machine is busy: nothing is left to wait for.
    let mut busy = full;
    busy.calls.push((WAIT, 9800 * US, 9801 * US));
    finds(busy, &["launch-bound"]);
    // The host is ahead.
    let mut calls = times(1000, US, &[(LAUNCH, 0, 900)]);
    calls.push((WAIT, 2 * MS, 9 * MS));
    let ahead = Made {
        calls,
        ..Made::default()
    };
    says(ahead, "launch-bound", Verdict::No);
}

#[test]
fn kernels_show_whether_launches_hold_them_up() {
    let launches = times(200, 49 * US, &[(LAUNCH, 0, 4 * US)]);
    let with = |kernels| Made {
        calls: launches.clone(),
        kernels,
        ..Made::default()
    };
    let gaps = with(kernels(200, 49 * US, 10 * US));
    let evidence = finds(gaps, &["launch-bound", "low-gpu-utilisation"]);
    assert!(
        evidence.starts_with("200 kernels a step of 10.0 µs each, with gaps of 77"),
        "{evidence}"
    );
    finds(with(kernels(200, 49 * US, 48 * US)), &[]);
    // Long ones with gaps: it is not the launches.
    says(
        with(kernels(200, 49 * US, 30 * US)),
        "launch-bound",
        Verdict::No,
    );
    // Of a graph, which has one launch.
    let graphs = Made {
        calls: times(25, 300 * US, &[(LAUNCH, 0, 4 * US)]),
        ..with(kernels(200, 49 * US, 10 * US))
    };
    says(graphs, "launch-bound", Verdict::No);
    // After each the host waits, and thinks.
    let waits = Made {
        calls: times(
            24,
            400 * US,
            &[(LAUNCH, 0, 4 * US), (WAIT, 5 * US, 20 * US)],
        ),
        ..with(kernels(24, 400 * US, 15 * US))
    };
    finds(waits, &["host-waits", "low-gpu-utilisation"]);
    let queue_is_full = Made {
        kernels: kernels(1000, 9900, 9800),
        ..small_kernels()
    };
    finds(queue_is_full, &[]);
}

#[test]
fn host_waits_that_leave_the_gpu_idle() {
    let evidence = finds(host_waits(WAIT), &["host-waits"]);
    assert_eq!(
        evidence,
        "4.00 waits a step; after them the GPU has nothing to do 30.0 % of the time"
    );
    let busy = Made {
        kernels: kernels(1, MS, 9 * MS),
        ..host_waits(WAIT)
    };
    says(busy, "host-waits", Verdict::No);
    let others = Made {
        streams: vec![1, 1, 2, 2],
        ..host_waits(WAIT)
    };
    says(others.clone(), "host-waits", Verdict::Unknown);
    let idle = Made {
        kernels: kernels(4, 2 * MS, MS),
        ..others
    };
    finds(idle, &["host-waits"]);
    // An event may lie far back in its stream.
    says(host_waits(EVENT_WAIT), "host-waits", Verdict::No);
    // The next launch is not held up.
    let at_once = Made {
        calls: times(
            4,
            2 * MS,
            &[(LAUNCH, 0, 5 * US), (WAIT, 10 * US, 1990 * US)],
        ),
        ..Made::default()
    };
    says(at_once, "host-waits", Verdict::No);
}

#[test]
fn copies_that_block() {
    let evidence = finds(host_waits(COPY), &["blocking-copies"]);
    assert!(
        evidence.starts_with("4.00 copies that block a step; after"),
        "{evidence}"
    );
    let calls = [(LAUNCH, 0, 5 * US), (COPY, 10 * US, 4900 * US)];
    let copies = Made {
        calls: times(2, 5 * MS, &calls),
        kernels: vec![(0, 3 * MS), (5 * MS, 8 * MS)],
        copies: vec![(3 * MS, 4900 * US), (8 * MS, 9900 * US)],
        ..Made::default()
    };
    let evidence = finds(copies.clone(), &["blocking-copies"]);
    assert_eq!(
        evidence,
        "2.00 copies a step that block; copying is 38.0 % of the time"
    );
    let small = Made {
        copies: vec![(3 * MS, 3010 * US)],
        kernels: vec![(0, 3 * MS), (3100 * US, 9900 * US)],
        ..copies
    };
    finds(small, &[]);
}

#[test]
fn allocations_in_the_steady_state() {
    let with = |length| {
        let mut made = Made::default();
        made.calls.push((ALLOCATE, 9600 * US, 9600 * US + length));
        made
    };
    let evidence = finds(with(300 * US), &["allocations"]);
    assert_eq!(
        evidence,
        "1.00 allocations and releases a step, 3.0 % of the time"
    );
    finds(with(2 * US), &[]);
    let older = Made {
        counts_allocations: false,
        ..Made::default()
    };
    says(older, "allocations", Verdict::Unknown);
}

#[test]
fn graphs_that_are_captured_anew() {
    let made = Made {
        captures: |n| n % 20 == 3,
        longer: |n| if n % 20 == 3 { 3 * MS } else { 0 },
        ..Made::default()
    };
    let evidence = finds(made.clone(), &["graph-recapture"]);
    assert_eq!(
        evidence,
        "a graph is captured again in 2 of 40 iterations, which take 3.00 ms longer each: 1.5 % of the time"
    );
    let without = Made {
        captures: |_| false,
        ..made.clone()
    };
    says(without, "graph-recapture", Verdict::No);
    let cheap = Made {
        longer: |_| 0,
        ..made.clone()
    };
    says(cheap, "graph-recapture", Verdict::No);
    // What takes longer in such an iteration counts once.
    let collects = Made {
        python: true,
        settings: vec!["TLLM_PROFILE_RECORD_GC=1", "TLLMPROF_GIL=1"],
        longer: |_| 0,
        gc: |n| if n % 20 == 3 { 9 * MS } else { 0 },
        ..made
    };
    finds(collects, &["graph-recapture"]);
}

#[test]
fn small_copies() {
    let mut calls = times(20, 100 * US, &[(COPY_ASYNC, 0, 50 * US)]);
    calls.extend([(LAUNCH, 2 * MS, 2005 * US), (WAIT, 2010 * US, 9500 * US)]);
    let made = Made {
        calls,
        ..Made::default()
    };
    let evidence = finds(made.clone(), &["small-copies"]);
    assert_eq!(
        evidence,
        "20.0 copies a step take 10.0 % of the host's time"
    );
    let large = Made {
        kernels: vec![(2 * MS, 9500 * US)],
        copies: vec![(0, MS)],
        ..made
    };
    says(large, "small-copies", Verdict::No);
}

#[test]
fn code_that_the_gpu_waits_for() {
    let made = Made {
        calls: vec![(LAUNCH, 0, 5 * US), (WAIT, 10 * US, 4 * MS)],
        gpu: Some((0, 4 * MS)),
        ..Made::default()
    };
    let report = report(std::slice::from_ref(&made));
    assert_eq!(yes(&report), ["host-bound", "low-gpu-utilisation"]);
    let code = "code between cuStreamSynchronize and cuLaunchKernel";
    let share = 0.6;
    let [first, second] = &report.findings[..2] else {
        panic!("{:#?}", report.findings)
    };
    assert!(first.evidence.contains(code), "{}", first.evidence);
    assert!((first.loss.unwrap() - share).abs() < 1e-9, "{first:?}");
    // The same time is no second loss.
    assert_eq!(
        (&*second.advice, second.loss),
        ("fix host-bound first", None)
    );
    // Where the wait goes on, the host is not to blame.
    let waits = Made {
        calls: vec![(LAUNCH, 0, 5 * US), (WAIT, 10 * US, 9500 * US)],
        ..made.clone()
    };
    says(waits, "host-bound", Verdict::No);
    let unknown = Made { gpu: None, ..made };
    says(unknown, "host-bound", Verdict::Unknown);
}

/// A kernel of 4 ms in 10, a wait for it, and what the thread uses of the machine.
fn waits_for_the_host(used: &[(Used, u64, u32)]) -> Made {
    Made {
        calls: vec![(LAUNCH, 0, 5 * US), (WAIT, 10 * US, 4 * MS)],
        gpu: Some((0, 4 * MS)),
        used: used.to_vec(),
        ..Made::default()
    }
}

#[test]
fn a_host_that_sleeps() {
    // It sleeps while it waits for the GPU, too.
    let made = waits_for_the_host(&[(Used::Ran, MS, 9)]);
    let report = report(std::slice::from_ref(&made));
    assert_eq!(yes(&report), ["host-blocked", "low-gpu-utilisation"]);
    let first = &report.findings[0];
    let said = "asleep or blocked: between cuStreamSynchronize and cuLaunchKernel (48.8 %)";
    assert!(first.evidence.contains(said), "{}", first.evidence);
    assert!((first.loss.unwrap() - 0.5).abs() < 0.01, "{first:?}");
    // Where it may have been on a processor meanwhile, nothing is certain.
    let runs = [(Used::Ran, 6 * MS, 9)];
    says(waits_for_the_host(&runs), "host-blocked", Verdict::No);
    // It was on one in its waits.
    let spins = [runs[0], (Used::Waits, 4 * MS, 4000)];
    says(waits_for_the_host(&spins), "host-blocked", Verdict::Yes);
}

#[test]
fn an_engine_that_sleeps_between_steps_waits_for_requests() {
    let made = |engine, ran| Made {
        engine,
        ..waits_for_the_host(&[(Used::Ran, ran, 9)])
    };
    let evidence = finds(made("llama.cpp, linked in", 300 * US), &["no-requests"]);
    assert_eq!(
        evidence,
        "it waits for requests 58.5 % of the time, 6.00 ms at the longest; other findings are about the rest"
    );
    // It ran for too long to have slept all that time.
    let busy = made("llama.cpp, linked in", MS);
    says(busy, "no-requests", Verdict::No);
    says(made("vLLM V1", 300 * US), "no-requests", Verdict::No);
    says(made("", 300 * US), "host-blocked", Verdict::Yes);
}

#[test]
fn a_thread_without_a_processor() {
    let used = [(Used::Ran, 8 * MS, 0), (Used::Delayed, 2 * MS, 3)];
    let evidence = finds(
        Made {
            used: used.to_vec(),
            calls: vec![(LAUNCH, 0, 5 * US), (WAIT, 5 * MS, 9500 * US)],
            ..Made::default()
        },
        &["preempted"],
    );
    assert_eq!(
        evidence,
        "another thread was given the processor 3.00 times a step: 11.0 % of the time"
    );
    // While it waits, nothing is lost.
    let waits = Made {
        used: used.to_vec(),
        ..Made::default()
    };
    says(waits, "preempted", Verdict::No);
    let older = Made {
        used: Vec::new(),
        ..Made::default()
    };
    for rule in ["preempted", "host-blocked", "page-faults"] {
        says(older.clone(), rule, Verdict::Unknown);
    }
}

#[test]
fn page_faults_are_no_second_loss() {
    let used = [
        (Used::Ran, 10 * MS, 0),
        (Used::Kernel, 5 * MS, 400),
        (Used::Disk, 0, 7),
    ];
    let report = report(&[waits_for_the_host(&used)]);
    assert_eq!(yes(&report), ["page-faults", "low-gpu-utilisation"]);
    assert_eq!(
        report.findings[0].evidence,
        "407 page faults a step, 7.00 of which read a disk; the kernel works 50.0 % of the time for that thread"
    );
    let few = [(Used::Ran, 10 * MS, 0), (Used::Kernel, 5 * MS, 4)];
    says(waits_for_the_host(&few), "page-faults", Verdict::No);
}

#[test]
fn what_takes_long_without_a_processor_is_lost_once() {
    let made = Made {
        calls: times(1000, 9900, &[(LAUNCH, 0, 9000)]),
        used: vec![(Used::Ran, 4 * MS, 0), (Used::Delayed, 6 * MS, 3)],
        ..Made::default()
    };
    let report = report(&[made]);
    assert_eq!(yes(&report), ["preempted", "launch-bound"]);
    let [first, second] = &report.findings[..2] else {
        panic!("{:#?}", report.findings)
    };
    assert!((first.loss.unwrap() - 0.6).abs() < 1e-6, "{first:?}");
    assert!(
        (second.loss.unwrap() - 0.4 * 0.9).abs() < 1e-6,
        "{second:?}"
    );
}

#[test]
fn long_copies() {
    let copies = |long| Made {
        calls: vec![
            (COPY_ASYNC, 0, long),
            (LAUNCH, 3 * MS, 3005 * US),
            (WAIT, 3010 * US, 9500 * US),
        ],
        ..Made::default()
    };
    let evidence = finds(copies(2 * MS), &["long-copies"]);
    assert_eq!(
        evidence,
        "1.00 copies a step take 20.0 % of the host's time"
    );
    says(copies(US), "long-copies", Verdict::No);
}

#[test]
fn batches_that_are_far_larger() {
    let made = Made {
        tokens: Some(|n| if n % 10 == 7 { 900 } else { 8 }),
        longer: |n| if n % 10 == 7 { 9 * MS } else { 0 },
        ..Made::default()
    };
    let evidence = finds(made.clone(), &["large-batches"]);
    assert_eq!(
        evidence,
        "4 of 4 slow iterations have a batch of over 2 times the mean's tokens"
    );
    let others = Made {
        tokens: Some(|n| if n % 10 == 8 { 900 } else { 8 }),
        ..made.clone()
    };
    says(others, "large-batches", Verdict::No);
    let unknown = Made {
        tokens: None,
        ..made
    };
    says(unknown, "large-batches", Verdict::Unknown);
}

#[test]
fn a_rule_that_mixes_the_work_of_two_steps() {
    // A prompt is computed after the wait for the step before, and waited for.
    let made = |rule, prompts: fn(u64) -> bool| Made {
        rule,
        prompts,
        ..Made::default()
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
    // A collection between a wait and the launch after it is no wait's doing.
    let calls = [(LAUNCH, 0, 5 * US), (WAIT, 10 * US, MS)];
    let made = Made {
        calls: times(4, 2 * MS, &calls),
        python: true,
        settings: vec!["TLLM_PROFILE_RECORD_GC=1", "TLLMPROF_GIL=1"],
        gc: |_| 2 * MS,
        gil: |_| 8 * MS,
        ..Made::default()
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
fn a_slow_rank_whose_own_causes_are_known_loses_nothing_twice() {
    let ranks = [0, 1, 2].map(|rank| Made {
        rank,
        python: true,
        settings: vec!["TLLM_PROFILE_RECORD_GC=1", "TLLMPROF_GIL=1"],
        gil: if rank == 1 { |_| 2 * MS } else { |_| 0 },
        ..Made::default()
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
    // The others wait for the GIL, too.
    let ranks = [0, 1, 2, 3].map(|rank| Made {
        rank,
        python: true,
        settings: vec!["TLLM_PROFILE_RECORD_GC=1", "TLLMPROF_GIL=1"],
        gil: if rank == 1 { |_| 3 * MS } else { |_| MS },
        longer: if rank == 1 { |_| 7 * MS } else { |_| 0 },
        experts: vec![vec![8000, 1000, 1000, 0]],
        ..Made::default()
    });
    let report = report(&ranks);
    assert_eq!(
        yes(&report),
        [
            "slow-rank",
            "gil",
            "routing-imbalance",
            "low-gpu-utilisation"
        ]
    );
    let losses: Vec<_> = report.findings[..3].iter().map(|one| one.loss).collect();
    // Of 20 ms: 3 for the GIL, of which the others lose 1 of their 11, and the rest of the 9 that it takes longer.
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
    let ranks = [0, 1, 2].map(|rank| Made {
        rank,
        calls: vec![(LAUNCH, 0, 5 * US), (WAIT, 10 * US, 9950 * US)],
        gpu: Some((0, 9950 * US)),
        longer: if rank == 1 { |_| 6 * MS } else { |_| 0 },
        ..Made::default()
    });
    let report = report(&ranks);
    assert_eq!(yes(&report), ["slow-rank"]);
    let evidence = &report.findings[0].evidence;
    let code = "; there the GPU has nothing to do 37.8 % of the time while the host runs its code: code between \
                cuStreamSynchronize and cuLaunchKernel";
    assert!(evidence.contains(code), "{evidence}");
}

#[test]
fn collections_in_slow_iterations() {
    let made = Made {
        python: true,
        settings: vec!["TLLM_PROFILE_RECORD_GC=1", "TLLMPROF_GIL=1"],
        gc: |n| if n % 20 == 3 { 9 * MS } else { 0 },
        ..Made::default()
    };
    let evidence = finds(made.clone(), &["gc"]);
    assert_eq!(
        evidence,
        "2 collections, the longest 9.00 ms: 4.3 % of the time; to blame in 2 of 2 slow iterations"
    );
    let few = Made {
        gc: |n| if n == 3 { MS } else { 0 },
        ..made.clone()
    };
    finds(few, &[]);
    let rare = Made {
        iterations: 2000,
        gc: |n| if n == 3 { 9 * MS } else { 0 },
        ..made.clone()
    };
    finds(rare, &[]);
    let meanwhile = Made {
        calls: vec![(LAUNCH, 0, 5 * US), (WAIT, 10 * US, 9900 * US)],
        gc: |_| 0,
        hidden_gc: 5 * MS,
        ..made.clone()
    };
    finds(meanwhile, &[]);
    let not_recorded = Made {
        settings: Vec::new(),
        gc: |_| 0,
        ..made.clone()
    };
    says(not_recorded, "gc", Verdict::Unknown);
    let none = Made { gc: |_| 0, ..made };
    says(none, "gc", Verdict::No);
    says(Made::default(), "gc", Verdict::No);
    let by_nsys = Made {
        by_library: false,
        ..Made::default()
    };
    says(by_nsys.clone(), "gc", Verdict::Unknown);
    says(by_nsys, "gil", Verdict::Unknown);
}

#[test]
fn waits_for_the_gil() {
    let made = Made {
        python: true,
        settings: vec!["TLLM_PROFILE_RECORD_GC=1", "TLLMPROF_GIL=1"],
        gil: |_| 5 * MS,
        ..Made::default()
    };
    let evidence = finds(made.clone(), &["gil"]);
    assert_eq!(
        evidence,
        "waits for the GIL, held most by tokenise: 33.3 % of the time"
    );
    let short = Made {
        gil: |_| 50 * US,
        ..made.clone()
    };
    finds(short, &[]);
    let not_recorded = Made {
        settings: vec!["TLLMPROF_GIL=0"],
        gil: |_| 0,
        ..made
    };
    says(not_recorded, "gil", Verdict::Unknown);
}

#[test]
fn one_slow_rank() {
    fn slow(_: u64) -> u64 {
        2 * MS
    }
    let ranks = [0, 1, 2].map(|rank| Made {
        rank,
        longer: if rank == 1 { slow } else { |_| 0 },
        ..Made::default()
    });
    let report = report(&ranks);
    let finding = of(&report, "slow-rank");
    assert_eq!(finding.verdict, Verdict::Yes);
    assert_eq!(
        finding.evidence,
        "rank 1: 12.0 ms at the median, the others 10.0 ms; the slowest in 100 % of the iterations; if it were like \
         them, 10.0 ms a step, not 12.0 ms"
    );
    assert_eq!(yes(&report), ["slow-rank"]);
    assert!(
        (finding.loss.unwrap() - 2.0 / 12.0).abs() < 1e-6,
        "{finding:?}"
    );
    // Where another is nearly as slow, little is gained.
    let mut two = ranks.clone();
    two[2].longer = |_| 1900 * US;
    let four = [
        two[0].clone(),
        two[1].clone(),
        two[2].clone(),
        Made {
            rank: 3,
            ..Made::default()
        },
    ];
    let report = made::report(&four);
    let finding = of(&report, "slow-rank");
    assert_eq!(finding.verdict, Verdict::Yes, "{finding:?}");
    assert!(
        (finding.loss.unwrap() - 0.1 / 12.0).abs() < 1e-6,
        "{finding:?}"
    );
    let one = made::report(&ranks[1..2]);
    assert_eq!(of(&one, "slow-rank").verdict, Verdict::Unknown);
    // Two of the same rank are no ranks of one run.
    let same = made::report(&[ranks[1].clone(), ranks[1].clone()]);
    assert_eq!(of(&same, "slow-rank").verdict, Verdict::Unknown);
    // Now the one and now the other.
    let mut some = [ranks[0].clone(), ranks[2].clone()];
    some[0].longer = |n| if n % 20 < 11 { 2 * MS } else { 0 };
    assert_eq!(of(&made::report(&some), "slow-rank").verdict, Verdict::No);
    let even = made::report(&[ranks[0].clone(), ranks[2].clone()]);
    assert_eq!(of(&even, "slow-rank").verdict, Verdict::No);
}

#[test]
fn routing_imbalance_beyond_chance() {
    let with = |experts: Vec<u64>| Made {
        experts: vec![experts],
        ..Made::default()
    };
    let evidence = finds(with(vec![8000, 1000, 1000, 0]), &["routing-imbalance"]);
    assert_eq!(
        evidence,
        "in layer 0 the busiest expert has 3.20 times the mean, of 1 layers; what it costs is not known: inside windows \
         experts are balanced, outside steps are not recorded"
    );
    finds(with(vec![1100, 1000, 900, 1000]), &[]);
    // Few tokens are never even.
    let mut few = vec![1; 8];
    few[3] = 4;
    finds(with(few), &[]);
    says(Made::default(), "routing-imbalance", Verdict::Unknown);
}

#[test]
fn what_the_gpu_is_bound_by() {
    let with = |sm, bandwidth| Made {
        metrics: vec![(10.0, Some(5.0)), (sm, bandwidth)],
        ..Made::default()
    };
    let evidence = finds(with(62.0, Some(93.0)), &["memory-bandwidth-bound"]);
    assert_eq!(evidence, "SMs 62.0 %, bandwidth 93.0 %");
    finds(with(45.0, Some(93.0)), &["memory-bandwidth-bound"]);
    finds(with(95.0, Some(40.0)), &["compute-bound"]);
    finds(with(85.0, Some(75.0)), &[]);
    finds(with(70.0, Some(60.0)), &["below-targets"]);
    finds(
        with(30.0, Some(20.0)),
        &["low-gpu-utilisation", "below-targets"],
    );
    for rule in ["memory-bandwidth-bound", "compute-bound", "below-targets"] {
        says(with(95.0, None), rule, Verdict::Unknown);
        says(Made::default(), rule, Verdict::Unknown);
    }
}

#[test]
fn a_gpu_that_is_idle_half_the_time() {
    let with = |gpu| Made {
        gpu,
        ..Made::default()
    };
    let evidence = finds(with(Some((0, 4 * MS))), &["low-gpu-utilisation"]);
    assert_eq!(evidence, "the GPU works 40.0 % of the time");
    says(with(None), "low-gpu-utilisation", Verdict::Unknown);
    let older = |percent| Made {
        gpu_util: Some(percent),
        ..with(None)
    };
    finds(older(40.0), &["low-gpu-utilisation"]);
    says(older(60.0), "low-gpu-utilisation", Verdict::No);
    says(older(40.0), "compute-bound", Verdict::Unknown);
    // Nor does it help to look at a GPU that is busy when this program is not.
    let others = Made {
        gpu_util: Some(99.0),
        ..with(Some((0, 4 * MS)))
    };
    finds(others, &["low-gpu-utilisation"]);
    // Events bound the work; kernels show what lies between.
    let kernels = Made {
        kernels: vec![(100 * US, 2 * MS), (8 * MS, 9 * MS)],
        ..Made::default()
    };
    says(kernels.clone(), "low-gpu-utilisation", Verdict::Yes);
    let half_of_them = Made {
        dropped: 40,
        ..kernels
    };
    says(half_of_them, "low-gpu-utilisation", Verdict::No);
    // Where taking kernels slows the host down, the GPU waits for that.
    let slowed = Made {
        kernels: vec![(100 * US, 9 * MS)],
        kernel_steps: Some(20),
        ..with(None)
    };
    says(slowed.clone(), "low-gpu-utilisation", Verdict::No);
    let all_slowed = Made {
        kernel_steps: Some(40),
        ..slowed
    };
    says(all_slowed, "low-gpu-utilisation", Verdict::Unknown);
}

#[test]
fn the_strongest_comes_first_and_symptoms_after_their_cause() {
    let both = Made {
        python: true,
        settings: vec!["TLLM_PROFILE_RECORD_GC=1", "TLLMPROF_GIL=1"],
        gc: |_| 2 * MS,
        gil: |_| 8 * MS,
        gpu: Some((0, 4 * MS)),
        ..Made::default()
    };
    let report = report(&[both]);
    assert_eq!(yes(&report), ["gil", "gc", "low-gpu-utilisation"]);
    assert_eq!(report.findings[2].advice, "fix gil first");
    let losses: Vec<_> = report.findings[..2].iter().map(|f| f.loss).collect();
    assert_eq!(losses, [Some(0.4), Some(0.1)]);
}

#[test]
fn of_several_processes_the_worst_is_named() {
    let gil = |rank, gil| Made {
        rank,
        python: true,
        gil,
        ..Made::default()
    };
    let ranks = [
        gil(0, |_| 5 * MS),
        gil(1, |_| 6 * MS),
        Made {
            rank: 2,
            ..Made::default()
        },
    ];
    let report = report(&ranks);
    let finding = of(&report, "gil");
    assert_eq!(
        finding.evidence,
        "rank 1: waits for the GIL, held most by tokenise: 37.5 % of the time, and 1 more processes"
    );
    let unknown = of(&report, "gc");
    assert_eq!(unknown.verdict, Verdict::Unknown);
    assert_eq!(unknown.evidence, "rank 0: collections were not recorded");
}
