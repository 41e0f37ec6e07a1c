//! Checks the batches (requests and tokens) that the library records for steps of inference engines. Small programs
//! imitate the engines' data structures and run on the stand-in for CUDA. They print the true contents of each batch.

mod common;
#[path = "batch/conditions.rs"]
mod conditions;
#[path = "batch/drafts.rs"]
mod drafts;
#[path = "batch/fallback.rs"]
mod fallback;
#[path = "batch/named.rs"]
mod named;
#[path = "batch/sources.rs"]
mod sources;

use std::time::Duration;

use serde_json::{Value, json};

use common::python::{Python, pythons};
use common::{Fixture, Ran, repo, run, tllmprof};

/// Returns a program of `tests/batch/` that runs under the library, with a window over all iterations.
fn fixture(which: &Python, program: &str, args: &[&str], variables: &[(&str, &str)]) -> Fixture {
    let folder = repo().join("tests/batch");
    let paths = [
        folder.clone(),
        folder.join("engines"),
        repo().join("tests/fixtures"),
    ];
    let paths = std::env::join_paths(paths).unwrap();
    let mut fixture = Fixture::new(&which.path.to_string_lossy())
        .env("PYTHONPATH", paths)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .window("all", "auto")
        .env("TLLMPROF_TRACE", "steps.tllmprof")
        .arg(&folder.join(program).to_string_lossy());
    for arg in args {
        fixture = fixture.arg(arg);
    }
    for (name, value) in variables {
        fixture = fixture.env(name, value);
    }
    fixture
}

/// Returns the batch contents of each iteration in the record of a run, and the messages that the library logged.
fn batches(
    which: &Python,
    program: &str,
    args: &[&str],
    variables: &[(&str, &str)],
) -> (Vec<Value>, Ran) {
    let (process, ran) = report(which, program, args, variables);
    let batches = iterations(&process)
        .map(|iteration| iteration["batch"].clone())
        .collect();
    (batches, ran)
}

/// Like [`batches`], for a run with a condition on batches (`TLLMPROF_WHERE`). Also returns a flag for each iteration:
/// true if the report says that the iteration does not qualify, for example because its batch does not satisfy the
/// condition.
fn marked_batches(
    which: &Python,
    program: &str,
    args: &[&str],
    variables: &[(&str, &str)],
) -> (Vec<Value>, Vec<bool>, Ran) {
    let (process, ran) = report(which, program, args, variables);
    let (batches, excluded) = iterations(&process)
        .map(|iteration| (iteration["batch"].clone(), iteration["qualifies"] == false))
        .unzip();
    (batches, excluded, ran)
}

fn iterations(process: &Value) -> impl Iterator<Item = &Value> {
    let windows = process["windows"].as_array().unwrap();
    windows
        .iter()
        .flat_map(|window| window["iterations"].as_array().unwrap())
}

/// Returns the report of the record of a run, and the messages that the library logged.
fn report(
    which: &Python,
    program: &str,
    args: &[&str],
    variables: &[(&str, &str)],
) -> (Value, Ran) {
    let fixture = fixture(which, program, args, variables);
    let record = fixture.folder().join("steps.tllmprof");
    let (ran, report) = fixture.run_and(|| {
        let mut command = std::process::Command::new(tllmprof());
        run(
            command.arg("report").arg("--json").arg(&record),
            Duration::from_secs(300),
        )
    });
    let report: Value = serde_json::from_str(&report.out()).unwrap_or_else(|e| {
        panic!(
            "{which:?}: {e}\n{}{}{}",
            report.err(),
            ran.output.out(),
            ran.output.err()
        )
    });
    (report["processes"][0].clone(), ran)
}

fn truth(ran: &Ran) -> Vec<Value> {
    let out = ran.output.out();
    let lines = out
        .lines()
        .map(|line| serde_json::from_str(line).expect(line));
    lines.collect()
}

#[track_caller]
fn assert_true(module: &str, ways: &[&str]) {
    for which in pythons() {
        for way in ways {
            let (found, ran) = batches(which, "main.py", &[module, way], &[]);
            let truth = truth(&ran);
            let context = format!("{which:?} {way}\n{}", ran.output.err());
            assert!(truth.len() > 10, "{context}");
            assert!(
                truth.iter().any(|batch| batch["requests"] == 1000),
                "{context}"
            );
            assert_eq!(found.len(), truth.len(), "{context}");
            for (place, (found, truth)) in found.iter().zip(&truth).enumerate() {
                assert_eq!(found, truth, "step {place} of {context}");
            }
            let warned = ran
                .said()
                .into_iter()
                .find(|line| line.contains("in its batch"));
            assert_eq!(warned, None, "{context}");
        }
    }
}

