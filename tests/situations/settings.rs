//! Checks environment variables that change how windows are switched and logged.

use super::twice::{Situation, count, start, stop, workers};

#[test]
fn nothing_is_logged() {
    for (program, windows) in [("steps_shared12", "5-9"), ("steps_static", "100-150")] {
        let both = Situation::new(program)
            .env("TLLMPROF_LOG", "off")
            .window(windows, "cudaGraphLaunch")
            .run();
        assert_eq!(both.output.err(), "");
        let expected = [start(5, 5), stop(10, 10)];
        assert_eq!(
            both.switches(),
            if windows == "5-9" { &expected[..] } else { &[] }
        );
        both.assert_same_calls();
    }
}

#[test]
fn much_is_logged() {
    let both = Situation::new("steps_shared12")
        .env("TLLMPROF_LOG", "debug")
        .window("5-9", "cudaGraphLaunch")
        .run();
    assert!(both.said().len() >= 3);
    assert_eq!(both.switches(), [start(5, 5), stop(10, 10)]);
    both.assert_same_calls();
}

#[test]
fn the_device_is_made_idle_before_a_stop_unless_that_is_off() {
    for (drain, waits) in [("1", 1), ("0", 0)] {
        for program in ["steps_shared12", "steps_static", "steps_driver_gpa1"] {
            let both = Situation::new(program)
                .env("TLLMPROF_DRAIN", drain)
                .window("5-9", "cudaGraphLaunch")
                .run();
            assert_eq!(both.switches(), [start(5, 5), stop(10, 10)]);
            both.assert_same_calls();
            assert_eq!(
                count(&both.log, "cuCtxSynchronize"),
                waits,
                "{program}, drain {drain}"
            );
            let before_stop = both
                .log
                .iter()
                .take_while(|record| record.function != "cuProfilerStop");
            let waited = before_stop.last().is_some_and(|record| {
                record.function == "cuCtxSynchronize_end"
                    && workers(&both.log).contains(&record.tid)
            });
            assert_eq!(waited, waits == 1, "{program}, drain {drain}");
        }
    }
}

#[test]
fn the_device_is_made_idle_before_the_last_stop_at_the_end() {
    for (drain, waits) in [("1", 1), ("0", 0)] {
        for ending in ["return", "_exit"] {
            let both = Situation::new("steps_shared12")
                .args(format!("--exit {ending}"))
                .env("TLLMPROF_DRAIN", drain)
                .window("30-", "cudaGraphLaunch")
                .run();
            assert_eq!(both.switches(), [start(30, 30), stop(40, 40)], "{ending}");
            assert_eq!(
                count(&both.log, "cuCtxSynchronize"),
                waits,
                "{ending}, drain {drain}"
            );
        }
    }
}

#[test]
fn the_program_switches_the_profiler_itself() {
    for program in [
        "steps_shared12",
        "steps_static",
        "steps_driver",
        "steps_dlsym",
    ] {
        let situation = Situation::new(program).args("--own-profiler 3-20");
        let both = situation.clone().window("5-9", "cudaGraphLaunch").run();
        let expected = [start(3, 3), start(5, 5), stop(10, 10), stop(21, 21)];
        assert_eq!(both.switches(), expected, "{program}");
        both.assert_same_calls();
        let said = both.said();
        assert_eq!(said.len(), 4, "logged once: {said:?}");
        assert!(said[0].contains("rofiler"), "{said:?}");
        situation.run().assert_untouched();
    }
}

#[test]
fn every_name_of_the_windows_is_read_and_the_first_wins() {
    let names = [
        "TLLMPROF_START_STOP",
        "TLLM_PROFILE_START_STOP",
        "TLLM_GPTM_PROFILE_START_STOP",
    ];
    for (k, name) in names.into_iter().enumerate() {
        let mut situation = Situation::new("steps_static")
            .env("TLLMPROF_STEP", "cudaGraphLaunch")
            .env(name, "5-9");
        for later in &names[k + 1..] {
            situation = situation.env(later, "20-30");
        }
        assert_eq!(
            situation.run().switches(),
            [start(5, 5), stop(10, 10)],
            "{name}"
        );
    }
}

#[test]
fn a_window_that_the_program_sets_itself_comes_too_late() {
    let both = Situation::new("sets_variables")
        .args("TLLM_GPTM_PROFILE_START_STOP=5-9 TLLMPROF_STEP=cudaGraphLaunch")
        .run();
    both.assert_untouched();
    let both = Situation::new("sets_variables")
        .args("TLLM_PROFILE_START_STOP=20-30 TLLMPROF_STEP=cudaStreamSynchronize/2")
        .window("5-9", "cudaGraphLaunch")
        .run();
    assert_eq!(both.switches(), [start(5, 5), stop(10, 10)]);
    assert_eq!(both.assert_same_calls().total(), 40);
}

#[test]
fn many_windows_are_counted_and_not_listed() {
    let all: Vec<_> = (0..20_000).map(|n| (2 * n).to_string()).collect();
    let both = Situation::new("steps_shared12")
        .window(&all.join(","), "cudaGraphLaunch")
        .env("TLLMPROF_LOG", "info")
        .run();
    let said = both.said();
    assert_eq!(
        said.last().unwrap(),
        "windows 0,2,4,6,8,10,12,14,… (20 in all) captured; windows 40,42,44,46,48,50,52,54,… \
         (19980 in all) never opened: 40 iterations by cudaGraphLaunch"
    );
}
