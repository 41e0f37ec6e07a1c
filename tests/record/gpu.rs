//! Compares GPU times in the record with the log in which the stand-in for CUDA lists its GPU's work.
//!
//! In these tests, the stand-in's clock advances only in waits (`STANDIN_CLOCK=virtual`), so times are the same on
//! every machine. The stand-in ends a program that uses a destroyed handle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use tllmprof_record::{Counter, Info, What};

use crate::common::{Fixture, Output, Scratch, built_command, compiler, repo, run, shim, standin};
use crate::read::Read;

/// Returns the path of the program, built once from `gpu.c`.
fn program() -> &'static Path {
    static BUILT: OnceLock<(Scratch, PathBuf)> = OnceLock::new();
    let (_, path) = BUILT.get_or_init(|| {
        let scratch = Scratch::new("gpu");
        let built = scratch.path("gpu");
        let mut cc = compiler();
        cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"])
            .args(["-pthread", "-DSTANDIN"])
            .arg(format!("-I{}", repo().join("tests/standin").display()))
            .arg(format!("-I{}", repo().join("tests/fixtures").display()))
            .arg(format!("-L{}", standin().display()))
            .arg("-o")
            .arg(&built)
            .arg(repo().join("tests/record/gpu.c"))
            .arg("-l:libcuda.so.1");
        let output = run(&mut cc, Duration::from_secs(300));
        assert!(output.status.success(), "{cc:?}\n{}", output.err());
        (scratch, built)
    });
    path
}

/// A piece of the GPU's work, such as a kernel: its start and its end in nanoseconds of the clock of the stand-in for
/// CUDA.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Piece {
    from: u64,
    until: u64,
}

/// The results of a run of the program.
struct Ran {
    output: Output,
    record: Read,
    /// The log of the stand-in for CUDA: for each step, the pieces of work of each stream.
    work: BTreeMap<i64, Vec<Vec<Piece>>>,
}

fn ran(how: &str, steps: u32, window: &str, variables: &[(&str, &str)]) -> Ran {
    let scratch = Scratch::new("record-gpu");
    let log = scratch.path("work");
    let mut command = built_command(program());
    command
        .arg(how)
        .arg(steps.to_string())
        .env("LD_LIBRARY_PATH", standin())
        .env("LD_PRELOAD", shim())
        .env("TLLMPROF_START_STOP", window)
        .env("TLLMPROF_STEP", "cudaGraphLaunch")
        .env("TLLMPROF_TRACE", "x.tllmprof")
        .env("TLLMPROF_GPU_TIMES", "all")
        .env("STANDIN_CLOCK", "virtual")
        .env("STANDIN_WORK_NS", "1000")
        .env("STANDIN_WORK_LOG", &log)
        .current_dir(scratch.folder());
    for (name, value) in variables {
        command.env(name, value);
    }
    let output = run(&mut command, Duration::from_secs(300));
    assert_eq!(
        output.status.code(),
        Some(7),
        "{:?} {}",
        output.status.signal(),
        output.err()
    );
    Ran {
        work: work(&output.out(), &fs::read_to_string(&log).unwrap()),
        record: Read::open(&scratch.path("x.tllmprof")),
        output,
    }
}

/// Parses a line of the log of the stand-in for CUDA. Returns the stream and the piece of work.
fn piece(line: &str) -> (String, Piece) {
    let words: Vec<_> = line.split(' ').collect();
    let number = |index: usize| words[index].parse::<u64>().unwrap();
    let piece = Piece {
        from: number(3),
        until: number(4),
    };
    (words[1].to_owned(), piece)
}

fn work(said: &str, log: &str) -> BTreeMap<i64, Vec<Vec<Piece>>> {
    let mut pieces = log.lines().map(piece);
    let mut work: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in said.lines() {
        let (step, count) = line.split_once(' ').unwrap();
        let mut by_stream: BTreeMap<String, Vec<Piece>> = BTreeMap::new();
        for (stream, piece) in pieces.by_ref().take(count.parse().unwrap()) {
            by_stream.entry(stream).or_default().push(piece);
        }
        let step = work.entry(step.parse().unwrap()).or_default();
        step.extend(by_stream.into_values());
    }
    assert_eq!(pieces.next(), None, "work that the program says nothing of");
    work
}

/// A GPU span in the record: the work of one stream in one iteration.
#[derive(Clone, Copy, Debug)]
struct Span {
    device: u8,
    stream: u16,
    iteration: u64,
    start: u64,
    ns: u64,
    cut: bool,
}

