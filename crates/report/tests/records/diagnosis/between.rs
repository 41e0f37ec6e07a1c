//! Tests of findings about the host's time between CUDA calls: it runs code, sleeps, waits for requests or has no
//! processor. Some of these findings need the thread's figures from the operating system.

use tllmprof_record::Used;
use tllmprof_report::Verdict;

use super::synthetic::{
    COPY, COPY_ASYNC, EVENT_WAIT, LAUNCH, MS, SyntheticLoop, US, WAIT, find_finding, report, yes,
};
use super::{finds, says, times};

#[test]
fn code_that_the_gpu_waits_for() {
    let made = SyntheticLoop {
        calls: vec![(LAUNCH, 0, 5 * US), (WAIT, 10 * US, 4 * MS)],
        gpu: Some((0, 4 * MS)),
        ..SyntheticLoop::default()
    };
    let report = report(std::slice::from_ref(&made));
    // GPU times from CUDA events do not show how long the GPU is busy, so no finding on utilization
    // holds.
    assert_eq!(yes(&report), ["host-bound"]);
    let code = "code between cuStreamSynchronize and cuLaunchKernel";
    let share = 0.6;
    let first = &report.findings[0];
    assert!(first.evidence.contains(code), "{}", first.evidence);
    assert!((first.loss.unwrap() - share).abs() < 1e-9, "{first:?}");
    // If the host waits for the GPU until the end of the iteration, the GPU does not wait for the
    // host's code.
    let waits = SyntheticLoop {
        calls: vec![(LAUNCH, 0, 5 * US), (WAIT, 10 * US, 9500 * US)],
        ..made.clone()
    };
    says(waits, "host-bound", Verdict::No);
    let unknown = SyntheticLoop { gpu: None, ..made };
    says(unknown, "host-bound", Verdict::Unknown);
}

/// Returns a loop whose GPU work was not measured. In each iteration of 10 ms, it waits for its only stream for 4 ms.
fn waits_without_gpu_times() -> SyntheticLoop {
    SyntheticLoop {
        calls: vec![(LAUNCH, 0, 5 * US), (WAIT, 10 * US, 4 * MS)],
        streams: vec![0x70],
        wait_stream: 0x70,
        gpu: None,
        ..SyntheticLoop::default()
    }
}

#[test]
fn after_a_wait_the_gpu_certainly_has_no_work_until_the_next_launch() {
    let report = report(&[waits_without_gpu_times()]);
    assert_eq!(yes(&report), ["host-bound"]);
    let first = &report.findings[0];
    // The time after the last iteration's wait is not ended by a launch, so it does not count.
    let least = 0.6 * 39.0 / 40.0;
    assert!(
        (first.loss.unwrap() - least).abs() < 1e-6 && first.loss_is_at_least,
        "{first:?}"
    );
    let said = "the GPU has nothing to do at least 58.5 % of the time while the host runs code: code between \
                cuStreamSynchronize and cuLaunchKernel";
    assert!(first.evidence.starts_with(said), "{}", first.evidence);
    let text = report.text();
    assert!(
        text.contains("host-bound (costs at least 58.5 %): "),
        "{text}"
    );
    assert!(
        text.contains("GPU (40 of 40 iterations, idle for at least this time)\n"),
        "{text}"
    );
    let process = &report.processes[0];
    assert_eq!(process.gpu.share, None, "the GPU's busy time is not known");
    let gpu: Vec<_> = process.ledger.gpu.iter().collect();
    assert_eq!(gpu[1].cause, "unknown");
    let sum: u64 = gpu.iter().map(|row| row.ns).sum();
    assert_eq!(sum, 400 * MS, "{gpu:#?}");
}

#[test]
fn the_cause_of_certain_idle_time_may_be_a_sleep() {
    let made = SyntheticLoop {
        used: vec![(Used::Ran, MS, 9)],
        ..waits_without_gpu_times()
    };
    let evidence = finds(made, &["host-blocked"]);
    let said = "the GPU has nothing to do at least 48.";
    assert!(evidence.starts_with(said), "{evidence}");
}

