//! Checks the record (`TLLMPROF_TRACE`). The part that was written must be readable, however the process ends and
//! whatever happens to the disk, and the program must not be disturbed.
//!
//! The programs count their own calls in a file that outlives them (`tests/record/counts.c`).

mod common;
#[path = "record/counts.rs"]
mod counts;
#[path = "record/disks.rs"]
mod disks;
#[path = "record/early.rs"]
mod early;
#[path = "record/foreign.rs"]
mod foreign;
#[path = "record/gpu.rs"]
mod gpu;
#[path = "record/host_functions.rs"]
mod host_functions;
#[path = "record/hostile.rs"]
mod hostile;
#[path = "record/keep.rs"]
mod keep;
#[path = "record/killed.rs"]
mod killed;
#[path = "record/many.rs"]
mod many;
#[path = "record/names.rs"]
mod names;
#[path = "record/pythons.rs"]
mod pythons;
#[path = "record/ranges.rs"]
mod ranges;
#[path = "record/read.rs"]
mod read;
#[path = "record/terminal.rs"]
mod terminal;

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;

use common::{Fixture, INEXACT, Switch};
use counts::Counts;
use read::Read;
use tllmprof_record::{CallKind, Counter, Ended, Info, What};

/// A window that contains every iteration.
const ALL: &str = "0-";

#[test]
fn iterations_windows_and_calls_are_those_of_the_driver() {
    for program in ["steps_driver_gpa2", "steps_shared12", "steps_static_ptsz"] {
        let fixture = Fixture::new(program)
            .window("5-9,20", "cudaGraphLaunch")
            .args("--steps 40 --kernels 2 --sync stream --copy-out")
            .env("TLLMPROF_TRACE", "%h-%r-%p.tllmprof")
            .env("TLLMPROF_RANK", "3")
            .env("TLLMPROF_DRAIN", "0");
        let folder = fixture.folder().to_owned();
        let (ran, records) = fixture.run_and(|| Read::all(&folder));
        assert_eq!(ran.output.status.code(), Some(0), "{}", ran.output.err());
        let [record] = &records[..] else {
            panic!("{} records of one process", records.len());
        };
        assert_eq!(record.header.ended, Some(Ended::InOrder));
        assert_eq!(record.iterations(), [5, 6, 7, 8, 9, 20]);
        assert_eq!(record.windows(), [(5, 9), (20, 20)]);
        assert_eq!(record.header.counter(Counter::Iterations), 40);
        assert_eq!(record.header.counter(Counter::EventsDropped), 0);
        assert_eq!(record.header.outside.count(), 34);
        assert_eq!(record.info(Info::Rule), ["cudaGraphLaunch"]);
        assert_eq!(record.info(Info::Windows), ["5-9,20"]);
        assert_eq!(record.rank(), Some(3));
        assert!(record.info(Info::CommandLine)[0].ends_with("--copy-out"));
        // For each kind of call, the record must have as many calls as the driver's log has between the start and the
        // stop of the profiler.
        for kind in [
            CallKind::GraphLaunch,
            CallKind::KernelLaunch,
            CallKind::Wait,
        ] {
            let logged = logged_inside(&ran, kind);
            assert_eq!(record.calls(kind).len(), logged, "{program}: {kind:?}");
            assert_eq!(
                record.counted(kind, true),
                logged as u64,
                "{program}: {kind:?}"
            );
        }
        assert!(record.calls(CallKind::GraphLaunch).iter().all(|call| {
            matches!(call.what, What::Call { stream, .. } if stream != 0) && !call.failed
        }));
        record.assert_calls_lie_in_their_windows();
    }
}

