//! What is in the batches of known engines: stand-ins that hold it in the engines' shapes, on the stand-in
//! for CUDA, and the report of it. The programs know the truth themselves.

mod common;
#[path = "batch/drafts.rs"]
mod drafts;

use std::time::Duration;

use serde_json::{Value, json};

use common::python::{Python, pythons};
use common::{Fixture, Ran, Scratch, command, repo, run, skipped, tllmprof};

/// The program of tests/batch/ under the library, with a window of all iterations.
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

/// What was in each iteration of the record, and what the run said.
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

/// As [`batches`] under a condition, with whether each iteration is marked as one that does not fulfil it.
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

/// What is reported of the record, and what the run said.
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
            Duration::from_secs(60),
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

/// How many iterations with work the end of the process cut off: the last one, or none.
fn cut(process: &Value) -> usize {
    let is_cut = |one: &&Value| one["cut"] == true && one["batch"]["phase"] != "idle";
    iterations(process).filter(is_cut).count()
}

/// A rank of data parallelism that has nothing to do runs the model for the others, past the function of the row.
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
        // By a rule of the user's own its function alone counts.
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

/// Of LMDeploy's batches the truth is told as far as one prefills or decodes as a whole.
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

/// A mode of torch's is code of the program's, which torch runs for each attribute of a tensor.
#[test]
fn a_tensors_shape_is_left_alone_where_a_mode_would_be_asked_for_it() {
    for which in pythons() {
        let module = "lmdeploy.pytorch.engine.model_agent.agent";
        let (found, ran) = batches(which, "main.py", &[module, "under a mode"], &[]);
        let context = format!("{which:?}\n{}", ran.output.err());
        // A batch without requests has no shape that is read.
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
        // Whatever ran of the program's would have been printed.
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
    // The function's name alone is enough.
    let (found, ran) = of(rule);
    assert_eq!(found, truth(&ran));
}

/// Where an engine that is not known holds what is in a batch.
const FORMULAS: &str =
    "requests:len(batch.requests),tokens:batch.total,prefill_tokens:sum(n for n in batch.prompts)";

/// The engine that is not known, by its function `name`.
fn mine(which: &Python, name: &str, more: &[(&str, &str)]) -> (Vec<Value>, Ran) {
    let batch = format!("mine:Runner.{name}={FORMULAS}");
    let variables = [&[("TLLMPROF_BATCH", batch.as_str())], more].concat();
    batches(which, "main.py", &["mine", ""], &variables)
}

const NO_STEP: (&str, &str) = ("TLLMPROF_STEP", "");

#[test]
fn a_function_that_the_user_names_is_the_step_and_tells_its_batch() {
    for which in pythons() {
        let (found, ran) = mine(which, "step", &[NO_STEP]);
        let context = format!("{which:?}\n{}", ran.output.err());
        assert_eq!(found, truth(&ran), "{context}");
        let last = ran.said().pop().unwrap();
        assert!(last.contains("by py:mine:Runner.step"), "{context}");
        // A function that the step calls tells it as well, whatever the step's rule is.
        for rule in ["py:mine:Runner.step", "py:mine:Engine.step"] {
            let (found, ran) = mine(which, "forward", &[("TLLMPROF_STEP", rule)]);
            assert_eq!(found, truth(&ran), "{rule} {which:?}\n{}", ran.output.err());
        }
    }
}

/// A launch begins an iteration after the function has been called: it tells the batch of the one before. The first
/// iteration by a wait is open from that wait on, when its function has been called.
#[test]
fn a_function_within_steps_of_any_rule_tells_their_batches() {
    let Some(which) = pythons().last() else {
        return;
    };
    let (found, ran) = mine(which, "step", &[("TLLMPROF_STEP", "cudaGraphLaunch")]);
    let mut truth = truth(&ran);
    truth.remove(0);
    assert_eq!(found[..truth.len()], truth, "{}", ran.output.err());
    let (found, ran) = mine(which, "step", &[("TLLMPROF_STEP", "cudaStreamSynchronize")]);
    assert_eq!(found[1..], truth, "{}", ran.output.err());
}

#[test]
fn what_a_batch_cannot_be_read_from_is_named() {
    let Some(which) = pythons().last() else {
        return;
    };
    let said = |batch: &str| {
        let variables = [
            ("TLLMPROF_BATCH", batch),
            ("TLLMPROF_STEP", "cudaGraphLaunch"),
        ];
        let (found, ran) = batches(which, "main.py", &["mine", ""], &variables);
        assert!(found.iter().all(Value::is_null), "{batch}");
        let said = ran.said();
        // The program's output is what it is: no property ran.
        assert!(truth(&ran).len() > 10);
        let lines = said.iter().filter(|line| line.contains("mine"));
        lines.cloned().collect::<Vec<_>>()
    };
    for (batch, line) in [
        (
            "mine:Runner.forward=requests:len(btch),tokens:1,decode_tokens:1",
            "TLLMPROF_BATCH: mine:Runner.forward has no argument btch (it has self, batch, scale)",
        ),
        (
            "mine:Runner.step=requests:len(batch.reqs),tokens:1,decode_tokens:1",
            "mine:Runner.step: what is in its batch is not recorded: an attribute is missing (reqs)",
        ),
        (
            "mine:Runner.step=requests:batch.computed,tokens:1,decode_tokens:1",
            "mine:Runner.step: what is in its batch is not recorded: an attribute is computed, and code of the program is \
             not run (computed)",
        ),
        (
            "mine:Runner.steps=requests:1,tokens:1,decode_tokens:1",
            "TLLMPROF_BATCH: mine:Runner.steps was not found; mine has no such function; nearest: Runner.step, Engine.step",
        ),
        (
            "mine:Batch.computed=requests:1,tokens:1,decode_tokens:1",
            "TLLMPROF_BATCH: mine:Batch.computed: no batch is recorded; it is there, and was never called",
        ),
        (
            "mines:f=requests:1,tokens:1,decode_tokens:1",
            "TLLMPROF_BATCH: mines:f was not found; mines was never imported",
        ),
    ] {
        assert_eq!(said(batch), [line]);
    }
}

#[test]
fn nvtx_has_a_range_of_each_batch() {
    let scratch = Scratch::new("batch-nvtx");
    let tool = common::nvtx::library(&scratch, "nvtx/log_tool.c", "");
    for which in pythons() {
        let log = scratch.path("ranges");
        let variables = [
            NO_STEP,
            ("TLLMPROF_TRACE", ""),
            ("NVTX_INJECTION64_PATH", &tool.to_string_lossy()),
            ("LOG_TOOL", &log.to_string_lossy()),
        ];
        let batch = format!("mine:Runner.step={FORMULAS}");
        let variables = [&[("TLLMPROF_BATCH", batch.as_str())], &variables[..]].concat();
        let ran = fixture(which, "main.py", &["mine", ""], &variables).run();
        let expected = truth(&ran).into_iter().enumerate().flat_map(|(n, batch)| {
            let of = |name: &str| batch[name].to_string().replace('"', "");
            let name = format!(
                "batch {} requests={} tokens={} prefill={} decode={}",
                of("phase"),
                of("requests"),
                of("tokens"),
                of("prefill_tokens"),
                of("decode_tokens")
            );
            [
                format!("start {n} iteration {n}"),
                format!("start {n} {name}"),
                format!("end {name}"),
                format!("end iteration {n}"),
            ]
        });
        let ranges = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_file(&log).unwrap();
        let mut open = std::collections::HashMap::new();
        let ranges = ranges.lines().filter_map(|line| {
            let fields: Vec<_> = line.splitn(7, ' ').collect();
            let [_, _, _, kind, id, payload, name] = fields[..] else {
                panic!("{line}");
            };
            let name = match kind {
                "start" => {
                    open.insert(id, name);
                    format!("start {payload} {name}")
                }
                _ => format!("end {}", open[id]),
            };
            (!name.ends_with("capture")).then_some(name)
        });
        assert!(ranges.eq(expected), "{which:?}\n{}", ran.output.err());
    }
}

/// The stand-in for vLLM with windows of some iterations: what was in each batch of the run, what is reported of the
/// record, and the last line.
fn windows_where(which: &Python, window: &str, condition: &str) -> (Vec<Value>, Value, String) {
    let variables = [
        ("TLLMPROF_START_STOP", window),
        ("TLLMPROF_WHERE", condition),
    ];
    let args = ["vllm.v1.worker.gpu.model_runner", "0.33.0"];
    let (process, ran) = report(which, "main.py", &args, &variables);
    assert!(ran.output.status.success(), "{}", ran.output.err());
    (truth(&ran), process, ran.said().pop().unwrap_or_default())
}

#[test]
fn a_window_holds_as_many_iterations_that_fulfil_a_condition_as_were_asked_for() {
    for which in pythons() {
        let condition = "phase=decode and requests<=2";
        let (truth, process, last) = windows_where(which, "2-4", condition);
        let holds =
            |batch: &Value| batch["phase"] == "decode" && batch["requests"].as_u64() <= Some(2);
        let places: Vec<_> = (2..truth.len())
            .filter(|place| holds(&truth[*place]))
            .collect();
        let (first, last_one) = (places[0], places[2]);
        assert!(last_one - first > 2, "nothing lies between: {truth:?}");
        let found: Vec<_> = iterations(&process).collect();
        assert_eq!(found.len(), last_one + 1 - first, "{which:?} {last}");
        for (iteration, truth) in found.iter().zip(&truth[first..]) {
            assert_eq!(iteration["batch"], *truth, "{which:?} {last}");
            assert_eq!(iteration["qualifies"], holds(truth), "{iteration}");
        }
        // Figures are of what was asked for.
        assert_eq!(process["inside"]["iterations"], 3);
        assert_eq!(process["where"], condition);
        assert_eq!(process["unqualified"][0]["why"], "where");
        assert_eq!(
            process["unqualified"][0]["iterations"],
            found.len() - 3,
            "{process}"
        );
        assert!(
            last.contains(&format!("window 2-4 captured as {first}-{last_one}: ")),
            "{last}"
        );
    }
}

/// The stand-in for SGLang runs idle batches beside another rank's.
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

#[test]
fn a_window_that_is_split_is_closed_while_the_condition_does_not_hold() {
    let Some(which) = pythons().last() else {
        return;
    };
    // The condition holds in three runs of steps, each of which is over for more than 100 ms before the next.
    let variables = [
        NO_STEP,
        ("TLLMPROF_BATCH", &format!("mine:Runner.step={FORMULAS}")),
        ("TLLMPROF_START_STOP", "0-11"),
        ("TLLMPROF_WHERE", "tokens>0"),
        ("TLLMPROF_WHERE_SPLIT", "1"),
        ("PAUSE", "0.015"),
    ];
    let (found, excluded, ran) = marked_batches(which, "main.py", &["mine", ""], &variables);
    let context = ran.output.err();
    let truth = truth(&ran);
    let holds = |batch: &&Value| batch["phase"] != "idle";
    assert_eq!(
        found.iter().filter(holds).collect::<Vec<_>>(),
        truth.iter().filter(holds).collect::<Vec<_>>(),
        "{context}"
    );
    assert_eq!((found.len(), truth.len()), (12, 63), "{context}");
    assert_eq!(excluded, [false; 12], "{context}");
    let stops = ran
        .log
        .iter()
        .filter(|call| call.function == "cuProfilerStop");
    assert_eq!(stops.count(), 3, "{context}");
    let said = ran.said();
    assert_eq!(said.len(), 3, "{context}");
    assert!(said[1].ends_with(", in 3 parts"), "{context}");
    assert!(said[2].starts_with("window 0-11 captured as "), "{context}");
}

#[test]
fn a_condition_that_never_holds_is_explained() {
    let Some(which) = pythons().last() else {
        return;
    };
    let condition = "requests>5000 and phase=decode";
    let (truth, process, last) = windows_where(which, "2-6", condition);
    assert_eq!(process["windows"], json!([]));
    let decodes = truth.iter().filter(|batch| batch["phase"] == "decode");
    let held = format!(
        "window 2-6 never opened: {all} iterations by auto (vLLM, model runner V2); TLLMPROF_WHERE: requests>5000 held \
         in 0 of {all} iterations, phase=decode in {}",
        decodes.count(),
        all = truth.len()
    );
    assert!(
        last.contains(held.split_once(" by auto").unwrap().0),
        "{last}"
    );
    assert!(last.ends_with(held.rsplit_once("; ").unwrap().1), "{last}");
}

/// A server whose threads run steps at the same time: numbers and marks are of the step that they belong to.
#[test]
fn each_of_many_threads_steps_is_marked_by_its_own_batch() {
    for which in pythons() {
        let variables = [
            NO_STEP,
            ("TLLMPROF_BATCH", &format!("mine:Runner.step={FORMULAS}")),
            ("TLLMPROF_START_STOP", "20-119"),
            ("TLLMPROF_WHERE", "phase=decode and requests>=3"),
        ];
        let (found, excluded, ran) = marked_batches(which, "threads.py", &[], &variables);
        let context = format!("{which:?}\n{}", ran.output.err());
        let holds =
            |batch: &Value| batch["phase"] == "decode" && batch["requests"].as_u64() >= Some(3);
        assert_eq!(found.len(), excluded.len(), "{context}");
        let wrong = found.iter().zip(&excluded);
        let wrong =
            wrong.filter(|(batch, excluded)| !batch.is_null() && holds(batch) == **excluded);
        assert_eq!(wrong.collect::<Vec<_>>(), [], "{context}");
        // A step that began while another was being switched has no event.
        let counted = excluded.iter().filter(|excluded| !**excluded).count();
        assert!((90..=100).contains(&counted), "{counted} {context}");
        assert!(excluded.len() > counted + 50, "{context}");
        let last = ran.said().pop().unwrap();
        assert!(last.contains("window 20-119 captured as "), "{context}");
    }
}

#[test]
fn a_rank_that_is_not_wanted_opens_no_window_by_a_condition() {
    let Some(which) = pythons().last() else {
        return;
    };
    for (rank, opens) in [("0", true), ("1", false)] {
        let variables = [
            NO_STEP,
            ("TLLMPROF_BATCH", &format!("mine:Runner.step={FORMULAS}")),
            ("TLLMPROF_START_STOP", "2-3"),
            ("TLLMPROF_WHERE", "requests>1"),
            ("TLLMPROF_RANKS", "0"),
            ("TLLMPROF_RANK", rank),
        ];
        let (found, _, ran) = marked_batches(which, "main.py", &["mine", ""], &variables);
        assert_eq!(!found.is_empty(), opens, "{}", ran.output.err());
    }
}

/// A step that is learnt is known when it is over; what is in its batch is recorded all the same.
#[test]
fn a_learnt_step_has_batches_and_opens_no_window_by_them() {
    let Some(which) = pythons().last() else {
        return;
    };
    let (found, ran) = mine(which, "step", &[("TLLMPROF_START_STOP", "0-9")]);
    let (truth, context) = (truth(&ran), ran.output.err());
    assert_eq!(found.len(), 10, "{context}");
    let first = truth.windows(10).any(|part| part == found);
    assert!(first, "{found:?}\n{truth:?}\n{context}");
    let condition = [
        ("TLLMPROF_START_STOP", "0-9"),
        ("TLLMPROF_WHERE", "tokens>0"),
    ];
    let (found, ran) = mine(which, "step", &condition);
    assert!(found.is_empty());
    let last = ran.said().pop().unwrap();
    let why =
        "TLLMPROF_WHERE: no step's batch could be read before the step: leave TLLMPROF_STEP out";
    assert!(last.contains(why), "{last}");
}

/// What the formulas name is in the engines' own sources.
#[test]
fn engines_have_what_the_formulas_name() {
    let versions = [
        ("vllm", "0.33.0"),
        ("sglang", "0.5.23"),
        ("lmdeploy", "0.18.0"),
        ("transformers", "5.23.0"),
    ];
    for (package, version) in versions {
        let Some(folder) = sources(package, version) else {
            continue;
        };
        let engines = tllmprof_engines::ENGINES.iter().filter_map(|engine| {
            let step = engine
                .python_step()
                .filter(|_| engine.source.contains(version))?;
            step.starts_with(&format!("{package}."))
                .then_some((engine, step))
        });
        let rows = engines.flat_map(|(engine, step)| {
            let rows = engine.batch.iter();
            let rows = rows.filter(|row| row.versions.contains(version));
            rows.map(move |row| {
                let formulas = row.formulas().unwrap();
                // Texts that values are compared with are names, too: members of an enum.
                json!({"step": step, "arguments": formulas.arguments, "names": formulas.names})
            })
        });
        let rows: Vec<_> = rows.collect();
        assert!(!rows.is_empty(), "{package}");
        let wrong = wrong_in(&folder, &Value::from(rows));
        assert_eq!(wrong, "", "{package} {version}");
        let none = json!([{"step": "no.module:f", "arguments": [], "names": []}]);
        assert_ne!(wrong_in(&folder, &none), "");
    }
}

#[test]
fn engines_have_the_functions_that_run_dummy_batches() {
    for dummy in tllmprof_engines::DUMMY_STEPS {
        let rows = json!([{"step": dummy.function, "arguments": [], "names": []}]);
        for version in ["0.18.0", "0.26.0", "0.33.0"] {
            assert!(dummy.source.contains(version));
            let Some(folder) = sources("vllm", version) else {
                return;
            };
            assert_eq!(wrong_in(&folder, &rows), "", "{version}");
        }
    }
}

/// Whose versions' sources have the functions that draft for speculative decoding; each is in one of them.
const DRAFTS: [(&str, &str, &[&str]); 2] = [
    (
        "vLLM V1, speculative decoding",
        "vllm",
        &["0.10.0", "0.18.0", "0.26.0", "0.33.0"],
    ),
    (
        "SGLang, speculative decoding",
        "sglang",
        &["0.5.3", "0.5.16", "0.5.23"],
    ),
];

#[test]
fn engines_have_the_functions_that_draft() {
    for (name, package, versions) in DRAFTS {
        let apis = tllmprof_engines::ENGINE_APIS.iter();
        let api = apis.clone().find(|api| api.name == name).unwrap();
        let functions = api.functions.iter();
        let all: Vec<_> = functions
            .flat_map(|(module, names)| names.iter().map(move |name| format!("{module}:{name}")))
            .collect();
        let mut found = std::collections::BTreeSet::new();
        for version in versions {
            assert!(api.source.contains(version), "{name}: {version}");
            let Some(folder) = sources(package, version) else {
                return;
            };
            let rows = all
                .iter()
                .map(|step| json!({"step": step, "arguments": [], "names": []}));
            let wrong = wrong_in(&folder, &rows.collect());
            let has = |step: &&String| !wrong.contains(&format!("{step}: no such function\n"));
            assert!(all.iter().any(|step| has(&step)), "{package} {version}");
            found.extend(all.iter().filter(has));
        }
        let missing: Vec<_> = all.iter().filter(|step| !found.contains(step)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}

/// The folder with an engine's sources, where they can be had.
fn sources(package: &str, version: &str) -> Option<std::path::PathBuf> {
    let mut get = command("python3");
    get.arg(repo().join("scripts/get-engine-sources"));
    let got = run(
        get.arg(format!("{package}=={version}")),
        Duration::from_secs(300),
    );
    if !got.status.success() {
        skipped(got.err().trim());
        return None;
    }
    Some(std::path::Path::new(got.out().trim()).join(format!("{package}-{version}")))
}

/// What is wrong with formulas, by the sources in a folder.
fn wrong_in(folder: &std::path::Path, rows: &Value) -> String {
    let scratch = Scratch::new("sources");
    let input = scratch.path("rows.json");
    std::fs::write(&input, rows.to_string()).unwrap();
    let mut check = command("python3");
    check.arg(repo().join("tests/batch/sources.py"));
    check.arg(folder).arg(&input);
    let checked = run(&mut check, Duration::from_secs(120));
    assert!(checked.status.success(), "{}", checked.err());
    checked.out()
}

/// How many marked calls the report has of functions in which the engine of the program waits for requests.
fn waits_for_requests(which: &Python, program: &str) -> u64 {
    let (process, ran) = report(which, program, &[], &[]);
    let idle = iterations(&process).map(|iteration| iteration["idle_ns"].as_u64().unwrap());
    let idle: Vec<_> = idle.filter(|idle| *idle > 0).collect();
    let said = ran.output.err();
    // Of 60 ms: a busy machine begins late to look for requests, and makes no other wait as long as what is left.
    let longest = idle.iter().max().copied().unwrap_or(0);
    assert!(longest >= 25_000_000, "{which:?}: {idle:?}\n{said}");
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
