//! The latest windows alone (`TLLMPROF_KEEP`): once the record has come to its limit, the chunks of the oldest windows are
//! used again.
//!
//! A chunk is known by the latest window that had opened when it was full: that one and those before may have events in it.
//! When it is used again, they are dropped: the header says so before anything is written over, so a reader leaves out
//! what other chunks still have of them. The latest window stays, whatever comes.

use core::sync::atomic::{AtomicBool, Ordering, fence};
use core::time::Duration;
use std::collections::VecDeque;

use tllmprof_config::Settings;
use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::{CHUNK_BYTES, Counter};

use super::bounded::Bounded;
use super::{clock, space};

/// How long a thread waits for the chunks that are full.
const PATIENCE: Duration = Duration::from_millis(10);

lifecycle::global! {
    stage: Sinks;

    #[fork(keep = "the settings are the same")]
    static IS_ON: AtomicBool = AtomicBool::new(false);
    /// The record is over: no more windows are dropped.
    #[fork(reset)]
    static HAS_ENDED: AtomicBool = AtomicBool::new(false);
    /// Chunks that are full, in the order in which they were filled.
    #[fork(by = in_child)]
    static FULL: Bounded<VecDeque<Full>> = Bounded::new(VecDeque::new());
}

/// A chunk that nobody writes to any more.
struct Full {
    number: u32,
    /// How many windows had opened by then.
    windows: u64,
    /// When that was, in ticks.
    filled: u64,
}

/// Keeps the latest windows where the settings say so. For the constructor.
pub fn start(settings: &Settings) {
    if settings.keep.is_some() {
        // All the chunks that there can be: it never grows.
        let most = settings.trace_max.min(space::MOST_BYTES) / CHUNK_BYTES as u64;
        if let Some(mut full) = FULL.lock_for(PATIENCE) {
            *full = VecDeque::with_capacity(most as usize);
            IS_ON.store(true, Ordering::Release);
        }
    }
}

/// Whether the settings say so.
#[inline]
pub fn is_wanted() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Whether windows are dropped where there is no more room.
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Acquire) && !HAS_ENDED.load(Ordering::Acquire)
}

/// The record has begun, and may take `bytes`.
pub fn begin(bytes: u64) {
    if is_on()
        && let Some(header) = space::header()
    {
        header.set(Counter::Keep, bytes);
        header.snapshot();
    }
}

/// A thread has filled a chunk, and has no writer there any more.
pub fn is_full(number: u32) {
    if is_on()
        && let Some(header) = space::header()
        && let Some(mut full) = FULL.lock_for(PATIENCE)
        && full.len() < full.capacity()
    {
        // Before the count is read: a window that is counted after that opens later.
        let filled = clock::ticks();
        fence(Ordering::SeqCst);
        full.push_back(Full {
            number,
            windows: header.get(Counter::Windows),
            filled,
        });
    }
}

/// The iterations before a window have become window number `windows`, which opened at `since`: chunks filled since
/// have events of it.
pub fn has_past(since: u64, windows: u64) {
    if is_on()
        && let Some(mut full) = FULL.lock_for(PATIENCE)
    {
        for chunk in full.iter_mut().rev() {
            if chunk.filled < since {
                break;
            }
            chunk.windows = windows;
        }
    }
}

/// The oldest chunk, if all in it is of windows before the latest; these are dropped.
pub fn take() -> Option<u32> {
    if !is_on() {
        return None;
    }
    let header = space::header()?;
    let mut full = FULL.lock_for(PATIENCE)?;
    if !is_on() {
        return None;
    }
    let latest = header.get(Counter::Windows);
    let is_over = |chunk: &&Full| chunk.windows < latest;
    full.front().filter(is_over)?;
    let oldest = full.pop_front()?;
    header.set(Counter::DroppedUntil, oldest.filled);
    header.set(Counter::WindowsDropped, oldest.windows);
    // A reader takes from outside a snapshot only what has grown a little, and the time may have grown by more.
    header.snapshot();
    fence(Ordering::SeqCst);
    Some(oldest.number)
}

/// There is no record any more: returns once no window is being dropped, so that no snapshot comes after the last one.
pub fn finish() {
    if is_on() {
        HAS_ENDED.store(true, Ordering::SeqCst);
        drop(FULL.lock_for(PATIENCE));
    }
}

/// The child of a fork has no record until it begins one of its own.
fn in_child(alone: &OnlyThread) {
    FULL.break_open(alone);
    if let Some(mut full) = FULL.lock_for(PATIENCE) {
        full.clear();
    }
}