#[test]
fn idle_time_is_not_claimed_where_it_is_not_certain() {
    let made = waits_without_gpu_times();
    let unsure = [
        // The wait is for one of two streams.
        SyntheticLoop {
            calls: vec![
                (LAUNCH, 0, 5 * US),
                (LAUNCH, 6 * US, 7 * US),
                (WAIT, 10 * US, 4 * MS),
            ],
            streams: vec![0x70, 0x71],
            ..made.clone()
        },
        // Events are missing, among which there may be a launch.
        SyntheticLoop {
            dropped: 1,
            ..made.clone()
        },
        SyntheticLoop {
            calls: vec![(LAUNCH, 0, 5 * US), (EVENT_WAIT, 10 * US, 4 * MS)],
            ..made.clone()
        },
    ];
    for made in unsure {
        says(made, "host-bound", Verdict::Unknown);
    }
    // The GPU may be idle for longer than is certain, so a short time does not show that it is rarely idle.
    let short = SyntheticLoop {
        calls: vec![(LAUNCH, 0, 5 * US), (WAIT, 10 * US, 9500 * US)],
        ..made
    };
    says(short.clone(), "host-bound", Verdict::Unknown);
    says(short, "gpu-idle", Verdict::Unknown);
}

#[test]
fn a_host_that_the_gpu_never_keeps_waiting_decides_how_long_a_step_takes() {
    // Without recorded kernels it is unknown how long the GPU is busy. But the host waits for the GPU for only 10 µs in
    // each iteration, so the GPU must have ended nearly all its work before the wait begins.
    let made = |wait| SyntheticLoop {
        calls: vec![(LAUNCH, 0, 5 * US), (WAIT, 9900 * US - wait, 9900 * US)],
        gpu: Some((0, 9900 * US)),
        ..SyntheticLoop::default()
    };
    let evidence = finds(made(10 * US), &["host-bound"]);
    let said = "the GPU has ended its work each time that the host waits for it (0.1 % of the time), so that the host decides how \
                long a step takes; the host runs code 99.";
    assert!(evidence.starts_with(said), "{evidence}");
    let code = ": code between cuLaunchKernel and cuStreamSynchronize (98.";
    assert!(evidence.contains(code), "{evidence}");
    let report = report(&[made(10 * US)]);
    assert_eq!(
        report.findings[0].loss, None,
        "the GPU may end shortly before"
    );
    // If the host waits for the GPU for a millisecond, the GPU decides how long a step takes.
    says(made(MS), "host-bound", Verdict::No);
    // With recorded kernels, it is known that the GPU is busy nearly all the time.
    let busy = SyntheticLoop {
        kernels: vec![(0, 9900 * US)],
        ..made(10 * US)
    };
    says(busy, "host-bound", Verdict::No);
    let asleep = SyntheticLoop {
        used: vec![(Used::Ran, MS, 9)],
        ..made(10 * US)
    };
    says(asleep, "host-blocked", Verdict::Yes);
}

/// Returns a loop in which the GPU works for 4 ms in each iteration of 10 ms, and the host waits for that work. `used`
/// contains what the operating system counted for the thread.
fn waits_for_the_host(used: &[(Used, u64, u32)]) -> SyntheticLoop {
    SyntheticLoop {
        calls: vec![(LAUNCH, 0, 5 * US), (WAIT, 10 * US, 4 * MS)],
        gpu: Some((0, 4 * MS)),
        used: used.to_vec(),
        ..SyntheticLoop::default()
    }
}

