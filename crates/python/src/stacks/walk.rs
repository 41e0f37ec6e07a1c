//! Reads one thread's stack while the thread runs.
//!
//! The thread is not stopped, so its stack may change during the read. In most cases the result is
//! then inconsistent: a frame has ended, a caller lies above the function that it called, or the
//! chain has no proper end. Such a stack is called torn, and is rejected. It is not read again,
//! because a repeated read would favour functions that run for a long time.

use core::ffi::c_int;

use tllmprof_platform::peek::MemoryRange;

use super::layout::{Layout, Life, Top, chunk, owner};
use super::snapshot::{Snapshot, word};

/// The most frames of a stack. A stack with more frames is rejected as torn (changed during the
/// read).
const MAX_FRAMES: usize = 4096;
/// The most chunks of a thread's stack, and the most bytes of a chunk. CPython allocates frames in
/// chunks.
const MAX_CHUNKS: usize = 64;
const MAX_CHUNK_BYTES: usize = 1 << 20;
/// The most frames outside the chunks, such as frames of generators, that are copied in the same system call as the
/// chunks.
const MAX_OUTSIDE: usize = 900;
/// The bits of a reference that CPython uses as tags. These bits are free because objects are
/// aligned.
pub const TAGS: usize = 0b111;

/// A Python thread, identified by CPython's thread state and by its pthread id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// The address of the thread's `PyThreadState` in the interpreter.
    pub state: usize,
    /// The thread's pthread id, which is the result of `pthread_self` on the thread.
    pub id: usize,
}

/// The result of reading a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walked {
    /// The stack was read: [`Walker::codes`] returns its code objects.
    Stack,
    /// The thread runs no Python function, or is no longer a Python thread.
    Nothing,
    /// The stack changed during the read, and is rejected.
    Torn,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Chunk {
    address: usize,
    size: usize,
    /// Number of bytes of the chunk that are copied. The copied part ends a little after the last frame that the
    /// previous sample found in the chunk.
    used: usize,
}

/// Number of bytes that are copied after the last known frame of a chunk. If new frames need more space than this, a
/// second system call copies the rest.
const MAX_GROWTH: usize = 1024;

impl Chunk {
    const fn contains(self, address: usize) -> bool {
        address >= self.address + chunk::HEADER && address < self.address + self.size
    }
}

/// Reads the stack of one thread repeatedly. Each read first copies the ranges in which the last read found frames, so
/// that it needs few system calls.
#[derive(Default)]
pub struct Walker {
    snapshot: Snapshot,
    /// The chunks of the Python stack that are known from the last sample. They are copied together with the thread's
    /// state.
    chunks: Vec<Chunk>,
    behind: usize,
    outside: Vec<usize>,
    /// The frames outside the chunks that the current sample has found so far.
    met: Vec<usize>,
    codes: Vec<usize>,
}

impl Walker {
    /// Returns the code objects of the last stack that was read, innermost first.
    pub fn codes(&self) -> &[usize] {
        &self.codes
    }

    /// Reads a thread's stack. `process` is the id of this process.
    ///
    /// # Errors
    /// Returns the kernel's error if the process may not read its own memory in this way.
    pub fn walk(&mut self, process: i32, layout: &Layout, target: Target) -> Result<Walked, c_int> {
        self.codes.clear();
        self.copy(process, layout, target)?;
        let top = match self.top(layout, target) {
            None | Some((0, _)) => return Ok(Walked::Nothing),
            Some((top, chunks)) if chunks == self.newest() => top,
            Some((_, chunks)) => {
                // The stack has reached another chunk. Copy everything again, so that all copies
                // are from one moment.
                if !self.learn(chunks) {
                    return Ok(Walked::Torn);
                }
                self.copy(process, layout, target)?;
                match self.top(layout, target) {
                    None | Some((0, _)) => return Ok(Walked::Nothing),
                    Some((top, chunks)) if chunks == self.newest() => top,
                    Some(_) => return Ok(Walked::Torn),
                }
            }
        };
        Ok(match self.follow(layout, top) {
            Some(()) if self.codes.is_empty() => Walked::Nothing,
            Some(()) => Walked::Stack,
            None => Walked::Torn,
        })
    }

    fn newest(&self) -> usize {
        self.chunks.first().map_or(0, |chunk| chunk.address)
    }

    /// Copies the thread's state, and all ranges in which the last sample found frames.
    fn copy(&mut self, process: i32, layout: &Layout, target: Target) -> Result<(), c_int> {
        let state = MemoryRange {
            address: target.state,
            length: layout.thread_bytes(),
        };
        let behind = (self.behind != 0).then_some(MemoryRange {
            address: self.behind,
            length: LINK_BYTES,
        });
        let chunks = self.chunks.iter().map(|chunk| MemoryRange {
            address: chunk.address,
            length: chunk.used,
        });
        let outside = self.outside.iter().map(|frame| MemoryRange {
            address: *frame,
            length: layout.frame_bytes(),
        });
        let spans = core::iter::once(state)
            .chain(behind)
            .chain(chunks)
            .chain(outside);
        self.snapshot.take(process, spans)
    }

