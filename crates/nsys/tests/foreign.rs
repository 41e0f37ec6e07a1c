//! Reads exports of programs that ran without tllmprof.

mod common;
#[path = "../../../tests/common/skipped.rs"]
mod skipped;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use common::{Export, Schema, scratch, thread};
use rusqlite::Connection;
use serde_json::{Value, json};
use skipped::skipped;
use tllmprof_config::Step;
use tllmprof_nsys::{ExportError, open};
use tllmprof_record::{Entry, What};
use tllmprof_report::{Process, Recording, Report};

const PID: i64 = 4000;
const MAIN: i64 = thread(PID, PID);
const STEPS: i64 = 200;
const LENGTH: i64 = 1_000_000;

fn report(path: &Path, step: Option<&str>) -> Result<Value, ExportError> {
    let step = step.map(|step| Step::parse(step).unwrap());
    let recorded = open(path, Path::new("nsys"), step.as_ref())?;
    let processes = recorded
        .iter()
        .map(|one| Process::read(path.to_owned(), one).unwrap());
    let mut bytes = Vec::new();
    Report::new(processes.collect()).json(&mut bytes).unwrap();
    Ok(serde_json::from_slice(&bytes).unwrap())
}

/// Writes an export with `steps` iterations for each process. The process at index n of `pids` uses GPU n. If `range`
/// is not empty, each iteration has an NVTX range of that name. Both the processes and the rows of each process are
/// written in reverse order, which the reader must handle.
fn serve(path: &Path, pids: &[i64], steps: i64, range: &str) {
    let mut export = Export::new(path, Schema::Full);
    export.domain(MAIN, 3, "engine");
    let [launch, copy, wait] = [
        "cudaLaunchKernel_v7000",
        "cudaMemcpyAsync_v3020",
        "cudaStreamSynchronize_v3020",
    ]
    .map(|name| export.string(name));
    let kernels: Vec<_> = (0..8)
        .map(|number| export.string(&format!("kernel{number}")))
        .collect();
    for (device, pid) in pids.iter().enumerate().rev() {
        let main = thread(*pid, *pid);
        for step in (0..steps).rev() {
            let at = step * LENGTH;
            let first = step * 16 + 1;
            let sql = |table: &str, columns: &str, values: String| {
                export.sql(&format!(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_{table} ({columns}) VALUES ({values})"
                ));
            };
            let call = |number: i64, name: i64, start: i64, end: i64| {
                let columns =
                    "start, end, eventClass, globalTid, correlationId, nameId, returnValue";
                let values = format!("{start}, {end}, 0, {main}, {number}, {name}, 0");
                sql("RUNTIME", columns, values);
            };
            call(first + 9, wait, at + 90_000, at + 800_000);
            call(first + 8, copy, at + 80_000, at + 85_000);
            for (place, kernel) in kernels.iter().enumerate().rev() {
                let place = place as i64;
                call(
                    first + place,
                    launch,
                    at + place * 10_000,
                    at + place * 10_000 + 5000,
                );
                let columns = "start, end, deviceId, streamId, correlationId, globalPid, demangledName, shortName";
                let start = at + 10_000 + place * 50_000;
                let (end, process) = (start + 40_000, thread(*pid, 0));
                let number = first + place;
                let values =
                    format!("{start}, {end}, {device}, 7, {number}, {process}, {kernel}, {kernel}");
                sql("KERNEL", columns, values);
            }
            export.sql(&format!(
                "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES ({}, {}, {device}, 1, 7, {}, {}, 4096, 2)",
                at + 500_000,
                at + 510_000,
                first + 8,
                thread(*pid, 0)
            ));
            if !range.is_empty() {
                export.range(59, main, 3, range, None, [at, at + 850_000]);
            }
        }
    }
    export.finish();
}

/// Checks the figures of a process whose iterations have 8 kernels of 40 µs each.
fn check(process: &Value, iterations: u64) {
    let whole = &process["inside"];
    assert_eq!(whole["iterations"], iterations, "{}", process["rule"]);
    assert_eq!(whole["time"]["p50_ns"], LENGTH);
    let device = process["gpus"].as_array().unwrap().last().unwrap();
    assert_eq!(device["kernel_ns"], iterations * 320_000);
    assert_eq!(device["busy_ns"], iterations * 330_000);
    let calls = process["calls"].as_array().unwrap();
    let launches = calls.iter().find(|call| call["name"] == "cudaLaunchKernel");
    assert_eq!(launches.unwrap()["count"], iterations * 8);
}

