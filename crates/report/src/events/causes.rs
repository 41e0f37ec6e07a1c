//! Activities that overlapped the slowest iterations.

use std::collections::HashMap;
use std::ops::Range;

use tllmprof_record::StringId;

/// Maximum number of kinds of activities to keep for one slow iteration.
const MAX_KINDS: usize = 1024;

/// An activity that takes time in an iteration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Cause {
    /// A garbage collection of Python, by generation.
    Gc(u16),
    GilWait,
    /// Another thread held the GIL. The value is that thread's ID.
    GilHold(u32),
    /// A call that waits for the device, by its row in the table of calls.
    Wait(u8),
    /// A run of a marked Python function.
    Function(StringId),
    /// An NVTX range of the program: domain and name.
    Range(StringId, StringId),
}

/// Number of overlaps of one kind of activity with an iteration, and their total time in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Overlap {
    pub count: u64,
    pub ticks: u64,
}

/// The slowest iterations, which are watched: every activity that overlaps one is recorded.
/// `places` has their indexes in the record's timeline.
#[derive(Debug, Default)]
pub(crate) struct SlowestIterations {
    places: Vec<usize>,
    found: Vec<HashMap<Cause, Overlap>>,
}

impl SlowestIterations {
    pub(crate) fn new(mut places: Vec<usize>) -> Self {
        places.sort_unstable();
        let found = places.iter().map(|_| HashMap::new()).collect();
        Self { places, found }
    }

    /// Finds the watched iterations whose index in the timeline is from `first` to `last`. Returns
    /// their range in this list.
    pub(crate) fn between(&self, first: usize, last: usize) -> Range<usize> {
        let from = self.places.partition_point(|place| *place < first);
        let to = self.places.partition_point(|place| *place <= last);
        from..to
    }

    /// Returns the index in the timeline of the watched iteration at `index`.
    pub(crate) fn place(&self, index: usize) -> Option<usize> {
        self.places.get(index).copied()
    }

    /// Records an overlap of an activity with the iteration at index `place`, if that iteration is
    /// watched.
    pub(crate) fn note(&mut self, place: usize, cause: Cause, ticks: u64) {
        let Ok(index) = self.places.binary_search(&place) else {
            return;
        };
        let Some(found) = self.found.get_mut(index) else {
            return;
        };
        if found.len() < MAX_KINDS || found.contains_key(&cause) {
            let overlap = found.entry(cause).or_default();
            overlap.count += 1;
            overlap.ticks = overlap.ticks.saturating_add(ticks);
        }
    }

    /// Returns the overlaps of each watched iteration, with its index in the timeline.
    pub(crate) fn found(self) -> impl Iterator<Item = (usize, HashMap<Cause, Overlap>)> {
        self.places.into_iter().zip(self.found)
    }
}
