//! Activities that overlapped the slowest iterations, as possible causes of the slowness.

use std::collections::HashMap;
use std::ops::Range;

use tllmprof_record::StringId;

/// Maximum number of different activities to store for one slow iteration. Further activities are dropped.
const MAX_KINDS: usize = 1024;

/// An activity that can make an iteration slow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Cause {
    /// A garbage collection of Python. The field is the generation.
    Gc(u16),
    GilWait,
    /// Another thread held the GIL. The field is that thread's id.
    GilHold(u32),
    /// A call that waits for the GPU. The field is the row of the called function in the record's table of CUDA calls.
    Wait(u8),
    /// A call of a Python function that the user marked for recording.
    Function(StringId),
    /// An NVTX range of the program. The fields are its domain and its name.
    Range(StringId, StringId),
}

/// The number of times that an activity overlapped an iteration, and the total time of these
/// overlaps in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Overlap {
    pub count: u64,
    pub ticks: u64,
}

/// The slowest iterations of a record, each with the activities that overlap it. `places` contains
/// the indexes of these iterations among all iterations of the record, in ascending order.
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

    /// Returns the positions in `places` of the slow iterations whose index is at least `first` and at most `last`.
    pub(crate) fn between(&self, first: usize, last: usize) -> Range<usize> {
        let from = self.places.partition_point(|place| *place < first);
        let to = self.places.partition_point(|place| *place <= last);
        from..to
    }

    /// Returns the entry of `places` at the position `index`: the index of a slow iteration among all iterations.
    /// Returns `None` if `index` is too large.
    pub(crate) fn place(&self, index: usize) -> Option<usize> {
        self.places.get(index).copied()
    }

    /// Adds an overlap of an activity with the iteration at the index `place`, if that iteration is
    /// one of the slowest.
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

    /// Returns the overlaps of each slow iteration, with the iteration's index among all
    /// iterations.
    pub(crate) fn found(self) -> impl Iterator<Item = (usize, HashMap<Cause, Overlap>)> {
        self.places.into_iter().zip(self.found)
    }
}
