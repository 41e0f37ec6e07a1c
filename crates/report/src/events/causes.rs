//! What overlapped the slowest iterations.

use std::collections::HashMap;
use std::ops::Range;

use tllmprof_record::StringId;

/// How many kinds of things are kept of one slow iteration.
const LIMIT: usize = 1024;

/// Something that takes time in an iteration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Cause {
    /// A collection of Python's garbage.
    Gc(u16),
    GilWait,
    /// Another thread, by its id, held the GIL.
    GilHold(u32),
    /// A call that waits on the device, by its row.
    Wait(u8),
    /// A run of a marked Python function.
    Function(StringId),
    /// An NVTX range of the program: domain and name.
    Range(StringId, StringId),
}

/// So many overlaps of one kind, in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Overlap {
    pub count: u64,
    pub ticks: u64,
}

/// The iterations that are watched closely, by their place in the record's timeline.
#[derive(Debug, Default)]
pub struct Watched {
    places: Vec<usize>,
    found: Vec<HashMap<Cause, Overlap>>,
}

impl Watched {
    pub fn new(mut places: Vec<usize>) -> Self {
        places.sort_unstable();
        let found = places.iter().map(|_| HashMap::new()).collect();
        Self { places, found }
    }

    /// Those among the iterations from `first` to `last`, by their order here.
    pub fn between(&self, first: usize, last: usize) -> Range<usize> {
        let from = self.places.partition_point(|place| *place < first);
        let to = self.places.partition_point(|place| *place <= last);
        from..to
    }

    /// The place of the one that is `index`th here.
    pub fn place(&self, index: usize) -> Option<usize> {
        self.places.get(index).copied()
    }

    /// Notes an overlap, if the iteration is watched.
    pub fn note(&mut self, place: usize, cause: Cause, ticks: u64) {
        let Ok(index) = self.places.binary_search(&place) else {
            return;
        };
        let Some(found) = self.found.get_mut(index) else {
            return;
        };
        if found.len() < LIMIT || found.contains_key(&cause) {
            let overlap = found.entry(cause).or_default();
            overlap.count += 1;
            overlap.ticks = overlap.ticks.saturating_add(ticks);
        }
    }

    /// What was found, by place.
    pub fn found(self) -> impl Iterator<Item = (usize, HashMap<Cause, Overlap>)> {
        self.places.into_iter().zip(self.found)
    }
}
