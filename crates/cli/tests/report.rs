//! Tests of `tllmprof report`, on records of a simulated server. All times in these records are known exactly.

mod common;
#[path = "../../nsys/tests/common/mod.rs"]
mod export;
#[path = "common/fetched.rs"]
mod fetched;
#[path = "../../report/tests/common/job.rs"]
mod job;
#[path = "../../report/tests/common/server.rs"]
mod server;
#[path = "../../../tests/common/skipped.rs"]
mod skipped;

use std::path::PathBuf;

use common::{Ended, Scratch, finish, plain};
use export::{Export, Schema};
use fetched::fetched;
use job::{Cause, Job, MS, Plant};
use serde_json::Value;
use server::Server;

fn report(scratch: &Scratch, arguments: &[&str]) -> Ended {
    let mut command = plain(env!("CARGO_BIN_EXE_tllmprof").as_ref());
    finish(
        command
            .arg("report")
            .args(arguments)
            .current_dir(scratch.path("")),
    )
}

/// Writes the record of rank `rank` of the simulated server into the test's folder. Returns the record's path.
fn record(scratch: &Scratch, rank: u64) -> PathBuf {
    let path = scratch.path(&format!("rank-{rank}.tllmprof"));
    let mut file = std::fs::File::create(&path).unwrap();
    Server::rank(rank).record().0.write_to(&mut file).unwrap();
    path
}

#[test]
fn text_for_people_and_json_for_programs() {
    let scratch = Scratch::new();
    record(&scratch, 0);
    let text = report(&scratch, &["rank-0.tllmprof"]);
    assert_eq!((text.code(), text.stderr.as_str()), (Some(0), ""));
    assert!(
        text.stdout.starts_with("rank-0.tllmprof\npython -m server"),
        "{}",
        text.stdout
    );
    assert!(
        text.stdout
            .contains("window 100-150: 51 iterations in 546 ms, 93.4 a second\n")
    );
    let json = report(&scratch, &["--json", "rank-0.tllmprof"]);
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["processes"][0]["file"], "rank-0.tllmprof");
    let iterations = json["processes"][0]["windows"][0]["iterations"]
        .as_array()
        .unwrap();
    assert_eq!(iterations.len(), 51);
}

#[test]
fn a_format_is_the_same_figures_in_another_form() {
    let scratch = Scratch::new();
    record(&scratch, 0);
    let of = |format: &str| {
        let ended = report(&scratch, &["--format", format, "rank-0.tllmprof"]);
        assert_eq!(
            (ended.code(), ended.stderr.as_str()),
            (Some(0), ""),
            "{format}"
        );
        ended.stdout
    };
    let same = |arguments: &[&str]| report(&scratch, arguments).stdout;
    assert_eq!(of("text"), same(&["rank-0.tllmprof"]));
    assert_eq!(of("json"), same(&["--json", "rank-0.tllmprof"]));
    assert!(of("html").starts_with("<!doctype html>"));
    let json: Value = serde_json::from_str(&of("json")).unwrap();
    let ledger = &json["processes"][0]["ledger"]["host"];
    let csv = of("csv");
    let rows: Vec<_> = csv.lines().collect();
    assert_eq!(
        rows[0],
        "process,rank,table,name,count,total_ns,mean_ns,p50_ns,max_ns,bytes,share,text"
    );
    let of_host: Vec<_> = rows
        .iter()
        .filter(|row| row.starts_with("0,0,host,"))
        .collect();
    assert_eq!(of_host.len(), ledger.as_array().unwrap().len());
    let first = format!(",{},,,,,{},", ledger[0]["ns"], ledger[0]["share"]);
    assert!(of_host[0].ends_with(&first), "{} {first}", of_host[0]);
    let [both, unknown] = [
        &["--json", "--format", "csv", "rank-0.tllmprof"][..],
        &["--format", "xml", "rank-0.tllmprof"],
    ]
    .map(|arguments| report(&scratch, arguments));
    assert_eq!((both.code(), unknown.code()), (Some(2), Some(2)));
    assert!(
        unknown.stderr.contains("--format \"xml\""),
        "{}",
        unknown.stderr
    );
    assert_eq!(unknown.stderr.lines().count(), 1);
}

