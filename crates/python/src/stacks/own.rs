//! Reads the calling thread's own stack without a copy, as no other thread changes it.

use super::layout::{Instruction, Layout, Life, Top, owner};
use super::walk::TAGS;
use super::{Ready, here};

/// Limit for the frames that are searched for a function.
const MAX_FRAMES: usize = 24;

/// Returns true if threads may read their own stacks in this way.
pub fn is_ready() -> bool {
    matches!(super::ready(), Some(Ok(ready)) if ready.has_own)
}

/// Searches for the innermost function for whose code object `wanted` returns a result. Returns that, and the
/// offset in bytes of the current instruction. It takes no lock, allocates nothing, and may be called without
/// the GIL.
pub fn find<T>(wanted: impl Fn(usize) -> Option<T>) -> Option<(T, usize)> {
    let ready = super::ready()?.as_ref().ok()?;
    ready.has_own.then(|| read(ready, wanted))?
}

/// Returns the same as [`find`] during the trial.
pub(super) fn read<T>(ready: &Ready, wanted: impl Fn(usize) -> Option<T>) -> Option<(T, usize)> {
    let layout = &ready.layout;
    let mut frame = innermost(layout)?;
    for _ in 0..MAX_FRAMES {
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

/// Returns true if a frame is a function's, and not the interpreter's own.
fn is_function(layout: &Layout, frame: usize) -> bool {
    match layout.frame.life {
        Life::Object { .. } => true,
        Life::Chunk { owner } => word(frame + (owner & !7)).to_ne_bytes()[owner & 7] < owner::NONE,
    }
}

/// Reads a word of the calling thread's state or of one of its frames.
fn word(address: usize) -> usize {
    let place = core::ptr::with_exposed_provenance::<usize>(address);
    // SAFETY: the thread's state exists while it belongs to the interpreter, which `here` has just checked.
    // It leads to the thread's frames, which live until their functions return, and this thread is inside
    // them. The offsets were checked on this interpreter (`trial`), by the walker, which copies frames,
    // before they are read here.
    unsafe { place.read_unaligned() }
}
