//! Checks periodic samples of kernels: `TLLMPROF_KERNELS=3@1s` records the kernels of 3 steps each second.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use tllmprof_record::What;
use tllmprof_report::Report;

use super::program::{Program, Ran, Reach};
use super::{assert_steps, common};
use common::{command, run, tllmprof};

/// Returns the current time in whole seconds since the epoch.
fn second() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

const STEPS: u64 = 200;

/// Runs the program with enough steps to last for at least four seconds.
fn lasting(program: Program) -> Ran {
    program
        .env("PROGRAM_STEP_US", "20000")
        .run("steps", 0, STEPS as usize)
}

fn sampled(ran: &Ran) -> BTreeSet<u32> {
    let events = ran.record().events.iter();
    events
        .filter_map(|(_, event)| match event.what {
            What::KernelSample {
                steps,
                every_ms,
                iteration,
            } => {
                assert_eq!((steps, every_ms), (3, 1000));
                Some(iteration)
            }
            _ => None,
        })
        .collect()
}

#[test]
fn so_many_steps_are_taken_once_in_each_second_and_the_program_gets_the_same_results() {
    let before = second();
    let ran = lasting(Program::new(Reach::LookedUp).kernels("3@1s"));
    let seconds = second() - before;
    ran.assert_well();
    let windows = ran.record().kernel_windows();
    let count = windows.len() as u64;
    assert!((2..=seconds).contains(&count), "{windows:?} in {seconds} s");
    // A sample is whole if steps follow it. The end of the program may have cut the last sample short; CUPTI then stays
    // attached.
    let is_whole = |window: &(u64, u64)| window.1 + 1 < STEPS;
    for (place, (first, last)) in windows.iter().enumerate() {
        if is_whole(&(*first, *last)) {
            assert_eq!(last - first, 2, "{windows:?}");
            assert_steps(&ran, place, 3);
        }
    }
    let firsts: BTreeSet<_> = windows.iter().map(|window| window.0 as u32).collect();
    assert_eq!(sampled(&ran), firsts);
    // CUPTI is removed after each sample, unless the program ends meanwhile.
    let ended_before = |end: u64| windows.iter().filter(|window| window.1 + 1 < end).count();
    let removed = ran.finalized();
    let expected = ended_before(STEPS - 20)..=ended_before(STEPS);
    assert!(
        expected.contains(&removed.len()),
        "{removed:?}: {windows:?}"
    );
    assert!(removed.iter().all(|one| *one == (0, 0)), "{removed:?}");
    assert!(ran.said("kernels are sampled: 3 iterations each 1s"));

    let text = Report::new(vec![ran.process()]).text();
    // If the last step opens a sample, the sample has no steps: its first step would be the next one.
    let steps: u64 = windows
        .iter()
        .map(|(first, last)| (last + 1).saturating_sub(*first))
        .sum();
    let of = format!("kernels of {steps} steps (3 steps each 1 s, {count} samples)");
    assert!(text.contains(&of), "{text}");

    let plain = lasting(Program::plain(Reach::LookedUp));
    assert_eq!(ran.output.out(), plain.output.out());
    assert_eq!(ran.output.status, plain.output.status);
}

#[test]
fn windows_that_are_planned_have_no_kernels_and_samples_wait_for_them() {
    let program = Program::new(Reach::Linked).kernels("3@1s");
    let ran = lasting(program.windows("0-120"));
    ran.assert_well();
    let windows = ran.record().kernel_windows();
    assert!(!windows.is_empty(), "{}", ran.output.err());
    assert!(windows.iter().all(|window| window.0 > 120), "{windows:?}");
    assert!(ran.said("window 0-120 captured"), "{}", ran.output.err());

    // A window opens at iteration 2, before the first sample, and stays open until the end. While a window is open, no
    // sample is taken.
    let ran = lasting(Program::new(Reach::Linked).kernels("3@1s").windows("2-"));
    ran.assert_well();
    assert_eq!(ran.record().kernel_windows(), []);
    assert_eq!(ran.cupti_log, "");
}

#[test]
fn a_process_shorter_than_the_time_between_samples_has_none() {
    let ran = Program::new(Reach::LookedUp)
        .kernels("3@10h")
        .run("steps", 0, 60);
    ran.assert_well();
    assert_eq!(ran.record().kernel_windows(), []);
    assert_eq!(ran.cupti_log, "");
}

#[test]
fn kernels_are_not_sampled_where_another_profiler_is_to_have_them() {
    let program = Program::new(Reach::LookedUp).kernels("3@1s");
    let ran = lasting(program.env("CUDA_INJECTION64_PATH", "/x"));
    ran.assert_well();
    assert!(ran.said("no kernels: "), "{}", ran.output.err());
    assert_eq!(ran.cupti_log, "");
}

#[test]
fn a_sample_that_is_none_is_refused_with_one_line() {
    for (value, says) in [
        ("20@", "\"\" is no time"),
        ("20@60", "\"60\" is no time"),
        ("20@1ms", "1ms is too often"),
        ("0@60s", "a sample has at least 1 step"),
    ] {
        let mut command = command(tllmprof());
        command.args(["run", &format!("--kernels={value}"), "--", "true"]);
        let output = run(&mut command, super::program::TEST_TIMEOUT);
        let err = output.err();
        assert_eq!(output.status.code(), Some(2), "{value}: {err}");
        let typed = format!("--kernels \"{value}\": {says} (wanted: ");
        assert!(
            err.contains(&typed) && err.trim_end().lines().count() == 1,
            "{value}: {err}"
        );
        let ran = Program::new(Reach::LookedUp)
            .kernels(value)
            .run("steps", 0, 5);
        ran.assert_well();
        let name = format!("TLLMPROF_KERNELS=\"{value}\": {says}");
        assert!(ran.said(&name), "{value}: {}", ran.output.err());
        assert!(ran.records.is_empty());
    }
}
