//! Runs `counts.c`, and compares the calls that the program counts itself with the calls in its record.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::Duration;

use tllmprof_record::{CallKind, Counter};

use crate::common::{
    Built, Output, Scratch, build_once, built_command, command, run, shim, standin,
};
use crate::read::Read;

const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// A run of the program `counts.c`: its environment variables, and the folder in which it runs.
pub(crate) struct Counts {
    scratch: Scratch,
    variables: Vec<(&'static str, String)>,
}

/// The calls and ranges that one thread or child process of the program made.
#[derive(Debug)]
pub(crate) struct Made {
    /// The ID of the thread, or the process ID of the child process.
    pub number: u64,
    /// Number of calls that have returned.
    pub calls: u64,
    /// Number of ranges that were pushed and have been popped.
    pub pushed: u64,
    /// Number of start-end ranges that have ended.
    pub started: u64,
    /// Number of marks.
    pub marked: u64,
}

/// Starts the program and kills it after the given time.
pub(crate) fn run_and_kill(command: &mut Command, after: Duration) -> ExitStatus {
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    sleep(after);
    child.kill().unwrap();
    child.wait().unwrap()
}

/// Returns random delays of up to 33 ms, after which a test kills a program. They differ in each test run.
pub(crate) fn moments() -> impl Iterator<Item = Duration> {
    let mut random = u64::from(std::process::id()) | 1;
    std::iter::repeat_with(move || {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        Duration::from_micros(random >> 40 & 0x7fff)
    })
}

/// Returns one pair for each round: its number, and the delay after which the program is killed. There are at least
/// [`kills`] rounds. More rounds with longer delays follow until `is_enough` is true: on a busy machine, a program may
/// need longer to start.
pub(crate) fn rounds(is_enough: &Cell<bool>) -> impl Iterator<Item = (usize, Duration)> {
    let rounds = moments().enumerate();
    let rounds = rounds.take_while(|(round, _)| *round < kills() || !is_enough.get());
    rounds.map(|(round, moment)| (round, moment * (1 + round / kills()) as u32))
}

/// Returns the number of rounds in which a test starts a program and kills it: `TLLMPROF_TEST_KILLS` if it is set, else
/// 12. [`rounds`] may add further rounds.
pub(crate) fn kills() -> usize {
    std::env::var("TLLMPROF_TEST_KILLS").map_or(12, |kills| kills.parse().unwrap())
}

/// Reads the numbers of calls, ranges and marks that a program has counted in its file (`lines.h`).
pub(crate) fn made(path: &Path) -> Vec<Made> {
    let bytes = fs::read(path).unwrap_or_default();
    let (lines, _) = bytes.as_chunks::<64>();
    let lines = lines.iter().map(|line| {
        let (numbers, _) = line.as_chunks::<8>();
        let [number, calls, pushed, started, marked] =
            [0, 1, 2, 3, 4].map(|at| u64::from_le_bytes(numbers[at]));
        Made {
            number,
            calls,
            pushed,
            started,
            marked,
        }
    });
    lines.filter(|made| made.number != 0).collect()
}

/// Returns the path of the program, built once per test binary.
fn program() -> &'static Path {
    static BUILT: Built = Built::new();
    build_once(&BUILT, "record/counts.c", &["-l:libcuda.so.1"])
}

impl Counts {
    pub(crate) fn new() -> Self {
        Self {
            scratch: Scratch::new("record"),
            variables: Vec::new(),
        }
    }

    pub(crate) fn env(mut self, name: &'static str, value: &str) -> Self {
        self.variables.push((name, value.to_owned()));
        self
    }

    pub(crate) fn folder(&self) -> &Path {
        self.scratch.folder()
    }

    /// Returns the command that runs the program with these windows and arguments.
    pub(crate) fn command(&self, windows: &str, arguments: &[&str]) -> Command {
        let mut command = built_command(program());
        command
            .arg(self.scratch.path("counts"))
            .args(arguments)
            .env("LD_LIBRARY_PATH", standin())
            .env("LD_PRELOAD", shim())
            .env("TLLMPROF_START_STOP", windows)
            .env("TLLMPROF_STEP", "cudaGraphLaunch")
            .env("TLLMPROF_DRAIN", "0")
            .env("TLLMPROF_TRACE", "%p.tllmprof")
            .current_dir(self.folder());
        for (name, value) in &self.variables {
            command.env(name, value);
        }
        command
    }

    pub(crate) fn run(&self, windows: &str, arguments: &[&str]) -> Output {
        run(&mut self.command(windows, arguments), TEST_TIMEOUT)
    }

