//! Real nsys, without a GPU: with `-c nvtx -p capture@tllmprof` its reports hold exactly the window's iterations.
//!
//! The driver is the stand-in, the profiler is not. Says `skipped: …` where nsys cannot be had.

mod common;
#[path = "nsys/exports.rs"]
mod exports;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use common::{Output, Scratch, command, nvtx, read_log, repo, run, shim, skipped, standin};
use tllmprof_record::{Entry, Reader, Strings, What};

const TIMEOUT: Duration = Duration::from_secs(120);
const STOP: &[&str] = &[
    "-c",
    "nvtx",
    "-p",
    "capture@tllmprof",
    "--capture-range-end=stop",
];
const REPEAT_2: &[&str] = &[
    "-c",
    "nvtx",
    "-p",
    "capture@tllmprof",
    "--capture-range-end=repeat:2",
];
const UNGATED: &[&str] = &[];

/// What `scripts/get-nsys` prints, asked once; `None` where it says that there can be none.
fn nsys() -> Option<&'static Path> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        // Fetching takes a while on a slow line.
        let got = run(
            &mut Command::new(repo().join("scripts/get-nsys")),
            Duration::from_secs(1200),
        );
        match got.status.code() {
            Some(0) => Ok(PathBuf::from(got.out().trim_end())),
            Some(3) => Err(got.err().trim_end().to_owned()),
            _ => panic!("scripts/get-nsys: {}\n{}", got.status, got.err()),
        }
    });
    match found {
        Ok(path) => Some(path),
        Err(why) => {
            skipped(why);
            None
        }
    }
}

#[derive(Debug)]
struct Range {
    domain: String,
    text: String,
    payload: Option<u64>,
    begin: i64,
    /// Of a range that was still open when nsys stopped, nothing.
    end: Option<i64>,
}

struct Profile {
    program: Output,
    log: PathBuf,
    /// The ranges of each report, in the reports' order.
    reports: Vec<Vec<Range>>,
    scratch: Scratch,
}

/// Runs a program under nsys with the library preloaded. Once in some hundred times, and more often beside another nsys,
/// it loses the connection to a process of its own before the program has run, and says so; then it is tried again.
fn profile(
    nsys: &Path,
    options: &[&str],
    variables: &[(&str, &str)],
    program: &[&OsStr],
) -> Profile {
    // On a small machine two runs of nsys at a time only wait for each other.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());

    let mut left = 3;
    loop {
        let profile = profile_once(nsys, options, variables, program);
        left -= 1;
        let said = profile.program.err();
        let lost = [
            "Connection to Agent lost",
            "End of file",
            "Local Endpoint is not available",
        ]
        .iter()
        .any(|words| said.contains(words));
        if !(lost && profile.reports.is_empty() && left > 0) {
            return profile;
        }
        eprintln!("nsys is run again: {said}");
    }
}

fn profile_once(
    nsys: &Path,
    options: &[&str],
    variables: &[(&str, &str)],
    program: &[&OsStr],
) -> Profile {
    let scratch = Scratch::new("nsys");
    let log = scratch.path("standin.log");
    let mut profiled = command(nsys);
    profiled
        .args(["profile", "-t", "nvtx", "-s", "none", "--cpuctxsw=none"])
        .args(options)
        // For the program alone: nsys opens libcuda too, and ends if it is not all there.
        .arg("-e")
        .arg(format!("LD_LIBRARY_PATH={}", standin().display()))
        .arg("-o")
        .arg(scratch.path("report"))
        .args(program)
        .current_dir(scratch.folder())
        .env("TMPDIR", scratch.folder())
        .env("STANDIN_LOG", &log)
        .env("LD_PRELOAD", shim())
        .envs(variables.iter().copied());
    let program = run(&mut profiled, TIMEOUT);
    let reports = reports(scratch.folder())
        .iter()
        .map(|report| export(nsys, report))
        .collect();
    Profile {
        program,
        log,
        reports,
        scratch,
    }
}

/// `report.nsys-rep`, or `report.1.nsys-rep` and so on where the capture repeats.
fn reports(folder: &Path) -> Vec<PathBuf> {
    let mut reports: Vec<PathBuf> = fs::read_dir(folder)
        .expect("list the reports")
        .map(|entry| entry.expect("list the reports").path())
        .filter(|path| path.extension() == Some(OsStr::new("nsys-rep")))
        .collect();
    reports.sort();
    reports
}

