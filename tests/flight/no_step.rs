//! Checks runs that end before a window has opened. If the rule `auto` finds no repeating step, the report is about the
//! last part of the run, as one span of time: a single window with a single iteration. If it finds a step, the report is
//! about the latest steps, including those that it saw before it relied on the step.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::common::python::pythons;
use super::common::{self, Output, Scratch, command, compiler, repo, run, shim, standin};

const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// The result of `tllmprof run -- PROGRAM` without any options.
struct Ran {
    /// The library's messages and the summary.
    said: String,
    /// The entry of the only process in the report.
    process: Value,
    /// The full text of the report.
    text: String,
}

fn tllmprof(scratch: &Scratch) -> Command {
    let mut tllmprof = command(common::tllmprof());
    tllmprof
        .current_dir(scratch.folder())
        .env("TLLMPROF_LIB", shim());
    tllmprof
}

fn succeeds(command: &mut Command) -> Output {
    let output = run(command, TEST_TIMEOUT);
    assert!(output.status.success(), "{}", output.err());
    output
}

fn run_default(scratch: &Scratch, program: &[PathBuf]) -> Ran {
    let mut start = tllmprof(scratch);
    start.args(["run", "--"]).args(program);
    start
        .env("LD_LIBRARY_PATH", standin())
        .env("PYTHONPATH", repo().join("tests/fixtures"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // Without this setting, other tests could capture windows of the program through its control socket.
        .env("TLLMPROF_CONTROL", "0");
    let said = succeeds(&mut start).err();
    let json = succeeds(tllmprof(scratch).args(["report", "--json"]));
    let mut report: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(report["processes"].as_array().unwrap().len(), 1, "{said}");
    Ran {
        text: succeeds(tllmprof(scratch).args(["report", "--full"])).out(),
        process: report["processes"][0].take(),
        said,
    }
}

/// Builds and runs a C program with the given `main`, which calls `work` to launch a kernel and `wait_for_it` to wait
/// for the GPU.
fn run_c(name: &str, main: &str) -> Ran {
    let scratch = Scratch::new(name);
    let (source, built) = (scratch.path("program.c"), scratch.path("program"));
    let program =
        format!("{PROGRAM}\nint main(void) {{\n    begin();\n{main}\n    return 0;\n}}\n");
    std::fs::write(&source, program).unwrap();
    let mut cc = compiler();
    cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Werror", "-o"]);
    succeeds(cc.arg(&built).arg(&source).arg("-ldl"));
    run_default(&scratch, &[built])
}

const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*wait_for_stream)(void *), (*wait_for_all)(void);
static void *kernels[40], *words;
static void must(int error) { if (error) abort(); }
static void begin(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context, *module;
    if (!cuda) abort();
    must(((int (*)(unsigned))dlsym(cuda, "cuInit"))(0));
    must(((int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain"))(&context, 0));
    must(((int (*)(void *))dlsym(cuda, "cuCtxSetCurrent"))(context));
    *(void **)&launch = dlsym(cuda, "cuLaunchKernel");
    *(void **)&wait_for_stream = dlsym(cuda, "cuStreamSynchronize");
    *(void **)&wait_for_all = dlsym(cuda, "cuCtxSynchronize");
    int (*load)(void **, const void *), (*get)(void **, void *, const char *), (*allocate)(void **, size_t);
    *(void **)&load = dlsym(cuda, "cuModuleLoadData");
    *(void **)&get = dlsym(cuda, "cuModuleGetFunction");
    *(void **)&allocate = dlsym(cuda, "cuMemAlloc_v2");
    must(allocate(&words, 16));
    for (int n = 0; n < 40; n++) {
        must(load(&module, ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry mix(.param .u64 words) { ret; }\n"));
        must(get(&kernels[n], module, "mix"));
    }
}
static void work(int kernel) {
    void *params[] = { &words };
    must(launch(kernels[kernel], 1, 1, 1, 1, 1, 1, 0, 0, params, 0));
}
static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
__attribute__((noinline)) static void prepare_batch(int us) { usleep(us); }
"#;

/// Asserts that the report has one span (a window with a single iteration) of at least `seconds`, and no iterations
/// outside of it. Asserts that the report says that no step was recognised, and that its shares of host time add up to
/// 1.
fn assert_span(ran: &Ran, seconds: f64) {
    let (process, said) = (&ran.process, &ran.said);
    let windows = process["windows"].as_array().unwrap();
    assert_eq!(windows.len(), 1, "{said}");
    let iterations = windows[0]["iterations"].as_array().unwrap();
    assert_eq!(iterations.len(), 1, "{said}");
    let ns = iterations[0]["dur_ns"].as_f64().unwrap();
    assert!(ns >= seconds * 1e9, "{ns}: {said}");
    assert!(said.contains(" s are reported as one span"), "{said}");
    assert_eq!(process["rule_why"], "auto relied on no step");
    assert_eq!(process["outside"]["iterations"], 0, "{process}");
    let note = "no step was recognised: this is about the last ";
    assert!(ran.text.contains(note), "{}", ran.text);
    let host = process["ledger"]["host"].as_array().unwrap();
    let sum: f64 = host.iter().map(|row| row["share"].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 0.01, "{host:?}");
}

/// Returns true if the report's table of host time (`ledger`) contains the text `what`.
fn names(ran: &Ran, what: &str) -> bool {
    ran.process["ledger"]["host"].to_string().contains(what)
}

#[test]
fn six_long_waits_are_one_span() {
    let ran = run_c(
        "six_waits",
        "    for (int n = 0; n < 6; n++) { prepare_batch(150000); for (int k = 0; k <= n; k++) work(k); must(wait_for_stream(0)); }",
    );
    assert_span(&ran, 0.4);
    assert!(ran.said.contains("6 stream waits"), "{}", ran.said);
    assert!(names(&ran, "asleep"), "{}", ran.process["ledger"]);
}

#[test]
fn random_calls_are_one_span() {
    let ran = run_c(
        "random_calls",
        "    srandom(7);
    for (double end = now() + 1.2; now() < end; ) {
        for (int n = random() % 60; n >= 0; n--) work(random() % 40);
        if (random() % 3 == 0) must(wait_for_stream(0));
        if (random() % 3 == 0) must(wait_for_all());
        prepare_batch(random() % 9000);
    }",
    );
    assert_span(&ran, 0.3);
    assert!(ran.process["calls"].to_string().contains("cuLaunchKernel"));
}

#[test]
fn the_span_of_a_python_program_names_its_functions() {
    let ran = run_python(
        "python_span",
        "
for length in (0.3, 0.21, 0.14, 0.4, 0.12):
    tokenise_prompts(time.monotonic() + length)
    for _ in range(chosen.randrange(1, 9)):
        loop.lib.cuGraphLaunch(loop.graph, loop.stream)
    loop.lib.cuStreamSynchronize(loop.stream)
",
    );
    let Some(ran) = ran else { return };
    assert_span(&ran, 0.5);
    assert!(names(&ran, "tokenise_prompts"), "{}", ran.process["ledger"]);
}

#[test]
fn the_latest_steps_of_a_python_program_name_its_functions() {
    let ran = run_python(
        "python_latest",
        "
for _ in range(70):
    tokenise_prompts(time.monotonic() + chosen.choice((0.004, 0.05)))
    loop.lib.cuGraphLaunch(loop.graph, loop.stream)
    loop.lib.cuStreamSynchronize(loop.stream)
",
    );
    let Some(ran) = ran else { return };
    let windows = ran.process["windows"].as_array().unwrap();
    let is_past = |window: &Value| window["past"] == true;
    assert!(
        windows.len() == 1 && is_past(&windows[0]),
        "no window opened by itself: {}",
        ran.said
    );
    let iterations = windows[0]["iterations"].as_array().unwrap();
    assert!(iterations.len() > 20, "{}", ran.said);
    assert!(names(&ran, "tokenise_prompts"), "{}", ran.process["ledger"]);
}

/// Runs a Python program that consists of the lines `steps` after a preamble. The preamble defines `loop`, which has a
/// graph to launch, and `tokenise_prompts`, which computes until a given time. Returns `None` if there is no Python with
/// a GIL.
fn run_python(name: &str, steps: &str) -> Option<Ran> {
    let python = pythons().iter().rfind(|python| python.has_gil)?;
    let scratch = Scratch::new(name);
    let path = scratch.path("main.py");
    std::fs::write(&path, format!("{PREAMBLE}{steps}")).unwrap();
    Some(run_default(&scratch, &[python.path.clone(), path]))
}

const PREAMBLE: &str = "
import random, time
from py_ctypes import Driver
loop = Driver('libcuda.so.1')
loop.capture()
chosen = random.Random(3)

def tokenise_prompts(until):
    total = 0
    while time.monotonic() < until:
        total += sum(range(200))
    return total
";

#[test]
fn a_step_that_is_recognised_later_replaces_the_span() {
    let ran_c = |steps: u32| {
        run_c(
            "late_step",
            &format!(
                "    srandom(5);
    for (int n = 0; n < 5; n++) {{ prepare_batch(90000); work(random() % 40); must(wait_for_stream(0)); }}
    for (int n = 0; n < {steps}; n++) {{ for (int k = 0; k < 20; k++) work(k); must(wait_for_stream(0)); usleep(2000); }}"
            ),
        )
    };
    let ran = ran_c(400);
    assert!(!ran.text.contains("no step was recognised"), "{}", ran.text);
    let why = ran.process["rule_why"].as_str().unwrap();
    assert!(why.starts_with("auto learnt it: "), "{why}");
    let windows = ran.process["windows"].as_array().unwrap();
    assert!(windows[0]["iterations"].as_array().unwrap().len() > 10);
}

/// A program whose step has been found, but not relied on for long, when it ends: 22 steps, of which the first 16 at
/// least are needed to find it.
#[test]
fn steps_that_were_seen_before_auto_relied_on_them_are_reported() {
    let ran = run_c(
        "short_slow_steps",
        "    for (int n = 0; n < 22; n++) { prepare_batch(150000); for (int k = 0; k < 24; k++) work(k); must(wait_for_stream(0)); }",
    );
    let why = ran.process["rule_why"].as_str().unwrap();
    assert!(why.starts_with("auto learnt it: "), "{why}");
    let (first, durations) = iterations(&ran);
    assert!(
        first <= 16 && durations.len() >= 6,
        "{first}, {durations:?}"
    );
    assert!(durations.iter().all(|ns| *ns >= 150e6), "{durations:?}");
    assert!(
        names(&ran, "asleep in prepare_batch"),
        "{}",
        ran.process["ledger"]
    );
    // What the thread used is known for each of these steps.
    assert!(!ran.text.contains("a newer library"), "{}", ran.text);
}

/// A program whose steps are so unequal and so few that `auto` never relies on them.
#[test]
fn steps_that_auto_is_not_sure_of_are_reported_as_such() {
    let ran = run_c(
        "unequal_steps",
        "    srandom(1);
    for (int n = 0; n < 120; n++) { prepare_batch(5000 + random() % 70000); for (int k = 0; k < 24; k++) work(k); must(wait_for_stream(0)); }",
    );
    let why = ran.process["rule_why"].as_str().unwrap();
    let is_unsure = why.starts_with("auto took it for the step, and was not sure: ");
    // On a busy machine each step may last so long that it is relied on.
    assert!(is_unsure || why.starts_with("auto learnt it: "), "{why}");
    let (first, durations) = iterations(&ran);
    assert!(durations.len() > 40, "{first}, {durations:?}");
    assert!(durations.iter().all(|ns| *ns >= 5e6), "{durations:?}");
    if is_unsure {
        assert_eq!((first + durations.len() as u64), 120, "{}", ran.said);
    }
}

/// Returns the number of the first iteration of the only window, and the durations of its iterations in nanoseconds.
fn iterations(ran: &Ran) -> (u64, Vec<f64>) {
    let windows = ran.process["windows"].as_array().unwrap();
    assert_eq!(windows.len(), 1, "{}", ran.said);
    let iterations = windows[0]["iterations"].as_array().unwrap();
    let first = iterations[0]["n"].as_u64().unwrap();
    for (place, iteration) in (first..).zip(iterations) {
        assert_eq!(iteration["n"], place, "{}", ran.process["windows"]);
    }
    let durations = iterations.iter().map(|one| one["dur_ns"].as_f64().unwrap());
    (first, durations.collect())
}