    /// Runs the program under `tllmprof run`, which sets the preload and the record. Returns `None` if `tllmprof` is
    /// not built.
    pub(crate) fn run_by_the_command(&self, windows: &str, arguments: &[&str]) -> Option<Output> {
        Some(run(
            &mut self.by_the_command(windows, arguments)?,
            TEST_TIMEOUT,
        ))
    }

    /// Returns the command that runs the program under `tllmprof run`; `None` if `tllmprof` is not built.
    pub(crate) fn by_the_command(&self, windows: &str, arguments: &[&str]) -> Option<Command> {
        let tllmprof = crate::common::tllmprof();
        if !tllmprof.is_file() || std::env::var_os("TLLMPROF_TEST_RUNNER").is_some() {
            return None;
        }
        let mut run_it = command(tllmprof);
        run_it
            .args([
                "run",
                "--window",
                windows,
                "--step",
                "cudaGraphLaunch",
                "--",
            ])
            .arg(program())
            .arg(self.scratch.path("counts"))
            .args(arguments)
            .env("TLLMPROF_LIB", shim())
            .env("TLLMPROF_TRACE", "%p.tllmprof")
            .env("LD_LIBRARY_PATH", standin())
            .current_dir(self.folder());
        Some(run_it)
    }

    pub(crate) fn run_and_kill(
        &self,
        windows: &str,
        arguments: &[&str],
        after: Duration,
    ) -> ExitStatus {
        run_and_kill(&mut self.command(windows, arguments), after)
    }

    /// Removes the files of earlier runs from the program's folder.
    pub(crate) fn forget(&self) {
        for entry in fs::read_dir(self.folder()).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }

    /// Returns the numbers of calls, ranges and marks that the program has counted for each thread or child process.
    pub(crate) fn made(&self) -> Vec<Made> {
        made(&self.scratch.path("counts"))
    }

    /// Returns the only record in the program's folder.
    pub(crate) fn record(&self) -> Read {
        let mut records = Read::all(self.folder());
        assert_eq!(records.len(), 1, "records of one process");
        records.remove(0)
    }

    /// Asserts that the record has every call that returned, under the thread that made it. The record may have at most
    /// `more` further calls per thread, which were in progress at the end.
    pub(crate) fn assert_every_call_is_there(&self, more: u64) -> Read {
        let made = self.made();
        let mut records = Read::all(self.folder());
        if records.is_empty() {
            // There is no record because the program was killed before its first call.
            assert!(made.iter().all(|made| made.calls == 0), "{made:?}");
            return Read::nothing();
        }
        assert_eq!(records.len(), 1);
        let record = records.remove(0);
        let recorded = record.calls_by_thread(CallKind::GraphLaunch);
        for Made { number, calls, .. } in made {
            let found = recorded.get(&(number as u32)).copied().unwrap_or(0);
            assert!(
                (calls..=calls + more).contains(&found),
                "thread {number}: {calls} calls returned, {found} are recorded"
            );
        }
        assert!(record.damage.is_none(), "{}", record.damage);
        assert_eq!(record.header.counter(Counter::EventsDropped), 0);
        record
    }

    /// Asserts that the numbers of recorded and of dropped events add up to the number of events that `calls` calls
    /// make. The number of events per call varies, so this is only checked roughly.
    pub(crate) fn assert_what_is_kept_and_dropped_is_all(&self, calls: u64) {
        let record = self.record();
        assert!(record.damage.is_none(), "{}", record.damage);
        let launches = record.calls(CallKind::GraphLaunch).len() as u64;
        let iterations = record.iterations().len() as u64;
        let dropped = record.header.counter(Counter::EventsDropped);
        assert!(launches > 1000 && iterations > 1000 && dropped > 1000);
        // Each call is an iteration. An iteration has one GPU span (its GPU work between two CUDA events), unless
        // another thread launches between these two events. The thread's resource use in an iteration takes one to five
        // events of the record.
        let spans = record.gpu_spans() + record.header.counter(Counter::GpuSpansLost);
        let used = record.used();
        let all = launches + iterations + spans + used + dropped;
        assert!(
            (3 * calls - calls / 50..=8 * calls).contains(&all) && used > 1000,
            "{launches} + {iterations} + {spans} + {used} + {dropped}"
        );
        assert_eq!(record.header.counter(Counter::Iterations), calls);
        assert_eq!(record.counted(CallKind::GraphLaunch, true), calls);
    }
}
