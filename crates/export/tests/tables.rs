//! Checks the contents of the Parquet tables as read by DuckDB, and by Spark if it is available.

mod common;

use std::fs;

use common::scene::{self, METRICS, UNIX};
use common::{Seen, assert_same, read_by, record, scratch};
use serde_json::{Value, json};
use tllmprof_export::{Record, TABLES, parquet};
use tllmprof_record::{CHUNK_HEADER_BYTES, EVENT_BYTES};

fn records() -> (Vec<Record>, Vec<Seen>) {
    let (records, seen) = scene::all();
    let records = records.into_iter().map(|(name, bytes)| record(name, bytes));
    (records.collect(), seen)
}

/// Returns the rows of the ledger (host and GPU time by cause) of each window in the report. The rows are sorted by
/// their JSON text, as in the output of `readers/tables.py`.
fn ledger(records: &[Record]) -> Vec<Value> {
    let mut rows = Vec::new();
    for record in records {
        let process = &record.process;
        for (window, ledger) in process.windows.iter().zip(&process.ledger.details.windows) {
            for (side, causes) in [("host", &ledger.host), ("gpu", &ledger.gpu)] {
                rows.extend(causes.iter().map(|row| {
                    json!([
                        process.pid,
                        window.first,
                        window.last,
                        side,
                        row.kind.name(),
                        row.cause,
                        row.ns,
                        (row.share * 1e9).round() as u64
                    ])
                }));
            }
        }
    }
    rows.sort_by_key(Value::to_string);
    rows
}

#[test]
fn duckdb_finds_every_event() {
    let scratch = scratch();
    let (records, seen) = records();
    let exported = parquet(&records, scratch.path()).unwrap();
    // The export must contain a row for each item in `seen`. It must also contain rows for the 3 processes, the 3
    // threads, the metrics, the tokens of 1 expert, and the ledger (the table of time by cause).
    let ledger = ledger(&records);
    let rows = seen.len() + 3 + 3 + METRICS.len() + 1 + ledger.len();
    assert_eq!((exported.events as usize, exported.left_out), (rows, 0));
    for (table, partition) in [
        ("calls", "run=none/host=alpha/rank=0/pid=100"),
        ("calls", "run=none/host=beta%2Fβ/rank=1/pid=100"),
        ("metrics", "run=none/host=alpha/rank=0/pid=102"),
    ] {
        let file = scratch
            .path()
            .join(format!("{table}/{partition}/part-0.parquet"));
        assert!(file.is_file(), "{}", file.display());
    }
    let Some(found) = read_by("tables.py", scratch.path()) else {
        return;
    };
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let rows = found["seen"].as_array().unwrap();
    let rows = rows.iter().map(|row| Seen {
        host: text(&row["host"]),
        track: text(&row["track"]),
        name: text(&row["name"]),
        category: text(&row["category"]),
        start: row["start_ns"].as_u64().unwrap(),
        duration: row["dur_ns"].as_u64(),
        args: text(&row["args"]),
    });
    assert_same(rows.collect(), seen);
    assert_eq!(
        found["types"],
        json!([{"start": "BIGINT", "failed": "BOOLEAN", "rank": "BIGINT"}])
    );
    assert_eq!(found["experts"][0]["tokens"], 17);
    assert_eq!(found["ledger"], Value::from(ledger));
    let stack = scene::STACK.join(";");
    assert_eq!(found["stacks"][0], json!({"stack": stack, "samples": 3}));
    let metrics = found["metrics"].as_array().unwrap();
    for (row, (name, unit, at, value)) in metrics.iter().zip(METRICS) {
        let metric = format!("GPU {} {}", row["device"], row["metric"].as_str().unwrap());
        assert_eq!((&metric[..], &row["unit"]), (name, &json!(unit)));
        assert_eq!(
            (&row["start_ns"], &row["dur_ns"]),
            (&json!(at), &json!(1_000_000))
        );
        assert_eq!(row["value"], value);
    }
    assert_eq!(metrics.len(), METRICS.len());
    let server = &found["processes"][2];
    assert_eq!(
        (&server["file"], &server["ended"]),
        (&json!("server"), &json!("in order"))
    );
    assert_eq!(server["unix_minus_monotonic_ns"], UNIX[0]);
    assert_eq!(
        (&server["boot"], &server["damage"]),
        (&json!("a"), &Value::Null)
    );
    // The row of the first iteration (number 5) must have the GPU time, the number of launches and the waiting time of
    // the events that `scene.rs` adds to this iteration.
    let first = &found["iterations"][0];
    assert_eq!(
        (&first["n"], &first["gpu_ns"]),
        (&json!(5), &json!(1_500_000))
    );
    assert_eq!(
        (&first["launches"], &first["wait_ns"]),
        (&json!(2), &json!(1_700_000))
    );
    let batch = [
        "requests",
        "tokens",
        "prefill_tokens",
        "decode_tokens",
        "phase",
    ];
    assert_eq!(
        batch.map(|column| &first[column]),
        [&json!(6), &json!(8), &json!(3), &json!(5), &json!("mixed")]
    );
    assert_eq!(first["qualifies"], true);
    assert_eq!(
        found["kinds"][2],
        json!({"name": "cuStreamSynchronize", "kind": "wait", "calls": 1})
    );
}

