//! Tests of findings whose cause is in CUDA calls: launches, waits, copies, allocations, stream captures and the
//! loading of code.

use tllmprof_report::Verdict;

use super::synthetic::{
    ALLOCATE, COPY, COPY_ASYNC, Call, EVENT_WAIT, LAUNCH, MS, SyntheticLoop, US, WAIT,
};
use super::{finds, kernels, says, times};

/// Returns a loop of iterations of 10 ms. In each iteration, 1000 launches take 9 ms in total.
fn small_kernels() -> SyntheticLoop {
    SyntheticLoop {
        calls: times(1000, 9900, &[(LAUNCH, 0, 9000)]),
        ..SyntheticLoop::default()
    }
}

/// Returns a loop. Each of its iterations repeats the following four times: it launches a kernel, waits for it for
/// about 1 ms, and then runs host code for 1 ms. `waits` is the row of the waiting function in the table of calls.
fn host_waits(waits: u8) -> SyntheticLoop {
    let calls = [(LAUNCH, 0, 5 * US), (waits, 10 * US, MS)];
    SyntheticLoop {
        calls: times(4, 2 * MS, &calls),
        ..SyntheticLoop::default()
    }
}

#[test]
fn launches_that_take_the_time() {
    let evidence = finds(small_kernels(), &["launch-bound"]);
    assert_eq!(
        evidence,
        "1000 launches a step of 9.00 µs each are 90.0 % of the time, waits 0.0 %"
    );
    // The launch queue may be full, so that each of these launches waits until there is room. Then the launches are
    // not the cause of the lost time, so the verdict is unknown.
    let full = SyntheticLoop {
        calls: times(400, 24 * US, &[(LAUNCH, 0, 23 * US)]),
        ..SyntheticLoop::default()
    };
    says(full.clone(), "launch-bound", Verdict::Unknown);
    // The short wait at the end returns at once, so the GPU has finished its work by then, and the launch queue was
    // not full. The launches themselves are slow, for example because the machine is busy.
    let mut busy = full;
    busy.calls.push((WAIT, 9800 * US, 9801 * US));
    finds(busy, &["launch-bound"]);
    // The host launches the work of an iteration in less than 2 ms, and then waits 7 ms for the GPU. So the loop is
    // not bound by its launches.
    let mut calls = times(1000, US, &[(LAUNCH, 0, 900)]);
    calls.push((WAIT, 2 * MS, 9 * MS));
    let ahead = SyntheticLoop {
        calls,
        ..SyntheticLoop::default()
    };
    says(ahead, "launch-bound", Verdict::No);
}

