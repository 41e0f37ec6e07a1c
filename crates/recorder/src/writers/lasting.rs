//! What is of use for as long as the record, where chunks are used again: texts, and facts of the process. They have chunks
//! of their own, which stay, so that a thread's chunk need not stay for a name in it. Where the oldest windows go, they
//! have a share of the record: what comes then goes with the windows of its time.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::{CHUNK_BYTES, EventWriter};

use super::begin_chunk;
use crate::bounded::Bounded;
use crate::reuse;

/// How long a thread waits for the chunk before it uses its own.
const PATIENCE: Duration = Duration::from_millis(1);

/// What stays may have this part of the chunks, and at least so many.
const SHARE: u64 = 8;
const LEAST: u32 = 2;

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    static CHUNK: Bounded<Option<Lasting>> = Bounded::new(None);
    /// One more than the chunks that may still be begun; 0 once there is no room any more.
    #[fork(keep = "stored where a record begins")]
    static LEFT: AtomicU32 = AtomicU32::new(0);
}

struct Lasting {
    events: EventWriter,
    /// Whose event was the last.
    thread: u32,
}

impl Lasting {
    fn begin(thread: u32) -> Option<Self> {
        let (_, events) = begin_chunk(thread)?;
        Some(Self { events, thread })
    }

    fn push(&mut self, thread: u32, push: impl Fn(&mut EventWriter) -> bool) -> bool {
        if self.thread != thread && self.events.room() > 0 {
            self.events.hand_over(thread);
            self.thread = thread;
        }
        push(&mut self.events)
    }
}

/// A record begins. `keep`: the bytes that it may take, where the oldest windows go.
pub fn begin(keep: Option<u64>) {
    let chunks = keep.map_or(u32::MAX - 1, |bytes| {
        let share = bytes / CHUNK_BYTES as u64 / SHARE;
        u32::try_from(share).unwrap_or(u32::MAX - 1).max(LEAST)
    });
    // Whether the last one is full is seen when another is asked for.
    LEFT.store(chunks + 1, Ordering::Relaxed);
}

/// Whether there may be room for more.
pub fn has_room() -> bool {
    LEFT.load(Ordering::Relaxed) > 0
}

/// Writes something of `thread` by `push`. False where no chunk is used again, and where it cannot be done now: it is
/// to be written into the thread's own chunk.
pub fn push(thread: u32, push: impl Fn(&mut EventWriter) -> bool) -> bool {
    if !reuse::is_wanted() || !has_room() {
        return false;
    }
    let Some(mut chunk) = CHUNK.lock_for(PATIENCE) else {
        return false;
    };
    let push = |chunk: &mut Lasting| chunk.push(thread, &push);
    if chunk.as_mut().is_some_and(push) {
        return true;
    }
    // The last one may be full.
    let left = LEFT.load(Ordering::Relaxed).saturating_sub(1);
    if left == 0 {
        LEFT.store(0, Ordering::Relaxed);
        return false;
    }
    let Some(mut next) = Lasting::begin(thread) else {
        return false;
    };
    LEFT.store(left, Ordering::Relaxed);
    let is_written = push(&mut next);
    *chunk = Some(next);
    is_written
}

/// The child of a fork writes nothing into its parent's chunks.
fn in_child(alone: &OnlyThread) {
    CHUNK.break_open(alone);
    if let Some(mut chunk) = CHUNK.lock_for(PATIENCE) {
        *chunk = None;
    }
}
