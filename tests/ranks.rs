//! Checks how the library finds a process's rank, windows that depend on the rank, and ranks in the report. The tests
//! use real torch.distributed and a stand-in for NCCL.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::torch::python_with_torch;
use common::{Output, Scratch, command, repo, run, shim, skipped, standin, tllmprof};
use serde_json::Value;
use tllmprof_config::RANK_VARIABLES;

const TEST_TIMEOUT: Duration = Duration::from_secs(240);

/// A program that is ready to run, with the library and a record in each of its processes. No environment variable
/// gives a process its rank; the program itself assigns the ranks.
struct Program {
    command: Command,
    scratch: Scratch,
}

struct Ran {
    output: Output,
    /// The output of `tllmprof report --json`; null if there was no record.
    json: Value,
    /// The output of `tllmprof report`.
    text: String,
    /// For each record of the run, the first 7 characters of its file name, such as `rank-0-`.
    names: Vec<String>,
}

impl Program {
    fn new(program: impl AsRef<std::ffi::OsStr>, step: &str) -> Self {
        let scratch = Scratch::new("ranks");
        let mut command = command(program);
        command
            .env("LD_LIBRARY_PATH", standin())
            .env("LD_PRELOAD", shim())
            .env("TLLMPROF_START_STOP", "5-9")
            .env("TLLMPROF_STEP", step)
            .env("TLLMPROF_TRACE", "rank-%r-%p.tllmprof")
            .current_dir(scratch.folder());
        for name in RANK_VARIABLES {
            command.env_remove(name);
        }
        Self { command, scratch }
    }

    /// Prepares a run of `workers.py` with real PyTorch. If PyTorch is not available, reports the test as skipped and
    /// returns `None`.
    fn workers(step: &str, args: &str) -> Option<Self> {
        let python = python_with_torch()?;
        let path = [repo().join("tests/ranks"), repo().join("tests/fixtures")];
        let mut program = Self::new(python, step).env(
            "PYTHONPATH",
            std::env::join_paths(path).unwrap().to_str().unwrap(),
        );
        program
            .command
            .arg(repo().join("tests/ranks/workers.py"))
            .args(args.split_whitespace())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("OMP_NUM_THREADS", "1");
        Some(program)
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Returns the paths of the records in the program's folder, sorted by name.
    fn records(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.scratch.folder()).unwrap();
        let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|end| end == "tllmprof"));
        paths.sort();
        paths
    }

    #[track_caller]
    fn run(mut self) -> Ran {
        let output = run(&mut self.command, TEST_TIMEOUT);
        assert!(output.status.success(), "{}", output.err());
        let report = |options: &[&str]| {
            let mut report = command(tllmprof());
            report.arg("report").args(self.records()).args(options);
            run(&mut report, TEST_TIMEOUT).out()
        };
        let json = serde_json::from_str(&report(&["--json"])).unwrap_or_default();
        let start = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap()[..7].to_owned();
        Ran {
            output,
            json,
            text: report(&[]),
            names: self.records().iter().map(start).collect(),
        }
    }
}

impl Ran {
    /// Returns the number of the library's messages that contain `part`.
    fn said(&self, part: &str) -> usize {
        let err = self.output.err();
        let ours = err.lines().filter(|line| line.starts_with("tllmprof: "));
        ours.filter(|line| line.contains(part)).count()
    }

    /// Returns for each process in the report its rank, the source from which the rank was found, the number of ranks
    /// in its world, and its number of windows.
    fn ranks(&self) -> Vec<(u64, String, Option<u64>, usize)> {
        let processes = self.json["processes"].as_array().into_iter().flatten();
        let one = |process: &Value| {
            (
                process["rank"].as_u64().unwrap(),
                process["rank_source"].as_str().unwrap_or("").to_owned(),
                process["world_size"].as_u64(),
                process["windows"].as_array().unwrap().len(),
            )
        };
        processes.map(one).collect()
    }

    #[track_caller]
    fn assert_ranks(&self, expected: &[(u64, &str, Option<u64>, usize)]) {
        let ranks = self.ranks();
        let ranks: Vec<_> = ranks
            .iter()
            .map(|(rank, source, size, windows)| (*rank, source.as_str(), *size, *windows))
            .collect();
        assert_eq!(ranks, expected, "{}\n{}", self.output.err(), self.text);
    }
}

