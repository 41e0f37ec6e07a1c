//! Recognizes the event loops of Python (asyncio, uvloop) on sampled stacks.

use tllmprof_engines::{runs_event_loop, waits_for_events};
use tllmprof_record::SystemCall;

use super::frames::Frames;
use super::function::Origin;
use super::sleeps::Asleep;

/// Part of the names of native functions of uvloop. Without a symbol, the name is the path of uvloop's module.
const UVLOOP: &str = "uvloop";
/// Beginning of the names of the functions of libuv, which uvloop contains.
const LIBUV: &str = "uv_";

/// Returns the index in `stack` of the outermost function that an event loop has called, which is a callback of the
/// program. It is the length of `stack` if the loop itself runs or waits. Returns `None` if no function on the stack
/// runs an event loop. `stack` contains functions by their indexes in [`Frames::functions`], the outermost first.
pub(crate) fn callback_start(stack: &[u32], frames: &Frames) -> Option<usize> {
    let name = |function: &u32| frames.name(*function);
    let last = (stack.iter()).rposition(|function| runs_event_loop(name(function)))?;
    let start = last + 1;
    // asyncio's own wait for events is part of the loop. The same function, called by a callback, is not.
    let is_wait = stack.get(start).map(name).is_some_and(waits_for_events);
    Some(start + usize::from(is_wait))
}

/// Returns true if a sleep is an event loop's wait for events.
pub(super) fn is_event_wait(asleep: &Asleep, frames: &Frames) -> bool {
    let is_call = matches!(
        asleep.call,
        Some(SystemCall::EpollWait | SystemCall::Poll | SystemCall::Select)
    );
    if !is_call || asleep.python == 0 {
        return false;
    }
    let stack = frames.stack(asleep.python);
    callback_start(&stack, frames) == Some(stack.len()) || is_in_uvloop(asleep.native, frames)
}

/// Returns true if uvloop has made the system call, rather than a Python function that uvloop has called. `innermost`
/// is the ID of the innermost frame of the native stack.
fn is_in_uvloop(innermost: u32, frames: &Frames) -> bool {
    let stack = frames.stack(innermost).into_iter().rev();
    let functions = stack.filter_map(|function| frames.functions.get(function as usize));
    let mut own = functions.take_while(|function| function.origin != Origin::Interpreter);
    own.any(|function| {
        let name = function.name.trim_start_matches('_');
        name.contains(UVLOOP) || name.starts_with(LIBUV)
    })
}
