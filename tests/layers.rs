//! Checks layers (`TLLMPROF_LAYERS`): the report names, for each kernel, the scope that launched it, such as a torch
//! module. The program names each kernel after its scope, so the report must name the same scope, or say that the scope
//! is unknown.

mod common;
#[path = "layers/native.rs"]
mod native;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use common::python::{Python, pythons};
use common::torch::python_with_torch;
use common::{
    Output, Scratch, built_command, can_exec, command, nvtx, repo, run, shim, skipped, standin,
};
use tllmprof_record::{Entry, Reader, What};
use tllmprof_report::{Layers, Process, Report};

const TEST_TIMEOUT: Duration = Duration::from_secs(300);

fn program() -> &'static PathBuf {
    static BUILT: OnceLock<(Scratch, PathBuf)> = OnceLock::new();
    let (_, path) = BUILT.get_or_init(|| {
        let scratch = Scratch::new("layers-program");
        let path = nvtx::program_with(&scratch, "layers/program.c", "", &["-l:libcuda.so.1"]);
        (scratch, path)
    });
    path
}

struct Ran {
    output: Output,
    process: Option<Process>,
    /// Number of CUDA graph nodes for which the record has a scope (such as a torch module).
    nodes: u64,
}

fn nodes(reader: &Reader<fs::File>) -> u64 {
    let mut nodes = 0;
    let count = |entry: Entry<'_>| {
        if let Entry::Event { event, .. } = entry
            && let What::GraphNodes { count, .. } = event.what
        {
            nodes += u64::from(count);
        }
    };
    reader.read(count).unwrap();
    nodes
}

/// Runs the C program `tests/layers/program.c` in one of its modes.
fn ran(mode: &str, more: &[(&str, &str)]) -> Ran {
    let mut command = built_command(program());
    command.args([mode, "20"]);
    ran_by(command, mode, more)
}

fn ran_by(mut command: Command, mode: &str, more: &[(&str, &str)]) -> Ran {
    let scratch = Scratch::new("layers");
    let folders = std::env::join_paths([standin(), standin().join("cupti")]).unwrap();
    command
        .env("LD_LIBRARY_PATH", folders)
        .env("LD_PRELOAD", shim())
        .env("TLLMPROF_STEP", "cudaEventSynchronize")
        .env("TLLMPROF_START_STOP", "5-14")
        .env("TLLMPROF_TRACE", "%p.tllmprof")
        .env("TLLMPROF_LAYERS", "1")
        .env("STANDIN_KERNEL_NS", "1000")
        .current_dir(scratch.folder())
        .envs(more.iter().copied());
    let output = run(&mut command, TEST_TIMEOUT);
    let said = (output.out(), output.err());
    assert_eq!(output.status.code(), Some(7), "{mode}: {said:?}");
    assert_eq!(said.0, "done\n", "{mode}");
    let files = fs::read_dir(scratch.folder()).unwrap();
    let mut files = files.map(|file| file.unwrap().path());
    let record = files.find(|file| file.extension().is_some_and(|e| e == "tllmprof"));
    let (mut process, mut count) = (None, 0);
    if let Some(record) = record {
        let reader = Reader::open(&record).unwrap();
        count = nodes(&reader);
        process = Some(Process::read(record, &reader).unwrap());
    }
    Ran {
        output,
        process,
        nodes: count,
    }
}

impl Ran {
    fn layers(&self) -> &Layers {
        let process = self.process.as_ref().expect("a record");
        let layers = process.layers.as_ref();
        layers.unwrap_or_else(|| panic!("no layers: {}", self.output.err()))
    }

    /// Returns the number of kernels by scope (such as a torch module), for the kernels whose scope the report knows.
    fn known(&self) -> BTreeMap<&str, u64> {
        let rows = self.layers().rows.iter();
        rows.map(|row| (row.name.as_str(), row.kernels)).collect()
    }

