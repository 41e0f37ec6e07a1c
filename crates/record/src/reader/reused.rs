//! Reads records whose chunks were overwritten, because the record keeps only the latest iterations outside windows or
//! only the latest windows. Sorts the chunks by time, and selects the events that the record keeps. A window is a
//! period in which events are recorded in detail. A chunk is a piece of the record's file.

use std::collections::BTreeMap;

use super::Entry;
use crate::counter::Counter;
use crate::event::{Event, LAST_LASTING, StringId, What};
use crate::kinds::Edge;
use crate::read_header::Header;

/// An estimate of the time, in ticks, when a chunk was begun. Most events are written by their own thread at the moment
/// when they end. The end of the first such event is the estimate. Other events, such as GPU times, are written late,
/// and may be seconds older than the event before them. They determine the estimate only in a chunk that has no event
/// of the first sort.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ChunkBegin {
    /// No event that has a time has been found in the chunk so far.
    Unknown,
    /// The start of the first event that has a time. Used until an event is found that its own thread wrote when the
    /// event ended.
    About(u64),
    /// The end of the first event that its own thread wrote when the event ended.
    At(u64),
}

impl ChunkBegin {
    const fn see(&mut self, event: &Event) {
        match (*self, own_end(event)) {
            (Self::Unknown | Self::About(_), Some(end)) => *self = Self::At(end),
            (Self::Unknown, None) if event.start > 0 => *self = Self::About(event.start),
            _ => {}
        }
    }

    const fn ticks(self) -> u64 {
        match self {
            Self::Unknown => 0,
            Self::About(ticks) | Self::At(ticks) => ticks,
        }
    }
}

/// Returns the end of an event, if it is of a kind that a thread writes when the event ends.
const fn own_end(event: &Event) -> Option<u64> {
    match event.what {
        What::Iteration { .. }
        | What::Call { .. }
        | What::Gc { .. }
        | What::GilWait
        | What::GilHold
        | What::Function { .. } => Some(event.start.saturating_add(event.duration)),
        _ => None,
    }
}

/// The data about overwritten chunks that the first pass over a record collects.
#[derive(Debug, Default)]
pub(crate) struct Reused {
    /// True if the record keeps the latest iterations outside windows. In such a record, an event opens a window at the
    /// oldest of these iterations, so they are read like the iterations of a window.
    has_flight: bool,
    /// The tick up to which windows have been dropped, if any have.
    dropped_until: Option<u64>,
    /// The tick at which the first kept window opened, if earlier windows have been dropped.
    kept_from: u64,
    /// For each chunk, an estimate of the time when it was begun, and its number.
    chunks: Vec<(ChunkBegin, u32)>,
    /// The openings and closings of windows, in order of time. At the same tick, a closing comes before an
    /// opening.
    edges: BTreeMap<EdgeKey, Event>,
    windows: Vec<(u64, u64)>,
}

impl Reused {
    /// Returns the state before the first pass over a record with this header. Returns `None` if the record keeps no
    /// iterations outside windows and has dropped no window: then no chunk was overwritten.
    pub(crate) fn new(header: &Header) -> Option<Self> {
        let has_flight = header.counter(Counter::Flight) > 0;
        let dropped_until = Some(header.counter(Counter::DroppedUntil)).filter(|until| *until > 0);
        (has_flight || dropped_until.is_some()).then(|| Self {
            has_flight,
            dropped_until,
            ..Self::default()
        })
    }

    /// Takes an entry (an event or a string) of a chunk, in the first pass. Updates the estimate of when the chunk was
    /// begun, and stores openings and closings of windows. All entries of a chunk must be passed one after another.
    pub(crate) fn see(&mut self, chunk: u32, entry: &Entry<'_>) {
        if self.chunks.last().is_none_or(|(_, last)| *last != chunk) {
            self.chunks.push((ChunkBegin::Unknown, chunk));
        }
        if let Entry::Event { event, .. } = entry
            && let Some((begun, _)) = self.chunks.last_mut()
        {
            begun.see(event);
        }
        if let Entry::Event { thread, event } = entry
            && let Some(key) = key(*thread, event)
        {
            self.edges.insert(key, *event);
        }
    }

    /// Returns the numbers of the chunks, ordered by the time of their events, the oldest first.
    pub(crate) fn order(&mut self) -> Vec<u32> {
        if let Some(until) = self.dropped_until {
            let opened = self.edges.keys().filter(|(_, is_open, ..)| *is_open);
            let kept = opened.map(|(ticks, ..)| *ticks).find(|at| *at > until);
            self.kept_from = kept.unwrap_or(until);
            self.edges = self.edges.split_off(&(self.kept_from, false, 0, 0));
        }
        let mut open = None;
        for (ticks, is_open, ..) in self.edges.keys().copied() {
            match is_open {
                true => open = open.or(Some(ticks)),
                false => self.windows.extend(open.take().map(|open| (open, ticks))),
            }
        }
        self.windows.extend(open.map(|open| (open, u64::MAX)));
        self.chunks
            .sort_by_key(|(begun, number)| (begun.ticks(), *number));
        self.chunks.iter().map(|(_, number)| *number).collect()
    }

