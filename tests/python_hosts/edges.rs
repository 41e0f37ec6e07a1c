//! Checks native threads that wait for the device while the interpreter ends. When a window opens or closes in such a
//! thread, the library runs Python code in the thread.

use std::path::PathBuf;
use std::time::Duration;

use super::host::{sources, with_each};
use crate::common::pythons::name;
use crate::common::{Scratch, command, compiler, run, shim, standin};

const TIMEOUT: Duration = Duration::from_secs(180);
/// Number of runs with each Python, unless `TLLMPROF_TEST_EDGES` sets another number.
const RUNS: usize = 5;

/// The ways in which the program ends, and the exit status of each way.
const ENDS: [(&str, i32); 5] = [
    ("returns", 0),
    ("daemons", 0),
    ("exit", 4),
    ("raises", 1),
    ("_exit", 3),
];

fn library(scratch: &Scratch) -> PathBuf {
    let library = scratch.path("edges.so");
    let mut cc = compiler();
    cc.args([
        "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread",
    ])
    .arg(sources().join("edges.c"))
    .arg("-o")
    .arg(&library)
    .arg(format!("-L{}", standin().display()))
    .arg("-l:libcudart.so.12");
    let output = run(&mut cc, TIMEOUT);
    assert!(output.status.success(), "{}", output.err());
    library
}

#[test]
fn that_come_at_the_end() {
    let scratch = Scratch::new("python-edges");
    let library = library(&scratch);
    let runs = std::env::var("TLLMPROF_TEST_EDGES").map_or(RUNS, |runs| {
        runs.parse().expect("TLLMPROF_TEST_EDGES is a number")
    });
    let windows: Vec<String> = (0..30_000).step_by(2).map(|n| n.to_string()).collect();
    with_each(|python| {
        let mut edges = 0;
        for round in 0..runs {
            let (mut end, status) = ENDS[round % ENDS.len()];
            if end == "daemons" && python.version.1 == 10 {
                end = "returns"; // Even without the library, 3.10 crashes with daemon threads in one of five runs.
            }
            let mut program = command(&python.path);
            program
                .arg(sources().join("hosts/edges.py"))
                .arg(&library)
                .arg(end)
                .arg((7 * round % 17 * 100).to_string())
                .current_dir(scratch.folder())
                .env("LD_LIBRARY_PATH", standin())
                .env("LD_PRELOAD", shim())
                .env("STANDIN_LOG", scratch.path("log"))
                .env("TLLM_PROFILE_START_STOP", windows.join(","))
                .env("TLLMPROF_STEP", "cudaDeviceSynchronize")
                .env("TLLM_TORCH_PROFILE_TRACE", scratch.path("trace.json"))
                .env("TLLM_PROFILE_RECORD_GC", "1")
                .env("TLLMPROF_GIL", "1")
                .env("TLLMPROF_LOG", "warn");
            let output = run(&mut program, TIMEOUT);
            if output.status.code() != Some(status) || output.out() != "ends\n" {
                return Err(format!(
                    "{}, run {round}, {end}: {}\n{}{}",
                    name(python),
                    output.status,
                    output.out(),
                    output.err()
                ));
            }
            // When a window opens or closes, the library's Python code looks for torch, which the program has not
            // imported, and logs that. So this message shows that the code ran.
            edges += usize::from(output.err().contains("torch is not imported"));
        }
        if edges == 0 {
            return Err(format!("{}: nothing was run at an edge", name(python)));
        }
        Ok(())
    });
}