    /// Returns the number of kernels of a scope (such as a torch module).
    #[track_caller]
    fn kernels_of(&self, scope: &str) -> u64 {
        let known = self.known();
        let count = known.get(scope).copied();
        count.unwrap_or_else(|| panic!("{scope}: {known:?}: {}", self.output.err()))
    }

    /// Returns the number of kernels whose scope (such as a torch module) the report does not know, for each reason
    /// that the report gives.
    fn unknown(&self) -> BTreeMap<&str, u64> {
        let rows = self.layers().unknown.iter();
        rows.map(|row| (row.why.text(), row.kernels)).collect()
    }

    /// Returns the number of kernels by name. Each kernel's name is the scope that launched it, so these are the
    /// right numbers of kernels by scope.
    fn launched(&self) -> BTreeMap<&str, u64> {
        let process = self.process.as_ref().expect("a record");
        let kernels = process.kernels.totals.iter();
        kernels
            .map(|kernel| (kernel.name.as_str(), kernel.count))
            .collect()
    }

    /// Asserts that the report has the right scope (such as a torch module) for every kernel.
    fn assert_all_known(&self) {
        assert_eq!(
            self.known(),
            self.launched(),
            "{:?} {}",
            self.unknown(),
            self.output.err()
        );
        assert_eq!(self.unknown(), BTreeMap::new());
        assert!(!self.output.err().contains("TLLMPROF_LAYERS"));
    }
}

const CHANGED: &str = "the graph was changed after its capture";
const DIFFERS: &str = "a kernel at replay was not the one that was captured";
const NODE: &str = "a node of the graph whose call was not followed";
const UNNAMED: &str =
    "the graph was made before layers were followed, or destroyed while kernels were taken";

#[test]
fn kernels_of_a_graph_and_by_themselves_have_the_scope_they_were_launched_in() {
    for mode in [
        "chain",
        "streams",
        "threads",
        "clone",
        "update",
        "failed",
        "grown",
        "child",
        "children",
        "conditional",
        "empty",
        "explicit",
    ] {
        let ran = ran(mode, &[]);
        ran.assert_all_known();
        let known = ran.known();
        assert_eq!(known["sample/logits"], 20, "{mode}: {known:?}");
        assert_eq!(known["sample"], 10, "{mode}");
    }
    let chain = ran("chain", &[]);
    assert_eq!(chain.kernels_of("model/layers.2/attn"), 10);
    assert_eq!(chain.layers().all.kernels, 10 * (8 + 3));
}

/// If the record's size is limited, the record drops old windows. The remaining windows keep their layers.
#[test]
fn windows_that_are_left_in_a_bounded_record_have_their_layers() {
    let windows: Vec<_> = (0..150)
        .map(|n| format!("{}-{}", 20 * n + 5, 20 * n + 14))
        .collect();
    let mut command = built_command(program());
    command.args(["chain", "3010"]);
    let more = [
        ("TLLMPROF_START_STOP", &*windows.join(",")),
        ("TLLMPROF_KERNELS", "10"),
        ("TLLMPROF_KEEP", "1M"),
    ];
    let ran = ran_by(command, "chain", &more);
    ran.assert_all_known();
    let left = ran.process.as_ref().unwrap().windows.len();
    assert!(
        (1..150).contains(&left),
        "{left} windows are left: none has made room"
    );
    assert_eq!(ran.kernels_of("model/embed"), 10 * left as u64);
}

#[test]
fn all_nodes_of_a_graph_have_scopes() {
    // The graph has three layers. All layers together have eight kernels. Each layer has one memset and three copies.
    let ran = ran("copies", &[]);
    assert_eq!(ran.nodes, 8 + 3 * (1 + 3));
    ran.assert_all_known();
    // CUPTI numbers all nodes of a graph, including those that are not kernels, copies or memsets. The record has no
    // scope for these.
    let ran = self::ran("others", &[]);
    assert_eq!(ran.nodes, 8 + 3);
    ran.assert_all_known();
}

