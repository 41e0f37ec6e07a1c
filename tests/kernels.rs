//! Checks kernels recorded with CUPTI (`TLLMPROF_KERNELS`), on the stand-in for CUPTI. The recorded kernels match those
//! of the GPU, and CUPTI is removed without harm. Anything that prevents recording is logged, and the program
//! continues.

mod common;
#[path = "kernels/launches.rs"]
mod launches;
#[path = "kernels/profilers.rs"]
mod profilers;
#[path = "kernels/program.rs"]
mod program;
#[allow(dead_code, reason = "it reads what other tests want, too")]
#[path = "record/read.rs"]
mod read;
#[path = "kernels/sampled.rs"]
mod sampled;
#[path = "kernels/streams.rs"]
mod streams;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;

use common::skipped;
use program::{Program, Ran, Reach};
use tllmprof_record::{CopyKind, Ended, Info};

const STEP: [(&str, u64); 3] = [("_Z5firstPm", 1), ("_Z6secondPm", 1), ("_Z8in_graphPm", 2)];

fn assert_steps(ran: &Ran, window: usize, steps: u64) {
    let kernels = ran.record().kernels_of(window);
    for (name, a_step) in STEP {
        let got = kernels.get(name).copied().unwrap_or(0);
        assert_eq!(got, a_step * steps, "{name} in {window}: {kernels:?}");
    }
}

/// Runs sixty steps with two windows, of which the first has only five steps. In each window, kernels are recorded for
/// at most eight steps.
fn two_windows(reach: Reach) -> Ran {
    let ran = Program::new(reach)
        .windows("5-9,20-50")
        .kernels("8")
        .run("steps", 0, 60);
    ran.assert_well();
    ran
}

#[test]
fn what_is_taken_is_what_the_gpu_did() {
    for reach in [Reach::Linked, Reach::LookedUp] {
        let ran = two_windows(reach);
        let record = ran.record();
        // The first window has five steps, fewer than the eight for which kernels are recorded.
        assert_eq!(record.kernel_windows(), [(5, 9), (20, 27)]);
        assert_steps(&ran, 0, 5);
        assert_steps(&ran, 1, 8);
        assert_eq!(record.kernels_of(1).values().sum::<u64>(), 8 * 4);
        let copies: BTreeMap<_, _> = [
            (CopyKind::HostToDevice as u8, 13),
            (CopyKind::DeviceToHost as u8, 13),
        ]
        .into();
        assert_eq!(record.copies(), copies);
        assert_eq!(record.sets(), 13);
        assert!(record.kernels_lie_in_their_windows());
        assert_eq!(ran.taken(), [4 * 13, 2 * 13, 13]);
        assert_eq!(ran.finalized(), [(0, 0), (0, 0)]);
    }
}

#[test]
fn eight_busy_threads_and_fifty_windows() {
    const WINDOWS: usize = 50;
    let windows: Vec<_> = (0..WINDOWS)
        .map(|k| format!("{}-{}", 20 + 5 * k, 22 + 5 * k))
        .collect();
    for reach in [Reach::Linked, Reach::LookedUp] {
        let ran = Program::new(reach)
            .windows(&windows.join(","))
            .kernels("2")
            .env("STANDIN_CALL_US", "30")
            .run("steps", 8, 300);
        ran.assert_well();
        let record = ran.record();
        assert_eq!(record.kernel_windows().len(), WINDOWS);
        for window in 0..WINDOWS {
            assert_steps(&ran, window, 2);
        }
        assert_eq!(
            record.gpu_work(),
            ran.taken().iter().sum::<u64>(),
            "nothing is lost"
        );
        assert_eq!(record.events_dropped(), 0);
        let finalized = ran.finalized();
        assert!(
            finalized.iter().all(|one| *one == (0, 0)),
            "{finalized:?}: a call was in the driver"
        );
        assert!(!finalized.is_empty());
    }
}

