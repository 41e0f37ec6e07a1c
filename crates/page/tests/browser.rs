//! Tests of the page in a browser (`web/test/page.mjs`), and a test that the page's bundle is up to
//! date with its sources.

mod common;
#[path = "common/engine/mod.rs"]
mod engine;
#[path = "../../report/tests/common/job.rs"]
mod job;
#[path = "../../../tests/common/skipped.rs"]
mod skipped;

use std::fs::File;
use std::io::Read;
use std::process::Command;
use std::time::Duration;

use common::{TestPage, damaged, engine, finish, repo};
use flate2::read::GzDecoder;
use job::{Cause, Job, MS, Plant};
use serde_json::{Value, json};
use skipped::skipped;
use tempfile::TempDir;
use tllmprof_report::{Bytes, Quantity, Rate, Share, Time};

/// Time limit of a script, longer than any script needs on a busy machine.
const CHILD_TIMEOUT: Duration = Duration::from_secs(900);

/// Returns the output of a script. If a program that the script needs is not installed, returns
/// `None`, and the test is skipped.
fn run_script(script: &str, argument: Option<&str>) -> Option<String> {
    let mut command = Command::new(repo().join("scripts").join(script));
    let ended = finish(command.args(argument), CHILD_TIMEOUT);
    if ended.code == Some(3) {
        skipped(ended.stderr.trim());
        return None;
    }
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    Some(ended.stdout.trim().to_owned())
}

/// Returns test cases for formatting: a number, the name of the script's function that formats it,
/// and the expected text.
fn numbers() -> Vec<Value> {
    let mut random = 1_u64;
    let mut next = |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 11) % below
    };
    // These numbers are hard to round: they lie exactly halfway between two numbers that can be shown, or where the
    // number of digits changes.
    let ties = [
        1_125_000,
        1_375_000,
        2_675_000,
        62_500,
        1_062_500_000,
        12_250_000,
    ];
    let edges = [
        0,
        1,
        999,
        1000,
        9_994,
        9_995,
        99_949,
        99_950,
        999_499,
        999_500,
        999_500_000,
    ];
    let random: Vec<_> = (0..400).map(|n| next(10_u64.pow(1 + n % 12))).collect();
    let mut numbers = Vec::new();
    for n in ties.into_iter().chain(edges).chain(random) {
        numbers.push(json!(["time", n, Time(n).to_string()]));
        numbers.push(json!(["bytes", n, Bytes(n).to_string()]));
        let part = n as f64 / 1e6;
        numbers.push(json!(["rate", part, Rate(part).to_string()]));
        numbers.push(json!(["share", part, Share(part).to_string()]));
        for unit in ["%", "MiB", "W"] {
            numbers.push(json!([
                "quantity",
                part,
                unit,
                Quantity(part, unit).to_string()
            ]));
        }
    }
    for sixteenths in 0..33 {
        let part = f64::from(sixteenths) / 16.0;
        numbers.push(json!(["share", part, Share(part).to_string()]));
        numbers.push(json!(["rate", part * 10.0, Rate(part * 10.0).to_string()]));
    }
    numbers
}

#[test]
fn the_committed_bundle_is_what_its_sources_give() {
    run_script("build-page", Some("--check"));
}