#[test]
fn kernels_show_whether_launches_hold_them_up() {
    let launches = times(200, 49 * US, &[(LAUNCH, 0, 4 * US)]);
    let with = |kernels| SyntheticLoop {
        calls: launches.clone(),
        kernels,
        ..SyntheticLoop::default()
    };
    let gaps = with(kernels(200, 49 * US, 10 * US));
    let evidence = finds(gaps, &["launch-bound", "low-gpu-utilisation"]);
    assert!(
        evidence.starts_with("200 kernels a step of 10.0 µs each; the GPU has nothing to do 77."),
        "{evidence}"
    );
    finds(with(kernels(200, 49 * US, 48 * US)), &[]);
    // Kernels of 30 µs are longer than a launch, so launches do not cause the gaps between them.
    says(
        with(kernels(200, 49 * US, 30 * US)),
        "launch-bound",
        Verdict::No,
    );
    // There are 200 kernels but only 25 launches, as if each call launched a graph of eight kernels. Most gaps are then
    // between kernels of one launch, so the launches do not cause them.
    let graphs = SyntheticLoop {
        calls: times(25, 300 * US, &[(LAUNCH, 0, 4 * US)]),
        ..with(kernels(200, 49 * US, 10 * US))
    };
    says(graphs, "launch-bound", Verdict::No);
    // After each launch the host waits, and then runs code. If this code is short, GPU idle time during the code
    // counts as an effect of the wait.
    let waits = |every| SyntheticLoop {
        calls: times(24, every, &[(LAUNCH, 0, 4 * US), (WAIT, 5 * US, 20 * US)]),
        ..with(kernels(24, every, 15 * US))
    };
    says(waits(90 * US), "host-waits", Verdict::Yes);
    // If the code after a wait is long, the cause is the code (`host-bound`), not the wait.
    says(waits(400 * US), "host-waits", Verdict::No);
    let queue_is_full = SyntheticLoop {
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
    let busy = SyntheticLoop {
        kernels: kernels(1, MS, 9 * MS),
        ..host_waits(WAIT)
    };
    says(busy, "host-waits", Verdict::No);
    let others = SyntheticLoop {
        streams: vec![1, 1, 2, 2],
        ..host_waits(WAIT)
    };
    says(others.clone(), "host-waits", Verdict::Unknown);
    let idle = SyntheticLoop {
        kernels: kernels(4, 2 * MS, MS),
        ..others
    };
    // With recorded kernels, the report knows when the GPU is idle: during the long code after the waits. So the cause
    // is the code, not the waits.
    says(idle, "host-waits", Verdict::No);
    // A wait for an event may return before the last work of the stream has ended. So the return of such a wait does
    // not show that the GPU is idle.
    says(host_waits(EVENT_WAIT), "host-waits", Verdict::No);
    // In this loop, the next launch follows 10 µs after the end of each wait, so the GPU is hardly idle.
    let at_once = SyntheticLoop {
        calls: times(
            4,
            2 * MS,
            &[(LAUNCH, 0, 5 * US), (WAIT, 10 * US, 1990 * US)],
        ),
        ..SyntheticLoop::default()
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
    let copies = SyntheticLoop {
        calls: times(2, 5 * MS, &calls),
        kernels: vec![(0, 3 * MS), (5 * MS, 8 * MS)],
        copies: vec![(3 * MS, 4900 * US), (8 * MS, 9900 * US)],
        ..SyntheticLoop::default()
    };
    let evidence = finds(copies.clone(), &["blocking-copies"]);
    assert_eq!(
        evidence,
        "2.00 copies a step that block; copying is 38.0 % of the time"
    );
    // The calls that block are too short to have made these copies, so other calls made them asynchronously.
    let asynchronous = SyntheticLoop {
        calls: times(2, 5 * MS, &[(LAUNCH, 0, 5 * US), (COPY, 10 * US, 400 * US)]),
        ..copies.clone()
    };
    says(asynchronous, "blocking-copies", Verdict::No);
    let small = SyntheticLoop {
        copies: vec![(3 * MS, 3010 * US)],
        kernels: vec![(0, 3 * MS), (3100 * US, 9900 * US)],
        ..copies
    };
    finds(small, &[]);
}

#[test]
fn allocations_in_the_steady_state() {
    let with = |length| {
        let mut made = SyntheticLoop::default();
        made.calls.push((ALLOCATE, 9600 * US, 9600 * US + length));
        made
    };
    let evidence = finds(with(300 * US), &["allocations"]);
    assert_eq!(
        evidence,
        "1.00 allocations and releases a step, 3.0 % of the time"
    );
    finds(with(2 * US), &[]);
    let older = SyntheticLoop {
        counts_allocations: false,
        ..SyntheticLoop::default()
    };
    says(older, "allocations", Verdict::Unknown);
}

#[test]
fn graphs_that_are_captured_anew() {
    let made = SyntheticLoop {
        captures: |n| n % 20 == 3,
        longer: |n| if n % 20 == 3 { 3 * MS } else { 0 },
        ..SyntheticLoop::default()
    };
    let evidence = finds(made.clone(), &["graph-recapture"]);
    assert_eq!(
        evidence,
        "a graph is captured again in 2 of 40 iterations, which take 3.00 ms longer each: 1.5 % of the time"
    );
    let without = SyntheticLoop {
        captures: |_| false,
        ..made.clone()
    };
    says(without, "graph-recapture", Verdict::No);
    let cheap = SyntheticLoop {
        longer: |_| 0,
        ..made.clone()
    };
    says(cheap, "graph-recapture", Verdict::No);
    // The time of iterations that also load code counts for the finding on compilation only.
    let compiling = SyntheticLoop {
        compiles: |n| if n % 20 == 3 { 3 * MS } else { 0 },
        ..made.clone()
    };
    says(compiling, "graph-recapture", Verdict::No);
    // Some iterations have both a stream capture and a garbage collection. Their additional time must count only once.
    let collects = SyntheticLoop {
        python: true,
        settings: vec!["TLLM_PROFILE_RECORD_GC=1", "TLLMPROF_GIL=1"],
        longer: |_| 0,
        gc: |n| if n % 20 == 3 { 9 * MS } else { 0 },
        ..made
    };
    finds(collects, &["graph-recapture"]);
}

#[test]
fn code_that_is_loaded_in_the_steady_state() {
    let made = SyntheticLoop {
        iterations: 80,
        compiles: |n| if n % 20 == 3 { 3 * MS } else { 0 },
        ..SyntheticLoop::default()
    };
    let evidence = finds(made.clone(), &["compilation"]);
    assert_eq!(
        evidence,
        "2 calls of cuModuleLoadData in 2 of 80 iterations (43, 63), which take 3.00 ms longer each than the others: 0.7 % of \
         the time"
    );
    // Code that is loaded in the first iterations counts as a part of the program's start, not as a finding.
    let at_the_start = SyntheticLoop {
        compiles: |n| if n < 3 { 50 * MS } else { 0 },
        ..made.clone()
    };
    says(at_the_start, "compilation", Verdict::No);
    let cheap = SyntheticLoop {
        compiles: |n| if n == 50 { 10 * US } else { 0 },
        ..made.clone()
    };
    says(cheap, "compilation", Verdict::No);
    let each = SyntheticLoop {
        compiles: |_| MS,
        ..made
    };
    let evidence = finds(each, &["compilation"]);
    assert!(
        evidence.contains("in 48 of 80 iterations (32, 33, 34, 35, …), for 9.1 % of"),
        "{evidence}"
    );
}

#[test]
fn iterations_in_which_torch_compiles() {
    let made = SyntheticLoop {
        iterations: 80,
        recompiles: Some(|n| if n % 20 == 3 { 3 * MS } else { 0 }),
        ..SyntheticLoop::default()
    };
    let evidence = finds(made.clone(), &["compilation"]);
    assert_eq!(
        evidence,
        "torch.compile compiles in 2 of 80 iterations (43, 63), which take 3.00 ms longer each than the others: 0.7 % of the \
         time; torch.compile's code is called by serve (serve.py:10)"
    );
    let with_calls = SyntheticLoop {
        compiles: |n| if n == 43 { MS } else { 0 },
        ..made.clone()
    };
    let evidence = finds(with_calls, &["compilation"]);
    let both = "torch.compile compiles, and 1 call of cuModuleLoadData in 2 of 80 iterations (43, 63), which take 3.50 ms ";
    assert!(evidence.starts_with(both), "{evidence}");
    // Compilations in the first iterations belong to the program's start. If torch.compile's code only runs, nothing
    // is compiled.
    let at_the_start = SyntheticLoop {
        recompiles: Some(|n| if n < 3 { 50 * MS } else { 0 }),
        ..made.clone()
    };
    says(at_the_start, "compilation", Verdict::No);
    let compiled = SyntheticLoop {
        recompiles: Some(|_| 0),
        ..made.clone()
    };
    says(compiled, "compilation", Verdict::No);
    // The compiler is host code during which the GPU is idle, and this time must count only once. So `host-bound`
    // contains only the compilations in the first iterations, which `compilation` leaves out.
    let each = SyntheticLoop {
        recompiles: Some(|_| 5 * MS),
        ..made
    };
    let evidence = finds(each.clone(), &["compilation", "host-bound"]);
    let start = "torch.compile compiles in 48 of 80 iterations (32, 33, 34, 35, …), for 20.0 % of the time; torch.compile's code ";
    assert!(evidence.starts_with(start), "{evidence}");
    let at_the_start = SyntheticLoop {
        iterations: 30,
        ..each
    };
    finds(at_the_start, &["host-bound"]);
}

#[test]
fn small_copies() {
    let mut calls = times(20, 100 * US, &[(COPY_ASYNC, 0, 50 * US)]);
    calls.extend([(LAUNCH, 2 * MS, 2005 * US), (WAIT, 2010 * US, 9500 * US)]);
    let made = SyntheticLoop {
        calls,
        ..SyntheticLoop::default()
    };
    let evidence = finds(made.clone(), &["small-copies"]);
    assert_eq!(
        evidence,
        "20.0 copies a step take 10.0 % of the host's time; how long the GPU had nothing to do meanwhile is not known"
    );
    // Copies cost nothing while the GPU works.
    let behind_work = SyntheticLoop {
        kernels: vec![(0, 9500 * US)],
        ..made.clone()
    };
    says(behind_work, "small-copies", Verdict::No);
    let large = SyntheticLoop {
        kernels: vec![(2 * MS, 9500 * US)],
        copies: vec![(0, MS)],
        ..made
    };
    says(large, "small-copies", Verdict::No);
}

/// Returns a loop with the given calls in the first 4.5 ms of an iteration, during which the GPU
/// has no work.
fn before_work(mut calls: Vec<Call>) -> SyntheticLoop {
    calls.extend([(LAUNCH, 4500 * US, 4505 * US), (WAIT, 4510 * US, 9900 * US)]);
    SyntheticLoop {
        calls,
        gpu: Some((4500 * US, 9900 * US)),
        ..SyntheticLoop::default()
    }
}

#[test]
fn short_code_around_small_copies_counts_as_theirs() {
    // In this loop each copy is followed by 40 µs of code, whose time counts as a part of the copies.
    let copies = times(100, 45 * US, &[(COPY_ASYNC, 0, 5 * US)]);
    let evidence = finds(before_work(copies), &["small-copies"]);
    assert_eq!(
        evidence,
        "100 copies a step take 5.0 % of the host's time; the GPU has nothing to do 45.0 % of the time while the host copies, \
         or runs short code around that"
    );
}

#[test]
fn waits_are_named_where_copies_follow_them() {
    // Each wait is followed by 80 µs of code and then by a copy, not by a launch. So the times from a wait to the next
    // launch are short in total, and the idle time is known only from the ledger (time by cause).
    let each = [(COPY_ASYNC, 0, 5 * US), (WAIT, 6 * US, 10 * US)];
    let evidence = finds(before_work(times(50, 90 * US, &each)), &["host-waits"]);
    assert_eq!(
        evidence,
        "51.0 waits a step; at their end and after them the GPU has nothing to do 42.0 % of the time"
    );
}

#[test]
fn long_copies() {
    let copies = |long| SyntheticLoop {
        calls: vec![
            (COPY_ASYNC, 0, long),
            (LAUNCH, 3 * MS, 3005 * US),
            (WAIT, 3010 * US, 9500 * US),
        ],
        ..SyntheticLoop::default()
    };
    let evidence = finds(copies(2 * MS), &["long-copies"]);
    assert_eq!(
        evidence,
        "1.00 copies a step take 20.0 % of the host's time; how long the GPU had nothing to do meanwhile is not known"
    );
    // If kernels were recorded, only the time of the calls in which no kernel runs counts.
    let with = |kernels| SyntheticLoop {
        kernels: vec![kernels],
        ..copies(2 * MS)
    };
    says(with((0, 9500 * US)), "long-copies", Verdict::No);
    says(with((3 * MS, 9500 * US)), "long-copies", Verdict::Yes);
    says(copies(US), "long-copies", Verdict::No);
}