#[test]
fn threads_that_launch_without_a_pause_leave_cupti_a_turn() {
    let ran = Program::new(Reach::LookedUp)
        // Between the windows, CUPTI has to be removed and attached again, which takes longer on a busy machine. So the
        // windows are far apart.
        .windows("20-24,220-224")
        .kernels("3")
        .env("STANDIN_CALL_US", "30")
        .env("STANDIN_CUPTI_TURN", "20")
        .run("steps", 8, 300);
    ran.assert_well();
    assert_eq!(ran.record().kernel_windows(), [(20, 22), (220, 222)]);
    assert_steps(&ran, 0, 3);
    assert_steps(&ran, 1, 3);
}

/// It takes long to attach CUPTI. If the window has closed before CUPTI is ready, the library removes CUPTI again, and
/// the program does not wait for it.
#[test]
fn cupti_that_comes_too_late_goes_again() {
    let ran = Program::new(Reach::LookedUp)
        .windows("20-30")
        .kernels("3")
        .env("STANDIN_CUPTI_TAKES_MS", "4000")
        .env("PROGRAM_PAUSE_US", "100")
        .env("PROGRAM_STEP_US", "2000")
        .run("steps", 2, 2000);
    ran.assert_well();
    assert!(
        ran.said("no kernels: CUPTI took too long to load"),
        "{}",
        ran.output.err()
    );
    assert_eq!(ran.record().kernel_windows(), []);
    assert_eq!(ran.finalized(), [(0, 0)], "{}", ran.cupti_log);
    let rounds = "rounds in the longest step: ";
    let log = ran.output.err();
    let rounds = log.lines().find_map(|line| line.strip_prefix(rounds));
    assert!(rounds.unwrap().parse::<u64>().unwrap() > 100, "{log}");
}

#[test]
fn a_process_that_ends_while_cupti_attaches_logs_nothing_untrue() {
    let ran = Program::new(Reach::LookedUp)
        .windows("5-8")
        .kernels("3")
        .env("STANDIN_CUPTI_TAKES_MS", "8000")
        .run("steps", 0, 20);
    ran.assert_well();
    assert!(ran.said("no kernels: CUPTI took too long to load"));
    assert!(ran.said("window 5-8 captured"), "{}", ran.output.err());
    for untrue in ["kernels are missing", "could not be closed", "busy"] {
        assert!(!ran.said(untrue), "{}", ran.output.err());
    }
}

#[test]
fn a_stream_that_goes_while_cupti_takes_long_to_go_is_not_touched_again() {
    let ran = Program::new(Reach::LookedUp)
        .windows("5-12")
        .kernels("3")
        .env("STANDIN_CUPTI_GOES_MS", "2000")
        .env("PROGRAM_STEP_US", "30000")
        .run("streams", 0, 20);
    ran.assert_well();
    assert_eq!(ran.finalized(), [(0, 0)], "{}", ran.cupti_log);
    assert!(ran.said("GPU timing stopped"), "{}", ran.output.err());
}

#[test]
fn a_wait_of_another_thread_ends_while_cupti_is_to_go() {
    let ran = Program::new(Reach::LookedUp)
        .windows("15-")
        .kernels("3")
        .run("waits", 0, 400);
    ran.assert_well();
    assert_eq!(ran.record().kernel_windows(), [(15, 17)]);
    assert_steps(&ran, 0, 3);
    assert!(ran.finalized().iter().all(|one| *one == (0, 0)));
}

#[test]
fn a_wait_that_does_not_end_keeps_cupti_where_it_is() {
    let ran = Program::new(Reach::LookedUp)
        .windows("15-18,300-")
        .kernels("3")
        .run("stays", 0, 400);
    ran.assert_well();
    assert_eq!(ran.finalized(), []);
    assert!(
        ran.said("CUPTI stays attached but disabled: other threads were in the driver"),
        "{}",
        ran.output.err()
    );
    // CUPTI has stayed attached, so kernels of the second window are recorded from its first step on.
    assert_eq!(ran.record().kernel_windows(), [(15, 17), (300, 302)]);
    assert_steps(&ran, 0, 3);
    assert_steps(&ran, 1, 3);
}

