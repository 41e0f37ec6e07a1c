//! Tests of `tllmprof run` with the profilers nsys and ncu.

mod common;

use common::{Scratch, finish};

/// A script in place of a profiler. It prints its arguments and some variables, then runs the program `echo` that
/// follows its options, and ends with status 9.
const PROFILER: &str = "#!/bin/sh\n\
    printf 'argument %s\\n' \"$@\"\n\
    printf 'preload %s\\n' \"$LD_PRELOAD\"\n\
    printf 'window %s%s\\n' \"$TLLMPROF_START_STOP\" \"$TLLMPROF_KERNELS\"\n\
    while [ \"$1\" != echo ]; do shift; done\n\
    \"$@\"\n\
    exit 9\n";

#[test]
fn nothing_is_measured_under_a_profiler_that_was_not_asked_for() {
    let scratch = Scratch::new();
    let nsys = scratch.script("tools/nsys", PROFILER);
    let path = format!("{}:/usr/bin:/bin", nsys.parent().unwrap().display());
    let mut run = scratch.tllmprof();
    run.args(["run", "--nsys", "--", "echo", "hi"])
        .env("PATH", &path);
    let ended = finish(&mut run);
    assert!(ended.stdout.contains("\nwindow steady\n"), "{ended:?}");
}

#[test]
fn nsys_captures_the_windows() {
    let scratch = Scratch::new();
    let nsys = scratch.script("tools/nsys", PROFILER);
    let path = format!("{}:/usr/bin:/bin", nsys.parent().unwrap().display());
    for (windows, end) in [
        ("5-9", "stop"),
        ("2-3,4,7,30-", "repeat:3"),
        ("steady", "stop"),
    ] {
        let mut run = scratch.tllmprof();
        run.args([
            "run",
            "--window",
            windows,
            "--nsys=-o 'a b' --trace=cuda",
            "--",
            "echo",
            "hi",
        ]);
        let ended = finish(run.env("PATH", &path));
        assert_eq!(ended.code(), Some(9), "{ended:?}");
        let wanted = format!(
            "argument profile\n\
             argument --trace-fork-before-exec=true\n\
             argument --capture-range=cudaProfilerApi\n\
             argument --capture-range-end={end}\n\
             argument -o\nargument a b\nargument --trace=cuda\n\
             argument echo\nargument hi\n\
             preload {}\nwindow {windows}\nhi\n",
            scratch.path("libtllmprof.so").display()
        );
        assert_eq!(ended.stdout, wanted);
    }
}

#[test]
fn ncu_profiles_from_the_window_on() {
    let scratch = Scratch::new();
    let ncu = scratch.script("elsewhere/my-ncu", PROFILER);
    let mut run = scratch.tllmprof();
    run.args(["run", "--window", "5", "--ncu", "--", "echo", "hi"])
        .env("TLLMPROF_NCU", ncu);
    let ended = finish(&mut run);
    assert_eq!(ended.code(), Some(9), "{ended:?}");
    assert!(
        ended.stdout.starts_with(
            "argument --target-processes=all\nargument --profile-from-start=off\n\
             argument echo\nargument hi\n"
        ),
        "{ended:?}"
    );
}

#[test]
fn a_profiler_that_is_not_there() {
    let scratch = Scratch::new();
    let mut run = scratch.tllmprof();
    run.args(["run", "--nsys", "true"])
        .env("TLLMPROF_NSYS", "/none/nsys");
    let ended = finish(&mut run);
    assert_eq!(
        (ended.code(), ended.stderr.lines().count()),
        (Some(2), 1),
        "{ended:?}"
    );
    let ended = finish(
        scratch
            .tllmprof()
            .args(["run", "--nsys", "--ncu", "--", "true"]),
    );
    assert_eq!(ended.code(), Some(2), "{ended:?}");
    let mut run = scratch.tllmprof();
    run.args(["run", "--nsys=-o 'a", "true"])
        .env("TLLMPROF_NSYS", "/bin/true");
    let ended = finish(&mut run);
    assert_eq!(
        (ended.code(), ended.stderr.lines().count()),
        (Some(2), 1),
        "{ended:?}"
    );
}