/// The program has two threads. One launches, and the other waits for one to three steps at a time and reads their
/// results.
#[test]
fn windows_by_auto_hold_each_iteration_of_two_threads() {
    let edges: Vec<_> = (0..20).map(|n| (400 + 75 * n, 449 + 75 * n)).collect();
    let windows: Vec<_> = edges.iter().map(|(a, b)| format!("{a}-{b}")).collect();
    let expected: Vec<u64> = edges.iter().flat_map(|(a, b)| *a..=*b).collect();
    let mut exact = 0;
    for _ in 0..4 {
        let fixture = Fixture::new("engines")
            .window(&windows.join(","), "auto")
            .args("ahead")
            .env("TLLMPROF_TRACE", "%p.tllmprof")
            .env("TLLMPROF_WARMUP", "0");
        let folder = fixture.folder().to_owned();
        let (ran, records) = fixture.run_and(|| Read::all(&folder));
        let said = ran.output.err();
        assert_eq!(ran.output.status.code(), Some(0), "{said}");
        if said.contains(INEXACT) {
            continue;
        }
        exact += 1;
        let [record] = &records[..] else {
            panic!("{} records\n{said}", records.len());
        };
        assert_eq!(record.windows(), edges, "{said}");
        let dropped = record.header.counter(Counter::EventsDropped);
        assert_eq!(record.iterations(), expected, "{dropped} dropped: {said}");
        assert!(!said.contains("asked for"), "{said}");
    }
    assert!(exact > 0, "the machine is too busy");
}

/// Returns the number of calls of this kind in the driver's log while the profiler was on.
fn logged_inside(ran: &common::Ran, kind: CallKind) -> usize {
    let name = match kind {
        CallKind::GraphLaunch => "cuGraphLaunch",
        CallKind::KernelLaunch => "cuLaunchKernel",
        _ => "cuStreamSynchronize",
    };
    let mut inside = false;
    let mut count = 0;
    for line in &ran.log {
        match line.function.as_str() {
            "cuProfilerStart" => inside = true,
            "cuProfilerStop" => inside = false,
            function => {
                count += usize::from(inside && function.trim_end_matches("_ptsz") == name);
            }
        }
    }
    count
}

#[test]
fn without_the_variable_there_is_no_file() {
    let fixture = Fixture::new("steps_driver_gpa2")
        .window("5-9", "cudaGraphLaunch")
        .env("TLLMPROF_TRACE", "");
    let folder = fixture.folder().to_owned();
    let (ran, files) = fixture.run_and(|| fs::read_dir(&folder).unwrap().count());
    assert_eq!(ran.output.status.code(), Some(0));
    assert_eq!(files, 1, "the driver's log alone");
    let switches = [
        Switch::Start {
            launches: 5,
            waits: 5,
        },
        Switch::Stop {
            launches: 10,
            waits: 10,
        },
    ];
    assert_eq!(ran.switches(), switches);
}

#[test]
fn a_process_without_cuda_writes_none() {
    let fixture = Fixture::new("nocuda")
        .window(ALL, "cudaGraphLaunch")
        .env("TLLMPROF_TRACE", "x.tllmprof");
    let folder = fixture.folder().to_owned();
    let (ran, files) = fixture.run_and(|| fs::read_dir(&folder).unwrap().count());
    assert_eq!(ran.output.err(), "");
    assert_eq!(files, 0);
}

#[test]
fn outside_windows_there_are_counters_and_a_histogram_alone() {
    let counts = Counts::new();
    let output = counts.run("100000000", &["loop", "1", "200000", "return"]);
    assert_eq!(output.status.code(), Some(7), "{}", output.err());
    let record = counts.record();
    assert_eq!(record.header.counter(Counter::Iterations), 200_000);
    assert_eq!(record.header.outside.count(), 200_000);
    assert_eq!(record.calls(CallKind::GraphLaunch).len(), 0);
    assert_eq!(record.counted(CallKind::GraphLaunch, false), 200_000);
    assert!(record.bytes <= 192 * 1024, "{}", record.bytes);
}

