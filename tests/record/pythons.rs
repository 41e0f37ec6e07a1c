//! Checks events inside Python (garbage collections, GIL holds and waits, function calls) in records, in each available
//! CPython, against the times that the programs themselves print.

use std::path::Path;
use std::time::Duration;

use tllmprof_record::{Clock, Counter, Info, What};

use crate::common::python::pythons;
use crate::common::torch::python_with_torch;
use crate::common::{Output, Scratch, command, nvtx, repo, run, shim, standin};
use crate::read::Read;

const TEST_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum difference between a time in the record and the program's own reading of the same time, in nanoseconds.
const MAX_DIFFERENCE_NS: u64 = 50_000;

fn record(
    python: &Path,
    program: &str,
    library: &Path,
    variables: &[(&str, &str)],
) -> (Output, Read) {
    let scratch = Scratch::new("pythons");
    let mut started = command(python);
    started
        .arg(repo().join("tests/record").join(program))
        .env("LD_PRELOAD", shim())
        .env("LD_LIBRARY_PATH", standin())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TEST_LIBRARY", library)
        .env("TLLMPROF_START_STOP", "0-")
        .env("TLLMPROF_STEP", "cudaDeviceSynchronize")
        .env("TLLMPROF_TRACE", "%p.tllmprof")
        .envs(variables.iter().copied())
        .current_dir(scratch.folder());
    let output = run(&mut started, TEST_TIMEOUT);
    assert!(
        output.status.success(),
        "{}: {}",
        python.display(),
        output.err()
    );
    let mut records = Read::all(scratch.folder());
    assert_eq!(records.len(), 1, "{}: {}", python.display(), output.err());
    (output, records.remove(0))
}

/// Returns the numbers in each line of output that begins with `word`.
fn numbers(output: &Output, word: &str) -> Vec<Vec<u64>> {
    let out = output.out();
    let lines = out
        .lines()
        .filter_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
    lines
        .map(|line| line.split(' ').map(|n| n.parse().unwrap()).collect())
        .collect()
}

/// An event: its thread, its content, and its start and end in nanoseconds of the monotonic clock.
type Timed = (u64, What, u64, u64);

fn timed(record: &Read) -> Vec<Timed> {
    let clock = Clock::new(record.header.clock, &record.header.anchors);
    let at = |(thread, event): &(u32, tllmprof_record::Event)| {
        let end = event.start + event.duration;
        (
            u64::from(*thread),
            event.what,
            clock.ns(event.start),
            clock.ns(end),
        )
    };
    record.events.iter().map(at).collect()
}

/// Returns the number of the thread's events that satisfy `is` and lie between the times `from` and `to`, give or take
/// [`MAX_DIFFERENCE_NS`].
fn between(events: &[Timed], thread: u64, from: u64, to: u64, is: impl Fn(What) -> bool) -> usize {
    let is_it = |event: &&Timed| {
        event.0 == thread
            && is(event.1)
            && from <= event.2 + MAX_DIFFERENCE_NS
            && event.3 <= to + MAX_DIFFERENCE_NS
    };
    events.iter().filter(is_it).count()
}