    /// Returns the addresses of the thread's innermost frame and newest chunk, each 0 if there is
    /// none. Returns `None` if the state no longer belongs to the thread.
    fn top(&mut self, layout: &Layout, target: Target) -> Option<(usize, usize)> {
        let state = self.snapshot.get(target.state, layout.thread_bytes())?;
        if word(state, layout.thread.id) != target.id {
            return None;
        }
        let chunk = layout.thread.chunk.map_or(0, |at| word(state, at));
        let frame = match layout.thread.frame {
            Top::Here(at) => word(state, at),
            Top::Behind { pointer, frame } => {
                self.behind = word(state, pointer);
                word(self.snapshot.get(self.behind, LINK_BYTES)?, frame)
            }
        };
        Some((frame, chunk))
    }

    /// Reads the thread's list of chunks from the newest one on, and stores it for the next copy. Returns false if
    /// the list is invalid.
    fn learn(&mut self, newest: usize) -> bool {
        self.chunks.clear();
        let mut address = newest;
        while address != 0 {
            let Some(header) = self.snapshot.get(address, chunk::HEADER) else {
                return false;
            };
            let (previous, size) = (word(header, chunk::PREVIOUS), word(header, chunk::SIZE));
            let is_one = (chunk::FIRST_FRAME..=MAX_CHUNK_BYTES).contains(&size);
            if !is_one || self.chunks.len() == MAX_CHUNKS {
                self.chunks.clear();
                return false;
            }
            self.chunks.push(Chunk {
                address,
                size,
                used: size,
            });
            address = previous;
        }
        true
    }

    /// Follows the frames from the innermost one and collects their code objects. Returns `None` if
    /// the frames do not form a valid stack.
    fn follow(&mut self, layout: &Layout, top: usize) -> Option<()> {
        let length = layout.frame_bytes();
        let mut outside = core::mem::take(&mut self.met);
        outside.clear();
        let mut frames = 0;
        let mut at = top;
        // The last frame that was found in a chunk: the index of the chunk, and the frame's
        // address.
        let mut last = (0, usize::MAX);
        let mut outermost = top;
        let whole = loop {
            if at == 0 {
                break true;
            }
            if frames == MAX_FRAMES {
                break false;
            }
            let Some(frame) = self.snapshot.get(at, length) else {
                break false;
            };
            let (previous, code) = (
                word(frame, layout.frame.previous),
                word(frame, layout.frame.code),
            );
            let is_function = match layout.frame.life {
                // A frame whose code is not being executed does not belong to the stack. The innermost frame is exempt
                // from this check, because it may not have begun to run yet.
                Life::Object { at, runs } if frames > 0 && frame[at] != runs => break false,
                Life::Object { .. } => {
                    outside.push(at);
                    true
                }
                Life::Chunk { owner } => match frame[owner] {
                    owner::THREAD => {
                        let Some(index) = self.chunk_of(at, length, last) else {
                            break false;
                        };
                        last = (index, at);
                        true
                    }
                    owner::GENERATOR => {
                        outside.push(at);
                        true
                    }
                    owner if owner >= owner::NONE => {
                        outside.push(at);
                        false
                    }
                    _ => break false,
                },
            };
            if is_function {
                self.codes.push(code & !TAGS);
                outermost = at;
            }
            frames += 1;
            at = previous;
        };
        let is_whole = whole && self.is_rooted(layout, outermost);
        outside.truncate(MAX_OUTSIDE);
        self.met = outside;
        // The next sample first copies the frames in `self.outside`. If this stack changed during the read,
        // `self.outside` keeps the frames of the last whole stack, which are more likely to be found again.
        if is_whole {
            core::mem::swap(&mut self.met, &mut self.outside);
        }
        is_whole.then_some(())
    }

    /// Returns the index of the chunk that contains the frame at `at`, and stores how much of the chunk is used.
    /// `last` is the frame that was found in a chunk before this one: the index of its chunk, and its address.
    /// Returns `None` if the frame cannot lie at this address.
    fn chunk_of(&mut self, at: usize, length: usize, last: (usize, usize)) -> Option<usize> {
        let (from, above) = last;
        let chunks = self.chunks.iter().enumerate().skip(from);
        let (index, _) = chunks.into_iter().find(|(_, it)| it.contains(at))?;
        // Within a chunk, a caller's frame has a lower address than the frame of
        // the function it called.
        if index == from && at >= above {
            return None;
        }
        if index != from || above == usize::MAX {
            // This is the first frame that is found in its chunk, so its address is the highest. The part of the
            // chunk that is copied next time ends a little after this frame.
            let end = at - self.chunks[index].address + length + MAX_GROWTH;
            self.chunks[index].used = end.min(self.chunks[index].size);
        }
        Some(index)
    }

    /// Returns true if no callers are missing: the outermost frame that was found is the one in which the thread began.
    /// Before 3.11, frames are not in chunks, and this is not checked.
    fn is_rooted(&self, layout: &Layout, outermost: usize) -> bool {
        match layout.frame.life {
            Life::Object { .. } => true,
            Life::Chunk { .. } => {
                let oldest = self.chunks.last();
                let oldest = oldest.map(|chunk| chunk.address + chunk::FIRST_FRAME);
                self.codes.is_empty() || oldest == Some(outermost)
            }
        }
    }
}

/// Number of bytes that are read of the structure between a thread's state and its frames. Only some versions have
/// this structure.
const LINK_BYTES: usize = 16;
