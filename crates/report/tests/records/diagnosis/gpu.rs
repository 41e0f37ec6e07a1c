//! Tests of findings on GPU utilization.

use tllmprof_report::Verdict;

use super::synthetic::{HOST_FUNCTION, LAUNCH, MS, SyntheticLoop, US, WAIT};
use super::{find_finding, finds, report, says};

#[test]
fn routing_imbalance_beyond_chance() {
    let with = |experts: Vec<u64>| SyntheticLoop {
        experts: vec![experts],
        ..SyntheticLoop::default()
    };
    let evidence = finds(with(vec![8000, 1000, 1000, 0]), &["routing-imbalance"]);
    assert_eq!(
        evidence,
        "in layer 0 the busiest expert has 3.20 times the mean, of 1 layers; what it costs is not known: inside windows \
         experts are balanced, outside steps are not recorded"
    );
    finds(with(vec![1100, 1000, 900, 1000]), &[]);
    // If there are few tokens, some imbalance is due to chance, so it is not a finding.
    let mut few = vec![1; 8];
    few[3] = 4;
    finds(with(few), &[]);
    says(
        SyntheticLoop::default(),
        "routing-imbalance",
        Verdict::Unknown,
    );
}

#[test]
fn what_the_gpu_is_bound_by() {
    let with = |sm, bandwidth| SyntheticLoop {
        metrics: vec![(10.0, Some(5.0)), (sm, bandwidth)],
        ..SyntheticLoop::default()
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
        says(SyntheticLoop::default(), rule, Verdict::Unknown);
    }
}

#[test]
fn a_gpu_that_is_idle_half_the_time() {
    let with = |gpu| SyntheticLoop {
        gpu,
        ..SyntheticLoop::default()
    };
    // GPU times from CUDA events show when the GPU is idle, but not how long it is busy between its
    // first and its last work.
    let evidence = finds(with(Some((0, 4 * MS))), &["gpu-idle"]);
    let said = "the GPU has nothing to do 60.0 % of the time; meanwhile the host: waiting for the GPU: cuStreamSynchronize (55.0 %)";
    assert!(evidence.starts_with(said), "{evidence}");
    let late = "; the waits return late: cuStreamSynchronize returns 5.50 ms a step after the GPU has ended its work";
    assert!(evidence.ends_with(late), "{evidence}");
    says(
        with(Some((0, 4 * MS))),
        "low-gpu-utilisation",
        Verdict::Unknown,
    );
    says(with(None), "low-gpu-utilisation", Verdict::Unknown);
    says(with(None), "gpu-idle", Verdict::Unknown);
    let older = |percent| SyntheticLoop {
        gpu_util: Some(percent),
        ..with(None)
    };
    finds(older(40.0), &["low-gpu-utilisation"]);
    says(older(60.0), "low-gpu-utilisation", Verdict::No);
    says(older(40.0), "compute-bound", Verdict::Unknown);
    // The utilization that the GPU reports may be caused by other programs, so it does not show
    // that this program uses the GPU.
    let others = SyntheticLoop {
        gpu_util: Some(99.0),
        ..with(Some((0, 4 * MS)))
    };
    finds(others, &["gpu-idle"]);
    // GPU times from CUDA events reach from the first to the last work; recorded kernels also show
    // the gaps in between.
    let kernels = SyntheticLoop {
        kernels: vec![(100 * US, 2 * MS), (8 * MS, 9 * MS)],
        ..SyntheticLoop::default()
    };
    says(kernels.clone(), "low-gpu-utilisation", Verdict::Yes);
    // Most of the GPU's idle time during the host's wait is the gap between the two kernels. So the evidence names
    // this gap, and does not say that the wait returns late.
    let report = report(std::slice::from_ref(&kernels));
    let evidence = &find_finding(&report, "gpu-idle").evidence;
    let between = "a step in cuStreamSynchronize, and between kernels for 60.0 % of the time: short gaps, a host function";
    assert!(evidence.contains(between), "{evidence}");
    let half_of_them = SyntheticLoop {
        dropped: 40,
        ..kernels
    };
    says(half_of_them, "low-gpu-utilisation", Verdict::Unknown);
    // Recording kernels slows the host down, so a part of the GPU's idle time is caused by the recording. The report
    // can leave this part out only if some iterations have no recorded kernels.
    let slowed = SyntheticLoop {
        kernels: vec![(100 * US, 9 * MS)],
        kernel_steps: Some(20),
        ..with(None)
    };
    says(slowed.clone(), "low-gpu-utilisation", Verdict::No);
    let all_slowed = SyntheticLoop {
        kernel_steps: Some(40),
        ..slowed
    };
    says(all_slowed, "low-gpu-utilisation", Verdict::Unknown);
}

#[test]
fn a_gpu_that_waits_for_host_functions() {
    let enqueues = (HOST_FUNCTION, 6 * US, 8 * US);
    let with = |gpu, kernels| SyntheticLoop {
        calls: vec![(LAUNCH, 0, 5 * US), enqueues, (WAIT, 10 * US, 9500 * US)],
        gpu,
        kernels,
        // The evidence leaves out two entries. A function of the CUDA runtime (`libcudart`) calls a function of the
        // program that is not known, and code in no module has no name.
        host_functions: vec![
            ("/opt/server+0x1200", 30),
            ("/usr/lib/libcudart.so.12+0x9", 60),
            ("/opt/server+0x2400", 40),
            ("[no module]", 90),
        ],
        ..SyntheticLoop::default()
    };
    let evidence = |one: SyntheticLoop| {
        let report = report(&[one]);
        find_finding(&report, "gpu-idle").evidence.clone()
    };
    let enqueued = "the program enqueues 1.00 host functions a step (server+0x2400, server+0x1200)";
    let gpu = SyntheticLoop::default().gpu;
    let found = evidence(with(gpu, vec![(100 * US, 2 * MS), (8 * MS, 9 * MS)]));
    assert!(
        found.contains("between kernels for 60.0 % of the time: short gaps, "),
        "{found}"
    );
    assert!(
        found.contains(&format!("or other programs that use it; {enqueued}")),
        "{found}"
    );
    let found = evidence(with(Some((0, 4 * MS)), Vec::new()));
    let late = format!(
        "after the GPU has ended its work; {enqueued}: a wait for their stream also waits for them"
    );
    assert!(found.ends_with(&late), "{found}");
}
