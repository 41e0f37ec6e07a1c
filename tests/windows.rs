//! A program of 40 iterations: in every linkage the profiler starts before the first call of the
//! window and stops after its last, whatever makes an iteration and however the process ends.

mod common;

use std::time::Duration;

use common::{Fixture, PROFILED, Ran, Scratch, Switch, command, run, shim, standin, tllmprof};

/// Every way in which the fixture reaches CUDA.
const LINKAGES: [&str; 21] = [
    "shared12",
    "shared13",
    "static",
    "noplt",
    "znow",
    "fnptr",
    "ptsz",
    "static_ptsz",
    "dlsym",
    "dlvsym",
    "driver",
    "driver_ptsz",
    "driver_dlsym",
    "driver_dlsym_ptsz",
    "driver_gpa1",
    "driver_gpa2",
    "driver_gpa2_ptsz",
    "rtld_local",
    "two_cudarts",
    "tail",
    "early_ctor",
];

fn start(launches: usize, waits: usize) -> Switch {
    Switch::Start { launches, waits }
}

fn stop(launches: usize, waits: usize) -> Switch {
    Switch::Stop { launches, waits }
}

/// The result and the status are those of a run without the shim, and so are the driver's calls.
#[track_caller]
fn assert_unharmed(ran: &Ran, plain: &Ran) {
    assert_eq!(ran.output.out(), plain.output.out());
    assert_eq!(
        ran.output.status,
        plain.output.status,
        "{}",
        ran.output.err()
    );
    let program = |ran: &Ran| {
        let thread = ran.log.first().map(|first| first.tid);
        let own = |function: &&String| !function.starts_with("cuProfiler");
        let of_program = ran.log.iter().filter(|record| Some(record.tid) == thread);
        of_program
            .map(|record| &record.function)
            .filter(own)
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(program(ran), program(plain));
    assert!(
        ran.log.iter().all(|record| record.mark.is_empty()),
        "{:?}",
        ran.log
    );
}

/// Runs the fixture in every linkage and compares where the profiler was switched.
#[track_caller]
fn in_every_linkage(windows: &str, step: &str, args: &str, expected: &[Switch]) {
    in_linkages(&LINKAGES, windows, step, args, expected);
}

#[track_caller]
fn in_linkages(linkages: &[&str], windows: &str, step: &str, args: &str, expected: &[Switch]) {
    for linkage in linkages {
        let program = format!("steps_{linkage}");
        let ran = Fixture::new(&program)
            .window(windows, step)
            .args(args)
            .run();
        assert_eq!(
            ran.switches(),
            expected,
            "{program} {args} by {step}\n{}",
            ran.output.err()
        );
        assert_unharmed(&ran, &Fixture::plain(&program).args(args).run());
    }
}

#[test]
fn one_window_by_graph_launches() {
    in_every_linkage("5-9", "cudaGraphLaunch", "", &[start(5, 5), stop(10, 10)]);
}

#[test]
fn one_window_by_the_drivers_name() {
    in_every_linkage("5-9", "cuGraphLaunch", "", &[start(5, 5), stop(10, 10)]);
}

#[test]
fn one_window_by_stream_waits() {
    in_every_linkage(
        "5-9",
        "cudaStreamSynchronize",
        "",
        &[start(5, 5), stop(10, 10)],
    );
}

#[test]
fn four_graphs_a_step() {
    in_every_linkage(
        "5-9",
        "cudaGraphLaunch/4",
        "--graphs 4",
        &[start(20, 5), stop(40, 10)],
    );
}

#[test]
fn three_windows_one_of_them_open_ended() {
    in_every_linkage(
        "2-3,7,30-",
        "cudaGraphLaunch",
        "",
        &[
            start(2, 2),
            stop(4, 4),
            start(7, 7),
            stop(8, 8),
            start(30, 30),
            stop(40, 40),
        ],
    );
}

#[test]
fn the_wait_that_recurs_by_default() {
    // Steps that take turns between two libraries with kernels of their own look like halves.
    let (halves, linkages): (Vec<_>, Vec<_>) = LINKAGES
        .iter()
        .partition(|linkage| **linkage == "two_cudarts");
    let args = "--kernels 3 --steps 300";
    let expected = [start(100, 100), stop(105, 105)];
    in_linkages(&linkages, "100-104", "auto", args, &expected);
    let expected = [start(199, 199), stop(209, 209)];
    in_linkages(&halves, "100-104", "auto", args, &expected);
}

#[test]
fn auto_opens_late_what_has_passed_while_it_learnt() {
    let ran = Fixture::new("steps_shared12")
        .window("5-9,100-101", "auto")
        .args("--kernels 3 --steps 200")
        .run();
    let switches = ran.switches();
    let Some(&Switch::Start { launches, waits }) = switches.first() else {
        panic!("{switches:?} {}", ran.output.err());
    };
    assert!(
        (6..60).contains(&launches) && launches == waits,
        "{switches:?}"
    );
    assert_eq!(
        switches[1..],
        [
            stop(launches + 5, waits + 5),
            start(100, 100),
            stop(102, 102)
        ]
    );
    let said = ran.said();
    let last = launches + 4;
    assert_eq!(
        said[0],
        "the step is still being learnt: window 5-9 opens once it is understood"
    );
    assert!(
        said[1].starts_with("auto: iteration = the stream wait after a graph (once every 1 wait, "),
        "{said:?}"
    );
    assert_eq!(
        said[2],
        format!(
            "window 5-9 opened at iteration {launches} (auto; asked for 5: the step was still being learnt)"
        )
    );
    assert_eq!(
        said.last().unwrap().as_str(),
        format!(
            "windows 5-9,100-101 captured as {launches}-{last},100-101: 200 iterations by auto"
        )
    );
}

#[test]
fn windows_at_the_very_start_and_end() {
    let cases = [
        ("0", "cudaGraphLaunch", [start(0, 0), stop(1, 1)]),
        ("0", "cudaStreamSynchronize", [start(0, 0), stop(1, 1)]),
        ("39", "cudaGraphLaunch", [start(39, 39), stop(40, 40)]),
        ("39", "cudaStreamSynchronize", [start(39, 39), stop(40, 40)]),
        ("all", "cudaGraphLaunch", [start(0, 0), stop(40, 40)]),
        (
            "3-1000000",
            "cudaStreamSynchronize",
            [start(3, 3), stop(40, 40)],
        ),
    ];
    for (windows, step, expected) in cases {
        let ran = Fixture::new("steps_shared13").window(windows, step).run();
        assert_eq!(ran.switches(), expected, "{windows} by {step}");
    }
}

#[test]
fn every_kind_of_call_can_be_the_rule() {
    let cases = [
        (
            "cudaLaunchKernel/3",
            "--kernels 3",
            [start(5, 5), stop(10, 10)],
        ),
        (
            "cudaLaunchKernelExC/2",
            "--kernels 2 --kernel ex",
            [start(5, 5), stop(10, 10)],
        ),
        (
            "cuLaunchCooperativeKernel",
            "--kernels 1 --kernel cooperative",
            [start(5, 5), stop(10, 10)],
        ),
        (
            "cudaEventSynchronize",
            "--sync event",
            [start(5, 5), stop(10, 10)],
        ),
        (
            "cudaDeviceSynchronize",
            "--sync device",
            [start(5, 5), stop(10, 10)],
        ),
        (
            "cuCtxSynchronize",
            "--sync device",
            [start(5, 5), stop(10, 10)],
        ),
        ("cudaMemcpy", "--sync memcpy", [start(5, 5), stop(10, 10)]),
        (
            "cuMemcpyDtoHAsync",
            "--copy-out",
            [start(6, 5), stop(11, 10)],
        ),
    ];
    for (step, args, expected) in cases {
        for program in [
            "steps_shared12",
            "steps_static",
            "steps_driver",
            "steps_driver_dlsym",
        ] {
            let ran = Fixture::new(program).window("5-9", step).args(args).run();
            let said = ran.output.err();
            assert_eq!(
                ran.switches(),
                expected,
                "{program} {args} by {step}\n{said}"
            );
            assert_unharmed(&ran, &Fixture::plain(program).args(args).run());
        }
    }
}

#[test]
fn an_open_window_is_closed_at_every_kind_of_exit() {
    let closed = [start(30, 30), stop(40, 40)];
    for ending in [
        "return",
        "exit",
        "_exit",
        "_Exit",
        "quick_exit",
        "pthread_exit",
        "fork-child",
    ] {
        for program in [
            "steps_shared12",
            "steps_static",
            "steps_rtld_local",
            "steps_driver",
        ] {
            for step in ["cudaGraphLaunch", "cudaStreamSynchronize"] {
                let args = format!("--exit {ending} --status 3");
                let ran = Fixture::new(program).window("30-", step).args(&args).run();
                let said = ran.output.err();
                assert_eq!(
                    ran.switches(),
                    closed,
                    "{program} {ending} by {step}\n{said}"
                );
                assert_unharmed(&ran, &Fixture::plain(program).args(&args).run());
            }
        }
    }
}

#[test]
fn an_open_window_is_closed_when_sigterm_is_handled() {
    for ending in ["sigterm-handled", "sigterm-_exit"] {
        let args = format!("--exit {ending}");
        let ran = Fixture::new("steps_shared13")
            .window("30-", "cudaGraphLaunch")
            .args(&args)
            .run();
        assert_eq!(
            ran.switches(),
            [start(30, 30), stop(40, 40)],
            "{}",
            ran.output.err()
        );
        assert_unharmed(&ran, &Fixture::plain("steps_shared13").args(&args).run());
    }
}

#[test]
fn a_process_that_is_killed_dies_as_it_would() {
    for ending in ["sigterm", "abort"] {
        let args = format!("--exit {ending}");
        let ran = Fixture::new("steps_static")
            .window("30-", "cudaGraphLaunch")
            .args(&args)
            .run();
        assert_eq!(ran.switches(), [start(30, 30)]);
        assert_unharmed(&ran, &Fixture::plain("steps_static").args(&args).run());
    }
}

#[test]
fn a_far_window_is_as_exact_as_a_near_one() {
    for step in ["cudaGraphLaunch", "cudaStreamSynchronize"] {
        let ran = Fixture::new("steps_static")
            .window("5000-5001", step)
            .args("--steps 6000")
            .run();
        assert_eq!(
            ran.switches(),
            [start(5000, 5000), stop(5002, 5002)],
            "by {step}"
        );
        assert!(
            ran.said()
                .last()
                .is_some_and(|line| line.contains("6000 iterations")),
            "{:?}",
            ran.said()
        );
    }
}

#[test]
fn a_window_that_the_end_of_the_program_cuts_off() {
    for (windows, last) in [
        (
            "35-60",
            "window 35-60 captured in part: 35-39, the program ended: 40 iterations by cudaGraphLaunch",
        ),
        (
            "2,39-40",
            "windows 2,39-40 captured, 39-40 in part: 39, the program ended: 40 iterations by cudaGraphLaunch",
        ),
        (
            "2-3,39-",
            "windows 2-3,39- captured: 40 iterations by cudaGraphLaunch",
        ),
        (
            "38-39,50",
            "window 38-39 captured; window 50 never opened: 40 iterations by cudaGraphLaunch",
        ),
    ] {
        let ran = Fixture::new("steps_shared12")
            .window(windows, "cudaGraphLaunch")
            .run();
        assert_eq!(ran.said().last().map(String::as_str), Some(last));
    }
}

#[test]
fn the_three_lines() {
    let ran = Fixture::new("steps_shared12")
        .window("5-9", "cudaGraphLaunch")
        .run();
    let said = ran.said();
    assert_eq!(said.len(), 3, "{said:?}");
    assert_eq!(
        said[0],
        "window 5-9 opened at iteration 5 (cudaGraphLaunch)"
    );
    assert!(
        said[1].starts_with("window 5-9 closed: 5 iterations in "),
        "{said:?}"
    );
    assert_eq!(
        said[2],
        "window 5-9 captured: 40 iterations by cudaGraphLaunch"
    );
}

#[test]
fn a_window_that_never_opens_is_reported_with_the_reason() {
    let ran = Fixture::new("steps_shared12")
        .window("100-150", "cudaGraphLaunch")
        .run();
    assert_eq!(
        ran.said(),
        ["window 100-150 never opened: 40 iterations by cudaGraphLaunch"]
    );
    let ran = Fixture::new("steps_static")
        .window("3,100-150", "cudaEventSynchronize")
        .args("--kernels 2")
        .run();
    assert_eq!(
        ran.said(),
        [
            "windows 3,100-150 never opened: 0 iterations by cudaEventSynchronize; it made 40 graph \
          launches, 80 kernel launches and 40 stream waits: try auto"
        ]
    );
    let ran = Fixture::new("steps_static")
        .window("3", "cudaGraphLaunch")
        .args("--graphs 0 --kernels 2")
        .run();
    assert_eq!(
        ran.said(),
        [
            "window 3 never opened: 0 iterations by cudaGraphLaunch; it made 80 kernel launches \
             and 40 stream waits: try auto"
        ]
    );
    let ran = Fixture::new("steps_static")
        .window("7,100-150", "cudaGraphLaunch")
        .run();
    assert_eq!(
        ran.said().last().map(String::as_str),
        Some("window 7 captured; window 100-150 never opened: 40 iterations by cudaGraphLaunch")
    );
}

#[test]
fn a_bad_range_gives_its_line_and_nothing_else() {
    let plain = Fixture::plain("steps_shared12").run();
    let ran = Fixture::new("steps_shared12")
        .window("9-5", "cudaGraphLaunch")
        .run();
    let said = ran.said();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].starts_with("TLLM_PROFILE_START_STOP=\"9-5\": "),
        "{said:?}"
    );
    assert!(ran.switches().is_empty());
    assert_unharmed(&ran, &plain);
    assert_eq!(ran.log.len(), plain.log.len());
}

