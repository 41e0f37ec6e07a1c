//! Runs the fuzzer's seeds and changed seeds. First comes a fixed number of changes, the same in each test run. Then
//! come random changes for the time that `TLLMPROF_TEST_FUZZ` sets. `scripts/fuzz` runs more, guided by coverage.

use std::fs;
use std::panic;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use tllmprof_fuzzed::mutate::Mutator;
use tllmprof_fuzzed::{TARGETS, Target};
use tllmprof_report::Process;

/// Returns the number of changed inputs for a target. Slow targets get fewer inputs. `TLLMPROF_TEST_DAMAGE` overrides
/// the number.
fn changed(name: &str) -> u64 {
    let usual = match name {
        "export" => 20,
        "report" | "nsys" => 200,
        _ => 1000,
    };
    std::env::var("TLLMPROF_TEST_DAMAGE").map_or(usual, |n| n.parse().unwrap())
}

/// Returns the duration for which each target gets random inputs: `TLLMPROF_TEST_FUZZ` seconds, or 0.
fn patience() -> Duration {
    Duration::from_secs(std::env::var("TLLMPROF_TEST_FUZZ").map_or(0, |n| n.parse().unwrap()))
}

/// Returns the path and content of each file in a folder of `fuzz/corpus`; empty if there is no such folder.
fn files(folder: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let Ok(files) = fs::read_dir(corpus.join(folder)) else {
        return Vec::new();
    };
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths
        .into_iter()
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

fn seeds(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    files(&format!("seeds/{}", target.seeds))
}

fn replay(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let mut seeds = seeds(target);
    assert!(seeds.len() >= 2, "{name} has seeds");
    // Inputs in the folder `found` come from a fuzzer. Each of them reached code that no seed reaches.
    seeds.extend(files(&format!("found/{name}")));
    for (path, seed) in &seeds {
        let done = panic::catch_unwind(|| (target.run)(seed));
        assert!(done.is_ok(), "{name}: {}", path.display());
    }
    let check = |n| {
        let mut mutator = Mutator::new(n);
        let (path, seed) = &seeds[mutator.below(seeds.len())];
        let (_, other) = &seeds[mutator.below(seeds.len())];
        let mut bytes = seed.clone();
        mutator.change(&mut bytes, other);
        let done = panic::catch_unwind(|| (target.run)(&bytes));
        if done.is_err() {
            let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{n}"));
            fs::write(&kept, &bytes).unwrap();
            panic!("{name}: {} changed, now {}", path.display(), kept.display());
        }
    };
    (0..changed(name)).for_each(check);
    let (began, patience) = (Instant::now(), patience());
    let first = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let others = (first..).take_while(|_| began.elapsed() < patience);
    let count = others.map(check).count();
    if count > 0 {
        println!("{name}: {count} new inputs");
    }
}

macro_rules! replays {
    ($($name:ident)+) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name));
        })+

        #[test]
        fn every_target_is_replayed_and_has_a_file() {
            let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),+]);
            for name in names {
                let file = format!("../../fuzz/fuzz_targets/{name}.rs");
                assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(&file).is_file(), "{file}");
            }
        }
    };
}

replays! { reader report export settings symbols nsys streams control }

/// Each event has a checksum, and a reader drops a changed event because its checksum is wrong. `repair` recomputes the
/// checksums; without it, the fuzzer would test only the code that compares checksums.
#[test]
fn a_changed_event_is_read_by_a_target() {
    use tllmprof_fuzzed::packed::unpack;
    use tllmprof_record::{CHUNK_HEADER_BYTES, Entry, HEADER_BYTES, Reader, repair};
    let seeds = seeds(&TARGETS[0]);
    let (_, seed) = seeds
        .iter()
        .find(|(path, _)| path.ends_with("every-kind"))
        .unwrap();
    let mut record = unpack(seed);
    record[HEADER_BYTES + CHUNK_HEADER_BYTES + 20 * 24] ^= 0xff;
    let count = |record: &[u8]| {
        let mut events = 0;
        let is_event = |entry: Entry<'_>| matches!(entry, Entry::Event { .. });
        let damage = Reader::new(record)
            .unwrap()
            .read(|entry| events += usize::from(is_event(entry)));
        (events, damage.unwrap().is_none())
    };
    let whole = count(&unpack(seed));
    let changed = count(&record);
    repair(&mut record);
    let repaired = count(&record);
    assert!(whole.1 && !changed.1 && repaired.1);
    assert!(
        changed.0 < whole.0 && repaired.0 == whole.0,
        "{changed:?} {whole:?}"
    );
}

/// The seeds that are exports of nsys must have iterations. Otherwise a reader would stop after an export's first
/// table, and the fuzzer would never reach the code that reads the other tables.
#[test]
fn the_exports_have_iterations_and_all_that_is_read_of_them() {
    let found = TARGETS.iter().find(|target| target.name == "nsys").unwrap();
    for (path, _) in seeds(found) {
        let processes = tllmprof_nsys::open(&path, Path::new("nsys"), None).unwrap();
        let process = Process::read(path.clone(), &processes[0]).unwrap();
        let ranges = process.calls.ranges.len() + process.calls.functions.len();
        let iterations = process.sum.as_ref().map(|sum| sum.iterations);
        assert_eq!(iterations, Some(3), "{}", path.display());
        assert!(process.others.outside.all.iterations > 0 && ranges >= 2);
        assert!(!process.python.gc.is_empty() && !process.kernels.totals.is_empty());
        if path.ends_with("full") {
            assert!(!process.calls.calls.is_empty() && !process.kernels.copies.is_empty());
            assert_eq!((&process.facts.host[..], process.facts.rank), ("gpu7", 3));
        }
    }
}