#[test]
fn several_records_are_put_side_by_side() {
    let scratch = Scratch::new();
    for rank in [1, 0, 2] {
        record(&scratch, rank);
    }
    let files = ["rank-1.tllmprof", "rank-0.tllmprof", "rank-2.tllmprof"];
    let text = report(&scratch, &files);
    assert_eq!(text.code(), Some(0));
    assert!(
        text.stdout
            .contains("\nrank 2 was the slowest in 49 of 51\n"),
        "{}",
        text.stdout
    );
}

#[test]
fn a_folder_of_many_ranks_is_one_report() {
    let scratch = Scratch::new();
    let plant = Plant {
        rank: 21,
        steps: (10, 19),
        cause: Cause::Gc,
        by: 4 * MS,
    };
    let job = Job {
        hosts: 4,
        plants: vec![plant],
        ..Job::default()
    };
    let truth = job.truth();
    std::fs::create_dir(scratch.path("job")).unwrap();
    for rank in 0..job.ranks() {
        let path = scratch.path(&format!("job/{rank}.tllmprof"));
        std::fs::write(path, job.record(rank, &truth)).unwrap();
    }
    // One of the records cannot be read. This record is reported, and the other records are shown in the order of their
    // ranks.
    std::fs::write(scratch.path("job/7.tllmprof"), tllmprof_record::MAGIC).unwrap();
    let ran = report(&scratch, &["job", "--json"]);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("job/7.tllmprof"), "{}", ran.stderr);
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    let processes = json["processes"].as_array().unwrap().iter();
    let ranks: Vec<_> = processes.map(|one| one["rank"].as_u64().unwrap()).collect();
    let expected: Vec<_> = (0..32).filter(|rank| *rank != 7).collect();
    assert_eq!(ranks, expected);
    let slow = &json["collectives"]["ranks"][20];
    assert_eq!(
        (&slow["last"], &slow["causes"][0]["cause"]),
        (&10.into(), &"GC".into())
    );
}

#[test]
fn what_is_no_record_is_named_and_the_others_are_read() {
    let scratch = Scratch::new();
    record(&scratch, 0);
    scratch.write("text", "TLLMPROG is something else");
    let ended = report(&scratch, &["--json", "absent", "text", "rank-0.tllmprof"]);
    assert_eq!(ended.code(), Some(1));
    let json: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(json["processes"].as_array().unwrap().len(), 1);
    let expected = "tllmprof: absent: there is no such file\n\
                    tllmprof: text: not a tllmprof record\n";
    assert_eq!(ended.stderr, expected);
    let ended = report(&scratch, &["text"]);
    assert_eq!((ended.code(), ended.stdout.as_str()), (Some(1), ""));
    let folder = report(&scratch, &["--json", "."]);
    assert_eq!((folder.code(), folder.stderr.as_str()), (Some(0), ""));
    let file = report(&scratch, &["--json", "./rank-0.tllmprof"]);
    assert_eq!(folder.stdout, file.stdout);
    let ended = report(&scratch, &["--json", ".", "rank-0.tllmprof"]);
    let expected = "tllmprof: rank-0.tllmprof is given twice\n";
    assert_eq!((ended.code(), ended.stderr.as_str()), (Some(2), expected));
    std::fs::create_dir(scratch.path("nothing")).unwrap();
    let ended = report(&scratch, &["nothing"]);
    let expected = "tllmprof: nothing: there is no record in it\n";
    assert_eq!((ended.code(), ended.stderr.as_str()), (Some(1), expected));
}

#[test]
fn what_is_called_a_record_and_is_none_is_named_and_nobody_waits_for_a_fifo() {
    let scratch = Scratch::new();
    let good = record(&scratch, 0);
    let damaged = good.with_file_name("rank-1.tllmprof");
    std::fs::write(&damaged, b"\0LLMPROF").unwrap();
    let fifo = good.with_file_name("fifo");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let folder = report(&scratch, &["--json", "."]);
    let said = "tllmprof: ./rank-1.tllmprof: not a tllmprof record\n";
    assert_eq!((folder.code(), folder.stderr.as_str()), (Some(1), said));
    let json: Value = serde_json::from_str(&folder.stdout).unwrap();
    assert_eq!(json["processes"].as_array().unwrap().len(), 1);
    std::fs::remove_file(damaged).unwrap();
    let folder = report(&scratch, &["--json", "."]);
    assert_eq!((folder.code(), folder.stderr.as_str()), (Some(0), ""));
    let ended = report(&scratch, &["fifo"]);
    let said = "tllmprof: fifo: it is a pipe or a device (wanted: a file, because it is read more than once)\n";
    assert_eq!((ended.code(), ended.stderr.as_str()), (Some(1), said));
}

