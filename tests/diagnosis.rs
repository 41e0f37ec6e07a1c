//! Checks programs that are slow for one reason each (`examples/slow/causes.txt`). The first finding of the report must
//! be that reason, and there must be no finding of another cause. A healthy program must have no finding.
//!
//! Other tests keep the machine busy. A busy machine is also a finding, and it may be the greatest cause. So only one
//! program runs at a time, and the program runs again if its report is wrong. On a GPU, `scripts/gpu-check --only
//! diagnosis` runs each of these programs three times, and no other finding is allowed there.
//!
//! The scripted reader (`scripts/gpu_check/reader.py`) is a script that sees only the answers of the tools of
//! `tllmprof mcp`, such as `brief`. It has to name the same cause.

mod common;
#[path = "diagnosis/gpu_state.rs"]
mod gpu_state;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use common::python::pythons;
use common::{Scratch, command, compiler, repo, run, shim, skipped, standin};
use serde_json::Value;

/// Time limit of a run, longer than any program needs on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// Duration of a launch with the stand-in for CUDA, in nanoseconds. A launch on real hardware takes about as long.
const LAUNCH_NS: &str = "2000";

/// The name of the finding that threads are often preempted. A busy machine causes this finding, too.
const BUSY: &str = "preempted";

/// Maximum number of tool calls that the scripted reader (`scripts/gpu_check/reader.py`) may make.
const MAX_CALLS: u64 = 3;
/// Maximum number of characters in all answers to the scripted reader's tool calls.
const MAX_CHARACTERS: u64 = 16_000;

/// Maximum number of runs of a program on a busy machine.
const MAX_RUNS: usize = 6;
/// Maximum number of runs if the machine seems not to be busy. The load that the kernel gives is a mean over a minute, so
/// it does not show that a machine has just become busy.
const MAX_QUIET_RUNS: usize = 3;

/// A lock that lets only one program run at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A line of the table `examples/slow/causes.txt`.
struct Row {
    /// The program's file and its arguments.
    program: Vec<String>,
    /// The rule of the first finding that the report must have; `-` if it must have no finding.
    finds: String,
    /// A text that the evidence of the first finding must contain.
    says: String,
    step: String,
    window: String,
    variables: Vec<(String, String)>,
    options: Vec<String>,
    work_ns: String,
}

