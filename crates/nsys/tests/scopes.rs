//! Checks that graph kernels of an export get the scopes (such as layers) of the same graphs in a record, and that
//! other kernels get none.

mod common;

use std::path::{Path, PathBuf};

use common::{Export, Schema, scratch, thread};
use tllmprof_nsys::{GraphScopes, open};
use tllmprof_record::builder::Builder;
use tllmprof_record::{ClockKind, Edge, Event, GraphState, Reader, What};
use tllmprof_report::{Layers, Process};

const PID: i64 = 4000;
const MAIN: i64 = thread(PID, PID);
const OWN: i64 = 1;

/// The nodes of a graph, in order. A node has the name of a kernel, and the scope (such as a layer) in which the
/// kernel was captured. The scope is empty if no scope was open, and `None` if it was not recorded.
type Graph = &'static [(&'static str, Option<&'static str>)];

const MODEL: Graph = &[
    ("norm", Some("model.layers.0.norm")),
    ("gemm", Some("model.layers.0.mlp")),
    ("gemm", None),
    ("sample", Some("")),
];
/// Two graphs of one model, one for each layer. Both graphs have the same kernels, but the kernel `attn` has a
/// different scope (layer) in each.
const PIECES: [Graph; 2] = [
    &[("rope", Some("model.attn")), ("attn", Some("layers.0"))],
    &[("rope", Some("model.attn")), ("attn", Some("layers.1"))],
];

/// Returns the scopes (such as layers) from a record of a program that replays the given graphs in each of ten
/// iterations.
fn scopes(graphs: &[Graph]) -> GraphScopes {
    let mut builder = Builder::new(7, ClockKind::Monotonic);
    let put = |builder: &mut Builder, at, long, what| builder.push(7, &Event::new(at, long, what));
    let mut id = 0;
    for (graph, nodes) in (1..).zip(graphs) {
        for (first, (_, scope)) in (0..).zip(*nodes) {
            let scope = match scope {
                None => continue,
                Some("") => 0,
                Some(scope) => {
                    id += 1;
                    let (parent, name) = (0, builder.string(7, scope));
                    put(&mut builder, 0, 0, What::Scope { id, parent, name });
                    id
                }
            };
            let count = 1;
            let what = What::GraphNodes {
                graph,
                first,
                count,
                scope,
            };
            put(&mut builder, 0, 0, what);
        }
        let state = Some(GraphState::Known);
        let exec = graph + 30;
        let what = What::GraphExec { state, exec, graph };
        put(&mut builder, 1 << 40, 0, what);
    }
    let (device, stream, correlation) = (0, 3, 1);
    for n in 0..10 {
        let at = n * 100_000;
        if n == 0 {
            let edge = Edge::Open;
            put(
                &mut builder,
                at,
                0,
                What::KernelWindow { edge, iteration: n },
            );
        }
        put(
            &mut builder,
            at,
            90_000,
            What::Iteration { n, excluded: false },
        );
        let mut start = at;
        for (exec, nodes) in (31..).zip(graphs) {
            for (node, (name, _)) in (0..).zip(*nodes) {
                start += 100;
                let name = builder.string(7, name);
                let what = What::GpuKernel {
                    device,
                    stream,
                    name,
                    correlation,
                };
                put(&mut builder, start, 50, what);
                let what = What::KernelNode {
                    device,
                    stream,
                    exec,
                    node,
                };
                put(&mut builder, start, 0, what);
            }
        }
    }
    let bytes = builder.bytes();
    let reader = Reader::new(&bytes[..]).unwrap();
    GraphScopes::read(PathBuf::from("record"), &reader)
        .unwrap()
        .unwrap()
}

