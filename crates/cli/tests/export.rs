//! Tests of `tllmprof export`, on records of a simulated server. All times in these records are known exactly.

mod common;
#[path = "../../report/tests/common/server.rs"]
mod server;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{Ended, Scratch, finish, on_terminal, plain};
use serde_json::Value;
use server::Server;
use tllmprof_config::printable::is_hidden;
use tllmprof_record::builder::Builder;
use tllmprof_record::{ClockKind, Edge, Event, Info, What};

fn command(scratch: &Scratch, arguments: &[&str]) -> Command {
    let mut command = plain(env!("CARGO_BIN_EXE_tllmprof").as_ref());
    command
        .arg("export")
        .args(arguments)
        .current_dir(scratch.path(""));
    command
}

fn export(scratch: &Scratch, arguments: &[&str]) -> Ended {
    finish(&mut command(scratch, arguments))
}

/// Writes the record of rank `rank` of the simulated server into the test's folder.
fn record(scratch: &Scratch, rank: u64) {
    let path = scratch.path(&format!("rank-{rank}.tllmprof"));
    let mut file = fs::File::create(&path).unwrap();
    Server::rank(rank).record().0.write_to(&mut file).unwrap();
}

fn names(scratch: &Scratch) -> Vec<String> {
    let entries = fs::read_dir(scratch.path("")).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn each_format_is_made_and_what_is_there_stays() {
    let scratch = Scratch::new();
    record(&scratch, 0);
    record(&scratch, 1);
    let files = ["rank-0.tllmprof", "rank-1.tllmprof"];
    for (format, out) in [
        ("chrome", "trace.json"),
        ("perfetto", "trace.pftrace"),
        ("parquet", "tables"),
        ("speedscope", "stacks.json"),
        ("collapsed", "stacks.txt"),
    ] {
        let arguments = [&files[..], &["--to", format, "-o", out]].concat();
        let ended = export(&scratch, &arguments);
        assert_eq!(
            (ended.code(), &ended.stdout[..]),
            (Some(0), ""),
            "{}",
            ended.stderr
        );
        let said = ended.stderr.strip_prefix(&format!("tllmprof: {out}: "));
        assert!(
            said.unwrap().ends_with(" of 2 processes\n"),
            "{}",
            ended.stderr
        );
        let again = export(&scratch, &arguments);
        assert_eq!(again.code(), Some(1));
        let expected = format!("tllmprof: {out}: it exists already (--force replaces it)\n");
        assert_eq!(again.stderr, expected);
        let forced = export(&scratch, &[&arguments[..], &["--force"]].concat());
        assert_eq!((forced.code(), forced.stderr), (Some(0), ended.stderr));
    }
    let all = [
        "rank-0.tllmprof",
        "rank-1.tllmprof",
        "stacks.json",
        "stacks.txt",
        "tables",
        "trace.json",
        "trace.pftrace",
    ];
    assert_eq!(names(&scratch), all);
    let trace = fs::read(scratch.path("trace.json")).unwrap();
    let trace: Value = serde_json::from_slice(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let iterations = events.iter().filter(|event| event["cat"] == "iteration");
    assert_eq!(iterations.count(), 2 * 51);
    let part = "tables/calls/run=none/host=gpu7/rank=1/pid=4001/part-0.parquet";
    assert!(fs::read(scratch.path(part)).unwrap().starts_with(b"PAR1"));
}

/// Writes the record of rank `rank` of the simulated server into the folder `run`. The record's run identifier is
/// `run`.
fn record_of(scratch: &Scratch, run: &str, rank: u64) {
    let (mut builder, truth) = Server::rank(rank).record();
    let value = builder.string(1, run).into();
    let key = Some(Info::Run);
    builder.push(1, &Event::new(truth[0].start, 0, What::Info { key, value }));
    fs::create_dir_all(scratch.path(run)).unwrap();
    let path = scratch.path(&format!("{run}/rank-{rank}.tllmprof"));
    builder
        .write_to(&mut fs::File::create(path).unwrap())
        .unwrap();
}

fn to_chrome<'a>(files: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [files, &["--to", "chrome", "-o", "t.json"], more].concat()
}

#[test]
fn a_folder_that_is_not_there_is_named_before_anything_is_read() {
    let scratch = Scratch::new();
    record(&scratch, 0);
    let arguments = ["rank-0.tllmprof", "--to", "chrome", "-o", "no/such/t.json"];
    let ended = export(&scratch, &arguments);
    let why = "tllmprof: no/such/t.json: there is no folder no/such\n";
    assert_eq!((ended.code(), ended.stderr.as_str()), (Some(1), why));
}

#[test]
fn different_runs_are_exported_together_only_if_that_is_asked_for() {
    let scratch = Scratch::new();
    record_of(&scratch, "one", 0);
    record_of(&scratch, "two", 1);
    let refused = export(&scratch, &to_chrome(&["one", "two"], &[]));
    let why =
        "tllmprof: export: the records belong to 2 runs: one, two (wanted: one run, or --merge)\n";
    assert_eq!((refused.code(), refused.stderr.as_str()), (Some(2), why));
    assert_eq!(names(&scratch), ["one", "two"], "nothing was made");
    let merged = export(&scratch, &to_chrome(&["one", "two"], &["--merge"]));
    assert_eq!(merged.code(), Some(0), "{merged:?}");
    assert!(merged.stderr.ends_with(" of 2 processes\n"), "{merged:?}");
}

#[test]
fn a_copy_of_a_record_is_named_and_left_out() {
    let scratch = Scratch::new();
    record(&scratch, 0);
    fs::copy(scratch.path("rank-0.tllmprof"), scratch.path("z.tllmprof")).unwrap();
    let ended = export(&scratch, &to_chrome(&["."], &[]));
    let start =
        "tllmprof: ./z.tllmprof: a copy of ./rank-0.tllmprof; it is left out\ntllmprof: t.json: ";
    assert!(ended.stderr.starts_with(start), "{ended:?}");
    assert!(ended.stderr.ends_with(" of 1 process\n"), "{ended:?}");
    let file = "rank-0.tllmprof";
    let twice = export(&scratch, &to_chrome(&[file, file], &["--force"]));
    let why = "tllmprof: rank-0.tllmprof is given twice\n";
    assert_eq!((twice.code(), twice.stderr.as_str()), (Some(2), why));
}

#[test]
fn standard_output_and_compression() {
    let scratch = Scratch::new();
    record(&scratch, 0);
    let ended = export(&scratch, &["rank-0.tllmprof", "--to", "chrome", "-o", "-"]);
    assert_eq!((ended.code(), &ended.stderr[..]), (Some(0), ""));
    assert!(serde_json::from_str::<Value>(&ended.stdout).is_ok());
    let packed = export(
        &scratch,
        &["rank-0.tllmprof", "--to", "chrome", "-o", "t.json.gz"],
    );
    assert_eq!(packed.code(), Some(0));
    let mut text = String::new();
    let file = fs::File::open(scratch.path("t.json.gz")).unwrap();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(file), &mut text).unwrap();
    assert!(text == ended.stdout);
    let folder = export(&scratch, &["rank-0.tllmprof", "--to", "parquet", "-o", "-"]);
    assert_eq!(folder.code(), Some(2));
}

