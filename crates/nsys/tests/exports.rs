//! Reads exports that these tests generate, so that the expected times are known exactly.

mod common;

use std::path::Path;

use common::{Export, Schema, scratch, thread};
use rusqlite::Connection;
use serde_json::{Value, json};
use tllmprof_nsys::{ExportError, open};
use tllmprof_report::{Process, Report};

const PID: i64 = 4000;
const MAIN: i64 = thread(PID, 4000);
const OTHER: i64 = thread(PID, 4001);
const OWN: i64 = 1;
const ENGINE: i64 = 2;

fn report(path: &Path) -> Report {
    let recorded = open(path, Path::new("nsys"), None).unwrap();
    let processes = recorded
        .iter()
        .map(|one| Process::read(path.to_owned(), one).unwrap());
    Report::new(processes.collect())
}

fn json(path: &Path) -> Value {
    let report = report(path);
    let mut bytes = Vec::new();
    report.json(&mut bytes).unwrap();
    let text = report.text();
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    serde_json::from_slice(&bytes).unwrap()
}

/// Adds ten iterations: iteration n begins at 1000 n ns and takes 900 ns. A `capture` range makes a window (an interval
/// reported in detail) that opens just before iteration 3 and closes at `capture_end`.
fn iterations(export: &mut Export, capture_end: i64) {
    export.domain(MAIN, OWN, "tllmprof");
    export.domain(MAIN, ENGINE, "engine");
    export.range(60, MAIN, OWN, "capture", None, [2990, capture_end]);
    for n in 0..10 {
        let name = format!("iteration {n}");
        export.range(60, MAIN, OWN, &name, Some(n), [1000 * n, 1000 * n + 900]);
    }
}

fn whole(path: &Path) {
    let mut export = Export::new(path, Schema::Full);
    iterations(&mut export, 6950);
    export.sql(
        "INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000, '', '');
         INSERT INTO TARGET_INFO_GPU VALUES (1, 0, 'NVIDIA H200', '');
         INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:COMMAND', '/bin/serve');
         INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ARGUMENT_1', '8000');
         INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ARGUMENT_0', '--port');
         INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', 'TLLMPROF_STEP=\"cudaGraphLaunch\"');
         INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (1, '', 'Hostname', 1, 'gpu7');
         INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (1, '', 'DeviceEnvironment', 1,
             'SECRET=1;ENABLE_PERFECT_ROUTER=1;OMPI_COMM_WORLD_RANK=3');",
    );
    export.sql(&format!(
        "INSERT INTO PROCESSES VALUES ({}, {PID}, '/bin/serve')",
        thread(PID, 0)
    ));
    let name = export.string("sampler");
    export.sql(&format!(
        "INSERT INTO ThreadNames VALUES ({name}, 20, {OTHER})"
    ));
    let names = [
        "cudaGraphLaunch_v10000",
        "cuGraphLaunch",
        "cudaStreamSynchronize_v3020",
    ];
    let [graph, inner, wait] = names.map(|name| export.string(name));
    let [gemm, add] = ["void ns::gemm<float>(float*)", "add(int)"].map(|name| export.string(name));
    for n in 0..10 {
        let at = 1000 * n;
        export.call(MAIN, graph, [at + 10, at + 50]);
        // The CUDA runtime makes the call `inner` within `cudaGraphLaunch`, so `inner` is not counted as a call of
        // the program.
        export.call(MAIN, inner, [at + 20, at + 40]);
        export.call(MAIN, wait, [at + 100, at + 900]);
        export.kernel(PID, gemm, 0, [at + 100, at + 400]);
        export.kernel(PID, add, 0, [at + 300, at + 500]);
        export.kernel(PID, add, 1, [at + 200, at + 800]);
        export.kernel(PID + 1, gemm, 0, [at, at + 900]);
        export.range(59, OTHER, ENGINE, "forward", None, [at + 5, at + 705]);
        export.range(59, OTHER, 0, "plain", None, [at + 5, at + 15]);
        export.range(59, OTHER, OWN, "Scheduler.step", None, [at, at + 800]);
        export.range(59, MAIN, OWN, "cuGraphLaunch", None, [at + 10, at + 50]);
        let process = thread(PID, 0);
        export.sql(&format!(
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES ({}, {}, 0, 1, 7, 1, {process}, 4096, 2);
             INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES ({}, {}, 0, 1, 7, 1, {process}, 0, 64);
             INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES ({}, {}, 0, 1, 7, 1, {process}, 5, 6);",
            at + 600,
            at + 610,
            at + 620,
            at + 625,
            at + 630,
            at + 640
        ));
    }
    let batch = "batch mixed requests=3 tokens=9 prefill=7 decode=2";
    export.range(60, MAIN, OWN, batch, Some(4), [4010, 4900]);
    export.range(59, OTHER, OWN, "Python GC gen2", None, [4100, 4300]);
    // The number of a collection's freed objects is in the mark that follows its range.
    for (text, count, at) in [("gen1", 5, 4305), ("gen2", 12, 4310), ("gen2", 7, 4320)] {
        let text = format!("Python GC {text} collected");
        export.range(34, OTHER, OWN, &text, Some(count), [at, at]);
    }
    export.range(60, MAIN, OWN, "GIL wait", Some(3), [5100, 5200]);
    export.range(60, OTHER, OWN, "GIL hold", None, [5000, 5200]);
    export.finish();
}

