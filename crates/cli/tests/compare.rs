//! `tllmprof compare` on records of a made-up server.

mod common;
#[path = "../../report/tests/common/server.rs"]
mod server;

use std::fs;
use std::path::Path;

use common::{Ended, Scratch, finish, plain};
use serde_json::Value;
use server::Server;
use tllmprof_record::{Event, Info, What};

fn compare(scratch: &Scratch, arguments: &[&str]) -> Ended {
    let mut command = plain(env!("CARGO_BIN_EXE_tllmprof").as_ref());
    finish(
        command
            .arg("compare")
            .args(arguments)
            .current_dir(scratch.path("")),
    )
}

fn record(path: &Path, rank: u64) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut file = fs::File::create(path).unwrap();
    Server::rank(rank).record().0.write_to(&mut file).unwrap();
}

#[test]
fn two_records_give_a_verdict() {
    let scratch = Scratch::new();
    // Rank 2 takes a tenth longer than rank 1.
    record(&scratch.path("a.tllmprof"), 2);
    record(&scratch.path("b.tllmprof"), 3);
    let text = compare(&scratch, &["a.tllmprof", "b.tllmprof"]);
    assert_eq!((text.code(), text.stderr.as_str()), (Some(0), ""));
    let last = text.stdout.lines().last().unwrap();
    assert!(last.starts_with("faster by 9."), "{}", text.stdout);
    let again = compare(&scratch, &["a.tllmprof", "b.tllmprof"]);
    assert_eq!(again.stdout, text.stdout);
    let json = compare(&scratch, &["--json", "b.tllmprof", "a.tllmprof"]);
    assert_eq!(json.code(), Some(0), "a difference is no failure");
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["verdict"], "slower");
}

#[test]
fn a_folder_is_the_ranks_of_a_run() {
    let scratch = Scratch::new();
    for rank in 0..3 {
        record(&scratch.path(&format!("run/{rank}.tllmprof")), rank);
    }
    scratch.write("run/notes", "no record");
    for rank in 0..3 {
        record(&scratch.path(&format!("other/{rank}.tllmprof")), rank);
    }
    let json = compare(&scratch, &["run", "other", "--json"]);
    assert_eq!((json.code(), json.stderr.as_str()), (Some(0), ""));
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(
        (&json["base"]["processes"], &json["base"]["rank"]),
        (&3.into(), &2.into())
    );
    assert_eq!(json["ranks"].as_array().unwrap().len(), 3);
    record(&scratch.path("one.tllmprof"), 0);
    let text = compare(&scratch, &["run", "one.tllmprof"]);
    assert_eq!((text.code(), text.stderr.as_str()), (Some(0), ""));
    assert!(
        text.stdout.ends_with("not comparable: 3 and 1 ranks\n"),
        "{}",
        text.stdout
    );
}

/// Writes the record of a rank that belongs to a run.
fn record_of(path: &Path, run: &str, rank: u64) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let (mut builder, truth) = Server::rank(rank).record();
    let value = builder.string(1, run).into();
    let key = Some(Info::Run);
    builder.push(1, &Event::new(truth[0].start, 0, What::Info { key, value }));
    builder
        .write_to(&mut fs::File::create(path).unwrap())
        .unwrap();
}

#[test]
fn a_folder_of_several_runs_is_one_side_only_if_that_is_asked_for() {
    let scratch = Scratch::new();
    for (folder, runs) in [("base", ["one", "two"]), ("other", ["three", "three"])] {
        for (rank, run) in (0..).zip(runs) {
            let path = scratch.path(&format!("{folder}/{rank}.tllmprof"));
            record_of(&path, run, rank);
        }
    }
    let refused = compare(&scratch, &["base", "other"]);
    let why =
        "tllmprof: base: the records belong to 2 runs: one, two (wanted: one run, or --merge)\n";
    assert_eq!((refused.code(), refused.stderr.as_str()), (Some(2), why));
    let merged = compare(&scratch, &["--merge", "--json", "base", "other"]);
    assert_eq!((merged.code(), merged.stderr.as_str()), (Some(0), ""));
    let json: Value = serde_json::from_str(&merged.stdout).unwrap();
    let processes = |side: &str| json[side]["processes"].clone();
    assert_eq!(
        (processes("base"), processes("other")),
        (2.into(), 2.into())
    );
}

#[test]
fn what_cannot_be_read_is_a_failure_and_a_wrong_command_line_another() {
    let scratch = Scratch::new();
    record(&scratch.path("a.tllmprof"), 0);
    scratch.write("text", "something else");
    fs::create_dir(scratch.path("empty")).unwrap();
    for (arguments, said) in [
        (["a.tllmprof", "text"], "text: not a tllmprof record"),
        (["absent", "a.tllmprof"], "absent: there is no such file"),
        (["a.tllmprof", "empty"], "empty: there is no record in it"),
    ] {
        let ended = compare(&scratch, &arguments);
        assert_eq!((ended.code(), ended.stdout.as_str()), (Some(1), ""));
        assert_eq!(ended.stderr, format!("tllmprof: {said}\n"));
    }
    assert_eq!(compare(&scratch, &["a.tllmprof"]).code(), Some(2));
}