/// Two rules that count the same steps, so that the library is entered in two ways: at a Python function, with the GIL
/// held, and at a CUDA call, without the GIL.
const STEPS: [&str; 2] = ["py:ranks_step:step", "cudaGraphLaunch"];

#[test]
fn torch_distributed_gives_the_rank_and_one_of_two_opens_its_window() {
    for step in STEPS {
        let Some(program) = Program::workers(step, "") else {
            return;
        };
        let ran = program.env("TLLMPROF_RANKS", "0").run();
        let source = "torch.distributed";
        ran.assert_ranks(&[(0, source, Some(2), 1), (1, source, Some(2), 0)]);
        assert_eq!(ran.said("window 5-9 captured"), 1, "{}", ran.output.err());
        assert_eq!(ran.said("no window here by TLLMPROF_RANKS"), 1);
    }
}

#[test]
fn every_rank_is_in_its_record_and_its_name() {
    let Some(program) = Program::workers(STEPS[0], "") else {
        return;
    };
    let ran = program.run();
    let source = "torch.distributed";
    ran.assert_ranks(&[(0, source, Some(2), 1), (1, source, Some(2), 1)]);
    assert_eq!(ran.names, ["rank-0-", "rank-1-"]);
    assert!(!ran.text.contains("is that of several"), "{}", ran.text);
}

#[test]
fn variables_come_before_torch_distributed() {
    let Some(program) = Program::workers(STEPS[0], "--set-rank") else {
        return;
    };
    let ran = program.env("TLLMPROF_RANKS", "0").run();
    ran.assert_ranks(&[(0, "RANK", Some(2), 1), (1, "RANK", Some(2), 0)]);
}

#[test]
fn replicas_of_an_engine_have_ranks_of_their_own() {
    let Some(program) = Program::workers(STEPS[0], "--workers 1 --replicas 2") else {
        return;
    };
    let ran = program.env("TLLMPROF_RANKS", "1").run();
    ran.assert_ranks(&[
        (0, "torch.distributed", Some(1), 0),
        (1, "torch.distributed and vLLM", None, 1),
    ]);
}

#[test]
fn a_window_waits_until_torch_distributed_is_initialised() {
    for step in STEPS {
        let Some(program) = Program::workers(step, "--plain --begin 20") else {
            return;
        };
        let ran = program.env("TLLMPROF_RANKS", "1").run();
        let source = "torch.distributed";
        ran.assert_ranks(&[(0, source, Some(2), 0), (1, source, Some(2), 1)]);
        let waits = "window 5-9 waits until the rank of this process is known: torch.distributed is not initialised";
        assert_eq!(ran.said(waits), 2, "{}", ran.output.err());
        assert_eq!(ran.said("asked for 5: the rank was not known)"), 1);
        assert_eq!(
            ran.said("window 5-9 captured as 2"),
            1,
            "{}",
            ran.output.err()
        );
    }
}

#[test]
fn a_rank_that_never_becomes_known_opens_nothing() {
    let Some(program) = Program::workers(STEPS[0], "--plain --begin 1000 --workers 1") else {
        return;
    };
    let ran = program.env("TLLMPROF_RANKS", "0").run();
    ran.assert_ranks(&[(0, "", None, 0)]);
    assert_eq!(
        ran.said("window 5-9 waits until"),
        1,
        "{}",
        ran.output.err()
    );
    assert_eq!(ran.said("window 5-9 never opened: 40 iterations"), 1);
}

#[test]
fn an_engine_says_which_rank_its_worker_has_before_there_is_a_world() {
    let Some(program) = Program::workers(STEPS[0], "--begin 20") else {
        return;
    };
    let ran = program.env("TLLMPROF_RANKS", "1").run();
    ran.assert_ranks(&[(0, "vLLM", Some(2), 0), (1, "vLLM", Some(2), 1)]);
    assert_eq!(ran.said("window 5-9 captured:"), 1, "{}", ran.output.err());
}

