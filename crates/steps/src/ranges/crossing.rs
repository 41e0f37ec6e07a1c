//! A table of the open NVTX start/end ranges, for the record. Such a range may end on another thread than the
//! one that started it. The table uses no lock.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::open::Begun;
use tllmprof_sync::OnlyThread;
use tllmprof_sync::hash::spread;

/// The dimensions of the table of open ranges: a range's id selects one of `GROUPS` groups, and each group
/// has `PLACES` entries.
const GROUPS: usize = 256;
const PLACES: usize = 8;

const FREE: u32 = 0;
/// The state of an entry that a thread is writing or removing, so that other threads skip it.
const BUSY: u32 = 1;
const USED: u32 = 2;

struct OpenRange {
    state: AtomicU32,
    window: AtomicU32,
    id: AtomicU64,
    since: AtomicU64,
    domain: AtomicU32,
    name: AtomicU32,
}

impl OpenRange {
    const fn new() -> Self {
        Self {
            state: AtomicU32::new(FREE),
            window: AtomicU32::new(0),
            id: AtomicU64::new(0),
            since: AtomicU64::new(0),
            domain: AtomicU32::new(0),
            name: AtomicU32::new(0),
        }
    }
}

/// The open start/end ranges of the process.
pub struct Crossing([[OpenRange; PLACES]; GROUPS]);

impl Crossing {
    pub const fn new() -> Self {
        Self([const { [const { OpenRange::new() }; PLACES] }; GROUPS])
    }

    fn group(&self, id: u64) -> &[OpenRange; PLACES] {
        &self.0[spread(id) % GROUPS]
    }

    /// Adds range `id`, which has been started. Overwrites entries of ranges from earlier windows. Returns false if
    /// all entries for this id are in use.
    pub fn started(&self, id: u64, begun: Begun) -> bool {
        let take = |place: &&OpenRange| {
            let state = place.state.load(Ordering::Relaxed);
            let is_free = state == FREE
                || state == USED && place.window.load(Ordering::Relaxed) != begun.window;
            is_free
                && place
                    .state
                    .compare_exchange(state, BUSY, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
        };
        let Some(place) = self.group(id).iter().find(take) else {
            return false;
        };
        place.window.store(begun.window, Ordering::Relaxed);
        place.id.store(id, Ordering::Relaxed);
        place.since.store(begun.since, Ordering::Relaxed);
        place.domain.store(begun.domain, Ordering::Relaxed);
        place.name.store(begun.name, Ordering::Relaxed);
        place.state.store(USED, Ordering::Release);
        true
    }

    /// Removes range `id`, which has ended, and returns the data about its beginning. Returns `None` if the range is
    /// not in the table.
    pub fn ended(&self, id: u64) -> Option<Begun> {
        let take = |place: &&OpenRange| {
            place.state.load(Ordering::Acquire) == USED
                && place.id.load(Ordering::Relaxed) == id
                && place
                    .state
                    .compare_exchange(USED, BUSY, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
        };
        let place = self.group(id).iter().find(take)?;
        let is_it = place.id.load(Ordering::Relaxed) == id;
        let begun = Begun {
            window: place.window.load(Ordering::Relaxed),
            since: place.since.load(Ordering::Relaxed),
            domain: place.domain.load(Ordering::Relaxed),
            name: place.name.load(Ordering::Relaxed),
        };
        // After this thread compared the id and before it set the state, another thread may have reused this entry for
        // another range. Then the entry stays in use.
        let state = if is_it { FREE } else { USED };
        place.state.store(state, Ordering::Release);
        is_it.then_some(begun)
    }

    /// Empties the table in the child of a fork. This includes an entry that another thread of the parent was
    /// changing.
    pub fn in_child(&self, _: &OnlyThread) {
        for place in self.0.iter().flatten() {
            if place.state.load(Ordering::Relaxed) != FREE {
                place.state.store(FREE, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(window: u32, name: u32) -> Begun {
        Begun {
            window,
            since: 5,
            domain: 0,
            name,
        }
    }

    #[test]
    fn a_range_ends_once_and_by_its_own_identifier() {
        let crossing = Crossing::new();
        for id in 0..200 {
            assert!(crossing.started(id, begun(1, id as u32)));
        }
        for id in (0..200).rev() {
            assert_eq!(crossing.ended(id), Some(begun(1, id as u32)));
            assert_eq!(crossing.ended(id), None);
        }
    }

    #[test]
    fn ranges_that_never_end_make_room_for_the_next_window() {
        let crossing = Crossing::new();
        let kept = |window| {
            let all = 0..100 * (GROUPS * PLACES) as u64;
            all.filter(|id| crossing.started(*id, begun(window, 0)))
                .count()
        };
        assert_eq!(kept(1), GROUPS * PLACES);
        assert_eq!(kept(1), 0);
        assert_eq!(kept(2), GROUPS * PLACES);
    }

    #[test]
    fn threads_end_what_others_started() {
        let crossing = Crossing::new();
        let ended = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (crossing, ended) = (&crossing, &ended);
                scope.spawn(move || {
                    for n in 0..20_000 {
                        let id = (n << 8) | thread;
                        if crossing.started(id, begun(1, id as u32)) {
                            let other = (n << 8) | ((thread + 1) % 4);
                            for id in [other, id] {
                                let found = crossing.ended(id);
                                assert!(found.is_none_or(|found| found.name == id as u32));
                                ended.fetch_add(found.is_some().into(), Ordering::Relaxed);
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(ended.load(Ordering::Relaxed), 80_000);
    }
}
