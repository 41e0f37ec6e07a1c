//! Programs that start without the library, and `tllmprof` commands that attach to them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::common::{Built, Output, build_once, built_command, run, shim, standin};
use crate::place::{Place, Running, TEST_TIMEOUT, switches, wait_until};

/// The way in which a program gets the addresses of CUDA's functions.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Linkage {
    Lazy12,
    Lazy13,
    Now,
    NoPlt,
    PerThread,
    Driver,
    Static,
    Dlsym,
    DriverDlsym,
    ProcAddress,
}

/// The linkages in which the program's executable or libraries are linked to CUDA, so that the dynamic loader binds the
/// functions by their names.
pub(crate) const LINKED: [Linkage; 6] = [
    Linkage::Lazy12,
    Linkage::NoPlt,
    Linkage::Driver,
    Linkage::Now,
    Linkage::PerThread,
    Linkage::Lazy13,
];

/// The linkages in which the program stores pointers to CUDA's functions when it starts, so that no later look-up can
/// be intercepted.
pub(crate) const POINTERS: [Linkage; 4] = [
    Linkage::Static,
    Linkage::Dlsym,
    Linkage::DriverDlsym,
    Linkage::ProcAddress,
];

impl Linkage {
    fn options(self) -> Vec<String> {
        let text = match self {
            Self::Lazy12 => "-Wl,-z,lazy -l:libcudart.so.12",
            Self::Lazy13 => "-Wl,-z,lazy -l:libcudart.so.13",
            Self::Now => "-Wl,-z,now -l:libcudart.so.12",
            Self::NoPlt => "-fno-plt -l:libcudart.so.12",
            Self::PerThread => "-DCUDA_API_PER_THREAD_DEFAULT_STREAM -l:libcudart.so.12",
            Self::Driver => "-DGPU_DRIVER -l:libcuda.so.1",
            Self::Static => "-l:libcudart_static.a",
            Self::Dlsym => "-DREACH_DLSYM -DGPU_LIBRARY=\"libcudart.so.12\"",
            Self::DriverDlsym => "-DGPU_DRIVER -DREACH_DLSYM -DGPU_LIBRARY=\"libcuda.so.1\"",
            Self::ProcAddress => "-DGPU_DRIVER -DREACH_GPA=2 -DGPU_LIBRARY=\"libcuda.so.1\"",
        };
        text.split(' ').map(str::to_owned).collect()
    }

    /// Returns the path of the program `tests/attach/host.c` with this linkage. It is built once for each linkage.
    pub(crate) fn program(self) -> &'static Path {
        static BUILT: [Built; 10] = [const { OnceLock::new() }; 10];
        let options = self.options();
        let options: Vec<_> = options.iter().map(String::as_str).collect();
        build_once(&BUILT[self as usize], "attach/host.c", &options)
    }
}

pub(crate) struct Host {
    place: Place,
    running: Running,
}

/// Returns the number of rounds that a test with random delays makes: `TLLMPROF_TEST_ATTACHES` if it is set, else
/// `few`.
pub(crate) fn times(few: usize) -> usize {
    let many = std::env::var("TLLMPROF_TEST_ATTACHES").ok();
    many.map_or(few, |many| many.parse().unwrap())
}

/// Returns a random number below `below`.
pub(crate) fn random(below: u64) -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut state = time.as_nanos() as u64 | 1;
    for shift in [13, 7, 17] {
        state ^= state << shift;
        state ^= state >> (shift / 2 + 1);
    }
    state % below
}

/// Returns true if `attach` was refused because it found no safe moment to attach to the program.
pub(crate) fn found_no_moment(said: &str) -> bool {
    let whys = ["was at a safe point", "none of its threads stopped in time"];
    whys.iter().any(|why| said.contains(why))
}

impl Host {
    /// Starts a program that runs until [`Host::end`] is called, and waits for its first step.
    pub(crate) fn start(linkage: Linkage, arguments: &str, variables: &[(&str, &str)]) -> Self {
        Self::started(linkage.program(), arguments, variables)
    }

    /// Starts a program that ends by itself, and waits for its first step.
    pub(crate) fn start_for(linkage: Linkage, arguments: &str) -> Self {
        Self::started(linkage.program(), arguments, &[])
    }

    pub(crate) fn started(program: &Path, arguments: &str, variables: &[(&str, &str)]) -> Self {
        let place = Place::new();
        let mut command = built_command(program);
        command
            .args(arguments.split_whitespace())
            .env("LD_LIBRARY_PATH", standin())
            .env("XDG_RUNTIME_DIR", place.path("run"))
            .env("STANDIN_LOG", place.path("calls"))
            .envs(variables.iter().copied())
            .current_dir(place.0.folder());
        let running = place.start(&mut command);
        Self { place, running }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.running.pid()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path(name)
    }