#[test]
fn a_variable_that_nothing_reads_is_named_once() {
    let plain = Fixture::plain("steps_shared12").run();
    let ran = Fixture::new("steps_shared12")
        .env("TLLMPROF_STEPP", "cudaGraphLaunch")
        .run();
    let line = "TLLMPROF_STEPP means nothing; TLLMPROF_STEP does";
    assert_eq!(ran.said(), [line]);
    assert_unharmed(&ran, &plain);
    let ran = Fixture::new("steps_shared12")
        .env("TLLMPROF_STEPP", "cudaGraphLaunch")
        .window("5-9", "cudaGraphLaunch")
        .run();
    assert_eq!(ran.said().iter().filter(|said| *said == line).count(), 1);
    assert_eq!(ran.switches().len(), 2, "the others count");
    let ran = Fixture::new("steps_shared12")
        .env("TLLMPROF_STEPP", "cudaGraphLaunch")
        .env("TLLMPROF_LOG", "off")
        .run();
    assert_eq!(ran.output.err(), "");
}

#[test]
fn what_only_python_can_give_is_said_to_be_missing_where_there_is_none() {
    let ran = Fixture::new("steps_shared12")
        .window("5-9", "cudaGraphLaunch")
        .env("TLLM_PROFILE_RECORD_GC", "1")
        .env("TLLMPROF_PERFECT_ROUTER", "1")
        .run();
    let line = "there was no Python in this process: TLLM_PROFILE_RECORD_GC, the perfect router had no effect";
    assert_eq!(
        ran.said().iter().filter(|said| *said == line).count(),
        1,
        "{:?}",
        ran.said()
    );
    assert_eq!(ran.switches().len(), 2);
}