#[test]
fn everything_that_nsys_has_is_in_the_report() {
    let scratch = scratch();
    let path = scratch.path().join("whole.sqlite");
    whole(&path);
    let found = json(&path);
    let process = &found["processes"][0];
    assert_eq!(found["processes"].as_array().unwrap().len(), 1);
    for (key, value) in [
        ("pid", json!(4000)),
        ("rank", json!(3)),
        ("host", json!("gpu7")),
        ("command", json!("/bin/serve --port 8000")),
        ("name", json!("serve")),
        ("rule", json!("cudaGraphLaunch")),
        (
            "gpus",
            json!([
                {"device": 0, "name": "NVIDIA H200", "kernel_ns": 1640, "busy_ns": 1700},
                {"device": 1, "name": "", "kernel_ns": 2400, "busy_ns": 2400},
            ]),
        ),
        (
            "settings",
            json!(["ENABLE_PERFECT_ROUTER=1", "TLLMPROF_STEP=cudaGraphLaunch"]),
        ),
        (
            "unix_minus_monotonic_ns",
            json!(1_700_000_000_000_000_000_u64),
        ),
        ("damage", Value::Null),
        ("left_out", json!(0)),
    ] {
        assert_eq!(process[key], value, "{key}");
    }
    let windows = process["windows"].as_array().unwrap();
    assert_eq!(windows.len(), 1);
    assert_eq!(
        (&windows[0]["first"], &windows[0]["last"]),
        (&json!(3), &json!(6))
    );
    let each: Vec<_> = windows[0]["iterations"]
        .as_array()
        .unwrap()
        .iter()
        .collect();
    assert_eq!(
        each.iter()
            .map(|one| one["n"].as_u64().unwrap())
            .collect::<Vec<_>>(),
        [3, 4, 5, 6]
    );
    for iteration in each {
        // Device 1 is busier than device 0 (600 ns compared with 425 ns), so the report's GPU times
        // are those of device 1.
        let expected = json!({
            "dur_ns": 900, "gpu_ns": 600, "gpu_busy_ns": 600, "kernels": 4, "launches": 1, "calls": 2,
            "wait_ns": 800, "thread": 4000
        });
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(iteration[key], *value, "{key}");
        }
    }
    assert_eq!(windows[0]["iterations"][1]["gc_ns"], 200);
    assert_eq!(
        windows[0]["iterations"][1]["batch"],
        json!({"requests": 3, "tokens": 9, "prefill_tokens": 7, "decode_tokens": 2, "phase": "mixed"})
    );
    assert_eq!(windows[0]["iterations"][2]["batch"], Value::Null);
    assert_eq!(windows[0]["iterations"][2]["gil_wait_ns"], 100);
    assert_eq!(
        (
            &process["outside"]["iterations"],
            &process["outside"]["max_ns"]
        ),
        (&json!(6), &json!(900))
    );
    let named = |list: &str, name: &str| {
        let all = process[list].as_array().unwrap();
        let one = all.iter().find(|one| one["name"] == name);
        one.map(|one| {
            (
                one["count"].as_u64().unwrap(),
                one["total_ns"].as_u64().unwrap(),
            )
        })
    };
    assert_eq!(named("calls", "cudaGraphLaunch"), Some((4, 160)));
    assert_eq!(named("calls", "cudaStreamSynchronize"), Some((4, 3200)));
    assert_eq!(named("calls", "cuGraphLaunch"), None);
    assert_eq!(process["calls_counted"][0]["inside"], 4);
    assert_eq!(
        named("kernels", "void ns::gemm<float>(float*)"),
        Some((4, 1200))
    );
    assert_eq!(named("kernels", "add(int)"), Some((8, 3200)));
    assert_eq!(named("kernels", "CUDA graph 5"), Some((4, 40)));
    assert_eq!(named("ranges", "forward@engine"), Some((4, 2800)));
    assert_eq!(named("ranges", "plain"), Some((4, 40)));
    assert_eq!(process["ranges"].as_array().unwrap().len(), 2);
    assert_eq!(named("functions", "Scheduler.step"), Some((4, 3200)));
    assert_eq!(process["functions"].as_array().unwrap().len(), 1);
    assert_eq!(named("gc", "gen2"), Some((1, 200)));
    assert_eq!(process["gc_collected"], 12);
    assert_eq!(
        (
            &process["gil_wait"]["count"],
            &process["gil_hold"]["total_ns"]
        ),
        (&json!(1), &json!(200))
    );
    assert_eq!(
        process["threads"][0],
        json!({"tid": 4001, "name": "sampler", "gil_hold_ns": 200})
    );
    let copies = json!([
        {"kind": "DtoH", "count": 4, "total_ns": 40, "bytes": 16384},
        {"kind": "memset", "count": 4, "total_ns": 20, "bytes": 256}
    ]);
    assert_eq!(process["copies"], copies);
    assert_eq!(process["kernel_window"]["iterations"], 4);
    assert_eq!(process["inside"]["gpu_from"], "kernels");
}

