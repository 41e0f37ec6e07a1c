//! Tests of layers in reports and in comparisons. The kernels belong to a simulated graph, so their
//! times and gaps are known.

use crate::common::process;
use serde_json::Value;
use tllmprof_record::builder::Builder;
use tllmprof_record::{ClockKind, Edge, Event, GraphState, What};
use tllmprof_report::{Comparison, Process, Report};

const STEPS: u64 = 40;
/// Length of an iteration, in nanoseconds.
const STEP: u64 = 1_000_000;
/// Length of a kernel, in nanoseconds.
const KERNEL: u64 = 10_000;
/// Length of the gap between two kernels, in nanoseconds.
const GAP: u64 = 1_000;

/// A model with four layers and a module `sample`. Each layer consists of two modules (attention and MLP). Each of
/// these nine modules has two kernels. A graph with all 18 kernels is replayed in each iteration.
struct Model {
    /// For each layer, the additional time of each kernel of its MLP, in nanoseconds.
    more: [u64; 4],
    /// The name of the attention module in each layer.
    attention: &'static str,
    /// True if it is not known in which scope (module of the model) the two kernels of `sample` were captured.
    lost: bool,
}

/// Returns a process with a model whose second layer has a slower MLP: each kernel of the MLP takes
/// `more` nanoseconds longer.
pub(crate) fn model(more: u64) -> Process {
    let model = Model {
        more: [0, more, 0, 0],
        ..Model::default()
    };
    model.process()
}

impl Default for Model {
    fn default() -> Self {
        Self {
            more: [0; 4],
            attention: "attn",
            lost: false,
        }
    }
}

impl Model {
    fn process(&self) -> Process {
        let mut builder = Builder::new(7, ClockKind::Monotonic);
        let put =
            |builder: &mut Builder, at, long, what| builder.push(7, &Event::new(at, long, what));
        let kernel = builder.string(7, "gemm");
        let mut scopes = Vec::new();
        for layer in 0..4 {
            for module in [self.attention, "mlp"] {
                let name = builder.string(7, &format!("model.layers.{layer}.{module}"));
                let (id, parent) = (scopes.len() as u32 + 1, 0);
                put(&mut builder, 0, 0, What::Scope { id, parent, name });
                scopes.push(id);
            }
        }
        let name = builder.string(7, "sample");
        let id = scopes.len() as u32 + 1;
        put(
            &mut builder,
            0,
            0,
            What::Scope {
                id,
                parent: 0,
                name,
            },
        );
        scopes.push(id);
        for (place, scope) in (0..).zip(&scopes) {
            if self.lost && place == 8 {
                continue;
            }
            let what = What::GraphNodes {
                graph: 1,
                first: place * 2,
                count: 2,
                scope: *scope,
            };
            put(&mut builder, 0, 0, what);
        }
        let mut at = 10 * STEP;
        for n in 0..STEPS {
            let taken = |edge| What::KernelWindow { edge, iteration: n };
            if n == 0 {
                put(&mut builder, at, 0, taken(Edge::Open));
            }
            put(
                &mut builder,
                at,
                STEP,
                What::Iteration { n, excluded: false },
            );
            if n == STEPS - 1 {
                put(&mut builder, at, 0, taken(Edge::Close));
            }
            let mut start = at + 5_000;
            for node in 0..scopes.len() as u32 * 2 {
                let layer = (node / 4) as usize;
                let is_mlp = node / 2 % 2 == 1;
                let more = self.more.get(layer).filter(|_| is_mlp).unwrap_or(&0);
                // Make the kernels vary slightly in length.
                let long = KERNEL + more + n % 5 * 10;
                let what = What::GpuKernel {
                    device: 0,
                    stream: 3,
                    name: kernel,
                    correlation: n as u32 + 1,
                };
                put(&mut builder, start, long, what);
                let what = What::KernelNode {
                    device: 0,
                    stream: 3,
                    exec: 5,
                    node,
                };
                put(&mut builder, start, 0, what);
                start += long + GAP;
            }
            at += STEP;
        }
        let what = What::GraphExec {
            state: Some(GraphState::Known),
            exec: 5,
            graph: 1,
        };
        put(&mut builder, at, 0, what);
        process("record", &builder.bytes())
    }
}

fn row<'a>(process: &'a Value, list: &str, name: &str) -> &'a Value {
    let mut rows = process[list].as_array().unwrap().iter();
    let row = rows.find(|row| row["name"] == name);
    row.unwrap_or_else(|| panic!("{name}: {:#}", process[list]))
}