#[test]
fn without_a_window_nothing_is_said_or_switched() {
    let ran = Fixture::new("steps_shared12").run();
    assert_eq!(ran.output.err(), "");
    assert!(ran.switches().is_empty());
}

#[test]
fn a_window_that_nobody_records_is_reported_once() {
    let line = "window 5-9 was captured, but nothing recorded it: there is no profiler in this process, and \
                TLLMPROF_TRACE is not set (set TLLMPROF_TRACE=PATH, or run it under nsys)";
    let alone = |windows: &str| {
        let fixture = Fixture::new("steps_shared12").without(PROFILED);
        fixture.window(windows, "cudaGraphLaunch")
    };
    let ran = alone("5-9,20").run();
    let said = ran.said();
    assert_eq!(said[2], line, "{said:?}");
    assert_eq!((said.len(), ran.switches().len()), (6, 4), "{said:?}");
    assert_unharmed(&ran, &Fixture::plain("steps_shared12").run());
    // The process's end closes it.
    let ran = alone("5-").args("--exit _exit").run();
    let line = line.replace("5-9", "5-");
    assert_eq!(ran.said().iter().filter(|said| **said == line).count(), 1);

    let hears = |fixture: Fixture| {
        let ran = fixture.run();
        let said = ran.said();
        assert!(
            said.iter().all(|line| !line.contains("nothing recorded")),
            "{said:?}"
        );
    };
    hears(alone("100-150"));
    hears(alone("5-9").env("TLLMPROF_TRACE", "x.tllmprof"));
    hears(alone("5-9").env("TLLMPROF_LOG", "error"));
    hears(alone("5-9").env("TLLM_TORCH_PROFILE_TRACE", "x.json"));
    hears(alone("5-9").env("TLLMPROF_PERFECT_ROUTER", "window"));
    for profiler in [
        "NSYS_PROFILING_SESSION_ID",
        "CUDA_INJECTION64_PATH",
        PROFILED,
    ] {
        hears(alone("5-9").env(profiler, "/x"));
    }
}

