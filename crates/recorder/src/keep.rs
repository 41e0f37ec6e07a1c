//! The latest windows alone (`TLLMPROF_KEEP`): once the record has come to its limit, the chunks of the oldest windows are
//! used again.
//!
//! A chunk is known by the latest window that had opened when it was full: that one and those before may have events in it.
//! When it is used again, they are dropped: the header says so before anything is written over, so a reader leaves out
//! what other chunks still have of them. The latest window stays, whatever comes.

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
    /// How often something has come to be there that [`take`] may give.
    #[fork(keep = "differences alone matter")]
    static CHANGES: AtomicU64 = AtomicU64::new(0);
    /// There was no room, and most of it was that of threads.
    #[fork(reset)]
    static HAS_TOO_MANY: AtomicBool = AtomicBool::new(false);
    /// How many threads there were when that was said.
    #[fork(reset)]
    static SAID_OF: AtomicU64 = AtomicU64::new(0);
}

/// Chunks that were filled while [`FULL`] could not be had: whoever has it next adds them.
const MOST_MISSED: usize = 64;
lifecycle::global! {
    stage: Sinks;

    /// One more than the number of each; 0 where there is none.
    #[fork(reset)]
    static MISSED: [AtomicU32; MOST_MISSED] = [const { AtomicU32::new(0) }; MOST_MISSED];
    #[fork(reset)]
    static HAS_MISSED: AtomicBool = AtomicBool::new(false);
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
    {
        match full(header) {
            Some(mut full) => add(&mut full, header, number),
            None => miss(number),
        }
        CHANGES.fetch_add(1, Ordering::Release);
    }
}

/// The chunks that are full, those among them that were missed.
fn full(header: &HeaderBlock) -> Option<Guard<'static, VecDeque<Full>>> {
    let mut full = FULL.lock_for(PATIENCE)?;
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

/// Remembers a chunk for whoever has the others next. Where there is no place for it, it is not used again.
fn miss(number: u32) {
    let put = |place: &AtomicU32| {
        let put = place.compare_exchange(0, number + 1, Ordering::Release, Ordering::Relaxed);
        put.is_ok()
    };
    if MISSED.iter().any(put) {
        HAS_MISSED.store(true, Ordering::Release);
    }
}

/// Something else each time that [`take`] may give one where it had none.
pub fn changes() -> u64 {
    let windows = space::header().map_or(0, |header| header.get(Counter::Windows));
    CHANGES.load(Ordering::Acquire).wrapping_add(windows)
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

/// The oldest chunk, if all in it is of windows before the latest; these are dropped. None where that is not known now.
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
    // A reader takes from outside a snapshot only what has grown a little, and the time may have grown by more.
    header.snapshot();
    fence(Ordering::SeqCst);
    Some(Some(oldest.number))
}

/// There is no room but that of the latest window, and what threads have. Says so, once, or has it said when the window
/// closes, as more threads may come.
pub fn has_none() {
    if !is_on() {
        return;
    }
    let (Some(header), Some(full)) = (space::header(), FULL.lock_for(PATIENCE)) else {
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

/// A window has closed: says whether more threads have recorded events, `threads`, than there is room for. Not again before
/// there are twice as many.
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

/// Megabytes in which so many threads have a chunk each and leave as many to windows that are over.
const fn least_for(threads: u64) -> u64 {
    // The header, and what lasts, which has its share.
    let chunks = (2 * threads + 4) * 8;
    (chunks.div_ceil(7) * CHUNK_BYTES as u64).div_ceil(1 << 20)
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

/// Does `act` while nobody else can have the chunks that are full.
#[cfg(test)]
pub fn while_locked(act: impl FnOnce()) {
    let locked = FULL.lock_for(PATIENCE);
    assert!(locked.is_some());
    act();
}