/// The names in the record of this test contain escape sequences that attack a terminal. They must be escaped when they
/// are printed.
#[test]
fn no_name_acts_on_a_terminal() {
    const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}gpj.exe\r\u{200b}";
    let scratch = Scratch::new();
    let pid = 7;
    let mut builder = Builder::new(pid, ClockKind::Monotonic);
    let name = builder.string(pid, HOSTILE);
    let keys = [Info::Process, Info::CommandLine, Info::Host, Info::Rule];
    let infos = keys.map(|key| What::Info {
        key: Some(key),
        value: name.into(),
    });
    let window = |edge| What::Window { edge, iteration: 0 };
    let rest = [
        What::ThreadName { name },
        window(Edge::Open),
        What::Iteration {
            n: 0,
            excluded: false,
        },
        What::Mark { domain: name, name },
        window(Edge::Close),
    ];
    for (what, at) in infos.into_iter().chain(rest).zip(1..) {
        builder.push(pid, &Event::new(at, 0, what));
    }
    let mut file = fs::File::create(scratch.path("a.tllmprof")).unwrap();
    builder.write_to(&mut file).unwrap();
    for (arguments, escape) in [
        (
            &["export", "a.tllmprof", "--to", "chrome", "-o", "-"][..],
            r"\u202e",
        ),
        (&["report", "--json", "a.tllmprof"], r"\u202e"),
        (&["report", "a.tllmprof"], r"\u{202e}"),
    ] {
        let mut command = plain(env!("CARGO_BIN_EXE_tllmprof").as_ref());
        command.args(arguments).current_dir(scratch.path(""));
        let ended = on_terminal(&mut command);
        assert_eq!(ended.code(), Some(0), "{arguments:?}: {}", ended.stderr);
        // A terminal ends each line with `\r\n`. These characters are not part of the command's output.
        let shown = ended.stdout.replace("\r\n", "");
        let acts = shown.find(is_hidden).map(|at| &shown[at..][..20]);
        assert!(acts.is_none(), "{arguments:?}: {acts:?}");
        assert!(shown.contains(escape), "{arguments:?}: {:.2000}", shown);
    }
    let to_perfetto = ["a.tllmprof", "--to", "perfetto", "-o", "-"];
    let refused = on_terminal(&mut command(&scratch, &to_perfetto));
    assert_eq!((refused.code(), &refused.stdout[..]), (Some(2), ""));
    let why = "--output -: perfetto makes a Perfetto trace, which is not for a terminal (wanted: a \
               file's name, or a pipe)";
    assert!(refused.stderr.contains(why), "{}", refused.stderr);
    assert_eq!(export(&scratch, &to_perfetto).code(), Some(0), "to a pipe");
}