fn spans(record: &Read) -> Vec<Span> {
    let events = record.events.iter();
    let spans = events.filter_map(|(_, event)| match event.what {
        What::GpuSpan {
            device,
            stream,
            iteration,
        } => Some(Span {
            device,
            stream,
            iteration,
            start: event.start,
            ns: event.duration,
            cut: event.cut,
        }),
        _ => None,
    });
    spans.collect()
}

impl Ran {
    fn spans(&self) -> Vec<Span> {
        spans(&self.record)
    }

    /// Returns the durations of the GPU spans that the record has for a step, the shortest first.
    fn recorded(&self, step: u64) -> Vec<u64> {
        let spans = self.spans();
        let mut durations: Vec<_> = spans
            .iter()
            .filter(|span| span.iteration == step)
            .map(|span| span.ns)
            .collect();
        durations.sort_unstable();
        durations
    }

    /// Returns the true durations of a step's work, one for each stream: from the start of the stream's first piece to
    /// the end of its last one.
    fn true_ones(&self, step: u64) -> Vec<u64> {
        let streams = &self.work[&step.try_into().unwrap()];
        let mut durations: Vec<_> = streams
            .iter()
            .map(|pieces| pieces[pieces.len() - 1].until - pieces[0].from)
            .collect();
        durations.sort_unstable();
        durations
    }

    fn assert_exact(&self, steps: impl IntoIterator<Item = u64>) {
        for step in steps {
            let wanted = self.true_ones(step);
            assert!(wanted.iter().all(|ns| *ns > 0));
            assert_eq!(self.recorded(step), wanted, "step {step}");
        }
    }

    fn lost(&self) -> u64 {
        self.record.header.counter(Counter::GpuSpansLost)
    }
}

#[test]
fn gpu_times_are_those_of_the_gpu() {
    for (how, first) in [
        ("plain", 3),
        ("events", 3),
        ("streams", 3),
        ("waits", 3),
        ("copies", 3),
        ("fresh", 3),
        ("elsewhere", 3),
        ("turns", 3),
        ("refused", 3),
        // The library measures GPU time by CUDA events that it records on the streams. Until the library knows the
        // number of launches per iteration, such an event in one default stream may also wait for the work of another
        // default stream. So the times of steps 3 and 4, the first in the window, are not exact.
        ("defaults", 5),
    ] {
        for drain in ["1", "0"] {
            let ran = ran(how, 12, "3-8", &[("TLLMPROF_DRAIN", drain)]);
            ran.assert_exact(first..=8);
            assert_eq!(ran.lost(), 0, "{how}");
            let spans = ran.spans();
            assert!(spans.iter().all(|span| (3..=8).contains(&span.iteration)));
            // A span ends with a CUDA event, after the number of launches that the previous iteration had. Without this
            // number, the library records the event just before the launching thread waits for the work. If there is
            // no such wait either, as in `fresh` and `elsewhere`, the span is marked as cut.
            let may_be_cut = matches!(how, "fresh" | "elsewhere");
            assert_eq!(spans.iter().any(|span| span.cut), may_be_cut, "{how}");
        }
    }
}

#[test]
fn however_the_program_reaches_cuda_its_streams_are_distinguished() {
    /// Number of pieces of GPU work in a step.
    const PIECES: usize = 7;
    /// Number of these pieces that come before the graph launch, which begins the iteration. The first of them is a
    /// copy to the device that is too small to be timed.
    const BEFORE: usize = 3;
    for way in [
        "shared12",
        "static",
        "static_ptsz",
        "ptsz",
        "driver_ptsz",
        "driver_gpa1",
        "driver_gpa2_ptsz",
        "driver_dlsym_ptsz",
        "rtld_local",
    ] {
        let run_with = |stream: &str| {
            let fixture = Fixture::new(&format!("steps_{way}"))
                .window("5-9", "cudaGraphLaunch")
                .args(&format!(
                    "--steps 12 --kernels 2 --sync stream --copy-out {stream}"
                ))
                .env("TLLMPROF_TRACE", "x.tllmprof")
                .env("TLLMPROF_GPU_TIMES", "all")
                .env("STANDIN_CLOCK", "virtual")
                .env("STANDIN_WORK_NS", "1000")
                .env("STANDIN_WORK_LOG", "work");
            let folder = fixture.folder().to_owned();
            let (ran, (record, log)) = fixture.run_and(|| {
                let log = fs::read_to_string(folder.join("work")).unwrap();
                (Read::open(&folder.join("x.tllmprof")), log)
            });
            assert_eq!(ran.output.status.code(), Some(0), "{}", ran.output.err());
            (record, log)
        };
        for stream in ["", "--default-stream"] {
            // On a busy machine, reading a span's times may exceed its time limit. The span is then lost and counted.
            let mut runs = (0..10).map(|_| run_with(stream));
            let is_whole =
                |(record, _): &(Read, String)| record.header.counter(Counter::GpuSpansLost) == 0;
            let (record, log) = runs.find(is_whole).expect("spans were lost in each run");
            let work = log.lines().map(piece).map(|(_, piece)| piece);
            // The log's first line is a copy to the device before the first step.
            let work: u64 = work
                .skip(1 + 5 * PIECES + BEFORE)
                .take(5 * PIECES)
                .enumerate()
                .filter(|(place, _)| place % PIECES != PIECES - BEFORE)
                .map(|(_, piece)| piece.until - piece.from)
                .sum();
            let spans = spans(&record);
            let recorded: u64 = spans.iter().map(|span| span.ns).sum();
            assert_eq!(recorded, work, "{way} {stream}: {spans:?}");
        }
    }
}

