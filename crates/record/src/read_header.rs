//! Reads a header block, using its newest intact snapshot (a copy of the counters with a checksum). An anchor is one
//! moment, read on several clocks.

use std::mem::offset_of;

use crate::check::Words;
use crate::counter::Counter;
use crate::header::{Anchor, AnchorPlace, ClockKind, Ended, Figures, HeaderBlock, Snapshot};
use crate::histogram::{Histogram, SharedHistogram};
use crate::layout::{
    ANCHORS, CHUNK_BYTES, COUNTERS, EVENT_BYTES, HEADER_BYTES, MAGIC, UNCHECKED, VERSION,
    chunk_offset,
};

/// The limit for the growth of a counter since the last snapshot. If a counter seems to have grown by this amount or
/// more, the growth is not plausible, and the value in the snapshot is used.
const MAX_GROWTH: u64 = 1 << 44;

/// The contents of a record's header block.
#[derive(Clone, Debug)]
pub struct Header {
    pub pid: u32,
    /// The id of the parent process.
    pub parent: u32,
    /// The way in which the process ended; `None` for a value that this version does not know.
    pub ended: Option<Ended>,
    pub clock: ClockKind,
    /// The anchors (the same moment on several clocks) that were completely written, in the order in which
    /// they were taken.
    pub anchors: Vec<Anchor>,
    /// The durations, in ticks, of the iterations outside windows.
    pub outside: Histogram,
    counters: [u64; COUNTERS],
    /// The record's id; `None` in a record without checks (checksums).
    pub(crate) id: Option<u64>,
    /// The final size of the file in bytes, if it is known.
    pub(crate) length: Option<u64>,
    pub(crate) is_damaged: bool,
}

impl Header {
    /// Returns a header for data from another profiler, with all counters 0 and no iterations outside
    /// windows.
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

    /// Returns the value that a counter had when the header was read.
    #[must_use]
    pub const fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter.index()]
    }

    /// Decodes a header block from `bytes`, which may be only its beginning.
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

    /// Decodes the rest of the header of a record whose format has no checks (checksums).
    fn decode_unchecked(&mut self, at: At<'_>) {
        self.ended = ended(at.u32(offset_of!(HeaderBlock, ended)).into());
        // A record without checks has zeros where the check would be. Other values mean that the version
        // number is damaged.
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
        self.is_damaged =
            Words::check_all(stays.chain([id])) != at.u64(offset_of!(HeaderBlock, check));
        // Besides the snapshots, the header itself has a field `ended`. The writer sets this field after it has taken
        // the last snapshot.
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
                        // The header and the newest intact snapshot disagree about the end of the process. So a newer
                        // snapshot exists but is damaged.
                        self.ended = ended(said);
                        self.is_damaged = true;
                    }
                }
            }
            None => {
                // There is no intact snapshot. That is not damage if the process was killed before the first
                // snapshot was complete.
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

    /// Decodes the figures (anchors, counters and histogram) at offset `place`.
    fn figures(&mut self, at: At<'_>, place: usize) {
        self.anchors = anchors(at, place);
        let counters = place + offset_of!(Figures, counters);
        self.counters = std::array::from_fn(|index| at.u64(counters + index * size_of::<u64>()));
        self.outside = Histogram::decode(
            at.slice(place + offset_of!(Figures, outside), SharedHistogram::BYTES),
        );
    }

    /// Replaces the snapshot's counters and histogram by the current ones, which are at offset `place`. A current
    /// value is ignored if its growth since the snapshot is not plausible. Called if the snapshot was taken before the
    /// process ended.
    fn grow(&mut self, at: At<'_>, place: usize) {
        let mut grown = Self::new(self.pid, self.clock, Vec::new());
        grown.figures(at, place);
        // `DroppedUntil` is not a count but a tick, so it may have grown by hours. The writer stores an anchor when a
        // window opens, and `DroppedUntil` is not later than the opening of the latest window. So the growth of this
        // counter is measured from the latest anchor.
        let latest = grown.anchors.iter().map(|anchor| anchor.ticks).max();
        let until = Counter::DroppedUntil.index();
        for (index, (counter, live)) in self.counters.iter_mut().zip(grown.counters).enumerate() {
            let from = match latest {
                Some(latest) if index == until => latest.max(*counter),
                _ => *counter,
            };
            if live >= *counter && live.saturating_sub(from) < MAX_GROWTH {
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

/// Returns the offset of the newest intact snapshot in the header block; `None` if neither snapshot is intact.
fn newest(at: At<'_>, id: u64) -> Option<usize> {
    let is_whole = |place: &usize| {
        let order = at.u64(place + offset_of!(Snapshot, order));
        let length = at.u64(place + offset_of!(Snapshot, length));
        let ended = at.u64(place + offset_of!(Snapshot, ended));
        let figures = at.slice(place + offset_of!(Snapshot, figures), Figures::BYTES);
        let (words, _) = figures.as_chunks();
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        let check = Words::check_all([id, order, length, ended].into_iter().chain(words));
        order != 0
            && figures.len() == Figures::BYTES
            && check == at.u64(place + offset_of!(Snapshot, check))
    };
    let whole = SNAPSHOTS.into_iter().filter(is_whole);
    whole.max_by_key(|place| at.u64(place + offset_of!(Snapshot, order)))
}

/// Returns the anchors from the [`Figures`] at offset `place` in the header, in the order in which they were taken.
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

/// Bytes from which fields are read by offset. Missing bytes are read as zeros.
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

/// The reason why bytes are not a header block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrong {
    Magic,
    /// The bytes end within the fields at the start of the header, such as the version, the sizes and the clock.
    Cut,
    Version(u32),
    Sizes,
    Clock(u32),
}