#[test]
fn what_is_no_record_is_named_and_the_others_are_exported() {
    let scratch = Scratch::new();
    record(&scratch, 0);
    scratch.write("text", "TLLMPROG is something else");
    scratch.write("db.sqlite", "SQLite format 3\0 and its pages");
    let bad = ["absent", "text", "db.sqlite"];
    let to = ["--to", "perfetto", "-o", "out"];
    let ended = export(&scratch, &[&bad[..], &to].concat());
    let expected = "tllmprof: absent: there is no such file\n\
                    tllmprof: text: not a tllmprof record\n\
                    tllmprof: db.sqlite: it is an nsys report, which nsys exports itself (wanted: a tllmprof record)\n";
    assert_eq!((ended.code(), &ended.stderr[..]), (Some(1), expected));
    assert_eq!(names(&scratch), ["db.sqlite", "rank-0.tllmprof", "text"]);
    let ended = export(&scratch, &[&bad[..], &["rank-0.tllmprof"], &to].concat());
    assert_eq!(ended.code(), Some(1));
    assert!(ended.stderr.starts_with(expected), "{}", ended.stderr);
    assert!(
        ended.stderr.ends_with(" events of 1 process\n"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_damaged_record_is_exported_as_far_as_it_goes() {
    let scratch = Scratch::new();
    record(&scratch, 0);
    let path = scratch.path("rank-0.tllmprof");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..64 * 1024 + 5000]).unwrap();
    let ended = export(
        &scratch,
        &["rank-0.tllmprof", "--to", "chrome", "-o", "out"],
    );
    assert_eq!(ended.code(), Some(1));
    let (damage, done) = ended.stderr.split_once('\n').unwrap();
    let said = "tllmprof: rank-0.tllmprof: damaged: cut at 70536 of ";
    assert!(damage.starts_with(said), "{damage}");
    assert!(damage.ends_with("; what there is is exported"), "{damage}");
    assert!(done.starts_with("tllmprof: out: "), "{done}");
}

#[test]
fn nothing_is_left_of_an_export_that_failed() {
    let scratch = Scratch::new();
    record(&scratch, 0);
    let all = names(&scratch);
    for out in ["absent/out", "rank-0.tllmprof/out"] {
        for format in ["chrome", "parquet"] {
            let ended = export(&scratch, &["rank-0.tllmprof", "--to", format, "-o", out]);
            assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
            let begins = format!("tllmprof: {out}: ");
            assert!(ended.stderr.starts_with(&begins), "{}", ended.stderr);
        }
    }
    // A limit for the size of files has the same effect as a full disk.
    let full = export(&scratch, &["rank-0.tllmprof", "--to", "chrome", "-o", "-"]);
    assert!(full.stdout.len() > 4096);
    let mut limited = command(
        &scratch,
        &["rank-0.tllmprof", "--to", "chrome", "-o", "out"],
    );
    let ended = finish(limit_file_size(&mut limited, 4096));
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("File too large"), "{}", ended.stderr);
    assert_eq!(names(&scratch), all);
}