#[test]
fn collections_functions_and_the_gil_are_those_of_the_program() {
    let scratch = Scratch::new("pythons");
    let library = nvtx::library(&scratch, "python/gil.c", "");
    for python in pythons() {
        let variables = [
            ("TLLM_PROFILE_RECORD_GC", "1"),
            ("TLLMPROF_GIL", "1"),
            ("TLLMPROF_PY_RANGES", "__main__:marked"),
        ];
        let (output, record) = record(&python.path, "python_events.py", &library, &variables);
        let events = timed(&record);
        let all = |is: fn(What) -> bool| events.iter().filter(|event| is(event.1)).count();

        // An anchor is a reading of the record's clock and of the monotonic clock at the same time. The first anchor
        // must be older than the program's first reading of the clock, and no event may end after the last anchor.
        let begun = numbers(&output, "begun")[0][0];
        // Events of resource use are left out, because their duration field contains an amount.
        let spans = events
            .iter()
            .filter(|event| !matches!(event.1, What::Used { .. }));
        let (anchors, last) = (&record.header.anchors, spans.map(|event| event.3).max());
        assert!(anchors[0].monotonic_ns < begun, "{python}");
        assert!(
            anchors.last().map(|anchor| anchor.monotonic_ns) >= last,
            "{python}"
        );

        let collections = numbers(&output, "gc");
        assert_eq!(collections.len(), 5);
        for line in &collections {
            let &[thread, generation, collected, from, to] = &line[..] else {
                panic!("{line:?}");
            };
            let wanted = What::Gc {
                generation: generation as u16,
                collected,
            };
            let found = between(&events, thread, from, to, |what| what == wanted);
            assert_eq!(found, 1, "{python}: {line:?}");
        }
        // When the interpreter ends, it may collect garbage. So the record may have more collections than the program
        // counted.
        assert!(all(|what| matches!(what, What::Gc { .. })) >= collections.len());
        assert!(record.header.counter(Counter::Collections) >= collections.len() as u64);

        let functions = numbers(&output, "function");
        for line in &functions {
            let &[thread, from, to] = &line[..] else {
                panic!("{line:?}");
            };
            let is_marked = |what| match what {
                What::Function { name } => record.strings.get(name) == "marked",
                _ => false,
            };
            let found = between(&events, thread, from, to, is_marked);
            assert_eq!(found, 1, "{python}: {line:?}");
        }
        // The first call of the marked function came before the window opened, so the record does not have it.
        assert_eq!(
            all(|what| matches!(what, What::Function { .. })),
            functions.len()
        );
        let version = record.info(Info::Python);
        let (major, minor) = python.version;
        assert!(
            version[0].starts_with(&format!("{major}.{minor}.")),
            "{version:?}"
        );

        if !python.has_gil {
            assert_eq!(record.header.counter(Counter::GilHandoffs), 0);
            continue;
        }
        let holds = numbers(&output, "hold");
        for line in &holds {
            let &[thread, taken, has, drops, dropped] = &line[..] else {
                panic!("{line:?}");
            };
            let near = |time: u64, from: u64, to: u64| {
                from <= time + MAX_DIFFERENCE_NS && time <= to + MAX_DIFFERENCE_NS
            };
            let is_it = |event: &&Timed| {
                event.0 == thread
                    && event.1 == What::GilHold
                    && near(event.2, taken, has)
                    && near(event.3, drops, dropped)
            };
            assert_eq!(events.iter().filter(is_it).count(), 1, "{python}: {line:?}");
        }
        let (mut waited, mut lacking) = (0, 0);
        for line in numbers(&output, "wait") {
            let &[thread, from, to] = &line[..] else {
                panic!("{line:?}");
            };
            if to - from > 2_000_000 {
                let found = between(&events, thread, from, to, |what| what == What::GilWait);
                assert!(found <= 1, "{python}: {line:?}");
                waited += found;
                lacking += 1 - found;
            }
        }
        // A busy machine may stop the thread between its reading of the clock and its taking of a free GIL, for which it
        // then does not wait. This is rare.
        assert!(
            waited > 0 && lacking * 4 <= waited,
            "{python}: {waited} waits, {lacking} are not recorded"
        );
        // The record has only those holds of the GIL that last long enough. The counter `GilHandoffs` also includes
        // the shorter ones.
        let handoffs = record.header.counter(Counter::GilHandoffs);
        let kept = all(|what| what == What::GilHold) as u64;
        assert!(handoffs >= kept && kept >= 5, "{python}: {handoffs} {kept}");
        let said = output.err();
        let said = said
            .lines()
            .find_map(|line| line.strip_prefix("tllmprof: Python GIL: "));
        let holds = said.and_then(|line| line.split(' ').next()?.parse::<u64>().ok());
        let holds = holds.unwrap_or_else(|| panic!("{python}: {}", output.err()));
        assert!(
            (handoffs..=handoffs + 100).contains(&holds),
            "{python}: {handoffs} {holds}"
        );
    }
}

/// No NVTX tool is attached in this test, so the record is the only place that gets the ranges of torch modules.
#[test]
fn torch_modules_are_ranges_of_ours() {
    let Some(python) = python_with_torch() else {
        return;
    };
    let variables = [("TLLM_NVTX_DEBUG", "1")];
    let (output, record) = record(&python, "torch_events.py", Path::new(""), &variables);
    let out = output.out();
    let wanted = out.lines().filter_map(|line| line.strip_prefix("module "));
    let wanted: Vec<&str> = wanted.collect();
    assert!(wanted.len() > 100, "{out}");
    let mut ranges = record.ranges();
    ranges.sort_by_key(|range| range.start);
    let ours = ranges
        .iter()
        .filter(|range| range.domain.as_deref() == Some("tllmprof"));
    let names: Vec<&str> = ours.map(|range| range.name.as_str()).collect();
    assert_eq!(
        names.get(..wanted.len()),
        Some(&wanted[..]),
        "{}",
        output.err()
    );
}
