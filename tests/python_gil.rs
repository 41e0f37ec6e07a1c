//! Checks the recorded garbage collections and GIL holds and waits against the times and counts that the programs
//! themselves print, in each available CPython. A program reads the clock before and after each of its actions. The
//! tool that gets the ranges reads the same clock. A range must begin and end between the program's readings, however
//! busy the machine is.

mod common;

use std::collections::HashSet;
use std::sync::OnceLock;

use common::python::{Bench, Python, Ran, Span, pythons};
use common::{shim, standin};

const GC: (&str, &str) = ("TLLM_PROFILE_RECORD_GC", "1");
const GIL: (&str, &str) = ("TLLMPROF_GIL", "1");
const DEBUG: (&str, &str) = ("TLLMPROF_LOG", "debug");

fn with_gil() -> impl Iterator<Item = &'static Python> {
    pythons().iter().filter(|python| python.has_gil)
}

/// Returns the number before `word` in the line, such as 12 in `12 holds`.
#[track_caller]
fn number_before(line: &str, word: &str) -> u64 {
    let words: Vec<&str> = line.split([' ', ';', ',']).collect();
    let at = words.iter().position(|found| *found == word);
    let number = at.and_then(|at| words[at.checked_sub(1)?].parse().ok());
    number.unwrap_or_else(|| panic!("no number before {word:?}: {line}"))
}

/// Returns the time after `word` in the line, such as `5.678000 s` in `12 holds, 5.678000 s`, in nanoseconds.
#[track_caller]
fn time_behind(line: &str, word: &str) -> u64 {
    let rest = line.split_once(word).expect("the word is there").1;
    let time = rest.trim_start_matches(", ").split(' ').next().unwrap();
    let (seconds, micros) = time.split_once('.').expect("seconds with a point");
    seconds.parse::<u64>().unwrap() * 1_000_000_000 + micros.parse::<u64>().unwrap() * 1000
}

/// Asserts that the ranges never show two threads that hold the same GIL at the same time. A range's payload identifies
/// the GIL by its address.
#[track_caller]
fn never_overlap(python: &Python, ran: &Ran) {
    let mut holds = ran.started("GIL hold");
    assert!(!holds.is_empty(), "{python}");
    holds.sort_by_key(|hold| (hold.process, hold.payload, hold.start));
    for pair in holds.windows(2) {
        let same = (pair[0].process, pair[0].payload) == (pair[1].process, pair[1].payload);
        // A new GIL may have the address of an old GIL, so ranges with the same payload may belong to different GILs.
        // Even then they do not overlap, because a hold ends at the latest with its thread, and the new GIL is held
        // only after that.
        assert!(!same || pair[0].end <= pair[1].start, "{python}: {pair:?}");
    }
}

/// Returns the thread's ranges that match the four `times` of the program: they begin between the first two times and
/// end between the last two.
fn within(ranges: &[Span], thread: u64, times: [u64; 4]) -> Vec<&Span> {
    let is_it = |range: &&Span| {
        u64::from(range.thread) == thread
            && (times[0]..=times[1]).contains(&range.start)
            && (times[2]..=times[3]).contains(&range.end)
    };
    ranges.iter().filter(is_it).collect()
}

/// Returns true if both times differ by at most 1 %.
fn agree(measured: u64, truth: u64) -> bool {
    measured.abs_diff(truth) * 100 <= truth
}

