//! Checks that all output for stored and simulated records is unchanged. `stored.txt` contains a
//! hash of each text, JSON and comparison. The hash of a JSON text does not depend on the order of
//! keys.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use serde_json::Value;
use tllmprof_config::printable;
use tllmprof_record::Info;
use tllmprof_report::{
    Comparison, LedgerSide, Process, Report, Style, Unqualified, Verdict, write_json,
};

use crate::common::job::{Cause, Job, Jump, MS, Plant};
use crate::common::server::Server;
use crate::common::{process, ranks};

/// All outputs, each with a name.
type Printed = Vec<(String, String)>;

/// Returns the records of the test corpus of the crate `page`, with their file names, and half of the first record.
pub(crate) fn corpus() -> Vec<(String, Vec<u8>)> {
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
    // Add a record that is cut off.
    let (name, record) = &records[0];
    let part = (
        format!("a part of {name}"),
        record[..record.len() / 2].to_vec(),
    );
    records.push(part);
    records
}

/// Returns the records of a job on two hosts, in which some ranks are late for known reasons.
/// `groups` is true if the ranks form groups.
pub(crate) fn job(groups: bool) -> Vec<(String, Vec<u8>)> {
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

/// Returns a JSON text in which the keys are in alphabetical order.
fn in_order(json: &[u8]) -> String {
    serde_json::from_slice::<Value>(json).unwrap().to_string()
}

fn add_report(name: &str, report: &Report, printed: &mut Printed) {
    let (mut json, mut summary) = (Vec::new(), Vec::new());
    report.json(&mut json).unwrap();
    write_json(&report.summary(), &mut summary).unwrap();
    let whole = Style::whole();
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
    let comparison = Comparison::compare(&base.processes, &other.processes);
    let mut json = Vec::new();
    comparison.json(&mut json).unwrap();
    printed.push((format!("{name} compare json"), in_order(&json)));
    printed.push((format!("{name} compare text"), comparison.text()));
}

/// Returns the reports on all records, with their names.
fn reports() -> Vec<(String, Report)> {
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
    reports
}

/// Returns all output (text, JSON and comparisons) for all records.
fn printed() -> Printed {
    let mut printed = Printed::new();
    let reports = reports();
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

/// Checks that a row follows each heading of a text. Headings are bold.
fn has_rows(name: &str, text: &str) {
    const BOLD: &str = "\x1b[1m";
    let lines: Vec<_> = text.lines().collect();
    for (place, line) in lines.iter().enumerate() {
        if line.starts_with(BOLD) && !line.contains("nothing stands out") {
            let row = lines.get(place + 1).copied().unwrap_or_default();
            assert!(
                !row.is_empty() && !row.starts_with(BOLD),
                "{name}: {line}\n{text}"
            );
        }
    }
}

#[test]
fn a_table_has_rows_and_a_text_that_is_no_screen_has_all_of_them() {
    for (name, report) in reports() {
        let coloured = |style| Style {
            is_coloured: true,
            ..style
        };
        let whole = report.styled(coloured(Style::whole()));
        has_rows(&name, &whole);
        for height in 8..60 {
            let screen = Style {
                height,
                ..Style::default()
            };
            has_rows(&name, &report.styled(coloured(screen)));
        }
        assert!(
            !whole.contains(" more)") && (!whole.contains('…') || whole.contains("--json has it")),
            "{name}\n{whole}"
        );
        let [process] = &report.processes[..] else {
            continue;
        };
        if process.sum.is_none() {
            continue;
        }
        let took: Vec<_> = process.slowest.iter().map(|slow| slow.busy()).collect();
        assert!(
            took.is_sorted_by(|one, next| one >= next),
            "{name}: {took:?}"
        );
        let of = &process.calls;
        let named = of.calls.iter().chain(&of.functions).map(|one| &one.name);
        let kernels = process.kernels.totals.iter().map(|one| &one.short_name);
        // A long name may continue on the next line, so compare texts without their spaces.
        let squeezed = |text: &str| text.split_whitespace().collect::<String>();
        let all = squeezed(&whole);
        // A very long name is shortened in its middle, so compare only the first characters.
        let start =
            |name: &str| -> String { squeezed(&printable(name)).chars().take(60).collect() };
        for row in named.chain(kernels) {
            assert!(all.contains(&start(row)), "{name}: {row}\n{whole}");
        }
    }
}

#[test]
fn findings_claim_rows_of_the_ledger_and_none_twice() {
    let mut claimed = 0;
    for (name, report) in reports() {
        let mut left: HashMap<(usize, LedgerSide, String), u64> = HashMap::new();
        for (place, process) in report.processes.iter().enumerate() {
            for (side, rows) in [
                (LedgerSide::Host, &process.ledger.host),
                (LedgerSide::Gpu, &process.ledger.gpu),
            ] {
                left.extend(
                    rows.iter()
                        .map(|row| ((place, side, row.cause.clone()), row.ns)),
                );
            }
        }
        for finding in &report.findings {
            assert_eq!(finding.id, finding.rule.name);
            let holds = finding.verdict == Verdict::Yes;
            assert!(holds || finding.claims.is_empty(), "{name}: {finding:?}");
            for claim in &finding.claims {
                let row = (claim.process, claim.ledger, claim.cause.clone());
                let left = left
                    .get_mut(&row)
                    .unwrap_or_else(|| panic!("{name}: {finding:?}"));
                *left =
                    (left.checked_sub(claim.ns)).unwrap_or_else(|| panic!("{name}: {finding:?}"));
                claimed += 1;
            }
        }
    }
    assert!(claimed > 20, "{claimed}");
}

/// Sorts the lists of required keys in a schema, so that their order does not change the hash.
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

/// Returns the FNV-1a hash of a text.
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
    // Store the outputs, so that they can be compared with those of another version.
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

/// An old version of the library wrote the record `vllm-stacks.tllmprof`. That version did not mark an iteration that
/// was cut off by the end of the process.
#[test]
fn a_shutdown_in_the_last_iteration_is_not_a_finding() {
    let records = corpus();
    let stored = |(name, _): &&(String, _)| name == "vllm-stacks.tllmprof";
    let (name, bytes) = records.iter().find(stored).unwrap();
    let process = process(name, bytes);
    let last = process.windows.last().unwrap().iterations.last().unwrap();
    assert_eq!(
        (last.n, last.unqualified),
        (1041, Some(Unqualified::Cut)),
        "{last:?}"
    );
    let text = Report::new(vec![process]).text();
    let (_, findings) = text.split_once("what stands out").unwrap();
    let (findings, _) = findings.split_once("not known without").unwrap();
    assert!(findings.contains("host-bound"), "{findings}");
    assert!(!findings.contains("shutdown"), "{findings}");
}
