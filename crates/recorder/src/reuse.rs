//! Reuses (overwrites) the chunks of the flight recorder ([`super::flight`]), which keeps only the latest iterations. A
//! chunk is a piece of the record's file. The module [`super::keep`] decides when chunks of old windows are reused. A
//! window is a period in which all requested events are recorded.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;

use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::Chunk;
use tllmprof_sync::Guard;

use super::bounded::Bounded;
use super::state::{self, Keeps};
use super::{keep, space};

/// The maximum number of full chunks that wait to be reused (16 MiB in all). If the iterations to be kept need more
/// chunks, fewer iterations are kept.
const MAX_WAITING: usize = 256;
/// The maximum time for which a thread waits for the lock on the list of full chunks.
const LOCK_TIMEOUT: Duration = Duration::from_millis(1);

/// The generation number of chunks that hold events of a window. This module never reuses such chunks.
pub(crate) const OF_WINDOWS: u64 = 0;

lifecycle::global! {
    stage: Sinks;

    /// True if the settings allow chunks to be overwritten.
    #[fork(keep = "the settings are the same")]
    static IS_WANTED: AtomicBool = AtomicBool::new(false);
    #[fork(keep = "the settings are the same")]
    static HAS_FLIGHT: AtomicBool = AtomicBool::new(false);
    /// A number that increases when the flight recorder starts or stops keeping iterations, because a window closes
    /// or opens. Each chunk has the number at which it was begun. The flight recorder does not reuse a chunk with an
    /// earlier number.
    #[fork(keep = "only differences matter")]
    static GENERATION: AtomicU64 = AtomicU64::new(0);
    /// One more than the number of iterations that had been kept when the kept iterations last became part of a window.
    /// A full chunk that was filled before that moment belongs to the window, so it is not reused.
    #[fork(reset)]
    static STAYS: AtomicU64 = AtomicU64::new(0);
    /// The value of [`changes`] when [`take`] last found no chunk.
    #[fork(reset)]
    static NONE_AT: AtomicU64 = AtomicU64::new(0);
    /// The number of times that a chunk with iterations outside windows was filled.
    #[fork(keep = "only differences matter")]
    static FILLED: AtomicU64 = AtomicU64::new(0);
    /// The number of iterations kept so far, including those that have been dropped.
    #[fork(reset)]
    static BEGUN: AtomicU64 = AtomicU64::new(0);
    /// The number of kept iterations that have been dropped.
    #[fork(reset)]
    static GONE: AtomicU64 = AtomicU64::new(0);
    #[fork(by = in_child)]
    #[together(tables)]
    static FULL: Bounded<Full> = Bounded::new(Full::none());
}

/// The full chunks, the oldest first. An entry consists of a chunk's number, and the number of iterations that had been
/// kept so far when the chunk was filled.
struct Full {
    chunks: [(u32, u64); MAX_WAITING],
    first: usize,
    count: usize,
    /// The value of [`STAYS`] when this list was last checked for chunks that have become part of a
    /// window.
    stays: u64,
}

impl Full {
    const fn none() -> Self {
        Self {
            chunks: [(0, 0); MAX_WAITING],
            first: 0,
            count: 0,
            stays: 0,
        }
    }

    /// Removes the chunks that have become part of a window, and passes their numbers to `give`. These are the chunks
    /// that were filled when fewer than `stays` iterations had been kept. `stays` is the value of [`STAYS`].
    fn settle(&mut self, stays: u64, mut give: impl FnMut(u32)) {
        if self.stays == stays {
            return;
        }
        self.stays = stays;
        for _ in 0..self.count {
            let (number, begun) = self.chunks[self.first];
            self.pop_any();
            match begun < stays {
                true => give(number),
                false => self.push(number, begun),
            }
        }
    }

    /// Adds a chunk. If there is no room for it in the list, the chunk is never reused.
    fn push(&mut self, number: u32, begun: u64) {
        if self.count < MAX_WAITING {
            self.chunks[(self.first + self.count) % MAX_WAITING] = (number, begun);
            self.count += 1;
        }
    }

