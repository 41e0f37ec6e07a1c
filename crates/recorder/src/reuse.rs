//! Chunks that are used again, while the latest iterations alone are kept ([`super::flight`]). Those of windows are
//! [`super::keep`]'s.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;

use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::Chunk;
use tllmprof_sync::Guard;

use super::bounded::Bounded;
use super::state::{self, Keeps};
use super::{keep, space};

/// Chunks that wait to be used again: 16 MiB of them. Where that is too little for all iterations that are to be kept,
/// fewer are.
const MOST: usize = 256;
/// How long a thread waits for the chunks that wait.
const PATIENCE: Duration = Duration::from_millis(1);

/// The generation of a chunk that has something of a window.
pub const OF_WINDOWS: u64 = 0;

lifecycle::global! {
    stage: Sinks;

    /// Chunks are to be used again at some time.
    #[fork(keep = "the settings are the same")]
    static IS_WANTED: AtomicBool = AtomicBool::new(false);
    #[fork(keep = "the settings are the same")]
    static HAS_FLIGHT: AtomicBool = AtomicBool::new(false);
    /// Moves on where a window opens or closes: what was begun before is not used again.
    #[fork(keep = "differences alone matter")]
    static GENERATION: AtomicU64 = AtomicU64::new(0);
    /// Chunks that were filled when fewer iterations than these had been kept are of a window.
    #[fork(reset)]
    static STAYS: AtomicU64 = AtomicU64::new(0);
    /// What could be taken had changed so often when there was none.
    #[fork(reset)]
    static NONE_AT: AtomicU64 = AtomicU64::new(0);
    /// Chunks that are of iterations outside windows have been filled so often.
    #[fork(keep = "differences alone matter")]
    static FILLED: AtomicU64 = AtomicU64::new(0);
    /// How many iterations have been kept, and how many of those are not any more.
    #[fork(reset)]
    static BEGUN: AtomicU64 = AtomicU64::new(0);
    #[fork(reset)]
    static GONE: AtomicU64 = AtomicU64::new(0);
    #[fork(by = in_child)]
    static FULL: Bounded<Full> = Bounded::new(Full::none());
}

/// Chunks that are full, the oldest first, each with how many iterations had been kept by then.
struct Full {
    chunks: [(u32, u64); MOST],
    first: usize,
    count: usize,
    /// What [`STAYS`] was when it was looked at last.
    stays: u64,
}

impl Full {
    const fn none() -> Self {
        Self {
            chunks: [(0, 0); MOST],
            first: 0,
            count: 0,
            stays: 0,
        }
    }

    /// Gives those that are of a window by now to `give`.
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

    /// Adds a chunk; where there is no room it is not used again.
    fn push(&mut self, number: u32, begun: u64) {
        if self.count < MOST {
            self.chunks[(self.first + self.count) % MOST] = (number, begun);
            self.count += 1;
        }
    }

    /// Takes the oldest if all of it is of iterations that are `gone`, or if there are too many.
    fn pop(&mut self, gone: u64) -> Option<u32> {
        let (_, begun) = self.chunks[self.first];
        if begun >= gone && self.count < MOST {
            return None;
        }
        self.pop_any()
    }

    /// Takes the oldest, whatever is in it.
    fn pop_any(&mut self) -> Option<u32> {
        if self.count == 0 {
            return None;
        }
        let (number, _) = self.chunks[self.first];
        self.first = (self.first + 1) % MOST;
        self.count -= 1;
        Some(number)
    }
}

/// Says that chunks are to be used again: those of iterations outside windows, if `flight`, or those of windows. For the
/// constructor.
pub fn want(flight: bool) {
    HAS_FLIGHT.store(flight, Ordering::Relaxed);
    IS_WANTED.store(true, Ordering::Release);
}

/// Whether iterations outside windows are to be kept at some time.
pub fn has_flight() -> bool {
    HAS_FLIGHT.load(Ordering::Relaxed)
}

/// Whether chunks are to be used again at some time.
pub fn is_wanted() -> bool {
    IS_WANTED.load(Ordering::Acquire)
}

/// Whether iterations are kept now: there is a record, and no window is open.
pub fn is_on() -> bool {
    state::is_kept(Keeps::Latest)
}

/// Chunks that are begun from here on are used again.
pub fn begin() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    state::keep(Keeps::Latest, true);
}

/// Those that threads have are not used again. `stays`: nor are those that wait, as they are of a window then: where
/// another thread has them now, that is so for whoever looks at them next. Whether any would have been.
pub fn end(stays: bool) -> bool {
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

/// Chunks that are full, none of a window among them.
fn full() -> Option<Guard<'static, Full>> {
    let mut full = FULL.lock_for(PATIENCE)?;
    full.settle(STAYS.load(Ordering::Acquire), keep::is_full);
    Some(full)
}

/// Of all iterations the places of those that are kept: the first, and the one behind the last.
pub fn kept() -> (u64, u64) {
    (GONE.load(Ordering::Relaxed), BEGUN.load(Ordering::Relaxed))
}

/// One more is kept, and those before `first` are not any more.
pub fn keep_one(first: u64) {
    GONE.store(first, Ordering::Relaxed);
    BEGUN.store(BEGUN.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// None is kept any more. Chunks that are filled from here on are not of the window that those became.
pub fn keep_none() {
    BEGUN.store(BEGUN.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    GONE.store(BEGUN.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// What a chunk is begun in.
pub fn generation() -> u64 {
    match is_on() {
        true => GENERATION.load(Ordering::Relaxed),
        false => OF_WINDOWS,
    }
}

/// A thread has filled a chunk that was begun in `generation`, and has no writer there any more.
pub fn is_full(number: u32, generation: u64) {
    if generation == OF_WINDOWS || generation != self::generation() {
        keep::is_full(number);
    } else if let Some(mut full) = full() {
        let begun = kept().1;
        // The iterations may have become a window meanwhile.
        match begun < full.stays {
            true => keep::is_full(number),
            false => full.push(number, begun),
        }
        FILLED.fetch_add(1, Ordering::Release);
    }
}

/// A chunk for events, and its number.
pub enum Free {
    /// One that nobody has used.
    New(u32, Chunk),
    /// One that holds nothing any more that is kept.
    Used(u32, Chunk),
}

/// A chunk that can be written to. `None` where there is no room.
pub fn take() -> Option<Free> {
    let changes = changes();
    if NONE_AT.load(Ordering::Relaxed) == changes {
        // Each event that is dropped comes here.
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

/// Something else each time that [`take`] may have another answer.
fn changes() -> u64 {
    let (gone, _) = kept();
    let ours = FILLED.load(Ordering::Acquire).wrapping_add(gone);
    // Never what it is at the start.
    let theirs = keep::changes().wrapping_add(GENERATION.load(Ordering::Relaxed));
    ours.wrapping_add(theirs).wrapping_add(1)
}

/// The child of a fork has no record until it begins one of its own.
fn in_child(alone: &OnlyThread) {
    FULL.break_open(alone);
    if let Some(mut full) = FULL.lock_for(PATIENCE) {
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
        for number in 0..MOST as u32 + 5 {
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
