//! One thread's stack, read while the thread runs.
//!
//! The thread is not stopped, so its stack may change meanwhile. What was read then does not fit together, in most
//! cases: a frame that has ended, a caller that lies above what it called, a chain that ends elsewhere than stacks do.
//! Such a stack is torn and is given up on. Reading it again would favour functions that last long.

use core::ffi::c_int;

use tllmprof_platform::peek::Span;

use super::layout::{Layout, Life, Top, chunk, owner};
use super::snapshot::{Snapshot, word};

/// Frames of a stack that is not torn.
const MOST_FRAMES: usize = 4096;
/// Chunks of a thread, and bytes of one.
const MOST_CHUNKS: usize = 64;
const LARGEST_CHUNK: usize = 1 << 20;
/// Frames outside the chunks that are copied with them.
const MOST_OUTSIDE: usize = 900;
/// The bits that tag a reference; objects are aligned to more.
pub const TAGS: usize = 0b111;

/// A thread of Python's, as it sees itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// Where its `PyThreadState` lies.
    pub state: usize,
    /// What `pthread_self` returns on it.
    pub id: usize,
}

/// What was read of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walked {
    /// The thread is in the functions of [`Walker::codes`].
    Stack,
    /// The thread is in no Python function, or is none of Python's any more.
    Nothing,
    /// The stack has changed meanwhile.
    Torn,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Chunk {
    address: usize,
    size: usize,
    /// Bytes that are copied: up to a little behind the last sample's frames.
    used: usize,
}

/// What a stack may grow by from sample to sample, in bytes, to be copied at once all the same.
const GROWTH: usize = 1024;

impl Chunk {
    const fn contains(self, address: usize) -> bool {
        address >= self.address + chunk::HEADER && address < self.address + self.size
    }
}

/// Reads the stack of one thread again and again.
#[derive(Default)]
pub struct Walker {
    snapshot: Snapshot,
    /// What the last sample has met: it is copied at once with the thread's state.
    chunks: Vec<Chunk>,
    behind: usize,
    outside: Vec<usize>,
    /// Frames outside the chunks that this sample has met.
    met: Vec<usize>,
    codes: Vec<usize>,
}

impl Walker {
    /// The code objects of the last stack, the innermost first.
    pub fn codes(&self) -> &[usize] {
        &self.codes
    }

    /// Reads a thread's stack. `process` is this process.
    ///
    /// # Errors
    /// The kernel's, where the process may not read its own memory in this way.
    pub fn walk(&mut self, process: i32, layout: &Layout, target: Target) -> Result<Walked, c_int> {
        self.codes.clear();
        self.copy(process, layout, target)?;
        let top = match self.top(layout, target) {
            None | Some((0, _)) => return Ok(Walked::Nothing),
            Some((top, chunks)) if chunks == self.newest() => top,
            Some((_, chunks)) => {
                // The stack has got into another chunk. All is copied again, so that it is of one moment.
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

    /// Copies what the last sample has met.
    fn copy(&mut self, process: i32, layout: &Layout, target: Target) -> Result<(), c_int> {
        let state = Span {
            address: target.state,
            length: layout.thread_bytes(),
        };
        let behind = (self.behind != 0).then_some(Span {
            address: self.behind,
            length: BEHIND,
        });
        let chunks = self.chunks.iter().map(|chunk| Span {
            address: chunk.address,
            length: chunk.used,
        });
        let outside = self.outside.iter().map(|frame| Span {
            address: *frame,
            length: layout.frame_bytes(),
        });
        let spans = core::iter::once(state)
            .chain(behind)
            .chain(chunks)
            .chain(outside);
        self.snapshot.take(process, spans)
    }

    /// The innermost frame and the newest chunk of the thread, each 0 for none; None where the state is not the
    /// thread's.
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
                word(self.snapshot.get(self.behind, BEHIND)?, frame)
            }
        };
        Some((frame, chunk))
    }

    /// Follows the chunks from the newest one; false where they are none.
    fn learn(&mut self, newest: usize) -> bool {
        self.chunks.clear();
        let mut address = newest;
        while address != 0 {
            let Some(header) = self.snapshot.get(address, chunk::HEADER) else {
                return false;
            };
            let (previous, size) = (word(header, chunk::PREVIOUS), word(header, chunk::SIZE));
            let is_one = (chunk::FIRST_FRAME..=LARGEST_CHUNK).contains(&size);
            if !is_one || self.chunks.len() == MOST_CHUNKS {
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

    /// Follows the frames from the innermost one; None where they are no stack.
    fn follow(&mut self, layout: &Layout, top: usize) -> Option<()> {
        let length = layout.frame_bytes();
        let mut outside = core::mem::take(&mut self.met);
        outside.clear();
        let mut frames = 0;
        let mut at = top;
        // Of the thread's own frames: the chunk that the last one lay in, and where.
        let mut last = (0, usize::MAX);
        let mut outermost = top;
        let whole = loop {
            if at == 0 {
                break true;
            }
            if frames == MOST_FRAMES {
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
                // The innermost one may be about to begin.
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
                        // Callers lie below.
                        if index == from && at >= above {
                            break false;
                        }
                        if index != from || above == usize::MAX {
                            // The first that is met in a chunk is the one that lies farthest up.
                            let end = at - self.chunks[index].address + length + GROWTH;
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
        outside.truncate(MOST_OUTSIDE);
        self.met = outside;
        // Of a torn stack only a part is known: what was there before is more likely to be met again.
        if is_whole {
            core::mem::swap(&mut self.met, &mut self.outside);
        }
        is_whole.then_some(())
    }
}

/// Bytes of what lies between a thread's state and its frames.
const BEHIND: usize = 16;
