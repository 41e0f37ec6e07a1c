//! Checks programs that get CUDA's functions in different ways, such as linking, `dlsym` or `cuGetProcAddress`.

use super::twice::{Both, Situation, count, start, stop};
use crate::common::{skipped, standin};

/// Runs the program with a window of iterations 5 to 9 of 40, once with launches as iterations and
/// once with waits.
#[track_caller]
fn gated(program: &str, args: &str) -> [Both; 2] {
    ["cudaGraphLaunch", "cudaStreamSynchronize"].map(|step| {
        let both = Situation::new(program).args(args).window("5-9", step).run();
        assert_eq!(
            both.switches(),
            [start(5, 5), stop(10, 10)],
            "{program} by {step}"
        );
        both.assert_same_calls();
        both.assert_said(&[
            "window 5-9 opened at iteration 5",
            "closed: 5 iterations",
            "captured: 40 iterations",
        ]);
        both
    })
}

#[test]
fn a_plugin_is_loaded_rtld_local() {
    for both in gated("steps_rtld_local", "") {
        assert!(both.log.iter().any(|record| record.via == "cudart12"));
    }
}

#[test]
fn functions_are_looked_up_by_dlsym() {
    gated("steps_dlsym", "");
}

#[test]
fn functions_are_looked_up_by_dlvsym() {
    gated("steps_dlvsym", "");
}

#[test]
fn only_the_driver_is_used() {
    for program in ["driver", "driver_dlsym", "driver_gpa1", "driver_gpa2"] {
        for both in gated(&format!("steps_{program}"), "--kernels 2") {
            assert!(both.log.iter().all(|record| record.via == "-"));
        }
    }
}

#[test]
fn streams_are_per_thread() {
    let programs = [
        "ptsz",
        "static_ptsz",
        "driver_ptsz",
        "driver_dlsym_ptsz",
        "driver_gpa2_ptsz",
    ];
    for program in programs {
        for both in gated(
            &format!("steps_{program}"),
            "--default-stream --kernels 1 --copy-out",
        ) {
            for name in ["cuGraphLaunch", "cuLaunchKernel", "cuStreamSynchronize"] {
                let (legacy, own) = (
                    count(&both.log, name),
                    count(&both.log, &format!("{name}_ptsz")),
                );
                // The program captures its graph before step 0 and launches kernels in the capture. So there may be
                // more than 40 kernel launches.
                assert_eq!((legacy, own.min(40)), (0, 40), "{program} {name}");
            }
            assert_eq!(count(&both.log, "cuMemcpyDtoHAsync_v2"), 0);
            assert_eq!(count(&both.log, "cuMemcpyDtoHAsync_v2_ptsz"), 40);
        }
    }
}

#[test]
fn functions_are_called_by_pointer() {
    gated("steps_fnptr", "");
}

#[test]
fn calls_bypass_the_plt() {
    gated("steps_noplt", "");
}

#[test]
fn the_program_is_bound_at_start() {
    gated("steps_znow", "");
}

#[test]
fn two_runtimes_are_in_one_process() {
    for both in gated("steps_two_cudarts", "") {
        let vias: Vec<&str> = both
            .log
            .iter()
            .filter(|record| record.function == "cuGraphLaunch")
            .map(|record| record.via.as_str())
            .collect();
        assert_eq!(vias, ["cudart12", "cudart13"].repeat(20));
    }
}

#[test]
fn a_binding_layer_tail_calls() {
    gated("steps_tail", "");
}

#[test]
fn a_library_uses_cuda_in_its_constructor_before_ours() {
    for step in ["cudaGraphLaunch", "cudaStreamSynchronize"] {
        let both = Situation::new("steps_early_ctor")
            .env("EARLY_STEPS", "3")
            .window("1,5-9", step)
            .run();
        let expected = [start(1, 1), stop(2, 2), start(5, 5), stop(10, 10)];
        assert_eq!(both.switches(), expected, "by {step}");
        assert_eq!(both.assert_same_calls().total(), 43);
    }
}

#[test]
fn the_caller_is_unloaded_two_hundred_times() {
    for step in ["cudaGraphLaunch", "cudaStreamSynchronize"] {
        let both = Situation::new("dlclose_caller")
            .window("5-9,397-398", step)
            .run();
        let expected = [start(5, 5), stop(10, 10), start(397, 397), stop(399, 399)];
        assert_eq!(both.switches(), expected, "by {step}");
        assert_eq!(both.assert_same_calls().total(), 400);
    }
}

#[test]
fn one_call_comes_by_several_doors() {
    for program in ["nested", "nested_static"] {
        for how in ["both-levels", "entry-point"] {
            let both = Situation::new(program)
                .args(format!("--how {how}"))
                .window("10-19", "cudaGraphLaunch")
                .run();
            assert_eq!(
                both.switches(),
                [start(10, 5), stop(20, 10)],
                "{program} {how}"
            );
            assert_eq!(both.assert_same_calls().total(), 80, "{program} {how}");
        }
    }
}

#[test]
fn the_program_is_called_back_within_a_wait() {
    for program in ["nested", "nested_static"] {
        let both = Situation::new(program)
            .args("--how callback")
            .window("10-18", "cudaGraphLaunch")
            .run();
        // A step has a launch, a wait, and a second launch, which the program makes in a callback during the wait.
        assert_eq!(both.switches(), [start(10, 5), stop(19, 10)], "{program}");
        assert_eq!(both.assert_same_calls().total(), 80, "{program}");
        let both = Situation::new(program)
            .args("--how callback")
            .window("5-9", "cudaStreamSynchronize")
            .run();
        assert_eq!(both.switches(), [start(10, 5), stop(20, 10)], "{program}");
        assert_eq!(both.assert_same_calls().total(), 40, "{program}");
    }
}

#[test]
fn python_calls_by_ctypes() {
    let Some(python) = python() else {
        return skipped("there is no python3");
    };
    let script = standin().join("bin/py_ctypes.py");
    for library in ["libcudart.so.12", "libcudart.so.13", "libcuda.so.1"] {
        for ending in ["return", "os._exit", "SystemExit"] {
            let both = Situation::new(&python)
                .args(format!(
                    "{} --lib {library} --exit {ending}",
                    script.display()
                ))
                .window("5-9,30-", "cudaGraphLaunch")
                .run();
            let expected = [start(5, 5), stop(10, 10), start(30, 30), stop(40, 40)];
            assert_eq!(
                both.switches(),
                expected,
                "{library} {ending}\n{}",
                both.output.err()
            );
            both.assert_same_calls();
        }
    }
}

/// Returns the path of the Python interpreter itself. `python3` may be a version manager's script, which would run with
/// the preload as well.
fn python() -> Option<String> {
    use std::time::Duration;
    let mut ask = crate::common::command("python3");
    ask.args(["-c", "import sys; print(sys.executable, end='')"]);
    let found = std::process::Command::new("sh")
        .args(["-c", "command -v python3"])
        .output()
        .ok()?;
    if !found.status.success() {
        return None;
    }
    let asked = crate::common::run(&mut ask, Duration::from_secs(300));
    asked.status.success().then(|| asked.out())
}
