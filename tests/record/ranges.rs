//! Checks the program's NVTX ranges and marks in its record, with and without another NVTX tool.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tllmprof_record::{Counter, RangeKind};

use crate::common::{Output, Scratch, command, nvtx, run, shim, standin};
use crate::counts::{Made, made, rounds, run_and_kill};
use crate::read::{Range, Read};

pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// A program that opens NVTX ranges, and the folder in which it runs.
pub(crate) struct Program {
    path: PathBuf,
    scratch: Scratch,
}

impl Program {
    pub(crate) fn new(source: &str) -> Self {
        let scratch = Scratch::new("ranges");
        let path = nvtx::program(&scratch, source);
        Self { path, scratch }
    }

    pub(crate) fn command(
        &self,
        rule: &str,
        windows: &str,
        arguments: &[&str],
        more: &[(&str, &str)],
    ) -> Command {
        let mut program = command(&self.path);
        program
            .args(arguments)
            .env("LD_LIBRARY_PATH", standin())
            .env("LD_PRELOAD", shim())
            .env("TLLMPROF_START_STOP", windows)
            .env("TLLMPROF_STEP", rule)
            .env("TLLMPROF_DRAIN", "0")
            .env("TLLMPROF_TRACE", "%p.tllmprof")
            .envs(more.iter().copied())
            .current_dir(self.scratch.folder());
        program
    }

    fn run(
        &self,
        rule: &str,
        windows: &str,
        arguments: &[&str],
        more: &[(&str, &str)],
    ) -> (Output, Read) {
        self.forget();
        let output = run(
            &mut self.command(rule, windows, arguments, more),
            TEST_TIMEOUT,
        );
        let mut records = self.records();
        assert_eq!(records.len(), 1, "{}", output.err());
        (output, records.remove(0))
    }

    pub(crate) fn records(&self) -> Vec<Read> {
        Read::all(self.scratch.folder())
    }

    pub(crate) fn folder(&self) -> &std::path::Path {
        self.scratch.folder()
    }

    pub(crate) fn forget(&self) {
        for entry in std::fs::read_dir(self.scratch.folder()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ends| ends == "tllmprof") || path.ends_with("counts") {
                std::fs::remove_file(path).unwrap();
            }
        }
    }

    pub(crate) fn made(&self) -> Vec<Made> {
        made(&self.scratch.path("counts"))
    }

    fn counting_tool(&self) -> (&'static str, String) {
        let tool = nvtx::library(&self.scratch, "nvtx/tool.c", "");
        ("NVTX_INJECTION64_PATH", tool.to_str().unwrap().to_owned())
    }
}

/// The properties of a range that the tests compare: its domain, its name, its kind, and a flag that is true if the
/// end of the window cut the range.
type Summary<'a> = (Option<&'a str>, &'a str, RangeKind, bool);

fn summaries(ranges: &[Range]) -> Vec<Summary<'_>> {
    ranges
        .iter()
        .map(|range| {
            (
                range.domain.as_deref(),
                range.name.as_str(),
                range.kind,
                range.cut,
            )
        })
        .collect()
}