#[test]
fn the_name_of_a_gpu_is_that_of_the_process() {
    let scratch = scratch();
    let name = |file: &str, sql: &str| {
        let path = scratch.path().join(file);
        let mut export = Export::new(&path, Schema::Full);
        iterations(&mut export, 6950);
        export.sql(
            "INSERT INTO TARGET_INFO_GPU VALUES (1, 0, 'NVIDIA T4', '');
             INSERT INTO TARGET_INFO_GPU VALUES (1, 1, 'NVIDIA H200', '');",
        );
        export.sql(sql);
        let kernel = export.string("add(int)");
        for n in 0..10 {
            export.kernel(PID, kernel, 0, [1000 * n + 100, 1000 * n + 400]);
        }
        export.finish();
        json(&path)["processes"][0]["gpus"][0]["name"].clone()
    };
    let table = "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER);
                 INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (1, 0, 4000);
                 INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, 4001);";
    assert_eq!(name("with.sqlite", table), "NVIDIA H200");
    // Without this table it is not known which of the two GPUs the process used.
    assert_eq!(name("without.sqlite", ""), "");
}

#[test]
fn an_export_with_the_least_that_there_can_be() {
    let scratch = scratch();
    let path = scratch.path().join("sparse.sqlite");
    let mut export = Export::new(&path, Schema::Sparse);
    iterations(&mut export, i64::MAX);
    let add = export.string("add");
    export.kernel(PID, add, 0, [4100, 4400]);
    export.finish();
    let found = json(&path);
    let process = &found["processes"][0];
    assert_eq!(
        (&process["rank"], &process["host"]),
        (&json!(0), &json!(""))
    );
    // In this export, the `capture` range was still open when nsys stopped. So the window (the interval reported in
    // detail) ends with the last iteration.
    let window = &process["windows"][0];
    assert_eq!((&window["first"], &window["last"]), (&json!(3), &json!(9)));
    assert_eq!(window["iterations"].as_array().unwrap().len(), 7);
    assert_eq!(window["iterations"][1]["gpu_ns"], 300);
    assert_eq!(window["iterations"][2]["gpu_ns"], 0);
    assert_eq!(process["kernels"][0]["name"], "add");
    assert_eq!(process["unix_minus_monotonic_ns"], 0);
}

