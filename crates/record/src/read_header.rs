//! A header block, read: from the newest snapshot that is whole.

use std::mem::offset_of;

use crate::check::Words;
use crate::counter::Counter;
use crate::header::{Anchor, AnchorPlace, ClockKind, Ended, Figures, HeaderBlock, Snapshot};
use crate::histogram::{Histogram, SharedHistogram};
use crate::layout::{
    ANCHORS, CHUNK_BYTES, COUNTERS, EVENT_BYTES, HEADER_BYTES, MAGIC, UNCHECKED, VERSION,
    chunk_offset,
};

/// A counter that has grown more than this since the snapshot before was damaged.
const GROWTH: u64 = 1 << 44;

/// A header block, read.
#[derive(Clone, Debug)]
pub struct Header {
    pub pid: u32,
    /// The process's parent.
    pub parent: u32,
    /// `None`: a way that is not known here.
    pub ended: Option<Ended>,
    pub clock: ClockKind,
    /// Those that are whole, in the order they were taken.
    pub anchors: Vec<Anchor>,
    /// The durations, in ticks, of the iterations outside windows.
    pub outside: Histogram,
    counters: [u64; COUNTERS],
    /// The id of a record that has checks.
    pub(crate) id: Option<u64>,
    /// Bytes that the file had at its end, where that is known.
    pub(crate) length: Option<u64>,
    pub(crate) is_damaged: bool,
}

impl Header {
    /// That of what was recorded by something else: no counters, and no iterations outside windows.
    #[must_use]
    pub fn new(pid: u32, clock: ClockKind, anchors: Vec<Anchor>) -> Self {
        Self {
            pid,
            parent: 0,
            ended: None,
            clock,
            anchors,
            outside: Histogram::default(),
            counters: [0; COUNTERS],
            id: None,
            length: None,
            is_damaged: false,
        }
    }

    /// What a counter had come to.
    #[must_use]
    pub const fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter.index()]
    }

    /// Reads a header block, of which `bytes` are there.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Wrong> {
        let magic = bytes.get(..MAGIC.len()).unwrap_or(bytes);
        if !MAGIC.starts_with(magic) || bytes.is_empty() {
            return Err(Wrong::Magic);
        }
        let at = At(bytes);
        let version = offset_of!(HeaderBlock, version);
        if bytes.len() < version + size_of::<u32>() {
            return Err(Wrong::Cut);
        }
        let (version, stays) = match at.u32(version) {
            UNCHECKED => (UNCHECKED, offset_of!(HeaderBlock, anchors_taken)),
            VERSION => (VERSION, offset_of!(HeaderBlock, snapshots_taken)),
            other => return Err(Wrong::Version(other)),
        };
        if bytes.len() < stays {
            return Err(Wrong::Cut);
        }
        let sizes = [
            (offset_of!(HeaderBlock, header_bytes), HEADER_BYTES),
            (offset_of!(HeaderBlock, chunk_bytes), CHUNK_BYTES),
            (offset_of!(HeaderBlock, event_bytes), EVENT_BYTES),
        ];
        if sizes
            .iter()
            .any(|(place, size)| at.u32(*place) as usize != *size)
        {
            return Err(Wrong::Sizes);
        }
        let clock = match at.u32(offset_of!(HeaderBlock, clock)) {
            0 => ClockKind::Monotonic,
            1 => ClockKind::Counter,
            other => return Err(Wrong::Clock(other)),
        };
        let (pid, parent) = (
            at.u32(offset_of!(HeaderBlock, pid)),
            at.u32(offset_of!(HeaderBlock, parent)),
        );
        let mut header = Self::new(pid, clock, Vec::new());
        header.parent = parent;
        if version == VERSION {
            header.decode_checked(at);
        } else {
            header.decode_unchecked(at);
        }
        Ok(header)
    }

    /// The rest of a record without checks.
    fn decode_unchecked(&mut self, at: At<'_>) {
        self.ended = ended(at.u32(offset_of!(HeaderBlock, ended)).into());
        // There is nothing in the place of a checked record's id: this is none with another version.
        self.is_damaged = at.u64(offset_of!(HeaderBlock, check)) != 0;
        self.figures(at, offset_of!(HeaderBlock, figures));
        self.is_damaged |= !self.outside.keep_possible();
        let chunks = u32::try_from(self.counter(Counter::Chunks)).unwrap_or(0);
        let is_over = !matches!(self.ended, Some(Ended::Not));
        self.length = (is_over && chunks > 0).then(|| chunk_offset(chunks));
    }

    fn decode_checked(&mut self, at: At<'_>) {
        let id = at.u64(offset_of!(HeaderBlock, id));
        self.id = Some(id);
        let stays = HeaderBlock::STAYS
            .into_iter()
            .map(|place| at.u32(place).into());
        self.is_damaged = Words::of(stays.chain([id])) != at.u64(offset_of!(HeaderBlock, check));
        // What is written behind the last snapshot.
        let said = at.u32(offset_of!(HeaderBlock, ended)).into();
        let live = offset_of!(HeaderBlock, figures);
        match newest(at, id) {
            Some(snapshot) => {
                let last = at.u64(snapshot + offset_of!(Snapshot, ended));
                self.ended = ended(last);
                let length = at.u64(snapshot + offset_of!(Snapshot, length));
                self.length = (length != 0).then_some(length);
                self.figures(at, snapshot + offset_of!(Snapshot, figures));
                if last == Ended::Not as u64 {
                    self.grow(at, live);
                    if said != last {
                        // The last snapshot is not the newest one that is whole.
                        self.ended = ended(said);
                        self.is_damaged = true;
                    }
                }
            }
            None => {
                // The process may have come no further than into the first one.
                let is_begun = said == Ended::Not as u64
                    && at.u64(offset_of!(HeaderBlock, snapshots_taken)) <= 1
                    && at.u64(SNAPSHOTS[0] + offset_of!(Snapshot, order)) == 0
                    && at.0.len() == HEADER_BYTES;
                self.is_damaged |= !is_begun;
                self.ended = ended(said);
                let length = at.u64(offset_of!(HeaderBlock, length));
                self.length = (length != 0).then_some(length);
                self.anchors = anchors(at, live);
            }
        }
    }

    /// Reads the figures at `place`.
    fn figures(&mut self, at: At<'_>, place: usize) {
        self.anchors = anchors(at, place);
        let counters = place + offset_of!(Figures, counters);
        self.counters = std::array::from_fn(|index| at.u64(counters + index * size_of::<u64>()));
        self.outside = Histogram::decode(
            at.slice(place + offset_of!(Figures, outside), SharedHistogram::BYTES),
        );
    }

    /// Takes what the figures of a process that did not end had come to since the snapshot, as far as that can be.
    fn grow(&mut self, at: At<'_>, place: usize) {
        let mut grown = Self::new(self.pid, self.clock, Vec::new());
        grown.figures(at, place);
        // A tick, not a count: it may come from 0, and be hours later. No window opened long after the last anchor.
        let latest = grown.anchors.iter().map(|anchor| anchor.ticks).max();
        let until = Counter::DroppedUntil.index();
        for (index, (counter, live)) in self.counters.iter_mut().zip(grown.counters).enumerate() {
            let from = match latest {
                Some(latest) if index == until => latest.max(*counter),
                _ => *counter,
            };
            if live >= *counter && live.saturating_sub(from) < GROWTH {
                *counter = live;
            }
        }
        let can_be = grown.outside.keep_possible()
            && grown.outside.has_grown_from(&self.outside)
            && grown.outside.count() <= self.counter(Counter::Iterations).max(self.outside.count());
        if can_be {
            self.outside = grown.outside;
        }
    }
}

