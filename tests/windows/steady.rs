//! Checks the windows that the library opens by default: if the user requests no windows, it opens one as soon as the
//! times of iterations are steady.

use std::time::Duration;

use serde_json::{Value, json};

use crate::assert_unharmed;
use crate::common::{Fixture, Scratch, Switch, command, run, shim, standin, tllmprof};

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
        // The program ends before its step times are steady, so no window opens. The message says why: `auto`
        // recognised no step, or there were only 12 iterations.
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
        run(&mut it, Duration::from_secs(300)).err()
    };
    let text = run_with(&["--light"], "400");
    assert!(text.contains(": 50 iterations in "), "{text}");
    let last = "tllmprof: a page with timelines: tllmprof report --html tllmprof-x.html tllmprof-x";
    assert_eq!(text.lines().last(), Some(last));
    let mut page = command(tllmprof());
    page.args(last.split(' ').skip(6))
        .current_dir(scratch.folder());
    let made = run(&mut page, Duration::from_secs(300));
    assert!(made.status.success(), "{}", made.err());
    assert!(scratch.path("tllmprof-x.html").is_file());
    // In these cases no window opens, and a page would show nothing. So the command does not print the line about the
    // page.
    for (more, steps, line) in [
        (
            &["--light"][..],
            "10",
            "window of 50 steady iterations never opened: 10 iterations",
        ),
        (&["--window", "none"], "100", "no iteration was recorded"),
    ] {
        let text = run_with(more, steps);
        assert!(text.contains(line) && !text.contains("a page"), "{text}");
    }
}

/// Number of steps in which the default window opens and closes, also on a busy machine, where the time of a step may not
/// settle. Then the window opens after 128 steps.
const ENOUGH_STEPS: &str = "300";

/// Runs the fixture `steps_shared12` with this number of steps under `tllmprof run`. Returns the process's entry in the
/// report, and the messages.
fn run_by_default(options: &[&str], steps: &str, variables: &[(&str, &str)]) -> (Value, String) {
    let scratch = Scratch::new("default");
    let mut it = command(tllmprof());
    it.args([
        "run",
        "--run",
        "x",
        "--no-summary",
        "--step",
        "cudaGraphLaunch",
    ])
    .args(options)
    .arg("--")
    .arg(standin().join("bin/steps_shared12"))
    .args(["--steps", steps])
    .env("TLLMPROF_LIB", shim())
    .env(
        "LD_LIBRARY_PATH",
        format!("{0}:{0}/cupti", standin().display()),
    )
    .env("STANDIN_WORK_NS", "2000000")
    .envs(variables.iter().copied())
    .current_dir(scratch.folder());
    let said = run(&mut it, Duration::from_secs(300)).err();
    let mut report = command(tllmprof());
    report
        .args(["report", "--json", "tllmprof-x"])
        .current_dir(scratch.folder());
    let made = run(&mut report, Duration::from_secs(300));
    let mut all: Value = serde_json::from_str(&made.out()).unwrap();
    (all["processes"][0].take(), said)
}

#[test]
fn a_run_without_a_window_takes_times_first_and_kernels_in_the_end() {
    let (process, said) = run_by_default(&[], ENOUGH_STEPS, &[]);
    let windows = process["windows"].as_array().unwrap();
    let [window] = &windows[..] else {
        panic!("{windows:?}");
    };
    let iterations = window["iterations"].as_array().unwrap().len();
    let with_kernels = process["kernel_window"]["iterations"].as_u64().unwrap();
    assert!((2..=20).contains(&with_kernels), "{with_kernels}");
    assert!(iterations as u64 >= 3 + with_kernels, "{iterations}");
    // Kernels are recorded in the last iterations of the window.
    let last = window["last"].as_u64().unwrap();
    let has_kernels = |one: &Value| one["kernels"].as_u64().unwrap() > 0;
    let of_end = window["iterations"].as_array().unwrap().iter().rev();
    let of_end = of_end.take_while(|one| has_kernels(one)).count();
    assert_eq!(of_end as u64, with_kernels);
    let name = format!(
        "window {}-{last} closed: {iterations} iterations in ",
        window["first"]
    );
    assert!(said.contains(&name), "{said}");
    // By default, the library records stacks, garbage collections and the GIL. This program has no Python. The user has
    // not requested these options, so no message says that they had no effect.
    assert!(
        !said.contains("had no effect") && !said.contains("NATIVE"),
        "{said}"
    );
}