#[test]
fn collections_are_those_of_gc_get_stats() {
    let bench = Bench::new();
    for python in pythons() {
        let ran = bench.run(python, "collects", &[GC, DEBUG]);
        let (from, to) = (ran.numbers("from")[0][0], ran.numbers("to")[0][0]);
        let mut all = [0; 3];
        for (generation, truth) in ran.numbers("stats").iter().enumerate() {
            let name = format!("Python GC gen{generation}");
            let inside = |time: u64| (from..=to).contains(&time);
            let ranges = ran.pushed().into_iter().filter(|range| range.name == name);
            let (ranges, outside): (Vec<_>, Vec<_>) = ranges.partition(|range| inside(range.start));
            let payloads = |what: &str| -> Vec<u64> {
                let name = format!("{name} {what}");
                let marks = ran.events.iter().filter(|event| {
                    event.kind == "mark" && event.name == name && inside(event.time)
                });
                marks.map(|mark| mark.payload).collect()
            };
            let (collected, uncollectable) = (payloads("collected"), payloads("uncollectable"));
            assert_eq!(
                ranges.len() as u64,
                truth[0],
                "{python} {name}: collections"
            );
            assert_eq!(collected.len(), ranges.len(), "{python} {name}");
            assert_eq!(collected.iter().sum::<u64>(), truth[1], "{python} {name}");
            assert_eq!(
                uncollectable.iter().sum::<u64>(),
                truth[2],
                "{python} {name}"
            );
            all[generation] = ranges.len() + outside.len();
        }
        assert!(all[0] > 0 && all[2] >= 2, "{python}: {all:?}");
        let said = ran.line("Python GC: ");
        let wanted = format!(
            "Python GC: {} of gen0, {} of gen1, {} of gen2, ",
            all[0], all[1], all[2]
        );
        assert!(said.starts_with(&wanted), "{python}: {said}, not {wanted}");
        let marks = |what: &str| -> u64 {
            let marks = ran.events.iter();
            let marks = marks.filter(|event| event.kind == "mark" && event.name.ends_with(what));
            marks.map(|mark| mark.payload).sum()
        };
        assert_eq!(
            number_before(&said, "objects"),
            marks(" collected"),
            "{python}"
        );
        assert_eq!(
            number_before(&said, "uncollectable"),
            marks(" uncollectable"),
            "{python}"
        );
        assert_eq!(ran.count("start", "GIL hold"), 0, "{python}");
    }
}

#[test]
fn holds_of_50_ms() {
    let bench = Bench::new();
    for python in with_gil() {
        let ran = bench.run(python, "holds", &[GIL, DEBUG]);
        let holds = ran.started("GIL hold");
        let truths = ran.numbers("hold");
        assert_eq!(truths.len(), 20, "{python}");
        let (mut exact, mut sum) = (0, 0);
        for truth in truths {
            let times = [truth[1], truth[2], truth[3], truth[4]];
            let found = within(&holds, truth[0], times);
            assert_eq!(found.len(), 1, "{python}: {truth:?}");
            let took = found[0].end - found[0].start;
            sum += took;
            exact += usize::from(agree(took, truth[3] - truth[2]));
        }
        // A busy machine may stop a thread between a range's edge and the program's reading of the clock. So only more
        // than half of the holds have to match within 1 %.
        assert!(exact > 10, "{python}: {exact} of 20 within 1 %");
        never_overlap(python, &ran);
        let said = ran.line("Python GIL: ");
        assert!(
            time_behind(&said, "holds") >= sum / 1000 * 1000,
            "{python}: {said}"
        );
        assert!(said.contains("; 0 forced switches"), "{python}: {said}");
    }
}

#[test]
fn waits_are_what_a_thread_waits() {
    let bench = Bench::new();
    for python in with_gil() {
        let ran = bench.run(python, "waits", &[GIL, DEBUG]);
        let waits = ran.started("GIL wait");
        let (mut contended, mut exact) = (0, 0);
        for truth in ran.numbers("wait") {
            let (before, after) = (truth[1], truth[2]);
            let found = within(&waits, truth[0], [before, after, before, after]);
            // If no wait was recorded, the GIL was free when the thread took it.
            assert!(found.len() <= 1, "{python}: {truth:?} {found:?}");
            if let [wait] = found[..] {
                contended += 1;
                exact += usize::from(agree(wait.end - wait.start, after - before));
            }
        }
        assert!(contended >= 10, "{python}: {contended} waits");
        // A busy machine may stop a thread between a range's edge and the program's reading of the clock. So only more
        // than half of the waits have to match within 1 %.
        assert!(exact * 2 > contended, "{python}: {exact} of {contended}");
        never_overlap(python, &ran);
    }
}

/// Compares the GIL totals, which the library logs at the end, with the ranges. The ranges' times are less exact: the
/// NVTX tool reads the clock after the library, which can be much later while other threads spin. Returns an error if
/// the total times differ too much.
#[track_caller]
fn totals_agree(python: &Python, ran: &Ran) -> Result<(), String> {
    const PERCENT: u64 = 5;
    let said = ran.line("Python GIL: ");
    let (last, gone) = (ran.numbers("exit")[0][0], monotonic_ns());
    for (name, word) in [("GIL hold", "holds"), ("GIL wait", "waits")] {
        let ranges = ran.started(name);
        let count = number_before(&said, word);
        // The interpreter may take the GIL while it ends, even after the library has logged the totals. So the totals
        // must include all ranges that began before the program's last action, and may lack later ones.
        let least = ranges.iter().filter(|range| range.start < last).count() as u64;
        assert!(
            (least..=ranges.len() as u64).contains(&count),
            "{python}: {least} to {} of {name}: {said}",
            ranges.len()
        );
        let ended = ranges.iter().filter(|range| range.end < last);
        let least: u64 = ended.map(|range| range.end - range.start).sum();
        let most: u64 = ranges
            .iter()
            .map(|range| range.end.min(gone) - range.start)
            .sum();
        let time = time_behind(&said, word);
        let (less, more) = (least * PERCENT / 100, most * PERCENT / 100);
        if !((least - less) / 1000 * 1000..=most + more).contains(&time) {
            return Err(format!("{python}: {least} to {most} ns of {name}: {said}"));
        }
    }
    Ok(())
}

fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: clock_gettime only writes the time into the local `now`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The totals that the library logs must match the NVTX tool's counts. The number of forced GIL switches must match the
/// interpreter's calls of `pthread_cond_wait`, which a preloaded library counts.
#[test]
fn totals_of_threads_that_spin() {
    /// Number of runs, one of which must have the right times. By chance, a busy machine may stop a thread between the
    /// library's reading of the clock and the tool's so often that the times of a run differ too much.
    const RUNS: usize = 4;
    let bench = Bench::new();
    let counter = bench.library("python/condition_waits.c");
    let preload = format!("{}:{}", shim().display(), counter.display());
    let mut any_forced = 0;
    let mut spins = |python: &Python| {
        // While threads spin, the tool reads the clock too late to show that holds never overlap, so this test does not
        // check that.
        let ran = bench.run(python, "spins", &[GIL, DEBUG, ("LD_PRELOAD", &preload)]);
        let said = ran.line("Python GIL: ");
        let err = ran.output.err();
        let forced = err
            .split_once("condition waits: ")
            .expect("the count is printed")
            .1;
        let forced: u64 = forced.lines().next().unwrap().parse().unwrap();
        assert_eq!(number_before(&said, "forced"), forced, "{python}: {said}");
        any_forced += forced;
        let threads: HashSet<u32> = ran.started("GIL hold").iter().map(|h| h.thread).collect();
        assert!(threads.len() >= 5, "{python}: {threads:?}");
        totals_agree(python, &ran)
    };
    for python in with_gil() {
        let mut wrong = Vec::new();
        while let Err(error) = spins(python) {
            wrong.push(error);
            assert!(wrong.len() < RUNS, "{wrong:#?}");
        }
    }
    assert!(any_forced > 0 || with_gil().next().is_none());
}

#[test]
fn the_longest_wait_has_its_threads_name() {
    let bench = Bench::new();
    for python in with_gil() {
        let ran = bench.run(python, "patient", &[GIL, DEBUG]);
        let said = ran.line("Python GIL: ");
        assert!(
            said.contains(" ms by the patient one; "),
            "{python}: {said}"
        );
    }
}

#[test]
fn a_threads_name_does_nothing_to_a_terminal() {
    let bench = Bench::new();
    let name = ("THREAD_NAME", "\x1b]0;PWNED\x07\x1b[31mRED\nfake: line");
    for python in with_gil() {
        let ran = bench.run(python, "patient", &[GIL, DEBUG, name]);
        let said = ran.line("Python GIL: ");
        assert!(said.contains(" by \\u{1b}]0;PW"), "{python}: {said}");
        let all = ran.output.err();
        assert!(!all.contains('\x1b'), "{python}: {all:?}");
        assert!(
            !all.lines().any(|line| line.starts_with("fake")),
            "{python}: {all}"
        );
    }
}

#[test]
fn forks_while_threads_have_it() {
    let bench = Bench::new();
    for python in with_gil() {
        let ran = bench.run(python, "forks", &[GIL, GC]);
        never_overlap(python, &ran);
        let holds = ran.started("GIL hold");
        let truths = ran.numbers("hold");
        assert_eq!(truths.len(), 40, "{python}");
        for truth in truths {
            let times = [truth[1], truth[2], truth[3], truth[4]];
            assert_eq!(
                within(&holds, truth[0], times).len(),
                1,
                "{python}: {truth:?}"
            );
        }
        let parent = ran.events[0].process;
        let children = ran
            .pushed()
            .into_iter()
            .filter(|range| range.process != parent && range.name == "Python GC gen2");
        assert!(children.count() >= 10, "{python}");
        // The process does not use CUDA, so the library logs nothing.
        assert_eq!(ran.output.err(), "", "{python}");
    }
}