/// Writes an export of a run in which each of ten iterations replays the given graphs and runs one
/// kernel outside graphs.
fn export(path: &Path, graphs: &[Graph]) {
    let mut export = Export::new(path, Schema::Full);
    export.domain(MAIN, OWN, "tllmprof");
    export.range(60, MAIN, OWN, "capture", None, [2990, 6950]);
    for n in 0..10 {
        let name = format!("iteration {n}");
        export.range(60, MAIN, OWN, &name, Some(n), [1000 * n, 1000 * n + 900]);
        let mut start = 1000 * n;
        for (exec, nodes) in (5..).zip(graphs) {
            for (node, (name, _)) in (0..).zip(*nodes) {
                start += 20;
                let name = export.string(name);
                export.kernel(PID, name, 0, [start, start + 10]);
                let id: i64 = exec << 32 | node;
                export.sql(&format!(
                    "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET graphNodeId = {id} WHERE start = {start}"
                ));
            }
        }
        let name = export.string("alone");
        export.kernel(PID, name, 0, [start + 20, start + 30]);
    }
    export.finish();
}

fn layers(recorded: &[Graph], exported: &[Graph]) -> Layers {
    let folder = scratch();
    let path = folder.path().join("report.sqlite");
    export(&path, exported);
    let mut processes = open(&path, Path::new("nsys"), None).unwrap();
    let plain = Process::read(path.clone(), &processes[0]).unwrap();
    assert!(plain.layers.is_none(), "nobody asked for them");
    processes[0].join(&scopes(recorded)).unwrap();
    let process = Process::read(path, &processes[0]).unwrap();
    process.layers.unwrap()
}

type Counts<'a> = Vec<(&'a str, u64)>;

/// Returns the number of kernels in the four iterations inside the window (the recorded interval): by scope (such as a
/// layer), and by the reason why the scope is unknown.
fn kernels(layers: &Layers) -> (Counts<'_>, Counts<'_>) {
    let mut known: Vec<_> = layers
        .rows
        .iter()
        .map(|row| (row.name.as_str(), row.kernels))
        .collect();
    known.sort_unstable();
    let unknown = layers.unknown.iter();
    let mut unknown: Vec<_> = unknown.map(|row| (row.why.text(), row.kernels)).collect();
    unknown.sort_unstable();
    (known, unknown)
}

const NODE: &str = "a node of the graph whose call was not followed";
const GRAPH: &str = "nothing is known of the graph";
const CALL: &str = "the call that launched it is not known";

#[test]
fn a_graph_with_the_same_kernels_in_the_same_nodes_has_the_records_scopes() {
    let layers = layers(&[MODEL], &[MODEL]);
    let (known, unknown) = kernels(&layers);
    assert_eq!(
        known,
        [
            ("", 4),
            ("model.layers.0.mlp", 4),
            ("model.layers.0.norm", 4)
        ]
    );
    assert_eq!(unknown, [(NODE, 4), (CALL, 4)]);
}

#[test]
fn where_graphs_of_the_same_kernels_differ_a_node_is_not_known() {
    let layers = layers(&PIECES, &PIECES);
    let (known, unknown) = kernels(&layers);
    assert_eq!(known, [("model.attn", 8)]);
    assert_eq!(unknown, [(NODE, 8), (CALL, 4)]);
}

#[test]
fn a_graph_that_the_record_may_lack_is_not_known() {
    // The record contains only one of the export's two graphs, and their kernels are the same, so
    // it is unknown which graph the record's scopes belong to.
    let layers = layers(&PIECES[..1], &PIECES);
    let (known, unknown) = kernels(&layers);
    assert!(known.is_empty(), "{known:?}");
    assert_eq!(unknown, [(GRAPH, 16), (CALL, 4)]);
}

#[test]
fn a_graph_of_other_kernels_is_not_known() {
    const LONGER: Graph = &[
        ("norm", None),
        ("gemm", None),
        ("gemm", None),
        ("sample", None),
        ("copy", None),
    ];
    let layers = layers(&[MODEL], &[LONGER]);
    let (known, unknown) = kernels(&layers);
    assert!(known.is_empty(), "{known:?}");
    assert_eq!(unknown, [(GRAPH, 20), (CALL, 4)]);
}
