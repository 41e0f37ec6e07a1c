//! Checks findings about the state of the GPU, such as other processes on it. A stand-in for NVML and a folder in place
//! of `/sys` report the state.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::{Scratch, compiler, repo, run, standin};
use crate::{TEST_TIMEOUT, tllmprof};

/// The source of a program that makes steps until the record has 16 samples of the GPU's state. Without the stand-in
/// for NVML there are no samples, and the program makes 42 steps. If the program gets a file as its argument, it adds
/// itself to the processes in this file, which the stand-in for NVML reads. The variable `PIN` holds two processors and a
/// number of steps, after which the program moves from one of the processors to the other.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include "gpu.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void pin(int step)
{
    const char *pins = getenv("PIN");
    int processors[2], steps;
    cpu_set_t set;
    if (!pins || sscanf(pins, "%d %d %d", &processors[0], &processors[1], &steps) != 3 || step % steps)
        return;
    CPU_ZERO(&set);
    CPU_SET(processors[step / steps % 2], &set);
    if (sched_setaffinity(0, sizeof set, &set)) abort();
}

int main(int count, char **words)
{
    char host[256], path[512];
    struct stat status;
    gethostname(host, sizeof host);
    snprintf(path, sizeof path, "tllmprof-gpu-state/tllmprof-%s-gpu-%d.tllmprof", host, (int)getppid());
    if (count > 1) {
        FILE *state = fopen(words[1], "a");
        fprintf(state, "process %d 50\n", (int)getpid());
        fclose(state);
    }
    gpu_start(0);
    for (int step = 0; step < 20000; step++) {
        pin(step);
        gpu_launch(10000);
        gpu_wait();
        usleep(2000);
        int is_sampled = getenv("STANDIN_NVML_STATE") != NULL;
        if (is_sampled ? !stat(path, &status) && status.st_size > 65744 + 16 * 8 * 24 : step > 40) break;
    }
}
"#;

const RULES: [&str; 5] = [
    "throttled",
    "power-limited",
    "low-clocks",
    "shared-gpu",
    "far-from-gpu",
];

fn compile(output: &Path, source: &Path, options: &[&str]) {
    let mut cc = compiler();
    cc.args(["-O2", "-o"]).arg(output).arg(source).args(options);
    let output = run(&mut cc, TEST_TIMEOUT);
    assert!(output.status.success(), "{cc:?}\n{}", output.err());
}

/// Makes a folder with the files of `/sys`. `nodes` are the NUMA nodes of the machine, each with its processors and its
/// distances. The GPU is on `gpu_node`.
fn sysfs(scratch: &Scratch, nodes: &[(&str, &str)], gpu_node: &str) -> PathBuf {
    let root = scratch.path("sys");
    let write = |path: String, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    for (node, (processors, distances)) in nodes.iter().enumerate() {
        let folder = format!("devices/system/node/node{node}");
        write(format!("{folder}/cpulist"), &format!("{processors}\n"));
        write(format!("{folder}/distance"), &format!("{distances}\n"));
    }
    write(
        "bus/pci/devices/0000:1a:00.0/numa_node".to_owned(),
        gpu_node,
    );
    root
}

/// Two NUMA nodes. All processors are on the first one.
const TWO_NODES: [(&str, &str); 2] = [("0-4095", "10 32"), ("", "32 10")];

/// Prepares a run of the program. `state` is the GPU's state as the stand-in for NVML reports it, or `None` for a
/// machine without NVML.
fn prepare(scratch: &Scratch, state: Option<&str>, gpu_node: &str) -> Command {
    let source = scratch.path("program.c");
    fs::write(&source, PROGRAM).unwrap();
    let include = format!("-I{}", repo().join("examples/slow").display());
    compile(
        &scratch.path("program"),
        &source,
        &[&include, "-std=gnu11", "-ldl"],
    );
    let mut command = tllmprof(scratch);
    command
        .args([
            "run",
            "--run",
            "gpu-state",
            "--window",
            "2-",
            "--step",
            "cuStreamSynchronize",
            "--no-summary",
            "--",
        ])
        .arg(scratch.path("program"))
        .env("TLLMPROF_CONTROL", "0")
        .env("TLLMPROF_SYSFS", sysfs(scratch, &TWO_NODES, gpu_node))
        .env("CUDA_VISIBLE_DEVICES", "0");
    let nvml = scratch.path("libnvidia-ml.so.1");
    let both = format!("{}:{}", standin().display(), scratch.folder().display());
    command.env("LD_LIBRARY_PATH", both);
    let Some(state) = state else {
        // This file takes NVML's place but is no library. The loader refuses it and does not look for the machine's own
        // NVML.
        fs::write(nvml, "no library").unwrap();
        return command;
    };
    compile(
        &nvml,
        &repo().join("tests/standin/nvml.c"),
        &["-shared", "-fPIC"],
    );
    let file = scratch.path("state");
    fs::write(&file, state).unwrap();
    if !state.contains("process 4194901") {
        command.arg(&file);
    }
    command.env("STANDIN_NVML_STATE", file);
    command
}