    /// Takes the oldest chunk if all its iterations have been dropped (they are among the first `gone` ones), or if
    /// the list is full.
    fn pop(&mut self, gone: u64) -> Option<u32> {
        let (_, begun) = self.chunks[self.first];
        if begun >= gone && self.count < MAX_WAITING {
            return None;
        }
        self.pop_any()
    }

    /// Takes the oldest chunk, regardless of its contents.
    fn pop_any(&mut self) -> Option<u32> {
        if self.count == 0 {
            return None;
        }
        let (number, _) = self.chunks[self.first];
        self.first = (self.first + 1) % MAX_WAITING;
        self.count -= 1;
        Some(number)
    }
}

/// Enables the reuse of chunks. Called when the library is loaded. `flight` is true if chunks of iterations outside
/// windows are reused. It is false if only chunks of old windows are reused.
pub(crate) fn want(flight: bool) {
    HAS_FLIGHT.store(flight, Ordering::Relaxed);
    IS_WANTED.store(true, Ordering::Release);
}

/// Returns true if the settings ask for the flight recorder, which keeps iterations outside windows.
pub(crate) fn has_flight() -> bool {
    HAS_FLIGHT.load(Ordering::Relaxed)
}

/// Returns true if the settings allow chunks to be overwritten.
pub(crate) fn is_wanted() -> bool {
    IS_WANTED.load(Ordering::Acquire)
}

/// Returns true if the flight recorder keeps iterations now: there is a record, and no window is open.
pub(crate) fn is_on() -> bool {
    state::is_kept(Keeps::Latest)
}

/// Starts keeping iterations outside windows. The chunks that threads begin after this call may be reused.
pub(crate) fn begin() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    state::keep(Keeps::Latest, true);
}

/// Stops keeping iterations, and returns true if iterations were being kept. The chunks that threads are writing to
/// now are not reused.
///
/// If `stays`, the full chunks in the list are not reused either, because they now belong to a window. The next
/// thread that locks the list removes them.
pub(crate) fn end(stays: bool) -> bool {
    if !state::keep(Keeps::Latest, false) {
        return false;
    }
    GENERATION.fetch_add(1, Ordering::Relaxed);
    if stays {
        STAYS.store(BEGUN.load(Ordering::Relaxed) + 1, Ordering::Release);
        drop(full());
    }
    true
}

/// Locks the list of full chunks, and removes those that have become part of a window.
fn full() -> Option<Guard<'static, Full>> {
    let mut full = FULL.lock_for(LOCK_TIMEOUT)?;
    full.settle(STAYS.load(Ordering::Acquire), keep::is_full);
    Some(full)
}

/// Returns the range of kept iterations: the index of the first, and one more than the index of the last.
pub(crate) fn kept() -> (u64, u64) {
    (GONE.load(Ordering::Relaxed), BEGUN.load(Ordering::Relaxed))
}

