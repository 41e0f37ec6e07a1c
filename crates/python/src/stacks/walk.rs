//! Reads one thread's stack while the thread runs.
//!
//! The thread is not stopped, so its stack may change during the read. In most cases the parts then do not
//! fit together: a frame has ended, a caller is above the function that it called, or the chain does not end
//! as stacks do. Such a stack is torn and is rejected. Reading it again would favour functions that run for a
//! long time.

use core::ffi::c_int;

use tllmprof_platform::peek::MemoryRange;

use super::layout::{Layout, Life, Top, chunk, owner};
use super::snapshot::{Snapshot, word};

/// Limit for the frames of a stack; a longer one is torn.
const MAX_FRAMES: usize = 4096;
/// Limits for the chunks of a thread, and for the bytes of one.
const MAX_CHUNKS: usize = 64;
const MAX_CHUNK_BYTES: usize = 1 << 20;
/// Maximum number of frames outside the chunks that are copied together with the chunks.
const MAX_OUTSIDE: usize = 900;
/// The bits that tag a reference. The alignment of objects keeps them zero.
pub const TAGS: usize = 0b111;

/// A Python thread, as it sees itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// The address of its `PyThreadState`.
    pub state: usize,
    /// The result of `pthread_self` on the thread.
    pub id: usize,
}

/// The result of reading a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walked {
    /// The thread is in the functions of [`Walker::codes`].
    Stack,
    /// The thread runs no Python function, or is no longer one of Python's.
    Nothing,
    /// The stack changed during the read.
    Torn,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Chunk {
    address: usize,
    size: usize,
    /// Number of bytes to copy: up to a little after the last sample's frames.
    used: usize,
}

/// Number of bytes by which a stack may grow between samples and still be copied in one call.
const MAX_GROWTH: usize = 1024;

impl Chunk {
    const fn contains(self, address: usize) -> bool {
        address >= self.address + chunk::HEADER && address < self.address + self.size
    }
}

/// Reads the stack of one thread repeatedly.
#[derive(Default)]
pub struct Walker {
    snapshot: Snapshot,
    /// The chunks of the last sample. They are copied together with the thread's state.
    chunks: Vec<Chunk>,
    behind: usize,
    outside: Vec<usize>,
    /// Frames of this sample outside the chunks.
    met: Vec<usize>,
    codes: Vec<usize>,
}

impl Walker {
    /// Returns the code objects of the last stack, the innermost first.
    pub fn codes(&self) -> &[usize] {
        &self.codes
    }

    /// Reads a thread's stack. `process` is this process.
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
                // The stack has reached another chunk. Everything is copied again, so that it is from one
                // moment.
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

    /// Copies the places that the last sample has read.
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

    /// Returns the innermost frame and the newest chunk of the thread, each 0 for none; `None` if the state
    /// is not the thread's.
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

    /// Follows the chunks from the newest one. Returns false if they are invalid.
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

    /// Follows the frames from the innermost one. Returns `None` if they are not a stack.
    fn follow(&mut self, layout: &Layout, top: usize) -> Option<()> {
        let length = layout.frame_bytes();
        let mut outside = core::mem::take(&mut self.met);
        outside.clear();
        let mut frames = 0;
        let mut at = top;
        // The last of the thread's own frames: the index of its chunk, and its address.
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
                // The innermost frame may be about to begin.
                Life::Object { at, runs } if frames > 0 && frame[at] != runs => break false,
                Life::Object { .. } => {
                    outside.push(at);
                    true
                }
                Life::Chunk { owner } => match frame[owner] {
                    owner::THREAD => {
                        let (from, above) = last;
                        let chunks = self.chunks.iter().enumerate().skip(from);
                        let Some((index, _)) = chunks.into_iter().find(|(_, it)| it.contains(at))
                        else {
                            break false;
                        };
                        // Callers have lower addresses.
                        if index == from && at >= above {
                            break false;
                        }
                        if index != from || above == usize::MAX {
                            // The first frame that is found in a chunk is the topmost one.
                            let end = at - self.chunks[index].address + length + MAX_GROWTH;
                            self.chunks[index].used = end.min(self.chunks[index].size);
                        }
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
        let is_rooted = match layout.frame.life {
            Life::Object { .. } => true,
            Life::Chunk { .. } => {
                let oldest = self
                    .chunks
                    .last()
                    .map(|chunk| chunk.address + chunk::FIRST_FRAME);
                self.codes.is_empty() || oldest == Some(outermost)
            }
        };
        let is_whole = whole && is_rooted;
        outside.truncate(MAX_OUTSIDE);
        self.met = outside;
        // A torn stack is known only in part, so the frames from before are more likely to be found again.
        if is_whole {
            core::mem::swap(&mut self.met, &mut self.outside);
        }
        is_whole.then_some(())
    }
}

/// Number of bytes of the structure between a thread's state and its frames.
const LINK_BYTES: usize = 16;
