//! Keeps only the latest windows (`TLLMPROF_KEEP`): once the record has reached its size limit, the chunks (pieces of
//! the file) of the oldest windows are overwritten.
//!
//! A full chunk may hold events of several windows. So it is labelled with the number of windows that had opened when
//! it became full. Before the chunk is overwritten, all these windows are marked in the header as dropped. A reader
//! then ignores their events in other chunks, too. The latest window is never dropped.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use core::time::Duration;
use std::collections::VecDeque;

use tllmprof_config::Settings;
use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_platform::log;
use tllmprof_record::{CHUNK_BYTES, Counter, HeaderBlock};
use tllmprof_sync::Guard;

use super::bounded::Bounded;
use super::{clock, space};

/// The maximum time for which a thread waits for the lock on the list of full chunks.
const LOCK_TIMEOUT: Duration = Duration::from_millis(10);

lifecycle::global! {
    stage: Sinks;

    #[fork(keep = "the settings are the same")]
    static IS_ON: AtomicBool = AtomicBool::new(false);
    /// True once the record is finished. From then on no window is dropped.
    #[fork(reset)]
    static HAS_ENDED: AtomicBool = AtomicBool::new(false);
    /// The full chunks that may be reused, in the order in which they were filled.
    #[fork(by = in_child)]
    static FULL: Bounded<VecDeque<Full>> = Bounded::new(VecDeque::new());
    /// A counter that increases with each chunk that becomes full. If [`take`] has found no chunk, it may find one once
    /// the counter has increased.
    #[fork(keep = "only differences matter")]
    static CHANGES: AtomicU64 = AtomicU64::new(0);
    /// True if no chunk could be reused because threads were writing into most of the record's chunks.
    #[fork(reset)]
    static HAS_TOO_MANY: AtomicBool = AtomicBool::new(false);
    /// The number of threads when [`window_closes`] last logged that there are too many threads for the
    /// record's size.
    #[fork(reset)]
    static SAID_OF: AtomicU64 = AtomicU64::new(0);
}

/// The largest number of full chunks that wait in [`MISSED`] because the list [`FULL`] was locked. The next thread
/// that locks the list moves these chunks into it.
const MOST_MISSED: usize = 64;
lifecycle::global! {
    stage: Sinks;

    /// The number, plus one, of each full chunk that could not be added to the list; 0 for an unused entry.
    #[fork(reset)]
    static MISSED: [AtomicU32; MOST_MISSED] = [const { AtomicU32::new(0) }; MOST_MISSED];
    #[fork(reset)]
    static HAS_MISSED: AtomicBool = AtomicBool::new(false);
}

/// A full chunk, to which no thread writes any more.
struct Full {
    number: u32,
    /// The number of windows that had opened by the time this chunk was full.
    windows: u64,
    /// The time in ticks when this chunk was full.
    filled: u64,
}

/// Enables the dropping of old windows if the settings ask for it. Called when the library is loaded.
pub(crate) fn start(settings: &Settings) {
    if settings.keep.is_some() {
        // Reserves room for all possible chunks, so that the list never has to allocate.
        let most = settings.trace_max.min(space::MOST_BYTES) / CHUNK_BYTES as u64;
        if let Some(mut full) = FULL.lock_for(LOCK_TIMEOUT) {
            *full = VecDeque::with_capacity(most as usize);
            IS_ON.store(true, Ordering::Release);
        }
    }
}

/// Returns true if the settings ask to drop old windows.
#[inline]
pub(crate) fn is_wanted() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Returns true if old windows are dropped now when the record is full.
pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Acquire) && !HAS_ENDED.load(Ordering::Acquire)
}

/// Writes the record's size limit, `bytes`, into its header if old windows are dropped. Called when the record has
/// begun.
pub(crate) fn begin(bytes: u64) {
    if is_on()
        && let Some(header) = space::header()
    {
        header.set(Counter::Keep, bytes);
        header.snapshot();
    }
}

/// Adds a chunk to the list of full chunks. Called when a thread has filled the chunk and no longer writes into it.
pub(crate) fn is_full(number: u32) {
    if is_on()
        && let Some(header) = space::header()
    {
        match full(header) {
            Some(mut full) => add(&mut full, header, number),
            None => miss(number),
        }
        CHANGES.fetch_add(1, Ordering::Release);
    }
}

/// Locks and returns the list of full chunks, after adding the chunks in [`MISSED`], which became full while the list
/// was locked. Returns `None` if the list is not free in time.
fn full(header: &HeaderBlock) -> Option<Guard<'static, VecDeque<Full>>> {
    let mut full = FULL.lock_for(LOCK_TIMEOUT)?;
    if HAS_MISSED.load(Ordering::Relaxed) && HAS_MISSED.swap(false, Ordering::Acquire) {
        for missed in &MISSED {
            if let Some(number) = missed.swap(0, Ordering::Acquire).checked_sub(1) {
                add(&mut full, header, number);
            }
        }
    }
    Some(full)
}

fn add(full: &mut VecDeque<Full>, header: &HeaderBlock, number: u32) {
    // If the list has no capacity left, the chunk is not added and is never overwritten: the list must not allocate.
    if full.len() < full.capacity() {
        // The clock is read before the number of windows. So a window that is not counted in `windows` opens after
        // `filled`.
        let filled = clock::ticks();
        fence(Ordering::SeqCst);
        full.push_back(Full {
            number,
            windows: header.get(Counter::Windows),
            filled,
        });
    }
}

