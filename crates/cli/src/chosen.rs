//! A view of a record that shows only some of its windows. A window is a range of iterations that was captured.

use std::io;

use tllmprof_record::{Damage, Edge, Entry, Event, Header, What};
use tllmprof_report::{Origin, Recording};

/// A view of a recording without the events of hidden windows. Facts about the whole process stay visible. The
/// iterations that are passed to [`Chosen::new`] decide which windows are hidden.
pub(crate) struct Chosen<R> {
    recording: R,
    /// Start and end of each hidden window (a range of captured iterations), in ticks of the record's clock.
    others: Vec<(u64, u64)>,
}

impl<R: Recording> Chosen<R> {
    /// Creates a view that shows only those windows whose first iteration is in `firsts`. If `past` is true, a window
    /// that ends at the iteration right before one of `firsts` is shown too.
    ///
    /// # Errors
    /// The recording cannot be read.
    pub(crate) fn new(recording: R, firsts: &[u64], past: bool) -> io::Result<Self> {
        let mut edges = Vec::new();
        recording.read(|entry| {
            if let Entry::Event { event, .. } = entry
                && let What::Window { edge, iteration } = event.what
            {
                edges.push((event.start, edge, iteration));
            }
        })?;
        edges.sort_by_key(|(at, ..)| *at);
        let mut others: Vec<(u64, u64)> = Vec::new();
        let mut other = None;
        for (at, edge, iteration) in edges {
            match edge {
                Edge::Open => {
                    others.extend(other.map(|from| (from, at)));
                    other = (!firsts.contains(&iteration)).then_some(at);
                }
                Edge::Close => {
                    let is_past = past && firsts.contains(&(iteration + 1));
                    let ended = other.take().filter(|_| !is_past);
                    others.extend(ended.map(|from| (from, at)));
                }
            }
        }
        others.extend(other.map(|from| (from, u64::MAX)));
        Ok(Self { recording, others })
    }

    fn is_wanted(&self, event: &Event) -> bool {
        let is_of_all = event.what.is_fact();
        let at = event.start;
        let place = self.others.partition_point(|(from, _)| *from <= at);
        let other = place.checked_sub(1).map(|place| self.others[place]);
        is_of_all || other.is_none_or(|(_, until)| at > until)
    }
}

impl<R: Recording> Recording for Chosen<R> {
    fn header(&self) -> &Header {
        self.recording.header()
    }

    fn origin(&self) -> Origin {
        self.recording.origin()
    }

    fn read(&self, mut each: impl FnMut(Entry<'_>)) -> io::Result<Damage> {
        self.recording.read(|entry| match &entry {
            Entry::Event { event, .. } if !self.is_wanted(event) => {}
            _ => each(entry),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use tllmprof_record::ClockKind;
    use tllmprof_report::Process;

    struct Windows(Header);

    impl Recording for Windows {
        fn header(&self) -> &Header {
            &self.0
        }

        fn read(&self, mut each: impl FnMut(Entry<'_>)) -> io::Result<Damage> {
            for first in [10, 20, 30] {
                let at = first * 1000;
                let window =
                    |at, edge, iteration| Event::new(at, 0, What::Window { edge, iteration });
                let iteration =
                    |n: u64| Event::new(n * 1000 + 1, 900, What::Iteration { n, excluded: false });
                let events = [
                    window(at, Edge::Open, first),
                    iteration(first),
                    iteration(first + 1),
                    window(at + 1999, Edge::Close, first + 1),
                ];
                events
                    .into_iter()
                    .for_each(|event| each(Entry::Event { thread: 1, event }));
            }
            Ok(Damage::default())
        }
    }

    #[test]
    fn what_happened_in_other_windows_is_left_out() {
        let of = |past, firsts| {
            let header = Header::new(1, ClockKind::Monotonic, Vec::new());
            let chosen = Chosen::new(Windows(header), firsts, past).unwrap();
            let process = Process::read(PathBuf::new(), &chosen).unwrap();
            let windows = process.windows.iter();
            windows
                .map(|window| (window.first, window.iterations.len()))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(false, &[20]), [(20, 2)]);
        // The window of iterations 20 and 21 ends right before 22, so it is shown. The window that begins with 30 is
        // shown because 30 is its first iteration.
        assert_eq!(of(true, &[22, 30]), [(20, 2), (30, 2)]);
        assert_eq!(of(false, &[22]), []);
    }
}
