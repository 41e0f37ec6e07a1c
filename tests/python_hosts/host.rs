//! Runs a program that hosts Python (a host) twice: without the library, and with all of the library's Python options.
//! Reads how many events an NVTX tool received in the second run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::common::python::Python;
use crate::common::pythons::few;
use crate::common::{Output, Scratch, nvtx, repo, run, shim};

const TIMEOUT: Duration = Duration::from_secs(300);
/// Numbers of a process's garbage collections, by generation: before the first line of the program, and in total until
/// its end.
#[derive(Debug, Default)]
struct Collections {
    before: [u64; 3],
    all: [u64; 3],
}
type Process = u32;

/// Number of times that a range began, and number of times that it ended. A mark only begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub begun: u64,
    pub ended: u64,
}

/// The counts of the NVTX tool in a process, for each name of a range.
type Counts = BTreeMap<String, Count>;

/// The results of a host's run without the library and of a run with the library.
pub(crate) struct Both {
    name: String,
    pub plain: Output,
    pub with: Output,
    /// The garbage collections of each process in the run with the library, as the processes themselves counted them.
    truth: BTreeMap<Process, Collections>,
    counts: BTreeMap<Process, Counts>,
}

/// Runs `check` for each CPython that [`few`] returns. Panics with all errors if any of these checks fails.
pub(crate) fn with_each(check: impl Fn(&Python) -> Result<(), String>) {
    let wrong: Vec<String> = few()
        .into_iter()
        .filter_map(|python| check(python).err())
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the folder with the hosts' sources.
pub(crate) fn sources() -> PathBuf {
    repo().join("tests/python")
}

/// Returns the path of the NVTX tool that counts events, built once.
fn tool() -> &'static Path {
    static TOOL: OnceLock<(Scratch, PathBuf)> = OnceLock::new();
    let (_, tool) = TOOL.get_or_init(|| {
        let scratch = Scratch::new("count-tool");
        let tool = nvtx::library(&scratch, "python/count_tool.c", ".so");
        (scratch, tool)
    });
    tool
}

/// Turns on all of the library's Python options.
pub(crate) fn everything_on(command: &mut Command, folder: &Path) {
    command
        .env("LD_PRELOAD", shim())
        .env("TLLM_PROFILE_RECORD_GC", "1")
        .env("TLLMPROF_GIL", "1")
        .env("TLLMPROF_PY_RANGES", "truth:work,threading:Thread.run")
        .env("TLLM_LLMAPI_ENABLE_NVTX", "1")
        .env("TLLM_NVTX_DEBUG", "1")
        .env("TLLM_TORCH_PROFILE_TRACE", folder.join("torch.json"))
        .env("TLLM_PROFILE_START_STOP", "all")
        .env("NVTX_INJECTION64_PATH", tool())
        .env("COUNT_TOOL", folder);
}

impl Both {
    /// Runs the command that `make` returns, first without the library and then with it. Each run has an empty folder
    /// at the same path.
    pub(crate) fn run(name: impl Into<String>, make: impl Fn() -> Command) -> Self {
        let name = name.into();
        let scratch = Scratch::new("python-host");
        let (work, counts) = (scratch.path("work"), scratch.path("counts"));
        let one = |is_on: bool| {
            for folder in [&work, &counts] {
                let _ = fs::remove_dir_all(folder);
                fs::create_dir(folder).expect("make a folder");
            }
            let mut command = make();
            command
                .current_dir(&work)
                .env("TRUTH", scratch.path("truth"))
                .env("PYTHONDONTWRITEBYTECODE", "1")
                .env("PYTHONHASHSEED", "0");
            let _ = fs::remove_file(scratch.path("truth"));
            if is_on {
                everything_on(&mut command, &counts);
            }
            run(&mut command, TIMEOUT)
        };
        let (plain, with) = (one(false), one(true));
        Self {
            name,
            plain,
            with,
            truth: read_truth(&scratch.path("truth")),
            counts: read_counts(&counts),
        }
    }

    /// Checks that the host had the same status and output in both runs.
    pub(crate) fn same(&self) -> Result<&Self, String> {
        let (plain, with) = (&self.plain, &self.with);
        if (plain.status, &plain.stdout, &plain.stderr) == (with.status, &with.stdout, &with.stderr)
        {
            return Ok(self);
        }
        Err(format!(
            "{}: {} instead of {}\n--- without\n{}{}--- with\n{}{}",
            self.name,
            with.status,
            plain.status,
            plain.out(),
            plain.err(),
            with.out(),
            with.err()
        ))
    }

