//! Checks windows that contain only iterations whose batch satisfies a condition (`TLLMPROF_WHERE`).

use serde_json::{Value, json};

use crate::common::python::{Python, pythons};
use crate::named::{FORMULAS, NO_STEP, mine};
use crate::{iterations, marked_batches, report, truth};

/// Runs the stand-in for vLLM with a window and a condition. Returns the contents of each batch of the run, the report
/// of the record, and the last message that the library logged.
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
        // The report's figures for windows include only the three iterations that satisfy the condition.
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

#[test]
fn a_window_that_is_split_is_closed_while_the_condition_does_not_hold() {
    let Some(which) = pythons().last() else {
        return;
    };
    // The condition holds in three groups of consecutive steps. There are more than 100 ms between the groups.
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

/// A server's threads run steps at the same time. Each step must be recorded with its own batch. If the condition
/// does not hold for that batch, this step must be marked and no other.
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
        // The condition holds for 100 steps of the window, but the record may have events for fewer: a step that began
        // while another thread was opening or closing the window has no event.
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

/// With the rule `auto`, the library learns the steps from the CUDA calls and knows a step only after it has ended. So
/// no condition on the batch can open a window, but the batch is still recorded.
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