fn export(nsys: &Path, report: &Path) -> Vec<Range> {
    let sqlite = report.with_extension("sqlite");
    let mut export = command(nsys);
    export
        .args(["export", "--type", "sqlite", "-o"])
        .arg(&sqlite)
        .arg(report);
    let exported = run(&mut export, TIMEOUT);
    assert!(exported.status.success(), "{}", exported.err());
    let mut python = command("python3");
    python.arg(repo().join("tests/nsys/ranges.py")).arg(&sqlite);
    let printed = run(&mut python, TIMEOUT);
    assert!(printed.status.success(), "{}", printed.err());
    printed
        .out()
        .lines()
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            let [domain, text, payload, begin, end] = fields[..] else {
                panic!("not a line of ranges.py's: {line}")
            };
            Range {
                domain: domain.to_owned(),
                text: text.to_owned(),
                payload: payload.parse().ok(),
                begin: begin.parse().expect("a time"),
                end: end.parse().ok(),
            }
        })
        .collect()
}

/// The ranges of domain `tllmprof` are one `capture` and, begun inside it, exactly these iterations.
#[track_caller]
fn holds_exactly(report: &[Range], iterations: std::ops::RangeInclusive<u64>) {
    let (capture, others): (Vec<&Range>, Vec<&Range>) = report
        .iter()
        .filter(|range| range.domain == "tllmprof")
        .partition(|range| range.text == "capture");
    let found: Vec<(&str, Option<u64>)> = others
        .iter()
        .map(|range| (range.text.as_str(), range.payload))
        .collect();
    let names: Vec<(String, Option<u64>)> = iterations
        .map(|n| (format!("iteration {n}"), Some(n)))
        .collect();
    let wanted: Vec<(&str, Option<u64>)> = names
        .iter()
        .map(|(text, payload)| (text.as_str(), *payload))
        .collect();
    assert_eq!(found, wanted);
    let [capture] = capture[..] else {
        panic!("not one capture range: {capture:?}")
    };
    for range in &others {
        assert!(
            capture.begin <= range.begin,
            "{range:?} began before {capture:?}"
        );
        assert!(
            range.end.is_none_or(|end| range.begin <= end),
            "{range:?} ended before it began"
        );
    }
    for (before, after) in others.iter().zip(others.iter().skip(1)) {
        assert!(
            before.end.is_some_and(|end| end <= after.begin),
            "{before:?} overlaps {after:?}"
        );
    }
}

/// The engine's own answer, which tells that it ran to its end.
#[track_caller]
fn engine_is_done(profile: &Profile) {
    assert!(
        profile.program.status.success(),
        "{}\n{}",
        profile.program.status,
        profile.program.err()
    );
    let said = profile.program.out();
    assert!(
        said.contains("engine: 40 steps, checksum"),
        "{said}\n{}\n{:?}",
        profile.program.err(),
        reports(profile.scratch.folder())
    );
}

fn profile_engine(
    nsys: &Path,
    options: &[&str],
    window: Option<&str>,
    step: &str,
    arguments: &[&str],
) -> Profile {
    let engine = standin().join("bin/engine");
    let mut program = vec![engine.as_os_str(), OsStr::new("--steps"), OsStr::new("40")];
    program.extend(arguments.iter().map(OsStr::new));
    let mut variables = vec![("TLLMPROF_STEP", step)];
    variables.extend(window.map(|window| ("TLLM_PROFILE_START_STOP", window)));
    let profile = profile(nsys, options, &variables, &program);
    engine_is_done(&profile);
    profile
}

#[test]
fn one_window() {
    let Some(nsys) = nsys() else { return };
    let profile = profile_engine(nsys, STOP, Some("5-9"), "cudaGraphLaunch", &[]);
    assert_eq!(profile.reports.len(), 1);
    holds_exactly(&profile.reports[0], 5..=9);
    // The CUDA profiler's gate stands around the same five launches.
    let log = read_log(&profile.log);
    let launched: Vec<usize> = ["cuProfilerStart", "cuProfilerStop"]
        .iter()
        .map(|&edge| {
            let mut calls = log.iter().map(|record| record.function.as_str());
            let before = calls.position(|function| function == edge).expect(edge);
            log[..before]
                .iter()
                .filter(|record| record.function.starts_with("cuGraphLaunch"))
                .count()
        })
        .collect();
    assert_eq!(launched, [5, 10]);
}