    /// Returns true if the second pass passes this entry on to the caller. It leaves out strings, which the first pass
    /// has passed on, and events of dropped windows. It also leaves out edges (openings and closings of windows) that
    /// the first pass did not see, because a running process may overwrite an edge with a later one. If the record
    /// keeps the latest iterations outside windows, these count as a window. Older iterations, calls and similar events
    /// outside all windows are then left out, too.
    pub(crate) fn is_kept(&mut self, entry: &Entry<'_>) -> bool {
        let Entry::Event { thread, event } = entry else {
            return false;
        };
        if let Some(key) = key(*thread, event) {
            return self.edges.remove(&key).is_some();
        }
        let goes = match event.what {
            What::Frame { name, .. } => name > LAST_LASTING,
            What::Info {
                key: Some(key),
                value,
            } => !key.is_number() && value as StringId > LAST_LASTING,
            ref what => !what.is_fact(),
        };
        if !goes {
            return true;
        }
        if own_end(event).unwrap_or(event.start) < self.kept_from {
            return false;
        }
        let is_cheap = matches!(
            event.what,
            What::Iteration { .. }
                | What::Batch { .. }
                | What::Used { .. }
                | What::Call { .. }
                | What::Gc { .. }
                | What::GilWait
                | What::GilHold
                | What::GilForced
                | What::Function { .. }
        );
        if !self.has_flight || !is_cheap {
            return true;
        }
        let after = self
            .windows
            .partition_point(|(open, _)| *open <= event.start);
        let window = after.checked_sub(1).and_then(|at| self.windows.get(at));
        window.is_some_and(|(_, close)| event.start < *close)
    }

    /// Returns the edges (openings and closings of windows), with their threads, that the first pass found and the
    /// second did not. The process has overwritten these edges between the two passes.
    pub(crate) fn moved(self) -> impl Iterator<Item = (u32, Event)> {
        self.edges
            .into_iter()
            .map(|((_, _, thread, _), event)| (thread, event))
    }
}

/// The key by which an edge (a window's opening or closing) is found: its tick, a flag that is true for an opening, its
/// thread and its iteration.
type EdgeKey = (u64, bool, u32, u64);

fn key(thread: u32, event: &Event) -> Option<EdgeKey> {
    match event.what {
        What::Window { edge, iteration } => {
            Some((event.start, edge == Edge::Open, thread, iteration))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_in_the_order_in_which_their_threads_own_events_ended() {
        let mut reused = Reused {
            has_flight: true,
            ..Reused::default()
        };
        let mut see = |chunk, start, duration, what| {
            let event = Event::new(start, duration, what);
            reused.see(chunk, &Entry::Event { thread: 1, event });
        };
        let iteration = |n| What::Iteration { n, excluded: false };
        let span = What::GpuSpan {
            device: 0,
            stream: 0,
            iteration: 1,
        };
        // GPU work is reported long after it has happened, so the time of such an event does not
        // show when the chunk was begun.
        see(0, 10, 5, span);
        see(0, 200, 10, iteration(20));
        see(1, 100, 10, iteration(10));
        // This function call began before the iterations of the other chunks but ended after them. The end of the call
        // is used as the time of its chunk.
        see(2, 50, 300, What::Function { name: 1 });
        // Chunk 3 has only GPU spans, so its position is determined by the start of its first span.
        see(3, 150, 5, span);
        assert_eq!(reused.order(), [1, 3, 0, 2]);
    }

    #[test]
    fn an_edge_that_moves_while_the_record_is_read_is_given_as_it_was() {
        let event = |thread, start, what| Entry::Event {
            thread,
            event: Event::new(start, 0, what),
        };
        let open = |start: u64| {
            let (edge, iteration) = (Edge::Open, start / 10);
            event(0, start, What::Window { edge, iteration })
        };
        let iteration = |n: u64| event(1, n * 10, What::Iteration { n, excluded: false });
        let mut reused = Reused {
            has_flight: true,
            ..Reused::default()
        };
        for (chunk, entry) in [
            (0, open(50)),
            (1, iteration(4)),
            (1, iteration(5)),
            (1, iteration(6)),
        ] {
            reused.see(chunk, &entry);
        }
        assert_eq!(reused.order(), [1, 0]);
        let again = [
            iteration(4),
            iteration(5),
            iteration(6),
            open(60),
            iteration(7),
        ];
        let kept = again.map(|entry| reused.is_kept(&entry));
        assert_eq!(kept, [false, true, true, false, true]);
        let moved: Vec<_> = reused
            .moved()
            .map(|(thread, event)| (thread, event.start))
            .collect();
        assert_eq!(moved, [(0, 50)]);
    }

    /// Tests events from before the first kept window that refer to a lasting string (one with an id of at most
    /// [`LAST_LASTING`]). They must be kept: earlier versions of the library wrote each stack frame only once, so
    /// samples in later windows may refer to the frame.
    #[test]
    fn what_refers_to_a_string_that_stays_is_kept_however_old_it_is() {
        let mut reused = Reused {
            dropped_until: Some(100),
            ..Reused::default()
        };
        let event = |start, what| Entry::Event {
            thread: 1,
            event: Event::new(start, 0, what),
        };
        let (edge, iteration) = (Edge::Open, 7);
        reused.see(0, &event(200, What::Window { edge, iteration }));
        assert_eq!(reused.order(), [0]);
        let frame = |name| What::Frame {
            id: 1,
            parent: 0,
            name,
        };
        let warning = |name: StringId| What::Info {
            key: Some(crate::info::Info::Refused),
            value: name.into(),
        };
        let mut kept = |start, what| reused.is_kept(&event(start, what));
        for start in [50, 250] {
            assert!(kept(start, frame(LAST_LASTING)));
            assert!(kept(start, warning(LAST_LASTING)));
            assert_eq!(kept(start, frame(LAST_LASTING + 1)), start == 250);
            assert_eq!(kept(start, warning(LAST_LASTING + 1)), start == 250);
        }
    }
}
