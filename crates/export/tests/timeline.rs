//! Checks the exported timelines. The test parses the JSON of Chrome's trace format itself. In addition, Perfetto's
//! trace processor reads traces in Chrome's format and in Perfetto's own.

mod common;

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::Path;

use common::scene::{self, FLOWS, METRICS, SHIFT, UNIX};
use common::{Seen, args, assert_same, read_by, record, scratch};
use flate2::read::GzDecoder;
use serde_json::Value;
use tllmprof_export::{Exported, Record, chrome, perfetto};
use tllmprof_report::write_json_text;

const SERVER: &str = "rank 0: python (pid 100, alpha)";
const OTHER: &str = "rank 1: python (pid 100, beta/β)";

fn records() -> (Vec<Record>, Vec<Seen>) {
    let (records, mut seen) = scene::all();
    for seen in seen.iter_mut().filter(|seen| seen.host == "alpha") {
        seen.start += SHIFT;
    }
    let records = records.into_iter().map(|(name, bytes)| record(name, bytes));
    (records.collect(), seen)
}

/// Returns the host name at the end of a process's title, such as [`SERVER`].
fn host(title: &str) -> String {
    let (_, host) = title.trim_end_matches(')').rsplit_once(", ").unwrap();
    host.to_owned()
}

fn written(
    write: impl Fn(&[Record], &mut Vec<u8>, bool) -> std::io::Result<Exported>,
    records: &[Record],
    gzip: bool,
) -> (Vec<u8>, Exported) {
    let mut bytes = Vec::new();
    let exported = write(records, &mut bytes, gzip).unwrap();
    (bytes, exported)
}

fn as_chrome(records: &[Record], gzip: bool) -> (Vec<u8>, Exported) {
    written(|records, to, gzip| chrome(records, to, gzip), records, gzip)
}

fn as_perfetto(records: &[Record], gzip: bool) -> (Vec<u8>, Exported) {
    written(
        |records, to, gzip| perfetto(records, to, gzip),
        records,
        gzip,
    )
}

/// Converts a number of microseconds in JSON to nanoseconds. The conversion uses the number's text, because a float
/// would round it.
fn ns(number: &Value) -> u64 {
    let text = number.to_string();
    let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
    whole.parse::<u64>().unwrap() * 1000 + format!("{part:0<3}").parse::<u64>().unwrap()
}

