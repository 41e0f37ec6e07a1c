//! Checks NVTX ranges for torch modules (`TLLM_NVTX_DEBUG`), with real PyTorch if it is available, and their effect on
//! torch's compiler.

mod common;

use common::python::{Bench, Python, Ran};
use common::standin;
use common::torch::python_with_torch;

fn run(program: &str, variables: &[(&str, &str)]) -> Option<Ran> {
    let path = python_with_torch()?;
    let python = Python {
        path,
        version: (3, 0), // not used by this test
        is_shared: false,
        has_gil: true,
        has_tests: false,
    };
    let standin = standin();
    let mut all = vec![
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("OMP_NUM_THREADS", "1"),
        ("LD_LIBRARY_PATH", standin.to_str().unwrap()),
    ];
    all.extend(variables);
    Some(Bench::new().run(&python, program, &all))
}

#[test]
fn modules_have_ranges_by_their_qualified_names() {
    let Some(ran) = run("torch_modules", &[("TLLM_NVTX_DEBUG", "1")]) else {
        return;
    };
    let out = ran.output.out();
    let wanted: Vec<&str> = out
        .lines()
        .filter_map(|line| line.strip_prefix("module "))
        .collect();
    let is_call = |name: &str| name.starts_with("cu");
    let compiled = out.lines().filter(|line| *line == "compiled Model").count();
    let pushed: Vec<&str> = ran
        .events
        .iter()
        .filter(|event| event.kind == "push" && !is_call(&event.name))
        .map(|event| event.name.as_str())
        .collect();
    let eager = wanted.len();
    assert!(eager > 100 && compiled == 2, "{out}");
    assert_eq!(
        pushed.get(..eager),
        Some(&wanted[..]),
        "{}",
        ran.output.err()
    );
    // In some versions of torch, a call of the compiled model also calls the original model. So each of these calls may
    // have two ranges named `Model`.
    let rest = &pushed[eager..];
    let is_once_or_twice = [compiled, 2 * compiled].contains(&rest.len());
    assert!(
        is_once_or_twice && rest.iter().all(|name| *name == "Model"),
        "{rest:?}"
    );
    let pops = ran
        .events
        .iter()
        .filter(|event| event.kind == "pop")
        .count();
    let pushes = ran
        .events
        .iter()
        .filter(|event| event.kind == "push")
        .count();
    assert_eq!(pushes, pops);
}

#[test]
fn marks_add_no_graph_break() {
    let Some(plain) = run("torch_breaks", &[("TLLMPROF_NVTX", "0")]) else {
        return;
    };
    let marked = run(
        "torch_breaks",
        &[
            ("TLLM_NVTX_DEBUG", "1"),
            (
                "TLLMPROF_PY_RANGES",
                "__main__:helper,__main__:Block.forward,__main__:breaks",
            ),
        ],
    );
    let marked = marked.unwrap();
    assert_eq!(plain.output.out(), marked.output.out());
    assert!(
        plain.output.out().contains("model explained: 1 0 "),
        "{}",
        plain.output.out()
    );
    assert!(plain.events.is_empty());
    assert!(marked.count("push", "Model") > 0);
}

/// A module's class may override methods that could give the module's name. The library must not call such methods.
#[test]
fn naming_modules_runs_nothing_of_theirs() {
    let Some(ran) = run("torch_own_modules", &[("TLLM_NVTX_DEBUG", "1")]) else {
        return;
    };
    assert_eq!(ran.output.out(), "done\n");
    assert_eq!(ran.count("push", "Odd"), 3);
    assert_eq!(ran.count("push", "inner.first"), 3);
}
