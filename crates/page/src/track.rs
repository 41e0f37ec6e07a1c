//! Tracks of the page's timeline: the rows into which events are drawn.

use tllmprof_config::printable;
use tllmprof_timeline::{Item, Kind, Texts, Track as On};

use crate::columns::Columns;

/// The key of a track: its type, and the GPU or thread that it belongs to. The page shows the tracks of a thread or GPU
/// in the order of these types.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum TrackKey {
    /// The time for which a GPU's streams were busy in each iteration.
    Steps { device: u8 },
    /// Kernels, copies and memory sets of a stream.
    Stream { device: u8, stream: u16 },
    /// Calls, ranges, functions and collections of a thread.
    Thread { tid: u32 },
    /// Times in which a thread held the GIL or waited for it.
    Gil { tid: u32 },
    /// NVTX ranges that may begin on one thread and end on another.
    Ranges,
}

impl TrackKey {
    /// Returns the track on which the page draws the items of `track`, a track of the crate `tllmprof_timeline`;
    /// `None` if the page does not draw these items.
    pub(crate) const fn find(track: On) -> Option<Self> {
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

    /// Returns the name of the thread or GPU that this track belongs to, as the page shows it.
    pub(crate) fn whose(self, texts: Texts<'_>) -> String {
        let facts = &texts.process.facts;
        match self {
            Self::Steps { device } | Self::Stream { device, .. } => {
                let gpu = facts.software.gpus.get(usize::from(device));
                gpu.map_or_else(String::new, printable)
            }
            Self::Thread { tid } | Self::Gil { tid } => printable(facts.thread(tid)),
            Self::Ranges => String::new(),
        }
    }
}

/// An event of a track. Times are in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrackEvent {
    start: u64,
    duration: u64,
    kind: Kind,
    flags: u8,
    name: u32,
    /// A value whose meaning is in the table of kinds. For a call or kernel of a launch, it is the
    /// launch's number plus 1, or 0 if the launch is not known.
    value: u64,
    /// For a kernel, the number of the name of its scope (the module of the model that launched it) plus 1; 0 for
    /// other events and if the scope is not known.
    scope: u32,
}

const CUT: u8 = 1;
const FAILED: u8 = 2;
const CAPTURING: u8 = 4;

impl TrackEvent {
    /// Returns an event made from an item. `name` is the number of the item's name.
    pub(crate) fn new(item: &Item, duration: u64, name: u32, value: u64, scope: u32) -> Self {
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

/// A track (row of the timeline) with its events.
#[derive(Debug)]
pub(crate) struct Track {
    /// The number, in the page's table of names, of the name of the thread or GPU that the track belongs to.
    name: u32,
    pub items: Vec<TrackEvent>,
}

impl Track {
    pub(crate) const fn new(name: u32) -> Self {
        let items = Vec::new();
        Self { name, items }
    }

    /// Sorts the events by their starts. Of events with the same start, the longest comes first,
    /// because the shorter events lie inside it.
    pub(crate) fn sort(&mut self) {
        self.items
            .sort_by_key(|item| (item.start, std::cmp::Reverse(item.duration)));
    }

    /// Adds the track to the page's columns: its type, the number of its name, its GPU or thread, its stream, the
    /// number of its events, and one column for each property of the events. Starts of events are relative to `base`,
    /// in nanoseconds.
    pub(crate) fn put(&self, key: TrackKey, base: u64, columns: &mut Columns) {
        let (kind, id, stream) = match key {
            TrackKey::Steps { device } => (0, u64::from(device), 0),
            TrackKey::Stream { device, stream } => (1, u64::from(device), u64::from(stream)),
            TrackKey::Thread { tid } => (2, u64::from(tid), 0),
            TrackKey::Gil { tid } => (3, u64::from(tid), 0),
            TrackKey::Ranges => (4, 0, 0),
        };
        let items = || self.items.iter();
        columns.column([
            kind,
            u64::from(self.name),
            id,
            stream,
            self.items.len() as u64,
        ]);
        // Starts may be negative, because an event may begin before the first iteration.
        columns.signed_differences(items().map(|item| item.start.wrapping_sub(base) as i64));
        columns.column(items().map(|item| item.duration));
        columns.column(items().map(|item| item.kind as u64));
        columns.column(items().map(|item| u64::from(item.flags)));
        columns.column(items().map(|item| u64::from(item.name)));
        columns.column(items().map(|item| item.value));
        if let TrackKey::Stream { .. } = key {
            columns.column(items().map(|item| item.scope.into()));
        }
    }
}
