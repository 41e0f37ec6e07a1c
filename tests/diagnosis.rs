//! Programs that are slow for one reason each (`examples/slow`): the first finding names it, no other cause is named,
//! and of a healthy one none.
//!
//! On the stand-in, or with `TLLMPROF_TEST_GPU=1` on the GPU. Nothing is said of times: a busy machine makes everything
//! slower, and nothing else than it is.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::python::pythons;
use common::{Scratch, command, compiler, repo, run, shim, skipped, standin};
use serde_json::Value;

/// Longer than any of them needs on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a launch takes, as on real hardware.
const LAUNCH_NS: &str = "2000";

/// A program under `tllmprof run`, and what was found.
struct Slow {
    scratch: Scratch,
    /// How to start it.
    program: Vec<PathBuf>,
    /// What a piece of work takes the stand-in at least; it takes three times that on average.
    work_ns: u64,
    step: &'static str,
    options: &'static [&'static str],
    records: usize,
}

impl Slow {
    /// A program in C.
    fn c(name: &str, step: &'static str, work_ns: u64) -> Self {
        let scratch = Scratch::new(name);
        let built = scratch.path(name);
        let mut cc = compiler();
        cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&built)
            .arg(source(&format!("{name}.c")))
            .arg("-ldl");
        let output = run(&mut cc, PATIENCE);
        assert!(output.status.success(), "{cc:?}\n{}", output.err());
        Self::new(scratch, vec![built], step, work_ns)
    }

    /// A program in Python, in which everything that can be recorded is; `None` where there is no Python with a GIL.
    fn python(name: &str, work_ns: u64) -> Option<Self> {
        let python = pythons().iter().find(|python| python.has_gil);
        if python.is_none() && !pythons().is_empty() {
            skipped("no CPython with a GIL");
        }
        let program = vec![python?.path.clone(), source(&format!("{name}.py"))];
        let mut slow = Self::new(Scratch::new(name), program, "cuStreamSynchronize", work_ns);
        slow.options = &["--gc", "--gil"];
        Some(slow)
    }

    fn new(scratch: Scratch, program: Vec<PathBuf>, step: &'static str, work_ns: u64) -> Self {
        Self {
            scratch,
            program,
            work_ns,
            step,
            options: &[],
            records: 1,
        }
    }

    fn tllmprof(&self) -> Command {
        let mut tllmprof = command(common::tllmprof());
        tllmprof
            .env("TLLMPROF_LIB", shim())
            .current_dir(self.scratch.folder());
        tllmprof
    }

    /// Runs it; what all rules say of its records, and the summary that the run ends with.
    fn findings(&self) -> (Vec<Value>, String) {
        let (report, summary) = self.report();
        (report["findings"].as_array().unwrap().clone(), summary)
    }

    /// Runs it; its report, and the summary that the run ends with.
    fn report(&self) -> (Value, String) {
        let mut run_it = self.tllmprof();
        run_it.args([
            "run",
            "--window",
            "5-24",
            "--step",
            self.step,
            "--trace",
            "%p.tllmprof",
        ]);
        run_it.args(self.options).arg("--").args(&self.program);
        run_it.env("PYTHONDONTWRITEBYTECODE", "1");
        if std::env::var_os("TLLMPROF_TEST_GPU").is_none() {
            run_it
                .env("LD_LIBRARY_PATH", standin())
                .env("STANDIN_DEVICES", "3")
                .env("STANDIN_WORK_NS", self.work_ns.to_string())
                .env("STANDIN_CALL_NS", LAUNCH_NS);
        }
        let ran = run(&mut run_it, PATIENCE);
        assert!(ran.status.success(), "{}", ran.err());
        let records = records(self.scratch.folder());
        assert_eq!(records.len(), self.records, "{}", ran.err());
        let mut report = self.tllmprof();
        report.args(["report", "--json"]).args(&records);
        let report = run(&mut report, PATIENCE);
        assert!(report.status.success(), "{}", report.err());
        let report: Value = serde_json::from_slice(&report.stdout).unwrap();
        for process in report["processes"].as_array().unwrap() {
            assert_eq!(process["inside"]["iterations"], 20, "{}", ran.err());
        }
        (report, ran.err())
    }

    /// The first finding is this cause, and there is no other.
    #[track_caller]
    fn suffers_from(&self, cause: &str) {
        let (findings, summary) = self.findings();
        assert_eq!(findings[0]["rule"], cause, "{summary}");
        assert_eq!(causes(&findings), [cause], "{summary}");
        let (evidence, advice) = (&findings[0]["evidence"], &findings[0]["advice"]);
        assert_ne!((evidence, advice), (&Value::from(""), &Value::from("")));
        assert!(
            summary.contains(&format!("what stands out\n  {cause} (")),
            "{summary}"
        );
    }
}