#[test]
fn killed_at_any_moment_every_call_that_returned_is_there() {
    let counts = Counts::new();
    let in_the_midst = Cell::new(false);
    for (round, delay) in counts::rounds(&in_the_midst) {
        counts.forget();
        let threads = 1 + round % 4;
        let killed =
            counts.run_and_kill(ALL, &["loop", &threads.to_string(), "0", "return"], delay);
        assert_eq!(killed.signal(), Some(libc::SIGKILL));
        let record = counts.assert_every_call_is_there(1);
        if !record.calls(CallKind::GraphLaunch).is_empty() {
            in_the_midst.set(true);
        }
    }
}

#[test]
fn however_it_ends_every_call_is_there() {
    for (end, ended, code, signal) in [
        ("return", Ended::InOrder, Some(7), None),
        ("_exit", Ended::AtOnce, Some(7), None),
        ("crash", Ended::Not, None, Some(libc::SIGSEGV)),
        ("kill", Ended::Not, None, Some(libc::SIGKILL)),
    ] {
        let counts = Counts::new();
        let output = counts.run(ALL, &["loop", "3", "5000", end]);
        assert_eq!(
            (output.status.code(), output.status.signal()),
            (code, signal),
            "{end}"
        );
        assert_eq!(output.out(), "done\n");
        let record = counts.assert_every_call_is_there(0);
        assert_eq!(record.header.ended, Some(ended), "{end}");
        let launches = record.calls(CallKind::GraphLaunch);
        assert_eq!(launches.len(), 15_000, "{end}");
        // If the process crashed or was killed, the last iteration has no end, so it is not in the record. One more
        // iteration may be missing: if two threads begin iterations while a third thread opens the window, the record
        // may have only one of these two.
        let iterations = record.iterations();
        let open = usize::from(ended == Ended::Not);
        assert!(iterations.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(iterations.last(), Some(&(14_999 - open as u64)), "{end}");
        assert!(iterations.len() + open + 1 >= 15_000, "{end}");
    }
}

#[test]
fn ten_thousand_short_threads_share_the_chunks_of_a_few() {
    let counts = Counts::new();
    let output = counts.run(ALL, &["short", "10000", "10"]);
    assert_eq!(output.status.code(), Some(7), "{}", output.err());
    let record = counts.assert_every_call_is_there(0);
    assert_eq!(record.calls(CallKind::GraphLaunch).len(), 100_000);
    // A record consists of chunks of events. The events here are calls, iterations, GPU spans, resource use per
    // iteration, and two events per thread. Threads use the chunks of ended threads, so there are far fewer chunks
    // than threads.
    let chunks = record.header.counter(Counter::Chunks);
    assert!(chunks < 200, "{chunks}");
}

#[test]
fn children_write_records_of_their_own() {
    let counts = Counts::new();
    let output = counts.run(ALL, &["forks", "40", "20"]);
    assert_eq!(output.status.code(), Some(7), "{}", output.err());
    let made: Vec<_> = counts
        .made()
        .into_iter()
        .filter(|made| made.calls > 0)
        .collect();
    assert_eq!(made.len(), 41);
    let records = Read::all(counts.folder());
    assert_eq!(records.len(), 41);
    for made in made {
        let record = records
            .iter()
            .find(|record| u64::from(record.header.pid) == made.number)
            .unwrap_or_else(|| panic!("no record of {}", made.number));
        assert_eq!(record.calls(CallKind::GraphLaunch).len() as u64, made.calls);
        assert!(
            record
                .threads()
                .iter()
                .all(|tid| u64::from(*tid) == made.number)
        );
        assert!(matches!(
            record.header.ended,
            Some(Ended::InOrder | Ended::AtOnce)
        ));
    }
}

#[test]
fn the_command_records_and_shows_it_at_the_end() {
    let counts = Counts::new();
    let Some(output) = counts.run_by_the_command("5-9", &["loop", "1", "30", "_exit"]) else {
        return common::skipped("the command is not built: cargo build --release --workspace");
    };
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.out(), "done\n");
    let said = output.err();
    assert!(said.contains("window 5-9: 5 iterations"), "{said}");
    let record = counts.record();
    assert_eq!(record.iterations(), [5, 6, 7, 8, 9]);
    assert_eq!(record.info(Info::Rule), ["cudaGraphLaunch"]);
}