#[test]
fn one_iteration() {
    let Some(nsys) = nsys() else { return };
    let profile = profile_engine(nsys, STOP, Some("17"), "cudaGraphLaunch", &[]);
    assert_eq!(profile.reports.len(), 1);
    holds_exactly(&profile.reports[0], 17..=17);
}

#[test]
fn two_windows_give_two_reports() {
    let Some(nsys) = nsys() else { return };
    let profile = profile_engine(nsys, REPEAT_2, Some("5-9,20-22"), "cudaGraphLaunch", &[]);
    assert_eq!(profile.reports.len(), 2);
    holds_exactly(&profile.reports[0], 5..=9);
    holds_exactly(&profile.reports[1], 20..=22);
}

#[test]
fn several_graphs_a_step() {
    let Some(nsys) = nsys() else { return };
    let graphs = &["--graphs", "4"];
    let profile = profile_engine(nsys, STOP, Some("5-9"), "cudaGraphLaunch/4", graphs);
    assert_eq!(profile.reports.len(), 1);
    holds_exactly(&profile.reports[0], 5..=9);
}

#[test]
fn closed_by_the_host_wait() {
    let Some(nsys) = nsys() else { return };
    let profile = profile_engine(nsys, STOP, Some("5-9"), "cudaStreamSynchronize", &[]);
    assert_eq!(profile.reports.len(), 1);
    holds_exactly(&profile.reports[0], 5..=9);
}

#[test]
fn open_to_the_end() {
    let Some(nsys) = nsys() else { return };
    let profile = profile_engine(nsys, STOP, Some("30-"), "cudaGraphLaunch", &[]);
    assert_eq!(profile.reports.len(), 1);
    holds_exactly(&profile.reports[0], 30..=39);
}

#[test]
fn no_window_marks_every_iteration() {
    let Some(nsys) = nsys() else { return };
    let profile = profile_engine(nsys, UNGATED, None, "cudaGraphLaunch", &[]);
    assert_eq!(profile.reports.len(), 1);
    let found: Vec<Option<u64>> = profile.reports[0]
        .iter()
        .filter(|range| range.domain == "tllmprof")
        .map(|range| range.payload)
        .collect();
    assert_eq!(found, (0..40).map(Some).collect::<Vec<_>>());
}

/// Builds the program with NVTX ranges of its own.
fn own_ranges(scratch: &Scratch) -> PathBuf {
    nvtx::program(scratch, "nsys/own_ranges.c")
}

#[test]
fn own_ranges_are_left_alone() {
    let Some(nsys) = nsys() else { return };
    let scratch = Scratch::new("own");
    let program = own_ranges(&scratch);
    let step = ("TLLMPROF_STEP", "cudaGraphLaunch");
    let window = ("TLLM_PROFILE_START_STOP", "5-9");
    let gated = profile(nsys, STOP, &[step, window], &[program.as_os_str()]);
    let plain = profile(nsys, UNGATED, &[("LD_PRELOAD", "")], &[program.as_os_str()]);

    holds_exactly(&gated.reports[0], 5..=9);
    assert_eq!(gated.program.status, plain.program.status);
    let levels = |profile: &Profile| -> Vec<String> {
        let said = profile.program.out();
        let own =
            |line: &&str| line.starts_with(|c: char| c.is_ascii_digit()) && line.contains(": ");
        said.lines().filter(own).map(str::to_owned).collect()
    };
    assert_eq!(levels(&plain).len(), 40, "{}", plain.program.out());
    assert_eq!(levels(&gated), levels(&plain));

    let count = |profile: &Profile, domain: &str, text: &str| {
        profile.reports[0]
            .iter()
            .filter(|range| range.domain == domain && range.text == text)
            .count()
    };
    for (domain, text) in [
        ("own", "own in domain"),
        ("", "own inner"),
        ("", "own step"),
    ] {
        assert_eq!(count(&plain, domain, text), 40, "{text}");
    }
    // The window opens inside step 5's ranges, at its launch, and closes inside step 10's. nsys keeps what
    // begins inside.
    assert_eq!(count(&gated, "own", "own in domain"), 5);
    assert_eq!(count(&gated, "", "own inner"), 5);
}