/// While kernels are recorded, the program loads a second library, which is linked directly to the driver. Calls from
/// this second library bypass the gate, by which tllmprof keeps threads out of the driver while it removes CUPTI. One
/// such call is still in progress when CUPTI is to be removed, so CUPTI must stay in the driver.
#[test]
fn a_call_that_came_past_the_gate_is_not_in_the_driver_when_cupti_goes() {
    for reach in [Reach::LookedUp, Reach::Linked] {
        let ran = Program::new(reach)
            .windows("5-")
            .kernels("6")
            .env("STANDIN_LOAD_US", "2000000")
            .env("PROGRAM_STEP_US", "5000")
            .run("late", 0, 40);
        ran.assert_well();
        assert_eq!(ran.record().kernel_windows(), [(5, 10)]);
        assert_eq!(ran.finalized(), [], "{}", ran.cupti_log);
    }
}

#[test]
fn calls_that_nobody_sees_keep_cupti_where_it_is() {
    let ran = Program::new(Reach::LookedUp)
        .windows("5-")
        .kernels("3")
        .run("past", 0, 40);
    ran.assert_well();
    assert_eq!(ran.finalized(), []);
    assert!(
        ran.said("CUPTI stays attached but disabled: not all calls of the driver are seen"),
        "{}",
        ran.output.err()
    );
    assert_eq!(ran.record().kernels_of(0)["_Z5firstPm"], 3 * 31);
}

#[test]
fn a_stream_capture_is_waited_for() {
    let ran = Program::new(Reach::LookedUp)
        .windows("11-")
        .kernels("3")
        .run("captures", 0, 60);
    ran.assert_well();
    let [(first, last)] = ran.record().kernel_windows()[..] else {
        panic!("{}", ran.output.err());
    };
    assert!(first > 11 && last == first + 2, "{first}-{last}");
    assert_steps(&ran, 0, 3);
}

#[test]
fn a_capture_that_lasts_past_the_inner_window_keeps_cupti_until_it_is_over() {
    let ran = Program::new(Reach::LookedUp)
        .windows("8-")
        .kernels("3")
        .run("captures", 0, 60);
    ran.assert_well();
    let [(8, last)] = ran.record().kernel_windows()[..] else {
        panic!("{}", ran.output.err());
    };
    assert!(last > 10);
    assert_steps(&ran, 0, last - 7);
    assert_eq!(ran.finalized(), [(0, 0)]);
}

/// When kernels cannot be recorded, the program behaves like it does without the library.
#[test]
fn what_prevents_it_is_logged() {
    type Case = (&'static str, (&'static str, &'static str), &'static str);
    let cases: [Case; 7] = [
        (
            "taken",
            ("STANDIN_CUPTI_TAKEN", "1"),
            "another profiler has CUPTI",
        ),
        (
            "old",
            ("STANDIN_CUPTI_API", "18"),
            "is CUPTI of before CUDA 12 (API version 18)",
        ),
        (
            "memory",
            ("STANDIN_FREE_MB", "20"),
            "the GPU has 20 MiB of memory free",
        ),
        (
            "injected",
            ("CUDA_INJECTION64_PATH", "/x"),
            "(CUDA_INJECTION64_PATH)",
        ),
        (
            "torch",
            ("TLLM_TORCH_PROFILE_TRACE", "x.json"),
            "(TLLM_TORCH_PROFILE_TRACE)",
        ),
        ("record", ("TLLMPROF_TRACE", ""), "there is no record"),
        ("missing", ("LD_LIBRARY_PATH", ""), "CUPTI was not found"),
    ];
    for (case, (name, value), reason) in cases {
        let program = Program::new(Reach::LookedUp)
            .windows("5-9,20-")
            .kernels("1");
        let program = match name {
            "LD_LIBRARY_PATH" => program.without_cupti(),
            name => program.env(name, value),
        };
        let ran = program.run("steps", 1, 40);
        if case == "missing" && !ran.said(reason) {
            skipped("this machine has a CUPTI of its own, which is found");
            continue;
        }
        ran.assert_well();
        let lines = ran.output.err();
        let refusals: Vec<_> = lines
            .lines()
            .filter(|l| l.contains("no kernels:"))
            .collect();
        assert_eq!(refusals.len(), 1, "{case}: {lines}");
        assert!(refusals[0].contains(reason), "{case}: {lines}");
        assert!(
            !ran.cupti_log.contains("enable"),
            "{case}: {}",
            ran.cupti_log
        );
        if let Some(record) = ran.records.first() {
            let refused = record.info(Info::Refused);
            assert!(
                refused.iter().any(|line| line.contains(reason)),
                "{refused:?}"
            );
            assert_eq!(record.gpu_work(), 0);
        }
    }
}

