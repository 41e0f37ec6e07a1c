//! The calling thread's own stack, read where it lies: nobody else changes it.

use super::layout::{Instruction, Layout, Life, Top, owner};
use super::walk::TAGS;
use super::{Ready, here};

/// How far out a function is looked for.
const FARTHEST: usize = 24;

/// Whether threads may read their own stacks in this way.
pub fn is_ready() -> bool {
    matches!(super::ready(), Some(Ok(ready)) if ready.has_own)
}

/// What `wanted` makes of the code object of the innermost function that it makes anything of, and behind how many bytes of
/// instructions the function is now. Takes no lock, allocates nothing, and may be called without the GIL.
pub fn find<T>(wanted: impl Fn(usize) -> Option<T>) -> Option<(T, usize)> {
    let ready = super::ready()?.as_ref().ok()?;
    ready.has_own.then(|| read(ready, wanted))?
}

/// The same, on trial.
pub(super) fn read<T>(ready: &Ready, wanted: impl Fn(usize) -> Option<T>) -> Option<(T, usize)> {
    let layout = &ready.layout;
    let mut frame = innermost(layout)?;
    for _ in 0..FARTHEST {
        if frame == 0 {
            return None;
        }
        let code = word(frame + layout.frame.code) & !TAGS;
        if is_function(layout, frame)
            && let Some(found) = wanted(code)
        {
            let at = match layout.frame.instruction {
                Instruction::Number { at, bytes } => word(frame + at) as u32 as usize * bytes,
                Instruction::Address { at } => {
                    word(frame + at).wrapping_sub(code + ready.code_bytes)
                }
            };
            return Some((found, at));
        }
        frame = word(frame + layout.frame.previous);
    }
    None
}

fn innermost(layout: &Layout) -> Option<usize> {
    let state = here()?.state;
    Some(match layout.thread.frame {
        Top::Here(at) => word(state + at),
        Top::Behind { pointer, frame } => match word(state + pointer) {
            0 => 0,
            behind => word(behind + frame),
        },
    })
}

/// Whether a frame is a function's, and not the interpreter's own.
fn is_function(layout: &Layout, frame: usize) -> bool {
    match layout.frame.life {
        Life::Object { .. } => true,
        Life::Chunk { owner } => word(frame + (owner & !7)).to_ne_bytes()[owner & 7] < owner::NONE,
    }
}

/// A word of the calling thread's state or of one of its frames.
fn word(address: usize) -> usize {
    let place = core::ptr::with_exposed_provenance::<usize>(address);
    // SAFETY: the thread's state is there as long as it is the interpreter's, which `here` has just seen; what it leads to are
    // the thread's frames, which live until their functions return, and the thread is here. Where they have what was tried on
    // this interpreter (`trial`): by the walker, which copies them, before they are read here.
    unsafe { place.read_unaligned() }
}
