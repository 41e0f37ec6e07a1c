//! Checks records that keep only the latest windows and drop older ones (`TLLMPROF_KEEP`).

use std::fs;
use std::ops::RangeInclusive;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use tllmprof_record::{CallKind, Counter, Info};

use crate::common;
use crate::counts::{Counts, kills, moments};
use crate::read::Read;

const KEEP: u64 = 1 << 20;
/// Number of iterations in a window.
const STEPS: u64 = 1000;
/// Number of iterations from the beginning of one window to the beginning of the next.
const EVERY: u64 = 1500;

fn kept() -> Counts {
    Counts::new()
        .env("TLLMPROF_KEEP", "1M")
        .env("TLLMPROF_LOG", "warn")
}

/// Returns the setting for `count` windows, as a list of `FIRST-LAST`.
fn windows(count: u64) -> String {
    let all = (0..count).map(|window| format!("{}-{}", window * EVERY, last_of(window)));
    all.collect::<Vec<_>>().join(",")
}

const fn last_of(window: u64) -> u64 {
    window * EVERY + STEPS - 1
}

fn records(folder: &Path) -> Vec<u64> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let files = files.filter(|file| file.path().extension().is_some_and(|it| it == "tllmprof"));
    // A file that was renamed or removed while the folder was being listed has no size, and is skipped.
    files
        .filter_map(|file| Some(file.metadata().ok()?.len()))
        .collect()
}

/// Waits until all these processes have ended. Returns the largest size that a record in the folder had meanwhile, in
/// bytes.
fn largest_until_they_end(folder: &Path, mut running: Vec<Child>) -> u64 {
    let mut largest = 0;
    while !running.is_empty() {
        largest = records(folder).into_iter().chain([largest]).max().unwrap();
        running.retain_mut(|child| match child.try_wait().unwrap() {
            Some(status) => {
                assert_eq!(status.code(), Some(7));
                false
            }
            None => true,
        });
        std::thread::sleep(Duration::from_millis(1));
    }
    largest
}

/// Asserts that the record has the latest windows. Only the last of them may be incomplete: it may lack iterations at
/// its end. Returns the numbers of these windows.
fn assert_the_latest_are_whole(record: &Read) -> RangeInclusive<u64> {
    assert!(record.damage.is_none(), "{}", record.damage);
    assert_eq!(record.header.counter(Counter::EventsDropped), 0);
    let mut iterations = record.iterations();
    iterations.sort_unstable();
    let of = |n: u64| n / EVERY;
    let (Some(first), Some(last)) = (iterations.first(), iterations.last()) else {
        panic!("no iteration is kept");
    };
    let kept = of(*first)..=of(*last);
    let expected = kept
        .clone()
        .flat_map(|window| window * EVERY..=last_of(window));
    assert_eq!(
        iterations,
        expected.take_while(|n| n <= last).collect::<Vec<_>>()
    );
    let dropped = record.header.counter(Counter::WindowsDropped);
    assert_eq!(*kept.start(), dropped, "{kept:?}");
    kept
}

#[test]
fn the_latest_windows_stay_and_the_disk_is_bounded() {
    for threads in ["1", "4"] {
        let count: u64 = threads.parse().unwrap();
        let calls = 90_000 / count;
        let counts = kept();
        let child = counts
            .command(
                &windows(60),
                &["loop", threads, &calls.to_string(), "return"],
            )
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let largest = largest_until_they_end(counts.folder(), vec![child]);
        let record = counts.record();
        assert_eq!(record.bytes.max(largest), KEEP);
        let kept = assert_the_latest_are_whole(&record);
        assert_eq!(*kept.end(), 59);
        assert!(kept.clone().count() >= 4, "{kept:?}");
        assert_eq!(record.windows().len(), kept.clone().count());
        // A thread may be in the middle of a launch when another thread opens or closes a window. The launch is
        // recorded if it returns while a window is open. So a window may have one launch more or less than STEPS for
        // each thread other than the one that opens or closes it.
        let launches = record.calls(CallKind::GraphLaunch).len() as u64;
        let windows = kept.clone().count() as u64;
        let difference = launches.abs_diff(windows * STEPS);
        assert!(
            difference <= windows * (count - 1),
            "{launches} in {windows} windows"
        );
        // When the oldest windows are dropped, the information about the process, such as its rule, stays in the
        // record.
        assert_eq!(record.info(Info::Rule), ["cudaGraphLaunch"]);
        assert_eq!(record.header.counter(Counter::Iterations), 90_000);
    }
}

