//! Checks programs on drivers that lack some functions.

use super::twice::{Situation, start, stop};
use crate::common::standin;

/// Prepares the program with a driver that lacks half of its functions. The library path has this driver's folder
/// first, and then the folder with the other libraries of the stand-in for CUDA.
fn on_lacking_driver(program: &str) -> Situation {
    let standin = standin();
    let path = format!(
        "{}:{}",
        standin.join("lacking").display(),
        standin.display()
    );
    Situation::new(program).env("LD_LIBRARY_PATH", path)
}

#[test]
fn the_driver_lacks_half_its_functions() {
    for program in [
        "steps_shared12",
        "steps_static",
        "steps_driver",
        "steps_rtld_local",
    ] {
        let both = on_lacking_driver(program)
            .window("5-9", "cudaGraphLaunch")
            .run();
        assert!(
            both.output.status.success(),
            "{program}: {}",
            both.output.err()
        );
        assert_eq!(both.switches(), [], "{program}");
        both.assert_same_calls();
        let said = both.said();
        let cannot = said
            .iter()
            .filter(|line| line.contains("cuProfilerStart"))
            .count();
        assert_eq!(cannot, 1, "one line says what cannot be done: {said:?}");
        assert_eq!(both.total(), 40);
    }
}

#[test]
fn the_program_needs_what_the_driver_lacks() {
    for program in [
        "steps_ptsz",
        "steps_static_ptsz",
        "steps_driver_gpa2_ptsz",
        "steps_driver_dlsym",
    ] {
        let both = on_lacking_driver(program)
            .args("--kernels 2 --kernel ex --own-profiler 3-4")
            .window("5-9", "cudaGraphLaunch")
            .run();
        assert!(
            !both.output.status.success(),
            "{program} fails on such a driver"
        );
        both.assert_same_calls();
    }
}

#[test]
fn the_driver_does_not_hand_out_some_functions() {
    for program in ["steps_shared12", "steps_static"] {
        for lacks in [
            "cuLaunchKernelEx,cuStreamBeginCaptureToGraph",
            "cuProfilerStart,cuProfilerStop",
        ] {
            let both = Situation::new(program)
                .env("STANDIN_LACKS", lacks)
                .args("--kernels 1")
                .window("5-9", "cudaGraphLaunch")
                .run();
            assert!(both.output.status.success(), "{program} {lacks}");
            assert_eq!(
                both.switches(),
                [start(5, 5), stop(10, 10)],
                "{program} {lacks}"
            );
            both.assert_same_calls();
        }
        for lacks in ["cuGraphLaunch", "cuStreamSynchronize"] {
            let both = Situation::new(program)
                .env("STANDIN_LACKS", lacks)
                .window("5-9", "cudaGraphLaunch")
                .run();
            assert!(
                !both.output.status.success(),
                "{program} fails without {lacks}"
            );
            both.assert_same_calls();
        }
    }
}

#[test]
fn there_is_no_device() {
    for program in ["steps_shared12", "steps_static", "steps_driver"] {
        let both = Situation::new(program)
            .env("STANDIN_DEVICES", "0")
            .window("5-9", "cudaGraphLaunch")
            .run();
        assert!(!both.output.status.success(), "{program}");
        assert!(both.log.is_empty());
        assert_eq!(both.said(), Vec::<String>::new(), "{program}");
    }
}

#[test]
fn there_is_no_driver() {
    let both = Situation::new("engine")
        .env("LD_LIBRARY_PATH", "")
        .window("5-9", "cudaGraphLaunch")
        .run();
    both.assert_untouched();
}

#[test]
fn of_several_devices_one_is_used() {
    let both = Situation::new("steps_shared12")
        .env("STANDIN_DEVICES", "8")
        .window("5-9", "cudaGraphLaunch")
        .run();
    assert_eq!(both.switches(), [start(5, 5), stop(10, 10)]);
    assert!(
        both.log.iter().all(|record| record.mark.is_empty()),
        "{:?}",
        both.log
    );
    both.assert_same_calls();
}
