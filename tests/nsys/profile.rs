//! Runs programs under nsys, and reads its reports.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use crate::common::{Output, Scratch, command, repo, run, shim, skipped, standin};

const TIMEOUT: Duration = Duration::from_secs(300);
pub(crate) const STOP: &[&str] = &[
    "-c",
    "nvtx",
    "-p",
    "capture@tllmprof",
    "--capture-range-end=stop",
];

pub(crate) const REPEAT_2: &[&str] = &[
    "-c",
    "nvtx",
    "-p",
    "capture@tllmprof",
    "--capture-range-end=repeat:2",
];

pub(crate) const UNGATED: &[&str] = &[];

/// Returns the path of nsys, as `scripts/get-nsys` prints it; `None` if nsys is not available. The script runs once.
pub(crate) fn nsys() -> Option<&'static Path> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        // The time limit is long, because the script may download nsys, which takes minutes.
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
pub(crate) struct Range {
    pub domain: String,
    pub text: String,
    pub payload: Option<u64>,
    pub begin: i64,
    /// Time of the range's end; `None` for a range that was still open when nsys stopped.
    pub end: Option<i64>,
}

pub(crate) struct Profile {
    pub program: Output,
    pub log: PathBuf,
    /// The NVTX ranges in each of nsys's reports.
    pub reports: Vec<Vec<Range>>,
    pub scratch: Scratch,
}

impl Profile {
    /// Asserts that there is exactly one report, and that it has exactly these iterations ([`holds_exactly`]).
    #[track_caller]
    pub(crate) fn holds_one_window(&self, iterations: std::ops::RangeInclusive<u64>) {
        assert_eq!(self.reports.len(), 1, "{}", self.program.err());
        holds_exactly(&self.reports[0], iterations);
    }
}

/// Runs a program under nsys with the library preloaded. Once in some hundred runs, and more often on a busy machine,
/// nsys writes no report: it loses the connection to one of its own processes, or ends without a message. Then the run
/// is repeated, unless the library logs that no window opened.
pub(crate) fn profile(
    nsys: &Path,
    options: &[&str],
    variables: &[(&str, &str)],
    program: &[&OsStr],
) -> Profile {
    // Only one nsys runs at a time: on a small machine, two at once take as long as one after the other.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());

    let mut left = 3;
    loop {
        let profile = profile_once(nsys, options, variables, program);
        left -= 1;
        let said = profile.program.err();
        if !profile.reports.is_empty() || said.contains("never opened") || left == 0 {
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
        // `-e` sets this variable for the program only. nsys itself must not find the stand-in for CUDA: nsys needs
        // functions of libcuda that the stand-in does not have.
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

/// Returns the paths of the reports: `report.nsys-rep`, or `report.1.nsys-rep` and so on if the capture repeats.
pub(crate) fn reports(folder: &Path) -> Vec<PathBuf> {
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

/// Asserts that the report has exactly one range `capture` of the domain `tllmprof`, and that exactly these iterations
/// begin during that range.
#[track_caller]
pub(crate) fn holds_exactly(report: &[Range], iterations: std::ops::RangeInclusive<u64>) {
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

/// Asserts that the program printed its result, which it does only at its end.
#[track_caller]
pub(crate) fn engine_is_done(profile: &Profile) {
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

pub(crate) fn profile_engine(
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