#[test]
fn the_same_rank_twice_is_kept_apart() {
    let Some(program) = Program::workers(STEPS[0], "") else {
        return;
    };
    let ran = program.env("TLLMPROF_RANK", "3").run();
    let source = "TLLMPROF_RANK";
    ran.assert_ranks(&[(3, source, None, 1), (3, source, None, 1)]);
    let pids: Vec<_> = ran.json["processes"].as_array().unwrap().iter().collect();
    let [one, other] = [0, 1].map(|place| pids[place]["pid"].to_string());
    let line =
        format!("rank 3 is that of several processes, which are kept apart by pid: {one}, {other}");
    assert!(ran.text.contains(&line), "{}", ran.text);
}

#[test]
fn a_record_has_the_groups_that_torch_and_the_engine_have() {
    for step in STEPS {
        let Some(program) = Program::workers(step, "--replicas 2 --groups") else {
            return;
        };
        let ran = program.run();
        let processes = ran.json["processes"].as_array().unwrap().iter();
        let named =
            processes.map(|one| (&one["rank"], &one["in_groups"], &one["groups"][0]["first"]));
        let named: Vec<_> = named
            .map(|one| format!("{} {} {}", one.0, one.1, one.2))
            .collect();
        let expected = [
            "0 \"TP0 of 2\" 0",
            "1 \"TP1 of 2\" 0",
            "2 \"TP0 of 2, DP1\" 2",
            "3 \"TP1 of 2, DP1\" 2",
        ];
        assert_eq!(named, expected, "{step}: {}", ran.output.err());
    }
}

/// Builds the program `program.c`, with these compiler options, and the stand-in for NCCL. Returns the program, ready
/// to make the given `communicators`.
fn with_nccl(folder: &Path, options: &[&str], communicators: &str) -> Program {
    let build = |output: &str, source: &str, options: &[&str]| {
        let here = format!("-L{}", folder.display());
        let options = [&[here.as_str()], options].concat();
        common::build(&format!("ranks/{source}"), &folder.join(output), options);
    };
    build(
        "libnccl.so.2",
        "nccl.c",
        &["-shared", "-fPIC", "-Wl,-soname,libnccl.so.2"],
    );
    build("program", "program.c", options);
    let mut program = Program::new(folder.join("program"), "cudaGraphLaunch");
    let libraries = [folder.to_owned(), standin()];
    program
        .command
        .args(communicators.split_whitespace())
        .env("LD_LIBRARY_PATH", std::env::join_paths(libraries).unwrap());
    program
}

const LINKED: &[&str] = &["-l:libnccl.so.2", "-l:libcudart.so.12"];
const BY_DLSYM: &[&str] = &["-DDLSYM", "-l:libcudart.so.12"];

#[test]
fn the_only_communicator_gives_the_rank() {
    let folder = Scratch::new("nccl");
    for (options, communicators, expected, out) in [
        (
            LINKED,
            "1/4",
            (1, "NCCL", Some(4), 1),
            "communicator 1 of 4, identified\n",
        ),
        (
            BY_DLSYM,
            "1/4",
            (1, "NCCL", Some(4), 1),
            "communicator 1 of 4, identified\n",
        ),
        (
            LINKED,
            "1:2",
            (1, "NCCL", Some(2), 1),
            "communicator 1 of 2, identified\n",
        ),
        (
            BY_DLSYM,
            "0:2",
            (0, "NCCL", Some(2), 0),
            "communicator 0 of 2, identified\n",
        ),
        (
            LINKED,
            "*1",
            (0, "NCCL", Some(1), 0),
            "communicator 0 of 1, all\n",
        ),
    ] {
        let ran = with_nccl(folder.folder(), options, communicators)
            .env("TLLMPROF_RANKS", "1")
            .run();
        ran.assert_ranks(&[expected]);
        assert!(ran.output.out().starts_with(out), "{}", ran.output.out());
        assert!(
            ran.output.out().contains("failed 0,"),
            "{}",
            ran.output.out()
        );
    }
}