#[test]
fn chrome_has_every_event_at_its_time_and_place() {
    let (records, seen) = records();
    let (bytes, exported) = as_chrome(&records, false);
    let trace: Value = serde_json::from_slice(&bytes).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let (mut processes, mut threads) = (HashMap::new(), HashMap::new());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    for event in events.iter().filter(|event| event["ph"] == "M") {
        let (pid, name) = (event["pid"].as_u64().unwrap(), &event["args"]["name"]);
        if event["name"] == "process_name" {
            assert_eq!(processes.insert(pid, text(name)), None);
        } else if event["name"] == "thread_name" {
            let tid = event["tid"].as_u64().unwrap();
            assert_eq!(threads.insert((pid, tid), text(name)), None);
        }
    }
    let mut found = Vec::new();
    let mut counters = Vec::new();
    /// One point of an arrow: true if the point is the launch call, the numbers of the process and the thread, and the
    /// time.
    type End = (bool, (u64, u64), u64);
    let mut flows: BTreeMap<u64, Vec<End>> = BTreeMap::new();
    for event in events {
        let pid = event["pid"].as_u64().unwrap();
        let own = event["args"].as_object();
        let own: BTreeMap<_, _> = own
            .iter()
            .flat_map(|args| args.iter())
            .map(|(key, value)| (key.clone(), value.to_string().replace('"', "")))
            .collect();
        match event["ph"].as_str().unwrap() {
            "M" => continue,
            kind @ ("s" | "t") => {
                assert_eq!(event["name"], "launch");
                let line = (pid, event["tid"].as_u64().unwrap());
                let ends = flows.entry(event["id"].as_u64().unwrap()).or_default();
                ends.push((kind == "s", line, ns(&event["ts"]) - SHIFT));
                continue;
            }
            "C" => {
                let (unit, value) = own.iter().next().unwrap();
                let at = ns(&event["ts"]) - SHIFT;
                assert_eq!(processes[&pid], "GPU metrics (pid 102, alpha)");
                counters.push((
                    text(&event["name"]),
                    unit.clone(),
                    at,
                    value.parse().unwrap(),
                ));
                continue;
            }
            "X" => (),
            kind => assert_eq!((kind, &event["s"]), ("i", &Value::from("t"))),
        }
        found.push(Seen {
            host: host(&processes[&pid]),
            track: threads[&(pid, event["tid"].as_u64().unwrap())].clone(),
            name: text(&event["name"]),
            category: text(&event["cat"]),
            start: ns(&event["ts"]),
            duration: event.get("dur").map(ns),
            args: args(&own),
        });
    }
    assert_eq!(
        counters,
        METRICS.map(|(name, unit, at, value)| (name.into(), unit.into(), at, value))
    );
    assert_eq!(exported.events as usize, found.len() + counters.len());
    assert_eq!(exported.left_out, 0);
    assert_same(found, seen);
    // The first arrow of a launch ends at the first kernel of this launch. From there the next arrow leads to the next
    // kernel.
    let mut arrows = Vec::new();
    for mut ends in flows.into_values() {
        ends.sort_by_key(|(_, _, at)| *at);
        assert!(ends[0].0 && !ends[1..].iter().any(|end| end.0));
        for (begins, line, _) in &ends {
            let track = if *begins { "main" } else { "GPU 1 stream 2" };
            assert!(threads[line].starts_with(track), "{}", threads[line]);
        }
        arrows.extend(ends.windows(2).map(|pair| (pair[0].2, pair[1].2)));
    }
    arrows.sort_unstable();
    assert_eq!(arrows, FLOWS);
    // Both processes had the process id 100 on their machines. The first process keeps this id, and the other process
    // gets an invented id.
    let pid_of = |title: &str| *processes.iter().find(|(_, name)| *name == title).unwrap().0;
    assert_eq!(pid_of(SERVER), 100);
    assert_ne!(pid_of(OTHER), 100);
    assert_eq!(threads[&(100, 101)], "worker \"1\"");
}

/// Returns the events that Perfetto found, and the number of slices that are inside another slice.
fn slices(found: &Value) -> (Vec<Seen>, usize) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let slices = found["slices"].as_array().unwrap();
    let seen = slices.iter().map(|slice| Seen {
        host: host(slice["process"].as_str().unwrap()),
        track: text(
            slice
                .get("track")
                .filter(|track| !track.is_null())
                .unwrap_or(&slice["thread"]),
        ),
        name: text(&slice["name"]),
        category: text(&slice["category"]),
        start: slice["ts"].as_u64().unwrap(),
        duration: slice["dur"].as_u64(),
        args: text(&slice["args"]),
    });
    let inside = slices.iter().filter(|slice| slice["depth"] != 0);
    (seen.collect(), inside.count())
}

