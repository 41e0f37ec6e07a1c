//! Keeps only the latest windows (`TLLMPROF_KEEP`): once the record has reached its size limit, the chunks of
//! the oldest windows are used again.
//!
//! A full chunk is labelled with the latest window that had opened by then: it may have events of that window
//! and of earlier ones. Before the chunk is used again, these windows are dropped. The header says so before
//! anything is overwritten, so that a reader leaves out what other chunks still have of them. The latest
//! window is never dropped.

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

/// The time a thread waits for the list of full chunks.
const LOCK_TIMEOUT: Duration = Duration::from_millis(10);

lifecycle::global! {
    stage: Sinks;

    #[fork(keep = "the settings are the same")]
    static IS_ON: AtomicBool = AtomicBool::new(false);
    /// True once the record is finished: then no more windows are dropped.
    #[fork(reset)]
    static HAS_ENDED: AtomicBool = AtomicBool::new(false);
    /// Chunks that are full, in the order in which they were filled.
    #[fork(by = in_child)]
    static FULL: Bounded<VecDeque<Full>> = Bounded::new(VecDeque::new());
    /// A count of the changes after which [`take`] may return a chunk again.
    #[fork(keep = "only differences matter")]
    static CHANGES: AtomicU64 = AtomicU64::new(0);
    /// True if there was no room because most of it was held by threads.
    #[fork(reset)]
    static HAS_TOO_MANY: AtomicBool = AtomicBool::new(false);
    /// The number of threads when that was logged.
    #[fork(reset)]
    static SAID_OF: AtomicU64 = AtomicU64::new(0);
}

/// Chunks that were filled while [`FULL`] was locked: the next thread that gets the lock adds them.
const MOST_MISSED: usize = 64;
lifecycle::global! {
    stage: Sinks;

    /// The number of each chunk plus one; 0: none.
    #[fork(reset)]
    static MISSED: [AtomicU32; MOST_MISSED] = [const { AtomicU32::new(0) }; MOST_MISSED];
    #[fork(reset)]
    static HAS_MISSED: AtomicBool = AtomicBool::new(false);
}

/// A chunk that no thread writes to any more.
struct Full {
    number: u32,
    /// The number of windows that had opened by then.
    windows: u64,
    /// The time when it was full, in ticks.
    filled: u64,
}

/// Enables this mode if the settings ask for it. Called by the constructor.
pub fn start(settings: &Settings) {
    if settings.keep.is_some() {
        // Room for all possible chunks, so that it never grows.
        let most = settings.trace_max.min(space::MOST_BYTES) / CHUNK_BYTES as u64;
        if let Some(mut full) = FULL.lock_for(LOCK_TIMEOUT) {
            *full = VecDeque::with_capacity(most as usize);
            IS_ON.store(true, Ordering::Release);
        }
    }
}

/// Returns true if the settings ask for it.
#[inline]
pub fn is_wanted() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Returns true if windows are dropped when there is no more room.
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Acquire) && !HAS_ENDED.load(Ordering::Acquire)
}

/// Called when the record has begun, which may take `bytes`.
pub fn begin(bytes: u64) {
    if is_on()
        && let Some(header) = space::header()
    {
        header.set(Counter::Keep, bytes);
        header.snapshot();
    }
}

/// Called when a thread has filled a chunk and no longer writes there.
pub fn is_full(number: u32) {
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

/// Returns the full chunks, including those that were missed.
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
    // It never grows.
    if full.len() < full.capacity() {
        // Before the count is read: a window that is counted later opens later.
        let filled = clock::ticks();
        fence(Ordering::SeqCst);
        full.push_back(Full {
            number,
            windows: header.get(Counter::Windows),
            filled,
        });
    }
}

/// Remembers a chunk for the next thread that gets the list. If there is no place for it, it is not used
/// again.
fn miss(number: u32) {
    let put = |place: &AtomicU32| {
        let put = place.compare_exchange(0, number + 1, Ordering::Release, Ordering::Relaxed);
        put.is_ok()
    };
    if MISSED.iter().any(put) {
        HAS_MISSED.store(true, Ordering::Release);
    }
}

/// Returns a value that changes each time that [`take`] may return a chunk again.
pub fn changes() -> u64 {
    let windows = space::header().map_or(0, |header| header.get(Counter::Windows));
    CHANGES.load(Ordering::Acquire).wrapping_add(windows)
}

/// Called when the iterations before a window have become window number `windows`, which opened at `since`:
/// chunks filled since then have events of it.
pub fn has_past(since: u64, windows: u64) {
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

/// Takes the oldest chunk if all its events belong to windows before the latest, and drops these windows.
/// `None`: not known now.
pub fn take() -> Option<Option<u32>> {
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
    // Without a snapshot a reader accepts only values that have grown a little, and the time may have grown
    // by more.
    header.snapshot();
    fence(Ordering::SeqCst);
    Some(Some(oldest.number))
}

/// Called when all chunks belong to the latest window or to threads that write into them. Logs that once, or
/// has it logged when the window closes, as more threads may come.
pub fn has_none() {
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

/// Called when a window has closed. Logs if more threads have recorded events, `threads`, than there is room
/// for; again only once their number has doubled.
pub fn window_closes(threads: impl FnOnce() -> u64) {
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

/// The megabytes in which `threads` threads have a chunk each and leave as many chunks to windows that are
/// over.
const fn least_for(threads: u64) -> u64 {
    // The header, and the share of lasting events.
    let chunks = (2 * threads + 4) * 8;
    (chunks.div_ceil(7) * CHUNK_BYTES as u64).div_ceil(1 << 20)
}

/// Ends this mode. Returns once no window is being dropped, so that no snapshot comes after the last one.
pub fn finish() {
    if is_on() {
        HAS_ENDED.store(true, Ordering::SeqCst);
        drop(FULL.lock_for(LOCK_TIMEOUT));
    }
}

/// The child of a fork has no record until it begins one of its own.
fn in_child(alone: &OnlyThread) {
    FULL.break_open(alone);
    if let Some(mut full) = FULL.lock_for(LOCK_TIMEOUT) {
        full.clear();
    }
}

/// Runs `act` while no other thread can lock the list of full chunks.
#[cfg(test)]
pub fn while_locked(act: impl FnOnce()) {
    let locked = FULL.lock_for(LOCK_TIMEOUT);
    assert!(locked.is_some());
    act();
}
