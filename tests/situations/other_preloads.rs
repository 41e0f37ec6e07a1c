//! Checks programs with another preloaded library that replaces the same functions as tllmprof.

use super::twice::{Both, Situation, start, stop};
use crate::common::standin;

fn interposer() -> String {
    standin().join("bin/interposer.so").display().to_string()
}

/// Runs the program twice: with the other library after tllmprof's in `LD_PRELOAD`, and with the other library before
/// tllmprof's.
fn in_both_orders(situation: &Situation) -> [Both; 2] {
    let behind = situation.clone().preload_after_shim(interposer()).run();
    let in_front = situation.clone().preload_before_shim(interposer()).run();
    [behind, in_front]
}

#[test]
fn another_interposer_counts_what_it_would() {
    for program in ["shared12", "shared13", "noplt", "znow", "fnptr"] {
        for step in ["cudaGraphLaunch", "cudaStreamSynchronize"] {
            let situation = Situation::new(format!("steps_{program}")).window("5-9", step);
            for both in in_both_orders(&situation) {
                // The other library counts its calls, and prints this line with and without tllmprof.
                let line = "interposer: 40 graph launches, dlsym seen, dlopen seen\n";
                assert!(both.output.err().contains(line), "{}", both.output.err());
                assert_eq!(
                    both.switches(),
                    [start(5, 5), stop(10, 10)],
                    "{program} by {step}"
                );
                assert_eq!(both.assert_same_calls().total(), 40);
            }
        }
    }
}

#[test]
fn another_interposer_wraps_dlsym() {
    let situation = Situation::new("steps_dlsym").window("5-9", "cudaGraphLaunch");
    for both in in_both_orders(&situation) {
        assert_eq!(both.switches(), [start(5, 5), stop(10, 10)]);
        assert_eq!(both.assert_same_calls().total(), 40);
    }
}

#[test]
fn libraries_are_found_by_the_callers_runpath_and_dlerror_survives() {
    let situation = Situation::new("runpath_host").window("5-9", "cudaGraphLaunch");
    let alone = situation.run();
    assert!(alone.output.status.success());
    alone.assert_untouched();
    for both in in_both_orders(&situation) {
        both.assert_untouched();
    }
}

#[test]
fn an_interposer_that_finds_no_runtime_gives_its_own_error() {
    // The program opens the runtime with RTLD_LOCAL, so the other library's RTLD_NEXT does not find the runtime, and
    // the other library returns an error. With tllmprof, RTLD_NEXT may find tllmprof's functions of the same names.
    // Then the program must only end without a crash.
    let situation = Situation::new("steps_rtld_local").window("5-9", "cudaGraphLaunch");
    let plain = situation
        .clone()
        .preload_after_shim(interposer())
        .run_plain();
    assert!(
        plain.output.err().contains("failed: 999"),
        "{}",
        plain.output.err()
    );
    for situation in [
        situation.clone().preload_after_shim(interposer()),
        situation.clone().preload_before_shim(interposer()),
    ] {
        let ran = situation.run_shimmed();
        assert!(ran.output.status.code().is_some(), "{}", ran.output.err());
    }
}