/// Runs a Python program with a fake torch.
fn ran_in(python: &Python, program: &str, more: &[(&str, &str)]) -> Ran {
    let mut command = built_command(&python.path);
    command
        .arg(repo().join("tests/layers/python").join(program))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    ran_by(command, &format!("{program} in {python}"), more)
}

/// In Python, scopes are torch modules, by their qualified names, and marked functions.
#[test]
fn modules_and_functions_of_python_are_scopes() {
    for python in pythons() {
        let marked = [("TLLMPROF_PY_RANGES", "__main__:attend,__main__:sample")];
        let ran = ran_in(python, "modules.py", &marked);
        ran.assert_all_known();
        assert_eq!(ran.kernels_of("Model/first/attend"), 10, "{python}");
    }
}

/// A compiler has merged the code of several torch modules into one function. A call in this function gets a scope that
/// is named after the modules whose operations the call computes.
#[test]
fn compiled_code_has_the_modules_of_its_operations() {
    for python in pythons() {
        let ran = ran_in(python, "compiled.py", &[]);
        ran.assert_all_known();
        // The program launches the kernels of these scopes equally often within graphs and outside of them.
        for scope in [
            "Model/model.layers.(0 + 1.norm)",
            "Model/model.layers.1.mlp",
        ] {
            assert_eq!(ran.kernels_of(scope), 20, "{python}");
        }
    }
}

