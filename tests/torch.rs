//! Checks the PyTorch profiler in windows (`TLLM_TORCH_PROFILE_TRACE`), with real PyTorch if it is available, and with
//! a fake one for errors.

mod common;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::torch::python_with_torch;
use common::{Output, Scratch, command, repo, run, shim, standin};

const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// The program `py_torch.py`, ready to run on the stand-in for CUDA. Traces are written to `t/trace.json`.
struct Program {
    command: Command,
    scratch: Scratch,
}

struct Ran {
    output: Output,
    scratch: Scratch,
}

impl Program {
    fn new(python: &Path, windows: &str, args: &str) -> Self {
        let scratch = Scratch::new("torch");
        let mut program = command(python);
        program
            .arg(repo().join("tests/fixtures/py_torch.py"))
            .args(args.split_whitespace())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            // One thread is faster for tensors this small, because synchronization of more threads takes longer than
            // the work.
            .env("OMP_NUM_THREADS", "1")
            .env("LD_LIBRARY_PATH", standin())
            .env("LD_PRELOAD", shim())
            .env("TLLM_PROFILE_START_STOP", windows)
            .env("TLLMPROF_STEP", "cudaGraphLaunch")
            .env("TLLM_TORCH_PROFILE_TRACE", "t/trace.json")
            .env_remove("CUDA_INJECTION64_PATH")
            .current_dir(scratch.folder());
        Self {
            command: program,
            scratch,
        }
    }

    fn fake(windows: &str, args: &str) -> Self {
        let fake = repo().join("tests/fixtures/py_fake");
        Self::new(Path::new("python3"), windows, args).env("PYTHONPATH", fake)
    }

    fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    fn run(mut self) -> Ran {
        Ran {
            output: run(&mut self.command, TEST_TIMEOUT),
            scratch: self.scratch,
        }
    }
}

impl Ran {
    /// Returns the library's messages.
    fn said(&self) -> Vec<String> {
        let err = self.output.err();
        let ours = err
            .lines()
            .filter_map(|line| line.strip_prefix("tllmprof: "));
        ours.map(str::to_owned).collect()
    }

    #[track_caller]
    fn assert_says(&self, parts: &[&str]) {
        let said = self.said();
        for part in parts {
            let count = said.iter().filter(|line| line.contains(part)).count();
            assert_eq!(count, 1, "{part}: {}", self.output.err());
        }
    }

    /// Asserts that the program ended with this exit status and standard output, which are also those without the
    /// library.
    #[track_caller]
    fn assert_done(&self, status: i32, out: &str) -> &Self {
        let output = &self.output;
        assert_eq!(
            (output.status.code(), output.out().as_str()),
            (Some(status), out),
            "{}",
            output.err()
        );
        self
    }

