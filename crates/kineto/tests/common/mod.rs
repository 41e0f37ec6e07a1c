//! Generates a small trace in the form that the PyTorch profiler writes for a loop of two steps.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::Path;

use serde_json::{Value, json};
use tllmprof_kineto::TraceError;
use tllmprof_report::{Process, Report};

/// The process id in the traces.
pub(crate) const PID: u64 = 4242;

/// Returns an event with a start and a duration in microseconds.
pub(crate) fn event(
    category: &str,
    name: &str,
    thread: u64,
    (start, duration): (f64, f64),
    args: Value,
) -> Value {
    json!({
        "ph": "X", "cat": category, "name": name, "pid": PID, "tid": thread, "ts": start, "dur": duration,
        "args": args
    })
}

/// Returns an event of GPU work, with its start and duration in microseconds.
pub(crate) fn work(
    category: &str,
    name: &str,
    device: u64,
    (start, duration): (f64, f64),
    correlation: u64,
) -> Value {
    json!({
        "ph": "X", "cat": category, "name": name, "pid": device, "tid": 7, "ts": start, "dur": duration,
        "args": {"device": device, "stream": 7, "correlation": correlation, "bytes": 4096}
    })
}

/// Returns the events of a step that begins at `start` (µs). The next step may begin 100 µs later. Two modules launch
/// one kernel each; then the result is copied, and the host waits. The copy ends 5 µs after the range of the step has
/// ended.
pub(crate) fn step(number: u64, start: f64) -> Vec<Value> {
    let own = 10 * number;
    let at = |offset: f64, duration: f64| (start + offset, duration);
    let call = |name: &str, offset: f64, correlation: u64| {
        event(
            "cuda_runtime",
            name,
            1,
            at(offset, 4.0),
            json!({"correlation": correlation}),
        )
    };
    vec![
        event(
            "user_annotation",
            &format!("ProfilerStep#{number}"),
            1,
            at(0.0, 90.0),
            json!({}),
        ),
        event(
            "python_function",
            "nn.Module: Model_0",
            1,
            at(1.0, 60.0),
            json!({}),
        ),
        event(
            "python_function",
            "nn.Module: Linear_0",
            1,
            at(2.0, 20.0),
            json!({}),
        ),
        event("cpu_op", "aten::mm", 1, at(3.0, 12.0), json!({})),
        call("cudaLaunchKernel", 5.0, own + 1),
        event(
            "python_function",
            "nn.Module: Linear_1",
            1,
            at(30.0, 20.0),
            json!({}),
        ),
        call("cudaLaunchKernel", 35.0, own + 2),
        call("cudaMemcpyAsync", 65.0, own + 3),
        call("cudaStreamSynchronize", 70.0, 0),
        work("kernel", "first_kernel", 0, at(10.0, 20.0), own + 1),
        work("kernel", "second_kernel", 0, at(40.0, 30.5), own + 2),
        work(
            "gpu_memcpy",
            "Memcpy DtoH (Device -> Pinned)",
            0,
            at(70.0, 25.0),
            own + 3,
        ),
    ]
}

/// Returns a JSON document with the given events, in the form that the profiler writes.
pub(crate) fn document(events: Vec<Value>) -> Value {
    json!({
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {
            "backend": "nccl", "rank": 1, "world_size": 2,
            "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}]
        },
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1_700_000_000_000_000_000_u64,
        "traceEvents": events
    })
}

/// Returns a trace of two steps: step 5 begins at 1000 µs, and step 6 at 1100 µs.
pub(crate) fn two_steps() -> Value {
    document([step(5, 1000.0), step(6, 1100.0)].concat())
}

/// Reads a trace in the same way as `tllmprof report`.
pub(crate) fn read(text: &[u8]) -> Result<Process, TraceError> {
    let path = Path::new("trace.json");
    let recorded = tllmprof_kineto::read(text, path, None)?;
    Ok(Process::read(path.to_owned(), &recorded)?)
}

pub(crate) fn read_json(document: &Value) -> Process {
    read(document.to_string().as_bytes()).unwrap()
}

/// Returns the report on the processes as JSON.
pub(crate) fn reported(processes: Vec<Process>) -> Value {
    let mut text = Vec::new();
    Report::new(processes).json(&mut text).unwrap();
    serde_json::from_slice(&text).unwrap()
}