#[test]
fn the_driver_and_the_gpu_are_recorded_once() {
    let variables = [("STANDIN_DEVICES", "2")];
    let ran = ran("contexts", 12, "2-3,5-6", &variables);
    let infos = |wanted| {
        let events = ran.record.events.iter();
        events
            .filter(
                |(_, event)| matches!(event.what, What::Info { key, .. } if key == Some(wanted)),
            )
            .count()
    };
    assert_eq!(infos(Info::CudaDriver), 1);
    assert_eq!(
        ran.record.info(Info::Gpu),
        ["stand-in for CUDA", "stand-in for CUDA"]
    );
    for step in [2, 3, 5, 6] {
        ran.assert_exact([step]);
        let devices: Vec<_> = ran
            .spans()
            .iter()
            .filter(|span| span.iteration == step)
            .map(|span| span.device)
            .collect();
        assert!(devices.contains(&0) && devices.contains(&1), "{devices:?}");
    }
}

#[test]
fn streams_that_work_at_once_overlap_in_the_record() {
    // Each kernel takes one second, so the host's time between two launches is negligible.
    let ran = ran("streams", 6, "1-4", &[("STANDIN_WORK_NS", "1000000000")]);
    ran.assert_exact(1..=4);
    let ticks = |span: &Span| span.start;
    for step in 2..=4 {
        let spans: Vec<_> = ran
            .spans()
            .into_iter()
            .filter(|span| span.iteration == step)
            .collect();
        let first = spans.iter().map(ticks).min().unwrap();
        let last = spans.iter().map(ticks).max().unwrap();
        // All spans must begin within the duration of one kernel, which shows that the streams worked at the same time.
        // The kernel takes one second, which is 1 000 000 000 or more ticks of the record's clock.
        assert!(last - first < 1_000_000_000, "{spans:?}");
        let mut numbers: Vec<_> = spans.iter().map(|span| span.stream).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 4);
    }
}

#[test]
fn a_gpu_that_waits_for_its_host_is_not_at_work() {
    let ran = ran("idle", 12, "3-8", &[]);
    // The library learns the number of launches per step from step 3, the first in the window. In that step, the
    // library does not know yet which launch is the last. So it ends the span only when the program waits, 1 ms
    // (1 000 000 ns) after the launches.
    assert_eq!(ran.recorded(3), [1_000_000]);
    ran.assert_exact(4..=8);
}

#[test]
fn a_kernel_that_comes_late_counts_from_its_launch() {
    // Each launch call takes 500 ns on the host. This time lies between the event at the start of the span and the
    // work, so the span is that much longer.
    let ran = ran("plain", 12, "3-8", &[("STANDIN_CALL_NS", "500")]);
    for step in 3..=8 {
        let late: Vec<_> = ran.true_ones(step).iter().map(|ns| ns + 500).collect();
        assert_eq!(ran.recorded(step), late);
    }
}

#[test]
fn a_window_that_the_process_ends_with_has_its_times() {
    for how in ["plain", "pipelined"] {
        let ran = ran(how, 12, "3-", &[]);
        ran.assert_exact(3..=10);
        assert_eq!(ran.recorded(11), ran.true_ones(11), "{how}");
        assert_eq!(ran.lost(), 0, "{how}");
    }
}