#[test]
fn vllm_tells_prefills_by_what_a_request_has_given() {
    assert_true(
        "vllm.v1.worker.gpu_model_runner",
        &["0.33.0", "0.10.0", "0.8.5"],
    );
    assert_true("vllm.v1.worker.gpu.model_runner", &["0.33.0"]);
}

/// Returns the number of iterations with work for the GPU that were cut off by the end of the process: 0 or 1.
fn cut(process: &Value) -> usize {
    let is_cut = |one: &&Value| one["cut"] == true && one["batch"]["phase"] != "idle";
    iterations(process).filter(is_cut).count()
}

/// In vLLM with data parallelism, an idle rank runs the model with a dummy batch for the other ranks. It does so
/// without calling the function that the library's table of engines names as the step. The library must still see
/// such runs, as idle steps.
#[test]
fn dummy_batches_of_vllm_are_idle_steps() {
    for module in [
        "vllm.v1.worker.gpu_model_runner",
        "vllm.v1.worker.gpu.model_runner",
    ] {
        assert_true(module, &["data parallel"]);
        let Some(which) = pythons().last() else {
            return;
        };
        let (process, ran) = report(which, "main.py", &[module, "data parallel"], &[]);
        let truth = truth(&ran);
        let idle = truth
            .iter()
            .filter(|batch| batch["phase"] == "idle")
            .count();
        assert!(idle > 3, "{truth:?}");
        let cut = cut(&process);
        assert_eq!(process["inside"]["iterations"], truth.len() - idle - cut);
        assert_eq!(
            process["rule"].as_str().unwrap().split(':').nth(1),
            Some(module)
        );
        // If the user sets a rule, only calls of the function in this rule count as steps. So there are no idle
        // steps.
        let rule = process["rule"].as_str().unwrap().to_owned();
        let (process, _) = report(
            which,
            "main.py",
            &[module, "data parallel"],
            &[("TLLMPROF_STEP", &rule)],
        );
        assert_eq!(iterations(&process).count(), truth.len() - idle);
    }
}

#[test]
fn sglang_says_the_phase_of_a_batch() {
    assert_true("sglang.srt.managers.scheduler", &["", "mlp-sync"]);
}

#[test]
fn transformers_has_the_position_of_each_request() {
    let module = "transformers.generation.continuous_batching.continuous_api";
    assert_true(module, &["synchronous", "asynchronous", "5.0.0"]);
}

/// In LMDeploy, the library cannot distinguish the prefill tokens of a mixed batch from its decode tokens. It counts
/// all of them as prefill tokens.
#[test]
fn lmdeploy_has_tensors_whose_shapes_are_known() {
    for which in pythons() {
        for way in ["0.18.0", "0.7.3"] {
            let module = "lmdeploy.pytorch.engine.model_agent.agent";
            let (found, ran) = batches(which, "main.py", &[module, way], &[]);
            let mut truth = truth(&ran);
            for batch in truth.iter_mut().filter(|batch| batch["phase"] == "mixed") {
                batch["prefill_tokens"] = batch["tokens"].clone();
                batch["decode_tokens"] = json!(0);
                batch["phase"] = json!("prefill");
            }
            assert_eq!(found, truth, "{which:?} {way}\n{}", ran.output.err());
            let idle = truth.iter().any(|batch| batch["phase"] == "idle");
            assert_eq!(idle, way == "0.18.0");
        }
    }
}

/// While a torch mode is active, torch runs the mode's code (code of the program) for each access to a tensor's
/// attribute. So the library must not read a tensor's shape while a mode is active.
#[test]
fn a_tensors_shape_is_left_alone_where_a_mode_would_be_asked_for_it() {
    for which in pythons() {
        let module = "lmdeploy.pytorch.engine.model_agent.agent";
        let (found, ran) = batches(which, "main.py", &[module, "under a mode"], &[]);
        let context = format!("{which:?}\n{}", ran.output.err());
        // In this run a torch mode is active, so the library reads no tensor's shape. Only the contents of batches
        // without requests (idle batches) are known.
        for (found, truth) in found.iter().zip(truth(&ran)) {
            let is_idle = truth["phase"] == "idle";
            assert_eq!(found.is_null(), !is_idle, "{truth}: {context}");
        }
        let why = "an attribute is computed, and code of the program is not run (shape)";
        assert!(ran.output.err().contains(why), "{context}");
    }
}

