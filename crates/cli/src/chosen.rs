//! A record of which some windows alone are of interest.

use std::io;

use tllmprof_record::{Damage, Edge, Entry, Event, Header, What};
use tllmprof_report::Recording;

/// A recording without what happened in other windows than those that begin with the chosen iterations.
pub struct Chosen<R> {
    recording: R,
    /// From and until when the others were open, in ticks.
    others: Vec<(u64, u64)>,
}

impl<R: Recording> Chosen<R> {
    /// # Errors
    /// Where the recording cannot be read.
    pub fn new(recording: R, firsts: &[u64]) -> io::Result<Self> {
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
        let mut is_other = false;
        for (at, edge, iteration) in edges {
            match edge {
                Edge::Open => {
                    is_other = !firsts.contains(&iteration);
                    if is_other {
                        others.push((at, u64::MAX));
                    }
                }
                Edge::Close if is_other => {
                    if let Some(open) = others.last_mut() {
                        open.1 = at;
                    }
                }
                Edge::Close => {}
            }
        }
        Ok(Self { recording, others })
    }

    fn is_wanted(&self, event: &Event) -> bool {
        let is_of_all = matches!(
            event.what,
            What::Info { .. } | What::CallName { .. } | What::ThreadName { .. }
        );
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
        let header = Header::new(1, ClockKind::Monotonic, Vec::new());
        let chosen = Chosen::new(Windows(header), &[20]).unwrap();
        let process = Process::read(PathBuf::new(), &chosen).unwrap();
        let windows: Vec<_> = process
            .windows
            .iter()
            .map(|window| (window.first, window.iterations.len()))
            .collect();
        assert_eq!(windows, [(20, 2)]);
    }
}
