//! Checks Python programs that a profiler may easily break, such as those with little stack, in each available CPython.

mod common;

use common::python::{Bench, pythons};
use common::{shim, standin};

const ALL: [(&str, &str); 4] = [
    ("TLLM_PROFILE_RECORD_GC", "1"),
    ("TLLMPROF_GIL", "1"),
    ("TLLM_NVTX_DEBUG", "1"),
    ("TLLM_LLMAPI_ENABLE_NVTX", "1"),
];

/// Runs `tests/python/PROGRAM.py` in each Python, with all of the library's Python options. Asserts that the program
/// prints one of `wanted`, and nothing else.
#[track_caller]
fn survives(program: &str, wanted: &[&str], more: &[(&str, &str)]) {
    let path = standin().to_string_lossy().into_owned();
    let bench = Bench::new();
    let variables: Vec<_> = ALL
        .into_iter()
        .chain([("LD_LIBRARY_PATH", path.as_str())])
        .chain(more.iter().copied())
        .collect();
    for python in pythons() {
        let ran = bench.run(python, program, &variables);
        let said = ran.output.out();
        assert!(wanted.contains(&said.trim_end()), "{python}: {said}");
        assert!(!ran.events.is_empty(), "{python}: nothing was marked");
    }
}

#[test]
fn threads_with_small_stacks_begin_the_session() {
    survives(
        "small_stacks",
        &["done"],
        &[
            ("TLLMPROF_STEP", "py:__main__:step"),
            ("TLLMPROF_PY_RANGES", "__main__:step"),
            ("TLLM_PROFILE_START_STOP", "20-40"),
        ],
    );
}

/// To start torch's profiler, the library would have to take the main interpreter's GIL. In this test, the thread that
/// opens the window holds the GIL of a sub-interpreter, and must not wait for another GIL.
#[test]
fn a_window_in_a_sub_interpreter_waits_for_nobody() {
    survives(
        "window_in_interpreter",
        &["done", "no calls"],
        &[
            ("TLLMPROF_STEP", "cudaDeviceSynchronize"),
            ("TLLM_PROFILE_START_STOP", "5-9"),
            ("TLLM_TORCH_PROFILE_TRACE", "trace.json"),
        ],
    );
}

/// A thread's allocation waits for a lock whose holder waits for the loader, as in the test of the same name in
/// `hostile.rs`. In this test, the library looks for CPython at that moment.
#[test]
fn an_allocator_waits_for_a_thread_that_waits_for_the_loader() {
    let bench = Bench::new();
    let path = standin().to_string_lossy().into_owned();
    let allocator = bench.library("hostile/locked_allocator.c");
    let preloaded = format!("{}:{}", shim().display(), allocator.display());
    let variables = ALL.into_iter().chain([
        ("LD_LIBRARY_PATH", path.as_str()),
        ("LD_PRELOAD", preloaded.as_str()),
        ("TLLMPROF_STEP", "sym:^cudaDeviceSynchronize$"),
        ("TLLM_PROFILE_START_STOP", "5-9"),
        ("PYTHONNOUSERSITE", "1"),
    ]);
    let variables: Vec<_> = variables.collect();
    let python = pythons().iter().find(|python| python.has_gil);
    let ran = bench.run(
        python.expect("a CPython with a GIL"),
        "window_in_interpreter",
        &variables,
    );
    assert_eq!(ran.output.out().trim_end(), "done");
}