/// Tests each way to open a range, with and without another NVTX tool. If the rule counts ranges as iterations, a
/// window must have exactly the ranges of its iterations.
#[test]
fn ranges_are_kept_by_their_names_and_domains() {
    use RangeKind::{PushPop, StartEnd};
    let program = Program::new("nvtx/ranges.c");
    let (variable, tool) = program.counting_tool();
    let numbered = |n: usize| format!("step {n}");
    let names: Vec<String> = (5..10).map(numbered).collect();
    let each = |summaries: &[Summary<'static>]| summaries.repeat(5);
    let step = |inner: bool| {
        let mut all = Vec::new();
        for name in &names {
            if inner {
                all.push((None, "inner", PushPop, false));
            }
            all.push((None, name.as_str(), PushPop, false));
        }
        all
    };
    let engine = Some("engine");
    let domain_push = each(&[
        (Some("other"), "step", PushPop, false),
        (engine, "inner", PushPop, false),
        (engine, "step of the engine", PushPop, false),
        (None, "step of the default domain", PushPop, false),
    ]);
    let mut started: Vec<Summary<'_>> = Vec::new();
    for (index, name) in names.iter().enumerate() {
        if index > 0 {
            started.push((None, "around", StartEnd, false));
        }
        started.push((None, name.as_str(), StartEnd, false));
    }
    let cases: [(&str, &str, Vec<Summary<'_>>); 7] = [
        ("push_a", "nvtx:^step", step(true)),
        ("push_w", "nvtx:^step", step(false)),
        ("push_ex", "nvtx:^step", step(false)),
        ("domain_push", "nvtx:^step@engine", {
            // The window closes before the last range of the default domain ends, so the record marks that range as
            // cut.
            let mut all = domain_push;
            if let Some(last) = all.last_mut() {
                last.3 = true;
            }
            all
        }),
        (
            "domain_push_wide",
            "nvtx:^step@engine",
            each(&[(engine, "step, wide", PushPop, false)]),
        ),
        ("start", "nvtx:^step", started),
        (
            "domain_start",
            "nvtx:^step@engine",
            each(&[(engine, "step of the engine", StartEnd, false)]),
        ),
    ];
    for (kind, rule, wanted) in &cases {
        let tools = [None, Some((variable, tool.as_str()))];
        for more in &tools {
            let (output, record) = program.run(rule, "5-9", &[kind], more.as_slice());
            assert!(output.status.success(), "{kind}: {}", output.err());
            let mut ranges = record.ranges();
            // Ranges of different threads may be in any order in the file.
            ranges.sort_by_key(|range| range.end);
            assert_eq!(summaries(&ranges), *wanted, "{kind}, {more:?}");
            assert_eq!(record.header.counter(Counter::EventsDropped), 0);
            assert_eq!(record.header.counter(Counter::StringsDropped), 0);
        }
    }
}

/// With a rule for launches, windows open and close in the middle of ranges. Ranges that began before the window are
/// not recorded; ranges that end after it are marked as cut.
#[test]
fn ranges_are_cut_where_the_window_closes_and_left_out_where_it_opens() {
    let program = Program::new("record/ranges.c");
    let (output, record) = program.run(
        "cudaGraphLaunch",
        "0",
        &["counts", "2", "50", "return"],
        &[],
    );
    assert_eq!(output.status.code(), Some(7), "{}", output.err());
    let ranges = record.ranges();
    assert!(ranges.iter().all(|range| range.name != "before the window"));
    assert!(ranges.iter().all(|range| range.name != "behind the window"));
    assert!(record.marks().iter().all(|mark| mark.1 == "here"));
    let cut: Vec<_> = ranges.iter().filter(|range| range.cut).collect();
    assert_eq!(cut.len(), 1, "{cut:?}");
    assert_eq!(cut[0].name, "over its end");
    let ((opened, _), (closed, _)) = record.window_events()[0];
    assert!(cut[0].end <= closed, "{cut:?} {closed}");
    assert!(
        ranges
            .iter()
            .all(|range| opened <= range.start && range.end <= closed)
    );
    assert_every_range_is_there(&record, &program.made(), 0);
}

#[test]
fn without_ranges_in_nvtx_or_windows_there_are_none() {
    let program = Program::new("record/ranges.c");
    let arguments = ["counts", "1", "50", "return"];
    let (_, record) = program.run(
        "cudaGraphLaunch",
        "0-",
        &arguments,
        &[("TLLMPROF_NVTX", "0")],
    );
    assert!(record.ranges().is_empty() && record.marks().is_empty());
    let (_, record) = program.run("cudaGraphLaunch", "5-9", &arguments, &[]);
    assert!(record.ranges().is_empty() && record.marks().is_empty());
}

/// Another NVTX tool is loaded. It must get the same events as without the library, and the record must have these
/// events, too.
#[test]
fn a_tool_behind_the_record_gets_every_event() {
    let program = Program::new("record/ranges.c");
    let (variable, tool) = program.counting_tool();
    let tools = |output: &Output| {
        let said = output.err();
        let lines = said.lines().filter_map(|line| line.strip_prefix("tool: "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let arguments = ["counts", "4", "300", "return"];
    let mut plain = program.command("cudaGraphLaunch", "0-", &arguments, &[(variable, &tool)]);
    plain.env_remove("LD_PRELOAD");
    let plain = run(&mut plain, TEST_TIMEOUT);
    for windows in ["0-", "1000000"] {
        let mut recorded = program.command("cudaGraphLaunch", windows, &arguments, &[]);
        recorded.env(variable, &tool);
        program.forget();
        let output = run(&mut recorded, TEST_TIMEOUT);
        let [seen] = &tools(&output)[..] else {
            panic!("{}", output.err());
        };
        let [wanted] = &tools(&plain)[..] else {
            panic!("{}", plain.err());
        };
        let number = |line: &str, name: &str| -> u64 {
            let word = line.split(' ').find_map(|word| word.strip_prefix(name));
            word.unwrap().parse().unwrap()
        };
        for (name, ours) in [("pushes=", 0), ("pops=", 0), ("marks=", 0)] {
            assert_eq!(
                number(seen, name),
                number(wanted, name) + ours,
                "{seen} {wanted}"
            );
        }
        assert!(
            number(seen, "starts=") >= number(wanted, "starts="),
            "{seen} {wanted}"
        );
        let record = program.records().remove(0);
        if windows == "0-" {
            assert_every_range_is_there(&record, &program.made(), 0);
        } else {
            assert!(record.ranges().is_empty());
        }
    }
}

#[test]
fn sixty_four_threads_at_once_lose_nothing() {
    let program = Program::new("record/ranges.c");
    let (output, record) = program.run(
        "cudaGraphLaunch",
        "0-",
        &["counts", "64", "200", "return"],
        &[],
    );
    assert_eq!(output.status.code(), Some(7), "{}", output.err());
    assert_every_range_is_there(&record, &program.made(), 0);
    let steps = record.ranges();
    // All threads use the same new names. Each name must belong to 64 ranges, one of each thread, whichever thread uses
    // it first.
    for n in 0..200 {
        let name = format!("step {n}");
        assert_eq!(steps.iter().filter(|range| range.name == name).count(), 64);
    }
    assert_eq!(record.header.counter(Counter::StringsDropped), 0);
}

#[test]
fn killed_at_any_moment_every_range_that_ended_is_there() {
    let program = Program::new("record/ranges.c");
    let in_the_midst = Cell::new(false);
    for (round, delay) in rounds(&in_the_midst) {
        program.forget();
        let threads = (1 + round % 3).to_string();
        let mut child = program.command(
            "cudaGraphLaunch",
            "0-",
            &["counts", &threads, "0", "kill"],
            &[],
        );
        let killed = run_and_kill(&mut child, delay);
        assert_eq!(killed.signal(), Some(libc::SIGKILL));
        let made = program.made();
        let Some(record) = program.records().pop() else {
            assert!(made.iter().all(|made| made.marked == 0));
            continue;
        };
        assert_every_range_is_there(&record, &made, 1);
        if !record.ranges().is_empty() {
            in_the_midst.set(true);
        }
    }
}

/// Asserts that the record has every mark, and every range that ended, under the thread that ended it. The record may
/// have at most `more` further ranges per thread and kind, which were in progress. Recorded ranges must nest as the
/// program opened them.
fn assert_every_range_is_there(record: &Read, made: &[Made], more: u64) {
    assert!(record.damage.is_none(), "{}", record.damage);
    assert_eq!(record.header.counter(Counter::EventsDropped), 0);
    let ranges = record.ranges();
    let mut pushed = BTreeMap::<u32, Vec<&Range>>::new();
    let mut started = BTreeMap::<u32, u64>::new();
    for range in &ranges {
        match range.kind {
            RangeKind::PushPop => pushed.entry(range.thread).or_default().push(range),
            RangeKind::StartEnd => *started.entry(range.thread).or_default() += 1,
        }
    }
    for made in made {
        let thread = made.number as u32;
        let is_so_many = |found: usize, wanted: u64, what: &str| {
            let found = found as u64;
            assert!(
                (wanted..=wanted + more).contains(&found),
                "thread {thread}: {wanted} {what}, {found} are recorded"
            );
        };
        let pushed = pushed.get(&thread).map_or(&[][..], Vec::as_slice);
        is_so_many(pushed.len(), made.pushed, "popped");
        let started = started.get(&thread).copied().unwrap_or(0);
        is_so_many(started as usize, made.started, "ended");
        let marks = record.marks();
        let marks = marks.iter().filter(|mark| mark.0 == thread);
        is_so_many(marks.count(), made.marked, "marks");
        // In each step, the range `step N` encloses the range `inner`, so it ends after `inner`.
        for (n, pair) in pushed.chunks(2).enumerate() {
            assert_eq!(
                (pair[0].name.as_str(), pair[0].domain.as_deref()),
                ("inner", Some("engine"))
            );
            if let Some(step) = pair.get(1) {
                assert_eq!(step.name, format!("step {n}"));
                assert!(step.start <= pair[0].start && pair[0].end <= step.end);
            }
        }
    }
}