#[test]
fn two_engines_in_a_process_write_one_record() {
    let fixture = Fixture::new("steps_two_cudarts")
        .window(ALL, "cudaGraphLaunch")
        .args("--steps 30 --sync stream --threads 4")
        .env("TLLMPROF_TRACE", "x-%p.tllmprof")
        .env("TLLMPROF_DRAIN", "0");
    let folder = fixture.folder().to_owned();
    let (ran, records) = fixture.run_and(|| Read::all(&folder));
    assert_eq!(ran.output.status.code(), Some(0), "{}", ran.output.err());
    let launches = ran
        .log
        .iter()
        .filter(|line| line.function.starts_with("cuGraphLaunch"));
    assert_eq!(records.len(), 1);
    assert_eq!(
        records[0].calls(CallKind::GraphLaunch).len(),
        launches.count()
    );
    assert_eq!(records[0].threads().len(), 4, "{:?}", records[0].threads());
}

#[test]
fn a_record_never_passes_its_bound_and_counts_what_it_drops() {
    let counts = Counts::new().env("TLLMPROF_TRACE_MAX", "1M");
    let output = counts.run(ALL, &["loop", "2", "100000", "return"]);
    assert_eq!(output.status.code(), Some(7));
    let said = output.err();
    assert!(
        said.contains("as large as TLLMPROF_TRACE_MAX allows"),
        "{said}"
    );
    counts.assert_what_is_kept_and_dropped_is_all(200_000);
    assert!(counts.record().bytes <= 1 << 20);
}

#[test]
fn a_record_that_needs_less_than_its_bound_is_not_called_full() {
    // With this limit, so little space is left after the start that the library cannot reserve any of it in advance.
    let counts = Counts::new().env("TLLMPROF_TRACE_MAX", "640K");
    let output = counts.run(ALL, &["loop", "2", "10", "return"]);
    assert_eq!(output.status.code(), Some(7));
    let said = output.err();
    assert!(!said.contains("TLLMPROF_TRACE_MAX"), "{said}");
    let dropped = counts.record().header.counter(Counter::EventsDropped);
    assert_eq!(dropped, 0);
}

#[test]
fn a_disk_that_is_full_ends_the_record_and_nothing_else() {
    let counts = Counts::new();
    let Some(output) = disks::on_a_small_one(&counts, "2M", &["loop", "2", "200000", "return"])
    else {
        return common::skipped("no mount namespaces here (they need root)");
    };
    assert_eq!(output.status.code(), Some(7), "{}", output.err());
    assert_eq!(output.out(), "done\n");
    let said = output.err();
    assert!(
        said.contains("ends here: it could not grow: the disk is full"),
        "{said}"
    );
    counts.assert_what_is_kept_and_dropped_is_all(400_000);
}

#[test]
fn a_quota_ends_the_record_and_nothing_else() {
    if let Some(why) = disks::no_btrfs() {
        return common::skipped(why);
    }
    let counts = Counts::new();
    let Some(output) = disks::with_a_quota(&counts, "4M", &["loop", "2", "200000", "return"])
    else {
        return common::skipped("no mount namespaces here (they need root)");
    };
    assert_eq!(output.status.code(), Some(7), "{}", output.err());
    let said = output.err();
    assert!(
        said.contains("ends here: it could not grow: the quota is used up"),
        "{said}"
    );
    counts.assert_what_is_kept_and_dropped_is_all(400_000);
}

