//! Texts and facts of the process that stay as long as the record while other chunks are used again. They
//! have chunks of their own, so that a thread's chunk need not stay because of a name in it. If the oldest
//! windows are dropped, these chunks may take only a share of the record; what comes after that is dropped
//! with the windows of its time.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::{CHUNK_BYTES, EventWriter};

use super::begin_chunk;
use crate::bounded::Bounded;
use crate::reuse;

/// The time a thread waits for the chunk before it uses its own.
const LOCK_TIMEOUT: Duration = Duration::from_millis(1);

/// The share of the chunks, as a divisor, and the smallest number of chunks.
const SHARE: u64 = 8;
const LEAST: u32 = 2;

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    static CHUNK: Bounded<Option<Lasting>> = Bounded::new(None);
    /// One more than the number of chunks that may still be begun; 0 once there is no more room.
    #[fork(keep = "stored where a record begins")]
    static LEFT: AtomicU32 = AtomicU32::new(0);
}

struct Lasting {
    events: EventWriter,
    /// The thread of the last event.
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

/// Called when a record begins. `keep`: the size limit in bytes, if the oldest windows are dropped.
pub fn begin(keep: Option<u64>) {
    let chunks = keep.map_or(u32::MAX - 1, |bytes| {
        let share = bytes / CHUNK_BYTES as u64 / SHARE;
        u32::try_from(share).unwrap_or(u32::MAX - 1).max(LEAST)
    });
    // The last one is known to be full only when another is requested.
    LEFT.store(chunks + 1, Ordering::Relaxed);
}

/// Returns true if there may be room for more.
pub fn has_room() -> bool {
    LEFT.load(Ordering::Relaxed) > 0
}

/// Writes something of `thread` by `push`. Returns false if no chunk is used again or if it cannot be done
/// now: then it has to be written into the thread's own chunk.
pub fn push(thread: u32, push: impl Fn(&mut EventWriter) -> bool) -> bool {
    if !reuse::is_wanted() || !has_room() {
        return false;
    }
    let Some(mut chunk) = CHUNK.lock_for(LOCK_TIMEOUT) else {
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
    if let Some(mut chunk) = CHUNK.lock_for(LOCK_TIMEOUT) {
        *chunk = None;
    }
}