#[test]
fn the_process_ends_in_the_middle() {
    for end in ["exit", "_exit"] {
        let ran = Program::new(Reach::LookedUp)
            .windows("5-")
            .kernels("1000")
            .env("PROGRAM_END", end)
            .env("STANDIN_KERNEL_NS", "20000")
            .run("steps", 1, 20);
        assert_eq!(ran.output.status.code(), Some(7), "{}", ran.output.err());
        let record = ran.record();
        assert_eq!(record.kernel_windows(), [(5, 19)], "{end}");
        assert_steps(&ran, 0, 15);
        let lost = record.gpu_work_dropped();
        assert_eq!(
            record.gpu_work() + lost,
            ran.taken().iter().sum::<u64>(),
            "{end}"
        );
    }
    let ran = Program::new(Reach::LookedUp)
        .windows("5-")
        .kernels("1000")
        .env("PROGRAM_END", "kill")
        .run("steps", 1, 20);
    assert_eq!(ran.output.status.signal(), Some(libc::SIGKILL));
    assert_eq!(ran.record().header.ended, Some(Ended::Not));
}

#[test]
fn work_that_still_runs_is_waited_for() {
    let ran = Program::new(Reach::LookedUp)
        .windows("5-30")
        .kernels("5")
        .env("STANDIN_KERNEL_NS", "300000")
        .env("PROGRAM_PAUSE_US", "1500")
        .run("steps", 2, 40);
    ran.assert_well();
    assert_steps(&ran, 0, 5);
    assert_eq!(
        ran.record().gpu_work() + ran.record().gpu_work_dropped(),
        ran.taken().iter().sum::<u64>()
    );
    // Each recorded kernel has the duration that the GPU of the stand-in for CUDA reports.
    assert!(
        ran.record()
            .kernel_durations()
            .iter()
            .all(|ns| *ns == 300_000)
    );
}

#[test]
fn parent_and_child_each_have_their_own() {
    let ran = Program::new(Reach::Linked)
        .windows("5-12")
        .kernels("3")
        .env("PROGRAM_FORKS", "1")
        .run("steps", 1, 30);
    ran.assert_well();
    assert_eq!(ran.records.len(), 2);
    for record in &ran.records {
        assert_eq!(record.kernel_windows(), [(5, 7)]);
        assert_eq!(record.kernels_of(0)["_Z8in_graphPm"], 6);
    }
}

#[test]
fn the_program_gets_the_same_results() {
    let with = Program::new(Reach::LookedUp).windows("5-12").kernels("3");
    let without = Program::plain(Reach::LookedUp);
    let [with, without] = [with, without].map(|program| program.run("steps", 0, 30));
    assert_eq!(with.output.out(), without.output.out());
    assert_eq!(with.output.status, without.output.status);
}
