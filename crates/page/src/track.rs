//! The tracks of a timeline: what has a row of its own.

use tllmprof_config::printable;
use tllmprof_timeline::{Item, Kind, Texts, Track as On};

use crate::columns::Columns;

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

impl Place {
    /// The place of what is drawn on a track of the timeline; `None`: the page draws it elsewhere.
    pub const fn of(track: On) -> Option<Self> {
        Some(match track {
            On::Thread(tid) => Self::Thread { tid },
            On::Gil(tid) => Self::Gil { tid },
            On::Ranges(_) => Self::Ranges,
            On::Stream { device, stream } => Self::Stream { device, stream },
            On::Spans { device, .. } => Self::Steps { device },
            On::Windows
            | On::KernelWindows
            | On::Iterations
            | On::Samples(_)
            | On::Counter { .. }
            | On::Expert { .. } => return None,
        })
    }

    /// The name of its thread or its device.
    pub fn whose(self, texts: Texts<'_>) -> String {
        let facts = &texts.process.facts;
        match self {
            Self::Steps { device } | Self::Stream { device, .. } => {
                let gpu = facts.software.gpus.get(usize::from(device));
                gpu.or(facts.software.gpus.first())
                    .map_or_else(String::new, printable)
            }
            Self::Thread { tid } | Self::Gil { tid } => printable(facts.thread(tid)),
            Self::Ranges => String::new(),
        }
    }
}

/// An event of a track. Times are in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    start: u64,
    duration: u64,
    kind: Kind,
    flags: u8,
    name: u32,
    /// What the table of kinds says; of ends of a launch one more than its number, 0 where that is not
    /// known.
    value: u64,
    /// Of a kernel whose scope is known: one more than the number of its name.
    scope: u32,
}

const CUT: u8 = 1;
const FAILED: u8 = 2;
const CAPTURING: u8 = 4;

impl Shown {
    /// An item, by the number of its name.
    pub fn new(item: &Item, duration: u64, name: u32, value: u64, scope: u32) -> Self {
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        Self {
            start: item.start,
            duration,
            kind: item.kind,
            flags: flag(item.cut, CUT)
                | flag(item.failed, FAILED)
                | flag(item.capturing, CAPTURING),
            name,
            value,
            scope,
        }
    }
}

/// A track with its events.
#[derive(Debug)]
pub struct Track {
    /// The number of its thread's or its device's name.
    name: u32,
    pub items: Vec<Shown>,
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
        if let Place::Stream { .. } = place {
            columns.column(items().map(|item| item.scope.into()));
        }
    }
}