#[test]
fn steady_iterations_are_taken_once_their_time_has_settled() {
    for (program, step) in [
        ("steps_shared12", "cudaGraphLaunch"),
        ("steps_static", "cudaStreamSynchronize"),
        ("steps_dlsym", "auto"),
    ] {
        let fixture = || {
            Fixture::new(program)
                .window("steady:20", step)
                .env("STANDIN_WORK_NS", "20000")
        };
        let ran = fixture().args("--steps 400").run();
        let said = ran.said();
        let [start, stop] = ran.switches()[..] else {
            panic!("{:?} {said:?}", ran.switches());
        };
        let (
            Switch::Start {
                launches: first, ..
            },
            Switch::Stop { launches: end, .. },
        ) = (start, stop)
        else {
            panic!("{start:?} {stop:?}");
        };
        assert!((24..=330).contains(&first) && end == first + 20, "{said:?}");
        let window = format!("window {first}-{}", end - 1);
        let opened = said.iter().find(|line| line.contains(" opened at "));
        let start = format!("{window} opened at iteration {first} ({step}, ");
        let opened = opened.expect("it opens");
        assert!(
            opened.starts_with(&start) && opened.contains("steady"),
            "{opened}"
        );
        assert_eq!(
            said.last(),
            Some(&format!("{window} captured: 400 iterations by {step}"))
        );
        // A program that ends before says how many steps there were.
        let ran = fixture().args("--steps 12").run();
        assert!(ran.switches().is_empty());
        let said = ran.said();
        let why = match step {
            "auto" => "auto recognised no step",
            _ => "12 iterations by ",
        };
        let start = format!("window of 20 steady iterations never opened: {why}");
        assert!(
            said.last().is_some_and(|line| line.starts_with(&start)),
            "{said:?}"
        );
        assert_unharmed(&ran, &Fixture::plain(program).args("--steps 12").run());
    }
}

