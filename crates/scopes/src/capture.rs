//! Which node a call makes, while a stream is captured.
//!
//! The driver is asked before the call and after it which node the stream's next work will follow. If that is another one now, the call has made
//! it. What other threads capture into the same graph, in streams of their own, changes nothing of that; a node that two threads take for theirs, in
//! one stream, is neither's.

use crate::driver::{self, Stream};
use crate::graphs;
use crate::nodes::{Made, Node};
use crate::stack;

/// The calling thread is about to launch a kernel, to copy or to set memory, while some stream is captured. `frame` distinguishes this call from others.
pub fn node_begins(frame: usize, handle: usize, per_thread: bool) {
    let captured = driver::captured(Stream { handle, per_thread });
    stack::with(|open| match captured {
        Some(captured) => open.pending.set(frame, captured),
        None => open.pending.set(0, driver::Captured::default()),
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
    if after.graph == before.graph && after.node != before.node && after.node != 0 {
        graphs::made(after.graph, after.node, Node::seen(scope, made));
    }
}
