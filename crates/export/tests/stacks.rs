//! Checks the export of sampled stacks to speedscope and to folded stacks, also for records without
//! stacks.

mod common;

use std::io;

use common::record;
use common::scene::{self, STACK};
use serde_json::{Value, json};
use tllmprof_export::{Exported, FORMATS, FormatWriter, Record};

fn written(name: &str, records: &[Record]) -> (String, Exported) {
    let format = FORMATS.iter().find(|format| format.name == name).unwrap();
    let FormatWriter::File(write) = format.write else {
        panic!("{name} is a folder");
    };
    let mut bytes = Vec::new();
    let exported: io::Result<_> = write(records, &mut bytes, false);
    (String::from_utf8(bytes).unwrap(), exported.unwrap())
}

fn records() -> Vec<Record> {
    let (records, _) = scene::all();
    let records = records.into_iter();
    records.map(|(name, bytes)| record(name, bytes)).collect()
}

#[test]
fn each_stack_is_a_line_with_its_count() {
    let (text, exported) = written("collapsed", &records());
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    let of = "rank 0 (pid 100);main";
    let odd = STACK[1].replace(';', ":");
    let step = STACK[0];
    let mut expected = vec![
        format!("{of};{step} 1"),
        format!("{of};{step};{odd} 2"),
        format!("{of};{step};{odd};[asleep] 1"),
        format!("{of};[in no Python function];[waiting for a processor] 1"),
        format!("{of} (native);/opt/lib/libx.so+0x1f 1"),
    ];
    expected.sort();
    assert_eq!(lines, expected);
    // The record has seven stack samples, one of which was rejected. The export leaves the rejected sample out.
    assert_eq!((exported.events, exported.left_out), (6, 0));
}

#[test]
fn speedscope_has_a_profile_for_each_thread() {
    let (text, exported) = written("speedscope", &records());
    assert_eq!(exported.events, 6);
    let file: Value = serde_json::from_str(&text).unwrap();
    let schema = "https://www.speedscope.app/file-format-schema.json";
    assert_eq!(file["$schema"], schema);
    let frames = file["shared"]["frames"].as_array().unwrap();
    let step = json!({"name": "Engine.step", "file": "core.py", "line": 10});
    assert!(frames.contains(&step), "{frames:?}");
    let profiles = file["profiles"].as_array().unwrap();
    let names: Vec<_> = profiles.iter().map(|profile| &profile["name"]).collect();
    let expected = ["rank 0 (pid 100), main", "rank 0 (pid 100), main (native)"];
    assert_eq!(names, expected);
    for profile in profiles {
        assert_eq!(profile["type"], "sampled");
        let samples = profile["samples"].as_array().unwrap();
        let weights = profile["weights"].as_array().unwrap();
        let sum: u64 = weights.iter().map(|weight| weight.as_u64().unwrap()).sum();
        assert_eq!(samples.len(), weights.len());
        assert_eq!(profile["endValue"], sum);
        let places = samples.iter().flat_map(|stack| stack.as_array().unwrap());
        for place in places {
            assert!(place.as_u64().unwrap() < frames.len() as u64);
        }
    }
    let name = |place: &Value| frames[place.as_u64().unwrap() as usize]["name"].clone();
    let stacks = profiles[0]["samples"].as_array().unwrap();
    let first: Vec<_> = stacks[0].as_array().unwrap().iter().map(name).collect();
    assert_eq!(first, ["Engine.step", "odd; name"]);
}

#[test]
fn a_record_without_samples_has_no_stacks() {
    let records: Vec<_> = records().into_iter().skip(1).collect();
    assert_eq!(
        written("collapsed", &records),
        (String::new(), Exported::default())
    );
    let (text, exported) = written("speedscope", &records);
    let file: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&file["profiles"], exported.events), (&json!([]), 0));
}
