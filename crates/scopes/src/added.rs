//! Stores graph nodes that the program adds with explicit calls such as `cuGraphAddNode`, without a stream capture.

use tllmprof_platform::peek;

use crate::driver;
use crate::graphs;
use crate::nodes::{Made, Node};
use crate::stack;

/// Offset, in bytes, of the type in the `CUgraphNodeParams` of a conditional node.
const TYPE: usize = 0;
/// Offset of the number of bodies. A body is a graph that runs under the condition.
const BODIES: usize = 28;
/// Offset of the address of an array with the bodies' handles.
const PLACE: usize = 32;
/// Maximum number of bodies of a conditional node. A larger number is treated as invalid.
const MOST_BODIES: u32 = 1024;

/// Called when the program has added a node to a graph. Stores the node with the thread's current scope. `params` are
/// the two addresses at which the node's parameters may be, because `cuGraphAddNode` exists with two ABIs.
pub fn node_is_added(graph: usize, node: usize, params: [usize; 2]) {
    let made = match driver::kind(node) {
        Some(driver::KERNEL) => driver::kernel(node).map(Made::Kernel),
        Some(driver::CONDITIONAL) => {
            if let Some(bodies) = params.into_iter().find_map(bodies) {
                graphs::encloses(graph, node, bodies);
            }
            Some(Made::Work)
        }
        Some(_) => Some(Made::Work),
        None => None,
    };
    if let Some(made) = made {
        add(graph, node, made);
    }
}

/// Called when the program has added a child graph to a graph. The driver puts a copy of the child into the new node.
/// The nodes that are known of the child are stored for this copy, too.
pub fn child_is_added(graph: usize, node: usize, child: usize) {
    if let Some(copy) = driver::child(node) {
        graphs::cloned(copy, child);
        graphs::encloses(graph, node, vec![copy]);
    }
    add(graph, node, Made::Work);
}

fn add(graph: usize, node: usize, made: Made) {
    if let Some(scope) = stack::with(|open| open.scope()) {
        graphs::made(graph, node, Node::seen(scope, made));
    }
}

/// Returns the bodies of a conditional node, if `params` is the address of its parameters; otherwise `None`.
fn bodies(params: usize) -> Option<Vec<usize>> {
    let mut read = [0; PLACE + 8];
    peek::copy(params, &mut read)?;
    let number = |at: usize| read[at..at + 4].try_into().map(u32::from_ne_bytes).ok();
    let count = number(BODIES).filter(|count| (1..=MOST_BODIES).contains(count))?;
    if number(TYPE)? != driver::CONDITIONAL as u32 {
        return None;
    }
    let place = usize::from_ne_bytes(read[PLACE..].try_into().ok()?);
    let mut handles = vec![0; count as usize * 8];
    peek::copy(place, &mut handles)?;
    let bodies = handles.chunks_exact(8).map(|handle| handle.try_into());
    bodies
        .map(|handle| handle.map(usize::from_ne_bytes).ok())
        .collect()
}