fn table() -> Vec<Row> {
    let text = std::fs::read_to_string(folder().join("causes.txt")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(row).collect()
}

fn row(line: &str) -> Row {
    let fields: Vec<&str> = line.split('|').map(str::trim).collect();
    let &[program, finds, says, step, window, variables, options, work] = &fields[..] else {
        panic!("not a line of the table: {line}");
    };
    let words = |text: &str| {
        text.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let variable = |word: &str| {
        let (name, value) = word.split_once('=').unwrap();
        (name.to_owned(), value.to_owned())
    };
    Row {
        program: words(program),
        finds: finds.to_owned(),
        says: says.to_owned(),
        step: step.to_owned(),
        window: window.to_owned(),
        variables: words(variables).iter().map(|word| variable(word)).collect(),
        options: words(options),
        work_ns: work.to_owned(),
    }
}

fn folder() -> PathBuf {
    repo().join("examples/slow")
}

/// Returns the words of the command that starts a program of `examples/slow`. Returns `None` if there is no Python with
/// a GIL.
fn start(program: &[String], scratch: &Scratch) -> Option<Vec<PathBuf>> {
    let (file, words) = program.split_first().unwrap();
    let source = folder().join(file);
    let words = words.iter().map(PathBuf::from);
    if file.ends_with(".py") {
        let python = pythons().iter().find(|python| python.has_gil);
        if python.is_none() && !pythons().is_empty() {
            skipped("no CPython with a GIL");
        }
        let start = [python?.path.clone(), source];
        return Some(start.into_iter().chain(words).collect());
    }
    let built = scratch.path("program");
    let mut cc = compiler();
    cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&built)
        .arg(&source)
        .args(["-ldl", "-lpthread"]);
    let output = run(&mut cc, TEST_TIMEOUT);
    assert!(output.status.success(), "{cc:?}\n{}", output.err());
    Some([built].into_iter().chain(words).collect())
}

fn tllmprof(scratch: &Scratch) -> Command {
    let mut tllmprof = command(common::tllmprof());
    tllmprof
        .env("TLLMPROF_LIB", shim())
        .current_dir(scratch.folder());
    tllmprof
}

/// The results of one run of a program.
struct Ran {
    report: Value,
    /// The summary that the library logs at the end of the run.
    summary: String,
    /// The answer of the scripted reader (`scripts/gpu_check/reader.py`): the cause that it found in the record.
    read: Value,
}

/// Runs a program of the table. Returns `None` if its Python is missing.
fn ran(row: &Row) -> Option<Ran> {
    let scratch = Scratch::new(&row.program.concat());
    let start = start(&row.program, &scratch)?;
    let mut run_it = tllmprof(&scratch);
    run_it.args(["run", "--window", &row.window, "--step", &row.step]);
    run_it.args(["--trace", "%p.tllmprof"]).args(&row.options);
    run_it.arg("--").args(&start);
    run_it
        .envs(row.variables.iter().map(|(name, value)| (name, value)))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("LD_LIBRARY_PATH", standin())
        .env("STANDIN_DEVICES", "3")
        // Without this setting, other tests could capture windows of the program through its control socket.
        .env("TLLMPROF_CONTROL", "0")
        .env("STANDIN_WORK_NS", &row.work_ns)
        .env("STANDIN_CALL_NS", LAUNCH_NS);
    let ran = run(&mut run_it, TEST_TIMEOUT);
    assert!(ran.status.success(), "{}", ran.err());
    let mut report = tllmprof(&scratch);
    report
        .args(["report", "--json"])
        .args(records(scratch.folder()));
    let report = run(&mut report, TEST_TIMEOUT);
    assert!(report.status.success(), "{}", report.err());
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    let (first, last) = row.window.split_once('-').unwrap();
    let many = last.parse::<u64>().unwrap() - first.parse::<u64>().unwrap() + 1;
    for process in report["processes"].as_array().unwrap() {
        assert_eq!(process["inside"]["iterations"], many, "{}", ran.err());
    }
    Some(Ran {
        report,
        summary: ran.err(),
        read: read(&scratch),
    })
}

/// Runs the scripted reader, which looks for the cause in the record by itself. Returns its answer.
fn read(scratch: &Scratch) -> Value {
    let mut reader = command("python3");
    reader
        .arg("-B")
        .arg(repo().join("scripts/gpu_check/reader.py"))
        .arg(common::tllmprof())
        .arg(scratch.folder())
        .args(records(scratch.folder()));
    let read = run(&mut reader, TEST_TIMEOUT);
    assert!(read.status.success(), "{}", read.err());
    serde_json::from_slice(&read.stdout).unwrap()
}

fn records(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap().flatten();
    let paths = files.map(|file| file.path());
    let is_record = |path: &PathBuf| path.extension().is_some_and(|end| end == "tllmprof");
    paths.filter(is_record).collect()
}

/// Returns the causes and notes that the report has found. The finding `preempted`, which a busy machine causes, is
/// left out unless `finds` names it.
fn found<'a>(report: &'a Value, finds: &str) -> Vec<&'a Value> {
    let findings = report["findings"].as_array().unwrap().iter();
    let is_found = |finding: &&Value| {
        let rule = finding["rule"].as_str().unwrap();
        let counts = finding["kind"] == "cause" || finding["kind"] == "note";
        finding["verdict"] == "yes" && counts && (rule == finds || rule != BUSY)
    };
    findings.filter(is_found).collect()
}

/// Runs a program of the table `causes.txt` and asserts that the report has the finding that the table names, and no
/// other one but [`BUSY`]. A run with another result is repeated. If all are wrong, the test fails, or is skipped on a
/// busy machine.
fn suffers(program: &str) {
    let row = table()
        .into_iter()
        .find(|row| row.program.join(" ") == program)
        .unwrap_or_else(|| panic!("the table has no {program}"));
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for turn in 1..=MAX_RUNS {
        let Some(ran) = ran(&row) else {
            return;
        };
        let Err(wrong) = judge(&row, &ran) else {
            return;
        };
        let may_be_by_chance = turn < MAX_QUIET_RUNS || is_busy();
        assert!(may_be_by_chance, "{wrong}\n{}", ran.summary);
        println!("{turn}: {wrong}");
    }
    // The machine is busy, so the report's findings are also about the load of other programs.
    skipped("the machine is too busy to judge a program by its times");
}

/// Returns true if more threads want to run than there are processors.
fn is_busy() -> bool {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    let load: f64 = load.split(' ').next().unwrap().parse().unwrap();
    load > std::thread::available_parallelism().unwrap().get() as f64
}

