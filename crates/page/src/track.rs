//! The tracks of a timeline: what has a row of its own.

use crate::columns::Columns;
use crate::kind::Kind;

/// What a track shows. Their order is that on the page within a thread or a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// What each stream of a device did in an iteration.
    Steps { device: u8 },
    /// Kernels, copies and sets of a stream.
    Stream { device: u8, stream: u16 },
    /// Calls, ranges, functions and collections of a thread.
    Thread { tid: u32 },
    /// When a thread held the GIL or waited for it.
    Gil { tid: u32 },
    /// NVTX ranges that may end on another thread than they began on.
    Ranges,
}

/// An event of a track. Times are in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    pub start: u64,
    pub duration: u64,
    pub kind: Kind,
    pub flags: u8,
    pub name: u32,
    /// What the kind says: objects collected, an iteration, bytes; of a call and a kernel one more than
    /// the number of the launch, 0 where that is not known.
    pub value: u64,
}

pub const CUT: u8 = 1;
pub const FAILED: u8 = 2;
pub const CAPTURING: u8 = 4;

/// A track with its events.
#[derive(Debug)]
pub struct Track {
    /// The number of its thread's or its device's name.
    name: u32,
    pub items: Vec<Item>,
}

impl Track {
    pub const fn new(name: u32) -> Self {
        let items = Vec::new();
        Self { name, items }
    }

    /// Brings the events in the order of their starts. Of those that begin at once the longest goes
    /// around the others.
    pub fn sort(&mut self) {
        self.items
            .sort_by_key(|item| (item.start, std::cmp::Reverse(item.duration)));
    }

    /// The track's type, its name's number, its device or thread, its stream and the number of its events;
    /// then those.
    pub fn put(&self, place: Place, base: u64, columns: &mut Columns) {
        let (kind, id, stream) = match place {
            Place::Steps { device } => (0, u64::from(device), 0),
            Place::Stream { device, stream } => (1, u64::from(device), u64::from(stream)),
            Place::Thread { tid } => (2, u64::from(tid), 0),
            Place::Gil { tid } => (3, u64::from(tid), 0),
            Place::Ranges => (4, 0, 0),
        };
        let items = || self.items.iter();
        columns.column([
            kind,
            u64::from(self.name),
            id,
            stream,
            self.items.len() as u64,
        ]);
        // What began before the first iteration is before 0.
        columns.signed_differences(items().map(|item| item.start.wrapping_sub(base) as i64));
        columns.column(items().map(|item| item.duration));
        columns.column(items().map(|item| item.kind as u64));
        columns.column(items().map(|item| u64::from(item.flags)));
        columns.column(items().map(|item| u64::from(item.name)));
        columns.column(items().map(|item| item.value));
    }
}
