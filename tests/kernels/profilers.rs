//! Checks that another profiler in the process can use CUPTI while the library is loaded.

use super::*;

#[test]
fn a_profiler_that_comes_while_kernels_are_taken_gets_cupti() {
    for (reach, by) in [
        (Reach::Linked, Reach::LookedUp),
        (Reach::LookedUp, Reach::Linked),
    ] {
        for (uses, kernels) in [("both", 24), ("buffers", 24), ("subscription", 0)] {
            let with = |program: Program| {
                let program = program.profiled(by, "12-18").env("PROGRAM_USES", uses);
                program.run("steps", 0, 60)
            };
            let plain = with(Program::plain(reach));
            plain.assert_well();
            let all = format!("kernels: {kernels}, buffers of others: 0");
            assert!(plain.output.out().contains(&all), "{}", plain.output.out());
            let ran = with(Program::new(reach).windows("5-30,40-45").kernels("20"));
            ran.assert_well();
            assert_eq!(ran.output.out(), plain.output.out(), "{}", ran.cupti_log);
            let given_up = "another profiler in this process takes CUPTI: no kernels from here";
            assert!(ran.said(given_up), "{}", ran.output.err());
            let record = ran.record();
            if uses == "subscription" {
                assert_eq!(record.kernel_windows(), [(5, 11), (40, 45)]);
                assert_steps(&ran, 1, 6);
                assert_eq!(ran.finalized(), [(0, 0), (0, 0)], "{}", ran.cupti_log);
            } else {
                // The other profiler has ended, but has not removed CUPTI from the driver. So the library does not
                // attach CUPTI again for the second window. The library has finalized CUPTI only once, when the other
                // profiler began to use CUPTI.
                assert_eq!(record.kernel_windows(), [(5, 11)]);
                assert!(ran.said("no kernels: another profiler has CUPTI"));
                assert_eq!(ran.finalized(), [(0, 0)], "{}", ran.cupti_log);
            }
        }
    }
}

#[test]
fn a_profiler_that_comes_among_busy_threads_gets_cupti() {
    let with = |program: Program| program.profiled(Reach::Linked, "30-40");
    let ran = with(Program::new(Reach::LookedUp).windows("5-80").kernels("60"))
        .env("STANDIN_CALL_US", "30")
        .run("steps", 4, 100);
    ran.assert_well();
    let out = ran.output.out();
    assert!(
        out.contains("subscribe: 0\n") && out.contains("buffers of others: 0"),
        "{out}"
    );
    assert!(
        ran.finalized().iter().all(|one| *one == (0, 0)),
        "{}",
        ran.cupti_log
    );
    let [(5, last)] = ran.record().kernel_windows()[..] else {
        panic!("{:?}", ran.record().kernel_windows());
    };
    assert!(last < 30);
}

/// A driver call that does not return prevents the library from removing CUPTI. If another profiler then wants CUPTI,
/// the library leaves CUPTI to that profiler.
#[test]
fn a_profiler_that_comes_while_cupti_cannot_go_gets_it_all_the_same() {
    let ran = Program::new(Reach::LookedUp)
        .windows("5-80")
        .kernels("60")
        .profiled(Reach::Linked, "30-40")
        .run("stays", 0, 100);
    ran.assert_well();
    let out = ran.output.out();
    assert!(
        out.contains("subscribe: 0\n") && out.contains("kernels: 40, buffers of others: 0"),
        "{out}"
    );
    assert_eq!(ran.finalized(), [], "{}", ran.cupti_log);
}

#[test]
fn a_profiler_that_was_there_before_keeps_cupti() {
    for by in [Reach::Linked, Reach::LookedUp] {
        for (steps, windows) in [("2-20", "5-9,12-15"), ("2-20", "5-30")] {
            let ran = Program::new(Reach::LookedUp)
                .windows(windows)
                .kernels("3")
                .profiled(by, steps)
                .run("steps", 0, 40);
            ran.assert_well();
            let out = ran.output.out();
            assert!(
                out.contains("subscribe: 0\n") && out.contains("kernels: 72, buffers of others: 0"),
                "{out}"
            );
            assert!(
                ran.said("no kernels: another profiler has CUPTI"),
                "{}",
                ran.output.err()
            );
            assert_eq!(ran.record().kernel_windows(), []);
            assert_eq!(ran.finalized(), [], "{}", ran.cupti_log);
        }
    }
}