#[test]
fn a_process_that_is_killed_leaves_its_latest_windows() {
    for moment in moments().take(kills()) {
        let counts = kept();
        let mut child = counts
            .command(&windows(4000), &["loop", "2", "0", "return"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let since = Instant::now();
        // The library extends the file before it needs the room, so the file's size reaches the limit before the record
        // is full. The record is full once a window was dropped.
        let is_full = || {
            records(counts.folder()).contains(&KEEP)
                && counts.record().header.counter(Counter::WindowsDropped) > 0
        };
        while !is_full() && since.elapsed() < Duration::from_secs(300) {
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(moment * 8);
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        let record = counts.record();
        assert_eq!(record.bytes, KEEP);
        assert_the_latest_are_whole(&record);
    }
}

#[test]
fn two_processes_of_a_run_are_bounded_each() {
    let counts = kept().env("TLLMPROF_RUN", "both");
    let start = || {
        counts
            .command(&windows(60), &["loop", "1", "90000", "return"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let both = vec![start(), start()];
    assert_eq!(largest_until_they_end(counts.folder(), both), KEEP);
    let records = Read::all(counts.folder());
    assert_eq!(records.len(), 2);
    for record in &records {
        assert_eq!(*assert_the_latest_are_whole(record).end(), 59);
    }
    let mut report = common::command(common::tllmprof());
    report.arg("report").arg(counts.folder());
    let report = common::run(&mut report, Duration::from_secs(300));
    let said = " made room for later ones: the record could take 1.00 MiB";
    assert!(report.out().contains(said), "{}", report.out());
}

#[test]
fn the_window_that_is_open_is_not_cut_for_itself() {
    let counts = kept();
    let output = counts.run("0-9,100-", &["loop", "1", "40000", "return"]);
    assert_eq!(output.status.code(), Some(7));
    let said = output.err();
    assert!(
        said.contains("the latest window is as large as TLLMPROF_KEEP allows"),
        "{said}"
    );
    let record = counts.record();
    assert_eq!(record.bytes, KEEP);
    assert!(record.damage.is_none(), "{}", record.damage);
    let iterations = record.iterations();
    let of_it: Vec<_> = iterations.into_iter().filter(|n| *n >= 100).collect();
    assert!(of_it.len() > 5000);
    assert!(of_it.iter().copied().eq(100..100 + of_it.len() as u64));
}

/// Returns the anonymous (not file-backed) memory of a running process in kB; `None` if the process has ended.
fn anonymous_kb(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// Returns the minimum number of events that the test records: `TLLMPROF_TEST_EVENTS` if it is set, else a million. A
/// day of recording has about fifty million.
fn events() -> u64 {
    std::env::var("TLLMPROF_TEST_EVENTS").map_or(1_000_000, |events| events.parse().unwrap())
}

#[test]
fn memory_does_not_grow_with_the_events_that_are_written() {
    const STEPS: u64 = 20_000;
    // Each iteration has at least three events: the iteration itself, its call, and the resource use of its thread.
    let count = events().div_ceil(3 * STEPS).max(10);
    let windows =
        (0..count).map(|window| format!("{}-{}", window * STEPS, (window + 1) * STEPS - 1));
    let windows: Vec<_> = windows.collect();
    let counts = Counts::new()
        .env("TLLMPROF_KEEP", "8M")
        .env("TLLMPROF_LOG", "warn");
    let calls = (count * STEPS).to_string();
    let mut child = counts
        .command(&windows.join(","), &["loop", "1", &calls, "return"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut seen = Vec::new();
    while child.try_wait().unwrap().is_none() {
        seen.extend(anonymous_kb(child.id()));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(child.wait().unwrap().code(), Some(7));
    // The program's memory must not grow by more than 128 kB from the early samples to the late ones. The first tenth
    // of the samples is left out because of the start, and the last tenth because the end of the process needs more
    // memory.
    let early = &seen[seen.len() / 10..seen.len() / 3];
    let late = &seen[seen.len() * 2 / 3..seen.len() * 9 / 10];
    let most = |part: &[u64]| part.iter().copied().max().unwrap();
    assert!(most(late) <= most(early) + 128, "{seen:?}");
    let record = counts.record();
    assert!(record.bytes <= 8 << 20, "{}", record.bytes);
    assert_eq!(record.header.counter(Counter::Iterations), count * STEPS);
    println!(
        "{} kB then {} kB, {} iterations",
        most(early),
        most(late),
        count * STEPS
    );
}

/// Each thread that records events needs its own chunk of the file. If the size limit is too low for the number of
/// threads, a message says which limit is enough.
#[test]
fn what_is_too_little_for_so_many_threads_is_said_with_what_is_enough() {
    const THREADS: &str = "64";
    let run = |keep: &str| {
        let counts = kept().env("TLLMPROF_KEEP", keep);
        let output = counts.run(&windows(60), &["loop", THREADS, "1400", "return"]);
        assert_eq!(output.status.code(), Some(7));
        (output.err(), counts.record())
    };
    let (said, record) = run("1M");
    assert_eq!(record.bytes, KEEP);
    assert!(record.header.counter(Counter::EventsDropped) > 0);
    let lines: Vec<_> = said
        .lines()
        .filter(|line| line.contains("TLLMPROF_KEEP is too small for the"))
        .collect();
    // The message is logged when a window closes. Some threads may not have started when the first window closes, so
    // only the last message has the number of all threads.
    let [.., last] = lines[..] else {
        panic!("{said}");
    };
    assert!(lines.len() <= 3, "{said}");
    assert!(
        last.contains("threads that record events (1 MiB;"),
        "{said}"
    );
    let (_, enough) = last.rsplit_once("Use --keep ").unwrap();
    assert_ne!(enough, "1M");
    let (said, record) = run(enough);
    assert!(!said.contains("TLLMPROF_KEEP"), "{said}");
    assert_the_latest_are_whole(&record);
}