    /// Returns the command `tllmprof` with these arguments, in which `PID` stands for the program's
    /// process number.
    pub(crate) fn command(&self, arguments: &str) -> Command {
        let arguments = arguments.replace("PID", &self.pid().to_string());
        let mut command = self.place.command(&arguments);
        command.env("TLLMPROF_LIB", shim());
        command
    }

    /// Runs `tllmprof` with these arguments, in which `PID` stands for the program's process number. An attach that
    /// found no safe moment, which may happen on a busy machine, is repeated up to ten times.
    pub(crate) fn tllmprof(&self, arguments: &str) -> Output {
        for _ in 0..10 {
            let output = self.once(arguments);
            if output.status.success() || !found_no_moment(&output.err()) {
                return output;
            }
        }
        self.once(arguments)
    }

    /// Runs `tllmprof` like [`Host::tllmprof`], but only once.
    pub(crate) fn once(&self, arguments: &str) -> Output {
        run(&mut self.command(arguments), TEST_TIMEOUT)
    }

    /// Returns the state of each process that `tllmprof ps` lists, such as `armed`.
    pub(crate) fn states(&self) -> Vec<String> {
        let all = self.place.ps();
        all.iter()
            .map(|process| process["state"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Returns the path of the program's record. Panics if the program has not written exactly one record.
    pub(crate) fn record(&self) -> PathBuf {
        let records = fs::read_dir(self.place.0.folder()).unwrap().flatten();
        let mut records = records
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == "tllmprof"));
        let record = records.next().expect("a record");
        assert_eq!(records.next(), None);
        record
    }

    /// Returns the first and last iteration of each window of the program's record.
    pub(crate) fn windows(&self) -> Vec<(u64, u64)> {
        self.running.windows_of(&self.record())
    }

    /// Returns the program's entry in the output of `tllmprof report --json`.
    pub(crate) fn report(&self) -> Value {
        let mut command = self.command("report --json");
        let report = run(command.arg(self.record()), TEST_TIMEOUT);
        let mut json: Value = serde_json::from_slice(&report.stdout).expect("a report");
        json["processes"][0].take()
    }

    /// Returns one pair for each period in which the profiler was on according to the stand-in driver's log: the
    /// numbers of the first and of the last launch in this period. The program's first launch has the number 0.
    pub(crate) fn switches(&self) -> Vec<(u64, u64)> {
        switches(&self.path("calls"), self.pid())
    }

    pub(crate) fn is_loaded(&self) -> bool {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        maps.contains("libtllmprof.so")
    }

    pub(crate) fn threads(&self) -> usize {
        self.running.count("task")
    }

    /// Asserts that no thread of the program is stopped or traced.
    #[track_caller]
    pub(crate) fn assert_free(&self) {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        for task in tasks.flatten() {
            let Ok(status) = fs::read_to_string(task.path().join("status")) else {
                continue;
            };
            let of = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                line.unwrap_or_default().trim().to_owned()
            };
            let (state, tracer) = (of("State:"), of("TracerPid:"));
            assert!(
                !state.starts_with(['t', 'T']) && tracer == "0",
                "{state}, {tracer}"
            );
        }
    }

    /// Makes the program end, and asserts that no thread of the program reported a wrong result.
    #[track_caller]
    pub(crate) fn end(&mut self) {
        let out = self.running.end();
        assert!(out.contains("bad 0, "), "{out}\n{}", self.running.err());
    }

    /// Makes the program end, like [`Host::end`], but asserts nothing about its results. For programs that do not
    /// check their results.
    #[track_caller]
    pub(crate) fn end_any(&mut self) {
        self.running.end();
    }

    /// Waits for the program's end, and asserts that it succeeded. Returns its standard output and
    /// error.
    #[track_caller]
    pub(crate) fn finish(self) -> (String, String) {
        let (status, out, err) = self.finish_any();
        assert!(status.success(), "{status}: {err}");
        (out, err)
    }

    /// Waits for the program's end. Returns its exit status, standard output and error.
    #[track_caller]
    pub(crate) fn finish_any(mut self) -> (ExitStatus, String, String) {
        let mut status = None;
        wait_until("its end", || {
            status = self.running.child.try_wait().unwrap();
            status.is_some()
        });
        (status.unwrap(), self.running.out(), self.running.err())
    }
}
