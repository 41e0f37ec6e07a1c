//! Runs `program.c` with the library on the stand-in for CUDA, and reads the results.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use tllmprof_record::{CallKind, Clock, Counter, Edge, Event, Reader, What};
use tllmprof_report::{GpuWork, Process};

use crate::common::{Output, Scratch, built_command, compiler, repo, run, shim, standin};
use crate::read::Read;

pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// The way in which the program gets the driver's functions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// The program is linked to the driver's functions, including some that tllmprof does not export.
    Linked,
    /// The program gets the functions from `cuGetProcAddress`.
    LookedUp,
}

/// Returns the folder with the built program, one build for each [`Reach`], and the libraries that it opens. All are
/// built once per test binary.
fn built() -> &'static Path {
    static BUILT: OnceLock<Scratch> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            let scratch = Scratch::new("kernels-programs");
            let compile = |name: &str, source: &str, more: &[&str]| {
                let mut cc = compiler();
                cc.args([
                    "-std=gnu11",
                    "-O2",
                    "-Wall",
                    "-Wextra",
                    "-Werror",
                    "-pthread",
                ])
                .arg("-DSTANDIN")
                .arg(format!("-I{}", repo().join("tests/standin").display()))
                .arg(format!("-I{}", repo().join("tests/fixtures").display()))
                .arg(format!("-L{}", standin().display()))
                .arg("-o")
                .arg(scratch.path(name))
                .arg(repo().join("tests/kernels").join(source))
                .args(more)
                .arg("-l:libcuda.so.1");
                let output = run(&mut cc, Duration::from_secs(300));
                assert!(output.status.success(), "{cc:?}\n{}", output.err());
            };
            compile("linked", "program.c", &[]);
            let by_lookup = ["-DREACH_GPA=2", "-DGPU_LIBRARY=\"libcuda.so.1\""];
            compile("looked-up", "program.c", &by_lookup);
            compile("past.so", "past.c", &["-shared", "-fPIC"]);
            compile("late.so", "late.c", &["-shared", "-fPIC"]);
            let folder = format!("-L{}", standin().join("cupti").display());
            let linked = ["-shared", "-fPIC", &folder, "-l:libcupti.so.13"];
            compile("profiler-linked.so", "profiler.c", &linked);
            let by_name = ["-shared", "-fPIC", "-DLOOKED_UP"];
            compile("profiler-looked-up.so", "profiler.c", &by_name);
            scratch
        })
        .folder()
}

/// A run of `program.c` that is being prepared: its command and its folder.
pub(crate) struct Program {
    command: Command,
    scratch: Scratch,
}

impl Program {
    /// Prepares a run of the program without the library.
    pub(crate) fn plain(reach: Reach) -> Self {
        let scratch = Scratch::new("kernels");
        let name = match reach {
            Reach::Linked => "linked",
            Reach::LookedUp => "looked-up",
        };
        let mut command = built_command(built().join(name));
        let cupti = standin().join("cupti");
        let folders = std::env::join_paths([standin(), cupti]).unwrap();
        command
            .env("LD_LIBRARY_PATH", folders)
            .env("STANDIN_CUPTI_LOG", scratch.path("cupti.log"))
            .current_dir(scratch.folder());
        Self { command, scratch }
    }

    pub(crate) fn new(reach: Reach) -> Self {
        Self::plain(reach)
            .env("LD_PRELOAD", shim())
            .env("TLLMPROF_STEP", "cudaEventSynchronize")
            .env("TLLMPROF_TRACE", "%p.tllmprof")
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn windows(self, windows: &str) -> Self {
        self.env("TLLMPROF_START_STOP", windows)
    }

    pub(crate) fn kernels(self, steps: &str) -> Self {
        self.env("TLLMPROF_KERNELS", steps)
    }

    /// Makes the program itself record its kernels with CUPTI. `steps` is `FROM-TO`: the steps from FROM to TO - 1.
    /// `by` is the way in which the program gets CUPTI's functions.
    pub(crate) fn profiled(self, by: Reach, steps: &str) -> Self {
        let library = match by {
            Reach::Linked => "profiler-linked.so",
            Reach::LookedUp => "profiler-looked-up.so",
        };
        self.env("PROGRAM_PROFILER", library)
            .env("PROGRAM_PROFILED", steps)
    }

    /// Removes CUPTI from the library path, so the library cannot find it.
    pub(crate) fn without_cupti(self) -> Self {
        self.env("LD_LIBRARY_PATH", standin())
    }

    pub(crate) fn run(mut self, mode: &str, threads: usize, steps: usize) -> Ran {
        self.command
            .args([mode, &threads.to_string(), &steps.to_string()]);
        let output = run(&mut self.command, TEST_TIMEOUT);
        let cupti_log = fs::read_to_string(self.scratch.path("cupti.log")).unwrap_or_default();
        Ran {
            output,
            cupti_log,
            records: Read::all(self.scratch.folder()),
            scratch: self.scratch,
        }
    }
}

/// A call that launched a kernel or a graph.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launched {
    pub thread: u32,
    /// The call's start, in ticks of the record's clock.
    pub start: u64,
    pub is_graph: bool,
    /// The handle of the stream on which the work was launched.
    pub stream: u64,
}