#[test]
fn several_processes_are_ranks_and_times_before_the_beginning_are_moved() {
    let scratch = scratch();
    let path = scratch.path().join("two.sqlite");
    let mut export = Export::new(&path, Schema::Full);
    for (process, shift) in [(PID, -5000), (PID + 1, -4000)] {
        let main = thread(process, process);
        export.domain(main, 7, "tllmprof");
        for n in 0..4 {
            let at = shift + 1000 * n;
            export.range(60, main, 7, "my name", Some(n), [at, at + 500]);
        }
    }
    // Domain numbers are unique only within a process: in this other process, number 7 is the
    // domain `other`.
    export.domain(thread(9, 9), 7, "other");
    export.range(60, thread(9, 9), 7, "iteration 1", Some(1), [0, 1]);
    export.finish();
    let found = json(&path);
    let ranks: Vec<_> = found["processes"].as_array().unwrap().iter().collect();
    assert_eq!(ranks.len(), 2);
    assert_eq!(
        (&ranks[1]["rank"], &ranks[1]["pid"]),
        (&json!(1), &json!(4001))
    );
    for rank in ranks {
        let window = &rank["windows"][0];
        assert_eq!((&window["first"], &window["last"]), (&json!(0), &json!(3)));
        let starts: Vec<_> = window["iterations"].as_array().unwrap().iter().collect();
        assert_eq!(
            starts[3]["start_ns"].as_u64().unwrap() - starts[0]["start_ns"].as_u64().unwrap(),
            3000
        );
        assert_eq!(rank["inside"]["gpu"], Value::Null);
        assert_eq!(rank["kernel_window"], Value::Null);
    }
    assert_eq!(found["skew"]["iterations"].as_array().unwrap().len(), 4);
}

#[test]
fn work_of_no_process_is_left_out_if_several_processes_call_cuda() {
    let scratch = scratch();
    let path = scratch.path().join("two.sqlite");
    let export = Export::new(&path, Schema::Full);
    for process in [PID, PID + 1] {
        for n in 0..4 {
            let at = 1000 * n;
            export.call(thread(process, process), OWN, [at, at + 500]);
            export.kernel(process, ENGINE, 0, [at + 100, at + 400]);
        }
    }
    export.sql("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = NULL WHERE start > 1000");
    export.finish();
    let found = json(&path);
    let ranks = found["processes"].as_array().unwrap();
    let numbers: Vec<_> = ranks.iter().map(|rank| &rank["pid"]).collect();
    assert_eq!(numbers, [PID, PID + 1]);
    for rank in ranks {
        assert_eq!(rank["inside"]["gpu"], Value::Null);
        assert_eq!(rank["recorded_by"]["lacks"][0], "gpu");
    }
    let text = report(&path).text();
    let text: Vec<_> = text.split_whitespace().collect();
    let why = "7 events of processes that are not always named are left out";
    assert!(text.join(" ").contains(why), "{text:?}");
}

#[test]
fn a_file_that_is_no_export_is_reported() {
    let scratch = scratch();
    let other = scratch.path().join("other.sqlite");
    Connection::open(&other)
        .unwrap()
        .execute_batch("CREATE TABLE t (x)")
        .unwrap();
    let error = open(&other, Path::new("nsys"), None).err().unwrap();
    assert!(matches!(error, ExportError::NotAnExport));
    assert!(!error.to_string().contains('\n'));
    assert!(matches!(
        open(&scratch.path().join("absent"), Path::new("nsys"), None),
        Err(ExportError::Database(_))
    ));
}

