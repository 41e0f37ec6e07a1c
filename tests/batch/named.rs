//! Checks batches of an engine that is not in the library's tables. The user names a function that is called once for
//! each batch, and formulas for the batch's contents.

use serde_json::Value;

use crate::common::python::{Python, pythons};
use crate::common::{Ran, Scratch, nvtx};
use crate::{batches, fixture, truth};

/// Formulas that the user gives for the contents of a batch, as the library does not know the engine.
pub(crate) const FORMULAS: &str =
    "requests:len(batch.requests),tokens:batch.total,prefill_tokens:sum(n for n in batch.prompts)";

/// Runs the unknown engine with a setting (`TLLMPROF_BATCH`) by which each call of the engine's function `name`
/// belongs to one batch.
pub(crate) fn mine(which: &Python, name: &str, more: &[(&str, &str)]) -> (Vec<Value>, Ran) {
    let batch = format!("mine:Runner.{name}={FORMULAS}");
    let variables = [&[("TLLMPROF_BATCH", batch.as_str())], more].concat();
    batches(which, "main.py", &["mine", ""], &variables)
}

pub(crate) const NO_STEP: (&str, &str) = ("TLLMPROF_STEP", "");

#[test]
fn a_function_that_the_user_names_is_the_step_and_tells_its_batch() {
    for which in pythons() {
        let (found, ran) = mine(which, "step", &[NO_STEP]);
        let context = format!("{which:?}\n{}", ran.output.err());
        assert_eq!(found, truth(&ran), "{context}");
        let last = ran.said().pop().unwrap();
        assert!(last.contains("by py:mine:Runner.step"), "{context}");
        // The batches are read from the calls of `forward`, which each step makes. This must work whichever function
        // the rule for steps names.
        for rule in ["py:mine:Runner.step", "py:mine:Engine.step"] {
            let (found, ran) = mine(which, "forward", &[("TLLMPROF_STEP", rule)]);
            assert_eq!(found, truth(&ran), "{rule} {which:?}\n{}", ran.output.err());
        }
    }
}

/// The library reads the batches from the calls of a function that is called within each step. If iterations begin at a
/// launch after that call, the call's batch counts for the previous iteration. If iterations begin at waits, the first
/// call comes before the first iteration.
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
        // The program's properties print when they are evaluated. Its output is unchanged, so the library evaluated
        // none of them.
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
    let tool = nvtx::library(&scratch, "nvtx/log_tool.c", "");
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
