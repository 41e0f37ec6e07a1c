//! Tests with the stored records in `corpus`: page, text and JSON contain the same shares of time by cause, the shares
//! of each list add up to 1, and little time is unexplained.

mod common;
#[path = "common/engine/mod.rs"]
mod engine;
#[path = "common/shares.rs"]
mod shares;

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use common::TestPage;
use flate2::read::GzDecoder;
use serde_json::Value;

/// Maximum share of time without a known cause, as a fraction: for the host and for the GPU.
const UNEXPLAINED: [(&str, f64); 2] = [("host", 0.10), ("gpu", 0.05)];

/// Maximum size of a stored record's file, in bytes.
const LARGEST: u64 = 200_000;

fn corpus() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let files = fs::read_dir(folder).unwrap().flatten();
    let files = files.map(|file| file.path());
    let mut files: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|end| end == "gz"))
        .collect();
    files.sort();
    files
}

fn read(path: &Path) -> Vec<u8> {
    let mut record = Vec::new();
    let mut file = GzDecoder::new(File::open(path).unwrap());
    file.read_to_end(&mut record).unwrap();
    record
}

#[test]
fn there_is_one_figure_for_each_share_and_little_is_unexplained() {
    assert!(!corpus().is_empty());
    for path in corpus() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        println!("{name}");
        let shown = TestPage::from_record(&read(&path), &name, 1 << 20);
        let json = shares::are_the_same(&shown);
        let process = &json["processes"][0];
        assert!(
            process["inside"]["iterations"].as_u64().unwrap() > 0,
            "{name}"
        );
        assert_eq!(process["dropped"], 0, "{name}");
        // The share of waits must be the mean wait divided by the mean duration. It is not compared with the ledger
        // (the table of time by cause), in which small waits have no row of their own.
        let inside = &process["inside"];
        let waits = inside["wait"]["mean_ns"].as_f64().unwrap();
        let share = inside["wait_share"].as_f64().unwrap();
        assert_eq!(share > 0.0, waits > 0.0, "{name}: {share} of {waits} ns");
        let time = match &inside["without_kernels"] {
            Value::Null => &inside["time"],
            time => time,
        };
        let mean = time["mean_ns"].as_f64().unwrap() + inside["idle"]["mean_ns"].as_f64().unwrap();
        assert!(
            (share - waits / mean).abs() < 0.02,
            "{name}: {share}, {waits} of {mean} ns"
        );
        if !process["stacks"].is_null() {
            shares::samples_are_the_same(&shown);
        }
        for (side, most) in UNEXPLAINED {
            let rows = shares::rows(process, side);
            let is_none = |cause: &str| ["other", "unknown"].iter().any(|one| cause.ends_with(one));
            // Rows for busy time are left out: they contain names of kernels, which may end with
            // any word.
            let is_none =
                |row: &Value| row["kind"] != "busy" && is_none(row["cause"].as_str().unwrap());
            let part = shares::sum(rows, is_none);
            assert!(part <= most, "{name}: {side}: {part}\n{rows:#?}");
        }
        let losses = json["findings"].as_array().unwrap().iter();
        let losses: f64 = losses.filter_map(|one| one["loss"].as_f64()).sum();
        assert!(losses <= 1.0 + 1e-9, "{name}: {losses}");
    }
}

#[test]
fn the_table_says_what_each_record_is() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let table = fs::read_to_string(folder.join("README.md")).unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut named: Vec<_> = rows.filter_map(|row| row.split('`').next()).collect();
    named.sort_unstable();
    let files = corpus();
    let files: Vec<_> = files
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap())
        .collect();
    assert_eq!(named, files);
    for path in corpus() {
        let size = fs::metadata(&path).unwrap().len();
        assert!(size <= LARGEST, "{}: {size} bytes", path.display());
    }
}

/// The numbers of layers are known from the programs that made these records
/// (scripts/engines/drivers, scripts/streams, scripts/gpu_check/programs). In llama.cpp the last
/// layer processes fewer tokens and runs other kernels, so it is not one of the equal blocks.
#[test]
fn equal_blocks_are_the_layers_of_the_models() {
    let models = [
        ("hf-generate", 4, false),
        ("sglang-server", 8, false),
        ("lmdeploy-offline", 8, false),
        ("ctranslate2-offline", 8, false),
        ("llama.cpp", 3, true),
        ("onnxruntime-run", 40, false),
        ("onnxruntime-binding", 40, false),
        ("onnxruntime-graph", 40, false),
    ];
    for (name, layers, one_more) in models {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/corpus/{name}.tllmprof.gz"));
        let json = TestPage::from_record(&read(&path), name, 1 << 20).json();
        let process = &json["processes"][0];
        let blocks = &process["blocks"];
        let each = blocks["block_ns"].as_array().unwrap();
        assert_eq!(each.len(), layers, "{name}");
        assert_eq!(!blocks["partly"].is_null(), one_more, "{name}");
        // All blocks do the same work, so no block may take more than twice as long as another.
        let each = || each.iter().map(|ns| ns.as_u64().unwrap());
        let (least, most) = (each().min().unwrap(), each().max().unwrap());
        assert!(most < 2 * least, "{name}: {least} to {most} ns");
        // The times of a block's kernels must add up to the time of the block.
        let kernels = blocks["kernels"].as_array().unwrap().iter();
        let kernels: u64 = kernels.map(|one| one["gpu_ns"].as_u64().unwrap()).sum();
        assert_eq!(kernels, each().sum::<u64>(), "{name}");
        let outside = ["before", "behind"].map(|place| blocks[place]["gpu_ns"].as_u64().unwrap());
        let all = kernels + outside.iter().sum::<u64>();
        let share = blocks["share"].as_f64().unwrap();
        assert!((share - kernels as f64 / all as f64).abs() < 1e-9, "{name}");
    }
    // This record is of a loop that runs only four kernels, so it must have no repeated blocks.
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/torch-graph.tllmprof.gz");
    let json = TestPage::from_record(&read(&path), "torch-graph", 1 << 20).json();
    assert!(json["processes"][0]["blocks"].is_null());
}