#[test]
fn of_short_steps_some_blocks_have_times_and_those_are_exact() {
    const BLOCK: u64 = 8;
    let ran = ran("plain", 400, "3-399", &[("TLLMPROF_GPU_TIMES", "auto")]);
    let timed: BTreeSet<_> = ran.spans().iter().map(|span| span.iteration).collect();
    let blocks: BTreeSet<_> = timed.iter().map(|n| (n - 3) / BLOCK).collect();
    assert!(blocks.contains(&0), "{timed:?}");
    assert!(blocks.len() < 397 / BLOCK as usize, "{timed:?}");
    for block in blocks {
        for step in (3 + block * BLOCK..3 + (block + 1) * BLOCK).filter(|step| *step < 399) {
            assert!(timed.contains(&step), "{step} of {timed:?}");
            assert_eq!(ran.recorded(step), ran.true_ones(step), "{step}");
        }
    }
    assert_eq!(ran.lost(), 0);
}

#[test]
fn without_a_drain_what_has_not_happened_is_counted() {
    let ran = ran("pipelined", 12, "3-8", &[("TLLMPROF_DRAIN", "0")]);
    assert_eq!(ran.spans().len() as u64 + ran.lost(), 6);
    assert_eq!(ran.lost(), 6);
}

#[test]
fn events_are_bounded_and_what_has_none_is_counted() {
    let ran = ran("pipelined", 3000, "100-2899", &[]);
    let spans = ran.spans().len() as u64;
    assert_eq!(spans + ran.lost(), 2800);
    assert!((1000..=1100).contains(&spans), "{spans}");
    for span in ran.spans() {
        assert_eq!([span.ns], ran.true_ones(span.iteration)[..], "{span:?}");
    }
}

#[test]
fn long_windows_are_read_as_they_go() {
    let ran = ran("plain", 3000, "100-2899", &[]);
    assert_eq!(ran.lost(), 0);
    ran.assert_exact(100..=2899);
}

#[test]
fn streams_beyond_what_is_kept_of_them_are_counted() {
    let ran = ran("many", 6, "2-4", &[]);
    let spans = ran.spans().len() as u64;
    assert_eq!(spans + ran.lost(), 3 * 701);
    assert!(spans > 3 * 100, "{spans}");
}

#[test]
fn what_the_program_destroys_is_not_touched_again() {
    for how in ["ends", "resets"] {
        let ran = ran(how, 12, "3-8", &[]);
        ran.assert_exact(6..=8);
        // A span is lost if the program destroyed the stream or context before the work was done. All spans that the
        // record has must be right.
        let (mut kept, mut all) = (0, 0);
        for step in 3..=5 {
            let wanted = ran.true_ones(step);
            let recorded = ran.recorded(step);
            assert!(recorded.iter().all(|ns| wanted.contains(ns)), "{how}");
            (kept, all) = (kept + recorded.len(), all + wanted.len());
        }
        assert!(kept >= 2, "{how}: {kept}");
        assert_eq!((all - kept) as u64, ran.lost(), "{how}");
        assert!(!ran.output.err().contains("GPU times end"), "{how}");
    }
}

#[test]
fn another_threads_capture_is_left_alone() {
    let ran = ran("captured", 12, "3-9", &[]);
    // The program's exit status, which `ran` checks, shows that the library did not invalidate the capture.
    ran.assert_exact([3, 4, 8, 9]);
    assert!(ran.recorded(6).is_empty());
    // In this run, the capture is still active when the window closes.
    let ran = self::ran("captured", 12, "3-6", &[]);
    ran.assert_exact([3, 4]);
}

#[test]
fn a_fork_leaves_the_parents_times_alone() {
    let ran = ran("forked", 12, "3-8", &[]);
    ran.assert_exact(3..=8);
    assert_eq!(ran.lost(), 0);
}

#[test]
fn what_the_driver_refuses_is_said_once_and_does_no_harm() {
    for (fails, is_said) in [
        ("cuEventRecord=700", true),
        ("cuEventElapsedTime=719", true),
        ("cuEventElapsedTime=400", true),
        ("cuEventCreate=2", true),
        ("cuEventElapsedTime=709", false),
    ] {
        let ran = ran("plain", 12, "3-5,7-8", &[("STANDIN_FAILS", fails)]);
        assert!(ran.spans().is_empty(), "{fails}");
        assert_eq!(ran.lost(), 5, "{fails}");
        let said = ran.output.err();
        let times = said.matches("GPU timing stopped").count();
        assert_eq!(times, usize::from(is_said), "{fails}: {said}");
        assert!(said.contains("windows 3-5,7-8 captured"), "{said}");
    }
}
