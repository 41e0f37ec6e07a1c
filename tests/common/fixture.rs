//! Runs a program on the stand-in for CUDA, with or without the library, and reads the stand-in driver's log of the
//! run.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{Output, Record, Scratch, built_command, read_log, run, shim, standin};

/// Time limit of a run, longer than any fixture needs on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// A run of a program that is being prepared: its command and its folder.
pub(crate) struct Fixture {
    command: Command,
    scratch: Scratch,
}

/// The output and the driver's log of a run.
pub(crate) struct Ran {
    pub output: Output,
    pub log: Vec<Record>,
}

/// A start or stop of the profiler in the driver's log.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Switch {
    /// `cuProfilerStart`, with the number of graph launches that had begun, and of waits that had returned, before this
    /// call.
    Start { launches: usize, waits: usize },
    /// `cuProfilerStop`, with the number of graph launches that had begun, and of waits that had returned, before this
    /// call.
    Stop { launches: usize, waits: usize },
}

impl Fixture {
    /// Prepares a run of a program without the library under test. `program` is a name in the stand-in's folder `bin`
    /// or an absolute path.
    pub(crate) fn plain(program: &str) -> Self {
        let standin = standin();
        let scratch = Scratch::new("fixture");
        let mut command = built_command(standin.join("bin").join(program));
        command
            .env("LD_LIBRARY_PATH", &standin)
            .env("STANDIN_LOG", scratch.path("log"))
            .current_dir(scratch.folder());
        Self { command, scratch }
    }

    /// Like [`Fixture::plain`], with the library under test preloaded.
    pub(crate) fn new(program: &str) -> Self {
        Self::plain(program).env("LD_PRELOAD", shim())
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Removes an environment variable.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    /// Sets the windows to capture, and the rule for steps.
    pub(crate) fn window(self, windows: &str, step: &str) -> Self {
        self.env("TLLM_PROFILE_START_STOP", windows)
            .env("TLLMPROF_STEP", step)
    }

    /// Adds arguments, which are separated by spaces in `args`.
    pub(crate) fn args(mut self, args: &str) -> Self {
        self.command.args(args.split_whitespace());
        self
    }

    /// Adds an argument that may contain spaces.
    pub(crate) fn arg(mut self, arg: &str) -> Self {
        self.command.arg(arg);
        self
    }

    pub(crate) fn folder(&self) -> &Path {
        self.scratch.folder()
    }

    pub(crate) fn run(self) -> Ran {
        self.run_and(|| ()).0
    }

    /// Runs the program. Calls `look` before the files of the run are removed, and returns its result, too.
    pub(crate) fn run_and<T>(mut self, look: impl FnOnce() -> T) -> (Ran, T) {
        let output = run(&mut self.command, TEST_TIMEOUT);
        let log = read_log(&self.scratch.path("log"));
        (Ran { output, log }, look())
    }
}

impl Ran {
    /// Returns the starts and stops of the profiler in all processes of the run together. The graph launches of all
    /// threads count, but only those waits that are made by the thread with the run's first CUDA call. The library's
    /// own thread waits until the device is idle before it stops the profiler; these waits do not count.
    pub(crate) fn switches(&self) -> Vec<Switch> {
        let program = self.log.first().map(|first| first.tid);
        let (mut launches, mut waits) = (0, 0);
        let mut switches = Vec::new();
        for record in &self.log {
            match record.function.as_str() {
                "cuProfilerStart" => switches.push(Switch::Start { launches, waits }),
                "cuProfilerStop" => switches.push(Switch::Stop { launches, waits }),
                name if name.starts_with("cuGraphLaunch") => launches += 1,
                name if name.ends_with("_end") && Some(record.tid) == program => waits += 1,
                _ => {}
            }
        }
        switches
    }

    /// Returns the library's messages on standard error.
    pub(crate) fn said(&self) -> Vec<String> {
        self.output
            .err()
            .lines()
            .filter_map(|line| line.strip_prefix("tllmprof: ").map(str::to_owned))
            .collect()
    }
}