/// On a copy-on-write file system, overwriting a block of a file needs a new block. So on a full disk, a plain write to
/// the record's mapped file would kill the program (SIGBUS). The library must prevent this.
#[test]
fn a_disk_that_others_fill_up_takes_no_store_from_the_program() {
    if let Some(why) = disks::no_btrfs() {
        return common::skipped(why);
    }
    for windows in ["100000000", ALL] {
        let counts = Counts::new();
        let loops = ["loop", "1", "0", "return"];
        let Some(output) = disks::that_fills_up(&counts, windows, &loops) else {
            return common::skipped("no mount namespaces here (they need root)");
        };
        let killed = Some(128 + libc::SIGKILL);
        assert_eq!(output.status.code(), killed, "{}", output.err());
        let made: u64 = counts.made().iter().map(|made| made.calls).sum();
        assert!(made > 1000, "{made}");
    }
}

#[test]
fn a_folder_that_may_not_be_written_to_is_said_in_one_line() {
    let counts = Counts::new();
    let output = disks::in_a_read_only_folder(&counts, &["loop", "1", "1000", "return"]);
    assert_eq!(output.status.code(), Some(7), "{}", output.err());
    let said = output.err();
    assert_eq!(said.matches("no record at").count(), 1, "{said}");
    assert!(said.contains("it is not permitted"), "{said}");
}

#[test]
fn a_limit_on_files_ends_the_record_and_nothing_else() {
    let counts = Counts::new();
    let output = disks::with_small_files(&counts, 2 << 20, &["loop", "2", "200000", "return"]);
    assert_eq!(output.status.code(), Some(7), "{}", output.err());
    let said = output.err();
    assert!(said.contains("files may not become as large"), "{said}");
    assert!(
        said.contains("; the record ended early and lacks "),
        "{said}"
    );
    counts.assert_what_is_kept_and_dropped_is_all(400_000);
}

#[test]
fn a_place_that_cannot_be_written_to_is_said_in_one_line() {
    let counts = Counts::new();
    let Some(output) = disks::on_a_read_only_one(&counts, &["loop", "1", "1000", "return"]) else {
        return common::skipped("no mount namespaces here (they need root)");
    };
    assert_eq!(output.status.code(), Some(7), "{}", output.err());
    let said = output.err();
    assert_eq!(said.matches("no record at").count(), 1, "{said}");
    assert!(said.contains("the file system is read-only"), "{said}");
    let nowhere = Counts::new().env("TLLMPROF_TRACE", "no/such/folder/%p");
    let output = nowhere.run(ALL, &["loop", "1", "1000", "return"]);
    assert_eq!(output.status.code(), Some(7));
    let said = output.err();
    assert!(said.contains("no record at"), "{said}");
    assert!(said.contains("there is no such folder"), "{said}");
}

#[test]
fn the_file_is_its_owners_alone_and_takes_no_others_place() {
    let counts = Counts::new().env("TLLMPROF_TRACE", "x.tllmprof");
    let path = counts.folder().join("x.tllmprof");
    let run = || counts.run(ALL, &["loop", "1", "100", "return"]).err();
    // An older record exists at the path. The library renames it, and logs the new name.
    run();
    let first = fs::metadata(&path).unwrap();
    assert_eq!(first.permissions().mode() & 0o777, 0o600);
    let said = run();
    let kept = counts.folder().join("x-1.tllmprof");
    let kept_as = format!(
        "an earlier record had this name, and is kept as {}",
        kept.display()
    );
    assert!(said.contains(&kept_as), "{said}");
    assert_eq!(fs::metadata(&kept).unwrap().ino(), first.ino());
    assert_ne!(fs::metadata(&path).unwrap().ino(), first.ino());
    // A file that is not a record is left unchanged.
    fs::write(&path, "a diary").unwrap();
    let said = run();
    assert!(said.contains("something else by that name"), "{said}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "a diary");
    fs::remove_file(&path).unwrap();
    let elsewhere = counts.folder().join("elsewhere");
    fs::write(&elsewhere, "").unwrap();
    symlink(&elsewhere, &path).unwrap();
    let said = run();
    assert!(said.contains("something else by that name"), "{said}");
    assert_eq!(fs::metadata(&elsewhere).unwrap().len(), 0);
}