#[test]
fn in_a_browser_it_shows_what_the_records_hold() {
    let Some(modules) = run_script("build-page", Some("--modules")) else {
        return;
    };
    let Some(browser) = run_script("get-chromium", None) else {
        return;
    };
    let scratch = TempDir::with_prefix("tllmprof-").unwrap();
    let mut ranks: Vec<_> = (0..4).map(engine).collect();
    for rank in &mut ranks {
        rank.windows = vec![(100, 150), (400, 409)];
        rank.hostile = rank.rank == 3;
        rank.experts = if rank.rank < 2 { 16 } else { 0 };
    }
    TestPage::from_engines(&ranks, tllmprof_page::EVENTS).write(scratch.path(), "ranks");
    let mut one = engine(0);
    (one.windows, one.experts) = (vec![(100, 150)], 16);
    TestPage::from_engines(&[one], tllmprof_page::EVENTS).write(scratch.path(), "one");
    let mut many = engine(0);
    (many.windows, many.layers, many.kernels) = (vec![(100, 1299)], 32, 1200);
    TestPage::from_engines(&[many], tllmprof_page::EVENTS).write(scratch.path(), "many");
    let mut moe = engine(0);
    (moe.windows, moe.layers, moe.experts) = (vec![(100, 110)], 60, 128);
    (moe.replaced, moe.kernels) = (true, 0);
    TestPage::from_engines(&[moe], tllmprof_page::EVENTS).write(scratch.path(), "moe");
    let mut batches = engine(0);
    (batches.windows, batches.layers, batches.batches) = (vec![(100, 219)], 8, true);
    TestPage::from_engines(&[batches], tllmprof_page::EVENTS).write(scratch.path(), "batches");
    let mut long = engine(0);
    (long.windows, long.layers, long.kernels) = (vec![(100, 10_099)], 1, 1);
    long.batches = true;
    TestPage::from_engines(&[long], tllmprof_page::EVENTS).write(scratch.path(), "long");
    let mut stacks = engine(0);
    (stacks.windows, stacks.layers) = (vec![(100, 199)], 8);
    (stacks.stacks, stacks.pauses) = (5000, true);
    TestPage::from_engines(&[stacks], tllmprof_page::EVENTS).write(scratch.path(), "stacks");
    let mut few = engine(0);
    (few.windows, few.stacks) = (vec![(100, 109)], 1000);
    TestPage::from_engines(&[few], tllmprof_page::EVENTS).write(scratch.path(), "few");
    let mut gaps = engine(0);
    (gaps.windows, gaps.kernels, gaps.timed) = (vec![(100, 116)], 0, 2);
    TestPage::from_engines(&[gaps], tllmprof_page::EVENTS).write(scratch.path(), "gaps");
    let mut layers = engine(0);
    (layers.windows, layers.layers, layers.scopes) = (vec![(100, 150)], 12, true);
    TestPage::from_engines(&[layers], tllmprof_page::EVENTS).write(scratch.path(), "layers");
    TestPage::from_engines(&[engine(0)], 1000).write(scratch.path(), "nothing");
    let plant = Plant {
        rank: 5,
        steps: (10, 29),
        cause: Cause::Gc,
        by: 3 * MS,
    };
    let job = Job {
        hosts: 2,
        plants: vec![plant],
        ..Job::default()
    };
    let truth = job.truth();
    let records: Vec<_> = (0..job.ranks())
        .map(|rank| job.record(rank, &truth))
        .collect();
    TestPage::from_records(&records, tllmprof_page::EVENTS).write(scratch.path(), "job");
    for name in ["vllm-stacks", "hf-generate"] {
        let path = repo().join(format!("crates/page/tests/corpus/{name}.tllmprof.gz"));
        let mut record = Vec::new();
        let mut file = GzDecoder::new(File::open(path).unwrap());
        file.read_to_end(&mut record).unwrap();
        TestPage::from_record(&record, name, tllmprof_page::EVENTS).write(scratch.path(), name);
    }
    let numbers = serde_json::to_vec(&numbers()).unwrap();
    std::fs::write(scratch.path().join("numbers.json"), numbers).unwrap();
    for seed in 0..6 {
        let shown = TestPage::from_records(&[damaged(seed), damaged(seed + 100)], 4000);
        shown.write(scratch.path(), &format!("damaged-{seed}"));
    }

    let mut node = Command::new("node");
    node.arg(repo().join("crates/page/web/test/page.mjs"))
        .args([&modules, &browser])
        .arg(scratch.path());
    let ended = finish(&mut node, CHILD_TIMEOUT);
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.stdout, ended.stderr);
    print!("{}", ended.stdout);
}