#[test]
fn kernels_that_nobody_asked_for_leave_the_window_without_them() {
    let injected = [("CUDA_INJECTION64_PATH", "/nowhere/libinjection.so")];
    let (process, said) = run_by_default(&[], ENOUGH_STEPS, &injected);
    assert_eq!(process["windows"].as_array().unwrap().len(), 1);
    assert!(process["kernel_window"].is_null());
    let lines = said.lines();
    let lines: Vec<_> = lines.filter(|line| line.contains("kernels")).collect();
    assert!(
        matches!(lines[..], [one] if one.contains("the window has no kernels: another tool")),
        "{said}"
    );
}

#[test]
fn the_last_iterations_are_reported_where_no_window_opened() {
    let (process, said) = run_by_default(&[], "20", &[]);
    let line = "window of steady iterations never opened: 20 iterations by cudaGraphLaunch; ";
    assert!(said.contains(line), "{said}");
    assert!(
        said.contains("; the last 20 iterations are reported\n"),
        "{said}"
    );
    let window = &process["windows"][0];
    assert_eq!(
        (&window["past"], &window["first"], &window["last"]),
        (&json!(true), &json!(0), &json!(19))
    );
    // If a window has opened, the report is only about that window.
    let (process, said) = run_by_default(&[], ENOUGH_STEPS, &[]);
    assert_eq!(process["windows"].as_array().unwrap().len(), 1);
    assert!(
        process["windows"][0]["past"] == false && !said.contains("are reported"),
        "{said}"
    );
}

#[test]
fn a_window_that_the_program_cuts_off_says_what_it_has() {
    // On a busy machine, the time of a step may not settle in so few steps. Then the run is repeated.
    let mut runs = (0..10).map(|_| run_by_default(&[], "60", &[]));
    let has_opened = |(_, said): &(Value, String)| !said.contains("never opened");
    let (process, said) = runs.find(has_opened).expect("a window that opens");
    let window = &process["windows"][0];
    let (first, last) = (
        window["first"].as_u64().unwrap(),
        window["last"].as_u64().unwrap(),
    );
    assert_eq!(last, 59, "{window}");
    let line =
        format!("window {first}- captured in part: {first}-59, the program ended: 60 iterations");
    assert!(said.contains(&line), "{said}");
}

#[test]
fn env_sets_what_run_sets() {
    let env = |options: &[&str]| {
        let mut it = command(tllmprof());
        it.arg("env").args(options).env("TLLMPROF_LIB", shim());
        let lines = run(&mut it, Duration::from_secs(300)).out();
        let lines = lines
            .lines()
            .filter_map(|line| line.strip_prefix("export TLLM"));
        let lines: Vec<_> = lines
            .filter(|line| !line.starts_with("PROF_RUN=") && !line.starts_with("PROF_TRACE="))
            .map(str::to_owned)
            .collect();
        lines
    };
    let measured = [
        "_PROFILE_RECORD_GC",
        "PROF_GIL",
        "PROF_STACKS",
        "PROF_NATIVE_STACKS",
        "PROF_KERNELS",
    ];
    let auto = measured.map(|name| format!("{name}='auto'"));
    let all = env(&[]);
    assert_eq!(
        (all[0].as_str(), &all[1..]),
        ("PROF_START_STOP='auto'", &auto[..])
    );
    assert_eq!(env(&["--light"]), ["PROF_START_STOP='steady'"]);
    assert_eq!(env(&["--window", "5-9"]), ["PROF_START_STOP='5-9'"]);
    let torch = env(&["--torch-trace", "x.json"]);
    assert_eq!(torch[0], "PROF_START_STOP='steady'");
    assert!(
        !torch.iter().any(|line| line.starts_with("PROF_KERNELS")),
        "{torch:?}"
    );
    assert!(env(&["--gc"]).contains(&"_PROFILE_RECORD_GC='1'".to_owned()));
}

#[test]
fn a_rank_that_opens_no_window_keeps_and_reports_nothing() {
    let (process, said) = run_by_default(&["--ranks", "3"], "60", &[("RANK", "1")]);
    assert_eq!(process["windows"], json!([]), "{said}");
    assert!(
        said.contains("no window here by TLLMPROF_RANKS: 60 iterations"),
        "{said}"
    );
}