#[test]
fn a_run_without_a_window_ends_with_a_summary_and_the_line_that_makes_the_page() {
    let scratch = Scratch::new("steady");
    let run_with = |more: &[&str], steps: &str| {
        let mut it = command(tllmprof());
        it.args(["run", "--run", "x", "--step", "cudaGraphLaunch"])
            .args(more)
            .arg("--")
            .arg(standin().join("bin/steps_shared12"))
            .args(["--steps", steps])
            .env("TLLMPROF_LIB", shim())
            .env("LD_LIBRARY_PATH", standin())
            .env("STANDIN_WORK_NS", "20000")
            .current_dir(scratch.folder());
        run(&mut it, Duration::from_secs(60)).err()
    };
    let text = run_with(&[], "400");
    assert!(text.contains(": 50 iterations in "), "{text}");
    let last = "tllmprof: a page with timelines: tllmprof report --html tllmprof-x.html tllmprof-x";
    assert_eq!(text.lines().last(), Some(last));
    let mut page = command(tllmprof());
    page.args(last.split(' ').skip(6))
        .current_dir(scratch.folder());
    let made = run(&mut page, Duration::from_secs(60));
    assert!(made.status.success(), "{}", made.err());
    assert!(scratch.path("tllmprof-x.html").is_file());
    // Where no window came to be there is nothing that a page could show.
    for (more, steps, line) in [
        (
            &[][..],
            "10",
            "window of 50 steady iterations never opened: 10 iterations",
        ),
        (&["--window", "none"], "100", "no iteration was recorded"),
    ] {
        let text = run_with(more, steps);
        assert!(text.contains(line) && !text.contains("a page"), "{text}");
    }
}