#[test]
fn interpreters_with_gils_of_their_own() {
    let bench = Bench::new();
    for python in with_gil().filter(|python| python.version >= (3, 12)) {
        let count = [GIL, DEBUG, ("INTERPRETERS", "6")];
        let ran = bench.run(python, "interpreters", &count);
        never_overlap(python, &ran);
        let gils: HashSet<u64> = ran.started("GIL hold").iter().map(|h| h.payload).collect();
        assert_eq!(gils.len(), 7, "{python}: {gils:?}");
        assert!(
            !ran.line("Python GIL: ").contains("not followed"),
            "{python}"
        );
        // The program makes more interpreters than the library can follow. The library reports this, and the program is
        // not harmed.
        let ran = bench.run(
            python,
            "interpreters",
            &[GIL, DEBUG, ("INTERPRETERS", "70")],
        );
        never_overlap(python, &ran);
        let said = ran.line("Python GIL: ");
        assert!(
            said.ends_with("; 7 more GILs were not followed"),
            "{python}: {said}"
        );
    }
}

#[test]
fn a_build_without_a_gil_has_none_to_show() {
    let bench = Bench::new();
    for python in pythons().iter().filter(|python| !python.has_gil) {
        let ran = bench.run(python, "spins", &[GIL, GC, DEBUG]);
        let name = |event: &common::python::Event| event.name.starts_with("GIL");
        assert!(!ran.events.iter().any(name), "{python}");
        ran.line("runs without a GIL: there is none to wait for");
        ran.line("Python GC: ");
        assert!(!ran.output.err().contains("Python GIL:"), "{python}");
        let quiet = bench.run(python, "spins", &[GIL, GC]);
        assert_eq!(quiet.output.err(), "", "{python}");
    }
}

/// If the process uses CUDA, the GIL totals are logged, however the process ends. If it does not use CUDA, nothing is
/// logged.
#[test]
fn totals_are_logged_where_cuda_is_used() {
    static STANDIN: OnceLock<String> = OnceLock::new();
    let path = STANDIN.get_or_init(|| standin().to_string_lossy().into_owned());
    let bench = Bench::new();
    let cuda = [
        GIL,
        GC,
        ("LD_LIBRARY_PATH", path),
        ("TLLM_PROFILE_START_STOP", "1000"),
        ("TLLMPROF_STEP", "cudaGraphLaunch"),
    ];
    // `LD_LIBRARY_PATH` only names the folder of the stand-in for CUDA. That is enough, because the builds of
    // `scripts/get-pythons` find their own libraries without the variable.
    for python in pythons() {
        for leave in ["in order", "at once"] {
            let variables: Vec<_> = cuda.into_iter().chain([("LEAVE", leave)]).collect();
            let ran = bench.run(python, "cuda", &variables);
            let said = ran.line("Python GC: ");
            let gen2 = ran
                .pushed()
                .iter()
                .filter(|r| r.name.ends_with("gen2"))
                .count();
            assert!(
                said.contains(&format!("{gen2} of gen2")),
                "{python}: {said}"
            );
            if python.has_gil {
                let said = ran.line("Python GIL: ");
                let holds = ran.count("start", "GIL hold");
                assert_eq!(
                    number_before(&said, "holds"),
                    holds,
                    "{python} {leave}: {said}"
                );
            }
        }
        let quiet = bench.run(python, "holds", &[GIL, GC, ("HOLDS", "1")]);
        assert_eq!(quiet.output.err(), "", "{python}");
    }
}

/// If no garbage collections, GIL times or functions of Python are requested, the library changes no GOT slot of the
/// interpreter. The test checks the slots for the functions `pthread_cond_…`, which `slots.py` lists.
#[test]
fn what_is_off_is_left_as_it_is() {
    let bench = Bench::new();
    let slots = bench.library("python/slots.c");
    let slots = ("SLOTS_LIBRARY", slots.to_str().expect("a path in UTF-8"));
    for python in pythons() {
        let led = |variables: &[(&str, &str)]| {
            // A rule is set explicitly. With the default rule `auto`, the library may look for an engine's Python
            // function, and change GOT slots for this.
            let rule = ("TLLMPROF_STEP", "cudaGraphLaunch");
            let variables: Vec<_> = variables.iter().copied().chain([slots, rule]).collect();
            let ran = bench.run(python, "slots", &variables);
            let gil = ran.events.iter().any(|event| event.name.starts_with("GIL"));
            assert_eq!(gil, variables.contains(&GIL) && python.has_gil, "{python}");
            ran.numbers("led").concat()
        };
        assert_eq!(led(&[]), [0; 5], "{python}");
        assert_eq!(led(&[("TLLMPROF_GIL", "0")]), [0; 5], "{python}");
        assert_eq!(led(&[GC]), [1, 0, 0, 0, 0], "{python}");
        assert_eq!(led(&[GIL]), [1; 5], "{python}");
    }
}