#[test]
fn iterations_are_learned_where_no_range_says_them() {
    let scratch = scratch();
    let path = scratch.path().join("plain.sqlite");
    serve(&path, &[PID], STEPS, "");
    let found = report(&path, None).unwrap();
    let process = &found["processes"][0];
    assert_eq!(process["rule"], "auto");
    let why = process["rule_why"].as_str().unwrap();
    assert!(why.contains("after kernel kernel7"), "{why}");
    check(process, STEPS as u64 - 1);
    assert_eq!(process["recorded_by"]["tool"], "nsys");
    assert_eq!(process["recorded_by"]["lacks"], Value::Array(Vec::new()));
}

#[test]
fn known_ranges_and_rules_decide_before_that() {
    let scratch = scratch();
    let path = scratch.path().join("ranges.sqlite");
    serve(&path, &[PID], STEPS, "execute_context_0(0)_generation_4(4)");
    let found = report(&path, None).unwrap();
    let process = &found["processes"][0];
    assert_eq!(process["rule"], "nvtx:^execute_");
    check(process, STEPS as u64);
    assert_eq!(process["phases"][0]["phase"], "decode");
    let asked = report(&path, Some("nvtx:generation@engine")).unwrap();
    check(&asked["processes"][0], STEPS as u64);
    let waits = report(&path, Some("cudaStreamSynchronize")).unwrap();
    assert_eq!(waits["processes"][0]["inside"]["iterations"], STEPS - 1);
    let none = report(&path, Some("nvtx:absent")).unwrap_err().to_string();
    assert_eq!(
        none,
        "--step nvtx:absent: no range of the trace matches; the most frequent ranges are \
         execute_context_0(0)_generation_4(4) (200 times)"
    );
}

#[test]
fn each_process_that_used_a_gpu_is_reported() {
    let scratch = scratch();
    let path = scratch.path().join("two.sqlite");
    // Processes are sorted by GPU, not by id: the process on the first GPU has the larger id.
    serve(&path, &[PID + 1, PID], STEPS, "");
    let found = report(&path, None).unwrap();
    let processes = found["processes"].as_array().unwrap();
    let who: Vec<_> = processes
        .iter()
        .map(|process| (process["rank"].as_u64(), process["pid"].as_i64()))
        .collect();
    assert_eq!(who, [(Some(0), Some(PID + 1)), (Some(1), Some(PID))]);
    for process in processes {
        check(process, STEPS as u64 - 1);
    }
}

/// Returns the report of an export from which the given tables were removed.
fn without(tables: &[&str]) -> Value {
    let scratch = scratch();
    let path = scratch.path().join("less.sqlite");
    serve(&path, &[PID], STEPS, "ProfilerStep#1");
    let connection = Connection::open(&path).unwrap();
    for table in tables {
        connection
            .execute_batch(&format!("DROP TABLE IF EXISTS {table}"))
            .unwrap();
    }
    drop(connection);
    report(&path, None).unwrap()
}

fn verdict<'a>(found: &'a Value, rule: &str) -> &'a str {
    let findings = found["findings"].as_array().unwrap();
    let finding = findings.iter().find(|finding| finding["rule"] == rule);
    finding.unwrap()["verdict"].as_str().unwrap()
}

const CALL_RULES: [&str; 5] = [
    "launch-bound",
    "host-waits",
    "blocking-copies",
    "host-bound",
    "no-gpu-work",
];

#[test]
fn what_was_not_recorded_is_unknown() {
    let all = without(&[]);
    for rule in CALL_RULES {
        assert_ne!(verdict(&all, rule), "unknown", "{rule}");
    }
    let calls = ["CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"];
    let found = without(&calls);
    let process = &found["processes"][0];
    assert_eq!(process["recorded_by"]["lacks"][0], "calls");
    assert_eq!(process["gpus"][0]["kernel_ns"], STEPS * 320_000);
    for rule in CALL_RULES {
        assert_eq!(verdict(&found, rule), "unknown", "{rule}");
    }
    assert_eq!(process["ledger"]["host"], Value::Array(Vec::new()));
    let gpu = [
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        "CUPTI_ACTIVITY_KIND_MEMSET",
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    ];
    let found = without(&gpu);
    let process = &found["processes"][0];
    assert_eq!(process["recorded_by"]["lacks"][0], "gpu");
    assert_eq!(process["gpu_busy_share"], Value::Null);
    assert_eq!(verdict(&found, "low-gpu-utilisation"), "unknown");
    let neither = [&calls[..], &gpu].concat();
    let found = without(&neither);
    assert_eq!(found["processes"][0]["inside"]["iterations"], STEPS);
}

