//! Checks records of processes that are killed at any moment, and records that are damaged later. The reader must
//! recognize each record as complete, as unfinished, or as damaged.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tllmprof_record::{Ended, Reader, RecordError};
use tllmprof_report::{Process, State};

use crate::counts::{Counts, kills, moments, rounds};

#[path = "../../crates/record/tests/common/mod.rs"]
mod made;

const THREADS: &str = "8";

/// Returns the path of the record in a folder, if there is one.
fn record(folder: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(folder).unwrap();
    let mut files = files.map(|entry| entry.unwrap().path());
    files.find(|path| {
        path.extension()
            .is_some_and(|extension| extension == "tllmprof")
    })
}

/// Starts the program, and kills it when the time `after` has passed since the creation of its record. Returns true
/// if the record was created.
fn kill_after_it_makes_its_file(counts: &Counts, after: Duration) -> bool {
    let mut child = counts
        .command("0-", &["loop", THREADS, "0", "return"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while record(counts.folder()).is_none() && began.elapsed() < Duration::from_secs(20) {
        std::thread::yield_now();
    }
    let is_there = record(counts.folder()).is_some();
    // Waits in a busy loop, because a sleep is not exact enough for such a short delay.
    let seen = Instant::now();
    while seen.elapsed() < after {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    is_there
}

/// Returns true if the folder's file system supports files without a name (`O_TMPFILE`). On such a file system, a
/// record gets its name only once it has a header.
fn has_unnamed_files(folder: &Path) -> bool {
    let mut options = fs::File::options();
    let opened = options.write(true).custom_flags(libc::O_TMPFILE);
    opened.open(folder).is_ok()
}

/// Asserts that the record of a killed process is unfinished. For each iteration that is missing between the first and
/// the last, the record must count at least one dropped event. Returns the number of iterations, or `None` if the file
/// is empty because the process was killed before it wrote the header.
fn check(path: &Path) -> Option<usize> {
    let reader = match Reader::open(path) {
        Ok(reader) => reader,
        Err(RecordError::Empty(_)) if !has_unnamed_files(path.parent().unwrap()) => return None,
        Err(error) => panic!("{}: {error}", path.display()),
    };
    assert_eq!(reader.header().ended, Some(Ended::Not));
    let process = Process::read(path.to_owned(), &reader).unwrap();
    assert_eq!(
        process.state(),
        State::Unfinished,
        "{}",
        process.record.damage
    );
    let mut numbers: Vec<_> = process
        .windows
        .iter()
        .flat_map(|window| &window.iterations)
        .map(|iteration| iteration.n)
        .collect();
    numbers.sort_unstable();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
    let all = numbers.last().map_or(0, |last| last - numbers[0] + 1);
    let gaps = all - numbers.len() as u64;
    assert!(
        gaps <= process.record.dropped,
        "{gaps} gaps, {} dropped",
        process.record.dropped
    );
    Some(numbers.len())
}

#[test]
fn killed_while_it_is_made_a_record_is_unfinished() {
    let counts = Counts::new();
    let mut there = 0;
    for (round, delay) in moments().take(kills()).enumerate() {
        counts.forget();
        // The program is killed at most 1 ms after the creation of its record. In every fourth round, it is killed
        // immediately.
        let delay = if round % 4 == 0 {
            Duration::ZERO
        } else {
            delay / 32
        };
        there += usize::from(kill_after_it_makes_its_file(&counts, delay));
        if let Some(path) = record(counts.folder()) {
            check(&path);
        }
    }
    assert!(there > 0, "none made a file");
}

#[test]
fn killed_among_eight_threads_a_record_has_no_gap_that_is_not_counted() {
    let counts = Counts::new();
    let in_the_midst = Cell::new(false);
    for (_, delay) in rounds(&in_the_midst) {
        counts.forget();
        kill_after_it_makes_its_file(&counts, delay);
        let found = record(counts.folder()).and_then(|path| check(&path));
        if found.is_some_and(|iterations| iterations > 1) {
            in_the_midst.set(true);
        }
    }
}

/// Returns the data that a report reads from a record: its state, and its contents as text. Returns `None` if the
/// record cannot be read.
fn shown(bytes: &[u8]) -> Option<(State, String)> {
    let reader = Reader::new(bytes).ok()?;
    let mut events = format!("{:?}", reader.header());
    reader
        .read(|entry| events += &format!("{entry:?}"))
        .unwrap();
    let process = Process::read("record".into(), &reader).unwrap();
    Some((process.state(), events))
}

/// Changes bytes of a real record. If the contents differ after that, the reader must report the record as damaged or
/// refuse it. It must never report it as unfinished. The tests of the record's format do the same with artificial
/// records.
#[test]
fn a_real_record_that_was_changed_never_passes_for_whole() {
    let counts = Counts::new();
    let output = counts.run("5-60", &["loop", "2", "40", "return"]);
    assert_eq!(output.status.code(), Some(7), "{}", output.err());
    let bytes = fs::read(record(counts.folder()).unwrap()).unwrap();
    let (state, original) = shown(&bytes).unwrap();
    assert_eq!(state, State::Whole);
    let mut random = made::Random(0xca11);
    let mut noticed = 0;
    for _ in 0..made::changes() / 6 {
        let (what, changed) = made::change(&mut random, &bytes);
        match shown(&changed) {
            Some((State::Whole, found)) => assert!(found == original, "{what}"),
            Some((State::Unfinished, _)) => panic!("{what}: passes for unfinished"),
            Some((State::Damaged, _)) | None => noticed += 1,
        }
    }
    assert!(noticed > 10, "{noticed}");
}
