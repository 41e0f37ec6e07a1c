//! Finds the graph node that a call creates while a stream is captured.
//!
//! Before and after the call, the library asks the driver after which node the stream's next work will run. If the
//! second answer names another node, the call has created that node. Other threads may capture into the same graph, but
//! in other streams, so they do not affect the answers. If two threads use the same stream, both may claim the same
//! node. The node is then assigned to neither of them.

use crate::driver::{self, CallStream};
use crate::graphs;
use crate::nodes::{Made, Node};
use crate::stack;

/// Called before the calling thread launches a kernel, or copies or sets memory, while a stream is being captured.
/// `frame` identifies this call. `handle` and `per_thread` give the call's stream (see `CallStream`), which need
/// not be the captured one.
pub fn node_begins(frame: usize, handle: usize, per_thread: bool) {
    let captured = driver::captured(CallStream { handle, per_thread });
    stack::with(|open| match captured {
        Some(captured) => open.pending.set(frame, captured),
        None => open.pending.set(0, driver::CapturePoint::default()),
    });
}

/// Called when the call that [`node_begins`] announced has returned. If that call created a node, the node is
/// assigned to the thread's current scope.
pub fn node_ends(frame: usize, handle: usize, per_thread: bool, made: Made, succeeded: bool) {
    let pending = stack::with(|open| (open.pending.take(), open.scope()));
    let Some(((begun, before), scope)) = pending else {
        return;
    };
    if begun != frame || frame == 0 || !succeeded {
        return;
    }
    let Some(after) = driver::captured(CallStream { handle, per_thread }) else {
        return;
    };
    if after.graph == before.graph && after.node != before.node && after.node != 0 {
        graphs::made(after.graph, after.node, Node::seen(scope, made));
    }
}
