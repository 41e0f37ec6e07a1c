//! Reads the calling thread's own stack directly. No copy is needed, because no other thread
//! changes this stack.

use super::layout::{Instruction, Layout, Life, Top, owner};
use super::walk::TAGS;
use super::{Ready, here};

/// The most frames of a thread that are searched for a function.
const MAX_FRAMES: usize = 24;

/// Returns true if threads may read their own Python stacks directly, because the check of the layout has succeeded.
pub fn is_ready() -> bool {
    matches!(super::ready(), Some(Ok(ready)) if ready.has_own)
}

/// Searches the calling thread's frames, innermost first, for a code object for which `wanted`
/// returns a result. Returns the result and the byte offset of that frame's current instruction.
/// This function takes no lock, allocates nothing, and may be called without the GIL.
pub fn find<T>(wanted: impl Fn(usize) -> Option<T>) -> Option<(T, usize)> {
    let ready = super::ready()?.as_ref().ok()?;
    ready.has_own.then(|| read(ready, wanted))?
}

/// Searches the frames like [`find`], but with a layout that the check on the known stack has not
/// confirmed yet.
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

/// Returns true if a frame belongs to a Python function, and not to the interpreter itself.
fn is_function(layout: &Layout, frame: usize) -> bool {
    match layout.frame.life {
        Life::Object { .. } => true,
        Life::Chunk { owner } => word(frame + (owner & !7)).to_ne_bytes()[owner & 7] < owner::NONE,
    }
}

/// Reads a word of the calling thread's state or of one of its frames.
fn word(address: usize) -> usize {
    let place = core::ptr::with_exposed_provenance::<usize>(address);
    // SAFETY: the address is in the thread's state or in one of its frames. `here` has just checked
    // that the thread has a state. The state leads to the thread's frames, and the thread is still
    // inside their functions. The offsets are right for this interpreter, because `trial` has
    // checked them with the walker, which reads only copies.
    unsafe { place.read_unaligned() }
}
