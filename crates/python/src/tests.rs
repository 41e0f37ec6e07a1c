//! Tests of several modules together, mostly in processes that load a libpython (CPython's shared library).

mod functions;
mod groups;
mod hosted;
mod interpreter;
mod late;
mod later;
mod modules;
mod object;
mod profiler;
mod rank;
mod stacks;

use super::*;

#[test]
fn what_is_asked_for_of_python_follows_from_the_variables() {
    let wants = |variables: &[_]| wants_of(&crate::functions::settings(variables));
    let window = ("TLLM_PROFILE_START_STOP", "5-9");
    assert!(!wants(&[]).anything());
    assert!(wants(&[("TLLM_PROFILE_RECORD_GC", "1")]).gc);
    assert!(wants(&[("TLLMPROF_GIL", "1")]).gil);
    assert!(wants(&[("TLLMPROF_STACKS", "1"), ("TLLMPROF_TRACE", "r")]).stacks);
    assert!(!wants(&[("TLLMPROF_STACKS", "1")]).anything());
    assert!(wants(&[("TLLM_NVTX_DEBUG", "1")]).modules);
    assert!(!wants(&[("TLLM_NVTX_DEBUG", "1"), ("TLLMPROF_NVTX", "0")]).modules);
    assert!(wants(&[window, ("TLLMPROF_STEP", "py:m:f")]).functions);
    assert!(!wants(&[window, ("TLLMPROF_STEP", "cuGraphLaunch")]).anything());
    assert!(wants(&[window, ("TLLM_TORCH_PROFILE_TRACE", "t.json")]).torch);
    assert!(
        wants(&[
            window,
            ("TLLMPROF_STEP", "cuGraphLaunch"),
            ("TLLMPROF_RANKS", "0")
        ])
        .rank
    );
    assert!(!wants(&[("TLLMPROF_RANKS", "0")]).rank && wants(&[("TLLMPROF_TRACE", "r")]).rank);
    // With the step rule `auto`, an engine's Python function may turn out to be the step, so calls of functions have
    // to be reported.
    assert!(wants(&[window]).functions);
}

#[test]
fn without_an_interpreter_the_session_has_nothing_of_python() {
    use session::Interpreter;
    assert_eq!(Cpython.version(), None);
    assert!(!Cpython.has_gil() && !Cpython.is_waiting_for_gil());
    Cpython.count();
    Cpython.report_missing();
    Cpython.report_totals(Level::Debug);
    let mut why = String::new();
    Cpython.write_no_call(&mut why).unwrap();
    assert_eq!(why, "; no Python from 3.8 on was found in the process");
}