#[test]
fn rows_that_end_before_they_start_are_counted_once_for_their_process() {
    let scratch = scratch();
    let path = scratch.path().join("backwards.sqlite");
    serve(&path, &[PID, PID + 1], 20, "");
    let table = "CUPTI_ACTIVITY_KIND_KERNEL";
    let first = format!("(SELECT min(rowid) FROM {table})");
    let sql = format!("UPDATE {table} SET end = start - 1 WHERE rowid = {first}");
    Connection::open(&path).unwrap().execute(&sql, []).unwrap();
    let found = report(&path, None).unwrap();
    let notes = [0, 1].map(|place| found["processes"][place]["refused"].to_string());
    let is_noted =
        notes.map(|note| note.contains("1 event that ends before it begins is left out"));
    assert_eq!(
        is_noted.iter().filter(|is_noted| **is_noted).count(),
        1,
        "{found}"
    );
    for process in found["processes"].as_array().unwrap() {
        assert_eq!(process["damage"], Value::Null);
    }
}

#[test]
fn rows_that_last_too_long_are_left_out() {
    let scratch = scratch();
    let path = scratch.path().join("long.sqlite");
    serve(&path, &[PID], 20, "");
    let whole = report(&path, None).unwrap();
    let table = "CUPTI_ACTIVITY_KIND_KERNEL";
    let first = format!("(SELECT min(rowid) FROM {table})");
    let sql = format!("UPDATE {table} SET end = start + 900000000000000000 WHERE rowid = {first}");
    Connection::open(&path).unwrap().execute(&sql, []).unwrap();
    let found = report(&path, None).unwrap();
    let process = &found["processes"][0];
    let warned = process["refused"].to_string();
    assert!(
        warned.contains("1 event that lasts over a day is left out"),
        "{process}"
    );
    assert_eq!(
        process["inside"]["iterations"],
        whole["processes"][0]["inside"]["iterations"]
    );
    let [long, whole] = [&found, &whole].map(|report| &report["processes"][0]["gpus"][0]);
    let busy = |gpu: &Value| gpu["busy_ns"].as_u64().unwrap();
    assert_eq!(busy(whole) - busy(long), 40_000);
}

#[test]
fn gpus_and_streams_are_kept_apart_whatever_their_numbers_are() {
    let scratch = scratch();
    let path = scratch.path().join("many.sqlite");
    serve(&path, &[PID], 20, "");
    // Add kernels on GPU 16 and stream 4103. If a reader kept only the lowest 4 bits of a GPU's number and the lowest
    // 12 bits of a stream's number, it would take them for GPU 0 and stream 7, which the export has, too.
    let copies = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, globalPid, demangledName, shortName)
         SELECT start, end - 10000, deviceId + 16, 4103, correlationId, globalPid, demangledName, shortName
         FROM CUPTI_ACTIVITY_KIND_KERNEL";
    let other = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, globalPid, demangledName, shortName)
         SELECT start, end, 300, 7, correlationId, globalPid, demangledName, shortName
         FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid = 1";
    let connection = Connection::open(&path).unwrap();
    connection.execute(copies, []).unwrap();
    connection.execute(other, []).unwrap();
    let recorded = open(&path, Path::new("nsys"), None).unwrap();
    let mut places = BTreeSet::new();
    recorded[0]
        .read(|entry| {
            if let Entry::Event { event, .. } = entry
                && let What::GpuKernel { device, stream, .. } = event.what
            {
                places.insert((device, stream));
            }
        })
        .unwrap();
    assert_eq!(places, BTreeSet::from([(0, 7), (16, 4103)]));
    let found = report(&path, None).unwrap();
    let process = &found["processes"][0];
    let gpus = process["gpus"].as_array().unwrap();
    let times = gpus.iter().filter(|gpu| !gpu["kernel_ns"].is_null());
    let times: Vec<_> = times
        .map(|gpu| (&gpu["device"], &gpu["kernel_ns"]))
        .collect();
    assert_eq!(
        times,
        [
            (&json!(0), &json!(20 * 320_000)),
            (&json!(16), &json!(20 * 240_000))
        ]
    );
    let warned = process["refused"].to_string();
    assert!(
        warned.contains("1 event of a GPU with a number over 255 is left out"),
        "{warned}"
    );
}

