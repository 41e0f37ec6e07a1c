//! All that is printed of stored and made-up records is as it was: `stored.txt` has a hash of each text, each JSON (by keys, values
//! and types, not by the order of keys) and each comparison.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use serde_json::Value;
use tllmprof_record::Info;
use tllmprof_report::{Comparison, Process, Report, Style, write_json};

use crate::common::job::{Cause, Job, Jump, MS, Plant};
use crate::common::server::Server;
use crate::common::{process, ranks};

/// What is printed, by what it is of.
type Printed = Vec<(String, String)>;

/// The records of the page's corpus, by name.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../page/tests/corpus");
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    let packed = files.filter(|path| path.extension().is_some_and(|end| end == "gz"));
    let mut records: Vec<_> = packed
        .map(|path| {
            let mut record = Vec::new();
            let mut file = GzDecoder::new(File::open(&path).unwrap());
            file.read_to_end(&mut record).unwrap();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, record)
        })
        .collect();
    records.sort();
    // What is left of one.
    let (name, record) = &records[0];
    let part = (
        format!("a part of {name}"),
        record[..record.len() / 2].to_vec(),
    );
    records.push(part);
    records
}

/// A job of two hosts whose ranks are late for known reasons, in groups or not.
fn job(groups: bool) -> Vec<(String, Vec<u8>)> {
    let plant = |rank, from, cause| Plant {
        rank,
        steps: (from, from + 5),
        cause,
        by: 3 * MS,
    };
    let job = Job {
        hosts: 2,
        per_host: 4,
        steps: 40,
        collectives: 8,
        plants: vec![
            plant(3, 0, Cause::Gc),
            plant(5, 10, Cause::Tokens),
            plant(6, 20, Cause::Asleep),
        ],
        jumps: vec![Jump {
            host: Some(1),
            rank: None,
            step: 130,
            by: 40_000_000,
        }],
        groups: match groups {
            true => |rank| vec![(Info::Group, format!("TP {} 4 {}", rank % 4, rank / 4 * 4))],
            false => |_| Vec::new(),
        },
        ..Job::default()
    };
    let truth = job.truth();
    let record = |rank| {
        let name = format!("rank-{rank}.tllmprof");
        (name, job.record(rank, &truth))
    };
    (0..job.ranks()).map(record).collect()
}

fn read(records: &[(String, Vec<u8>)]) -> Vec<Process> {
    let records = records.iter();
    records.map(|(name, bytes)| process(name, bytes)).collect()
}

/// A JSON with its keys in order.
fn in_order(json: &[u8]) -> String {
    serde_json::from_slice::<Value>(json).unwrap().to_string()
}

fn add_report(name: &str, report: &Report, printed: &mut Printed) {
    let (mut json, mut summary) = (Vec::new(), Vec::new());
    report.json(&mut json).unwrap();
    write_json(&report.summary(), &mut summary).unwrap();
    let whole = Style {
        is_whole: true,
        is_coloured: true,
    };
    for (what, text) in [
        ("json", in_order(&json)),
        ("summary", in_order(&summary)),
        ("text", report.text()),
        ("whole", report.styled(whole)),
    ] {
        printed.push((format!("{name} {what}"), text));
    }
}

fn add_comparison(name: &str, base: &Report, other: &Report, printed: &mut Printed) {
    let comparison = Comparison::of(&base.processes, &other.processes);
    let mut json = Vec::new();
    comparison.json(&mut json).unwrap();
    printed.push((format!("{name} compare json"), in_order(&json)));
    printed.push((format!("{name} compare text"), comparison.text()));
}

/// What is printed of all records.
fn printed() -> Printed {
    let mut printed = Printed::new();
    let mut reports: Vec<_> = corpus()
        .into_iter()
        .map(|(name, bytes)| {
            let report = Report::new(vec![process(&name, &bytes)]);
            (name, report)
        })
        .collect();
    let metrics = Server::rank(0).metrics(20_000 * MS).bytes();
    let measured = [
        ("metrics", metrics),
        ("rank", Server::rank(0).record().0.bytes()),
    ];
    let measured = measured.map(|(name, bytes)| process(name, &bytes));
    let routed = crate::routing::record(0);
    reports.extend([
        ("metrics".to_owned(), Report::new(measured.into())),
        ("ranks".to_owned(), ranks(&[0, 1, 2])),
        (
            "routing".to_owned(),
            Report::new(vec![process("routing", &routed)]),
        ),
        (
            "layers".to_owned(),
            Report::new(vec![crate::layers::model(0)]),
        ),
        (
            "larger layers".to_owned(),
            Report::new(vec![crate::layers::model(2_000)]),
        ),
        ("job".to_owned(), Report::new(read(&job(false)))),
        ("groups".to_owned(), Report::new(read(&job(true)))),
        (
            "batches".to_owned(),
            Report::new(vec![process("batches", &crate::batches::record().0)]),
        ),
        ("slow".to_owned(), crate::slow::record()),
        ("nothing".to_owned(), Report::new(Vec::new())),
    ]);
    for (name, report) in &reports {
        add_report(name, report, &mut printed);
    }
    for pair in reports.windows(2) {
        let [(name, base), (of, other)] = pair else {
            unreachable!()
        };
        add_comparison(&format!("{name}, {of}:"), base, other, &mut printed);
    }
    let mut schema = Report::schema();
    sort_keys(&mut schema);
    printed.push(("schema".to_owned(), schema.to_string()));
    printed
}

/// Sorts the lists of keys that a schema requires.
fn sort_keys(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            for (key, value) in members {
                match value {
                    Value::Array(keys) if key == "required" => {
                        keys.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
                    }
                    value => sort_keys(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(sort_keys),
        _ => (),
    }
}

/// FNV-1a.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[test]
fn what_is_printed_of_stored_records_is_as_it_was() {
    let printed = printed();
    let mut hashes = String::new();
    for (name, text) in &printed {
        writeln!(hashes, "{:016x} {name}", hash(text)).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/records/stored.txt");
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, &hashes).unwrap();
    }
    // To compare with those of another state.
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("printed");
    fs::create_dir_all(&folder).unwrap();
    for (name, text) in &printed {
        fs::write(folder.join(name), text).unwrap();
    }
    let stored = fs::read_to_string(&path).unwrap();
    let changed: Vec<_> = hashes
        .lines()
        .filter(|line| !stored.lines().any(|there| there == *line))
        .collect();
    assert!(
        changed.is_empty() && stored.lines().count() == printed.len(),
        "changed: {changed:#?}\n{} has them; BLESS=1 cargo test -p tllmprof-report stored takes them",
        folder.display()
    );
}
