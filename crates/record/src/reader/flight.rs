//! Of a record that keeps the latest iterations outside windows: in which order its chunks are to be read, and which
//! events are of iterations that are kept.

use super::Entry;
use crate::event::What;
use crate::kinds::Edge;

/// What was seen of the chunks.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    /// When the first event of each that has a time was, and its number.
    chunks: Vec<(u64, u32)>,
    /// When windows opened and closed.
    edges: Vec<(u64, Edge)>,
    windows: Vec<(u64, u64)>,
}

impl Flight {
    /// Takes note of an entry of a chunk. Those of a chunk come together.
    pub fn see(&mut self, chunk: u32, entry: &Entry<'_>) {
        let ticks = match entry {
            Entry::Event { event, .. } => event.start,
            Entry::String { .. } => 0,
        };
        match self.chunks.last_mut().filter(|(_, last)| *last == chunk) {
            Some((first, _)) if *first == 0 => *first = ticks,
            Some(_) => {}
            None => self.chunks.push((ticks, chunk)),
        }
        if let Entry::Event { event, .. } = entry
            && let What::Window { edge, .. } = event.what
        {
            self.edges.push((event.start, edge));
        }
    }

    /// The chunks, the one with the oldest events first.
    pub fn order(&mut self) -> Vec<u32> {
        // Of two edges of one moment the one that closes is the first.
        self.edges
            .sort_by_key(|(ticks, edge)| (*ticks, *edge == Edge::Open));
        let mut open = None;
        for (ticks, edge) in self.edges.drain(..) {
            match edge {
                Edge::Open => open = open.or(Some(ticks)),
                Edge::Close => self.windows.extend(open.take().map(|open| (open, ticks))),
            }
        }
        self.windows.extend(open.map(|open| (open, u64::MAX)));
        self.chunks.sort_by_key(|(first, number)| (*first, *number));
        self.chunks.iter().map(|(_, number)| *number).collect()
    }

    /// Whether an entry is to be given: all but events of iterations in no window.
    pub fn is_kept(&self, entry: &Entry<'_>) -> bool {
        let Entry::Event { event, .. } = entry else {
            return true;
        };
        let is_of_iteration = matches!(
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
        let after = self
            .windows
            .partition_point(|(open, _)| *open <= event.start);
        let window = after.checked_sub(1).and_then(|at| self.windows.get(at));
        !is_of_iteration || window.is_some_and(|(_, close)| event.start < *close)
    }
}