pub(crate) struct Ran {
    pub output: Output,
    /// The log in which the stand-in for CUPTI lists the calls that it received.
    pub cupti_log: String,
    pub records: Vec<Read>,
    /// The folder in which the program ran.
    scratch: Scratch,
}

impl Ran {
    /// Asserts that no CUDA call of the program failed, and that the program ran to its end.
    pub(crate) fn assert_well(&self) {
        let Output { status, .. } = self.output;
        let printed = (self.output.out(), self.output.err());
        assert_eq!(status.code(), Some(7), "{printed:?}\n{}", self.cupti_log);
        assert!(printed.0.ends_with("done\n"), "{printed:?}");
    }

    pub(crate) fn said(&self, what: &str) -> bool {
        self.output.err().contains(what)
    }

    pub(crate) fn record(&self) -> &Read {
        let [record] = &self.records[..] else {
            panic!("{} records\n{}", self.records.len(), self.output.err());
        };
        record
    }

    fn file(&self) -> PathBuf {
        let files = fs::read_dir(self.scratch.folder()).unwrap();
        let mut files = files.map(|file| file.unwrap().path());
        files
            .find(|file| file.extension().is_some_and(|e| e == "tllmprof"))
            .unwrap()
    }

    /// Reads the record as the command `report` does.
    pub(crate) fn process(&self) -> Process {
        let reader = Reader::open(&self.file()).unwrap();
        Process::read("record".into(), &reader).unwrap()
    }

    /// Returns for each recorded kernel its name, its stream, and the call that launched it, which is `None` if the
    /// report does not know the call.
    pub(crate) fn launches(&self) -> Vec<(String, u16, Option<Launched>)> {
        let reader = Reader::open(&self.file()).unwrap();
        let process = Process::read("record".into(), &reader).unwrap();
        let clock = Clock::new(reader.header().clock, &reader.header().anchors);
        let mut tally = process.launches(&clock);
        let record = self.record();
        for (thread, event) in &record.events {
            match GpuWork::from_event(&clock, event) {
                Some(work) => tally.add_work(&work),
                None => tally.add(*thread, event),
            }
        }
        let launches = tally.finish();
        let mut calls = BTreeMap::new();
        let graphs = record.calls(CallKind::GraphLaunch);
        for (thread, event) in &record.events {
            if let What::Call { stream, .. } = event.what
                && let Some(launch) = launches.of_call(*thread, clock.ns(event.start))
            {
                let is_graph = graphs.contains(event);
                let call = Launched {
                    thread: *thread,
                    start: event.start,
                    is_graph,
                    stream,
                };
                assert!(calls.insert(launch.number, call).is_none());
            }
        }
        let kernels = record.gpu_events().filter_map(|event| match event.what {
            What::GpuKernel {
                name,
                stream,
                correlation,
                ..
            } => {
                let launch = launches.of_kernel(correlation, clock.ns(event.start));
                let name = record.strings.get(name).to_owned();
                Some((name, stream, launch.map(|launch| calls[&launch.number])))
            }
            _ => None,
        });
        kernels.collect()
    }

    /// Returns the numbers of kernels, copies and memsets that CUPTI recorded in all windows.
    pub(crate) fn taken(&self) -> [u64; 3] {
        ["kernels=", "copies=", "sets="].map(|what| {
            let last = self
                .cupti_log
                .rsplit_once(what)
                .map_or("0", |(_, rest)| rest);
            let digits = last.split(|c: char| !c.is_ascii_digit()).next();
            digits.unwrap_or_default().parse().unwrap_or(0)
        })
    }