const SNAPSHOTS: [usize; 2] = {
    let first = offset_of!(HeaderBlock, snapshots);
    [first, first + size_of::<Snapshot>()]
};

/// Where the newest snapshot that is whole begins.
fn newest(at: At<'_>, id: u64) -> Option<usize> {
    let is_whole = |place: &usize| {
        let order = at.u64(place + offset_of!(Snapshot, order));
        let length = at.u64(place + offset_of!(Snapshot, length));
        let ended = at.u64(place + offset_of!(Snapshot, ended));
        let figures = at.slice(place + offset_of!(Snapshot, figures), Figures::BYTES);
        let (words, _) = figures.as_chunks();
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        let check = Words::of([id, order, length, ended].into_iter().chain(words));
        order != 0
            && figures.len() == Figures::BYTES
            && check == at.u64(place + offset_of!(Snapshot, check))
    };
    let whole = SNAPSHOTS.into_iter().filter(is_whole);
    whole.max_by_key(|place| at.u64(place + offset_of!(Snapshot, order)))
}

/// The anchors of the figures at `place`, in the order they were taken.
fn anchors(at: At<'_>, place: usize) -> Vec<Anchor> {
    let places = (0..ANCHORS)
        .map(|index| place + offset_of!(Figures, anchors) + index * size_of::<AnchorPlace>());
    let mut anchors: Vec<_> = places
        .map(|place| {
            let anchor = Anchor {
                ticks: at.u64(place + offset_of!(AnchorPlace, ticks)),
                monotonic_ns: at.u64(place + offset_of!(AnchorPlace, monotonic_ns)),
                unix_ns: at.u64(place + offset_of!(AnchorPlace, unix_ns)),
            };
            (at.u64(place + offset_of!(AnchorPlace, order)), anchor)
        })
        .filter(|(order, _)| *order != 0)
        .collect();
    anchors.sort_by_key(|(order, _)| *order);
    anchors.into_iter().map(|(_, anchor)| anchor).collect()
}

const fn ended(number: u64) -> Option<Ended> {
    match number {
        0 => Some(Ended::Not),
        1 => Some(Ended::InOrder),
        2 => Some(Ended::AtOnce),
        _ => None,
    }
}

/// Bytes, read at places. What is missing is zeros.
#[derive(Clone, Copy)]
struct At<'a>(&'a [u8]);

impl<'a> At<'a> {
    fn slice(self, at: usize, length: usize) -> &'a [u8] {
        let rest = self.0.get(at..).unwrap_or_default();
        rest.get(..length).unwrap_or(rest)
    }

    fn u32(self, at: usize) -> u32 {
        let bytes = self.slice(at, size_of::<u32>()).first_chunk();
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    fn u64(self, at: usize) -> u64 {
        let bytes = self.slice(at, size_of::<u64>()).first_chunk();
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

/// Why a header block is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrong {
    Magic,
    /// It ends before what every header block has.
    Cut,
    Version(u32),
    Sizes,
    Clock(u32),
}