#[test]
fn waits_on_another_thread() {
    let Some(nsys) = nsys() else { return };
    let scratch = Scratch::new("own");
    let program = own_ranges(&scratch);
    for step in ["cudaGraphLaunch", "cudaStreamSynchronize"] {
        let profile = profile(
            nsys,
            STOP,
            &[("TLLMPROF_STEP", step), ("TLLM_PROFILE_START_STOP", "5-9")],
            &[program.as_os_str(), OsStr::new("--waits-elsewhere")],
        );
        assert!(
            profile.program.status.success(),
            "{}",
            profile.program.err()
        );
        assert_eq!(profile.reports.len(), 1);
        holds_exactly(&profile.reports[0], 5..=9);
    }
}

/// nsys drops all it has if the process ends by `_exit` with the capture range open.
#[test]
fn open_window_at_quick_exit() {
    let Some(nsys) = nsys() else { return };
    let scratch = Scratch::new("own");
    let program = own_ranges(&scratch);
    let profile = profile(
        nsys,
        STOP,
        &[
            ("TLLMPROF_STEP", "cudaGraphLaunch"),
            ("TLLM_PROFILE_START_STOP", "30-"),
        ],
        &[program.as_os_str(), OsStr::new("--quick-exit")],
    );
    assert_eq!(profile.program.status.code(), Some(7));
    assert_eq!(profile.reports.len(), 1);
    holds_exactly(&profile.reports[0], 30..=39);
}

/// The program's ranges are counted, by a rule that comes before nsys, and nsys has all of them.
#[test]
fn the_programs_ranges_make_iterations() {
    let Some(nsys) = nsys() else { return };
    let scratch = Scratch::new("own");
    let program = nvtx::program(&scratch, "nvtx/ranges.c");
    // (KIND, its rule, the ranges that a step opens: domain and name)
    type Kind<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);
    let kinds: [Kind<'_>; 5] = [
        ("push_a", "nvtx:^step", &[("", "step"), ("", "inner")]),
        ("push_w", "nvtx:^step", &[("", "step")]),
        ("push_ex", r"nvtx:^step \d+$", &[("", "step")]),
        (
            "domain_push",
            "nvtx:^step@engine",
            &[
                ("engine", "step of"),
                ("other", "step"),
                ("engine", "inner"),
                ("", "step of"),
            ],
        ),
        ("start", "nvtx:^step", &[("", "step"), ("", "around")]),
    ];
    for (kind, rule, ranges) in kinds {
        let arguments = [program.as_os_str(), OsStr::new(kind)];
        let plain = profile(nsys, UNGATED, &[("LD_PRELOAD", "")], &arguments);
        let window = ("TLLM_PROFILE_START_STOP", "5-9");
        let step = ("TLLMPROF_STEP", rule);
        let counted = profile(nsys, UNGATED, &[step, window], &arguments);
        assert!(
            counted.program.status.success(),
            "{}",
            counted.program.err()
        );
        let said = counted.program.err();
        assert!(
            said.contains("window 5-9 captured: 40 iterations"),
            "{kind}: {said}"
        );
        for (domain, text) in ranges {
            for profile in [&plain, &counted] {
                let found = profile.reports[0].iter();
                let found = found.filter(|r| r.domain == *domain && r.text.starts_with(text));
                assert_eq!(found.count(), 40, "{kind}: {text}@{domain}");
            }
        }
        // nsys says what it does between the program's lines.
        let answers = |profile: &Profile| -> Vec<String> {
            let said = profile.program.out();
            let own = |line: &&str| {
                line.starts_with("pop of nothing")
                    || !line.is_empty()
                        && line.chars().all(|c| c.is_ascii_digit() || " -".contains(c))
            };
            said.lines().filter(own).map(str::to_owned).collect()
        };
        assert_eq!(
            answers(&counted).len(),
            41,
            "{kind}: {}",
            counted.program.out()
        );
        assert_eq!(answers(&counted), answers(&plain), "{kind}");
    }
}

#[test]
fn gated_by_the_programs_ranges() {
    let Some(nsys) = nsys() else { return };
    let scratch = Scratch::new("own");
    let program = nvtx::program(&scratch, "nvtx/ranges.c");
    let profile = profile(
        nsys,
        STOP,
        &[
            ("TLLMPROF_STEP", "nvtx:^step"),
            ("TLLM_PROFILE_START_STOP", "5-9"),
        ],
        &[program.as_os_str(), OsStr::new("push_a")],
    );
    assert!(
        profile.program.status.success(),
        "{}",
        profile.program.err()
    );
    assert_eq!(profile.reports.len(), 1);
    holds_exactly(&profile.reports[0], 5..=9);
    // The program's own ranges of these steps are inside, whole.
    for (text, count) in [("step", 5), ("inner", 5)] {
        let own = profile.reports[0].iter();
        let own: Vec<&Range> = own
            .filter(|range| range.domain.is_empty() && range.text.starts_with(text))
            .collect();
        assert_eq!(own.len(), count, "{own:?}");
        assert!(own.iter().all(|range| range.end.is_some()), "{own:?}");
    }
}