#[test]
fn a_record_that_is_cut_off_gives_what_is_left() {
    let scratch = Scratch::new();
    let path = record(&scratch, 0);
    let bytes = std::fs::read(&path).unwrap();
    // The file is cut off in the first thread's chunk.
    std::fs::write(&path, &bytes[..64 * 1024 + 5000]).unwrap();
    let ended = report(&scratch, &["rank-0.tllmprof"]);
    assert_eq!(ended.code(), Some(1));
    assert!(ended.stdout.contains("never closed"), "{}", ended.stdout);
    let damage = format!("damaged: cut at 70536 of {} bytes", bytes.len());
    assert!(ended.stdout.contains(&damage), "{}", ended.stdout);
    // The file is cut off in the header.
    std::fs::write(&path, &bytes[..6000]).unwrap();
    let ended = report(&scratch, &["rank-0.tllmprof", "--json"]);
    assert_eq!(ended.code(), Some(1));
    let json: Value = serde_json::from_str(&ended.stdout).unwrap();
    let damage = json["processes"][0]["damage"].as_str().unwrap();
    let cut = format!("cut at 6000 of {} bytes", bytes.len());
    assert!(damage.starts_with(&cut), "{damage}");
    assert_eq!(json["processes"][0]["state"], "damaged");
    std::fs::write(&path, &bytes[..10]).unwrap();
    let ended = report(&scratch, &["rank-0.tllmprof"]);
    assert_eq!((ended.code(), ended.stdout.as_str()), (Some(1), ""));
    assert_eq!(
        ended.stderr,
        "tllmprof: rank-0.tllmprof: cut off: 10 bytes\n"
    );
}

#[test]
fn a_record_that_was_changed_is_a_failure() {
    let scratch = Scratch::new();
    let path = record(&scratch, 0);
    let mut bytes = std::fs::read(&path).unwrap();
    // The changed bit is in an event of the first thread's chunk.
    bytes[65_536 + 208 + 100 * 24] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let ended = report(&scratch, &["rank-0.tllmprof"]);
    assert_eq!(ended.code(), Some(1));
    assert!(
        ended.stdout.contains("damaged: 1 damaged chunk, "),
        "{}",
        ended.stdout
    );
}

/// The record of a process that was killed at its start is reported as empty. The other records are still shown.
#[test]
fn a_record_that_was_only_begun_is_said_to_be_empty() {
    let scratch = Scratch::new();
    scratch.write("begun", "");
    let ended = report(&scratch, &["begun"]);
    let said = "tllmprof: begun: 0 bytes, nothing was recorded\n";
    assert_eq!((ended.code(), ended.stdout.as_str()), (Some(1), ""));
    assert_eq!(ended.stderr, said);
    record(&scratch, 0);
    let ended = report(&scratch, &["begun", "rank-0.tllmprof"]);
    assert_eq!((ended.code(), ended.stderr.as_str()), (Some(0), said));
    assert!(
        ended.stdout.contains("window 100-150: "),
        "{}",
        ended.stdout
    );
}

#[test]
fn a_file_that_is_given_twice_is_a_mistake() {
    let scratch = Scratch::new();
    record(&scratch, 0);
    let ended = report(&scratch, &["rank-0.tllmprof", "./rank-0.tllmprof"]);
    assert_eq!((ended.code(), ended.stdout.as_str()), (Some(2), ""));
    assert_eq!(ended.stderr, "tllmprof: ./rank-0.tllmprof is given twice\n");
}

#[test]
fn the_command_line_is_checked() {
    let scratch = Scratch::new();
    assert_eq!(report(&scratch, &[]).code(), Some(2));
    record(&scratch, 0);
    let both = report(&scratch, &["--schema", "rank-0.tllmprof"]);
    assert_eq!((both.code(), both.stdout.as_str()), (Some(2), ""));
}