#[test]
fn a_host_that_sleeps() {
    // In each iteration of 10 ms, the thread was on a processor for only 1 ms, so it slept both during its wait for the
    // GPU (4 ms) and in its code (6 ms).
    let made = waits_for_the_host(&[(Used::Ran, MS, 9)]);
    let report = report(std::slice::from_ref(&made));
    assert_eq!(yes(&report), ["host-blocked"]);
    let first = &report.findings[0];
    let said = "asleep or blocked: between cuStreamSynchronize and cuLaunchKernel (48.8 %)";
    assert!(first.evidence.contains(said), "{}", first.evidence);
    assert!((first.loss.unwrap() - 0.5).abs() < 0.01, "{first:?}");
    // The thread was on a processor for 6 ms and off it for 4 ms. Its wait for the GPU takes 4 ms, so it may have slept
    // in that wait and not in its code.
    let runs = [(Used::Ran, 6 * MS, 9)];
    says(waits_for_the_host(&runs), "host-blocked", Verdict::No);
    // The thread was on a processor during its measured waits for the GPU, so it must have slept in
    // its code.
    let spins = [runs[0], (Used::Waits, 4 * MS, 4000)];
    says(waits_for_the_host(&spins), "host-blocked", Verdict::Yes);
}

#[test]
fn the_longest_sleep_is_named_first() {
    // In this loop the thread sleeps for 1 ms between two launches, and for 6 ms after the wait.
    let made = SyntheticLoop {
        calls: vec![
            (LAUNCH, 0, 5 * US),
            (LAUNCH, MS, 1005 * US),
            (WAIT, 1010 * US, 4 * MS),
        ],
        gpu: Some((1100 * US, 4 * MS)),
        used: vec![(Used::Ran, 200 * US, 9)],
        ..SyntheticLoop::default()
    };
    let evidence = finds(made, &["host-blocked"]);
    let named = "asleep or blocked: between cuStreamSynchronize and cuLaunchKernel (";
    assert!(evidence.contains(named), "{evidence}");
    let next = "), between cuLaunchKernel and cuLaunchKernel (";
    assert!(evidence.contains(next), "{evidence}");
}

#[test]
fn an_engine_that_sleeps_between_steps_waits_for_requests() {
    let made = |engine, ran| SyntheticLoop {
        engine,
        ..waits_for_the_host(&[(Used::Ran, ran, 9)])
    };
    let evidence = finds(made("llama.cpp, linked in", 300 * US), &["no-requests"]);
    assert_eq!(
        evidence,
        "it waits for requests or other work 58.5 % of the time, 6.00 ms at the longest; other findings are about the rest"
    );
    // The thread was on a processor for 1 ms in each iteration. It slept for less than ten times as long, so its sleep
    // does not count as a wait for requests.
    let busy = made("llama.cpp, linked in", MS);
    says(busy, "no-requests", Verdict::No);
    says(made("vLLM V1", 300 * US), "no-requests", Verdict::No);
    says(made("", 300 * US), "host-blocked", Verdict::Yes);
}

