//! Checks records that keep only the latest windows (`TLLMPROF_KEEP`). The recorded programs make new NVTX range names
//! all the time.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tllmprof_record::{Counter, Reader};

use crate::counts::{kills, moments};
use crate::ranges::Program;
use crate::read::{Range, Read};

const KEEP: u64 = 1 << 20;
/// Number of iterations in a window.
const STEPS: u64 = 80;
/// Number of iterations from the beginning of one window to the beginning of the next.
const EVERY: u64 = 100;
/// Number of ranges per iteration that have a name beginning with `request`.
const REQUESTS: u64 = 8;

fn command(program: &Program, steps: u64, pause: &str) -> Command {
    let first = (0..4000).map(|window| window * EVERY);
    let windows = first.map(|first| format!("{first}-{}", first + STEPS - 1));
    let windows: Vec<_> = windows.collect();
    let keep = [("TLLMPROF_KEEP", "1M"), ("TLLMPROF_LOG", "warn")];
    let mut command = program.command(
        "cudaGraphLaunch",
        &windows.join(","),
        &[&steps.to_string(), pause],
        &keep,
    );
    command.stdout(Stdio::null());
    command
}

fn largest(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap());
    let files = files.filter(|file| file.path().extension().is_some_and(|it| it == "tllmprof"));
    let sizes = files.filter_map(|file| Some(file.metadata().ok()?.len()));
    sizes.max().unwrap_or(0)
}

fn wait(child: &mut Child, folder: &Path) -> u64 {
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        most = most.max(largest(folder));
        std::thread::sleep(Duration::from_millis(2));
    }
    most.max(largest(folder))
}

/// Returns the numbers in the names of those ranges whose name begins with `who`, in ascending order.
fn numbers(ranges: &[Range], who: &str) -> Vec<u64> {
    let number = |name: &str| {
        let number = name.strip_prefix(who)?.split(',').next()?;
        number.trim().parse::<u64>().ok()
    };
    let numbers = ranges.iter().filter_map(|range| number(&range.name));
    let mut numbers: Vec<_> = numbers.collect();
    numbers.sort_unstable();
    numbers
}

/// Asserts that the record has the latest windows, with all their ranges and the ranges' names. Only the last window
/// may lack ranges at its end. Returns the number of windows.
fn assert_names_are_whole(record: &Read) -> u64 {
    assert!(record.damage.is_none(), "{}", record.damage);
    let header = &record.header;
    assert_eq!(header.counter(Counter::StringsDropped), 0);
    assert_eq!(header.counter(Counter::EventsDropped), 0);
    let iterations = record.iterations();
    let (first, last) = (iterations[0], *iterations.last().unwrap());
    assert_eq!(first % EVERY, 0);
    assert_eq!(first / EVERY, header.counter(Counter::WindowsDropped));
    let ranges = record.ranges();
    let mut kept = (first / EVERY..=last / EVERY).flat_map(|window| {
        let steps = window * EVERY..window * EVERY + STEPS;
        steps.take_while(|n| *n <= last)
    });
    assert!(kept.clone().eq(iterations.iter().copied()));
    let requests = numbers(&ranges, "request");
    let expected: Vec<_> = kept
        .by_ref()
        .flat_map(|n| n * REQUESTS..(n + 1) * REQUESTS)
        .collect();
    // The record may also have ranges of one iteration that was cut off at the end.
    assert_eq!(requests[..expected.len()], expected);
    assert!(requests.len() - expected.len() <= REQUESTS as usize);
    let served = numbers(&ranges, "served");
    assert!(served.windows(2).all(|pair| pair[0] < pair[1]));
    let batches = ranges
        .iter()
        .filter(|range| range.domain.as_deref() == Some("engine") && range.name == "batch");
    let batches = batches.count();
    assert!((iterations.len()..=iterations.len() + 1).contains(&batches));
    // Each range in the record has one of the names that the program gives, so no range has lost its name.
    assert_eq!(ranges.len(), requests.len() + served.len() + batches);
    last / EVERY - first / EVERY + 1
}

#[test]
fn names_that_never_end_do_not_end_a_record() {
    let program = Program::new("record/requests.c");
    let steps = 40_000;
    let mut child = command(&program, steps, "0").spawn().unwrap();
    let most = wait(&mut child, program.folder());
    assert_eq!(child.wait().unwrap().code(), Some(7));
    let [record] = &program.records()[..] else {
        panic!("one record");
    };
    assert_eq!(most.max(record.bytes), KEEP);
    assert!(assert_names_are_whole(record) >= 4);
    assert_eq!(record.header.counter(Counter::Windows), steps / EVERY);
    assert_eq!(
        record.iterations().last(),
        Some(&(steps - EVERY + STEPS - 1))
    );
}

#[test]
fn a_process_that_is_killed_leaves_the_names_of_its_latest_windows() {
    let program = Program::new("record/requests.c");
    for moment in moments().take(kills()) {
        program.forget();
        let mut child = command(&program, 0, "0")
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let since = Instant::now();
        // Returns true once more than 40 windows have been dropped. By then, the program has made more names than the
        // record has room for.
        let has_gone_far = || {
            let records = program.records();
            let dropped = |record: &Read| record.header.counter(Counter::WindowsDropped);
            records.iter().map(dropped).max().unwrap_or(0) > 40
        };
        while !has_gone_far() && since.elapsed() < Duration::from_secs(300) {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(moment * 4);
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        let [record] = &program.records()[..] else {
            panic!("one record");
        };
        assert_eq!(record.bytes, KEEP);
        assert!(assert_names_are_whole(record) >= 3);
    }
}

/// The commands `capture -o` and `report` copy the record of a running process. The copy must be complete, although the
/// process drops old windows meanwhile.
#[test]
fn a_copy_of_a_record_whose_windows_go_meanwhile_is_whole() {
    let program = Program::new("record/requests.c");
    let mut child = command(&program, 0, "150")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let since = Instant::now();
    let copy = program.folder().join("copy");
    let mut dropped = Vec::new();
    while dropped.len() < 40 && since.elapsed() < Duration::from_secs(300) {
        let Some(record) = std::fs::read_dir(program.folder())
            .unwrap()
            .map(|file| file.unwrap().path())
            .find(|path| path.extension().is_some_and(|it| it == "tllmprof"))
        else {
            continue;
        };
        let windows = |path: &Path| {
            let reader = Reader::open(path).ok()?;
            Some(reader.header().counter(Counter::Windows))
        };
        if windows(&record).is_none_or(|opened| opened <= 40) {
            continue;
        }
        tllmprof_record::copy(&record, &copy).unwrap();
        let read = Read::open(&copy);
        assert!(assert_names_are_whole(&read) >= 3);
        let first = read.header.counter(Counter::WindowsDropped);
        dropped.push(first);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(dropped.len(), 40);
    assert!(dropped.windows(2).any(|pair| pair[0] < pair[1]));
}
