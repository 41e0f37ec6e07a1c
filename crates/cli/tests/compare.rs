//! Tests of `tllmprof compare`, on records of a simulated server. All times in these records are known exactly.

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

/// Writes the record of a rank of the simulated server. The record's path serves as its boot id, which identifies one
/// start of a machine. So records at different paths belong to different runs.
fn record(path: &Path, rank: u64) {
    record_with(path, rank, &[(Info::Boot, &path.display().to_string())]);
}

/// Writes the record of a rank of the simulated server, with `facts` about the process, such as the identifier of its
/// run.
fn record_with(path: &Path, rank: u64, facts: &[(Info, &str)]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let (mut builder, truth) = Server::rank(rank).record();
    for (key, text) in facts {
        let value = builder.string(1, text).into();
        let key = Some(*key);
        builder.push(1, &Event::new(truth[0].start, 0, What::Info { key, value }));
    }
    builder
        .write_to(&mut fs::File::create(path).unwrap())
        .unwrap();
}

#[test]
fn two_records_give_a_verdict() {
    let scratch = Scratch::new();
    // In the simulated server, iterations of rank 2 take about a tenth longer than those of rank 3. So `b` must be
    // found faster than `a`.
    record(&scratch.path("a.tllmprof"), 2);
    record(&scratch.path("b.tllmprof"), 3);
    let text = compare(&scratch, &["a.tllmprof", "b.tllmprof"]);
    assert_eq!((text.code(), text.stderr.as_str()), (Some(0), ""));
    let mut lines = text.stdout.lines().rev();
    let last = lines.next().unwrap();
    assert!(last.starts_with("of one run a side: "), "{}", text.stdout);
    let verdict = lines.next().unwrap();
    assert!(verdict.starts_with("faster by 9."), "{}", text.stdout);
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
    for folder in ["run", "other"] {
        for rank in 0..3 {
            let path = scratch.path(&format!("{folder}/{rank}.tllmprof"));
            record_with(&path, rank, &[(Info::Boot, folder)]);
        }
    }
    scratch.write("run/notes", "no record");
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

#[test]
fn a_folder_of_several_runs_is_one_side_only_if_that_is_asked_for() {
    let scratch = Scratch::new();
    for (folder, runs) in [("base", ["one", "two"]), ("other", ["three", "three"])] {
        for (rank, run) in (0..).zip(runs) {
            let path = scratch.path(&format!("{folder}/{rank}.tllmprof"));
            record_with(&path, rank, &[(Info::Run, run), (Info::Boot, run)]);
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

#[test]
fn conditions_decide_the_status() {
    let scratch = Scratch::new();
    record(&scratch.path("a.tllmprof"), 2);
    record(&scratch.path("b.tllmprof"), 3);
    let of = |conditions: &[&str]| {
        let options = conditions
            .iter()
            .map(|condition| format!("--fail-if={condition}"));
        let options: Vec<_> = options.collect();
        let mut arguments = vec!["b.tllmprof", "a.tllmprof"];
        arguments.extend(options.iter().map(String::as_str));
        let ended = compare(&scratch, &arguments);
        assert_eq!(ended.stderr, "", "{conditions:?}");
        (ended.code(), ended.stdout)
    };
    assert_eq!(of(&["mean > +50%"]).0, Some(0));
    assert_eq!(of(&["mean > +2%"]).0, Some(3));
    assert_eq!(of(&["layer:none > +2%"]).0, Some(4));
    let (status, text) = of(&["layer:none > +2%", "mean > +2%", "rate < -50%"]);
    assert_eq!(status, Some(3));
    for line in [
        "\ncannot tell: layer:none > +2%; ",
        "\nexceeded: mean > +2%: +",
        "\nkept: rate < -50%: -",
    ] {
        assert!(text.contains(line), "{text}");
    }
    for (option, value) in [
        ("--fail-if", "p51 > +2%"),
        ("--fail-if", ""),
        ("--fail-if", "p50 > nan%"),
        ("--fail-if", "p50 > +1e999%"),
        ("--fail-if", "p50 > +99999999999999999999%"),
        ("--fail-if", "rate < -200%"),
        ("--within", "0"),
        ("--within", "-1"),
        ("--within", "nan"),
        ("--within", "1e999"),
        ("--within", "101%"),
        ("--format", "xml"),
    ] {
        let option = format!("{option}={value}");
        let ended = compare(&scratch, &[&option, "a.tllmprof", "b.tllmprof"]);
        assert_eq!(
            (ended.code(), ended.stdout.as_str()),
            (Some(2), ""),
            "{option}"
        );
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
        assert!(
            ended.stderr.contains(&format!("\"{value}\"")),
            "{}",
            ended.stderr
        );
    }
}

#[test]
fn a_negative_number_is_the_options_value() {
    let scratch = Scratch::new();
    let ended = compare(&scratch, &["--within", "-1", "a.tllmprof", "b.tllmprof"]);
    assert_eq!(ended.code(), Some(2));
    let said =
        "tllmprof: --within \"-1\": wanted: a percentage above 0 and at most 100, such as 2%\n";
    assert_eq!(ended.stderr, said);
}

#[test]
fn several_runs_of_a_side_come_before_and_after_two_dashes() {
    let scratch = Scratch::new();
    for (name, rank) in [("a", 2), ("b", 3), ("c", 2), ("d", 3)] {
        record(&scratch.path(&format!("{name}.tllmprof")), rank);
    }
    let files = ["a.tllmprof", "c.tllmprof", "--", "b.tllmprof", "d.tllmprof"];
    let text = compare(&scratch, &files);
    assert_eq!((text.code(), text.stderr.as_str()), (Some(0), ""));
    assert!(text.stdout.contains("\nfaster by 9."), "{}", text.stdout);
    assert!(
        text.stdout.contains(" 2 runs; of the middle one: "),
        "{}",
        text.stdout
    );
    let refused = compare(&scratch, &["a.tllmprof", "b.tllmprof", "c.tllmprof"]);
    let why = "tllmprof: c.tllmprof: one argument too many, or -- is missing (wanted: BASE OTHER, or BASE... -- OTHER...)\n";
    assert_eq!((refused.code(), refused.stderr.as_str()), (Some(2), why));
}

#[test]
fn a_comparison_is_the_same_figures_in_every_form() {
    let scratch = Scratch::new();
    record(&scratch.path("a.tllmprof"), 2);
    record(&scratch.path("b.tllmprof"), 3);
    let of = |format: &str| {
        let condition = "--fail-if=mean > +2%";
        let files = ["--format", format, condition, "b.tllmprof", "a.tllmprof"];
        let ended = compare(&scratch, &files);
        assert_eq!(
            (ended.code(), ended.stderr.as_str()),
            (Some(3), ""),
            "{format}"
        );
        ended.stdout
    };
    let json: Value = serde_json::from_str(&of("json")).unwrap();
    assert_eq!(json["conditions"][0]["result"], "exceeded");
    let mean = &json["measures"][1]["change"];
    let csv = of("csv");
    let mut rows = csv.lines();
    assert_eq!(
        rows.next(),
        Some("table,name,unit,base,other,change,low,high")
    );
    let row = rows
        .find(|row| row.starts_with("measures,\"iteration, mean\",ns,"))
        .unwrap();
    let cells: Vec<f64> = row
        .rsplit(',')
        .take(3)
        .map(|cell| cell.parse().unwrap())
        .collect();
    let same = [
        &mean["interval"][1],
        &mean["interval"][0],
        &mean["relative"],
    ];
    for (cell, same) in cells.iter().zip(same) {
        assert!(
            (cell - same.as_f64().unwrap()).abs() < 1e-12,
            "{row} {mean}"
        );
    }
    let why = &json["why"];
    let number = |value: &Value| value.as_f64().unwrap();
    let causes = why["causes"].as_array().unwrap();
    assert!(!causes.is_empty(), "{why}");
    let sum = causes.iter().map(|cause| number(&cause["ns"])).sum::<f64>();
    let change = number(&why["other_ns"]) - number(&why["base_ns"]);
    assert!(
        (sum + number(&why["rest_ns"]) - change).abs() < 1.0,
        "{why}"
    );
    let in_csv = csv.lines().filter(|row| row.starts_with("why,"));
    assert_eq!(in_csv.count(), causes.len() + 1, "{csv}");
    let markdown = of("markdown");
    assert!(
        markdown.contains("| why | base | other | difference |"),
        "{markdown}"
    );
    let text = of("text");
    assert!(text.contains("  why, by the "), "{text}");
    assert!(markdown.starts_with("**slower by "), "{markdown}");
    assert!(
        markdown.contains("\n- ❌ exceeded: mean \\> +2%: "),
        "{markdown}"
    );
    let junit = of("junit");
    let suite = "<testsuite name=\"tllmprof compare\" tests=\"1\" failures=\"1\" skipped=\"0\" errors=\"0\">";
    assert!(junit.starts_with(suite), "{junit}");
    assert!(
        junit.contains("<failure message=\"exceeded: mean &gt; +2%: +"),
        "{junit}"
    );
}

/// Returns the file names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let name =
        |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<_> = entries.map(name).collect();
    names.sort();
    names
}

#[test]
fn a_baseline_keeps_the_latest_runs_that_pass() {
    let scratch = Scratch::new();
    record(&scratch.path("good/a.tllmprof"), 3);
    record(&scratch.path("bad.tllmprof"), 2);
    let baseline = scratch.path("base");
    let gate = |run: &str| {
        compare(
            &scratch,
            &[
                "--baseline",
                "base",
                "--keep",
                "2",
                run,
                "--fail-if",
                "mean > +5%",
            ],
        )
    };
    let first = gate("good");
    assert_eq!(
        (first.code(), first.stdout.as_str()),
        (Some(0), ""),
        "{}",
        first.stderr
    );
    assert!(
        first
            .stderr
            .starts_with("tllmprof: --baseline base: it has no run yet"),
        "{}",
        first.stderr
    );
    assert_eq!(names(&baseline), ["0001-good"]);
    assert_eq!(names(&baseline.join("0001-good")), ["a.tllmprof"]);

    // The run `bad` exceeded the limit of `--fail-if`, so it was not kept as a baseline for later runs.
    let worse = gate("bad.tllmprof");
    assert_eq!(worse.code(), Some(3), "{}", worse.stdout);
    assert_eq!(names(&baseline), ["0001-good"]);

    // A run that the user put into the baseline folder (`release.tllmprof`) is also a baseline for new runs, but is
    // never removed.
    record(&baseline.join("release.tllmprof"), 3);
    let alike = ["--baseline", "base", "--keep", "2", "good"];
    for (boot, expected) in [
        ("second", ["0001-good", "0002-good", "release.tllmprof"]),
        ("third", ["0002-good", "0003-good", "release.tllmprof"]),
        ("fourth", ["0003-good", "0004-good", "release.tllmprof"]),
    ] {
        record_with(&scratch.path("good/a.tllmprof"), 3, &[(Info::Boot, boot)]);
        let ended = compare(&scratch, &alike);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        assert_eq!(names(&baseline), expected);
    }
    record(&scratch.path("good/a.tllmprof"), 3);
    let runs = compare(
        &scratch,
        &["--baseline", "base", "--keep", "0", "good", "--json"],
    );
    let json: Value = serde_json::from_str(&runs.stdout).unwrap();
    assert_eq!(json["runs"], serde_json::json!([3, 1]));
    assert_eq!(
        names(&baseline),
        ["0003-good", "0004-good", "release.tllmprof"]
    );
}

#[test]
fn a_baseline_takes_no_run_that_it_has_or_that_cannot_be_read() {
    let scratch = Scratch::new();
    record(&scratch.path("base/a.tllmprof"), 3);
    scratch.write("broken.tllmprof", "not a record");
    let own = compare(&scratch, &["--baseline", "base", "base/a.tllmprof"]);
    assert_eq!(own.code(), Some(2));
    assert_eq!(
        own.stderr,
        "tllmprof: base/a.tllmprof: it lies in the folder of --baseline (wanted: a new run)\n"
    );
    for baseline in ["base", "empty"] {
        let broken = compare(&scratch, &["--baseline", baseline, "broken.tllmprof"]);
        assert_eq!(broken.code(), Some(1), "{}", broken.stderr);
    }
    assert_eq!(names(&scratch.path("base")), ["a.tllmprof"]);
    assert!(!scratch.path("empty").exists());
    for keep in ["x", "-1", "1.5", "99999999999999999999"] {
        let option = format!("--keep={keep}");
        let wrong = compare(
            &scratch,
            &["--baseline", "base", &option, "broken.tllmprof"],
        );
        let said = format!("tllmprof: --keep \"{keep}\": wanted: a number of runs, such as 5\n");
        assert_eq!((wrong.code(), wrong.stderr), (Some(2), said));
    }
    let alone = compare(&scratch, &["--keep", "2", "base", "base"]);
    assert_eq!(alone.code(), Some(2), "{}", alone.stderr);
    let both = compare(&scratch, &["--baseline", "base", "base", "--", "base"]);
    assert_eq!(both.code(), Some(2), "{}", both.stderr);
    // The path that is given as the baseline folder is a file, so the folder cannot be created.
    let file = compare(&scratch, &["--baseline", "broken.tllmprof", "base"]);
    assert_eq!(file.code(), Some(1), "{}", file.stderr);
}

#[test]
fn a_run_counts_once_however_often_it_is_given() {
    let scratch = Scratch::new();
    record(&scratch.path("b/0.tllmprof"), 2);
    record(&scratch.path("c.tllmprof"), 3);
    std::os::unix::fs::symlink("b", scratch.path("link")).unwrap();
    fs::create_dir(scratch.path("copy")).unwrap();
    fs::copy(
        scratch.path("b/0.tllmprof"),
        scratch.path("copy/x.tllmprof"),
    )
    .unwrap();
    // A copy that was made later contains the record of the same process, with further events.
    let boot = scratch.path("b/0.tllmprof").display().to_string();
    let facts = [(Info::Boot, &*boot), (Info::Gpu, "another")];
    record_with(&scratch.path("later.tllmprof"), 2, &facts);
    let once = compare(&scratch, &["--json", "b", "--", "c.tllmprof"]);
    assert_eq!((once.code(), once.stderr.as_str()), (Some(0), ""));
    for (again, said) in [
        ("b", "b: it is given twice, and counts once"),
        ("link", "link: it is the same run as b, and is left out"),
        ("copy", "copy: it is the same run as b, and is left out"),
        (
            "b/0.tllmprof",
            "b/0.tllmprof: it is the same run as b, and is left out",
        ),
        (
            "later.tllmprof",
            "later.tllmprof: it is the same run as b, and is left out",
        ),
    ] {
        let ended = compare(&scratch, &["--json", "b", again, "--", "c.tllmprof"]);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        assert_eq!(ended.stderr, format!("tllmprof: {said}\n"));
        assert_eq!(ended.stdout, once.stdout, "{again}");
    }
    // A run may be compared with itself, with a copy of itself, and with a later copy of its record that has further
    // events.
    for other in ["b", "copy", "later.tllmprof"] {
        let itself = compare(&scratch, &["--json", "b", other]);
        assert_eq!((itself.code(), itself.stderr.as_str()), (Some(0), ""));
        let json: Value = serde_json::from_str(&itself.stdout).unwrap();
        assert_eq!(json["verdict"], "equal", "{other}");
    }
}

#[test]
fn a_run_that_the_baseline_has_already_is_not_compared_with_itself() {
    let scratch = Scratch::new();
    record(&scratch.path("one.tllmprof"), 3);
    record(&scratch.path("two.tllmprof"), 2);
    let gate = |run: &str| {
        let condition = "--fail-if=mean > +50%";
        compare(&scratch, &["--baseline", "base", run, "--json", condition])
    };
    assert_eq!(gate("one.tllmprof").code(), Some(0));
    let again = gate("one.tllmprof");
    assert_eq!((again.code(), again.stdout.as_str()), (Some(0), ""));
    let lines: Vec<_> = again.stderr.lines().collect();
    assert_eq!(
        lines,
        [
            "tllmprof: base/0001-one: it is the same run as one.tllmprof, and is left out",
            "tllmprof: --baseline base: it has no other run, so there is nothing to compare with",
        ]
    );
    assert_eq!(gate("two.tllmprof").code(), Some(0));
    let third = gate("one.tllmprof");
    let json: Value = serde_json::from_str(&third.stdout).unwrap();
    assert_eq!(json["runs"], serde_json::json!([1, 1]), "{}", third.stderr);
    assert_eq!(names(&scratch.path("base")), ["0001-one", "0002-two"]);
}

#[test]
fn a_run_that_later_runs_cannot_be_compared_with_is_no_baseline() {
    let scratch = Scratch::new();
    record(&scratch.path("good.tllmprof"), 3);
    record(&scratch.path("whole.tllmprof"), 3);
    let mut bytes = fs::read(scratch.path("whole.tllmprof")).unwrap();
    let middle = bytes.len() / 2;
    bytes.drain(middle..middle + 4096);
    fs::write(scratch.path("damaged.tllmprof"), bytes).unwrap();
    let empty = tllmprof_record::builder::Builder::new(7, tllmprof_record::ClockKind::Monotonic);
    let mut file = fs::File::create(scratch.path("empty.tllmprof")).unwrap();
    empty.write_to(&mut file).unwrap();
    for baseline in ["new", "base"] {
        for (run, why) in [
            ("damaged.tllmprof", "damaged: "),
            ("empty.tllmprof", "it has no iterations (wanted: "),
        ] {
            let refused = compare(&scratch, &["--baseline", baseline, run]);
            assert_eq!((refused.code(), refused.stdout.as_str()), (Some(1), ""));
            let said = format!("tllmprof: --baseline {baseline}: {run}: {why}");
            assert!(refused.stderr.starts_with(&said), "{}", refused.stderr);
            assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
        }
        assert_eq!(scratch.path(baseline).exists(), baseline == "base");
        let kept = compare(&scratch, &["--baseline", "base", "good.tllmprof"]);
        assert_eq!(kept.code(), Some(0), "{}", kept.stderr);
    }
    // A record without iterations is refused only because it cannot serve as a baseline for later runs. With `--keep 0`
    // no run is stored as a baseline, so the record is accepted.
    let alone = ["--baseline", "base", "--keep", "0", "empty.tllmprof"];
    let compared = compare(&scratch, &alone);
    assert_eq!(compared.code(), Some(0), "{}", compared.stderr);
    assert_eq!(names(&scratch.path("base")), ["0001-good"]);
}

#[test]
fn a_baseline_keeps_its_runs_if_a_new_one_cannot_be_written() {
    let scratch = Scratch::new();
    record(&scratch.path("old.tllmprof"), 3);
    record(&scratch.path("new.tllmprof"), 3);
    let gate = ["--baseline", "base", "--keep", "1"];
    let first = compare(&scratch, &[&gate[..], &["old.tllmprof"]].concat());
    assert_eq!(first.code(), Some(0), "{}", first.stderr);
    // The limit on the size of files stands for a full disk.
    let mut limited = plain("sh".as_ref());
    let command = "ulimit -f 8; exec \"$0\" compare --baseline base --keep 1 new.tllmprof";
    limited.args(["-c", command, env!("CARGO_BIN_EXE_tllmprof")]);
    let full = finish(limited.current_dir(scratch.path("")));
    assert_eq!(full.code(), Some(1), "{}", full.stderr);
    assert_eq!(full.stderr.lines().count(), 1, "{}", full.stderr);
    let said = "tllmprof: --baseline base: new.tllmprof: ";
    assert!(full.stderr.starts_with(said), "{}", full.stderr);
    assert_eq!(names(&scratch.path("base")), ["0001-old"]);
}