/// Asserts that Perfetto finds the expected items and arrows in a trace. In Perfetto, an item that is
/// only a moment has duration 0.
fn assert_perfetto_reads(bytes: &[u8], name: &str, seen: Vec<Seen>) -> Option<Value> {
    let scratch = scratch();
    let file = scratch.path().join(name);
    std::fs::write(&file, bytes).unwrap();
    let found = read_by("timeline.py", &file)?;
    let moments = seen.into_iter().map(|seen| Seen {
        duration: seen.duration.or(Some(0)),
        ..seen
    });
    assert_eq!(found["problems"], Value::Array(vec![]));
    let (slices, inside) = slices(&found);
    assert_same(slices, moments.collect());
    // The trace contains nested slices: a function inside a range, and 6000 calls inside a function.
    assert!(inside > 6000, "{inside}");
    let counters = found["counters"].as_array().unwrap();
    let mut counters: Vec<_> = counters
        .iter()
        .map(|counter| {
            let at = counter["ts"].as_u64().unwrap() - SHIFT;
            // Perfetto appends the unit to a counter's name if the trace is in Chrome's format.
            let name = counter["name"].as_str().unwrap();
            let name = name
                .trim_end_matches(" %")
                .trim_end_matches(" W")
                .to_owned();
            (name, at, counter["value"].as_f64().unwrap())
        })
        .collect();
    counters.sort_by(|a, b| a.partial_cmp(b).unwrap());
    let expected = METRICS.map(|(name, _, at, value)| (name.to_owned(), at, value));
    assert_eq!(counters, expected);
    let flows = found["flows"].as_array().unwrap().iter().map(|flow| {
        let at = |key: &str| flow[key].as_u64().unwrap() - SHIFT;
        assert_eq!(flow["to_name"], "gemm");
        (at("ts"), at("to_ts"))
    });
    assert_eq!(flows.collect::<Vec<_>>(), FLOWS);
    Some(found)
}

#[test]
fn perfetto_reads_its_own_format() {
    let (records, seen) = records();
    let (bytes, exported) = as_perfetto(&records, false);
    assert_eq!(exported.events as usize, seen.len() + METRICS.len());
    let Some(found) = assert_perfetto_reads(&bytes, "trace.perfetto", seen) else {
        return;
    };
    let has = |list: &str, row: Value| {
        assert!(
            found[list].as_array().unwrap().contains(&row),
            "{row} {}",
            found[list]
        );
    };
    let day = serde_json::json!({"clock_name": "REALTIME", "ts": 0, "clock_value": UNIX[1]});
    has("clocks", day);
    has("processes", serde_json::json!({"pid": 100, "name": SERVER}));
    has(
        "threads",
        serde_json::json!({"tid": 101, "name": "worker \"1\"", "pid": 100}),
    );
    let unit = &found["counters"][0]["unit"];
    assert!(unit == "%" || unit == "W", "{unit}");
}

#[test]
fn perfetto_reads_chromes_format() {
    let (records, mut seen) = records();
    let (bytes, _) = as_chrome(&records, false);
    // Perfetto does not decode the escapes of a text that contains no quote. So the expected names without a quote are
    // escaped, too.
    for seen in seen.iter_mut().filter(|seen| !seen.name.contains('"')) {
        let mut written = Vec::new();
        write_json_text(&seen.name, &mut written).unwrap();
        let written = String::from_utf8(written).unwrap();
        let written = written.trim_matches('"');
        seen.name = match written.strip_suffix(r"\\") {
            Some(before) => format!(r"{before}\u005c"),
            None => written.to_owned(),
        };
    }
    assert_perfetto_reads(&bytes, "trace.json", seen);
}

#[test]
fn compressed_traces_are_the_same() {
    let (records, _) = records();
    for write in [as_chrome, as_perfetto] {
        let (plain, exported) = write(&records, false);
        let (packed, also) = write(&records, true);
        let mut unpacked = Vec::new();
        GzDecoder::new(&packed[..])
            .read_to_end(&mut unpacked)
            .unwrap();
        assert!(unpacked == plain && exported == also);
        assert!(packed.len() * 3 < plain.len());
    }
}

#[test]
fn a_part_of_a_record_is_exported() {
    let (records, _) = scene::all();
    let (_, bytes) = &records[0];
    for length in [65_536, 65_536 + 5000, bytes.len() - 100_000] {
        let part = [record("part", bytes[..length].to_vec())];
        let (json, _) = as_chrome(&part, false);
        let trace: Value = serde_json::from_slice(&json).unwrap();
        assert!(trace["traceEvents"].is_array());
        let (trace, exported) = as_perfetto(&part, false);
        assert!(exported.events < 6000);
        let scratch = scratch();
        let file = scratch.path().join("part");
        std::fs::write(&file, trace).unwrap();
        let Some(found) = read_by("timeline.py", Path::new(&file)) else {
            return;
        };
        assert_eq!(found["problems"], Value::Array(vec![]));
    }
}