/// Runs the program and returns the report.
fn report(scratch: &Scratch, command: &mut Command) -> Value {
    let ended = run(command, TEST_TIMEOUT);
    assert!(ended.status.success(), "{}", ended.err());
    let mut report = tllmprof(scratch);
    let report = run(
        report.args(["report", "--json", "tllmprof-gpu-state"]),
        TEST_TIMEOUT,
    );
    assert!(report.status.success(), "{}", report.err());
    serde_json::from_slice(&report.stdout).unwrap()
}

/// Returns the verdict and the evidence of a rule.
fn finding<'a>(report: &'a Value, rule: &str) -> (&'a str, &'a str) {
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|one| one["rule"] == rule).unwrap();
    (
        found["verdict"].as_str().unwrap(),
        found["evidence"].as_str().unwrap(),
    )
}

#[test]
fn a_throttled_shared_and_far_gpu_is_named() {
    let scratch = Scratch::new("throttled");
    let own = std::process::id();
    let state = format!("clock 1200\nreasons 4\nlimit 400\nprocess {own} 30\n");
    let report = report(&scratch, &mut prepare(&scratch, Some(&state), "1\n"));
    for (rule, part) in [
        (
            "throttled",
            "by power (software power cap): 1200 MHz then, its maximum is 1981 MHz; its power limit is 400 W, 700 W by default"
                .to_owned(),
        ),
        ("shared-gpu", format!("process {own} (")),
        (
            "far-from-gpu",
            "than GPU 0 (node 1), mostly on node 0 (distance 32)".to_owned(),
        ),
    ] {
        let (verdict, evidence) = finding(&report, rule);
        assert_eq!(verdict, "yes", "{rule}: {evidence}");
        assert!(evidence.contains(&part), "{rule}: {evidence}");
    }
    assert_eq!(finding(&report, "low-clocks").0, "no");
    let state = &report["processes"][0]["gpu_state"][0];
    assert!(state["joules_per_step"].as_f64().unwrap() > 0.0, "{state}");
}

/// Runs the program and asserts that the rule says yes, with `part` in its evidence.
#[track_caller]
fn is_named(scratch: &Scratch, command: &mut Command, rule: &str, part: &str) {
    let report = report(scratch, command);
    let (verdict, evidence) = finding(&report, rule);
    assert_eq!(verdict, "yes", "{rule}: {evidence}");
    assert!(evidence.contains(part), "{evidence}");
}

#[test]
fn each_reason_for_a_lowered_clock_is_named() {
    for (state, reason) in [
        ("clock 900\nreasons 8\n", "hardware slowdown: 900 MHz then"),
        (
            "clock 1500\nreasons 32\n",
            "heat (software thermal slowdown): 1500 MHz then",
        ),
        (
            "clock 1100\nreasons 64\n",
            "heat (hardware thermal slowdown): 1100 MHz then",
        ),
        (
            "clock 700\nreasons 128\n",
            "power (hardware power brake): 700 MHz then",
        ),
    ] {
        let scratch = Scratch::new("lowered-clock");
        let mut command = prepare(&scratch, Some(state), "0\n");
        let part = format!("100 % of the time by {reason}");
        is_named(&scratch, &mut command, "throttled", &part);
    }
}

#[test]
fn a_thread_on_other_nodes_than_its_gpu_is_named() {
    let allowed = fs::read_to_string("/proc/self/status").unwrap();
    let allowed = allowed
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let ends: Vec<_> = allowed.unwrap().trim().split(['-', ',']).collect();
    let (first, last) = (ends[0], ends[ends.len() - 1]);
    if first == last {
        eprintln!("skipped: a thread moves only between two processors");
        return;
    }
    let (here, there) = ((first, "10 21 31"), (last, "21 10 31"));
    for (nodes, gpu_node, pins, part) in [
        // The GPU's node has processors, and the thread is pinned to one of another node.
        (
            vec![here, there],
            "0\n",
            format!("{last} {last} 1000"),
            "100 % of the time on another NUMA node than GPU 0 (node 0), mostly on node 1 (distance 21)",
        ),
        // The GPU's node has only memory.
        (
            vec![here, there, ("", "31 31 10")],
            "2\n",
            format!("{first} {first} 1000"),
            "100 % of the time on another NUMA node than GPU 0 (node 2), mostly on node 0 (distance 31)",
        ),
        // The thread moves from node to node.
        (
            vec![here, there],
            "1\n",
            format!("{first} {last} 100"),
            "than GPU 0 (node 1), mostly on node",
        ),
    ] {
        let scratch = Scratch::new("far");
        let mut command = prepare(&scratch, Some("clock 1981\n"), gpu_node);
        command
            .env("TLLMPROF_SYSFS", sysfs(&scratch, &nodes, gpu_node))
            .env("PIN", pins);
        is_named(&scratch, &mut command, "far-from-gpu", part);
    }
}

