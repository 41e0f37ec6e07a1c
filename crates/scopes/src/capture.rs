//! Finds the graph node that a call makes while a stream is captured.
//!
//! Before and after the call, the driver is asked which node the stream's next work will follow. If the node
//! has changed, the call has made the new one. Other threads that capture into the same graph, in streams of
//! their own, do not affect that. If two threads in one stream both claim a node, it counts as neither's.

use crate::driver::{self, CallStream};
use crate::graphs;
use crate::nodes::{Made, Node};
use crate::stack;

/// Called when the calling thread is about to launch a kernel, to copy or to set memory, while some stream is
/// captured. `frame` identifies this call.
pub fn node_begins(frame: usize, handle: usize, per_thread: bool) {
    let captured = driver::captured(CallStream { handle, per_thread });
    stack::with(|open| match captured {
        Some(captured) => open.pending.set(frame, captured),
        None => open.pending.set(0, driver::CapturePoint::default()),
    });
}

/// Called when the call has returned.
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
