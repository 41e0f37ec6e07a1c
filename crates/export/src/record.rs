//! An open record, and what of it there is little of.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tllmprof_record::{Clock, Damage, Edge, Entry, Error, Reader, Source, Strings, What};
use tllmprof_report::{LaunchTally, Launches, Process, Span, Timeline};

/// How many edges of windows are kept.
const EDGES: usize = 1 << 16;

/// How often a record is read from its start to its end when it is exported.
pub const PASSES: u64 = 4;

/// Is told how many bytes of a record were read; an error from it ends the reading.
pub type Progress = Arc<dyn Fn(u64) -> io::Result<()> + Send + Sync>;

/// A source that tells how far it was read.
struct Watched {
    source: Box<dyn Source + Send + Sync>,
    progress: Progress,
}

impl Source for Watched {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let length = self.source.read_at(buffer, offset)?;
        (self.progress)(length as u64)?;
        Ok(length)
    }
}

/// A window, or the part of one in which kernels were taken. Moments are in nanoseconds of
/// `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    pub kernels: bool,
    /// Its first and last iteration; of one that was not closed the last is not known.
    pub first: u64,
    pub last: Option<u64>,
    pub start: u64,
    /// Where it was not closed, when the last iteration ended.
    pub end: u64,
    /// Something else than its last iteration closed it.
    pub cut: bool,
}

/// A record that can be exported.
pub struct Record {
    /// Its facts, windows and iterations.
    pub process: Process,
    pub(crate) strings: Strings,
    pub(crate) clock: Clock,
    pub(crate) stretches: Vec<Stretch>,
    /// Which calls launched which kernels.
    pub(crate) launches: Launches,
    reader: Reader<Watched>,
}

impl Record {
    /// Opens a record, and goes through it for what of it there is little of.
    ///
    /// # Errors
    /// Where the file cannot be read or is no record.
    pub fn open(file: &Path, progress: Progress) -> Result<Self, Error> {
        let source = File::open(file)?;
        if source.metadata()?.is_dir() {
            return Err(Error::NoRecord);
        }
        Self::new(file.to_owned(), Box::new(source), progress)
    }

    /// As [`open`](Self::open), of a record that may be in memory.
    ///
    /// # Errors
    /// As above.
    pub fn new(
        file: PathBuf,
        source: Box<dyn Source + Send + Sync>,
        progress: Progress,
    ) -> Result<Self, Error> {
        let reader = Reader::new(Watched { source, progress })?;
        let process = Process::read(file, &reader)?;
        let header = reader.header();
        let clock = Clock::new(header.clock, &header.anchors);
        let mut strings = Strings::default();
        let mut edges = Vec::new();
        let mut launches = LaunchTally::new(&process, &clock);
        reader.read(|entry| match entry {
            Entry::String { id, bytes } => strings.add(id, bytes),
            Entry::Event { thread, event } => {
                launches.add(thread, &event);
                let (kernels, edge, iteration) = match event.what {
                    What::Window { edge, iteration } => (false, edge, iteration),
                    What::KernelWindow { edge, iteration } => (true, edge, iteration),
                    _ => return,
                };
                if edges.len() < EDGES {
                    edges.push((kernels, event.start, edge, iteration, event.cut));
                }
            }
        })?;
        let end = iterations(&process).map(|(_, end, _)| end).max();
        let stretches = stretches(edges, &clock, end.unwrap_or(0));
        let launches = launches.finish();
        Ok(Self {
            process,
            strings,
            clock,
            stretches,
            launches,
            reader,
        })
    }

    /// Gives every entry to `each`, until one of them fails.
    pub(crate) fn read(
        &self,
        mut each: impl FnMut(&Entry<'_>) -> io::Result<()>,
    ) -> io::Result<Damage> {
        let mut result = Ok(());
        let damage = self.reader.read(|entry| {
            if result.is_ok() {
                result = each(&entry);
            }
        });
        result.and(damage)
    }
}

/// The iterations of a process: start, end and number.
fn iterations(process: &Process) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
    let all = process.windows.iter().flat_map(|window| &window.iterations);
    all.map(|iteration| (iteration.start, iteration.end(), iteration.n))
}

/// Puts edges together, kind by kind, in the order of their times.
fn stretches(
    mut edges: Vec<(bool, u64, Edge, u64, bool)>,
    clock: &Clock,
    end: u64,
) -> Vec<Stretch> {
    edges.sort_by_key(|(kernels, ticks, ..)| (*kernels, *ticks));
    let mut all: Vec<Stretch> = Vec::new();
    for (kernels, ticks, edge, iteration, cut) in edges {
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

/// Which iteration a moment lies in.
pub struct Iterations {
    timeline: Timeline,
    numbers: Vec<u64>,
}

impl Iterations {
    pub fn of(record: &Record) -> Self {
        let mut all: Vec<_> = iterations(&record.process).collect();
        all.sort_unstable();
        let span = |(start, end, _): &(u64, u64, u64)| Span {
            start: *start,
            end: *end,
        };
        Self {
            timeline: Timeline::new(all.iter().map(span).collect()),
            numbers: all.iter().map(|(.., n)| *n).collect(),
        }
    }

    /// The number of the one that `moment` lies in, in nanoseconds of `CLOCK_MONOTONIC`.
    pub fn at(&mut self, moment: u64) -> Option<u64> {
        let index = self.timeline.at(moment)?;
        self.numbers.get(index).copied()
    }
}

#[cfg(test)]
mod tests {
    use tllmprof_record::ClockKind;

    use super::*;

    #[test]
    fn edges_become_stretches_kind_by_kind() {
        let clock = Clock::new(ClockKind::Monotonic, &[]);
        let edges = vec![
            (false, 50, Edge::Close, 9, false),
            (false, 10, Edge::Open, 5, false),
            (true, 10, Edge::Open, 5, false),
            (true, 30, Edge::Close, 6, true),
            (false, 60, Edge::Open, 20, false),
            (false, 70, Edge::Open, 30, false),
            (true, 5, Edge::Close, 1, false),
        ];
        let found: Vec<_> = stretches(edges, &clock, 90)
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
