//! Which nodes a call makes, while a stream is captured.
//!
//! The driver is asked how many nodes the stream's graph has before the call and after it: those in between came meanwhile. If
//! there is one, it is the call's, as a launch or a copy that succeeded has made one. If there are more, another thread captures into
//! the same graph, and none of them is taken for this call's.

use crate::driver::{self, Captured, Stream};
use crate::graphs::{self, Made, Node};
use crate::stack;

/// The calling thread is about to launch a kernel, to copy or to set memory, while some stream is captured. `frame` distinguishes this call from others.
pub fn node_begins(frame: usize, handle: usize, per_thread: bool) {
    let captured = driver::captured(Stream { handle, per_thread });
    stack::with(|open| {
        let (frame, captured) = match captured {
            Some(captured) => (frame, captured),
            None => (0, Captured { graph: 0, nodes: 0 }),
        };
        open.pending.set(frame, captured);
    });
}

/// The call has returned.
pub fn node_ends(frame: usize, handle: usize, per_thread: bool, made: Made, succeeded: bool) {
    let pending = stack::with(|open| (open.pending.take(), open.scope()));
    let Some(((begun, before), scope)) = pending else {
        return;
    };
    if begun != frame || frame == 0 || !succeeded {
        return;
    }
    let Some(after) = driver::captured(Stream { handle, per_thread }) else {
        return;
    };
    if after.graph != before.graph {
        return;
    }
    let nodes = before.nodes..after.nodes;
    if nodes.len() == 1 {
        graphs::made(before.graph, nodes.start, Node::Seen { scope, made });
    } else if !nodes.is_empty() {
        graphs::unsure(before.graph, nodes);
    }
}