/// With a record the library comes before nsys, whatever the rule: nsys has what it has without one, and the record
/// has the window's.
#[test]
fn a_record_takes_nothing_from_nsys() {
    let Some(nsys) = nsys() else { return };
    let scratch = Scratch::new("own");
    let program = nvtx::program(&scratch, "nvtx/ranges.c");
    let trace = scratch.path("recorded.tllmprof");
    let arguments = [program.as_os_str(), OsStr::new("domain_push")];
    let plain = profile(nsys, UNGATED, &[("LD_PRELOAD", "")], &arguments);
    let variables = [
        ("TLLMPROF_STEP", "cudaStreamSynchronize"),
        ("TLLM_PROFILE_START_STOP", "5-9"),
        ("TLLMPROF_TRACE", trace.to_str().unwrap()),
    ];
    let recorded = profile(nsys, UNGATED, &variables, &arguments);
    assert!(
        recorded.program.status.success(),
        "{}",
        recorded.program.err()
    );
    let own = |profile: &Profile| {
        let ranges = profile.reports[0].iter();
        let ranges = ranges.filter(|range| range.domain != "tllmprof");
        let mut own: Vec<_> = ranges
            .map(|range| {
                let name = (range.domain.clone(), range.text.clone());
                (name, range.end.is_some())
            })
            .collect();
        own.sort();
        own
    };
    assert_eq!(own(&plain).len(), 160);
    assert_eq!(own(&recorded), own(&plain));
    let mut names = Strings::default();
    let mut kept = Vec::new();
    let reader = Reader::open(&trace).unwrap();
    let read = reader.read(|entry| match entry {
        Entry::String { id, bytes } => names.add(id, bytes),
        Entry::Event { event, .. } => {
            if let What::Range { name, domain, .. } = event.what {
                kept.push((domain, name, event.cut));
            }
        }
    });
    assert!(read.unwrap().is_none());
    // Waits close iterations: from the wait of step 4 to that of step 9, in the middle of its ranges.
    let count = |domain: &str, name: &str, cut: bool| {
        let is_it = |range: &&(u32, u32, bool)| {
            let in_domain = match domain {
                "" => range.0 == 0,
                domain => names.get(range.0) == domain,
            };
            in_domain && names.get(range.1) == name && range.2 == cut
        };
        kept.iter().filter(is_it).count()
    };
    for (domain, name) in [
        ("engine", "inner"),
        ("engine", "step of the engine"),
        ("other", "step"),
        ("", "step of the default domain"),
    ] {
        let counts = [false, true].map(|cut| count(domain, name, cut));
        assert_eq!(counts, [4, 1], "{name}");
    }
    assert_eq!(kept.len(), 20);
}

/// Each process of a family chains to its own nsys, with our library or without it.
#[test]
fn ranges_of_children() {
    let Some(nsys) = nsys() else { return };
    let scratch = Scratch::new("own");
    let program = nvtx::program(&scratch, "nvtx/children.c");
    let variables = [
        ("TLLMPROF_STEP", "nvtx:^step"),
        ("TLLM_PROFILE_START_STOP", "all"),
    ];
    let options = ["--trace-fork-before-exec=true"];
    // (KIND, ranges of both processes, windows of both)
    for (kind, ranges, windows) in [("fork", 6, 1), ("preload", 7, 2), ("bare", 7, 1)] {
        let arguments = [program.as_os_str(), OsStr::new(kind)];
        let profile = profile(nsys, &options, &variables, &arguments);
        let said = profile.program.err();
        assert!(profile.program.status.success(), "{kind}: {said}");
        assert_eq!(
            said.matches(" captured: ").count(),
            windows,
            "{kind}: {said}"
        );
        let found = profile.reports[0].iter();
        let found = found.filter(|range| range.domain.is_empty() && range.text == "step");
        assert_eq!(found.count(), ranges, "{kind}");
    }
}