    /// Checks that this number of processes counted their garbage collections, and that the library recorded all of
    /// these collections and no others. Only collections before the program's first line may be missing.
    pub(crate) fn collections(&self, processes: usize) -> Result<&Self, String> {
        if self.truth.len() != processes {
            return Err(format!(
                "{}: {} processes reported, not {processes}",
                self.name,
                self.truth.len()
            ));
        }
        for (process, truth) in &self.truth {
            let seen = [0, 1, 2].map(|generation| {
                let name = format!("Python GC gen{generation}");
                self.count(*process, &name)
            });
            let is_right = (0..3).all(|generation| {
                let (all, seen) = (truth.all[generation], seen[generation]);
                let own = all - truth.before[generation];
                (own..=all).contains(&seen.begun) && seen.begun == seen.ended
            });
            if !is_right {
                return Err(format!(
                    "{}: process {process} had {truth:?} collections; seen: {seen:?}",
                    self.name
                ));
            }
        }
        Ok(self)
    }

    /// Like [`Self::collections`], for one process with sub-interpreters. In Python 3.8, the end of a sub-interpreter
    /// collects garbage of all interpreters without a notification. So only a minimum is checked there.
    pub(crate) fn collections_of_all(&self, python: &Python) -> Result<&Self, String> {
        if python.version.1 > 8 {
            self.collections(1)
        } else {
            self.at_least(48)
        }
    }

    /// Checks that the library recorded holds of the GIL in each process that counted collections. For a Python without
    /// a GIL, there may be none, or some, because such a Python has a GIL while it imports modules. In any case, no
    /// more holds may have ended than begun.
    pub(crate) fn gil(&self, python: &Python) -> Result<&Self, String> {
        for process in self.truth.keys() {
            let holds = self.count(*process, "GIL hold");
            if (python.has_gil && holds.begun == 0) || holds.ended > holds.begun {
                return Err(format!("{}: GIL holds: {holds:?}", self.name));
            }
        }
        Ok(self)
    }

    /// Checks that at least `wanted` collections of generation 2 were recorded in all processes together.
    pub(crate) fn at_least(&self, wanted: u64) -> Result<&Self, String> {
        let seen: u64 = self.total("Python GC gen2").begun;
        if seen < wanted {
            return Err(format!("{}: {seen} collections, not {wanted}", self.name));
        }
        Ok(self)
    }

    fn count(&self, process: Process, name: &str) -> Count {
        let counts = self.counts.get(&process);
        counts
            .and_then(|counts| counts.get(name))
            .copied()
            .unwrap_or_default()
    }

    pub(crate) fn total(&self, name: &str) -> Count {
        let counts = self.counts.values().filter_map(|counts| counts.get(name));
        counts.fold(Count::default(), |sum, count| Count {
            begun: sum.begun + count.begun,
            ended: sum.ended + count.ended,
        })
    }
}

/// Reads the lines that `truth.py` writes. A process has a line for each of its interpreters.
fn read_truth(path: &Path) -> BTreeMap<Process, Collections> {
    let mut truth = BTreeMap::<_, Collections>::new();
    for line in fs::read_to_string(path).unwrap_or_default().lines() {
        let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().expect(line)).collect();
        let process = Process::try_from(numbers[0]).expect(line);
        let sum = truth.entry(process).or_default();
        for (sum, count) in sum.before.iter_mut().chain(&mut sum.all).zip(&numbers[1..]) {
            *sum += count;
        }
    }
    truth
}

/// Reads the files that `count_tool.c` writes.
fn read_counts(folder: &Path) -> BTreeMap<Process, Counts> {
    let mut all = BTreeMap::<Process, Counts>::new();
    for entry in fs::read_dir(folder).expect("list what was counted") {
        let path = entry.expect("list what was counted").path();
        let Some(process) = path
            .file_stem()
            .and_then(|stem| stem.to_str()?.parse().ok())
        else {
            continue;
        };
        let counts = all.entry(process).or_default();
        for place in fs::read(&path).expect("read what was counted").chunks(64) {
            let number =
                |at: usize| u64::from_le_bytes(place[at..at + 8].try_into().expect("eight bytes"));
            let name = String::from_utf8_lossy(&place[..48]);
            let name = name.trim_end_matches('\0').to_owned();
            let count = counts.entry(name).or_default();
            count.begun += number(48);
            count.ended += number(56);
        }
    }
    all
}