#[test]
fn a_layer_has_its_time_in_a_step_and_what_was_idle_between_its_kernels() {
    let report = Report::new(vec![Model::default().process()]);
    let mut json = Vec::new();
    report.json(&mut json).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let process = &json["processes"][0];
    let mean = KERNEL + 20;
    for (list, name, layers, kernels, gaps) in [
        // The last number is the number of gaps between consecutive kernels of a layer, added up
        // over the row's layers.
        ("layer_patterns", "model.layers.*", 4, 16, 4 * 3),
        ("layer_patterns", "model.layers.*.attn", 4, 8, 4),
        ("layer_patterns", "model.layers", 1, 16, 15),
        ("layer_patterns", "model", 1, 16, 15),
        ("layer_patterns", "sample", 1, 2, 1),
        ("layer_tree", "model.layers.2", 1, 4, 3),
        ("layer_tree", "model.layers.2.mlp", 1, 2, 1),
    ] {
        let row = row(process, list, name);
        assert_eq!(row["layers"], layers, "{name}");
        assert_eq!(row["kernels_a_step"].as_f64(), Some(kernels as f64));
        assert_eq!(row["step_ns"], kernels * mean, "{name}");
        assert_eq!(row["each_ns"], kernels * mean / layers, "{name}");
        assert_eq!(row["gap_ns"], gaps * GAP, "{name}");
        assert_eq!(row["share"].as_f64(), Some(kernels as f64 / 18.0));
    }
    let text = report.text();
    let lines = text.lines().skip_while(|line| !line.starts_with("layers"));
    let lines: Vec<Vec<_>> = lines
        .map(|line| line.split_whitespace().collect())
        .collect();
    let said = |name| lines.iter().find(|line| line.first() == Some(&name));
    let said = |name| said(name).unwrap_or_else(|| panic!("{name}: {text}"))[1..].join(" ");
    assert_eq!(
        said("model.layers.*"),
        "4 16.0 160 µs 40.1 µs 12.0 µs 88.9 %"
    );
    // A row leaves out the part of the name that the row of the surrounding layer already has.
    assert_eq!(said(".mlp"), "4 8.00 80.2 µs 20.0 µs 4.00 µs 44.4 %");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
}

fn compared(base: &Model, other: &Model) -> (Value, String) {
    let comparison = Comparison::compare(&[base.process()], &[other.process()]);
    let mut bytes = Vec::new();
    comparison.json(&mut bytes).unwrap();
    (serde_json::from_slice(&bytes).unwrap(), comparison.text())
}

#[test]
fn the_innermost_layers_that_got_slower_are_named() {
    let all = Model {
        more: [1000; 4],
        ..Model::default()
    };
    let (json, text) = compared(&Model::default(), &all);
    let rows = json["layers"].as_array().unwrap();
    assert_eq!(rows[0]["name"], "model.layers.*.mlp");
    assert_eq!(rows[0]["base_ns"], 8.0 * (KERNEL + 20) as f64);
    assert_eq!(rows[0]["other_ns"], 8.0 * (KERNEL + 1020) as f64);
    let change = &rows[0]["change"];
    let relative = change["relative"].as_f64().unwrap();
    assert!((relative - 0.0998).abs() < 1e-3, "{relative}");
    let [low, high] = [0, 1].map(|end| change["interval"][end].as_f64().unwrap());
    assert!(low < relative && relative < high && low > 0.09, "{change}");
    // Outer layers such as `model` have no rows, because these would add nothing. The four single layers have no rows,
    // because all of them are slower by the same amount.
    let names: Vec<_> = rows
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["model.layers.*.mlp", "model.layers.*.attn", "sample"]
    );
    assert!(text.contains("layer, time a step (40)"), "{text}");
    assert!(text.contains("  model.layers.*.mlp"), "{text}");

    let one = Model {
        more: [0, 0, 3000, 0],
        ..Model::default()
    };
    let (json, _) = compared(&Model::default(), &one);
    let rows = json["layers"].as_array().unwrap();
    assert_eq!(rows[1]["name"], "model.layers.2.mlp");
    assert_eq!(rows[1]["base_ns"], 2.0 * (KERNEL + 20) as f64);
}

#[test]
fn a_layer_that_one_run_lacks_and_what_is_not_known_are_seen() {
    let other = Model {
        attention: "attention",
        lost: true,
        ..Model::default()
    };
    let (json, text) = compared(&Model::default(), &other);
    let rows = json["layers"].as_array().unwrap();
    let of = |name| rows.iter().find(|row| row["name"] == name).unwrap();
    let [old, new] = ["attn", "attention"].map(|name| of(format!("model.layers.*.{name}")));
    assert_eq!(old["other_ns"], 0.0);
    assert_eq!(new["base_ns"], 0.0);
    assert!(old["change"].is_null() && new["change"].is_null());
    let note = "layer not known: 0.0 % of BASE's kernel time, 11.1 % of OTHER's";
    assert!(text.contains(note), "{text}");
}