#[test]
fn arguments_that_are_not_as_expected_are_left_alone() {
    for which in pythons() {
        let (found, ran) = batches(which, "wrong.py", &[], &[]);
        let context = format!("{which:?}\n{}{}", ran.output.out(), ran.output.err());
        assert!(ran.output.status.success(), "{context}");
        // The program's objects print a line if any of their code runs, so code that the library ran by mistake would
        // show in the output.
        let truth = truth(&ran);
        assert!(truth.len() > 100, "{context}");
        for (place, (found, truth)) in found.iter().zip(&truth).enumerate() {
            assert_eq!(found, truth, "step {place} of {context}");
        }
        assert_eq!(found.len(), truth.len(), "{context}");
        let warned = "GPUModelRunner.prepare_inputs: what is in its batch is not recorded: ";
        let lines = ran.said().into_iter().filter(|line| line.contains(warned));
        assert_eq!(lines.count(), 1, "{context}");
    }
}

#[test]
fn a_step_of_several_calls_has_no_batch() {
    let Some(which) = pythons().last() else {
        return;
    };
    let rule = "py:vllm.v1.worker.gpu.model_runner:GPUModelRunner.prepare_inputs";
    let args = ["vllm.v1.worker.gpu.model_runner", "0.33.0"];
    let of = |rule: &str| batches(which, "main.py", &args, &[("TLLMPROF_STEP", rule)]);
    let (found, ran) = of(&format!("{rule}/2"));
    assert!(
        found.len() > 5 && found.iter().all(Value::is_null),
        "{found:?}"
    );
    assert!(ran.output.status.success());
    // Now a step is one call of the function instead of two (`/2`), so the batch of each step is known.
    let (found, ran) = of(rule);
    assert_eq!(found, truth(&ran));
}

/// In the mode `mlp-sync`, the stand-in for SGLang also runs batches without requests, while another rank has work. No
/// figure of the report may include iterations with such idle batches.
#[test]
fn idle_batches_are_in_no_figure() {
    for which in pythons() {
        let args = ["sglang.srt.managers.scheduler", "mlp-sync"];
        let (process, ran) = report(which, "main.py", &args, &[]);
        let truth = truth(&ran);
        let idle = truth.iter().filter(|batch| batch["phase"] == "idle");
        let idle = idle.count();
        assert!(idle > 3, "{truth:?}");
        for iteration in iterations(&process) {
            assert_eq!(
                iteration["qualifies"],
                iteration["batch"]["phase"] != "idle" && iteration["cut"] == false
            );
        }
        let cut = cut(&process);
        assert_eq!(process["inside"]["iterations"], truth.len() - idle - cut);
        assert_eq!(process["unqualified"][0]["why"], "idle");
        assert_eq!(process["unqualified"][0]["iterations"], idle);
    }
}

/// Runs a program. Returns the number of calls of the engine's functions that wait for requests, according to the
/// report.
fn waits_for_requests(which: &Python, program: &str) -> u64 {
    let (process, ran) = report(which, program, &[], &[]);
    let idle = iterations(&process).map(|iteration| iteration["idle_ns"].as_u64().unwrap());
    let idle: Vec<_> = idle.filter(|idle| *idle > 0).collect();
    let said = ran.output.err();
    // Before step 10, the program waits 60 ms for requests.
    let longest = idle.iter().max().copied().unwrap_or(0);
    assert!(longest >= 60_000_000, "{which:?}: {idle:?}\n{said}");
    let inside = &process["inside"];
    assert_eq!(inside["idle"]["max_ns"], longest, "{which:?}");
    let rows = process["ledger"]["host"].as_array().unwrap();
    let row = rows.iter().find(|row| row["kind"] == "requests").unwrap();
    let ns = row["ns"].as_u64().unwrap();
    assert!(
        ns.abs_diff(idle.iter().sum()) < longest / 20,
        "{which:?}: {row}"
    );
    let functions = process["functions"].as_array().unwrap().iter();
    functions.map(|one| one["count"].as_u64().unwrap()).sum()
}

#[test]
fn waiting_for_requests_is_no_work() {
    for which in pythons() {
        waits_for_requests(which, "idle.py");
    }
}

#[test]
fn looking_for_requests_over_and_over_is_one_wait() {
    for which in pythons() {
        assert_eq!(waits_for_requests(which, "polls.py"), 1, "{which:?}");
    }
}