#[test]
fn a_gpu_at_its_own_power_limit_has_a_note() {
    let scratch = Scratch::new("power-limited");
    let mut command = prepare(&scratch, Some("clock 1200\nreasons 4\n"), "0\n");
    let report = report(&scratch, &mut command);
    assert_eq!(finding(&report, "throttled").0, "no");
    let (verdict, evidence) = finding(&report, "power-limited");
    assert_eq!(verdict, "yes", "{evidence}");
    let part = "power limit (700 W) 100 % of the time: the SM clock is 1200 MHz then";
    assert!(evidence.contains(part), "{evidence}");
}

#[test]
fn a_power_limit_that_may_be_lowered_is_a_cause() {
    let scratch = Scratch::new("unknown-power-limit");
    let mut command = prepare(&scratch, Some("clock 1200\nreasons 4\n"), "0\n");
    let report = report(&scratch, command.env("STANDIN_NVML", "no-limits"));
    let (verdict, evidence) = finding(&report, "throttled");
    assert_eq!(verdict, "yes", "{evidence}");
    for part in [
        "100 % of the time by power (software power cap): 1200 MHz then",
        "it is not known if its power limit is the board's default",
    ] {
        assert!(evidence.contains(part), "{evidence}");
    }
    let (verdict, evidence) = finding(&report, "power-limited");
    assert_eq!(verdict, "no", "{evidence}");
    assert!(
        evidence.contains("it is not known if the power limit is the board's default"),
        "{evidence}"
    );
}

#[test]
fn a_healthy_gpu_is_not_named() {
    let scratch = Scratch::new("healthy");
    let report = report(
        &scratch,
        &mut prepare(&scratch, Some("clock 1981\n"), "0\n"),
    );
    for rule in RULES {
        let (verdict, evidence) = finding(&report, rule);
        assert_eq!(verdict, "no", "{rule}: {evidence}");
    }
}

#[test]
fn in_a_container_the_other_processes_are_not_known() {
    let scratch = Scratch::new("container");
    // These process numbers are larger than any that the kernel assigns, so no process of this machine has them.
    let state = "process 4194901 60\nprocess 4194902 40\n";
    let report = report(&scratch, &mut prepare(&scratch, Some(state), "0\n"));
    let (verdict, evidence) = finding(&report, "shared-gpu");
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap();
    let (expected, part) = match namespace.to_str() {
        Some("pid:[4026531836]") => ("yes", "process 4194901"),
        _ => (
            "unknown",
            "or lists them by numbers of the host, as in a container",
        ),
    };
    assert_eq!(verdict, expected, "{evidence}");
    assert!(evidence.contains(part), "{evidence}");
}

#[test]
fn without_nvml_or_samples_nothing_is_known() {
    for (variable, value) in [("TLLMPROF_GPU_STATE", "1"), ("TLLMPROF_GPU_STATE", "0")] {
        let scratch = Scratch::new("no-nvml");
        let report = report(
            &scratch,
            prepare(&scratch, None, "1\n").env(variable, value),
        );
        for rule in RULES {
            let (verdict, evidence) = finding(&report, rule);
            assert_eq!(
                (verdict, evidence),
                ("unknown", "the state of the GPUs was not sampled"),
                "{rule}"
            );
        }
        assert_eq!(crate::records(&scratch.path("tllmprof-gpu-state")).len(), 1);
    }
    let scratch = Scratch::new("bad");
    let ended = run(
        prepare(&scratch, None, "1\n").env("TLLMPROF_GPU_STATE", "maybe"),
        TEST_TIMEOUT,
    );
    assert_eq!(ended.status.code(), Some(2), "{}", ended.err());
    assert!(
        ended
            .err()
            .starts_with("tllmprof: TLLMPROF_GPU_STATE=\"maybe\": "),
        "{}",
        ended.err()
    );
}