/// Counts one more kept iteration, and drops the iterations with an index below `first`.
pub(crate) fn keep_one(first: u64) {
    GONE.store(first, Ordering::Relaxed);
    BEGUN.store(BEGUN.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Drops all kept iterations, and counts one more. If the kept iterations have become a window, this ensures that
/// chunks filled from here on do not belong to that window.
pub(crate) fn keep_none() {
    BEGUN.store(BEGUN.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    GONE.store(BEGUN.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Counts `iterations` iterations as kept and dropped. So a chunk that is filled from here on is reused no earlier than
/// if this many iterations had been kept before it.
pub(crate) fn make_past(iterations: u64) {
    BEGUN.store(
        BEGUN.load(Ordering::Relaxed) + iterations,
        Ordering::Relaxed,
    );
    GONE.store(BEGUN.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Keeps again the latest `iterations` iterations that were counted, and no earlier ones.
pub(crate) fn keep_past(iterations: u64) {
    let first = BEGUN.load(Ordering::Relaxed).saturating_sub(iterations);
    GONE.store(first, Ordering::Relaxed);
}

/// Returns the generation number for a chunk that begins now. Chunks of older generations are not reused.
pub(crate) fn generation() -> u64 {
    match is_on() {
        true => GENERATION.load(Ordering::Relaxed),
        false => OF_WINDOWS,
    }
}

/// Makes a chunk available for reuse. Called when a thread has filled the chunk, which was begun in `generation`, and
/// no longer writes into it.
pub(crate) fn is_full(number: u32, generation: u64) {
    if generation == OF_WINDOWS || generation != self::generation() {
        keep::is_full(number);
    } else if let Some(mut full) = full() {
        let begun = kept().1;
        // If a window that includes the kept iterations has opened in the meantime, the chunk
        // belongs to it and is not reused.
        match begun < full.stays {
            true => keep::is_full(number),
            false => full.push(number, begun),
        }
        FILLED.fetch_add(1, Ordering::Release);
    }
}

/// A chunk for events, and its number.
pub(crate) enum Free {
    /// A chunk that has never been used.
    New(u32, Chunk),
    /// A chunk that was used before and whose events have all been dropped.
    Used(u32, Chunk),
}

/// Returns a chunk that can be written to. Returns `None` if the record is full and no chunk can be reused.
pub(crate) fn take() -> Option<Free> {
    let changes = changes();
    if NONE_AT.load(Ordering::Relaxed) == changes {
        // While the record is full, each thread calls this function for each event that it drops. So this path does as
        // little as possible.
        return None;
    }
    let used = |number| Some(Free::Used(number, space::again(number)?));
    if let Some(number) = full().and_then(|mut full| full.pop(kept().0)) {
        return used(number);
    }
    if let Some((number, chunk)) = space::take() {
        return Some(Free::New(number, chunk));
    }
    let taken = keep::take();
    if let Some(Some(number)) = taken {
        return used(number);
    }
    let ours = full();
    let are_known = ours.is_some() && taken.is_some() && space::is_full();
    if let Some(number) = ours.filter(|_| is_on()).and_then(|mut full| full.pop_any()) {
        return used(number);
    }
    if are_known {
        NONE_AT.store(changes, Ordering::Relaxed);
        keep::has_none();
    }
    None
}

/// Returns a value that changes whenever [`take`] may give a different result.
fn changes() -> u64 {
    let (gone, _) = kept();
    let ours = FILLED.load(Ordering::Acquire).wrapping_add(gone);
    // 1 is added so that the result differs from 0, the initial value of [`NONE_AT`].
    let theirs = keep::changes().wrapping_add(GENERATION.load(Ordering::Relaxed));
    ours.wrapping_add(theirs).wrapping_add(1)
}

/// Empties the list in the child of a fork, which has no record until it begins one of its own.
fn in_child(alone: &OnlyThread) {
    FULL.break_open(alone);
    if let Some(mut full) = FULL.lock_for(LOCK_TIMEOUT) {
        full.count = 0;
        full.stays = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_used_again_once_all_in_them_is_too_old_or_there_are_too_many() {
        let mut full = Full::none();
        assert_eq!(full.pop(u64::MAX), None);
        full.push(7, 100);
        full.push(9, 150);
        assert_eq!(full.pop(100), None, "iteration 100 may be in it");
        assert_eq!(full.pop(101), Some(7));
        assert_eq!(full.pop(101), None);
        for number in 0..MAX_WAITING as u32 + 5 {
            full.push(number, 500);
        }
        assert_eq!((full.pop(0), full.pop(0)), (Some(9), None));
        assert_eq!(full.pop(501), Some(0));
    }

    #[test]
    fn chunks_of_iterations_that_became_a_window_go_whoever_looks_at_them_next() {
        let mut full = Full::none();
        for (number, begun) in [(3, 10), (4, 25), (5, 20)] {
            full.push(number, begun);
        }
        let mut given = Vec::new();
        full.settle(21, |number| given.push(number));
        full.settle(21, |_| panic!("they are settled"));
        assert_eq!(given, [3, 5]);
        assert_eq!((full.pop(30), full.pop(30)), (Some(4), None));
    }
}