fn source(name: &str) -> PathBuf {
    repo().join("examples/slow").join(name)
}

fn records(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap().flatten();
    let paths = files.map(|file| file.path());
    let is_record = |path: &PathBuf| path.extension().is_some_and(|end| end == "tllmprof");
    paths.filter(is_record).collect()
}

/// The causes that are said to be there.
fn causes(findings: &[Value]) -> Vec<&str> {
    let yes = findings
        .iter()
        .filter(|finding| finding["verdict"] == "yes" && finding["kind"] == "cause");
    yes.map(|finding| finding["rule"].as_str().unwrap())
        .collect()
}

#[test]
fn a_healthy_one_suffers_from_nothing() {
    let healthy = Slow::c("healthy", "cuStreamSynchronize", 2_000_000);
    let (findings, summary) = healthy.findings();
    let yes = findings.iter().find(|finding| finding["verdict"] == "yes");
    assert_eq!(yes, None, "{summary}");
    // It is known that the GPU is at work.
    let mut low = findings
        .iter()
        .filter(|finding| finding["rule"] == "low-gpu-utilisation");
    assert_eq!(low.next().unwrap()["verdict"], "no", "{summary}");
    assert!(summary.contains("\nnothing stands out\n"), "{summary}");
}

#[test]
fn small_kernels() {
    Slow::c("small_kernels", "cuStreamSynchronize", 0).suffers_from("launch-bound");
}

#[test]
fn host_waits() {
    Slow::c("host_waits", "cuStreamSynchronize/6", 300_000).suffers_from("host-waits");
}

#[test]
fn one_slow_rank() {
    let mut ranks = Slow::c("slow_rank", "cuStreamSynchronize", 3_000_000);
    ranks.records = 3;
    ranks.suffers_from("slow-rank");
}

#[test]
fn garbage_collections() {
    if let Some(python) = Slow::python("gc_pauses", 3_000_000) {
        python.suffers_from("gc");
    }
}

#[test]
fn the_gil() {
    if let Some(python) = Slow::python("gil_contention", 1_500_000) {
        python.suffers_from("gil");
    }
}

/// What an allocation takes is the driver's business: on the stand-in nothing. But each is seen.
#[test]
fn allocations() {
    let allocations = Slow::c("allocations", "cuStreamSynchronize", 300_000);
    if std::env::var_os("TLLMPROF_TEST_GPU").is_some() {
        allocations.suffers_from("allocations");
        return;
    }
    let (report, summary) = allocations.report();
    let calls = report["processes"][0]["calls"].as_array().unwrap();
    for name in ["cuMemAlloc_v2", "cuMemFree_v2"] {
        let call = calls.iter().find(|call| call["name"] == name);
        assert_eq!(call.unwrap()["count"], 20, "{summary}");
    }
    let mut findings = report["findings"].as_array().unwrap().iter();
    let found = findings.find(|finding| finding["rule"] == "allocations");
    assert_ne!(found.unwrap()["verdict"], "unknown", "{summary}");
}