    /// Returns a pair for each time that the library finalized CUPTI: the number of calls that were in the driver then,
    /// and 1 if finalizing destroyed the context, else 0.
    pub(crate) fn finalized(&self) -> Vec<(u64, u64)> {
        let lines = self.cupti_log.lines();
        lines
            .filter_map(|line| {
                let (inside, destroyed) = line
                    .strip_prefix("finalize in=")?
                    .split_once(" destroyed=")?;
                Some((inside.parse().unwrap(), destroyed.parse().unwrap()))
            })
            .collect()
    }
}

/// Functions that return the GPU's work (kernels, copies and memsets) in a record.
impl Read {
    fn gpu_events(&self) -> impl Iterator<Item = &Event> {
        let events = self.events.iter().map(|(_, event)| event);
        events.filter(|event| {
            matches!(
                event.what,
                What::GpuKernel { .. } | What::GpuCopy { .. } | What::GpuSet { .. }
            )
        })
    }

    pub(crate) fn gpu_work(&self) -> u64 {
        self.gpu_events().count() as u64
    }

    /// Returns the number of events, of any kind, that the record reports as dropped.
    pub(crate) fn gpu_work_dropped(&self) -> u64 {
        let events = self.events.iter().map(|(_, event)| event.what);
        events
            .map(|what| match what {
                What::Dropped { events } => events,
                _ => 0,
            })
            .sum()
    }

    pub(crate) fn events_dropped(&self) -> u64 {
        self.header.counter(Counter::EventsDropped)
    }

    fn kernel_edges(&self, wanted: Edge) -> Vec<(u64, u64)> {
        let events = self.events.iter().map(|(_, event)| event);
        let mut edges: Vec<_> = events
            .filter_map(|event| match event.what {
                What::KernelWindow { edge, iteration } if edge == wanted => {
                    Some((event.start, iteration))
                }
                _ => None,
            })
            .collect();
        edges.sort_unstable();
        edges
    }

    /// Returns the first and last iteration of each window in which kernels were recorded.
    pub(crate) fn kernel_windows(&self) -> Vec<(u64, u64)> {
        let opened = self.kernel_edges(Edge::Open);
        let closed = self.kernel_edges(Edge::Close);
        assert_eq!(opened.len(), closed.len());
        let pairs = opened.iter().zip(&closed);
        pairs.map(|(open, close)| (open.1, close.1)).collect()
    }

    /// Returns, by name, the number of kernels that began after the window with index `window` opened and before the
    /// next window opened.
    pub(crate) fn kernels_of(&self, window: usize) -> BTreeMap<String, u64> {
        let opened = self.kernel_edges(Edge::Open);
        let from = opened[window].0;
        let to = opened.get(window + 1).map_or(u64::MAX, |next| next.0);
        let mut kernels = BTreeMap::new();
        for event in self.gpu_events() {
            if let What::GpuKernel { name, .. } = event.what
                && (from..to).contains(&event.start)
            {
                *kernels
                    .entry(self.strings.get(name).to_owned())
                    .or_default() += 1;
            }
        }
        kernels
    }

    /// Returns true if all GPU work in the record (kernels, copies and memsets) began while kernels were recorded.
    pub(crate) fn kernels_lie_in_their_windows(&self) -> bool {
        let opened = self.kernel_edges(Edge::Open);
        let closed = self.kernel_edges(Edge::Close);
        self.gpu_events().all(|event| {
            let mut windows = opened.iter().zip(&closed);
            windows.any(|(open, close)| (open.0..=close.0).contains(&event.start))
        })
    }

    pub(crate) fn kernel_durations(&self) -> Vec<u64> {
        let events = self.gpu_events();
        events
            .filter(|event| matches!(event.what, What::GpuKernel { .. }))
            .map(|event| event.duration)
            .collect()
    }

    /// Returns the number of copies of each kind, such as from host to device. The keys are CUPTI's numbers for the
    /// kinds.
    pub(crate) fn copies(&self) -> BTreeMap<u8, u64> {
        let mut copies = BTreeMap::new();
        for event in self.gpu_events() {
            if let What::GpuCopy { kind, .. } = event.what {
                *copies.entry(kind as u8).or_default() += 1;
            }
        }
        copies
    }

    pub(crate) fn sets(&self) -> u64 {
        let sets = self.gpu_events();
        sets.filter(|event| matches!(event.what, What::GpuSet { .. }))
            .count() as u64
    }
}
