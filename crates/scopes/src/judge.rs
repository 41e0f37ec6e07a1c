//! Compares the kernels that graphs ran in replays with those of their captures.

use core::sync::atomic::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tllmprof_platform::log;
use tllmprof_record::{Event, GraphState, What};
use tllmprof_recorder as recorder;

use crate::graphs::{self, GraphOrigin};
use crate::nodes::{CapturedGraph, Node};
use crate::paths;

/// Maximum number of nodes whose kernels are stored. If there are more nodes, the scopes of all graphs count as
/// unknown. The same maximum applies to the nodes of captured graphs.
const MAX_NODES: usize = graphs::MOST_NODES;

/// A kernel that a node of a graph has run: its name and grid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kernel {
    /// The hash of the kernel's name, as CUPTI reports the name.
    pub name: u64,
    pub grid: [u32; 3],
}

/// The kernels that graphs ran while kernels were recorded. The key is CUPTI's number of the executable graph, and the
/// number of the node in this graph. The value is `None` if the node did not always run the same kernel.
#[derive(Debug, Default)]
pub struct Replayed {
    kernels: HashMap<(u32, u32), Option<Kernel>>,
    is_full: bool,
}

impl Replayed {
    /// Adds a kernel that a node has run. `exec` is CUPTI's number of the executable graph. If the node ran another
    /// kernel before, the node's value becomes `None`.
    pub fn add(&mut self, exec: u32, node: u32, name: u64, grid: [u32; 3]) {
        let kernel = Kernel { name, grid };
        if let Some(known) = self.kernels.get_mut(&(exec, node)) {
            if *known != Some(kernel) {
                *known = None;
            }
        } else if self.kernels.len() < MAX_NODES {
            self.kernels.insert((exec, node), Some(kernel));
        } else {
            self.is_full = true;
        }
    }
}

/// Splits the `graphNodeId` of a CUPTI kernel record into CUPTI's numbers of the executable graph
/// and of the node. Returns `None` for a kernel outside graphs.
#[must_use]
pub fn node(id: u64) -> Option<(u32, u32)> {
    let exec = (id >> 32) as u32;
    (exec != 0).then_some((exec, id as u32))
}

/// Called at the end of a window in which kernels were recorded. Writes the scopes of the graphs
/// that ran, or the reason why these are unknown. Runs on the library's worker thread.
pub fn judge(replayed: &Replayed) {
    let mut by_exec: BTreeMap<u32, Vec<(u32, Option<Kernel>)>> = BTreeMap::new();
    for ((exec, node), kernel) in &replayed.kernels {
        by_exec.entry(*exec).or_default().push((*node, *kernel));
    }
    for (exec, mut kernels) in by_exec {
        kernels.sort_unstable_by_key(|(node, _)| *node);
        let known = graphs::with_all(|graphs| graphs.named.get(&exec).cloned()).flatten();
        let of = known.unwrap_or(GraphOrigin::Not(GraphState::Unnamed));
        let (state, graph) = match of {
            _ if replayed.is_full => (GraphState::TooMany, 0),
            GraphOrigin::Not(why) => (why, 0),
            GraphOrigin::Captured(captured) => match difference(&captured, &kernels) {
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
        // The event applies to the kernels that ran before it. Later kernels may belong to another graph with this
        // number: CUPTI may reuse the number if it is attached again.
        recorder::latest(&Event::new(recorder::ticks(), 0, what));
    }
    graphs::with_all(graphs::Graphs::forget_gone);
}

/// Returns the first node that ran a different kernel than the capture has, or `None` if all match.
///
/// The grids of both kernels are compared, and their names as far as possible. A replay gives the kernel's name, but a
/// capture gives the handle of its function. Drivers for CUDA 12.3 and later return the name of that function. With
/// older drivers, this name is unknown. Then the names from the replay are compared with each other: all kernels of
/// one function must have the same name.
pub(crate) fn difference(
    captured: &CapturedGraph,
    kernels: &[(u32, Option<Kernel>)],
) -> Option<u32> {
    let mut names = HashMap::new();
    let differs = |(node, kernel): &&(u32, Option<Kernel>)| {
        let (Some(made), Some(kernel)) = (captured.nodes.get(*node as usize), kernel) else {
            // A node that did not always run the same kernel counts as different. A node whose number is beyond the
            // graph's last node counts as different, too, because it does not belong to the graph.
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

/// Writes the scopes in which a graph's nodes were captured, unless the record already contains
/// them.
fn write_nodes(captured: &Arc<CapturedGraph>) {
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
