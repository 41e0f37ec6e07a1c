//! Checks balanced routers (`ENABLE_PERFECT_ROUTER`) in captured graphs and in models that are compiled as a whole. In
//! such a graph or model, a layer must choose its experts by a table that spreads the tokens evenly. The library checks
//! that the layer does so, and otherwise leaves the layer unchanged.

use std::path::Path;

use serde_json::{Value, json};

use crate::common::torch::python_with_transformers;
use crate::common::{run, shim, standin};
use crate::{TEST_TIMEOUT, program, said};

/// Runs `captured.py` for 10 steps, with windows of steps 2 to 3 and 6 to 7. Returns each step's output, and the
/// library's messages.
fn captured(python: &Path, words: &[&str], is_shimmed: bool) -> (Vec<Value>, Vec<String>) {
    let mut program = program(python, "captured.py");
    program.args(words).env("LD_LIBRARY_PATH", standin());
    if is_shimmed {
        program
            .env("LD_PRELOAD", shim())
            .env("TLLMPROF_STEP", "cudaGraphLaunch")
            .env("TLLM_PROFILE_START_STOP", "2-3,6-7")
            .env("TLLMPROF_PERFECT_ROUTER", "window");
    }
    let output = run(&mut program, TEST_TIMEOUT);
    assert!(output.status.success(), "{}", output.err());
    let out = output.out();
    let steps: Vec<Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    assert_eq!(steps.len(), 10, "{out}");
    (steps, said(&output))
}

/// The layers of the three models that `captured.py` runs, two in each model. With the argument `disobeys`, the
/// second layer of each model does not use the balanced choices that the library has given it.
const LAYERS: [&str; 6] = [
    "MixtralSparseMoeBlock.gate 0",
    "MixtralSparseMoeBlock.gate 1",
    "Llama4TextMoe.router 2",
    "Llama4TextMoe.router 3",
    "JambaSparseMoeBlock.router 4",
    "JambaSparseMoeBlock.router 5",
];

fn is_inside(step: usize) -> bool {
    matches!(step, 2..=3 | 6..=7)
}

#[test]
fn layers_in_captured_graphs_are_proved_when_the_window_closes() {
    let Some(python) = python_with_transformers() else {
        return;
    };
    let (plain, _) = captured(&python, &[], false);
    let (steps, said) = captured(&python, &[], true);
    for (n, (plain, step)) in plain.iter().zip(&steps).enumerate() {
        assert_eq!(
            step["tables"],
            Value::from(vec![is_inside(n); 6]),
            "step {n}"
        );
        assert_eq!(step["lost"], Value::from(vec![0; 6]), "step {n}");
        if is_inside(n) {
            assert_ne!(step["result"], plain["result"], "step {n}");
        } else {
            assert_eq!(step, plain, "step {n} is outside the windows");
        }
    }
    assert!(
        said.iter()
            .any(|line| line.starts_with("perfect router: 6 layers, ")),
        "{said:?}"
    );
    for line in &said {
        let is_wrong = ["learned router", "not proved", "left as", "not looked at"];
        assert!(!is_wrong.iter().any(|word| line.contains(word)), "{line}");
    }
}

/// Asserts that the library's message at the end counts three layers that are balanced and three that are unchanged.
fn assert_three_are_left(said: &[String]) {
    let last = said
        .iter()
        .find(|line| line.starts_with("perfect router: "));
    let last = last.expect("a last line");
    assert!(
        last.starts_with("perfect router: 3 layers, ") && last.ends_with(", 3 left as they were"),
        "{last}"
    );
}

#[test]
fn a_layer_that_disobeys_in_a_captured_graph_is_named_and_learned_from_then_on() {
    let Some(python) = python_with_transformers() else {
        return;
    };
    let (plain, _) = captured(&python, &["disobeys"], false);
    let (steps, said) = captured(&python, &["disobeys"], true);
    for (n, (plain, step)) in plain.iter().zip(&steps).enumerate() {
        // Both windows replay the same graph. In the first window, the library switches all layers to the table of
        // balanced choices. In the second window, it switches only the layers that it has seen to follow the table.
        let is_table = |layer: usize| is_inside(n) && (n < 4 || layer.is_multiple_of(2));
        let wanted: Vec<bool> = (0..6).map(is_table).collect();
        assert_eq!(step["tables"], json!(wanted), "step {n}");
        if !is_inside(n) {
            assert_eq!(step, plain, "step {n} is outside the windows");
        }
    }
    for (layer, name) in LAYERS.iter().enumerate() {
        let lost: u64 = steps[2..=3]
            .iter()
            .map(|step| step["lost"][layer].as_u64().unwrap())
            .sum();
        let about: Vec<&String> = said.iter().filter(|line| line.contains(name)).collect();
        if layer.is_multiple_of(2) {
            assert!(lost == 0 && about.is_empty(), "{about:?}");
            continue;
        }
        // Number of choices in two steps of 64 tokens each, with one expert per token (Llama 4) or two.
        let all = if name.starts_with("Llama4") { 128 } else { 256 };
        assert!(lost > all / 4, "{name}: {lost} of {all}");
        assert_eq!(
            about,
            [&format!(
                "{name} keeps its learned router: {lost} of {all} experts chosen in captured graphs were not the table's"
            )]
        );
    }
    assert_three_are_left(&said);
}

#[test]
fn layers_of_a_model_that_is_compiled_whole_are_proved_and_refused() {
    let Some(python) = python_with_transformers() else {
        return;
    };
    let (steps, said) = captured(&python, &["compiled", "disobeys"], true);
    for (n, step) in steps.iter().enumerate() {
        // In a compiled model, operators check during the first balanced step (step 2) if the layer follows the table.
        // A layer that does not is left unchanged from then on.
        let is_table = |layer: usize| is_inside(n) && layer.is_multiple_of(2);
        let tables = step["tables"].as_array().unwrap();
        for (layer, table) in tables.iter().enumerate() {
            if n != 2 || layer.is_multiple_of(2) {
                assert_eq!(*table, json!(is_table(layer)), "step {n}, layer {layer}");
            }
        }
    }
    for (layer, name) in LAYERS.iter().enumerate() {
        let about = said.iter().filter(|line| line.contains(name)).count();
        assert_eq!(about, layer % 2, "{said:?}");
    }
    assert_three_are_left(&said);
}