#[test]
fn several_communicators_are_groups_and_give_no_rank() {
    let folder = Scratch::new("nccl");
    for communicators in ["0/4 0/2", "*2", "0/2 *1"] {
        let ran = with_nccl(folder.folder(), LINKED, communicators)
            .env("TLLMPROF_RANKS", "0")
            .run();
        ran.assert_ranks(&[(0, "", None, 0)]);
        assert_eq!(ran.said("window 5-9 waits until the rank"), 1);
        assert_eq!(ran.said("window 5-9 never opened"), 1);
        assert_eq!(ran.said("NCCL has several communicators here"), 2);
        // In this run, a variable also gives the rank. `TLLMPROF_RANKS` limits windows to rank 0, and the communicators
        // must not change the rank.
        let ran = with_nccl(folder.folder(), LINKED, communicators)
            .env("TLLMPROF_RANKS", "0")
            .env("OMPI_COMM_WORLD_RANK", "0")
            .env("OMPI_COMM_WORLD_SIZE", "2")
            .run();
        ran.assert_ranks(&[(0, "OMPI_COMM_WORLD_RANK", Some(2), 1)]);
    }
}

/// A communicator in the record: its id, the process's rank in it, and its size.
type Known = (Option<String>, Option<u64>, Option<u64>);

/// Returns the communicators of the only process in the report.
fn communicators(ran: &Ran) -> Vec<Known> {
    let all = ran.json["processes"][0]["communicators"].as_array();
    let one = |one: &Value| {
        let id = one["id"].as_str().map(ToOwned::to_owned);
        (id, one["rank"].as_u64(), one["size"].as_u64())
    };
    all.into_iter().flatten().map(one).collect()
}

#[test]
fn a_communicator_is_the_same_one_in_the_records_of_all_its_ranks() {
    let folder = Scratch::new("nccl");
    let of = |options: &[&str], made: &str| {
        let ran = with_nccl(folder.folder(), options, made).run();
        assert!(
            ran.output.out().contains("failed 0,"),
            "{}",
            ran.output.out()
        );
        communicators(&ran)
    };
    let one = of(LINKED, "a1/4 b0:2 1+4");
    let other = of(BY_DLSYM, "a3/4 b1:2 3+4");
    let places = |all: &[Known]| {
        let places = all.iter().map(|one| (one.1.unwrap(), one.2.unwrap()));
        places.collect::<Vec<_>>()
    };
    assert_eq!(places(&one), [(1, 4), (0, 2), (1, 4)]);
    assert_eq!(places(&other), [(3, 4), (1, 2), (3, 4)]);
    for (one, other) in one.iter().zip(&other) {
        assert!(one.0.is_some() && one.0 == other.0, "{one:?}, {other:?}");
    }
    assert_ne!(one[0].0, one[1].0, "identifiers differ in a byte");
    assert_ne!(one[0].0, one[2].0);
    let unknown = (None, None, None);
    assert_eq!(of(LINKED, "*2 *1"), [unknown]);
}

#[test]
fn a_part_of_a_communicator_is_the_same_one_in_the_records_of_all_its_ranks() {
    let folder = Scratch::new("nccl");
    let of = |options: &[&str], made: &str| {
        communicators(&with_nccl(folder.folder(), options, made).run())
    };
    // All three processes split a communicator of 4 ranks: ranks 1 (`one`) and 3 (`other`) with the same color, and
    // rank 2 (`apart`) with another color. The process `one` splits another communicator before that.
    let one = of(LINKED, "a0/2 /0 b1/4 /1 /-1 /1");
    let other = of(BY_DLSYM, "b3/4 /1 /-1 /1");
    let apart = of(LINKED, "b2/4 /0 /-1 /0");
    let places = |all: &[Known]| all.iter().map(|one| (one.1, one.2)).collect::<Vec<_>>();
    let (parts, of_two) = ((Some(0), Some(2)), (Some(1), Some(2)));
    assert_eq!(
        places(&one)[1..],
        [(Some(0), Some(1)), (Some(1), Some(4)), parts, parts]
    );
    for (all, rank) in [(&other, 3), (&apart, 2)] {
        assert_eq!(places(all), [(Some(rank), Some(4)), of_two, of_two]);
    }
    for at in 0..3 {
        assert!(
            one[at + 2].0.is_some() && one[at + 2].0 == other[at].0,
            "{one:?}, {other:?}"
        );
    }
    assert_eq!(one[2].0, apart[0].0);
    let mut ids: Vec<_> = one
        .iter()
        .chain(&apart[1..])
        .map(|one| one.0.clone().unwrap())
        .collect();
    ids.sort();
    ids.dedup();
    assert_eq!(
        ids.len(),
        one.len() + 2,
        "each is known by itself: {one:?} {apart:?}"
    );
    // A split makes a communicator out of a parent communicator. If the library does not know the parent, it does not
    // know the result, either. With color -1, the process gets no communicator.
    let unknown = (None, None, None);
    assert_eq!(of(LINKED, "*2 /3 /-1"), [unknown.clone(), unknown.clone()]);
    // NCCL may still be making the communicator when the call returns. The library knows the communicator only after
    // NCCL has reported to the program that the communicator is ready.
    assert_eq!(of(LINKED, "b1/4 /100")[1], unknown);
    for options in [LINKED, BY_DLSYM] {
        let made = of(options, "b1/4 /100 /201");
        assert_eq!(made[1], unknown);
        assert!(
            made[2].0.is_some() && made[2] == (made[2].0.clone(), Some(0), Some(2)),
            "{made:?}"
        );
    }
}

