//! Windows (ranges of captured iterations), assembled from the events that mark their beginning and end ("edges").

use tllmprof_record::{Clock, Edge, Event, NO_STRING, What};

use crate::kinds::{Item, Kind, Length};
use crate::name::Name;
use crate::track::Track;

/// Maximum number of edges (beginnings and ends of windows) to keep. Further edges are ignored.
const MAX_EDGES: usize = 1 << 16;

/// A window (a range of captured iterations), or (if `kernels` is true) a part of a window in which kernels were
/// recorded. Times are in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    pub kernels: bool,
    /// The number of the window's first iteration.
    pub first: u64,
    /// The number of the window's last iteration. `None` if the window was not closed.
    pub last: Option<u64>,
    pub start: u64,
    /// The time at which the window was closed. For a window that was not closed, this is the end of the record's last
    /// iteration, or the time at which the next window opened, if this was earlier.
    pub end: u64,
    /// True if no iteration ended in the window: the window was closed during its first iteration, for example because
    /// the process ended.
    pub cut: bool,
}

impl Stretch {
    /// Converts the window to a timeline item.
    #[must_use]
    pub const fn item(&self) -> Item {
        Item {
            kind: Kind::Window,
            track: if self.kernels {
                Track::KernelWindows
            } else {
                Track::Windows
            },
            thread: 0,
            start: self.start,
            length: Length::Ns(self.end.saturating_sub(self.start)),
            name: Name::Window(self.first, self.last),
            value: 0,
            domain: NO_STRING,
            capturing: false,
            failed: false,
            cut: self.cut,
            scope: None,
        }
    }
}

/// The beginning or end of a window. The values are: true for a part of a window in which kernels were recorded; the
/// time in ticks; beginning or end; the number of the iteration; true for the end of a window in which no iteration
/// ended.
type WindowEdge = (bool, u64, Edge, u64, bool);

/// The beginnings and ends of a record's windows.
#[derive(Default, Debug)]
pub(crate) struct Edges(Vec<WindowEdge>);

impl Edges {
    /// Adds an event, if it marks the beginning or the end of a window.
    pub(crate) fn add(&mut self, event: &Event) {
        let (kernels, edge, iteration) = match event.what {
            What::Window { edge, iteration } => (false, edge, iteration),
            What::KernelWindow { edge, iteration } => (true, edge, iteration),
            _ => return,
        };
        if self.0.len() < MAX_EDGES {
            self.0
                .push((kernels, event.start, edge, iteration, event.cut));
        }
    }

    /// Assembles the windows from their edges. Returns first all windows, then all parts of windows with recorded
    /// kernels, both in the order of their times. `end` is the end of the record's last iteration in nanoseconds.
    pub(crate) fn stretches(mut self, clock: &Clock, end: u64) -> Vec<Stretch> {
        self.0
            .sort_by_key(|(kernels, ticks, ..)| (*kernels, *ticks));
        let mut all: Vec<Stretch> = Vec::new();
        for (kernels, ticks, edge, iteration, cut) in self.0 {
            let at = clock.ns(ticks);
            let open = all
                .last_mut()
                .filter(|last| last.kernels == kernels && last.last.is_none());
            match (edge, open) {
                (Edge::Close, Some(open)) => {
                    (open.last, open.end, open.cut) = (Some(iteration), at, cut);
                }
                (Edge::Close, None) => (),
                (Edge::Open, open) => {
                    if let Some(open) = open {
                        open.end = open.end.min(at);
                    }
                    all.push(Stretch {
                        kernels,
                        first: iteration,
                        last: None,
                        start: at,
                        end: end.max(at),
                        cut,
                    });
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use tllmprof_record::ClockKind;

    use super::*;

    #[test]
    fn edges_become_stretches_kind_by_kind() {
        let clock = Clock::new(ClockKind::Monotonic, &[]);
        let edges = Edges(vec![
            (false, 50, Edge::Close, 9, false),
            (false, 10, Edge::Open, 5, false),
            (true, 10, Edge::Open, 5, false),
            (true, 30, Edge::Close, 6, true),
            (false, 60, Edge::Open, 20, false),
            (false, 70, Edge::Open, 30, false),
            (true, 5, Edge::Close, 1, false),
        ]);
        let found: Vec<_> = edges
            .stretches(&clock, 90)
            .iter()
            .map(|s| (s.kernels, s.first, s.last, s.start, s.end, s.cut))
            .collect();
        let expected = [
            (false, 5, Some(9), 10, 50, false),
            (false, 20, None, 60, 70, false),
            (false, 30, None, 70, 90, false),
            (true, 5, Some(6), 10, 30, true),
        ];
        assert_eq!(found, expected);
    }
}
