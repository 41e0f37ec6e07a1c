//! Compares tllmprof's figures for traces of other projects with the figures that these projects publish, or that
//! follow from their definitions. The traces are not part of the repository: the environment variable `TLLMPROF_TRACES`
//! contains the path of their folder. The default is `../shared/traces`, relative to the root of the repository.

mod common;
#[path = "../../../tests/common/skipped.rs"]
mod skipped;

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use common::reported;
use serde_json::Value;
use skipped::skipped;
use tllmprof_report::{Comparison, Process};

/// Maximum relative difference between tllmprof's figure and the other project's figure, as a
/// fraction.
const CLOSE: f64 = 0.005;

/// Returns the path of a trace or of a table with expected results, or `None` if it does not exist on this machine.
fn oracle(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let folder = std::env::var_os("TLLMPROF_TRACES").map_or(beside, PathBuf::from);
    let path = folder.join(name);
    if !path.exists() {
        skipped(&format!("there are no traces of other projects: {name}"));
        return None;
    }
    Some(path)
}

fn read(path: &Path) -> Process {
    let file = File::open(path).unwrap();
    let recorded = tllmprof_kineto::read(file, path, None).unwrap();
    Process::read(path.to_owned(), &recorded).unwrap()
}

fn assert_close(what: &str, ours: f64, theirs: f64) {
    let difference = (ours - theirs).abs();
    assert!(
        difference <= CLOSE * theirs.abs(),
        "{what}: {ours}, not {theirs}"
    );
}

/// Returns the time in the row `name` of TraceLens's table, in milliseconds.
fn row(table: &str, name: &str) -> f64 {
    let line = table
        .lines()
        .find(|line| line.split(',').next() == Some(name))
        .unwrap();
    line.split(',').nth(1).unwrap().parse().unwrap()
}

/// Compares tllmprof's times for a trace with those in TraceLens's table. In these traces, no copy overlaps other
/// work, so the table's row for copies contains the total time of all copies.
fn as_tracelens(trace: &str, kernels: u64) {
    let (Some(path), Some(table)) = (
        oracle(trace),
        oracle(
            Path::new(trace)
                .with_file_name("gpu_timeline.csv")
                .to_str()
                .unwrap(),
        ),
    ) else {
        return;
    };
    let table = std::fs::read_to_string(table).unwrap();
    let report = reported(vec![read(&path)]);
    let process = &report["processes"][0];
    let gpus = process["gpus"].as_array().unwrap();
    let gpu = gpus.iter().find(|gpu| !gpu["busy_ns"].is_null()).unwrap();
    let ms = |value: &Value| value.as_f64().unwrap() / 1e6;
    assert_close(
        "kernels",
        ms(&gpu["kernel_ns"]),
        row(&table, "computation_time"),
    );
    assert_close("busy", ms(&gpu["busy_ns"]), row(&table, "busy_time"));
    assert_close(
        "idle",
        ms(&process["kernel_window"]["gaps_ns"]),
        row(&table, "idle_time"),
    );
    let copies = process["copies"].as_array().unwrap().iter();
    let copies = copies.map(|copy| ms(&copy["total_ns"])).sum::<f64>();
    assert_close("copies", copies, row(&table, "total_memcpy_time"));
    assert_eq!(process["kernel_window"]["kernels"], kernels);
    let batch = &report["processes"][0]["phases"][0];
    assert_eq!(
        (&batch["phase"], &batch["iterations"]),
        (&Value::from("decode"), &Value::from(1))
    );
}

#[test]
fn sglang_decode_as_tracelens() {
    as_tracelens("tracelens/sglang_decode/trace.json.gz", 555);
}

#[test]
fn vllm_decode_as_tracelens() {
    as_tracelens("tracelens/vllm_decode_full/graph_execution.json.gz", 425);
}

#[test]
fn torch_compile_trace() {
    let Some(path) = oracle("tracelens/torch_compile_triton.json.gz") else {
        return;
    };
    let process = read(&path);
    assert_eq!(
        process.kernels.window.as_ref().map(|sum| sum.kernels),
        Some(12)
    );
}