#[test]
fn spark_finds_the_same() {
    let scratch = scratch();
    let (records, seen) = records();
    parquet(&records, scratch.path()).unwrap();
    let Some(found) = read_by("spark.py", scratch.path()) else {
        return;
    };
    let launches = |host: &str| {
        let calls = seen
            .iter()
            .filter(|seen| seen.host == host && seen.name == "cuGraphLaunch");
        let calls: Vec<_> = calls.collect();
        json!({
            "host": host, "name": "cuGraphLaunch", "kind": "graph launch", "calls": calls.len(),
            "ns": calls.iter().filter_map(|call| call.duration).sum::<u64>(),
            "first": calls.iter().map(|call| call.start).min(),
            "in_iterations": calls.len(), "failed": 0,
        })
    };
    let calls = found["calls"].as_array().unwrap();
    for host in ["alpha", "beta/β"] {
        assert!(calls.contains(&launches(host)), "{calls:?}");
    }
    assert_eq!(calls.len(), 4);
    assert_eq!(
        (&found["rows"]["metrics"], &found["rows"]["threads"]),
        (&json!(3), &json!(3))
    );
}

#[test]
fn records_of_one_process_do_not_meet() {
    let scratch = scratch();
    let (records, _) = scene::all();
    let (name, bytes) = &records[1];
    let twice = [record(name, bytes.clone()), record(name, bytes.clone())];
    parquet(&twice, scratch.path()).unwrap();
    for table in TABLES {
        let folder = format!("{}/run=none/host=beta%2Fβ/rank=1/pid=100", table.name);
        let files = fs::read_dir(scratch.path().join(&folder)).unwrap();
        let mut names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["part-0.parquet", "part-1.parquet"]);
    }
}

#[test]
fn a_damaged_record_says_so_in_its_row() {
    let scratch = scratch();
    let (records, _) = scene::all();
    let (_, mut bytes) = records.into_iter().next().unwrap();
    // Overwrites the kind of an event in the third chunk, so that the record is damaged.
    bytes[196_608 + CHUNK_HEADER_BYTES + 240 * EVENT_BYTES + 12] = 250;
    let part = [record("part", bytes)];
    let damage = part[0].process.record.damage;
    assert_eq!(damage.chunks, 1);
    parquet(&part, scratch.path()).unwrap();
    let Some(found) = read_by("tables.py", scratch.path()) else {
        return;
    };
    assert_eq!(found["processes"][0]["damage"], damage.to_string());
    assert_eq!(found["processes"][0]["state"], "damaged");
}