#[test]
fn without_ranks_nothing_waits() {
    let folder = Scratch::new("nccl");
    let ran = with_nccl(folder.folder(), LINKED, "0/4 0/2").run();
    ran.assert_ranks(&[(0, "", None, 1)]);
    assert_eq!(ran.said("window 5-9 captured"), 1);
}

/// The tables in `crates/engines` name functions and fields of engines' replicas and groups of ranks. The engines'
/// sources must contain these names, in the versions from which they were taken.
#[test]
fn the_engines_sources_have_what_names_their_replicas_and_groups() {
    for (engine, file, lines) in [
        (
            "vllm==0.33.0",
            "vllm/config/parallel.py",
            &["    data_parallel_index: int", "    world_size: int"][..],
        ),
        (
            "vllm==0.33.0",
            "vllm/v1/engine/core.py",
            &["parallel_config.data_parallel_index = dp_rank"],
        ),
        (
            "vllm==0.33.0",
            "vllm/v1/engine/utils.py",
            &["\"vllm_config\": vllm_config,", "kwargs=common_kwargs"],
        ),
        (
            "vllm==0.33.0",
            "vllm/v1/executor/multiproc_executor.py",
            &[
                "\"vllm_config\": vllm_config,",
                "\"rank\": rank,",
                "kwargs=process_kwargs",
            ],
        ),
        (
            "vllm==0.33.0",
            "vllm/distributed/parallel_state.py",
            &[
                "_TP: GroupCoordinator | None = None",
                "_EP: GroupCoordinator | None = None",
                "self.ranks = ranks",
                "self.world_size = len(ranks)",
                "self.rank_in_group = ranks.index(self.rank)",
            ],
        ),
        (
            "sglang==0.5.23",
            "sglang/srt/distributed/parallel_state.py",
            &[
                "_TP: Optional[GroupCoordinator] = None",
                "_MOE_EP: Optional[GroupCoordinator] = None",
                "self.ranks = ranks",
                "self.world_size = len(ranks)",
                "self.rank_in_group = ranks.index(self.rank)",
            ],
        ),
        (
            "sglang==0.5.23",
            "sglang/srt/runtime_context.py",
            &[
                "_PARALLEL = ParallelContext()",
                "__slots__ = (\"_overrides\", \"_stamp\", \"_config\")",
                "placement[\"dp_rank\"] = ranks.dp_rank",
                "return cfg.dp_size * cfg.attn_dp_size",
            ],
        ),
    ] {
        let mut get = Command::new(repo().join("scripts/get-engine-sources"));
        let got = run(get.arg(engine), TEST_TIMEOUT);
        if !got.status.success() {
            return skipped(got.err().trim());
        }
        let folder = Path::new(got.out().trim()).join(engine.replace("==", "-"));
        let source = std::fs::read_to_string(folder.join(file)).unwrap();
        for line in lines {
            assert!(source.contains(line), "{engine}: {file} has no {line}");
        }
    }
}
