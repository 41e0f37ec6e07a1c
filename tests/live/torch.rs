//! Checks the PyTorch profiler in windows on demand.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::torch::python_with_torch;
use crate::common::{command, repo, run, shim, standin};
use crate::place::{Place, Running, TEST_TIMEOUT, wait_until};

/// Returns the command of a PyTorch program that listens on a control socket and runs on the stand-in for CUDA. With
/// `TLLM_PROFILE_RECORD_GC`, the library follows Python from the start. Otherwise it would refuse to run the PyTorch
/// profiler.
fn program(place: &Place, python: &Path) -> Command {
    let mut program = command(python);
    program
        .arg(repo().join("tests/fixtures/py_torch.py"))
        .args(["--steps", "100000000"])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("OMP_NUM_THREADS", "1")
        .env("LD_LIBRARY_PATH", standin())
        .env("LD_PRELOAD", shim())
        .env("STANDIN_WORK_NS", "1000000")
        .env("XDG_RUNTIME_DIR", place.path("run"))
        .env("TLLMPROF_CONTROL", "1")
        .env("TLLMPROF_STEP", "cudaGraphLaunch")
        .env("TLLMPROF_TRACE", "%p.tllmprof")
        .env("TLLM_PROFILE_RECORD_GC", "1")
        .env_remove("CUDA_INJECTION64_PATH")
        .current_dir(place.0.folder());
    program
}

fn fake(place: &Place) -> Command {
    let mut program = program(place, Path::new("python3"));
    program.env("PYTHONPATH", repo().join("tests/fixtures/py_fake"));
    program
}

fn start(place: &Place, program: &mut Command) -> Running {
    let running = place.start_to(program, "");
    running.connect();
    running
}

/// Returns the step numbers in a trace of the PyTorch profiler.
fn steps(trace: &Path) -> Vec<u64> {
    const READ: &str = "import json, sys\n\
        names = [event['name'] for event in json.load(open(sys.argv[1]))['traceEvents'] if event.get('ph') == 'X']\n\
        print(*sorted(int(name[5:]) for name in names if name.startswith('step ')))";
    let read = run(
        command("python3").args(["-c", READ]).arg(trace),
        TEST_TIMEOUT,
    );
    assert!(read.status.success(), "{}", read.err());
    let out = read.out();
    out.split_whitespace().map(|n| n.parse().unwrap()).collect()
}

#[test]
fn a_capture_runs_the_pytorch_profiler_in_its_window_alone() {
    let real = python_with_torch();
    let place = Place::new();
    let server = match &real {
        Some(python) => start(&place, &mut program(&place, python)),
        None => start(&place, &mut fake(&place)),
    };
    let pid = server.pid();
    let capture = |more: &str| {
        let done = place.tllmprof(&format!("capture {pid} --steps 5 {more}"));
        assert!(done.status.success(), "{}\n{}", done.err(), server.err());
        done.err()
    };
    let said = capture("--torch-trace traces/t.json");
    let path = place.path("traces/t.json");
    assert!(
        said.contains(&format!("trace is {} with -rank-R", path.display())),
        "{said}"
    );
    capture("");
    capture("--torch-trace traces/t.json");
    let windows = server.windows();
    assert_eq!(windows.len(), 3, "{windows:?}");
    // The second capture requested no trace, so the second window has none. The third window's trace has the number
    // of its window in its file name.
    let is_written = |name: &str| server.err().contains(name);
    for (name, window) in [
        ("t-rank-0.json", windows[0]),
        ("t-rank-0-window-3.json", windows[2]),
    ] {
        wait_until(name, || is_written(name));
        if real.is_some() {
            let expected: Vec<_> = (window.0..=window.1).collect();
            assert_eq!(steps(&place.path("traces").join(name)), expected, "{name}");
        }
    }
    assert_eq!(fs::read_dir(place.path("traces")).unwrap().count(), 2);
}

#[test]
fn where_the_profiler_cannot_run_the_capture_is_refused() {
    let place = Place::new();
    let without_python = place.start(&mut place.server("2000"));
    without_python.connect();
    let with_kernels = start(&place, fake(&place).env("TLLMPROF_KERNELS", "1"));
    let not_followed = start(&place, fake(&place).env_remove("TLLM_PROFILE_RECORD_GC"));
    let no_python = "torch_trace: the library does not follow Python in this process, and that cannot be switched on later (start it with \
                     --torch-trace PATH)";
    let cupti = "torch_trace: the process was started with --kernels, and the library and the PyTorch profiler cannot both have CUPTI";
    for (process, why) in [
        (&without_python, no_python),
        (&not_followed, no_python),
        (&with_kernels, cupti),
    ] {
        let refused = place.tllmprof(&format!("capture {} --torch-trace t.json", process.pid()));
        assert_eq!(refused.status.code(), Some(1));
        assert!(refused.err().contains(why), "{}", refused.err());
        assert!(!process.record().exists() || process.windows().is_empty());
    }
    let wrong = place.tllmprof("capture --torch-trace traces/");
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        wrong
            .err()
            .contains("it does not end in a file's name (wanted: a file, such as trace.json"),
        "{}",
        wrong.err()
    );
    let both = place.tllmprof("capture --torch-trace t.json --kernels");
    assert_eq!(both.status.code(), Some(2));
}