/// What the log and the report say of a window.
#[derive(Debug)]
struct Said {
    /// Of the log: its iterations, its time in milliseconds, and what else.
    logged: u64,
    took: f64,
    more: String,
    /// Of the report: the times of all iterations, in milliseconds, and why some do not count.
    all: Vec<f64>,
    counted: u64,
    left_out: serde_json::Value,
    text: String,
}

fn said_of_a_window(windows: &str) -> Said {
    let scratch = Scratch::new("times");
    let mut it = command(tllmprof());
    it.args(["run", "--step", "cudaGraphLaunch", "--window", windows])
        .args(["--trace", "x.tllmprof", "--"])
        .arg(standin().join("bin/steps_shared12"))
        .env("TLLMPROF_LIB", shim())
        .env("LD_LIBRARY_PATH", standin())
        .current_dir(scratch.folder());
    let text = run(&mut it, Duration::from_secs(60)).err();
    let closed = text.lines().find_map(|line| line.split_once(" closed: "));
    let (logged, rest) = closed
        .and_then(|(_, said)| said.split_once(" iterations in "))
        .expect("a count");
    let (took, more) = rest.split_once(" ms").expect("a time");
    let mut report = command(tllmprof());
    report
        .args(["report", "--json", "x.tllmprof"])
        .current_dir(scratch.folder());
    let json = run(&mut report, Duration::from_secs(60)).out();
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let process = &json["processes"][0];
    let iterations = process["windows"][0]["iterations"].as_array();
    let time = |one: &serde_json::Value| one["dur_ns"].as_f64().expect("a duration") / 1e6;
    Said {
        logged: logged.parse().expect("a number"),
        took: took.parse().expect("a number"),
        more: more.to_owned(),
        all: iterations.expect("iterations").iter().map(time).collect(),
        counted: process["inside"]["iterations"].as_u64().expect("a number"),
        left_out: process["unqualified"].clone(),
        text: text.clone(),
    }
}

#[test]
fn the_log_and_the_report_say_the_same_of_a_window() {
    // Closed by an iteration, and by the end of the process. A thread may be interrupted between two readings.
    for windows in ["5-9", "5-"] {
        let runs: Vec<_> = (0..3).map(|_| said_of_a_window(windows)).collect();
        let is_near = |of: &Said| {
            let report: f64 = of.all.iter().sum();
            (of.took - report).abs() < 0.01 + 0.05 * report
        };
        assert!(runs.iter().any(is_near), "{windows}: {runs:?}");
        for of in runs {
            assert_eq!(of.logged, of.all.len() as u64, "{of:?}");
            if windows == "5-9" {
                assert_eq!((of.logged, of.counted, &*of.more), (5, 5, ""), "{of:?}");
                assert!(of.text.contains("window 5-9: 5 iterations in "), "{of:?}");
                continue;
            }
            // A launch begins an iteration, so that the last has no end of its own.
            assert_eq!((of.logged, of.counted), (35, 34), "{of:?}");
            assert_eq!(of.more, ", the last cut off by the end of the process");
            assert!(
                of.text.contains("window 5-39: 34 of 35 iterations in "),
                "{of:?}"
            );
            assert!(of.text.contains("left out: 1 iteration cut off"), "{of:?}");
            assert!(of.left_out.to_string().contains("cut"), "{of:?}");
        }
    }
}