/// Limits each file that the command writes to `bytes` bytes.
fn limit_file_size(command: &mut Command, bytes: u64) -> &mut Command {
    use std::os::unix::process::CommandExt;
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    let set = move || {
        // SAFETY: both calls are allowed between fork and exec, and the closure owns the limit that the second call
        // reads.
        let done = unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit)
        };
        if done == 0 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error())
        }
    };
    // SAFETY: the closure neither allocates nor locks between fork and exec.
    unsafe { command.pre_exec(set) }
}

#[test]
fn a_signal_ends_it_and_leaves_nothing() {
    let scratch = Scratch::new();
    // There are many records, so that the export takes long enough to be interrupted. On a busy machine, this test may
    // get no processor until the export has ended. Then it is repeated.
    (0..100).for_each(|rank| record(&scratch, rank));
    let records = names(&scratch);
    for _ in 0..50 {
        let ended = interrupted(&scratch, &records);
        let said = String::from_utf8(ended.stderr).unwrap();
        if ended.status.success() {
            fs::remove_file(scratch.path("out")).unwrap();
            continue;
        }
        assert_eq!(ended.status.signal(), Some(libc::SIGTERM), "{said}");
        assert_eq!(said, "tllmprof: interrupted: out is not written\n");
        assert_eq!(names(&scratch), records);
        return;
    }
    panic!("every export ended before it could be interrupted");
}

/// Starts an export of these records, and interrupts it once it has begun. Returns the command's result.
fn interrupted(scratch: &Scratch, records: &[String]) -> Output {
    let mut child = command(scratch, &["--to", "chrome", "-o", "out"])
        .args(records)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let started = Instant::now();
    // The export has begun once it has an open file without a name: the output gets its name only when it is
    // complete. On a file system without support for such files, the incomplete output has a hidden name.
    let folder = fs::canonicalize(scratch.path(".")).unwrap();
    let opened = |entry: std::io::Result<fs::DirEntry>| fs::read_link(entry.ok()?.path()).ok();
    let has_begun = |child: &Child| {
        let open = fs::read_dir(format!("/proc/{}/fd", child.id())).into_iter();
        let mut open = open.flatten().filter_map(opened);
        let is_unnamed = |path: PathBuf| {
            path.starts_with(&folder) && path.to_string_lossy().ends_with(" (deleted)")
        };
        open.any(is_unnamed) || names(scratch).iter().any(|name| name.starts_with(".out."))
    };
    while !has_begun(&child) && child.try_wait().unwrap().is_none() {
        assert!(started.elapsed() < Duration::from_secs(180));
        thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: the signal goes to a child that was not waited for; at worst it has ended.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    child.wait_with_output().unwrap()
}

#[test]
fn the_command_line_is_checked() {
    let scratch = Scratch::new();
    record(&scratch, 0);
    for arguments in [
        &["rank-0.tllmprof", "-o", "out"][..],
        &["rank-0.tllmprof", "--to", "csv", "-o", "out"],
        &["rank-0.tllmprof", "--to", "chrome"],
        &["--to", "chrome", "-o", "out"],
        &[
            "rank-0.tllmprof",
            "--to",
            "chrome",
            "--force",
            "-o",
            "./rank-0.tllmprof",
        ],
    ] {
        assert_eq!(export(&scratch, arguments).code(), Some(2), "{arguments:?}");
    }
    assert_eq!(names(&scratch), ["rank-0.tllmprof"]);
}