/// Checks that files with values of wrong types, or with overwritten pages, cause neither a crash
/// nor an endless read.
#[test]
fn what_is_wrong_in_a_file_harms_nothing() {
    let scratch = scratch();
    let path = scratch.path().join("odd.sqlite");
    whole(&path);
    let connection = Connection::open(&path).unwrap();
    connection
        .execute_batch(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, domainId, textId, uint64Value)
                 VALUES ('x', 5, 60, 1, 1, 1, 1), (4000, x'00', 60, 'y', 1, 1, 1), (4000, 3000, 59, 1, 1, 1, 1),
                        (9223372036854775807, -9223372036854775808, 60, -9223372036854775808, 1, 99999, -1);
             INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid, nameId, returnValue)
                 VALUES ('x', 'y', 0, 281541902336000 , 'z', 'w');
             DROP TABLE CUPTI_ACTIVITY_KIND_MEMSET;
             CREATE VIEW CUPTI_ACTIVITY_KIND_MEMSET AS SELECT load_extension('x') AS start;",
        )
        .unwrap();
    drop(connection);
    let found = json(&path);
    assert_eq!(
        found["processes"][0]["windows"][0]["iterations"]
            .as_array()
            .unwrap()
            .len(),
        4
    );
    let bytes = std::fs::read(&path).unwrap();
    let damaged = scratch.path().join("damaged.sqlite");
    let (mut read, mut refused) = (0, 0);
    for step in 0..200_usize {
        let mut copy = bytes.clone();
        match step % 2 {
            0 => copy.truncate(bytes.len() * (step + 1) / 201),
            _ => {
                let at = step * 7919 % (bytes.len() - 512);
                copy[at..at + 300]
                    .iter_mut()
                    .for_each(|byte| *byte = byte.wrapping_mul(31) ^ step as u8);
            }
        }
        std::fs::write(&damaged, &copy).unwrap();
        match open(&damaged, Path::new("nsys"), None) {
            Ok(recorded) => {
                for one in &recorded {
                    Process::read(damaged.clone(), one).unwrap();
                }
                read += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(read > 20 && refused > 20, "{read} read, {refused} refused");
}

/// Checks that files whose pages refer back to themselves are refused. In these files, which a fuzzer found, a table
/// seems to be endless.
#[test]
fn tables_without_an_end_are_refused() {
    let found = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/found/nsys");
    for name in ["circles", "endless-rows"] {
        let error = open(&found.join(name), Path::new("nsys"), None)
            .err()
            .unwrap();
        assert!(matches!(error, ExportError::Endless), "{name}: {error}");
        assert_eq!(
            error.to_string(),
            "its pages lead in circles: the file is damaged"
        );
    }
}

fn files(folder: &Path) -> Vec<std::ffi::OsString> {
    let files = std::fs::read_dir(folder).unwrap();
    files.map(|file| file.unwrap().file_name()).collect()
}

/// Checks that reading an export creates no files next to it. SQLite would create such files for a database that uses a
/// write-ahead log, unless the database is declared immutable.
#[test]
fn nothing_is_made_beside_an_export() {
    let folder = scratch();
    let path = folder
        .path()
        .join("with 100% ?immutable=0#such&names.sqlite");
    whole(&path);
    let connection = Connection::open(&path).unwrap();
    connection
        .pragma_update(None, "journal_mode", "wal")
        .unwrap();
    drop(connection);
    assert_eq!(files(folder.path()), [path.file_name().unwrap()]);
    assert_eq!(report(&path).processes.len(), 1);
    assert_eq!(files(folder.path()), [path.file_name().unwrap()]);
}

#[test]
fn what_is_in_the_log_of_an_export_is_read() {
    let folder = scratch();
    let path = folder.path().join("report.sqlite");
    whole(&path);
    let connection = Connection::open(&path).unwrap();
    connection
        .pragma_update(None, "journal_mode", "wal")
        .unwrap();
    connection.execute_batch("DELETE FROM NVTX_EVENTS").unwrap();
    let recorded = open(&path, Path::new("nsys"), None).unwrap();
    let process = Process::read(path, &recorded[0]).unwrap();
    assert_eq!(process.facts.rule, "whole trace");
    drop(connection);
}