/// Checks a run's report and the scripted reader's answer. Returns an error that describes the first wrong finding.
fn judge(row: &Row, ran: &Ran) -> Result<(), String> {
    judge_reader(row, &ran.read)?;
    let found = found(&ran.report, &row.finds);
    let rules: Vec<_> = found
        .iter()
        .map(|one| one["rule"].as_str().unwrap())
        .collect();
    if row.finds == "-" {
        return wanted(rules.is_empty(), format!("{rules:?}"));
    }
    wanted(rules == [&row.finds], format!("{rules:?}"))?;
    let evidence = found[0]["evidence"].as_str().unwrap();
    wanted(evidence.contains(&row.says), evidence)?;
    wanted(found[0]["advice"] != "", "no advice")?;
    let stands_out = ran.summary.split("what stands out").nth(1);
    let is_said = stands_out.is_some_and(|said| said.contains(&row.finds));
    wanted(is_said, "not in the summary")?;
    // Each finding of a cause has a loss: the share of the iterations' time that a fix would save. Each loss is above
    // 0, and together they are at most 1.
    let losses = found.iter().filter(|one| one["kind"] == "cause");
    let losses: Option<Vec<_>> = losses.map(|one| one["loss"].as_f64()).collect();
    let losses = losses.ok_or("what is lost is not known")?;
    let is_right = losses.iter().all(|loss| *loss > 0.0) && losses.iter().sum::<f64>() <= 1.0;
    wanted(is_right, format!("{losses:?}"))
}

/// Checks the cause that the scripted reader named. Returns an error if it is wrong.
fn judge_reader(row: &Row, read: &Value) -> Result<(), String> {
    let cause = match &*row.finds {
        "-" => "",
        finds => finds,
    };
    // On a busy machine, the first finding, which the reader names, may be that the program is often preempted.
    let is_named = read["cause"] == BUSY
        || read["cause"] == cause && read["where"].as_str().unwrap().contains(&row.says);
    wanted(is_named, format!("the reader says {read}"))?;
    let is_short = read["calls"].as_u64() <= Some(MAX_CALLS)
        && read["characters"].as_u64() <= Some(MAX_CHARACTERS);
    wanted(is_short, format!("the reader needs {read}"))
}

fn wanted(is: bool, found: impl Into<String>) -> Result<(), String> {
    is.then_some(()).ok_or_else(|| found.into())
}

macro_rules! programs {
    ($($test:ident: $program:literal,)*) => {
        $(#[test]
        fn $test() {
            suffers($program);
        })*

        #[test]
        fn the_whole_table_is_tested() {
            let known: Vec<_> = table().iter().map(|row| row.program.join(" ")).collect();
            assert_eq!(known, [$($program),*]);
        }
    };
}

programs! {
    a_healthy_one: "healthy.c",
    a_healthy_graph: "healthy_graph.c",
    a_healthy_python: "healthy.py",
    small_kernels: "small_kernels.c",
    host_waits: "host_waits.c",
    blocking_reads: "blocking_reads.c",
    allocations: "allocations.c",
    small_copies: "small_copies.c",
    a_pageable_copy: "pageable_copy.c",
    a_graph_captured_anew: "graph_recapture.c",
    code_that_is_loaded: "module_loads.c",
    host_code: "host_code.c",
    a_sampler: "cpu_sampler.py 80",
    a_native_sleep: "native_sleep.c",
    a_native_sleep_in_its_function: "native_sleep.c 80",
    a_python_sleep: "python_sleep.py 80",
    a_lock: "lock.c",
    a_lock_in_its_function: "lock.c 80",
    a_condition_variable: "batch_wait.c 80",
    a_queue: "queue_wait.py 80",
    a_busy_thread: "input_thread.py 80",
    a_busy_child: "input_process.py 80",
    a_busy_child_at_a_pipe: "input_pipe.c 80",
    a_service_that_each_step_asks: "service_calls.c 80",
    a_command_in_each_step: "child_process.c 80",
    a_server_without_a_fault: "socket_server.py 80",
    a_slow_writer: "disk_writes.c",
    page_faults: "page_faults.c",
    a_busy_neighbour: "busy_neighbour.c",
    garbage_collections: "gc_pauses.py",
    the_gil: "gil_contention.py",
    one_slow_rank: "slow_rank.c",
    a_slow_peer: "slow_rank.c 2",
    a_large_batch: "large_batch.py",
    no_requests: "no_requests.py",
    no_gpu_work: "no_gpu_work.c",
}
