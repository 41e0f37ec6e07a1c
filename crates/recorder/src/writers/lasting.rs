//! Chunks for strings and data about the process that stay as long as the record, while other chunks are overwritten.
//! If a name that stays were written into a thread's own chunk, that chunk could never be overwritten.
//!
//! If the record drops the oldest windows, these lasting chunks may take only a fraction of the record. Strings that do
//! not fit into them are written into the thread's own chunk, and dropped together with the window that is open then.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::{CHUNK_BYTES, EventWriter};

use super::begin_chunk;
use crate::bounded::Bounded;
use crate::reuse;

/// The maximum time for which a thread waits for the lock on the lasting chunk, which all threads share. After a
/// time-out the thread writes into its own chunk.
const LOCK_TIMEOUT: Duration = Duration::from_millis(1);

/// If the record drops the oldest windows, the lasting chunks may take one `SHARE`th of its chunks.
const SHARE: u64 = 8;
/// The lasting chunks may take at least this number of chunks, even if that is more than one `SHARE`th.
const LEAST: u32 = 2;

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    static CHUNK: Bounded<Option<Lasting>> = Bounded::new(None);
    /// One more than the number of lasting chunks that may still be begun; 0 once the last one is full.
    #[fork(keep = "stored where a record begins")]
    static LEFT: AtomicU32 = AtomicU32::new(0);
}

struct Lasting {
    events: EventWriter,
    /// The id of the thread that wrote the last event into the lasting chunk.
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

/// Sets the limit on lasting chunks. Called when a record begins. `keep` is the record's size limit in bytes if the
/// oldest windows are dropped; `None` if none are dropped.
pub(crate) fn begin(keep: Option<u64>) {
    let chunks = keep.map_or(u32::MAX - 1, |bytes| {
        let share = bytes / CHUNK_BYTES as u64 / SHARE;
        u32::try_from(share).unwrap_or(u32::MAX - 1).max(LEAST)
    });
    // One more than the limit is stored, because the last chunk counts as full only when one more chunk is requested.
    LEFT.store(chunks + 1, Ordering::Relaxed);
}

/// Returns true if more strings that stay as long as the record may fit into lasting chunks.
pub(crate) fn has_room() -> bool {
    LEFT.load(Ordering::Relaxed) > 0
}

/// Writes a string or an event of thread `thread` into the lasting chunk, by calling `push`. Returns false if
/// the record overwrites no chunks or if writing is not possible now. The caller then has to write into the
/// thread's own chunk.
pub(crate) fn push(thread: u32, push: impl Fn(&mut EventWriter) -> bool) -> bool {
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
    // There is no current chunk yet, or it is full. If no other chunk may be begun (`LEFT` is 1), the caller writes into
    // the thread's own chunk.
    let left = LEFT.load(Ordering::Relaxed).saturating_sub(1);
    if left == 0 {
        LEFT.store(0, Ordering::Relaxed);
        return false;
    }
    // Reserving space for a new chunk changes the program's `errno`.
    let _errno = SavedErrno::new();
    let Some(mut next) = Lasting::begin(thread) else {
        return false;
    };
    LEFT.store(left, Ordering::Relaxed);
    let is_written = push(&mut next);
    *chunk = Some(next);
    is_written
}

/// Forgets the lasting chunk in the child of a fork, because it belongs to the parent's record.
fn in_child(alone: &OnlyThread) {
    CHUNK.break_open(alone);
    if let Some(mut chunk) = CHUNK.lock_for(LOCK_TIMEOUT) {
        *chunk = None;
    }
}
