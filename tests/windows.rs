//! Checks windows in a program that makes 40 steps unless a test sets another number: for every way to link the program
//! to CUDA, every rule, and every end of the process. The profiler must start before the window's first call and stop
//! after its last call.

mod common;
#[path = "windows/demo.rs"]
mod demo;
#[path = "windows/polls.rs"]
mod polls;
#[path = "windows/said.rs"]
mod said;
#[path = "windows/steady.rs"]
mod steady;

use common::{Fixture, Ran, Switch};

/// The names of the fixture's builds, one for each way to reach CUDA's functions.
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

/// Asserts that the output, the status and the driver's calls are the same as in a run without the library.
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

/// Runs the fixture in every linkage, and asserts that the profiler starts and stops as `expected`.
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
    // In the build `two_cudarts`, steps alternate between two libraries, and each library launches its own kernels. So
    // the calls repeat every two steps, and `auto` takes two steps for one iteration.
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
