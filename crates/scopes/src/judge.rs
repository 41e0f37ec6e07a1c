//! The kernels of replays beside those of the capture.

use core::sync::atomic::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tllmprof_platform::log;
use tllmprof_record::{Event, GraphState, What};
use tllmprof_recorder as recorder;

use crate::graphs::{self, Of};
use crate::nodes::{Captured, Node};
use crate::paths;

/// Nodes of which a kernel is kept: as many as of captures.
const MOST: usize = graphs::MOST_NODES;

/// A kernel that a graph was seen to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kernel {
    /// The hash of its name.
    pub name: u64,
    pub grid: [u32; 3],
}

/// What graphs ran in a window of kernels: for each node, by CUPTI's name of its graph, its kernel; none if it was not always
/// the same.
#[derive(Debug, Default)]
pub struct Replayed {
    kernels: HashMap<(u32, u32), Option<Kernel>>,
    is_full: bool,
}

impl Replayed {
    /// A node has run a kernel.
    pub fn add(&mut self, exec: u32, node: u32, name: u64, grid: [u32; 3]) {
        let kernel = Kernel { name, grid };
        if let Some(known) = self.kernels.get_mut(&(exec, node)) {
            if *known != Some(kernel) {
                *known = None;
            }
        } else if self.kernels.len() < MOST {
            self.kernels.insert((exec, node), Some(kernel));
        } else {
            self.is_full = true;
        }
    }
}

/// The graph's number by CUPTI and the node's, of a kernel record's `graphNodeId`; none for a kernel by itself.
#[must_use]
pub fn node(id: u64) -> Option<(u32, u32)> {
    let exec = (id >> 32) as u32;
    (exec != 0).then_some((exec, id as u32))
}

/// A window of kernels is over: writes down what is known of the graphs that ran in it. On the worker's thread.
pub fn judge(replayed: &Replayed) {
    let mut by_exec: BTreeMap<u32, Vec<(u32, Option<Kernel>)>> = BTreeMap::new();
    for ((exec, node), kernel) in &replayed.kernels {
        by_exec.entry(*exec).or_default().push((*node, *kernel));
    }
    for (exec, mut kernels) in by_exec {
        kernels.sort_unstable_by_key(|(node, _)| *node);
        let known = graphs::with_all(|graphs| graphs.named.get(&exec).cloned()).flatten();
        let of = known.unwrap_or(Of::Not(GraphState::Unnamed));
        let (state, graph) = match of {
            _ if replayed.is_full => (GraphState::TooMany, 0),
            Of::Not(why) => (why, 0),
            Of::Captured(captured) => match difference(&captured, &kernels) {
                None => {
                    write_nodes(&captured);
                    (GraphState::Known, captured.number)
                }
                Some(node) => {
                    report(node);
                    graphs::with_all(|graphs| graphs.withdraw(exec));
                    (GraphState::Differs, captured.number)
                }
            },
        };
        let what = What::GraphExec {
            state: Some(state),
            exec,
            graph,
        };
        // Of the kernels up to here: CUPTI may call another graph so when it comes again.
        recorder::latest(&Event::new(recorder::ticks(), 0, what));
    }
    graphs::with_all(graphs::Graphs::forget_gone);
}

/// The first node that ran another kernel than the capture has there, if one did.
///
/// At replay a kernel is known by its name, at capture by the handle of its function, of which drivers since 12.3 have the name;
/// of others all kernels of one function must at least have one name.
pub fn difference(captured: &Captured, kernels: &[(u32, Option<Kernel>)]) -> Option<u32> {
    let mut names = HashMap::new();
    let differs = |(node, kernel): &&(u32, Option<Kernel>)| {
        let (Some(made), Some(kernel)) = (captured.nodes.get(*node as usize), kernel) else {
            // What changes cannot be compared; nodes behind the last launch are others'.
            return kernel.is_none() || *node as usize >= captured.total;
        };
        let Some(launch) = made.launch() else {
            return false;
        };
        let function = launch.function;
        let known = captured.names.get(&function).copied();
        let name = known.unwrap_or_else(|| match function {
            0 => kernel.name,
            _ => *names.entry(function).or_insert(kernel.name),
        });
        name != kernel.name || launch.grid != kernel.grid
    };
    kernels.iter().find(differs).map(|(node, _)| *node)
}

fn report(node: u32) {
    log::say!(
        Warn,
        "TLLMPROF_LAYERS: node {node} of a CUDA graph ran another kernel than was captured there: the layers of this graph \
         are not known"
    );
}

/// Writes in which scopes the nodes of a graph were made, once for as long as the record has that.
fn write_nodes(captured: &Arc<Captured>) {
    let stamp = paths::stamp();
    if captured.written.swap(stamp, Ordering::Relaxed) == stamp {
        return;
    }
    let scope = |node: &Node| node.scope().filter(|scope| *scope != paths::UNKNOWN);
    let mut first = 0;
    for run in captured.nodes.chunk_by(|a, b| scope(a) == scope(b)) {
        for part in run.chunks(usize::from(u16::MAX)) {
            if let Some(scope) = scope(&run[0]) {
                let what = What::GraphNodes {
                    graph: captured.number,
                    first,
                    count: part.len() as u16,
                    scope: paths::write(scope),
                };
                recorder::latest(&Event::new(0, 0, what));
            }
            first += part.len() as u32;
        }
    }
}