#[test]
fn an_export_of_a_program_without_cuda_is_no_error() {
    let scratch = scratch();
    let path = scratch.path().join("idle.sqlite");
    Export::new(&path, Schema::Full).finish();
    let found = report(&path, None).unwrap();
    assert_eq!(found["processes"].as_array().unwrap().len(), 1);
    assert_eq!(found["processes"][0]["inside"], Value::Null);
    let recorded = open(&path, Path::new("nsys"), None).unwrap();
    let process = Process::read(path, &recorded[0]).unwrap();
    let said = process.nothing().unwrap();
    assert!(said.contains("no GPU work"), "{said}");
}

/// Number of damaged copies of an export that the test reads.
const TRACES: usize = 300;

#[test]
fn mutated_exports_harm_nothing() {
    let scratch = scratch();
    let path = scratch.path().join("whole.sqlite");
    serve(&path, &[PID, PID + 1], 20, "");
    let bytes = std::fs::read(&path).unwrap();
    let mutated = scratch.path().join("mutated.sqlite");
    let (mut read, mut refused) = (0, 0);
    for step in 0..TRACES {
        let mut copy = bytes.clone();
        let at = step * 104_729 % (bytes.len() - 512);
        match step % 3 {
            0 => copy.truncate(bytes.len() * (step + 1) / (TRACES + 1)),
            // In every third copy only three bytes are changed, so most of its rows remain readable.
            1 => copy[at..at + 3]
                .iter_mut()
                .for_each(|byte| *byte ^= step as u8 | 1),
            _ => copy[at..at + 400].rotate_left(step % 397 + 1),
        }
        std::fs::write(&mutated, &copy).unwrap();
        match report(&mutated, None) {
            Ok(_) => read += 1,
            Err(error) => {
                assert!(!error.to_string().contains('\n'), "{error}");
                refused += 1;
            }
        }
    }
    assert!(read > 50 && refused > 20, "{read} read, {refused} refused");
}

/// Returns the path of a trace from another project, which is compressed with xz; `None` if the file is missing.
fn shared(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let traces = std::env::var_os("TLLMPROF_TRACES").map_or(beside, PathBuf::from);
    let packed = traces.join(format!("nsys/{name}.sqlite.xz"));
    packed.is_file().then_some(packed)
}

/// Compares the kernel time of each GPU, in milliseconds, with a time that was computed from the trace with SQL: the
/// total length of the union of the kernels' intervals.
#[test]
fn kernel_time_is_that_of_the_traces_of_others() {
    for (name, gpus) in [
        ("h100_2gpu_1s", [22.385, 22.444]),
        ("mfu_2gpu_before", [270.863, 264.324]),
        ("mfu_2gpu_after", [237.473, 251.362]),
    ] {
        let Some(packed) = shared(name) else {
            return skipped("there are no traces of other projects");
        };
        let folder = scratch();
        let path = folder.path().join("trace.sqlite");
        let unpacked = std::fs::File::create_new(&path).unwrap();
        let mut xz = std::process::Command::new("xz");
        let status = xz.arg("-dc").arg(&packed).stdout(unpacked).status();
        if !status.is_ok_and(|status| status.success()) {
            return skipped("xz is not installed");
        }
        let found = report(&path, None).unwrap();
        for (place, wanted) in gpus.into_iter().enumerate() {
            let process = &found["processes"][place];
            let mut gpus = process["gpus"].as_array().unwrap().iter();
            let gpu = gpus.find(|gpu| gpu["device"] == place).unwrap();
            let ns = gpu["kernel_ns"].as_f64().unwrap();
            assert!((ns / 1e6 / wanted - 1.0).abs() < 0.001, "{name}: {ns} ns");
        }
    }
}