#[test]
fn a_thread_without_a_processor() {
    let used = [(Used::Ran, 8 * MS, 0), (Used::Delayed, 2 * MS, 3)];
    let evidence = finds(
        SyntheticLoop {
            used: used.to_vec(),
            calls: vec![(LAUNCH, 0, 5 * US), (WAIT, 5 * MS, 9500 * US)],
            ..SyntheticLoop::default()
        },
        &["preempted"],
    );
    assert_eq!(
        evidence,
        "another thread was given the processor 3.00 times a step: 11.0 % of the time"
    );
    // A wait for a processor costs nothing if the GPU works meanwhile.
    let behind_work = report(&[SyntheticLoop {
        used: used.to_vec(),
        calls: vec![(LAUNCH, 0, 5 * US), (WAIT, 5 * MS, 9500 * US)],
        kernels: vec![(0, 9900 * US)],
        ..SyntheticLoop::default()
    }]);
    let finding = find_finding(&behind_work, "preempted");
    assert_eq!(finding.verdict, Verdict::No, "{finding:#?}");
    let meanwhile = " of the time; the GPU has nothing to do meanwhile 0.";
    assert!(finding.evidence.contains(meanwhile), "{finding:#?}");
    // A wait for a processor costs nothing if it happens while the thread waits for the GPU.
    let waits = SyntheticLoop {
        used: used.to_vec(),
        ..SyntheticLoop::default()
    };
    says(waits, "preempted", Verdict::No);
    let older = SyntheticLoop {
        used: Vec::new(),
        ..SyntheticLoop::default()
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
    assert_eq!(yes(&report), ["page-faults"]);
    assert_eq!(
        report.findings[0].evidence,
        "407 page faults a step, 7.00 of which read a disk; the kernel works 50.0 % of the time for that thread"
    );
    let few = [(Used::Ran, 10 * MS, 0), (Used::Kernel, 5 * MS, 4)];
    says(waits_for_the_host(&few), "page-faults", Verdict::No);
}

#[test]
fn what_takes_long_without_a_processor_is_lost_once() {
    let made = SyntheticLoop {
        calls: times(1000, 9900, &[(LAUNCH, 0, 9000)]),
        used: vec![(Used::Ran, 4 * MS, 0), (Used::Delayed, 6 * MS, 3)],
        ..SyntheticLoop::default()
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
fn code_is_a_cause_of_its_own_beside_longer_waits_for_a_processor() {
    // In each iteration of 10 ms, the GPU works for 4 ms and the host's code takes 6 ms, of which it has no processor
    // for 3.6 ms.
    let used = [(Used::Ran, 2400 * US, 9), (Used::Delayed, 3600 * US, 9)];
    let report = report(&[waits_for_the_host(&used)]);
    assert_eq!(yes(&report), ["preempted", "host-bound"]);
    let losses = [0, 1].map(|place| report.findings[place].loss.unwrap());
    assert!((losses[0] - 0.36).abs() < 0.01, "{losses:?}");
    assert!((losses[1] - 0.24).abs() < 0.01, "{losses:?}");
}

/// Returns a loop that waits for the GPU but launches no work. `used` is the time per iteration
/// that its thread is on a processor, in nanoseconds.
fn only_waits(used: u64) -> SyntheticLoop {
    SyntheticLoop {
        calls: vec![(WAIT, 9_950 * US, 10 * MS)],
        gpu: None,
        used: vec![(Used::Ran, used, 1)],
        ..SyntheticLoop::default()
    }
}

#[test]
fn a_loop_that_gives_the_gpu_nothing_to_do() {
    let evidence = finds(only_waits(100 * US), &["no-gpu-work"]);
    let said = "no work is launched; the host is outside CUDA calls 99.5 % of the time: asleep or blocked between \
                cuStreamSynchronize and cuStreamSynchronize (96.0 %), ";
    assert!(evidence.starts_with(said), "{evidence}");
    // The thread of this loop is on a processor all the time.
    let evidence = finds(only_waits(10 * MS), &["no-gpu-work"]);
    let code = "time: code between cuStreamSynchronize and cuStreamSynchronize (97.0 %), code before cuStreamSynchronize (2.5 %)";
    assert!(evidence.ends_with(code), "{evidence}");
    // Each of these calls gives work to the GPU, so the finding `no-gpu-work` does not hold.
    for call in [LAUNCH, COPY, COPY_ASYNC] {
        let mut some = only_waits(100 * US);
        some.calls.insert(0, (call, 0, US));
        says(some, "no-gpu-work", Verdict::No);
    }
    // An event is missing from the record, and it may have been a launch.
    let cut = SyntheticLoop {
        dropped: 1,
        ..only_waits(100 * US)
    };
    says(cut, "no-gpu-work", Verdict::Unknown);
    // Most of the time, the thread is inside its calls that wait for the GPU. The finding `no-gpu-work` needs a thread
    // that is mostly outside CUDA calls.
    let in_calls = SyntheticLoop {
        calls: vec![(WAIT, 10 * US, 9_900 * US)],
        ..only_waits(100 * US)
    };
    says(in_calls, "no-gpu-work", Verdict::No);
}

#[test]
fn a_loop_that_only_waits_for_requests_lacks_no_work() {
    let made = SyntheticLoop {
        engine: "llama.cpp, linked in",
        ..only_waits(100 * US)
    };
    finds(made, &["no-requests"]);
}