/// Stores the number of a full chunk in [`MISSED`]. The next thread that locks the list moves the number into it. If
/// all entries of [`MISSED`] are in use, the chunk is never overwritten.
fn miss(number: u32) {
    let put = |place: &AtomicU32| {
        let put = place.compare_exchange(0, number + 1, Ordering::Release, Ordering::Relaxed);
        put.is_ok()
    };
    if MISSED.iter().any(put) {
        HAS_MISSED.store(true, Ordering::Release);
    }
}

/// Returns a value that changes whenever a chunk becomes full or a window opens. If [`take`] has found no chunk, it may
/// find one once this value has changed.
pub(crate) fn changes() -> u64 {
    let windows = space::header().map_or(0, |header| header.get(Counter::Windows));
    CHANGES.load(Ordering::Acquire).wrapping_add(windows)
}

/// Makes the chunks that were filled after tick `since` belong to window number `windows`. Called when the iterations
/// that the flight recorder has kept become a window with this number, which begins at `since`.
pub(crate) fn has_past(since: u64, windows: u64) {
    if is_on()
        && let Some(mut full) = FULL.lock_for(LOCK_TIMEOUT)
    {
        for chunk in full.iter_mut().rev() {
            if chunk.filled < since {
                break;
            }
            chunk.windows = windows;
        }
    }
}

/// Takes the oldest full chunk if all its events belong to windows before the latest one, and marks these
/// windows as dropped. Returns `Some(None)` if there is no such chunk, and `None` if the list is locked.
pub(crate) fn take() -> Option<Option<u32>> {
    if !is_on() {
        return Some(None);
    }
    let header = space::header()?;
    let mut full = full(header)?;
    if !is_on() {
        return Some(None);
    }
    let latest = header.get(Counter::Windows);
    if full.front().is_none_or(|chunk| chunk.windows >= latest) {
        return Some(None);
    }
    let Some(oldest) = full.pop_front() else {
        return Some(None);
    };
    header.set(Counter::DroppedUntil, oldest.filled);
    header.set(Counter::WindowsDropped, oldest.windows);
    // A reader ignores a counter that has grown implausibly much since the latest snapshot. The new snapshot makes sure
    // that the reader accepts these values.
    header.snapshot();
    fence(Ordering::SeqCst);
    Some(Some(oldest.number))
}

/// Called when no chunk can be reused: every chunk belongs to the latest window or is being written by a
/// thread. Logs once that the latest window is too large. If threads are writing into most chunks, [`window_closes`]
/// logs another warning instead, because the final number of threads is known only then.
pub(crate) fn has_none() {
    if !is_on() {
        return;
    }
    let (Some(header), Some(full)) = (space::header(), FULL.lock_for(LOCK_TIMEOUT)) else {
        return;
    };
    let (waiting, all) = (full.len() as u64, header.get(Counter::Chunks));
    drop(full);
    if waiting * 2 >= all {
        log::once!(
            Warn,
            "the latest window is as large as TLLMPROF_KEEP allows: later events of it are only counted"
        );
    } else {
        HAS_TOO_MANY.store(true, Ordering::Relaxed);
    }
}

/// Called when a window has closed. Logs a warning if the record was too small for the threads that record events.
/// `threads` returns their number. The warning is repeated only once their number has more than doubled.
pub(crate) fn window_closes(threads: impl FnOnce() -> u64) {
    if !HAS_TOO_MANY.swap(false, Ordering::Relaxed) {
        return;
    }
    let threads = threads();
    if threads > 2 * SAID_OF.load(Ordering::Relaxed)
        && let Some(header) = space::header()
    {
        SAID_OF.store(threads, Ordering::Relaxed);
        let least = least_for(threads);
        log::say!(
            Warn,
            "TLLMPROF_KEEP is too small for the {threads} threads that record events ({} MiB; wanted: {least} MiB or more): \
             events of some threads are only counted. Use --keep {least}M",
            header.get(Counter::Keep) >> 20
        );
    }
}

/// Returns the smallest suitable record size, in MiB: each of `threads` threads has a chunk, and the same number of
/// chunks remains for earlier windows.
const fn least_for(threads: u64) -> u64 {
    // Adds room for the header, and for the chunks with strings that stay as long as the record. These chunks take an
    // eighth of the record.
    let chunks = (2 * threads + 4) * 8;
    (chunks.div_ceil(7) * CHUNK_BYTES as u64).div_ceil(1 << 20)
}

/// Stops the dropping of windows. Takes the lock, to wait for a drop that is in progress: the drop takes a snapshot of
/// the header, and this snapshot must come before the final one.
pub(crate) fn finish() {
    if is_on() {
        HAS_ENDED.store(true, Ordering::SeqCst);
        drop(FULL.lock_for(LOCK_TIMEOUT));
    }
}

/// Empties the list in the child of a fork, which has no record until it begins one of its own.
fn in_child(alone: &OnlyThread) {
    FULL.break_open(alone);
    if let Some(mut full) = FULL.lock_for(LOCK_TIMEOUT) {
        full.clear();
    }
}

/// Runs `act` while no other thread can lock the list of full chunks.
#[cfg(test)]
pub(crate) fn while_locked(act: impl FnOnce()) {
    let locked = FULL.lock_for(LOCK_TIMEOUT);
    assert!(locked.is_some());
    act();
}