#[test]
fn the_schema_names_the_keys_of_the_json() {
    let scratch = Scratch::new();
    record(&scratch, 0);
    let schema = report(&scratch, &["--schema"]);
    assert_eq!((schema.code(), schema.stderr.as_str()), (Some(0), ""));
    let schema: Value = serde_json::from_str(&schema.stdout).unwrap();
    let json = report(&scratch, &["--json", "rank-0.tllmprof"]);
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    for (described, there) in [
        (&schema, &json),
        (&schema["$defs"]["Process"], &json["processes"][0]),
        (&schema["$defs"]["Sum"], &json["processes"][0]["inside"]),
    ] {
        let described: Vec<_> = described["properties"]
            .as_object()
            .unwrap()
            .keys()
            .collect();
        let there: Vec<_> = there.as_object().unwrap().keys().collect();
        assert_eq!(described, there);
    }
}

#[test]
fn a_page_takes_its_name_when_it_is_whole() {
    let scratch = Scratch::new();
    record(&scratch, 0);
    let ended = report(&scratch, &["--html", "out.html", "rank-0.tllmprof"]);
    assert_eq!((ended.code(), ended.stdout.as_str()), (Some(0), ""));
    assert_eq!(ended.stderr, "tllmprof: wrote out.html\n");
    let page = std::fs::read_to_string(scratch.path("out.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(page.contains("python -m server --model tiny"));
    let again = ["--json", "--html", "out.html", "rank-0.tllmprof"];
    let ended = report(&scratch, &again);
    assert_eq!((ended.code(), ended.stdout.as_str()), (Some(1), ""));
    let expected = "tllmprof: out.html: it exists already (--force replaces it)\n";
    assert_eq!(ended.stderr, expected);
    let ended = report(&scratch, &[&again[..], &["--force"]].concat());
    let json: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(json["processes"][0]["pid"], 4000);

    for out in ["absent/out.html", "/"] {
        let ended = report(&scratch, &["--html", out, "rank-0.tllmprof"]);
        assert_eq!((ended.code(), ended.stdout.as_str()), (Some(1), ""));
        assert!(ended.stderr.contains(out), "{}", ended.stderr);
    }
    let itself = ["--force", "--html", "rank-0.tllmprof", "rank-0.tllmprof"];
    let ended = report(&scratch, &itself);
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
    let ended = report(&scratch, &["--html", "other.html", "absent"]);
    assert_eq!(ended.code(), Some(1));
    let mut left: Vec<_> = std::fs::read_dir(scratch.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["out.html", "rank-0.tllmprof"]);
}

#[test]
fn what_nsys_exports_is_read_too() {
    let scratch = Scratch::new();
    let thread = export::thread(77, 77);
    for (name, domain) in [("ours.sqlite", "tllmprof"), ("theirs.sqlite", "theirs")] {
        let mut export = Export::new(&scratch.path(name), Schema::Full);
        export.domain(thread, 1, domain);
        for n in 0..9 {
            let at = 1_000_000 * n;
            export.range(60, thread, 1, "iteration", Some(n), [at, at + 900_000]);
        }
        export.finish();
    }
    scratch.write("run.nsys-rep", "whatever");
    let ended = report(&scratch, &["ours.sqlite"]);
    assert_eq!((ended.code(), ended.stderr.as_str()), (Some(0), ""));
    assert!(
        ended.stdout.contains("window 0-8: 9 iterations in 8.90 ms"),
        "{}",
        ended.stdout
    );
    let ended = report(
        &scratch,
        &["theirs.sqlite", "--step", "nvtx:^iteration$@theirs"],
    );
    assert_eq!((ended.code(), ended.stderr.as_str()), (Some(0), ""));
    assert!(
        ended.stdout.contains("window 0-8: 9 iterations in 8.90 ms"),
        "{}",
        ended.stdout
    );
    let none = report(&scratch, &["theirs.sqlite", "--step", "nvtx:other"]);
    let why = "tllmprof: theirs.sqlite: --step nvtx:other: no range of the trace matches; the most frequent ranges are \
               iteration (9 times)\n";
    assert_eq!((none.code(), none.stderr.as_str()), (Some(1), why));
    let mut without = plain(env!("CARGO_BIN_EXE_tllmprof").as_ref());
    without
        .args(["report", "run.nsys-rep"])
        .current_dir(scratch.path(""));
    let ended = finish(without.env("PATH", scratch.path("nowhere")));
    let why = "tllmprof: run.nsys-rep: a report of nsys, and no nsys was found to export it (wanted: nsys on PATH or in \
               TLLMPROF_NSYS, or the file that nsys export --type sqlite makes of it)\n";
    assert_eq!((ended.code(), ended.stderr.as_str()), (Some(1), why));
    without.env("TLLMPROF_NSYS", "/none/nsys");
    let why = "tllmprof: run.nsys-rep: TLLMPROF_NSYS=\"/none/nsys\": there is no such program (wanted: the path of nsys)\n";
    let ended = finish(&mut without);
    assert_eq!((ended.code(), ended.stderr.as_str()), (Some(1), why));
}

#[test]
fn the_rule_of_step_is_checked() {
    let scratch = Scratch::new();
    record(&scratch, 0);
    for (rule, why) in [
        (
            "cudaGraphLaunch",
            "no FILE is a trace of another profiler (wanted: one; a record has its own iterations)",
        ),
        ("sym:step", "traces hold no calls of native functions"),
        ("nvtx:(", "does not compile"),
    ] {
        let ended = report(&scratch, &["--step", rule, "rank-0.tllmprof"]);
        assert_eq!((ended.code(), ended.stdout.as_str()), (Some(2), ""));
        assert!(ended.stderr.contains(why), "{}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
}

/// Writes the record of rank `rank` of the simulated server into the folder `tllmprof-{run}`. The record's run
/// identifier is `run`.
fn record_of(scratch: &Scratch, run: &str, rank: u64) {
    use tllmprof_record::{Event, Info, What};
    let (mut builder, truth) = Server::rank(rank).record();
    let value = builder.string(1, run).into();
    let key = Some(Info::Run);
    builder.push(1, &Event::new(truth[0].start, 0, What::Info { key, value }));
    std::fs::create_dir_all(scratch.path(&format!("tllmprof-{run}"))).unwrap();
    let path = scratch.path(&format!("tllmprof-{run}/rank-{rank}.tllmprof"));
    let mut file = std::fs::File::create(path).unwrap();
    builder.write_to(&mut file).unwrap();
}

#[test]
fn different_runs_are_shown_apart() {
    let scratch = Scratch::new();
    let ended = report(&scratch, &[]);
    assert_eq!(ended.code(), Some(2), "{ended:?}");
    assert!(
        ended.stderr.contains("there is no folder tllmprof-RUN"),
        "{ended:?}"
    );

    record_of(&scratch, "one", 0);
    record_of(&scratch, "two", 1);
    let newest = report(&scratch, &["--json"]);
    let json: Value = serde_json::from_str(&newest.stdout).unwrap();
    assert_eq!(json["processes"].as_array().unwrap().len(), 1);
    assert_eq!(json["processes"][0]["run"], "two");

    let both = ["tllmprof-one", "tllmprof-two"];
    let apart = report(&scratch, &both);
    assert_eq!(apart.code(), Some(0), "{apart:?}");
    assert!(apart.stdout.starts_with("run one\n"), "{}", apart.stdout);
    assert!(apart.stdout.contains("\n\nrun two\n"), "{}", apart.stdout);
    assert!(!apart.stdout.contains("2 processes"), "{}", apart.stdout);
    let refused = report(&scratch, &["--json", both[0], both[1]]);
    let why =
        "tllmprof: --json: the records belong to 2 runs: one, two (wanted: one run, or --merge)\n";
    assert_eq!((refused.code(), refused.stderr.as_str()), (Some(2), why));
    let merged = report(&scratch, &["--merge", both[0], both[1]]);
    assert!(
        merged.stdout.starts_with("2 processes: "),
        "{}",
        merged.stdout
    );
}

#[test]
fn a_copy_of_a_record_is_named_and_left_out() {
    let scratch = Scratch::new();
    let path = record(&scratch, 0);
    std::fs::copy(path, scratch.path("z.tllmprof")).unwrap();
    let ended = report(&scratch, &["--json", "."]);
    let why = "tllmprof: ./z.tllmprof: a copy of ./rank-0.tllmprof; it is left out\n";
    assert_eq!((ended.code(), ended.stderr.as_str()), (Some(0), why));
    let json: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(json["processes"].as_array().unwrap().len(), 1);
    let other = record(&scratch, 1);
    std::fs::copy(other, scratch.path("y.tllmprof")).unwrap();
    for n in 0..20 {
        let copy = scratch.path(&format!("z{n:02}.tllmprof"));
        std::fs::copy(scratch.path("z.tllmprof"), copy).unwrap();
    }
    let ended = report(&scratch, &["--json", "."]);
    let why = "tllmprof: ./z.tllmprof and 20 more: copies of ./rank-0.tllmprof; they are left out\n\
               tllmprof: ./y.tllmprof: a copy of ./rank-1.tllmprof; it is left out\n";
    assert_eq!((ended.code(), ended.stderr.as_str()), (Some(0), why));
}

#[test]
fn what_is_called_an_export_in_a_folder_is_named_where_it_cannot_be_read() {
    let scratch = Scratch::new();
    record(&scratch, 0);
    let text = "tllmprof: ./a.sqlite: file is not a database\n";
    let none = "tllmprof: ./b.sqlite: an SQLite database, but no export of nsys: ";
    let broken = "tllmprof: ./c.sqlite: ";
    scratch.write("a.sqlite", "text of several lines\nand no database");
    let other = rusqlite::Connection::open(scratch.path("b.sqlite")).unwrap();
    other.execute_batch("CREATE TABLE t (x)").unwrap();
    scratch.write("c.sqlite", "SQLite format 3\0 and its pages");
    std::fs::copy(scratch.path("rank-0.tllmprof"), scratch.path("d.sqlite")).unwrap();
    let ended = report(&scratch, &["."]);
    assert_eq!(ended.code(), Some(1), "{ended:?}");
    let said: Vec<_> = ended.stderr.split_inclusive('\n').collect();
    assert!(
        matches!(said[..], [a, b, c, d] if a == text
            && b.starts_with(none)
            && c.starts_with(broken)
            && d.contains("a copy of ./d.sqlite")),
        "{said:?}"
    );
    assert!(
        ended.stdout.contains("window 100-150: "),
        "{}",
        ended.stdout
    );
}

#[test]
fn duckdb_answers_queries_about_the_tables() {
    let Some(python) = fetched("get-readers") else {
        return;
    };
    // The `duckdb` command is in the same folder as the Python interpreter.
    let duckdb = python.parent().unwrap();
    let scratch = Scratch::new();
    record(&scratch, 0);
    record(&scratch, 1);
    std::fs::create_dir(scratch.path("temporary")).unwrap();
    let ask = |query: &str, file: &str| {
        let mut command = plain(env!("CARGO_BIN_EXE_tllmprof").as_ref());
        command
            .args(["report", "--query", query, file])
            .env("PATH", duckdb)
            .env("TMPDIR", scratch.path("temporary"))
            .current_dir(scratch.path(""));
        finish(&mut command)
    };
    let counted = ask(
        "select rank, count(*) as n from iterations group by rank order by rank",
        ".",
    );
    assert_eq!((counted.code(), counted.stderr.as_str()), (Some(0), ""));
    let json = report(&scratch, &["--json", "."]);
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    let counts = json["processes"].as_array().unwrap().iter().map(|process| {
        let windows = process["windows"].as_array().unwrap().iter();
        let iterations = windows.map(|window| window["iterations"].as_array().unwrap().len());
        format!("{},{}\n", process["rank"], iterations.sum::<usize>())
    });
    assert_eq!(
        counted.stdout,
        format!("rank,n\n{}", counts.collect::<String>())
    );
    let some = ask("iterations where dur_ns > 1e15", ".");
    assert_eq!(some.code(), Some(0), "{}", some.stderr);
    let wrong = ask("nonsense where x", ".");
    assert_eq!((wrong.code(), wrong.stdout.as_str()), (Some(1), ""));
    let last = wrong.stderr.lines().last().unwrap();
    assert!(
        last.starts_with("tllmprof: --query \"nonsense where x\": duckdb failed: "),
        "{last}"
    );
    let left = std::fs::read_dir(scratch.path("temporary")).unwrap();
    assert_eq!(left.count(), 0, "the tables are removed");
}

#[test]
fn a_query_without_duckdb_says_what_is_missing() {
    let scratch = Scratch::new();
    record(&scratch, 0);
    let mut command = plain(env!("CARGO_BIN_EXE_tllmprof").as_ref());
    command
        .args(["report", "--query", "kernels", "."])
        .env("PATH", "/nowhere");
    let ended = finish(command.current_dir(scratch.path("")));
    assert_eq!((ended.code(), ended.stdout.as_str()), (Some(1), ""));
    assert!(
        ended
            .stderr
            .starts_with("tllmprof: --query: there is no duckdb on PATH (wanted: "),
        "{}",
        ended.stderr
    );
}