/// Returns the JSON of a compressed trace.
fn json(path: &Path) -> Value {
    let mut text = String::new();
    let file = BufReader::new(File::open(path).unwrap());
    flate2::bufread::MultiGzDecoder::new(file)
        .read_to_string(&mut text)
        .unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Returns the time in which at least one of the events runs, in microseconds. Holistic Trace Analysis (HTA) defines
/// busy time and communication time in this way.
fn union<'a>(events: impl Iterator<Item = &'a Value>) -> f64 {
    let mut spans: Vec<_> = events
        .map(|event| {
            (
                event["ts"].as_f64().unwrap(),
                event["dur"].as_f64().unwrap(),
            )
        })
        .collect();
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sum, mut until) = (0.0, f64::MIN);
    for (start, duration) in spans {
        let end = start + duration;
        sum += (end - start.max(until)).max(0.0);
        until = until.max(end);
    }
    sum
}

/// Compares tllmprof's busy, idle and communication times with those that this test computes from the trace by the
/// definitions of Holistic Trace Analysis (HTA). Like HTA, the test uses all GPU work of a trace, not only the work
/// within iterations.
#[test]
fn busy_idle_and_communication_times_as_hta() {
    for name in [
        "critical_path_alexnet_benchmark_result_2869224_1695835535_trace",
        "nccl_parser_config_nccl_data",
        "ns_resolution_trace_rank-0.trace",
        "timeline_analysis_sampled_rank-0",
        "trace_compare_base_base",
        "trace_compare_test_test",
    ] {
        let Some(path) = oracle(&format!("hta/{name}.json.gz")) else {
            continue;
        };
        let document = json(&path);
        let is_work = |event: &&Value| {
            let category = event["cat"].as_str().unwrap_or("");
            ["kernel", "gpu_memcpy", "gpu_memset"].contains(&category)
        };
        let is_communication = |event: &&Value| event["name"].as_str().unwrap().contains("nccl");
        let works = || {
            document["traceEvents"]
                .as_array()
                .unwrap()
                .iter()
                .filter(is_work)
        };
        let start = works()
            .map(|work| work["ts"].as_f64().unwrap())
            .fold(f64::MAX, f64::min);
        let ends = works().map(|work| work["ts"].as_f64().unwrap() + work["dur"].as_f64().unwrap());
        let length = ends.fold(f64::MIN, f64::max) - start;
        let busy = union(works());
        let report = reported(vec![read(&path)]);
        let process = &report["processes"][0];
        let us = |value: &Value| value.as_f64().unwrap() / 1e3;
        let gpus = process["gpus"].as_array().unwrap();
        let gpu = gpus.iter().find(|gpu| !gpu["busy_ns"].is_null()).unwrap();
        assert_close(name, us(&gpu["busy_ns"]), busy);
        let kernels = process["kernels"].as_array().unwrap().iter();
        let communication = kernels
            .filter(is_communication)
            .map(|kernel| us(&kernel["total_ns"]));
        assert_close(
            name,
            communication.sum(),
            union(works().filter(is_communication)),
        );
        // tllmprof's gaps lie within iterations, so they leave out the idle time between two
        // iterations and cannot exceed the total idle time.
        let gaps = us(&process["kernel_window"]["gaps_ns"]);
        assert!(gaps <= (length - busy) * (1.0 + CLOSE), "{name}: {gaps}");
    }
}

#[test]
fn traces_of_hta_without_gpu_work() {
    for name in [
        "rank_non_gpu_rank_non_gpu",
        "cupti_profiler_benchmark_result_924719_1679055439_trace",
    ] {
        let Some(path) = oracle(&format!("hta/{name}.json.gz")) else {
            continue;
        };
        let process = read(&path);
        assert!(
            process.sum.is_some() && process.kernels.window.is_none(),
            "{name}"
        );
        assert!(
            process
                .facts
                .asked
                .refused
                .contains(&"the trace has no GPU work".to_owned())
        );
    }
}

#[test]
fn the_pair_of_hta_is_compared() {
    let names = ["trace_compare_base_base", "trace_compare_test_test"];
    let paths = names.map(|name| oracle(&format!("hta/{name}.json.gz")));
    let [Some(base), Some(other)] = paths else {
        return;
    };
    let comparison = Comparison::compare(&[read(&base)], &[read(&other)]);
    let mut text = Vec::new();
    comparison.json(&mut text).unwrap();
    let compared: Value = serde_json::from_slice(&text).unwrap();
    assert!(
        compared
            .to_string()
            .contains("vectorized_elementwise_kernel"),
        "{compared}"
    );
}