    /// Returns the names of the trace files in order, including temporary ones.
    fn traces(&self) -> Vec<String> {
        let folder = self.scratch.path("t");
        let mut names: Vec<_> = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Returns the step numbers in the trace `name`.
    fn steps(&self, name: &str) -> Vec<u32> {
        const READ: &str = "import gzip, json, sys\n\
            path = sys.argv[1]\n\
            events = json.load((gzip.open if path.endswith('.gz') else open)(path))['traceEvents']\n\
            names = [event['name'] for event in events if event.get('ph') == 'X']\n\
            print(*sorted(int(name[5:]) for name in names if name.startswith('step ')))";
        let mut read = command("python3");
        read.args(["-c", READ])
            .arg(self.scratch.path("t").join(name));
        let read = run(&mut read, TEST_TIMEOUT);
        assert!(read.status.success(), "{}", read.err());
        let out = read.out();
        out.split_whitespace().map(|n| n.parse().unwrap()).collect()
    }
}

#[test]
fn the_trace_holds_the_iterations_of_the_window() {
    let Some(python) = python_with_torch() else {
        return;
    };
    let ran = Program::new(&python, "10-12", "").run();
    ran.assert_done(0, "steps: 40\n");
    ran.assert_says(&[
        "opened at iteration 10",
        "closed: 3 iterations",
        "trace is ",
        "captured: 40 iterations",
    ]);
    assert_eq!(ran.traces(), ["trace-rank-0.json"]);
    assert_eq!(ran.steps("trace-rank-0.json"), [10, 11, 12]);
}

#[test]
fn each_window_has_a_trace_of_its_own() {
    let Some(python) = python_with_torch() else {
        return;
    };
    // The path of traces is relative to the folder in which the program starts, even if the program changes its folder
    // later.
    let ran = Program::new(&python, "10-12,20-21", "--chdir")
        .env("TLLM_TORCH_PROFILE_TRACE", "t/x.json.gz")
        .env("RANK", "3")
        .run();
    ran.assert_done(0, "steps: 40\n");
    assert_eq!(
        ran.traces(),
        ["x-rank-3-window-2.json.gz", "x-rank-3.json.gz"]
    );
    assert_eq!(ran.steps("x-rank-3.json.gz"), [10, 11, 12]);
    assert_eq!(ran.steps("x-rank-3-window-2.json.gz"), [20, 21]);
}

#[test]
fn a_window_that_is_open_at_the_end_is_written() {
    let Some(python) = python_with_torch() else {
        return;
    };
    let to_the_end = [35, 36, 37, 38, 39];
    for (args, status) in [
        ("", 0),
        ("--exit SystemExit", 4),
        ("--exit raise", 1),
        ("--off-main", 0),
        ("--off-main --exit daemon", 0),
        ("--threads", 0),
    ] {
        let ran = Program::new(&python, "35-", args).run();
        ran.assert_done(status, "steps: 40\n");
        assert_eq!(ran.traces(), ["trace-rank-0.json"], "{args}");
        assert_eq!(ran.steps("trace-rank-0.json"), to_the_end, "{args}");
    }
    // With `--fork`, the program starts a child by Python's multiprocessing. The child ends by `_exit`, but first
    // runs its finalizers. The child must not disturb the trace of its parent.
    let ran = Program::new(&python, "35-", "--fork").run();
    ran.assert_done(0, "child: 0\n");
    assert_eq!(ran.steps("trace-rank-0.json"), to_the_end);
    let ran = Program::new(&python, "35-", "--exit os._exit").run();
    ran.assert_done(4, "steps: 40\n");
    ran.assert_says(&["trace is lost", "closed: 5 iterations"]);
    assert_eq!(ran.traces(), [""; 0]);
}

#[test]
fn a_window_closes_on_another_thread_than_it_opened_on() {
    let Some(python) = python_with_torch() else {
        return;
    };
    let ran = Program::new(&python, "10-12,32-34", "--threads").run();
    ran.assert_done(0, "steps: 40\n");
    assert_eq!(ran.steps("trace-rank-0.json"), [10, 11, 12]);
    assert_eq!(ran.steps("trace-rank-0-window-2.json"), [32, 33, 34]);
}

#[test]
fn the_programs_own_profiler_comes_first() {
    let Some(python) = python_with_torch() else {
        return;
    };
    let ran = Program::new(&python, "10-12", "--profiles 8-14").run();
    ran.assert_done(0, "own: [8, 9, 10, 11, 12, 13, 14]\nsteps: 40\n");
    ran.assert_says(&["runs the PyTorch profiler itself: there is no trace of window 10-12"]);
    assert_eq!(ran.traces(), [""; 0]);
    let ran = Program::new(&python, "10-12", "--profiles 11-14").run();
    ran.assert_done(0, "own: [11, 12, 13, 14]\nsteps: 40\n");
    ran.assert_says(&["starts the PyTorch profiler itself: the trace of window 10-12 ends here"]);
    assert_eq!(ran.steps("trace-rank-0.json"), [10]);
    let ran = Program::new(&python, "10-12", "--profiles 14-16").run();
    ran.assert_done(0, "own: [14, 15, 16]\nsteps: 40\n");
    assert_eq!(ran.steps("trace-rank-0.json"), [10, 11, 12]);
}

#[test]
fn beside_another_tool_on_cuda_the_cpu_alone_is_recorded() {
    let Some(python) = python_with_torch() else {
        return;
    };
    let ran = Program::new(&python, "10-12,20-21", "")
        .env("CUDA_INJECTION64_PATH", "/nonexistent/libinjection.so")
        .run();
    ran.assert_done(0, "steps: 40\n");
    ran.assert_says(&["the PyTorch profiler records the CPU alone"]);
    assert_eq!(ran.steps("trace-rank-0.json"), [10, 11, 12]);
}

#[test]
fn without_torch_a_line_says_so() {
    let ran = Program::fake("10-12,20-21", "--no-torch").run();
    ran.assert_done(0, "steps: 40\n");
    ran.assert_says(&["torch is not imported in this process: there is no trace"]);
    assert_eq!((ran.said().len(), ran.traces().len()), (6, 0));
}

#[test]
fn a_rank_that_is_not_wanted_has_no_trace() {
    let ran = Program::fake("10-12", "")
        .env("RANK", "1")
        .env("TLLMPROF_RANKS", "0")
        .run();
    ran.assert_done(0, "steps: 40\n");
    assert_eq!((ran.said().len(), ran.traces().len()), (1, 0));
}

#[test]
fn a_path_that_cannot_be_written_is_reported() {
    let program = Program::fake("10-12", "");
    std::fs::write(program.scratch.path("file"), "").unwrap();
    let ran = program
        .env("TLLM_TORCH_PROFILE_TRACE", "file/t/trace.json")
        .run();
    ran.assert_done(0, "steps: 40\n");
    ran.assert_says(&["does not start for window 10-12: NotADirectoryError"]);
    assert_eq!(ran.said().len(), 4);
}

#[test]
fn what_torch_raises_is_logged_and_stays_here() {
    for (place, says) in [
        (
            "start",
            "does not start for window 10-12: RuntimeError: no luck in start",
        ),
        (
            "stop",
            "does not stop for window 10-12: RuntimeError: no luck in stop",
        ),
        (
            "export",
            "of window 10-12 is not written: RuntimeError: no luck in export",
        ),
    ] {
        let ran = Program::fake("10-12", "")
            .env("FAKE_TORCH", format!("raises {place}"))
            .run();
        ran.assert_done(0, "steps: 40\n");
        ran.assert_says(&[says]);
        assert_eq!((ran.said().len(), ran.traces().len()), (4, 0), "{place}");
    }
}

#[test]
fn what_a_signals_handler_raises_meanwhile_reaches_the_program() {
    for place in ["start", "stop", "export"] {
        for (kind, name) in [
            ("raise", "Interrupted"),
            ("KeyboardInterrupt", "KeyboardInterrupt"),
        ] {
            let ran = Program::fake("10-12", &format!("--handler {kind}"))
                .env("FAKE_TORCH", format!("signal {place}"))
                .run();
            ran.assert_done(0, &format!("handler\ninterrupted: {name}\nsteps: 40\n"));
            ran.assert_says(&["a signal came meanwhile"]);
            assert_eq!(ran.traces(), [""; 0], "{place}");
        }
    }
}

#[test]
fn who_holds_the_gil_does_not_wait_for_who_needs_it() {
    for place in ["start", "stop", "export"] {
        let ran = Program::fake("2-4,8-10,14-16,20-22,26-28", "--holds-gil")
            .env("FAKE_TORCH", format!("meets {place}"))
            .run();
        // While the fake torch starts, stops or exports its profiler, a second thread makes a CUDA call with the GIL
        // held. This happens once per window. The call must not wait until the window has opened or closed. A busy
        // machine may delay some of the five calls, but not all.
        let out = ran.output.out();
        let words: Vec<_> = out.split_whitespace().collect();
        assert_eq!(
            (words[0], words[1]),
            ("calls:", "5"),
            "{out}{}",
            ran.output.err()
        );
        assert_ne!(words[3], "5", "{place}: {out}");
        assert!(out.ends_with("steps: 40\n"), "{out}");
        assert_eq!(ran.traces().len(), 5, "{place}");
    }
}