/// Code that torch's own compiler has generated gets scopes that are named after torch modules, too. The test needs a
/// Python with torch. The program compiles a whole model, a model's `forward`, and each layer separately.
#[test]
fn what_inductor_has_compiled_has_the_modules_of_its_operations() {
    let Some(python) = python_with_torch() else {
        return;
    };
    let scratch = Scratch::new("inductor");
    let mut command = built_command(&python);
    command
        .arg(repo().join("tests/layers/python/inductor.py"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("OMP_NUM_THREADS", "1")
        .env("TORCHINDUCTOR_CACHE_DIR", scratch.path("cache"))
        .env("TORCHINDUCTOR_COMPILE_THREADS", "1");
    let ran = ran_by(command, "inductor", &[]);
    ran.assert_all_known();
    // The program runs three models, each both directly and within a replayed graph. A scope has the same name in all
    // of them, so its kernels add up to 60.
    let layers = ["Model/layers.0", "Model/layers.1", "Model/layers.2"];
    for layer in layers {
        for part in ["", ".attn", ".mlp"] {
            assert_eq!(ran.known()[format!("{layer}{part}").as_str()], 60);
        }
    }
    assert_eq!(ran.known().len(), 9);
}

/// If the scope of a kernel (such as a torch module) is unknown, the report gives the reason and does not guess. All
/// scopes that the report names are right.
#[test]
fn what_is_not_known_has_a_reason() {
    let swapped = ran("swapped", &[]);
    assert_eq!(swapped.unknown(), BTreeMap::from([(CHANGED, 100)]));
    let others = [("sample", 10), ("sample/logits", 20)];
    assert_eq!(swapped.known(), BTreeMap::from(others));
    for (mode, kernels) in [("moved", 10), ("deep", 10)] {
        let ran = ran(mode, &[]);
        assert_eq!(ran.unknown(), BTreeMap::from([(NODE, kernels)]), "{mode}");
        let mut launched = ran.launched();
        launched.retain(|name, _| !["unknown", "model/layers.1/moe"].contains(name));
        assert_eq!(ran.known(), launched, "{mode}");
    }
}

/// Two threads capture into one graph at once. If it is uncertain which of them made a node, the node's scope (such as
/// a torch module) is unknown.
#[test]
fn nodes_that_two_threads_may_have_made_are_not_known() {
    let ran = ran("shared", &[]);
    let (known, launched) = (ran.known(), ran.launched());
    for name in ["model/one", "model/other"] {
        assert_eq!(launched[name], 3000);
        assert!(known.get(name).copied().unwrap_or(0) <= 3000, "{known:?}");
    }
    let unknown = ran.unknown().get(NODE).copied().unwrap_or(0);
    let of_graph = known.get("model/one").unwrap_or(&0) + known.get("model/other").unwrap_or(&0);
    assert_eq!(of_graph + unknown, 6000);
}

/// The program destroys graphs and makes new ones at the same addresses, both before and while kernels are recorded.
/// The new graph's nodes must not get the old graph's scopes (such as torch modules).
#[test]
fn a_graph_that_takes_the_place_of_another_is_its_own() {
    let ran = ran("again", &[]);
    let launched = ran.launched();
    for (name, kernels) in ran.known() {
        assert!(kernels <= launched[name], "{name}: {kernels}");
    }
    // CUPTI numbers a graph's nodes only if CUPTI is attached when the graph is created. If such a graph is destroyed
    // while CUPTI is still attached, the library never learns the numbers, so the scopes of the graph's kernels are
    // unknown.
    let unknown = ran.unknown();
    assert!(unknown.keys().all(|why| *why == UNNAMED), "{unknown:?}");
    assert!(ran.kernels_of("model/layers.1/turn.14") > 0);
}

#[test]
fn a_replay_that_runs_other_kernels_withdraws_the_layers_of_its_graph() {
    let ran = ran("chain", &[("STANDIN_NODE_SHIFT", "1")]);
    assert_eq!(ran.unknown(), BTreeMap::from([(DIFFERS, 80)]));
    assert_eq!(
        ran.known(),
        BTreeMap::from([("sample", 10), ("sample/logits", 20)])
    );
    let said = ran.output.err();
    assert_eq!(
        said.matches("ran another kernel than was captured").count(),
        1,
        "{said}"
    );
}

#[test]
fn without_the_variable_nothing_is_followed() {
    let ran = ran(
        "chain",
        &[("TLLMPROF_LAYERS", "0"), ("TLLMPROF_KERNELS", "1")],
    );
    let process = ran.process.as_ref().unwrap();
    assert!(process.layers.is_none());
    assert_eq!(
        process
            .kernels
            .totals
            .iter()
            .map(|kernel| kernel.count)
            .sum::<u64>(),
        110
    );
}

/// Returns the number of instructions that the program executes within its `steps` calls of cuGraphLaunch, with a
/// window that never opens. Returns `None` if valgrind is not installed.
fn instructions(layers: &str, steps: u32) -> Option<u64> {
    command("valgrind").arg("--version").output().ok()?;
    let mut valgrind = command("valgrind");
    valgrind
        .args(["--tool=callgrind", "--toggle-collect=cuGraphLaunch"])
        .arg(program())
        .args(["chain", &steps.to_string()]);
    let more = [
        ("TLLMPROF_LAYERS", layers),
        ("TLLMPROF_KERNELS", "1"),
        ("TLLMPROF_START_STOP", "900000-900001"),
    ];
    let said = ran_by(valgrind, "chain", &more).output.err();
    let found = said.split("Collected : ").nth(1);
    let count = found.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    Some(count.unwrap_or_else(|| panic!("{said}")))
}

#[test]
fn nothing_is_added_to_a_replay() {
    const REPLAYS: u32 = 10_000;
    if !can_exec() {
        return skipped("not under qemu");
    }
    // On a busy machine, a call may wait for a lock, which takes additional instructions. In a run that takes longer,
    // the library also does its periodic work more often. So there are many replays, and the lowest count of several
    // runs is used: of three, and of more if the counts do not agree.
    let mut fewest = [[u64::MAX; 2]; 2];
    for round in 1.. {
        for (fewest, layers) in fewest.iter_mut().zip(["0", "1"]) {
            for (fewest, steps) in fewest.iter_mut().zip([100, 100 + REPLAYS]) {
                let Some(count) = instructions(layers, steps) else {
                    return skipped("valgrind is not installed");
                };
                *fewest = count.min(*fewest);
            }
        }
        let [without, with] = fewest.map(|[few, many]| many - few);
        assert!(without > u64::from(REPLAYS), "{without}");
        // Recording layers adds less than one instruction per two replays. Counts of equal runs differ slightly with the
        // addresses of memory, so the count with layers may even be lower.
        let is_within = with < without + u64::from(REPLAYS) / 2;
        assert!(is_within || round < 9, "{with}, not {without}");
        if is_within && round >= 3 {
            return;
        }
    }
}

#[test]
fn the_report_shows_layers_as_a_tree() {
    let mut ran = ran("moved", &[]);
    let report = Report::new(vec![ran.process.take().unwrap()]);
    let text = report.styled(tllmprof_report::Style::whole());
    let rows: Vec<_> = text
        .lines()
        .skip_while(|line| !line.starts_with("layers"))
        .take_while(|line| !line.is_empty())
        .collect();
    let of = |name: &str| {
        let is_it = |line: &&&str| line.split_whitespace().next() == Some(name);
        let row = rows
            .iter()
            .find(is_it)
            .unwrap_or_else(|| panic!("{name}: {text}"));
        row.split_whitespace().skip(1).take(2).collect::<Vec<_>>()
    };
    // Rows are nested like the scopes. A nested row shows only the part of its scope's name that the row above it does
    // not have. In each step, the scope of one kernel is not known, because the program updated the executable graph
    // from a graph in which the kernel has another scope.
    assert_eq!(of("model"), ["1", "7.00"]);
    assert_eq!(of("/layers.*"), ["3", "5.00"]);
    assert_eq!(of("/attn"), ["3", "3.00"]);
    assert_eq!(of("sample"), ["1", "3.00"]);
    assert!(
        text.contains("layer not known: 9.1 %: a node of the graph"),
        "{text}"
    );
    let mut json = Vec::new();
    report.json(&mut json).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let process = &json["processes"][0];
    let share = |rows: &serde_json::Value| -> f64 {
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| row["share"].as_f64().unwrap()).sum()
    };
    let all = share(&process["layers"]) + share(&process["layers_unknown"]);
    assert!((all - 1.0).abs() < 1e-9, "{all}");
}

/// The program with which `scripts/gpu-check` measures on a GPU how CUPTI numbers graph nodes must also run on the
/// stand-in for CUDA.
#[test]
fn the_program_that_measures_the_numbers_of_nodes_runs() {
    let scratch = Scratch::new("graph-nodes");
    let program = scratch.path("graph_nodes");
    let mut cc = common::compiler();
    cc.args([
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
        "-DSTANDIN",
        "-o",
    ])
    .arg(&program)
    .arg(repo().join("scripts/gpu_check/programs/graph_nodes.c"))
    .arg(format!("-I{}", repo().join("tests/standin").display()))
    .arg(format!("-L{}", standin().display()))
    .args(["-l:libcuda.so.1", "-ldl"]);
    let built = run(&mut cc, TEST_TIMEOUT);
    assert!(built.status.success(), "{}", built.err());
    for (case, kernel) in [
        ("plain", "ran k3 1 1 3"),
        ("others", "ran k2 1 1 4"),
        ("empty", "ran k1 1 1 2"),
        ("child", "ran k5 1 1 3"),
        ("grandchild", "ran k7 1 1 3"),
        ("children", "ran k1 1 1 10"),
        ("relaxed", "ran k159 4 4 39"),
        ("thread-local", "ran k159 4 4 39"),
    ] {
        let mut command = built_command(&program);
        command
            .arg(case)
            .arg(standin().join("cupti/libcupti.so.13"))
            .env("LD_LIBRARY_PATH", standin());
        let output = run(&mut command, TEST_TIMEOUT);
        let said = output.out();
        assert_eq!(output.status.code(), Some(3), "{case}: {said}");
        let times = said.lines().filter(|line| *line == kernel).count();
        assert_eq!(times, 2, "{case}: {said}");
    }
}
